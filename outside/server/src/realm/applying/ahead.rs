//! What is written into a process before it is stopped: code that nothing leads to yet.
//!
//! Stubs lie in memory of ring3, and no thread runs them before a jump leads there. So they are written while the process runs, and in
//! the stop only what its threads may be running is changed. Their memory must be there before: an attach maps it in a first, short
//! stop. Code that has to wait for the stop (no room for it is mapped, or other sites nearby have a say in what it is) is made then.
//!
//! A fork that is made meanwhile may lack the code. So if forks run with the tables when the process is stopped, or if it could not be
//! stopped, what was written is forgotten there ([`Target::forget_ahead`]).

use std::collections::BTreeMap;
use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::control::{CONTROL_MAGIC, ControlHeaderValue};
use ring3_layout::region::CONTROL_OFFSET;
use ring3_patch::{NEAR_BYTES_MAX, STUB_BYTES_MAX, Tactic};

use crate::realm::Shared;
use crate::realm::calls::WantedCall;
use crate::realm::process::value_from;
use crate::realm::sites::{Batch, CaughtCalls, STOPPED_TWICE_THREADS_MAX, WITHIN_JUMP, WantedSite};
use crate::realm::target::Target;

/// A call that is so near to a wanted site is left for the stop: probes have the first choice of places.
const NEAR_SITE_BYTES: u64 = 64;

/// What was written ahead.
#[derive(Debug, Default)]
pub(in crate::realm) struct Ahead {
    sites: Vec<u64>,
    calls: Vec<u64>,
}

impl Target {
    /// Ends the first stop of an attach where all that needs remote calls is done, if the rest may be done in another one: maps memory
    /// for the stubs.
    pub(in crate::realm) fn leaves_rest_for_next_stop(
        &mut self,
        stopped: &mut inject::Stopped,
        places: &[WantedSite],
        calls: &[WantedCall],
    ) -> bool {
        if self.series.is_none() || stopped.threads().len() > STOPPED_TWICE_THREADS_MAX {
            return false;
        }
        self.map_one_byte_stubs(stopped, places);
        let mut needed: BTreeMap<u64, (Range<u64>, u64)> = BTreeMap::new();
        let bytes_of_site = |want: &WantedSite| (want.place.mapping.clone(), STUB_BYTES_MAX as u64);
        let bytes_of_call = |want: &WantedCall| (want.mapping.clone(), NEAR_BYTES_MAX as u64);
        for (mapping, bytes) in places.iter().map(bytes_of_site).chain(calls.iter().map(bytes_of_call)) {
            needed.entry(mapping.start).or_insert((mapping, 0)).1 += bytes;
        }
        if let Err(refusal) = self.reserve_stub_room(stopped, needed.into_values()) {
            tracing::debug!(pid = self.pid, "no room for stubs ahead: {refusal}");
        }
        self.cut_series();
        true
    }

    /// Writes the code of new sites and calls, where nothing else has a say in it, while the process runs.
    pub(in crate::realm) fn write_ahead(&mut self, wanted: &[WantedSite], calls: &[WantedCall]) -> Ahead {
        let mut ahead = Ahead::default();
        // (What calls go back to that were caught is known in a stop only.)
        if self.sud.armed {
            return ahead;
        }
        let caught = self.caught_calls();
        let memory = inject::Memory::open(inject::Pid(self.pid)).ok().filter(|memory| self.is_in(memory));
        let Some(mut memory) = memory else { return ahead };
        for (index, want) in wanted.iter().enumerate() {
            let address = want.place.address;
            let meets = |other: Option<&WantedSite>| {
                other.is_some_and(|other| other.place.address.abs_diff(address) <= WITHIN_JUMP)
            };
            let is_crowded = meets(index.checked_sub(1).and_then(|before| wanted.get(before)))
                || meets(wanted.get(index + 1))
                || self.sites.range(address.saturating_sub(WITHIN_JUMP)..=address + WITHIN_JUMP).next().is_some();
            if !is_crowded && self.write_stub_ahead(&mut memory, want, &caught) {
                ahead.sites.push(address);
            }
        }
        self.write_calls_ahead(&mut memory, wanted, calls, &caught, &mut ahead);
        ahead
    }

    /// Whether it did.
    fn write_stub_ahead(&mut self, memory: &mut inject::Memory, want: &WantedSite, caught: &CaughtCalls) -> bool {
        let address = want.place.address;
        let one_byte = want.one_byte_stub().filter(|_| self.may_have_one_byte(address));
        let has_room = one_byte.is_none_or(|stub| self.has_one_byte_room(stub));
        // (Its memory is mapped in the stop.)
        if !has_room && !self.is_mapped_ahead() {
            return false;
        }
        // (Why it cannot be planned is found out again, and told, in the stop.)
        let Ok(site) = self.plan_site(want.clone(), caught) else { return false };
        self.sites.insert(address, site);
        if !has_room {
            self.become_plain(address);
        }
        let has_own_stub = matches!(self.sites[&address].plan.tactic, Tactic::Jump | Tactic::OneByte);
        let written = if has_own_stub { self.write_stub(memory, address, &[]).ok() } else { None };
        match (written, self.sites.get_mut(&address)) {
            (Some(written), Some(site)) => {
                site.take_stub(written, vec![]);
                true
            }
            _ => false,
        }
    }

    fn write_calls_ahead(
        &mut self,
        memory: &mut inject::Memory,
        wanted: &[WantedSite],
        calls: &[WantedCall],
        caught: &CaughtCalls,
        ahead: &mut Ahead,
    ) {
        let is_near_site = |want: &WantedCall| {
            let bytes = want.plan.site.saturating_sub(NEAR_SITE_BYTES)..want.plan.site + NEAR_SITE_BYTES;
            let behind = wanted.partition_point(|site| site.place.address < bytes.start);
            wanted.get(behind).is_some_and(|site| bytes.contains(&site.place.address))
        };
        let mut batch = Batch::default();
        for want in calls.iter().filter(|want| !is_near_site(want)) {
            let call = want.plan.key();
            // (What is changed for those that were there before is run meanwhile.)
            if !self.syscalls.knows(call)
                && !self.syscalls.had(call)
                && self.add_call(memory, want.clone(), &mut batch, caught).is_ok()
            {
                ahead.calls.push(call);
            }
        }
        if batch.write(memory).is_err() {
            ahead.calls.drain(..).for_each(|call| self.syscalls.forget_unpatched(call));
        }
    }

    /// The code that was written ahead is not there, or may not be, in the processes that run with these tables: it is made anew for
    /// sites that are not in force.
    pub(in crate::realm) fn forget_ahead(&mut self, ahead: &Ahead) {
        for address in &ahead.sites {
            let Some(site) = self.sites.get_mut(address).filter(|site| !site.patched) else { continue };
            (site.stub, site.stub_bytes) = (0, 0);
            site.jump.clear();
            site.moved.clear();
            // (The place of a one-byte jump's stub is taken.)
            self.become_plain(*address);
        }
        ahead.calls.iter().for_each(|call| self.syscalls.forget_unpatched(*call));
    }

    /// As [`Target::unshare`]; what was written ahead is in this process, and forgotten where forks go on with the tables.
    pub(in crate::realm) fn unshare_ahead(
        &mut self,
        shared: &Shared,
        stopped: &mut inject::Stopped,
        ahead: &Ahead,
    ) -> Result<Option<Target>, inject::Error> {
        if self.is_mapped_ahead() {
            // (Since the first stop it may have begun to filter its calls, which nobody has seen.)
            self.respect(shared, stopped)?;
        }
        let mut forks = self.unshare(shared, stopped)?;
        if let Some(forks) = &mut forks {
            forks.forget_ahead(ahead);
        }
        Ok(forks)
    }

    /// Whether this memory is of the program in which the process became a target.
    fn is_in(&self, memory: &inject::Memory) -> bool {
        let mut bytes = [0; size_of::<ControlHeaderValue>()];
        let read = memory.read(self.region + CONTROL_OFFSET, &mut bytes);
        let header = value_from::<ControlHeaderValue>(&bytes).filter(|_| read.is_ok());
        header.is_some_and(|header| header.magic == CONTROL_MAGIC && header.nonce == self.nonce)
    }
}
