//! Who sees which system calls of a target: the tables of subscribers in the control page, which trampolines and the agent read.
//!
//! Follows `ring3_layout::syscall::Subscribers`.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;

use ring3_layout::control::{ATTACHMENTS_OFFSET, Attachment, range_pack, range_unpack};
use ring3_layout::region::{CONTROL_OFFSET, STATE_OFFSET};
use ring3_layout::syscall::{
    ALWAYS, CALL_SHIFT, CLONE_SYSCALLS, IDENTITY_CHANGERS, NO_PROCESS, OTHER_NUMBERS, SLOW_PATH_SYSCALLS,
    Subscribers, SyscallTables, TABLES_OFFSET,
};
use ring3_layout::task_event::TaskEvent;
use ring3_layout::thread::{COUNTED_HOOKS_MAX, STATE_HEADER_BYTES, ThreadBlock};

use super::interest::{concerns_sud, concerns_traps, is_always, is_of_event};
use super::sud;
use crate::kernel::known;
use crate::realm::target::{Link, Target};
use crate::realm::{AttachmentId, Calls, LinkSpec, Point, SyscallContext};

/// Where in the control page the attachment of nobody is.
const NOBODY_OFFSET: u64 = TABLES_OFFSET + offset_of!(SyscallTables, nobody) as u64;

/// What the tables of system calls depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Published {
    subscribers: BTreeSet<AttachmentId>,
    follow: bool,
    uses_sud: bool,
    traps: bool,
}

/// Who sees which calls, as the tables have it.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    /// By whether it is the end of the call, and its number.
    by_call: BTreeMap<(bool, usize), Vec<AttachmentId>>,
    events: BTreeSet<TaskEvent>,
    /// Packed ranges of the attachment table, by who is in them.
    ranges: BTreeMap<Vec<AttachmentId>, u64>,
}

impl Target {
    /// Publishes who sees which call.
    pub(in crate::realm) fn publish_calls(&mut self, links: &BTreeMap<AttachmentId, Link>) {
        let subscribers = self.links_for(links).filter(|(_, spec)| !matches!(spec.point, Point::Probe(_)));
        let subscribers = subscribers.map(|(id, _)| id).collect();
        self.publish_calls_of(&subscribers, links);
        self.syscalls.subscribers = subscribers;
    }

    /// Publishes who sees which call, of these links: new ranges first, then one store for each number.
    pub(in crate::realm) fn publish_calls_of(
        &mut self,
        subscribers: &BTreeSet<AttachmentId>,
        links: &BTreeMap<AttachmentId, Link>,
    ) {
        let follow = self.following.follows();
        let uses_sud = self.sud.armed || self.sud.why.is_some();
        let subscribers = self.links_for(links).map(|(id, _)| id).filter(|id| subscribers.contains(id)).collect();
        let traps = self.watches_masks(links);
        let published = Published { subscribers, follow, uses_sud, traps };
        if self.syscalls.published.as_ref() == Some(&published) {
            return;
        }
        let mut wanted: BTreeMap<(bool, usize), Vec<AttachmentId>> = BTreeMap::new();
        let mut events: BTreeMap<TaskEvent, Vec<AttachmentId>> = BTreeMap::new();
        for id in &published.subscribers {
            let point = match &links[id].spec.point {
                Point::Probe(_) => continue,
                Point::Syscall(point) => point,
                Point::Task(point) => {
                    events.entry(point.event).or_default().push(*id);
                    continue;
                }
            };
            let numbers = match point.calls {
                Calls::Of(number) => (number as usize).min(OTHER_NUMBERS)..=(number as usize).min(OTHER_NUMBERS),
                Calls::All | Calls::Unnamed => 0..=OTHER_NUMBERS,
                Calls::Never => continue,
            };
            let is_seen = |number| !self.before_program || TaskEvent::Exec.calls().contains(&(number as i64));
            for number in numbers.filter(|number| point.calls.has(*number as u32) && is_seen(*number)) {
                wanted.entry((point.exit, number)).or_default().push(*id);
            }
        }
        let any = !wanted.is_empty() || !events.is_empty();
        if any && self.syscalls.hook.is_none() {
            self.syscalls.hook = self.add_counting_hook();
            let (index, address) = self.syscalls.hook.unwrap_or_default();
            let hits_at = offset_of!(ThreadBlock, hits) as u64 + u64::from(index % COUNTED_HOOKS_MAX) * 8;
            self.control.word(TABLES_OFFSET + offset_of!(SyscallTables, hits_at) as u64).store(hits_at, SeqCst);
            self.control.word(TABLES_OFFSET + offset_of!(SyscallTables, hook) as u64).store(address, SeqCst);
        }
        let at = TABLES_OFFSET + offset_of!(SyscallTables, uses_sud) as u64;
        self.control.word32(at).store(uses_sud.into(), SeqCst);
        let ranges: BTreeMap<Vec<AttachmentId>, u64> = wanted
            .values()
            .chain(events.values())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|ids| (ids.clone(), self.range_of_calls(ids, links)))
            .collect();
        let old: BTreeSet<u64> = self.syscalls.listed.ranges.values().copied().collect();
        for event in TaskEvent::ALL {
            let at = offset_of!(SyscallTables, task_events) + event as usize * size_of::<u64>();
            let range = events.get(&event).map_or(0, |ids| ranges[ids]);
            self.control.word(TABLES_OFFSET + at as u64).store(range, SeqCst);
        }
        let at = TABLES_OFFSET + offset_of!(SyscallTables, fork_is_fixed) as u64;
        self.control.word32(at).store(known().forks_are_fixed.into(), SeqCst);
        let listed = Listed { by_call: wanted, events: events.into_keys().collect(), ranges };
        for number in 0..=OTHER_NUMBERS {
            self.publish_call(number, &listed, &published, links);
        }
        let ranges = &listed.ranges;
        let kept: BTreeSet<u64> = ranges.values().copied().collect();
        for range in old.difference(&kept) {
            self.ranges.retire(range_unpack(*range));
        }
        // For which there was no room they may find some the next time.
        let has_room = ranges.values().all(|range| *range != 0);
        self.syscalls.listed = listed;
        self.syscalls.listed.ranges.retain(|_, range| *range != 0);
        self.syscalls.published = has_room.then_some(published);
    }

    /// Publishes who sees one call.
    fn publish_call(
        &self,
        number: usize,
        listed: &Listed,
        published: &Published,
        links: &BTreeMap<AttachmentId, Link>,
    ) {
        let Published { follow, uses_sud, traps, .. } = *published;
        let Listed { by_call, events, ranges } = listed;
        let any = !by_call.is_empty() || !events.is_empty();
        let mut words = [false, true].map(|exit| {
            let range = by_call.get(&(exit, number)).map_or(0, |ids| ranges[ids]);
            let changes = traps && !exit && concerns_traps(number as i64);
            let of_event = events.iter().any(|event| is_of_event(*event, number as i64, exit));
            let always =
                is_always(number, exit, any, follow) || uses_sud && concerns_sud(number) || changes || of_event;
            range | if always { ALWAYS } else { 0 }
        });
        if number == OTHER_NUMBERS && any {
            words = words.map(|word| word | ALWAYS);
        }
        if words[1] != 0 {
            // Whose end is to be shown is remembered from its beginning on.
            words[0] |= ALWAYS;
        }
        // First what is looked at first.
        self.store_call_word(number, offset_of!(Subscribers, enter_only), 0);
        self.store_call_word(number, offset_of!(Subscribers, exit_only), 0);
        self.store_call_word(number, offset_of!(Subscribers, enter), words[0]);
        self.store_call_word(number, offset_of!(Subscribers, exit), words[1]);
        for (exit, word) in [(false, offset_of!(Subscribers, enter_only)), (true, offset_of!(Subscribers, exit_only))]
        {
            let ids = by_call.get(&(exit, number)).map_or(&[][..], |ids| ids);
            let only = if uses_sud || traps && concerns_traps(number as i64) {
                0
            } else {
                self.only_of_call(number, ids, ranges, links)
            };
            self.store_call_word(number, word, only);
        }
    }

    /// Publishes that one more link, of one call, sees that; false: all have to be published.
    pub(in crate::realm) fn publish_call_also(
        &mut self,
        id: AttachmentId,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> bool {
        let Some(Point::Syscall(point)) = links.get(&id).map(|link| &link.spec.point) else { return false };
        let (Calls::Of(number), Some(mut published)) = (point.calls, self.syscalls.published.take()) else {
            return false;
        };
        let (number, exit) = (number as usize, point.exit);
        let is_same = published.follow == self.following.follows()
            && published.uses_sud == (self.sud.armed || self.sud.why.is_some())
            && published.traps == self.watches_masks(links);
        if number >= OTHER_NUMBERS || !is_same || self.syscalls.listed.by_call.is_empty() {
            return false;
        }
        let old = self.syscalls.listed.by_call.get(&(exit, number)).cloned().unwrap_or_default();
        let ids = [&old[..], &[id]].concat();
        let range = self.range_of_calls(&ids, links);
        if range == 0 {
            return false;
        }
        let mut listed = std::mem::take(&mut self.syscalls.listed);
        listed.ranges.insert(ids.clone(), range);
        listed.by_call.insert((exit, number), ids);
        published.subscribers.insert(id);
        self.syscalls.subscribers.insert(id);
        self.publish_call(number, &listed, &published, links);
        // (One that events have, too, is left for whoever publishes all.)
        if listed.events.is_empty() && !old.is_empty() && !listed.by_call.values().any(|ids| *ids == old) {
            listed.ranges.remove(&old).into_iter().for_each(|range| self.ranges.retire(range_unpack(range)));
        }
        self.syscalls.listed = listed;
        self.syscalls.published = Some(published);
        true
    }

    /// Tells the agent whether it is to announce what is executed.
    pub(in crate::realm) fn publish_following(&self) {
        let at = TABLES_OFFSET + offset_of!(SyscallTables, follow) as u64;
        self.control.word32(at).store(u32::from(self.following.follows()), SeqCst);
    }

    /// Tells the agent where thread blocks are, and its handler of SIGCANCEL, once that is known.
    pub(in crate::realm) fn publish_thread_blocks(&self) {
        let word = |offset: usize| self.control.word(TABLES_OFFSET + offset as u64);
        word(offset_of!(SyscallTables, blocks)).store(self.region + STATE_OFFSET + STATE_HEADER_BYTES, SeqCst);
        word(offset_of!(SyscallTables, cancel_handler)).store(sud::cancel_handler(self.region), SeqCst);
        self.control.word32(NOBODY_OFFSET + offset_of!(Attachment, pid) as u64).store(NO_PROCESS, SeqCst);
    }

    fn store_call_word(&self, number: usize, word: usize, value: u64) {
        let at = TABLES_OFFSET + ((number as u64) << CALL_SHIFT) + word as u64;
        let word = self.control.word(at);
        if word.load(SeqCst) != value {
            word.store(value, SeqCst);
        }
    }

    /// [`Subscribers::enter_only`] or `exit_only` for a call that these see.
    fn only_of_call(
        &self,
        number: usize,
        ids: &[AttachmentId],
        ranges: &BTreeMap<Vec<AttachmentId>, u64>,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> u64 {
        let needs_slow_path = CLONE_SYSCALLS
            .into_iter()
            .chain(SLOW_PATH_SYSCALLS)
            .chain(IDENTITY_CHANGERS)
            .any(|call| call as usize == number);
        if needs_slow_path || number == OTHER_NUMBERS || self.syscalls.hook.is_none() {
            return 0;
        }
        let in_function = |point: &Point| matches!(point, Point::Syscall(p) if p.context == SyscallContext::Kprobe);
        match ids {
            [] => self.region + CONTROL_OFFSET + NOBODY_OFFSET,
            [id] if links.get(id).is_some_and(|link| !in_function(&link.spec.point)) => {
                let (first, count) = ranges.get(ids).map_or((0, 0), |range| range_unpack(*range));
                let address = self.region + CONTROL_OFFSET + ATTACHMENTS_OFFSET;
                if count == 1 { address + u64::from(first) * size_of::<Attachment>() as u64 } else { 0 }
            }
            _ => 0,
        }
    }

    /// The packed range of these attachments; 0 if there is no room for them.
    fn range_of_calls(&mut self, ids: &[AttachmentId], links: &BTreeMap<AttachmentId, Link>) -> u64 {
        if let Some(range) = self.syscalls.listed.ranges.get(ids) {
            return *range;
        }
        let specs: Vec<&LinkSpec> = ids.iter().filter_map(|id| Some(&links.get(id)?.spec)).collect();
        let Some(first) = self.write_attachments(&specs, 0) else { return 0 };
        range_pack(first, specs.len() as u32)
    }
}
