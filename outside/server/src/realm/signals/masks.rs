//! Where threads are that may change which signals they block, and whether they have acted on what they have read.

use std::mem::offset_of;

use ring3_inject as inject;
use ring3_layout::region::{AGENT_BYTES_MAX, TEXT_BYTES, TEXT_OFFSET, TRAMPOLINES_BYTES, TRAMPOLINES_OFFSET};
use ring3_layout::sud::{
    SUD_ADDRESS_MASK, SUD_TRAMPOLINE_BYTES, SUD_TRAMPOLINES_BYTES, SUD_TRAMPOLINES_OFFSET, SudState,
};
use ring3_layout::syscall::{Progress, SYSCALL_BYTES};
use ring3_uapi::nr;

use super::actions::{field, read_word};

/// The words of a call's registers by which it may change a mask.
struct Changer {
    number: u64,
    rdi: u64,
    r8: u64,
    r9: u64,
    r10: u64,
}

impl Changer {
    fn of(registers: &inject::Registers) -> Changer {
        let inject::Registers { rax, rdi, r8, r9, r10, .. } = *registers;
        Changer { number: rax, rdi, r8, r9, r10 }
    }

    /// What a signal frame keeps (`struct sigcontext`), `context` being where `rax` lies there.
    fn kept(stopped: &inject::Stopped, context: u64) -> Result<Changer, inject::Error> {
        let word = |index: u64| read_word(stopped, context - (13 - index) * 8);
        Ok(Changer { number: word(13)?, r8: word(0)?, r9: word(1)?, r10: word(2)?, rdi: word(8)? })
    }

    /// Whether one of these signals may be blocked by it, for a while or for good.
    fn changes(&self, stopped: &inject::Stopped, signals: u64) -> bool {
        matches!(self.number, 13..=15) || self.blocks_meanwhile(stopped, signals)
    }

    /// Whether one of these signals may be blocked by it for its own time.
    fn blocks_meanwhile(&self, stopped: &inject::Stopped, signals: u64) -> bool {
        let word = |at: u64| Some(at).filter(|at| *at != 0).map(|at| read_word(stopped, at));
        let mask = match self.number {
            130 => word(self.rdi),
            271 => word(self.r10),
            281 | 441 => word(self.r8),
            270 | 333 => word(self.r9).and_then(|at| word(at.ok()?)),
            426 => return true,
            _ => return false,
        };
        mask.is_some_and(|mask| mask.is_ok_and(|mask| mask & signals != 0))
    }
}

/// Whether a thread has begun a call. (The kernel leaves `orig_rax` as it is when it has set a thread back so that it makes its call
/// again, and the thread may stop there.)
fn is_in_call(stopped: &inject::Stopped, registers: &inject::Registers) -> bool {
    const SYSCALL: [u8; SYSCALL_BYTES as usize] = [0x0f, 0x05];
    let mut next = [0; SYSCALL_BYTES as usize];
    let mut is_before = || stopped.read(registers.rip, &mut next).is_ok() && next == SYSCALL;
    registers.orig_rax as i64 >= 0 && !is_before()
}

/// Whether a thread is in a call during which it blocks one of these signals.
pub(in crate::realm) fn blocks_meanwhile(
    stopped: &inject::Stopped,
    tid: u32,
    signals: u64,
) -> Result<bool, inject::Error> {
    let registers = stopped.registers(tid)?;
    let in_call = registers.orig_rax as i64 >= 0;
    let call = Changer { number: registers.orig_rax, ..Changer::of(&registers) };
    Ok(in_call && call.blocks_meanwhile(stopped, signals))
}

/// Whether no thread has read how these signals may be blocked without having acted on that yet, and none of them is
/// pending.
pub(in crate::realm) fn masks_are_stable(
    stopped: &inject::Stopped,
    region: u64,
    signals: u64,
) -> Result<bool, inject::Error> {
    let ours = [region..region + AGENT_BYTES_MAX, region + TEXT_OFFSET..region + TEXT_OFFSET + TEXT_BYTES];
    let trampolines = region + TRAMPOLINES_OFFSET..region + TRAMPOLINES_OFFSET + TRAMPOLINES_BYTES;
    let is_inside = |rip: u64| ours.iter().any(|range| range.contains(&rip));
    for tid in stopped.threads().to_vec() {
        let registers = stopped.registers(tid)?;
        let in_call = is_in_call(stopped, &registers);
        // Who waits for the server, or for a lock, has not asked yet, or does not ask any more.
        let waits = in_call && registers.orig_rax as i64 == nr::FUTEX;
        let at_sud_trampoline = sud_trampoline(stopped, region, registers.rip).is_some();
        let at_trampoline = at_sud_trampoline || trampolines.contains(&registers.rip);
        let changes = at_trampoline && !in_call && Changer::of(&registers).changes(stopped, signals);
        if is_inside(registers.rip) && !waits && !at_sud_trampoline || changes || stopped.is_pending(tid, signals)? {
            return Ok(false);
        }
    }
    for context in stopped.saved_contexts()? {
        let at_sud_trampoline = sud_trampoline(stopped, region, context.rip).is_some();
        let at_trampoline = at_sud_trampoline || trampolines.contains(&context.rip);
        let changes = at_trampoline && Changer::kept(stopped, context.address)?.changes(stopped, signals);
        if is_inside(context.rip) && !at_sud_trampoline || changes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// For a thread at `rip` in a SUD trampoline: the call's own place, and whether it is at that or behind it.
pub(in crate::realm) fn sud_trampoline(stopped: &inject::Stopped, region: u64, rip: u64) -> Option<(u64, Progress)> {
    let offset = rip.checked_sub(region + SUD_TRAMPOLINES_OFFSET).filter(|offset| *offset < SUD_TRAMPOLINES_BYTES)?;
    let slot = field(region, offset_of!(SudState, slots)) + offset / SUD_TRAMPOLINE_BYTES * 8;
    let behind = read_word(stopped, slot).ok().map(|slot| slot & SUD_ADDRESS_MASK).filter(|behind| *behind != 0)?;
    let progress = if offset.is_multiple_of(SUD_TRAMPOLINE_BYTES) { Progress::Before } else { Progress::After };
    Some((behind - SYSCALL_BYTES, progress))
}
