//! Runs of perf events' programs: what the event interrupted stands for the running thread ([`ring3_layout::sampled`]).

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::owner::NAMESPACE_SERVER;
use ring3_layout::realm::request;
use ring3_layout::sampled::Sampled;
use ring3_layout::thread::ThreadBlock;

use crate::raw_memory::is_program_memory;
use crate::raw_request::{self, control};
use crate::raw_thread::state;

/// In [`ThreadBlock::memory_of`], so that it is not 0 for an idle CPU, which has no process.
const SOME: u64 = 1 << 32;
/// A process whose server has left so many questions for ids unanswered asks no more.
const UNTOLD_MAX: u32 = 3;

/// The sample that this run is for; `None`: the run is for the running thread, as all runs in targets are.
#[inline(always)]
pub(crate) fn sampled(tb: &ThreadBlock) -> Option<&Sampled> {
    // SAFETY: `stand_for` is given a sample that lives as long as it is there.
    unsafe { (tb.sampled as *const Sampled).as_ref() }
}

/// The ids that programs see: `pid << 32 | tid`, in the server's pid namespace if it tells, else in the thread's own.
pub(crate) fn shown_ids(tb: &mut ThreadBlock) -> u64 {
    if tb.shown_ids == 0 && sampled(tb).is_none() {
        ask_for_ids(tb);
    }
    tb.shown_ids
}

/// The ids in the thread's own pid namespace.
pub(crate) fn ids_at_home(tb: &ThreadBlock) -> u64 {
    sampled(tb).map_or(tb.pid_tgid, |sampled| sampled.pid_tgid)
}

/// What is known of the ids that programs see; 0: nothing.
pub(crate) fn told_ids(tb: &ThreadBlock) -> u64 {
    match tb.told_ids {
        _ if control(tb.region_base).namespace == NAMESPACE_SERVER => tb.pid_tgid,
        [own, told] if own == tb.pid_tgid => told,
        _ => 0,
    }
}

/// Has the server tell the running thread's ids. (A thread knows those of its own pid namespace only.)
#[cold]
fn ask_for_ids(tb: &mut ThreadBlock) {
    let untold = &state(tb.region_base).ids_untold;
    let answer = (untold.load(Relaxed) < UNTOLD_MAX)
        .then(|| raw_request::answer(tb.region_base, request::KIND_IDS, tb.pid_tgid, 0, 1))
        .flatten();
    if answer.is_none() {
        untold.fetch_add(1, Relaxed);
    }
    tb.shown_ids = answer.filter(|ids| *ids != 0).unwrap_or(tb.pid_tgid);
    // (Who has lent the block to a child keeps what is its own.)
    if tb.pid_tgid == tb.generation << 32 | u64::from(tb.tcb_tid) {
        tb.told_ids = [tb.pid_tgid, tb.shown_ids];
    }
}

/// From now on a sample at this address stands for the running thread; 0: none does.
#[inline(always)]
pub(crate) fn stand_for(tb: &mut ThreadBlock, at: u64) {
    tb.sampled = at;
    tb.shown_ids = sampled(tb).map_or_else(|| told_ids(tb), |sampled| sampled.pid_tgid);
}

/// Reads memory of the process that the run is for: a sampled one's, while `read` runs, is not this process's.
#[inline(always)]
pub(crate) fn of_process<T>(tb: &mut ThreadBlock, read: impl FnOnce(&ThreadBlock) -> T) -> T {
    let Some(sampled) = sampled(tb) else { return read(tb) };
    tb.memory_of = SOME | sampled.pid_tgid >> 32;
    let result = read(tb);
    tb.memory_of = 0;
    result
}

/// The same for an address whose owner it does not tell: what is the program's own is read here.
#[inline(always)]
pub(crate) fn of_any<T>(tb: &mut ThreadBlock, address: u64, bytes: u64, read: impl FnOnce(&ThreadBlock) -> T) -> T {
    if sampled(tb).is_some() && !is_program_memory(tb, address, bytes) { of_process(tb, read) } else { read(tb) }
}
