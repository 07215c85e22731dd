//! System calls of routines in which threads are cancelled by the address of the `syscall` instruction.
//!
//! The instruction stays where it is. Each call of such a routine has two [`crate::syscall::SyscallSite`]s: the call itself,
//! which leads to a near stub first, and its return address. At the return nothing tells which system call was made. So
//! [`crate::thread::StateHeader::awaited`] tells whether the end of one is awaited.

/// Of `SyscallSite::number`: a call of such a routine was replaced.
pub const CALLS: i32 = -2;
/// Of `SyscallSite::number`: what such a call returns to was replaced.
pub const RETURNS: i32 = -3;
/// Counters of awaited ends, by [`slot`].
pub const SLOTS: usize = 256;
/// What stack pointers are multiplied with to choose a counter.
pub const SLOT_FACTOR: u32 = 0x9e37_79b1;
/// How far the product is shifted then.
pub const SLOT_SHIFT: u32 = 24;

/// Which counter counts the calls made with this stack pointer.
pub const fn slot(sp: u64) -> usize {
    ((sp as u32).wrapping_mul(SLOT_FACTOR) >> SLOT_SHIFT) as usize
}

const _: () = assert!(1 << (32 - SLOT_SHIFT) == SLOTS);
