//! Sessions that record events of targets, and how people read them.
//!
//! Runs: in `ring3 trace` and `ring3 record`, which are loaders: a server answers their bpf(2) calls.
//! May touch: descriptors that bpf(2) and perf_event_open(2) give, and the ring buffer's memory.
//! Never: decides which processes are traced; that is the server's.
//! Start reading at: `Plan::new`, then `Session::open`.
#![forbid(unsafe_code)]

mod calls;
pub mod ends;
pub mod libraries;
pub mod probe;
mod session;
mod stops;
mod summary;
mod text;

pub use session::{Lost, Options, Plan, Session, is_end};
pub use stops::{StopsOptions, StopsPlan, StopsSession};
pub use summary::Summary;
pub use text::Text;
