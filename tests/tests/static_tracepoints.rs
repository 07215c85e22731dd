//! Static tracepoints of `include/ring3/trace.h` and of the crate `ring3-tracepoint`: what the notes say, what the code costs, and what tools print, under ring3 and on the
//! kernel.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ring3_elf::{At, File, Kind, Tracepoint};
use ring3_tests::{Bench, Process, lacks, on_both, ready, root, victim, wait_until};

fn include() -> String {
    format!("-I{}", root().join("include").display())
}

/// The victim, compiled so. (Flags come behind the harness's.)
fn traced(name: &str, compiler: &str, flags: &[&str]) -> PathBuf {
    let include = include();
    let flags: Vec<&str> = [include.as_str(), "-Wall", "-Wextra", "-Werror"].iter().chain(flags).copied().collect();
    // (The harness knows by the source's time when to compile anew.)
    let mut hasher = std::hash::DefaultHasher::new();
    for header in ["note.h", "trace.h"] {
        std::fs::read(root().join("include/ring3").join(header)).expect("readable").hash(&mut hasher);
    }
    victim(&format!("traced-{name}-{:016x}", hasher.finish()), compiler, "traced.c", &flags)
}

/// The crate and a program, compiled so: once for all tests of a process.
fn in_rust(name: &str, source: &str, level: &str) -> PathBuf {
    let directory = root().join("target/victims");
    std::fs::create_dir_all(&directory).expect("target is writable");
    let unique = format!("{name}-{level}-{}", std::process::id());
    let (library, path) = (directory.join(format!("lib{unique}.rlib")), directory.join(&unique));
    let rustc = |arguments: &[&str], crate_name: &str, source: PathBuf, out: &Path| {
        let mut command = Command::new("rustc");
        command.args([
            "--edition",
            "2024",
            "-D",
            "warnings",
            "-C",
            &format!("opt-level={level}"),
            "--crate-name",
            crate_name,
        ]);
        let output = command.args(arguments).arg(source).arg("-o").arg(out).output().expect("rustc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    rustc(&["--crate-type", "rlib"], "ring3_tracepoint", root().join("outside/tracepoint/src/lib.rs"), &library);
    let external = format!("ring3_tracepoint={}", library.display());
    rustc(&["--extern", &external], name, root().join("tests/victims").join(source), &path);
    std::fs::remove_file(library).expect("it was made");
    path
}

fn tracepoints(path: &Path) -> Vec<Tracepoint> {
    let bytes = std::fs::read(path).expect("readable");
    let mut found = File::parse(&bytes).expect("an ELF file").tracepoints();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// An event, with each argument as `NAME: KIND BYTES`.
fn described(tracepoint: &Tracepoint) -> String {
    let arguments = tracepoint.arguments.iter().map(|argument| {
        assert!(!matches!(argument.place.at, At::Unreadable { .. }), "{tracepoint:?}");
        let name = argument.name.as_deref().unwrap_or("?");
        let type_name = argument.type_name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let length = argument.length.as_ref().map_or(String::new(), |_| ", counted".to_owned());
        format!("{name}: {}{type_name}{length}", argument.kind.c_type(argument.place.bytes))
    });
    format!("{}:{}({})", tracepoint.provider, tracepoint.name, arguments.collect::<Vec<_>>().join("; "))
}

const IN_C: [&str; 10] = [
    "shop:guarded(length: unsigned long)",
    "shop:integers(o->id: int; o->shelf: short; o->row: unsigned short; o->mood: signed char; o->boxes: unsigned char; \
     o->paid: _Bool)",
    "shop:longs(cents: unsigned long; round: int; round % 3 | 8: int; -7: int; 18446744073709551615ul: unsigned long; o->next: void *)",
    "shop:nothing()",
    "shop:numbers(o->weight: float; o->price: double; f: float; d: double; 0.5: double)",
    "shop:pointers(order: void * (const struct order *); o->next: void *; hidden: void *; state: int; as_int: int (int); \
     &handled: void *)",
    "shop:shipped(number: long; last: int)",
    "shop:shipped(number: long; last: int)",
    "shop:texts(label: char *; customer: char *; \"a \\\"b\\\", %d {c|d}\": char *; local: char *; counted: char *, counted)",
    "shop:twelve(1: int; o->id: int; 3: int; round: int; 5: int; o->cents: unsigned long; 7: int; o->paid: _Bool; 9: int; \
     o->row: unsigned short; 11: int; handled: long)",
];

const IN_CPP: [&str; 4] = [
    "shop:box(value: char *; bytes: unsigned long)",
    "shop:box(value: int; bytes: unsigned long)",
    "shop:box(value: unsigned char; bytes: unsigned long)",
    "shop:classes(color::green: unsigned char; nullptr: void *; L'x': int)",
];

#[test]
fn notes_name_and_type_the_arguments_at_every_level_of_optimisation() {
    const FORMS: [(&str, &[&str]); 4] = [
        ("pie", &["-fPIE", "-pie"]),
        ("fixed", &["-fno-pie", "-no-pie"]),
        ("library", &["-DLIBRARY", "-fPIC", "-shared"]),
        ("collected", &["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-Wl,-s", "-D_GNU_SOURCE"]),
    ];
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-O3", "-Os"] {
            for (form, flags) in FORMS {
                // (Without symbols no reader finds a variable by name.)
                let is_stripped = form == "collected";
                let flags: Vec<&str> = [level]
                    .iter()
                    .chain(flags)
                    .chain(is_stripped.then_some(&"-DRING3_TRACE_WHERE=\"nr\""))
                    .copied()
                    .collect();
                let path = traced(&format!("{compiler}{level}-{form}"), compiler, &flags);
                let mut found: Vec<String> = tracepoints(&path).iter().map(described).collect();
                // Loops may be unrolled: then a place is in the code several times.
                found.dedup();
                let mut expected = IN_C.to_vec();
                expected.dedup();
                assert_eq!(found, expected, "{}", path.display());
            }
        }
    }
}

#[test]
fn templates_have_the_types_of_each_instance() {
    for (compiler, standard) in
        [("g++", "-std=c++11"), ("clang++", "-std=c++11"), ("g++", "-std=gnu++20"), ("clang++", "-std=gnu++20")]
    {
        for level in ["-O0", "-O2"] {
            let path = traced(
                &format!("{compiler}{level}{standard}"),
                compiler,
                &["-x", "c++", level, standard, "-D_GNU_SOURCE"],
            );
            let mut found: Vec<String> = tracepoints(&path).iter().map(described).collect();
            found.sort();
            found.dedup();
            let mut expected = [&IN_C[..], &IN_CPP[..]].concat();
            expected.sort_unstable();
            expected.dedup();
            // (There a literal is of a const type, and an enumerator below 0 is there in both.)
            assert_eq!(found, expected, "{}", path.display());
        }
    }
}

const IN_RUST: [&str; 9] = [
    "shop:guarded(length: unsigned long)",
    "shop:integers(id: int; shelf: short; row: unsigned short; mood: signed char; boxes: unsigned char; paid: _Bool)",
    "shop:longs(cents: unsigned long; round: unsigned long; rest: unsigned long; seven: long; all: unsigned long; letter: unsigned int)",
    "shop:nothing()",
    "shop:numbers(weight: float; price: double; d: double; order: void *; address: void *)",
    "shop:shipped(number: long; last: _Bool)",
    "shop:shipped(number: long; last: _Bool)",
    "shop:texts(customer: char *, counted; bytes: char *, counted; local: char *, counted)",
    "shop:twelve(a: int; b: int; c: int; round: unsigned long; e: int; f: unsigned long; g: int; h: _Bool; i: int; \
     j: unsigned short; k: int; l: unsigned char)",
];

#[test]
fn rust_names_and_types_its_arguments() {
    for level in ["0", "1", "2", "3", "s"] {
        let path = in_rust("typed", "traced.rs", level);
        let mut found: Vec<String> = tracepoints(&path).iter().map(described).collect();
        found.dedup();
        let mut expected = IN_RUST.to_vec();
        expected.dedup();
        assert_eq!(found, expected, "opt-level {level}");
        std::fs::remove_file(path).expect("it was made");
    }
}

#[test]
fn rust_says_what_a_wrong_use_should_be() {
    const WRONG: [(&str, &str); 6] = [
        ("ring3_trace!(shop);", "wants a provider and a name"),
        ("ring3_trace!(shop, order, x + 1);", "a field is `name = value`"),
        ("ring3_trace!(shop, order, x = \"text\");", "write `name: &str = ...` for text"),
        ("ring3_trace!(shop, order, x = String::new());", "cannot be of type `String`"),
        ("ring3_trace!(shop, order, x = 1u128);", "cannot be of type `u128`"),
        (
            "ring3_trace!(shop, order, a = 1, b = 1, c = 1, d = 1, e = 1, f = 1, g = 1, h = 1, i = 1, j = 1, k = 1, l: &str = \"\");",
            "at most 12 arguments",
        ),
    ];
    let directory = root().join("target/victims");
    std::fs::create_dir_all(&directory).expect("target is writable");
    let at = |name: &str| directory.join(format!("{name}-{}", std::process::id()));
    let (library, source) = (at("libwrong").with_extension("rlib"), at("wrong").with_extension("rs"));
    let rustc = |arguments: &[&str], source: &Path| {
        let mut command = Command::new("rustc");
        command.args(["--edition", "2024"]).args(arguments).arg(source);
        command.output().expect("rustc runs")
    };
    let shown = library.display().to_string();
    let crate_source = root().join("outside/tracepoint/src/lib.rs");
    assert!(
        rustc(&["--crate-name", "ring3_tracepoint", "--crate-type", "rlib", "-o", &shown], &crate_source)
            .status
            .success()
    );
    for (body, advice) in WRONG {
        let text = format!("use ring3_tracepoint::ring3_trace; pub fn f(x: i32) {{ let _ = x; {body} }}");
        std::fs::write(&source, text).expect("written");
        let external = format!("ring3_tracepoint={shown}");
        let output =
            rustc(&["--crate-type", "lib", "--emit", "metadata", "-o", "/dev/null", "--extern", &external], &source);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(advice), "{body}\n{errors}");
    }
    for file in [library, source] {
        std::fs::remove_file(file).expect("it was made");
    }
}

#[test]
fn places_are_where_the_compiler_has_the_arguments() {
    let found = tracepoints(&traced("gcc-O2-pie", "gcc", &["-O2", "-fPIE", "-pie"]));
    let place = |event: &str, at: usize| {
        let tracepoint = found.iter().find(|tracepoint| tracepoint.name == event).expect("an event");
        tracepoint.arguments[at].place.at.clone()
    };
    use ring3_elf::Register::{Rdi, Rsi};
    assert_eq!(place("integers", 0), At::Memory { base: Some(Rdi), index: None, displacement: 0 });
    assert_eq!(place("integers", 1), At::Memory { base: Some(Rdi), index: None, displacement: 16 });
    assert_eq!(place("longs", 1), At::Register { register: Rsi, shift: 0 });
    assert_eq!(place("longs", 3), At::Constant(-7));
    assert_eq!(place("longs", 4), At::Constant(-1));
    assert!(matches!(place("twelve", 11), At::Data { address } if address > 0x1000));
    assert_eq!(place("numbers", 4), At::Constant(0.5f64.to_bits() as i64));
    // Two places in one function, and one semaphore.
    let shipped: Vec<&Tracepoint> = found.iter().filter(|tracepoint| tracepoint.name == "shipped").collect();
    assert_eq!(shipped.len(), 2);
    assert_eq!(shipped[0].semaphore, shipped[1].semaphore);
    assert!(shipped[0].semaphore != 0 && shipped[0].address != shipped[1].address);
    assert!(found.iter().all(|tracepoint| {
        tracepoint.arguments.iter().all(|argument| argument.kind != Kind::Text || argument.place.bytes == 8)
    }));
}

#[test]
fn readelf_reads_the_notes() {
    let path = traced("gcc-O2-pie", "gcc", &["-O2", "-fPIE", "-pie"]);
    let output = Command::new("readelf").args(["-n", "-W"]).arg(path).output().expect("binutils are installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("NT_STAPSDT").count(), IN_C.len(), "{text}");
    assert_eq!(text.matches("Provider: shop").count(), IN_C.len(), "{text}");
    assert!(text.contains("Name: nothing") && text.contains("Arguments: -4@(%rdi) -2@16(%rdi)"), "{text}");
    assert_eq!(text.lines().filter(|line| line.trim_start().starts_with("ring3 ")).count(), 2 * IN_C.len(), "{text}");
}

/// Names and instructions of functions of an object file, without addresses.
fn instructions(source: &str, compiler: &str, flags: &[&str]) -> Vec<(String, Vec<String>)> {
    let name = format!("bare-{}-{}.o", std::process::id(), flags.join("").replace('/', ""));
    let path = root().join("target/victims").join(format!("{compiler}{name}"));
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-c", &include()])
        .args(flags)
        .arg("-o")
        .arg(&path)
        .arg(root().join("tests/victims").join(source));
    let output = command.output().expect("the compiler runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = Command::new("objdump").args(["-d", "--no-show-raw-insn", "--no-addresses"]).arg(&path).output();
    let listing = listing.expect("binutils are installed").stdout;
    std::fs::remove_file(path).expect("it was made");
    let mut functions: Vec<(String, Vec<String>)> = vec![];
    for line in String::from_utf8_lossy(&listing).lines() {
        match (line.strip_suffix(">:").and_then(|line| line.strip_prefix('<')), functions.last_mut()) {
            (Some(name), _) => functions.push((name.to_owned(), vec![])),
            (None, Some((_, body))) if line.starts_with('\t') => body.push(line.trim().to_owned()),
            _ => {}
        }
    }
    // What lies behind the last ret is padding.
    for (_, body) in &mut functions {
        let end = body.iter().rposition(|line| line.starts_with("ret")).map_or(body.len(), |at| at + 1);
        body.truncate(end);
    }
    functions.sort();
    functions
}

#[test]
fn a_tracepoint_is_a_nop_and_nothing_else() {
    const NOP: &str = "addr32 addr32 addr32 addr32 addr32 nop";
    for (compiler, flags) in
        [("gcc", ["-fPIE", "-DGCC"]), ("gcc", ["-fPIC", "-DGCC"]), ("clang", ["-fPIE", "-DCLANG"])]
    {
        let with = instructions("bare.c", compiler, &flags);
        let without = instructions("bare.c", compiler, &[flags[0], flags[1], "-DRING3_TRACE_OFF"]);
        assert!(without.len() >= 5, "{without:?}");
        for ((name, with), (_, without)) in with.iter().zip(&without) {
            assert_eq!(with.iter().filter(|line| *line == NOP).count(), 1, "{compiler}: {name}: {with:?}");
            // (Registers may have other names, so that an argument still lives.)
            assert_eq!(with.len(), without.len() + 1, "{compiler}: {name}: {with:?} {without:?}");
        }
    }
}

#[test]
fn a_guard_is_a_comparison_and_a_branch() {
    for compiler in ["gcc", "clang"] {
        let functions = instructions("bare.c", compiler, &["-DGUARDED"]);
        let (_, body) = functions.iter().find(|(name, _)| name == "guarded").expect("the function");
        let at = body.iter().position(|line| line.starts_with("cmpw   $0x0,0x0(%rip)"));
        let next = at.and_then(|at| body.get(at + 1)).expect("a comparison");
        assert!(next.starts_with('j'), "{compiler}: {body:?}");
    }
}

fn refused(compiler: &str, language: &str, body: &str) -> String {
    use std::io::Write;
    let source = format!(
        "#include <ring3/trace.h>\nstruct order {{ int id; unsigned small : 3; }};\n\
         void f(struct order *o, long double wide, __int128 wider) {{ (void)o; (void)wide; (void)wider; {body} }}\n"
    );
    let mut command = Command::new(compiler);
    command.args(["-fsyntax-only", &include(), "-x", language, "-"]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the compiler runs");
    child.stdin.take().expect("piped").write_all(source.as_bytes()).expect("read");
    let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{compiler} takes {body}");
    errors
}

#[test]
fn wrong_uses_are_refused_with_what_to_do() {
    const WRONG: [(&str, &str); 6] = [
        ("RING3_TRACE(shop, order, *o);", "pass a member of a struct"),
        ("RING3_TRACE(shop, order, 1, 2, *o);", "pass a member of a struct"),
        ("RING3_TRACE(shop, order, wide);", "cast what is wider"),
        ("RING3_TRACE(shop, order, wider);", "cast what is wider"),
        ("RING3_TRACE(shop, order, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13);", "at most 12 arguments"),
        ("RING3_TRACE(shop);", "wants a provider and a name"),
    ];
    for (compiler, language) in [("gcc", "c"), ("clang", "c"), ("g++", "c++"), ("clang++", "c++")] {
        for (body, advice) in WRONG {
            let errors = refused(compiler, language, body);
            assert!(errors.contains(advice), "{compiler}: {body}\n{errors}");
        }
    }
}

const PROGRAM: &str = r#"
usdt:FILE:shop:integers { printf("integers %d %d %d %d %d %d\n", arg0, arg1, arg2, arg3, arg4, arg5); }
usdt:FILE:shop:longs { printf("longs %lu %d %d %d %lu %d\n", arg0, arg1, arg2, arg3, arg4, arg5 != 0); }
usdt:FILE:shop:texts { printf("texts %s|%s|%s|%s|%s|%d\n", str(arg0), str(arg1), str(arg2), str(arg3), str(arg4, arg5), arg5); }
usdt:FILE:shop:numbers { printf("numbers %x %lx %x %lx %lx\n", arg0, arg1, arg2, arg3, arg4); }
usdt:FILE:shop:pointers { printf("pointers %d %d %d\n", arg0 == arg1, arg3, arg4); }
usdt:FILE:shop:shipped { printf("shipped %d %d\n", arg0, arg1); }
usdt:FILE:shop:guarded { printf("guarded %d\n", arg0); }
usdt:FILE:shop:nothing { printf("nothing\n"); exit(); }
BEGIN { printf("begun\n"); }
"#;

/// What the program prints of these lines, the last of which makes it end.
fn printed(bench: &Bench, file: &Path, program: &str, lines: &[&str]) -> Vec<String> {
    // (What bpftrace finds in the buffer of another CPU after exit() it does not print.)
    let mut victim = ready(bench.target("taskset").args(["-c", "0"]).arg(file));
    let program = program.replace("FILE", &file.display().to_string());
    let mut command = bench.load_with_tracefs("bpftrace");
    let mut tool = Process::start(command.args(["-p", &victim.pid().to_string(), "-e", &program]));
    while tool.line() != "begun" {}
    let becomes = |victim: &mut Process, wanted: &str| {
        wait_until("the semaphore is counted", || {
            victim.say("enabled 0");
            victim.line() == wanted
        });
    };
    becomes(&mut victim, "1");
    for line in lines {
        victim.say(line);
        assert!(line.ends_with(&victim.line()));
    }
    let (_, lines, errors) = tool.finish();
    let mut lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    assert!(!lines.is_empty(), "{errors:?}");
    becomes(&mut victim, "0");
    lines.sort();
    // (Waiting for the semaphore makes such events, too.)
    lines.dedup();
    lines
}

#[test]
fn bpftrace_prints_the_same_arguments_natively_and_under_ring3() {
    if lacks("bpftrace") {
        return;
    }
    const LINES: [&str; 7] = ["integers 2", "texts 2", "numbers 2", "pointers 1", "ship 1", "guarded 1", "nothing 1"];
    // (`weight` is 1.5 and `price` 2.25; f and d of 0 and of 1 and 0.25 follow.)
    const EXPECTED: [&str; 14] = [
        "guarded 3",
        "integers 41 -3 65000 -5 200 1",
        "integers 42 -3 65000 -5 200 1",
        "longs 1099511627776 0 8 -7 18446744073709551615 1",
        "longs 1099511627776 1 9 -7 18446744073709551615 1",
        "nothing",
        "numbers 3fc00000 4002000000000000 0 0 3fe0000000000000",
        "numbers 3fc00000 4002000000000000 3f800000 3fd0000000000000 3fe0000000000000",
        "pointers 1 -1 1",
        "shipped -1 2",
        "shipped 0 0",
        "shipped 1 1",
        "texts shelf|Ada|a \"b\", %d {c|d}|a|counted|7",
        "texts shelf|Ada|a \"b\", %d {c|d}|b|counted|7",
    ];
    let no_memory = "-DRING3_TRACE_WHERE=\"nr\"";
    for (name, compiler, flags) in [
        ("seen-gcc0", "gcc", ["-O0", "-DGCC"]),
        ("seen-gcc2", "gcc", ["-O2", "-DGCC"]),
        ("seen-gccnr", "gcc", ["-O2", no_memory]),
        ("seen-clang2", "clang", ["-O2", "-DCLANG"]),
    ] {
        let file = traced(name, compiler, &flags);
        on_both(|bench| {
            let lines = printed(bench, &bench.victim(file.clone()), PROGRAM, &LINES);
            assert_eq!(lines, EXPECTED, "{name}");
        });
    }
}

const PROGRAM_FOR_RUST: &str = r#"
usdt:FILE:shop:integers { printf("integers %d %d %d %d %d %d\n", arg0, arg1, arg2, arg3, arg4, arg5); }
usdt:FILE:shop:longs { printf("longs %lu %d %d %d %lu %c\n", arg0, arg1, arg2, arg3, arg4, arg5); }
usdt:FILE:shop:texts { printf("texts %s|%r|%s\n", str(arg0, arg1), buf(arg2, arg3), str(arg4, arg5)); }
usdt:FILE:shop:numbers { printf("numbers %x %lx %lx %d\n", arg0, arg1, arg2, arg3 == arg4); }
usdt:FILE:shop:shipped { printf("shipped %d %d\n", arg0, arg1); }
usdt:FILE:shop:guarded { printf("guarded %d\n", arg0); }
usdt:FILE:shop:nothing { printf("nothing\n"); exit(); }
BEGIN { printf("begun\n"); }
"#;

#[test]
fn bpftrace_prints_arguments_of_programs_in_rust() {
    if lacks("bpftrace") {
        return;
    }
    const LINES: [&str; 6] = ["integers 2", "texts 2", "numbers 2", "ship 1", "guarded 1", "nothing 1"];
    const EXPECTED: [&str; 12] = [
        "guarded 3",
        "integers 41 -3 65000 -5 200 1",
        "integers 42 -3 65000 -5 200 1",
        "longs 1099511627776 0 8 -7 18446744073709551615 z",
        "longs 1099511627776 1 9 -7 18446744073709551615 z",
        "nothing",
        "numbers 3fc00000 4002000000000000 0 1",
        "numbers 3fc00000 4002000000000000 3fd0000000000000 1",
        "shipped -1 1",
        "shipped 0 0",
        "shipped 1 1",
        "texts Ada|by\\x00tes|0",
    ];
    for level in ["0", "2"] {
        let file = in_rust("seen", "traced.rs", level);
        on_both(|bench| {
            let mut lines = printed(bench, &bench.victim(file.clone()), PROGRAM_FOR_RUST, &LINES);
            assert_eq!(lines.pop().as_deref(), Some("texts Ada|by\\x00tes|1"));
            assert_eq!(lines, EXPECTED, "opt-level {level}");
        });
        std::fs::remove_file(file).expect("it was made");
    }
}
