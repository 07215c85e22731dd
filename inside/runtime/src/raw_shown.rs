//! Signal frames that show a thread at the process's own instruction, although it is at that instruction's copy in ring3's code.
//!
//! Who looks at a frame (an unwinder, a language's run-time, a debugger with a core file) knows nothing of ring3's code. When the handler
//! returns, the thread goes on at the copy: a jump may stand where the frame says.

use core::sync::atomic::Ordering::Acquire;

use ring3_layout::control::{
    HOOKS_MAX, MOVED_MAX, RECOVERY_OFFSET, Recovery, STUB_AREAS_MAX, STUB_AREAS_OFFSET, StubArea, StubTail,
    moved_unpack, stub_tail_offset,
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

/// Whether an address is in memory that holds stubs.
pub(crate) fn is_in_stubs(base: u64, address: u64) -> bool {
    let table = (base + CONTROL_OFFSET + STUB_AREAS_OFFSET) as *const StubArea;
    // SAFETY: the table is mapped with the control page.
    let areas = unsafe { core::slice::from_raw_parts(table, STUB_AREAS_MAX as usize) };
    areas.iter().any(|area| address.wrapping_sub(area.base) < area.bytes)
}

/// How sites were patched. (The server may change an entry meanwhile: then an instruction is not found.)
fn recoveries(base: u64) -> &'static [Recovery] {
    let hooks = control(base).hooks.load(Acquire).min(HOOKS_MAX) as usize;
    let table = (base + CONTROL_OFFSET + RECOVERY_OFFSET) as *const Recovery;
    // SAFETY: the table is mapped with the control page.
    unsafe { core::slice::from_raw_parts(table, hooks) }
}

/// The site of a stub that is there, and where in the stub each displaced instruction is.
fn displaced(entry: &Recovery) -> (u64, impl Iterator<Item = (u32, u32)>) {
    let tail = (entry.stub + stub_tail_offset(entry.stub_bytes)) as *const StubTail;
    // SAFETY: it lies behind the stub.
    let StubTail { site, count } = unsafe { tail.read() };
    // SAFETY: as above: `count` words follow.
    let pairs =
        unsafe { core::slice::from_raw_parts(tail.wrapping_add(1).cast::<u64>(), count.min(MOVED_MAX) as usize) };
    (site, pairs.iter().map(|pair| moved_unpack(*pair)))
}

/// The instruction of the process for which a stub does something at `rip`: the site, and the bytes from there.
#[cold]
pub(crate) fn displaced_at(base: u64, rip: u64) -> Option<(u64, u64)> {
    if !is_in_stubs(base, rip) {
        return None;
    }
    let mut entries = recoveries(base).iter();
    let entry = entries.find(|entry| rip.wrapping_sub(entry.stub) < u64::from(entry.stub_bytes))?;
    let (site, pairs) = displaced(entry);
    // (A copy may be several instructions, behind the call of the agent for a probe of its own. What comes first is for the site.)
    let begun = pairs.take_while(|(offset, _)| u64::from(*offset) <= rip - entry.stub);
    Some((site, begun.last().map_or(0, |(_, distance)| u64::from(distance))))
}

/// The copy of an instruction that was in the middle of a jump's bytes.
fn copy_of(base: u64, address: u64) -> Option<u64> {
    let is_inside = |entry: &&Recovery| address > entry.site && address - entry.site < u64::from(entry.bytes);
    let entry = recoveries(base).iter().find(is_inside)?;
    let (site, mut pairs) = displaced(entry);
    let (offset, _) = pairs.find(|(_, distance)| site + u64::from(*distance) == address)?;
    Some(entry.stub + u64::from(offset))
}
