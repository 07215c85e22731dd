//! Macros of the C header: what they leave, and that they change nothing else.

use object::{Object, ObjectSection};
use ring3_eim::{Binary, extract, parse, resolve};

use crate::build::{Scratch, file, host, run};

fn with_notes(flags: &[&str]) -> Vec<u8> {
    let include = format!("-I{}", file("../../include"));
    let mut all = flags.to_vec();
    all.extend(["-DWITH_NOTES", &include]);
    host(&all)
}

const EXPECTED: &str = "\
application \"host\"
state uri {
    read request_t.uri
    length text_t.data = text_t.length
}
state load {
    read global load
    write global load
}
state tagged {
    read request_t.value.tag, request_t.value.number
    member request_t.value.number when request_t.value.tag = 1
    member request_t.value.connection when request_t.value.tag in 2..3
}
function refuse {
    prototype \"void request_refuse(request_t *r, long status)\"
    require status in 400..599
    nonnull r
}
entry request {
    function request_begin
    at entry
    nonnull r
    return 0 = continue
    return 400..599 = skip
}
";

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_specification_is_extracted_as_it_was_written() {
    for flags in
        [&["gcc", "-O2"][..], &["clang", "-O2"], &["gcc", "-O2", "-flto"], &["gcc", "-O2", "-s"], &["gcc", "-c"]]
    {
        let text = extract("host", &with_notes(flags)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(without_comments(&text), EXPECTED, "{flags:?}");
        let comments = text.lines().filter(|line| line.starts_with("# ") && line.contains("tests/host.c:"));
        assert_eq!(comments.count(), 6);
    }
}

#[test]
fn an_extracted_specification_is_used_with_the_program_itself() {
    let bytes = with_notes(&["gcc", "-g", "-O2"]);
    let text = extract("host", &bytes).unwrap_or_else(|error| panic!("{error}"));
    let mut specification = parse("host", &text).unwrap_or_else(|errors| panic!("{}", errors[0]));
    specification
        .add(parse("policy", "class c { entry request; allow uri, load, tagged, refuse }").expect("a class"));
    let binary = Binary::read(("host", &bytes), None, &specification).unwrap_or_else(|error| panic!("{error}"));
    let class = specification.class("c").expect("the class");
    let (grant, _, _) =
        resolve(&specification, class, &binary.types).unwrap_or_else(|errors| panic!("{}", errors[0]));
    assert_eq!((grant.functions.len(), grant.globals.len()), (1, 1));
    assert_eq!(binary.check(&specification, class), []);
}

/// Sections that are in memory: name, address, bytes.
fn loaded(bytes: &[u8]) -> Vec<(String, u64, Vec<u8>)> {
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(bytes).expect("an ELF file");
    let sections = file.sections().filter(|section| section.address() > 0);
    sections
        .map(|section| {
            (
                section.name().unwrap_or_default().to_owned(),
                section.address(),
                section.data().unwrap_or_default().to_vec(),
            )
        })
        .collect()
}

#[test]
fn macros_change_nothing_that_is_loaded() {
    for flags in [&["gcc", "-O2"][..], &["gcc", "-O0"], &["clang", "-O2"], &["gcc", "-O2", "-static"]] {
        let mut all = flags.to_vec();
        all.push("-Wl,--build-id=none");
        let (without, with) = (loaded(&host(&all)), loaded(&with_notes(&all)));
        assert!(without.iter().any(|(name, _, bytes)| name == ".text" && bytes.len() > 100));
        assert_eq!(without, with, "{flags:?}");
    }
}

#[test]
fn the_header_is_accepted_by_strict_compilers() {
    let scratch = Scratch::new();
    let output = scratch.path("out");
    let include = format!("-I{}", file("../../include"));
    let source = scratch.path("notes.c");
    let text = "#include <ring3/eim.h>\nExtension_Application(strict);\nFunction_Capability(f, int f(void), );\nint f(void);\n";
    // (A header's macros are in each file that includes it.)
    let text = format!("{text}Function_Capability(f, int f(void), );\n");
    std::fs::write(&source, text).expect("the directory takes files");
    for command in [
        &["gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"][..],
        &["clang", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"],
        &["g++", "-x", "c++", "-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror"],
        &["clang", "-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror"],
    ] {
        let mut all = command.to_vec();
        all.extend([&include, "-c", source.to_str().expect("text"), "-o", output.to_str().expect("text")]);
        run(&all);
        let text = extract("notes.o", &std::fs::read(&output).expect("an object file"));
        let text = without_comments(&text.unwrap_or_else(|error| panic!("{error}")));
        assert_eq!(text, "application \"strict\"\nfunction f {\n    prototype \"int f(void)\"\n}\n");
        parse("notes.o", &text).unwrap_or_else(|errors| panic!("{}", errors[0]));
    }
}

#[test]
fn what_has_no_notes_is_refused() {
    let error = extract("host", &host(&["gcc"])).expect_err("no notes");
    assert_eq!(
        error.to_string(),
        "host: no section .note.ring3.eim, so it does not say what extensions may touch; compile it with the macros of \
         ring3/eim.h, or write a specification file"
    );
    let error = extract("host.c", b"int x;").expect_err("no ELF file");
    assert_eq!(error.to_string(), "host.c: no 64-bit ELF file; name a program, a library or an object file");
}

#[test]
fn damaged_notes_are_refused_without_a_panic() {
    let bytes = with_notes(&["gcc", "-c"]);
    let at = bytes.windows(6).position(|window| window == b"ring3\0").expect("a note");
    let mut refused = 0;
    for place in at - 12..at + 400 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = bytes.clone();
            damaged[place] = value;
            refused += usize::from(extract("host", &damaged).is_err());
        }
    }
    assert!(refused > 20, "{refused}");
}
