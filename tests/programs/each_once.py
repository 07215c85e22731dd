# SPDX-License-Identifier: MIT OR Apache-2.0
# each_once.py VICTIM: what bcc's Python interface does, each thing once, with tests/victims/compat.c. Says "ready", waits for a line, and
# prints what programs and tables hold, sorted.
import ctypes
import sys

from bcc import BPF, USDT, PerfType, PerfSWConfig

victim = sys.argv[1]
text = r'''
#include <uapi/linux/ptrace.h>
struct event { u64 value; char comm[16]; char text[8]; };
BPF_HASH(counts, u32, u64);
BPF_ARRAY(slots, u64, 8);
BPF_PERCPU_ARRAY(cpus, u64, 1);
BPF_HISTOGRAM(sizes);

BPF_STACK_TRACE(stacks, 1024);
// (By thread, as `increment` loses one where two of them are the first at the same time, on the kernel too.)
struct stack { int id; u32 thread; };
BPF_HASH(by_stack, struct stack, u64);
BPF_QUEUE(values, u64, 64);
BPF_PERF_OUTPUT(events);
BPF_RINGBUF_OUTPUT(ring, 8);
BPF_HASH(entered, u64, u64);
BPF_PROG_ARRAY(next, 2);

static int is_victim() {
    char comm[16] = {};
    bpf_get_current_comm(comm, sizeof(comm));
    return comm[0] == 'c' && comm[1] == 'o' && comm[2] == 'm' && comm[3] == 'p' && comm[4] == 'a' && comm[5] == 't';
}
int on_add(struct pt_regs *ctx) {
    u32 key = PT_REGS_PARM1(ctx) % 3;
    counts.increment(key);
    u64 *value;
    int first = 0;
    value = cpus.lookup(&first);
    if (value) *value += 1;
    sizes.increment(bpf_log2l(PT_REGS_PARM2(ctx)));
    slots.increment(1);
    return 0;
}
int on_greet(struct pt_regs *ctx, char *name) {
    struct event event = { .value = 1 };
    bpf_get_current_comm(event.comm, sizeof(event.comm));
    bpf_probe_read_user_str(event.text, sizeof(event.text), name);
    events.perf_submit(ctx, &event, sizeof(event));
    ring.ringbuf_output(&event, sizeof(event), 0);
    next.call(ctx, 0);
    return 0;
}
int called(struct pt_regs *ctx) {
    slots.increment(2);
    return 0;
}
int on_wide(struct pt_regs *ctx) {
    u64 id = bpf_get_current_pid_tgid(), value = PT_REGS_PARM1(ctx);
    entered.update(&id, &value);
    return 0;
}
int on_wide_return(struct pt_regs *ctx) {
    u64 id = bpf_get_current_pid_tgid(), *value = entered.lookup(&id);
    if (value) {
        u64 difference = PT_REGS_RC(ctx) - *value;
        values.push(&difference, 0);
    }
    entered.delete(&id);
    return 0;
}
int on_inner(struct pt_regs *ctx) {
    struct stack stack = { stacks.get_stackid(ctx, BPF_F_USER_STACK), bpf_get_current_pid_tgid() };
    if (stack.id >= 0) by_stack.increment(stack);
    return 0;
}
int on_tick(struct pt_regs *ctx) {
    int n = 0;
    u64 text = 0;
    bpf_usdt_readarg(1, ctx, &n);
    bpf_usdt_readarg(2, ctx, &text);
    struct event event = { .value = n };
    bpf_probe_read_user_str(event.text, sizeof(event.text), (void *)text);
    events.perf_submit(ctx, &event, sizeof(event));
    return 0;
}
TRACEPOINT_PROBE(syscalls, sys_enter_mkdir) {
    if (is_victim()) slots.increment(3);
    return 0;
}
RAW_TRACEPOINT_PROBE(sys_exit) {
    if (is_victim() && (long)ctx->args[1] == -2) slots.increment(4);
    return 0;
}
TRACEPOINT_PROBE(sched, sched_process_exec) {
    if (is_victim()) slots.increment(5);
    return 0;
}
int on_clock(struct bpf_perf_event_data *ctx) {
    slots.increment(6);
    return 0;
}
'''
usdt = USDT(path=victim)
usdt.enable_probe(probe="tick", fn_name="on_tick")
b = BPF(text=text, usdt_contexts=[usdt])
b.attach_uprobe(name=victim, sym="add", fn_name="on_add")
b.attach_uprobe(name=victim, sym="greet", fn_name="on_greet")
b.attach_uprobe(name=victim, sym="wide", fn_name="on_wide")
b.attach_uretprobe(name=victim, sym="wide", fn_name="on_wide_return")
b.attach_uprobe(name=victim, sym_re="^inner$", fn_name="on_inner")
b.attach_perf_event(ev_type=PerfType.SOFTWARE, ev_config=PerfSWConfig.CPU_CLOCK, fn_name="on_clock", sample_freq=49)
b["next"][ctypes.c_int(0)] = ctypes.c_int(b.load_func("called", BPF.KPROBE).fd)
told = []
def on_event(cpu, data, size):
    event = b["events"].event(data)
    told.append("perf %d %s" % (event.value, event.text.decode()))
def on_record(ctx, data, size):
    event = b["ring"].event(data)
    told.append("ring %d %s %s" % (event.value, event.text.decode(), event.comm.decode()))
b["events"].open_perf_buffer(on_event)
b["ring"].open_ring_buffer(on_record)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(4):
    b.perf_buffer_poll(100)
    b.ring_buffer_poll(100)
told += ["count %d %d" % (k.value, v.value) for k, v in b["counts"].items()]
told += ["slot %d %d" % (i, b["slots"][i].value) for i in range(1, 6)]
told.append("clock %s" % (b["slots"][6].value > 0))
told.append("cpus %d" % sum(b["cpus"][0]))
told += ["size %d %d" % (k.value, v.value) for k, v in b["sizes"].items() if v.value]
told += ["value %d" % v.value for v in b["values"].values()]
told.append("stacked %d" % sum(v.value for v in b["by_stack"].values()))
b.detach_uprobe(name=victim, sym="add")
print("\n".join(sorted(told)))
