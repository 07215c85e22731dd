//! Hashes of keys.

use ring3_layout::map::HASH_MULTIPLIER;

const BLOCK_MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// Hash of a key of at most 4 bytes, zero-extended. Numbers that follow each other go to buckets far apart.
#[inline(always)]
pub(crate) fn hash_half(half: u32) -> u32 {
    (u64::from(half).wrapping_mul(HASH_MULTIPLIER) >> 32) as u32
}

/// Mixes two words into one: their 128-bit product, folded (the step of wyhash, Wang Yi 2019).
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Hash of a key of at most 8 bytes, zero-extended.
#[inline(always)]
pub(crate) fn hash_word(word: u64) -> u32 {
    mix(word, HASH_MULTIPLIER) as u32
}

/// Hash of a key of 16 bytes.
#[inline(always)]
pub(crate) fn hash_words(words: [u64; 2]) -> u32 {
    fold(block(0, words))
}

/// The part of a key's hash that its block `index` of 16 bytes has. Blocks do not wait for each other.
#[inline(always)]
fn block(index: u64, words: [u64; 2]) -> u64 {
    // (A constant of 32 bits, sign-extended, fits into the instruction.)
    let own = (index as i32).wrapping_add(1).wrapping_mul(HASH_MULTIPLIER as i32);
    mix(words[0] ^ i64::from(own) as u64, words[1] ^ BLOCK_MULTIPLIER)
}

/// Hash of a key of 64 bytes.
#[inline(always)]
pub(crate) fn hash_blocks(words: [u64; 8]) -> u32 {
    let (blocks, _) = words.as_chunks::<2>();
    fold((0..).zip(blocks).fold(0, |sum, (index, words)| sum.wrapping_add(block(index, *words))))
}

/// The hash that a sum of blocks is.
#[inline(always)]
fn fold(sum: u64) -> u32 {
    (sum ^ (sum >> 32)) as u32
}

/// Hash of a key of any length; equals the above for 4, 8, 16 and 64 bytes.
#[inline(always)]
pub(crate) fn hash_bytes(key: &[u8]) -> u32 {
    match key.len() {
        4 => hash_half(key.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))),
        8 => hash_word(key.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))),
        _ => hash_any(key),
    }
}

fn hash_any(key: &[u8]) -> u32 {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let Some(last) = key.last_chunk::<8>() else {
        let word = key.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        return if key.len() <= 4 { hash_half(word as u32) } else { hash_word(word) };
    };
    let (blocks, rest) = key.as_chunks::<16>();
    let words = |bytes: &[u8; 16]| {
        bytes.first_chunk().map_or([0; 2], |first| [word(first), bytes.last_chunk().map_or(0, word)])
    };
    match (key.last_chunk::<16>(), blocks) {
        (Some(_), [only]) if rest.is_empty() => hash_words(words(only)),
        (Some(end), _) => {
            let sum =
                (0..).zip(blocks).fold(0u64, |sum, (index, bytes)| sum.wrapping_add(block(index, words(bytes))));
            // What does not fill a block: the last 16 bytes, some of which were counted.
            let rest = if rest.is_empty() { 0 } else { block(blocks.len() as u64, words(end)) };
            fold(sum.wrapping_add(rest))
        }
        (None, _) => hash_words([key.first_chunk().map_or(0, word), word(last)]),
    }
}
