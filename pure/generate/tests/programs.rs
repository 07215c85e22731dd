//! The generator's promises.

use ring3_generate::{Program, program, shrink};
use ring3_isa::op;

#[test]
fn a_seed_and_a_number_give_the_same_program_each_time_and_others_give_others() {
    for number in 0..200 {
        assert_eq!(program(7, number), program(7, number));
        assert_ne!(program(7, number), program(7, number + 1));
        assert_ne!(program(7, number), program(8, number));
    }
}

#[test]
fn programs_are_made_of_instructions_and_end() {
    for number in 0..2000 {
        let insns = program(3, number).insns;
        let mut at = 0;
        while at < insns.len() {
            // A slip may give what is none; jumps never leave the program.
            let decoded = op(&insns, at);
            assert_ne!(decoded, Err(ring3_isa::DecodeError::TargetOutside), "program {number} at {at}");
            at += if insns[at].is_wide() { 2 } else { 1 };
        }
        assert_eq!(at, insns.len());
        assert_eq!(insns.last().map(|insn| insn.opcode), Some(0x95), "program {number}");
    }
}

/// As a mistake would be that a multiplication some way before an atomic operation shows.
fn shows(program: &Program) -> bool {
    let is = |insn: &ring3_isa::Insn, opcode| insn.opcode & !0x08 == opcode;
    let first = program.insns.iter().position(|insn| is(insn, 0x27));
    first.is_some_and(|first| program.insns[first..].iter().any(|insn| matches!(insn.opcode, 0xdb | 0xc3)))
}

#[test]
fn what_shows_something_shrinks_to_what_it_shows_it_with() {
    let large = (0..).map(|number| program(1, number)).find(|program| shows(program) && program.insns.len() > 60);
    let small = shrink(large.expect("some number"), &mut shows);
    assert_eq!(small.insns.len(), 2, "{}", ring3_generate::text(&small.insns));
}
