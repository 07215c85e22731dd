//! What the writer of an event does about the buffer's reader.

/// Whether a buffer's reader is woken for what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Wake {
    /// The reader must be woken.
    pub is_due: bool,
    /// The buffer has become half full by this: whoever delays wake-ups to save some must not do so now.
    pub is_urgent: bool,
}

impl Wake {
    /// The reader must be woken.
    pub const DUE: Wake = Wake { is_due: true, is_urgent: false };

    /// Of a write that took the bytes that wait for the reader from `before` to `after`, in a buffer of `size`.
    #[inline(always)]
    pub(crate) fn new(is_due: bool, [before, after]: [u64; 2], size: u64) -> Wake {
        Wake { is_due, is_urgent: before <= size / 2 && after > size / 2 }
    }
}
