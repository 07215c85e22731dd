//! Breakpoints that are not ours, at places that we want or have patched: the kernel's uprobes, mostly.
//!
//! The kernel writes one byte over whatever is there, and its removal writes the file's byte there (kernel/events/uprobes.c:
//! set_swbp, set_orig_insn); neither looks at the bytes behind. So a probe is refused where a breakpoint stands, and tried again
//! once that is gone. What is left of a jump over which one was written is taken back as soon as it is seen.

use std::collections::BTreeMap;

use ring3_inject as inject;

use super::site::WantedSite;
use crate::realm::process::{differs, read_process};
use crate::realm::refusal::refusal_of;
use crate::realm::target::{Link, Target, refuse};
use crate::realm::{AttachmentId, Refusal};

impl Target {
    /// Refuses what cannot be placed because of a breakpoint; the process need not be stopped to find that out again.
    pub(in crate::realm) fn set_blocked_aside(
        &self,
        wanted: &mut Vec<WantedSite>,
        links: &mut BTreeMap<AttachmentId, Link>,
    ) {
        wanted.retain(|want| {
            let blocked = self.blocked_at(want.place.address);
            for one in want.uses.iter().filter(|_| blocked.is_some()) {
                refuse(links, one.attachment, self.pid, blocked.clone().expect("only then"));
            }
            blocked.is_none()
        });
    }

    /// Why a site that could not be patched before still cannot.
    fn blocked_at(&self, address: u64) -> Option<Refusal> {
        let site = self.sites.get(&address).filter(|_| !self.is_in_force(address))?;
        let expected = site.plan.original.clone();
        let mut found = vec![0; expected.len()];
        read_process(self.pid, address, &mut found).ok()?;
        let error = inject::Error::BytesDiffer { address, expected, found };
        error.is_breakpoint().then(|| {
            let refusal = refusal_of(error);
            Refusal::new(refusal.errno, format!("{}: {}", site.name, refusal.message))
        })
    }

    /// Whether somebody else has written over a jump, and this was not known yet.
    pub(in crate::realm) fn find_disturbed(&mut self) -> bool {
        if self.is_detaching() || self.disturbed {
            return false;
        }
        let sites = self.sites.iter().filter(|(_, site)| site.patched);
        let written = sites.map(|(address, site)| (*address, &site.jump[..])).chain(self.syscalls.written());
        self.disturbed = differs(self.pid, written);
        self.disturbed
    }
}
