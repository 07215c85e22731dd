//! Sites that are an `int3`: of one byte, where a jump has no room.
//!
//! The kernel makes a SIGTRAP of it, whose handler is the agent's. It does nothing but lead the thread to the site's stub, as a jump
//! would have: programs run there, not in the handler, with the thread's own stack and mask.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use ring3_layout::control::{TRAPS_MAX, TRAPS_OFFSET, Trap, trap_slots};
use ring3_layout::region::CONTROL_OFFSET;

use crate::raw_actions::pass_on;
use crate::raw_sud::{Context, Info};

/// `si_code` of a signal that an exception makes (arch/x86/kernel/traps.c:do_int3_user).
const SI_KERNEL: u32 = 0x80;

fn traps(base: u64) -> &'static [Trap] {
    let table = (base + CONTROL_OFFSET + TRAPS_OFFSET) as *const Trap;
    // SAFETY: the table is mapped with the control page, and made of atomics.
    unsafe { core::slice::from_raw_parts(table, TRAPS_MAX) }
}

/// The stub of the site that is before an address.
fn stub_of(base: u64, behind: u64) -> Option<u64> {
    let table = traps(base);
    let places = trap_slots(behind).map_while(|at| table.get(at).filter(|trap| trap.behind.load(Acquire) != 0));
    let mut found = places.filter(|trap| trap.behind.load(Relaxed) == behind);
    found.next().map(|trap| trap.stub.load(Acquire))
}

/// A SIGTRAP has come. 0: the handler returns to `context`. Else it goes on as the process's own handler there.
///
/// # Safety
/// Called by the handler, with what the kernel gave it; `frame` is the word that it returns by.
pub unsafe fn trapped(base: u64, info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the caller's promise.
    let info = unsafe { &*info };
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context };
    if info.code() == SI_KERNEL
        && let Some(stub) = stub_of(base, context.rip())
    {
        context.set_rip(stub);
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { pass_on(base, info, context, frame) }
}
