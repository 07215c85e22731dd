//! Runs of programs, which are counted and timed while somebody wants that (`BPF_ENABLE_STATS`).
//!
//! Attachments then name a routine of the agent's in place of their program. The routine adds to the table in its domain's realm
//! block, where the counts outlive the targets. A target can write any number there, but only into its own domain's table.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ring3_layout::control::{ATTACHMENTS_OFFSET, Attachment};
use ring3_layout::realm::{RUNS, runs_index};

use super::domains::{Block, Domains};
use super::text::TextRange;
use crate::realm::sites::in_agent;
use crate::realm::target::Target;
use crate::realm::tracer::{Actor, Command};
use crate::realm::{ProgramText, Realm, Refusal};

/// What was counted of a program's runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSums {
    /// How many there were.
    pub count: u64,
    /// All together, ns.
    pub time_ns: u64,
}

impl RunSums {
    fn add(&mut self, other: RunSums) {
        self.count = self.count.wrapping_add(other.count);
        self.time_ns = self.time_ns.wrapping_add(other.time_ns);
    }
}

/// Whether runs are counted, and the counts of domains that have ended.
#[derive(Debug, Default)]
pub(in crate::realm) struct Runs {
    /// How many want it.
    holders: AtomicU32,
    /// They were once. Until then nobody reads the tables: reading allocates their memory.
    ever: AtomicBool,
    /// Counts of domains that have ended, by [`runs_index`].
    ended: Mutex<BTreeMap<usize, RunSums>>,
}

impl Runs {
    pub(in crate::realm) fn are_counted(&self) -> bool {
        self.holders.load(Ordering::SeqCst) > 0
    }

    /// Keeps the counts of a domain that has ended.
    pub(super) fn keep(&self, block: &Block) {
        if !self.ever.load(Ordering::Acquire) {
            return;
        }
        let mut ended = self.ended();
        for index in 0..RUNS {
            let sums = block.runs(index);
            if sums != RunSums::default() {
                ended.entry(index).or_default().add(sums);
            }
        }
    }

    fn ended(&self) -> MutexGuard<'_, BTreeMap<usize, RunSums>> {
        self.ended.lock().expect("no panic under this lock")
    }
}

impl Block {
    fn runs(&self, index: usize) -> RunSums {
        let runs = &self.file.realm().runs[index];
        let of = |word: &AtomicU64| word.load(Ordering::Relaxed);
        RunSums { count: of(&runs.count), time_ns: of(&runs.time_ns) }
    }
}

impl Domains {
    fn runs_of(&self, entry: u32) -> RunSums {
        if !self.runs.ever.load(Ordering::Acquire) {
            return RunSums::default();
        }
        let index = runs_index(entry.into());
        let mut sums = self.runs.ended().get(&index).copied().unwrap_or_default();
        self.all().iter().for_each(|domain| sums.add(domain.block().runs(index)));
        sums
    }

    /// A new program begins with no runs, whatever was counted of one that was there before.
    pub(in crate::realm) fn forget_runs(&self, range: TextRange) {
        if !self.runs.ever.load(Ordering::Acquire) {
            return;
        }
        let indices = indices(range);
        self.runs.ended().retain(|index, _| !indices.contains(index));
        for domain in self.all() {
            for runs in &domain.block().file.realm().runs[indices.clone()] {
                runs.count.store(0, Ordering::Relaxed);
                runs.time_ns.store(0, Ordering::Relaxed);
            }
        }
    }
}

fn indices(range: TextRange) -> Range<usize> {
    runs_index(range.offset.into())..runs_index((range.offset + range.bytes).into())
}

/// Has runs counted, until it is dropped.
#[derive(Debug)]
pub struct CountedRuns(Arc<Realm>);

impl CountedRuns {
    /// From now on, in all targets.
    ///
    /// # Errors
    /// `ETIMEDOUT`
    pub fn new(realm: &Arc<Realm>) -> Result<CountedRuns, Refusal> {
        let runs = &realm.shared.domains.runs;
        runs.ever.store(true, Ordering::Release);
        runs.holders.fetch_add(1, Ordering::SeqCst);
        let counted = CountedRuns(realm.clone());
        realm.tracer.ask(|reply| Command::CountRuns(Some(reply)))?;
        Ok(counted)
    }
}

impl Drop for CountedRuns {
    fn drop(&mut self) {
        self.0.shared.domains.runs.holders.fetch_sub(1, Ordering::SeqCst);
        self.0.tracer.send(Command::CountRuns(None));
    }
}

impl Realm {
    /// What was counted of a program's runs since it was loaded.
    pub fn runs_of(&self, program: &ProgramText) -> RunSums {
        self.shared.domains.runs_of(program.entry)
    }
}

impl Actor {
    /// Has runs counted if somebody wants that.
    pub(in crate::realm) fn count_runs(&mut self) {
        let domains = &self.shared.domains;
        let counted = domains.runs.are_counted();
        domains.own().block().file.realm().counts_runs.store(counted.into(), Ordering::Release);
        for target in self.targets.values_mut().chain(&mut self.forks_only) {
            target.count_runs(counted);
        }
    }
}

impl Target {
    /// Has its attachments name what counts runs, or no more: those that threads may be reading, too.
    pub(in crate::realm) fn count_runs(&mut self, counted: bool) {
        if self.counts_runs == counted {
            return;
        }
        self.counts_runs = counted;
        for index in 0..self.ranges.used() {
            let entry = ATTACHMENTS_OFFSET + u64::from(index) * size_of::<Attachment>() as u64;
            let word = |offset: usize| self.control.word(entry + offset as u64);
            let [program, budget_ns] = [offset_of!(Attachment, program), offset_of!(Attachment, budget_ns)]
                .map(|offset| word(offset).load(Ordering::Relaxed));
            if program != 0 {
                word(offset_of!(Attachment, code)).store(self.called_for(program, budget_ns), Ordering::SeqCst);
            }
        }
    }

    /// What attachments of a program name: it, or a routine of the agent's that runs it.
    pub(in crate::realm) fn called_for(&self, program: u64, budget_ns: u64) -> u64 {
        match (self.counts_runs, budget_ns) {
            (true, _) => in_agent(self.region, "ring3_run_counted"),
            (false, 0) => program,
            (false, _) => in_agent(self.region, "ring3_run_timed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::Subject;

    #[test]
    fn sums_outlive_domains_and_not_programs() {
        let domains = Domains::new().expect("made");
        domains.runs.ever.store(true, Ordering::Release);
        let range = TextRange { offset: 128, bytes: 192 };
        let run = |block: &Block, times: u64| {
            let runs = &block.file.realm().runs[runs_index(200)];
            runs.count.fetch_add(times, Ordering::Relaxed);
            runs.time_ns.fetch_add(10 * times, Ordering::Relaxed);
        };
        run(domains.own().block(), 1);
        drop(domains.of(&Subject::ordinary(1, 1)).map(|domain| run(domain.block(), 2)));
        // The second domain takes the place of the first one, which has no target.
        drop(domains.of(&Subject::ordinary(2, 1)).map(|domain| run(domain.block(), 4)));
        assert_eq!(domains.all().len(), 2);
        assert_eq!(domains.runs_of(200), RunSums { count: 7, time_ns: 70 });
        domains.forget_runs(range);
        assert_eq!(domains.runs_of(200), RunSums::default());
    }
}
