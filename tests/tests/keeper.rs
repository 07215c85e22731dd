//! Loaders whose server is gone: what is not the server's goes on as without ring3.

use ring3_tests::{Bench, Process, is_root, kill, programs, ready, wait_until};

/// Processes that keep the loaders of this server.
fn keepers(server: u32) -> Vec<u32> {
    let children = std::fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten();
    let children = children.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids = children.flat_map(|text| text.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>());
    let is_keeper = |pid: &u32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split('\0').any(|word| word == "keep")
    };
    pids.filter(is_keeper).collect()
}

/// A loader at work says how it fares.
fn fares(loader: &mut Process) -> [String; 2] {
    loader.say("how?");
    [loader.line(), loader.line()]
}

fn lasting(bench: &Bench, threads: &str) -> Process {
    ready(bench.load(programs().join("lasting")).arg(threads))
}

#[test]
fn a_killed_servers_loaders_and_their_children_go_on_and_end_well() {
    let benches = if is_root() { vec![Bench::ring3(), Bench::ring3_as(54_321)] } else { vec![Bench::ring3()] };
    for bench in benches {
        let mut loaders = ["1", "4"].map(|threads| lasting(&bench, threads));
        for loader in &mut loaders {
            assert_eq!(fares(loader), ["bpf: ok", "well"]);
        }
        let server = bench.server();
        let keepers = keepers(server);
        assert_eq!(keepers.len(), 1);
        kill(server);
        for mut loader in loaders {
            assert_eq!(fares(&mut loader), ["bpf: ENOSYS", "well"]);
            // A new server changes nothing for it.
            assert_eq!(fares(&mut lasting(&bench, "1")), ["bpf: ok", "well"]);
            assert_eq!(fares(&mut loader), ["bpf: ENOSYS", "well"]);
            let (code, lines, errors) = loader.finish();
            assert_eq!((code, &lines[..]), (Some(0), &["done".to_owned()][..]));
            let [line] = &errors[..] else { panic!("{errors:?}") };
            assert!(
                line.starts_with("ring3: the server has ended, and with it this tool's programs and maps"),
                "{line}"
            );
        }
        wait_until("the keeper has nothing left to keep", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", keepers[0])).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }
}

#[test]
fn a_servers_death_at_any_moment_loses_no_call() {
    for _ in 0..25 {
        let bench = Bench::ring3();
        let mut loader = lasting(&bench, "8");
        kill(bench.server());
        assert_eq!(fares(&mut loader), ["bpf: ENOSYS", "well"]);
        assert_eq!(loader.finish().0, Some(0));
    }
}

#[test]
fn a_stopped_servers_loaders_go_on() {
    let bench = Bench::ring3();
    let mut loader = lasting(&bench, "2");
    let (code, _, errors) = bench.run(&["stop"]);
    assert!(code == Some(0) && errors.contains("1 tool(s) were still loaded"), "{errors}");
    assert_eq!(fares(&mut loader), ["bpf: ENOSYS", "well"]);
    assert_eq!(loader.finish().0, Some(0));
}

#[test]
fn a_keeper_that_is_killed_is_replaced_for_the_next_loader() {
    let bench = Bench::ring3();
    let mut before = lasting(&bench, "2");
    let server = bench.server();
    kill(keepers(server)[0]);
    assert_eq!(fares(&mut before), ["bpf: ok", "well"]);
    let mut after = lasting(&bench, "2");
    assert_eq!(keepers(server).len(), 1);
    assert_eq!(before.finish().0, Some(0));
    kill(server);
    assert_eq!(fares(&mut after), ["bpf: ENOSYS", "well"]);
    assert_eq!(after.finish().0, Some(0));
}
