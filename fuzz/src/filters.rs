//! Seccomp filters of hostile processes: what is said of a call about which not all is known must hold for each that it may be.

use ring3_generate::Random;
use ring3_uapi::seccomp::{FILTER_INSNS_MAX, FilterInsn, FilteredCall, strictest};

use crate::bytes::Bytes;

const ACTION: u32 = 0xffff_0000;
const ARCH: u32 = 0xc000_003e;
/// Bytes of an instruction.
const INSN_BYTES: usize = 8;

/// What a filter returns for a call of which all is known; `None`: the kernel would not have taken the filter.
/// Mirrors net/core/filter.c:bpf_convert_filter and kernel/bpf/core.c:___bpf_prog_run (v6.18), for 32-bit arithmetic.
fn concrete(filter: &[FilterInsn], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut scratch, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    loop {
        let FilterInsn { code, jt, jf, k } = *filter.get(at)?;
        at += 1;
        let operand = if code & 8 != 0 { x } else { k };
        match code {
            0x20 => a = *data.get(k as usize / 4).filter(|_| k.is_multiple_of(4))?,
            0x80 => a = 64,
            0x00 => a = k,
            0x60 => a = *scratch.get(k as usize)?,
            0x81 => x = 64,
            0x01 => x = k,
            0x61 => x = *scratch.get(k as usize)?,
            0x02 => *scratch.get_mut(k as usize)? = a,
            0x03 => *scratch.get_mut(k as usize)? = x,
            0x84 => a = a.wrapping_neg(),
            0x05 => at = at.checked_add(k as usize)?,
            0x06 => return Some(k),
            0x0e => return Some(x),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ if code & 7 == 5 => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            _ if code & 7 == 4 => match calculated(code, a, operand)? {
                // Division by 0 ends the program with 0.
                None => return Some(0),
                Some(result) => a = result,
            },
            _ => return None,
        }
    }
}

/// `Some(None)`: a division by 0.
fn calculated(code: u16, a: u32, b: u32) -> Option<Option<u32>> {
    let by_constant = code & 8 == 0;
    Some(Some(match code & 0xf0 {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 if b == 0 => return if by_constant { None } else { Some(None) },
        0x30 => a / b,
        0x40 => a | b,
        0x50 => a & b,
        0x60 | 0x70 if by_constant && b >= 32 => return None,
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0xa0 => a ^ b,
        _ => return None,
    }))
}

/// A call's number, what is known of its arguments and what they are, then the filter.
pub(crate) fn run(input: &[u8]) {
    let mut input = Bytes(input);
    let (number, known) = (u32::from(input.u16()), input.u8());
    let arguments: [u64; 6] = std::array::from_fn(|_| input.u64());
    let instruction = input.u64();
    let insns: Vec<FilterInsn> = input
        .0
        .chunks_exact(INSN_BYTES)
        .take(FILTER_INSNS_MAX)
        .map(|bytes| {
            let mut bytes = Bytes(bytes);
            FilterInsn { code: bytes.u16(), jt: bytes.u8(), jf: bytes.u8(), k: bytes.u32() }
        })
        .collect();
    let mut call = FilteredCall::any(number);
    for (index, argument) in arguments.iter().enumerate().filter(|(index, _)| known & 1 << index != 0) {
        call = call.with(index, *argument);
    }
    let mut data = [0u32; 16];
    data[..4].copy_from_slice(&[number, ARCH, instruction as u32, (instruction >> 32) as u32]);
    for (index, argument) in arguments.iter().enumerate() {
        data[4 + index * 2..][..2].copy_from_slice(&[*argument as u32, (*argument >> 32) as u32]);
    }
    let Some(said) = strictest(&insns, &call) else { return };
    if let Some(done) = concrete(&insns, &data) {
        let done = done & ACTION;
        assert!(said as i32 <= done as i32, "the filter says {done:#x}, and {said:#x} was the strictest: {insns:x?}");
    }
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    const CODES: [u16; 38] = [
        0x20, 0x20, 0x20, 0x80, 0x00, 0x60, 0x81, 0x01, 0x61, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34,
        0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0xa4, 0xac, 0x15, 0x1d, 0x25, 0x35, 0x45, 0x07,
        0x87, 0x05,
    ];
    let mut input = vec![random.below(300) as u8, 0, random.next() as u8];
    for _ in 0..7 {
        input.extend(random.edge().to_le_bytes());
    }
    let count = 2 + random.below(12);
    for at in 0..count {
        let left = count - at;
        let code = if left <= 1 { random.of(&[6, 0x16]) } else { random.of(&CODES) };
        let k = match code {
            0x20 => random.below(16) as u32 * 4,
            0x60 | 0x61 | 0x02 | 0x03 => random.below(4) as u32,
            0x05 => random.below(left) as u32,
            6 => random.of(&[0x7fff_0000, 0x7ffc_0000, 0x8000_0000, 0, 0x0005_0001]),
            0x64 | 0x74 => random.below(32) as u32,
            _ => random.edge() as u32,
        };
        input.extend(code.to_le_bytes());
        input.extend([random.below(left) as u8, random.below(left) as u8]);
        input.extend(k.to_le_bytes());
    }
    if random.one_in(4) {
        crate::damage(&mut input, random);
    }
    input
}
