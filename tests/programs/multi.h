// SPDX-License-Identifier: MIT OR Apache-2.0
#define PLACES_MAX 16

struct place {
	unsigned long long hits;
	unsigned long long function;
};
