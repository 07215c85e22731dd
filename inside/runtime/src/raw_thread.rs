//! Finds the running thread's block (docs/design/threads.md).
//!
//! If FS points to the TCB of a known C library, the word `%fs:0` identifies the thread, and a table of hints leads to its block.
//! A new thread may get the TCB of one that has ended, so the thread id that the C library keeps there must match, too.
//!
//! Otherwise GS points to the block. Three comparisons check each time that GS is ours, this thread's and this process's: a new
//! thread has its creator's GS and its own FS. Reading the bases of GS and FS takes 5 ns, as long as the rest of a probe.
//!
//! Any mismatch takes the slow path, which searches by FS base. The block of a dead thread is reused by the next thread with the
//! same FS base, or by any thread once all blocks are in use.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ring3_layout::PAGE_BYTES;
use ring3_layout::realm::request;
use ring3_layout::region::{PROCESS_OFFSET, STATE_BYTES, STATE_OFFSET};
use ring3_layout::sud::SIGNALS;
use ring3_layout::syscall::{AGENT_STACK_BYTES, AGENT_STACKS};
use ring3_layout::thread::{
    PASSED_FRAMES_MAX, ProcessPage, SHOWN_MAX, STATE_HEADER_BYTES, ShownFrame, StateHeader, THREAD_BLOCK_BYTES,
    THREADS_MAX, ThreadBlock, block_hint,
};
use ring3_uapi::nr;

use crate::raw_memory::read_own_word;
use crate::raw_system::{
    fs_base, gs_base, half_at_fs, is_dead, may_call, relax, set_gs_base, syscall0, tcb_at_fs, word_at_fs,
};
use crate::{raw_request, raw_sampled, raw_shadow};

/// Stands for the FS base of a thread that has none yet (before the C library has set it).
const NO_FS: u64 = 1;
/// Stands for the FS base of a thread that has its creator's.
const WITHOUT_TCB: u64 = 2;
const WITHOUT_TCB_TAKEN: u64 = 3;
/// Rounds of waiting for another thread to set the process up.
const SETUP_ROUNDS: u32 = 10_000;

pub(crate) fn state(base: u64) -> &'static StateHeader {
    // SAFETY: the state block is mapped with the region, for as long as this code is; it holds atomics.
    unsafe { &*((base + STATE_OFFSET) as *const StateHeader) }
}

pub(crate) fn process(base: u64) -> &'static ProcessPage {
    // SAFETY: as for the state block.
    unsafe { &*((base + PROCESS_OFFSET) as *const ProcessPage) }
}

/// Address of block `index`.
pub(crate) fn block_address(base: u64, index: u32) -> u64 {
    base + STATE_OFFSET + STATE_HEADER_BYTES + u64::from(index) * THREAD_BLOCK_BYTES
}

/// The running thread's block; null if no block is left (counted).
#[inline(never)]
pub(crate) fn current(base: u64) -> *mut ThreadBlock {
    let block = known(base);
    if block.is_null() { find(base) } else { block }
}

/// The running thread's block, found by its TCB and the hints; null if [`find`] must look for it.
#[inline(always)]
pub(crate) fn known(base: u64) -> *mut ThreadBlock {
    let page = process(base);
    let tid_at = page.tid_at.load(Relaxed);
    if tid_at != 0 {
        // SAFETY: a thread of this process had a C library's TCB. One that has none could use no thread-local
        // storage, which is compiled to read `%fs:0` too.
        let (fs, tid) = unsafe { tcb_at_fs(tid_at) };
        if let Some(hint) = page.blocks.get(block_hint(fs)) {
            let block = hint.load(Relaxed) as *mut ThreadBlock;
            // SAFETY: hints are null, or addresses of blocks that were handed out.
            if let Some(tb) = unsafe { block.as_ref() }
                && tb.fs_base == fs
                && tb.tcb_tid == tid
            {
                return block;
            }
        }
    }
    core::ptr::null_mut()
}

/// The running thread's block if GS points to it; else null.
fn at_gs(base: u64) -> *mut ThreadBlock {
    let page = process(base);
    let gs = gs_base();
    if gs.wrapping_sub(base + STATE_OFFSET) < STATE_BYTES {
        let block = gs as *mut ThreadBlock;
        // SAFETY: GS points into the state block, where only set_gs_base makes it point, to blocks.
        let tb = unsafe { &*block };
        // A block that was handed out has a generation, a process right after a fork has none.
        if tb.fs_base == fs_base() && tb.generation == page.generation.load(Relaxed) {
            return block;
        }
    }
    core::ptr::null_mut()
}

/// Whether the block certainly belongs to another thread, although its FS base is the running thread's: the running thread got
/// the TCB of a thread that has ended, and a GS value inherited from there.
fn is_another(page: &ProcessPage, tb: &ThreadBlock) -> bool {
    let tid_at = page.tid_at.load(Relaxed);
    if tid_at == 0 {
        return false;
    }
    // SAFETY: as in `known`.
    let (fs, tid) = unsafe { tcb_at_fs(tid_at) };
    fs == tb.fs_base && tid != tb.tcb_tid
}

/// The running thread's block, searched for; null if no block is left (counted).
#[cold]
pub(crate) fn find(base: u64) -> *mut ThreadBlock {
    let block = at_gs(base);
    // SAFETY: null, or a block that was handed out.
    if unsafe { block.as_ref() }.is_none_or(|tb| is_another(process(base), tb)) {
        return search(base);
    }
    leave_hint(base, block);
    block
}

/// As `find`, for a stub that checks GS itself. True if the stub will find the block there.
pub fn find_at_gs(base: u64) -> bool {
    let block = find(base);
    if !block.is_null() && block != at_gs(base) {
        // Somebody else uses GS.
        state(base).missed_no_block.fetch_add(1, Relaxed);
        return false;
    }
    !block.is_null()
}

/// As `find`, also for a thread that is about to end and has unmapped its TCB: nothing is read through FS.
#[cold]
pub(crate) fn find_by_fs_base(base: u64) -> *mut ThreadBlock {
    let block = at_gs(base);
    if block.is_null() { claim_block(base) } else { block }
}

#[cold]
fn search(base: u64) -> *mut ThreadBlock {
    let block = claim_block(base);
    // SAFETY: null, or the running thread's own block.
    let Some(tb) = (unsafe { block.as_ref() }) else { return block };
    let page = process(base);
    let is_settled = page.tid_at.load(Relaxed) | page.tcbs_invalid.load(Relaxed) != 0;
    if !is_settled && tb.fs_base != 0 && !is_tcb(tb.fs_base) {
        stop_using_tcbs(base);
    }
    leave_hint(base, block);
    block
}

/// A block for the running thread, identified by its FS base; null if no block is left (counted).
fn claim_block(base: u64) -> *mut ThreadBlock {
    let fs = match fs_base() {
        0 => NO_FS,
        fs => fs,
    };
    let ids = own_ids(base);
    let Some((index, ids)) = ids.and_then(|ids| Some((claim(base, fs, ids)?, ids))) else {
        let is_first = state(base).missed_no_block.fetch_add(1, Relaxed) == 0;
        if let Some((_, tid)) = ids.filter(|_| is_first) {
            let pid = syscall0(nr::GETPID) as u64;
            raw_request::file(base, request::KIND_NO_BLOCK, pid << 32 | tid, 0, false);
        }
        return core::ptr::null_mut();
    };
    let block = block_address(base, index) as *mut ThreadBlock;
    refresh(base, block, ids, if fs == NO_FS { 0 } else { fs });
    let gs = gs_base();
    if gs == 0 || gs.wrapping_sub(base + STATE_OFFSET) < STATE_BYTES {
        set_gs_base(block as u64);
    }
    block
}

/// Writes a hint, so that [`known`] finds the block the next time, if the thread has a TCB.
fn leave_hint(base: u64, block: *mut ThreadBlock) {
    /// Offsets in the TCB at which glibc (since 2.11) and musl (since 1.0.2) keep a thread's id, on x86-64.
    const TIDS_AT: [u32; 2] = [0x2d0, 0x30];
    let page = process(base);
    if page.tcbs_invalid.load(Relaxed) != 0 {
        return;
    }
    // SAFETY: the running thread's own block.
    let tb = unsafe { &*block };
    // SAFETY: threads whose FS leads nowhere are looked for at their first hit, after which TCBs are not used.
    if tb.fs_base == 0 || unsafe { word_at_fs() } != tb.fs_base {
        return;
    }
    let is_here = |at: &u32| {
        let same_page = tb.fs_base % PAGE_BYTES + u64::from(*at) + 4 <= PAGE_BYTES;
        // SAFETY: the page of the word that was read.
        same_page && unsafe { half_at_fs(*at) } == tb.tcb_tid
    };
    let known = Some(page.tid_at.load(Relaxed)).filter(|at| *at != 0);
    if let Some(at) = known.or_else(|| TIDS_AT.into_iter().find(is_here))
        && let Some(hint) = page.blocks.get(block_hint(tb.fs_base))
    {
        hint.store(block as u64, Relaxed);
        page.tid_at.store(at, Release);
    }
}

/// The process's generation and the running thread's id; `None` if a seccomp filter forbids the calls.
fn own_ids(base: u64) -> Option<(u64, u64)> {
    // (In a fork that has not been adopted, and whose tables are its own now, not all calls may have been seen: nobody knows its filters.)
    if process(base).generation.load(Acquire) == 0 && raw_request::control(base).retired.load(Relaxed) != 0 {
        return None;
    }
    let tid = u64::try_from(syscall0(nr::GETTID)).ok()?;
    Some((set_up_process(base)?, tid))
}

/// The process's generation, which the first thread that hits a site sets after injection or a fork. After a fork it also tells
/// the server of the child.
fn set_up_process(base: u64) -> Option<u64> {
    let page = process(base);
    for _ in 0..SETUP_ROUNDS {
        let generation = page.generation.load(Acquire);
        if generation != 0 {
            return Some(generation);
        }
        if page.initializing.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
            break;
        }
        relax(false);
    }
    let Ok(pid) = u64::try_from(syscall0(nr::GETPID)) else {
        page.initializing.store(0, Release);
        return None;
    };
    let state = state(base);
    let used = state.used.load(Acquire).min(THREADS_MAX);
    let fs = fs_base();
    // After a fork only the forking thread exists.
    for fs_of_block in state.fs_bases.iter().take(used as usize) {
        if fs_of_block.load(Relaxed) != fs {
            fs_of_block.store(0, Relaxed);
        }
    }
    page.generation.store(pid, Release);
    if used > 0 {
        raw_request::file(base, request::KIND_FORKED, pid << 32 | pid, 0, false);
    }
    Some(pid)
}

/// The index of the block of the thread with this FS base. Where threads have no TCBs, several may have the same FS base: then it
/// is that of the thread with these ids.
fn claim(base: u64, mut fs: u64, (generation, tid): (u64, u64)) -> Option<u32> {
    let state = state(base);
    let used = state.used.load(Acquire).min(THREADS_MAX) as usize;
    // SAFETY: a block that was handed out; of others' only ids are read.
    let block = |index: usize| unsafe { &*(block_address(base, index as u32) as *const ThreadBlock) };
    let find = |fs: u64, is_it: &dyn Fn(&ThreadBlock) -> bool| {
        let owners = state.fs_bases.iter().take(used).enumerate();
        owners
            .filter(|(_, owner)| owner.load(Relaxed) == fs)
            .map(|(index, _)| index)
            .find(|index| is_it(block(*index)))
    };
    let is_own = |tb: &ThreadBlock| tb.tcb_tid == tid as u32 && tb.generation == generation;
    // (If a filter forbids to ask, the owner counts as dead.)
    let is_alive =
        |tid| [nr::TKILL, nr::PROCESS_VM_READV].into_iter().all(|call| may_call(base, call)) && !is_dead(tid);
    let is_left = |tb: &ThreadBlock| tb.generation != generation || is_own(tb) || !is_alive(tb.tcb_tid);
    let mut known = find(fs, &|_| true);
    if process(base).tid_at.load(Relaxed) == 0 && fs != WITHOUT_TCB {
        let shared = known;
        known = find(WITHOUT_TCB_TAKEN, &is_own).or_else(|| find(fs, &is_left));
        if shared.is_some() && known.is_none() {
            fs = WITHOUT_TCB_TAKEN;
        }
    }
    let take = |from: u64| {
        state.fs_bases.iter().position(|owner| {
            owner.load(Relaxed) == from && owner.compare_exchange(from, fs, AcqRel, Relaxed).is_ok()
        })
    };
    let index = known.or_else(|| take(0)).or_else(|| {
        let dead = find_dead(&state.crowded, |index| is_dead(block(index).tcb_tid))?;
        state.fs_bases.get(dead)?.store(fs, Release);
        Some(dead)
    })? as u32;
    state.used.fetch_max(index + 1, AcqRel);
    Some(index)
}

/// The index of a block whose thread has ended, if one is found. The first search checks all blocks, which takes milliseconds. If it
/// finds none, `crowded` is set, and each further search checks a few blocks, in turn.
fn find_dead(crowded: &AtomicU32, is_dead: impl Fn(usize) -> bool) -> Option<usize> {
    const FEW: u32 = 4;
    let (first, count) = match crowded.load(Relaxed) {
        0 => (0, THREADS_MAX),
        next => (next - 1, FEW),
    };
    let found =
        (first..first.saturating_add(count)).map(|at| (at % THREADS_MAX) as usize).find(|index| is_dead(*index));
    crowded.store(if found.is_some() { 0 } else { first.wrapping_add(count) % THREADS_MAX + 1 }, Relaxed);
    found
}

/// Whether an FS base, which may be any number, is the address of a TCB.
pub(crate) fn is_tcb(fs_base: u64) -> bool {
    read_own_word(fs_base) == Ok(fs_base)
}

/// From now on threads are not identified by their TCBs: one has none, or is about to begin with its creator's.
#[cold]
pub(crate) fn stop_using_tcbs(base: u64) {
    let page = process(base);
    page.tcbs_invalid.store(1, Release);
    page.tid_at.store(0, Release);
}

/// Gives the running thread, which has just begun and has the FS and GS of its creator, a block of its own.
#[cold]
pub(crate) fn begin_without_tcb(base: u64) {
    let claimed = own_ids(base).and_then(|ids| Some((claim(base, WITHOUT_TCB, ids)?, ids)));
    let Some((index, ids)) = claimed else { return set_gs_base(0) };
    if let Some(owner) = state(base).fs_bases.get(index as usize) {
        // The next one of this kind must not find it.
        owner.store(WITHOUT_TCB_TAKEN, Relaxed);
    }
    let block = block_address(base, index) as *mut ThreadBlock;
    refresh(base, block, ids, fs_base());
    set_gs_base(block as u64);
}

/// The running thread has changed its FS base; the block that GS points to stays its own.
#[cold]
pub(crate) fn update_fs_base(base: u64) {
    let gs = gs_base();
    if gs.wrapping_sub(base + STATE_OFFSET + STATE_HEADER_BYTES) >= STATE_BYTES - STATE_HEADER_BYTES {
        return;
    }
    // SAFETY: GS points into the state block, where only set_gs_base makes it point, to blocks.
    let tb = unsafe { &mut *(gs as *mut ThreadBlock) };
    let index = (gs - block_address(base, 0)) / THREAD_BLOCK_BYTES;
    let is_own = tb.tcb_tid == syscall0(nr::GETTID) as u32;
    if let Some(owner) = state(base).fs_bases.get(index as usize).filter(|_| is_own) {
        tb.fs_base = fs_base();
        owner.store(tb.fs_base, Relaxed);
    }
}

/// Makes a block this thread's.
fn refresh(base: u64, block: *mut ThreadBlock, (generation, tid): (u64, u64), fs: u64) {
    // SAFETY: the block belongs to this thread: claim gave it to its FS base.
    let tb = unsafe { &mut *block };
    tb.region_base = base;
    let fresh_process = tb.generation != generation;
    let fresh_thread = !fresh_process && tb.tcb_tid != tid as u32;
    if tb.this == 0 || fresh_thread {
        raw_shadow::forget_all(tb);
    }
    if tb.this == 0 || fresh_thread {
        (tb.next_call, tb.first_call) = (0, 0);
        (tb.shown, tb.cancel_waits) = ([ShownFrame::default(); SHOWN_MAX], 0);
        (tb.wants_blocked, tb.passed_frames) = (0, [0; PASSED_FRAMES_MAX]);
        tb.agent_stack_top = block as u64 + THREAD_BLOCK_BYTES;
        tb.agent_stack_end = tb.agent_stack_top - AGENT_STACKS * AGENT_STACK_BYTES;
    }
    if tb.this == 0 || fresh_thread || fresh_process {
        tb.guard.store(0, Relaxed);
        (tb.cpu_slot, tb.interrupted) = (0, 0);
        (tb.sud_off_until, tb.sud_suspended) = (0, 0);
        tb.rseq = 0;
        (tb.comm.until, tb.uid_gid.until, tb.changes_until) = (0, 0, 0);
        (tb.cgroup.until, tb.ancestor.until, tb.pid_namespace) = (0, 0, [0; 2]);
        (tb.signals, tb.wanted_signals) = (0, [[0; SIGNALS]; 2]);
        tb.serial = raw_request::realm(base).threads.fetch_add(1, Relaxed).wrapping_add(1);
        tb.tsc.store(0, Relaxed);
    }
    if tb.this != 0 && fresh_process {
        for hits in &tb.hits {
            hits.store(0, Relaxed);
        }
        for misses in &tb.misses {
            misses.store(0, Relaxed);
        }
    }
    tb.this = block as u64;
    tb.fs_base = fs;
    (tb.told_ids, tb.tcb_tid) = ([0; 2], tid as u32);
    set_ids(tb, generation << 32 | tid);
    tb.random = 0;
    tb.generation = generation;
}

/// The ids of the thread that uses a block from now on.
pub(crate) fn set_ids(tb: &mut ThreadBlock, ids: u64) {
    tb.pid_tgid = ids;
    tb.shown_ids = raw_sampled::told_ids(tb);
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::Relaxed;

    use ring3_layout::thread::THREADS_MAX;

    use super::find_dead;

    #[test]
    fn the_living_are_asked_all_at_once_only_once() {
        let (crowded, asked) = (AtomicU32::new(0), AtomicU32::new(0));
        let search = |dead: usize| {
            asked.store(0, Relaxed);
            let found = find_dead(&crowded, |index| {
                asked.fetch_add(1, Relaxed);
                index == dead
            });
            (found, asked.load(Relaxed))
        };
        const NOBODY: usize = usize::MAX;
        assert_eq!(search(NOBODY), (None, THREADS_MAX));
        assert_eq!(search(NOBODY), (None, 4));
        // Every one's turn comes.
        let rounds = (0..THREADS_MAX).take_while(|_| search(3).0.is_none()).count();
        assert_eq!(rounds, THREADS_MAX as usize / 4 - 1);
        // Where one has ended there may be more.
        assert_eq!(search(900), (Some(900), 901));
    }
}
