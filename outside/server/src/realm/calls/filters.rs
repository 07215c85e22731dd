//! Targets that filter their own system calls (seccomp): ring3 makes no call in them that a filter forbids.
//!
//! Filters that exist when a process becomes a target are read then. If they forbid a necessary call, the process is refused.
//! When a target is about to install a filter, the agent announces it (`request::KIND_FILTER`) and waits: the server denies the
//! forbidden calls to the agent before the filter applies. If the server cannot read filters, or if a filter looks at where calls are
//! made, which trampolines change, it detaches from the target. So it does if a thread is about to catch its own calls by where they
//! are made (`request::KIND_OWN_DISPATCH`), and refuses a process in which one does.

use std::sync::atomic::Ordering::SeqCst;

use ring3_inject as inject;
use ring3_layout::filter::DENIED_OFFSET;
use ring3_uapi::seccomp::{FILTER_INSNS_MAX, FilterInsn};

use crate::realm::Shared;
use crate::realm::process::{read_process, read_value};
use crate::realm::target::Target;

impl Target {
    /// Denies the agent what the filters of a process that is about to become a target do not allow.
    /// (Those of loaders, which have what they start as targets, too, let everything pass in the end.)
    pub(in crate::realm) fn respect(&self, shared: &Shared, stopped: &inject::Stopped) -> Result<(), inject::Error> {
        let filters = stopped.filters()?.without(&shared.loader_filter);
        for tid in stopped.threads() {
            // (Kernels before Linux 6.4 do not tell.)
            if stopped.dispatch(*tid).is_ok_and(|dispatch| dispatch.mode != 0) {
                return Err(inject::Error::OwnDispatch { pid: self.pid });
            }
        }
        if filters.judge_places() {
            let why = "it looks at where calls are made".to_owned();
            return Err(inject::Error::Seccomp { pid: self.pid, why });
        }
        if let Some(call) = filters.in_the_way() {
            return Err(inject::Error::Seccomp { pid: self.pid, why: format!("it does not allow {call}") });
        }
        self.deny(&filters);
        Ok(())
    }

    /// A thread of a process that runs with these tables is about to install a filter.
    pub(in crate::realm) fn deny(&self, filters: &inject::Filters) {
        for (word, bits) in (0..).zip(filters.denied_to_agent()) {
            self.control.word(DENIED_OFFSET + word * 8).fetch_or(bits, SeqCst);
        }
    }
}

/// The filter that a process is about to install by the `struct sock_fprog` at an address; `None`: there is none, so the kernel
/// refuses it.
pub(in crate::realm) fn filter_at(pid: u32, address: u64) -> Option<inject::Filters> {
    if address == 0 {
        return Some(inject::Filters::strict());
    }
    let count = usize::from(read_value::<u64>(pid, address).ok()? as u16);
    let at = read_value::<u64>(pid, address.wrapping_add(8)).ok()?;
    if count == 0 || count > FILTER_INSNS_MAX {
        return None;
    }
    let mut bytes = vec![0u8; count * size_of::<FilterInsn>()];
    read_process(pid, at, &mut bytes).ok()?;
    let insns = bytes.chunks_exact(size_of::<FilterInsn>()).map(|insn| FilterInsn {
        code: u16::from_le_bytes([insn[0], insn[1]]),
        jt: insn[2],
        jf: insn[3],
        k: u32::from_le_bytes([insn[4], insn[5], insn[6], insn[7]]),
    });
    Some(inject::Filters::of(insns.collect()))
}
