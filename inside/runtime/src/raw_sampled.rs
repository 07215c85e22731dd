//! Runs of perf events' programs: what the event interrupted stands for the running thread ([`ring3_layout::sampled`]).

use ring3_layout::sampled::Sampled;
use ring3_layout::thread::ThreadBlock;

use crate::raw_memory::is_program_memory;

/// In [`ThreadBlock::memory_of`], so that it is not 0 for an idle CPU, which has no process.
const SOME: u64 = 1 << 32;

/// The sample that this run is for; `None`: the run is for the running thread, as all runs in targets are.
#[inline(always)]
pub(crate) fn sampled(tb: &ThreadBlock) -> Option<&Sampled> {
    // SAFETY: `stand_for` is given a sample that lives as long as it is there.
    unsafe { (tb.sampled as *const Sampled).as_ref() }
}

/// The ids that programs see: `pid << 32 | tid`.
pub(crate) fn shown_ids(tb: &ThreadBlock) -> u64 {
    tb.shown_ids
}

/// From now on a sample at this address stands for the running thread; 0: none does.
#[inline(always)]
pub(crate) fn stand_for(tb: &mut ThreadBlock, at: u64) {
    tb.sampled = at;
    tb.shown_ids = sampled(tb).map_or(tb.pid_tgid, |sampled| sampled.pid_tgid);
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
