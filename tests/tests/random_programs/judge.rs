//! What our side says to a program: the verifier's verdict, and what the judging interpreter sees.

use std::sync::LazyLock;

use ring3_generate::{MAPS, Program, Random};
use ring3_interp::shadow::{self, End, Fault, MapKind, MapSpec};
use ring3_uapi::bpf::map_type;
use ring3_verifier::{Input, MapShape, Policy, Verified, verify};

/// The maps, as the interpreter wants them.
pub(crate) fn specs() -> Vec<MapSpec> {
    let spec = |map: &ring3_generate::Map| MapSpec {
        kind: match map.map_type {
            map_type::HASH => MapKind::Hash,
            map_type::RINGBUF => MapKind::Ring,
            map_type::PROG_ARRAY => MapKind::Programs,
            _ => MapKind::Array,
        },
        key_bytes: map.key_bytes,
        value_bytes: map.value_bytes,
        entries: map.entries,
        constant: map.constant,
    };
    MAPS.iter().map(spec).collect()
}

/// As the kernel counts them, or fewer: it knows that `bpf_get_smp_processor_id` gives less.
static CPUS: LazyLock<u64> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64));

/// Runs a program on `inputs` random worlds: the first fault, or the number of runs that came to an end.
pub(crate) fn run(program: &Program, specs: &[MapSpec], inputs: u64) -> Result<u64, Fault> {
    let mut subject = shadow::Program::new(&program.insns, program.prog_type, specs);
    subject.cpus = *CPUS;
    let mut ended = 0;
    for input in 0..inputs {
        let mut random = Random::new(0x5eed, input);
        ended += u64::from(subject.run(&mut || random.edge())? != End::GivenUp);
    }
    Ok(ended)
}

fn shape(slot: u32) -> Option<MapShape> {
    let map = MAPS.get(slot as usize)?;
    let read_only = if map.constant.is_some() { ring3_uapi::flags::BPF_F_RDONLY_PROG } else { 0 };
    Some(MapShape {
        slot,
        map_type: map.map_type,
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: map.entries,
        map_flags: read_only,
        stride: map.value_bytes.next_multiple_of(8),
        cpus: 1,
        cpu_stride: 0,
        hash: None,
        lock: None,
        inner: None,
    })
}

/// Our verifier's verdict.
pub(crate) fn verdict(program: &Program) -> Result<Verified, String> {
    verdict_under(program, Policy::kernel(program.prog_type))
}

/// What is found out about an accepted program when all of its paths are walked to their ends.
pub(crate) enum AllPaths {
    /// It is accepted so too, or has too many paths.
    Agree,
    /// It would be refused if an address could not stand for a number: paths may differ in that.
    AddressIsNumber,
    /// It is refused for this.
    Refused(String),
}

/// Walks all paths of an accepted program to their ends.
pub(crate) fn all_paths(program: &Program) -> AllPaths {
    /// Most programs have few paths.
    const PROCESSED_MAX: u64 = 20_000;
    let policy = Policy::kernel(program.prog_type);
    let walk = Policy { walks_all: true, processed_max: PROCESSED_MAX, ..policy.clone() };
    let Err(refusal) = verdict_under(program, walk) else { return AllPaths::Agree };
    if ["too large", "too complex", "references are held"].iter().any(|part| refusal.contains(part)) {
        return AllPaths::Agree;
    }
    match verdict_under(program, Policy { addresses_as_numbers: false, ..policy }) {
        Ok(_) => AllPaths::Refused(refusal),
        Err(_) => AllPaths::AddressIsNumber,
    }
}

fn verdict_under(program: &Program, policy: Policy) -> Result<Verified, String> {
    let input = Input {
        insns: &program.insns,
        prog_type: program.prog_type,
        gpl_compatible: true,
        sleepable: false,
        cpus: *CPUS as u32,
        policy,
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &shape,
        constant_value: &|slot| MAPS.get(slot as usize)?.constant.map(<[u8]>::to_vec),
    };
    verify(&input).map_err(|report| report.to_string())
}
