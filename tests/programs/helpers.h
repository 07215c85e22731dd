/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What programs tell: a name, a number, some bytes. */
#define RESULTS_MAX 1024
#define DATA_BYTES 64

struct result {
	char name[40];
	long long value;
	unsigned bytes;
	unsigned char data[DATA_BYTES];
};
