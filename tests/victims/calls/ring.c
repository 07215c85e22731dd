// SPDX-License-Identifier: MIT OR Apache-2.0
// io_uring: work that is no system call, and the calls that ask for it.
#include "check.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

#define ENTRIES 8

int main(void)
{
	struct io_uring_params parameters = { 0 };
	long ring = RAW(SYS_io_uring_setup, ENTRIES, &parameters);
	char text[] = "ring";

	if (ring == -EPERM || ring == -ENOSYS) {
		puts("SKIPPED: io_uring is not allowed here");
		return 0;
	}
	CHECK(ring >= 0);
	CHECK(parameters.features & IORING_FEAT_SINGLE_MMAP);
	char *rings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	CHECK(rings != MAP_FAILED && entries != MAP_FAILED);
	unsigned *tail = (unsigned *)(rings + parameters.sq_off.tail), *array = (unsigned *)(rings + parameters.sq_off.array);
	unsigned *done_head = (unsigned *)(rings + parameters.cq_off.head);
	struct io_uring_cqe *done = (struct io_uring_cqe *)(rings + parameters.cq_off.cqes);
	int null = RAW(SYS_openat, -100, "/dev/null", 1);

	for (unsigned i = 0; i < 50; i++) {
		struct io_uring_sqe *entry = &entries[*tail % ENTRIES];

		memset(entry, 0, sizeof(*entry));
		entry->opcode = i % 2 ? IORING_OP_NOP : IORING_OP_WRITE;
		entry->fd = i % 2 ? -1 : null;
		entry->addr = i % 2 ? 0 : (unsigned long)text;
		entry->len = i % 2 ? 0 : 4;
		entry->user_data = i;
		array[*tail % ENTRIES] = *tail % ENTRIES;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		EQUAL(RAW(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
		struct io_uring_cqe *event = &done[*done_head % parameters.cq_entries];
		EQUAL(event->user_data, i);
		EQUAL(event->res, i % 2 ? 0 : 4);
		__atomic_store_n(done_head, *done_head + 1, __ATOMIC_RELEASE);
	}
	return faults != 0;
}
