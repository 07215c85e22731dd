// SPDX-License-Identifier: MIT OR Apache-2.0
#define MARKS_MAX 8
#define ARGUMENTS_MAX 6

struct mark {
	unsigned long long hits;
	unsigned long long count;
	long long arguments[ARGUMENTS_MAX];
};
