//! LPM_TRIE: prefixes, of which the longest that fits is found.
//!
//! The tree is the kernel's, node by node, since the order of iteration follows from it: a node has a prefix that its
//! children's prefixes go on from, one for each next bit; nodes without a value stand where two prefixes part. An update
//! of a prefix that is there replaces its node, so values that somebody reads never change under him.
//! Nodes come from a [`Pool`], which says how readers and deaths are dealt with. The label of a node is its prefix's length: so a
//! link tells which bit of a key leads on from the node, and a walk need not wait for what is in it.
//!
//! A node: label, generation and free list (the pool's), the links of two children, prefix length and flags, the prefix's
//! bytes as they were given, the value.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_EXIST, BPF_NOEXIST};

use crate::Context;
use crate::geometry::TRIE_DATA_OFFSET;
use crate::pool::{Change, LockedPool, NODE_HEADER_BYTES, Pool, Stale, check, label};
use crate::raw_memory::Memory;

/// Bytes of a key before its data: the prefix length.
pub(crate) const KEY_DATA_OFFSET: usize = 4;
/// Flag of a node without a value, beside the prefix length.
const INTERMEDIATE: u64 = 1 << 32;
const NODE_CHILDREN: u64 = NODE_HEADER_BYTES;
const NODE_PREFIX: u64 = NODE_CHILDREN + 16;
/// Walks begun again because a node was used anew meanwhile. Each time, somebody else's change was made.
const RESTARTS_MAX: u32 = 4096;

/// A trie's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trie<'m>(pub(crate) &'m Memory<'m>);

/// `struct bpf_lpm_trie_key`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'k> {
    pub(crate) bits: u32,
    data: &'k [u8],
    /// The first eight bytes of the data.
    first: u64,
}

impl<'k> Key<'k> {
    fn new(bytes: &'k [u8]) -> Key<'k> {
        let (bits, data) = bytes.split_first_chunk().unwrap_or((&[0; KEY_DATA_OFFSET], &[]));
        Key::of(u32::from_le_bytes(*bits), data)
    }

    pub(crate) fn of(bits: u32, data: &'k [u8]) -> Key<'k> {
        let key = Key { bits, data, first: 0 };
        Key { first: key.word(0), ..key }
    }

    /// Eight bytes of the data, as many as there are, most significant first.
    fn word(&self, index: usize) -> u64 {
        let rest = self.data.get(index * 8..).unwrap_or_default();
        if let Some(word) = rest.first_chunk() {
            return u64::from_be_bytes(*word);
        }
        // An IPv4 address is the first half.
        let (mut word, mut room) = (0, 64);
        let rest = match rest.split_first_chunk() {
            Some((half, rest)) => {
                (word, room) = (u64::from(u32::from_be_bytes(*half)) << 32, 32);
                rest
            }
            None => rest,
        };
        for byte in rest {
            room -= 8;
            word |= u64::from(*byte) << room;
        }
        word
    }

    /// The bit at `index` of the data, most significant first.
    #[inline(always)]
    pub(crate) fn bit(&self, index: u32) -> usize {
        if index < u64::BITS {
            return bit(self.first, index);
        }
        self.data.get(index as usize / 8).map_or(0, |byte| usize::from(byte >> (7 - index % 8) & 1))
    }
}

/// The bit at `index` of a word's 64 or of several words', most significant first.
#[inline(always)]
fn bit(word: u64, index: u32) -> usize {
    (word.wrapping_shl(index) >> 63) as usize
}

/// Whether none of a word's first `bits` bits, 64 at most, is set.
#[inline(always)]
fn same(word: u64, bits: u32) -> bool {
    bits == 0 || word.wrapping_shr(u64::BITS.wrapping_sub(bits)) == 0
}

/// A node, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    index: u32,
    link: u64,
    pub(crate) children: [u64; 2],
    pub(crate) bits: u32,
    pub(crate) intermediate: bool,
    /// Bits that it has in common with the key it was read for.
    pub(crate) matched: u32,
}

impl Node {
    fn child(&self, bit: usize) -> u64 {
        let [zero, one] = self.children;
        if bit == 0 { zero } else { one }
    }

    /// Whether a search for `key` ends here: its prefix is the key's, or not one of the key's.
    fn ends(&self, key: &Key<'_>) -> bool {
        self.bits != self.matched || self.bits == key.bits
    }
}

/// Where a search under the lock ended.
#[derive(Clone, Copy, Debug)]
struct Spot {
    /// Offset of the link there.
    place: u64,
    node: Option<Node>,
    /// The node above, the offset of the link to it, and which child the spot is.
    parent: Option<(Node, u64, usize)>,
}

impl<'m> Trie<'m> {
    pub(crate) fn pool(&self) -> Pool<'m> {
        Pool(self.0)
    }

    /// Bits of the longest prefix.
    pub(crate) fn bits_max(&self) -> u32 {
        (self.0.geometry.header.key_size.saturating_sub(KEY_DATA_OFFSET as u32)).saturating_mul(8)
    }

    pub(crate) fn data_bytes(&self) -> usize {
        (self.0.geometry.header.key_size as usize).saturating_sub(KEY_DATA_OFFSET)
    }

    fn child_at(&self, index: u32, bit: usize) -> u64 {
        self.pool().node_at(index) + NODE_CHILDREN + if bit == 0 { 0 } else { 8 }
    }

    pub(crate) fn data_at(&self, index: u32) -> u64 {
        self.pool().node_at(index) + TRIE_DATA_OFFSET
    }

    fn value_at(&self, index: u32) -> u64 {
        self.data_at(index) + (self.data_bytes() as u64).next_multiple_of(8)
    }

    pub(crate) fn root(&self) -> u64 {
        self.0.word64(self.pool().root_at()).load(Acquire)
    }

    /// Bits that a node's prefix of `bits` bits has in common with a key. Mirrors
    /// kernel/bpf/lpm_trie.c:longest_prefix_match.
    #[inline(always)]
    fn matched(&self, index: u32, first: u64, bits: u32, key: &Key<'_>) -> u32 {
        let limit = bits.min(key.bits);
        let same = (first ^ key.first).leading_zeros();
        if same < 64 || limit <= 64 { same.min(limit) } else { self.matched_beyond(index, limit, key) }
    }

    #[cold]
    fn matched_beyond(&self, index: u32, limit: u32, key: &Key<'_>) -> u32 {
        let data = self.data_at(index);
        let mut same = 64;
        for number in 1..self.data_bytes().div_ceil(8) {
            if same >= limit {
                break;
            }
            let there = u64::from_be(self.0.word64(data + number as u64 * 8).load(Relaxed));
            let differ = there ^ key.word(number);
            same += differ.leading_zeros();
            if differ != 0 {
                break;
            }
        }
        same.min(limit)
    }

    #[inline(always)]
    pub(crate) fn read(&self, link: u64, key: &Key<'_>) -> Result<Option<Node>, Stale> {
        let Some((index, words)) = self.pool().words(link) else { return Ok(None) };
        let [generation, zero, one, prefix, data]: &[AtomicU64; 5] = words;
        let prefix = prefix.load(Relaxed);
        let bits = prefix as u32;
        let node = Node {
            index,
            link,
            children: [zero.load(Relaxed), one.load(Relaxed)],
            bits,
            intermediate: prefix & INTERMEDIATE != 0,
            matched: self.matched(index, u64::from_be(data.load(Relaxed)), bits, key),
        };
        check(generation, link)?;
        Ok(Some(node))
    }

    /// The link of the node with the longest prefix that fits the key, 0 for none; `WORDS`: those of its data, 0 for more than
    /// two. Mirrors kernel/bpf/lpm_trie.c:trie_lookup_elem.
    #[inline(always)]
    fn longest<const WORDS: usize>(&self, key: &Key<'_>) -> Result<u64, Stale> {
        let Some(nodes) = self.0.nodes() else { return Ok(0) };
        let (first, second) = (key.first, if WORDS == 2 { key.word(1) } else { 0 });
        let (mut found, mut link, mut longer_than) = (0, self.root(), 0);
        while let Some(words) = nodes.at(link as u32) {
            // (What is no word of the data, is one of the value.)
            let [tag, _, _, prefix, there, further]: &[AtomicU64; 6] = words;
            let bits = label(link);
            let side = match WORDS {
                1 => bit(first, bits),
                2 => bit(if bits & u64::BITS == 0 { first } else { second }, bits),
                _ => key.bit(bits),
            };
            // By index: which child it is cannot be foretold, so a branch would cost more than all the rest.
            let next = words.get(1 + side).map_or(0, |child| child.load(Acquire));
            let differ = u64::from_be(there.load(Relaxed)) ^ first;
            let fits = match WORDS {
                1 => same(differ, bits),
                _ if bits <= u64::BITS => same(differ, bits),
                2 => differ == 0 && same(u64::from_be(further.load(Relaxed)) ^ second, bits - u64::BITS),
                _ => differ == 0 && self.matched_beyond(link as u32, bits, key) >= bits,
            };
            let has_value = prefix.load(Relaxed) >> 32 == 0;
            check(tag, link)?;
            // (Where prefixes did not get longer, memory would be damaged.)
            if !fits || bits > key.bits || bits < longer_than {
                break;
            }
            found = if has_value { link } else { found };
            (link, longer_than) = (next, bits + 1);
        }
        Ok(found)
    }

    /// As `longest`, whatever the size of the data; and what [`Pool::check`] wants to know.
    #[inline(always)]
    fn longest_of(&self, key: &Key<'_>) -> Result<(u64, u64), Stale> {
        let since = self.pool().taken();
        let link = match key.data.len() {
            ..=8 => self.longest::<1>(key)?,
            9..=16 => self.longest::<2>(key)?,
            _ => self.longest::<0>(key)?,
        };
        self.pool().check(link, since)?;
        Ok((link, since))
    }

    /// As `longest_of`, until no node was used anew meanwhile.
    #[cold]
    #[inline(never)]
    fn longest_again(&self, key: &Key<'_>) -> Result<(u64, u64), Stale> {
        (1..RESTARTS_MAX).find_map(|_| self.longest_of(key).ok()).ok_or(Stale)
    }

    /// Offset of the value of the longest prefix that fits the key.
    #[inline(always)]
    pub(crate) fn find(&self, key: &[u8]) -> Option<u64> {
        let key = Key::new(key);
        if key.bits > self.bits_max() {
            return None;
        }
        let found = self.longest_of(&key).or_else(|Stale| self.longest_again(&key));
        let (link, _) = found.ok()?;
        self.pool().index(link).map(|index| self.value_at(index))
    }

    /// Copies the value of the longest prefix that fits the key, as it was at one time.
    pub(crate) fn copy(&self, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        let key = Key::new(key);
        if key.bits > self.bits_max() {
            return Err(Errno::ENOENT);
        }
        for _ in 0..RESTARTS_MAX {
            let Ok((link, since)) = self.longest_of(&key) else { continue };
            let index = self.pool().index(link).ok_or(Errno::ENOENT)?;
            self.0.read(self.value_at(index), out);
            if self.pool().check(link, since).is_ok() {
                return Ok(());
            }
        }
        Err(Errno::EBUSY)
    }

    /// Goes down to where a key's prefix is or would be. The lock is held.
    fn descend(&self, key: &Key<'_>) -> Result<Spot, Errno> {
        let mut spot = Spot { place: self.pool().root_at(), node: None, parent: None };
        for _ in 0..=self.bits_max() {
            let link = self.0.word64(spot.place).load(Acquire);
            // Nobody uses nodes anew meanwhile: only damaged memory is stale here.
            spot.node = self.read(link, key).map_err(|Stale| Errno::EBUSY)?;
            let Some(node) = spot.node.filter(|node| !node.ends(key)) else { break };
            let bit = key.bit(node.bits);
            spot = Spot { place: self.child_at(node.index, bit), node: None, parent: Some((node, spot.place, bit)) };
        }
        Ok(spot)
    }

    /// Whether an element more may be added. Mirrors kernel/bpf/lpm_trie.c:trie_check_add_elem.
    fn check_add(&self, flags: u64) -> Result<i64, Errno> {
        if flags == BPF_EXIST {
            return Err(Errno::ENOENT);
        }
        let full = self.pool().count() >= self.0.geometry.header.max_entries.into();
        if full { Err(Errno::ENOSPC) } else { Ok(1) }
    }

    /// Fills all of a node but its data and its value.
    fn fill(&self, index: u32, prefix: u64, [zero, one]: [u64; 2]) {
        let at = self.pool().node_at(index);
        self.0.word64(at + NODE_PREFIX).store(prefix, Relaxed);
        self.0.word64(at + NODE_CHILDREN).store(zero, Relaxed);
        self.0.word64(at + NODE_CHILDREN + 8).store(one, Relaxed);
    }

    /// `bpf_map_update_elem`. Mirrors kernel/bpf/lpm_trie.c:trie_update_elem.
    pub(crate) fn update(&self, cx: &Context, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let key = Key::new(key);
        if flags > BPF_EXIST || key.bits > self.bits_max() {
            return Err(Errno::EINVAL);
        }
        self.pool().locked(cx, |held| {
            let spot = self.descend(&key)?;
            let same = spot.node.filter(|node| node.bits == node.matched);
            let added = match same {
                Some(node) if !node.intermediate && flags == BPF_NOEXIST => return Err(Errno::EEXIST),
                Some(node) if !node.intermediate => 0,
                _ => self.check_add(flags)?,
            };
            let fresh = held.take(key.bits).ok_or(Errno::ENOMEM)?;
            self.0.write(self.data_at(fresh), key.data);
            self.0.write(self.value_at(fresh), value);
            let (children, freed) = match (same, spot.node) {
                (Some(node), _) => (node.children, node.link),
                (None, Some(node)) if node.matched == key.bits => (self.sides(&key, node, node.link, 0), 0),
                _ => ([0; 2], 0),
            };
            self.fill(fresh, key.bits.into(), children);
            let mut top = self.pool().link(fresh);
            if let Some(node) = spot.node.filter(|node| node.bits != node.matched && node.matched != key.bits) {
                top = self.part(held, &key, node, top)?;
            }
            held.commit(&Change { place: spot.place, value: top, freed: [freed, 0], added });
            Ok(())
        })
    }

    /// Two links as children: `node`'s on the side where its data goes on, and the other. Where a key parts from the node
    /// its next bit is the other one.
    fn sides(&self, key: &Key<'_>, node: Node, of_node: u64, other: u64) -> [u64; 2] {
        let bit = if node.matched == key.bits {
            let mut byte = [0];
            self.0.read(self.data_at(node.index) + u64::from(node.matched / 8), &mut byte);
            Key::of(0, &byte).bit(node.matched % 8)
        } else {
            1 - key.bit(node.matched)
        };
        if bit == 0 { [of_node, other] } else { [other, of_node] }
    }

    /// A node without a value where the key parts from `node`; the link to it.
    fn part(&self, held: &mut LockedPool<'_>, key: &Key<'_>, node: Node, fresh: u64) -> Result<u64, Errno> {
        let index = held.take(node.matched).ok_or(Errno::ENOMEM)?;
        let (from, to) = (self.data_at(node.index), self.data_at(index));
        for offset in (0..self.data_bytes() as u64).step_by(8) {
            self.0.word64(to + offset).store(self.0.word64(from + offset).load(Relaxed), Relaxed);
        }
        self.fill(index, u64::from(node.matched) | INTERMEDIATE, self.sides(key, node, node.link, fresh));
        Ok(self.pool().link(index))
    }

    /// `bpf_map_delete_elem`. Mirrors kernel/bpf/lpm_trie.c:trie_delete_elem.
    pub(crate) fn delete(&self, cx: &Context, key: &[u8]) -> Result<(), Errno> {
        let key = Key::new(key);
        if key.bits > self.bits_max() {
            return Err(Errno::EINVAL);
        }
        self.pool().locked(cx, |held| {
            let spot = self.descend(&key)?;
            let found = spot.node.filter(|node| node.bits == key.bits && node.bits == node.matched);
            let node = found.filter(|node| !node.intermediate).ok_or(Errno::ENOENT)?;
            let change = match (node.children, spot.parent) {
                ([0, 0], Some((parent, place, bit))) if parent.intermediate => {
                    Change { place, value: parent.child(1 - bit), freed: [node.link, parent.link], added: -1 }
                }
                ([zero, one], _) if zero != 0 && one != 0 => {
                    let place = self.pool().node_at(node.index) + NODE_PREFIX;
                    Change { place, value: u64::from(node.bits) | INTERMEDIATE, freed: [0; 2], added: -1 }
                }
                ([zero, one], _) => {
                    let value = if zero != 0 { zero } else { one };
                    Change { place: spot.place, value, freed: [node.link, 0], added: -1 }
                }
            };
            held.commit(&change);
            Ok(())
        })
    }

    /// The first node with a value, children before parents, of the tree at `link`.
    fn first_below(&self, mut link: u64, key: &Key<'_>) -> Result<Option<Node>, Stale> {
        let mut first = None;
        for _ in 0..=self.bits_max() {
            let Some(node) = self.read(link, key)? else { break };
            link = node.child(0);
            if !node.intermediate {
                first = Some(node);
                if link == 0 {
                    link = node.child(1);
                }
            }
        }
        Ok(first)
    }

    /// The node behind `key`'s, children before parents; the first one if the key is not there. On the way down, the
    /// last node that was passed on its left and has a right side, or has a value, tells where it goes on.
    /// Mirrors kernel/bpf/lpm_trie.c:trie_get_next_key.
    fn behind(&self, key: &Key<'_>) -> Result<Option<Node>, Stale> {
        enum Next {
            Nothing,
            Below(u64),
            Parent(Node),
        }
        let root = self.root();
        let (mut link, mut next) = (root, Next::Nothing);
        for _ in 0..=self.bits_max() {
            let Some(node) = self.read(link, key)? else { break };
            if node.ends(key) {
                if node.bits != node.matched || node.intermediate {
                    break;
                }
                return match next {
                    Next::Nothing => Ok(None),
                    Next::Below(link) => self.first_below(link, key),
                    Next::Parent(node) => Ok(Some(node)),
                };
            }
            let bit = key.bit(node.bits);
            if bit == 0 && node.child(1) != 0 {
                next = Next::Below(node.child(1));
            } else if !node.intermediate {
                next = Next::Parent(node);
            }
            link = node.child(bit);
        }
        self.first_below(root, key)
    }

    /// `BPF_MAP_GET_NEXT_KEY` into `out`, which has the size of a key.
    pub(crate) fn next(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let known = key.map(Key::new).filter(|key| key.bits <= self.bits_max());
        for _ in 0..RESTARTS_MAX {
            let since = self.pool().taken();
            let next = match &known {
                Some(key) => self.behind(key),
                None => self.first_below(self.root(), &Key::of(0, &[])),
            };
            let Ok(next) = next else { continue };
            let link = next.map_or(0, |node| node.link);
            if let Some((node, (bits, data))) = next.zip(out.split_first_chunk_mut()) {
                *bits = node.bits.to_le_bytes();
                let _: &[u8; KEY_DATA_OFFSET] = bits;
                self.0.read(self.data_at(node.index), data);
            }
            if self.pool().check(link, since).is_ok() {
                return next.map(|_| ()).ok_or(Errno::ENOENT);
            }
        }
        Err(Errno::EBUSY)
    }
}
