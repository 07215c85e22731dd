//! Compares what is read from code with `.eh_frame`.

use std::collections::BTreeMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
    UnwindTableRow, X86_64,
};
use iced_x86::{FlowControl, Instruction, Mnemonic, Register};
use ring3_elf::File;

use super::super::reading::Reading;
use super::super::state::{PRESERVED, State, Value};
use super::super::{Frame, Unknown, frame_at};
use crate::flow::{decode, ends_flow, is_padding};

/// Instructions of a file that are compared, about.
const SPOTS: usize = 20_000;
/// One of so many of them is also looked up as a server would do it.
const LOOKED_UP: usize = 16;
/// The registers of [`PRESERVED`], as DWARF numbers them.
const DWARF: [gimli::Register; 6] = [X86_64::RBX, X86_64::RBP, X86_64::R12, X86_64::R13, X86_64::R14, X86_64::R15];

type Row = UnwindTableRow<usize>;

/// A function that the table describes.
struct Described<'f> {
    code: &'f [u8],
    start: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Default)]
struct Tally {
    right: usize,
    unknown: BTreeMap<String, usize>,
    wrong: Vec<String>,
    /// Instructions that cannot be compared, of all spots of the file.
    skipped: usize,
    spots: usize,
}

impl Tally {
    fn compared(&self) -> usize {
        self.right + self.unknown.values().sum::<usize>() + self.wrong.len()
    }

    fn count(&mut self, at: u64, state: Result<State, Unknown>, frame: Result<Frame, Unknown>, row: &Row) {
        match (state, frame) {
            (Ok(state), Ok(frame)) => match difference(&state, &frame, row) {
                None => self.right += 1,
                Some(why) => self.wrong.push(format!("{at:#x}: {why}")),
            },
            (Err(unknown), _) | (_, Err(unknown)) => {
                *self.unknown.entry(format!("{unknown:?}")).or_default() += 1;
            }
        }
    }
}

/// Compares the functions of a file at evenly distributed instructions.
fn compare(file: &File<'_>) -> Tally {
    let functions = described(file);
    let bytes: usize = functions.iter().map(|function| function.code.len()).sum();
    // (An instruction has some four bytes.)
    let step = (bytes / 4 / SPOTS).max(1);
    let mut tally = Tally::default();
    let mut count = 0;
    for function in &functions {
        let instructions = decode(function.code, function.start);
        let comparable = comparable(&instructions, &function.rows);
        tally.spots += instructions.len();
        tally.skipped += instructions.len() - comparable.len();
        let mut reading = Reading::of(function.code, function.start, function.start).expect("not too long");
        for (at, row) in comparable {
            count += 1;
            if count % step != 0 {
                continue;
            }
            let state = reading.state_at(at);
            let frame = state.and_then(|state| state.frame());
            if count % (step * LOOKED_UP) == 0 {
                assert_eq!(frame_at(function.code, function.start, function.start, at), frame, "{at:#x}");
            }
            tally.count(at, state, frame, row);
        }
    }
    println!("{tally:#?}");
    tally
}

/// The functions that a file's table describes without expressions. (A compiler moves unlikely parts of a function elsewhere;
/// the description of such a part does not begin with the frame of a call.)
fn described<'f>(file: &File<'f>) -> Vec<Described<'f>> {
    let (bytes, address) = file.section(".eh_frame").expect("the file has unwind tables");
    let text = file.section(".text").map_or(0, |(_, address)| address);
    let bases = BaseAddresses::default().set_eh_frame(address).set_text(text);
    let table = EhFrame::new(bytes, LittleEndian);
    let mut entries = table.entries(&bases);
    let mut context = UnwindContext::new();
    let mut found = vec![];
    while let Some(entry) = entries.next().expect("a table") {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("a description");
        let start = fde.initial_address();
        let Some(code) = file.code(start..start + fde.len()).filter(|code| !code.is_empty()) else { continue };
        let mut table = fde.rows(&table, &bases, &mut context).expect("rows");
        let mut rows = vec![];
        while let Some(row) = table.next_row().expect("a row") {
            rows.push(row.clone());
        }
        if is_function(&rows) {
            found.push(Described { code, start, rows });
        }
    }
    found
}

fn is_function(rows: &[Row]) -> bool {
    let is_plain = |register: &RegisterRule<usize>| {
        matches!(register, RegisterRule::Undefined | RegisterRule::SameValue | RegisterRule::Offset(_))
    };
    let is_entry = |row: &Row| *row.cfa() == CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 };
    rows.first().is_some_and(is_entry)
        && rows.iter().all(|row| {
            matches!(row.cfa(), CfaRule::RegisterAndOffset { .. })
                && row.register(X86_64::RA) == RegisterRule::Offset(-8)
                && DWARF.iter().all(|register| is_plain(&row.register(*register)))
        })
}

/// The instructions that can be compared, with their rows. Not padding between parts of a function, which is never executed. And
/// not what follows an instruction that adds a constant to `rsp` in one row that is relative to `rsp`: such a row is wrong. (LLVM
/// schedules the `add` of an epilogue before other instructions, but leaves its row behind them. Hand-written code has pushes
/// without a row.)
fn comparable<'r>(instructions: &[Instruction], rows: &'r [Row]) -> Vec<(u64, &'r Row)> {
    let mut found = vec![];
    let mut is_behind_end = false;
    let mut wrong_until = 0;
    for i in instructions {
        let row = rows.iter().find(|row| row.contains(i.ip())).expect("each address has a row");
        is_behind_end &= is_padding(i);
        if !is_behind_end && i.ip() >= wrong_until {
            found.push((i.ip(), row));
        }
        is_behind_end |= ends_flow(i) || is_call(i);
        let is_relative = matches!(row.cfa(), CfaRule::RegisterAndOffset { register: X86_64::RSP, .. });
        if is_relative && moves_stack(i) && row.contains(i.next_ip()) && !ends_flow(i) {
            wrong_until = row.end_address();
        }
    }
    found
}

fn is_call(i: &Instruction) -> bool {
    matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

fn moves_stack(i: &Instruction) -> bool {
    let computes = matches!(i.mnemonic(), Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea);
    (computes && i.op0_register() == Register::RSP) || (i.stack_pointer_increment() != 0 && !is_call(i))
}

/// Where a frame differs from a row.
fn difference(state: &State, frame: &Frame, row: &Row) -> Option<String> {
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return Some("an expression".into()) };
    let index = DWARF.iter().position(|known| *known == register);
    let base = index.map_or(Register::RSP, |index| PRESERVED[index]);
    if state.value(base) != Value::Cfa(-offset) {
        return Some(format!("CFA = {base:?} + {offset}, but {base:?} = {:?}", state.value(base)));
    }
    (0..PRESERVED.len()).find_map(|index| {
        let rule = row.register(DWARF[index]);
        let is_same = match rule {
            // (If the register still has the value, the word must have it, too.)
            RegisterRule::Offset(offset) => frame.saved[index].or(state.saved[index]) == Some(offset),
            _ => frame.saved[index].is_none(),
        };
        let ours = (frame.saved[index], state.saved[index]);
        (!is_same).then(|| format!("{:?}: {rule:?}, but {ours:?}", PRESERVED[index]))
    })
}

#[test]
fn this_test_is_read_as_its_unwind_tables_say() {
    let bytes = std::fs::read("/proc/self/exe").expect("readable");
    let tally = compare(&File::parse(&bytes).expect("an ELF file"));
    assert!(tally.compared() > SPOTS / 2, "too few to mean anything");
    assert!(tally.skipped * 100 < tally.spots, "too many are skipped");
    assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
    assert!(tally.right * 100 >= tally.compared() * 99, "too few are known: {:?}", tally.unknown);
}

#[test]
fn libc_is_read_as_its_unwind_tables_say() {
    let path = "/lib/x86_64-linux-gnu/libc.so.6";
    let Ok(bytes) = std::fs::read(path) else {
        println!("SKIPPED: no {path} here");
        return;
    };
    let tally = compare(&File::parse(&bytes).expect("an ELF file"));
    assert!(tally.compared() > SPOTS / 2, "too few to mean anything");
    // (Other versions may have other hand-written functions: glibc 2.36 has none that is read wrongly, and 3.2 % are skipped.)
    assert!(tally.skipped * 100 < tally.spots * 5, "too many are skipped");
    assert!(tally.wrong.len() * 1000 <= tally.compared(), "{:#?}", tally.wrong);
    assert!(tally.right * 100 >= tally.compared() * 99, "too few are known: {:?}", tally.unknown);
}
