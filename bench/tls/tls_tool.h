// SPDX-License-Identifier: MIT OR Apache-2.0
// What the programs and the tool agree on.
#define TEXT_BYTES 2048 // of a message that are copied at most

struct event {
	unsigned long long begin_ns, took_ns;
	unsigned pid, tid, uid;
	int bytes; // that were read or written
	char comm[16];
	char is_read;
	char text[TEXT_BYTES];
};
