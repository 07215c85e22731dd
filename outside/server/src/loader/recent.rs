//! Programs that were verified and compiled lately: a tool that is started again loads the same ones.
//!
//! Code of this cache runs without another look of the verifier, so the key must have all that verdict and code depend on:
//!
//! - [`Subject`]: each instruction as the verifier gets it (kernel functions by the kernel's numbers), with maps by their order instead
//!   of by descriptors; type, attach type, licence and flags; and of each map all that the verifier knows of it ([`MapShape`], where an
//!   address in code is a slot of the GOT, and each use of the cache puts in those of its own maps). `ring3 aot` trusts the same key
//!   with files.
//! - The values of maps that nobody can change any more, as far as the verifier asked for them.
//! - [`Maker`]: what else the policy and the compiler are told. The policy follows from type and attach type, but for the helper
//!   that only administrators may call.
//!
//! The rest is the same for all programs of a server: CPUs, kernel types, the agent's routines, ring3 itself. What depends on more is not
//! kept: programs of extensions (their grants), of type `TRACING` (the kernel's function that they name), and with hidden constants (a
//! number that is drawn for each).
//!
//! [`MapShape`]: ring3_verifier::MapShape

use std::sync::Mutex;
use std::time::{Duration, Instant};

use ring3_aot::{Facts, StoredProgram, Subject};
use ring3_engine::Engine;
use ring3_jit::Code;
use ring3_verifier::{AddedWords, Verified};

/// Programs that are kept at most, and bytes of their code.
const PROGRAMS_MAX: usize = if cfg!(test) { 8 } else { 1024 };
const CODE_BYTES_MAX: usize = 16 << 20;
/// How long a program is kept that nobody loads.
const AGE_MAX: Duration = Duration::from_secs(600);

/// What verdict and code depend on besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    /// The compiler that the loader wants.
    pub engine: Engine,
    /// Its loader may use the helpers of administrators.
    pub administers: bool,
}

/// What is known of a program.
#[derive(Debug)]
pub struct Recalled {
    /// Its code, for the maps of whoever asked.
    pub code: Code,
    /// Who compiled it.
    pub engine: Engine,
    /// What the server wants to know of the verdict.
    pub facts: Facts,
    /// Instructions that the verifier went through.
    pub verified_insns: u32,
    /// Words of values to which it adds.
    pub added: Vec<AddedWords>,
}

struct Entry {
    program: StoredProgram,
    maker: Maker,
    engine: Engine,
    verified_insns: u32,
    /// Maps by their order.
    added: Vec<AddedWords>,
    used: Instant,
}

/// The cache. The program that was used last is the last one.
#[derive(Default)]
pub struct RecentPrograms(Mutex<Vec<Entry>>);

impl RecentPrograms {
    /// The code of the same program, if it was compiled lately. `constant` gives the value of a map that never changes, by slot.
    pub fn find(
        &self,
        maker: Maker,
        subject: &Subject,
        constant: &dyn Fn(u32) -> Option<Vec<u8>>,
    ) -> Option<Recalled> {
        self.forget_old();
        let mut entries = self.0.lock().expect("no panic under this lock");
        let is_it = |entry: &Entry| entry.maker == maker && entry.program.is_for(subject, constant);
        let at = entries.iter().position(is_it)?;
        let mut entry = entries.remove(at);
        entry.used = Instant::now();
        let recalled = entry.recall(subject);
        entries.push(entry);
        recalled
    }

    /// Keeps a program that was compiled. `constants`: slots of maps whose values the verifier asked for, and these.
    pub fn keep(
        &self,
        maker: Maker,
        subject: &Subject,
        verified: &Verified,
        (code, engine): (&Code, Engine),
        constants: &[(u32, Vec<u8>)],
    ) {
        let order = |slot: u32| subject.slots().iter().position(|known| *known == slot);
        let order = |word: AddedWords| Some(AddedWords { slot: order(word.slot)? as u32, ..word });
        let added: Option<Vec<AddedWords>> = verified.added_words().into_iter().map(order).collect();
        let program = StoredProgram::new("", subject, verified, code, constants);
        // (A map that the instructions do not name has no place in the key.)
        let Some((program, added)) = program.zip(added) else { return };
        let verified_insns = verified.statistics().processed as u32;
        let mut entries = self.0.lock().expect("no panic under this lock");
        entries.push(Entry { program, maker, engine, verified_insns, added, used: Instant::now() });
        let mut bytes: usize = entries.iter().map(|entry| entry.program.code_bytes()).sum();
        let mut surplus = entries.len().saturating_sub(PROGRAMS_MAX);
        while bytes > CODE_BYTES_MAX && surplus < entries.len() {
            bytes -= entries[surplus].program.code_bytes();
            surplus += 1;
        }
        entries.drain(..surplus);
    }

    /// Drops programs that nobody has loaded for a while.
    pub fn forget_old(&self) {
        let mut entries = self.0.lock().expect("no panic under this lock");
        let old = entries.partition_point(|entry| entry.used.elapsed() > AGE_MAX);
        entries.drain(..old);
    }
}

impl Entry {
    fn recall(&self, subject: &Subject) -> Option<Recalled> {
        let symbol = |name: &str| ring3_image::symbols().find(|(known, _)| *known == name).map(|(known, _)| known);
        let code = self.program.code(subject, &symbol)?;
        let slot = |word: &AddedWords| Some(AddedWords { slot: *subject.slots().get(word.slot as usize)?, ..*word });
        let added = self.added.iter().map(slot).collect::<Option<_>>()?;
        Some(Recalled {
            code,
            engine: self.engine,
            facts: self.program.facts,
            verified_insns: self.verified_insns,
            added,
        })
    }
}

#[cfg(test)]
mod tests {
    use ring3_aot::Kind;
    use ring3_isa::{Immediate, Insn, Op};
    use ring3_uapi::bpf::{map_type, prog_type};
    use ring3_uapi::flags::BPF_F_RDONLY_PROG;
    use ring3_verifier::{Input, MapShape, Policy, verify};

    use super::*;

    /// A program that loads from a map of one element, and writes the value there.
    const TEXT: &str = "r1 = map[0]
        r2 = r10
        r2 += -4
        r3 = 0
        *(u32 *)(r10 -4) = r3
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
        out:
        r0 = 0
        exit";

    /// Of one that asks for the value of a map that never changes.
    const OF_CONSTANT: &str = "r1 = map[0][0]+0
        r2 = *(u32 *)(r1 + 0)
        if r2 == 7 goto seven
        r0 = 1
        exit
        seven:
        r0 = 0
        exit";

    #[derive(Clone)]
    struct Case {
        text: String,
        kind: Kind,
        map: MapShape,
        maker: Maker,
        constant: Option<Vec<u8>>,
    }

    impl Case {
        fn new(text: &str) -> Case {
            let kind = Kind { prog_type: prog_type::KPROBE, attach_type: 0, gpl_compatible: true, sleepable: false };
            let map = MapShape {
                slot: 3,
                map_type: map_type::ARRAY,
                key_size: 4,
                value_size: 16,
                max_entries: 1,
                map_flags: 0,
                stride: 16,
                cpus: 1,
                cpu_stride: 0,
                hash: None,
                lock: None,
                inner: None,
            };
            let maker = Maker { engine: Engine::Jit, administers: true };
            Case { text: text.to_owned(), kind, map, maker, constant: None }
        }

        fn insns(&self) -> Vec<Insn> {
            ring3_isa::assemble(&self.text).expect("it is a program")
        }

        fn subject(&self) -> Subject {
            let insns = self.insns();
            let map_at = |at| match ring3_isa::op(&insns, at) {
                Ok(Op::LoadImm64 { value: Immediate::MapIdx(_) | Immediate::MapIdxValue(..), .. }) => Some(self.map),
                _ => None,
            };
            Subject::new(self.kind, &insns, &map_at).expect("its map is there")
        }

        fn keep(&self, recent: &RecentPrograms) -> Code {
            let asked = std::cell::RefCell::new(vec![]);
            let constant_value = |slot| {
                let value = self.constant.clone()?;
                asked.borrow_mut().push((slot, value.clone()));
                Some(value)
            };
            let verified = verify(&Input {
                insns: &self.insns(),
                prog_type: self.kind.prog_type,
                gpl_compatible: self.kind.gpl_compatible,
                sleepable: self.kind.sleepable,
                cpus: 1,
                policy: Policy::targets(self.kind.prog_type),
                log_level: 0,
                lines: vec![],
                map_by_fd: &|_| None,
                map_by_index: &|_| Some(self.map),
                constant_value: &constant_value,
            });
            let verified = verified.unwrap_or_else(|report| panic!("{}", report.log));
            let made = self.maker.engine.compile(&verified, &ring3_jit::Options::default()).expect("it compiles");
            recent.keep(self.maker, &self.subject(), &verified, (&made.0, made.1), &asked.into_inner());
            made.0
        }

        fn find(&self, recent: &RecentPrograms) -> Option<Recalled> {
            recent.find(self.maker, &self.subject(), &|_| self.constant.clone())
        }
    }

    #[test]
    fn programs_that_differ_in_any_part_do_not_share_code() {
        let (recent, case) = (RecentPrograms::default(), Case::new(TEXT));
        let code = case.keep(&recent);
        let found = case.find(&recent).expect("it was kept");
        assert_eq!((found.code.bytes, found.code.relocations), (code.bytes, code.relocations));
        assert!(!found.added.is_empty() && found.added.iter().all(|word| word.slot == case.map.slot));

        type Change = (&'static str, fn(&mut Case));
        let changes: [Change; 17] = [
            ("an instruction", |case| case.text = case.text.replace("r1 += 1", "r1 += 2")),
            ("an offset", |case| case.text = case.text.replace("(r0 + 0) = r1", "(r0 + 8) = r1")),
            ("a register", |case| case.text = case.text.replace("r3", "r4")),
            ("program type", |case| case.kind.prog_type = prog_type::TRACEPOINT),
            ("attach type", |case| case.kind.attach_type = 48),
            ("licence", |case| case.kind.gpl_compatible = false),
            ("sleepable", |case| case.kind.sleepable = true),
            ("engine", |case| case.maker.engine = Engine::Auto),
            ("rights", |case| case.maker.administers = false),
            ("map type", |case| case.map.map_type = map_type::PERCPU_ARRAY),
            ("key size", |case| case.map.key_size = 8),
            ("value size", |case| case.map.value_size = 8),
            ("elements", |case| case.map.max_entries = 2),
            ("map flags", |case| case.map.map_flags = BPF_F_RDONLY_PROG),
            ("stride", |case| case.map.stride = 8),
            ("CPUs", |case| case.map.cpus = 2),
            ("lock", |case| case.map.lock = Some(8)),
        ];
        for (what, change) in changes {
            let mut other = case.clone();
            change(&mut other);
            assert!(other.find(&recent).is_none(), "{what}");
        }
    }

    #[test]
    fn code_is_for_the_maps_of_who_asks() {
        let (recent, mut case) = (RecentPrograms::default(), Case::new(TEXT));
        case.keep(&recent);
        case.map.slot = 77;
        let (found, own) = (case.find(&recent).expect("it was kept"), case.keep(&RecentPrograms::default()));
        assert_eq!((found.code.bytes, found.code.relocations), (own.bytes, own.relocations));
        assert!(found.added.iter().all(|word| word.slot == 77), "{:?}", found.added);
    }

    #[test]
    fn constants_that_the_verifier_has_seen_are_part_of_the_key() {
        let (recent, mut case) = (RecentPrograms::default(), Case::new(OF_CONSTANT));
        case.map.map_flags = BPF_F_RDONLY_PROG;
        case.constant = Some([[7, 0, 0, 0].as_slice(), &[0; 12]].concat());
        case.keep(&recent);
        assert!(case.find(&recent).is_some());
        let same = case.clone();
        case.constant = Some(vec![0; 16]);
        assert!(case.find(&recent).is_none());
        case.constant = None;
        assert!(case.find(&recent).is_none());
        assert!(same.find(&recent).is_some());
    }

    #[test]
    fn the_programs_that_were_used_last_are_kept() {
        let recent = RecentPrograms::default();
        let case = |number: usize| Case::new(&format!("r0 = {number}\nr0 = 0\nexit"));
        case(0).keep(&recent);
        case(1).keep(&recent);
        for number in 2..=PROGRAMS_MAX {
            case(number).keep(&recent);
            assert!(case(0).find(&recent).is_some(), "{number}");
        }
        assert!(case(1).find(&recent).is_none() && case(2).find(&recent).is_some());
        let long_ago = Instant::now().checked_sub(2 * AGE_MAX);
        let Some(long_ago) = long_ago else { return };
        recent.0.lock().expect("no panic")[0].used = long_ago;
        recent.forget_old();
        assert_eq!(recent.0.lock().expect("no panic").len(), PROGRAMS_MAX - 1);
    }
}
