//! Tracepoints of LTTng-UST: what the files say of them, and that they fire without its session daemon.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_elf::{At, File, Kind, LttngTracepoint, Register};
use ring3_tests::{Process, lacks, on_both, ready, root, victim};

fn is_installed() -> bool {
    let is = Path::new("/usr/include/x86_64-linux-gnu/lttng/tracepoint.h").exists()
        || Path::new("/usr/include/lttng/tracepoint.h").exists();
    if !is {
        println!("SKIPPED: liblttng-ust-dev is not installed");
    }
    is
}

fn reporting(name: &str, flags: &[&str]) -> PathBuf {
    let include = format!("-I{}", root().join("tests/victims/lttng").display());
    // (Libraries stand behind the source: the harness puts its flags before.)
    let flags: Vec<&str> =
        [include.as_str(), "-Wl,--no-as-needed", "-llttng-ust", "-ldl"].iter().chain(flags).copied().collect();
    victim(&format!("lttng-{name}"), "gcc", "lttng/reporting.c", &flags)
}

fn tracepoints(path: &Path) -> Vec<LttngTracepoint> {
    let bytes = std::fs::read(path).expect("readable");
    File::parse(&bytes).expect("an ELF file").lttng_tracepoints()
}

fn assert_arguments(order: &LttngTracepoint) {
    let named = |argument: &ring3_elf::Argument| {
        let name = argument.name.clone().unwrap_or_default();
        (name, argument.type_name.clone().unwrap_or_default(), argument.kind, argument.place.bytes)
    };
    let expected = [
        ("id", "int", Kind::Signed, 4),
        ("cents", "uint64_t", Kind::Unsigned, 8),
        ("name", "const char *", Kind::Text, 8),
        ("weight", "double", Kind::Float, 8),
        ("rows", "const uint16_t *", Kind::Pointer, 8),
        ("count", "size_t", Kind::Unsigned, 8),
    ];
    let expected = expected.map(|(name, text, kind, bytes)| (name.to_owned(), text.to_owned(), kind, bytes));
    assert_eq!(order.arguments.iter().map(named).collect::<Vec<_>>(), expected);
    assert_eq!(order.arguments[0].place.at, At::Register { register: Register::Rsi, shift: 0 });
    assert_eq!(order.arguments[4].place.at, At::Register { register: Register::R8, shift: 0 });
}

fn assert_fields(order: &LttngTracepoint) {
    let fields: Vec<String> =
        order.fields.iter().map(|field| format!("{} {}", field.type_name, field.name)).collect();
    let expected = [
        "int32_t id",
        "uint64_t cents",
        "string name",
        "double weight",
        "float half",
        "uint16_t[2] first",
        "uint64_t _rows_length",
        "uint16_t[_rows_length] rows",
        "uint8_t state",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn a_program_tells_its_tracepoints_with_their_types() {
    if !is_installed() {
        return;
    }
    for (name, flags) in [("pie", ["-fPIE", "-pie"]), ("fixed", ["-fno-pie", "-no-pie"])] {
        let path = reporting(name, &flags);
        let found = tracepoints(&path);
        assert_eq!(
            found.iter().map(|one| format!("{}:{}", one.provider, one.name)).collect::<Vec<_>>(),
            ["shop:closed", "shop:order"]
        );
        assert!(found[0].arguments.is_empty() && found[0].fields.is_empty() && found[0].function.is_some());
        assert_arguments(&found[1]);
        assert_fields(&found[1]);
        let bytes = std::fs::read(&path).expect("readable");
        let file = File::parse(&bytes).expect("an ELF file");
        assert_eq!(found[1].function, file.find("lttng_ust__event_probe__shop___order"));
        let structure = file.find_variable("lttng_ust_tracepoint_shop___order").expect("a symbol");
        assert_eq!((found[1].state, found[1].probes), (Some(structure + 24), Some(structure + 32)));
    }
}

#[test]
fn a_library_of_probes_and_the_program_that_uses_them_tell_their_parts() {
    if !is_installed() {
        return;
    }
    let library = tracepoints(&reporting("probes", &["-DPROBES", "-shared", "-fPIC"]));
    let order = library.iter().find(|one| one.name == "order").expect("an event");
    assert!(order.state.is_none() && order.probes.is_none() && order.function.is_some());
    assert_arguments(order);
    assert_fields(order);
    let program = tracepoints(&reporting("user", &["-DUSER"]));
    let order = program.iter().find(|one| one.name == "order").expect("an event");
    assert!(order.state.is_some() && order.probes.is_some() && order.function.is_none() && order.fields.is_empty());
    assert_arguments(order);
}

#[test]
fn other_files_have_none() {
    assert_eq!(tracepoints(&std::env::current_exe().expect("known")), []);
}

#[test]
fn tracepoints_fire_without_the_session_daemon() {
    if !is_installed() {
        return;
    }
    if lacks("bpftrace") {
        return;
    }
    let source = root().join("examples/lttng-ust/ring3_lttng.c");
    let library = root().join("target/victims").join(format!("ring3_lttng-{}.so", std::process::id()));
    std::fs::create_dir_all(library.parent().expect("a directory")).expect("target is writable");
    let mut command = Command::new("gcc");
    command
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .arg(format!("-I{}", root().join("include").display()));
    assert!(command.arg(source).arg("-o").arg(&library).status().expect("gcc runs").success());
    let program = format!(
        "usdt:{}:lttng:event {{ printf(\"%s:%s %d %d %s\\n\", str(arg0), str(arg1), (int32)arg2, arg3, str(arg4)); }}
         BEGIN {{ printf(\"begun\\n\"); }}
         usdt:{0}:lttng:event /str(arg1) == \"closed\"/ {{ exit(); }}",
        library.display()
    );
    on_both(|bench| {
        let file = bench.victim(reporting("pie", &["-fPIE", "-pie"]));
        let mut victim = ready(bench.target(&file).env("LD_PRELOAD", &library).env("RING3_LTTNG", "shop:*"));
        let mut command = bench.load_with_tracefs("bpftrace");
        let mut tool = Process::start(command.args(["-p", &victim.pid().to_string(), "-e", &program]));
        while tool.line() != "begun" {}
        victim.say("go");
        assert_eq!(victim.line(), "reported");
        let (_, lines, errors) = tool.finish();
        let lines: Vec<&str> =
            lines.iter().map(String::as_str).filter(|line| line.starts_with("shop:order")).collect();
        assert_eq!(lines, ["shop:order -1 100 Ada", "shop:order 0 101 Ada", "shop:order 1 102 Ada"], "{errors:?}");
    });
    std::fs::remove_file(library).expect("it was made");
}
