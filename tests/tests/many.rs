//! Thousands of probes in one process: each is applied, whenever the process becomes a target, and counts every call. What cannot
//! be applied is said.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_tests::{
    Bench, Counter, Process, assert_text_is_as_in_its_files, example, ready, ring3, victim, wait_until,
};

/// Functions of the library.
const MANY: u64 = 4096;

/// The library of many functions, and the program that calls them.
fn many() -> (PathBuf, PathBuf) {
    let library = victim("libmany.so", "gcc", "many.c", &["-DLIBRARY", "-shared", "-fPIC"]);
    let path = library.to_str().expect("a plain name").to_owned();
    (library, victim("many", "gcc", "many.c", &["-Wl,--no-as-needed", &path]))
}

/// Whether this machine lets a process have descriptors for so many probes.
fn has_descriptors() -> bool {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    // (Two for each probe, and the tool may have half of the server's.)
    let enough = allowed.is_none_or(|files| files > 5 * MANY - 1000);
    if !enough {
        println!("SKIPPED: a limit of open files (ulimit -Hn) above {}", 5 * MANY - 1000);
    }
    enough
}

/// A tool with a probe on each function.
fn count_all(bench: &Bench, options: &[&str]) -> Counter {
    let (library, _) = many();
    let probes = (0..MANY).map(|number| format!("{}:many_{number:04o}", library.display()));
    let arguments: Vec<String> = options.iter().map(|option| (*option).to_owned()).chain(probes).collect();
    bench.counting(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Has the victim call each function `times` times, in each of its mappings; each must be counted as often, and do what it does.
fn check(counter: &mut Counter, victim: &mut Process, times: u64, mappings: u64) {
    victim.say(&times.to_string());
    let sum: u64 = (0..times).map(|round| (0..MANY).map(|number| round * 3 + number).sum::<u64>()).sum();
    assert_eq!(victim.line(), (sum * mappings).to_string());
    let counts = counter.report();
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != times * mappings).take(8).collect();
    assert_eq!((counts.len() as u64, wrong), (MANY, vec![]));
}

#[test]
fn a_process_started_after_thousands_of_links_has_all_probes() {
    if !has_descriptors() {
        return;
    }
    let bench = Bench::ring3();
    let (_, program) = many();
    let mut counter = count_all(&bench, &[]);
    let mut victim = ready(&mut bench.target(&program));
    check(&mut counter, &mut victim, 3, 1);
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_running_process_attached_after_thousands_of_links_has_all_probes() {
    const COPIES: u64 = 8;
    if !has_descriptors() {
        return;
    }
    let bench = Bench::ring3();
    let (_, program) = many();
    let mut counter = count_all(&bench, &[]);
    let mut victim = ready(bench.command(&program).arg(COPIES.to_string()));
    let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    // (Beside the first stop: all of them take many times as long as one stop may.)
    let looks = bench.status()["targets"][0]["looks"].as_u64();
    assert!(looks.is_some_and(|looks| looks >= 2), "placed in {looks:?} further stops");
    check(&mut counter, &mut victim, 3, 1 + COPIES);
    drop(counter);
    let count = |what: &serde_json::Value| what.as_array().map_or(0, Vec::len);
    wait_until("the tool's probes are gone", || {
        let status = bench.status();
        count(&status["links"]) + count(&status["targets"][0]["sites"]) == 0
    });
    assert_eq!(bench.run(&["detach", &victim.pid().to_string()]).0, Some(0));
    assert_text_is_as_in_its_files(victim.pid());
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_running_process_attached_with_thousands_of_probes_that_have_no_room_has_them_all() {
    if !has_descriptors() {
        return;
    }
    let bench = Bench::ring3();
    let program = victim("tinies", "gcc", "tinies.c", &[]);
    let named = |name: String| format!("{}:{name}", program.display());
    let probes: Vec<String> =
        (0..MANY).map(|number| named(format!("tiny_{number}"))).chain([named("behind".to_owned())]).collect();
    let mut counter = bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>());
    let mut victim = ready(&mut bench.command(&program));
    let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
    assert_eq!((code, error.lines().count(), error.lines().next()), (Some(0), 0, None));
    victim.say("100");
    assert_eq!(victim.line(), "100");
    let counts = counter.report().into_iter().map(|((_, probe), count)| (probe, count)).collect::<Vec<_>>();
    let expected = ["behind", "tiny_0", "tiny_4095"].map(|name| (named(name.to_owned()), 100));
    assert_eq!(counts, expected);
    assert_eq!(bench.run(&["detach", &victim.pid().to_string()]).0, Some(0));
    assert_text_is_as_in_its_files(victim.pid());
    assert_eq!(victim.finish().0, Some(0));
}

/// A library whose code is not what the server knows of it, and a tool with a probe there: it cannot be written.
struct Changed {
    library: PathBuf,
    probe: String,
    counter: Counter,
}

impl Changed {
    fn new(bench: &Bench) -> Changed {
        Changed::with(bench, &[])
    }

    /// With probes on further functions, that can be written.
    fn with(bench: &Bench, further: &[&str]) -> Changed {
        // lea 2(%rdi,%rdi,2),%rax; ret: the third function.
        const CODE: [u8; 6] = [0x48, 0x8d, 0x44, 0x7f, 2, 0xc3];
        let mut bytes = std::fs::read(many().0).expect("readable");
        let at = bytes.windows(CODE.len()).position(|window| window == CODE).expect("the compiler does as always");
        let library = bench.alias(Path::new("/")).with_extension("so");
        std::fs::write(&library, &bytes).expect("written");
        let modified = library.metadata().and_then(|meta| meta.modified()).expect("a time");
        let probe = format!("{}:{at:#x}", library.display());
        let mut probes = vec![probe.clone()];
        probes.extend(further.iter().map(|name| format!("{}:{name}", library.display())));
        let counter = bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>());
        bytes[at + 4] ^= 1;
        std::fs::write(&library, bytes).expect("written");
        let file = File::options().write(true).open(&library).expect("writable");
        file.set_modified(modified).expect("as if nothing had happened");
        Changed { library, probe, counter }
    }

    fn victim(&self, mut command: Command) -> Process {
        ready(command.arg(&self.library))
    }
}

fn open(victim: &mut Process) {
    victim.say("");
    assert_eq!(victim.line(), "opened");
}

fn opener() -> PathBuf {
    victim("opener", "gcc", "opener.c", &[])
}

/// Why, as `ring3 status` says of the only target.
fn refusal(bench: &Bench) -> String {
    let status = bench.status();
    let rows = status["targets"][0]["refused"].as_array().expect("a target");
    let reasons: Vec<&str> = rows.iter().filter_map(|row| row[1].as_str()).collect();
    assert!(reasons.len() == 1 && reasons[0].contains("many_0002"), "{reasons:?}");
    reasons[0].to_owned()
}

#[test]
fn what_cannot_be_applied_is_said_where_a_target_was_started_and_in_status() {
    let bench = Bench::ring3();
    let changed = Changed::new(&bench);
    let mut victim = changed.victim(bench.target(opener()));
    open(&mut victim);
    let why = refusal(&bench);
    let text = |arguments: &[&str]| bench.run(arguments).1;
    assert!(text(&["status"]).contains("1 probe(s) not applied"), "{}", text(&["status"]));
    assert!(text(&["status", "-v"]).contains(&why), "{}", text(&["status", "-v"]));
    let line = format!("ring3: process {} (opener): 1 probe(s) not applied: {why}", victim.pid());
    let (code, _, errors) = victim.finish();
    assert!(code == Some(0) && errors.len() == 1 && errors[0].starts_with(&line), "{errors:?}");
    assert_eq!(changed.counter.tool.finish().2, Vec::<String>::new(), "it was said elsewhere");
}

#[test]
fn what_cannot_be_applied_is_said_to_who_attaches_the_process() {
    let bench = Bench::ring3();
    let changed = Changed::new(&bench);
    let mut victim = changed.victim(bench.command(opener()));
    open(&mut victim);
    let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
    let line = format!("not applied: link 1: {}", refusal(&bench));
    assert!(code == Some(0) && error.contains(&line), "{error}");
    assert_eq!(victim.finish().2, Vec::<String>::new(), "a victim's standard error is its own");
    assert_eq!(changed.counter.tool.finish().2, Vec::<String>::new(), "it was said elsewhere");
}

#[test]
fn what_cannot_be_applied_in_code_that_an_attached_process_maps_later_is_said_by_the_loader() {
    let bench = Bench::ring3();
    let changed = Changed::new(&bench);
    let mut victim = changed.victim(bench.command(opener()));
    let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    open(&mut victim);
    let line = format!("ring3: process {} (opener): 1 probe(s) not applied: {}", victim.pid(), refusal(&bench));
    assert_eq!(victim.finish().2, Vec::<String>::new(), "a victim's standard error is its own");
    let (_, _, errors) = changed.counter.tool.finish();
    assert!(errors.len() == 1 && errors[0].starts_with(&line), "{errors:?}");
}

#[test]
fn what_cannot_be_applied_in_the_process_that_a_tool_asks_for_is_the_tools_error() {
    let bench = Bench::ring3();
    let changed = Changed::new(&bench);
    let mut victim = changed.victim(bench.command(opener()));
    open(&mut victim);
    let mut tool = bench.load(example("malloc"));
    let tool = Process::start(tool.args(["-p", &victim.pid().to_string(), &changed.probe]));
    let (code, lines, errors) = tool.finish();
    assert_eq!((code, lines.len()), (Some(1), 0), "{errors:?}");
    assert!(errors.iter().any(|line| line.starts_with("malloc: ")), "{errors:?}");
    // The other tool's probe cannot be applied there either.
    let line = format!("ring3: process {} (opener): 1 probe(s) not applied", victim.pid());
    let (_, _, errors) = changed.counter.tool.finish();
    assert!(errors.len() == 1 && errors[0].starts_with(&line), "{errors:?}");
}

#[test]
fn what_was_applied_behind_what_could_not_be_is_taken_out_again() {
    let bench = Bench::ring3();
    let changed = Changed::with(&bench, &["many_0003", "many_0004"]);
    let mut victim = changed.victim(bench.target(opener()));
    open(&mut victim);
    let sites = |bench: &Bench| bench.status()["targets"][0]["sites"].as_array().map_or(0, Vec::len);
    assert_eq!(sites(&bench), 2);
    refusal(&bench);
    let (code, _, error) = bench.run(&["detach", &victim.pid().to_string()]);
    assert_eq!(code, Some(0), "{error}");
    assert_text_is_as_in_its_files(victim.pid());
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_tool_that_takes_all_it_can_get_leaves_room_for_others() {
    let bench = Bench::ring3();
    // The server may have 1024 descriptors; of tools nobody knows.
    let mut first = bench.command("prlimit");
    let code = first.arg("--nofile=1024").arg(ring3()).args(["start", "--", "/bin/true"]).status();
    assert!(code.expect("prlimit runs").success());
    let (library, _) = many();
    let probes = (0..600).map(|number| format!("{}:many_{number:04o}", library.display()));
    let mut greedy = Process::start(bench.load(example("malloc")).args(probes));
    let attached = greedy.line();
    let count: u64 = attached.strip_prefix("attached ").and_then(|count| count.parse().ok()).expect("some are");
    assert!((100..500).contains(&count), "{attached}");
    let probe = format!("{}:many_0000", library.display());
    let mut modest = bench.counting(&[&probe]);
    let (_, program) = many();
    let mut victim = ready(&mut bench.target(&program));
    victim.say("2");
    victim.line();
    assert_eq!(modest.total(&probe), 2);
    let (_, _, errors) = greedy.finish();
    let words = errors.iter().filter(|line| line.starts_with("ring3: this tool holds ")).collect::<Vec<_>>();
    assert!(words.len() == 1 && words[0].contains("ulimit -n"), "{words:?}");
    let refused = errors.iter().filter(|line| line.contains("Disk quota exceeded")).count() as u64;
    assert!(refused >= 600 - count, "{refused} of {}", 600 - count);
}

/// Its file is analysed while others are served. A probe is there from the first instruction, or when `attach` returns.
#[test]
fn a_large_file_is_analysed_before_its_process_goes_on() {
    let bench = Bench::ring3();
    let binary = bench.victim(victim("large", "gcc", "large.c", &[]));
    let probe = format!("{}:work", binary.display());
    let mut counter = bench.counting(&[&probe]);
    let mut process = ready(&mut bench.target(&binary));
    process.say("go");
    assert_eq!(process.line(), "2000");
    assert_eq!(counter.total(&probe), 2000);
    assert_eq!(process.finish().0, Some(0));
    // Nothing is known of a copy.
    let copy = bench.directory().join("copy");
    std::fs::copy(&binary, &copy).expect("copied");
    let mut process = ready(&mut std::process::Command::new(&copy));
    let pid = process.pid().to_string();
    let probe = format!("{}:work", copy.display());
    let mut counter = bench.counting(&[&probe]);
    let (code, _, error) = bench.run(&["attach", &pid]);
    assert_eq!(code, Some(0), "{error}");
    process.say("go");
    assert_eq!(process.line(), "2000");
    assert_eq!(counter.total(&probe), 1000);
    let (code, _, error) = bench.run(&["detach", "--verify", &pid]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(process.finish().0, Some(0));
}

/// Blocks are for 1024 threads at a time. That further ones are not seen is said, once.
#[test]
fn more_threads_than_there_are_blocks_are_told_of() {
    let victim = victim("crowd", "gcc", "crowd.c", &[]);
    let bench = Bench::ring3();
    let probe = format!("{}:work", victim.display());
    let mut counter = bench.counting(&[&probe]);
    let (code, lines, errors) = Process::start(bench.target(&victim).arg("1000")).finish();
    assert_eq!((code, lines, errors.len()), (Some(0), vec!["1000".to_owned()], 0), "{errors:?}");
    assert_eq!(counter.total(&probe), 1000);
    let (code, lines, errors) = Process::start(bench.target(&victim).arg("1200")).finish();
    assert_eq!((code, lines), (Some(0), vec!["1200".to_owned()]), "{errors:?}");
    let told = errors.iter().filter(|line| line.contains("has more than 1024 threads at a time"));
    assert_eq!(told.count(), 1, "{errors:?}");
    let seen = counter.total(&probe) - 1000;
    assert!((1000..1200).contains(&seen), "{seen}");
}
