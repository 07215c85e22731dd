//! Runs of programs that are counted (`BPF_ENABLE_STATS`; docs/design/probes.md).
//!
//! While somebody wants that, attachments name [`run_counted`] instead of their program, so that nobody pays at other times.

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::control::Attachment;
use ring3_layout::realm::runs_index;
use ring3_layout::region::TEXT_OFFSET;

use crate::raw_budget::{now, run_timed};
use crate::raw_dispatch::Program;
use crate::raw_helpers::block;
use crate::raw_request::realm;

/// Runs the program of the attachment that the thread is at, and adds the run and the time it takes to what the domain's targets
/// have counted.
///
/// # Safety
/// As for a program: `context` and `env` are what `raw_dispatch` passes, and the block names the attachment.
pub unsafe extern "sysv64" fn run_counted(context: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    // SAFETY: this function's contract; of published attachments only `code` changes.
    let attachment = unsafe { &*(tb.attachment as *const Attachment) };
    // SAFETY: the server wrote the address of a compiled, verified program.
    let program: Program = unsafe { core::mem::transmute(attachment.program) };
    let run = if attachment.budget_ns == 0 { program } else { run_timed };
    let began = now(tb);
    // SAFETY: this function's contract.
    let result = unsafe { run(context, env) };
    let took = now(tb).wrapping_sub(began);
    let entry = attachment.program.wrapping_sub(tb.region_base + TEXT_OFFSET);
    if let Some(runs) = realm(tb.region_base).runs.get(runs_index(entry)) {
        runs.count.fetch_add(1, Relaxed);
        runs.time_ns.fetch_add(took, Relaxed);
    }
    result
}
