//! Files of any content are an error at worst, and code is given out only for what it was compiled for.

use proptest::prelude::*;
use ring3_aot::{Error, Identity, Kind, Store, StoredProgram, Subject, hash};
use ring3_isa::{Insn, assemble};
use ring3_jit::{Options, Target, compile};
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_verifier::{Input, MapShape, Policy, Verified, verify};

const CONSTANTS: u32 = 7;
const COUNTS: u32 = 9;

fn map(slot: u32, max_entries: u32) -> MapShape {
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

/// A constant times an element, with maps named by these descriptors.
fn program(fds: [i32; 2]) -> Vec<Insn> {
    let mut insns = assemble(
        "r6 = map[fd:100][0]+0
         r6 = *(u64 *)(r6 +0)
         *(u32 *)(r10 -4) = 1
         r2 = r10
         r2 += -4
         r1 = map[fd:200]
         call bpf_map_lookup_elem
         if r0 == 0 goto +2
         r0 = *(u64 *)(r0 +0)
         r0 *= r6
         r0 = 0
         exit",
    )
    .expect("a program");
    for insn in insns.iter_mut().filter(|insn| insn.is_wide()) {
        insn.imm = if insn.imm == 100 { fds[0] } else { fds[1] };
    }
    insns
}

fn kind() -> Kind {
    Kind { prog_type: prog_type::KPROBE, attach_type: 0, gpl_compatible: true, sleepable: false }
}

fn identity() -> Identity {
    Identity { build: hash(b"ring3"), version: "1".into(), cpus: 1, kernel: hash(b"types"), release: "6.18".into() }
}

fn verified(insns: &[Insn], maps: [MapShape; 2]) -> Verified {
    verify(&Input {
        insns,
        prog_type: prog_type::KPROBE,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: Policy::targets(prog_type::KPROBE),
        log_level: 0,
        lines: vec![],
        map_by_fd: &|fd| maps.get(fd as usize).copied(),
        map_by_index: &|_| None,
        constant_value: &|_| None,
    })
    .expect("a valid program")
}

fn subject(insns: &[Insn], maps: [MapShape; 2]) -> Subject {
    Subject::new(kind(), insns, &|at| maps.get(insns[at].imm as usize).copied()).expect("all maps are there")
}

/// A file with the program, which depends on what the first map holds.
fn store() -> Store {
    let (insns, maps) = (program([0, 1]), [map(CONSTANTS, 1), map(COUNTS, 16)]);
    let verified = verified(&insns, maps);
    let code = compile(&verified, &Options::default()).expect("compiled");
    let stored = StoredProgram::new("counts", &subject(&insns, maps), &verified, &code, &[(CONSTANTS, vec![3; 8])]);
    Store { identity: identity(), programs: vec![stored.expect("its maps are its own")] }
}

fn threes(slot: u32) -> Option<Vec<u8>> {
    (slot == 20).then(|| vec![3; 8])
}

#[test]
fn code_comes_back_for_the_slots_that_maps_have_now() {
    let store = Store::read(&store().write(), &identity()).expect("a good file");
    // Other descriptors, other slots, in another order.
    let insns = program([1, 0]);
    let maps = [map(10, 16), map(20, 1)];
    let now = subject(&insns, maps);
    let found = store.find(&now, &threes).expect("it is the same program");
    let code = found.code(&now, &|_| None).expect("it wants no routine");
    let fresh = compile(&verified(&insns, maps), &Options::default()).expect("compiled");
    assert_eq!(code.bytes, fresh.bytes);
    assert_eq!(code.relocations, fresh.relocations);
    assert!(code.relocations.iter().any(|relocation| relocation.target == Target::GotData(20)));
    assert_eq!((code.entry, code.functions, code.pc_map), (fresh.entry, fresh.functions, fresh.pc_map));
}

#[test]
fn other_programs_maps_constants_and_types_get_nothing() {
    let store = store();
    let why = |subject: &Subject, constant: &dyn Fn(u32) -> Option<Vec<u8>>| {
        store.find(subject, constant).expect_err("it is another program")
    };
    let maps = [map(20, 1), map(10, 16)];
    let insns = program([0, 1]);
    let mut other = insns.clone();
    other.last_mut().expect("exit").off = 1;
    assert!(why(&subject(&other, maps), &threes).contains("no program of these instructions"));
    // The same map twice is not two maps.
    assert!(why(&subject(&program([0, 0]), maps), &threes).contains("no program of these instructions"));
    let larger = why(&subject(&insns, [map(20, 1), map(10, 17)]), &threes);
    assert_eq!(larger, "map 1 of it differs: max_entries is 17, and was 16");
    let strided = MapShape { stride: 16, ..map(10, 16) };
    assert!(why(&subject(&insns, [map(20, 1), strided]), &threes).contains("geometry"));
    assert!(why(&subject(&insns, maps), &|_| None).contains("set constants in map 0"));
    assert!(why(&subject(&insns, maps), &|_| Some(vec![4; 8])).contains("set constants in map 0"));
    for kind in [
        Kind { prog_type: prog_type::TRACEPOINT, ..kind() },
        Kind { attach_type: 1, ..kind() },
        Kind { gpl_compatible: false, ..kind() },
        Kind { sleepable: true, ..kind() },
    ] {
        let of_kind = Subject::new(kind, &insns, &|at| maps.get(insns[at].imm as usize).copied());
        assert!(why(&of_kind.expect("all maps are there"), &threes).contains("its type"));
    }
    assert!(Subject::new(kind(), &insns, &|_| None).is_none());
}

#[test]
fn a_flipped_bit_or_a_missing_byte_is_found_wherever_it_is() {
    let good = store().write();
    assert!(Store::read(&good, &identity()).is_ok());
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(Store::read(&bad, &identity()).is_err(), "bit {bit} of byte {at}");
        }
        assert!(Store::read(&good[..at], &identity()).is_err(), "{at} bytes");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(Store::read(&longer, &identity()), Err(Error::Damaged("its length")));
}

#[test]
fn files_of_other_builds_and_machines_are_refused() {
    let file = store().write();
    let refused = |own: Identity| Store::read(&file, &own).expect_err("not ours").to_string();
    assert!(refused(Identity { build: hash(b"other"), ..identity() }).contains("run `ring3 aot` again"));
    assert!(refused(Identity { cpus: 2, ..identity() }).contains("one of 1 possible CPUs, and this one has 2"));
    let kernel = refused(Identity { kernel: hash(b"others"), release: "6.19".into(), ..identity() });
    assert!(kernel.contains("kernel 6.18, and here is 6.19"), "{kernel}");
}

/// A body with a valid frame around it.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut file = [&store().write()[..16], &(body.len() as u64).to_le_bytes()].concat();
    let digest = hash(&[&file[..], body].concat());
    file.extend(digest);
    file.extend(body);
    file
}

/// Whatever a file holds, using it ends without a panic and places code inside its bounds only.
fn use_up(file: &[u8]) {
    let Ok(store) = Store::read(file, &identity()) else { return };
    let (insns, maps) = (program([0, 1]), [map(20, 1), map(10, 16)]);
    let now = subject(&insns, maps);
    let _ = store.find(&now, &threes);
    for stored in &store.programs {
        if let Some(code) = stored.code(&now, &|_| None) {
            let _ = code.link(0x1000, &|_| Some(0));
            assert!(code.functions.contains(&code.entry) && (code.entry as usize) < code.bytes.len());
        }
    }
}

#[test]
fn every_byte_of_a_sealed_file_may_be_anything() {
    let good = store().write();
    assert_eq!(sealed(&good[56..]), good);
    for at in 56..good.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, good[at] ^ 1, good[at].wrapping_add(1)] {
            let mut body = good[56..].to_vec();
            body[at - 56] = value;
            use_up(&sealed(&body));
        }
    }
}

proptest! {
    #[test]
    fn any_sealed_bytes_are_an_error_at_worst(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        use_up(&sealed(&body));
    }

    #[test]
    fn any_bytes_are_an_error_at_worst(file in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Store::read(&file, &identity()).is_err());
    }
}
