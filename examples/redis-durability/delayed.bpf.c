// SPDX-License-Identifier: MIT OR Apache-2.0
// A thread of redis calls fdatasync, while redis answers and serves the next round. At the end of that one, redis waits until at most
// `settings[0]` such calls are not done.
#include "log.h"
#include "delayed.h"

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
	if (!log || log->inside != bpf_get_current_pid_tgid() || fd < 0)
		return RUN;
	log->written++;
	int is_other = log->fd != fd;
	log->fd = fd;
	if (is_other) {
		// Redis has begun another file. The one before is closed in the background.
		for (int jobs = 0; jobs < JOBS_MAX && bioPendingJobsOfType(BIO_CLOSE_FILE); jobs++)
			bioWaitStepOfType(BIO_CLOSE_FILE);
		return RUN;
	}
	unsigned long rounds = setting(0, 1);
	bioCreateFsyncJob(fd);
	for (int jobs = 0; jobs < JOBS_MAX; jobs++) {
		if (bioPendingJobsOfType(BIO_AOF_FSYNC) <= rounds)
			return DONE;
		bioWaitStepOfType(BIO_AOF_FSYNC);
	}
	return RUN;
}
