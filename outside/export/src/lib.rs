//! Metrics and spans from the maps of BPF programs, by configurations of ebpf_exporter.
//!
//! Runs: in the process of `ring3 export`, which is a loader like any other.
//! May touch: configurations, object files and probed files; maps of its own; the sockets of scrapers and collectors.
//! Never: ignores what a configuration says; waits for a client without a bound; uses an asynchronous runtime.
//! Start reading at: `Exporter::load`, then `Exporter::gather`.
#![forbid(unsafe_code)]

mod config;
mod decode;
mod exporter;
mod http;
mod loaded;
mod metric;
mod names;
mod otlp;
mod places;
mod sinks;
mod spans;
mod text;
mod usdt;

pub use config::Config;
pub use exporter::Exporter;
pub use http::{Paths, serve};
pub use loaded::Prepared;
pub use metric::{Buckets, Family, Kind, Value};
pub use otlp::{Collector, endpoint};
pub use places::Attach;
pub use text::{CONTENT_TYPE, write};
