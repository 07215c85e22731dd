/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#pragma once

enum { TEXT_BYTES = 32, DEPTH = 16 };

struct record {
	unsigned pid;
	unsigned uid;
	char text[TEXT_BYTES];
	int stack;
	unsigned calls;
};
