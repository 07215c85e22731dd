//! Our contract: every byte that two processes, or compiled code and Rust, both see.
//!
//! Runs: nowhere; these are types, constants and offsets.
//! May touch: nothing.
//! Never: holds logic beyond arithmetic on sizes and offsets.
//! Start reading at: `region.rs`.
#![no_std]
#![forbid(unsafe_code)]

pub mod cancellation;
pub mod control;
pub mod counter;
pub mod fault;
pub mod filter;
pub mod frame;
pub mod limit;
pub mod map;
pub mod owner;
pub mod packet;
pub mod realm;
pub mod region;
pub mod ring;
pub mod sampled;
pub mod shared;
pub mod slice;
pub mod sud;
pub mod syscall;
pub mod task;
pub mod task_event;
pub mod thread;

/// Says that the bytes follow this version of this crate; both sides compare it before anything else.
pub const LAYOUT_VERSION: u32 = 34;

/// Size of a page, bytes. x86-64 only for now.
pub const PAGE_BYTES: u64 = 4096;
