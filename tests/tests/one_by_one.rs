//! Links that a tool makes one after the other while a target runs: mostly only the new one is looked at. Whatever else may have
//! changed has to be seen all the same.

use std::path::{Path, PathBuf};

use ring3_tests::{Bench, Process, assert_text_is_as_in_its_files, ready, shapes, victim};

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

fn attach(bench: &Bench, process: &Process) {
    let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
}

/// How often all links were looked at in the only target.
fn looks(bench: &Bench) -> u64 {
    bench.status()["targets"][0]["looks"].as_u64().expect("a target")
}

fn library_of_many() -> (PathBuf, PathBuf) {
    let library = victim("libmany.so", "gcc", "many.c", &["-DLIBRARY", "-shared", "-fPIC"]);
    let path = library.to_str().expect("a plain name").to_owned();
    (library, victim("many", "gcc", "many.c", &["-Wl,--no-as-needed", &path]))
}

/// Probes on a running victim of many shapes; what it says, and the counts.
fn counted(what: &str, n: u32, probes: &[&str]) -> (String, Vec<u64>) {
    let bench = Bench::ring3();
    let binary = bench.victim(shapes());
    let names: Vec<String> = probes.iter().map(|probe| format!("{}:{probe}", binary.display())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut victim = ready(bench.command(&binary).args([what, &n.to_string()]));
    attach(&bench, &victim);
    let mut counter = bench.counting(&names);
    victim.say("go");
    let result = victim.line();
    let counts = names.iter().map(|name| counter.total(name)).collect();
    drop(counter);
    let (code, rest, errors) = victim.finish();
    assert_eq!((code, rest.len(), errors.len()), (Some(0), 0, 0), "{errors:?}");
    (result, counts)
}

#[test]
fn a_new_link_alone_does_not_have_all_others_looked_at() {
    const COUNT: u64 = 400;
    let bench = Bench::ring3();
    let (library, program) = library_of_many();
    let mut victim = ready(&mut bench.command(&program));
    attach(&bench, &victim);
    // (Every other function, so that none is near another.)
    let probes = (0..COUNT).map(|number| format!("{}:many_{:04o}", library.display(), 2 * number));
    let probes: Vec<String> = probes.collect();
    let mut counter = bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>());
    // (The first one brings maps. What else may want a look comes seldom.)
    assert!(looks(&bench) < COUNT / 10, "{} looks for {COUNT} links", looks(&bench));
    victim.say("3");
    victim.line();
    let counts = counter.report();
    assert!(counts.len() as u64 == COUNT && counts.values().all(|count| *count == 3), "{counts:?}");
    // A second tool's programs run at the same places.
    let mut second = bench.counting(&[&probes[7]]);
    victim.say("2");
    victim.line();
    assert_eq!((second.total(&probes[7]), counter.total(&probes[7]), counter.total(&probes[8])), (2, 5, 5));
    drop((counter, second));
    assert_eq!(bench.run(&["detach", &victim.pid().to_string()]).0, Some(0));
    assert_text_is_as_in_its_files(victim.pid());
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_probe_near_another_is_planned_together_with_it() {
    // lea 2(%rdi,%rdi,2),%rax; ret: `ret` is in the bytes that follow the jump, and in its way if it is a punned one.
    let (library, program) = library_of_many();
    let bytes = std::fs::read(&library).expect("readable");
    let elf = ring3_elf::File::parse(&bytes).expect("an ELF file");
    let offset = |name: &str| elf.find(name).and_then(|address| elf.vaddr_to_offset(address)).expect("it is there");
    let at = |name: &str, inside: u64| format!("{}:{:#x}", library.display(), offset(name) + inside);
    let (first, behind) = ("many_0100", "many_0101");
    let spots = [at(first, 0), at(first, 5), at(behind, 0), at(behind, 5)];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 3, 1]] {
        let bench = Bench::ring3();
        let mut victim = ready(&mut bench.command(&program));
        attach(&bench, &victim);
        let probes = order.map(|spot| spots[spot].as_str());
        let mut counter = bench.counting(&probes);
        victim.say("3");
        victim.line();
        assert_eq!(probes.map(|probe| counter.total(probe)), [3; 4], "{order:?}");
        drop(counter);
        assert_eq!(victim.finish().0, Some(0));
    }
}

#[test]
fn the_first_return_probe_of_a_running_process_has_its_unwinders_known() {
    let probes = ["through", "plain", "through:ret", "thrower:ret"];
    let (result, counts) = counted("exceptions", 300, &probes);
    assert_eq!((result.as_str(), counts.as_slice()), ("100", [300, 0, 200, 200].as_slice()));
}

#[test]
fn threads_and_forks_of_a_running_process_are_counted() {
    assert_eq!(counted("forks", 20, &["plain", "plain:ret"]), ("20".to_owned(), vec![100, 100]));
    let probes = ["carrier", "carrier:ret", "wanderer", "wanderer:ret"];
    assert_eq!(counted("wander", 200, &probes), ("1200".to_owned(), vec![1200, 1200, 2400, 2400]));
}

#[test]
fn a_fork_that_nobody_knows_yet_gets_the_link_too() {
    let bench = Bench::ring3();
    let script = "echo ready; read -r a; ( echo forked; read -r b; echo $b ); read -r c; echo $c";
    let mut parent = ready(bench.command("bash").args(["-c", script]));
    attach(&bench, &parent);
    // Nobody calls that; the process has what tools need from now on.
    let unused = bench.counting(&[&format!("{LIBC}:qsort")]);
    parent.say("a");
    assert_eq!(parent.line(), "forked");
    let probe = format!("{LIBC}:read");
    let mut counter = bench.counting(&[&probe]);
    parent.say("child");
    assert_eq!(parent.line(), "child");
    parent.say("parent");
    assert_eq!(parent.line(), "parent");
    let report = counter.report();
    let (own, others): (Vec<_>, Vec<_>) = report.keys().partition(|(pid, _)| *pid == parent.pid());
    assert_eq!((own.len(), others.len()), (1, 1), "{report:?}");
    drop((counter, unused));
    assert_eq!(parent.finish().0, Some(0));
}

#[test]
fn code_that_was_mapped_since_the_last_link_gets_the_next_one() {
    let (library, _) = library_of_many();
    let bench = Bench::ring3();
    let opener = victim("opener", "gcc", "opener.c", &[]);
    let mut process = ready(bench.command(&opener).arg(&library));
    attach(&bench, &process);
    let unused = bench.counting(&[&format!("{LIBC}:qsort")]);
    process.say("");
    assert_eq!(process.line(), "opened");
    let counter = bench.counting(&[&format!("{}:many_0007", library.display())]);
    let status = bench.status();
    let sites = status["targets"][0]["sites"].as_array().expect("a target").clone();
    let is_there = |site: &serde_json::Value| Path::new(site["module"].as_str().unwrap_or_default()) == library;
    assert_eq!(sites.iter().filter(|site| is_there(site)).count(), 1, "{sites:?}");
    drop((counter, unused));
    assert_eq!(process.finish().0, Some(0));
}

#[test]
fn code_that_was_mapped_unseen_gets_earlier_links_with_the_next_one() {
    let (library, program) = library_of_many();
    let bench = Bench::ring3();
    let mut victim = ready(&mut bench.command(&program));
    attach(&bench, &victim);
    let probe = format!("{}:many_0010", library.display());
    let mut counter = bench.counting(&[&probe]);
    let settles = bench.counting(&[&format!("{LIBC}:qsort")]);
    // The process maps the library itself once more, and calls each function twice then.
    victim.say("map");
    victim.line();
    let unused = bench.counting(&[&format!("{LIBC}:bsearch")]);
    victim.say("3");
    victim.line();
    assert_eq!(counter.total(&probe), 6);
    drop((counter, settles, unused));
    assert_eq!(victim.finish().0, Some(0));
}
