//! Random numbers, with a taste for edges.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Where ranges, signs and widths end.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
];

impl Random {
    /// From a seed; sequence `number` of a seed is far from its neighbours.
    pub fn new(seed: u64, number: u64) -> Random {
        let mut random = Random(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        random.0 = random.next() ^ number;
        random
    }

    /// The sequence that goes on from a state.
    pub fn from_state(state: u64) -> Random {
        Random(state)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Once in so many.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of them.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A number, likely at an edge, or small, or negative.
    pub fn edge(&mut self) -> u64 {
        let around = self.below(3).wrapping_sub(1);
        match self.below(8) {
            0 => self.next(),
            1 => self.next() & 0xffff_ffff,
            2 | 3 => self.below(72),
            4 => self.of(&EDGES).wrapping_neg().wrapping_add(around),
            5 => (1u64 << self.below(64)).wrapping_add(around),
            _ => self.of(&EDGES).wrapping_add(around),
        }
    }
}
