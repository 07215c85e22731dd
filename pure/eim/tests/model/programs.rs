//! Programs that cannot keep a class: without types, without symbols, with functions that the compiler has changed.

use ring3_eim::model::Specification;
use ring3_eim::{Binary, describe, difference, load, resolve_all};

use crate::build::{Scratch, binary, host, run, specification, with};
use crate::first_lines;

fn check(flags: &[&str], specification: &Specification, class: &str) -> Vec<String> {
    let class = specification.class(class).expect("the class");
    first_lines(&binary(flags, specification).check(specification, class))
}

#[test]
fn a_program_that_keeps_a_class_is_accepted() {
    let specification = specification();
    for flags in
        [&["gcc", "-g", "-O2"][..], &["clang", "-g", "-O2"], &["gcc", "-g", "-O0"], &["gcc", "-gdwarf-4", "-O3"]]
    {
        for class in ["firewall", "logger", "watcher"] {
            assert_eq!(check(flags, &specification, class), Vec::<String>::new(), "{flags:?}");
        }
    }
}

#[test]
fn a_program_without_types_is_refused() {
    let read = |flags: &[&str]| {
        let bytes = host(flags);
        Binary::read(("host", &bytes), None, &specification()).expect_err("no types").to_string()
    };
    let rest = "; compile it with -g, install its debug symbols (Debian: its -dbgsym package), or name a file with types in \
                the specification: `application \"NAME\" { types \"FILE\" }`";
    assert_eq!(read(&["gcc"]), format!("host: has no types (neither section .BTF nor .debug_info){rest}"));
    assert_eq!(
        read(&["gcc", "-s"]),
        format!("host: has no types (neither section .BTF nor .debug_info) and is stripped{rest}")
    );
    assert!(read(&["gcc", "-g", "-gsplit-dwarf"]).contains("-gsplit-dwarf"));
    assert!(read(&["gcc", "-g", "-fdebug-types-section"]).contains("-fdebug-types-section"));
}

#[test]
fn types_may_be_in_another_file() {
    let scratch = Scratch::new();
    let (program, debug, bare) = (scratch.path("host"), scratch.path("host.debug"), scratch.path("bare"));
    std::fs::write(&program, host(&["gcc", "-g", "-O2", "-Wl,--build-id=sha1"])).expect("a file");
    let text = |path: &std::path::PathBuf| path.to_str().expect("text").to_owned();
    run(&["objcopy", "--only-keep-debug", "--compress-debug-sections", &text(&program), &text(&debug)]);
    run(&["strip", "-s", "-o", &text(&bare), &text(&program)]);
    let (bare, debug) = (std::fs::read(bare).expect("a file"), std::fs::read(debug).expect("a file"));
    assert_eq!(ring3_eim::build_id(&bare), ring3_eim::build_id(&debug));
    assert_eq!(ring3_eim::build_id(&bare).map(|id| id.len()), Some(40));
    let specification = specification();
    let binary = Binary::read(("host", &bare), Some(("host.debug", &debug)), &specification);
    let binary = binary.unwrap_or_else(|error| panic!("{error}"));
    let class = specification.class("firewall").expect("the class");
    assert!(resolve_all(&specification, class, &binary.types).is_ok());
    assert_eq!(binary.check(&specification, class), []);
    // A file with the same types says nothing of the program's code.
    let other = host(&["gcc", "-O2", "-Drequest_refuse=other"]);
    let types = host(&["gcc", "-g", "-O2", "-c"]);
    let beside = Binary::read(("host", &other), Some(("types.o", &types)), &specification);
    let beside = beside.unwrap_or_else(|error| panic!("{error}"));
    assert!(resolve_all(&specification, class, &beside.types).is_ok());
    assert_eq!(
        first_lines(&beside.check(&specification, class)),
        [
            "host.eim:20:21: host has no function `request_refuse`; correct the name; a function that is always inlined, or never \
          called, has none"
        ]
    );
    // With types alone the stripped program's functions are not found.
    let types = host(&["gcc", "-g", "-c"]);
    let with_types = Binary::read(("host", &types), None, &specification).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(with_types.check(&specification, class), []);
    let alone =
        host(&["clang", "-target", "bpf", "-g", "-c", "-D__thread=", "-Ddouble=long", "-Drequest_refuse=other"]);
    let other = Binary::read(("other.o", &alone), None, &specification).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        first_lines(&other.check(&specification, class)),
        [
            "host.eim:20:21: other.o has no function `request_refuse`; correct the name; a function that is always inlined, or \
          never called, has none"
        ]
    );
}

#[test]
fn functions_that_the_compiler_has_changed_are_refused() {
    let entry = |function: &str| with(&format!("entry e {{ function {function} }}\nclass x {{ entry e }}"));
    let place = "more.eim:1:20: ";
    let inlined = check(&["gcc", "-g", "-O2"], &entry("request_quick"), "x");
    assert_eq!(
        inlined,
        [format!(
            "{place}`request_quick` is inlined wherever it is called, so no extension can run at it; compile it with \
             `__attribute__((noinline))`, or choose the function that calls it"
        )]
    );
    for compiler in ["gcc", "clang"] {
        let often = check(&[compiler, "-g", "-O2"], &entry("request_often"), "x");
        assert_eq!(
            often,
            [format!(
                "{place}1 calls of `request_often` are inlined, and would not pass the extension; compile it with \
                 `__attribute__((noinline))`, or choose another function"
            )]
        );
        assert_eq!(check(&[compiler, "-g", "-O0"], &entry("request_often"), "x"), Vec::<String>::new());
        assert_eq!(check(&[compiler, "-g", "-O0"], &entry("request_narrow"), "x"), Vec::<String>::new());
    }
    let copied = check(&["gcc", "-g", "-O2"], &entry("request_narrow"), "x");
    assert!(
        copied[0].starts_with(&format!(
            "{place}the compiler has made another function of `request_narrow`: `request_narrow."
        )),
        "{copied:?}"
    );
    let moved = check(&["clang", "-g", "-O2"], &entry("request_narrow"), "x");
    assert_eq!(
        moved,
        [format!(
            "{place}parameter `unused` of `request_narrow` was optimised out or moved by the compiler, so its value is not \
             where the calling convention says; compile the function with `__attribute__((noipa))` (clang: without \
             `static`), or choose another one"
        )]
    );
}

#[test]
fn parameters_in_other_registers_are_refused() {
    let all = with("entry e { function request_foreign }\nclass x { entry e }");
    for compiler in ["gcc", "clang"] {
        let found = check(&[compiler, "-g", "-O2"], &all, "x");
        assert!(
            found[0].starts_with("more.eim:1:20: parameter `r` of `request_foreign` was optimised out or moved"),
            "{found:?}"
        );
    }
}

#[test]
fn functions_that_are_called_have_their_parameters_in_place() {
    let call = with("function f { symbol request_narrow }\nclass x { entry request; allow f }");
    assert_eq!(check(&["gcc", "-g", "-O0"], &call, "x"), Vec::<String>::new());
    let moved = check(&["clang", "-g", "-O2"], &call, "x");
    assert!(
        moved[0].starts_with("more.eim:1:21: parameter `unused` of `request_narrow` was optimised out"),
        "{moved:?}"
    );
    let copied = check(&["gcc", "-g", "-O2"], &call, "x");
    assert!(copied[0].starts_with("more.eim:1:21: the compiler has made another function"), "{copied:?}");
}

#[test]
fn names_that_mean_several_things_are_refused() {
    let scratch = Scratch::new();
    let text = |path: &std::path::PathBuf| path.to_str().expect("text").to_owned();
    let (one, other, program) = (scratch.path("one.c"), scratch.path("other.c"), scratch.path("program"));
    // The structures have the same name, size and line.
    let rest = "static volatile long value;
        __attribute__((noinline, noipa)) static long act(struct work *w) { return w->a + value; }";
    let first = format!("struct work {{ long a, b; }};\n{rest}\nlong use(struct work *w) {{ return act(w); }}");
    let second = format!(
        "struct work {{ long b, a; }};\n{rest}\nlong use(void *);\n
         int main(void) {{ struct work w = {{ 0 }}; return act(&w) + use(&w); }}"
    );
    std::fs::write(&one, first).expect("the directory takes files");
    std::fs::write(&other, second).expect("the directory takes files");
    run(&["gcc", "-g", "-O1", &text(&one), &text(&other), "-o", &text(&program)]);
    let bytes = std::fs::read(program).expect("the program");
    let policy =
        "state a { read work.a }\nstate b { read global value }\nfunction f { symbol act }\nentry e { function act }
entry u { function use }\nclass x { entry u; allow a }\nclass y { entry u; allow b, f }\nclass z { entry e }";
    let policy = ring3_eim::parse("x.eim", policy).unwrap_or_else(|errors| panic!("{}", errors[0]));
    let binary = Binary::read(("program", &bytes), None, &policy).unwrap_or_else(|error| panic!("{error}"));
    let errors = resolve_all(&policy, policy.class("x").expect("the class"), &binary.types).expect_err("two types");
    assert_eq!(
        first_lines(&errors),
        ["x.eim:1:16: the program has 2 different types `work`; take the types from a file that has one of them"]
    );
    let several = |class: &str| first_lines(&binary.check(&policy, policy.class(class).expect("the class")));
    let message = |what: &str| {
        format!(
            "program has 2 {what}, and none is known outside of its source file; give the one that is meant another name, or \
             make it global"
        )
    };
    let (of_functions, of_variables) = (message("functions `act`"), message("variables `value`"));
    assert_eq!(several("y"), [format!("x.eim:2:23: {of_variables}"), format!("x.eim:3:21: {of_functions}")]);
    assert_eq!(several("z"), [format!("x.eim:4:20: {of_functions}")]);
}

#[test]
fn symbols_that_cannot_be_used_are_refused() {
    let variable =
        |name: &str| with(&format!("state s {{ read global {name} }}\nclass x {{ entry request; allow s }}"));
    assert_eq!(
        check(&["gcc", "-g", "-O2"], &variable("depth"), "x"),
        [
            "more.eim:1:23: each thread has its own `depth`, so it has no address that programs could know; grant a function \
          that returns it"
        ]
    );
    assert_eq!(
        check(&["gcc", "-g", "-O2"], &variable("hidden"), "x"),
        [
            "more.eim:1:23: host has no variable `hidden`; correct the name; a variable that is never used, or constant, has none"
        ]
    );
    let library = with("entry e { prototype \"int puts(const char *s)\" }\nclass x { entry e }");
    let bytes = host(&["gcc", "-g", "-O2", "-Drequest_log=puts", "-fno-builtin", "-c"]);
    let _ = Binary::read(("host", &bytes), None, &library).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        check(&["gcc", "-g", "-O2"], &library, "x"),
        [
            "more.eim:1:26: host has no function `puts`; correct the name; a function that is always inlined, or never called, \
          has none"
        ]
    );
}

#[test]
fn damaged_programs_are_refused_without_a_panic() {
    let specification = specification();
    let bytes = host(&["gcc", "-g", "-O1"]);
    let mut state = 26u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut refused = 0;
    for _ in 0..1_000 {
        let mut damaged = bytes.clone();
        // (Most of the file is what follows the code.)
        for _ in 0..1 + random(8) {
            let at = 0x3000 + random(bytes.len() - 0x3000);
            damaged[at] = random(256) as u8;
        }
        match Binary::read(("host", &damaged), None, &specification) {
            Ok(binary) => {
                for class in &specification.classes {
                    let _ = resolve_all(&specification, class, &binary.types);
                    let _ = ring3_eim::header(&specification, class, &binary.types);
                    let _ = binary.check(&specification, class);
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_class_is_described_in_words() {
    let specification = specification();
    let binary = binary(&["gcc", "-g", "-O2"], &specification);
    let of = |name: &str| {
        let class = specification.class(name).expect("the class");
        resolve_all(&specification, class, &binary.types).unwrap_or_else(|errors| panic!("{}", errors[0]))
    };
    assert_eq!(describe("firewall", &of("firewall")), FIREWALL);
    assert_eq!(difference(&of("firewall"), &of("logger")), DIFFERENCE);
    assert_eq!(difference(&of("firewall"), &of("firewall")), "");
}

const FIREWALL: &str = "\
class firewall
  runs before request_begin (entry request)
  may read
    r: request_t *, never null, 8 bytes at offset 0 of the arguments of entry request
    r->headers_in.host: header_t *, may be null, 8 bytes at offset 16 of struct request_s
    r->headers_in.host->value.data: unsigned char *, as many elements as its length says, 8 bytes at offset 24 of struct header_s
    r->headers_in.host->value.length: size_t, 8 bytes at offset 16 of struct header_s
    request_t.uri.data: unsigned char *, as many elements as its length says, 8 bytes at offset 48 of struct request_s
    request_t.uri.length: size_t, 8 bytes at offset 40 of struct request_s
  may write nothing
  may call
    request_refuse(request_t *r: not null; long int status: 400..599) gives nothing
  its result
    0: the function runs
    1: the function does not run, and returns 0
    400..599: the function does not run, and returns this value
    any other: the verifier refuses the program
  at most
    instructions of one run: 100000
    time of one run: 50 us
    memory of maps: 1 MiB
    maps: 4
    helpers: map, time, string
";

const DIFFERENCE: &str = "  + read r->headers_in.host->value.data: unsigned char *, as many elements as its length says, 8 bytes at offset 24 of struct header_s
  + read r->headers_in.host->value.length: size_t, 8 bytes at offset 16 of struct header_s
  + read r->headers_in.host: header_t *, may be null, 8 bytes at offset 16 of struct request_s
  + read r: request_t *, never null, 8 bytes at offset 0 of the arguments of entry request
  + call request_refuse(request_t *r: not null; long int status: 400..599) gives nothing
  - helpers dynptr
  - helpers loop
  - helpers print
  - helpers random
  - helpers ringbuf
  ~ instructions of one run: 100000 (was 1000000)
  ~ time of one run: 50 us (was 1 ms)
  ~ memory of maps: 1 MiB (was 16 MiB)
  ~ maps: 4 (was 16)
";

#[test]
fn files_are_used_relative_to_one_another() {
    let files = [
        ("a/policy.eim", "use \"sub/host.eim\"\nclass c { entry e; allow s }"),
        ("a/sub/host.eim", "use \"../more.eim\"\nuse \"/abs.eim\"\nentry e { function f }"),
        ("a/sub/../more.eim", "state s { read t.x }\nuse \"policy.eim\""),
        ("/abs.eim", "function g { }"),
    ];
    let mut read = |path: &str| match files.iter().find(|(name, _)| *name == path) {
        Some((_, text)) => Ok((*text).to_owned()),
        None if path == "a/sub/../policy.eim" => Ok(String::new()),
        None => Err(format!("cannot read {path}: no such file; correct the name")),
    };
    let found = load("a/policy.eim", files[0].1, &mut read).unwrap_or_else(|errors| panic!("{}", errors[0]));
    assert_eq!((found.states.len(), found.functions.len(), found.entries.len(), found.classes.len()), (1, 1, 1, 1));
    let errors = load("p.eim", "use \"q.eim\"", &mut read).expect_err("no such file");
    assert_eq!(first_lines(&errors), ["p.eim:1:5: cannot read q.eim: no such file; correct the name"]);
    let errors = load("p.eim", "use \"a/sub/host.eim\"\nentry e { function g }", &mut read).expect_err("two entries");
    assert_eq!(
        first_lines(&errors),
        ["a/sub/host.eim:3:7: `e` is declared already at p.eim:2; give one of them another name"]
    );
}

#[test]
fn the_example_in_the_documentation_works() {
    let text = std::fs::read_to_string(crate::build::file("../../docs/EXTENSIONS.md")).expect("the documentation");
    let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
    let of = |begin: &str| *blocks.iter().find(|block| block.starts_with(begin)).expect("an example");
    let (specification, policy) = (of("\napplication"), of("\nuse"));
    let mut read = |path: &str| if path == "host.eim" { Ok(specification.to_owned()) } else { Err(path.to_owned()) };
    let all = load("server.policy", policy, &mut read).unwrap_or_else(|errors| panic!("{}", errors[0]));
    let binary = binary(&["gcc", "-g", "-O2"], &all);
    for class in &all.classes {
        let resolved = resolve_all(&all, class, &binary.types).unwrap_or_else(|errors| panic!("{}", errors[0]));
        assert_eq!(resolved.grant.functions.len(), 1);
        assert_eq!(binary.check(&all, class), []);
    }
    // The C example is the macros of the tests' program.
    let program = std::fs::read_to_string(crate::build::file("tests/host.c")).expect("the tests' program");
    let macros =
        of("c\n#include").lines().filter(|line| line.starts_with("State_") || line.starts_with("Extension_E"));
    let macros: Vec<&str> = macros.collect();
    assert!(macros.len() == 2 && macros.iter().all(|line| program.contains(line)), "{macros:?}");
}
