//! What compiled code expects to exist. `rep movsb` and `rep stosb` need no vector registers.

use core::arch::asm;

/// # Safety
/// As C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: the destination does not begin inside the source.
        return unsafe { memcpy(to, from, bytes) };
    }
    for index in (0..bytes).rev() {
        // SAFETY: index < bytes; both ranges are the caller's.
        let byte = unsafe { from.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(index).write_volatile(byte) };
    }
    to
}

/// # Safety
/// As C's `memset`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As C's `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    for index in 0..bytes {
        // SAFETY: index < bytes; both ranges are the caller's.
        let x = unsafe { a.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        let y = unsafe { b.wrapping_add(index).read_volatile() };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// # Safety
/// As `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, bytes) }
}

/// There is nobody to tell. The tests prove that no panic is left in the image.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        // SAFETY: raises an invalid-opcode exception.
        unsafe { asm!("ud2") }
    }
}
