// SPDX-License-Identifier: MIT OR Apache-2.0
// System calls in code that was not there when the program began: written, written anew, moved, mapped, loaded.
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAGE 4096

typedef long (*code)(void);

// mov $number, %eax; syscall; ret
static void write_call(unsigned char *at, int number)
{
	memcpy(at, "\xb8....\x0f\x05\xc3", 8);
	memcpy(at + 1, &number, 4);
}

static void *pages(int count, int protection, int more, int file)
{
	void *at = mmap(NULL, count * PAGE, protection, (file < 0 ? MAP_ANONYMOUS | MAP_PRIVATE : MAP_SHARED) | more, file, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static void in_writable_pages(void)
{
	unsigned char *at = pages(1, PROT_READ | PROT_WRITE | PROT_EXEC, 0, -1);

	for (int round = 0; round < 20; round++) {
		write_call(at, SYS_getpid);
		for (int i = 0; i < 5; i++)
			EQUAL(((code)(void *)at)(), getpid());
		// The same site with another number, and what is behind it changed.
		write_call(at, SYS_getppid);
		EQUAL(((code)(void *)at)(), getppid());
		memcpy(at + 7, "\x48\xff\xc0\xc3", 4); // inc %rax; ret
		EQUAL(((code)(void *)at)(), getppid() + 1);
		// At each place of a line.
		write_call(at + 64 + round, SYS_gettid);
		EQUAL(((code)(void *)(at + 64 + round))(), gettid());
		// What was written is what is read.
		CHECK(!memcmp(at + 64 + round + 5, "\x0f\x05\xc3", 3));
	}
	EQUAL(munmap(at, PAGE), 0);
}

static void in_pages_made_executable(void)
{
	unsigned char *at = pages(1, PROT_READ | PROT_WRITE, 0, -1);

	for (int round = 0; round < 20; round++) {
		int number = round % 2 ? SYS_getpid : SYS_getppid;

		EQUAL(mprotect(at, PAGE, PROT_READ | PROT_WRITE), 0);
		memset(at, 0xcc, PAGE);
		write_call(at + round * 8, number);
		EQUAL(mprotect(at, PAGE, PROT_READ | PROT_EXEC), 0);
		for (int i = 0; i < 3; i++)
			EQUAL(((code)(void *)(at + round * 8))(), round % 2 ? getpid() : getppid());
		if (round % 3 == 0) {
			EQUAL(mprotect(at, PAGE, PROT_NONE), 0);
			EQUAL(mprotect(at, PAGE, PROT_READ | PROT_EXEC), 0);
			EQUAL(((code)(void *)(at + round * 8))(), round % 2 ? getpid() : getppid());
		}
	}
	EQUAL(munmap(at, PAGE), 0);
}

static void in_pages_mapped_again(void)
{
	unsigned char *at = pages(1, PROT_READ | PROT_WRITE | PROT_EXEC, 0, -1);

	for (int round = 0; round < 20; round++) {
		write_call(at, round % 2 ? SYS_getpid : SYS_getppid);
		EQUAL(((code)(void *)at)(), round % 2 ? getpid() : getppid());
		EQUAL(munmap(at, PAGE), 0);
		// In the same place, of which nothing is to be left.
		void *again = mmap(at, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_ANONYMOUS | MAP_PRIVATE | (round % 2 ? MAP_FIXED : MAP_FIXED_NOREPLACE), -1, 0);
		CHECK(again == at);
		for (int i = 0; i < 16; i++)
			EQUAL(at[i], 0);
		if (round % 5 == 4) {
			write_call(at, SYS_gettid);
			EQUAL(((code)(void *)at)(), gettid());
			void *other = pages(1, PROT_NONE, 0, -1);
			void *moved = mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other);
			CHECK(moved == other);
			EQUAL(((code)moved)(), gettid());
			CHECK(mremap(moved, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
			EQUAL(((code)(void *)at)(), gettid());
		}
	}
	EQUAL(munmap(at, PAGE), 0);
}

// As compilers at run time do: written here, run there.
static void mapped_twice(void)
{
	int file = memfd_create("code", 0);

	CHECK(file >= 0);
	EQUAL(ftruncate(file, PAGE), 0);
	unsigned char *written = pages(1, PROT_READ | PROT_WRITE, 0, file);
	unsigned char *run = pages(1, PROT_READ | PROT_EXEC, 0, file);
	for (int round = 0; round < 20; round++) {
		int place = round % 4 * 13;

		write_call(written + place, round % 2 ? SYS_getpid : SYS_getppid);
		EQUAL(((code)(void *)(run + place))(), round % 2 ? getpid() : getppid());
		CHECK(!memcmp(written, run, PAGE));
		CHECK(!memcmp(written + place + 5, "\x0f\x05\xc3", 3));
	}
	EQUAL(munmap(run, PAGE), 0);
	EQUAL(munmap(written, PAGE), 0);
	close(file);
}

// The last bytes of a page behind which there is nothing: nothing but a jump back fits.
static void at_the_end_of_what_is_mapped(void)
{
	unsigned char *at = pages(3, PROT_READ | PROT_WRITE | PROT_EXEC, 0, -1);

	EQUAL(munmap(at, PAGE), 0);
	EQUAL(munmap(at + 2 * PAGE, PAGE), 0);
	write_call(at + 2 * PAGE - 8, SYS_getpid);
	memcpy(at + PAGE, "\x0f\x05\xc3", 3);
	for (int i = 0; i < 5; i++) {
		long result;

		EQUAL(((code)(void *)(at + 2 * PAGE - 8))(), getpid());
		__asm__ volatile("call *%1" : "=a"(result) : "r"(at + PAGE), "0"(SYS_getppid) : "rcx", "r11", "memory");
		EQUAL(result, getppid());
	}
	// A call that does not come back needs nothing behind it.
	memcpy(at + 2 * PAGE - 12, "\xbf\x07\x00\x00\x00\xb8\xe7\x00\x00\x00\x0f\x05", 12);
	pid_t child = fork();
	if (!child)
		((code)(void *)(at + 2 * PAGE - 12))();
	siginfo_t info = { 0 };
	EQUAL(waitid(P_PID, child, &info, WEXITED), 0);
	EQUAL(info.si_code, CLD_EXITED);
	EQUAL(info.si_status, 7);
	EQUAL(munmap(at + PAGE, PAGE), 0);
}

// Fresh code again and again: more of it than anybody may have prepared for.
static void in_many_pages(void)
{
	unsigned char *at = pages(256, PROT_READ | PROT_WRITE | PROT_EXEC, 0, -1);

	for (int i = 0; i < 256 * 16; i++)
		write_call(at + i * 256, i % 2 ? SYS_getpid : SYS_getppid);
	for (int i = 0; i < 256 * 16; i++)
		EQUAL(((code)(void *)(at + i * 256))(), i % 2 ? getpid() : getppid());
	EQUAL(munmap(at, 256 * PAGE), 0);
}

static void in_a_library(void)
{
	char path[PATH_MAX] = "";

	CHECK(readlink("/proc/self/exe", path, sizeof(path) - 16) > 0);
	strcat(dirname(path), "/loaded.so");
	for (int round = 0; round < 5; round++) {
		void *library = dlopen(path, RTLD_NOW);
		if (!library)
			dprintf(2, "%s\n", dlerror());
		CHECK(library);
		if (!library)
			return;
		int *constructed = dlsym(library, "constructed");
		code call = (code)dlsym(library, "call_in_library");
		EQUAL(*constructed, getpid());
		for (int i = 0; i < 10; i++)
			EQUAL(call(), getppid());
		EQUAL(dlclose(library), 0);
	}
}

// What is written to such a mapping is written to the file, and to everybody's.
static void in_a_shared_mapping_of_a_library(void)
{
	char path[PATH_MAX] = "", copy[64];
	Dl_info info;
	struct stat stat;

	CHECK(readlink("/proc/self/exe", path, sizeof(path) - 16) > 0);
	strcat(dirname(path), "/loaded.so");
	void *library = dlopen(path, RTLD_NOW);
	CHECK(library);
	void *call = dlsym(library, "call_in_library");
	CHECK(dladdr(call, &info));
	long offset = (char *)call - (char *)info.dli_fbase;
	// (mkstemp asks for random numbers, some times more than once.)
	snprintf(copy, sizeof(copy), "/tmp/ring3-test-shared-%d", getpid());
	int from = open(path, O_RDONLY), to = open(copy, O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(from >= 0 && to >= 0);
	EQUAL(fstat(from, &stat), 0);
	EQUAL(sendfile(to, from, NULL, stat.st_size), stat.st_size);
	for (int writable = 0; writable < 2; writable++) {
		unsigned char *at = mmap(NULL, stat.st_size, PROT_READ | PROT_EXEC | (writable ? PROT_WRITE : 0),
					 MAP_SHARED, to, 0);
		unsigned char *own = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, from, 0);

		CHECK(at != MAP_FAILED && own != MAP_FAILED);
		for (int i = 0; i < 10; i++)
			EQUAL(((code)(void *)(at + offset))(), getppid());
		CHECK(!memcmp(at, own, stat.st_size));
		EQUAL(munmap(own, stat.st_size), 0);
		EQUAL(munmap(at, stat.st_size), 0);
	}
	EQUAL(unlink(copy), 0);
	close(to);
	close(from);
	EQUAL(dlclose(library), 0);
}

int main(void)
{
	in_writable_pages();
	in_pages_made_executable();
	in_pages_mapped_again();
	mapped_twice();
	at_the_end_of_what_is_mapped();
	in_many_pages();
	in_a_library();
	in_a_shared_mapping_of_a_library();
	return faults != 0;
}
