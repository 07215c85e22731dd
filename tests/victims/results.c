// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions of several types.
#include <stdbool.h>

enum color { RED = -1, GREEN, BLUE };

__attribute__((noipa)) int number(int value)
{
	return value;
}

__attribute__((noipa)) long wide(int value)
{
	return value;
}

__attribute__((noipa)) bool is_positive(int value)
{
	return value > 0;
}

__attribute__((noipa)) enum color color(int value)
{
	return value;
}

__attribute__((noipa)) const char *text(int value)
{
	return value > 0 ? "text" : 0;
}

int main(void)
{
	for (int value = -1; value <= 1; value++) {
		number(value);
		wide(value);
		is_positive(value);
		color(value);
		text(value);
	}
	return 0;
}
