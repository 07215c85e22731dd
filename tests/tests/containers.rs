//! Processes in containers are traced from outside as on the kernel.

use std::process::Stdio;

use ring3_tests::container::{self, Container, LIKE_DOCKER, distroless_image};
use ring3_tests::{Bench, Process, wait_until};

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
