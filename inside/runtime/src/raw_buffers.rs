//! Ring and perf buffers from programs.

use ring3_layout::control::EVENT_WITHOUT_BUFFER;
use ring3_layout::ring::RING3_F_BLOCK;
use ring3_layout::thread::ThreadBlock;
use ring3_maps::{Map, PerfBuffer, Record, Ring, Sample, Wake};
use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_F_CURRENT_CPU, BPF_F_INDEX_MASK};

use crate::raw_blocking;
use crate::raw_clock::monotonic_ns;
use crate::raw_dispatch::cpu_of;
use crate::raw_helpers::{answer, block, context, map_at, view_named};
use crate::raw_request::{hurry, ring as ring_doorbell};

/// The ring buffer that a program passes by the address of its view, its doorbell, and whether its writers wait for the reader.
#[inline(always)]
fn ring_of<'m>(map: u64) -> Option<(Ring<'m>, u32, bool)> {
    // SAFETY: the verifier proved that a program passes a map here.
    let map = unsafe { Map::from_view(map) }?;
    let header = map.header();
    Some((map.ring()?, header.doorbell, header.map_flags & RING3_F_BLOCK != 0))
}

/// Tells the server that there is something to read, or room to write.
pub(crate) fn wake(tb: &ThreadBlock, doorbell: u32, wake: Wake) {
    if doorbell != 0 && wake.is_due {
        ring_doorbell(tb.region_base, doorbell);
    }
    if doorbell != 0 && wake.is_urgent {
        hurry(tb.region_base);
    }
}

/// `bpf_ringbuf_output`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_output(map: u64, data: u64, bytes: u64, flags: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let Some((ring, doorbell, blocks)) = ring_of(map) else { return Errno::EINVAL.negated() as u64 };
    // SAFETY: the verifier proved `data` readable for `bytes` bytes.
    let data = unsafe { core::slice::from_raw_parts(data as *const u8, bytes as usize) };
    if blocks {
        return answer(raw_blocking::output(tb, (ring, doorbell), data, flags));
    }
    answer(ring.output(&context(tb), data, flags).map(|wakes| {
        wake(tb, doorbell, wakes);
        0
    }))
}

/// `bpf_ringbuf_reserve`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_reserve(map: u64, bytes: u64, flags: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let Some((ring, _, blocks)) = ring_of(map).filter(|_| flags == 0) else { return 0 };
    let cx = context(tb);
    let Some(free) = tb.open_records.iter().position(|[address, _]| *address == 0) else { return 0 };
    let record = if blocks { raw_blocking::reserve(tb, ring, bytes) } else { ring.reserve(&cx, bytes) };
    let Some(record) = record else { return 0 };
    if let Some(free) = tb.open_records.get_mut(free) {
        *free = [record.address, map];
    }
    record.address
}

/// Ends a reservation of this run.
#[inline(always)]
fn commit(tb: &mut ThreadBlock, address: u64, flags: u64, discard: bool) -> u64 {
    let open = tb.open_records.iter_mut().find(|[open, _]| *open == address);
    let Some([open, map]) = open else { return 0 };
    *open = 0;
    let map = *map;
    let Some((ring, doorbell, blocks)) = ring_of(map) else { return 0 };
    if blocks {
        raw_blocking::commit(tb, (ring, doorbell), Record { address }, flags, discard);
    } else {
        wake(tb, doorbell, ring.commit(Record { address }, flags, discard));
    }
    0
}

/// Discards what a run has reserved that ends because it has no fuel left. (The result means nothing.)
///
/// # Safety
/// Called by a compiled program with the thread block that it was given.
#[cold]
pub unsafe fn run_dry(env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    for [address, _] in tb.open_records {
        if address != 0 {
            commit(tb, address, 0, true);
        }
    }
    0
}

/// `bpf_ringbuf_submit`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_submit(data: u64, flags: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    commit(unsafe { block(env) }, data, flags, false)
}

/// `bpf_ringbuf_discard`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_discard(data: u64, flags: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    commit(unsafe { block(env) }, data, flags, true)
}

/// `bpf_ringbuf_query`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn ringbuf_query(map: u64, what: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    ring_of(map).map_or(0, |(ring, ..)| ring.query(what))
}

/// `bpf_perf_event_output`. Mirrors kernel/trace/bpf_trace.c:__bpf_perf_event_output: `E2BIG` beyond the array,
/// `ENOENT` for an empty entry, `ENOSPC` for an event that nobody has mapped, `EINVAL` for unknown flags.
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn perf_event_output(
    _: u64,
    map: u64,
    flags: u64,
    data: u64,
    bytes: u64,
    env: u64,
) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    if flags & !BPF_F_INDEX_MASK != 0 {
        return Errno::EINVAL.negated() as u64;
    }
    let index = if flags == BPF_F_CURRENT_CPU { cpu_of(tb) } else { flags as u32 };
    // SAFETY: the verifier proved `data` readable for `bytes` bytes.
    let data = unsafe { core::slice::from_raw_parts(data as *const u8, bytes as u32 as usize) };
    answer(output(tb, map, index, data).map(|()| 0))
}

fn output(tb: &ThreadBlock, map: u64, index: u32, data: &[u8]) -> Result<(), Errno> {
    // SAFETY: the verifier proved that a program passes a map here.
    let array = unsafe { map_at(map) }?;
    let word = array.object(index)?;
    if word == EVENT_WITHOUT_BUFFER {
        return Err(Errno::ENOSPC);
    }
    let view = view_named(tb, word);
    if view == 0 {
        return Err(Errno::ENOENT);
    }
    // SAFETY: the address of a mapped map's view.
    let buffer = unsafe { PerfBuffer::from_view(view) }.ok_or(Errno::EINVAL)?;
    let wakes = buffer.output(&context(tb), &Sample { time_ns: monotonic_ns(tb), data })?;
    wake(tb, buffer.doorbell(), wakes);
    Ok(())
}
