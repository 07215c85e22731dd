//! What the writer believes that registers and stack slots hold. Rough: it may be wrong where a slip was made.

/// 8-byte slots of a frame.
pub(crate) const SLOTS: usize = 64;

/// What memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Value,
    Packet,
    Record,
    Frame,
    /// A caller's frame.
    Outer,
    /// Only to be read.
    Constant,
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Unset,
    /// At most so much.
    Number(u64),
    Context,
    Map(usize),
    PacketEnd,
    /// An address with so many bytes before it and from it on.
    Memory {
        sort: Sort,
        before: i32,
        after: i32,
    },
}

impl Held {
    pub(crate) const ANY: Held = Held::Number(u64::MAX);

    pub(crate) fn is_number(self) -> bool {
        matches!(self, Held::Number(_))
    }

    fn join(self, other: Held) -> Held {
        match (self, other) {
            (Held::Number(a), Held::Number(b)) => Held::Number(a.max(b)),
            (Held::Memory { sort: a, before: b1, after: a1 }, Held::Memory { sort: b, before: b2, after: a2 })
                if a == b && a != Sort::Frame =>
            {
                Held::Memory { sort: a, before: b1.min(b2), after: a1.min(a2) }
            }
            (a, b) if a == b => a,
            _ => Held::Unset,
        }
    }
}

/// What is held at a place of the program.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) r: [Held; 10],
    pub(crate) slots: [Held; SLOTS],
    /// Registers that do not change what they hold, as bits; numbers may change.
    pub(crate) fixed: u16,
    /// Registers that are not written at all, as bits.
    pub(crate) kept: u16,
    /// Records that are held.
    pub(crate) records: u32,
}

impl State {
    pub(crate) fn new() -> State {
        State { r: [Held::Unset; 10], slots: [Held::Unset; SLOTS], fixed: 0, kept: 0, records: 0 }
    }

    /// After two paths met.
    pub(crate) fn join(&mut self, other: &State) {
        for (mine, theirs) in self.r.iter_mut().zip(&other.r).chain(self.slots.iter_mut().zip(&other.slots)) {
            *mine = mine.join(*theirs);
        }
    }

    /// After a call.
    pub(crate) fn clobber(&mut self) {
        self.r[..6].fill(Held::Unset);
    }

    /// At the head of a loop: what holds in each round.
    pub(crate) fn weaken(&mut self) {
        self.clobber();
        for register in 6..10 {
            match &mut self.r[register] {
                Held::Unset => {}
                held => {
                    self.fixed |= 1 << register;
                    if self.kept & 1 << register == 0 && held.is_number() {
                        *held = Held::ANY;
                    }
                }
            }
        }
        self.slots.fill(Held::Unset);
    }
}
