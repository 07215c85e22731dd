//! Iterators over numbers: a loop that the program writes itself, and whose end the kernel function decides.
//!
//! Each `bpf_iter_num_next` may return a number or nothing. The path with nothing is explored first. The other path comes back to
//! the loop's start; what it changes without need is forgotten, so that a round comes that brings no new state. Mirrors
//! kernel/bpf/verifier.c:process_iter_arg, mark_stack_slots_iter and process_iter_next_call.

use ring3_uapi::Errno;

use crate::branch::widen;
use crate::explore::{Explorer, Next};
use crate::path::Place;
use crate::prototype::IteratorUse;
use crate::state::{Byte, Kind, Register, SLOT_BYTES, STACK_BYTES, Slot, Special, State, slot_of};
use crate::{Refusal, refuse};

/// An iterator that is there.
pub(crate) struct LiveIterator {
    reference: u32,
    active: bool,
    depth: u32,
}

fn iterator_at(state: &State, frame: u8, slot: usize) -> Option<LiveIterator> {
    match state.frames.get(usize::from(frame))?.slot(slot).special? {
        Special::Iterator { reference, active, depth } => Some(LiveIterator { reference, active, depth }),
        Special::Dynptr { .. } => None,
    }
}

impl Explorer<'_> {
    /// Frame and slot of an iterator that is an argument.
    pub(crate) fn iterator_argument(
        &mut self,
        register: u8,
        value: &Register,
        used: IteratorUse,
    ) -> Result<(u8, usize), Refusal> {
        let argument = register - 1;
        let Kind::Stack(frame) = value.kind else {
            return refuse(Errno::EINVAL, format!("arg#{argument} expected pointer to an iterator on stack"));
        };
        let offset = value.number.value().map(|offset| offset as i64);
        if offset.is_none_or(|offset| offset % SLOT_BYTES as i64 != 0) {
            return refuse(Errno::EINVAL, format!("arg#{argument} expected an iterator at a constant multiple of 8"));
        }
        let stretch = self.stretch(register, value, frame, 0, SLOT_BYTES as u32, "write to")?;
        let (slot, _) = slot_of(stretch.first);
        if used == IteratorUse::New {
            if self.state.frames[usize::from(frame)].slot(slot).special.is_some() {
                return refuse(Errno::EINVAL, format!("expected uninitialized iter_num as arg #{argument}"));
            }
            return Ok((frame, slot));
        }
        self.path.read(Place::slot_at(frame, slot));
        if iterator_at(&self.state, frame, slot).is_none() {
            return refuse(Errno::EINVAL, format!("expected an initialized iter_num as arg #{argument}"));
        }
        Ok((frame, slot))
    }

    pub(crate) fn make_iterator(&mut self, (frame, slot): (u8, usize)) {
        let reference = self.acquire();
        self.put_iterator((frame, slot), LiveIterator { reference, active: true, depth: 0 });
    }

    fn put_iterator(&mut self, (frame, slot): (u8, usize), iterator: LiveIterator) {
        put(&mut self.state, (frame, slot), iterator);
        self.path.set(Place::slot_at(frame, slot), [None, None]);
    }

    pub(crate) fn drop_iterator(&mut self, (frame, slot): (u8, usize)) -> Result<(), Refusal> {
        let Some(LiveIterator { reference, .. }) = iterator_at(&self.state, frame, slot) else { return Ok(()) };
        self.clear_special(frame, slot);
        self.release(reference)
    }

    /// The call of `next` is done: one path has a number, this one has none.
    pub(crate) fn next_number(&mut self, place: (u8, usize)) -> Result<Next, Refusal> {
        let (frame, slot) = place;
        let Some(LiveIterator { reference, active, depth }) = iterator_at(&self.state, frame, slot) else {
            return refuse(Errno::EFAULT, "an iterator is gone");
        };
        self.clobber();
        if active && self.walks_round(depth) {
            let mut on = self.state.clone();
            put(&mut on, place, LiveIterator { reference, active, depth: depth + 1 });
            let number =
                Register { reference, ..Register::pointer(Kind::Memory { bytes: 4, write: false, record: false }) };
            on.set(0, number);
            let before = self.previous_round();
            let widened = before.map_or_else(Vec::new, |before| widen(&mut on, &before));
            let result = self.state.place(0);
            let path = self.fork(self.at + 1, on)?;
            path.forget(widened);
            path.set(Place::slot_at(frame, slot), [None, None]);
            path.set(result, [None, None]);
        }
        self.put_iterator(place, LiveIterator { reference, active: false, depth });
        self.write(0, Register::constant(0), [None, None]);
        Ok(Next::To(self.at + 1))
    }

    /// Whether the iterator that is asked for its next number here is further than it was in `old`.
    pub(crate) fn iterates(&self, old: &State) -> bool {
        let register = self.state.register(1);
        let (Kind::Stack(frame), Some(offset)) = (register.kind, register.number.value()) else { return false };
        let offset = offset as i64;
        if !(-STACK_BYTES..0).contains(&offset) {
            return false;
        }
        let (slot, _) = slot_of(offset);
        match (iterator_at(old, frame, slot), iterator_at(&self.state, frame, slot)) {
            (Some(old), Some(new)) => new.active && new.reference == old.reference && new.depth > old.depth,
            _ => false,
        }
    }
}

fn put(state: &mut State, (frame, slot): (u8, usize), LiveIterator { reference, active, depth }: LiveIterator) {
    let special = Some(Special::Iterator { reference, active, depth });
    *state.frame_at_mut(frame).slot_mut(slot) = Slot { bytes: [Byte::Special; SLOT_BYTES], spilled: None, special };
}
