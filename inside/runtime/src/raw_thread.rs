//! Finding the running thread's block.
//!
//! GS leads to it. That GS is ours, this thread's and this process's is checked each time by three
//! comparisons; any doubt takes the slow path, which searches by FS base. A block whose owner died is
//! taken over by the next thread with the same FS base, or by any thread when all blocks are taken.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ring3_layout::realm::request;
use ring3_layout::region::{PROCESS_OFFSET, STATE_BYTES, STATE_OFFSET};
use ring3_layout::thread::{
    ProcessPage, STATE_HEADER_BYTES, StateHeader, THREAD_BLOCK_BYTES, THREADS_MAX, ThreadBlock,
};

use crate::raw_request;
use crate::raw_system::{SYS_GETPID, SYS_GETTID, fs_base, gs_base, is_dead, relax, set_gs_base, syscall0, ticks};

/// FS base of a thread that has none yet (before the C library has set it).
const NO_FS: u64 = 1;
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

/// The running thread's block; null if there is none to be had (counted).
#[inline(always)]
pub(crate) fn current(base: u64) -> *mut ThreadBlock {
    let gs = gs_base();
    if gs.wrapping_sub(base + STATE_OFFSET) < STATE_BYTES {
        let block = gs as *mut ThreadBlock;
        // SAFETY: GS points into the state block, where only set_gs_base makes it point, to blocks.
        let tb = unsafe { &*block };
        let fs = fs_base();
        if tb.fs_base == fs && tb.generation == process(base).generation.load(Relaxed) && tb.generation != 0 {
            return block;
        }
    }
    find(base)
}

#[cold]
fn find(base: u64) -> *mut ThreadBlock {
    let generation = set_up_process(base);
    let fs = match fs_base() {
        0 => NO_FS,
        fs => fs,
    };
    let Some(index) = claim(base, fs) else {
        state(base).missed_no_block.fetch_add(1, Relaxed);
        return core::ptr::null_mut();
    };
    let block = block_address(base, index) as *mut ThreadBlock;
    refresh(base, block, generation, if fs == NO_FS { 0 } else { fs });
    let gs = gs_base();
    if gs == 0 || gs.wrapping_sub(base + STATE_OFFSET) < STATE_BYTES {
        set_gs_base(block as u64);
    }
    block
}

/// The process's generation, set after injection or fork by the first thread that comes by.
fn set_up_process(base: u64) -> u64 {
    let page = process(base);
    for _ in 0..SETUP_ROUNDS {
        let generation = page.generation.load(Acquire);
        if generation != 0 {
            return generation;
        }
        if page.initializing.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
            break;
        }
        relax(false);
    }
    let pid = syscall0(SYS_GETPID) as u64;
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
        raw_request::file(base, request::KIND_FORKED, pid as u32, false);
    }
    pid
}

/// The index of the block of the thread with this FS base.
fn claim(base: u64, fs: u64) -> Option<u32> {
    let state = state(base);
    let used = state.used.load(Acquire).min(THREADS_MAX) as usize;
    let known = state.fs_bases.iter().take(used).position(|owner| owner.load(Relaxed) == fs);
    let take = |from: u64| {
        state.fs_bases.iter().position(|owner| {
            owner.load(Relaxed) == from && owner.compare_exchange(from, fs, AcqRel, Relaxed).is_ok()
        })
    };
    let index = known.or_else(|| take(0)).or_else(|| {
        let dead = (0..THREADS_MAX).find(|index| {
            // SAFETY: a block that was handed out; only its owner's id is read.
            let tb = unsafe { &*(block_address(base, *index) as *const ThreadBlock) };
            is_dead(tb.pid_tgid as u32)
        })?;
        state.fs_bases.get(dead as usize)?.store(fs, Release);
        Some(dead as usize)
    })? as u32;
    state.used.fetch_max(index + 1, AcqRel);
    Some(index)
}

/// Makes a block this thread's.
fn refresh(base: u64, block: *mut ThreadBlock, generation: u64, fs: u64) {
    let tid = syscall0(SYS_GETTID) as u64;
    // SAFETY: the block belongs to this thread: claim gave it to its FS base.
    let tb = unsafe { &mut *block };
    let fresh_process = tb.generation != generation;
    let fresh_thread = !fresh_process && tb.pid_tgid as u32 != tid as u32;
    if tb.this == 0 || fresh_thread {
        tb.shadow_used = 0;
        tb.unwinding = 0;
    }
    if tb.this == 0 || fresh_thread || fresh_process {
        tb.guard.store(0, Relaxed);
        tb.cpu_slot = 0;
        tb.serial = raw_request::realm(base).threads.fetch_add(1, Relaxed).wrapping_add(1);
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
    tb.pid_tgid = generation << 32 | tid;
    tb.region_base = base;
    tb.random = ticks() ^ (block as u64) << 20 | 1;
    tb.generation = generation;
}
