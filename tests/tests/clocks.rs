//! Programs read clocks in threads whose time stamp counter is disabled, which end with SIGSEGV if anybody executes `rdtsc` in them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use ring3_tests::{Bench, Process, is_root, programs, ready, victim};
use rustix::time::{ClockId, clock_gettime};

/// More than a tick, in which coarse clocks go on.
const TICK_NS: u64 = 20_000_000;
const SECOND_NS: u64 = 1_000_000_000;

fn counterless() -> PathBuf {
    victim("counterless", "gcc", "counterless.c", &[])
}

/// The tool at work. (In targets only: other tests' victims, which run the same file, are their own servers'.)
fn tool(bench: &Bench, options: &[&str]) -> Process {
    let mut command = bench.ring3_command(&[&["load", "--only-targets"], options, &["--"]].concat());
    let mut tool = Process::start(command.arg(programs().join("clocks")).arg(counterless()).arg("mark"));
    assert_eq!(tool.line(), "attached");
    tool
}

/// Runs, the clocks, and ticks.
fn all_numbers(tool: &mut Process) -> [u64; 5] {
    tool.say("times");
    let line = tool.line();
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    numbers.try_into().expect("five numbers")
}

fn numbers(tool: &mut Process) -> [u64; 4] {
    let [numbers @ .., _] = all_numbers(tool);
    numbers
}

/// The kernel's own count of ticks: the last one that a CPU noted.
fn jiffies() -> Option<u64> {
    let timers = std::fs::read_to_string("/proc/timer_list").ok()?;
    let noted = timers.lines().filter_map(|line| line.trim().strip_prefix("jiffies: "));
    noted.filter_map(|number| number.parse().ok()).max()
}

#[test]
fn ticks_are_the_kernels() {
    let Some(before) = jiffies() else {
        println!("SKIPPED: /proc/timer_list cannot be read");
        return;
    };
    let bench = Bench::ring3();
    let mut tool = tool(&bench, &[]);
    let mut process = ready(&mut bench.target(counterless()));
    obey(&mut process, "mark");
    let [.., ticks] = all_numbers(&mut tool);
    let after = jiffies().expect("as before");
    // (The kernel's own count may be some ticks behind its clock.)
    assert!((before..=after + 1000).contains(&ticks), "{ticks} is not between {before} and {after}");
    end(process);
}

/// The program's clocks; the seconds by which `CLOCK_TAI` is ahead of the real time are not known.
fn now() -> [u64; 3] {
    [ClockId::Monotonic, ClockId::Boottime, ClockId::Realtime].map(|clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * SECOND_NS + time.tv_nsec as u64
    })
}

#[track_caller]
fn obey(process: &mut Process, command: &str) {
    process.say(command);
    assert_eq!(process.line_or_end().as_deref(), Some("done"), "after {command:?}");
}

/// The process does what runs the program so often, which finds the time of its last run in these of the clocks.
#[track_caller]
fn looks(tool: &mut Process, process: &mut Process, command: &str, (runs, clocks): (u64, usize)) {
    let [ran, last, ..] = numbers(tool);
    let before = now();
    obey(process, command);
    let after = now();
    let [runs_now, times @ ..] = numbers(tool);
    assert_eq!(runs_now, ran + runs, "after {command:?}");
    for (clock, time) in times.iter().enumerate().take(clocks) {
        let (first, last) = (before[clock] - TICK_NS, after[clock] + TICK_NS);
        let leap = if clock == 2 { time.saturating_sub(first) / SECOND_NS } else { 0 };
        let (time, span) = (time - leap * SECOND_NS, first..=last);
        assert!(leap < 60 && span.contains(&time), "after {command:?}: clock {clock} is {time}, not in {span:?}");
    }
    assert!(times[0] + TICK_NS >= last, "after {command:?}: {} comes after {last}", times[0]);
}

#[track_caller]
fn marks(tool: &mut Process, process: &mut Process, command: &str) {
    looks(tool, process, command, (1, 3));
}

#[track_caller]
fn end(mut process: Process) {
    process.say("end");
    assert_eq!(process.wait(), Some(7));
}

#[test]
fn victims_that_read_the_counter_are_killed_natively() {
    for how in ["off", "mode1", "seccomp1"] {
        let mut process = ready(&mut Command::new(counterless()));
        obey(&mut process, "rdtsc");
        obey(&mut process, how);
        obey(&mut process, "mark");
        process.say("rdtsc");
        assert_eq!((process.line_or_end(), process.wait()), (None, None), "{how}");
    }
}

/// With all that a target does to its counter.
fn targets_live(bench: &Bench, options: &[&str]) {
    let mut tool = tool(bench, options);
    for how in ["off", "mode1", "seccomp1"] {
        // (One of each is not known when it disables its counter.)
        for first in ["mark", "wrong"] {
            let mut process = ready(&mut bench.target(counterless()));
            obey(&mut process, first);
            obey(&mut process, how);
            for _ in 0..3 {
                if first == "mark" || how == "off" {
                    marks(&mut tool, &mut process, "mark");
                } else {
                    // (A thread that may not be asked for its id may have no block.)
                    obey(&mut process, "mark");
                }
            }
            end(process);
        }
    }
    let mut process = ready(&mut bench.target(counterless()));
    for command in ["mark", "thread off", "mark", "thread", "child"] {
        marks(&mut tool, &mut process, command);
    }
    obey(&mut process, "off");
    for command in ["mark", "thread", "child", "mark", "vfork on", "mark"] {
        marks(&mut tool, &mut process, command);
    }
    obey(&mut process, "on");
    for command in ["rdtsc", "wrong"] {
        obey(&mut process, command);
    }
    for command in ["mark", "vfork off", "mark", "thread", "child"] {
        marks(&mut tool, &mut process, command);
    }
    obey(&mut process, "rdtsc");
    end(process);
}

/// As programs do that restore others from images, and sandboxes.
#[test]
fn a_target_that_takes_its_vdso_away_lives_and_programs_find_the_time() {
    let bench = Bench::ring3();
    let mut tool = tool(&bench, &[]);
    for how in ["vdso move", "vdso unmap"] {
        let mut process = ready(&mut bench.target(counterless()));
        for command in ["mark", how, "mark", "thread", "child"] {
            match command == how {
                true => obey(&mut process, command),
                false => marks(&mut tool, &mut process, command),
            }
        }
        end(process);
    }
    // Before it is a target.
    for how in ["vdso move", "vdso unmap"] {
        let mut process = ready(&mut Command::new(counterless()));
        obey(&mut process, how);
        let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
        assert_eq!(code, Some(0), "{error}");
        marks(&mut tool, &mut process, "mark");
        end(process);
    }
}

#[test]
fn so_does_one_whose_system_calls_are_seen() {
    let bench = Bench::ring3();
    for how in ["vdso move", "vdso unmap", "vdso cover"] {
        let file = counterless();
        let arguments = ["trace", "-e", "all", "--", file.to_str().expect("UTF-8"), "brief", how];
        let (code, out, lines) = bench.run(&arguments);
        assert_eq!((code, out.as_str()), (Some(4), "hello\n"), "{how}: {lines}");
    }
}

#[test]
fn a_target_that_disables_its_counter_lives_and_programs_find_the_time() {
    targets_live(&Bench::ring3(), &[]);
}

#[test]
fn so_does_one_whose_programs_have_a_budget() {
    targets_live(&Bench::ring3(), &["--budget", "10s"]);
}

#[test]
fn so_does_one_of_an_ordinary_users_server() {
    if !is_root() {
        println!("SKIPPED: to be another user needs root");
        return;
    }
    let bench = Bench::ring3_as(65534);
    let mut tool = tool(&bench, &[]);
    let mut process = ready(&mut bench.target(counterless()));
    obey(&mut process, "off");
    marks(&mut tool, &mut process, "mark");
    // It is let go now.
    for command in ["mode1", "mark"] {
        obey(&mut process, command);
    }
    end(process);
}

#[test]
fn so_does_a_process_that_becomes_a_target_with_its_counter_disabled() {
    for options in [&[][..], &["--budget", "10s"]] {
        let bench = Bench::ring3();
        let mut tool = tool(&bench, options);
        let mut process = ready(&mut Command::new(counterless()));
        obey(&mut process, "off");
        let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
        assert_eq!(code, Some(0), "{error}");
        for command in ["mark", "thread", "child"] {
            marks(&mut tool, &mut process, command);
        }
        obey(&mut process, "on");
        marks(&mut tool, &mut process, "mark");
        end(process);
    }
}

#[test]
fn so_does_one_whose_filter_forbids_to_ask_for_the_time() {
    if !is_root() {
        println!("SKIPPED: to read filters needs root");
        return;
    }
    for mode in ["off", "on"] {
        let bench = Bench::ring3();
        let mut tool = tool(&bench, &[]);
        let mut process = ready(&mut Command::new(counterless()));
        for command in [mode, "filter"] {
            obey(&mut process, command);
        }
        let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
        assert_eq!(code, Some(0), "{error}");
        for command in ["mark", "thread", "child"] {
            // (How far the other clocks are ahead is not known.)
            looks(&mut tool, &mut process, command, (1, 1));
        }
        end(process);
    }
}

#[test]
fn ring3_trace_leaves_such_programs_alone() {
    for how in ["off", "mode1", "seccomp1"] {
        let bench = Bench::ring3();
        let mut trace = bench.ring3_command(&["trace", "-e", "write", "--"]);
        let output = trace.arg(counterless()).args(["brief", how]).stdin(Stdio::null()).output().expect("ring3 runs");
        assert_eq!(output.status.code(), Some(4), "{how}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n", "{how}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("write("), "{how}: {output:?}");
    }
}
