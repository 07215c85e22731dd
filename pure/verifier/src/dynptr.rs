//! Dynptrs: pointers with bounds that the helpers keep themselves, in 16 bytes of stack.
//! Mirrors kernel/bpf/verifier.c:process_dynptr_func, mark_stack_slots_dynptr and unmark_stack_slots_dynptr.

use ring3_uapi::Errno;

use crate::explore::Explorer;
use crate::path::Place;
use crate::prototype::DynptrUse;
use crate::state::{Byte, Kind, Register, SLOT_BYTES, Slot, Special, slot_of};
use crate::{Refusal, refuse};

/// A dynptr as an argument.
#[derive(Default)]
pub(crate) struct Used {
    /// Its name.
    pub(crate) id: u32,
    /// Frame and lower slot of a new one, and whether it is a record's.
    pub(crate) makes: Option<(u8, usize, bool)>,
    /// Frame and lower slot of one that is given back.
    pub(crate) takes: Option<(u8, usize)>,
}

/// What the kernel says of a dynptr that is none, and why.
fn unsuitable(used: DynptrUse, why: &str) -> String {
    match used {
        DynptrUse::NewLocal | DynptrUse::NewRecord => format!("Dynptr has to be an uninitialized dynptr: {why}"),
        _ => format!("Expected an initialized dynptr as {why}"),
    }
}

impl Explorer<'_> {
    pub(crate) fn dynptr_argument(
        &mut self,
        register: u8,
        value: &Register,
        used: DynptrUse,
    ) -> Result<Used, Refusal> {
        let frame = match value.kind {
            Kind::Dynptr if used == DynptrUse::Any => return Ok(Used::default()),
            Kind::Dynptr => {
                return refuse(
                    Errno::EINVAL,
                    format!("R{register} cannot pass pointer to const bpf_dynptr, the helper mutates it"),
                );
            }
            Kind::Stack(frame) => frame,
            _ => {
                let kind = value.kind_name();
                return refuse(Errno::EACCES, format!("R{register} type={kind} expected=fp, dynptr_ptr"));
            }
        };
        let Some(offset) = value.number.value().map(|offset| offset as i64) else {
            return refuse(Errno::EINVAL, unsuitable(used, "it has to be at a constant offset"));
        };
        if offset % SLOT_BYTES as i64 != 0 {
            return refuse(Errno::EINVAL, unsuitable(used, "it has to be at a multiple of 8"));
        }
        let stretch = self.stretch(register, value, frame, 0, 2 * SLOT_BYTES as u32, "write to")?;
        let (low, _) = slot_of(stretch.first);
        match used {
            DynptrUse::NewLocal | DynptrUse::NewRecord => {
                let record = used == DynptrUse::NewRecord;
                for slot in [low, low - 1] {
                    let special = self.state.frames[usize::from(frame)].slot(slot).special;
                    if let Some(Special::Iterator { .. } | Special::Dynptr { record: true, .. }) = special {
                        return refuse(Errno::EINVAL, unsuitable(used, "there is one that is referenced"));
                    }
                }
                Ok(Used { makes: Some((frame, low, record)), ..Used::default() })
            }
            DynptrUse::Any | DynptrUse::ReleaseRecord => {
                self.path.read(Place::slot_at(frame, low));
                self.path.read(Place::slot_at(frame, low - 1));
                let frame_state = &self.state.frames[usize::from(frame)];
                let (lower, upper) = (frame_state.slot(low).special, frame_state.slot(low - 1).special);
                let (
                    Some(Special::Dynptr { first: true, record, id, .. }),
                    Some(Special::Dynptr { first: false, id: other, .. }),
                ) = (lower, upper)
                else {
                    if used == DynptrUse::ReleaseRecord {
                        return refuse(Errno::EINVAL, format!("arg {register} is an unacquired reference"));
                    }
                    return refuse(Errno::EINVAL, unsuitable(used, &format!("arg #{}", register - 1)));
                };
                if id != other {
                    return refuse(Errno::EINVAL, unsuitable(used, "these are halves of two"));
                }
                if used == DynptrUse::Any {
                    return Ok(Used { id, ..Used::default() });
                }
                if !record {
                    return refuse(Errno::EINVAL, format!("arg {register} is an unacquired reference"));
                }
                Ok(Used { id, takes: Some((frame, low)), ..Used::default() })
            }
        }
    }

    /// A helper made a dynptr there.
    pub(crate) fn make_dynptr(&mut self, frame: u8, low: usize, record: bool) -> Result<(), Refusal> {
        for slot in [low, low - 1] {
            if let Some(Special::Dynptr { id, .. }) = self.state.frames[usize::from(frame)].slot(slot).special {
                self.forget_slices(id);
                // The other half of one that is overwritten in part.
                let others = (0..self.state.frames[usize::from(frame)].slots.len()).filter(|index| {
                    let special = self.state.frames[usize::from(frame)].slot(*index).special;
                    matches!(special, Some(Special::Dynptr { id: other, .. }) if other == id)
                });
                for other in others.collect::<Vec<_>>() {
                    self.clear_special(frame, other);
                }
            }
        }
        let reference = if record { self.acquire() } else { 0 };
        let id = self.new_id();
        for (slot, first) in [(low, true), (low - 1, false)] {
            let special = Some(Special::Dynptr { first, record, id, reference });
            let bytes = [Byte::Special; SLOT_BYTES];
            *self.state.frame_at_mut(frame).slot_mut(slot) = Slot { bytes, spilled: None, special };
            self.path.set(Place::slot_at(frame, slot), [None, None]);
        }
        Ok(())
    }

    /// A dynptr is given back.
    pub(crate) fn drop_dynptr(&mut self, frame: u8, low: usize) -> Result<(), Refusal> {
        let Some(Special::Dynptr { id, reference, .. }) = self.state.frames[usize::from(frame)].slot(low).special
        else {
            return Ok(());
        };
        self.clear_special(frame, low);
        self.clear_special(frame, low - 1);
        self.forget_slices(id);
        self.release(reference)
    }
}
