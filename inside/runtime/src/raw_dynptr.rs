//! Dynamic pointers: memory whose size is known at run time (kernel/bpf/helpers.c; v6.18), and the user ring buffer,
//! whose samples programs get as such.

use ring3_maps::{Map, Sampled, Wake};
use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};

use crate::raw_buffers::{ringbuf_discard, ringbuf_reserve, ringbuf_submit, wake};
use crate::raw_callbacks::{burn, callback};
use crate::raw_helpers::{answer, block, context};

/// `DYNPTR_MAX_SIZE`, bytes.
const DYNPTR_BYTES_MAX: u64 = (1 << 24) - 1;
/// `BPF_MAX_USER_RINGBUF_SAMPLES`.
const SAMPLES_MAX: u32 = 128 << 10;

/// Set in `bytes` if the memory must not be written (kernel/bpf/helpers.c).
const DYNPTR_RDONLY_BIT: u32 = 1 << 31;

/// A dynamic pointer in a program's stack (`struct bpf_dynptr_kern`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Dynptr {
    /// Address; 0: none.
    data: u64,
    /// Bytes, and [`DYNPTR_RDONLY_BIT`].
    bytes: u32,
    /// Of the view in the memory, bytes; views are not made here.
    offset: u32,
}

impl Dynptr {
    fn may_be_written(&self) -> bool {
        self.data != 0 && self.bytes & DYNPTR_RDONLY_BIT == 0
    }

    /// The address of `bytes` bytes at `offset`, if they are in it. Mirrors kernel/bpf/helpers.c:bpf_dynptr_check_off_len.
    fn at(&self, offset: u64, bytes: u64) -> Result<u64, Errno> {
        let size = u64::from(self.bytes & !DYNPTR_RDONLY_BIT);
        if bytes > size || offset > size - bytes { Err(Errno::E2BIG) } else { Ok(self.data + offset) }
    }
}

/// Reads a program's dynamic pointer.
///
/// # Safety
/// The verifier proved one at `at`.
unsafe fn load(at: u64) -> Dynptr {
    // SAFETY: the caller's promise.
    unsafe { (at as *const Dynptr).read_unaligned() }
}

/// Writes one.
///
/// # Safety
/// The verifier proved room for one at `at`.
unsafe fn store(at: u64, dynptr: Dynptr) {
    // SAFETY: the caller's promise.
    unsafe { (at as *mut Dynptr).write_unaligned(dynptr) }
}

/// Copies between places that may overlap.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes.
unsafe fn copy(from: u64, to: u64, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) }
}

/// `bpf_dynptr_from_mem`
///
/// # Safety
/// Called by a verified program with memory of that size and room for a dynamic pointer.
pub unsafe extern "sysv64" fn dynptr_from_mem(data: u64, bytes: u64, flags: u64, to: u64, _: u64, _: u64) -> u64 {
    let bytes = u64::from(bytes as u32);
    let bytes = if flags != 0 && bytes <= DYNPTR_BYTES_MAX { Err(Errno::EINVAL) } else { Ok(bytes) };
    // SAFETY: this function's contract.
    answer(unsafe { make_dynptr(to, data, bytes, true) })
}

/// Makes a dynamic pointer at `to`: none, if that fails. Its memory may be written, or not.
///
/// # Safety
/// The verifier proved room for one at `to`; `data` leads to so many bytes.
pub(crate) unsafe fn make_dynptr(to: u64, data: u64, bytes: Result<u64, Errno>, write: bool) -> Result<u64, Errno> {
    let dynptr = bytes.and_then(|bytes| match u32::try_from(bytes) {
        Ok(bytes) if u64::from(bytes) <= DYNPTR_BYTES_MAX => {
            let flag = if write { 0 } else { DYNPTR_RDONLY_BIT };
            Ok(Dynptr { data, bytes: bytes | flag, offset: 0 })
        }
        _ => Err(Errno::E2BIG),
    });
    // SAFETY: this function's contract.
    unsafe { store(to, dynptr.unwrap_or_default()) };
    dynptr.map(|_| 0)
}

/// `bpf_dynptr_read`
///
/// # Safety
/// Called by a verified program with room for `bytes` bytes and a dynamic pointer.
pub unsafe extern "sysv64" fn dynptr_read(to: u64, bytes: u64, from: u64, offset: u64, flags: u64, _: u64) -> u64 {
    let (bytes, offset) = (u64::from(bytes as u32), u64::from(offset as u32));
    // SAFETY: this function's contract.
    let dynptr = unsafe { load(from) };
    if dynptr.data == 0 || flags != 0 {
        return Errno::EINVAL.negated() as u64;
    }
    answer(dynptr.at(offset, bytes).map(|at| {
        // SAFETY: the dynamic pointer's memory has those bytes, and there is room for them.
        unsafe { copy(at, to, bytes) };
        0
    }))
}

/// `bpf_dynptr_write`
///
/// # Safety
/// Called by a verified program with a dynamic pointer and `bytes` readable bytes.
pub unsafe extern "sysv64" fn dynptr_write(to: u64, offset: u64, from: u64, bytes: u64, flags: u64, _: u64) -> u64 {
    let (bytes, offset) = (u64::from(bytes as u32), u64::from(offset as u32));
    // SAFETY: this function's contract.
    let dynptr = unsafe { load(to) };
    if !dynptr.may_be_written() {
        return Errno::EINVAL.negated() as u64;
    }
    let place = dynptr.at(offset, bytes).and_then(|at| if flags != 0 { Err(Errno::EINVAL) } else { Ok(at) });
    answer(place.map(|at| {
        // SAFETY: the dynamic pointer's memory has those bytes, and as many can be read.
        unsafe { copy(from, at, bytes) };
        0
    }))
}

/// `bpf_dynptr_data`: the address, 0 if it has not so many bytes.
///
/// # Safety
/// Called by a verified program with a dynamic pointer.
pub unsafe extern "sysv64" fn dynptr_data(of: u64, offset: u64, bytes: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: this function's contract.
    let dynptr = unsafe { load(of) };
    if !dynptr.may_be_written() {
        return 0;
    }
    dynptr.at(u64::from(offset as u32), u64::from(bytes as u32)).unwrap_or(0)
}

/// `bpf_dynptr_size`: bytes; `-EINVAL` if there is no memory.
///
/// # Safety
/// Called by a verified program with a dynamic pointer.
pub unsafe extern "sysv64" fn dynptr_size(of: u64, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: this function's contract.
    let dynptr = unsafe { load(of) };
    if dynptr.data == 0 { Errno::EINVAL.negated() as u64 } else { u64::from(dynptr.bytes & !DYNPTR_RDONLY_BIT) }
}

/// `bpf_dynptr_is_null`
///
/// # Safety
/// Called by a verified program with a dynamic pointer.
pub unsafe extern "sysv64" fn dynptr_is_null(of: u64, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: this function's contract.
    u64::from(unsafe { load(of) }.data == 0)
}

/// `bpf_dynptr_is_rdonly`: false if there is no memory.
///
/// # Safety
/// Called by a verified program with a dynamic pointer.
pub unsafe extern "sysv64" fn dynptr_is_rdonly(of: u64, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: this function's contract.
    let dynptr = unsafe { load(of) };
    u64::from(dynptr.data != 0 && !dynptr.may_be_written())
}

/// `bpf_ringbuf_reserve_dynptr`. Mirrors kernel/bpf/ringbuf.c.
///
/// # Safety
/// Called by a verified program with a ring buffer, room for a dynamic pointer and the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_reserve_dynptr(
    map: u64,
    bytes: u64,
    flags: u64,
    to: u64,
    _: u64,
    env: u64,
) -> u64 {
    let bytes = u64::from(bytes as u32);
    let result = if flags != 0 {
        Err(Errno::EINVAL)
    } else if bytes > DYNPTR_BYTES_MAX {
        Err(Errno::E2BIG)
    } else {
        // SAFETY: this function's contract.
        match unsafe { ringbuf_reserve(map, bytes, 0, 0, 0, env) } {
            0 => Err(Errno::EINVAL),
            data => Ok(Dynptr { data, bytes: bytes as u32, offset: 0 }),
        }
    };
    // SAFETY: this function's contract.
    unsafe { store(to, result.unwrap_or_default()) };
    answer(result.map(|_| 0))
}

/// Ends a reservation and the pointer to it.
///
/// # Safety
/// As of the two helpers below; `end` is one of the ring buffer's.
unsafe fn end_reservation(
    of: u64,
    flags: u64,
    env: u64,
    end: unsafe extern "sysv64" fn(u64, u64, u64, u64, u64, u64) -> u64,
) -> u64 {
    // SAFETY: the caller's promise.
    let dynptr = unsafe { load(of) };
    if dynptr.data != 0 {
        // SAFETY: the caller's promise; what is no open reservation is ignored there.
        unsafe { end(dynptr.data, flags, 0, 0, 0, env) };
        // SAFETY: the caller's promise.
        unsafe { store(of, Dynptr::default()) };
    }
    0
}

/// `bpf_ringbuf_submit_dynptr`
///
/// # Safety
/// Called by a verified program with a dynamic pointer and the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_submit_dynptr(of: u64, flags: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { end_reservation(of, flags, env, ringbuf_submit) }
}

/// `bpf_ringbuf_discard_dynptr`
///
/// # Safety
/// Called by a verified program with a dynamic pointer and the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_discard_dynptr(of: u64, flags: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { end_reservation(of, flags, env, ringbuf_discard) }
}

/// `bpf_user_ringbuf_drain`. Mirrors kernel/bpf/ringbuf.c:bpf_user_ringbuf_drain.
///
/// # Safety
/// Called by a verified program with a user ring buffer, a subprogram's address and the thread block that it was given.
pub unsafe extern "sysv64" fn user_ringbuf_drain(
    map: u64,
    function: u64,
    data: u64,
    flags: u64,
    _: u64,
    env: u64,
) -> u64 {
    if flags & !(BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP) != 0 {
        return Errno::EINVAL.negated() as u64;
    }
    // SAFETY: the verifier proved a map.
    let Some(map) = (unsafe { Map::from_view(map) }) else { return Errno::EINVAL.negated() as u64 };
    // SAFETY: this function's contract.
    let cx = context(unsafe { block(env) });
    let Some(ring) = map.user_ring() else { return Errno::EINVAL.negated() as u64 };
    if !ring.begin(&cx) {
        return Errno::EBUSY.negated() as u64;
    }
    // SAFETY: this function's contract.
    let result = unsafe { drain(&ring, function, data, env) };
    ring.end();
    let took_any = result.is_ok_and(|samples| samples > 0);
    if flags & BPF_RB_FORCE_WAKEUP != 0 || flags & BPF_RB_NO_WAKEUP == 0 && took_any {
        // SAFETY: this function's contract.
        wake(unsafe { block(env) }, map.header().doorbell, Wake::DUE);
    }
    answer(result)
}

/// Shows samples to the callback until it says that it has enough; how many it saw.
///
/// # Safety
/// As of the helper.
unsafe fn drain(ring: &ring3_maps::UserRing<'_>, function: u64, data: u64, env: u64) -> Result<u64, Errno> {
    // SAFETY: the verifier proved a subprogram.
    let function = unsafe { callback(function) };
    let mut shown = 0;
    for _ in 0..SAMPLES_MAX {
        match ring.next(DYNPTR_BYTES_MAX)? {
            Sampled::Nothing => break,
            Sampled::Discarded => {}
            Sampled::Sample { address, bytes, next } => {
                let dynptr = Dynptr { data: address, bytes: bytes as u32, offset: 0 };
                // SAFETY: a callback of a verified program.
                let enough = unsafe { function(&raw const dynptr as u64, data, 0, 0, 0, env) } != 0;
                ring.release(next);
                shown += 1;
                // SAFETY: the helper's contract.
                if enough || !unsafe { burn(env) } {
                    break;
                }
            }
        }
    }
    Ok(shown)
}
