//! Ring buffers whose writers wait for the reader (`RING3_F_BLOCK`): for room, and until a record has been consumed.
//!
//! Such a wait ends when the reader gets on. It ends early, within [`SLICE_NS`], if the reader's process has ended, if it has said that
//! it reads no more, if the server has taken the map away, or when the target is detached. It has no other limit: a reader that is
//! stopped is waited for. So no thread waits that cannot find out that the reader is dead ([`may_wait`]).

use core::hint::{cold_path, spin_loop};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use ring3_layout::control::{ATTACHMENT_EXTENSION, Attachment};
use ring3_layout::owner::NAMESPACE_SERVER;
use ring3_layout::ring::RING3_RB_WAIT_CONSUMED;
use ring3_layout::thread::ThreadBlock;
use ring3_maps::{Context, Goal, Record, Ring, Unreserved};
use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use ring3_uapi::nr;

use crate::raw_buffers::wake;
use crate::raw_helpers::context;
use crate::raw_request::{FUTEX_WAIT, FUTEX_WAKE, control};
use crate::raw_system::{EINTR, ETIMEDOUT, is_dead, may_call, syscall};

/// Looks at the reader before the thread sleeps. Where the reader has a CPU of its own it mostly needs less.
const SPINS: u32 = 200;
/// A thread sleeps so long at a time before it looks whether the reader lives, ns.
const SLICE_NS: u64 = 100_000_000;
/// Of a reader in another pid namespace it cannot be found out: it is waited for so many slices in which it does not move.
const FAR_SLICES_MAX: u32 = 100;

/// As `bpf_ringbuf_output`.
#[cold]
#[inline(never)]
pub(crate) fn output(
    tb: &ThreadBlock,
    (ring, doorbell): (Ring<'_>, u32),
    data: &[u8],
    flags: u64,
) -> Result<u64, Errno> {
    if flags & !(BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP | RING3_RB_WAIT_CONSUMED) != 0 {
        return Err(Errno::EINVAL);
    }
    let record = reserve(tb, ring, data.len() as u64).ok_or(Errno::EAGAIN)?;
    ring.fill(record, data);
    commit(tb, (ring, doorbell), record, flags, false);
    Ok(0)
}

/// As `bpf_ringbuf_reserve`.
#[cold]
#[inline(never)]
pub(crate) fn reserve(tb: &ThreadBlock, ring: Ring<'_>, bytes: u64) -> Option<Record> {
    let record = reserve_or_wait(tb, ring, bytes);
    let words = ring.reader();
    if record.is_none() && words.reader.load(Relaxed) != 0 {
        words.lost.fetch_add(1, Relaxed);
    }
    record
}

fn reserve_or_wait(tb: &ThreadBlock, ring: Ring<'_>, bytes: u64) -> Option<Record> {
    let cx = context(tb);
    let has_reader = ring.reader().reader.load(Relaxed) != 0;
    let spare = if tb.interrupted == 0 && has_reader { ring.spare() } else { 0 };
    loop {
        match ring.try_reserve(&cx, bytes, spare) {
            Ok(record) => return Some(record),
            Err(Unreserved::Refused) => return None,
            // (Its owner may be stopped by a debugger, say.)
            Err(Unreserved::Locked) => {
                if ring.is_locked_by(cx.owner) || !goes_on(tb, ring) {
                    return None;
                }
            }
            Err(Unreserved::Full) => {
                if !wait(tb, ring, &cx, ring.room_goal(bytes, spare)) {
                    return None;
                }
            }
        }
    }
}

/// Whether a thread that has waited for the lock may wait longer: the reader lives, and wants what it waits with.
fn goes_on(tb: &ThreadBlock, ring: Ring<'_>) -> bool {
    let control = control(tb.region_base);
    let reader = ring.reader().reader.load(SeqCst);
    let is_near = control.namespace == NAMESPACE_SERVER;
    reader != 0 && is_near && control.retired.load(Relaxed) == 0 && may_wait(tb) && !is_dead(reader)
}

/// As `bpf_ringbuf_submit` and `bpf_ringbuf_discard`.
#[cold]
#[inline(never)]
pub(crate) fn commit(tb: &ThreadBlock, (ring, doorbell): (Ring<'_>, u32), record: Record, flags: u64, discard: bool) {
    let waits = flags & RING3_RB_WAIT_CONSUMED != 0 && !discard;
    let goal = if waits { ring.consumed_goal(record) } else { None };
    let wakes = ring.commit(record, flags, discard);
    if ring.reader().reader.load(Relaxed) == 0 {
        return wake(tb, doorbell, wakes);
    }
    if ring.finds_sleeping_reader(flags) {
        let word = &raw const ring.reader().sleeping as u64;
        // SAFETY: FUTEX_WAKE only uses the address as a key.
        unsafe { syscall(nr::FUTEX, [word, FUTEX_WAKE, 1, 0, 0, 0]) };
    }
    if let Some(goal) = goal {
        wait(tb, ring, &context(tb), goal);
    }
}

/// Whether the running program's thread may wait for a reader: not if it can neither sleep nor find out that the reader is dead, not
/// while the target is detached, not in processes of ring3's own, and not in a host of extensions.
fn may_wait(tb: &ThreadBlock) -> bool {
    let base = tb.region_base;
    let is_target = control(base).server_pid != 0 && tb.sampled == 0;
    // SAFETY: while a program runs, the address of its attachment.
    let attachment = unsafe { &*(tb.attachment as *const Attachment) };
    let calls = [nr::FUTEX, nr::TKILL, nr::PROCESS_VM_READV];
    is_target && attachment.flags & ATTACHMENT_EXTENSION == 0 && calls.into_iter().all(|call| may_call(base, call))
}

/// Waits until the reader has reached a goal. False: the wait has ended early.
fn wait(tb: &ThreadBlock, ring: Ring<'_>, cx: &Context, goal: Goal) -> bool {
    let words = ring.reader();
    let control = control(tb.region_base);
    if words.reader.load(Relaxed) == 0 || !may_wait(tb) {
        return false;
    }
    for _ in 0..SPINS {
        if ring.reached(goal) {
            return true;
        }
        spin_loop();
    }
    cold_path();
    if ring.holds_back(cx.owner, goal) {
        return false;
    }
    let (mut before, mut slices) = (ring.positions()[0], 0);
    while let Some(progress) = ring.ask_to_be_woken(goal) {
        let reader = words.reader.load(SeqCst);
        if reader == 0 || control.retired.load(Relaxed) != 0 {
            return false;
        }
        let timeout = [0, SLICE_NS];
        let word = &raw const words.progress as u64;
        // SAFETY: the futex word and the timeout are valid for the call.
        let result =
            unsafe { syscall(nr::FUTEX, [word, FUTEX_WAIT, u64::from(progress), &raw const timeout as u64, 0, 0]) };
        if result != -ETIMEDOUT && result != -EINTR {
            // It was woken, or need not have slept; or a filter that was installed meanwhile forbids it.
            if result < 0 && !may_wait(tb) {
                return false;
            }
            continue;
        }
        if is_dead(reader) {
            return false;
        }
        let consumer = ring.positions()[0];
        slices = if consumer == before { slices + u32::from(result == -ETIMEDOUT) } else { 0 };
        before = consumer;
        if control.namespace != NAMESPACE_SERVER && slices >= FAR_SLICES_MAX {
            return false;
        }
    }
    true
}
