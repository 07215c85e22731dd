//! Scenarios by subject.

pub(crate) mod raw_batches;
pub(crate) mod raw_calls;
pub(crate) mod raw_events;
pub(crate) mod raw_maps;
pub(crate) mod raw_members;
pub(crate) mod raw_names;
pub(crate) mod raw_programs;
pub(crate) mod raw_sampled;
pub(crate) mod raw_stats;
pub(crate) mod raw_test_runs;
pub(crate) mod raw_tracepoints;
pub(crate) mod raw_uprobes;
pub(crate) mod raw_values;
