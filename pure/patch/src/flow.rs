//! What instructions do to control and flags.

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

/// Whether the flags at the first of `instructions` can be read later: true unless proved otherwise.
/// Calls and returns end the search, since no calling convention passes flags.
pub(crate) fn flags_live(instructions: &[Instruction]) -> bool {
    let mut open = STATUS;
    for instruction in instructions {
        if instruction.rflags_read() & open != 0 {
            return true;
        }
        open &= !instruction.rflags_modified();
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

/// Whether the function `code` at `address` really has this branch.
pub fn is_branch(code: &[u8], address: u64, branch: Branch) -> bool {
    branches(code, address).any(|found| found == branch)
}

/// The direct branches and calls of a function.
pub fn branches(code: &[u8], address: u64) -> impl Iterator<Item = Branch> {
    decode(code, address).into_iter().filter_map(|i| Some(Branch { to: direct_target(&i)?, from: i.ip() }))
}

/// Addresses of the `syscall` instructions in a function whose number is the constant `number`, set in `eax`
/// shortly before in straight-line code.
pub fn find_syscall_sites(code: &[u8], address: u64, number: u32) -> Vec<u64> {
    let instructions = decode(code, address);
    let calls = instructions.iter().enumerate().filter(|(_, i)| i.code() == Code::Syscall);
    calls
        .filter(|(index, _)| {
            let before = instructions[index.saturating_sub(NUMBER_SEARCH)..*index].iter().rev();
            let straight = before.take_while(|i| i.flow_control() == FlowControl::Next);
            number_set_by(straight) == Some(number)
        })
        .map(|(_, call)| call.ip())
        .collect()
}

fn number_set_by<'a>(backwards: impl Iterator<Item = &'a Instruction>) -> Option<u32> {
    for instruction in backwards {
        if instruction.op_count() > 0 && instruction.op0_register().full_register() == Register::RAX {
            let constant =
                matches!(instruction.code(), Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 | Code::Mov_rm64_imm32);
            return constant.then(|| instruction.immediate32());
        }
    }
    None
}
