//! Makes programs wrong.

use ring3_generate::Random;
use ring3_isa::{Insn, decode, encode, op};

/// Instructions of random bytes; most of them of operations that there are.
pub(crate) fn noise(random: &mut Random) -> Vec<Insn> {
    const OPCODES: [u8; 40] = [
        0x04, 0x05, 0x06, 0x07, 0x0f, 0x15, 0x18, 0x1d, 0x1f, 0x20, 0x25, 0x2d, 0x40, 0x47, 0x55, 0x57, 0x5f, 0x61,
        0x62, 0x63, 0x67, 0x69, 0x6f, 0x71, 0x79, 0x7a, 0x7b, 0x81, 0x85, 0x87, 0x95, 0x97, 0xb4, 0xb7, 0xbc, 0xbf,
        0xc3, 0xd4, 0xdb, 0xe5,
    ];
    let count = 1 + random.below(40) as usize;
    let narrow = !random.one_in(4);
    let one = |random: &mut Random| {
        let bits = random.next();
        if !narrow {
            return Insn {
                opcode: bits as u8,
                regs: (bits >> 8) as u8,
                off: (bits >> 16) as i16,
                imm: (bits >> 32) as i32,
            };
        }
        let off = random.below(count as u64 + 4) as i16 - if random.one_in(4) { count as i16 } else { 8 };
        let imm = if random.one_in(2) { random.below(220) as i32 } else { random.edge() as i32 };
        Insn::new(random.of(&OPCODES), random.below(11) as u8, random.below(11) as u8, off, imm)
    };
    let mut insns: Vec<Insn> = (0..count).map(|_| one(random)).collect();
    if narrow {
        // What is no instruction at all is refused at once, and shows little. Registers of which much is known go first.
        insns.splice(
            0..0,
            (0..10).filter(|register| *register != 1).map(|register| Insn::new(0xb7, register, 0, 0, 8)),
        );
        insns.extend([Insn::new(0xb7, 0, 0, 0, 0), Insn::new(0x95, 0, 0, 0, 0)]);
        for at in 0..insns.len() {
            for fix in 0..8 {
                if op(&insns, at).is_ok() && !insns[at].is_wide() {
                    break;
                }
                let insn = &mut insns[at];
                match fix {
                    0 => insn.off = 0,
                    1 => insn.imm = 0,
                    2 => insn.regs &= 0x0f,
                    3 => insn.off = 1,
                    _ => *insn = Insn::new(0xb7, insn.dst() % 10, 0, 0, insn.imm),
                }
            }
        }
    }
    insns
}

/// One more mistake.
pub(crate) fn damage(insns: &mut Vec<Insn>, random: &mut Random) {
    let count = insns.len() as u64;
    let at = random.below(count) as usize;
    match random.below(9) {
        0 | 1 => {
            let mut bytes = encode(insns);
            let byte = random.below(bytes.len() as u64) as usize;
            bytes[byte] ^= 1 << random.below(8);
            *insns = decode(&bytes).unwrap_or_default();
        }
        2 => insns.insert(at, insns[random.below(count) as usize]),
        3 => insns.swap(at, random.below(count) as usize),
        4 => insns.truncate(1 + at),
        5 => {
            insns.remove(at);
        }
        6 => insns[at].off = random.below(count * 2) as i16 - count as i16,
        7 => insns[at].imm = random.edge() as i32,
        _ => insns[at].regs = random.below(11) as u8 | (random.below(11) as u8) << 4,
    }
    if insns.is_empty() {
        insns.push(Insn { opcode: 0x95, regs: 0, off: 0, imm: 0 });
    }
}
