//! Runs of programs that have a budget of time (`ring3 load --budget`; docs/design/probes.md).
//!
//! An attachment with a budget names [`run_timed`] instead of its program, so others pay nothing. A run is never cut short: it may
//! hold a lock or a record. Runs that take longer are counted by the thread, and when there are many in a short time, or a few that
//! take most of it, the server is asked to switch the program off in this process.

use ring3_layout::control::Attachment;
use ring3_layout::realm::request;
use ring3_layout::thread::{OVERRUN_BUDGETS, OVERRUN_SPAN_NS, OVERRUN_US_MAX, OVERRUNS_MAX, Overruns, ThreadBlock};

use crate::raw_clock::monotonic_ns;
use crate::raw_dispatch::Program;
use crate::raw_helpers::block;
use crate::raw_request::file;

/// `CLOCK_MONOTONIC`, ns. (Inlined, it would be larger than all else here.)
#[inline(never)]
pub(crate) fn now(tb: &ThreadBlock) -> u64 {
    monotonic_ns(tb)
}

/// Runs the program of the attachment that the thread is at, and compares the time it takes with its budget. (The time in which
/// the thread did not run is part of it: one that other threads keep from its CPU is not told from one that is slow.)
///
/// # Safety
/// As for a program: `context` and `env` are what `raw_dispatch` passes, and the block names the attachment.
pub unsafe extern "sysv64" fn run_timed(context: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    // SAFETY: this function's contract; of published attachments only `code` changes.
    let attachment = unsafe { &*(tb.attachment as *const Attachment) };
    // SAFETY: the server wrote the address of a compiled, verified program.
    let program: Program = unsafe { core::mem::transmute(attachment.program) };
    let (began, host_ns) = (now(tb), tb.host_ns);
    // SAFETY: this function's contract.
    let result = unsafe { program(context, env) };
    let now = now(tb);
    // (What an extension's host does for it is the host's.)
    let took = now.wrapping_sub(began).saturating_sub(tb.host_ns.wrapping_sub(host_ns));
    if took > attachment.budget_ns {
        overran(tb, attachment, now, took);
    }
    result
}

#[cold]
fn overran(tb: &mut ThreadBlock, attachment: &Attachment, now: u64, took: u64) {
    let (link_id, prog_id) = (attachment.link_id, attachment.prog_id);
    let is_it = |entry: &Overruns| (entry.link_id, entry.prog_id) == (link_id, prog_id);
    // (If there is none, the one whose last overrun is the longest ago has to go.)
    let rank = |entry: &&mut Overruns| if is_it(entry) { 0 } else { 1 + entry.last_ns };
    // (The loop is rare, and unrolled it would be larger than all else here.)
    let count = core::hint::black_box(tb.overruns.len());
    let Some(entry) = tb.overruns.iter_mut().take(count).min_by_key(rank) else { return };
    if !is_it(entry) {
        *entry = Overruns { link_id, prog_id, ..Overruns::NONE };
    }
    if now.wrapping_sub(entry.since_ns) > OVERRUN_SPAN_NS {
        (entry.since_ns, entry.recent, entry.recent_us) = (now, 0, 0);
    }
    entry.last_ns = now;
    entry.worst_ns = entry.worst_ns.max(took);
    entry.total += 1;
    let is_too_much = |entry: &Overruns| {
        let enough_us = OVERRUN_BUDGETS.saturating_mul(attachment.budget_ns) / 1000;
        let has_taken = u64::from(entry.recent_us) >= enough_us.min(u64::from(u32::MAX));
        entry.recent >= OVERRUNS_MAX || entry.recent_us >= OVERRUN_US_MAX && has_taken
    };
    let was_too_much = is_too_much(entry);
    entry.recent = entry.recent.saturating_add(1);
    entry.recent_us = entry.recent_us.saturating_add(u32::try_from(took / 1000).unwrap_or(u32::MAX));
    if is_too_much(entry) && !was_too_much {
        let which = u64::from(link_id) << 32 | u64::from(prog_id);
        file(tb.region_base, request::KIND_OVER_BUDGET, tb.pid_tgid, which, false);
    }
}
