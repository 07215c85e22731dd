//! What compiled code expects to exist, without vector registers. Most of what programs copy is short: words, the last of
//! which may overlap. `rep movsb` and `rep stosb` take some ten nanoseconds to begin, and are for what is long.

use core::arch::asm;

/// From this length on the `rep` instructions win, bytes.
const LONG: usize = 512;

/// # Safety
/// `at` is readable for a `T`.
#[inline(always)]
unsafe fn load<T: Copy>(at: *const u8, offset: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { at.wrapping_add(offset).cast::<T>().read_unaligned() }
}

/// # Safety
/// `at` is writable for a `T`.
#[inline(always)]
unsafe fn store<T: Copy>(at: *mut u8, offset: usize, value: T) {
    // SAFETY: the caller's promise.
    unsafe { at.wrapping_add(offset).cast::<T>().write_unaligned(value) }
}

/// Keeps the compiler from making a loop a call of the very function that it is in.
#[inline(always)]
fn opaque() {
    // SAFETY: no instruction.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}

/// Copies `bytes` bytes, first and last `T` of them: all, if there are one to two `T`.
///
/// # Safety
/// As C's `memmove`; `bytes` is at least the size of a `T`.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(to: *mut u8, from: *const u8, bytes: usize) {
    let last = bytes - size_of::<T>();
    // SAFETY: inside the source.
    let first_value = unsafe { load::<T>(from, 0) };
    // SAFETY: inside the source.
    let last_value = unsafe { load::<T>(from, last) };
    // SAFETY: inside the destination.
    unsafe { store(to, 0, first_value) };
    // SAFETY: inside the destination.
    unsafe { store(to, last, last_value) };
}

/// Copies upwards; the destination may begin inside the source's, but not the other way round.
///
/// # Safety
/// As C's `memmove`.
#[inline(always)]
unsafe fn copy_up(to: *mut u8, from: *const u8, bytes: usize) {
    match bytes {
        // SAFETY: the lengths fit the types.
        8..=16 => unsafe { copy_ends::<u64>(to, from, bytes) },
        // SAFETY: as above.
        4..=7 => unsafe { copy_ends::<u32>(to, from, bytes) },
        // SAFETY: as above.
        2..=3 => unsafe { copy_ends::<u16>(to, from, bytes) },
        // SAFETY: as above.
        1 => unsafe { copy_ends::<u8>(to, from, bytes) },
        0 => {}
        LONG.. => {
            // SAFETY: the caller's promise; the direction flag is clear by the ABI.
            unsafe {
                asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
            }
        }
        _ => {
            // What the loop leaves, before the loop overwrites it.
            // SAFETY: inside the source.
            let end = unsafe { load::<[u64; 2]>(from, bytes - 16) };
            let mut at = 0;
            while at + 16 < bytes {
                // SAFETY: inside the source.
                let words = unsafe { load::<[u64; 2]>(from, at) };
                // SAFETY: inside the destination.
                unsafe { store(to, at, words) };
                at += 16;
                opaque();
            }
            // SAFETY: inside the destination.
            unsafe { store(to, bytes - 16, end) };
        }
    }
}

/// # Safety
/// As C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { copy_up(to, from, bytes) };
    to
}

/// # Safety
/// As C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: the destination does not begin inside the source.
        unsafe { copy_up(to, from, bytes) };
        return to;
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
    if !(8..LONG).contains(&bytes) {
        // SAFETY: the caller's promise; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags));
        }
        return to;
    }
    let word = u64::from(byte as u8) * 0x0101_0101_0101_0101;
    let mut at = 0;
    while at + 8 < bytes {
        // SAFETY: inside the destination.
        unsafe { store(to, at, word) };
        at += 8;
        opaque();
    }
    // SAFETY: inside the destination, which has 8 bytes at least.
    unsafe { store(to, bytes - 8, word) };
    to
}

/// # Safety
/// As C's `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    let mut at = 0;
    while at + 8 <= bytes {
        // SAFETY: both ranges are the caller's.
        let x = unsafe { load::<u64>(a, at) };
        // SAFETY: as above.
        let y = unsafe { load::<u64>(b, at) };
        if x != y {
            return if x.swap_bytes() < y.swap_bytes() { -1 } else { 1 };
        }
        at += 8;
        opaque();
    }
    for index in at..bytes {
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
