//! The same system calls, made to this kernel and made to ring3: results must not differ.
//!
//! A scenario is a list of calls that print a line each. It runs in a process of its own, once as it is (which
//! needs root) and once under `ring3 load`.

mod calls;
mod scenarios;

use ring3_tests::{Bench, Process, is_root, wait_until};

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
    btf_is_loaded_and_checked, children_and_duplicates_share_descriptors, helpers_may_be_called, information_is_told,
    logs_follow_the_rules, objects_live_as_long_as_somebody_holds_them, programs_are_loaded_and_checked,
    the_kernels_types_are_objects_of_their_own, the_unsupported_is_refused,
};
use scenarios::raw_test_runs::{
    maps_are_shared_with_programs_that_are_run, programs_of_packets_are_run, raw_tracepoint_programs_are_run,
    system_call_programs_are_run,
};
use scenarios::raw_tracepoints::{
    functions_of_system_calls_are_probed, tracepoint_events_are_checked, tracepoints_have_files,
    tracepoints_take_programs,
};
use scenarios::raw_values::{keys_and_values_have_types, values_with_a_lock_behave};

const SCENARIO: &str = "RING3_TEST_SCENARIO";

const REFUSED: [&str; 12] = [
    "PROG_ATTACH: EINVAL",
    "LINK_UPDATE: EINVAL",
    "ENABLE_STATS: EINVAL",
    "ITER_CREATE: EINVAL",
    "unknown: EINVAL",
    "SOCKMAP: EINVAL",
    "CGROUP_STORAGE: EINVAL",
    "REUSEPORT_SOCKARRAY: EINVAL",
    "TRACING: EINVAL",
    "LSM: EINVAL",
    "CGROUP_SKB: EINVAL",
    "reference counter: ENOTSUP",
];

/// Not a test: what the tests below run in a process of its own.
#[test]
fn scenario_process() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let (_, run) = SCENARIOS.iter().find(|(known, _)| *known == name).expect("a known scenario");
    run();
}

/// What a scenario prints on a bench.
fn lines(bench: &Bench, name: &str) -> Vec<String> {
    let mut command = bench.load(std::env::current_exe().expect("this file"));
    command.args(["--exact", "scenario_process", "--nocapture"]).env(SCENARIO, name);
    let (code, lines, errors) = Process::start(&mut command).finish();
    assert_eq!(code, Some(0), "{lines:?}\n{errors:?}");
    // The test harness prints its own words before the first line, without a newline.
    lines.iter().filter_map(|line| line.split_once(MARK).map(|(_, line)| line.to_owned())).collect()
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
    if !is_root() {
        println!("SKIPPED: {name}: comparing with the kernel needs root");
        return;
    }
    let kernel = lines(&Bench::native(), name);
    let pairs = kernel.iter().zip(&ours).enumerate().filter(|(_, (kernel, ours))| kernel != ours);
    let differ: Vec<String> =
        pairs.map(|(number, (kernel, ours))| format!("{number}: kernel {kernel}\n  ours {ours}")).collect();
    assert!(differ.is_empty(), "{} of {} lines differ:\n{}", differ.len(), kernel.len(), differ.join("\n"));
    assert_eq!(kernel.len(), ours.len());
}

macro_rules! scenarios { ($($name:ident)*) => {
    const SCENARIOS: &[(&str, fn())] =
        &[$((stringify!($name), $name),)* ("tracepoints", tracepoints_take_programs), ("functions", functions_of_system_calls_are_probed), ("the_unsupported", the_unsupported_is_refused), ("helpers", helpers_may_be_called)];

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
    tracepoints_have_files
    tracepoint_events_are_checked
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
    let ours = lines(&Bench::ring3(), "functions");
    assert_eq!(ours[..PROBED.len()], PROBED);
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
fn the_unsupported_is_refused_with_an_error_of_the_kernels() {
    assert_eq!(lines(&Bench::ring3(), "the_unsupported"), REFUSED);
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
    for (ours, kernel) in ours.iter().zip(&lines(&Bench::native(), "helpers")) {
        let kernel: Vec<&str> = kernel.split(' ').collect();
        let more = ours.split(' ').filter(|name| !MORE.contains(name) && !kernel.contains(name));
        assert_eq!(more.collect::<Vec<_>>(), [""; 0], "of {ours}");
    }
}
