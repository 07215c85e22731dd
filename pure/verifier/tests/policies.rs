//! What a policy forbids or allows and no program type of the kernel does: case files cannot say it.

use std::rc::Rc;

use ring3_btf::Btf;
use ring3_isa::assemble;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_verifier::{Content, Context, Field, Input, KernelTypes, MapShape, Policy, Sizes, verify};

/// An array of programs.
fn programs(slot: u32) -> MapShape {
    MapShape {
        slot,
        map_type: map_type::PROG_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 4,
        map_flags: 0,
        stride: 8,
        cpus: 1,
        cpu_stride: 0,
        hash: None,
        lock: None,
        inner: None,
    }
}

/// What the verifier says of an XDP program under a policy; nothing if it accepts it.
fn said(policy: Policy, text: &str) -> String {
    said_of((prog_type::XDP, false), policy, text)
}

/// Likewise of a program of this type that may sleep or not.
fn said_of((prog_type, sleepable): (u32, bool), policy: Policy, text: &str) -> String {
    let insns = assemble(text).unwrap_or_else(|error| panic!("line {}: {}", error.line, error.message));
    let verdict = verify(&Input {
        insns: &insns,
        prog_type,
        gpl_compatible: true,
        sleepable,
        cpus: 2,
        policy,
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|slot| Some(programs(slot)),
        constant_value: &|_| None,
    });
    verdict.map_or_else(|report| report.message, |_| String::new())
}

fn policy() -> Policy {
    Policy::kernel(prog_type::XDP)
}

/// A policy of a context that begins with a pointer to `content`.
fn with(content: Content, objects: Option<Rc<KernelTypes>>) -> Policy {
    let field = Field { at: 0..8, sizes: Sizes::Only(8), write: false, content };
    Policy { context: Context::new(vec![field]), objects, ..policy() }
}

/// `struct s { int x; struct s *next; union { int x; long next; }; }` as type 2, of 24 bytes.
fn types() -> Rc<KernelTypes> {
    let types = [
        [1, 0x0100_0000, 4, 0x0100_0020].as_slice(),
        &[5, 0x0400_0003, 24, 7, 1, 0, 9, 3, 64, 0, 5, 128],
        &[0, 0x0200_0000, 2],
        &[1, 0x0100_0000, 8, 0x0100_0040],
        &[0, 0x0500_0002, 8, 7, 1, 0, 9, 4, 0],
    ]
    .concat();
    let strings = b"\0int\0s\0x\0next\0";
    let bytes = types.len() as u32 * 4;
    let header = [0x0001_eb9f, 24, 0, bytes, bytes, strings.len() as u32];
    let mut blob: Vec<u8> = header.iter().chain(&types).flat_map(|word| word.to_le_bytes()).collect();
    blob.extend_from_slice(strings);
    Rc::new(KernelTypes::new(Btf::parse_any(blob).expect("types")))
}

const WRITES_PACKET: &str = "
    r2 = *(u32 *)(r1 +0)
    r3 = *(u32 *)(r1 +4)
    r4 = r2
    r4 += 8
    if r4 > r3 goto out
    *(u64 *)(r2 +0) = 0
out:
    r0 = 0
    exit";

#[test]
fn packets_are_written_only_where_the_policy_says_so() {
    assert_eq!(said(policy(), WRITES_PACKET), "");
    assert_eq!(said(Policy { packet_writes: false, ..policy() }, WRITES_PACKET), "cannot write into packet");
}

#[test]
fn a_result_is_within_what_the_policy_says() {
    let policy = |result| Policy { result: Some(result), ..policy() };
    assert_eq!(said(policy(0..2), "r0 = 1\nexit"), "");
    for (result, text) in [(0..2, "r0 = 2\nexit"), (1..2, "r0 = 0\nexit"), (0..2, "call bpf_ktime_get_ns\nexit")] {
        assert!(said(policy(result), text).starts_with("At program exit the register R0 has"), "{text}");
    }
    assert!(said(policy(0..2), "r0 = r10\nexit").contains("is not a known value (fp)"));
}

#[test]
fn a_result_that_decides_is_not_taken_for_another() {
    // Both paths meet where nothing else is read; the second one's number is refused.
    let text = "
        call bpf_get_prandom_u32
        r6 = 0
        r7 = 0
        r8 = 0
        if r0 > 5 goto other
        r0 = 1
        goto out
    other:
        r0 = 7
        goto out
    out:
        exit";
    assert!(said(Policy { result: Some(0..2), ..policy() }, text).contains("smin=7"));
}

#[test]
fn buffers_end() {
    let read = |at| format!("r1 = *(u64 *)(r1 +0)\nr0 = *(u64 *)(r1 +{at})\nexit");
    let policy = || with(Content::Buffer { bytes: 16 }, None);
    assert_eq!(said(policy(), &read(8)), "");
    assert!(said(policy(), &read(9)).starts_with("invalid access to memory"));
}

#[test]
fn kernel_objects_are_read_by_their_types_only() {
    let object = |nullable| with(Content::Object { id: 2, nullable, trusted: true }, Some(types()));
    let first = "r1 = *(u64 *)(r1 +0)\n";
    assert_eq!(said(object(false), &format!("{first}r0 = *(u32 *)(r1 +0)\nexit")), "");
    assert_eq!(said(object(false), &format!("{first}r1 = *(u64 *)(r1 +8)\nr0 = *(u32 *)(r1 +0)\nexit")), "");
    // (The bytes may be of any of a union's members.)
    assert_eq!(said(object(false), &format!("{first}r0 = *(u64 *)(r1 +16)\nexit")), "");
    let refused = [
        "r0 = *(u64 *)(r1 +0)\nexit",
        "r0 = *(u64 *)(r1 +20)\nexit",
        "r0 = *(u32 *)(r1 +24)\nexit",
        "r0 = *(u32 *)(r1 +8)\nexit",
        "r0 = *(u32 *)(r1 -4)\nexit",
        "*(u32 *)(r1 +0) = 0\nr0 = 0\nexit",
        "r2 = 0\nlock *(u64 *)(r1 +8) += r2\nr0 = 0\nexit",
    ];
    for text in refused {
        assert_ne!(said(object(false), &format!("{first}{text}")), "", "{text}");
    }
    let tested = format!("{first}r0 = 0\nif r1 == 0 goto out\nr0 = *(u32 *)(r1 +0)\nout:\nexit");
    assert_eq!(said(object(true), &tested), "");
    let untested = said(object(true), &format!("{first}r0 = *(u32 *)(r1 +0)\nexit"));
    assert_eq!(untested, "R1 invalid mem access 'trusted_ptr__or_null'", "it may be null");
    assert!(
        said(with(Content::Object { id: 2, nullable: false, trusted: true }, None), &tested).contains("user space")
    );
}

#[test]
fn helpers_are_called_only_where_the_policy_has_them() {
    let text = "call bpf_ktime_get_ns\nexit";
    assert_eq!(said(policy(), text), "");
    let without = Policy { helpers: [7].into(), ..policy() };
    assert!(said(without, text).contains("it is not allowed here"));
}

#[test]
fn a_tail_call_is_one_however_it_is_called() {
    let text = |call: &str| {
        format!("*(u64 *)(r10 -256) = 0\ncall sub\nr0 = 2\nexit\nsub:\nr2 = map[0]\nr3 = 1\n{call}\nr0 = 0\nexit")
    };
    let policy = || Policy { rfc9669: true, ..policy() };
    for call in ["call bpf_tail_call", "r5 = 12\ncallx r5"] {
        assert!(said(policy(), &text(call)).contains("when call stack of previous frames is 256 bytes"), "{call}");
    }
    let pointer = "r5 = r10\nr5 += 12\ncallx r5\nexit";
    assert!(said(policy(), pointer).contains("R5 is not the number of one helper"));
}

#[test]
fn programs_of_system_calls_sleep_or_are_refused() {
    let said = |sleepable, policy| said_of((prog_type::SYSCALL, sleepable), policy, "r0 = 0\nexit");
    assert_eq!(said(true, Policy::targets(prog_type::SYSCALL)), "");
    assert_eq!(said(false, Policy::targets(prog_type::SYSCALL)), "Syscall programs can only be sleepable");
    assert_eq!(said(false, Policy::memory(8)), "", "a program run by itself has no type");
}
