//! Guarded access to the target's memory.
//!
//! Programs pass any address. Where the agent handles faults, it just copies ([`crate::raw_guarded`]). Where it cannot, it asks the
//! kernel to copy (`process_vm_readv` on its own process), which fails instead of faulting. Addresses that are certainly mapped are
//! copied directly: the thread's own stack, from its stack pointer to the end of the page of the application's stack pointer.

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::syscall::AGENT_STACK_BYTES;
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::Errno;
use ring3_uapi::nr;

use crate::raw_guarded::{copy, may_fault};
use crate::raw_sampled::sampled;
use crate::raw_system::{image_base, syscall, syscall0};

const PAGE: u64 = 4096;
/// Bytes of a string that are fetched at a time: by a system call, and without.
const CHUNK: usize = 128;
/// See [`CHUNK`].
const CHUNK_DIRECT: usize = 64;
/// End of user addresses (`TASK_SIZE_MAX`).
pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;

#[repr(C)]
struct IoVec {
    base: u64,
    bytes: u64,
}

/// Whether `bytes` at `address` lie on the running thread's stack where it is certainly mapped. (A guard that is further away than
/// all can be that programs need is of another stack: there are threads that change stacks in signal handlers.)
#[inline(always)]
fn is_own_stack(tb: &ThreadBlock, address: u64, bytes: u64) -> bool {
    let here = &raw const tb as u64;
    let guard = tb.guard.load(Relaxed);
    let end = guard.wrapping_add(PAGE - 1) & !(PAGE - 1);
    let is_here = guard.wrapping_sub(here) < AGENT_STACK_BYTES;
    is_here && address >= here && bytes <= PAGE && address < end && address + bytes <= end
}

/// Copies `bytes` bytes from `source`, which may be any address, to `target`.
///
/// # Safety
/// `target` is writable for `bytes` bytes.
pub unsafe fn read(tb: &ThreadBlock, target: u64, source: u64, bytes: u64) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    if tb.memory_of == 0 && is_own_stack(tb, source, bytes) {
        // SAFETY: both ranges are mapped; they may overlap.
        unsafe { core::ptr::copy(source as *const u8, target as *mut u8, bytes as usize) };
        return Ok(());
    }
    // SAFETY: the caller vouches for `target`.
    unsafe { transfer(tb.region_base, Direction::From(source), target, bytes, Some(tb)) }
}

/// The word at any address.
#[inline(never)]
pub(crate) fn read_word(tb: &ThreadBlock, address: u64) -> Result<u64, Errno> {
    let mut word = 0u64;
    // SAFETY: there is room for a word.
    unsafe { read(tb, &raw mut word as u64, address, size_of::<u64>() as u64) }?;
    Ok(word)
}

/// Copies `bytes` bytes from `source` to `target`, which may be any address.
///
/// # Safety
/// `source` is readable for `bytes` bytes.
#[inline(never)]
pub unsafe fn write(tb: &ThreadBlock, target: u64, source: u64, bytes: u64) -> Result<(), Errno> {
    // SAFETY: the caller vouches for `source`.
    unsafe { transfer(tb.region_base, Direction::To(target), source, bytes, Some(tb)) }
}

/// Where a copy comes from or goes to, which may be any address.
#[derive(Clone, Copy)]
enum Direction {
    From(u64),
    To(u64),
}

/// Copies `bytes` bytes between `local` and any address; `tb` is the running thread's block, if it is known.
///
/// # Safety
/// `local` is writable for `bytes` bytes if the copy goes there, else readable.
#[inline(always)]
unsafe fn transfer(
    base: u64,
    direction: Direction,
    local: u64,
    bytes: u64,
    tb: Option<&ThreadBlock>,
) -> Result<(), Errno> {
    let (Direction::From(remote) | Direction::To(remote)) = direction;
    if remote >= USER_END || bytes > USER_END - remote {
        return Err(Errno::EFAULT);
    }
    if may_fault(base) {
        let (target, source) =
            if matches!(direction, Direction::From(_)) { (local, remote) } else { (remote, local) };
        // SAFETY: the caller vouches for `local`; the other one may not be there. Who says that it is to be written may do so.
        return if unsafe { copy(target, source, bytes) } { Ok(()) } else { Err(Errno::EFAULT) };
    }
    let pid = match tb {
        Some(tb) if tb.memory_of != 0 => u64::from(tb.memory_of as u32),
        Some(tb) => tb.pid_tgid >> 32,
        None => syscall0(nr::GETPID) as u64,
    };
    // SAFETY: the kernel checks the other address; the caller vouches for `local`.
    unsafe { ask_kernel(direction, pid, local, bytes) }
}

/// The same by a system call.
#[inline(never)]
unsafe fn ask_kernel(direction: Direction, pid: u64, local: u64, bytes: u64) -> Result<(), Errno> {
    let (number, remote) = match direction {
        Direction::From(source) => (nr::PROCESS_VM_READV, source),
        Direction::To(target) => (nr::PROCESS_VM_WRITEV, target),
    };
    let local = IoVec { base: local, bytes };
    let remote = IoVec { base: remote, bytes };
    let arguments = [pid, &raw const local as u64, 1, &raw const remote as u64, 1, 0];
    // SAFETY: both vectors are valid; the kernel checks what they point to.
    let copied = unsafe { syscall(number, arguments) };
    if copied == bytes as i64 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies `bytes` bytes from `source`, which may be any address, to `target`, also where the thread has no block.
///
/// # Safety
/// `target` is writable for `bytes` bytes.
#[inline(never)]
pub(crate) unsafe fn read_own(target: u64, source: u64, bytes: u64) -> Result<(), Errno> {
    // SAFETY: the caller vouches for `target`.
    unsafe { transfer(image_base(), Direction::From(source), target, bytes, None) }
}

/// The word at any address, also where the thread has no block.
#[inline(never)]
pub(crate) fn read_own_word(address: u64) -> Result<u64, Errno> {
    let mut word = 0u64;
    // SAFETY: there is room for a word.
    unsafe { read_own(&raw mut word as u64, address, size_of::<u64>() as u64) }?;
    Ok(word)
}

/// Copies `bytes` bytes from `source` to `target`, which may be any address, also where the thread has no block.
///
/// # Safety
/// `source` is readable for `bytes` bytes.
#[inline(never)]
pub(crate) unsafe fn write_own(target: u64, source: u64, bytes: u64) -> Result<(), Errno> {
    // SAFETY: the caller vouches for `source`.
    unsafe { transfer(image_base(), Direction::To(target), source, bytes, None) }
}

/// Copies a string of at most `bytes` bytes with its NUL. Returns the length including the NUL; a longer string
/// is cut and ended. Mirrors mm/maccess.c:strncpy_from_kernel_nofault.
///
/// # Safety
/// `target` is writable for `bytes` bytes.
pub unsafe fn read_string(tb: &ThreadBlock, target: u64, source: u64, bytes: u64) -> Result<u64, Errno> {
    let mut done = 0u64;
    let mut chunk = [0u64; CHUNK / size_of::<u64>()];
    let at_a_time = if may_fault(tb.region_base) { CHUNK_DIRECT } else { CHUNK } as u64;
    while done < bytes {
        let at = source.checked_add(done).ok_or(Errno::EFAULT)?;
        let in_page = PAGE - at % PAGE;
        let wanted = (bytes - done).min(in_page).min(at_a_time);
        // SAFETY: the chunk has room for CHUNK bytes.
        unsafe { read(tb, chunk.as_mut_ptr() as u64, at, wanted) }?;
        let mut left = wanted;
        for word in &chunk {
            if left == 0 {
                break;
            }
            let end = first_zero_byte(*word).filter(|end| *end < left);
            let copied = end.map_or(left.min(size_of::<u64>() as u64), |end| end + 1);
            // SAFETY: done + copied <= bytes, which the caller vouches for.
            unsafe { put(target + done, *word, copied) };
            done += copied;
            left -= copied;
            if end.is_some() {
                return Ok(done);
            }
        }
    }
    if bytes > 0 {
        // SAFETY: the last of `bytes` writable bytes.
        unsafe { ((target + bytes - 1) as *mut u8).write(0) };
    }
    Ok(bytes)
}

/// Which byte of a word is the first one that is 0.
#[inline(always)]
fn first_zero_byte(word: u64) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
    (zeros != 0).then(|| u64::from(zeros.trailing_zeros()) / 8)
}

/// Stores the first bytes of a word, at most all.
///
/// # Safety
/// `target` is writable for so many bytes.
#[inline(always)]
unsafe fn put(target: u64, word: u64, bytes: u64) {
    if bytes == size_of::<u64>() as u64 {
        // SAFETY: the caller's promise.
        return unsafe { (target as *mut u64).write_unaligned(word) };
    }
    for (index, byte) in word.to_le_bytes().iter().enumerate().take(bytes as usize) {
        // SAFETY: the caller's promise.
        unsafe { (target as *mut u8).wrapping_add(index).write(*byte) };
    }
}

/// As [`read_string`], and the word with the NUL is stored whole where the destination and the source have it, the
/// rest zero. Mirrors mm/maccess.c:strncpy_from_user_nofault and lib/strncpy_from_user.c.
///
/// # Safety
/// `target` is writable for `bytes` bytes.
pub unsafe fn read_user_string(tb: &ThreadBlock, target: u64, source: u64, bytes: u64) -> Result<u64, Errno> {
    const WORD: u64 = 8;
    // SAFETY: the caller's promise.
    let length = unsafe { read_string(tb, target, source, bytes) }?;
    let end = length.next_multiple_of(WORD);
    if end > bytes {
        return Ok(length);
    }
    let last = source.wrapping_add(end).wrapping_sub(1);
    let mut byte = 0u8;
    let crosses = last / PAGE != source.wrapping_add(length).wrapping_sub(1) / PAGE;
    // SAFETY: room for a byte.
    if crosses && unsafe { read(tb, &raw mut byte as u64, last, 1) }.is_err() {
        return Ok(length);
    }
    // SAFETY: length <= end <= bytes, which the caller vouches for.
    unsafe { clear(target + length, end - length) };
    Ok(length)
}

/// Zeroes what a failed read promised.
///
/// # Safety
/// `target` is writable for `bytes` bytes.
pub unsafe fn clear(target: u64, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::write_bytes(target as *mut u8, 0, bytes as usize) };
}

/// Whether an address is what the kernel would call kernel memory: a program's stack, its context, the registers that it was given
/// or a map.
pub(crate) fn is_program_memory(tb: &ThreadBlock, address: u64, bytes: u64) -> bool {
    let here = &raw const tb as u64;
    let end = match tb.guard.load(Relaxed) {
        // (A signal handler on another stack has taken it away.)
        0 => (here | (PAGE - 1)) + 1,
        guard => guard,
    };
    if address >= here && address < end {
        return true;
    }
    let lies_in = |start: u64, length: u64| {
        let at = address.wrapping_sub(start);
        at < length && bytes <= length - at
    };
    if sampled(tb).is_some_and(|sampled| lies_in(sampled.context, sampled.context_bytes)) {
        return true;
    }
    use ring3_layout::control::{ControlHeader, GotEntry, MAPS_MAX};
    use ring3_layout::region::{CONTROL_OFFSET, got_offset};
    use ring3_maps::View;
    let header = (tb.region_base + CONTROL_OFFSET) as *const ControlHeader;
    // SAFETY: the control page begins with its header, is mapped in every target and read only for it.
    let maps = unsafe { &(*header).maps };
    let is_in_map = (0..maps.load(Relaxed).min(MAPS_MAX)).any(|slot| {
        let entry = (tb.region_base + got_offset(slot)) as *const GotEntry;
        // SAFETY: the GOT is mapped in every target, and consists of atomics.
        let entry = unsafe { &*entry };
        let view = entry.view.load(Relaxed);
        if view == 0 {
            return false;
        }
        // SAFETY: a nonzero entry is the address of a view.
        let view = unsafe { &*(view as *const View) };
        let end = view.base.wrapping_add(view.geometry.file_bytes());
        address >= view.base && address.wrapping_add(bytes) <= end
    });
    is_in_map || lies_in(&raw const tb.task_regs as u64, size_of_val(&tb.task_regs) as u64)
}
