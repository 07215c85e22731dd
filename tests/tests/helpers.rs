//! What helpers return and write, and where control goes, in programs on real victims: as `programs/*.expected` say,
//! under ring3 and on the kernel. `BLESS=1` writes those files anew, from the kernel where the machine lets it.

use std::collections::BTreeSet;
use std::path::Path;

use ring3_tests::{Bench, Process, has_llvm, is_root, programs, ready, root, wait_until};

/// A user without any privilege.
const ORDINARY: u32 = 65534;

/// What the programs tell, and what the victim finds in its memory.
fn told(bench: &Bench) -> Vec<String> {
    let victim = programs().join("helped");
    let mut tool = Process::start(bench.load(programs().join("helpers")).arg(&victim));
    assert_eq!(tool.line(), "attached");
    check_compiled(bench);
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

/// What programs/flow tells about two calls of everything, and about changes between them.
fn told_of_flow(bench: &Bench) -> Vec<String> {
    let victim = programs().join("stepped");
    let mut tool = Process::start(bench.load(programs().join("flow")).arg(&victim));
    let mut lines: Vec<String> = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "attached")).collect();
    check_compiled(bench);
    let mut victim = ready(&mut bench.target(&victim));
    for number in ["3", "4"] {
        victim.say(number);
        lines.push(format!("sum: {}", victim.line()));
        tool.say(&victim.pid().to_string());
        lines.extend(std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")));
    }
    let (code, _, errors) = tool.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    lines
}

/// Code that was compiled ahead of time was used for all programs.
fn check_compiled(bench: &Bench) {
    if bench.is_ahead_of_time() {
        // (The server hears a little later that libbpf has closed the programs by which it tries features.)
        wait_until("code compiled ahead of time is used for all programs", || bench.compiled_anew().is_empty());
    }
}

/// What compiled the programs of programs/flow, one of which has a loop.
fn compiled_by(bench: &Bench) -> BTreeSet<String> {
    let mut tool = Process::start(bench.load(programs().join("flow")).arg(programs().join("stepped")));
    while tool.line() != "attached" {}
    let status: serde_json::Value = serde_json::from_str(&bench.run(&["status", "--json"]).1).expect("JSON");
    let programs = status["programs"].as_array().expect("programs").iter();
    programs.map(|program| program["engine"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn loops_are_compiled_by_llvm_unless_the_user_wants_another() {
    let both: &[&str] = if has_llvm() { &["jit", "llvm"] } else { &["jit"] };
    assert!(compiled_by(&Bench::ring3()).iter().eq(both));
    for engine in engines() {
        assert!(compiled_by(&Bench::ring3_with(engine)).iter().eq([engine]));
    }
}

/// The lines of an expectation; with `BLESS` set they are written anew.
fn expected(name: &str, told: impl FnOnce() -> Vec<String>) -> Vec<String> {
    let path = root().join("tests/programs").join(name).with_extension("expected");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, told().join("\n") + "\n").expect("the work tree is writable");
    }
    let text = std::fs::read_to_string(&path).expect("the expectation is there");
    // Without the kernel's BTF no loader finds its functions.
    let has_functions = Path::new("/sys/kernel/btf/vmlinux").exists();
    if !has_functions {
        println!("SKIPPED IN PART: this kernel has no BTF: its functions are not called");
    }
    text.lines().filter(|line| has_functions || !line.starts_with("count: ")).map(str::to_owned).collect()
}

fn expected_of_helpers() -> Vec<String> {
    expected("helpers", || {
        let ours = told(&Bench::ring3());
        if is_root() { with_writes_of(told(&Bench::native()), &ours) } else { ours }
    })
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
    println!("SKIPPED IN PART: this kernel has no bpf_probe_write_user: its results are not compared");
    kernel.retain(|line| !is_of_writes(line));
    for (at, line) in other.iter().enumerate().filter(|(_, line)| is_of_writes(line)) {
        kernel.insert(at.min(kernel.len()), line.clone());
    }
    kernel
}

fn check(got: &[String], expected: &[String], whose: &str) {
    let pairs = got.iter().zip(expected).filter(|(got, expected)| got != expected);
    let differ: Vec<String> = pairs.map(|(got, expected)| format!("{whose} {got}\n  expected {expected}")).collect();
    assert!(differ.is_empty(), "{} lines differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!(got.len(), expected.len());
}

/// What can compile the programs.
fn engines() -> impl Iterator<Item = &'static str> {
    ["jit"].into_iter().chain(has_llvm().then_some("llvm"))
}

// One test each: a kernel's probes and ring3's on the same functions at a time would be a test of something else.
#[test]
fn helpers_return_and_write_what_the_kernels_do() {
    let expected = expected_of_helpers();
    for engine in engines() {
        check(&told(&Bench::ring3_with(engine)), &expected, &format!("ring3 with {engine}:"));
    }
    check(&told(&Bench::ahead_of_time(&programs().join("helpers.bpf.o"))), &expected, "compiled ahead of time:");
    if is_root() {
        check(&told(&Bench::ring3_as(ORDINARY)), &expected, "ring3 of an ordinary user:");
        check(&with_writes_of(told(&Bench::native()), &expected), &expected, "the kernel:");
    } else {
        println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
}

#[test]
fn tail_calls_callbacks_and_maps_of_maps_are_as_the_kernels() {
    let expected = expected("flow", || told_of_flow(&if is_root() { Bench::native() } else { Bench::ring3() }));
    for engine in engines() {
        check(&told_of_flow(&Bench::ring3_with(engine)), &expected, &format!("ring3 with {engine}:"));
    }
    check(&told_of_flow(&Bench::ahead_of_time(&programs().join("flow.bpf.o"))), &expected, "compiled ahead of time:");
    if is_root() {
        check(&told_of_flow(&Bench::native()), &expected, "the kernel:");
    } else {
        println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
}
