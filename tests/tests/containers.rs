//! Processes in containers are traced from outside as the kernel has it: in all containers of a layer, with ids as they are outside. And
//! ring3 inside of a container says what keeps it from working.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use ring3_tests::container::{self, Container, DISTROLESS, LIKE_DOCKER, distroless_image, musl_image};
use ring3_tests::{Bench, Footprint, Process, assert_text_is_as_in_its_files, is_root, ring3, victim, wait_until};

/// A user that no other test has.
const USER: u32 = 54_331;

/// Root's tools, under ring3 with nothing asked for.
fn bench() -> Bench {
    Bench::ring3().seeing(None)
}

/// Under ring3, and on the kernel.
fn on_both(test: impl Fn(&Bench)) {
    if container::are_possible() {
        test(&bench());
        test(&Bench::native());
    }
}

fn of(file: &Path, function: &str) -> String {
    format!("{}:{function}", file.display())
}

/// The kernel's probe is on the layer's inode. A tool sees the ids that processes have outside.
#[test]
fn a_probe_on_a_layers_file_is_in_all_containers_with_that_layer() {
    on_both(|bench| {
        let Some(image) = musl_image(bench) else { return };
        let mut containers = [(); 2].map(|()| Container::ready(bench, LIKE_DOCKER, &image));
        let root = format!("/proc/{}/root", containers[0].pid);
        // Named by the layer's file, and by the file in one of the containers.
        for directory in [&image, Path::new(&root)] {
            let probes = [
                of(&directory.join("bin/contained"), "wanted"),
                of(&directory.join("usr/lib/liblibrary.so"), "in_library"),
            ];
            let mut tool = bench.counting(&[&probes[0], &probes[1]]);
            let later = Container::ready(bench, LIKE_DOCKER, &image);
            for (container, calls) in containers.iter_mut().zip([3, 4]) {
                assert_eq!(container.told(&format!("call {calls}")), "called");
            }
            let expected: BTreeMap<(u32, String), u64> = containers
                .iter()
                .zip([3, 4])
                .flat_map(|(container, calls)| probes.clone().map(|probe| ((container.pid, probe), calls)))
                .collect();
            assert_eq!(tool.report(), expected);
            drop(later);
        }
    });
}

/// A shell, which maps no file with a probe, begins them.
#[test]
fn programs_that_begin_in_a_container_are_seen_from_their_first_instruction() {
    on_both(|bench| {
        let Some(image) = musl_image(bench) else { return };
        let mut container = Container::start(bench, LIKE_DOCKER, &image, &["/bin/sh"]);
        assert_eq!(container.told("echo ready"), "ready");
        let probe = of(&image.join("bin/contained"), "wanted");
        let mut tool = bench.counting(&[&probe]);
        for _ in 0..3 {
            assert_eq!(container.told("/bin/contained 5; echo ended"), "ended");
        }
        let report = tool.report();
        assert_eq!(report.values().collect::<Vec<_>>(), [&5; 3], "{report:?}");
    });
}

/// What has the same name and another content there, since the container has written to it, is another file.
#[test]
fn a_file_that_a_container_has_changed_is_another_one() {
    on_both(|bench| {
        let Some(image) = musl_image(bench) else { return };
        let change = "b=/bin/busybox; $b mkdir /tmp && $b cp /bin/contained /tmp/x && $b mv /tmp/x /bin/contained && exec /bin/contained";
        let change = ["/bin/sh", "-c", change];
        let mut changed = Container::start(bench, LIKE_DOCKER, &image, &change);
        assert_eq!(changed.process.line(), "ready");
        let mut same = Container::ready(bench, LIKE_DOCKER, &image);
        let probe = of(&image.join("bin/contained"), "wanted");
        let mut tool = bench.counting(&[&probe]);
        assert_eq!(changed.told("call 3"), "called");
        assert_eq!(same.told("call 4"), "called");
        assert_eq!(tool.report(), [((same.pid, probe), 4)].into());
    });
}

/// Root of a user namespace makes it: of the files in such an overlay the kernel gives no handles.
#[test]
fn a_container_that_an_ordinary_user_has_made_is_seen() {
    let owner = Bench::ring3_as(USER);
    if !container::are_possible_for(&owner) {
        return;
    }
    let image = distroless_image(&owner);
    let mut container = Container::ready(&owner, "udn", &image);
    let probe = of(&image.join("bin/contained"), "wanted");
    for bench in [Bench::native(), bench(), Bench::ring3_as(USER).seeing(None)] {
        let mut tool = bench.counting(&[&probe]);
        assert_eq!(container.told("call 3"), "called");
        assert_eq!(tool.report(), [((container.pid, probe.clone()), 3)].into());
        drop(tool);
        if !bench.is_native() {
            // (It is a target of one server at a time.)
            wait_until("it is no target", || bench.status()["targets"].as_array().is_none_or(Vec::is_empty));
        }
    }
}

/// Ids of threads, of forks and of children that share their creator's memory until they execute a program.
#[test]
fn ids_of_threads_and_children_are_those_outside() {
    on_both(|bench| {
        let image = distroless_image(bench);
        let mut container = Container::ready(bench, LIKE_DOCKER, &image);
        let probe = format!("/proc/{}/root/bin/contained:wanted", container.pid);
        let script = format!("uprobe:{probe} {{ printf(\"%d %d\\n\", pid, tid) }} BEGIN {{ printf(\"begun\\n\") }}");
        let mut tool =
            Process::start(bench.load("bpftrace").args(["-B", "line", "-e", &script]).stdin(Stdio::null()));
        while tool.line() != "begun" {}
        // (It begins before its other probes are made.)
        if bench.is_native() {
            std::thread::sleep(std::time::Duration::from_secs(2));
        } else {
            wait_until("it is a target", || bench.status()["targets"].as_array().is_some_and(|all| !all.is_empty()));
            wait_until("it has a probe", || bench.status()["targets"][0]["sites"].to_string().contains("wanted"));
        }
        let pid = container.pid;
        let mut ids = || {
            let line = tool.line();
            let (pid, tid) = line.split_once(' ').expect("two numbers");
            [pid, tid].map(|id| id.parse::<u32>().expect("a number"))
        };
        assert_eq!(container.told("call 1"), "called");
        assert_eq!(ids(), [pid, pid]);
        assert_eq!(container.told("threads 2"), "called");
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        let mut threads: Vec<u32> =
            threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect();
        threads.sort_unstable();
        assert_eq!(threads.len(), 3);
        assert_eq!([ids(), ids()], [[pid, threads[1]], [pid, threads[2]]]);
        for how in ["run", "spawn"] {
            // (Inside it is one of the first processes.)
            let told = container.told(&format!("{how} /bin/contained"));
            let inside: u32 = told.strip_prefix("ran ").expect("an id").parse().expect("a number");
            let [child, thread] = ids();
            assert!(child == thread && child > pid && inside < 50, "{child} {thread} {pid} {told}");
            (0..6).for_each(|_| assert_eq!(ids(), [child, thread]));
        }
    });
}

/// Without a shell, /proc, /tmp and /dev, and with nothing that can be written to.
#[test]
fn a_distroless_containers_process_is_attached_and_left_as_it_was() {
    if !container::are_possible() {
        return;
    }
    let bench = Bench::ring3();
    let image = distroless_image(&bench);
    let mut container = Container::ready(&bench, DISTROLESS, &image);
    let (pid, before) = (container.pid.to_string(), Footprint::of(container.pid));
    let (code, _, errors) = bench.run(&["attach", &pid]);
    assert_eq!(code, Some(0), "{errors}");
    let probe = of(&image.join("bin/contained"), "wanted");
    let mut tool = bench.counting(&[&probe]);
    assert_eq!(container.told("call 3"), "called");
    assert_eq!(tool.report(), [((container.pid, probe), 3)].into());
    drop(tool);
    let (code, _, errors) = bench.run(&["detach", "--verify", &pid]);
    assert_eq!(code, Some(0), "{errors}");
    assert_text_is_as_in_its_files(container.pid);
    assert_eq!(Footprint::of(container.pid), before);
}

#[test]
fn a_containers_end_ends_its_targets_and_nothing_else() {
    if !container::are_possible() {
        return;
    }
    let bench = bench();
    let image = distroless_image(&bench);
    let probe = of(&image.join("bin/contained"), "wanted");
    let mut containers = [(); 2].map(|()| Container::ready(&bench, LIKE_DOCKER, &image));
    let mut tool = bench.counting(&[&probe]);
    containers.iter_mut().for_each(|container| assert_eq!(container.told("call 1"), "called"));
    let [first, mut second] = containers;
    ring3_tests::kill(first.pid);
    let targets = || bench.status()["targets"].as_array().map_or(0, Vec::len);
    wait_until("it is no target", || targets() == 1);
    assert_eq!(second.told("call 2"), "called");
    assert_eq!(tool.report().get(&(second.pid, probe)), Some(&3));
}

/// Each sees what the other one has done, or where it may be.
#[test]
fn a_process_is_a_target_of_one_server_inside_or_outside_of_its_container() {
    if !container::are_possible() {
        return;
    }
    let bench = Bench::ring3();
    let mut container = Container::start(&bench, "pdcn", Path::new("/"), &["/bin/sh"]);
    let (ring3, program) = (ring3(), victim("contained", "gcc", "contained.c", &["-static"]));
    assert_eq!(container.told("exec 2>&1; export RING3_RUNTIME_DIR=/run/r3; echo ready"), "ready");
    let begin = format!("mkfifo /run/q; {} < /run/q & exec 7> /run/q; victim=$!", program.display());
    assert_eq!(container.told(&begin), "ready");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", container.pid)).expect("it runs");
    let victim = children.trim();
    let mut inside = |command: &str| {
        let run = format!("{} {command} $victim; echo code $?", ring3.display());
        container.told(&format!("({run}) 2>&1 | tr '\\n' ' '; echo"))
    };
    let outside = |command: &str| {
        let (code, out, errors) = bench.run(&[command, victim]);
        (code, out + &errors)
    };
    assert!(inside("attach").ends_with("code 0 "));
    let (code, told) = outside("attach");
    assert!(code != Some(0) && told.contains("a target of another ring3 server (process "), "{told}");
    assert!(inside("detach").ends_with("code 0 "));
    assert_eq!(outside("attach").0, Some(0));
    let told = inside("attach");
    assert!(told.contains("a target of another ring3 server (outside of this pid namespace)"), "{told}");
    // Of a server that has ended nobody inside can tell; the next one outside can.
    ring3_tests::kill(bench.server());
    let told = inside("attach");
    assert!(told.contains("another ring3 server (outside"), "{told}");
    assert_eq!(outside("attach").0, Some(0));
    assert_eq!(outside("detach").0, Some(0));
    assert!(inside("attach").ends_with("code 0 "));
    assert!(inside("detach").ends_with("code 0 "));
    container.process.say(&format!("{} stop; echo end >&7; exit", ring3.display()));
    container.process.wait();
}

/// What `ring3` says in a container with this host's files.
fn told_inside(letters: &str, environment: &str, arguments: &str) -> String {
    let bench = Bench::ring3();
    let command = format!("{environment} {} {arguments}", ring3().display());
    let mut command = Container::command(&bench, letters, Path::new("/"), &["/bin/sh", "-c", &command]);
    let (_, _, errors) = Process::start(&mut command).finish();
    errors.join("\n")
}

/// Two filters: the refusal counts, whatever ring3 would answer.
#[test]
fn a_container_whose_profile_refuses_bpf_is_named_as_the_reason() {
    if !is_root() {
        return println!("SKIPPED: containers need root");
    }
    let told = told_inside(LIKE_DOCKER, "RING3_RUNTIME_DIR=/run/r3", "load -- /bin/true");
    assert!(told.contains("a seccomp filter of this process refuses bpf(2)"), "{told}");
    let told = told_inside("pdcn", "RING3_RUNTIME_DIR=/run/r3", "load -- /bin/true");
    assert_eq!(told, "");
}

#[test]
fn a_container_that_lacks_what_a_server_needs_is_told_what() {
    if !is_root() {
        return println!("SKIPPED: containers need root");
    }
    let told = told_inside("pr", "RING3_RUNTIME_DIR=/run/r3", "load -- /bin/true");
    assert!(told.contains("set RING3_RUNTIME_DIR to a directory that you may"), "{told}");
    let told = told_inside("p", "RING3_RUNTIME_DIR=/run/r3", "load -- /bin/true");
    assert!(told.contains("there is no /dev/null"), "{told}");
}
