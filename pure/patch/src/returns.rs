//! Plans detours at all `ret`s of a function, for code whose return addresses must not be replaced
//! (docs/design/return-probes.md).
//!
//! Goroutines' stacks move, and Go's run-time reads the return addresses on them. So nothing on the stack changes: each `ret` is
//! displaced, with instructions before it, and the agent is called just before the copy of the `ret`. That is correct if every
//! path to the `ret` passes the jump, and if the function has no other exit.
//!
//! A goroutine may also have been preempted between any two instructions, and resume there much later; no list of threads shows
//! it. So an instruction that begins inside the jump's bytes must stay unchanged. If it begins at the jump's last byte, or its
//! last two, these are the highest bytes of the jump's distance. That determines where the stub lies, to 16 MiB or 64 KiB.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::flow::{decode, direct_target};
use crate::plan::{AgentStackAt, Arrival, Function, JUMP_BYTES, Plan, Refusal, Tactic, displace, within};

/// Instructions before a `ret` that are displaced at most.
const BEFORE_MAX: usize = 8;
/// Bytes of a jump that can stay as they are at most: for more, the stub has to be at one place.
pub(crate) const KEPT_MAX: usize = 2;

/// Plans detours at all `ret`s of a function, in which `entered` tells what arrives in some bytes from elsewhere; in order.
/// None can be left out.
pub fn plan_returns(
    function: &Function<'_>,
    entered: &dyn Fn(Range<u64>) -> Option<Arrival>,
) -> Result<Vec<Plan>, Refusal> {
    let instructions = decode(function.bytes, function.address);
    let own: Vec<&Instruction> = within(function, &instructions).collect();
    let end = function.address + function.size as u64;
    if own.last().is_none_or(|last| last.next_ip() < end) {
        return Err(Refusal::NotCode { site: own.last().map_or(function.address, |last| last.next_ip()) });
    }
    if function.computed {
        return Err(Refusal::IndirectInto { to: function.address });
    }
    own.iter().try_for_each(|instruction| check_way_out(instruction, function.address..end))?;
    let mut targets: Vec<(u64, u64)> =
        own.iter().filter_map(|instruction| Some((direct_target(instruction)?, instruction.ip()))).collect();
    targets.sort_unstable();
    let arrives = |bytes: Range<u64>| {
        let at = targets.partition_point(|(to, _)| *to < bytes.start);
        let own = targets.get(at).filter(|(to, _)| bytes.contains(to));
        own.map(|(to, from)| Refusal::BranchInto { from: *from, to: *to })
            .or_else(|| entered(bytes).map(Refusal::from))
    };
    let returns = own.iter().enumerate().filter(|(_, i)| i.flow_control() == FlowControl::Return);
    let plans: Vec<Plan> =
        returns.map(|(at, _)| plan_return(function, &instructions, at, &arrives)).collect::<Result<_, _>>()?;
    if plans.is_empty() { Err(Refusal::NoReturn { function: function.address }) } else { Ok(plans) }
}

/// Whether an instruction leaves the function for another one, whose `ret` would be this one's return.
fn check_way_out(instruction: &Instruction, own: Range<u64>) -> Result<(), Refusal> {
    /// Entries of jump tables are pointers. (A tail call through a register or a fixed place has no such index.)
    const POINTER_BYTES: u32 = 8;
    let leaves = match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            direct_target(instruction).is_none_or(|to| !own.contains(&to))
        }
        FlowControl::IndirectBranch => instruction.memory_index_scale() != POINTER_BYTES,
        FlowControl::Return => instruction.code() != Code::Retnq,
        _ => false,
    };
    if leaves { Err(Refusal::WayOut { address: instruction.ip(), text: instruction.to_string() }) } else { Ok(()) }
}

/// Plans the detour at the `ret` with this index.
fn plan_return(
    function: &Function<'_>,
    instructions: &[Instruction],
    at: usize,
    arrives: &dyn Fn(Range<u64>) -> Option<Refusal>,
) -> Result<Plan, Refusal> {
    let ret = &instructions[at];
    let mut why = None;
    let mut best: Option<(usize, usize)> = None;
    for first in (at.saturating_sub(BEFORE_MAX)..=at).rev() {
        let site = instructions[first].ip();
        if first < at && (instructions[first].flow_control() != FlowControl::Next || may_fault(&instructions[first]))
        {
            break;
        }
        if let Some(refusal) = arrives(site + 1..ret.ip() + 1) {
            why = Some(refusal);
            break;
        }
        let kept = kept_bytes(function, instructions, first, at);
        // What follows the `ret` may be padding to somebody else only.
        let behind = ret.ip() + 1..(site + JUMP_BYTES as u64).max(ret.ip() + 1);
        if kept == Some(0) && arrives(behind).is_some() {
            continue;
        }
        best = match (kept, best) {
            (Some(kept), best) if kept <= KEPT_MAX && best.is_none_or(|(_, least)| kept < least) => {
                Some((first, kept))
            }
            (_, best) => best,
        };
    }
    let Some((first, kept)) = best else { return Err(why.unwrap_or(Refusal::NoRoomAtReturn { address: ret.ip() })) };
    let site = instructions[first].ip();
    let bytes_of = |range: Range<u64>| {
        let place = |address: u64| (address - function.address) as usize;
        function.bytes[place(range.start)..place(range.end)].to_vec()
    };
    let displaced = &instructions[first..=at];
    Ok(Plan {
        site,
        original: bytes_of(site..site + JUMP_BYTES as u64),
        resume: ret.next_ip().max(site + JUMP_BYTES as u64),
        saves_flags: true,
        tactic: Tactic::Jump,
        displaced: displaced.iter().map(|i| (*i, bytes_of(i.ip()..i.next_ip()))).collect(),
        at_entry: false,
        agent_stack: Some(AgentStackAt::AtReturn),
        needs_faults: false,
        kept,
    })
}

/// Whether an instruction may fault, as one does that reads by a pointer which is nil: Go's run-time makes a panic of that, and finds
/// the function by the instruction's address. What the stack pointer or the file leads to is there.
pub(crate) fn may_fault(instruction: &Instruction) -> bool {
    let is_memory = |kind| {
        use OpKind::{Memory, MemoryESEDI, MemoryESRDI, MemorySegEDI, MemorySegESI, MemorySegRDI, MemorySegRSI};
        matches!(kind, Memory | MemoryESEDI | MemoryESRDI | MemorySegEDI | MemorySegESI | MemorySegRDI | MemorySegRSI)
    };
    let reads =
        instruction.op_kinds().any(is_memory) && !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    let is_there = instruction.is_ip_rel_memory_operand()
        || instruction.memory_segment() == Register::FS
        || instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None
        || is_stack_check(instruction);
    reads && !is_there || divides(instruction)
}

/// Whether an instruction is a division, which may raise SIGFPE.
pub(crate) fn divides(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
}

/// Whether this compares the stack pointer, or what it will be, with the goroutine's limit (`g.stackguard0`).
fn is_stack_check(instruction: &Instruction) -> bool {
    const STACKGUARD: u64 = 16;
    instruction.mnemonic() == Mnemonic::Cmp
        && matches!(instruction.op0_register(), Register::RSP | Register::R12 | Register::R13)
        && instruction.memory_base() == Register::R14
        && instruction.memory_displacement64() == STACKGUARD
}

/// Whether the instruction with this index ends a check of the stack. No goroutine is preempted at it
/// (cmd/internal/obj/x86/obj6.go:stacksplit).
pub(crate) fn is_of_stack_check(instructions: &[&Instruction], at: usize) -> bool {
    instructions[at].mnemonic() == Mnemonic::Jbe && at > 0 && is_stack_check(instructions[at - 1])
}

/// How many bytes at the end of a jump at the instruction `first` have to stay, `ret` being the `ret` that it is for; `None`: there
/// is no room.
fn kept_bytes(function: &Function<'_>, instructions: &[Instruction], first: usize, ret: usize) -> Option<usize> {
    let site = instructions[first].ip();
    let end = site + JUMP_BYTES as u64;
    let has_bytes = end <= function.address + function.bytes.len() as u64;
    let inside = instructions[first..=ret].iter().map(Instruction::ip).find(|ip| *ip > site && *ip < end);
    match inside {
        Some(inside) => has_bytes.then_some((end - inside) as usize),
        None => displace(function, &instructions[first..]).ok().map(|_| 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x40_1000;

    fn planned(code: &[u8], behind: &[u8]) -> Result<Vec<(u64, usize)>, Refusal> {
        let bytes = [code, behind].concat();
        let function = Function { bytes: &bytes, address: ADDRESS, size: code.len(), entered: None, computed: false };
        let plans = plan_returns(&function, &|_| None)?;
        Ok(plans.iter().map(|plan| (plan.site - ADDRESS, plan.kept)).collect())
    }

    #[test]
    fn each_return_has_a_jump_that_leaves_the_instructions_inside_as_they_are() {
        const PADDING: [u8; 8] = [0xcc; 8];
        // mov eax, 1; ret: the first has room for the jump by itself.
        assert_eq!(planned(&[0xb8, 1, 0, 0, 0, 0xc3], &[0x31; 8]), Ok(vec![(0, 0)]));
        // add rsp, 24; pop rbp; ret: `pop` stays.
        assert_eq!(planned(&[0x48, 0x83, 0xc4, 24, 0x5d, 0xc3], &[0x31, 0xc0, 0xc3]), Ok(vec![(0, 1)]));
        // xor eax, eax; ret, and padding.
        assert_eq!(planned(&[0x31, 0xc0, 0xc3], &PADDING), Ok(vec![(2, 0)]));
        // movups xmm1, xmm0; ret; lea ...: `ret` and what follows stay.
        assert_eq!(
            planned(&[0x0f, 0x10, 0xc8, 0xc3, 0x48, 0x8d, 0x40, 1, 0xb8, 1, 0, 0, 0, 0xc3], &PADDING),
            Ok(vec![(0, 2), (9 - 1, 0)])
        );
    }

    #[test]
    fn a_function_with_another_way_out_or_without_room_is_refused() {
        // jmp elsewhere.
        assert!(matches!(planned(&[0xe9, 0, 1, 0, 0], &[]), Err(Refusal::WayOut { .. })));
        // jmp rax.
        assert!(matches!(planned(&[0xff, 0xe0], &[]), Err(Refusal::WayOut { .. })));
        // xor eax, eax; ret; mov eax, 1; ret: no room at the first.
        let code = [0x31, 0xc0, 0xc3, 0xb8, 1, 0, 0, 0, 0xc3];
        assert_eq!(planned(&code, &[]), Err(Refusal::NoRoomAtReturn { address: ADDRESS + 2 }));
        // je to the second of: add rsp, 24; pop rbp; ret.
        let code = [0x74, 4, 0x48, 0x83, 0xc4, 24, 0x5d, 0xc3];
        assert_eq!(planned(&code, &[]), Err(Refusal::BranchInto { from: ADDRESS, to: ADDRESS + 6 }));
        // A loop.
        assert_eq!(planned(&[0xeb, 0xfe], &[]), Err(Refusal::NoReturn { function: ADDRESS }));
    }

    #[test]
    fn the_stub_of_a_jump_that_keeps_bytes_lies_where_these_lead() {
        let bytes = [0x48, 0x83, 0xc4, 24, 0x5d, 0xc3, 0xcc, 0xcc];
        let function = Function { bytes: &bytes, address: ADDRESS, size: 6, entered: None, computed: false };
        let plan = plan_returns(&function, &|_| None).expect("planned").remove(0);
        let range = plan.stub_range().expect("one byte stays");
        assert_eq!(range, ADDRESS + 5 + 0x5d00_0000..ADDRESS + 5 + 0x5e00_0000);
        for stub in [range.start, range.start + 0x12_3456, range.end - 1] {
            let jump = plan.jump(stub).expect("in reach");
            assert_eq!((jump[0], jump[4]), (0xe9, 0x5d));
        }
        assert!(plan.jump(range.end).is_err());
    }
}
