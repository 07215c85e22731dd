//! Plans for probes in random functions: what is displaced, the stub, the jump.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use ring3_generate::Random;
use ring3_patch::{
    AgentStackLinks, Entries, Function, JUMP_BYTES, NEAR_BYTES_MAX, Plan, STUB_BYTES_MAX, Stub, plan_detour,
    plan_returns, plan_syscalls,
};

use crate::bytes::Bytes;

const CODE: u64 = 0x40_0000;
const STUB: u64 = 0x50_0000;
const HOOK: u64 = 0x7000_0010_0000;
const ENTRIES: Entries = Entries {
    enter: 0x7000_0000_0000,
    call: 0x7000_0000_1000,
    agent_stack: AgentStackLinks {
        enter: 0x7000_0000_2000,
        find: 0x7000_0000_3000,
        state: 0x7000_1000_0000,
        generation: 0x7000_0f00_0000,
        missed: 0x7000_1000_0008,
    },
};
/// Bytes of a function.
const BYTES_MAX: usize = 512;

fn decode(bytes: &[u8], at: u64) -> Instruction {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode()
}

fn target(instruction: &Instruction) -> Option<u64> {
    use iced_x86::OpKind::{NearBranch16, NearBranch32, NearBranch64};
    let direct = instruction.op_kinds().any(|kind| matches!(kind, NearBranch16 | NearBranch32 | NearBranch64));
    direct.then(|| instruction.near_branch_target())
}

/// Flags and bytes behind the function, then its code.
pub(crate) fn plan(input: &[u8]) {
    let mut input = Bytes(input);
    let (flags, behind) = (input.u8(), usize::from(input.u8() % 33));
    let bytes = input.take(BYTES_MAX);
    let size = if flags & 1 == 0 { bytes.len().saturating_sub(behind) } else { 0 };
    let function = Function { bytes, address: CODE, size, entered: None, computed: flags & 2 != 0 };
    let moved = Function { address: CODE + 0x1000_0000, ..function };
    for offset in 0..bytes.len() as u64 {
        let site = CODE + offset;
        let planned = plan_detour(&function, site);
        let same = plan_detour(&moved, site + 0x1000_0000);
        assert_eq!(planned.is_ok(), same.is_ok(), "where the function lies does not matter");
        let Ok(plan) = planned else { continue };
        check_plan(&function, &plan);
        let there = same.expect("just compared");
        let mapped = plan.mapped(0x1000_0000);
        assert_eq!((mapped.site, mapped.resume, &mapped.original), (there.site, there.resume, &there.original));
        check_stub(&function, &plan, STUB, true);
        for preemptible in [false, true] {
            if let Ok(agent_stack) = plan.clone().on_agent_stack(preemptible) {
                let at = agent_stack.stub_range().map_or(STUB, |range| range.start);
                check_stub(&function, &agent_stack, at, false);
            }
        }
    }
    if let Ok(plans) = plan_returns(&function, &|_| None) {
        for plan in &plans {
            check_plan(&function, plan);
            let at = plan.stub_range().map_or(STUB, |range| range.start);
            check_stub(&function, plan, at, false);
        }
    }
    check_calls(&function, flags & 4 != 0);
}

fn check_calls(function: &Function<'_>, is_gap: bool) {
    for (call, plan) in plan_syscalls(function, is_gap, &|_| None) {
        let at = (call - function.address) as usize;
        let Ok(plan) = plan else { continue };
        assert_eq!(function.bytes[at..at + 2], [0x0f, 0x05], "it is a system call, and ends behind these bytes");
        let start = (plan.site - function.address) as usize;
        let end = start + plan.displaced.len();
        assert_eq!(plan.displaced, function.bytes[start..end]);
        assert!(plan.site <= call && plan.displaced.len() >= JUMP_BYTES && plan.after() == call + 2);
        if let Ok((near, _)) = plan.near(STUB, HOOK) {
            assert!(near.bytes.len() <= NEAR_BYTES_MAX);
        }
        let _ = plan.jump(STUB);
    }
}

/// What is planned is of the function's code, and nothing of it branches into the jump.
fn check_plan(function: &Function<'_>, plan: &Plan) {
    let at = (plan.site - function.address) as usize;
    assert_eq!(plan.original, function.bytes[at..at + JUMP_BYTES]);
    let end = function.address + function.bytes.len() as u64;
    assert!(plan.resume > plan.site && plan.resume <= end);
    let inside = plan.site + 1..plan.site + JUMP_BYTES as u64;
    let mut decoder = Decoder::with_ip(64, function.bytes, function.address, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let is_own = function.size == 0 || instruction.ip() < function.address + function.size as u64;
        if instruction.is_invalid() || !is_own {
            break;
        }
        let into = target(&instruction).filter(|to| inside.contains(to));
        assert_eq!(into, None, "the branch at {:#x} goes into the jump at {:#x}", instruction.ip(), plan.site);
    }
}

/// The displaced instructions are in the stub, in order, and mean what they meant.
fn check_stub(function: &Function<'_>, plan: &Plan, at: u64, is_plain: bool) {
    let Ok(jump) = plan.jump(at) else { return };
    let jumps = decode(&jump, plan.site);
    assert!(jump.len() == JUMP_BYTES && jumps.near_branch_target() == at);
    let kept = plan.stub_range().map(|range| range.end - range.start);
    let fixed = kept.map_or(0, |free| 4 - free.trailing_zeros() as usize / 8);
    assert_eq!(jump[JUMP_BYTES - fixed..], plan.original[JUMP_BYTES - fixed..], "the last bytes stay");
    let Ok(stub) = plan.stub(at, ENTRIES, HOOK) else { return };
    assert!(stub.bytes.len() <= STUB_BYTES_MAX && stub.moved[0].original <= plan.site);
    let mut next = stub.moved[0].original;
    // (The last one may be the jump to what follows them.)
    let displaced = stub.moved.iter().filter(|moved| moved.original != plan.resume);
    for moved in displaced {
        assert_eq!(moved.original, next, "in order and without a gap");
        let offset = (moved.original - function.address) as usize;
        let original = decode(&function.bytes[offset..], moved.original);
        next = original.next_ip();
        if is_plain {
            check_copy(&stub, moved.stub_offset, &original, at);
        }
    }
    // (What follows a `ret` is replaced, and not displaced.)
    assert!(next == plan.resume || !is_plain && next < plan.resume, "all that is displaced is there");
}

/// A displaced instruction of no branch is the same, and has the same memory operand.
fn check_copy(stub: &Stub, offset: u32, original: &Instruction, at: u64) {
    if original.flow_control() != FlowControl::Next {
        return;
    }
    let copy = decode(&stub.bytes[offset as usize..], at + u64::from(offset));
    assert_eq!(copy.mnemonic(), original.mnemonic(), "{original} became {copy}");
    if original.is_ip_rel_memory_operand() {
        assert_eq!(copy.ip_rel_memory_address(), original.ip_rel_memory_address(), "{original} became {copy}");
    }
}

/// Instructions as compilers make them, with short branches among them.
pub(crate) fn instructions(random: &mut Random) -> Vec<u8> {
    const PIECES: [&[u8]; 28] = [
        &[0x55],
        &[0x48, 0x89, 0xe5],
        &[0x53],
        &[0x5b],
        &[0xc3],
        &[0x90],
        &[0xf3, 0x0f, 0x1e, 0xfa],
        &[0x31, 0xc0],
        &[0x48, 0x83, 0xec, 0x18],
        &[0x48, 0x8b, 0x07],
        &[0x8b, 0x05, 0x10, 0, 0, 0],
        &[0x48, 0x8d, 0x3d, 0xf0, 0xff, 0xff, 0xff],
        &[0x85, 0xc0],
        &[0x74, 0x03],
        &[0x75, 0xf8],
        &[0xeb, 0x05],
        &[0xe3, 0x02],
        &[0xe2, 0xfc],
        &[0x0f, 0x84, 4, 0, 0, 0],
        &[0xe9, 0xf0, 0xff, 0xff, 0xff],
        &[0xe8, 0x20, 0, 0, 0],
        &[0xff, 0xd0],
        &[0xff, 0x15, 0x20, 0, 0, 0],
        &[0xff, 0xe0],
        &[0xff, 0x24, 0xc5, 0, 0, 0x50, 0],
        &[0xb8, 0x27, 0, 0, 0],
        &[0x0f, 0x05],
        &[0xc4, 0xe2, 0x7d, 0x18, 0x05, 1, 0, 0, 0],
    ];
    let mut code = vec![];
    for _ in 0..1 + random.below(14) {
        let piece = random.of(&PIECES);
        code.extend(piece);
        if matches!(piece[0], 0x70..=0x7f | 0xe2 | 0xe3 | 0xeb) && random.one_in(2) {
            *code.last_mut().expect("just put there") = random.below(40).wrapping_sub(20) as u8;
        }
    }
    code
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    let mut input = vec![random.below(8) as u8, random.below(33) as u8];
    input.extend(instructions(random));
    if random.one_in(3) {
        crate::damage(&mut input, random);
    }
    input
}
