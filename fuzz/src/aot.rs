//! Files of programs that were compiled ahead of time: their length and checksum are right, what they say is not.

use std::sync::LazyLock;

use ring3_aot::{Identity, Kind, Store, StoredProgram, Subject, hash};
use ring3_generate::Random;
use ring3_isa::{Insn, assemble};
use ring3_jit::{Options, compile};
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_verifier::{Input, MapShape, Policy, verify};
use sha2::{Digest, Sha256};

const DIGEST_AT: usize = 24;
const BODY_AT: usize = 56;
const KIND: Kind = Kind { prog_type: prog_type::KPROBE, attach_type: 0, gpl_compatible: true, sleepable: false };

fn shape(slot: u32) -> MapShape {
    let max_entries = if slot == 0 { 1 } else { 16 };
    MapShape {
        slot,
        map_type: map_type::ARRAY,
        key_size: 4,
        value_size: 8,
        max_entries,
        map_flags: 0,
        stride: 8,
        cpus: 1,
        cpu_stride: 0,
        hash: None,
        lock: None,
        inner: None,
    }
}

fn identity() -> Identity {
    Identity { build: hash(b"ring3"), version: "1".into(), cpus: 1, kernel: hash(b"types"), release: "6.18".into() }
}

struct Sample {
    file: Vec<u8>,
    subject: Subject,
}

/// A good file with one program, and for what it is.
static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let insns: Vec<Insn> = assemble(
        "r6 = map[fd:0][0]+0
         r6 = *(u64 *)(r6 +0)
         *(u32 *)(r10 -4) = 1
         r2 = r10
         r2 += -4
         r1 = map[fd:1]
         call bpf_map_lookup_elem
         if r0 == 0 goto +1
         r0 = *(u64 *)(r0 +0)
         r0 = 0
         exit",
    )
    .expect("a program");
    let verified = verify(&Input {
        insns: &insns,
        prog_type: KIND.prog_type,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: Policy::targets(KIND.prog_type),
        log_level: 0,
        lines: vec![],
        map_by_fd: &|fd| Some(shape(fd as u32)),
        map_by_index: &|_| None,
        constant_value: &|_| None,
    })
    .expect("valid");
    let code = compile(&verified, &Options::default()).expect("compiled");
    let subject = Subject::new(KIND, &insns, &|at| Some(shape(insns[at].imm as u32))).expect("all maps are there");
    let stored =
        StoredProgram::new("counts", &subject, &verified, &code, &[(0, vec![3; 8])]).expect("its maps are its own");
    let file = Store { identity: identity(), programs: vec![stored] }.write();
    Sample { file, subject }
});

/// The bytes are the body of a file.
pub(crate) fn run(input: &[u8]) {
    let mut file = SAMPLE.file[..BODY_AT].to_vec();
    file[16..DIGEST_AT].copy_from_slice(&(input.len() as u64).to_le_bytes());
    file.extend(input);
    let mut digest = Sha256::new();
    digest.update(&file[..DIGEST_AT]);
    digest.update(&file[BODY_AT..]);
    file[DIGEST_AT..BODY_AT].copy_from_slice(&digest.finalize());
    let Ok(store) = Store::read(&file, &identity()) else { return };
    for stored in &store.programs {
        assert!(stored.code_bytes() <= input.len());
        if let Some(code) = stored.code(&SAMPLE.subject, &|_| Some("ring3_symbol")) {
            assert!(code.functions.contains(&code.entry) && (code.entry as usize) < code.bytes.len());
            let linked = code.link(0x7000_0000, &|_| Some(0x7000_1000));
            assert!(linked.is_err() || linked.is_ok_and(|linked| linked.len() == code.bytes.len()));
        }
    }
    let _ = store.find(&SAMPLE.subject, &|_| Some(vec![3; 8]));
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    let mut input = SAMPLE.file[BODY_AT..].to_vec();
    crate::damage(&mut input, random);
    input
}
