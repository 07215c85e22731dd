//! The same system calls, made to this kernel and made to ring3: results must not differ.
//!
//! A scenario is a list of calls that print a line each. It runs in a process of its own, once as it is (which
//! needs root) and once under `ring3 load`. What the kernel printed is kept in `tests/tests/scenarios/recorded`, for where there
//! is no root: there, ring3 is compared with that. `BLESS=1`, as root, writes these files again.

mod calls;
mod scenarios;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ring3_tests::{Bench, Process, is_root, kernel_configuration, root, wait_until};
use ring3_uapi::helper::KFUNC_NAMES;

use scenarios::raw_batches::{
    batches_are_looked_up, batches_change_maps, tries_and_stack_maps_are_checked, tries_find_and_list_prefixes,
};
use scenarios::raw_calls::MARK;
use scenarios::raw_events::{buffers_can_be_waited_for, uprobe_events_are_checked};
use scenarios::raw_maps::{
    access_modes_and_freezing_are_kept, attributes_are_checked, bad_pointers_and_descriptors_are_told,
    elements_behave, map_names_and_fields_are_checked, mappings_are_checked, maps_are_created,
    maps_without_keys_push_pop_and_peek,
};
use scenarios::raw_members::{arrays_of_programs_hold_one_kind, maps_of_objects_are_checked, maps_of_objects_behave};
use scenarios::raw_names::names_are_given_and_taken;
use scenarios::raw_programs::{
    btf_is_loaded_and_checked, children_and_duplicates_share_descriptors, everything_is_asked_for,
    helpers_may_be_called, information_is_told, logs_follow_the_rules, objects_live_as_long_as_somebody_holds_them,
    programs_are_loaded_and_checked, the_kernels_types_are_objects_of_their_own, the_unsupported_is_refused,
};
use scenarios::raw_sampled::{a_program_asks_who_runs, clocks_run_programs, sampled_events_run_programs};
use scenarios::raw_stats::{runs_are_counted, runs_are_counted_at_no_other_time};
use scenarios::raw_test_runs::{
    maps_are_shared_with_programs_that_are_run, programs_of_packets_are_run, raw_tracepoint_programs_are_run,
    system_call_programs_are_run,
};
use scenarios::raw_tracepoints::{
    functions_of_system_calls_are_probed, programs_are_attached_by_types, tracepoint_events_are_checked,
    tracepoints_have_files, tracepoints_take_programs,
};
use scenarios::raw_uprobes::{counters_of_uprobes_are_checked, links_to_many_uprobes_are_checked};
use scenarios::raw_values::{keys_and_values_have_types, values_with_a_lock_behave};

const SCENARIO: &str = "RING3_TEST_SCENARIO";

const REFUSED: [&str; 9] = [
    "PROG_ATTACH: EINVAL",
    "LINK_UPDATE: EINVAL",
    "ITER_CREATE: EINVAL",
    "unknown: EINVAL",
    "SOCKMAP: EINVAL",
    "CGROUP_STORAGE: EINVAL",
    "REUSEPORT_SOCKARRAY: EINVAL",
    "LSM: EINVAL",
    "CGROUP_SKB: EINVAL",
];

#[test]
#[ignore = "not a test: what the tests below run in a process of its own"]
fn scenario_process() {
    let name = std::env::var(SCENARIO).expect("the tests name a scenario");
    let (_, run) = SCENARIOS.iter().find(|(known, _)| *known == name).expect("a known scenario");
    run();
}

/// What a scenario prints on a bench.
fn lines(bench: &Bench, name: &str) -> Vec<String> {
    lines_and_told(bench, name).0
}

/// The lines of a scenario, and what ring3 says on its terminal.
fn lines_and_told(bench: &Bench, name: &str) -> (Vec<String>, Vec<String>) {
    let mut command = bench.load(std::env::current_exe().expect("this file"));
    command.args(["--ignored", "--exact", "scenario_process", "--nocapture"]).env(SCENARIO, name);
    let (code, lines, mut errors) = Process::start(&mut command).finish();
    assert_eq!(code, Some(0), "{lines:?}\n{errors:?}");
    errors.retain(|line| line.starts_with("ring3: "));
    // The test harness prints its own words before the first line, without a newline.
    (lines.iter().filter_map(|line| line.split_once(MARK).map(|(_, line)| line.to_owned())).collect(), errors)
}

/// Characters of a recorded line; of a longer one, the beginning is kept, with the length and a sum of all.
const RECORDED_CHARS_MAX: usize = 80;

/// Scenarios that mount tracefs, see which events exist, or sample what threads do: only root can.
const OF_ROOT: [&str; 3] = ["tracepoints_have_files", "tracepoint_events_are_checked", "sampled_events_run_programs"];

/// Scenarios whose values name this test's file, or places in it: only what came of each call is recorded. (Whether a link's
/// information has room depends on the length of the path.)
const OF_THIS_FILE: [&str; 2] = ["uprobe_events_are_checked", "tracepoint_events_are_checked"];

/// Whether a line says what came of a call; the others show values.
fn is_outcome(line: &str) -> bool {
    !line.starts_with([' ', '['])
}

/// A scenario's lines as they are recorded.
fn recordable(name: &str, lines: &[String]) -> Vec<String> {
    let depends = |line: &String| !is_outcome(line) || line.starts_with("link info");
    let kept = lines.iter().filter(|line| !OF_THIS_FILE.contains(&name) || !depends(line));
    kept.map(|line| shortened(line)).collect()
}

fn recorded_file(name: &str) -> PathBuf {
    root().join(format!("tests/tests/scenarios/recorded/{name}.txt"))
}

/// What a recording depends on besides the scenario: the kernel's version and the CPUs that per-CPU values are for.
fn this_machine() -> String {
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible").expect("every kernel tells");
    let release = kernel_configuration().0;
    format!("# Linux {}, CPUs {}", release.split('.').take(2).collect::<Vec<_>>().join("."), cpus.trim())
}

/// A line as it is recorded.
fn shortened(line: &str) -> String {
    if line.len() <= RECORDED_CHARS_MAX {
        return line.to_owned();
    }
    // FNV-1a.
    let sum = line
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let start: String = line.chars().take(RECORDED_CHARS_MAX / 2).collect();
    format!("{start}... {} bytes, sum {sum:016x}", line.len())
}

/// The first line of a recorded file, and the others.
fn recorded(name: &str) -> (String, Vec<String>) {
    let path = recorded_file(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; record it as root with BLESS=1", path.display()));
    let (machine, rest) = text.split_once('\n').expect("a line for the machine, and others");
    let lines: Vec<String> = rest.lines().map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{} has no lines", path.display());
    (machine.to_owned(), lines)
}

/// Compares ring3's lines with those recorded of a kernel. On another machine than that one, lines that show values are left out:
/// the number of CPUs shapes them.
fn compare_with_recorded(name: &str, ours: &[String]) {
    let (machine, mut kernel) = recorded(name);
    let mut ours = recordable(name, ours);
    let mut excepted = "";
    if machine != this_machine() {
        kernel.retain(|line| is_outcome(line));
        ours.retain(|line| is_outcome(line));
        excepted = ", values excepted";
    }
    let machine = machine.trim_start_matches("# ");
    println!("SKIPPED IN PART: without root, ring3 is compared with what was recorded of {machine}{excepted}");
    agree(name, &kernel, &ours);
}

/// The kernel's lines. What is recorded of such a machine must be the same; `BLESS=1` records it.
fn kernels(name: &str) -> Vec<String> {
    let lines = lines(&Bench::native(), name);
    let short = recordable(name, &lines);
    if std::env::var_os("BLESS").is_some() {
        let path = recorded_file(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("the work tree is writable");
        std::fs::write(&path, format!("{}\n{}\n", this_machine(), short.join("\n"))).expect("it is writable");
    }
    let (machine, recorded) = recorded(name);
    if machine == this_machine() {
        agree(&format!("{name}: of the kernel's lines and those recorded (BLESS=1 records anew)"), &short, &recorded);
    }
    lines
}

/// Both must be the same, line by line.
fn agree(what: &str, kernel: &[String], ours: &[String]) {
    let pairs = kernel.iter().zip(ours).enumerate().filter(|(_, (kernel, ours))| kernel != ours);
    let differ: Vec<String> =
        pairs.map(|(number, (kernel, ours))| format!("{number}: kernel {kernel}\n  ours {ours}")).collect();
    assert!(differ.is_empty(), "{what}: {} of {} lines differ:\n{}", differ.len(), kernel.len(), differ.join("\n"));
    assert_eq!(kernel.len(), ours.len(), "{what}");
}

fn compare(name: &str) {
    let bench = Bench::ring3();
    let ours = lines(&bench, name);
    assert!(!ours.is_empty(), "the scenario printed nothing");
    let is_empty = |status: &serde_json::Value, kind: &str| status[kind].as_array().is_some_and(Vec::is_empty);
    wait_until("the server has let everything go", || {
        let status = bench.status();
        ["loaders", "maps", "programs", "links"].iter().all(|kind| is_empty(&status, kind))
    });
    if is_root() {
        agree(name, &kernels(name), &ours);
    } else if OF_ROOT.contains(&name) {
        println!("SKIPPED: {name}: an ordinary user sees something else, on the kernel, too");
    } else {
        compare_with_recorded(name, &ours);
    }
}

macro_rules! scenarios { ($($name:ident)*) => {
    const SCENARIOS: &[(&str, fn())] =
        &[$((stringify!($name), $name),)* ("tracepoints", tracepoints_take_programs), ("asks", a_program_asks_who_runs), ("functions", functions_of_system_calls_are_probed), ("the_unsupported", the_unsupported_is_refused), ("uncounted", runs_are_counted_at_no_other_time), ("helpers", helpers_may_be_called), ("everything", everything_is_asked_for)];

    mod as_the_kernel {
        $(#[test] fn $name() { super::compare(stringify!($name)); })*
    }
} }

scenarios! {
    maps_are_created
    map_names_and_fields_are_checked
    elements_behave
    maps_without_keys_push_pop_and_peek
    tries_and_stack_maps_are_checked
    tries_find_and_list_prefixes
    bad_pointers_and_descriptors_are_told
    attributes_are_checked
    access_modes_and_freezing_are_kept
    mappings_are_checked
    btf_is_loaded_and_checked
    the_kernels_types_are_objects_of_their_own
    programs_are_loaded_and_checked
    logs_follow_the_rules
    information_is_told
    objects_live_as_long_as_somebody_holds_them
    uprobe_events_are_checked
    counters_of_uprobes_are_checked
    links_to_many_uprobes_are_checked
    buffers_can_be_waited_for
    batches_are_looked_up
    batches_change_maps
    children_and_duplicates_share_descriptors
    maps_of_objects_are_checked
    maps_of_objects_behave
    arrays_of_programs_hold_one_kind
    names_are_given_and_taken
    keys_and_values_have_types
    values_with_a_lock_behave
    system_call_programs_are_run
    raw_tracepoint_programs_are_run
    programs_of_packets_are_run
    maps_are_shared_with_programs_that_are_run
    runs_are_counted
    tracepoints_have_files
    programs_are_attached_by_types
    tracepoint_events_are_checked
    clocks_run_programs
    sampled_events_run_programs
}

#[test]
fn functions_of_system_calls_are_probed_where_the_kernel_has_no_kprobes_too() {
    const PROBED: [&str; 16] = [
        "type true bit 0",
        "entry: 0",
        "return: 0",
        "no such function: ENOENT",
        "no name: ENOENT",
        "bad name: EFAULT",
        "no processor: EINVAL",
        "no process: ESRCH",
        "again: 0",
        "query: EINVAL",
        "ask: ENOENT",
        "other program: 0",
        "set: EINVAL",
        "link: EINVAL",
        "other program: 0",
        "set: EINVAL",
    ];
    let (ours, told) = lines_and_told(&Bench::ring3(), "functions");
    assert_eq!(ours[..PROBED.len()], PROBED);
    assert!(told.iter().any(|line| line.contains("is in the kernel; in user space there are")), "{told:?}");
    if is_root() && std::path::Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        assert_eq!(ours, lines(&Bench::native(), "functions"));
    } else {
        println!("SKIPPED IN PART: this kernel has no kprobes to compare with");
    }
}

#[test]
fn tracepoints_take_programs_as_the_kernels_do() {
    compare("tracepoints");
}

#[test]
fn what_a_user_may_not_sample_is_refused_by_name_on_the_terminal() {
    const NOBODY: u32 = 65_534;
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if !is_root() || paranoid.trim().parse().is_ok_and(|level: i32| level <= 0) {
        println!("SKIPPED: this needs root, and a kernel that does not let everybody sample CPUs");
        return;
    }
    let (outcomes, told) = lines_and_told(&Bench::ring3_as(NOBODY), "asks");
    assert_eq!(outcomes, ["asks: 0", "clock: 0", "set: EACCES", "faults: EACCES"]);
    assert!(
        matches!(&told[..], [clock, faults]
            if clock.contains("software:cpu-clock") && clock.contains("asks what the CPU was doing")
                && faults.contains("software:page-faults") && faults.contains("perf_event_paranoid")),
        "{told:?}"
    );
}

#[test]
fn the_unsupported_is_refused_with_an_error_of_the_kernels() {
    assert_eq!(lines(&Bench::ring3(), "the_unsupported"), REFUSED);
}

#[test]
fn runs_are_counted_while_somebody_wants_that_and_no_longer() {
    let ours = lines(&Bench::ring3(), "uncounted");
    let values: Vec<&String> = ours.iter().filter(|line| !line.ends_with(": 0")).collect();
    let expected = [
        "before: [[0, 0, 0], [0, 0, 0], [0, 0, 0]]",
        "meanwhile: [2, 10, 10]",
        "afterwards: [true, true, true], kept true",
        "again: [(1, true), (5, true), (5, true)]",
        "a new one: [0, 0, 0]",
    ];
    assert_eq!(values, expected, "{ours:?}");
}

#[test]
fn programs_may_call_no_helper_that_the_kernel_would_refuse_them() {
    /// Refused by kernels that are locked down, or inject no errors.
    const MORE: [&str; 2] = ["probe_write_user", "override_return"];
    let ours = lines(&Bench::ring3(), "helpers");
    assert!(ours.iter().all(|line| line.contains("map_lookup_elem")), "{ours:?}");
    if !is_root() {
        println!("SKIPPED: comparing with the kernel needs root");
        return;
    }
    let kernel = lines(&Bench::native(), "helpers");
    assert_eq!(ours.len(), kernel.len());
    for (ours, kernel) in ours.iter().zip(&kernel) {
        let kernel: Vec<&str> = kernel.split(' ').collect();
        let more = ours.split(' ').filter(|name| !MORE.contains(name) && !kernel.contains(name));
        assert_eq!(more.collect::<Vec<_>>(), [""; 0], "of {ours}");
    }
}

/// The rows of a support table: names with level and remark.
fn rows(table: &str) -> BTreeMap<&str, (&str, &str)> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
    rows.filter_map(|(name, rest)| Some((name, rest.split_once(" | ")?))).collect()
}

#[test]
fn the_support_table_says_what_is_answered() {
    // Functions of the kernel, which programs call by type, not by number: `flow.bpf.c`, `helpers.bpf.c` and `current.bpf.c` of
    // `tests/programs` call them.
    let mut kfuncs: Vec<String> = KFUNC_NAMES.iter().map(|name| format!("bpf_{name}")).collect();
    kfuncs.sort();
    let bench = Bench::ring3();
    let answers = lines(&bench, "everything");
    let log = std::fs::read_to_string(bench.directory().join("server.log")).expect("the server writes one");
    let (_, table, _) = bench.run(&["features", "--markdown"]);
    let rows = rows(&table);
    assert!(rows.len() > 100 && answers.len() > 100, "{} rows, {} answers", rows.len(), answers.len());
    let mut wrong = vec![];
    let mut seen = BTreeSet::new();
    for (name, outcome) in answers.iter().filter_map(|line| line.split_once(": ")) {
        let (level, remark) = rows.get(name).copied().unwrap_or(("not listed", ""));
        seen.insert(name);
        let expected = if matches!(level, "full" | "partial") { "0" } else { "EINVAL" };
        if outcome != expected {
            wrong.push(format!("{name}: {level} {remark}, and the answer is {outcome}"));
        }
    }
    // Of commands, the log tells.
    for (name, (level, remark)) in &rows {
        let Some(number) = (0..100).find(|number| ring3_uapi::bpf::cmd::name(*number) == Some(name)) else {
            continue;
        };
        seen.insert(name);
        let refused =
            log.contains(&format!("bpf({name}): ")) || log.contains(&format!("bpf command {number} is unknown"));
        let reason = remark.split_once(": ").map_or("", |(_, why)| why);
        let as_said = log.contains(&format!("bpf({name}): {reason}"));
        if refused != (*level == "refused") || refused && !as_said {
            wrong.push(format!(
                "{name}: {level} {remark}, and it is {}",
                if refused { "refused" } else { "answered" }
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unasked: Vec<&str> = rows.keys().copied().filter(|name| !seen.contains(name)).collect();
    assert_eq!(unasked, kfuncs, "rows of which nothing was asked");
}
