//! From a function's bytes and a site to a plan: what to write, the stub, how to undo it.
//!
//! Runs: in the server.
//! May touch: the bytes it is given.
//! Never: reads or writes a process; guesses where it cannot prove (it refuses).
//! Start reading at: `plan.rs`, then `stub.rs`.
#![forbid(unsafe_code)]

mod agent_stack;
mod cancellation;
mod flow;
pub mod frames;
mod indirect;
mod plan;
mod returns;
mod stub;
mod syscall;

pub use agent_stack::AgentStackLinks;
pub use cancellation::{CallerLinks, Replaced, Routine};
pub use flow::{
    Branch, branches, far_branches, far_calls, goes_on, instruction_bytes, is_branch, is_code, short_target, text_of,
};
pub use indirect::{IndirectTargets, Instructions, Part, call_sites, computes_targets, has_operand_at};
pub use plan::{Arrival, Function, JUMP_BYTES, Plan, Refusal, Tactic, plan_alone, plan_detour};
pub use returns::plan_returns;
pub use stub::{Entries, Moved, RELAY_BYTES, STUB_BYTES_MAX, Stub, relay};
pub use syscall::{NEAR_BYTES_MAX, SyscallPlan, TrampolineLinks, gates, plan_syscalls};
