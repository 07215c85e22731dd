//! Links to many uprobes (`BPF_TRACE_UPROBE_MULTI`), under ring3 and on the kernel.

use std::path::{Path, PathBuf};

use ring3_elf::File;
use ring3_tests::{Bench, Process, on_both, programs, ready, victim, wait_until};

fn marked() -> PathBuf {
    victim("marked", "gcc", "marked.c", &[])
}

/// The offset of a symbol in a file, as the tool takes it.
fn offset(file: &Path, symbol: &str) -> String {
    let bytes = std::fs::read(file).expect("readable");
    let elf = File::parse(&bytes).expect("an ELF file");
    let vaddr = elf.find(symbol).or_else(|| elf.find_variable(symbol)).unwrap_or_else(|| panic!("{symbol}"));
    format!("{:x}", elf.vaddr_to_offset(vaddr).expect("in the file"))
}

/// The tool with its link to places of a file, and what it says first.
fn tool(bench: &Bench, pid: u32, ret: bool, file: &Path, places: &[String]) -> (Process, String) {
    let mut command = bench.load(programs().join("multi"));
    command.args([pid.to_string(), u32::from(ret).to_string()]).arg(file).args(places);
    let mut tool = Process::start(&mut command);
    let said = tool.line();
    (tool, said)
}

fn answers(victim: &mut Process, lines: &[&str]) -> Vec<String> {
    let answer = |line: &&str| {
        victim.say(line);
        victim.line()
    };
    lines.iter().map(answer).collect()
}

fn seen(tool: &mut Process, places: usize) -> Vec<String> {
    tool.say("show");
    (0..places).map(|_| tool.line()).collect()
}

const CALLS: [&str; 4] = ["guarded 3", "shared 4", "open 5", "brief 6"];
const FUNCTIONS: [&str; 5] = ["guarded", "shared", "open_to_all", "brief", "guarded"];

#[test]
fn each_place_has_its_cookie_and_its_address() {
    on_both(|bench| {
        let file = bench.victim(marked());
        let places = FUNCTIONS.map(|function| offset(&file, function));
        for ret in [false, true] {
            // The one that comes first sees all processes, the other one a single process.
            let (mut all, said) = tool(bench, 0, ret, &file, &places);
            assert_eq!(said, "attached");
            let mut victim = ready(&mut bench.target(&file));
            let mut other = ready(&mut bench.target(&file));
            let (mut one, said) = tool(bench, victim.pid(), ret, &file, &places);
            assert_eq!(said, "attached");
            assert_eq!(answers(&mut victim, &CALLS), ["0", "0", "5", "6"]);
            assert_eq!(answers(&mut other, &CALLS[..1]), ["0"]);
            assert_eq!(seen(&mut all, 5), ["6 there", "4 there", "5 there", "6 there", "6 there"], "return: {ret}");
            assert_eq!(seen(&mut one, 5), ["3 there", "4 there", "5 there", "6 there", "3 there"], "return: {ret}");
            assert_eq!((one.finish().0, all.finish().0), (Some(0), Some(0)));
        }
    });
}

#[test]
fn counters_are_up_while_the_link_is_there() {
    on_both(|bench| {
        let file = bench.victim(marked());
        let place = |function: &str, counter: &str| format!("{}:{}", offset(&file, function), offset(&file, counter));
        // (The kernel asks nobody whether the place looks at the counter.)
        let places = [
            place("guarded", "guarded_semaphore"),
            place("shared", "shared_semaphore"),
            place("brief", "shared_semaphore"),
        ];
        let mut victim = ready(&mut bench.target(&file));
        let (mut tool, said) = tool(bench, victim.pid(), false, &file, &places);
        assert_eq!(said, "attached");
        assert_eq!(answers(&mut victim, &["semaphores", "guarded 3"]), ["1 2", "3"]);
        assert_eq!(seen(&mut tool, 1), ["3 there"]);
        drop(tool);
        wait_until("the counters are down", || answers(&mut victim, &["semaphores"]) == ["0 0"]);
    });
}

#[test]
fn a_link_is_made_to_all_places_or_to_none() {
    const ENOTSUPP: &str = "refused: 524";
    on_both(|bench| {
        let file = bench.victim(marked());
        let counted = format!("{}:{}", offset(&file, "guarded"), offset(&file, "guarded_semaphore"));
        let places = [counted, offset(&file, "open_to_all"), offset(&file, "barred")];
        let mut victim = ready(&mut bench.target(&file));
        let (_, said) = tool(bench, victim.pid(), false, &file, &places);
        assert_eq!(said, ENOTSUPP);
        assert_eq!(answers(&mut victim, &["semaphores", "open 2"]), ["0 0", "2"]);
        let (mut tool, said) = tool(bench, victim.pid(), false, &file, &places[..2]);
        assert_eq!(said, "attached");
        assert_eq!(answers(&mut victim, &["semaphores", "open 2"]), ["1 0", "2"]);
        assert_eq!(seen(&mut tool, 2)[1], "2 there");
    });
}
