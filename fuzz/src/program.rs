//! Programs: decoded, verified, and if accepted run by the judging interpreter and compiled.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Register};
use ring3_generate::{MAPS, Random};
use ring3_interp::shadow::{self, MapKind, MapSpec, Wrong};
use ring3_isa::Insn;
use ring3_jit::{Options, compile};
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::flags::BPF_F_RDONLY_PROG;
use ring3_verifier::{Input, MapShape, Policy, verify};

use crate::bytes::Bytes;

/// Bytes of an instruction.
const INSN_BYTES: usize = 8;
const INSNS_MAX: usize = 512;
/// Instructions that the verifier looks at.
const PROCESSED_MAX: u64 = 20_000;
/// Random worlds that an accepted program runs in.
const WORLDS: u64 = 4;
const TYPES: [u32; 3] = [prog_type::SOCKET_FILTER, prog_type::XDP, prog_type::KPROBE];

static SPECS: LazyLock<Vec<MapSpec>> = LazyLock::new(|| {
    let kind = |map: &ring3_generate::Map| match map.map_type {
        map_type::HASH => MapKind::Hash,
        map_type::RINGBUF => MapKind::Ring,
        map_type::PROG_ARRAY => MapKind::Programs,
        _ => MapKind::Array,
    };
    let spec = |map: &ring3_generate::Map| MapSpec {
        kind: kind(map),
        key_bytes: map.key_bytes,
        value_bytes: map.value_bytes,
        entries: map.entries,
        constant: map.constant,
    };
    MAPS.iter().map(spec).collect()
});

fn shape(slot: u32) -> Option<MapShape> {
    let map = MAPS.get(slot as usize)?;
    Some(MapShape {
        slot,
        map_type: map.map_type,
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: map.entries,
        map_flags: if map.constant.is_some() { BPF_F_RDONLY_PROG } else { 0 },
        stride: map.value_bytes.next_multiple_of(8),
        cpus: 1,
        cpu_stride: 0,
        hash: None,
        lock: None,
        inner: None,
    })
}

/// The program's type, and its instructions.
pub(crate) fn run(input: &[u8]) {
    let mut input = Bytes(input);
    let (kind, seed) = (TYPES[usize::from(input.u8()) % TYPES.len()], u64::from(input.u8()));
    let chunks = input.0.chunks_exact(INSN_BYTES).take(INSNS_MAX);
    let insns: Vec<Insn> = chunks.filter_map(ring3_isa::decode).flatten().collect();
    let _ = ring3_names::tag(&insns);
    let policy = Policy { processed_max: PROCESSED_MAX, ..Policy::kernel(kind) };
    let verified = verify(&Input {
        insns: &insns,
        prog_type: kind,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy,
        log_level: 2,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &shape,
        constant_value: &|slot| MAPS.get(slot as usize)?.constant.map(<[u8]>::to_vec),
    });
    let verified = match verified {
        Ok(verified) => verified,
        Err(report) => {
            assert!(report.errno.0 > 0 && !report.message.is_empty());
            return;
        }
    };
    let subject = shadow::Program::new(&insns, kind, &SPECS);
    for world in 0..WORLDS {
        let mut random = Random::new(seed, world);
        if let Err(fault) = subject.run(&mut || random.edge()) {
            // (The oracle knows what programs of the tests call, the verifier more.)
            if matches!(fault.wrong, Wrong::UnknownHelper(_)) {
                break;
            }
            panic!("it was accepted, and does wrong: {fault:?}\n{}", ring3_generate::text(&insns));
        }
    }
    for blinding in [None, Some(seed)] {
        let Ok(code) = compile(&verified, &Options { blinding, rounds: None }) else { continue };
        check_code(&code.bytes, &code.functions);
    }
}

/// Code is instructions, and touches no register that targets keep their floating-point numbers in.
fn check_code(bytes: &[u8], functions: &[u32]) {
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let mut open: Vec<u64> = functions.iter().map(|start| u64::from(*start)).collect();
    let mut seen = BTreeSet::new();
    // (Between functions are constants, so code is followed.)
    while let Some(at) = open.pop() {
        if !seen.insert(at) {
            continue;
        }
        let instruction = Decoder::with_ip(64, &bytes[at as usize..], at, DecoderOptions::NONE).decode();
        assert!(!instruction.is_invalid(), "no instruction at {at:#x}");
        let target = || Some(instruction.near_branch_target()).filter(|to| *to < bytes.len() as u64);
        match instruction.flow_control() {
            FlowControl::ConditionalBranch => open.extend(target()),
            FlowControl::UnconditionalBranch => open.extend(target()),
            _ => {}
        }
        let ends = matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Exception
        );
        if !ends {
            open.push(instruction.next_ip());
        }
        let is_vector = |register: Register| {
            register.is_vector_register() || register.is_st() || register.is_mm() || register.is_k()
        };
        let used = factory.info(&instruction).used_registers();
        assert!(!used.iter().any(|used| is_vector(used.register())), "{instruction}");
    }
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    let (seed, number) = (random.next(), random.below(1 << 20));
    let program =
        if random.one_in(3) { ring3_generate::joins(seed, number) } else { ring3_generate::program(seed, number) };
    let kind = TYPES.iter().position(|kind| *kind == program.prog_type).unwrap_or(0);
    let mut input = vec![kind as u8, seed as u8];
    input.extend(program.insns.iter().flat_map(|insn| insn.to_bytes()));
    if random.one_in(4) {
        crate::damage(&mut input, random);
    }
    input
}
