//! What `prevail` says of random programs: those that it answers soon.

use ring3_generate::{MAPS, Program};
use ring3_isa::Insn;
use ring3_uapi::bpf::prog_type;

use crate::second_opinion::ask;

/// Instructions that it is shown at most.
const INSNS_MAX: usize = 64;

/// Whether it answers soon: over loops and calls it may sit for minutes.
pub(crate) fn is_simple(program: &Program) -> bool {
    let goes_back = |insn: &Insn| matches!(insn.class(), 0x05 | 0x06) && insn.off < 0;
    let calls = |insn: &Insn| insn.opcode == 0x85 && insn.src() == 1 || insn.is_wide() && insn.src() == 4;
    program.insns.len() <= INSNS_MAX && !program.insns.iter().any(|insn| goes_back(insn) || calls(insn))
}

/// What it says to a program, in words.
pub(crate) fn opinion(program: &Program) -> String {
    let section = match program.prog_type {
        prog_type::XDP => "xdp",
        prog_type::KPROBE => "kprobe/",
        _ => "socket",
    };
    let said = std::panic::catch_unwind(|| ask(&program.insns, section, &MAPS));
    said.map_or("broke over".into(), |opinion| format!("{opinion:?}"))
}
