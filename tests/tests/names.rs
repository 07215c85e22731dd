//! Programs, the agent and stubs have names where people look: `ring3 status -v`, bpftool, perf, gdb.

use std::process::Command;

use ring3_tests::{Bench, Footprint, Process, example, is_root, ready, root, shapes, victim, wait_until};

/// A victim that calls `work` without a pause.
fn busy() -> Process {
    ready(Command::new(victim("busy", "gcc", "busy.c", &[])).arg("1"))
}

fn probe() -> String {
    format!("{}:work", victim("busy", "gcc", "busy.c", &[]).display())
}

fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        println!("SKIPPED: {program} is not installed");
    }
    there
}

/// Exit code, and what was said on both streams.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// The line of the example's program where its function begins.
fn first_line() -> usize {
    let text = std::fs::read_to_string(root().join("examples/malloc/malloc.bpf.c")).expect("the example is there");
    1 + text.lines().position(|line| line.starts_with("int on_entry")).expect("it has that function")
}

#[test]
fn status_and_bpftool_name_functions_and_lines() {
    let bench = Bench::ring3();
    let mut victim = busy();
    let _counter = bench.counting(&["-p", &victim.pid().to_string(), &probe()]);
    let (_, status, _) = bench.run(&["status", "-v"]);
    let begin = format!("malloc.bpf.c:{})]", first_line());
    assert!(status.lines().any(|line| line.contains("on_entry (") && line.contains(&begin)), "{status}");
    let bpftool = |arguments: &[&str]| run(bench.load("bpftool").args(arguments)).1;
    let dump = bpftool(&["prog", "dump", "xlated", "name", "on_entry", "linum"]);
    assert!(dump.contains("int on_entry(struct pt_regs * ctx):"), "{dump}");
    assert!(dump.contains(&format!("malloc.bpf.c line_num:{}", first_line())), "{dump}");
    victim.say("");
    if !is_root() {
        println!("SKIPPED IN PART: to compare tags with the kernel's needs root");
        return;
    }
    // The kernel's tag of the same program.
    let object = example("malloc").with_file_name("malloc.bpf.o");
    let script = format!(
        "mount -t bpf bpf /sys/fs/bpf && bpftool prog load {} /sys/fs/bpf/names type kprobe && \
         bpftool prog show pinned /sys/fs/bpf/names",
        object.display()
    );
    let (code, native) = run(Bench::native().command("unshare").args(["--mount", "sh", "-c", &script]));
    assert_eq!(code, Some(0), "{native}");
    let tag = |text: &str| {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let at = words.iter().position(|word| word == "tag").expect("programs have tags");
        words[at + 1].clone()
    };
    assert_eq!(tag(&bpftool(&["prog", "show", "name", "on_entry"])), tag(&native));
}

#[test]
fn perf_names_programs_the_agent_and_stubs() {
    if !is_there("perf") {
        return;
    }
    let bench = Bench::ring3();
    let mut victim = busy();
    let pid = victim.pid().to_string();
    let before = Footprint::of(victim.pid());
    let mut loader = bench.load(example("malloc"));
    let mut tool = Process::start(loader.args(["-p", &pid, &probe()]).env("RING3_PERF", "1"));
    assert_eq!(tool.line(), "attached 1");
    let data = bench.directory().join("perf.data");
    let data = data.to_str().expect("a plain name");
    let perf = |arguments: &[&str]| {
        // Copies of what was recorded are kept below the home directory.
        let mut command = Command::new("perf");
        run(command.args(arguments).env("HOME", bench.directory()).current_dir(bench.directory()))
    };
    let (code, said) =
        perf(&["record", "-q", "-e", "cpu-clock:u", "-F", "999", "-o", data, "-p", &pid, "--", "sleep", "1"]);
    if code != Some(0) {
        println!("SKIPPED: perf cannot record here: {said}");
        return;
    }
    let report = || perf(&["report", "--stdio", "--sort", "symbol", "-i", data]).1;
    let shown = report();
    let tagged = |line: &str| line.contains("] bpf_prog_") && line.contains("_on_entry ");
    assert!(shown.lines().any(tagged), "{shown}");
    for name in ["ring3_enter", "ring3_stub_work"] {
        assert!(shown.contains(name), "no {name} in\n{shown}");
    }
    // Nothing stays: in the process, in /tmp, and with the server's end in its directory.
    tool.say("");
    tool.finish();
    wait_until("the target is left", || Footprint::of(victim.pid()) == before);
    let map = format!("/tmp/perf-{pid}.map");
    wait_until("its perf map is gone", || !std::path::Path::new(&map).exists());
    assert_eq!(bench.run(&["stop"]).0, Some(0));
    wait_until("the server's files are gone", || {
        let left = std::fs::read_dir(bench.directory()).expect("there").flatten();
        !left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("ring3-"))
    });
    // What was recorded has the names with it.
    let shown = report();
    assert!(shown.lines().any(tagged) && shown.contains("ring3_enter"), "{shown}");
    victim.say("");
    assert!(victim.line().ends_with(" 0"));
}

#[test]
fn gdb_names_programs_the_agent_and_stubs_with_lines() {
    let bench = Bench::ring3();
    let victim = busy();
    let pid = victim.pid().to_string();
    let (code, _, errors) = bench.run(&["symbols", &pid, "-o", "/dev/null"]);
    assert!(code == Some(1) && errors.contains("no ring3 server"), "{errors}");
    let mut counter = bench.counting(&["-p", &pid, &probe()]);
    let path = bench.directory().join("names.debug");
    let file = path.to_str().expect("a plain name");
    let (code, _, errors) = bench.run(&["symbols", "1", "-o", file]);
    assert!(code == Some(1) && errors.contains("process 1 is not a target"), "{errors}");
    assert_eq!(bench.run(&["symbols", &pid, "-o", file]).0, Some(0));
    let (code, dumped) = run(Command::new("readelf").args(["-aW", "--debug-dump=decodedline", file]));
    assert!(code == Some(0) && !dumped.contains("Warning"), "{dumped}");
    let line = dumped.lines().find(|line| line.contains("_on_entry") && line.contains("FUNC")).expect("a function");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (address, name) = (words[1], words[7]);
    if !is_there("gdb") {
        return;
    }
    let shown = |what: &str| {
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-p", &pid, "-ex", &format!("add-symbol-file {file}"), "-ex", what]);
        run(&mut gdb).1
    };
    let told = shown(&format!("info line *0x{address}"));
    let (begin, of) = (format!("Line {} of", first_line()), format!("malloc.bpf.c\" starts at address 0x{address}"));
    let address = address.trim_start_matches('0');
    let of = of.replace("0x0000", "0x");
    assert!(told.contains(&begin) && told.contains(&of) && told.contains(name), "0x{address}: {told}");
    assert!(shown("info line ring3_stub_work").contains("ring3_stub_work"));
    assert!(counter.total(&probe()) > 0);
}

#[test]
fn a_tool_that_ends_while_a_debugger_holds_its_target_does_no_harm() {
    if !is_there("gdb") {
        return;
    }
    let bench = Bench::ring3();
    let shapes = shapes();
    let probe = format!("{}:plain", shapes.display());
    let mut counter = bench.counting(&[&probe, &format!("{probe}:ret")]);
    let mut victim = ready(bench.target(&shapes).args(["plain", "5000"]));
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &victim.pid().to_string(), "-ex", "echo held\\n", "-ex", "continue"]);
    let mut gdb = Process::start(&mut gdb);
    while gdb.line() != "held" {}
    counter.tool.say("");
    drop(counter);
    wait_until("the programs are gone", || bench.status()["programs"].as_array().is_some_and(Vec::is_empty));
    let text = || bench.status()["server"]["text_bytes"].as_u64();
    wait_until("their code is gone", || text() == Some(0));
    victim.say("go");
    assert_eq!(victim.line(), "5000");
    let (code, _, errors) = victim.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    gdb.finish();
}
