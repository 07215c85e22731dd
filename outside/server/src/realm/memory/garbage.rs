//! Memory that must outlive its users: text of programs and map slots.

use std::collections::BTreeMap;

use super::text::TextRange;
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{MapSlot, process};

/// Text or a map slot that may be reused once no target uses it.
pub(in crate::realm) enum Garbage {
    Text(TextRange),
    Map(MapSlot),
}

impl Actor {
    pub(in crate::realm) fn drop_map(&mut self, slot: MapSlot) {
        let users = self.all_tables().filter(|t| t.has_map(slot)).map(|t| t.pid).collect();
        self.pending.push((Garbage::Map(slot), users));
        self.collect_garbage();
    }

    /// Whether no thread is inside a program of a process, or of the forks that run with its tables or had them; `None`: there is
    /// nobody any more.
    fn is_quiescent(&self, pid: u32, orphans: &BTreeMap<u64, Vec<u32>>) -> Option<bool> {
        let is_quiescent = |tables: &Target| {
            let forks = orphans.get(&tables.nonce).into_iter().flatten();
            std::iter::once(&pid).chain(forks).all(|pid| process::guards_clear(*pid, tables.region))
        };
        self.all_tables().filter(|tables| tables.pid == pid).map(is_quiescent).reduce(|all, one| all && one)
    }

    /// Frees what no thread can be using: every process that might has been seen outside all programs.
    pub(in crate::realm) fn collect_garbage(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let orphans = self.find_orphans();
        let mut pending = std::mem::take(&mut self.pending);
        let mut unmap: BTreeMap<u32, Vec<MapSlot>> = BTreeMap::new();
        let mut seen: BTreeMap<u32, Option<bool>> = BTreeMap::new();
        for (garbage, users) in &mut pending {
            users.retain(|pid| {
                // Only the thread that follows its `execve` may stop it now.
                if self.executions.contains_key(pid) {
                    return true;
                }
                let Some(quiescent) = *seen.entry(*pid).or_insert_with(|| self.is_quiescent(*pid, &orphans)) else {
                    return false;
                };
                match garbage {
                    Garbage::Map(slot) if quiescent => {
                        unmap.entry(*pid).or_default().push(*slot);
                        false
                    }
                    _ => !quiescent,
                }
            });
        }
        for (pid, slots) in unmap {
            if let Some(target) = self.targets.get_mut(&pid)
                && let Err(error) = target.unmap(&slots)
            {
                // A debugger holds it, perhaps. Until it lets go, the slots are not free.
                tracing::debug!(pid, "maps could not be unmapped: {error}");
                for (garbage, users) in &mut pending {
                    if matches!(garbage, Garbage::Map(slot) if slots.contains(slot)) {
                        users.push(pid);
                    }
                }
            }
        }
        pending.retain(|(garbage, users)| {
            if users.is_empty() {
                match garbage {
                    Garbage::Text(range) => self.shared.text.release(*range),
                    Garbage::Map(slot) => self.shared.free_map(*slot),
                }
            }
            !users.is_empty()
        });
        self.pending = pending;
    }
}
