//! What helpers return and write, in a program on a real victim: as `programs/helpers.expected` says, under ring3
//! and on the kernel. `BLESS=1` writes that file anew, from the kernel where the machine lets it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use ring3_tests::{Bench, Process, is_root, ready, root};

/// A user without any privilege.
const ORDINARY: u32 = 65534;

/// Where the tool and its victim are, built.
fn built() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = root().join("target/programs");
        let out = format!("OUT={}", folder.display());
        let output = Command::new("make").args(["-s", "-C"]).arg(root().join("tests/programs")).arg(out).output();
        let output = output.expect("make runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

/// What the programs tell, and what the victim finds in its memory.
fn told(bench: &Bench) -> Vec<String> {
    let victim = built().join("helped");
    let mut tool = Process::start(bench.load(built().join("helpers")).arg(&victim));
    assert_eq!(tool.line(), "attached");
    let mut victim = ready(&mut bench.target(&victim));
    victim.say("go");
    let memory = format!("memory: {}", victim.line());
    tool.say("");
    let mut lines: Vec<String> = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")).collect();
    lines.push(memory);
    let (code, _, errors) = tool.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    lines
}

fn expected() -> Vec<String> {
    let path = root().join("tests/programs/helpers.expected");
    if std::env::var_os("BLESS").is_some() {
        let ours = told(&Bench::ring3());
        let lines = if is_root() { with_writes_of(told(&Bench::native()), &ours) } else { ours };
        std::fs::write(&path, lines.join("\n") + "\n").expect("the work tree is writable");
    }
    let text = std::fs::read_to_string(&path).expect("the expectation is there");
    text.lines().map(str::to_owned).collect()
}

/// Of `bpf_probe_write_user`, which a locked down kernel has not.
fn is_of_writes(line: &str) -> bool {
    line.starts_with("write") || line.starts_with("memory: ")
}

/// `kernel`, with the lines that it cannot have from elsewhere.
fn with_writes_of(mut kernel: Vec<String>, other: &[String]) -> Vec<String> {
    if kernel.iter().any(|line| line.starts_with("write")) {
        return kernel;
    }
    println!("SKIPPED: this kernel has no bpf_probe_write_user: its results are not compared");
    kernel.retain(|line| !is_of_writes(line));
    for (at, line) in other.iter().enumerate().filter(|(_, line)| is_of_writes(line)) {
        kernel.insert(at.min(kernel.len()), line.clone());
    }
    kernel
}

fn check(got: &[String], whose: &str) {
    let expected = expected();
    let pairs = got.iter().zip(&expected).filter(|(got, expected)| got != expected);
    let differ: Vec<String> = pairs.map(|(got, expected)| format!("{whose} {got}\n  expected {expected}")).collect();
    assert!(differ.is_empty(), "{} lines differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!(got.len(), expected.len());
}

// One test: a kernel's probes and ring3's on the same functions at a time would be a test of something else.
#[test]
fn helpers_return_and_write_what_the_kernels_do() {
    check(&told(&Bench::ring3()), "ring3:");
    if is_root() {
        check(&told(&Bench::ring3_as(ORDINARY)), "ring3 of an ordinary user:");
        check(&with_writes_of(told(&Bench::native()), &expected()), "the kernel:");
    } else {
        println!("SKIPPED: comparing with the kernel needs root");
    }
}
