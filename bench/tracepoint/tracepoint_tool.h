// SPDX-License-Identifier: MIT OR Apache-2.0
// A recorded event.
#define NAME_BYTES 16

struct record {
	unsigned long long when; // ns, CLOCK_MONOTONIC
	unsigned long long who; // process in the upper half, thread in the lower one
	unsigned long long number;
	int id;
	char name[NAME_BYTES];
};
