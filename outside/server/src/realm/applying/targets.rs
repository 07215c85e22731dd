//! Doing in targets what their links want, at once or later.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_uapi::Errno;

use crate::realm::files::{ANALYSIS_AT_ONCE, FileKey, likely_key_of};
use crate::realm::life::is_held;
use crate::realm::process::{RetryDelay, code_of};
use crate::realm::reports::ReportTo;
use crate::realm::tracer::{Actor, Command, LONG};
use crate::realm::{Refusal, files};

/// What is in the way for a moment only is tried again after so many milliseconds each, while everybody else waits.
const MOMENTS_MS: [u64; 4] = [1, 2, 4, 8];

impl Actor {
    /// Does in a target what its links want now. What only a moment is in the way of, a thread that is just being made say, is
    /// tried again at once, then later, in the background.
    pub(in crate::realm) fn apply(&mut self, pid: u32, report_to: ReportTo) -> Result<(), Refusal> {
        let (mut applied, mut is_cut_short) = self.apply_once(pid);
        // (In the background there are enough turns.)
        let moments: &[u64] = if self.behind.contains_key(&pid) { &[] } else { &MOMENTS_MS };
        for moment in moments {
            if !self.is_busy(pid, &applied) || self.executions.contains_key(&pid) {
                break;
            }
            std::thread::sleep(Duration::from_millis(*moment));
            (applied, is_cut_short) = self.apply_once(pid);
        }
        self.settle(pid, report_to, is_cut_short || self.is_busy(pid, &applied));
        applied
    }

    /// As `apply`; why it failed, if it did, is in the log only.
    pub(in crate::realm) fn apply_or_log(&mut self, pid: u32) {
        if let Err(refusal) = self.apply(pid, ReportTo::Starter) {
            tracing::warn!(pid, "{refusal}");
        }
    }

    /// Says what is not applied in a target, and whether something is to be tried again.
    pub(in crate::realm) fn settle(&mut self, pid: u32, report_to: ReportTo, is_behind: bool) {
        let Some(target) = self.targets.get_mut(&pid) else { return };
        target.report_refused(&self.links, report_to);
        self.meet_gate(pid);
        let Some(target) = self.targets.get_mut(&pid) else { return };
        match is_behind || !target.sud.is_settled() || target.lacks_faults(&self.links) {
            true => self.try_again(pid),
            false => drop(self.behind.remove(&pid)),
        }
    }

    /// Has the large files of a process analysed, which has these mappings, that nothing is known of.
    pub(in crate::realm) fn look_for_large_files(&mut self, pid: u32, mappings: &[inject::Mapping]) {
        // (With RING3_PERF ring3's own code in a target is in files, too.)
        let code: Vec<&inject::Mapping> = match self.targets.get(&pid) {
            Some(target) => target.code_not_ours(mappings).collect(),
            None => code_of(mappings).collect(),
        };
        let with_files = code.into_iter().filter(|mapping| mapping.inode != 0);
        let files: BTreeMap<PathBuf, FileKey> =
            with_files.filter_map(|mapping| likely_key_of(pid, mapping)).collect();
        let awaits = |(path, key): (&PathBuf, &FileKey)| self.shared.modules().awaits(*key, path);
        let awaited: Vec<FileKey> = files.iter().filter_map(awaits).collect();
        if !awaited.is_empty() {
            // (Processes that have ended are not asked for any more.)
            let modules = self.shared.modules();
            self.unanalysed.retain(|_, files| files.iter().any(|key| modules.is_awaited(key)));
            drop(modules);
            self.unanalysed.insert(pid, awaited);
        }
        self.analyse_files();
    }

    /// Whether files of a process that were looked for are not analysed yet.
    pub(in crate::realm) fn awaits_files(&mut self, pid: u32) -> bool {
        let Some(awaited) = self.unanalysed.get(&pid) else { return false };
        let modules = self.shared.modules();
        if awaited.iter().any(|key| modules.is_awaited(key)) {
            return true;
        }
        drop(modules);
        self.unanalysed.remove(&pid);
        false
    }

    /// Begins to analyse the large files that are wanted, unless that has begun. What waited for them is done then.
    pub(in crate::realm) fn analyse_files(&self) {
        if !self.shared.modules().takes_worker() {
            return;
        }
        let (shared, sender) = (self.shared.clone(), self.sender.clone());
        let work = move || {
            files::analyse_awaited(&shared.modules);
            sender.send(Command::Requests);
        };
        if let Err(error) = std::thread::Builder::new().name("ring3-files".into()).spawn(work) {
            tracing::warn!("a thread to analyse files: {error}");
            self.shared.modules().give_up_awaited();
        }
    }

    /// The flag: not all of its files were looked at.
    fn apply_once(&mut self, pid: u32) -> (Result<(), Refusal>, bool) {
        let is_followed = self.executions.contains_key(&pid);
        let Some(target) = self.targets.get_mut(&pid) else { return (Ok(()), false) };
        let before = self.forks_only.len();
        let began = Instant::now();
        let within = if target.budget.is_spent(began) { Duration::ZERO } else { ANALYSIS_AT_ONCE };
        self.shared.modules().begin_turn(within);
        let applied = target.apply_links(&self.shared, &mut self.links, &mut self.forks_only, is_followed);
        let is_cut_short = self.shared.modules().end_turn();
        if is_cut_short || began.elapsed() > LONG {
            target.budget.charge(began, began.elapsed());
        }
        self.has_orphans |= self.forks_only.len() > before;
        self.analyse_files();
        (applied, is_cut_short)
    }

    /// Whether something is in the way that may not be later.
    fn is_busy(&self, pid: u32, applied: &Result<(), Refusal>) -> bool {
        applied.as_ref().is_err_and(|refusal| refusal.errno == Errno::EBUSY) || self.is_refused_for_now(pid)
    }

    /// Whether something could not be applied in a process that may be possible later.
    pub(in crate::realm) fn is_refused_for_now(&self, pid: u32) -> bool {
        let mut refusals = self.links.values().filter_map(|link| link.refused.get(&pid));
        refusals.any(|refusal| refusal.errno == Errno::EBUSY)
    }

    /// What could not be changed in a target is tried again later.
    pub(in crate::realm) fn try_again(&mut self, pid: u32) {
        self.behind.entry(pid).or_insert_with(RetryDelay::new);
    }

    /// Changes what could not be changed before. (A thread that waits for its `vfork` child goes on soon.)
    pub(in crate::realm) fn catch_up(&mut self) {
        self.behind.retain(|pid, _| self.targets.contains_key(pid));
        let executions = &self.executions;
        let now = Instant::now();
        let is_spent = |pid: &u32| self.targets.get(pid).is_some_and(|target| target.budget.is_spent(now));
        let stoppable = self.behind.iter_mut().filter(|(pid, _)| !is_spent(pid));
        let is_due = |pid: &u32, delay: &mut RetryDelay| delay.is_over(|| is_held(executions, *pid));
        let due: Vec<u32> = stoppable.filter_map(|(pid, delay)| is_due(pid, delay).then_some(*pid)).collect();
        for pid in due {
            if let Err(refusal) = self.apply(pid, ReportTo::Starter) {
                tracing::debug!(pid, "{refusal}");
            }
        }
    }
}
