//! Memory that the server shares with its targets, and who may have which: domains, maps, text, doorbells, owners, counted
//! runs.
//!
//! Runs: on the tracer, and on the threads of doorbells.
//! May touch: realm blocks, maps, the text; mappings of targets.
//! Never: trusts a word that a target can write; frees memory while a thread may be using it.
//! Start reading at: `domains.rs`.

mod domains;
mod doorbell;
mod garbage;
mod maps;
mod owners;
mod protection;
mod runs;
mod text;

pub use domains::Domain;
pub(super) use domains::Domains;
pub(super) use doorbell::Doorbells;
pub use doorbell::EventFd;
pub(super) use garbage::{Garbage, Pending};
pub(super) use maps::{opened_for_targets, sources};
pub use owners::{Death, number_of_process, process_named};
pub(super) use owners::{Deaths, Namespaces, Untended, free_cpu_slots};
pub(super) use protection::Protection;
pub use protection::{Isolation, has_protection_keys};
pub use runs::{CountedRuns, RunSums};
pub use text::TextRange;
pub(super) use text::TextStore;
