//! LLVM as a process of its own: the program `ring3-llvm` beside `ring3`, and others in its place.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring3_tests::{Bench, Process, has_llvm, kill, programs, ring3, wait_until};

/// A copy of ring3, with this script as its `ring3-llvm`.
fn with_llvm(bench: &Bench, script: &str) -> PathBuf {
    let copy = bench.copy(&ring3());
    let named = copy.with_file_name("ring3");
    std::fs::rename(copy, &named).expect("a name for it");
    let llvm = named.with_file_name("ring3-llvm");
    // (Written by another process, as `Bench::copy` says.)
    let mut command = Command::new("sh");
    command.args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(&llvm).arg(script);
    assert!(command.status().expect("sh runs").success());
    assert_eq!(std::fs::metadata(&llvm).expect("written").permissions().mode() & 0o777, 0o755);
    named
}

/// What compiled the programs of programs/flow, one of which has a loop.
fn compiled_by(bench: &Bench, ring3: &Path) -> Vec<String> {
    let mut command = bench.command(ring3);
    command.args(["load", "--"]).arg(programs().join("flow")).arg(programs().join("stepped"));
    let mut tool = Process::start(&mut command);
    while tool.line() != "attached" {}
    let status = bench.status();
    let engines = status["programs"].as_array().expect("programs").iter();
    engines.map(|program| program["engine"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_crash_of_llvm_leaves_the_program_to_cranelift_and_the_server_alive() {
    const CRASHES: &str = "#!/bin/sh\nls /proc/self/fd > \"$0.descriptors\"\necho half\nkill -SEGV $$\n";
    let bench = Bench::ring3();
    let ring3 = with_llvm(&bench, CRASHES);
    let engines = compiled_by(&bench, &ring3);
    assert!(!engines.is_empty() && engines.iter().all(|engine| engine == "jit"), "{engines:?}");
    // It has nothing of the server's. (3 is the directory that `ls` reads.)
    let descriptors = std::fs::read_to_string(ring3.with_file_name("ring3-llvm.descriptors"));
    assert_eq!(descriptors.expect("it was started"), "0\n1\n2\n3\n");
}

#[test]
fn what_llvm_makes_is_not_trusted() {
    let bench = Bench::ring3();
    for (script, why) in [
        ("kill -SEGV $$", "signal: 11"),
        ("echo no such thing; exit 1", "no such thing"),
        ("cat", "ELF"),
        ("printf '\\177ELF\\002\\001\\001'; head -c 57 /dev/zero", ""),
        ("exec cat /dev/zero", "writes more than"),
        ("exec no-such-program", "127"),
    ] {
        let ring3 = with_llvm(&bench, &format!("#!/bin/sh\n{script}\n"));
        let text = ring3.with_file_name("program");
        std::fs::write(&text, "r0 = 0\nexit\n").expect("written");
        let mut command = bench.command(&ring3);
        let output = command.args(["exec", "--engine", "llvm"]).arg(&text).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{script}: {errors}");
        assert!(
            errors.contains("LLVM: ") && errors.contains(why) && !errors.contains("panicked"),
            "{script}: {errors}"
        );
    }
}

#[test]
fn ring3_itself_does_not_load_llvm() {
    let bytes = std::fs::read(ring3()).expect("it is built");
    assert!(!bytes.windows(9).any(|bytes| bytes == b"libLLVM.s" || bytes == b"libLLVM-1"));
}

#[test]
fn llvm_ends_with_its_parent() {
    if !has_llvm() {
        return;
    }
    let llvm = ring3().with_file_name("ring3-llvm");
    let mut command = Command::new("sh");
    // (A shell gives /dev/null to what runs in the background. `cat` keeps the shell until it is killed.)
    command.args(["-c", "exec 3<&0; \"$0\" <&3 & echo $!; exec 3<&-; cat; :"]).arg(&llvm);
    let mut parent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh runs");
    let mut line = String::new();
    let stdout = parent.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    let pid: u32 = line.trim().parse().expect("a pid");
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}"));
    wait_until("it reads its input", || {
        read("comm").is_ok_and(|name| name.trim() == "ring3-llvm")
            && read("syscall").is_ok_and(|call| call.starts_with("0 0x0 "))
    });
    kill(parent.id());
    // (Its input is still open.)
    wait_until("it has ended", || read("stat").map_or(true, |stat| stat.contains(") Z ")));
    let _ = parent.wait();
}
