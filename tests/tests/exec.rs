//! `ring3 exec`, `asm` and `disasm`, as a user has them.

use std::io::Write;
use std::process::{Command, Stdio};

use ring3_tests::{has_llvm, programs, ring3};

/// Exit code, standard output and standard error of `ring3` with some input.
fn run(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(ring3());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The first line of what is printed.
fn said(arguments: &[&str], input: &str) -> String {
    let (code, out, errors) = run(arguments, input);
    assert_eq!(code, Some(0), "{arguments:?}: {errors}");
    out.lines().next().unwrap_or_default().to_owned()
}

/// Refused, with words that say why.
fn refused(arguments: &[&str], input: &str, words: &[&str]) {
    let (code, out, errors) = run(arguments, input);
    assert_eq!(code, Some(1), "{arguments:?}: {out}{errors}");
    assert!(words.iter().all(|word| errors.contains(word)), "{arguments:?} said:\n{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn text_and_digits_and_bytes_run_on_all_engines() {
    let text = "r0 = *(u16 *)(r1 +1)\nr0 += r2\nexit\n";
    let (_, digits, _) = run(&["asm", "-"], text);
    for engine in ["interp", "jit"].into_iter().chain(has_llvm().then_some("llvm")) {
        for program in [text, &digits] {
            let arguments = ["exec", "-", "--memory", "ff 34 12 00", "--engine", engine];
            assert_eq!(said(&arguments, program), "r0 0x1238 (4664)", "{engine}");
        }
        let mnemonics = ["exec", "-", "--syntax", "ubpf", "--engine", engine];
        assert_eq!(said(&mnemonics, "mov %r0, -1\nexit"), "r0 0xffffffffffffffff (-1)");
        assert_eq!(said(&["exec", "--plugin", "--engine", engine, "ff341200"], &digits), "1238");
    }
    let (_, out, _) = run(
        &["exec", "-", "--memory", "00", "--repeat", "3", "-v"],
        "r2 = *(u8 *)(r1 +0)\nr2 += 1\n*(u8 *)(r1 +0) = r2\nr0 = r2\nexit",
    );
    assert!(out.starts_with("r0 0x3 (3)\n") && out.contains("(3 runs)") && out.ends_with("0000  03\n"), "{out}");
}

#[test]
fn objects_run_with_their_maps_and_variables() {
    let object = programs().join("alone.bpf.o");
    let object = object.to_str().expect("a plain name");
    let count = ["exec", object, "--program", "count", "--memory", "01020102"];
    assert_eq!(said(&count, ""), "r0 0x6 (6)");
    let twice = [&count[..], &["--repeat", "2"]].concat();
    assert_eq!(said(&twice, ""), "r0 0xc (12)", "maps live as long as the command");
    refused(&["exec", object], "", &["count", "other", "--program"]);
    refused(&["exec", object, "--program", "none"], "", &["no program none", "count", "other"]);
    let short = ["exec", object, "--program", "count", "--memory", "01"];
    refused(&short, "", &["invalid access to memory"]);
}

#[test]
fn bad_programs_and_bad_memory_are_told() {
    refused(&["exec", "-"], "r0 = 1\n", &["last insn is not an exit"]);
    refused(&["exec", "-"], "exit", &["R0 !read_ok"]);
    refused(&["exec", "-"], "r0 = r1 + 1\nexit", &["line 1", "`+ 1` is too much"]);
    refused(&["exec", "-"], "b7 00", &["hexadecimal"]);
    refused(&["exec", "-", "--memory", "123"], "r0 = 0\nexit", &["pairs of hexadecimal digits"]);
    refused(&["exec", "/nowhere"], "", &["/nowhere", "No such file"]);
    refused(&["exec", "-", "--program", "p"], "r0 = 0\nexit", &["--program is for object files"]);
    refused(
        &["exec", "-", "--engine", "interp"],
        "call bpf_get_current_uid_gid\nexit",
        &["interpreter has no bpf_get_current_uid_gid"],
    );
    if !has_llvm() {
        refused(&["exec", "-", "--engine", "llvm"], "r0 = 0\nexit", &["without LLVM", "llvm-19-dev"]);
        refused(&["load", "--engine", "llvm", "true"], "", &["without LLVM", "llvm-19-dev"]);
    }
    refused(&["asm", "-"], "r0 = 0\nr99 = 1", &["line 2"]);
    refused(&["disasm", "-"], "zz", &["line 1"]);
}

#[test]
fn disassembled_programs_are_the_same_again() {
    let object = programs().join("flow.bpf.o");
    let object = object.to_str().expect("a plain name");
    let programs: Vec<String> = {
        let (_, all, _) = run(&["disasm", object], "");
        let is_title = |line: &&str| !line.trim_start().starts_with(|letter: char| letter.is_ascii_digit());
        let titles = all.lines().filter(is_title);
        titles.filter_map(|line| Some(line.rsplit_once(": ")?.1.to_owned())).collect()
    };
    assert!(programs.len() > 3, "{programs:?}");
    for program in programs {
        let (_, plain, _) = run(&["disasm", object, "--program", &program, "--plain"], "");
        let (_, digits, errors) = run(&["asm", "-"], &plain);
        let (_, again, _) = run(&["disasm", "-", "--plain"], &digits);
        let body = plain.split_once('\n').expect("a title").1;
        assert_eq!(again, body, "{errors}");
    }
}
