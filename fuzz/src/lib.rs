//! Fuzzing: generators of hostile inputs, and oracles that judge what the code makes of them.
//!
//! Runs: in the test suite on the corpus and on generated inputs; under libFuzzer by `cargo xtask fuzz` (`fuzz/libfuzzer`, which
//! only passes bytes on).
//! May touch: memory of its own, and a server's objects in its own process.
//! Never: instruments a process; reads a file other than those of the corpus.
//! Start reading at: [`TARGETS`].
//!
//! An input is a string of bytes. A target must not panic on any, and its oracle panics where the result is wrong. `make` gives
//! inputs that are nearly right, for tests without libFuzzer and as the first corpus with it.

mod aot;
mod bytes;
mod calls;
mod code;
mod expressions;
mod files;
mod filters;
mod program;
mod raw_maps;
mod raw_memory;
mod text;
mod types;

pub use ring3_generate::Random;

/// What is fuzzed.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is also that of its directory in `fuzz/corpus`.
    pub name: &'static str,
    /// Passes an input to the code, and panics if the result is wrong.
    pub run: fn(&[u8]),
    /// Makes an input that is nearly right.
    pub make: fn(&mut Random) -> Vec<u8>,
}

const fn target(name: &'static str, run: fn(&[u8]), make: fn(&mut Random) -> Vec<u8>) -> Target {
    Target { name, run, make }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("elf", files::elf, files::make_elf),
    target("unwind", files::unwind, files::make_unwind),
    target("jumps", files::jumps, files::make_jumps),
    target("sites", files::sites, files::make_sites),
    target("btf", types::btf, types::make_btf),
    target("object", types::object, types::make_object),
    target("plan", code::plan, code::make),
    target("proc", text::proc, text::make_proc),
    target("control", text::control, text::make_control),
    target("filters", filters::run, filters::make),
    target("expressions", expressions::run, expressions::make),
    target("program", program::run, program::make),
    target("aot", aot::run, aot::make),
    target("maps", raw_maps::run, raw_maps::make),
    target("calls", calls::run, calls::make),
];

/// The target of a name.
pub fn target_of(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Changes some bytes of an input: flips bits, puts edges of ranges in, cuts, repeats.
pub fn damage(input: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(6) {
        let length = input.len() as u64;
        let at = random.below(length) as usize;
        let value = random.edge().to_le_bytes();
        match random.below(8) {
            0..=2 if length > 0 => input[at] ^= 1 << random.below(8),
            3 | 4 => {
                let width = 1 << random.below(4);
                input.iter_mut().skip(at).take(width).zip(value).for_each(|(to, from)| *to = from);
            }
            5 if random.one_in(4) => input.truncate(at),
            6 => drop(input.splice(at..at, value)),
            7 => {
                let end = (at + random.below(64) as usize).min(input.len());
                input.extend_from_within(at.min(end)..end);
            }
            _ => {}
        }
    }
}
