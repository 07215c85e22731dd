//! What the agent must not call: the process's filters (seccomp) would kill it.
//!
//! The server puts the filters' answers into the control block before the agent is there, and when the process is about to
//! install another one (`request::KIND_FILTER`). A call that is denied is not made; to the agent it has failed.

use core::sync::atomic::AtomicU64;

/// Numbers of system calls that the agent makes lie below.
pub const AGENT_CALLS_MAX: usize = 320;
/// Offset of [`Denied`] in the control block, behind its header.
pub const DENIED_OFFSET: u64 = 0x800;

/// A bit for each number.
#[repr(C)]
#[derive(Debug)]
pub struct Denied {
    /// The bits; they are only ever set.
    pub words: [AtomicU64; AGENT_CALLS_MAX / 64],
}

const _: () = {
    assert!(size_of::<crate::control::ControlHeader>() as u64 <= DENIED_OFFSET);
    assert!(DENIED_OFFSET + size_of::<Denied>() as u64 <= crate::control::GOT_OFFSET);
};
