//! Clients and servers that begin, end and cannot name each other.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use ring3_tests::{Bench, Process, is_root, ring3, wait_until};
use rustix::event::{PollFd, PollFlags};

/// Runs `ring3` while a server ends that has not taken its connection: what it prints.
fn with_ending_server(bench: &Bench, arguments: &[&str]) -> (Option<i32>, Vec<String>, Vec<String>) {
    let listener = UnixListener::bind(bench.made_directory().join("server.sock")).expect("bound");
    let client = Process::start(&mut bench.ring3_command(arguments));
    let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    wait_until("a client waits", || {
        rustix::event::poll(&mut fds, Some(&Default::default())).is_ok_and(|ready| ready > 0)
    });
    std::fs::remove_file(bench.directory().join("server.sock")).expect("removed");
    drop(listener);
    client.finish()
}

#[test]
fn a_client_whose_server_has_just_ended_finds_none_or_begins_one() {
    let bench = Bench::ring3();
    let (code, lines, errors) = with_ending_server(&bench, &["status"]);
    assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
    assert!(lines[0].contains("no server is running"), "{lines:?}");
    let (code, lines, errors) = with_ending_server(&bench, &["load", "--", "echo", "loaded"]);
    assert_eq!((code, &lines[..], errors.len()), (Some(0), &["loaded".to_owned()][..], 0), "{errors:?}");
}

#[test]
fn a_server_does_not_end_as_idle_while_a_connection_is_open() {
    let bench = Bench::ring3();
    let mut command = bench.ring3_command(&["serve", "--foreground"]);
    let server = Process::start(command.env("RING3_IDLE_SECONDS", "1"));
    let socket = bench.directory().join("server.sock");
    wait_until("the server serves", || socket.exists());
    let connection = std::os::unix::net::UnixStream::connect(&socket).expect("connected");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(u64::from(bench.server()), u64::from(server.pid()));
    drop(connection);
    assert_eq!(server.finish().0, Some(0));
}

#[test]
fn a_client_of_another_pid_namespace_is_told_so() {
    if !is_root() {
        return println!("SKIPPED: a PID namespace needs root");
    }
    let bench = Bench::ring3();
    let mut inside = bench.command("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(ring3()).args(["serve", "--foreground"]);
    bench.made_directory();
    let server = Process::start(&mut inside);
    let socket = bench.directory().join("server.sock");
    wait_until("the server serves", || socket.exists());
    for arguments in [&["status"][..], &["load", "--", "true"], &["start", "--", "true"]] {
        let (code, out, error) = bench.run(arguments);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{arguments:?}: {error}");
        for words in ["another PID namespace", "RING3_RUNTIME_DIR"] {
            assert!(error.contains(words), "{arguments:?}: {error}");
        }
    }
    // (Its clients outside can not stop it.)
    drop(server);
    wait_until("the server is gone", || std::os::unix::net::UnixStream::connect(&socket).is_err());
}
