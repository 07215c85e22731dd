//! One more link, on a target that was in line with all others.
//!
//! A tool makes its links one after the other. If each of them had all others looked at again, the time would grow with the square
//! of their number. So only what the new link wants is looked at, if nothing can have changed beside it: the process has the same
//! code mapped, runs with the same tables and the same maps, and no other site is so near that both would have to be planned
//! together. A link of a system call whose sites are there already needs no stop. In every other case [`Target::apply_links`] does
//! the work.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::control::HookKind;
use ring3_patch::JUMP_BYTES;

use crate::realm::files::Modules;
use crate::realm::refusal::refusal_of;
use crate::realm::reports::ReportTo;
use crate::realm::sites::{Place, Unplaced, Use, WantedSite, places};
use crate::realm::target::{Link, STOP_WITHIN, Target, refuse};
use crate::realm::tracer::{Actor, LONG};
use crate::realm::{AttachmentId, Calls, LinkSpec, Point, Refusal, Shared, SyscallPoint, process};

/// What a site displaces has fewer bytes.
const DISPLACED_BYTES_MAX: u64 = 256;

/// For links of system calls, which the agent sees code mapped for, mappings are read no more often than this.
const MAPPINGS_EVERY: Duration = Duration::from_millis(20);

/// What a target was brought in line with.
#[derive(Debug)]
pub(in crate::realm) struct Settled {
    code: Vec<inject::Mapping>,
    /// When it was last looked whether that is mapped.
    read: Instant,
}

/// What a link that comes in addition needs.
enum Addition {
    /// Nothing: it does not hold for this process, or its file is not mapped there.
    Nothing,
    /// To run at a site that is in force.
    Use(Place, Use),
    /// A site of its own.
    Site(Box<WantedSite>),
}

/// How an addition ended.
enum Added {
    Done,
    Refused(Refusal),
    /// All links have to be looked at.
    LookAtAll,
}

impl Target {
    /// The process, which has these mappings, is in line with all links.
    pub(in crate::realm) fn settle(&mut self, mappings: &[inject::Mapping]) {
        self.settled =
            Some(Settled { code: self.code_that_matters(mappings).cloned().collect(), read: Instant::now() });
    }

    /// The code that decides what is instrumented. Code without a file matters to the SUD fallback only.
    fn code_that_matters<'m>(&self, mappings: &'m [inject::Mapping]) -> impl Iterator<Item = &'m inject::Mapping> {
        let sees_calls = !self.syscalls.subscribers.is_empty();
        self.code_not_ours(mappings).filter(move |mapping| mapping.inode != 0 || sees_calls)
    }

    /// Whether nothing is to be done in this process but what a new link asks for.
    fn is_settled(&self, mappings: &[inject::Mapping]) -> bool {
        let Some(settled) = &self.settled else { return false };
        self.code_that_matters(mappings).eq(&settled.code) && self.is_plain()
    }

    /// Whether what the process runs with holds for a new link, too.
    fn is_plain(&self) -> bool {
        self.kept_out.is_empty()
            && self.switched_off.is_empty()
            && !self.is_detaching()
            && !self.disturbed
            && !self.forks_only
            && self.sud.is_settled()
            && !self.changes_domain()
    }

    /// What the link needs; `None`: all links have to be looked at.
    fn addition(
        &self,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
        id: AttachmentId,
        mappings: &[inject::Mapping],
    ) -> Option<Addition> {
        let spec = &links.get(&id)?.spec;
        let Point::Probe(probe) = &spec.point else { return None };
        if probe.counter != 0 || !self.is_settled(mappings) {
            return None;
        }
        if !self.is_meant(spec) {
            return Some(Addition::Nothing);
        }
        if !self.has_what_it_needs(shared, links, spec) {
            return None;
        }
        let mut found = places(mappings, self.pid, probe.id, probe.offset, HookKind::Probe);
        let (Some(place), true) = (found.pop(), found.is_empty()) else {
            return Some(Addition::Nothing).filter(|_| found.is_empty());
        };
        let key = Modules::key(&probe.file).ok()?;
        let code = shared.modules().site_of(key, &probe.file, probe.offset).ok()?;
        if probe.ret && code.never_returns() {
            return Some(Addition::Nothing);
        }
        let is_simple = code.returns(true).next().is_none() && code.check_return(true).is_ok() && self.awaits_returns;
        if probe.ret && !is_simple {
            return None;
        }
        let one = Use { attachment: id, ret: probe.ret };
        match self.sites.get(&place.address) {
            Some(site) if site.place == place && self.is_in_force(place.address) => {
                return Some(Addition::Use(place, one));
            }
            Some(_) => return None,
            None => {}
        }
        let want = WantedSite { place, code, ret: None, uses: vec![one] };
        (!self.has_neighbour(&want)).then(|| Addition::Site(Box::new(want)))
    }

    /// Whether what a link's program needs beside its sites is there.
    fn has_what_it_needs(&self, shared: &Shared, links: &BTreeMap<AttachmentId, Link>, spec: &LinkSpec) -> bool {
        let slots = shared.with_companions(spec.text.maps.iter().copied());
        !self.lacks_unwind_tables(spec)
            && !self.lacks_faults(links)
            && (!spec.identity || self.syscalls.interest.identity)
            && self.syscalls.interest.programs
            && (!matches!(&spec.point, Point::Probe(probe) if probe.ret) || self.syscalls.interest.returns)
            && slots.iter().all(|slot| self.has_map(*slot))
            && shared.kept_from(&spec.text.maps, &self.domain).is_none()
    }

    /// As [`Target::add_link`], of a link of a system call.
    fn add_call_link(
        &mut self,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
        id: AttachmentId,
        number: u32,
    ) -> Result<Added, Refusal> {
        let has_sites = self.syscalls.interest.covers(number);
        self.syscalls.series.note(!has_sites);
        let spec = &links[&id].spec;
        if !has_sites || !self.is_plain() || !self.has_same_code()? {
            return Ok(Added::LookAtAll);
        }
        if !self.is_meant(spec) {
            return Ok(Added::Done);
        }
        // (As for probes: forks that run with these tables.)
        let is_ready = self.has_what_it_needs(shared, links, spec) && self.find_children().is_empty();
        match is_ready && self.publish_call_also(id, links) {
            true => Ok(Added::Done),
            false => Ok(Added::LookAtAll),
        }
    }

    /// Whether the code is mapped that the target was brought in line with, or was a moment ago.
    fn has_same_code(&mut self) -> Result<bool, Refusal> {
        let Some(settled) = &self.settled else { return Ok(false) };
        if settled.read.elapsed() < MAPPINGS_EVERY {
            return Ok(true);
        }
        let mappings = inject::mappings(inject::Pid(self.pid)).map_err(refusal_of)?;
        let is_same = self.code_that_matters(&mappings).eq(&settled.code);
        self.settled.iter_mut().for_each(|settled| settled.read = Instant::now());
        Ok(is_same)
    }

    /// Whether a site that is known here displaces what this one would, or begins in the bytes of its jump.
    fn has_neighbour(&self, want: &WantedSite) -> bool {
        let address = want.place.address;
        let before = self.sites.range(address.saturating_sub(DISPLACED_BYTES_MAX)..address);
        let mut behind = self.sites.range(address..address + DISPLACED_BYTES_MAX).peekable();
        // (It is planned here only if that matters.)
        let end = behind.peek().map(|_| want.plan().map_or(0, |plan| plan.end()));
        let end = end.unwrap_or(0).max(address + JUMP_BYTES as u64);
        // (A one-byte jump takes in the file's bytes behind it.)
        let jump_end = |at: &u64| at + JUMP_BYTES as u64;
        before.into_iter().any(|(at, other)| other.plan.end().max(jump_end(at)) > address)
            || behind.any(|(other, _)| *other < end)
    }

    /// Brings the target in line with a new link, if it can be done without looking at the others.
    fn add_link(
        &mut self,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
        id: AttachmentId,
    ) -> Result<Added, Refusal> {
        if self.settled.is_none() {
            return Ok(Added::LookAtAll);
        }
        self.judge_for(shared, links.get(&id).into_iter())?;
        if let Some(Point::Syscall(SyscallPoint { calls: Calls::Of(number), .. })) =
            links.get(&id).map(|link| &link.spec.point)
        {
            return self.add_call_link(shared, links, id, *number);
        }
        let mappings = inject::mappings(inject::Pid(self.pid)).map_err(refusal_of)?;
        let addition = self.addition(shared, links, id, &mappings);
        // (Forks that run with these tables must not see what is added, and need it themselves.)
        let is_alone = |target: &Target| target.find_children().is_empty();
        let want = match addition {
            None => return Ok(Added::LookAtAll),
            Some(Addition::Site(want)) => *want,
            Some(_) if !is_alone(self) => return Ok(Added::LookAtAll),
            Some(Addition::Nothing) => return Ok(Added::Done),
            Some(Addition::Use(place, one)) => {
                self.publish_also(place.address, one, links);
                return Ok(Added::Done);
            }
        };
        if process::is_held(self.pid) {
            return Ok(Added::LookAtAll);
        }
        let address = want.place.address;
        let one = want.uses[0];
        let placed = inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| {
            self.check_presence()?;
            if !is_alone(self) {
                return Ok(Added::LookAtAll);
            }
            let caught = self.caught_calls();
            Ok(match self.place_site(stopped, want, &caught) {
                Ok(()) => {
                    self.publish_also(address, one, links);
                    Added::Done
                }
                Err(Unplaced::Refused(refusal)) => Added::Refused(refusal),
                Err(Unplaced::NeedsTraps | Unplaced::NeedsFaults) => Added::LookAtAll,
            })
        });
        match placed {
            // It could not be stopped, perhaps.
            Err(_) => Ok(Added::LookAtAll),
            Ok(added) => added,
        }
    }

    /// One more program runs at a site.
    fn publish_also(&mut self, address: u64, one: Use, links: &BTreeMap<AttachmentId, Link>) {
        let mut uses = self.sites[&address].uses.clone();
        uses.push(one);
        self.publish(address, &uses, links);
    }
}

impl Actor {
    /// Brings a target in line with a new link, and with all others if need be; so if there are several new ones.
    pub(super) fn apply_new(&mut self, pid: u32, ids: &[AttachmentId], report_to: ReportTo) -> Result<(), Refusal> {
        let is_followed = self.executions.contains_key(&pid);
        let single = ids.first().copied().filter(|_| ids.len() == 1 && !is_followed);
        let Some((target, id)) = self.targets.get_mut(&pid).zip(single) else {
            self.adopt_children_of(pid);
            return self.apply(pid, report_to);
        };
        let began = Instant::now();
        let added = target.add_link(&self.shared, &self.links, id);
        if began.elapsed() > LONG {
            target.budget.charge(began, began.elapsed());
        }
        match added {
            Ok(Added::Done) => {
                target.tell_perf(&self.shared);
                Ok(())
            }
            Ok(Added::Refused(refusal)) => {
                let is_for_now = refusal.errno == ring3_uapi::Errno::EBUSY;
                refuse(&mut self.links, id, pid, refusal);
                if is_for_now {
                    return self.apply(pid, report_to);
                }
                target.report_refused(&self.links, report_to);
                Ok(())
            }
            Ok(Added::LookAtAll) | Err(_) => {
                self.adopt_children_of(pid);
                self.apply(pid, report_to)
            }
        }
    }
}
