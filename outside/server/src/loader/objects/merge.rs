//! One value of what several domains of targets have made of it (`docs/design/users.md`).

use std::collections::BTreeSet;

use ring3_verifier::AddedWords;

/// Words of a value that are told apart at most.
const WORDS_MAX: usize = 1 << 20;

/// Which words of a map's values are sums: those to which programs add.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// First and last offset, and bytes of each word.
    ranges: BTreeSet<(u32, u32, u32)>,
    /// What programs do is not known: all words are.
    all: bool,
}

impl Sums {
    /// A program adds to these.
    pub(super) fn add(&mut self, words: &AddedWords) {
        self.ranges.insert((words.first, words.last, words.bytes));
    }

    /// A program does what is not known.
    pub(super) fn add_all(&mut self) {
        self.all = true;
    }

    /// Offsets and bytes of the words in values of `bytes` bytes, in order.
    pub(super) fn words(&self, bytes: usize) -> Vec<(usize, usize)> {
        let all = [(0, bytes as u32, 8), (0, bytes as u32, 4)];
        let ranges = self.ranges.iter().copied().chain(all.into_iter().filter(|_| self.all));
        let words =
            ranges.flat_map(|(first, last, width)| (first..=last).step_by(width as usize).map(move |at| (at, width)));
        let mut found: Vec<(usize, usize)> = vec![];
        let mut words: Vec<(u32, u32)> = words.take(WORDS_MAX).collect();
        // (Of those that overlap the first and longest is taken.)
        words.sort_by_key(|(at, width)| (*at, std::cmp::Reverse(*width)));
        for (at, width) in words {
            let (at, width) = (at as usize, width as usize);
            let is_free = found.last().is_none_or(|(before, bytes)| before + bytes <= at);
            if is_free && at.is_multiple_of(width) && at + width <= bytes {
                found.push((at, width));
            }
        }
        found
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The value that the loader sees: `base` is what it has stored itself, `values` what the domains have now, the server's own first.
/// A sum is the base and all differences from it. All else is of the first domain that has changed any of it.
/// Values consist of parts of `stride` bytes (a CPU's each), and `sums` are the words of a part.
pub(super) fn merged(base: &[u8], values: &[Vec<u8>], stride: usize, sums: &[(usize, usize)]) -> Vec<u8> {
    let Some(first) = values.first() else { return base.to_vec() };
    if values.len() == 1 {
        return first.clone();
    }
    let mut all = first.clone();
    let mut is_sum = vec![false; stride];
    sums.iter().for_each(|(at, bytes)| is_sum[*at..at + bytes].fill(true));
    let zeros = vec![0; stride];
    for start in (0..all.len()).step_by(stride.max(1)) {
        let bytes = stride.min(all.len() - start);
        let base = base.get(start..start + bytes).unwrap_or(&zeros[..bytes]);
        let parts = || values.iter().filter_map(|value| value.get(start..start + bytes));
        let changes = |part: &&[u8]| (0..bytes).any(|at| !is_sum[at] && part[at] != base[at]);
        if let Some(part) = parts().find(changes) {
            all[start..start + bytes].copy_from_slice(part);
        }
        for (at, width) in sums.iter().filter(|(at, width)| at + width <= bytes) {
            let word = |part: &[u8]| number(&part[*at..at + width]);
            let sum = parts().fold(word(base), |sum, part| sum.wrapping_add(word(part).wrapping_sub(word(base))));
            all[start + at..start + at + width].copy_from_slice(&sum.to_le_bytes()[..*width]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(words: &[(u32, u32, u32)]) -> Sums {
        Sums { ranges: words.iter().copied().collect(), all: false }
    }

    #[test]
    fn sums_are_added_and_the_rest_is_of_the_first_domain_that_changed_it() {
        let words = sums(&[(0, 0, 8)]).words(12);
        let value = |count: u64, text: &[u8; 4]| [&count.to_le_bytes()[..], text].concat();
        let zeros = vec![0; 12];
        assert_eq!(merged(&zeros, &[value(3, b"root"), value(4, b"user")], 12, &words), value(7, b"root"));
        assert_eq!(merged(&zeros, &[value(3, b"\0\0\0\0"), value(4, b"user")], 12, &words), value(7, b"user"));
        let base = value(100, b"base");
        assert_eq!(merged(&base, &[base.clone(), value(105, b"base")], 12, &words), value(105, b"base"));
        assert_eq!(merged(&base, &[value(99, b"base"), value(105, b"none")], 12, &words), value(104, b"none"));
        assert_eq!(merged(&base, &[base.clone(), base.clone(), base.clone()], 12, &words), base);
        assert_eq!(merged(&zeros, &[value(9, b"only")], 12, &words), value(9, b"only"));
    }

    #[test]
    fn each_cpus_part_is_put_together_by_itself() {
        let words = sums(&[(0, 0, 4)]).words(8);
        let value = |parts: [u32; 4]| parts.iter().flat_map(|part| part.to_le_bytes()).collect::<Vec<u8>>();
        let all = merged(&[], &[value([1, 7, 2, 0]), value([10, 8, 20, 9])], 8, &words);
        assert_eq!(all, value([11, 7, 22, 9]));
    }

    #[test]
    fn words_of_ranges_are_told_apart_and_do_not_overlap() {
        assert_eq!(sums(&[(8, 16, 4)]).words(100), [(8, 4), (12, 4), (16, 4)]);
        assert_eq!(sums(&[(0, 0, 4), (0, 8, 8)]).words(100), [(0, 8), (8, 8)]);
        assert_eq!(sums(&[(0, 96, 8)]).words(16), [(0, 8), (8, 8)]);
        let unknown = Sums { all: true, ..Sums::default() };
        assert_eq!(unknown.words(20), [(0, 8), (8, 8), (16, 4)]);
    }
}
