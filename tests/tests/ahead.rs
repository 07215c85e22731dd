//! `ring3 aot` and `ring3 load --aot`: what was compiled ahead of time is used for the program that it is, and for no other.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_aot::{Identity, Store};
use ring3_tests::{Bench, Process, is_root, programs, ready, root};

/// The example's programs.
fn example_object() -> PathBuf {
    ring3_tests::example("malloc");
    root().join("examples/malloc/build/malloc.bpf.o")
}

#[test]
fn a_tool_counts_the_same_with_code_compiled_ahead() {
    let victim = ring3_tests::shapes();
    let probe = format!("{}:plain", victim.display());
    let count = |bench: &Bench| {
        let mut counter = bench.counting(&[&probe, &format!("{probe}:ret")]);
        let mut running = ready(bench.target(&victim).args(["plain", "5000"]));
        running.say("go");
        assert_eq!(running.line(), "5000");
        let anew = bench.compiled_anew();
        ((counter.total(&probe), counter.total(&format!("{probe}:ret"))), anew)
    };
    let both = ["\"on_entry\": null".to_owned(), "\"on_return\": null".to_owned()];
    assert_eq!(count(&Bench::ring3()), ((5000, 5000), both.to_vec()));
    assert_eq!(count(&Bench::ahead_of_time(&example_object())), ((5000, 5000), vec![]));
}

#[test]
fn programs_that_are_not_in_the_file_are_compiled_as_always() {
    let victim = ring3_tests::shapes();
    let probe = format!("{}:plain", victim.display());
    let bench = Bench::ahead_of_time(&programs().join("alone.bpf.o"));
    let mut counter = bench.counting(&[&probe]);
    let mut running = ready(bench.target(&victim).args(["plain", "500"]));
    running.say("go");
    assert_eq!(running.line(), "500");
    assert_eq!(counter.total(&probe), 500);
    let anew = bench.compiled_anew();
    assert!(!anew.is_empty() && anew.iter().all(|why| why.contains("no program of these")), "{anew:?}");
    let (_, shown, _) = bench.run(&["status", "-v"]);
    assert!(shown.contains("aot the file has no program of these instructions"), "{shown}");
}

/// What `ring3 load --aot` says of a file with these bytes; the tool must not have run.
fn refusal(bench: &Bench, file: &Path) -> String {
    let (code, out, errors) =
        bench.run(&["load", "--aot", file.to_str().expect("a plain name"), "--", "echo", "ran"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.contains(file.to_str().expect("a plain name")), "{errors}");
    errors
}

#[test]
fn damaged_foreign_and_unsafe_files_are_refused_with_a_reason() {
    let bench = Bench::ahead_of_time(&example_object());
    let good = bench.directory().join("programs.aot");
    let bytes = std::fs::read(&good).expect("written");
    let file = bench.directory().join("other.aot");
    let write = |bytes: &[u8]| std::fs::write(&file, bytes).expect("written");
    let (_, out, _) = bench.run(&["load", "--aot", good.to_str().expect("a plain name"), "--", "echo", "ran"]);
    assert_eq!(out, "ran\n");
    for at in [0, 8, 16, 24, 56, bytes.len() / 2, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        write(&flipped);
        let why = refusal(&bench, &file);
        assert!(["damaged", "not a file that", "format"].iter().any(|word| why.contains(word)), "{at}: {why}");
    }
    for length in [0, 8, 55, 56, bytes.len() - 1] {
        write(&bytes[..length]);
        refusal(&bench, &file);
    }
    let none = [0; 32];
    let identity = Identity { build: none, version: "0.0.1".into(), cpus: 1, kernel: none, release: "3.2".into() };
    write(&Store { identity, programs: vec![] }.write());
    let why = refusal(&bench, &file);
    assert!(why.contains("another build of ring3 (version 0.0.1)") && why.contains("run `ring3 aot` again"), "{why}");
    let why = refusal(&bench, Path::new("/dev/null"));
    assert!(why.contains("no ordinary file"), "{why}");
    write(&bytes);
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&file, mode(0o664)).expect("changed");
    assert!(refusal(&bench, &file).contains("others than its owner may write it"));
    std::fs::set_permissions(&file, mode(0o644)).expect("changed");
    if is_root() {
        std::os::unix::fs::chown(&file, Some(54_321), None).expect("changed");
        assert!(refusal(&bench, &file).contains("it belongs to user 54321"));
    } else {
        println!("SKIPPED IN PART: a file of somebody else needs root");
    }
    // All that time it was the same server.
    assert_eq!(Process::start(&mut bench.ring3_command(&["stop"])).finish().0, Some(0));
}

/// The standard output of a command that succeeds and has nothing to complain about.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && errors.is_empty(), "{program} {arguments:?}: {errors}{out}");
    out
}

#[test]
fn an_elf_file_is_linked_run_and_shown_with_names_and_lines() {
    let directory = programs().join(format!("linked-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    let path = |path: PathBuf| path.to_str().expect("a plain name").to_owned();
    let object = path(programs().join("linked.bpf.o"));
    let (native, linked) = (path(directory.join("linked.native.o")), path(directory.join("linked")));
    let ring3 = path(ring3_tests::ring3());
    output(&ring3, &["aot", &object, "--emit", "obj", "-o", &native]);
    let main = path(root().join("tests/programs/linked.c"));
    output("cc", &["-Wall", "-Werror", "-Wl,--fatal-warnings", "-o", &linked, &main, &native]);
    // The first element weighs 3 + 1000, then 6 + 1000 more.
    let told = output(&linked, &[]);
    assert_eq!(told, "1003\n2009\ntail call: others 0\n17\nweights 0 2009, runs 2\n");
    let shown = output("objdump", &["-drl", &native]);
    for part in ["<linked>:", "<weigh>:", "R_X86_64_PLT32\tring3_helper_ktime_get_ns-0x4", "linked.bpf.c:35"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    let dumped = output("readelf", &["-aW", "--debug-dump=decodedline", "--debug-dump=info", &native]);
    for part in ["FUNC    GLOBAL DEFAULT    1 linked", "FUNC    LOCAL  DEFAULT    1 weigh", "DW_TAG_subprogram"] {
        assert!(dumped.contains(part), "no {part} in\n{dumped}");
    }
    if Command::new("gdb").arg("--version").output().is_ok() {
        let told = output("gdb", &["-batch", "-nx", "-ex", "info line weigh", &linked]);
        assert!(told.starts_with("Line 21 of ") && told.contains("linked.bpf.c"), "{told}");
    } else {
        println!("SKIPPED IN PART: gdb is not installed");
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn what_cannot_be_compiled_is_said_with_a_reason() {
    let directory = programs().join(format!("refused-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    let path = |path: PathBuf| path.to_str().expect("a plain name").to_owned();
    let object = path(programs().join("linked.bpf.o"));
    let aot = path(directory.join("out.aot"));
    let run = |arguments: &[&str]| {
        let output = Command::new(ring3_tests::ring3()).args(arguments).output().expect("ring3 runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, errors) = run(&["aot", &object, "-o", &aot, "--program", "none"]);
    assert!(code == Some(1) && errors.contains("has no program none"), "{errors}");
    let (code, out, _) = run(&["aot", &object, "-o", &aot, "--program", "linked"]);
    assert!(code == Some(0) && out.contains("1 programs"), "{out}");
    let features = path(programs().join("features.bpf.o"));
    let (code, out, errors) = run(&["aot", &features, "-o", &aot]);
    assert!(code.is_some() && format!("{out}{errors}").contains("left out  "), "{out}{errors}");
    let (code, _, errors) = run(&["aot", &object, "-o", &path(directory.join("no/such/directory"))]);
    assert!(code == Some(1) && errors.contains("no/such/directory: "), "{errors}");
    let left: Vec<_> =
        std::fs::read_dir(&directory).expect("there").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.len() <= 1, "{left:?}");
    std::fs::remove_dir_all(&directory).expect("removed");
}
