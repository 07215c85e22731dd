//! System calls of victims that make them in awkward ways: what the victims check themselves is right, and what ring3 counts
//! is what the kernel counts.
//!
//! `on_the_kernel` shows that victims and oracle can be relied on: the same counts each time. `under_ring3` compares.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ring3_tests::{Bench, Process, calling_victims, go_victims, is_root, kill, lacks, programs, wait_until};

/// How often each call was seen, by the way in which it was told: `raw enter`, `trace exit` and so on.
type Counts = BTreeMap<(String, i64), i64>;

const READ: i64 = 0;
const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const MUNMAP: i64 = 11;
const RT_SIGPROCMASK: i64 = 14;
const RT_SIGRETURN: i64 = 15;
const WRITEV: i64 = 20;
const SCHED_YIELD: i64 = 24;
const PAUSE: i64 = 34;
const GETPID: i64 = 39;
const RECVFROM: i64 = 45;
const RECVMSG: i64 = 47;
const SOCKETPAIR: i64 = 53;
const CLONE: i64 = 56;
const EXECVE: i64 = 59;
const EXIT: i64 = 60;
const WAIT4: i64 = 61;
const FCHDIR: i64 = 81;
const PTRACE: i64 = 101;
const GETPPID: i64 = 110;
const GETPGID: i64 = 121;
const GETSID: i64 = 124;
const FUTEX: i64 = 202;
const RESTART_SYSCALL: i64 = 219;
const MKDIRAT: i64 = 258;
const UNLINKAT: i64 = 263;
const RENAMEAT: i64 = 264;
const PREADV2: i64 = 327;
const CLONE3: i64 = 435;
const UNKNOWN: i64 = 600;
/// The number of a call of which the kernel tells the end only: what `rt_sigreturn` returns to.
const NONE: i64 = -1;

/// Which counts can be the same in two runs.
enum Compared {
    All,
    But(&'static [i64]),
    Only(&'static [i64]),
    /// The victim says how often something happened that is up to chance: so often there was one of each of these.
    ButTold(&'static [i64]),
}
use Compared::{All, But, ButTold, Only};

/// Threads and their stacks: how often a thread waits, whether it finds a stack to use again, and whether its wait for a
/// child begins anew as others' children end, is up to chance.
const BY_CHANCE: Compared = But(&[FUTEX, SCHED_YIELD, MMAP, MPROTECT, MUNMAP, WAIT4]);
/// Where a cancelled thread is by then is up to chance.
const CANCELLED: Compared = Only(&[SOCKETPAIR, CLONE, CLONE3, EXIT]);
/// Calls that are made only where threads are cancelled, and not at the moment when that happens by chance.
const BRIDGED: Compared = Only(&[PAUSE, RECVFROM, RECVMSG, PREADV2, UNKNOWN]);
/// What becomes of the sleep that a stop interrupts the kernel asks for by a call of which the process knows nothing.
/// A child is killed while it waits in pause: nobody but the kernel sees the end of that call.
const RESTARTED: Compared = But(&[RESTART_SYSCALL, PAUSE]);
/// While a thread blocks all signals, calls in code that the victim has written are not seen (getpid); and see `RESTARTED`.
const SIGNALS: Compared = But(&[GETPID, PAUSE]);
/// musl ends a process that aborts with all signals blocked: when it lets them come, nobody but the kernel sees the end of that
/// call. And see `SIGNALS`.
const SIGNALS_OF_MUSL: Compared = But(&[GETPID, PAUSE, RT_SIGPROCMASK]);
/// The victim makes these in code that it has written, where they are not seen: while it blocks all signals, and by the 32-bit
/// gate. And see `BY_CHANCE`.
const WRITTEN: Compared = But(&[GETPGID, WRITEV, FUTEX, SCHED_YIELD, MMAP, MPROTECT, MUNMAP, WAIT4]);
/// musl raises signals with all of them blocked: one by which the process ends comes when it lets them come. And see `WRITTEN`.
const WRITTEN_OF_MUSL: Compared =
    But(&[GETPGID, WRITEV, FUTEX, SCHED_YIELD, MMAP, MPROTECT, MUNMAP, WAIT4, RT_SIGPROCMASK]);
/// Behind a filter of its own the victim's written code is left alone (getsid); and see `REFUSED`.
const TRAPPED: Compared = But(&[GETPGID, GETSID]);
const CHILDREN_OF_MUSL: Compared = But(&[RT_SIGPROCMASK]);
/// A filter that the victim has given itself refuses these before the kernel tells of their begin. Nothing in the process
/// can know that it will.
const REFUSED: Compared = But(&[GETPID, FCHDIR, GETPGID, GETSID]);
/// Names for where a call begins and ends are there to be compared by handlers: that call is left alone.
const LEFT_ALONE: Compared = But(&[READ, PAUSE]);
/// The 32-bit gate is left alone; its getpid has the number of writev.
const OLD: Compared = But(&[WRITEV]);
/// What Go's run-time system does is up to chance; these calls only the program makes.
const GO: Compared = Only(&[GETPPID, GETPGID, MKDIRAT, UNLINKAT, RENAMEAT, UNKNOWN, EXECVE]);
/// How many instructions there are to be stepped over is not the same.
const STEPPED: Compared = But(&[PTRACE, WAIT4]);
/// Each signal's handler made these calls and ended by one.
const SIGNALLED: Compared = ButTold(&[RT_SIGPROCMASK, RT_SIGRETURN, NONE, GETPPID]);

impl Compared {
    fn of(&self, mut counts: Counts, told: &[String]) -> Counts {
        match self {
            All => {}
            But(numbers) => counts.retain(|(_, number), _| !numbers.contains(number)),
            Only(numbers) => counts.retain(|(_, number), _| numbers.contains(number)),
            ButTold(numbers) => {
                let told: i64 = told[0].parse().expect("a count");
                counts.iter_mut().filter(|((_, number), _)| numbers.contains(number)).for_each(|(_, n)| *n -= told);
            }
        }
        counts
    }
}

/// What the tool has to tell.
fn listing(tool: &mut Process) -> Vec<String> {
    tool.say("");
    std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")).collect()
}

fn counts(listing: &[String]) -> Counts {
    let count = |line: &String| {
        let (rest, count) = line.rsplit_once(' ').expect("a count");
        let (kind, number) = rest.rsplit_once(' ').expect("a number");
        let number = number.parse().unwrap_or_else(|_| panic!("events were lost: {line}"));
        ((kind.to_owned(), number), count.parse().expect("a count"))
    };
    listing.iter().map(count).collect()
}

/// Without the call that executes the victim: the kernel's tool counts by the victim's name, which the process has only behind it.
fn without_beginning(mut counts: Counts) -> Counts {
    counts.iter_mut().filter(|((_, number), _)| *number == EXECVE).for_each(|(_, count)| *count -= 1);
    counts.retain(|_, count| *count != 0);
    counts
}

/// The tool at work, for one victim; the kernel counts in all processes, and has to be told.
fn counting(bench: &Bench, victim: &Path, options: &[&str]) -> Process {
    let name = victim.file_name().and_then(|name| name.to_str()).expect("a plain name");
    let mut command = bench.load_with_tracefs(programs().join("calls"));
    if bench.is_native() {
        command.args(["-c", name]);
    }
    let mut tool = Process::start(command.args(options));
    assert_eq!(tool.line(), "attached");
    tool
}

fn ends_well(shown: &str, ended: (Option<i32>, Vec<String>, Vec<String>)) -> Vec<String> {
    let (code, lines, errors) = ended;
    assert_eq!(code, Some(0), "{shown}: {lines:?}\n{}", errors.join("\n"));
    lines
}

/// Runs a victim, its name and its arguments, to its end; how often it made which calls.
fn counted(bench: &Bench, victim: &str, compared: &Compared) -> Counts {
    let mut words = victim.split(' ');
    let binary = calling_victims("all").join(words.next().expect("a name"));
    let arguments: Vec<&str> = words.collect();
    for _ in 0..3 {
        let alias = bench.alias(&binary);
        let mut tool = counting(bench, &alias, &["raw", "trace", "named"]);
        let told = ends_well(victim, Process::start(bench.target(&alias).args(&arguments)).finish());
        let listing = listing(&mut tool);
        // The kernel's tracepoints are closed on a CPU where a map is just being looked at.
        if !bench.is_native() || !listing.iter().any(|line| line.contains(" missed ")) {
            let counts = counts(&listing);
            return compared.of(if bench.is_native() { counts } else { without_beginning(counts) }, &told);
        }
    }
    panic!("{victim}: the kernel has lost events three times");
}

/// The lines that differ, for people.
fn difference(left: &Counts, right: &Counts) -> String {
    let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let lines = keys.into_iter().filter(|key| left.get(key) != right.get(key)).map(|key| {
        let count = |counts: &Counts| counts.get(key).copied().unwrap_or(0);
        format!("{} {}: {} and {}\n", key.0, key.1, count(left), count(right))
    });
    lines.collect()
}

fn on_the_kernel(victim: &str, compared: &Compared) -> Option<Counts> {
    if !is_root() {
        println!("SKIPPED IN PART: the kernel's counts need root");
        return None;
    }
    Some(counted(&Bench::native(), victim, compared))
}

fn steady(victim: &str, compared: Compared) {
    let Some(first) = on_the_kernel(victim, &compared) else { return };
    assert!(!first.is_empty());
    let again = on_the_kernel(victim, &compared).expect("root still");
    assert!(first == again, "the kernel counted differently:\n{}", difference(&first, &again));
}

fn same(victim: &str, compared: Compared) {
    let ours = counted(&Bench::ring3(), victim, &compared);
    if let Some(kernel) = on_the_kernel(victim, &compared) {
        assert!(ours == kernel, "ring3 and the kernel:\n{}", difference(&ours, &kernel));
    }
}

macro_rules! victims { ($($name:ident: $victim:literal, $compared:expr;)*) => {
    mod on_the_kernel {
        use super::*;
        $(#[test] fn $name() { steady($victim, $compared); })*
    }
    mod under_ring3 {
        use super::*;
        $(#[test] fn $name() { same($victim, $compared); })*
    }
} }

victims! {
    sites_in_awkward_places_keep_all_registers: "sites", All;
    code_that_is_written_while_it_runs_makes_its_calls: "generated", All;
    signals_and_calls_get_along: "signals", SIGNALS;
    signals_and_calls_get_along_in_a_static_program: "signals-static", SIGNALS;
    signals_and_calls_get_along_with_musl: "signals-musl", SIGNALS_OF_MUSL;
    calls_are_restarted: "restarts", RESTARTED;
    calls_are_restarted_in_a_static_program: "restarts-static", RESTARTED;
    calls_are_restarted_with_musl: "restarts-musl", RESTARTED;
    handlers_see_where_the_call_is: "contexts", LEFT_ALONE;
    handlers_see_where_the_call_is_with_musl: "contexts-musl", LEFT_ALONE;
    a_timer_disturbs_no_call: "bombard", SIGNALLED;
    a_timer_disturbs_no_call_of_a_static_program: "bombard-static", SIGNALLED;
    a_timer_disturbs_no_call_with_musl: "bombard-musl", SIGNALLED;
    threads_come_and_go: "threads", BY_CHANCE;
    threads_come_and_go_in_a_static_program: "threads-static", BY_CHANCE;
    threads_come_and_go_with_musl: "threads-musl", BY_CHANCE;
    signals_and_calls_get_along_where_threads_can_be_cancelled: "signals-cancellable", SIGNALS_OF_MUSL;
    signals_and_calls_get_along_with_musl_as_a_library: "signals-dynamic", SIGNALS_OF_MUSL;
    calls_are_restarted_where_threads_can_be_cancelled: "restarts-cancellable", RESTARTED;
    calls_are_restarted_with_musl_as_a_library: "restarts-dynamic", RESTARTED;
    handlers_see_where_the_call_is_where_threads_can_be_cancelled: "contexts-cancellable", LEFT_ALONE;
    handlers_see_where_the_call_is_with_musl_as_a_library: "contexts-dynamic", LEFT_ALONE;
    a_timer_disturbs_no_call_where_threads_can_be_cancelled: "bombard-cancellable", SIGNALLED;
    a_timer_disturbs_no_call_with_musl_as_a_library: "bombard-dynamic", SIGNALLED;
    threads_come_and_go_where_they_can_be_cancelled: "threads-cancellable", BY_CHANCE;
    threads_come_and_go_with_musl_as_a_library: "threads-dynamic", BY_CHANCE;
    threads_are_cancelled_with_musl_as_a_library: "cancels-dynamic", CANCELLED;
    children_are_made_and_end_where_threads_can_be_cancelled: "processes-cancellable", CHILDREN_OF_MUSL;
    children_are_made_and_end_with_musl_as_a_library: "processes-dynamic", CHILDREN_OF_MUSL;
    threads_come_and_go_without_symbols: "threads-stripped", BY_CHANCE;
    children_are_made_and_end_without_symbols: "processes-stripped", CHILDREN_OF_MUSL;
    calls_are_restarted_without_symbols: "restarts-stripped", RESTARTED;
    threads_are_cancelled: "cancels", CANCELLED;
    threads_are_cancelled_in_a_static_program: "cancels-static", CANCELLED;
    threads_are_cancelled_with_musl: "cancels-musl", CANCELLED;
    threads_are_cancelled_at_any_moment: "cancelled", CANCELLED;
    threads_are_cancelled_at_any_moment_with_musl: "cancelled-musl", CANCELLED;
    threads_are_cancelled_at_any_moment_with_musl_as_a_library: "cancelled-dynamic", CANCELLED;
    threads_are_cancelled_by_where_their_call_is: "bridged", BRIDGED;
    threads_are_cancelled_by_where_their_call_is_in_a_static_program: "bridged-static", BRIDGED;
    threads_that_are_cancelled_are_unwound: "unwound", CANCELLED;
    threads_that_are_cancelled_are_unwound_in_a_static_program: "unwound-static", CANCELLED;
    children_are_made_and_end: "processes", All;
    children_are_made_and_end_in_a_static_program: "processes-static", All;
    children_are_made_and_end_with_musl: "processes-musl", CHILDREN_OF_MUSL;
    small_stacks_are_enough: "fibers", All;
    small_stacks_are_enough_in_a_static_program: "fibers-static", All;
    no_stack_is_enough: "stackless", All;
    calls_before_and_after_main_count: "startup", All;
    calls_before_and_after_main_count_in_a_static_program: "startup-static", All;
    the_first_instruction_is_a_call: "first", All;
    programs_confine_themselves: "confined", REFUSED;
    rings_work_without_calls: "ring", All;
    the_32_bit_gate_is_left_alone: "old", OLD;
    the_vdso_asks_the_kernel: "clocks", All;
    signals_come_after_any_instruction: "everywhere", STEPPED;
    handlers_jump_out_after_any_instruction: "everywhere jump", Only(&[GETPGID]);
    written_code_does_what_code_of_files_does: "written", WRITTEN;
    written_code_does_what_code_of_files_does_where_threads_can_be_cancelled: "written-cancellable", WRITTEN_OF_MUSL;
    written_code_does_what_code_of_files_does_with_musl_as_a_library: "written-dynamic", WRITTEN_OF_MUSL;
    filters_trap_as_they_are_to: "trapped", TRAPPED;
    signals_come_after_any_instruction_where_threads_can_be_cancelled: "everywhere-cancellable points", STEPPED;
    handlers_jump_out_where_threads_can_be_cancelled: "everywhere-cancellable points jump", Only(&[GETPGID]);
    threads_come_to_new_code_at_the_same_time: "races", BY_CHANCE;
}

#[test]
fn an_ordinary_user_counts_the_same() {
    if !is_root() {
        println!("SKIPPED: who is not root runs all tests as an ordinary user");
        return;
    }
    for (victim, compared) in [("signals", SIGNALS), ("processes", All), ("first", All), ("startup-static", All)] {
        let benches = [Bench::ring3_as(54_321), Bench::native()];
        let [ours, kernel] = benches.map(|bench| counted(&bench, victim, &compared));
        assert!(ours == kernel, "ring3 and the kernel:\n{}", difference(&ours, &kernel));
    }
}

#[test]
fn calls_are_seen_where_the_agent_has_files() {
    let expected = counted(&Bench::ring3(), "processes", &All);
    let bench = Bench::ring3();
    let alias = bench.alias(&calling_victims("all").join("processes"));
    let mut command = bench.load_with_tracefs(programs().join("calls"));
    let mut tool = Process::start(command.args(["raw", "trace", "named"]).env("RING3_PERF", "1"));
    assert_eq!(tool.line(), "attached");
    ends_well("processes", Process::start(&mut bench.target(&alias)).finish());
    let found = without_beginning(counts(&listing(&mut tool)));
    assert!(found == expected, "with files and without:\n{}", difference(&found, &expected));
}

/// bpftrace with a program in place; nothing if it cannot run here.
fn traced_by_bpftrace(bench: &Bench, program: &str) -> Option<Process> {
    if lacks("bpftrace") {
        return None;
    }
    let program = format!("BEGIN {{ printf(\"begun\\n\") }} {program}");
    let mut tool = Process::start(bench.load_with_tracefs("bpftrace").args(["-B", "line", "-e", &program]));
    while tool.line() != "begun" {}
    Some(tool)
}

#[test]
fn what_a_handlers_call_interrupts_goes_on_with_its_cpus_part() {
    const LAST: &str = "1";
    if !std::fs::read_to_string("/proc/self/status").expect("ours").contains("Cpus_allowed_list:\t0-") {
        println!("SKIPPED: there is but one CPU");
        return;
    }
    let bench = Bench::ring3();
    let program = "tracepoint:raw_syscalls:sys_enter { @calls = count() }";
    let Some(_tool) = traced_by_bpftrace(&bench, program) else { return };
    let victim = calling_victims("all").join("bombard");
    let mut command = bench.target("taskset");
    ends_well("bombard", Process::start(command.args(["-c", LAST]).arg(victim).arg("300000")).finish());
    let dump = bench.load("bpftool").args(["map", "dump", "name", "AT_calls", "-j"]).output().expect("it runs");
    let elements: serde_json::Value = serde_json::from_slice(&dump.stdout).expect("JSON");
    let mut by_cpu: BTreeMap<String, u64> = BTreeMap::new();
    for value in
        elements.as_array().expect("a list").iter().flat_map(|element| element["values"].as_array()).flatten()
    {
        let bytes = value["value"].as_array().expect("bytes").iter().rev();
        let hex: String = bytes.map(|byte| byte.as_str().expect("hexadecimal").trim_start_matches("0x")).collect();
        *by_cpu.entry(value["cpu"].to_string()).or_default() += u64::from_str_radix(&hex, 16).expect("a number");
    }
    let here = by_cpu.remove(LAST).expect("it ran here");
    assert!(here > 300_000, "{here}");
    // (Who started it came by other CPUs.)
    let elsewhere: u64 = by_cpu.values().sum();
    assert!(elsewhere < 200, "{elsewhere} of {here} calls were counted where they were not made: {by_cpu:?}");
}

/// What bpftrace has counted when it is told to end, by name.
fn counted_by_bpftrace(tool: Process) -> BTreeMap<String, u64> {
    tool.signal(rustix::process::Signal::INT);
    let (_, lines, _) = tool.finish();
    lines
        .iter()
        .filter_map(|line| {
            let (name, count) = line.strip_prefix('@')?.split_once(": ")?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}

/// Programs that handlers interrupt on a stack above theirs were taken for left: a null pointer was followed (return probes),
/// and counts came to the wrong CPU.
#[test]
fn handlers_on_a_stack_above_interrupt_programs_without_harm() {
    const CALLS: u64 = 300_000;
    let bench = Bench::ring3();
    let victim = bench.alias(&calling_victims("all").join("above"));
    let [at, woke] = ["worked", "woke"].map(|name| format!("{}:{name}", victim.display()));
    let program = format!(
        "uprobe:{at} {{ @one = count(); @of = hist(arg0) }} uprobe:{at} {{ @other = count() }}
        uretprobe:{at} {{ @returned = count() }} tracepoint:raw_syscalls:sys_enter {{ @called = count() }}
        uprobe:{woke} {{ @woke = count() }} uretprobe:{woke} {{ @slept = count() }}"
    );
    let Some(tool) = traced_by_bpftrace(&bench, &program) else { return };
    let said = ends_well("above", Process::start(bench.target(&victim).arg(CALLS.to_string())).finish());
    let handled: u64 = said.concat().parse().expect("how often the handler ran");
    let counts = counted_by_bpftrace(tool);
    for (name, calls) in
        [("one", CALLS), ("other", CALLS), ("returned", CALLS), ("woke", handled), ("slept", handled)]
    {
        assert_eq!(counts[name], calls, "{counts:?}");
    }
    assert!(counts["called"] > CALLS / 16, "{counts:?}");
}

/// A handler's return was seen with the stack pointer of who it goes back to, and all between that and the handler's stack was taken
/// for the thread's stack; so was the page at which a stack ends.
#[test]
fn what_lies_behind_a_stacks_end_is_read_with_care() {
    const TIMES: u64 = 200;
    const GETPPID: u32 = 110;
    let bench = Bench::ring3();
    let mut command = bench.target(calling_victims("all").join("below"));
    let mut victim = Process::start(command.arg(TIMES.to_string()));
    let nothing = victim.line();
    let program = format!(
        "tracepoint:raw_syscalls:sys_exit /pid == {0} && args->id == -1/ {{
            @read = sum(*(uint64 *)uptr({nothing})); @returned = count();
        }}
        tracepoint:raw_syscalls:sys_exit /pid == {0} && args->ret == -512/ {{
            @read = sum(*(uint64 *)uptr({nothing})); @again = count();
        }}
        tracepoint:raw_syscalls:sys_exit /pid == {0} && args->id == {GETPPID}/ {{
            @read = sum(*(uint64 *)uptr({nothing})); @at_end = count();
        }}",
        victim.pid()
    );
    let Some(tool) = traced_by_bpftrace(&bench, &program) else { return };
    victim.say("go");
    ends_well("below", victim.finish());
    let counts = counted_by_bpftrace(tool);
    let seen = ["returned", "again", "at_end"].map(|name| counts[name]);
    assert_eq!(seen, [2 * TIMES, TIMES, TIMES], "{counts:?}");
}

/// Half of what handlers called was missed, and their return probes would now come between those that they interrupt.
#[test]
fn handlers_that_interrupt_programs_are_seen_and_harm_nobody() {
    let bench = Bench::ring3();
    let victim = bench.alias(&calling_victims("all").join("interrupted"));
    let at = |name: &str| format!("{}:{name}", victim.display());
    let probes = ["down", "onward", "thrower"].map(|name| {
        let at = at(name);
        format!("uprobe:{at} {{ @{name} = count() }} uretprobe:{at} {{ @{name}_returned = count() }}\n")
    });
    let program = format!("{} tracepoint:raw_syscalls:sys_enter {{ @called = count() }}", probes.concat());
    let Some(tool) = traced_by_bpftrace(&bench, &program) else { return };
    let mut calls = vec![0, 0];
    for _ in 0..3 {
        let process = Process::start(bench.target(&victim).arg("100000"));
        let said = ends_well("interrupted", process.finish()).concat();
        for (sum, word) in calls.iter_mut().zip(said.split(' ')) {
            *sum += word.parse::<u64>().expect("a number");
        }
    }
    let counts = counted_by_bpftrace(tool);
    // bpftrace reads, adds and writes: what is counted in between is lost.
    let (all, seen) = (calls[0] + calls[1], counts["down"]);
    assert!((calls[0] + calls[1] * 4 / 5..=all).contains(&seen), "{calls:?} {counts:?}");
    // No handler calls it; in two rounds of three it returns, and from where it is caught at once it never does.
    assert_eq!((counts["thrower"], counts["thrower_returned"]), (3 * 200_000, 3 * 66_666), "{counts:?}");
}

/// Whether a process has come to its end; who started it has still to hear of it.
fn is_over(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

/// Victims at work for a while that wait for nothing that being stopped would end (`epoll_wait`, for one).
const AT_WORK: [(&str, &[&str]); 10] = [
    ("written", &["20"]),
    ("bombard", &["1000000"]),
    ("bombard-musl", &["1000000"]),
    ("threads", &[]),
    ("threads-musl", &[]),
    ("bombard-cancellable", &["1000000"]),
    ("threads-dynamic", &[]),
    ("cancelled-musl", &["3000"]),
    ("bridged", &["20000"]),
    ("processes-static", &[]),
];

#[test]
fn tools_come_and_go_while_victims_work() {
    let bench = Bench::ring3();
    for (victim, arguments) in AT_WORK {
        let alias = bench.alias(&calling_victims("all").join(victim));
        let process = Process::start(bench.target(&alias).args(arguments));
        let mut times = 0;
        while !is_over(process.pid()) {
            for kinds in [&["raw"][..], &["named"], &["raw", "trace", "named"]] {
                assert_eq!(counting(&bench, &alias, kinds).finish().0, Some(0));
                times += 1;
            }
        }
        ends_well(victim, process.finish());
        assert!(times > 0, "{victim}");
    }
}

/// The call that it is in is made again when a tool comes, and SIGSYS, which SUD needs, is blocked meanwhile.
#[test]
fn tools_come_and_go_while_a_call_blocks_all_signals() {
    let bench = Bench::ring3();
    let alias = bench.alias(&calling_victims("all").join("written"));
    let ways = ["suspend", "suspend-written", "poll", "poll-written"];
    for (how, comes_first) in ways.into_iter().flat_map(|how| [(how, true), (how, false)]) {
        let first = comes_first.then(|| counting(&bench, &alias, &["raw"]));
        let mut victim = Process::start(bench.target(&alias).arg(how));
        assert_eq!(victim.line(), "ready");
        let in_call = || std::fs::read_to_string(format!("/proc/{}/syscall", victim.pid())).unwrap_or_default();
        let call = if how.starts_with("suspend") { "130 " } else { "271 " };
        wait_until("it waits", || in_call().starts_with(call));
        if let Some(first) = first {
            assert_eq!(first.finish().0, Some(0));
            assert_eq!(counting(&bench, &alias, &["raw", "named"]).finish().0, Some(0));
        }
        let mut tool = counting(&bench, &alias, &["raw"]);
        if how.starts_with("suspend") {
            victim.signal(rustix::process::Signal::USR1);
        }
        ends_well(how, victim.finish());
        let seen = counts(&listing(&mut tool));
        assert_eq!(seen.get(&("raw enter".to_owned(), GETPPID)), Some(&3), "{how} {comes_first}: {seen:?}");
    }
}

#[test]
fn the_files_of_a_process_in_a_root_of_its_own_are_found() {
    if !is_root() {
        println!("SKIPPED: to change the root needs root");
        return;
    }
    let (bench, name) = (Bench::ring3(), "bombard-static");
    let mut tool = counting(&bench, Path::new(name), &["raw"]);
    let root = bench.directory().join("root");
    std::fs::create_dir_all(root.join("dev")).expect("new");
    for (device, minor) in [("null", "3"), ("zero", "5")] {
        let made = Command::new("mknod").arg(root.join("dev").join(device)).args(["c", "1", minor]).status();
        assert!(made.expect("mknod runs").success());
    }
    std::fs::copy(calling_victims("all").join(name), root.join(name)).expect("copied");
    let process = Process::start(Command::new("chroot").arg(&root).args([&format!("/{name}"), "1000000"]));
    let comm = format!("/proc/{}/comm", process.pid());
    let runs = || std::fs::read_to_string(&comm).is_ok_and(|comm| comm.trim_end() == name);
    wait_until("it runs the victim", runs);
    assert_eq!(bench.run(&["attach", &process.pid().to_string()]).0, Some(0));
    // Its calls are replaced: none has to be caught.
    assert_eq!(sud_of(&bench, process.pid()), None);
    ends_well(name, process.finish());
    assert!(!counts(&listing(&mut tool)).is_empty());
}

#[test]
fn victims_are_attached_and_left_while_they_work() {
    let bench = Bench::ring3();
    for (victim, arguments) in AT_WORK {
        let alias = bench.alias(&calling_victims("all").join(victim));
        let mut tool = counting(&bench, &alias, &["raw", "trace", "named"]);
        let process = Process::start(Command::new(&alias).args(arguments));
        let pid = process.pid().to_string();
        let mut attached = 0;
        while !is_over(process.pid()) {
            attached += u32::from(bench.run(&["attach", &pid]).0 == Some(0));
            // (Or it has ended since.)
            bench.run(&["detach", &pid]);
        }
        ends_well(victim, process.finish());
        assert!(attached > 0, "{victim}");
        assert!(!counts(&listing(&mut tool)).is_empty(), "{victim}");
    }
}

/// The agent looked into TCBs that did not exist any more: a process that was attached while a thread of musl ended was
/// killed by SIGSEGV.
#[test]
fn threads_whose_control_block_is_gone_live_on() {
    const CALLS: i64 = 7;
    let bench = Bench::ring3();
    for calls in [0, CALLS] {
        let alias = bench.alias(&calling_victims("all").join("ending"));
        let mut tool = counting(&bench, &alias, &["raw"]);
        let mut victim = Process::start(Command::new(&alias).arg(calls.to_string()));
        assert_eq!(victim.line(), "ready");
        let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
        assert_eq!(code, Some(0), "{error}");
        victim.say("");
        ends_well("ending", victim.finish());
        let counts = counts(&listing(&mut tool));
        let seen = [EXIT, GETPPID].map(|call| counts.get(&("raw enter".to_owned(), call)).copied().unwrap_or(0));
        assert_eq!(seen, [1, calls], "{counts:?}");
    }
}

/// Why calls of a process are caught that cannot be replaced, if they are.
fn sud_of(bench: &Bench, pid: u32) -> Option<String> {
    let status = bench.status();
    let targets = status["targets"].as_array().expect("targets");
    targets.iter().find(|target| target["pid"] == pid)?["sud"].as_str().map(str::to_owned)
}

fn has_region(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains("ring3-")
}

#[test]
fn calls_are_caught_only_where_that_is_needed_and_wanted() {
    let bench = Bench::ring3();
    let start = |victim: &str, arguments: &[&str]| {
        Process::start(bench.target(calling_victims("all").join(victim)).args(arguments))
    };
    let mut loop_of_files = start("loop", &["1", "1"]);
    assert_eq!(loop_of_files.line(), "ready");
    let written = start("written", &["400"]);
    let (of_files, of_written) = (loop_of_files.pid(), written.pid());
    assert_eq!(sud_of(&bench, of_written), None);
    for _ in 0..3 {
        let tool = counting(&bench, &calling_victims("all").join("written"), &["raw"]);
        wait_until("written code's calls are caught", || sud_of(&bench, of_written).is_some());
        assert_eq!(sud_of(&bench, of_files), None);
        assert_eq!(tool.finish().0, Some(0));
        wait_until("they are not any more", || sud_of(&bench, of_written).is_none());
    }
    assert_eq!(bench.run(&["detach", &of_written.to_string()]).0, Some(0));
    assert!(!has_region(of_written));
    loop_of_files.say("");
    assert_eq!(loop_of_files.line(), "done");
    loop_of_files.say("");
    ends_well("loop", loop_of_files.finish());
    ends_well("written", written.finish());
}

#[test]
fn who_waits_in_a_call_that_was_caught_is_left() {
    const EPOLL_PWAIT: &str = "281 ";
    let bench = Bench::ring3();
    let alias = bench.alias(&calling_victims("all").join("written"));
    let _tool = counting(&bench, &alias, &["raw"]);
    let mut process = Process::start(bench.target(&alias).arg("wait"));
    let pid = process.pid();
    assert_eq!(process.line(), "ready");
    wait_until("it waits", || {
        std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with(EPOLL_PWAIT))
    });
    assert!(sud_of(&bench, pid).is_some());
    let (code, _, error) = bench.run(&["detach", &pid.to_string()]);
    assert_eq!(code, Some(0), "{error}");
    assert!(!has_region(pid));
    ends_well("written", process.finish());
}

#[test]
fn who_is_caught_outlives_the_server_and_is_cleaned_by_the_next() {
    for next in ["nobody", "detach", "attach"] {
        let bench = Bench::ring3();
        let alias = bench.alias(&calling_victims("all").join("written"));
        let tool = counting(&bench, &alias, &["raw", "trace", "named"]);
        let process = Process::start(bench.target(&alias).arg("200"));
        let pid = process.pid();
        wait_until("calls are caught", || sud_of(&bench, pid).is_some());
        kill(bench.server());
        drop(tool);
        assert!(has_region(pid));
        let shown = pid.to_string();
        if next == "attach" {
            let tool = counting(&bench, &alias, &["raw"]);
            let (code, _, error) = bench.run(&["attach", &shown]);
            assert_eq!(code, Some(0), "{error}");
            wait_until("calls are caught again", || sud_of(&bench, pid).is_some());
            drop(tool);
        }
        if next != "nobody" {
            let (code, _, error) = bench.run(&["detach", &shown]);
            assert_eq!(code, Some(0), "{error}");
            assert!(!has_region(pid));
        }
        ends_well(next, process.finish());
    }
}

#[test]
fn tools_come_and_go_while_a_fork_cannot_be_stopped() {
    const GETPPID: i64 = 110;
    let bench = Bench::ring3();
    let alias = bench.alias(&calling_victims("all").join("held"));
    let first = counting(&bench, &alias, &["raw"]);
    let mut process = Process::start(&mut bench.target(&alias));
    assert_eq!(process.line(), "held");
    // The fork has the first one's maps and code, which go, and not the second one's.
    let mut second = counting(&bench, &alias, &["trace"]);
    assert_eq!(first.finish().0, Some(0));
    process.say("go on");
    ring3_tests::wait_until("the fork's calls are seen", || {
        counts(&listing(&mut second)).keys().any(|(_, number)| *number == GETPPID)
    });
    process.say("end");
    ends_well("held", process.finish());
}

#[test]
fn goroutines_make_their_calls_on_the_kernel() {
    if go_victims().is_some() {
        steady("many", GO);
    }
}

#[test]
fn goroutines_make_their_calls_under_ring3() {
    if go_victims().is_some() {
        same("many", GO);
    }
}

/// What is told of calls whose arguments and results are known, in order, by each way of telling it.
fn told_in_order(bench: &Bench, options: &[&str]) -> BTreeMap<String, Vec<String>> {
    let victim = bench.alias(&calling_victims("all").join("order"));
    let mut tool = counting(bench, &victim, options);
    ends_well("order", Process::start(&mut bench.target(&victim)).finish());
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in listing(&mut tool) {
        let (way, rest) = line.split_once(' ').expect("a way");
        told.entry(way.to_owned()).or_default().push(rest.to_owned());
    }
    told
}

const IN_EACH_WAY: [&str; 6] = ["-m", "-s", "raw", "trace", "named", "typed"];

/// Asserts that two listings are the same, and shows where they begin not to be.
fn assert_same_order(left: &BTreeMap<String, Vec<String>>, right: &BTreeMap<String, Vec<String>>) {
    assert!(left.keys().eq(right.keys()));
    for (way, lines) in left {
        let pair = lines.iter().zip(&right[way]).find(|(left, right)| left != right);
        assert_eq!(pair, None, "{way}");
        assert_eq!(lines.len(), right[way].len(), "{way}");
    }
}

#[test]
fn arguments_and_results_are_told_in_order_on_the_kernel() {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    let told = told_in_order(&Bench::native(), &IN_EACH_WAY);
    assert_same_order(&told, &told_in_order(&Bench::native(), &IN_EACH_WAY));
    let first = ["enter 3 (ffffffffffffffff, 2, 3, 200000000, fffffffffffffffe, 8000000000000001)", "exit 3 = -9"];
    assert_eq!(told["raw"][..2], first);
    assert_eq!(told["trace"][..2], first);
    assert_eq!(told["typed"][..2], first);
    assert_eq!(told["named"][..2], ["enter 3 (ffffffffffffffff, 0, 0, 0, 0, 0)", "exit 3 = -9"]);
}

#[test]
fn arguments_and_results_are_told_in_order_under_ring3() {
    let ours = told_in_order(&Bench::ring3(), &IN_EACH_WAY);
    assert!(ours["raw"].len() > 1000);
    if !is_root() {
        println!("SKIPPED IN PART: the native half needs root");
        return;
    }
    assert_same_order(&ours, &told_in_order(&Bench::native(), &IN_EACH_WAY));
}

/// A program that is all there is to be run is run in another way, with the thread's registers if it looks at them.
#[test]
fn a_program_alone_is_told_what_programs_together_are() {
    let together = told_in_order(&Bench::ring3(), &IN_EACH_WAY);
    // (How often what was called is no matter of order.)
    let calls = |told: &BTreeMap<String, Vec<String>>, way: &str| -> Vec<String> {
        told[way].iter().filter(|line| line.contains(['(', '='])).cloned().collect()
    };
    let kept = "enter 400 (100000000, 100000001, 100000002, 100000003, 100000004, 100000005)";
    assert!(together["raw"].iter().any(|line| line == kept));
    for way in ["raw", "trace", "typed"] {
        let (wanted, alone) = (calls(&together, way), calls(&told_in_order(&Bench::ring3(), &["-s", way]), way));
        // Before the first mark and behind the last one there are others.
        let first = alone.windows(2).position(|lines| lines == &wanted[..2]).expect("the first call is told");
        let pair = wanted.iter().zip(&alone[first..]).find(|(wanted, told)| wanted != told);
        assert_eq!(pair, None, "{way}");
        assert!(alone.len() - first >= wanted.len(), "{way}");
    }
}

/// (Kernels may refuse `fentry` and `fexit` to root; the tracepoints of the same calls are compared with the kernel's above.)
#[test]
fn functions_of_calls_are_told_of_as_tracepoints_of_calls_are() {
    let told = told_in_order(&Bench::ring3(), &["-m", "-s", "named", "function"]);
    // (The last lines are the counts.)
    let calls = |way: &str| -> Vec<&String> { told[way].iter().filter(|line| line.contains(['(', '='])).collect() };
    assert!(calls("named").len() > 50, "{told:?}");
    assert_eq!(calls("function"), calls("named"));
}

/// Two tools, the first one the bench's, count at the same time what a victim does between two marks.
fn counted_at_once(bench: &Bench, threads: &str) -> [Counts; 2] {
    const OPTIONS: [&str; 4] = ["-m", "raw", "trace", "named"];
    let alias = bench.alias(&calling_victims("all").join("loop"));
    let mut tools = [counting(bench, &alias, &OPTIONS), counting(&Bench::native(), &alias, &OPTIONS)];
    let mut victim = ring3_tests::ready(bench.target(alias).args(["20000", threads]));
    victim.say("go");
    assert_eq!(victim.line(), "done");
    let both = tools.each_mut().map(|tool| counts(&listing(tool)));
    victim.say("end");
    assert_eq!(victim.finish(), (Some(0), vec![], vec![]));
    assert!(both[0][&("raw enter".to_owned(), GETPPID)] >= 20_000, "{:?}", both[0]);
    both
}

/// What an agent calls: getpid, gettid, process_vm_readv, and the return from a fault (`rt_sigreturn`, whose end has no number); and how often
/// at most, by the threads of this test.
const OF_THE_AGENT: [i64; 5] = [GETPID, 186, 310, 15, -1];
const AGENTS_MAX: i64 = 50;

fn agree_at_once(bench: impl Fn() -> Bench) {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    for threads in ["1", "4"] {
        let [one, mut other] = counted_at_once(&bench(), threads);
        // The kernel sees what the agent asks it itself, when threads begin and when it meets them first.
        for ((kind, number), count) in &mut other {
            let seen = one.get(&(kind.clone(), *number)).copied().unwrap_or(0);
            if OF_THE_AGENT.contains(number) && (seen..=seen + AGENTS_MAX).contains(count) {
                *count = seen;
            }
        }
        other.retain(|_, count| *count != 0);
        assert!(one == other, "this bench and the kernel, {threads} threads:\n{}", difference(&one, &other));
    }
}

#[test]
fn two_tools_agree_on_one_process_at_the_same_time_on_the_kernel() {
    agree_at_once(Bench::native);
}

#[test]
fn ring3_and_the_kernel_agree_on_one_process_at_the_same_time() {
    agree_at_once(Bench::ring3);
}

/// How often a program that makes its code while it runs makes a call that nothing else in it makes.
fn counted_in(bench: &Bench, program: &str, arguments: &[&str], number: i64) -> i64 {
    // A shell that becomes it: by a link, Java would not find its parts.
    let alias = bench.alias(Path::new("/bin/sh"));
    let mut tool = counting(bench, &alias, &["raw"]);
    let mut victim = bench.target(&alias);
    victim.args(["-c", "exec \"$@\"", "sh", program]).args(arguments);
    ends_well(program, Process::start(&mut victim).finish());
    let counts = counts(&listing(&mut tool));
    let by = |way: &str| counts.get(&(way.to_owned(), number)).copied().unwrap_or(0);
    assert_eq!(by("raw enter"), by("raw exit"));
    by("raw enter")
}

/// A program makes a call as often as it says, on this bench.
fn made_as_often(bench: &Bench, program: &str, arguments: &[&str], number: i64, expected: i64) {
    if Command::new(program).arg("--version").output().is_err() {
        println!("SKIPPED: {program} is not installed");
    } else if bench.is_native() && !is_root() {
        println!("SKIPPED: the kernel's counts need root");
    } else {
        assert_eq!(counted_in(bench, program, arguments, number), expected);
    }
}

const FCHMOD: i64 = 91;
const LINK: i64 = 86;

fn node(bench: &Bench) {
    const SCRIPT: &str = "const fs = require('fs');
        for (let i = 0; i < 20000; i++) try { fs.fchmodSync(1000000, 0); throw 'it is open'; }
            catch (error) { if (error.code !== 'EBADF') throw error; }";
    made_as_often(bench, "node", &["-e", SCRIPT], FCHMOD, 20_000);
}

fn java(bench: &Bench) {
    let source = ring3_tests::root().join("tests/victims/calls/Links.java");
    made_as_often(bench, "java", &[source.to_str().expect("a plain path"), "20000"], LINK, 20_000);
}

#[test]
fn node_makes_its_calls_on_the_kernel() {
    node(&Bench::native());
}

#[test]
fn node_makes_its_calls_under_ring3() {
    node(&Bench::ring3());
}

#[test]
fn java_makes_its_calls_on_the_kernel() {
    java(&Bench::native());
}

#[test]
fn java_makes_its_calls_under_ring3() {
    java(&Bench::ring3());
}
