//! Targets come out of everything unharmed: attach and detach a thousand times, kill anybody at any time.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_tests::{
    Bench, Footprint, Process, assert_text_is_as_in_its_files, calling_victims, kill, programs, ready, shapes,
    victim, wait_until,
};
use rustix::process::Signal;

fn busy() -> std::path::PathBuf {
    victim("busy", "gcc", "busy.c", &[])
}

/// A busy victim that leaves the processors to others when they want them.
fn gentle(threads: &str) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "5"]).arg(busy()).arg(threads);
    command
}

/// Stops a busy victim; its calls, if all of them were right.
fn calls_of(mut victim: Process) -> u64 {
    victim.say("");
    let line = victim.line();
    let (calls, bad) = line.split_once(' ').expect("calls and faults");
    assert_eq!(bad, "0", "{line}");
    let (code, _, errors) = victim.finish();
    assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
    calls.parse().expect("a count")
}

#[test]
fn a_thousand_attach_and_detach_cycles_leave_a_busy_process_as_it_was() {
    let bench = Bench::ring3();
    let probe = format!("{}:work", busy().display());
    let mut counter = bench.counting(&[&probe, &format!("{probe}:ret")]);
    let victim = ready(&mut gentle("8"));
    let pid = victim.pid();
    let before = Footprint::of(pid);
    let attach = |pid: u32| {
        let (code, _, error) = bench.run(&["attach", &pid.to_string()]);
        assert_eq!(code, Some(0), "{error}");
    };
    let detach = |pid: u32| {
        let (code, _, error) = bench.run(&["detach", &pid.to_string()]);
        assert_eq!(code, Some(0), "{error}");
    };
    attach(pid);
    wait_until("calls are counted", || counter.total(&probe) > 0);
    detach(pid);
    let server = bench.server();
    let server_before = server_footprint(server);
    for _ in 0..1000 {
        attach(pid);
        detach(pid);
    }
    assert_eq!(Footprint::of(pid), before);
    assert_text_is_as_in_its_files(pid);
    let server_after = server_footprint(server);
    assert_eq!(server_after.descriptors, server_before.descriptors);
    assert_eq!(server_after.threads, server_before.threads);
    // The allocator's arenas may differ by a few; a leak would be a thousand.
    assert!(server_after.mappings.len() <= server_before.mappings.len() + 20, "{server_after:#?}");
    let entries = counter.total(&probe);
    let calls = calls_of(victim);
    assert!(entries > 1000 && entries < calls, "{entries} of {calls}");
}

#[test]
fn two_hundred_starts_are_counted_and_leave_nothing_in_the_server() {
    let bench = Bench::ring3();
    let probe = format!("{}:plain", shapes().display());
    let mut counter = bench.counting(&[&probe]);
    let server = bench.server();
    let mut before = None;
    for round in 0..200 {
        let mut victim = ready(bench.target(shapes()).args(["plain", "10"]));
        victim.say("go");
        assert_eq!(victim.line(), "10");
        assert_eq!(victim.finish().0, Some(0));
        if round == 0 {
            before = Some(quiet_footprint(&bench, server));
        }
    }
    let after = quiet_footprint(&bench, server);
    assert_eq!(counter.total(&probe), 2000);
    let before = before.expect("taken");
    assert_eq!((after.descriptors, after.threads), (before.descriptors, before.threads));
}

/// The server once it has noticed that its targets are gone.
fn quiet_footprint(bench: &Bench, server: u32) -> Footprint {
    wait_until("no targets are left", || bench.status()["targets"].as_array().is_some_and(Vec::is_empty));
    server_footprint(server)
}

/// The server between two requests.
fn server_footprint(server: u32) -> Footprint {
    let mut footprint = Footprint::of(server);
    wait_until("requests are over", || {
        footprint = Footprint::of(server);
        !footprint.threads.iter().any(|name| name.starts_with("ring3-request"))
    });
    footprint
}

#[test]
fn targets_killed_at_any_moment_do_not_disturb_the_others() {
    let bench = Bench::ring3();
    let probe = format!("{}:work", busy().display());
    let mut counter = bench.counting(&[&probe]);
    let survivor = ready(bench.target(busy()).arg("2"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Killed while it starts, runs or is being instrumented: whatever comes first.
                    let doomed = ready(&mut gentle("3"));
                    let mut attach = bench.ring3_command(&["attach", &doomed.pid().to_string()]);
                    let attach = Process::start(&mut attach);
                    doomed.signal(Signal::KILL);
                    let (code, _, errors) = attach.finish();
                    assert!(code == Some(0) || !errors.is_empty(), "{errors:?}");
                }
            });
        }
        for _ in 0..60 {
            let doomed = ready(bench.target("nice").args(["-n", "5"]).arg(busy()).arg("3"));
            doomed.signal(Signal::KILL);
        }
        done.store(true, Ordering::Relaxed);
    });
    wait_until("the dead are gone", || {
        bench.status()["targets"].as_array().is_some_and(|targets| targets.len() == 1)
    });
    let pid = survivor.pid();
    let calls = calls_of(survivor);
    assert_eq!(counter.report()[&(pid, probe)], calls);
}

#[test]
fn loaders_killed_at_any_moment_take_their_probes_with_them() {
    let bench = Bench::ring3();
    let probe = format!("{}:work", busy().display());
    let victim = ready(bench.target(busy()).arg("4"));
    let pid = victim.pid();
    let mut counter = bench.counting(&[&probe]);
    for round in 0..40 {
        let mut command = bench.load(ring3_tests::example("malloc"));
        let mut doomed = Process::start(command.args([&probe, &format!("{probe}:ret")]));
        if round % 2 == 0 {
            assert_eq!(doomed.line(), "attached 2");
        }
        doomed.signal(Signal::KILL);
        drop(doomed);
    }
    wait_until("only the first tool's link is left", || {
        bench.status()["links"].as_array().is_some_and(|links| links.len() == 1)
    });
    let so_far = counter.total(&probe);
    wait_until("the first tool still counts", || counter.total(&probe) > so_far);
    counter.tool.signal(Signal::KILL);
    drop(counter);
    wait_until("the text is as before", || {
        let status = bench.status();
        let sites = status["targets"][0]["sites"].as_array().cloned().unwrap_or_default();
        sites.iter().all(|site| site["kind"] != "probe")
    });
    assert_eq!(bench.run(&["detach", &pid.to_string()]).0, Some(0));
    assert_text_is_as_in_its_files(pid);
    calls_of(victim);
}

#[test]
fn a_killed_servers_targets_go_on_and_the_next_server_cleans_up() {
    for next in ["status", "detach", "attach"] {
        let bench = Bench::ring3();
        let probe = format!("{}:work", busy().display());
        let victim = ready(&mut gentle("8"));
        let pid = victim.pid();
        let before = Footprint::of(pid);
        let mut counter = bench.counting(&[&probe, &format!("{probe}:ret")]);
        assert_eq!(bench.run(&["attach", &pid.to_string()]).0, Some(0));
        wait_until("calls are counted", || counter.total(&probe) > 0);
        kill(bench.server());
        drop(counter);
        let shown = pid.to_string();
        match next {
            // Any command that starts a server: what the old one left is cleaned.
            "status" => {
                drop(bench.counting(&[&probe]));
                wait_until("the new server has cleaned up", || Footprint::of(pid) == before);
            }
            "detach" => {
                let (code, _, error) = bench.run(&["detach", &shown]);
                assert_eq!(code, Some(0), "{error}");
            }
            _ => {
                let mut counter = bench.counting(&[&probe]);
                let (code, _, error) = bench.run(&["attach", &shown]);
                assert_eq!(code, Some(0), "{error}");
                wait_until("the new server counts", || counter.total(&probe) > 0);
                let (code, _, error) = bench.run(&["detach", &shown]);
                assert_eq!(code, Some(0), "{error}");
            }
        }
        assert_eq!(Footprint::of(pid), before, "after {next}");
        assert_text_is_as_in_its_files(pid);
        calls_of(victim);
    }
}

#[test]
fn a_killed_servers_targets_are_cleaned_while_their_threads_are_cancelled() {
    for victim in ["bridged", "cancelled-musl", "unwound"] {
        let bench = Bench::ring3();
        let alias = bench.alias(&calling_victims("all").join(victim));
        let process = Process::start(Command::new(&alias).arg("1000000000"));
        let pid = process.pid().to_string();
        for _ in 0..8 {
            let mut tool = Process::start(bench.load_with_tracefs(programs().join("calls")).arg("raw"));
            assert_eq!(tool.line(), "attached");
            assert_eq!(bench.run(&["attach", &pid]).0, Some(0), "{victim}");
            kill(bench.server());
            drop(tool);
            let (code, _, error) = bench.run(&["detach", &pid]);
            assert_eq!(code, Some(0), "{victim}: {error}");
            assert_text_is_as_in_its_files(process.pid());
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        assert!(!stat.contains(") Z "), "{victim}");
    }
}

/// Kills the server at the `number`th of its system calls named `call`, while it attaches or detaches; false if it
/// came through.
fn killed_at(call: &str, number: usize) -> bool {
    let bench = Bench::ring3();
    let inject = format!("inject={call}:signal=KILL:when={number}");
    let mut strace = bench.command("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject]);
    let mut server = Process::start(strace.arg(ring3_tests::ring3()).args(["serve", "--foreground"]));
    if server.line_or_end().is_none() {
        // What another test's dead server left is cleaned first, by ptrace as well.
        return true;
    }
    let victim = ready(&mut gentle("3"));
    let pid = victim.pid().to_string();
    let probe = format!("{}:work", busy().display());
    let mut command = bench.load(ring3_tests::example("malloc"));
    let mut tool = Process::start(command.args([&probe, &format!("{probe}:ret")]));
    // Whatever fails now fails because of the server's death.
    let _ = tool.line_or_end();
    bench.run(&["attach", &pid]);
    bench.run(&["detach", &pid]);
    drop(tool);
    bench.run(&["stop"]);
    let came_through = server.wait() == Some(0);
    let (code, _, error) = bench.run(&["detach", &pid]);
    assert!(code == Some(0) || error.contains("not a target"), "{call} {number}: {error}");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    assert!(!maps.contains("[uprobes]"), "{call} {number}: the kernel has set the tool's probes");
    // (Memory that was being mapped in may stay, idle.)
    assert_text_is_as_in_its_files(victim.pid());
    calls_of(victim);
    !came_through
}

#[test]
fn a_servers_death_at_any_step_of_attaching_and_detaching_leaves_a_working_process() {
    // (By `sendmsg` a thread of the process is told what to call, by `sendto` to go.)
    for (call, step, least) in
        [("ptrace", 4, 6), ("pwrite64", 1, 6), ("process_vm_readv", 1, 6), ("sendmsg", 1, 3), ("sendto", 1, 1)]
    {
        let kills = (1..).step_by(step).take_while(|number| killed_at(call, *number)).count();
        assert!(kills >= least, "{kills} deaths at {call}");
    }
}

/// Bytes that stand where a process has code of its file; none if it is as in the file.
fn changed_code(pid: u32) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let Some(line) = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with("/busy")) else {
        return vec![];
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, end) = words[0].split_once('-').map(|(a, b)| (hex(a), hex(b))).expect("a range");
    let mut bytes = vec![[0; 2]; (end - start) as usize];
    for (which, (path, at)) in
        [(format!("/proc/{pid}/mem"), start), (words[5].to_owned(), hex(words[2]))].into_iter().enumerate()
    {
        let mut read = vec![0; bytes.len()];
        let count = std::fs::File::open(path).and_then(|file| file.read_at(&mut read, at)).expect("readable");
        bytes.iter_mut().zip(&read[..count]).for_each(|(pair, byte)| pair[which] = *byte);
    }
    (0..bytes.len()).filter(|at| bytes[*at][0] != bytes[*at][1]).map(|at| start + at as u64).collect()
}

/// The server is killed as soon as a jump stands in the victim. One of its writes is held up for a while after it is done: among
/// these is the one of the jump.
#[test]
fn a_server_that_dies_right_after_writing_a_jump_leaves_a_working_process() {
    let probe = format!("{}:work", busy().display());
    for number in 1..=12 {
        let bench = Bench::ring3();
        let inject = format!("inject=pwrite64:delay_exit=500000:when={number}");
        let mut strace = bench.command("strace");
        strace.args(["-f", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", &inject]);
        let mut server = Process::start(strace.arg(ring3_tests::ring3()).args(["serve", "--foreground"]));
        assert!(server.line_or_end().is_some(), "it says that it listens");
        let victim = ready(&mut gentle("3"));
        let pid = victim.pid();
        let counter = bench.counting(&[&probe]);
        let traced = bench.server();
        let attach = Process::start(&mut bench.ring3_command(&["attach", &pid.to_string()]));
        wait_until("a jump is written", || !changed_code(pid).is_empty());
        kill(traced);
        drop((attach, counter));
        let (code, _, error) = bench.run(&["detach", &pid.to_string()]);
        assert_eq!(code, Some(0), "write {number}: {error}");
        assert_eq!(changed_code(pid), [0u64; 0], "write {number}");
        calls_of(victim);
    }
}

/// Maps are mapped in all targets; that one of them has just ended, or cannot be stopped now, is no matter of the tool's.
#[test]
fn targets_that_come_and_go_fail_no_tools_map_update() {
    let bench = Bench::ring3();
    let mut endless = bench.target("sh");
    let mut targets = Process::start(endless.args(["-c", "echo ready; while :; do /bin/true; done"]));
    assert_eq!(targets.line(), "ready");
    let (code, lines, errors) = Process::start(bench.load(programs().join("inner")).arg("2000")).finish();
    assert_eq!((code, lines), (Some(0), vec!["done".to_owned()]), "{errors:?}");
    kill(targets.pid());
    targets.finish();
}

#[test]
fn the_order_of_load_start_and_attach_does_not_matter() {
    let bench = Bench::ring3();
    let probe = format!("{}:plain", shapes().display());
    let mut first = ready(bench.target(shapes()).args(["plain", "11"]));
    let mut second = ready(Command::new(shapes()).args(["plain", "22"]));
    assert_eq!(bench.run(&["attach", &second.pid().to_string()]).0, Some(0));
    let mut counter = bench.counting(&[&probe]);
    let mut third = ready(bench.target(shapes()).args(["plain", "33"]));
    let mut fourth = ready(Command::new(shapes()).args(["plain", "44"]));
    assert_eq!(bench.run(&["attach", &fourth.pid().to_string()]).0, Some(0));
    for victim in [&mut first, &mut second, &mut third, &mut fourth] {
        victim.say("go");
        victim.line();
    }
    assert_eq!(
        counter.report().values().copied().collect::<std::collections::BTreeSet<_>>(),
        [11, 22, 33, 44].into()
    );
}
