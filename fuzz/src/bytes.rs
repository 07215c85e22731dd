//! An input, read from its beginning: what is missing is 0.

/// The rest of an input.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As many bytes, or all that are left.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn word(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.take(bytes);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.word(1) as u8
    }

    pub(crate) fn u16(&mut self) -> u16 {
        self.word(2) as u16
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.word(4) as u32
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.word(8)
    }

    /// A part that says how long it is.
    pub(crate) fn part(&mut self) -> &'a [u8] {
        let count = self.u16();
        self.take(usize::from(count))
    }
}

/// A part that [`Bytes::part`] reads.
pub(crate) fn put_part(to: &mut Vec<u8>, part: &[u8]) {
    to.extend((part.len() as u16).to_le_bytes());
    to.extend(part);
}
