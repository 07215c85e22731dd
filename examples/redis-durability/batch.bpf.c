// SPDX-License-Identifier: MIT OR Apache-2.0
// One fdatasync for every `settings[0]` rounds, or after `settings[1]` milliseconds.
#include "log.h"
#include "batch.h"

SEC("uprobe/flush")
long begin_flush(struct ring3_flush *ctx)
{
	struct log *log = the_log();
	if (!log)
		return 0;
	enter(log);
	// (Redis comes here ten times a second at least, also if there is nothing to write.)
	int fd = log->fd;
	if (log->inside == bpf_get_current_pid_tgid() && log->unsynced && fd >= 0 &&
	    bpf_ktime_get_ns() - log->since >= setting(1, 100) * 1000000) {
		log->unsynced = 0;
		bioCreateFsyncJob(fd);
	}
	return 0;
}

SEC("uprobe/sync")
long sync_batch(struct ring3_sync *ctx)
{
	struct log *log = the_log();
	if (!log || log->inside != bpf_get_current_pid_tgid())
		return RUN;
	log->written++;
	if (!log->unsynced++)
		log->since = bpf_ktime_get_ns();
	if (log->unsynced < setting(0, 1) && log->fd == ctx->fd)
		return DONE;
	// (The first round in this file, too.)
	log->fd = ctx->fd;
	log->unsynced = 0;
	return RUN;
}
