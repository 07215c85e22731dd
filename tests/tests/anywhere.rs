//! Probes on every instruction of functions that indirect jumps, the unwinder and loops lead into: what a probe is
//! accepted for is unchanged and counted as the kernel counts it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use iced_x86::{Decoder, DecoderOptions};
use ring3_tests::{Bench, Process, example, go_victims, is_root, ready, victim};

const FUNCTIONS: [&str; 9] = [
    "cases",
    "unrolled",
    "pointers",
    "distances",
    "thrown",
    "loops",
    "main.(*box).framed",
    "main.(*box).leaf",
    "main.divided",
];
/// Probes of one run are this far apart, so that each is judged by itself.
const APART_BYTES: u64 = 24;
const ROUNDS: &str = "200";

/// All instructions of the functions, by file offset; true: the kernel accepts a probe there and never runs it, since
/// the instruction has a prefix that it cannot step over (`is_prefix_bad`, arch/x86/kernel/uprobes.c).
fn instructions(binary: &Path) -> BTreeMap<u64, bool> {
    const BAD_PREFIXES: [u8; 5] = [0x26, 0x2e, 0x36, 0x3e, 0xf0];
    let bytes = std::fs::read(binary).expect("the victim is readable");
    let elf = ring3_elf::File::parse(&bytes).expect("an ELF file");
    let mut found = BTreeMap::new();
    for symbol in elf.symbols().iter().filter(|symbol| FUNCTIONS.contains(&symbol.name)) {
        let code = elf.code(symbol.address..symbol.address + symbol.size).expect("the file has it");
        for instruction in &mut Decoder::with_ip(64, code, symbol.address, DecoderOptions::NONE) {
            let first = code[(instruction.ip() - symbol.address) as usize];
            let offset = elf.vaddr_to_offset(instruction.ip()).expect("in the file");
            found.insert(offset, BAD_PREFIXES.contains(&first));
        }
    }
    found
}

fn has_function(binary: &Path, name: &str) -> bool {
    let bytes = std::fs::read(binary).expect("the victim is readable");
    ring3_elf::File::parse(&bytes).expect("an ELF file").find(name).is_some()
}

/// The same in groups whose members are far enough apart.
fn groups(offsets: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let mut groups: Vec<Vec<u64>> = vec![];
    for offset in offsets {
        match groups.iter_mut().find(|group| group.last().is_some_and(|last| last + APART_BYTES <= offset)) {
            Some(group) => group.push(offset),
            None => groups.push(vec![offset]),
        }
    }
    groups
}

/// What the victim prints under probes, and the count of each probe that was accepted.
fn counted(bench: &Bench, binary: &Path, offsets: &[u64]) -> (String, BTreeMap<u64, u64>) {
    let prefix = format!("{}:0x", binary.display());
    let names: Vec<String> = offsets.iter().map(|offset| format!("{prefix}{offset:x}")).collect();
    // (So the tool has a probe even if all others are refused.)
    let first =
        ["main", "main.main"].into_iter().find(|name| has_function(binary, name)).expect("it has a main function");
    let first = format!("{}:{first}", binary.display());
    let mut tool = Process::start(bench.load(example("malloc")).arg(&first).args(&names));
    assert!(tool.line().starts_with("attached"));
    let mut process = ready(&mut bench.target(binary));
    process.say(ROUNDS);
    let printed = process.line_or_end().unwrap_or_default();
    let (code, rest, errors) = process.finish();
    assert_eq!((code, rest.len(), errors.len()), (Some(0), 0, 0), "the victim with probes at {names:?}: {errors:?}");
    let (_, lines, errors) = tool.finish();
    let offset_of = |name: &str| u64::from_str_radix(name.strip_prefix(&prefix)?, 16).ok();
    let mut counts: BTreeMap<u64, u64> = offsets.iter().map(|offset| (*offset, 0)).collect();
    for line in &errors {
        let name = line.strip_prefix("malloc: ").and_then(|rest| Some(rest.rsplit_once(": ")?.0));
        if let Some(offset) = name.and_then(offset_of) {
            counts.remove(&offset);
        }
    }
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        if let [_, name, count] = words[..]
            && let Some(offset) = offset_of(name)
        {
            *counts.get_mut(&offset).expect("only accepted probes count") += count.parse::<u64>().expect("a count");
        }
    }
    (printed, counts)
}

/// All instructions of the victim that `compiler` makes.
fn check(name: &str, compiler: &str, flags: &[&str]) {
    check_binary(victim(&format!("jumps-{name}"), compiler, "jumps.c", &[&["-w"], flags].concat()), 100);
}

/// All instructions of the functions in a victim, of which `percent_min` at least are accepted.
fn check_binary(binary: PathBuf, percent_min: usize) {
    let bench = Bench::ring3();
    let binary = bench.victim(binary);
    let name = binary.display().to_string();
    let instructions = instructions(&binary);
    let mut plain = ready(&mut std::process::Command::new(&binary));
    plain.say(ROUNDS);
    let expected = plain.line();
    plain.finish();
    let mut accepted = BTreeMap::new();
    let groups = groups(instructions.keys().copied());
    for group in &groups {
        let (printed, counts) = counted(&bench, &binary, group);
        assert_eq!(printed, expected, "the victim with probes at {group:x?}");
        accepted.extend(counts);
    }
    println!("{name}: probes on {} of {} instructions", accepted.len(), instructions.len());
    assert!(accepted.len() * 100 >= instructions.len() * percent_min, "nearly all are refused");
    if is_root() {
        // (The kernel takes a tenth of a second for each.)
        let native = Bench::native();
        let (printed, counts) = counted(&native, &native.victim(binary), &groups[0]);
        assert_eq!(printed, expected, "on the kernel");
        for (offset, count) in counts {
            let is_lost = count == 0 && instructions[&offset];
            assert!(
                is_lost || accepted.get(&offset).is_none_or(|accepted| *accepted == count),
                "{name}+{offset:#x}: {count} on the kernel, {:?} under ring3",
                accepted.get(&offset)
            );
        }
    } else {
        println!("SKIPPED IN PART: the native half needs root");
    }
}

#[test]
fn any_instruction_of_code_for_any_address_can_be_probed() {
    check("0", "gcc", &["-O0"]);
    check("2", "gcc", &["-O2"]);
    check("s", "gcc", &["-Os"]);
}

#[test]
fn any_instruction_of_code_for_fixed_addresses_can_be_probed() {
    check("fixed", "gcc", &["-O2", "-fno-pic", "-no-pie"]);
    check("static", "gcc", &["-O2", "-fno-pic", "-static"]);
}

#[test]
fn any_instruction_of_code_with_marked_targets_can_be_probed() {
    check("marked", "gcc", &["-O2", "-fcf-protection=full"]);
}

#[test]
fn any_instruction_of_code_with_exceptions_can_be_probed() {
    check("cxx0", "g++", &["-O0", "-xc++"]);
    check("cxx2", "g++", &["-O2", "-xc++"]);
}

#[test]
fn any_instruction_of_another_compilers_code_can_be_probed() {
    check("clang0", "clang", &["-O0"]);
    check("clang2", "clang", &["-O2"]);
    check("clangfixed", "clang", &["-O2", "-fno-pic", "-no-pie"]);
    check("clangxx", "clang++", &["-O2", "-xc++"]);
}

#[test]
fn any_instruction_of_code_in_go_can_be_probed() {
    if let Some(directory) = go_victims() {
        // (A division may fault where Go would not know it.)
        check_binary(directory.join("panicking"), 97);
    }
}
