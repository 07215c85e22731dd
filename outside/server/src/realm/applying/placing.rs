//! Placing sites in a stopped process: in one stop, or in a series of stops, between which the process runs (docs/design/detach.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::control::HookKind;
use ring3_uapi::Errno;

use crate::realm::calls::WantedCall;
use crate::realm::sites::{CaughtCalls, Place, Unplaced, Use, WantedSite};
use crate::realm::target::{Link, Target, refuse};
use crate::realm::{AttachmentId, Refusal, Shared};

/// Placing sites in one stop takes so long, and what is left is placed in further ones.
const PLACING_AT_ONCE: Duration = Duration::from_millis(5);
/// After so many stops it takes longer: before each the whole of it is looked at again, and others wait for the tracer.
const SHORT_STOPS: u32 = 16;
const PLACING_THEN: Duration = Duration::from_millis(15);

/// What became of the sites of system calls while probes were placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::realm) enum Calls {
    AsTheyWere,
    Reconciled,
    /// Probes have the first choice of places, and some are left for another stop.
    Later,
}

/// Sites that are placed in several stops.
#[derive(Debug, Default)]
pub(in crate::realm) struct Series {
    /// What was tried in earlier stops, by address, and why it failed. (Each stop tries something new: so the series ends.)
    tried: BTreeMap<u64, Result<(), Unplaced>>,
    /// Something was left for the next stop.
    is_cut: bool,
    /// Memory for stubs was mapped in the first stop.
    is_mapped: bool,
    /// Stops so far.
    stops: u32,
}

impl Series {
    /// How long placing may take in the present stop.
    fn at_once(&self) -> Duration {
        if self.stops < SHORT_STOPS { PLACING_AT_ONCE } else { PLACING_THEN }
    }
}

/// Which sites could be placed.
#[derive(Debug, Default)]
struct Placing {
    /// Address, whether it is one of a function's returns, and who runs there.
    placed: Vec<(u64, bool, Vec<Use>)>,
    refused: BTreeSet<AttachmentId>,
}

/// What became of making the process ready for sites that need more than a jump, which is tried once in a stop.
#[derive(Default)]
struct Prepared {
    traps: Option<Result<(), Refusal>>,
    faults: Option<Result<(), Refusal>>,
}

impl Placing {
    fn note(&mut self, want: WantedSite) {
        self.placed.push((want.place.address, want.ret.is_some(), want.uses));
    }

    fn refuse(&mut self, pid: u32, want: WantedSite, refusal: Refusal, links: &mut BTreeMap<AttachmentId, Link>) {
        if want.uses.is_empty() {
            tracing::warn!(pid, "{refusal}");
        }
        for one in want.uses {
            self.refused.insert(one.attachment);
            refuse(links, one.attachment, pid, refusal.clone());
        }
    }
}

impl Target {
    /// Whether something was left for another stop, in which nothing is cut yet.
    pub(in crate::realm) fn goes_on_placing(&mut self) -> bool {
        self.series.as_mut().is_some_and(|series| std::mem::take(&mut series.is_cut))
    }

    /// Whether a stop of the series has been: what stands in the way of sites was looked for before.
    pub(in crate::realm) fn is_amid_series(&self) -> bool {
        self.series.as_ref().is_some_and(|series| series.is_mapped || !series.tried.is_empty())
    }

    /// Whether memory for stubs was mapped in an earlier stop of the series.
    pub(in crate::realm) fn is_mapped_ahead(&self) -> bool {
        self.series.as_ref().is_some_and(|series| series.is_mapped)
    }

    /// Memory for stubs is mapped, and all that is to be placed is left for another stop.
    pub(super) fn cut_series(&mut self) {
        if let Some(series) = &mut self.series {
            (series.is_cut, series.is_mapped) = (true, true);
        }
    }

    /// Writes the jumps of sites that need nothing else, many at once; what became of them. In a series it ends in time.
    fn write_ready<'w>(
        &mut self,
        stopped: &mut inject::Stopped,
        wanted: impl Iterator<Item = &'w WantedSite>,
        at_once: Option<Duration>,
    ) -> BTreeMap<u64, Result<(), Unplaced>> {
        /// So many are written between two looks at the clock.
        const SITES_AT_ONCE: usize = 256;
        let wanted: Vec<&WantedSite> = wanted.collect();
        let began = Instant::now();
        let mut written = BTreeMap::new();
        for some in wanted.chunks(SITES_AT_ONCE) {
            written.extend(self.write_ready_jumps(stopped, some));
            if at_once.is_some_and(|at_once| began.elapsed() >= at_once) {
                break;
            }
        }
        written
    }

    /// Brings the sites in line with what is wanted. In a series, what is new takes no longer than [`Series::at_once`].
    pub(in crate::realm) fn reconcile(
        &mut self,
        stopped: &mut inject::Stopped,
        wanted: Vec<WantedSite>,
        shared: &Shared,
        links: &mut BTreeMap<AttachmentId, Link>,
    ) -> Calls {
        let keep: BTreeMap<u64, Place> = wanted.iter().map(|w| (w.place.address, w.place.clone())).collect();
        self.remove_stale(stopped, &keep);
        let caught = self.caught_calls();
        let mut placing = Placing::default();
        let mut waiting = vec![];
        let mut series = self.series.take();
        self.map_one_byte_stubs(stopped, &wanted);
        if !wanted.is_empty() {
            // (It is asked for at each site, and takes long where there are many threads.)
            let _ = stopped.saved_contexts();
        }
        let began = Instant::now();
        // Unwinders must be seen before a return is awaited, even if this stop ends before all is placed.
        let is_unwinder = |want: &WantedSite| HookKind::OF_UNWINDERS.contains(&want.place.kind);
        let (first, then): (Vec<WantedSite>, Vec<WantedSite>) = wanted.into_iter().partition(is_unwinder);
        if let Some(series) = &mut series {
            series.stops += 1;
        }
        let at_once = series.as_ref().map(Series::at_once);
        let mut ready = self.write_ready(stopped, first.iter().chain(&then), at_once);
        let mut spent = began.elapsed();
        for want in first.into_iter().chain(then) {
            let address = want.place.address;
            let is_new = !self.is_in_force(address);
            let known = ready.remove(&address);
            let known = known.or_else(|| series.as_ref().and_then(|series| series.tried.get(&address).cloned()));
            let placed = match (known, &mut series) {
                (Some(placed), _) => placed,
                (None, Some(series))
                    if is_new && !is_unwinder(&want) && (series.is_cut || spent >= series.at_once()) =>
                {
                    series.is_cut = true;
                    continue;
                }
                (None, _) => {
                    let began = Instant::now();
                    let placed = self.place_site(stopped, want.clone(), &caught);
                    if is_new {
                        spent += began.elapsed();
                    }
                    placed
                }
            };
            if let Some(series) = &mut series {
                series.tried.insert(address, placed.clone());
            }
            match placed {
                Err(Unplaced::NeedsTraps | Unplaced::NeedsFaults) => waiting.push(want),
                Err(Unplaced::Refused(refusal)) => placing.refuse(self.pid, want, refusal, links),
                Ok(()) => placing.note(want),
            }
        }
        self.series = series;
        let watched = self.watches_masks(links);
        let is_cut = self.series.as_ref().is_some_and(|series| series.is_cut);
        let mut prepared = Prepared::default();
        for want in waiting.into_iter().filter(|_| !is_cut) {
            match self.place_prepared(stopped, &want, (shared, links), &caught, &mut prepared) {
                Ok(()) => placing.note(want),
                Err(refusal) => placing.refuse(self.pid, want, refusal, links),
            }
        }
        for (address, is_return, mut uses) in placing.placed {
            // A function of which one return is not seen is not probed.
            uses.retain(|one| !is_return || !placing.refused.contains(&one.attachment));
            self.publish(address, &uses, links);
        }
        if self.ranges.has_retired() && self.is_quiescent() {
            self.ranges.reclaim_retired();
        }
        if is_cut {
            return Calls::Later;
        }
        self.see_faults(stopped, shared, links);
        if self.watches_masks(links) == watched { Calls::AsTheyWere } else { Calls::Reconciled }
    }

    /// Makes the process ready for what a site needs, and places it.
    fn place_prepared(
        &mut self,
        stopped: &mut inject::Stopped,
        want: &WantedSite,
        (shared, links): (&Shared, &BTreeMap<AttachmentId, Link>),
        caught: &CaughtCalls,
        prepared: &mut Prepared,
    ) -> Result<(), Refusal> {
        const NEEDS: usize = 2;
        for _ in 0..=NEEDS {
            match self.place_site(stopped, want.clone(), caught) {
                Ok(()) => return Ok(()),
                Err(Unplaced::Refused(refusal)) => return Err(refusal),
                Err(Unplaced::NeedsTraps) => {
                    prepared.traps.get_or_insert_with(|| self.prepare_traps(stopped, shared, links)).clone()?;
                }
                Err(Unplaced::NeedsFaults) => {
                    prepared.faults.get_or_insert_with(|| self.prepare_faults(stopped, shared, links)).clone()?;
                }
            }
        }
        Err(Refusal::new(Errno::ENOTSUPP, format!("{}: the process does not become ready for it", want.name())))
    }

    /// Makes the site exist, and its programs run.
    pub(in crate::realm) fn place_site(
        &mut self,
        stopped: &mut inject::Stopped,
        want: WantedSite,
        caught: &CaughtCalls,
    ) -> Result<(), Unplaced> {
        let address = want.place.address;
        if self.sites.get(&address).is_some_and(|site| site.place != want.place) {
            // Another file is mapped there now; the old site went with its mapping, and its hook is no more.
            self.sites.remove(&address);
            self.sites.values_mut().for_each(|site| site.members.retain(|member| *member != address));
        }
        let mut moved = vec![];
        let placed = self.place_among_calls(stopped, want, caught, &mut moved);
        if !moved.is_empty() {
            self.place_calls(stopped, moved);
        }
        placed
    }

    /// Makes the site exist where calls may be seen, of which some are taken out of its way.
    fn place_among_calls(
        &mut self,
        stopped: &mut inject::Stopped,
        want: WantedSite,
        caught: &CaughtCalls,
        moved: &mut Vec<WantedCall>,
    ) -> Result<(), Unplaced> {
        let address = want.place.address;
        if !self.sites.contains_key(&address) {
            let site = match self.plan_site(want.clone(), caught) {
                Ok(site) => site,
                Err(refusal) => {
                    *moved = self.take_calls_out_of_the_way(stopped, &want);
                    if moved.is_empty() {
                        return Err(refusal.into());
                    }
                    self.plan_site(want, caught)?
                }
            };
            self.sites.insert(address, site);
        }
        self.make_neighbours_plain(stopped, address)?;
        self.write_site(stopped, address)
    }
}
