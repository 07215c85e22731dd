// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads, and writes, memory at addresses that a process names.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

unsigned long long words[2], blocks[2], strings[2], writes[2], sum, names[2];

SEC("uprobe")
int look(struct pt_regs *ctx)
{
	const void *address = (const void *)PT_REGS_PARM1(ctx);
	unsigned long long word = 0;
	char block[77], text[64];

	__sync_fetch_and_add(&words[!!bpf_probe_read_user(&word, sizeof(word), address)], 1);
	__sync_fetch_and_add(&sum, word);
	__sync_fetch_and_add(&blocks[!!bpf_probe_read_user(block, sizeof(block), address)], 1);
	__sync_fetch_and_add(&strings[bpf_probe_read_user_str(text, sizeof(text), address) < 0], 1);
	return 0;
}

SEC("uprobe")
int scribble(struct pt_regs *ctx)
{
	unsigned long long word = PT_REGS_PARM2(ctx);

	__sync_fetch_and_add(&writes[!!bpf_probe_write_user((void *)PT_REGS_PARM1(ctx), &word, sizeof(word))], 1);
	return 0;
}

// The thread's name and user are those that the caller says.
SEC("uprobe")
int tell(struct pt_regs *ctx)
{
	unsigned long long said[2] = {}, name[2] = {}, user = PT_REGS_PARM2(ctx), differs;

	bpf_probe_read_user(said, sizeof(said), (const void *)PT_REGS_PARM1(ctx));
	bpf_get_current_comm(name, sizeof(name));
	differs = (bpf_get_current_uid_gid() ^ user) | (said[0] ^ name[0]) | (said[1] ^ name[1]);
	__sync_fetch_and_add(&names[!!differs], 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
