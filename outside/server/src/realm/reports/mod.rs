//! What people and their tools are told of targets: `ring3 status`, `ring3 explain`, terminals, names for perf and gdb.
//!
//! Runs: on the tracer, and on threads that answer commands.
//! May touch: targets (read), files of names, terminals of loaders.
//! Never: changes a target.
//! Start reading at: `status.rs`.

mod explain;
pub(super) mod named;
mod status;
mod terminal;

pub use explain::{Explained, explain, survey};
pub use named::PerfFiles;
pub(super) use named::{PerfMap, of_agent, wrap};
pub(super) use status::{FaultStatus, OverrunStatus};
pub use status::{SiteStatus, TargetStatus};
pub use terminal::Terminal;
pub(super) use terminal::{ReportTo, report_untraced, report_untraced_now};
