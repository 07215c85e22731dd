//! ELF files: headers, symbols, unwind tables, tables of landing pads, jump tables, and what the server plans in them.

use ring3_elf::File;
use ring3_generate::Random;
use ring3_patch::{Branch, IndirectTargets, Part};
use ring3_unwind::Table;

use crate::bytes::{Bytes, put_part};
use crate::code;

/// Where sections of made files lie, and where their bytes are.
const BASE: u64 = 0x1000;
const SEGMENT_AT: usize = 0x1000;
/// Room for a section, where parts are large and where they are small.
const SECTION_BYTES: usize = 0x1_0000;
const SMALL_BYTES: usize = 0x1000;

/// A section of a made file.
struct Section<'a> {
    name: &'a str,
    kind: u32,
    bytes: &'a [u8],
}

/// A shared library of one segment, in which the sections lie one behind the other, each with so much room.
fn library(room: usize, sections: &[Section<'_>]) -> Vec<u8> {
    let mut file = vec![0; SEGMENT_AT];
    for section in sections {
        let end = file.len() + room;
        file.extend(&section.bytes[..section.bytes.len().min(room)]);
        file.resize(end, 0);
    }
    let loaded = (file.len() - SEGMENT_AT) as u64;
    let names_at = file.len() as u64;
    let mut names = vec![0];
    let mut headers = vec![0; 64];
    let symbols = sections.iter().position(|section| section.kind == 2).map_or(0, |at| at + 1);
    for (index, section) in sections.iter().enumerate() {
        let at = BASE + (index * room) as u64;
        let offset = (SEGMENT_AT + index * room) as u64;
        let length = section.bytes.len().min(room) as u64;
        headers.extend((names.len() as u32).to_le_bytes());
        headers.extend(section.kind.to_le_bytes());
        for word in [6u64, at, offset, length] {
            headers.extend(word.to_le_bytes());
        }
        // (The string table of symbols is the section behind them.)
        headers.extend(if section.kind == 2 { symbols as u32 + 1 } else { 0 }.to_le_bytes());
        headers.extend(1u32.to_le_bytes());
        headers.extend(1u64.to_le_bytes());
        headers.extend(if section.kind == 2 { 24u64 } else { 0 }.to_le_bytes());
        names.extend(section.name.as_bytes());
        names.push(0);
    }
    headers.extend((names.len() as u32).to_le_bytes());
    headers.extend(3u32.to_le_bytes());
    names.extend(b".shstrtab\0");
    for word in [0, 0, names_at, names.len() as u64, 0, 1, 0] {
        headers.extend(word.to_le_bytes());
    }
    file.extend(&names);
    file.resize(file.len().next_multiple_of(8), 0);
    let headers_at = file.len() as u64;
    file.extend(&headers);
    put_headers(&mut file, headers_at, sections.len() as u16 + 2, loaded);
    file
}

/// The file's header and its one program header.
fn put_headers(file: &mut [u8], sections_at: u64, sections: u16, loaded: u64) {
    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(16, 0);
    head.extend([3u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    head.extend(1u32.to_le_bytes());
    head.extend([BASE, 64, sections_at].iter().flat_map(|word| word.to_le_bytes()));
    head.extend(0u32.to_le_bytes());
    head.extend([64u16, 56, 1, 64, sections, sections - 1].iter().flat_map(|half| half.to_le_bytes()));
    // PT_LOAD, readable and executable.
    head.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    head.extend([SEGMENT_AT as u64, BASE, BASE, loaded, loaded, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
    file[..head.len()].copy_from_slice(&head);
}

/// Asks for all that a file can tell.
fn look(file: &File<'_>) {
    let mut addresses: Vec<u64> = vec![0, 1, u64::MAX, file.entry()];
    for range in file.executable_segments() {
        addresses.extend([range.start, range.start.wrapping_add(1), range.end.wrapping_sub(1), range.end]);
    }
    addresses.extend(file.symbols().iter().take(64).flat_map(|s| [s.address, s.address.wrapping_add(s.size)]));
    if let Ok(made) = file.unwind_table() {
        let table = Table::of(&made.bytes).expect("it was just made");
        addresses.iter().for_each(|address| _ = table.find(address.wrapping_sub(made.start)));
    }
    for address in addresses {
        if let Some(bounds) = file.function_bounds(address) {
            assert!(bounds.contains(&address), "{bounds:x?} is around {address:#x}");
            let _ = file.code(bounds);
        }
        if let Some(gap) = file.gap(address) {
            assert!(gap.contains(&address));
        }
        if let Some(offset) = file.vaddr_to_offset(address) {
            // Segments may share bytes, and addresses: then another address has this offset, and that another offset.
            let back = file.offset_to_vaddr(offset).expect("the offset is of a segment");
            assert!(file.vaddr_to_offset(back).is_some());
        }
        let _ = (file.offset_to_vaddr(address), file.symbol_at(address), file.symbols_at(address));
    }
    let _ = (file.go_text(), file.build_id(), file.interpreter(), file.usdt_notes(), file.is_fixed());
    let _ = (file.find("main"), file.find_variable("__rseq_offset"));
    for (address, bytes, _) in file.parts() {
        assert!(address.checked_add(bytes.len() as u64).is_some());
    }
    for tracepoint in file.tracepoints() {
        assert!(file.executable_segments().iter().any(|range| range.contains(&tracepoint.address)));
    }
    let _ = file.lttng_tracepoints();
    if let Some(pads) = file.landing_pads() {
        assert!(pads.len() <= ring3_elf::LANDING_PADS_MAX);
    }
}

/// The bytes are a file.
pub(crate) fn elf(input: &[u8]) {
    if let Ok(file) = File::parse(input) {
        look(&file);
    }
}

/// The address of the code, the base, and 0 for the rest.
fn addresses(count: usize) -> Vec<u8> {
    [BASE, BASE, 0].iter().take(count).flat_map(|word: &u64| word.to_le_bytes()).collect()
}

fn make_note(owner: &[u8], kind: u32, parts: &[&[u8]]) -> Vec<u8> {
    let description = parts.concat();
    let mut note: Vec<u8> =
        [owner.len() as u32, description.len() as u32, kind].iter().flat_map(|word| word.to_le_bytes()).collect();
    for part in [owner, &description] {
        note.extend(part);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}

/// Argument specifications, right ones and others.
fn make_arguments(random: &mut Random) -> Vec<u8> {
    const PIECES: [&str; 24] = [
        "-4@",
        "8@",
        "1@",
        "-2@",
        "8f@",
        "@",
        "%eax",
        "%ah",
        "%r9d",
        "%xmm1",
        "$-5",
        "$0x",
        "-8(%rbp)",
        "(%rax,%rcx,4)",
        "(,%rdx,8)",
        "main(%rip)",
        "4+main(%rip)",
        "main-1",
        "%fs:8",
        "(",
        ")",
        ",",
        " ",
        "18446744073709551616",
    ];
    let mut text = vec![];
    for _ in 0..random.below(8) {
        text.extend(random.of(&["-4@%eax ", "8@-8(%rbp) ", "8@$7 ", ""]).as_bytes());
        text.extend(random.of(&PIECES).as_bytes());
    }
    text
}

fn make_names(random: &mut Random) -> Vec<u8> {
    const PIECES: [&str; 12] = [
        "RING3_FIELD(",
        "RING3_TYPED(a, b, c)",
        "RING3_LENGTH(",
        "o->id",
        ",",
        ")",
        "\"",
        "'",
        "\\",
        "[",
        " ",
        "\u{e9}",
    ];
    (0..random.below(12)).flat_map(|_| random.of(&PIECES).bytes()).collect()
}

/// A file with symbols; some of its headers are wrong.
pub(crate) fn make_elf(random: &mut Random) -> Vec<u8> {
    let code: Vec<u8> = (0..random.below(64)).map(|_| random.next() as u8).collect();
    let mut symbols = vec![0; 24];
    for _ in 0..random.below(8) {
        symbols.extend((random.below(16) as u32).to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend((BASE + random.below(70)).to_le_bytes());
        symbols.extend(if random.one_in(3) { random.edge() } else { random.below(40) }.to_le_bytes());
    }
    let note = make_note(b"stapsdt\0", 3, &[&addresses(3), b"a\0b\0", &make_arguments(random), b"\0"]);
    let kinds: Vec<u8> = (0..16).map(|_| random.below(9) as u8).collect();
    let mut own = make_note(b"ring3\0", 2, &[&addresses(2), &kinds]);
    own.extend(make_note(b"ring3\0", 3, &[&addresses(2), b"a, b, ", &make_names(random), b"\0"]));
    let mut file = library(
        SMALL_BYTES,
        &[
            Section { name: ".text", kind: 1, bytes: &code },
            Section { name: ".symtab", kind: 2, bytes: &symbols },
            Section { name: ".strtab", kind: 3, bytes: b"\0main\0other\0longer\0" },
            Section { name: ".note.stapsdt", kind: 7, bytes: &note },
            Section { name: ".note.ring3.trace", kind: 7, bytes: &own },
        ],
    );
    if random.one_in(3) {
        crate::damage(&mut file, random);
    }
    // Headers are what matters, and they are few.
    for _ in 0..random.below(4) {
        let places = [0..120u64, (file.len() as u64).saturating_sub(400)..file.len() as u64];
        let place = &places[random.below(2) as usize];
        let at = (place.start + random.below(place.end - place.start)) as usize;
        let value = random.edge().to_le_bytes();
        file.iter_mut().skip(at).take(1 << random.below(4)).zip(value).for_each(|(to, from)| *to = from);
    }
    file
}

/// Three parts: code, `.eh_frame` and `.gcc_except_table` of a file.
pub(crate) fn unwind(input: &[u8]) {
    let mut input = Bytes(input);
    let (code, frames, tables) = (input.part(), input.part(), input.part());
    let file = library(
        SECTION_BYTES,
        &[
            Section { name: ".text", kind: 1, bytes: code },
            Section { name: ".eh_frame", kind: 1, bytes: frames },
            Section { name: ".gcc_except_table", kind: 1, bytes: tables },
        ],
    );
    look(&File::parse(&file).expect("the headers are right"));
}

pub(crate) fn make_unwind(random: &mut Random) -> Vec<u8> {
    const FRAMES: u64 = BASE + SECTION_BYTES as u64;
    const TABLES: u64 = FRAMES + SECTION_BYTES as u64;
    const ENCODINGS: [u8; 8] = [0, 1, 3, 9, 0x0b, 0x1b, 0x9b, 0xff];
    let mut table = vec![];
    for _ in 0..random.below(4) {
        let encoding = random.of(&[1, 1, 1, 9, 3]);
        table.extend([0xff, 0xff, encoding]);
        let sites: Vec<u8> = (0..random.below(12) * 4).map(|_| random.below(200) as u8 & 0x7f).collect();
        table.push(sites.len() as u8);
        table.extend(sites);
    }
    let pointers = random.of(&[0x1b, 0x1b, 0x1b, 0, 0x0b]);
    let lsda = if random.one_in(4) { random.of(&ENCODINGS) } else { 0x1b };
    let mut frames = vec![];
    let mut entry = |body: &[u8]| {
        let at = frames.len();
        frames.extend((body.len() as u32).to_le_bytes());
        frames.extend(body);
        at
    };
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(b"zLRS\0");
    cie.extend([1, 0x78, 16, 2, lsda, pointers, 0]);
    entry(&cie);
    let mut at = 4 + cie.len();
    for _ in 0..random.below(12) {
        let body_at = FRAMES + at as u64 + 4;
        let mut body = (at as u32 + 4).to_le_bytes().to_vec();
        let start = BASE + random.below(100);
        body.extend((start.wrapping_sub(body_at + 4) as u32).to_le_bytes());
        body.extend((random.below(60) as u32).to_le_bytes());
        body.push(4);
        let table_at = TABLES + random.below(table.len() as u64 + 2);
        body.extend((table_at.wrapping_sub(body_at + 13) as u32).to_le_bytes());
        entry(&body);
        at += 4 + body.len();
    }
    let code: Vec<u8> = (0..120).map(|_| random.of(&[0x90, 0xc3, 0xe8, 0x0f])).collect();
    let mut input = vec![];
    [&code, &frames, &table].iter().for_each(|part| put_part(&mut input, part));
    crate::damage(&mut input, random);
    input
}

/// Flags, then two parts, code and data: what indirect and direct branches may go to.
pub(crate) fn jumps(input: &[u8]) {
    const CODE: u64 = 0x40_0000;
    const DATA: u64 = 0x50_0000;
    let mut input = Bytes(input);
    let flags = input.u8();
    let (code, data) = (input.part(), input.take(0x4000));
    let parts = [
        Part { address: CODE, bytes: code, executable: true },
        Part { address: DATA, bytes: data, executable: false },
    ];
    let end = CODE + code.len() as u64;
    let is_known = flags & 2 != 0;
    let around = |address: u64| (is_known && (CODE..end).contains(&address)).then_some((code, CODE));
    let targets = IndirectTargets::of(&parts, flags & 1 != 0, &around);
    let found: Vec<Branch> = targets.to(0..u64::MAX).collect();
    assert!(found.is_sorted() && found.iter().all(|found| (CODE..end).contains(&found.to)));
    // All pointers of the data are among them.
    for (at, word) in data.windows(8).enumerate().step_by(4) {
        let pointer = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        if (CODE..end).contains(&pointer) {
            assert!(found.contains(&Branch { to: pointer, from: DATA + at as u64 }));
        }
    }
    // What is decoded is found by the search that knows no boundaries.
    let far = ring3_patch::far_branches(code, CODE);
    let calls = ring3_patch::far_calls(code, CODE);
    assert!(far.iter().chain(&calls).all(|branch| (CODE..end).contains(&branch.to)));
    for branch in ring3_patch::branches(code, CODE) {
        assert!(ring3_patch::is_branch(code, CODE, branch));
    }
    for branch in found.iter().take(64) {
        let _ = ring3_patch::has_operand_at(code, CODE, branch.from);
    }
    let _ = (ring3_patch::computes_targets(code, CODE), ring3_patch::goes_on(code, CODE));
    let _ = ring3_patch::call_sites(code, CODE).count();
}

pub(crate) fn make_jumps(random: &mut Random) -> Vec<u8> {
    const CODE: u64 = 0x40_0000;
    const DATA: u64 = 0x50_0000;
    let mut bytes = code::instructions(random);
    if random.one_in(2) {
        let lea = [0x48, 0x8d, 0x05];
        let next = CODE + bytes.len() as u64 + 7;
        bytes.extend(lea);
        bytes.extend(((DATA + random.below(16)).wrapping_sub(next) as u32).to_le_bytes());
    }
    let target = |random: &mut Random| random.below(bytes.len() as u64 + 1);
    let mut data = vec![];
    for _ in 0..random.below(12) {
        match random.below(3) {
            0 => data.extend((CODE + target(random)).to_le_bytes()),
            1 => data.extend((CODE + target(random)).wrapping_sub(DATA).to_le_bytes()[..4].iter()),
            _ => data.extend((random.edge() as u32).to_le_bytes()),
        }
    }
    let mut input = vec![random.below(4) as u8];
    put_part(&mut input, &bytes);
    input.extend(data);
    input
}

/// Code and data of a file in which the server looks for system calls and plans probes.
pub(crate) fn sites(input: &[u8]) {
    let mut input = Bytes(input);
    let (code, symbols, data) = (input.part(), input.part(), input.part());
    let mut table = vec![0; 24];
    for symbol in symbols.chunks_exact(2).take(32) {
        table.extend(1u32.to_le_bytes());
        table.extend([0x12, 0, 1, 0]);
        table.extend((BASE + u64::from(symbol[0])).to_le_bytes());
        table.extend(u64::from(symbol[1]).to_le_bytes());
    }
    let file = library(
        SMALL_BYTES,
        &[
            Section { name: ".text", kind: 1, bytes: code },
            Section { name: ".symtab", kind: 2, bytes: &table },
            Section { name: ".strtab", kind: 3, bytes: b"\0f\0" },
            Section { name: ".data", kind: 1, bytes: data },
        ],
    );
    let offsets: Vec<u64> = (0..code.len().min(64) as u64).map(|at| SEGMENT_AT as u64 + at).collect();
    ring3_server::realm::plan_file(file, &offsets).expect("the headers are right");
}

pub(crate) fn make_sites(random: &mut Random) -> Vec<u8> {
    let code: Vec<u8> = (0..1 + random.below(5)).flat_map(|_| code::instructions(random)).collect();
    let symbols: Vec<u8> = (0..random.below(8) * 2).map(|_| random.below(120) as u8).collect();
    let data: Vec<u8> = (0..random.below(4)).flat_map(|_| (BASE + random.below(200)).to_le_bytes()).collect();
    let mut input = vec![];
    [&code, &symbols, &data].iter().for_each(|part| put_part(&mut input, part));
    crate::damage(&mut input, random);
    input
}
