//! System calls that the agent must not make, because the process's seccomp filters forbid them.
//!
//! The server writes the filters' answers into the control page before the agent is mapped, and again when the process is about
//! to install another filter (`request::KIND_FILTER`). The agent does not make a denied call, and treats it as failed.

use core::sync::atomic::AtomicU64;

/// Numbers of system calls that the agent makes lie below.
pub const AGENT_CALLS_MAX: usize = 448;
/// Offset of [`Denied`] in the control page, behind its header.
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
