//! Routines in which threads are cancelled: a signal handler compares the address of the `syscall` instruction.
//!
//! musl's `__syscall_cp_asm` and glibc's `__syscall_cancel_arch` (since 2.41) test whether the thread is cancelled and then make
//! the call; a handler that runs anywhere in between must be able to tell. So the routine stays unchanged and makes the call
//! itself. Its callers are changed: the call of the routine leads to a near stub first, which shows the beginning, and the
//! instructions at its return address are displaced, which shows the end. The return address stays the original one, because
//! cancelled threads are unwound.

use std::mem::offset_of;

use iced_x86::{Code, FlowControl};
use ring3_layout::cancellation::{SLOT_FACTOR, SLOT_SHIFT};
use ring3_layout::syscall::{CALL_SHIFT, NUMBERS, Subscribers, SyscallTables};

use crate::flow::{decode, direct_target, ends_flow};
use crate::plan::{Function, JUMP_BYTES, Refusal, plan_detour};
use crate::stub::{Assembler, Moved, Stub, emit_displaced};
use crate::syscall::{NEAR_BYTES_MAX, SyscallPlan};

/// What a plan replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The `syscall` instruction.
    Instruction,
    /// A direct call of a routine.
    Call(Routine),
    /// What such a call returns to.
    Return,
}

/// A routine in which threads are cancelled. Its arguments: the address of a word that tells whether the thread is cancelled,
/// the number, and the six arguments of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routine {
    /// Its first instruction.
    pub start: u64,
    /// The `syscall` instruction.
    pub call: u64,
    /// If one of these bits of the word is set the call is not made.
    pub cancelled: u32,
}

/// Where the stubs of a routine's callers lead.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallerLinks {
    /// Index of the site.
    pub index: u32,
    /// Address of the tables.
    pub tables: u64,
    /// Address of the counters of awaited ends.
    pub awaited: u64,
    /// Routine of the agent that runs what wants the beginning of a call, or its end.
    pub agent: u64,
}

impl Routine {
    /// The routine whose `syscall` instruction is at `call`, if that is one, in `code` at `address`.
    pub fn around(code: &[u8], address: u64, call: u64) -> Option<Routine> {
        const BODY: [u8; 36] = [
            0x49, 0x89, 0xfb, // mov r11, rdi
            0x48, 0x89, 0xf0, // mov rax, rsi
            0x48, 0x89, 0xd7, // mov rdi, rdx
            0x48, 0x89, 0xce, // mov rsi, rcx
            0x4c, 0x89, 0xc2, // mov rdx, r8
            0x4d, 0x89, 0xca, // mov r10, r9
            0x4c, 0x8b, 0x44, 0x24, 0x08, // mov r8, [rsp + 8]
            0x4c, 0x8b, 0x4c, 0x24, 0x10, // mov r9, [rsp + 16]
            0x4c, 0x89, 0x5c, 0x24, 0x08, // mov [rsp + 8], r11
            0x0f, 0x05, 0xc3, // syscall; ret
        ];
        let body = usize::try_from(call.checked_sub(address)?).ok()?.checked_sub(BODY.len() - 3)?;
        if code.get(body..body + BODY.len()) != Some(&BODY[..]) {
            return None;
        }
        let (tested, cancelled) = test_and_branch_before(&code[..body])?;
        const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        let start = tested.strip_suffix(&ENDBR64).unwrap_or(tested).len();
        Some(Routine { start: address + start as u64, call, cancelled })
    }

    /// Its address where the file is mapped with `bias` added to its addresses.
    pub(crate) fn mapped(&self, bias: u64) -> Routine {
        let at = |address: u64| address.wrapping_add(bias);
        Routine { start: at(self.start), call: at(self.call), cancelled: self.cancelled }
    }

    /// What to replace where a function calls the routine by the instruction at `from`: that, and what it returns to.
    /// `function.entered` is what arrives in the bytes of the jump there.
    pub fn plan_caller(&self, function: &Function<'_>, from: u64) -> Result<[SyscallPlan; 2], Refusal> {
        let instructions = decode(function.bytes, function.address);
        let call = instructions.iter().find(|i| i.ip() == from).ok_or(Refusal::NotCode { site: from })?;
        if call.code() != Code::Call_rel32_64 || call.len() != JUMP_BYTES || direct_target(call) != Some(self.start) {
            return Err(Refusal::NotCode { site: from });
        }
        let back = plan_detour(function, call.next_ip())?;
        for (other, _) in &back.displaced {
            let calls = matches!(other.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
            if calls || other.code() == Code::Syscall {
                return Err(Refusal::Immovable { address: other.ip(), text: format!("{other}") });
            }
        }
        let plan = |from: u64, to: u64, replaced| {
            let at = |address: u64| (address - function.address) as usize;
            let displaced = function.bytes[at(from)..at(to)].to_vec();
            SyscallPlan { displaced, replaced, ..SyscallPlan::at(from, self.call) }
        };
        Ok([plan(from, back.site, Replaced::Call(*self)), plan(back.site, back.resume, Replaced::Return)])
    }
}

/// What is before the test and the `jne` with which code ends, and the bits that are tested.
fn test_and_branch_before(code: &[u8]) -> Option<(&[u8], u32)> {
    let short = match code {
        [before @ .., 0x75, _] => test_before(before),
        _ => None,
    };
    let near = match code {
        [before @ .., 0x0f, 0x85, _, _, _, _] => test_before(before),
        _ => None,
    };
    short.or(near)
}

/// What is before the test of the word at `rdi` with which code ends, and the bits that it tests.
fn test_before(code: &[u8]) -> Option<(&[u8], u32)> {
    const LOAD: [u8; 2] = [0x8b, 0x07]; // mov eax, [rdi]
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).ok();
    if let [before @ .., 0x8b, 0x07, 0x85, 0xc0] = code {
        return Some((before, u32::MAX)); // test eax, eax
    }
    if let [before @ .., 0x8b, 0x07, 0xa8, bits] = code {
        return Some((before, u32::from(*bits))); // test al, bits
    }
    if let [before @ .., 0x8b, 0x07, 0xa9, a, b, c, d] = code {
        return Some((before, word(&[*a, *b, *c, *d])?)); // test eax, bits
    }
    let (before, bits) = match code {
        [before @ .., 0xf6, 0x07, bits] => (before, u32::from(*bits)), // test byte [rdi], bits
        [before @ .., 0xf7, 0x07, a, b, c, d] => (before, word(&[*a, *b, *c, *d])?), // test dword [rdi], bits
        _ => return None,
    };
    Some((before.strip_suffix(&LOAD).unwrap_or(before), bits))
}

impl SyscallPlan {
    /// What tells it from others.
    pub fn key(&self) -> u64 {
        match self.replaced {
            Replaced::Instruction => self.call,
            Replaced::Call(_) | Replaced::Return => self.site,
        }
    }

    /// The near stub of a routine's caller, for the address `near`. Whoever is in it before the displaced code belongs to the
    /// routine's start, or to the displaced code's.
    pub fn near_of_caller(&self, near: u64, links: &CallerLinks) -> Result<Stub, Refusal> {
        let mut assembler = Assembler { base: near, bytes: Vec::with_capacity(NEAR_BYTES_MAX) };
        let home = match &self.replaced {
            Replaced::Call(routine) => {
                emit_begin(&mut assembler, links, routine)?;
                routine.start
            }
            Replaced::Instruction | Replaced::Return => {
                emit_end(&mut assembler, links)?;
                self.site
            }
        };
        let before = decode(&assembler.bytes[..assembler.bytes.len() - size_of::<u64>()], near);
        let mut moved: Vec<Moved> =
            before.iter().map(|i| Moved { original: home, stub_offset: (i.ip() - near) as u32 }).collect();
        if self.replaced == Replaced::Return {
            let instructions = decode(&self.displaced, self.site);
            for instruction in &instructions {
                moved.push(Moved { original: instruction.ip(), stub_offset: assembler.bytes.len() as u32 });
                let at = (instruction.ip() - self.site) as usize;
                emit_displaced(&mut assembler, instruction, &self.displaced[at..at + instruction.len()])?;
            }
            if !instructions.last().is_some_and(ends_flow) {
                assembler.jump(self.site + self.displaced.len() as u64)?;
            }
        }
        debug_assert!(assembler.bytes.len() <= NEAR_BYTES_MAX, "a near stub outgrew its limit");
        Ok(Stub { bytes: assembler.bytes, moved })
    }
}

/// Before the routine: to the agent if somebody wants the call, or SUD is enabled, and it will be made. All arguments stay;
/// `rax`, `r10` and `r11` are free where a function begins. The agent gets the index in `eax`, and where the routine begins in `r10`.
fn emit_begin(a: &mut Assembler, links: &CallerLinks, routine: &Routine) -> Result<(), Refusal> {
    const TO_SLOW: u8 = 34;
    const OVER_NETTED: u8 = 14;
    a.put(&[0xf7, 0x07]); // test dword [rdi], cancelled
    a.put(&routine.cancelled.to_le_bytes());
    a.put(&[0x0f, 0x85]); // jne routine
    a.relative(routine.start)?;
    a.put(&[0x89, 0xf0]); // mov eax, esi
    a.put(&[0x3d]); // cmp eax, NUMBERS
    a.put(&(NUMBERS as u32).to_le_bytes());
    a.put(&[0x73, TO_SLOW]); // jae slow
    a.put(&[0xc1, 0xe0, CALL_SHIFT]); // shl eax, CALL_SHIFT
    a.put(&[0x49, 0xbb]); // mov r11, enter
    a.put(&(links.tables + offset_of!(Subscribers, enter) as u64).to_le_bytes());
    a.put(&[0x49, 0x83, 0x3c, 0x03, 0]); // cmp qword [r11 + rax], 0
    a.put(&[0x75, OVER_NETTED]); // jne slow
    a.put(&[0x41, 0x83, 0xbb]); // cmp dword [r11 + uses_sud - enter], 0
    a.put(&((offset_of!(SyscallTables, uses_sud) - offset_of!(Subscribers, enter)) as u32).to_le_bytes());
    a.put(&[0]);
    a.put(&[0x0f, 0x84]); // je routine
    a.relative(routine.start)?;
    a.put(&[0xb8]); // slow: mov eax, index
    a.put(&links.index.to_le_bytes());
    a.put(&[0x4c, 0x8d, 0x15]); // lea r10, [rip + routine]
    a.relative(routine.start)?;
    a.jump_far(links.agent);
    Ok(())
}

/// Behind the routine: to the agent if somebody may wait for a call's end. `rcx`, `r11` and the flags are free behind a call.
/// The agent gets the index in `ecx`, and where the displaced code begins in `r11`.
fn emit_end(a: &mut Assembler, links: &CallerLinks) -> Result<(), Refusal> {
    const FAR_BYTES: u64 = 14;
    const TO_DISPLACED: u8 = 5 + 7 + FAR_BYTES as u8;
    a.put(&[0x4c, 0x8d, 0x5c, 0x24, 0xf8]); // lea r11, [rsp - 8]
    a.put(&[0x45, 0x69, 0xdb]); // imul r11d, r11d, SLOT_FACTOR
    a.put(&SLOT_FACTOR.to_le_bytes());
    a.put(&[0x41, 0xc1, 0xeb, SLOT_SHIFT as u8]); // shr r11d, SLOT_SHIFT
    a.put(&[0x48, 0xb9]); // mov rcx, awaited
    a.put(&links.awaited.to_le_bytes());
    a.put(&[0x42, 0x83, 0x3c, 0x99, 0]); // cmp dword [rcx + r11 * 4], 0
    a.put(&[0x74, TO_DISPLACED]); // je displaced
    a.put(&[0xb9]); // mov ecx, index
    a.put(&links.index.to_le_bytes());
    a.put(&[0x4c, 0x8d, 0x1d]); // lea r11, [rip + displaced]
    a.relative(a.here() + 4 + FAR_BYTES)?;
    a.jump_far(links.agent);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A routine that begins with this test and branch.
    fn routine_with(test: &[u8], branch: &[u8]) -> Vec<u8> {
        let mut code = vec![0xc3; 3];
        code.extend_from_slice(test);
        code.extend_from_slice(branch);
        code.extend_from_slice(&[0x49, 0x89, 0xfb, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xd7, 0x48, 0x89, 0xce]);
        code.extend_from_slice(&[0x4c, 0x89, 0xc2, 0x4d, 0x89, 0xca, 0x4c, 0x8b, 0x44, 0x24, 0x08]);
        code.extend_from_slice(&[0x4c, 0x8b, 0x4c, 0x24, 0x10, 0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3]);
        code
    }

    fn found(test: &[u8]) -> Option<(u64, u32)> {
        let by = |branch: &[u8]| {
            let code = routine_with(test, branch);
            let call = 0x1000 + code.len() as u64 - 3;
            Routine::around(&code, 0x1000, call).map(|routine| (routine.start, routine.cancelled))
        };
        let short = by(&[0x75, 0x24]);
        // (The last one ends as a short one would.)
        for near in [[0x0f, 0x85, 0x24, 0, 0, 0], [0x0f, 0x85, 1, 2, 0x75, 0xff]] {
            assert_eq!(by(&near), short);
        }
        short
    }

    #[test]
    fn routines_are_known_by_what_they_test() {
        assert_eq!(found(&[0x8b, 0x07, 0x85, 0xc0]), Some((0x1003, u32::MAX)));
        assert_eq!(found(&[0x8b, 0x07, 0xf6, 0x07, 8]), Some((0x1003, 8)));
        assert_eq!(found(&[0xf3, 0x0f, 0x1e, 0xfa, 0xf6, 0x07, 8]), Some((0x1003, 8)));
        assert_eq!(found(&[0x8b, 0x07, 0xa8, 8]), Some((0x1003, 8)));
        assert_eq!(found(&[0x85, 0xc0]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn callers_are_replaced_whole() {
        let routine = Routine { start: 0x2000, call: 0x2027, cancelled: u32::MAX };
        // call routine; pop rdx; pop rcx; cmp rax, -4; ret
        let bytes = [0xe8, 0xfb, 0x0f, 0, 0, 0x5a, 0x59, 0x48, 0x83, 0xf8, 0xfc, 0xc3, 0xcc, 0xcc];
        let function = Function { bytes: &bytes, address: 0x1000, size: 12, entered: None, computed: false };
        let [call, back] = routine.plan_caller(&function, 0x1000).expect("it can be done");
        assert_eq!((call.site, call.displaced.len(), call.key()), (0x1000, 5, 0x1000));
        assert_eq!((back.site, back.displaced.len(), back.key()), (0x1005, 6, 0x1005));
        assert_eq!(call.jump(0x3000).expect("near"), [0xe8, 0xfb, 0x1f, 0, 0]);
        for (plan, home) in [(&call, 0x2000), (&back, 0x1005)] {
            let stub = plan.near_of_caller(0x3000, &CallerLinks::default()).expect("near");
            let instructions = decode(&stub.bytes, 0x3000);
            let is_at = |offset: u32| instructions.iter().any(|i| i.ip() == 0x3000 + u64::from(offset));
            assert!(stub.moved.iter().take(7).all(|moved| moved.original == home && is_at(moved.stub_offset)));
        }
        // A function that ends with the call has nothing that could be displaced.
        let short = Function { bytes: &bytes[..5], address: 0x1000, size: 5, entered: None, computed: false };
        assert!(routine.plan_caller(&short, 0x1000).is_err());
        let entered = Some(crate::Arrival::Indirect { to: 0x1006 });
        assert!(routine.plan_caller(&Function { entered, ..function }, 0x1000).is_err());
    }

    #[test]
    fn branches_in_stubs_lead_to_instructions() {
        let routine = Routine { start: 0x2000, call: 0x2027, cancelled: 8 };
        for replaced in [Replaced::Call(routine), Replaced::Return] {
            let displaced = vec![0x48, 0x83, 0xc4, 0x10, 0x90];
            let plan = SyscallPlan { replaced, displaced, ..SyscallPlan::at(0x1000, 0x2027) };
            let stub = plan.near_of_caller(0x3000, &CallerLinks::default()).expect("near");
            // The address behind the far jump is no code.
            let far =
                stub.bytes.windows(6).position(|bytes| bytes == [0xff, 0x25, 0, 0, 0, 0]).expect("it is there") + 14;
            let starts: Vec<u64> = [(0, far - 8), (far, stub.bytes.len())]
                .into_iter()
                .flat_map(|(from, to)| decode(&stub.bytes[from..to], 0x3000 + from as u64))
                .map(|i| i.ip())
                .collect();
            let inside = 0x3000..0x3000 + stub.bytes.len() as u64;
            for instruction in decode(&stub.bytes[..far - 8], 0x3000) {
                let target = direct_target(&instruction).filter(|to| inside.contains(to));
                assert!(target.is_none_or(|to| starts.contains(&to)), "{instruction}");
            }
        }
    }
}
