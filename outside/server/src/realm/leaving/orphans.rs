//! Processes in which a server left code and memory, and is gone: both are taken out, some at a time.
//!
//! What says so lies in the process, which may lie: it may seem that one of its threads is always inside, or that millions of
//! instructions are to be restored. So nobody but those who ask for this process waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ring3_layout::control::ControlHeaderValue;
use ring3_uapi::Errno;

use super::recovery::Restored;
use crate::realm::Refusal;
use crate::realm::life::is_held;
use crate::realm::process::{Cleaning, Maker, RetryDelay, all_processes, maker, region_in};
use crate::realm::target::DETACH_WITHIN;
use crate::realm::tracer::{Actor, Command};

/// All orphans together have this time before others have a turn.
const CLEANING_AT_ONCE: Duration = Duration::from_millis(20);
/// A thread of an orphan must stop within this time; else it is tried again.
const STOP_WITHIN: Duration = Duration::from_millis(100);

/// A process that is being cleaned.
#[derive(Debug)]
struct Orphan {
    cleaning: Cleaning,
    /// The server that is gone.
    server: u32,
    restored: Restored,
    delay: RetryDelay,
    until: Instant,
    /// Why the last round was not enough.
    why: String,
}

impl Orphan {
    fn new((cleaning, header): (Cleaning, ControlHeaderValue)) -> Orphan {
        let until = Instant::now() + DETACH_WITHIN;
        let why = "its threads could not be stopped".to_owned();
        Orphan {
            cleaning,
            server: header.server_pid,
            restored: Restored::default(),
            delay: RetryDelay::new(),
            until,
            why,
        }
    }

    /// One round, in slices until then. True: nothing of ours is left.
    fn clean(&mut self, until: Instant) -> bool {
        match self.cleaning.round(&mut self.restored, STOP_WITHIN, Some(until)) {
            Ok(true) => return true,
            Ok(false) => "a thread stays inside; not unmapped".clone_into(&mut self.why),
            Err(error) if error.is_gone() => return true,
            Err(error) => self.why = error.to_string(),
        }
        false
    }
}

/// All orphans.
#[derive(Debug, Default)]
pub(in crate::realm) struct Orphans {
    unclean: BTreeMap<u32, Orphan>,
    /// Those that were cleaned before anybody asked.
    cleaned: BTreeSet<u32>,
}

impl Orphans {
    /// Every process that a dead server of this run-time directory left instrumented. (What one of another directory left is its
    /// successor's, or `ring3 detach`'s.)
    pub(in crate::realm) fn find(directory: u32) -> Orphans {
        let mut orphans = Orphans::default();
        for pid in all_processes().into_iter().filter(|pid| *pid != std::process::id()) {
            if let Some(found) = left_behind(pid, &[]).filter(|(_, header)| header.directory == directory) {
                orphans.unclean.insert(pid, Orphan::new(found));
            }
        }
        orphans
    }

    /// A process is a target now: who has it detached hears of that.
    pub(in crate::realm) fn forget(&mut self, pid: u32) {
        self.cleaned.remove(&pid);
    }

    pub(in crate::realm) fn is_empty(&self) -> bool {
        self.unclean.is_empty()
    }
}

/// What a server that is gone left in a process.
fn left_behind(pid: u32, known_nonces: &[u64]) -> Option<(Cleaning, ControlHeaderValue)> {
    let (region, header) = region_in(pid)?;
    if known_nonces.contains(&header.nonce) || maker(pid, &header) != Maker::Gone {
        return None;
    }
    if header.version != ring3_layout::LAYOUT_VERSION {
        tracing::warn!(pid, "left behind by another version of ring3 (layout {}); not touched", header.version);
        return None;
    }
    Some((Cleaning { pid, region }, header))
}

impl Actor {
    /// Cleans what is due, for so long that others may wait. Whoever takes too long is left as it is.
    pub(in crate::realm) fn clean_orphans(&mut self) {
        let until = Instant::now() + CLEANING_AT_ONCE;
        let executions = &self.executions;
        let Orphans { unclean, cleaned } = &mut self.orphans;
        unclean.retain(|pid, orphan| {
            let may_try = Instant::now() < until && orphan.delay.is_over(|| is_held(executions, *pid));
            if may_try && orphan.clean(until) {
                tracing::info!(pid, server = orphan.server, "cleaned up after a server that is gone");
                cleaned.insert(*pid);
                return false;
            }
            let goes_on = Instant::now() < orphan.until;
            if !goes_on {
                tracing::warn!(pid, "left behind by a server that is gone: {}", orphan.why);
            }
            goes_on
        });
    }

    /// Begins to clean the process that a command is about, if a server that is gone left something there.
    pub(in crate::realm) fn take_up_orphan(&mut self, command: &Command) {
        let is_other = |pid: &u32| !self.targets.contains_key(pid) && !self.orphans.unclean.contains_key(pid);
        let Some(pid) = command.is_about().filter(is_other) else { return };
        if let Some(found) = left_behind(pid, &self.known_nonces()) {
            self.orphans.unclean.insert(pid, Orphan::new(found));
            self.clean_orphans();
        }
    }

    /// Whether a process is being cleaned.
    pub(in crate::realm) fn is_unclean(&self, pid: u32) -> bool {
        self.orphans.unclean.contains_key(&pid)
    }

    /// What somebody hears who has a process detached that is no target.
    pub(in crate::realm) fn detached_orphan(&mut self, pid: u32) -> Result<Vec<String>, Refusal> {
        if self.orphans.cleaned.remove(&pid) {
            return Ok(vec![]);
        }
        if let Some((_, header)) = left_behind(pid, &self.known_nonces()) {
            let what = format!("what server {} left in process {pid} could not all be taken out", header.server_pid);
            return Err(Refusal::new(Errno::EBUSY, format!("{what}: a thread may be inside; try again")));
        }
        Err(Refusal::new(Errno::ESRCH, format!("process {pid} is not a target; `ring3 status` shows targets")))
    }
}
