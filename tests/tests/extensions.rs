//! Extensions: what exceeds its class is refused with the reason, and what runs harms nobody.
//!
//! `tests/programs/extensions` has the host's specification, the policy and the programs; `tests/victims/extended.c` is the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ring3_tests::{
    Bench, Process, assert_text_is_as_in_its_files, difference_from_files, is_root, kill, ready, root, victim,
    wait_until,
};

/// A user without any privilege.
const ORDINARY: u32 = 65534;
/// See `pure/layout/src/fault.rs`.
const FAULTS_MAX: usize = 10;

/// A program of a file of cases.
struct Case {
    name: String,
    class: String,
    /// What its refusal says; `-`: it is accepted.
    expected: String,
    /// A class with which it is accepted.
    also: Option<String>,
}

fn sources() -> PathBuf {
    root().join("tests/programs/extensions")
}

/// Compiles a case, a part of a file, unless it is compiled already.
fn compile(directory: &Path, name: &str, body: &str) {
    let (source, object) = (directory.join(format!("{name}.bpf.c")), directory.join(format!("{name}.bpf.o")));
    let text = format!("#include \"host.bpf.h\"\n{body}");
    let modified = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    let is_new = modified(&object) > modified(&source) && modified(&source) > modified(&sources().join("host.bpf.h"));
    if is_new && std::fs::read_to_string(&source).is_ok_and(|there| there == text) {
        return;
    }
    std::fs::write(&source, text).expect("target is writable");
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-Wall", "-Wno-unused", "-target", "bpf", "-mcpu=v3", "-c"]).arg(&source);
    clang.arg("-o").arg(&object).arg("-I").arg(sources());
    clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    let maps = ["words", "more", "ring", "programs"].iter().filter(|map| body.contains(&format!("&{map}")));
    clang.args(maps.map(|map| format!("-DUSES_{map}")));
    let output = clang.output().expect("clang runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The cases of a file, compiled.
fn cases(file: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(sources().join(file)).expect("it is there");
    let directory = objects();
    std::fs::create_dir_all(&directory).expect("target is writable");
    let mut cases = vec![];
    std::thread::scope(|scope| {
        for part in text.split("\n// CASE ").skip(1) {
            let (first, body) = part.split_once('\n').expect("a body");
            let (of, expected) = first.split_once(": ").unwrap_or((first, "-"));
            let (name, class) = of.split_once(' ').expect("a name and a class");
            let (also, body) = match body.strip_prefix("// ALSO ") {
                Some(rest) => {
                    rest.split_once('\n').map(|(also, body)| (Some(also.to_owned()), body)).expect("a body")
                }
                None => (None, body),
            };
            let directory = &directory;
            scope.spawn(move || compile(directory, name, body));
            let [name, class, expected] = [name, class, expected.trim()].map(str::to_owned);
            cases.push(Case { name, class, expected, also });
        }
    });
    cases
}

fn objects() -> PathBuf {
    root().join("target/extensions")
}

/// The class of each program that runs.
fn running() -> &'static BTreeMap<String, String> {
    static CASES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    CASES.get_or_init(|| cases("running.bpf.c").into_iter().map(|case| (case.name, case.class)).collect())
}

fn host() -> PathBuf {
    let twin = root().join("tests/victims/extended_twin.c");
    victim("extended", "gcc", "extended.c", &["-g", twin.to_str().expect("a plain name")])
}

/// `ring3 extend` with a class and a case.
fn extend(bench: &Bench, class: &str, name: &str) -> Command {
    let class = format!("{}:{class}", sources().join("host.policy").display());
    let mut command = bench.ring3_command(&["extend", "--class", &class]);
    command.arg(objects().join(format!("{name}.bpf.o")));
    command
}

/// A host that a program of `running.bpf.c` extends from its start on.
fn extended(bench: &Bench, name: &str) -> Process {
    ready(extend(bench, &running()[name], name).arg("--").arg(host()))
}

/// Has a process extended that runs already.
fn join(bench: &Bench, pid: u32, name: &str) -> Process {
    let mut command = extend(bench, &running()[name], name);
    command.args(["--binary".as_ref(), host().as_os_str()]).args(["--pid", &pid.to_string()]);
    // (What it says, it says to standard error.)
    let mut loader = Process::start_joined(&command);
    let line = loader.line();
    assert!(line.ends_with(&format!(" extends serve in process {pid}; end it with Ctrl-C")), "{line}");
    loader
}

fn ask(host: &mut Process, line: &str) -> String {
    host.say(line);
    host.line_or_end().unwrap_or_else(|| panic!("the host ended at {line}"))
}

/// The answers to all lines.
fn answers(bench: &Bench, name: &str, lines: &[&str]) -> Vec<String> {
    let mut host = extended(bench, name);
    let answers = lines.iter().map(|line| ask(&mut host, line)).collect();
    assert_eq!(host.finish().0, Some(0), "{name}");
    answers
}

/// A word of the host's state, see `show` in the victim; from its status on, which is 1.
fn shown(host: &mut Process, index: usize) -> String {
    let line = ask(host, "show");
    line.split(' ').rev().nth(10 - index).unwrap_or_else(|| panic!("{line}")).to_owned()
}
const STATUS: usize = 1;
const CALLS: usize = 3;

#[test]
fn what_exceeds_its_class_is_refused_with_the_reason() {
    let bench = Bench::ring3();
    let all = cases("refusals.bpf.c");
    let refused = all.iter().filter(|case| case.expected != "-").count();
    assert!(refused >= 100 && all.len() > refused, "{refused} of {}", all.len());
    let run = |case: &Case, class: &str| {
        let output =
            extend(&bench, class, &case.name).arg("--").arg(host()).stdin(std::process::Stdio::null()).output();
        let output = output.expect("ring3 runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let mut wrong = vec![];
    for case in &all {
        let accepted = |(code, text): &(Option<i32>, String)| *code == Some(0) && text.contains("ready");
        let result = run(case, &case.class);
        let is_right = match case.expected.as_str() {
            "-" => accepted(&result),
            expected => result.0 == Some(1) && result.1.contains(expected) && !result.1.contains("ready"),
        };
        if !is_right {
            wrong.push(format!("{} with {}: {} expected: {result:?}", case.name, case.class, case.expected));
        }
        let also = case.also.as_ref().map(|class| (class, run(case, class)));
        if let Some((class, result)) = also.filter(|(_, result)| !accepted(result)) {
            wrong.push(format!("{} with {class}: {result:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check_results(bench: &Bench) {
    let is =
        |name: &str, lines: &[&str], expected: &[&str]| assert_eq!(answers(bench, name, lines), expected, "{name}");
    is("verdicts", &["serve 1", "serve 2", "serve 499", "serve 600"], &["7", "1002", "499", "1600"]);
    is("results", &["serve 5", "serve 6"], &["555", "1006"]);
    is("ints", &["int -3", "int 1", "int 5"], &["-3", "-7", "6"]);
    is("bytes", &["byte 9", "byte 10"], &["200", "11"]);
    is("skips", &["bool"], &["0"]);
    is("numbers", &["serve 1"], &["500"]);
    is("loops_thrice", &["serve 1"], &["500"]);
    let state = "/index body of it a name 404 101 1 77 1234 key-key 987654321 7 80 0";
    is("answers", &["serve 1", "show"], &["404", state]);
}

#[test]
fn functions_are_skipped_and_their_results_replaced() {
    let bench = Bench::ring3();
    check_results(&bench);
    let (class, name) = ("pointer", "skips");
    let mut host = ready(extend(&bench, class, name).arg("--").arg(host()));
    assert_eq!(ask(&mut host, "pointer"), "null");
}

#[test]
fn ordinary_users_extend_their_programs() {
    if !is_root() {
        return println!("SKIPPED: to become another user needs root");
    }
    running();
    check_results(&Bench::ring3_as(ORDINARY));
}

#[test]
fn slices_end_where_they_end_and_what_may_only_be_read_stays() {
    let bench = Bench::ring3();
    let mut host = extended(&bench, "reads_slices");
    assert_eq!(ask(&mut host, "serve 1"), "500");
    let line = ask(&mut host, "show");
    assert!(line.starts_with("/index BODY /f it a name 200 "), "{line}");
    // Too long for any, too short, null; and at last memory that is not there.
    for (poke, expected) in [
        ("0 1000000000", "400"),
        ("0 -1", "400"),
        ("0 5", "401"),
        ("0 6", "500"),
        ("1 0", "400"),
        ("1 1", "500"),
        ("2 0", "1001"),
    ] {
        ask(&mut host, &format!("poke {poke}"));
        assert_eq!(ask(&mut host, "serve 1"), expected, "{poke}");
    }
    assert_eq!(host.finish().0, Some(0));
    // Text for printing is the program's own.
    assert_eq!(answers(&bench, "prints", &["serve 1"]), ["501"], "it has printed what its class does not grant");
}

#[test]
fn members_of_unions_are_those_that_the_discriminator_names() {
    let lines =
        ["serve 1", "tag 1 50", "serve 1", "serve 1", "tag 2", "serve 1", "tag 3 6", "serve 1", "tag 4 9", "serve 1"];
    let expected = ["431", "ok", "451", "452", "ok", "480", "ok", "506", "ok", "509"];
    assert_eq!(answers(&Bench::ring3(), "reads_unions", &lines), expected);
    assert_eq!(answers(&Bench::ring3(), "reads_unions", &["tag 5 6", "serve 1"]), ["ok", "1001"]);
}

#[test]
fn vector_registers_outlast_calls_of_the_hosts_functions() {
    let bench = Bench::ring3();
    running();
    let mut plain = ready(&mut bench.command(host()));
    for class in ["floats", "wide", "widest"] {
        let mut host = ready(extend(&bench, class, "scribbles").arg("--").arg(host()));
        assert_eq!(ask(&mut host, class), ask(&mut plain, class), "{class}");
        let has_them = ask(&mut plain, class) != "none";
        assert_eq!(shown(&mut host, CALLS), if has_them { "1" } else { "0" }, "{class}");
    }
}

#[test]
fn calls_that_come_to_the_entry_again_have_an_end() {
    let bench = Bench::ring3();
    let mut host = extended(&bench, "reenters");
    assert_eq!(ask(&mut host, "serve 1"), "500");
    assert_eq!(shown(&mut host, CALLS), "4");
    assert_eq!(ask(&mut host, "serve 1"), "500");
    assert_eq!(shown(&mut host, CALLS), "8");
    let misses = bench.status().to_string();
    assert!(misses.contains("\"misses\":2"), "{misses}");
}

#[test]
fn programs_of_one_class_share_maps_at_its_entries() {
    assert_eq!(answers(&Bench::ring3(), "at_two_entries", &["serve 0", "serve 0", "serve 0"]), ["411", "422", "433"]);
}

#[test]
fn a_broken_contract_ends_the_run() {
    let bench = Bench::ring3();
    for name in ["positive", "positive_in_a_subprogram", "positive_in_a_callback", "ends_in_the_midst"] {
        let mut host = extended(&bench, name);
        for told in ["0", "-5"] {
            ask(&mut host, &format!("tell {told}"));
            assert_eq!(ask(&mut host, "serve 1"), "1001", "{name}");
            assert_eq!(shown(&mut host, STATUS), "200", "{name}: the run went on");
        }
        assert!(bench.status().to_string().contains("\"misses\":2"), "{name} {}", bench.status());
        ask(&mut host, "tell 1");
        assert_eq!(ask(&mut host, "serve 1"), "500", "{name}");
        assert_ne!(shown(&mut host, STATUS), "200", "{name}");
    }
    // Whatever 0 means: a run that was ended decides nothing.
    let told = ["tell 0", "serve 1", "tell 1", "serve 1"];
    assert_eq!(answers(&bench, "positive_inverted", &told), ["ok", "1001", "ok", "9"]);
}

#[test]
fn faults_end_the_run_and_at_last_the_extension() {
    let bench = Bench::ring3();
    for name in ["dangling", "dangling_inverted", "writes_dangling"] {
        let mut host = extended(&bench, name);
        assert_eq!(ask(&mut host, "serve 1"), "1001", "{name}");
        assert_eq!(ask(&mut host, "many 1000"), "1000", "{name}");
        assert_eq!(shown(&mut host, CALLS), FAULTS_MAX.to_string(), "{name}");
        let (code, _, errors) = host.finish();
        let said = errors.join("\n");
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("has faulted, and that run of it was ended: SIGSEGV"), "{said}");
        assert!(said.contains("is switched off: it has faulted 10 times"), "{said}");
    }
}

#[test]
fn loops_have_an_end() {
    let bench = Bench::ring3();
    let began = Instant::now();
    // (A loop with `may_goto` leaves it, and goes on; others are ended.)
    assert_eq!(answers(&bench, "loops_for_ever", &["serve 1", "serve 1"]), ["500", "500"]);
    assert_eq!(answers(&bench, "loops_by_helper", &["serve 1"]), ["1001"]);
    assert_eq!(answers(&bench, "loops_by_helper_inverted", &["serve 1"]), ["1001"]);
    // (More runs than there can be open records of a thread.)
    assert_eq!(answers(&bench, "loops_with_a_record", &["serve 1"; 12]), ["1001"; 12]);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn an_extension_whose_runs_take_most_of_a_second_is_switched_off() {
    /// Fewer than would be too many if they were short (`OVERRUNS_MAX`).
    const RUNS: usize = 100;
    let bench = Bench::ring3();
    let mut host = extended(&bench, "takes_long");
    let ran = (0..RUNS).take_while(|_| ask(&mut host, "serve 1") == "500").count();
    assert!((1..RUNS).contains(&ran), "{ran}");
    let (_, status, _) = bench.run(&["status", "-v"]);
    assert!(status.contains("is switched off: too many of its runs"), "{status}");
    assert!(status.contains("give its class more `time`"), "{status}");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn a_run_that_its_loops_end_is_a_miss() {
    let bench = Bench::ring3();
    let mut host = extended(&bench, "loops_by_helper");
    assert_eq!(ask(&mut host, "serve 1"), "1001");
    let status = bench.status();
    let sites = status["targets"][0]["sites"].as_array().expect("sites").clone();
    assert!(sites.iter().any(|site| site["misses"] == 1), "{sites:?}");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn a_text_that_is_nowhere_is_empty_or_refused() {
    let bench = Bench::ring3();
    assert_eq!(answers(&bench, "reads_empty", &["empty 0", "empty 3", "serve 1"]), ["500", "400", "402"]);
}

#[test]
fn the_loader_is_no_child_of_the_host() {
    assert_eq!(answers(&Bench::ring3(), "verdicts", &["children", "serve 1", "children"]), ["none", "7", "none"]);
}

#[test]
fn longjmp_and_the_end_of_a_thread_leave_an_extension() {
    let bench = Bench::ring3();
    let mut host = extended(&bench, "leaps");
    assert_eq!(ask(&mut host, "leap 1000"), "1000");
    assert_eq!(shown(&mut host, CALLS), "1000");
    assert_eq!(host.finish().0, Some(0));
    assert_eq!(answers(&bench, "ends", &["thread", "thread"]), ["5", "5"]);
}

#[test]
fn children_are_extended_too() {
    let bench = Bench::ring3();
    let mut host = extended(&bench, "positive");
    ask(&mut host, "tell 1");
    assert_eq!(ask(&mut host, "fork"), "2");
    assert_eq!(ask(&mut host, "serve 1"), "500");
    // Another host of this user's has an extension of its own, and only that.
    let mut other = extended(&bench, "verdicts");
    assert_eq!(ask(&mut other, "serve 1"), "7");
    assert_eq!((ask(&mut other, "serve 2"), shown(&mut other, CALLS)), ("1002".into(), "0".into()));
    assert_eq!(ask(&mut other, "fork"), "2");
    assert_eq!(ask(&mut other, "executes"), "2");
    assert_eq!(ask(&mut host, "serve 1"), "500");
    // A function that an extension calls forks: both go on.
    let mut host = extended(&bench, "forks");
    assert_eq!(ask(&mut host, "forks"), "500");
    assert_eq!(shown(&mut host, CALLS), "401");
}

#[test]
fn signal_handlers_come_between_an_extension_and_what_it_calls() {
    let bench = Bench::ring3();
    let mut host = extended(&bench, "asks_all");
    assert_eq!(ask(&mut host, "storm 2"), "0", "a function or a slice was another one's");
    assert_eq!(ask(&mut host, "leaps 1"), "0");
    assert_eq!(ask(&mut host, "serve 1"), "1001");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn threads_run_while_extensions_come_and_go() {
    let bench = Bench::ring3();
    running();
    let mut host = ready(&mut bench.command(host()));
    let pid = host.pid();
    ask(&mut host, "tell 1");
    ask(&mut host, "expect 500 500");
    let mut rounds = 0;
    host.say("threads 8 500000");
    let deadline = Instant::now() + Duration::from_secs(4);
    while Instant::now() < deadline {
        let mut loader = join(&bench, pid, "positive");
        loader.signal(rustix::process::Signal::INT);
        loader.wait();
        rounds += 1;
        if rounds < 5 {
            host.say("threads 8 500000");
        }
    }
    assert!(rounds >= 5, "{rounds}");
    for _ in 0..5 {
        assert_eq!(host.line(), "0", "calls had other results than the function's and the extension's");
    }
    wait_until("no extension is left", || ask(&mut host, "serve 1") == "1001");
    let (code, _, errors) = bench.run(&["detach", "--verify", &pid.to_string()]);
    assert_eq!(code, Some(0), "{errors}");
    assert_text_is_as_in_its_files(pid);
}

#[test]
fn a_loader_that_is_killed_leaves_the_host_as_it_was() {
    let bench = Bench::ring3();
    running();
    let mut host = ready(&mut bench.command(host()));
    assert_text_is_as_in_its_files(host.pid());
    let loader = join(&bench, host.pid(), "verdicts");
    assert_eq!(ask(&mut host, "serve 1"), "7");
    kill(loader.pid());
    wait_until("no extension is left", || ask(&mut host, "serve 1") == "1001");
    // (The host's file is mapped before others. In those ring3 has hooks of its own until it leaves.)
    let file = host_path();
    wait_until("the host's code is as it was", || {
        difference_from_files(host.pid()).is_none_or(|text| !text.starts_with(&file))
    });
    let (code, _, errors) = bench.run(&["detach", "--verify", &host.pid().to_string()]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn that_extensions_end_with_the_server_is_said() {
    let bench = Bench::ring3();
    running();
    let mut host = ready(&mut bench.command(host()));
    let mut loader = join(&bench, host.pid(), "verdicts");
    assert_eq!(ask(&mut host, "serve 1"), "7");
    kill(bench.server());
    let line = loader.line();
    assert!(line.contains("the server has ended: class ") && line.ends_with("run this command again"), "{line}");
    assert_ne!(loader.finish().0, Some(0));
    // (The next server cleans up.)
    bench.run(&["load", "--", "true"]);
    wait_until("no extension is left", || ask(&mut host, "serve 1") == "1001");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn an_extension_goes_while_a_function_that_it_calls_sleeps() {
    let bench = Bench::ring3();
    running();
    let mut host = ready(&mut bench.command(host()));
    let mut loader = join(&bench, host.pid(), "dozes");
    host.say("serve 1");
    std::thread::sleep(Duration::from_millis(500));
    loader.signal(rustix::process::Signal::INT);
    loader.wait();
    let result = host.line();
    assert!(["500", "1001"].contains(&result.as_str()), "{result}");
    wait_until("no extension is left", || ask(&mut host, "serve 1") == "1001");
    let (code, _, errors) = bench.run(&["detach", "--verify", &host.pid().to_string()]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn what_the_host_takes_for_an_extension_is_not_the_extensions_time() {
    const CALLS: usize = 300;
    let bench = Bench::ring3();
    let mut host = extended(&bench, "naps");
    for _ in 0..CALLS {
        assert_eq!(ask(&mut host, "serve 1"), "500");
    }
    let (_, status, _) = bench.run(&["status", "-v"]);
    assert!(!status.contains("over its budget"), "{status}");
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn tools_look_at_a_function_that_is_extended() {
    if Command::new("bpftrace").arg("--version").output().is_err() {
        return println!("SKIPPED: bpftrace is not installed");
    }
    let bench = Bench::ring3();
    let mut host = extended(&bench, "verdicts");
    let at = format!("probe:{}:serve", host_path());
    let script = format!("u{at} {{ printf(\"call\\n\"); }} uret{at} {{ printf(\"return %d\\n\", retval); }}");
    let mut tool = Process::start(bench.load("bpftrace").args(["-B", "none", "-e", &script]));
    let mut seen = vec![];
    assert_eq!(tool.line(), "Attaching 2 probes...");
    wait_until("the tool has its programs", || {
        bench.status()["programs"].as_array().is_some_and(|programs| programs.len() >= 3)
    });
    // (They are attached one after the other.)
    while seen.last().is_none_or(|line| line != "return 1002") {
        assert_eq!(ask(&mut host, "serve 2"), "1002");
        std::thread::sleep(Duration::from_millis(100));
        seen.extend(tool.lines_so_far());
    }
    for (line, expected) in [("serve 1", "7"), ("serve 450", "450"), ("serve 3", "1003")] {
        assert_eq!(ask(&mut host, line), expected);
    }
    while seen.last().is_none_or(|line| line != "return 1003") {
        seen.push(tool.line());
    }
    // A function that does not run does not return either.
    let last: Vec<&str> = seen.iter().rev().take(5).rev().map(String::as_str).collect();
    assert_eq!(last, ["return 1002", "call", "call", "call", "return 1003"]);
    drop(tool);
    assert_eq!(ask(&mut host, "serve 1"), "7");
    assert_eq!(host.finish().0, Some(0));
}

fn host_path() -> String {
    host().display().to_string()
}

/// What `ring3 extend` says to standard error, and that it fails.
fn complaint(bench: &Bench, arguments: &[&str]) -> String {
    let (code, _, errors) = bench.run(&[&["extend"], arguments].concat());
    assert!(matches!(code, Some(1 | 2 | 127)), "{arguments:?}: {code:?} {errors}");
    errors
}

#[test]
fn bad_input_gets_one_clear_message() {
    let bench = Bench::ring3();
    running();
    let path = |path: PathBuf| path.display().to_string();
    let policy = path(sources().join("host.policy"));
    let twins = format!("{policy}:twins");
    let several = format!("{policy}:several");
    let (class, missing) = (format!("{policy}:plain"), format!("{policy}:plane"));
    let object = path(objects().join("verdicts.bpf.o"));
    let others =
        ["other_section", "no_program", "other_place"].map(|name| path(objects().join(format!("{name}.bpf.o"))));
    let binary = host_path();
    let without_types = path(bench.made_directory().join("without_types.bpf.o"));
    let mut clang = Command::new("clang");
    clang
        .args(["-O2", "-target", "bpf", "-mcpu=v3", "-c", "-o", without_types.as_str()])
        .arg(objects().join("answers.bpf.c"));
    clang.arg("-I").arg(sources()).arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    assert!(clang.status().expect("clang runs").success());
    let mut child = Command::new("true").spawn().expect("true runs");
    let (zombie, own) = (child.id().to_string(), std::process::id().to_string());
    let stat = format!("/proc/{zombie}/stat");
    wait_until("it has ended", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")));
    for (arguments, expected) in [
        (
            &["--class", &class, "/nowhere.bpf.o", "--", &binary][..],
            "cannot read /nowhere.bpf.o: No such file or directory (os error 2); correct the name",
        ),
        (
            &["--class", &class, "/tmp", "--", &binary],
            "cannot read /tmp: Is a directory (os error 21); name a file in it",
        ),
        (
            &["--class", &class, &without_types, "--", &binary],
            "it has no BTF, which says what the extern load is; compile it",
        ),
        (&["--class", &class, &object, "--pid", &zombie], "it has ended"),
        (&["--class", &class, &object, "--binary", &binary, "--pid", &own], "name a process that does"),
        (&["--class", &missing, &object, "--", &binary], "has no class plane"),
        (&["--class", &policy, &object, "--", &binary], "names no class"),
        (&["--class", "/nowhere.policy:a", &object, "--", &binary], "cannot read /nowhere.policy"),
        (&["--class", &class, &object, "--", "/nowhere"], "/nowhere"),
        (&["--class", &class, &object, "--", "nowhere-to-be-found"], "nowhere-to-be-found"),
        (&["--class", &class, &object, "--pid", "4000000"], "4000000"),
        (&["--class", &class, &object, "--pid", "0"], "0"),
        (&["--class", &class, &object], "-- PROGRAM to run one, --pid PID for a process, or --binary PATH"),
        (
            &["--class", &class, &object, "--", "./nowhere"],
            "No such file or directory (os error 2); correct the path",
        ),
        (&["--class", &class, &policy, "--", &binary], "not a BPF object file"),
        (&["--class", &class, &binary, "--", &binary], "not a BPF object file"),
        (&["--class", &class, &object, "--program", "other", "--", &binary], "other"),
        (&["--class", &class, &object, "--", "/bin/true"], "/bin/true"),
        (
            &["--class", &several, &object, "--", &binary],
            "write one of SEC(\"uprobe/serve\"), SEC(\"uprobe/sleeps\")",
        ),
        (&["--class", &twins, &object, "--", &binary], "has 2 functions `twin`"),
        (&["--class", &class, &others[0], "--", &binary], "uprobe"),
        (&["--class", &class, &others[1], "--", &binary], "no program"),
        (&["--class", &class, &others[2], "--", &binary], "the class says where"),
    ] {
        let said = complaint(&bench, arguments);
        assert!(
            said.contains(expected) && said.lines().count() <= 3 && !said.contains("panicked"),
            "{arguments:?}: {said}"
        );
    }
    child.wait().expect("it has ended");
}

#[test]
fn processes_of_another_user_are_named_with_their_user() {
    if !is_root() {
        return println!("SKIPPED: to become another user needs root");
    }
    running();
    let host = ready(&mut Command::new(host()));
    let bench = Bench::ring3_as(ORDINARY);
    let policy = sources().join("host.policy").display().to_string() + ":plain";
    let object = objects().join("verdicts.bpf.o").display().to_string();
    let pid = host.pid().to_string();
    for named in [&["--pid", &pid][..], &["--pid", &pid, "--binary", &host_path()]] {
        let said = complaint(&bench, &[&["--class", &policy, &object], named].concat());
        let expected =
            format!("it belongs to user 0, and you are user {ORDINARY}; run ring3 as that user or as root");
        assert!(said.contains(&expected), "{said}");
    }
}

/// Whether the CPU has protection keys.
fn has_keys() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.split_whitespace().any(|flag| flag == "ospke"))
}

/// A program of `running.bpf.c` extends a host, with `--isolation`.
fn isolated(bench: &Bench, how: &str, name: &str) -> Process {
    let mut command = extend(bench, &running()[name], name);
    ready(command.arg(format!("--isolation={how}")).arg("--").arg(host()))
}

/// Where the host has the first word of the map `words`, as text.
fn word_address(pid: u32) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let line = maps.lines().find(|line| line.contains("ring3-map:bpf-map:words")).expect("the map is there");
    let start = line.split('-').next().expect("an address");
    u64::from_str_radix(start, 16).expect("a number").to_string()
}

/// What `status` says of how the host is kept from the maps.
fn isolation(bench: &Bench, pid: u32) -> Option<String> {
    let status = bench.status();
    let targets = status["targets"].as_array().expect("a list");
    let target = targets.iter().find(|target| target["pid"] == pid).expect("it is a target");
    target["isolation"].as_str().map(str::to_owned)
}

#[test]
fn a_host_without_keys_is_told_so() {
    let bench = Bench::ring3();
    let mut host = isolated(&bench, "none", "third_is_its_own");
    assert_eq!(isolation(&bench, host.pid()), None);
    let word = word_address(host.pid());
    assert_eq!(ask(&mut host, &format!("write {word}")), "0");
    assert_eq!(host.finish().0, Some(0));
    if has_keys() {
        return;
    }
    let host = isolated(&bench, "pku", "third_is_its_own");
    let why = "not kept from the process: the CPU has no protection keys";
    assert_eq!(isolation(&bench, host.pid()).as_deref(), Some(why));
    assert_eq!(host.finish().0, Some(0));
    let mut command = extend(&bench, &running()["third_is_its_own"], "third_is_its_own");
    let output = command.args(["--isolation=require", "--pid", "1", "--binary"]).arg(self::host()).output();
    let output = output.expect("ring3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("this CPU has no protection keys"), "{said}");
}

#[test]
fn a_host_cannot_change_the_maps_of_its_extensions() {
    /// `SEGV_PKUERR` (include/uapi/asm-generic/siginfo.h).
    const REFUSED: &str = "4";
    if !has_keys() {
        return println!(
            "SKIPPED: this CPU has no protection keys; `cargo xtask pku` runs this in a machine that has"
        );
    }
    let bench = Bench::ring3();
    let mut host = isolated(&bench, "require", "third_is_its_own");
    let how = "kept from the process by a protection key";
    assert_eq!(isolation(&bench, host.pid()).as_deref(), Some(how));
    let write = format!("write {}", word_address(host.pid()));
    for expected in ["1001", "1001", "500", "1001"] {
        assert_eq!(ask(&mut host, &write), REFUSED);
        assert_eq!(ask(&mut host, "serve 1"), expected);
    }
    // A thread that begins now, and a child.
    ask(&mut host, "tell 1");
    assert_eq!(ask(&mut host, "fork"), "1");
    assert_eq!(ask(&mut host, "thread"), "1001");
    assert_eq!(ask(&mut host, &write), REFUSED);
    assert_eq!(host.finish().0, Some(0));
    // While a function runs that the extension calls, and after that.
    let mut host = isolated(&bench, "pku", "counts_within_calls");
    let write = format!("write {}", word_address(host.pid()));
    for expected in ["1001", "1001", "500", "1001"] {
        assert_eq!(ask(&mut host, "serve 1"), expected);
        assert_eq!(ask(&mut host, &write), REFUSED);
    }
    assert_eq!(host.finish().0, Some(0));
}

#[test]
fn a_host_gets_its_protection_key_back() {
    const MORE_THAN_KEYS: usize = 20;
    if !has_keys() {
        return println!(
            "SKIPPED: this CPU has no protection keys; `cargo xtask pku` runs this in a machine that has"
        );
    }
    let bench = Bench::ring3();
    running();
    let mut host = ready(&mut bench.command(self::host()));
    let pid = host.pid();
    for _ in 0..MORE_THAN_KEYS {
        let loader = join(&bench, pid, "third_is_its_own");
        assert_eq!(isolation(&bench, pid).as_deref(), Some("kept from the process by a protection key"));
        assert_eq!(ask(&mut host, "serve 1"), "1001");
        kill(loader.pid());
        let (code, _, errors) = bench.run(&["detach", "--verify", &pid.to_string()]);
        assert_eq!(code, Some(0), "{errors}");
    }
    assert_eq!(difference_from_files(pid), None);
    assert_eq!(host.finish().0, Some(0));
}
