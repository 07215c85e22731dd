// SPDX-License-Identifier: MIT OR Apache-2.0
// What the programs of storm.bpf.c and their loader both know.
struct event {
	unsigned long long pid_tgid;
	unsigned long long number;
};

#define ADDITIONS 1000
