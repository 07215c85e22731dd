//! Signal frames that show a thread at the process's own instruction, although it is at that instruction's copy in ring3's code.
//!
//! Who looks at a frame (an unwinder, a language's run-time, a debugger with a core file) knows nothing of ring3's code. When the handler
//! returns, the thread goes on at the copy: a jump may stand where the frame says.

use core::sync::atomic::Ordering::Acquire;

use ring3_layout::control::{
    HOOKS_MAX, MOVED_MAX, RECOVERY_OFFSET, Recovery, STUB_AREAS_MAX, STUB_AREAS_OFFSET, STUB_TAIL_MAGIC, StubArea,
    StubTail, moved_unpack, stub_tail_offset,
};
use ring3_layout::region::CONTROL_OFFSET;
use ring3_layout::syscall::SyscallSite;
use ring3_layout::thread::{SHOWN_MAX, ShownFrame, ThreadBlock};
use ring3_uapi::nr;

use crate::raw_request::control;
use crate::raw_sud::Context;
use crate::raw_syscalls::sites;
use crate::raw_thread::current;

/// Bytes from where a handler returns to, to behind the call of `rt_sigreturn`, at most.
const RESTORER_BYTES: u64 = 16;

/// The frame shows the thread at `place` until its handler returns. (There is one entry for an address: an older one is of a handler
/// that a `longjmp` has abandoned. If there are too many, the oldest most likely is, too.)
pub(crate) fn show(tb: &mut ThreadBlock, context: &mut Context, place: u64) {
    let frame = &raw const *context as u64;
    let known = tb.shown.iter().position(|shown| [0, frame].contains(&shown.frame));
    let at = known.unwrap_or_else(|| {
        tb.shown.copy_within(1.., 0);
        SHOWN_MAX - 1
    });
    tb.shown[at % SHOWN_MAX] = ShownFrame { frame, place, instead: context.rip() };
    context.set_rip(place);
}

/// A handler is about to return by this frame: the thread goes on where it was, unless the handler has changed that.
///
/// # Safety
/// The stack pointer of a call of `rt_sigreturn`.
pub(crate) unsafe fn lead_back(base: u64, frame: u64) {
    // SAFETY: the running thread's own block, or null.
    let Some(tb) = (unsafe { current(base).as_mut() }) else { return };
    let Some(shown) = tb.shown.iter_mut().find(|shown| shown.frame == frame && frame != 0) else { return };
    let ShownFrame { place, instead, .. } = core::mem::take(shown);
    // SAFETY: the frame of a handler that `show` was told of.
    let context = unsafe { &mut *(frame as *mut Context) };
    if context.rip() == place {
        context.set_rip(instead);
    } else if let Some(copy) = copy_of(base, context.rip()) {
        // (It skips the instruction, say.)
        context.set_rip(copy);
    }
}

/// Whether what a handler returns to calls `rt_sigreturn` through a trampoline, so that [`lead_back`] sees it.
pub(crate) fn returns_by_trampoline(base: u64, restorer: u64) -> bool {
    let is_it = |site: &&SyscallSite| i64::from(site.number) == nr::RT_SIGRETURN && site.site != 0;
    sites(base).iter().filter(is_it).any(|site| site.call.wrapping_sub(restorer) < RESTORER_BYTES)
}

/// The end of the memory that holds stubs around an address, if some does.
fn stubs_end(base: u64, address: u64) -> Option<u64> {
    let table = (base + CONTROL_OFFSET + STUB_AREAS_OFFSET) as *const StubArea;
    // SAFETY: the table is mapped with the control page.
    let areas = unsafe { core::slice::from_raw_parts(table, STUB_AREAS_MAX as usize) };
    // (They are noted one behind the other, and stay.)
    let mut used = areas.iter().take_while(|area| area.bytes != 0);
    let area = used.find(|area| address.wrapping_sub(area.base) < area.bytes)?;
    Some(area.base + area.bytes)
}

/// Whether an address is in memory that holds stubs.
pub(crate) fn is_in_stubs(base: u64, address: u64) -> bool {
    stubs_end(base, address).is_some()
}

/// How sites were patched. (The server may change an entry meanwhile: then an instruction is not found.)
fn recoveries(base: u64) -> &'static [Recovery] {
    let hooks = control(base).hooks.load(Acquire).min(HOOKS_MAX) as usize;
    let table = (base + CONTROL_OFFSET + RECOVERY_OFFSET) as *const Recovery;
    // SAFETY: the table is mapped with the control page.
    unsafe { core::slice::from_raw_parts(table, hooks) }
}

/// What lies behind a stub, and where in the stub each displaced instruction is.
///
/// # Safety
/// `tail` is the address of a [`StubTail`].
unsafe fn displaced(tail: u64) -> (StubTail, impl Iterator<Item = (u32, u32)>) {
    // SAFETY: the caller's promise. (Stubs may lie anywhere.)
    let found = unsafe { (tail as *const StubTail).read_unaligned() };
    let first = tail + size_of::<StubTail>() as u64;
    // SAFETY: as above: so many words follow.
    let word = move |index| unsafe { ((first + index * 8) as *const u64).read_unaligned() };
    (found, (0..found.count.min(MOVED_MAX)).map(move |index| moved_unpack(word(index))))
}

/// The instruction of the process for which a stub does something at `rip`: the site, and the bytes from there. (The stub may have been
/// replaced by a newer one since.)
#[cold]
pub(crate) fn displaced_at(base: u64, rip: u64) -> Option<(u64, u64)> {
    let (StubTail { stub, site, .. }, pairs) = tail_behind(base, rip)?;
    let here = rip.checked_sub(stub)?;
    // (A copy may be several instructions, behind the call of the agent for a probe of its own. What comes first is for the site.)
    let begun = pairs.take_while(|(offset, _)| u64::from(*offset) <= here);
    Some((site, begun.last().map_or(0, |(_, distance)| u64::from(distance))))
}

/// The address of the instruction whose copy in a stub begins at `rip`: the registers are as before it.
#[cold]
pub(crate) fn displaced_exactly(base: u64, rip: u64) -> Option<u64> {
    let (StubTail { stub, site, .. }, mut pairs) = tail_behind(base, rip)?;
    let (_, distance) = pairs.find(|(offset, _)| stub + u64::from(*offset) == rip)?;
    Some(site + u64::from(distance))
}

/// What lies behind the stub around `rip`, and where its displaced instructions are.
fn tail_behind(base: u64, rip: u64) -> Option<(StubTail, impl Iterator<Item = (u32, u32)>)> {
    let end = stubs_end(base, rip)?.checked_sub(size_of::<StubTail>() as u64)?;
    // SAFETY: memory of stubs.
    let is_tail = |at: &u64| unsafe { (*at as *const u64).read_unaligned() } == STUB_TAIL_MAGIC ^ *at;
    let tail = (rip..end).find(is_tail)?;
    // SAFETY: it says so itself.
    Some(unsafe { displaced(tail) })
}

/// The copy of an instruction that was in the middle of a jump's bytes.
fn copy_of(base: u64, address: u64) -> Option<u64> {
    let is_inside = |entry: &&Recovery| address > entry.site && address - entry.site < u64::from(entry.bytes);
    let entry = recoveries(base).iter().find(is_inside)?;
    // SAFETY: it lies behind the stub.
    let (StubTail { site, .. }, mut pairs) = unsafe { displaced(entry.stub + stub_tail_offset(entry.stub_bytes)) };
    let (offset, _) = pairs.find(|(_, distance)| site + u64::from(*distance) == address)?;
    Some(entry.stub + u64::from(offset))
}
