//! From a program that shows something to a small one that shows it still.

use ring3_isa::{Call, Immediate, Insn, Op, op};

use crate::Program;

/// Candidates at most.
const TRIES_MAX: usize = 20_000;

/// Where an instruction leads, besides the next.
fn target(insns: &[Insn], at: usize) -> Option<usize> {
    match op(insns, at).ok()? {
        Op::Ja(target) | Op::Jump { target, .. } | Op::Call(Call::Local(target)) => Some(target),
        Op::LoadImm64 { value: Immediate::Func(target), .. } => Some(target),
        _ => None,
    }
}

fn lead(insn: &mut Insn, from: usize, target: usize) {
    let distance = target as i64 - from as i64 - 1;
    let in_immediate = matches!(insn.opcode, 0x85 | 0x18 | 0x06);
    if in_immediate {
        insn.imm = distance as i32;
    } else {
        insn.off = distance as i16;
    }
}

/// Without the instructions of a range; what led there leads behind it.
fn without(insns: &[Insn], start: usize, end: usize) -> Option<Vec<Insn>> {
    let end = if insns[end - 1].is_wide() { end + 1 } else { end };
    let second_half = start > 0 && insns[start - 1].is_wide();
    if second_half || end > insns.len() {
        return None;
    }
    let moved = |at: usize| if at < start { at } else { at.max(end) - (end - start) };
    let mut rest = vec![];
    let mut wide = false;
    for at in 0..insns.len() {
        let mut insn = insns[at];
        let first = !wide;
        wide = first && insn.is_wide();
        if (start..end).contains(&at) {
            continue;
        }
        if first && let Some(target) = target(insns, at) {
            lead(&mut insn, moved(at), moved(target));
        }
        rest.push(insn);
    }
    Some(rest)
}

/// Instructions that are simpler than this one.
fn simpler(insn: Insn) -> Vec<Insn> {
    let mut all = vec![];
    match insn.class() {
        _ if insn.opcode == 0xb7 => {}
        0x01 | 0x04 | 0x07 => all.extend([0, 1].map(|imm| Insn::new(0xb7, insn.dst(), 0, 0, imm))),
        0x03 => all.push(Insn::new(0x62 | insn.opcode & 0x18, insn.dst(), 0, insn.off, 0)),
        _ => {}
    }
    if insn.opcode == 0x85 && insn.src() == 0 {
        if insn.imm != 7 {
            all.push(Insn::new(0x85, 0, 0, 0, 7));
        }
        all.push(Insn::new(0xb7, 0, 0, 0, 0));
    }
    let takes_constant = matches!(insn.class(), 0x02 | 0x04 | 0x05 | 0x06 | 0x07) && insn.opcode & 0x08 == 0;
    if takes_constant && insn.opcode != 0x85 && insn.imm != 0 {
        all.extend([0, insn.imm / 2].map(|imm| Insn { imm, ..insn }));
    }
    all.retain(|other| *other != insn);
    all
}

/// Makes a program smaller as long as `shows` holds for something smaller.
pub fn shrink(mut program: Program, shows: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut tries = 0;
    let mut holds = |insns: Vec<Insn>, prog_type| {
        tries += 1;
        let candidate = Program { prog_type, insns };
        (tries < TRIES_MAX && !candidate.insns.is_empty() && shows(&candidate)).then_some(candidate)
    };
    loop {
        let before = program.clone();
        let mut size = program.insns.len() / 2;
        while size > 0 {
            let mut start = program.insns.len().saturating_sub(size);
            loop {
                let end = (start + size).min(program.insns.len());
                if start < end
                    && let Some(rest) = without(&program.insns, start, end)
                    && let Some(smaller) = holds(rest, program.prog_type)
                {
                    program = smaller;
                }
                if start == 0 {
                    break;
                }
                start = start.saturating_sub(size);
            }
            size /= 2;
        }
        let mut at = 0;
        while at < program.insns.len() {
            let insn = program.insns[at];
            for other in simpler(insn) {
                let mut insns = program.insns.clone();
                insns[at] = other;
                if let Some(smaller) = holds(insns, program.prog_type) {
                    program = smaller;
                    break;
                }
            }
            at += if insn.is_wide() { 2 } else { 1 };
        }
        if program == before {
            return program;
        }
    }
}
