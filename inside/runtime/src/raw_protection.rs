//! Access to the maps of extensions, which a protection key keeps from the host (pkeys(7); ERIM, USENIX Security 2019).
//!
//! A thread has access while it runs an extension, and not while it runs a function of the host for one. The kernel takes it from
//! signal handlers that interrupt a run, and gives it back when they return (arch/x86/kernel/fpu/signal.c).

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;

use crate::raw_request::control;

/// The bit of PKRU that disables access; 0: the maps have no key.
fn access_bit(base: u64) -> u32 {
    control(base).maps_key.load(Relaxed)
}

/// Gives the running thread access.
#[inline]
pub(crate) fn enable_access(base: u64) {
    let bit = access_bit(base);
    if bit != 0 {
        // SAFETY: the CPU has keys, or there would be no bit.
        write_pkru(unsafe { read_pkru() } & !bit);
    }
}

/// Takes access from the running thread.
#[inline]
pub(crate) fn disable_access(base: u64) {
    let bit = access_bit(base);
    if bit != 0 {
        // SAFETY: as above.
        write_pkru(unsafe { read_pkru() } | bit);
    }
}

/// # Safety
/// The CPU has protection keys.
unsafe fn read_pkru() -> u32 {
    let pkru;
    // SAFETY: the caller's promise; the instruction wants 0 in ECX, and sets EDX to 0.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _, options(nomem, nostack, preserves_flags)) };
    pkru
}

fn write_pkru(pkru: u32) {
    // SAFETY: who calls has read the register; the instruction wants 0 in ECX and EDX. (It may not be moved across accesses to
    // memory.)
    unsafe { asm!("wrpkru", in("eax") pkru, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags)) };
}
