//! The instruction set on every engine, and on the kernel: the same programs, the same results.

#[path = "calls/raw_bpf.rs"]
mod raw_bpf;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

use ring3_interp::{Fault, Host, Memory};
use ring3_isa::code::BPF_LD_IMM64;
use ring3_isa::{Insn, assemble, encode};
use ring3_run::Runner;
use ring3_tests::{hexadecimal, is_root, ring3, root};
use ring3_uapi::attr::{map_create, map_elem, prog_load, test_run};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_uapi::flags::BPF_F_SLEEPABLE;
use ring3_uapi::helper;
use ring3_verifier::{Input, Policy, Verified, verify};

use raw_bpf::{Attr, address, bpf};

/// A program for some memory that r1 leads to.
struct Case {
    title: String,
    text: String,
    memory: Vec<u8>,
    /// r0.
    expected: u64,
}

fn corpus(name: &str) -> String {
    let path = root().join("tests/corpus/engine").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn number(text: &str) -> u64 {
    let digits = text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    digits.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("{text} is no number"))
}

/// A row of a table: two sides and the result.
type Row = [u64; 3];

/// The tables' rows by width and operation.
fn table(name: &str) -> BTreeMap<(u32, String), Vec<Row>> {
    let mut rows: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for line in corpus(name).lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [width, operation, rest @ ..] = words.as_slice() else { panic!("{line}") };
        let row = rest.iter().map(|text| number(text)).collect::<Vec<u64>>().try_into().expect("three numbers");
        rows.entry((number(width) as u32, (*operation).to_owned())).or_default().push(row);
    }
    rows
}

/// The number as a constant of an instruction of this width, if it can be one.
fn as_constant(value: u64, width: u32) -> Option<i64> {
    let signed = if width == 64 { value as i64 } else { i64::from(value as u32 as i32) };
    i32::try_from(signed).ok().map(i64::from)
}

/// A program that does all rows of an operation with numbers that it reads, by register and by constant: r0 is 0, or the
/// number of the first row that is wrong, counted from 1.
fn case_of(kind: &str, width: u32, operation: &str, rows: &[Row]) -> Case {
    let (mut text, mut memory) = ("r6 = r1\n".to_owned(), vec![]);
    let letter = if width == 64 { 'r' } else { 'w' };
    let shift = matches!(operation, "<<=" | ">>=" | "s>>=");
    let divides = matches!(operation, "/=" | "s/=" | "%=" | "s%=");
    for (index, row) in rows.iter().enumerate() {
        memory.extend(row.iter().flat_map(|word| word.to_le_bytes()));
        let constant = as_constant(row[1], width)
            .filter(|constant| !(shift && !(0..i64::from(width)).contains(constant) || divides && *constant == 0));
        let sides = [Some(format!("{letter}3")), constant.map(|constant| constant.to_string())];
        for (form, right) in sides.into_iter().flatten().enumerate() {
            let at = index * size_of::<Row>();
            let load = |register: u8, word: usize| format!("r{register} = *(u64 *)(r6 +{})\n", at + word * 8);
            text += &load(2, 0);
            text += &load(3, 1);
            text += &load(4, 2);
            let _ = match kind {
                "operations" => writeln!(text, "{letter}2 {operation} {right}"),
                _ => writeln!(
                    text,
                    "if {letter}2 {operation} {right} goto yes{index}_{form}\nr2 = 0\ngoto on{index}_{form}\n\
                     yes{index}_{form}:\nr2 = 1\non{index}_{form}:"
                ),
            };
            let _ = writeln!(text, "r0 = {}\nif r2 != r4 goto end", index + 1);
        }
    }
    text += "r0 = 0\nend:\nexit\n";
    Case { title: format!("{operation} of {width} bits"), text, memory, expected: 0 }
}

fn tables() -> impl Iterator<Item = Case> {
    ["operations", "conditions"].into_iter().flat_map(|kind| {
        let rows = table(kind).into_iter();
        rows.map(move |((width, operation), rows)| case_of(kind, width, &operation, &rows))
    })
}

fn programs() -> Vec<Case> {
    let text = corpus("programs");
    let cases = text.split("\ncase: ").skip(1).map(|case| {
        let (title, text) = case.split_once('\n').expect("a title and a program");
        let memory = text.strip_prefix("memory: ").and_then(|rest| rest.split_once('\n'));
        let (memory, text) = memory.map_or((vec![], text), |(memory, text)| (hexadecimal(memory), text));
        Case { title: title.to_owned(), text: text.to_owned(), memory, expected: 1 }
    });
    cases.collect()
}

impl Case {
    fn insns(&self) -> Vec<Insn> {
        assemble(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.title))
    }

    fn verified(&self) -> Verified {
        let input = Input {
            insns: &self.insns(),
            prog_type: prog_type::SYSCALL,
            gpl_compatible: true,
            sleepable: false,
            cpus: 1,
            policy: Policy::memory(self.memory.len() as u32),
            log_level: 1,
            lines: vec![],
            map_by_fd: &|_| None,
            map_by_index: &|_| None,
            constant_value: &|_| None,
        };
        verify(&input).unwrap_or_else(|report| panic!("{}: {}", self.title, report.log))
    }

    fn interpreted(&self) -> u64 {
        let mut memory = Memory::default();
        memory.add(MEMORY_AT, self.memory.clone());
        let at = if self.memory.is_empty() { 0 } else { MEMORY_AT };
        ring3_interp::run(&self.verified(), at, &mut memory, &mut Clock, 1 << 32).expect("no fault")
    }

    fn compiled(&self) -> u64 {
        let program = self.verified();
        let code = ring3_jit::compile(&program, &ring3_jit::Options::default()).expect("it compiles");
        let mut runner = Runner::new(1).expect("this machine runs programs");
        let loaded = runner.load(&program, &code).expect("there is room");
        runner.run(loaded, &mut self.memory.clone(), 1).expect("this thread is free").result
    }

    /// On the kernel, where the memory is a map's value.
    fn native(&self) -> u64 {
        let map = (!self.memory.is_empty()).then(|| {
            let mut attr = Attr::new()
                .with(map_create::MAP_TYPE, map_type::ARRAY.into())
                .with(map_create::KEY_SIZE, 4)
                .with(map_create::VALUE_SIZE, self.memory.len() as u64)
                .with(map_create::MAX_ENTRIES, 1);
            let map = owned(bpf(cmd::MAP_CREATE, &mut attr).expect("a map"));
            let mut attr = Attr::new()
                .with(map_elem::MAP_FD, map.as_raw_fd() as u64)
                .with(map_elem::KEY, address(&0u32))
                .with(map_elem::VALUE, address(self.memory.as_slice()));
            bpf(cmd::MAP_UPDATE_ELEM, &mut attr).expect("a value");
            map
        });
        let mut insns = vec![];
        if let Some(map) = &map {
            const PSEUDO_MAP_VALUE: u8 = 2;
            insns.push(Insn::new(BPF_LD_IMM64, 1, PSEUDO_MAP_VALUE, 0, map.as_raw_fd()));
            insns.push(Insn::new(0, 0, 0, 0, 0));
        }
        insns.extend(self.insns());
        let (code, mut log) = (encode(&insns), vec![0u8; 1 << 20]);
        let mut attr = Attr::new()
            .with(prog_load::PROG_TYPE, prog_type::SYSCALL.into())
            .with(prog_load::INSN_CNT, insns.len() as u64)
            .with(prog_load::INSNS, address(code.as_slice()))
            .with(prog_load::LICENSE, address(c"GPL".to_bytes_with_nul()))
            .with(prog_load::PROG_FLAGS, BPF_F_SLEEPABLE.into())
            .with(prog_load::LOG_LEVEL, 1)
            .with(prog_load::LOG_SIZE, log.len() as u64)
            .with(prog_load::LOG_BUF, log.as_mut_ptr() as u64);
        let program = bpf(cmd::PROG_LOAD, &mut attr);
        let program =
            program.unwrap_or_else(|error| panic!("{}: {error:?} {}", self.title, String::from_utf8_lossy(&log)));
        let program = owned(program);
        let mut attr = Attr::new().with(test_run::PROG_FD, program.as_raw_fd() as u64);
        bpf(cmd::PROG_TEST_RUN, &mut attr).expect("it runs");
        attr.get(test_run::RETVAL)
    }
}

/// Where the interpreter has memory.
const MEMORY_AT: u64 = 0x1000_0000;

/// The only helper that programs of the corpus call.
struct Clock;

impl Host for Clock {
    fn call(&mut self, id: u32, _: [u64; 5], _: &mut Memory) -> Result<u64, Fault> {
        if id == helper::KTIME_GET_NS { Ok(1) } else { Err(Fault::UnknownHelper(id)) }
    }

    fn map(&self, _: u32, _: Option<u32>) -> u64 {
        0
    }
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the call that gave the number made the descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Runs all cases; those that give something else.
fn check(engine: impl Fn(&Case) -> u64) {
    let cases: Vec<Case> = tables().chain(programs()).collect();
    assert!(cases.len() > 60, "{} cases", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let given = engine(case);
            (given != case.expected).then(|| format!("{}: r0 is {given}, not {}", case.title, case.expected))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{} programs", cases.len());
}

#[test]
fn the_interpreter_does_the_corpus() {
    check(Case::interpreted);
}

#[test]
fn compiled_code_does_the_corpus() {
    check(Case::compiled);
}

#[test]
fn the_kernel_does_the_corpus() {
    if !is_root() {
        return println!("SKIPPED: BPF_PROG_TEST_RUN needs root");
    }
    check(Case::native);
}

/// `RING3_CONFORMANCE` names the folder of bpf_conformance's cases; without it one beside the repository is taken.
#[test]
fn conformance_cases_pass_on_every_engine() {
    let folder =
        std::env::var_os("RING3_CONFORMANCE").map_or_else(|| root().join("../shared/conformance"), PathBuf::from);
    if !folder.is_dir() {
        return println!("SKIPPED: no folder of bpf_conformance's cases (RING3_CONFORMANCE)");
    }
    assert!(ring3().exists(), "built by `make build`");
    for engine in ["interp", "jit"] {
        let mut command = Command::new(env!("CARGO"));
        command.args(["run", "--quiet", "-p", "xtask", "--", "conformance"]).arg(&folder).args(["--engine", engine]);
        let output = command.current_dir(root()).output().expect("cargo runs");
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{engine}: {}", text.lines().last().unwrap_or_default());
        assert!(output.status.success(), "{engine}:\n{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}
