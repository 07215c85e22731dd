//! The begin of detaching.
//!
//! Whoever traces a target through a proxy (strace, docs/design/strace.md) is told of system calls by programs until then, and by
//! the kernel from then on. No call may be between the two: programs are switched off while all threads are stopped.

use std::time::Duration;

use ring3_inject as inject;

use crate::realm::process;
use crate::realm::process::nonce_at;
use crate::realm::target::Target;
use crate::realm::tracer::Actor;

/// Threads that have not stopped within this time wait in the kernel.
const STOP_WITHIN: Duration = Duration::from_millis(200);
/// New forks are looked for so often at most.
const LOOKS_MAX: u32 = 4;

impl Target {
    /// The process, and those that run with its tables: forks that have not been adopted, and `vfork` children.
    fn all_with_its_tables(&self) -> Vec<u32> {
        let is_it = |pid: &u32| *pid != self.pid && nonce_at(*pid, self.region) == Some(self.nonce);
        std::iter::once(self.pid).chain(process::all_processes().into_iter().filter(is_it)).collect()
    }
}

impl Actor {
    /// From now on hooks pass through in a target.
    pub(in crate::realm) fn begin_detach(&mut self, pid: u32) {
        let Some(target) = self.targets.get_mut(&pid) else { return };
        for _ in 0..LOOKS_MAX {
            if target.is_detaching() || !inject::is_traced_through(pid) {
                break;
            }
            let all = target.all_with_its_tables();
            let target = &mut *target;
            let switch_off = || {
                let is_complete = target.all_with_its_tables().iter().all(|pid| all.contains(pid));
                if is_complete {
                    target.begin_detach();
                }
                is_complete
            };
            if let Err(error) = inject::let_go(&all, STOP_WITHIN, switch_off) {
                tracing::warn!(pid, "its tracer is not told that it is let go: {error}");
                break;
            }
        }
        target.begin_detach();
    }
}
