//! What instructions do to control and flags.

use std::collections::BTreeMap;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register, RflagsBits};

/// Status flags that a function may leave for the code behind it.
const STATUS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;
/// Instructions before a `syscall` that are searched for its number.
const NUMBER_SEARCH: usize = 12;

/// Decodes all of `bytes`, which lie at `address`. Stops at what is no instruction.
pub(crate) fn decode(bytes: &[u8], address: u64) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let mut found = vec![];
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        found.push(instruction);
    }
    found
}

/// The instructions of some code as text, by address.
pub fn text_of(code: &[u8], address: u64) -> Vec<(u64, String)> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter().map(|i| (i.ip(), i.to_string())).collect()
}

/// Bytes of the instruction with which `bytes` begin; 0: there is none.
pub fn instruction_bytes(bytes: &[u8]) -> usize {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    if instruction.is_invalid() { 0 } else { instruction.len() }
}

/// Whether all of `bytes` are instructions, the last of which ends where they end.
pub fn is_code(bytes: &[u8], address: u64) -> bool {
    decode(bytes, address).last().is_some_and(|last| last.next_ip() == address + bytes.len() as u64)
}

/// Whether `bytes` are instructions of which the last goes on behind them.
pub fn goes_on(bytes: &[u8], address: u64) -> bool {
    is_code(bytes, address) && decode(bytes, address).last().is_some_and(|last| !ends_flow(last))
}

/// The target of a direct branch or call.
pub(crate) fn direct_target(instruction: &Instruction) -> Option<u64> {
    let direct = instruction.is_jcc_short_or_near()
        || instruction.is_jmp_short_or_near()
        || instruction.is_call_near()
        || instruction.is_jcx_short()
        || instruction.is_loop()
        || instruction.is_loopcc();
    direct.then(|| instruction.near_branch_target())
}

/// Nothing is executed behind this instruction in sequence.
pub(crate) fn ends_flow(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Exception
    )
}

/// Filler between functions.
pub(crate) fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
        || (instruction.code() == Code::Xchg_rm16_r16
            && instruction.op0_register() == Register::AX
            && instruction.op1_register() == Register::AX)
}

/// Whether string instructions may go downwards from here on, which the agent must not.
pub(crate) fn sets_direction(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Std | Mnemonic::Popf | Mnemonic::Popfq)
}

/// Whether this is a string instruction, which goes upwards or downwards.
pub(crate) fn reads_direction(instruction: &Instruction) -> bool {
    instruction.rflags_read() & RflagsBits::DF != 0
}

/// Whether the flags at the first of `instructions` can be read later: true unless proved otherwise.
/// Calls and returns end the search, since no calling convention passes flags.
pub(crate) fn flags_live(instructions: &[Instruction]) -> bool {
    let mut open = STATUS;
    for instruction in instructions {
        if instruction.rflags_read() & open != 0 {
            return true;
        }
        if !may_leave_flags(instruction) {
            open &= !instruction.rflags_modified();
        }
        if open == 0 {
            return false;
        }
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return => return false,
            _ => return true,
        }
    }
    true
}

/// Whether an instruction that writes flags may leave all of them as they were: a shift by a register that has 0, or a string comparison
/// of no bytes.
fn may_leave_flags(instruction: &Instruction) -> bool {
    let shifts_by_register = (1..instruction.op_count()).any(|op| instruction.op_register(op) == Register::CL)
        && matches!(
            instruction.mnemonic(),
            Mnemonic::Shl
                | Mnemonic::Shr
                | Mnemonic::Sal
                | Mnemonic::Sar
                | Mnemonic::Rol
                | Mnemonic::Ror
                | Mnemonic::Rcl
                | Mnemonic::Rcr
                | Mnemonic::Shld
                | Mnemonic::Shrd
        );
    shifts_by_register || instruction.has_rep_prefix() || instruction.has_repne_prefix()
}

/// A direct jump: where it is and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch {
    /// Its target.
    pub to: u64,
    /// Its first byte.
    pub from: u64,
}

/// What looks like a jump with a 4-byte displacement to somewhere in `code` itself, by target. Every byte is
/// tried, so all real ones are among them, in code that no symbol bounds as well; [`is_branch`] tells them apart.
pub fn far_branches(code: &[u8], address: u64) -> Vec<Branch> {
    const JMP: u8 = 0xe9;
    const JCC: std::ops::RangeInclusive<u8> = 0x80..=0x8f;
    let mut found = vec![];
    for (at, window) in code.windows(6).enumerate() {
        let displacement = match window {
            [JMP, ..] => 1,
            [0x0f, second, ..] if JCC.contains(second) => 2,
            _ => continue,
        };
        let bytes = window[displacement..displacement + 4].try_into().expect("4 bytes");
        let next = at + displacement + 4;
        let to = (next as u64).wrapping_add(i64::from(i32::from_le_bytes(bytes)) as u64);
        if to < code.len() as u64 {
            found.push(Branch { to: address + to, from: address + at as u64 });
        }
    }
    found.sort_unstable();
    found
}

/// What looks like a call of somewhere in `code` itself, by target. Every byte is tried.
pub fn far_calls(code: &[u8], address: u64) -> Vec<Branch> {
    const CALL: u8 = 0xe8;
    const BYTES: u64 = 5;
    let mut found = vec![];
    for (at, window) in code.windows(BYTES as usize).enumerate().filter(|(_, window)| window[0] == CALL) {
        let displacement = i32::from_le_bytes(window[1..].try_into().expect("4 bytes"));
        let to = (at as u64 + BYTES).wrapping_add(i64::from(displacement) as u64);
        if to < code.len() as u64 {
            found.push(Branch { to: address + to, from: address + at as u64 });
        }
    }
    found.sort_unstable();
    found
}

/// Where the bytes at `address` lead, if they are a branch with a displacement of one byte: `jcc`, `loop`, `jrcxz` or `jmp`.
pub fn short_target(bytes: &[u8], address: u64) -> Option<u64> {
    let [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, displacement, ..] = *bytes else { return None };
    Some(address.wrapping_add(2).wrapping_add_signed(i64::from(displacement as i8)))
}

/// Whether the function `code` at `address` really has this branch.
pub fn is_branch(code: &[u8], address: u64, branch: Branch) -> bool {
    branches(code, address).contains(&branch)
}

/// The direct branches and calls of a function. Where one goes to the middle of an instruction (over a `lock` prefix; behind data that
/// was taken for code), those that begin there are among them.
pub fn branches(code: &[u8], address: u64) -> Vec<Branch> {
    explore(code, address, &decode(code, address)).0
}

/// Where instructions begin that lie in the middle of those of a function that is decoded in sequence, and where they end.
pub(crate) fn overlapping(code: &[u8], address: u64) -> BTreeMap<u64, u64> {
    explore(code, address, &decode(code, address)).1
}

/// [`branches`] and [`overlapping`] of a function that decodes to `instructions` in sequence.
pub(crate) fn explore(code: &[u8], address: u64, instructions: &[Instruction]) -> (Vec<Branch>, BTreeMap<u64, u64>) {
    let branch = |i: &Instruction| Some(Branch { to: direct_target(i)?, from: i.ip() });
    let mut found: Vec<Branch> = instructions.iter().filter_map(branch).collect();
    let own = address..address + code.len() as u64;
    let is_known = |ip: u64| instructions.binary_search_by_key(&ip, Instruction::ip).is_ok();
    let mut others = BTreeMap::new();
    let mut at = 0;
    while let Some(Branch { to, .. }) = found.get(at).copied() {
        at += 1;
        if !own.contains(&to) || is_known(to) {
            continue;
        }
        let mut decoder = Decoder::with_ip(64, &code[(to - address) as usize..], to, DecoderOptions::NONE);
        while decoder.can_decode() && !is_known(decoder.ip()) && !others.contains_key(&decoder.ip()) {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            others.insert(instruction.ip(), instruction.next_ip());
            found.extend(branch(&instruction));
        }
    }
    (found, others)
}

/// The number that the `syscall` instruction at `index` is made with, where it is set to a constant shortly before, in
/// straight-line code that nothing enters behind that: `targets` are where the function's branches go, in order.
pub(crate) fn syscall_number(instructions: &[Instruction], index: usize, targets: &[u64]) -> Option<u32> {
    let before = instructions[index.saturating_sub(NUMBER_SEARCH)..index].iter().rev();
    for instruction in before.take_while(|i| i.flow_control() == FlowControl::Next) {
        if instruction.op_count() > 0 && instruction.op0_register().full_register() == Register::RAX {
            let entered = instruction.next_ip()..=instructions[index].ip();
            let is_entered = targets
                .get(targets.partition_point(|to| to < entered.start()))
                .is_some_and(|to| entered.contains(to));
            return constant_of(instruction).filter(|_| !is_entered);
        }
    }
    None
}

/// Whether `rax` is written shortly before the instruction at `index`, in straight-line code: as it is before system calls.
pub(crate) fn loads_number(instructions: &[Instruction], index: usize) -> bool {
    let before = instructions[index.saturating_sub(NUMBER_SEARCH)..index].iter().rev();
    let mut straight = before.take_while(|i| i.flow_control() == FlowControl::Next);
    straight.any(|i| i.op_count() > 0 && i.op0_register().full_register() == Register::RAX)
}

/// Whether the stack pointer is set to something else shortly before the instruction at `index`, in straight-line code.
pub(crate) fn changes_stack(instructions: &[Instruction], index: usize) -> bool {
    let before = instructions[index.saturating_sub(NUMBER_SEARCH)..index].iter().rev();
    let mut straight = before.take_while(|i| i.flow_control() == FlowControl::Next);
    straight.any(|i| {
        matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Xchg | Mnemonic::Lea | Mnemonic::Xor)
            && (i.op0_register() == Register::RSP
                || i.mnemonic() == Mnemonic::Xchg && i.op1_register() == Register::RSP)
    })
}

/// Whether an instruction behind a system call takes its result, or ends the function: it certainly belongs to the same one.
pub(crate) fn takes_result(instruction: &Instruction) -> bool {
    let is_rax = |register: Register| register.full_register() == Register::RAX;
    match instruction.mnemonic() {
        Mnemonic::Ret | Mnemonic::Cdqe | Mnemonic::Leave | Mnemonic::Pop => true,
        Mnemonic::Mov | Mnemonic::Movsxd => is_rax(instruction.op1_register()),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Add | Mnemonic::Sub | Mnemonic::Neg => {
            is_rax(instruction.op0_register()) || is_rax(instruction.op1_register())
        }
        _ => false,
    }
}

/// What an instruction that writes `rax` makes of it, if that is a constant.
fn constant_of(instruction: &Instruction) -> Option<u32> {
    match instruction.code() {
        Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 | Code::Mov_rm64_imm32 => Some(instruction.immediate32()),
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 if instruction.op1_register() == Register::EAX => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_live(code: &[u8]) -> bool {
        flags_live(&decode(code, 0x40_1000))
    }

    #[test]
    fn branches_behind_bytes_that_two_instructions_share_are_found() {
        // jmp to its own last byte, which begins `inc eax`; sub dword [r15 + 284], 1; jg to the first byte; ret.
        let code = [0xeb, 0xff, 0xc0, 0x41, 0x83, 0xaf, 0x1c, 1, 0, 0, 1, 0x7f, 0xf3, 0xc3];
        let found = branches(&code, 0x1000);
        assert!(found.contains(&Branch { from: 0x100b, to: 0x1000 }), "{found:x?}");
        assert!(!decode(&code, 0x1000).iter().any(|i| i.ip() == 0x100b), "decoded in sequence, it is not among them");
        // jmp over a byte that begins no instruction; jmp to the first byte.
        let found = branches(&[0xeb, 1, 0x06, 0xeb, 0xfb], 0x1000);
        assert!(found.contains(&Branch { from: 0x1003, to: 0x1000 }), "{found:x?}");
    }

    #[test]
    fn flags_live_on_behind_what_may_leave_them_as_they_were() {
        // add eax, eax; jc: the addition writes all of them.
        assert!(!are_live(&[0x01, 0xc0, 0x72, 0]));
        // shl eax, 1; jc. The same by cl, which may be 0.
        assert!(!are_live(&[0xc1, 0xe0, 1, 0xc3]));
        assert!(are_live(&[0xd3, 0xe0, 0x72, 0]));
        // shld eax, edx, cl; jc.
        assert!(are_live(&[0x0f, 0xa5, 0xd0, 0x72, 0]));
        // cmpsb; je. Repeated, maybe not at all.
        assert!(!are_live(&[0xa6, 0x74, 0]));
        assert!(are_live(&[0xf3, 0xa6, 0x74, 0]));
        assert!(are_live(&[0xf2, 0xae, 0x74, 0]));
    }
}
