//! BLOOM_FILTER: bits that are only ever set, each by one atomic `or`, if it is not set yet. No lock, nothing to repair.

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::map::TABLES_OFFSET;
use ring3_uapi::Errno;
use ring3_uapi::flags::BPF_ANY;

use crate::hashing::{hash_bytes, hash_word};
use crate::raw_memory::Memory;

/// Bits of a word.
const WORD_BITS: u64 = 64;

/// A Bloom filter's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bloom<'m>(pub(crate) &'m Memory<'m>);

impl Bloom<'_> {
    /// Offset of the word, and the bit in it, for each hash of a value.
    fn bits(&self, value: &[u8]) -> impl Iterator<Item = (u64, u64)> {
        let first = hash_bytes(value);
        // A second, odd hash steps through the bits (Kirsch and Mitzenmacher, "Less hashing, same performance").
        let step = hash_word(u64::from(first) << 32 | value.len() as u64) | 1;
        let mask = self.0.geometry.bloom_mask;
        (0..self.0.geometry.bloom_hashes()).map(move |number| {
            let bit = u64::from(first.wrapping_add(step.wrapping_mul(number)) & mask);
            (TABLES_OFFSET + bit / WORD_BITS * 8, 1 << (bit % WORD_BITS))
        })
    }

    /// `bpf_map_push_elem`. Mirrors kernel/bpf/bloom_filter.c:bloom_map_push_elem.
    pub(crate) fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != BPF_ANY {
            return Err(Errno::EINVAL);
        }
        for (word, bit) in self.bits(value) {
            let word = self.0.word64(self.0.private(word));
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
        Ok(())
    }

    /// `bpf_map_peek_elem`: whether the value may have been pushed; `ENOENT` if certainly not.
    pub(crate) fn peek(&self, value: &[u8]) -> Result<(), Errno> {
        let all = self.bits(value).all(|(word, bit)| self.0.word64(self.0.private(word)).load(Relaxed) & bit != 0);
        if all { Ok(()) } else { Err(Errno::ENOENT) }
    }
}
