//! How sites are written and taken out.
//!
//! A jump has five bytes, so sites can be nearer to each other than that. Then only the first one of them is patched: its stub has
//! the displaced instructions of all, and runs the programs of each before the instruction that it is for. The others are its
//! members. A jump whose members change gets another stub. One that is wanted for its members alone stays.
//!
//! A punned jump relies on the bytes behind the only instruction that it displaces. A site that is wanted there makes an `int3` of
//! it, which relies on nothing.

use std::collections::BTreeMap;
use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::control::{
    HOOK_MANY, HOOKS_MAX, HOOKS_OFFSET, Hook, HookKind, HookValue, RECOVERY_OFFSET, Recovery, STUB_TAIL_MAGIC,
    StubTail, moved_pack, stub_tail_offset,
};
use ring3_layout::region::CONTROL_OFFSET;
use ring3_patch::{JUMP_BYTES, Plan, STUB_BYTES_MAX, Stub, Tactic};
use ring3_uapi::Errno;

use super::code_memory::CodeMemory;
use super::site::{CaughtCalls, Place, Site, WantedSite, is_written, taken};
use super::tables::{entries, hook_flags, in_agent};
use crate::realm::Refusal;
use crate::realm::process::Cleaning;
use crate::realm::refusal::refusal_of;
use crate::realm::target::Target;

/// A jump covers sites that begin so many bytes behind it, or fewer.
pub(in crate::realm) const WITHIN_JUMP: u64 = JUMP_BYTES as u64 - 1;

impl Target {
    /// True if no byte and no mapping has to change for `wanted`: only who runs where.
    pub(in crate::realm) fn is_same_but_uses(&self, wanted: &[WantedSite]) -> bool {
        let wants = |address: &u64| wanted.binary_search_by_key(address, |want| want.place.address).is_ok();
        let mut patched = self.sites.iter().filter(|(_, site)| site.patched);
        let is_there = |place: &Place| {
            self.is_in_force(place.address) && self.sites.get(&place.address).is_some_and(|site| site.place == *place)
        };
        patched.all(|(address, site)| wants(address) || site.members.iter().any(wants))
            && wanted.iter().all(|want| is_there(&want.place))
    }

    /// Sites that stay for others run no programs of their own.
    pub(in crate::realm) fn unpublish_unwanted(&mut self, wanted: &[WantedSite]) {
        let wants = |address: &u64| wanted.binary_search_by_key(address, |want| want.place.address).is_ok();
        let used = self.sites.iter().filter(|(address, site)| !site.uses.is_empty() && !wants(address));
        for address in used.map(|(address, _)| *address).collect::<Vec<_>>() {
            self.publish(address, &[], &BTreeMap::new());
        }
    }

    /// Whether a thread that comes by runs a site's programs.
    pub(in crate::realm) fn is_in_force(&self, address: u64) -> bool {
        self.sites.get(&address).is_some_and(|site| site.patched) || self.carrier_of(address).is_some()
    }

    /// The patched site that a site is a member of.
    fn carrier_of(&self, address: u64) -> Option<u64> {
        let mut before = self.sites.range(address.saturating_sub(WITHIN_JUMP)..address);
        before.find(|(_, site)| site.patched && site.members.contains(&address)).map(|(carrier, _)| *carrier)
    }

    /// The site whose member a site should be: one that is patched, or one that was, and whose stub may be left to the middle of
    /// this one's jump.
    fn carrier_for(&self, address: u64) -> Option<u64> {
        let mapping = &self.sites[&address].place.mapping;
        let leads_in = |(at, site): &(&u64, &Site)| {
            let is_here = site.stub != 0 && site.place.mapping == *mapping && !self.is_in_force(**at);
            is_here && site.plan.resume <= address + WITHIN_JUMP
        };
        let covers = |site: &Site| site.plan.resume > address || site.plan.tactic == Tactic::Jump;
        let before =
            || self.sites.range(address.saturating_sub(WITHIN_JUMP)..address).filter(|(_, site)| covers(site));
        let found = before().find(|(_, site)| site.patched).or_else(|| before().find(leads_in));
        found.map(|(carrier, _)| *carrier)
    }

    /// Programs of sites that are not to be kept run no more, and bytes are restored that no site needs.
    pub(in crate::realm) fn remove_stale(&mut self, stopped: &mut inject::Stopped, keep: &BTreeMap<u64, Place>) {
        let is_kept = |site: &Site| keep.get(&site.place.address) == Some(&site.place);
        let stale: Vec<u64> =
            self.sites.values().filter(|site| !is_kept(site)).map(|site| site.place.address).collect();
        for address in &stale {
            self.publish(*address, &[], &BTreeMap::new());
        }
        for address in stale {
            let members = &self.sites[&address].members;
            if !members.iter().filter_map(|member| self.sites.get(member)).any(is_kept) {
                let _ = self.restore_bytes(stopped, address);
            }
        }
    }

    /// Writes a planned site, or its carrier.
    pub(in crate::realm) fn write_site(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
    ) -> Result<(), Unplaced> {
        let carrier = self.carrier_for(address);
        let (first, mut members) = match carrier {
            Some(carrier) => (carrier, self.sites[&carrier].members.clone()),
            None => (address, self.sites[&address].members.clone()),
        };
        let site = &self.sites[&first];
        let is_there = site.patched && is_written(stopped, first, &site.jump);
        if is_there && (first == address || members.contains(&address)) {
            return Ok(());
        }
        self.make_way(stopped, first)?;
        // A carrier keeps its members; another first one takes those over that are patched in its jump's bytes. (Who is no jump has
        // one byte, or may not stand before others.) Members of these that are not in its bytes are sites of their own again.
        let mut left = vec![];
        if self.sites[&first].plan.tactic == Tactic::Jump {
            for (other, site) in self.sites.range(first + 1..=first + WITHIN_JUMP).filter(|(_, site)| site.patched) {
                let all = std::iter::once(other).chain(&site.members).copied();
                let (within, behind): (Vec<u64>, Vec<u64>) = all.partition(|member| *member <= first + WITHIN_JUMP);
                members.extend(within);
                left.extend(behind);
            }
        }
        members.extend((first != address).then_some(address));
        members.sort_unstable();
        members.dedup();
        self.patch(stopped, first, members)?;
        left.into_iter().try_for_each(|member| self.write_site(stopped, member))
    }

    /// Jumps that rely on bytes which are about to be replaced become `int3`s, and so does one that relies on replaced ones.
    fn make_way(&mut self, stopped: &mut inject::Stopped, address: u64) -> Result<(), Unplaced> {
        let before = self.sites.range(address.saturating_sub(WITHIN_JUMP)..address);
        let relying = before.filter(|(_, site)| site.patched && site.relies_on(address)).map(|(other, _)| *other);
        for other in relying.collect::<Vec<_>>() {
            if !self.traps.is_ready() {
                return Err(Unplaced::NeedsTraps);
            }
            self.restore_bytes(stopped, other)?;
            self.trap(other)?;
            self.patch(stopped, other, vec![])?;
        }
        if self.sites[&address].plan.tactic == Tactic::OneByte && self.is_crowded(address) {
            self.make_plain(stopped, address)?;
        }
        let plan = &self.sites[&address].plan;
        if plan.tactic == Tactic::Punned {
            let mut behind = self.sites.range(address + 1..plan.end());
            if behind.any(|(_, site)| site.patched) || self.syscalls.overlap(&(address..plan.end())) {
                self.trap(address)?;
            }
        }
        Ok(())
    }

    /// A site that displaces one instruction is to be an `int3`.
    fn trap(&mut self, address: u64) -> Result<(), Refusal> {
        let site = self.sites.get_mut(&address).expect("the caller has it");
        let refuse = |why: String| Refusal::new(Errno::ENOTSUPP, format!("{}: {why}", site.name));
        site.plan = site.plan.trapped().ok_or_else(|| refuse("no `int3` can be there".into()))?;
        site.jump = site.plan.jump(site.stub).map_err(|why| refuse(why.to_string()))?;
        // (A stub of its own is that of a punned jump.)
        match site.stub {
            0 => Ok(()),
            stub => self.set_trap(address, stub),
        }
    }

    /// Plans a site and gives it a hook; the process is untouched.
    pub(in crate::realm) fn plan_site(&mut self, want: WantedSite, caught: &CaughtCalls) -> Result<Site, Refusal> {
        let (name, probed, planned) = (want.name(), want.probed(), want.plan());
        let may_have_one_byte = want.one_byte_stub().is_some() && self.may_have_one_byte(want.place.address);
        let place = want.place;
        let refuse = |why: String| Refusal::new(Errno::ENOTSUPP, format!("{}: {name}: {why}", place.path));
        let plan = planned.map_err(|why| refuse(why.to_string()))?;
        if self.hooks_used >= HOOKS_MAX {
            return Err(refuse(format!("more than {HOOKS_MAX} sites in one process")));
        }
        let one_byte = plan.one_byte().filter(|_| may_have_one_byte);
        let bytes = place.address..plan.resume;
        if self.syscalls.overlap(&bytes) || plan.tactic == Tactic::Jump && caught.lead_into(&bytes) {
            return Err(refuse("a system call that is traced is there".into()));
        }
        let index = self.take_hook();
        self.control.write(
            HOOKS_OFFSET + u64::from(index) * size_of::<Hook>() as u64,
            HookValue {
                site: probed,
                kind: place.kind as u32,
                index,
                flags: hook_flags(&plan.original),
                all_registers: u32::from(place.kind != HookKind::Probe),
                only: HOOK_MANY,
                trampoline: in_agent(self.region, "ring3_return_trampoline"),
                ..HookValue::default()
            },
        );
        Ok(Site {
            place,
            name,
            plain: one_byte.is_some().then(|| plan.clone()),
            plan: one_byte.unwrap_or(plan),
            stub: 0,
            stub_bytes: 0,
            moved: vec![],
            jump: vec![],
            members: vec![],
            hook: index,
            patched: false,
            uses: vec![],
        })
    }

    /// Writes a site's stub, with its members, and the jump to it. Members that were patched themselves are so no more.
    pub(super) fn patch(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
        members: Vec<u64>,
    ) -> Result<(), Unplaced> {
        if self.sites[&address].plan.tactic == Tactic::Trap && !self.traps.is_ready() {
            return Err(Unplaced::NeedsTraps);
        }
        if self.sites[&address].plan.needs_faults && !self.faults.is_ready() {
            return Err(Unplaced::NeedsFaults);
        }
        let name = self.sites[&address].name.clone();
        if self.is_taken(address, &members) {
            return Err(taken(&name, address).into());
        }
        let is_jump = self.sites[&address].plan.tactic == Tactic::Jump;
        if is_jump
            && !self.sites[&address].patched
            && self.may_be_resumed_in(address)
            && !self.is_nobody_inside(stopped)
        {
            let why = "a thread is still in the code of a probe that was there before; it is tried again";
            return Err(Refusal::new(Errno::EBUSY, format!("{name}: {why}")).into());
        }
        let fresh = match &self.sites[&address] {
            site if site.stub != 0 && site.members == members => None,
            _ => match self.write_stub(stopped, address, &members) {
                Err(refusal) if self.sites[&address].plan.tactic == Tactic::OneByte => {
                    tracing::debug!(pid = self.pid, "{name}: no one-byte jump: {refusal}");
                    self.become_plain(address);
                    self.make_way(stopped, address)?;
                    return self.patch(stopped, address, members);
                }
                Err(refusal) if self.sites[&address].plan.tactic == Tactic::Punned => {
                    tracing::debug!(pid = self.pid, "{name}: no punned jump: {refusal}");
                    self.trap(address)?;
                    return self.patch(stopped, address, members);
                }
                written => Some(written?),
            },
        };
        for other in members.iter().chain([&address]) {
            self.restore_bytes(stopped, *other)?;
        }
        let site = self.sites.get_mut(&address).expect("just seen");
        if let Some(written) = fresh {
            site.take_stub(written, members);
        }
        self.note_patched(address, true);
        self.write_jumps(stopped, &[address]).pop().unwrap_or(Ok(()))
    }

    /// Writes the jumps of sites whose stubs are there, and that are noted as patched: whoever cleans up after us has to know of a jump
    /// before it is there.
    fn write_jumps(&mut self, stopped: &mut inject::Stopped, addresses: &[u64]) -> Vec<Result<(), Unplaced>> {
        let changes: Vec<_> = addresses.iter().map(|address| self.sites[address].change()).collect();
        let written = stopped.write_sites(&changes);
        let of = |(address, written): (&u64, Result<(), inject::Error>)| {
            written.map_err(|error| {
                self.note_patched(*address, false);
                let refusal = refusal_of(error);
                Refusal::new(refusal.errno, format!("{}: {}", self.sites[address].name, refusal.message)).into()
            })
        };
        addresses.iter().zip(written).map(of).collect()
    }

    fn note_patched(&mut self, address: u64, patched: bool) {
        self.sites.get_mut(&address).expect("callers name sites").patched = patched;
        self.write_recovery(address);
    }

    /// Writes the jumps of those of these sites whose stubs are there, and where no other site has a say. What became of them.
    pub(in crate::realm) fn write_ready_jumps(
        &mut self,
        stopped: &mut inject::Stopped,
        wanted: &[&WantedSite],
    ) -> Vec<(u64, Result<(), Unplaced>)> {
        let mut ready = vec![];
        for want in wanted {
            let address = want.place.address;
            // (One of them may have displaced what another one begins with.)
            if self.is_ready(want) && !self.is_taken(address, &[]) {
                self.note_patched(address, true);
                ready.push(address);
            }
        }
        let written = self.write_jumps(stopped, &ready);
        ready.into_iter().zip(written).collect()
    }

    /// Whether nothing is to be done for a site but to write its jump: what [`Target::place_site`] does otherwise has no effect.
    fn is_ready(&self, want: &WantedSite) -> bool {
        let address = want.place.address;
        let Some(site) = self.sites.get(&address).filter(|site| site.place == want.place && !site.patched) else {
            return false;
        };
        let has_code = site.stub != 0 && site.members.is_empty();
        has_code
            && matches!(site.plan.tactic, Tactic::Jump | Tactic::OneByte)
            && (!site.plan.needs_faults || self.faults.is_ready())
            && !self.is_crowded(address)
            && !self.may_be_resumed_in(address)
    }

    /// Whether a patched site that is none of these members has displaced bytes that a site displaces.
    fn is_taken(&self, address: u64, members: &[u64]) -> bool {
        let bytes = self.bytes_of(address);
        let is_other = |(at, site): &(&u64, &Site)| **at != address && !members.contains(at) && site.overlaps(&bytes);
        self.near(&bytes).any(|other| is_other(&other))
    }

    /// The bytes that a site displaces.
    fn bytes_of(&self, address: u64) -> Range<u64> {
        address..self.sites[&address].plan.end()
    }

    /// Patched sites that may have displaced something in these bytes, and those that begin there.
    fn near(&self, bytes: &Range<u64>) -> impl Iterator<Item = (&u64, &Site)> {
        /// Instructions that a site displaces have fewer bytes.
        const DISPLACED_BYTES_MAX: u64 = 256;
        let near = self.sites.range(bytes.start.saturating_sub(DISPLACED_BYTES_MAX)..bytes.end);
        near.filter(|(_, site)| site.patched)
    }

    /// Whether a stub that was ever made goes on in the middle of a site's jump.
    fn may_be_resumed_in(&self, address: u64) -> bool {
        const DISPLACED_BYTES_MAX: u64 = 256;
        let mut before = self.sites.range(address.saturating_sub(DISPLACED_BYTES_MAX)..address + JUMP_BYTES as u64);
        let inside = address + 1..=address + WITHIN_JUMP;
        before.any(|(_, site)| site.stub != 0 && inside.contains(&site.plan.resume))
    }

    /// No thread runs our code, or goes back to it from a signal handler.
    pub(in crate::realm) fn is_nobody_inside(&self, stopped: &inject::Stopped) -> bool {
        (Cleaning { pid: self.pid, region: self.region }).is_nobody_inside(stopped).unwrap_or(false)
    }

    /// Writes a stub for a site and its members.
    pub(in crate::realm) fn write_stub(
        &mut self,
        memory: &mut dyn CodeMemory,
        address: u64,
        members: &[u64],
    ) -> Result<Written, Refusal> {
        let hook = |site: &Site| {
            self.region + CONTROL_OFFSET + HOOKS_OFFSET + u64::from(site.hook) * size_of::<Hook>() as u64
        };
        let site = &self.sites[&address];
        let (place, name, plan, own_hook) = (site.place.clone(), site.name.clone(), site.plan.clone(), hook(site));
        let members = members.iter().filter_map(|member| self.sites.get(member));
        let members: Vec<(Plan, u64)> = members.map(|site| (site.plan.clone(), hook(site))).collect();
        let refuse =
            |why: ring3_patch::Refusal| Refusal::new(Errno::ENOTSUPP, format!("{}: {name}: {why}", place.path));
        if plan.tactic == Tactic::OneByte {
            let place_of = plan.stub_range().map(|range| range.start).unwrap_or_default();
            let stub = plan.stub_of_many(place_of, entries(self.region), own_hook, &members).map_err(refuse);
            let bytes = stub.as_ref().map(|stub| with_tail(stub, place_of, address)).unwrap_or_default();
            let room = place_of..place_of.saturating_add(1);
            if let Ok(stub) = stub
                && self.take_room_in(memory, &room, bytes.len() as u64).is_ok()
            {
                memory.write(place_of, &bytes).map_err(refusal_of)?;
                let jump = plan.jump(place_of).map_err(refuse)?;
                return Ok(Written { at: place_of, stub, jump });
            }
        }
        let room = STUB_BYTES_MAX as u64 * (1 + members.len() as u64) + tail_bytes_max(&plan);
        let (at, area) = match plan.stub_range().filter(|_| plan.tactic == Tactic::Jump) {
            Some(range) => self.stub_room_in(memory, range, room)?,
            None => self.stub_room(memory, address, place.mapping.clone(), room)?,
        };
        let stub = plan.stub_of_many(at, entries(self.region), own_hook, &members).map_err(refuse)?;
        let to = match plan.stub_range().filter(|_| plan.is_punned()) {
            Some(range) => {
                let relay = self.take_relay_room(memory, &range)?;
                memory.write(relay, &ring3_patch::relay(at)).map_err(refusal_of)?;
                relay
            }
            None => at,
        };
        let jump = plan.jump(to).map_err(refuse)?;
        let bytes = with_tail(&stub, at, address);
        memory.write(at, &bytes).map_err(refusal_of)?;
        self.take_stub_room(area, bytes.len() as u64);
        if plan.tactic == Tactic::Trap {
            self.set_trap(address, at)?;
        }
        Ok(Written { at, stub, jump })
    }

    /// Restores the bytes of a site, if it is patched.
    pub(in crate::realm) fn restore_bytes(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
    ) -> Result<(), Refusal> {
        let Some(site) = self.sites.get_mut(&address).filter(|site| site.patched) else { return Ok(()) };
        let original = &site.plan.original[..site.jump.len()];
        let restoration = inject::SiteRestoration { site: address, written: &site.jump, original };
        match stopped.restore_sites(&[restoration]).pop().unwrap_or(Ok(())) {
            Ok(()) => {}
            // Another file is mapped there, or other code was written.
            Err(inject::Error::BytesDiffer { .. }) => {
                tracing::debug!(pid = self.pid, "{}: what stands there is not ours", site.name);
            }
            Err(error) => {
                tracing::warn!(pid = self.pid, "{}: not restored: {error}", site.name);
                return Err(refusal_of(error));
            }
        }
        site.patched = false;
        self.write_recovery(address);
        Ok(())
    }

    fn write_recovery(&self, address: u64) {
        let site = &self.sites[&address];
        let mut entry = Recovery { stub: site.stub, stub_bytes: site.stub_bytes, ..Recovery::default() };
        if site.patched {
            entry.site = address;
            entry.bytes = site.jump.len() as u32;
            entry.original[..site.jump.len()].copy_from_slice(&site.plan.original[..site.jump.len()]);
            entry.written[..site.jump.len()].copy_from_slice(&site.jump);
        }
        self.control.write(RECOVERY_OFFSET + u64::from(site.hook) * size_of::<Recovery>() as u64, entry);
    }
}

/// Why a site could not be placed.
#[derive(Clone, Debug)]
pub(in crate::realm) enum Unplaced {
    /// The process has to be made ready for `int3`s first (`signals/traps.rs`).
    NeedsTraps,
    /// The agent has to handle faults first (`signals/faults.rs`).
    NeedsFaults,
    Refused(Refusal),
}

impl From<Refusal> for Unplaced {
    fn from(refusal: Refusal) -> Unplaced {
        Unplaced::Refused(refusal)
    }
}

/// Bytes of a [`StubTail`] and what precedes and follows it, at most: each instruction has a byte.
fn tail_bytes_max(plan: &Plan) -> u64 {
    const WORD: u64 = 8;
    WORD + size_of::<StubTail>() as u64 + WORD * (plan.resume - plan.site + 1)
}

/// A stub's code and its [`StubTail`], for the address `at`.
fn with_tail(stub: &Stub, at: u64, site: u64) -> Vec<u8> {
    const INT3: u8 = 0xcc;
    let mut bytes = stub.bytes.clone();
    bytes.resize(stub_tail_offset(bytes.len() as u32) as usize, INT3);
    let pair = |moved: &ring3_patch::Moved| moved_pack(moved.stub_offset, moved.original.wrapping_sub(site) as u32);
    let magic = STUB_TAIL_MAGIC ^ (at + bytes.len() as u64);
    let words = [magic, at, site, stub.moved.len() as u64].into_iter().chain(stub.moved.iter().map(pair));
    bytes.extend(words.flat_map(u64::to_le_bytes));
    bytes
}

/// A stub that nothing leads to yet.
pub(in crate::realm) struct Written {
    at: u64,
    stub: Stub,
    jump: Vec<u8>,
}

impl Site {
    /// What its jump changes.
    fn change(&self) -> inject::SiteChange<'_> {
        let (expected, new, moved) = (&self.plan.original[..], &self.jump[..], &self.moved[..]);
        inject::SiteChange { site: self.place.address, expected, new, moved }
    }

    /// Its jump will lead to this stub, which has its programs and those of these members.
    pub(in crate::realm) fn take_stub(&mut self, Written { at, stub, jump }: Written, members: Vec<u64>) {
        self.moved = stub.moved.iter().map(|moved| (moved.original, at + u64::from(moved.stub_offset))).collect();
        (self.stub, self.stub_bytes, self.jump, self.members) = (at, stub.bytes.len() as u32, jump, members);
    }
}
