// SPDX-License-Identifier: MIT OR Apache-2.0
// THREADS threads throw through frames with destructors and catch, until a line of input comes. Prints how often, and how many
// exceptions had a wrong value or left an object undestroyed.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

static std::atomic<bool> stop;
static std::atomic<unsigned long> thrown, wrong;

struct Held {
	long &count;
	explicit Held(long &count) : count(count) { count++; }
	~Held() { count--; }
};

extern "C" __attribute__((noinline)) long raise_at(long depth, long value, long &held)
{
	Held one(held);

	if (depth == 0)
		throw std::out_of_range(std::to_string(value));
	return raise_at(depth - 1, value, held) + 1;
}

extern "C" __attribute__((noinline)) long attempt(long value)
{
	long held = 0;

	try {
		return raise_at(value % 6, value, held);
	} catch (const std::out_of_range &error) {
		return held == 0 ? atol(error.what()) : -1;
	}
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 2;
	std::vector<std::thread> threads;
	char line[16];

	setvbuf(stdout, NULL, _IONBF, 0);
	for (int i = 0; i < count; i++)
		threads.emplace_back([i] {
			for (long value = i; !stop; value++) {
				if (attempt(value) != value)
					wrong++;
				thrown++;
			}
		});
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	stop = true;
	for (auto &thread : threads)
		thread.join();
	printf("%lu %lu\n", thrown.load(), wrong.load());
	return wrong != 0;
}
