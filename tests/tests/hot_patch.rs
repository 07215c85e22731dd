//! `examples/hot-patch`: an extension guards a vulnerable function of a running process, and is taken back.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ring3_tests::{Bench, Process, assert_text_is_as_in_its_files, built_example, is_root, ring3, wait_until};
use rustix::process::Signal;

const NOBODY: u32 = 65_534;
/// A part of what follows the record in the server's memory.
const SECRET: &str = "swordfish";

fn example() -> PathBuf {
    built_example("hot-patch", &[]).expect("it needs no more than the tests")
}

fn free_port() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    socket.expect("a port").port().to_string()
}

struct Server {
    process: Process,
    port: String,
    directory: PathBuf,
    // (Dropped last: it stops the server of ring3.)
    bench: Bench,
}

impl Server {
    fn start(bench: Bench) -> Server {
        let example = example();
        let mut directory = PathBuf::new();
        for name in ["heartbeat", "heartbeat.eim", "patch.bpf.o"] {
            directory = bench.copy(&example.join(name)).parent().expect("a directory").to_owned();
        }
        let port = free_port();
        let process = Process::start(bench.command(directory.join("heartbeat")).args(["serve", &port]));
        let server = Server { process, port, directory, bench };
        wait_until("the server answers", || server.ask(&["x"]) == "x");
        server
    }

    fn ask(&self, said: &[&str]) -> String {
        let output = Command::new(self.directory.join("heartbeat")).args(["ask", &self.port]).args(said).output();
        String::from_utf8_lossy(&output.expect("it asks").stdout).trim_end().to_owned()
    }

    fn extend(&self) -> Process {
        let class = format!("{}:patch", self.directory.join("heartbeat.eim").display());
        let mut command = self.bench.ring3_command(&["extend", "--class", &class]);
        command.arg(self.directory.join("patch.bpf.o")).args(["--pid", &self.process.pid().to_string()]);
        let patch = Process::start(&mut command);
        wait_until("the patch is there", || {
            self.bench.status()["links"].as_array().is_some_and(|all| all.len() == 1)
        });
        patch
    }
}

fn check(bench: Bench) {
    let server = Server::start(bench);
    assert_text_is_as_in_its_files(server.process.pid());
    assert!(server.ask(&["hello", "100"]).contains(SECRET), "the server has the mistake");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut patch = server.extend();
        // (All of it but the padding has arrived, and one byte more has not.)
        for (said, expected) in [
            (&["hello"][..], "hello"),
            (&["hello", "5"], "hello"),
            (&["hello", "2"], "he"),
            (&["hello", "0"], ""),
            (&["hello", "6"], "no answer"),
            (&["hello", "100"], "no answer"),
            (&["hello", "65535"], "no answer"),
            (&["", "1"], "no answer"),
        ] {
            assert_eq!(server.ask(said), expected, "{said:?}");
        }
        patch.signal(signal);
        patch.wait();
        wait_until("the patch is taken back", || server.ask(&["hello", "100"]).contains(SECRET));
    }
    let (code, _, errors) = server.bench.run(&["detach", "--verify", &server.process.pid().to_string()]);
    assert_eq!(code, Some(0), "{errors}");
    assert_text_is_as_in_its_files(server.process.pid());
    assert!(server.ask(&["hello", "100"]).contains(SECRET));
}

#[test]
fn a_vulnerable_function_is_guarded_while_it_runs_and_the_patch_is_taken_back() {
    check(Bench::ring3());
}

#[test]
fn ordinary_users_patch_their_processes() {
    if !is_root() {
        return println!("SKIPPED: to become another user needs root");
    }
    check(Bench::ring3_as(NOBODY));
}

#[test]
fn the_commands_of_the_readme_work_as_typed() {
    let text = std::fs::read_to_string(example().join("README.md")).expect("it is there");
    let blocks = text.split("```sh\n").skip(2).filter_map(|block| block.split("```").next());
    let script: String = blocks.collect::<String>().replace("4433", &free_port());
    let bench = Bench::ring3();
    let binaries = ring3().parent().expect("a directory").display().to_string();
    let path = format!("{binaries}:{}", std::env::var("PATH").expect("a path"));
    let mut shell = bench.command("timeout");
    shell
        .args(["-s", "KILL", "60", "sh", "-c", &script])
        .current_dir(example())
        .env("PATH", path)
        .stdin(Stdio::null());
    let output = shell.output().expect("sh runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("hello") || *line == "no answer").collect();
    assert_eq!(lines.len(), 5, "{said}\n{errors}");
    assert!(lines[1].contains(SECRET) && lines[4].contains(SECRET), "{said}");
    assert_eq!((lines[0], lines[2], lines[3]), ("hello", "hello", "no answer"), "{said}\n{errors}");
    assert!(said.contains("\"value\": 1"), "bpftool shows no heartbeat that was discarded: {said}\n{errors}");
    assert!(errors.contains("extends process_heartbeat in process"), "{errors}");
    assert!(!errors.contains("rror") && said.contains("nothing of ring3 is left"), "{said}\n{errors}");
}
