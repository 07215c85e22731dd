//! Random sequences: a seed gives the same one each time.

use super::kinds::{KINDS, Kind, LOOSE_BELOW, Shape, named};
use super::sequence::{Data, Step};

/// Sequences in which a program works on the map, one in this many: the kernel takes long to let go of a uprobe.
const PROGRAM_EVERY: u64 = 40;
/// Bytes of all values of a map at most.
const MAP_BYTES_MAX: u64 = 1 << 20;
/// What a program's control record has room for, bytes.
pub(crate) const PROGRAM_KEY_MAX: u32 = 128;
/// As [`PROGRAM_KEY_MAX`], for a value.
pub(crate) const PROGRAM_VALUE_MAX: u32 = 512;

/// `BPF_F_RDONLY` and `BPF_F_WRONLY`.
const ACCESS: u32 = 0x18;
/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_NUMA_NODE`.
const NUMA_NODE: u32 = 4;
/// Values about as large as the kernel allows, and larger: `KMALLOC_MAX_SIZE`, less what it needs itself.
const LARGE: &[u32] = &[4_194_252, 4_194_251, 4_194_248, 4_194_240, 4_194_304, 4_194_305, 1 << 31, u32::MAX];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<'t, T>(&mut self, choices: &'t [T]) -> &'t T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    fn number(&mut self, choices: &[u64]) -> Data {
        Data::Number(*self.of(choices))
    }
}

/// The sequence of a seed.
pub(crate) fn sequence(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let in_program = random.one_in(PROGRAM_EVERY);
    let kind = loop {
        let kind = random.of(KINDS);
        // Of types that hardly anything can be done with, fewer.
        if kind.shape != Shape::Other || !in_program && random.one_in(3) {
            break kind;
        }
    };
    let mut steps = vec![];
    if let Some(inner) = kind.inner.and_then(named) {
        steps.push(create(&mut random, inner, true));
    }
    let number = steps.len() as u64;
    let create = create(&mut random, kind, in_program);
    let entries = create.number("entries");
    steps.push(if kind.inner.is_some() { create.with("inner", Data::Fd(0)) } else { create });
    let mut keys = Keys { kind, entries, few: 2 + random.below(16) };
    let most = if in_program { 200 } else { 40 };
    for _ in 0..3 + random.below(most) {
        let step = operation(&mut random, &mut keys, in_program);
        steps.push(step.with("map", Data::Number(number)));
    }
    steps.push(Step::new("walk").with("map", Data::Number(number)));
    steps
}

/// Attributes: mostly good ones, with one or two things wrong now and then.
fn create(random: &mut Random, kind: &Kind, must_work: bool) -> Step {
    let (mut key, mut value) = (*random.of(kind.keys), *random.of(kind.values));
    let mut entries = *random.of(kind.entries);
    if must_work && kind.shape == Shape::Lru && !random.one_in(4) {
        entries = LOOSE_BELOW;
    }
    let mut flags = 0;
    let (mut numa, mut extra) = (0, 0);
    if random.one_in(3) && !must_work {
        let flag = random.of(kind.flags);
        // Those that forbid calls, not as often.
        flags |= if random.one_in(3) || flag & ACCESS == 0 { *flag } else { 0 };
    }
    if random.one_in(4) && must_work {
        flags |= random.of(kind.flags) & !ACCESS;
    }
    if random.one_in(4) && kind.flags.contains(&1) {
        flags |= 1;
    }
    if kind.shape == Shape::Bloom && random.one_in(2) {
        extra = *random.of(&[1, 2, 5, 15]);
    }
    if !must_work && random.one_in(8) {
        for _ in 0..1 + random.below(2) {
            match random.below(8) {
                0 => key = *random.of(&[0, 1, 3, 4, 5, 8, 512, 40000]),
                1 => value = *random.of(&[0, 1, 4, 5, 8, 32761, 32768, 32769, 1 << 20]),
                2 => entries = *random.of(&[0, 1, 3, 4095, 4096, 8192, 12288]),
                3 => flags |= 1 << random.below(20),
                4 => flags |= random.next() as u32 & random.next() as u32,
                5 => (flags, numa) = (flags | NUMA_NODE, *random.of(&[0, 1, 99, u32::MAX])),
                6 => (value, entries, flags) = (*random.of(LARGE), 1 + random.below(2) as u32, flags & !NO_PREALLOC),
                _ => extra = *random.of(&[1, 15, 16, 1 << 40]),
            }
        }
    }
    // What the kernel has too little memory for is its own affair.
    if u64::from(entries) * u64::from(value.max(8)) > MAP_BYTES_MAX {
        entries = entries.min(if LARGE.contains(&value) { 2 } else { 8 });
    }
    let word = |number: u32| Data::Number(number.into());
    Step::new(kind.name)
        .with("key", word(key))
        .with("value", word(value))
        .with("entries", word(entries))
        .with("flags", word(flags))
        .with("numa", word(numa))
        .with("extra", Data::Number(extra))
}

/// Which keys a sequence uses: few, so that they meet.
struct Keys {
    kind: &'static Kind,
    entries: u64,
    few: u64,
}

impl Keys {
    fn pointer(random: &mut Random) -> Data {
        *random.of(&[Data::Null, Data::Bad, Data::Short, Data::ReadOnly])
    }

    fn key(&self, random: &mut Random) -> Data {
        if !self.kind.has_keys() {
            return if random.one_in(16) { Data::Number(1) } else { Data::Null };
        }
        match random.below(40) {
            0 => Keys::pointer(random),
            1 => Data::Number(*random.of(&[u64::from(u32::MAX), 0x8000_0000, self.entries, self.entries + 1, 255])),
            _ if self.kind.shape == Shape::Ordered => Data::Number(random.below(self.entries.min(self.few) + 2)),
            _ => Data::Number(random.below(self.few)),
        }
    }

    fn value(&self, random: &mut Random) -> Data {
        match random.below(30) {
            0 => Keys::pointer(random),
            _ if self.kind.holds_objects => *random.of(&[Data::Fd(0), Data::Fd(0), Data::Fd(1), Data::Number(1)]),
            _ if self.kind.shape == Shape::Bloom => Data::Number(random.below(12)),
            _ => Data::Number(random.below(200)),
        }
    }
}

fn flags(random: &mut Random) -> Data {
    match random.below(8) {
        0..4 => Data::Number(0),
        4..7 => random.number(&[1, 2]),
        _ => random.number(&[3, 4, 5, 6, 7, 8, 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX]),
    }
}

/// Flags of calls that take none, or hardly any.
fn rare_flags(random: &mut Random) -> Data {
    if random.one_in(12) { random.number(&[1, 2, 4, 4, 5, 8, 1 << 32, u64::MAX]) } else { Data::Number(0) }
}

fn operation(random: &mut Random, keys: &mut Keys, in_program: bool) -> Step {
    if in_program && !random.one_in(4) {
        return in_a_program(random, keys);
    }
    let verb = match random.below(100) {
        0..30 => "update",
        30..45 => "lookup",
        45..55 => "delete",
        55..62 => "take",
        62..68 => "next",
        68..74 => "batch-lookup",
        74..80 => "batch-update",
        80..84 => "batch-delete",
        84..87 => "batch-take",
        87..90 => "batch-walk",
        90..95 => "walk",
        95..97 => "info",
        97 => "reopen",
        98 if !in_program && random.one_in(3) => "freeze",
        _ => "update",
    };
    let step = Step::new(verb);
    match verb {
        "update" => {
            let (key, value) = (keys.key(random), keys.value(random));
            step.with("key", key).with("value", value).with("flags", flags(random))
        }
        "lookup" | "take" => {
            let (key, value) = (keys.key(random), keys.value(random));
            let value = if keys.kind.holds_objects { Data::Number(0) } else { value };
            step.with("key", key).with("value", value).with("flags", rare_flags(random))
        }
        "delete" => step.with("key", keys.key(random)),
        "next" => {
            let key = if random.one_in(3) { Data::Null } else { keys.key(random) };
            let to = if random.one_in(20) { Keys::pointer(random) } else { Data::Number(0) };
            step.with("key", key).with("value", to)
        }
        "batch-walk" => step.with("count", random.number(&[1, 1, 2, 3, 7, 16, 100])),
        "reopen" => step.with("flags", random.number(&[0, 0, 0, 8, 16, 24, 1])),
        "walk" | "info" | "freeze" => step,
        _ => batch(random, keys, step),
    }
}

fn batch(random: &mut Random, keys: &Keys, step: Step) -> Step {
    let rarely = |random: &mut Random, often: Data| if random.one_in(20) { Keys::pointer(random) } else { often };
    let count = random.number(&[0, 1, 2, 3, 5, 8, 13, 40, 40, 60]);
    let (first, value) = (Data::Number(random.below(keys.few)), keys.value(random));
    let from = match random.below(8) {
        0 => Data::Last,
        1 => random.number(&[0, 0, 1, 2, 1_000_000, u64::from(u32::MAX)]),
        2 => Keys::pointer(random),
        _ => Data::Null,
    };
    let step = step.with("count", count).with("keys", rarely(random, first)).with("values", value).with("from", from);
    let step = step.with("out", rarely(random, Data::Number(0)));
    step.with("flags", rare_flags(random)).with("elem", rare_flags(random))
}

fn in_a_program(random: &mut Random, keys: &Keys) -> Step {
    let limit = if keys.kind.shape == Shape::Ordered { keys.entries.min(keys.few) + 2 } else { keys.few };
    let (key, value) = (Data::Number(random.below(limit)), Data::Number(random.below(200)));
    let bloom = Data::Number(random.below(12));
    let turn = random.below(10);
    match keys.kind.shape {
        Shape::Queue if turn < 5 => Step::new("prog-push").with("value", value).with("flags", flags(random)),
        Shape::Queue if turn < 8 => Step::new("prog-pop"),
        Shape::Queue => Step::new("prog-peek"),
        Shape::Bloom if turn < 5 => Step::new("prog-push").with("value", bloom).with("flags", flags(random)),
        Shape::Bloom => Step::new("prog-peek").with("value", bloom),
        _ if turn < 4 => Step::new("prog-update").with("key", key).with("value", value).with("flags", flags(random)),
        _ if turn < 7 => Step::new("prog-lookup").with("key", key),
        _ if turn < 9 => Step::new("prog-delete").with("key", key),
        _ => Step::new("prog-add").with("key", key).with("value", value),
    }
}
