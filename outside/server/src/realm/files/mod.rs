//! Executable files: which file is which, and what its code is.
//!
//! Runs: on the tracer, and on threads that analyse large files.
//! May touch: files, and the mappings of processes.
//! Never: stops a process, or writes into one.
//! Start reading at: `modules.rs`.

mod cancellation;
mod code;
mod gates;
mod layers;
mod libraries;
mod mapped;
mod modules;
mod raw_id;
pub(super) mod regular_file;
mod return_addresses;
mod unwind;

pub(super) use code::CodeFile;
pub(super) use libraries::{Program, VdsoClock, is_c_library, is_dynamic_loader, maps_c_library, vdso_clock};
pub(super) use mapped::{file_of, likely_file_of, likely_key_of};
pub use modules::plan_file;
pub(super) use modules::{
    ANALYSIS_AT_ONCE, FileKey, Modules, StaticSite, SyscallPlans, analyse_awaited, check_site, static_site,
    vdso_calls,
};
pub use raw_id::FileId;
pub(super) use return_addresses::copies_stacks;
pub(super) use unwind::UnwindStore;
