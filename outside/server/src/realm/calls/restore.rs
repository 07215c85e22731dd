//! Restores the system calls of a process, from the table of sites in its control page.
//!
//! Threads in trampolines and near stubs are moved to the original instructions.

use ring3_inject as inject;
use ring3_layout::region::{CONTROL_OFFSET, TRAMPOLINES_BYTES, TRAMPOLINES_OFFSET};
use ring3_layout::syscall::{
    Progress, SITES_MAX, SITES_OFFSET, SYSCALL_BYTES, SyscallSite, TRAMPOLINE_BYTES, progress,
};
use ring3_patch::{CallerLinks, JUMP_BYTES, NEAR_BYTES_MAX, Replaced, SyscallPlan};

use super::callers::replaced_at;
use crate::realm::process::{put_back, table_until};
use crate::realm::signals::sud_trampoline;

/// Puts the bytes of all sites back that the table in a process's control page names, and moves threads out of what belongs
/// to them.
pub(in crate::realm) fn restore(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    // (Up to the first entry that was never written.)
    let table = region + CONTROL_OFFSET + SITES_OFFSET;
    let entries = table_until(stopped.pid(), table, SITES_MAX, |entry: &SyscallSite| entry.near == 0);
    let restorations = entries.iter().map(|SyscallSite { site, written, original, .. }| inject::SiteRestoration {
        site: *site,
        written: &written[..JUMP_BYTES],
        original: &original[..JUMP_BYTES],
    });
    put_back(stopped, restorations.collect())?;
    let places = OriginalPlaces { region, trampolines: region + TRAMPOLINES_OFFSET, entries };
    for tid in stopped.threads().to_vec() {
        let registers = stopped.registers(tid)?;
        let to = match places.of(stopped, registers.rip) {
            Some((call, Progress::Before)) => inject::Registers { rip: call, ..registers },
            Some((call, Progress::After)) => match inject::made_again(&registers) {
                Some(again) => inject::Registers { rip: call, ..again },
                None => inject::Registers { rip: call + SYSCALL_BYTES, rcx: call + SYSCALL_BYTES, ..registers },
            },
            None => continue,
        };
        stopped.set_registers(tid, &to)?;
    }
    for context in stopped.saved_contexts()? {
        let to = match places.of(stopped, context.rip) {
            Some((call, Progress::Before)) => inject::SavedContext { rip: call, ..context },
            Some((call, Progress::After)) => {
                let after = call + SYSCALL_BYTES;
                inject::SavedContext { rip: after, rcx: after, ..context }
            }
            None => continue,
        };
        stopped.set_context(&to)?;
    }
    Ok(())
}

/// The original places of threads that are in trampolines and near stubs.
struct OriginalPlaces {
    region: u64,
    /// Address of the trampolines.
    trampolines: u64,
    entries: Vec<SyscallSite>,
}

impl OriginalPlaces {
    /// For a thread at `rip`: an instruction of the original code, and whether it is at that or behind it.
    fn of(&self, stopped: &inject::Stopped, rip: u64) -> Option<(u64, Progress)> {
        let in_trampolines = rip.checked_sub(self.trampolines).filter(|offset| *offset < TRAMPOLINES_BYTES);
        if let Some(offset) = in_trampolines {
            let entry = self.entries.get((offset / TRAMPOLINE_BYTES) as usize)?;
            return Some((entry.call, progress(entry.number >= 0, offset % TRAMPOLINE_BYTES)));
        }
        if let Some(place) = sud_trampoline(stopped, self.region, rip) {
            return Some(place);
        }
        let is_near = |entry: &&SyscallSite| (entry.near..entry.near + NEAR_BYTES_MAX as u64).contains(&rip);
        // They lie closer together than they may be long.
        self.entries.iter().filter(is_near).find_map(|entry| {
            let moved = moved_of(stopped, entry);
            let (original, _) = moved.into_iter().find(|(_, near)| *near == rip)?;
            Some((original, Progress::Before))
        })
    }
}

/// Original address and address in the near stub of the displaced instructions of a site, whose bytes have been put back.
fn moved_of(stopped: &inject::Stopped, entry: &SyscallSite) -> Vec<(u64, u64)> {
    const DISPLACED_MAX: u32 = 64;
    let mut displaced = vec![0u8; entry.displaced.min(DISPLACED_MAX) as usize];
    if entry.site == 0 || stopped.read(entry.site, &mut displaced).is_err() {
        return vec![];
    }
    let replaced = replaced_at(entry, &displaced);
    let plan = SyscallPlan { displaced, replaced, ..SyscallPlan::at(entry.site, entry.call) };
    let stub = match replaced {
        Replaced::Instruction => plan.near(entry.near, 0).map(|(stub, _)| stub),
        Replaced::Call(_) | Replaced::Return => plan.near_of_caller(entry.near, &CallerLinks::default()),
    };
    let Ok(stub) = stub else { return vec![] };
    stub.moved.iter().map(|m| (m.original, entry.near + u64::from(m.stub_offset))).collect()
}
