//! Victims of many shapes: what they do is unchanged, and every call is counted, as the kernel counts it.

use std::path::Path;

use ring3_tests::{Bench, Counter, Process, is_root, ready, shapes};

/// Runs a victim with probes; what it printed, and the counts of the probes.
fn counted(bench: &Bench, what: &str, n: u32, probes: &[&str]) -> (String, Vec<u64>) {
    let binary = bench.victim(shapes());
    let names: Vec<String> = probes.iter().map(|probe| format!("{}:{probe}", binary.display())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut counter = bench.counting(&names);
    let mut victim = ready(bench.target(&binary).args([what, &n.to_string()]));
    victim.say("go");
    let result = victim.line();
    let counts = names.iter().map(|name| counter.total(name)).collect();
    let (code, rest, errors) = victim.finish();
    assert_eq!((code, rest.len(), errors.len()), (Some(0), 0, 0), "{errors:?}");
    (result, counts)
}

/// Under ring3, and on the kernel where the machine lets it; both must say `expected`.
fn check(what: &str, n: u32, probes: &[&str], result: &str, expected: &[u64]) {
    let bench = Bench::ring3();
    let got = counted(&bench, what, n, probes);
    assert_eq!((got.0.as_str(), got.1.as_slice()), (result, expected), "under ring3");
    if is_root() {
        let native = counted(&Bench::native(), what, n, probes);
        assert_eq!((native.0.as_str(), native.1.as_slice()), (result, expected), "on the kernel");
    } else {
        println!("SKIPPED IN PART: the native half needs root");
    }
}

#[test]
fn entries_and_returns_are_counted_exactly() {
    check("plain", 1000, &["plain", "plain:ret"], "1000", &[1000, 1000]);
}

#[test]
fn exceptions_pass_through_probed_functions() {
    // The kernel's uretprobes abort here: the unwinder finds its trampoline.
    let (result, counts) = counted(&Bench::ring3(), "exceptions", 300, &["through", "through:ret", "thrower:ret"]);
    assert_eq!(result, "100");
    assert_eq!(counts, [300, 200, 200]);
}

#[test]
fn fibers_return_on_other_threads_than_they_were_called_on() {
    // The kernel's uretprobes are of one thread: they end such a process.
    let probes = ["carrier", "carrier:ret", "wanderer", "wanderer:ret"];
    let (result, counts) = counted(&Bench::ring3(), "wander", 2000, &probes);
    assert_eq!((result.as_str(), counts.as_slice()), ("12000", [12000, 12000, 24000, 24000].as_slice()));
}

#[test]
fn thousands_of_returns_that_coroutines_await_are_counted_in_any_order() {
    const COROUTINES: u64 = 500;
    let depth = COROUTINES * 11;
    // (Of the recursion that is left by a jump none returns. The kernel awaits 64 returns of a thread.)
    let (result, counts) = counted(&Bench::ring3(), "coroutines", COROUTINES as u32, &["awaited", "awaited:ret"]);
    assert_eq!(result, (3 * COROUTINES + 1).to_string());
    assert_eq!(counts, [3 * depth + 3 * depth, 3 * depth + depth]);
}

#[test]
fn exceptions_of_handlers_on_a_stack_above_leave_what_they_interrupt_awaited() {
    // (As of all exceptions, the kernel's uretprobes would end the process.)
    let probes = ["interrupted", "interrupted:ret", "through", "through:ret"];
    let (result, counts) = counted(&Bench::ring3(), "alternate", 500, &probes);
    assert_eq!((result.as_str(), counts.as_slice()), ("500", [500, 500, 500, 0].as_slice()));
}

#[test]
fn exceptions_of_handlers_within_an_unwinder_leave_its_stack_as_it_is() {
    let probes = ["around", "around:ret", "carried", "carried:ret", "through", "through:ret"];
    for what in ["nested", "nested_on_another_stack"] {
        let (result, counts) = counted(&Bench::ring3(), what, 300, &probes);
        assert_eq!((result.as_str(), counts.as_slice()), ("100", [300, 300, 300, 200, 200, 0].as_slice()), "{what}");
    }
}

#[test]
fn children_that_run_beside_their_creator_with_its_thread_pointer_return_to_their_own_callers() {
    // (No count of per-CPU maps is exact there: docs/design/threads.md.)
    let (result, _) = counted(&Bench::ring3(), "borrowers", 30_000, &["plain", "plain:ret"]);
    assert_eq!(result, "10");
}

#[test]
fn functions_that_take_their_arguments_off_the_stack_return_to_their_callers() {
    check("pushed", 1000, &["popping", "popping:ret", "moving", "moving:ret"], "2000", &[1000; 4]);
}

#[test]
fn longjmp_out_of_probed_functions_loses_nothing_else() {
    check("longjmps", 1000, &["jumper", "jumper:ret"], "500", &[1000, 500]);
}

#[test]
fn deep_recursion_is_counted() {
    check("recursive", 60, &["recursive", "recursive:ret"], "61", &[60, 60]);
}

/// A victim whose recursion waits at its bottom, with its probe and that of its returns.
fn at_the_bottom(bench: &Bench, n: u32) -> (Counter, Process, [String; 2]) {
    let probe = format!("{}:recursive", shapes().display());
    let probes = [probe.clone(), format!("{probe}:ret")];
    let counter = bench.counting(&[&probes[0], &probes[1]]);
    let mut victim = ready(bench.target(shapes()).args(["deep", &n.to_string()]));
    victim.say("go");
    assert_eq!(victim.line(), "bottom");
    (counter, victim, probes)
}

#[test]
fn returns_of_a_recursion_of_a_hundred_thousand_are_counted() {
    for n in [10_000, 100_000] {
        let bench = Bench::ring3();
        let (mut counter, mut victim, [entries, returns]) = at_the_bottom(&bench, n);
        assert_eq!((counter.total(&entries), counter.total(&returns)), (u64::from(n), 0));
        victim.say("on");
        assert_eq!(victim.line(), (n + 1).to_string());
        assert_eq!(counter.total(&returns), u64::from(n));
    }
}

#[test]
fn a_recursion_is_left_at_its_bottom() {
    let bench = Bench::ring3();
    let (mut counter, mut victim, [_, returns]) = at_the_bottom(&bench, 20_000);
    assert_eq!(bench.run(&["detach", &victim.pid().to_string()]).0, Some(0));
    victim.say("on");
    assert_eq!(victim.line(), "20001");
    assert_eq!(counter.total(&returns), 0);
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn returns_for_which_there_is_no_room_are_misses() {
    const CALLS: u64 = 200_000;
    let bench = Bench::ring3();
    let (mut counter, mut victim, [entries, returns]) = at_the_bottom(&bench, CALLS as u32);
    victim.say("on");
    assert_eq!(victim.line(), (CALLS + 1).to_string());
    let awaited = counter.total(&returns);
    let status = bench.status();
    let sites = status["targets"][0]["sites"].as_array().cloned().unwrap_or_default();
    let misses: u64 = sites.iter().filter_map(|site| site["misses"].as_u64()).sum();
    assert_eq!((counter.total(&entries), awaited + misses), (CALLS, CALLS));
    assert!(awaited > 100_000 && misses > 0, "{awaited} {misses}");
}

#[test]
fn a_loop_back_to_the_entry_counts_each_round() {
    check("looping", 9, &["looping"], "1", &[10]);
}

#[test]
fn signal_handlers_and_their_probed_functions_work() {
    check("signals", 200, &["plain", "plain:ret"], "200", &[400, 400]);
}

#[test]
fn forked_children_stay_traced() {
    check("forks", 20, &["plain", "plain:ret"], "20", &[100, 100]);
}

#[test]
fn spawned_children_and_system_work_under_probes() {
    check("spawns", 5, &["plain"], "10", &[0]);
}

#[test]
fn threads_old_and_new_are_traced() {
    check("threads", 500, &["plain", "plain:ret"], "40000", &[40000, 40000]);
}

#[test]
fn a_pid_filter_holds() {
    for bench in [Bench::ring3(), Bench::native()] {
        let binary = bench.victim(shapes());
        let probe = format!("{}:plain", binary.display());
        let mut wanted = ready(std::process::Command::new(&binary).args(["plain", "70"]));
        let mut other = ready(bench.target(&binary).args(["plain", "50"]));
        if !is_root() {
            println!("SKIPPED IN PART: the native half needs root");
            return;
        }
        let pid = wanted.pid().to_string();
        let mut counter = bench.counting(&["-p", &pid, &probe]);
        for victim in [&mut wanted, &mut other] {
            victim.say("go");
            victim.line();
        }
        let report = counter.report();
        assert_eq!(report.len(), 1, "{report:?}");
        assert_eq!(report[&(wanted.pid(), probe)], 70);
    }
}

#[test]
fn a_library_that_is_loaded_later_is_probed_before_its_first_call() {
    let library = ring3_tests::victim("liblate.so", "gcc", "library.c", &["-shared", "-fPIC"]);
    let probe = format!("{}:in_library", library.display());
    let bench = Bench::ring3();
    let mut counter = bench.counting(&[&probe]);
    let mut victim = ready(bench.target(shapes()).args(["libraries", "40"]).env("VICTIM_LIBRARY", &library));
    victim.say("go");
    assert_eq!(victim.line(), "40");
    assert_eq!(counter.total(&probe), 40);
}

/// How often a function that looks at its return address finds one of its program's, and how many of its returns are counted.
fn looked(program: &Path, library: Option<&Path>) -> (String, u64) {
    let bench = Bench::ring3();
    let probe = format!("{}:looks:ret", program.display());
    let mut counter = bench.counting(&[&probe]);
    let mut victim = ready(bench.target(program).arg("1000").args(library));
    victim.say("go");
    let right = victim.line();
    let counted = counter.total(&probe);
    assert_eq!(victim.finish().0, Some(0));
    (right, counted)
}

/// The kernel replaces them, and ends such processes.
#[test]
fn return_addresses_that_run_time_systems_look_up_stay_and_returns_are_counted() {
    let java = ring3_tests::victim("walked-java", "gcc", "walked.c", &["-DJAVA"]);
    let python = ring3_tests::victim("walked-python", "gcc", "walked.c", &[]);
    let greenlet = ring3_tests::victim("_greenlet.so", "gcc", "library.c", &["-shared", "-fPIC"]);
    let counted = [looked(&java, None), looked(&python, Some(&greenlet))];
    assert_eq!(counted, [("1000".to_owned(), 1000), ("1000".to_owned(), 1000)]);
    // (Of a Python that copies no stacks they are replaced: more functions' returns are seen so.)
    assert_eq!(looked(&python, None), ("0".to_owned(), 1000));
}

#[test]
fn code_that_a_program_maps_once_more_by_itself_is_probed_there_too() {
    check("again", 1000, &["plain", "plain:ret"], "1000", &[1000, 1000]);
}

#[test]
fn static_and_musl_programs_are_traced() {
    let flags = ["-static"];
    let statically = ring3_tests::victim("busy-static", "gcc", "busy.c", &flags);
    let musl = ring3_tests::victim("busy-musl", "musl-gcc", "busy.c", &flags);
    for binary in [statically, musl] {
        let probe = format!("{}:work", binary.display());
        let bench = Bench::ring3();
        let mut counter = bench.counting(&[&probe, &format!("{probe}:ret")]);
        let mut victim = ready(bench.target(&binary).arg("3"));
        ring3_tests::wait_until("some calls are counted", || counter.total(&probe) > 1000);
        victim.say("");
        let line = victim.line();
        let calls: u64 = line.split(' ').next().and_then(|word| word.parse().ok()).expect("a count");
        assert!(line.ends_with(" 0"), "{line}");
        assert_eq!(counter.total(&probe), calls);
        assert_eq!(counter.total(&format!("{probe}:ret")), calls);
    }
}

#[test]
fn functions_without_room_for_a_jump_are_counted() {
    let bench = Bench::ring3();
    let binary = shapes();
    let (tiny, packed) = (format!("{}:tiny", binary.display()), format!("{}:packed", binary.display()));
    let mut counter = bench.counting(&[&tiny, &packed]);
    let mut victim = ready(bench.target(&binary).args(["tiny", "30"]));
    victim.say("go");
    assert_eq!(victim.line(), "30");
    assert_eq!((counter.total(&tiny), counter.total(&packed)), (30, 30));
}

#[test]
fn probes_of_several_tools_side_by_side_do_not_disturb_each_other() {
    let bench = Bench::ring3();
    let probe = format!("{}:plain", shapes().display());
    let mut first = bench.counting(&[&probe]);
    let mut victim = ready(bench.target(shapes()).args(["plain", "100"]));
    let mut second = bench.counting(&[&probe, &format!("{probe}:ret")]);
    victim.say("go");
    assert_eq!(victim.line(), "100");
    assert_eq!((first.total(&probe), second.total(&probe)), (100, 100));
    drop(second);
    ring3_tests::wait_until("the second tool's links are gone", || {
        bench.status()["links"].as_array().is_some_and(|links| links.len() == 1)
    });
    drop(first);
    ring3_tests::wait_until("the site is restored", || {
        let status = bench.status();
        let sites = status["targets"][0]["sites"].as_array().cloned().unwrap_or_default();
        sites.iter().all(|site| site["kind"] != "probe")
    });
}

#[test]
fn wrappers_between_ring3_and_the_tool_are_seen_through() {
    for wrapper in [&["env"][..], &["taskset", "1"], &["nice"]] {
        let bench = Bench::ring3();
        let probe = format!("{}:plain", shapes().display());
        let mut command = bench.ring3_command(&["load", "--only-targets", "--"]);
        command.args(wrapper).arg(ring3_tests::example("malloc")).arg(&probe);
        let mut tool = Process::start(&mut command);
        assert_eq!(tool.line(), "attached 1");
        let mut victim = ready(bench.target(shapes()).args(["plain", "10"]));
        victim.say("go");
        assert_eq!(victim.line(), "10");
        assert_eq!(ring3_tests::Counter { tool }.total(&probe), 10);
    }
}

#[test]
fn a_library_that_is_closed_and_opened_again_is_probed_each_time() {
    let library = ring3_tests::victim("liblibrary.so", "gcc", "library.c", &["-shared", "-fPIC"]);
    let victim = ring3_tests::victim("reopens", "gcc", "reopens.c", &[]);
    let bench = Bench::ring3();
    let probe = format!("{}:in_library", library.display());
    let mut tool = bench.counting(&[&probe]);
    let (code, lines, errors) = Process::start(bench.target(&victim).arg(&library).arg("50")).finish();
    assert_eq!((code, lines), (Some(0), vec!["4900".to_owned()]), "{errors:?}");
    assert_eq!(tool.total(&probe), 100);
}

/// The functions that a library exports.
fn functions_of(library: &str) -> Vec<String> {
    let output = std::process::Command::new("nm").args(["-D", "--defined-only", library]).output().expect("nm runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let symbol = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words.get(1), Some(&"T")).then(|| words[2].split('@').next().unwrap_or_default().to_owned())
    };
    let mut names: Vec<String> = text.lines().filter_map(symbol).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn with_every_function_of_libc_probed_at_entry_and_return_programs_do_the_same() {
    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
    const SCRIPT: &str = r#"
        for i in 1 2 3; do echo $(echo $i | tr 1 2) $(ls /bin/sh | wc -l); done
        trap "echo caught" USR1; kill -USR1 $$; (exit 3); echo $?
        { (kill -9 $BASHPID); } 2>/dev/null; echo $?; true & wait; printf "%05d %s\n" 42 "$(type -t ls)"
        diff <(echo a) <(echo b); read -r x <<< word; echo "$x" | awk '{ print toupper($1), exp(1) }'
        perl -e '@a = map { $_ * 2 } 1..5; print "@a\n"; print `echo sub`; local $@; eval { die "dead\n" }; print $@'
    "#;
    let names = functions_of(LIBC);
    let probes: Vec<String> =
        names.iter().flat_map(|name| [format!("{LIBC}:{name}"), format!("{LIBC}:{name}:ret")]).collect();
    let plain = std::process::Command::new("bash").args(["-c", SCRIPT]).output().expect("bash runs");
    let bench = Bench::ring3();
    let mut counter = bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>());
    let traced = bench.target("bash").args(["-c", SCRIPT]).output().expect("bash runs");
    assert_eq!(traced, plain);
    let functions = counter.report().into_iter().filter(|(_, count)| *count > 0).count();
    assert!(names.len() > 1000 && functions > 200, "{functions} counts of {} functions", names.len());
}
