//! What a function of the application gets.

use ring3_verifier::{Parameter, Signature, Use};

/// What a function of the application gets: r1 to r5, of which the verifier has proved what the parameters say. Memory is copied: other
/// threads may be writing it.
#[derive(Debug)]
pub struct Arguments<'a> {
    words: [u64; 5],
    signature: &'a Signature,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(words: [u64; 5], signature: &'a Signature) -> Arguments<'a> {
        Arguments { words, signature }
    }

    /// An argument as it is; 0 beyond the last. (If it is memory, its address.)
    pub fn get(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// An argument as a signed number.
    pub fn signed(&self, index: usize) -> i64 {
        self.get(index) as i64
    }

    /// Address, bytes and use of memory.
    fn memory(&self, index: usize) -> Option<(u64, usize, Use)> {
        let address = self.get(index);
        match self.signature.parameters.get(index)? {
            Parameter::Memory { bytes, how } => Some((address, *bytes as usize, *how)),
            Parameter::Buffer { how } => Some((address, self.get(index + 1) as usize, *how)),
            _ => None,
        }
    }

    /// How many bytes an argument leads to; 0 if it is no memory.
    pub fn len(&self, index: usize) -> usize {
        self.memory(index).map_or(0, |(_, bytes, _)| bytes)
    }

    /// Whether an argument leads to no bytes.
    pub fn is_empty(&self, index: usize) -> bool {
        self.len(index) == 0
    }

    /// Copies the bytes that an argument leads to, as many as there are and fit; how many. None of memory that the function only fills.
    pub fn read(&self, index: usize, out: &mut [u8]) -> usize {
        let Some((address, bytes, _)) = self.memory(index).filter(|(_, _, how)| *how != Use::Fills) else { return 0 };
        let count = bytes.min(out.len());
        // SAFETY: the verifier proved that the program may read so many bytes there, which stay while it runs; `out` has them, too.
        unsafe { std::ptr::copy(address as *const u8, out.as_mut_ptr(), count) };
        count
    }

    /// The bytes that an argument leads to.
    pub fn to_vec(&self, index: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.len(index)];
        let count = self.read(index, &mut bytes);
        bytes.truncate(count);
        bytes
    }

    /// Writes the memory that an argument leads to: as many bytes as there are and fit. What the function only fills and `bytes` is too
    /// short for, becomes zeros. How many of `bytes` were written; none where the function only reads.
    pub fn write(&self, index: usize, bytes: &[u8]) -> usize {
        let writable = self.memory(index).filter(|(_, _, how)| *how != Use::Reads);
        let Some((address, room, how)) = writable else { return 0 };
        let count = room.min(bytes.len());
        // SAFETY: the verifier proved that the program may write so many bytes there, which stay while it runs.
        unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, count) };
        if how == Use::Fills {
            let rest = (address as *mut u8).wrapping_add(count);
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(rest, 0, room - count) };
        }
        count
    }
}
