//! The compact tables say for each instruction what `gimli`, which interprets the same information, says.

use std::collections::BTreeMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
    X86_64,
};
use ring3_elf::File;
use ring3_unwind::{Registers, Rule, Step, Table, caller};

/// Some stack, which holds another word at each address.
fn word(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17
}

const RBP: u64 = 0x7fff_1234_5000;
const RSP: u64 = 0x7fff_1234_4000;
const RBX: u64 = 0x7fff_1234_6000;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The value of an expression; `None` if it needs a register that is not followed.
fn evaluate(expression: gimli::Expression<Slice<'_>>, rip: u64) -> Option<u64> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 1 };
    let mut evaluation = expression.evaluation(encoding);
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            gimli::EvaluationResult::Complete => break,
            gimli::EvaluationResult::RequiresRegister { register, .. } => {
                let value = match register {
                    X86_64::RSP => RSP,
                    X86_64::RBP => RBP,
                    X86_64::RBX => RBX,
                    X86_64::RA => rip,
                    _ => return None,
                };
                evaluation.resume_with_register(gimli::Value::Generic(value)).ok()?
            }
            gimli::EvaluationResult::RequiresMemory { address, .. } => {
                evaluation.resume_with_memory(gimli::Value::Generic(word(address))).ok()?
            }
            _ => return None,
        };
    }
    let pieces = evaluation.result();
    match pieces.first()?.location {
        gimli::Location::Address { address } => Some(address),
        gimli::Location::Value { value } => value.to_u64(u64::MAX).ok(),
        _ => None,
    }
}

/// What a row means for these registers: the return address, the CFA, `rbp` and `rbx` of the caller.
fn meaning(table: &EhFrame<Slice<'_>>, row: &gimli::UnwindTableRow<usize>, rip: u64) -> Option<[u64; 4]> {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let base = match *register {
                X86_64::RSP => RSP,
                X86_64::RBP => RBP,
                X86_64::RBX => RBX,
                _ => return None,
            };
            base.wrapping_add_signed(*offset)
        }
        CfaRule::Expression(expression) => evaluate(expression.get(table).ok()?, rip)?,
    };
    let value = |register, now: u64| match row.register(register) {
        RegisterRule::Undefined | RegisterRule::SameValue => Some(now),
        RegisterRule::Offset(offset) => Some(word(cfa.wrapping_add_signed(offset))),
        RegisterRule::Expression(expression) => evaluate(expression.get(table).ok()?, rip).map(word),
        _ => None,
    };
    let ra = match row.register(X86_64::RA) {
        RegisterRule::Undefined => None,
        _ => value(X86_64::RA, 0),
    };
    Some([ra?, cfa, value(X86_64::RBP, RBP)?, value(X86_64::RBX, RBX)?])
}

fn by_table(table: &Table<'_>, start: u64, rip: u64) -> (Rule, Option<[u64; 4]>) {
    let rule = table.find(rip - start);
    let registers = Registers { rip, rsp: RSP, rbp: Some(RBP), rbx: Some(RBX) };
    let found = match caller(&rule, &registers, |at| Some(word(at))) {
        Step::Caller(of) | Step::Interrupted(of) => of.rbp.zip(of.rbx).map(|(rbp, rbx)| [of.rip, of.rsp, rbp, rbx]),
        Step::End | Step::Unknown => None,
    };
    (rule, found)
}

/// Compares all instructions' addresses; how many there were, and how many have no answer.
fn compare(path: &str) -> (usize, usize) {
    let data = std::fs::read(path).expect("it is there");
    let file = File::parse(&data).expect("it is valid");
    let made = file.unwind_table().expect("it has one");
    let compact = Table::of(&made.bytes).expect("a table");
    let (bytes, address) = file.section(".eh_frame").expect("it has one");
    let table = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut context = UnwindContext::new();
    let (mut all, mut unanswered) = (0, 0);
    let mut entries = table.entries(&bases);
    let mut described: BTreeMap<u64, u64> = BTreeMap::new();
    while let Some(entry) = entries.next().expect("valid") {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("valid");
        described.insert(fde.initial_address(), fde.initial_address() + fde.len());
        let mut rows = fde.rows(&table, &bases, &mut context).expect("valid");
        while let Some(row) = rows.next_row().expect("valid") {
            for rip in row.start_address()..row.end_address() {
                let (rule, found) = by_table(&compact, made.start, rip);
                let expected = meaning(&table, row, rip);
                all += 1;
                match found {
                    Some(found) => assert_eq!(Some(found), expected, "{path}: {rip:#x}, {rule:?}"),
                    None => {
                        assert_ne!(rule.kind, Rule::NONE, "{path}: {rip:#x} is described");
                        unanswered += usize::from(expected.is_some());
                    }
                }
            }
        }
    }
    // What no function's description covers has no rule.
    let mut done = made.start;
    for (start, end) in described {
        (done..start).for_each(|rip| assert_eq!(by_table(&compact, made.start, rip).0.kind, Rule::NONE, "{rip:#x}"));
        done = done.max(end);
    }
    println!("{path}: {all} addresses, {} bytes, {unanswered} without an answer", made.bytes.len());
    (all, unanswered)
}

#[test]
fn every_instruction_has_the_rule_that_the_unwind_information_gives_it() {
    let own = std::env::current_exe().expect("it is known");
    let files = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        own.to_str().expect("its name is text"),
    ];
    for path in files {
        let (all, unanswered) = compare(path);
        assert!(all > 10_000 && unanswered * 10_000 < all, "{path}: {unanswered} of {all} have no answer");
    }
}

#[test]
fn a_signal_frame_and_a_linkage_table_are_understood() {
    let data = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("it is there");
    let file = File::parse(&data).expect("it is valid");
    let made = file.unwind_table().expect("it has one");
    let compact = Table::of(&made.bytes).expect("a table");
    let kinds: Vec<u8> =
        (0..file.executable_segments()[0].end - made.start).map(|offset| compact.find(offset).kind).collect();
    for kind in [Rule::SIGNAL, Rule::LINKAGE, Rule::PLAIN, Rule::END] {
        assert!(kinds.contains(&kind), "{kind}");
    }
}

/// An ELF file whose only segment has this `.eh_frame`, at address 0x1000.
fn file_with(eh_frame: &[u8]) -> Vec<u8> {
    const AT: u64 = 0x1000;
    let names = b"\0.eh_frame\0.shstrtab\0";
    let names_at = AT + eh_frame.len() as u64;
    let sections_at = (names_at + names.len() as u64).next_multiple_of(8);
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let words = |file: &mut Vec<u8>, words: &[u64]| words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    let halves = |file: &mut Vec<u8>, halves: &[u16]| halves.iter().for_each(|half| file.extend(half.to_le_bytes()));
    halves(&mut file, &[3, 62, 1, 0]);
    words(&mut file, &[AT, 64, sections_at]);
    halves(&mut file, &[0, 0, 64, 56, 1, 64, 3, 2]);
    // PT_LOAD, readable and executable.
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    words(&mut file, &[AT, AT, AT, names_at - AT, names_at - AT, 0x1000]);
    file.resize(AT as usize, 0);
    file.extend(eh_frame);
    file.extend(names);
    file.resize(sections_at as usize + 64, 0);
    for (name, kind, at, bytes) in [(1u32, 1u32, AT, eh_frame.len()), (11, 3, names_at, names.len())] {
        file.extend([name, kind].map(u32::to_le_bytes).concat());
        words(&mut file, &[2, at, at, bytes as u64, 0, 1, 0]);
    }
    file
}

#[test]
fn descriptions_that_share_an_endless_entry_are_given_up() {
    // A common entry with a million instructions that do nothing, and thousands of descriptions of one byte of code.
    let mut frames = vec![];
    let cie = [&[0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1][..], &vec![0; 1 << 20]].concat();
    frames.extend((cie.len() as u32).to_le_bytes());
    frames.extend(&cie);
    for number in 0..10_000u64 {
        let distance = frames.len() as u32 + 4;
        frames.extend(20u32.to_le_bytes());
        frames.extend(distance.to_le_bytes());
        frames.extend((0x1000 + number).to_le_bytes());
        frames.extend(1u64.to_le_bytes());
    }
    let data = file_with(&frames);
    let file = File::parse(&data).expect("it is valid");
    assert_eq!(file.unwind_table(), Err(ring3_elf::NoTable::TooLarge));
    assert_eq!(file.landing_pads(), None);
    // The same with few of them is a table.
    let few = &frames[..4 + cie.len() + 10 * 24];
    let data = file_with(few);
    let made = File::parse(&data).expect("it is valid").unwind_table().expect("it has one");
    let table = Table::of(&made.bytes).expect("a table");
    assert_eq!([0, 9, 10].map(|offset| table.find(offset).kind), [Rule::PLAIN, Rule::PLAIN, Rule::NONE]);
}
