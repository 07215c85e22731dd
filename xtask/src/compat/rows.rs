//! The rows of the table: tools, what they are asked, and how what they print is compared.

/// How the output of two runs is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The same lines, in any order.
    Lines,
    /// The same lines, in any order, with each number replaced by `N`, and each of several equal ones once.
    Shapes,
    /// As `Shapes`, of the lines that name the victim.
    OfVictim,
    /// The sums of all histograms.
    Histograms,
}

impl Rule {
    /// For the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Rule::Lines => "same lines",
            Rule::Shapes => "same lines but for numbers",
            Rule::OfVictim => "same lines of the victim but for numbers",
            Rule::Histograms => "same number of events in histograms",
        }
    }
}

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tool {
    /// A program for `bpftrace -e`. `{P}` is the victim's file.
    Script(&'static str),
    /// A script that Debian's bpftrace comes with.
    Bt(&'static str),
    /// A program with its arguments.
    Command(&'static str, &'static [&'static str]),
}

/// What the names of Debian's bcc tools end with.
pub(super) const OF_BCC: &str = "-bpfcc";

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) tool: Tool,
    pub(super) rule: Rule,
}

const fn script(text: &'static str) -> Row {
    Row { tool: Tool::Script(text), rule: Rule::Lines }
}

const fn shape(text: &'static str) -> Row {
    Row { tool: Tool::Script(text), rule: Rule::Shapes }
}

const fn bt(name: &'static str, rule: Rule) -> Row {
    Row { tool: Tool::Bt(name), rule }
}

const fn tool(name: &'static str, arguments: &'static [&'static str], rule: Rule) -> Row {
    Row { tool: Tool::Command(name, arguments), rule }
}

/// All rows, in the order of the table.
pub(super) const ROWS: &[Row] = &[
    // Probes.
    script("uprobe:{P}:add { @ = count(); }"),
    script("uretprobe:{P}:add { @ = count(); }"),
    script("uprobe:{P}:add { @[probe] = count(); } uretprobe:{P}:add { @[probe] = count(); }"),
    shape("uprobe:{P}:add,uprobe:{P}:wide,uprobe:{P}:outer { @[func] = count(); }"),
    shape("uprobe:{P}:a* { @[func] = count(); }"),
    script("uprobe:{P}:add+4 { @ = count(); }"),
    script("u:{P}:inner { @ = count(); } ur:{P}:inner { @r = sum(retval); }"),
    script("uprobe:{P}:recursive { @ = count(); } uretprobe:{P}:recursive { @r = max(retval); }"),
    script("usdt:{P}:compat:tick { @[str(arg1)] = sum(arg0); }"),
    script("usdt:{P}:tick { printf(\"%d %s\\n\", arg0, str(arg1)); }"),
    script("tracepoint:syscalls:sys_enter_kill /comm == \"compat\"/ { @[args->sig] = count(); }"),
    script("tracepoint:syscalls:sys_exit_openat /comm == \"compat\"/ { @[args->ret < 0] = count(); }"),
    script("tracepoint:syscalls:sys_enter_openat /comm == \"compat\"/ { @[str(args->filename)] = count(); }"),
    script(
        "tracepoint:syscalls:sys_enter_newfstatat,tracepoint:syscalls:sys_enter_newstat /comm == \"compat\"/ { @[probe, str(args->filename)] = count(); }",
    ),
    script(
        "tracepoint:syscalls:sys_enter_mkdir,tracepoint:syscalls:sys_enter_rmdir /comm == \"compat\"/ { @[probe] = count(); }",
    ),
    script("tracepoint:syscalls:sys_enter_execve /comm == \"compat\"/ { join(args->argv); }"),
    script("tracepoint:raw_syscalls:sys_enter /comm == \"compat\" && args->id != 202/ { @[args->id] = count(); }"),
    script(
        "tracepoint:raw_syscalls:sys_exit /comm == \"compat\" && args->id != 202/ { @[args->id, args->ret < 0] = count(); }",
    ),
    script("tracepoint:syscalls:sys_enter_exit_group /comm == \"compat\"/ { @[args->error_code] = count(); }"),
    script("tracepoint:sched:sched_process_exec /comm == \"true\"/ { @[str(args->filename)] = count(); }"),
    script("tracepoint:sched:sched_process_fork /comm == \"compat\"/ { @ = count(); }"),
    script("tracepoint:sched:sched_process_exit /comm == \"compat\"/ { @ = count(); }"),
    script("tracepoint:signal:signal_generate /comm == \"compat\"/ { @[args->sig] = count(); }"),
    script("rawtracepoint:sys_enter /comm == \"compat\"/ { @[arg1] = count(); }"),
    script("BEGIN { printf(\"begin\\n\"); } END { printf(\"end\\n\"); } uprobe:{P}:add { @ = count(); }"),
    script("interval:ms:200 { @ticks = count(); exit(); } END { clear(@ticks); printf(\"done\\n\"); }"),
    script("uprobe:{P}:add { @ = count(); } interval:s:1 { print(@); clear(@); exit(); }"),
    script("profile:hz:99 { @ = count(); } END { printf(\"%d\\n\", 1); clear(@); }"),
    script("software:cpu-clock:1000000 { @ = count(); } END { clear(@); printf(\"end\\n\"); }"),
    script("hardware:instructions:1000000 { @ = count(); } END { clear(@); }"),
    script("kprobe:do_nanosleep { @ = count(); }"),
    script("kfunc:vfs_read { @ = count(); } END { clear(@); }"),
    // Arguments and values.
    script("uprobe:{P}:add { @[arg0] = sum(arg1); }"),
    script("uprobe:{P}:wide { @[arg0, arg1, arg2, arg3, arg4, arg5] = count(); }"),
    script("uprobe:{P}:greet { @[str(arg0)] = count(); }"),
    script("uprobe:{P}:greet { @[str(arg0, 2)] = count(); }"),
    script("uretprobe:{P}:greet { @[retval] = count(); }"),
    script("uretprobe:{P}:fails { @[(int32)retval] = count(); }"),
    script("uretprobe:{P}:big { @ = max(retval); }"),
    script(
        "struct point { int x; short y; char name[16]; struct point *next; } uprobe:{P}:move { $p = (struct point *)arg0; @[$p->x, $p->y, $p->name] = count(); }",
    ),
    script(
        "struct point { int x; short y; char name[16]; struct point *next; } uprobe:{P}:move { $p = (struct point *)arg0; if ($p->next != 0) { @[$p->next->x] = count(); } }",
    ),
    script("uprobe:{P}:sum { $v = (int32 *)arg0; if (arg1 > 2) { @[*$v, *($v + 1)] = count(); } }"),
    script("uprobe:{P}:sum { @[arg1] = count(); }"),
    script("uprobe:{P}:add { @ = reg(\"di\"); }"),
    script("uprobe:{P}:outer { @[sarg0 != 0] = count(); }"),
    script("uprobe:{P}:fails { @ = *(int32 *)uaddr(\"global_counter\"); }"),
    script("uprobe:{P}:greet { printf(\"%r\\n\", buf(arg0, 4)); }"),
    // Builtins.
    script("uprobe:{P}:add { @[comm] = count(); }"),
    script("uprobe:{P}:add { @[uid, gid] = count(); }"),
    script("uprobe:{P}:add { @[pid == tid] = count(); }"),
    script("uprobe:{P}:inner { @[pid == tid] = count(); }"),
    script("uprobe:{P}:add { @[username] = count(); }"),
    shape("uprobe:{P}:add { @[func, probe] = count(); }"),
    script("uprobe:{P}:add { @[nsecs > 0, elapsed > 0, cpu < 64] = count(); }"),
    script("uprobe:{P}:add { @[curtask != 0, rand >= 0] = count(); }"),
    script("uprobe:{P}:add { @[cgroup > 0] = count(); }"),
    shape("uprobe:{P}:inner { @[ustack(1)] = count(); }"),
    shape("uprobe:{P}:inner { @[ustack(perf, 2)] = count(); }"),
    shape("uprobe:{P}:add { @[usym(reg(\"ip\"))] = count(); }"),
    script("uprobe:{P}:add { @[kstack(1) != kstack(1)] = count(); }"),
    script("uprobe:{P}:fails { @[pid > 0 ? \"yes\" : \"no\"] = count(); }"),
    // Functions.
    script("uprobe:{P}:add { @ = hist(arg0); }"),
    script("uprobe:{P}:add { @ = lhist(arg0, 0, 100, 10); }"),
    script("uprobe:{P}:add { @a = avg(arg0); @s = stats(arg0); @m = min(arg0); @M = max(arg0); @t = sum(arg0); }"),
    script("uprobe:{P}:add { @[arg0 % 3] = avg(arg1); }"),
    script("uprobe:{P}:greet { printf(\"%s %d %x %c\\n\", str(arg0), 42, 255, 65); }"),
    script("uprobe:{P}:greet { printf(\"%-10s|%5d|%05d|%llx\\n\", str(arg0), 7, 7, 1 << 40); }"),
    script("uprobe:{P}:greet /str(arg0) == \"anna\"/ { @ = count(); }"),
    script("uprobe:{P}:greet { if (strncmp(str(arg0), \"anxx\", 2) == 0) { @ = count(); } }"),
    script("uprobe:{P}:greet { printf(\"%s\\n\", strftime(\"%Y\", nsecs)); @ = count(); }"),
    script("uprobe:{P}:recursive { time(\"\"); @ = count(); }"),
    script("uprobe:{P}:outer { @[arg0] = count(); delete(@[3]); }"),
    shape("uprobe:{P}:outer { @[arg0] = count(); } END { print(@, 3); clear(@); }"),
    script("uprobe:{P}:outer { @[arg0] = count(); } END { zero(@); }"),
    shape("uprobe:{P}:outer { @x = arg0; print(@x); }"),
    script("uprobe:{P}:outer { print((arg0, \"text\", comm)); }"),
    script("uprobe:{P}:add { if (arg0 == 50) { exit(); } @ = count(); } END { clear(@); printf(\"ended\\n\"); }"),
    tool(
        "bpftrace",
        &["--unsafe", "-e", "uprobe:{P}:add { @ = count(); if (arg0 == 40) { signal(\"URG\"); } }"],
        Rule::Lines,
    ),
    script("BEGIN { @[ntop(0x0100007f)] = 1; @[ntop(2, 0x0100007f)] = 1; }"),
    script("BEGIN { cat(\"/etc/hostname\"); }"),
    script("BEGIN { printf(\"%s\\n\", str($1)); }"),
    script("BEGIN { print(sizeof(uint64)); }"),
    script("BEGIN { $a = (1, 2, \"three\"); print($a.2); print($a); }"),
    script("BEGIN { @a = 5; @a++; ++@a; @a--; print(@a); $b = 7; $b += 3; $b <<= 2; print($b); }"),
    script("BEGIN { $i = 0; while ($i < 5) { $i++; if ($i == 3) { continue; } print($i); } }"),
    script("BEGIN { $i = 0; unroll(5) { print($i); $i++; } }"),
    script(
        "BEGIN { print(7 / 2); print(-7 / 2); print(7 % 4); print(~1); print(1 << 3 | 1); print(!5); print(5 && 0); }",
    ),
    script("BEGIN { @x[1, \"a\"] = 3; @x[2, \"b\"] = 4; print(@x); delete(@x[1, \"a\"]); }"),
    script("BEGIN { printf(\"%d\\n\", kaddr(\"jiffies\") != 0); }"),
    // Logic.
    script("uprobe:{P}:add /arg0 > 90 && arg0 < 95/ { @ = count(); }"),
    script(
        "uprobe:{P}:add { @start[tid] = nsecs; } uretprobe:{P}:add /@start[tid]/ { @ok = count(); delete(@start[tid]); }",
    ),
    script(
        "uprobe:{P}:add { @start[tid] = arg0; } uretprobe:{P}:add { @[retval - @start[tid]] = count(); delete(@start[tid]); } END { clear(@start); }",
    ),
    script("uprobe:{P}:inner { @d[tid] += 1; } uretprobe:{P}:outer { @m = max(@d[tid]); } END { clear(@d); }"),
    script("uprobe:{P}:add { if (arg0 % 2 == 0) { @even = count(); } else { @odd = count(); } }"),
    script("uprobe:{P}:add { $x = arg0 * 3; $y = $x > 100 ? 1 : 0; @[$y] = count(); }"),
    script("uprobe:{P}:wide { @ = (arg0 & 1) + (arg1 | 4) + (arg2 ^ 3); }"),
    script("uprobe:libc:malloc /comm == \"compat\" && arg0 >= 100 && arg0 < 120/ { @ = sum(arg0); }"),
    script("uprobe:libc:free /comm == \"compat\"/ { @ = count(); } END { clear(@); printf(\"freed\\n\"); }"),
    // bpftrace's own tools.
    bt("bashreadline", Rule::OfVictim),
    bt("biolatency", Rule::OfVictim),
    bt("biosnoop", Rule::OfVictim),
    bt("biostacks", Rule::OfVictim),
    bt("bitesize", Rule::OfVictim),
    bt("capable", Rule::OfVictim),
    bt("cpuwalk", Rule::OfVictim),
    bt("dcsnoop", Rule::OfVictim),
    bt("execsnoop", Rule::OfVictim),
    bt("gethostlatency", Rule::OfVictim),
    bt("killsnoop", Rule::OfVictim),
    bt("loads", Rule::OfVictim),
    bt("mdflush", Rule::OfVictim),
    bt("naptime", Rule::OfVictim),
    bt("oomkill", Rule::OfVictim),
    bt("opensnoop", Rule::OfVictim),
    bt("pidpersec", Rule::OfVictim),
    bt("runqlat", Rule::OfVictim),
    bt("runqlen", Rule::OfVictim),
    bt("setuids", Rule::OfVictim),
    bt("ssllatency", Rule::OfVictim),
    bt("sslsnoop", Rule::OfVictim),
    bt("statsnoop", Rule::OfVictim),
    bt("swapin", Rule::OfVictim),
    bt("syncsnoop", Rule::OfVictim),
    bt("syscount", Rule::OfVictim),
    bt("tcpaccept", Rule::OfVictim),
    bt("tcpconnect", Rule::OfVictim),
    bt("tcpdrop", Rule::OfVictim),
    bt("tcplife", Rule::OfVictim),
    bt("tcpretrans", Rule::OfVictim),
    bt("tcpsynbl", Rule::OfVictim),
    bt("threadsnoop", Rule::OfVictim),
    bt("undump", Rule::OfVictim),
    bt("vfscount", Rule::OfVictim),
    bt("vfsstat", Rule::OfVictim),
    bt("writeback", Rule::OfVictim),
    bt("xfsdist", Rule::OfVictim),
    // libbpf-tools.
    tool("funclatency", &["{P}:add"], Rule::Histograms),
    tool("funclatency", &["-u", "{P}:recursive"], Rule::Histograms),
    tool("bashreadline", &[], Rule::OfVictim),
    tool("gethostlatency", &[], Rule::OfVictim),
    tool("opensnoop", &["-n", "compat"], Rule::OfVictim),
    tool("opensnoop", &["-x", "-n", "compat"], Rule::OfVictim),
    tool("statsnoop", &[], Rule::OfVictim),
    tool("killsnoop", &[], Rule::OfVictim),
    tool("execsnoop", &["-n", "true"], Rule::OfVictim),
    tool("exitsnoop", &[], Rule::OfVictim),
    tool("sigsnoop", &[], Rule::OfVictim),
    tool("mountsnoop", &[], Rule::OfVictim),
    tool("syscount", &["-d", "2"], Rule::Shapes),
    tool("capable", &[], Rule::OfVictim),
    tool("bindsnoop", &[], Rule::OfVictim),
    tool("biolatency", &[], Rule::OfVictim),
    tool("cpudist", &[], Rule::OfVictim),
    tool("drsnoop", &[], Rule::OfVictim),
    tool("filelife", &[], Rule::OfVictim),
    tool("filetop", &[], Rule::OfVictim),
    tool("fsslower", &[], Rule::OfVictim),
    tool("hardirqs", &[], Rule::OfVictim),
    tool("klockstat", &[], Rule::OfVictim),
    tool("llcstat", &[], Rule::OfVictim),
    tool("mdflush", &[], Rule::OfVictim),
    tool("numamove", &[], Rule::OfVictim),
    tool("offcputime", &["1"], Rule::OfVictim),
    tool("oomkill", &[], Rule::OfVictim),
    tool("readahead", &[], Rule::OfVictim),
    tool("runqlat", &[], Rule::OfVictim),
    tool("runqlen", &[], Rule::OfVictim),
    tool("runqslower", &[], Rule::OfVictim),
    tool("slabratetop", &[], Rule::OfVictim),
    tool("softirqs", &[], Rule::OfVictim),
    tool("solisten", &[], Rule::OfVictim),
    tool("tcpconnect", &[], Rule::OfVictim),
    tool("tcpconnlat", &[], Rule::OfVictim),
    tool("tcplife", &[], Rule::OfVictim),
    tool("tcptracer", &[], Rule::OfVictim),
    tool("vfsstat", &[], Rule::OfVictim),
    tool("wakeuptime", &["1"], Rule::OfVictim),
    // bcc's tools.
    tool("argdist-bpfcc", &["-C", "p:{P}:add(int a, int b):int:b"], Rule::Lines),
    tool("argdist-bpfcc", &["-C", "p:{P}:greet(char *name):char*:name"], Rule::Lines),
    tool("argdist-bpfcc", &["-H", "r:{P}:wide(long a):long:$retval"], Rule::Histograms),
    tool("argdist-bpfcc", &["-C", "r:{P}:fails(int n):int:$retval"], Rule::Lines),
    tool("argdist-bpfcc", &["-C", "u:{P}:tick():int:arg1"], Rule::Lines),
    tool("argdist-bpfcc", &["-C", "t:syscalls:sys_enter_kill():int:args->sig"], Rule::Lines),
    tool("bashreadline-bpfcc", &[], Rule::OfVictim),
    tool("bindsnoop-bpfcc", &[], Rule::OfVictim),
    tool("biolatency-bpfcc", &[], Rule::OfVictim),
    tool("cachestat-bpfcc", &[], Rule::OfVictim),
    tool("capable-bpfcc", &[], Rule::OfVictim),
    tool("cpudist-bpfcc", &[], Rule::OfVictim),
    tool("dcsnoop-bpfcc", &[], Rule::OfVictim),
    tool("drsnoop-bpfcc", &[], Rule::OfVictim),
    tool("execsnoop-bpfcc", &[], Rule::OfVictim),
    tool("execsnoop-bpfcc", &["-x"], Rule::OfVictim),
    tool("exitsnoop-bpfcc", &[], Rule::OfVictim),
    tool("filelife-bpfcc", &[], Rule::OfVictim),
    tool("fileslower-bpfcc", &[], Rule::OfVictim),
    tool("filetop-bpfcc", &[], Rule::OfVictim),
    tool("funccount-bpfcc", &["{P}:add"], Rule::Lines),
    tool("funccount-bpfcc", &["{P}:*e*"], Rule::Lines),
    tool("funccount-bpfcc", &["u:{P}:tick"], Rule::Lines),
    tool("funccount-bpfcc", &["t:syscalls:sys_enter_mkdir*"], Rule::Lines),
    tool("funcinterval-bpfcc", &["{P}:add"], Rule::Histograms),
    tool("funclatency-bpfcc", &["{P}:add"], Rule::Histograms),
    tool("funclatency-bpfcc", &["-u", "{P}:recursive"], Rule::Histograms),
    tool("funclatency-bpfcc", &["-F", "{P}:[aimow]*"], Rule::Histograms),
    tool("funcslower-bpfcc", &["-u", "0", "-a", "2", "{P}:add"], Rule::OfVictim),
    tool("gethostlatency-bpfcc", &[], Rule::OfVictim),
    tool("hardirqs-bpfcc", &[], Rule::OfVictim),
    tool("killsnoop-bpfcc", &[], Rule::OfVictim),
    tool("klockstat-bpfcc", &[], Rule::OfVictim),
    tool("llcstat-bpfcc", &["1"], Rule::OfVictim),
    tool("memleak-bpfcc", &["--combined-only", "-z", "100", "-Z", "119", "-c", "{P}", "1", "1"], Rule::OfVictim),
    tool("mountsnoop-bpfcc", &[], Rule::OfVictim),
    tool("offcputime-bpfcc", &["1"], Rule::OfVictim),
    tool("opensnoop-bpfcc", &[], Rule::OfVictim),
    tool("opensnoop-bpfcc", &["-x", "-n", "compat"], Rule::OfVictim),
    tool("runqlat-bpfcc", &[], Rule::OfVictim),
    tool("shmsnoop-bpfcc", &[], Rule::OfVictim),
    tool("softirqs-bpfcc", &[], Rule::OfVictim),
    tool("sslsniff-bpfcc", &[], Rule::OfVictim),
    tool("stackcount-bpfcc", &["{P}:recursive"], Rule::Shapes),
    tool("statsnoop-bpfcc", &[], Rule::OfVictim),
    tool("syncsnoop-bpfcc", &[], Rule::OfVictim),
    tool("syscount-bpfcc", &["-d", "2", "--syscall", "mkdir"], Rule::Shapes),
    tool("tcpconnect-bpfcc", &[], Rule::OfVictim),
    tool("threadsnoop-bpfcc", &[], Rule::OfVictim),
    tool("tplist-bpfcc", &["-l", "{P}"], Rule::Lines),
    tool("trace-bpfcc", &["{P}:add \"%d %d\", arg1, arg2"], Rule::OfVictim),
    tool("trace-bpfcc", &["{P}:add (arg1 > 97) \"%d\", arg1"], Rule::OfVictim),
    tool("trace-bpfcc", &["{P}:greet(char *name) \"%s\", name"], Rule::OfVictim),
    tool("trace-bpfcc", &["r:{P}:fails \"%d\", retval"], Rule::OfVictim),
    tool("trace-bpfcc", &["u:{P}:tick \"%d %s\", arg1, arg2"], Rule::OfVictim),
    tool("trace-bpfcc", &["t:syscalls:sys_enter_kill \"%d\", args->sig"], Rule::OfVictim),
    tool("trace-bpfcc", &["{P}:inner", "{P}:outer", "r:{P}:outer"], Rule::OfVictim),
    tool(
        "trace-bpfcc",
        &["-I", "sys/types.h", "c:nanosleep(struct timespec *req) \"%d\", req->tv_nsec"],
        Rule::OfVictim,
    ),
    tool("ttysnoop-bpfcc", &["/dev/null"], Rule::OfVictim),
    tool("vfsstat-bpfcc", &["1", "1"], Rule::OfVictim),
    tool("wakeuptime-bpfcc", &["1"], Rule::OfVictim),
];
