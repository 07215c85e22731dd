//! Memory that must outlive its users: text of programs and map slots.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::text::TextRange;
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{MapSlot, process};

/// Text or a map slot that may be reused once no target uses it.
pub(in crate::realm) enum Garbage {
    Text(TextRange),
    Map(MapSlot),
}

/// What waits until it can be reused.
pub(in crate::realm) struct Pending {
    garbage: Garbage,
    /// Processes that may use it.
    pub(in crate::realm) users: Vec<u32>,
    since: Instant,
}

/// A process for which so many maps have waited for so long is let go: a program runs for milliseconds, and each map takes descriptors of
/// the server's.
const WAITING_MAPS_MAX: usize = 64;
const WAIT_MAX: Duration = Duration::from_secs(10);

impl Actor {
    pub(in crate::realm) fn drop_map(&mut self, slot: MapSlot) {
        let users = self.all_tables().filter(|t| t.has_map(slot)).map(|t| t.pid).collect();
        self.add_garbage(Garbage::Map(slot), users);
        self.collect_garbage();
    }

    pub(in crate::realm) fn add_garbage(&mut self, garbage: Garbage, users: Vec<u32>) {
        self.pending.push(Pending { garbage, users, since: Instant::now() });
    }

    /// Lets processes go that have too many maps wait. What they have mapped stays there: so their maps are free. (Text is not. All
    /// processes have the same.)
    fn let_hoarders_go(&mut self) {
        let mut waiting: BTreeMap<u32, usize> = BTreeMap::new();
        let is_late =
            |pending: &&Pending| matches!(pending.garbage, Garbage::Map(_)) && pending.since.elapsed() >= WAIT_MAX;
        for pid in self.pending.iter().filter(is_late).flat_map(|pending| &pending.users) {
            *waiting.entry(*pid).or_default() += 1;
        }
        waiting.retain(|_, maps| *maps >= WAITING_MAPS_MAX);
        for (pid, maps) in &waiting {
            if self.targets.get(pid).is_some_and(|target| !target.is_detaching()) {
                let why = format!(
                    "{maps} maps wait for it, for {} s: a thread of it seems to be inside a program, or it cannot be stopped",
                    WAIT_MAX.as_secs()
                );
                self.detach_with_reason(*pid, &why);
            }
        }
        for pending in self.pending.iter_mut().filter(|pending| matches!(pending.garbage, Garbage::Map(_))) {
            pending.users.retain(|pid| !waiting.contains_key(pid));
        }
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
        self.let_hoarders_go();
        let mut pending = std::mem::take(&mut self.pending);
        let mut unmap: BTreeMap<u32, Vec<MapSlot>> = BTreeMap::new();
        let mut seen: BTreeMap<u32, Option<bool>> = BTreeMap::new();
        for Pending { garbage, users, .. } in &mut pending {
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
                for Pending { garbage, users, .. } in &mut pending {
                    if matches!(garbage, Garbage::Map(slot) if slots.contains(slot)) {
                        users.push(pid);
                    }
                }
            }
        }
        pending.retain(|Pending { garbage, users, .. }| {
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
