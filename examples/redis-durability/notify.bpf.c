// SPDX-License-Identifier: MIT OR Apache-2.0
// As delayed.bpf.c; and the thread that has called fdatasync tells in a shared counter, `durable` of the map `progress`, up to which round the log is
// durable. Redis's main thread reads the counter, and has to ask and to wait for redis's threads only if it is too small. Since the
// counter tells rounds and not calls, one call does for all rounds that were written before it began.
#include "log.h"
#include "notify.h"

static inline int is_in_background(struct log *log)
{
	char name[16] __attribute__((aligned(8))) = {};
	if (log->process != bpf_get_current_pid_tgid() >> 32 || bpf_get_current_comm(name, sizeof(name)))
		return 0;
	// (No other thread's name begins so.)
	return *(unsigned long *)name == *(unsigned long *)"bio_aof_";
}

SEC("uprobe/flush")
long begin_flush(struct ring3_flush *ctx)
{
	struct log *log = the_log();
	if (log)
		enter(log);
	return 0;
}

SEC("uprobe/sync")
long sync_later(struct ring3_sync *ctx)
{
	struct log *log = the_log();
	int fd = ctx->fd;
	if (!log || fd < 0)
		return RUN;
	if (log->inside != bpf_get_current_pid_tgid()) {
		if (is_in_background(log)) {
			// (An exchange, so that `written` is read after it: a round that finds this job queued is covered by it.)
			__sync_lock_test_and_set(&log->queued, 0);
			log->covered = *(volatile unsigned long *)&log->written;
		}
		return RUN;
	}
	unsigned long round = __sync_fetch_and_add(&log->written, 1) + 1;
	int is_other = log->fd != fd;
	log->fd = fd;
	if (is_other) {
		// Redis has begun another file. The one before is closed in the background.
		for (int jobs = 0; jobs < JOBS_MAX && bioWaitStepOfType(BIO_CLOSE_FILE); jobs++)
			;
		return RUN;
	}
	unsigned long rounds = setting(0, 1);
	if (!__sync_lock_test_and_set(&log->queued, 1))
		bioCreateFsyncJob(fd);
	for (int jobs = 0; jobs < JOBS_MAX; jobs++) {
		if (round - *(volatile unsigned long *)&log->durable <= rounds)
			return DONE;
		if (!bioWaitStepOfType(BIO_AOF_FSYNC))
			break;
	}
	// The last job may have ended before it was waited for; or it has failed, and redis shall see how.
	return round - *(volatile unsigned long *)&log->durable <= rounds ? DONE : RUN;
}

SEC("uprobe/synced")
long tell(struct ring3_synced *ctx)
{
	struct log *log = the_log();
	if (log && !ctx->result && is_in_background(log))
		log->durable = log->covered;
	return 0;
}
