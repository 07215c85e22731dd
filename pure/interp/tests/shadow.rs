//! The judge's own trial: a smallest program for each thing that it must see, and for each that it must let pass.

use ring3_interp::shadow::{End, Fault, MapKind, MapSpec, Program, Wrong};
use ring3_isa::Insn;
use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper;

const fn i(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn::new(opcode, dst, src, off, imm)
}

const EXIT: Insn = i(0x95, 0, 0, 0, 0);
const ZERO: Insn = i(0xb7, 0, 0, 0, 0);

const fn call(helper: u32) -> Insn {
    i(0x85, 0, 0, 0, helper as i32)
}

const ARRAY: usize = 0;
const RING: usize = 1;
const CONSTANT: usize = 2;

fn maps() -> Vec<MapSpec> {
    let map =
        |kind, key_bytes, value_bytes, entries, constant| MapSpec { kind, key_bytes, value_bytes, entries, constant };
    vec![
        map(MapKind::Array, 4, 16, 1, None),
        map(MapKind::Ring, 0, 0, 4096, None),
        map(MapKind::Array, 4, 8, 1, Some(&[1, 2, 3, 4, 5, 6, 7, 8])),
    ]
}

fn map(register: u8, number: usize) -> [Insn; 2] {
    [i(0x18, register, 5, 0, number as i32), i(0, 0, 0, 0, 0)]
}

fn value(register: u8, number: usize) -> [Insn; 2] {
    [i(0x18, register, 6, 0, number as i32), i(0, 0, 0, 0, 0)]
}

/// Runs it with helpers' results, and all else, from a counter: calls for a quarter of failures do not fail.
fn run_with(insns: &[Insn], prog_type: u32, unwritten: bool, first: u64) -> Result<End, Fault> {
    let maps = maps();
    let mut program = Program::new(insns, prog_type, &maps);
    program.unwritten_stack_is_read = unwritten;
    let mut state = first;
    program.run(&mut || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 7
    })
}

/// The first fault in some worlds.
fn wrong_in(insns: &[Insn], prog_type: u32) -> Option<(usize, Wrong)> {
    (0..32).find_map(|first| run_with(insns, prog_type, true, first).err()).map(|fault| (fault.insn, fault.wrong))
}

fn wrong(insns: &[Insn]) -> Option<(usize, Wrong)> {
    wrong_in(insns, prog_type::KPROBE)
}

fn joined(parts: &[&[Insn]]) -> Vec<Insn> {
    parts.concat()
}

#[test]
fn an_access_inside_its_region_passes_and_one_across_the_end_does_not() {
    for (off, bytes_code, right) in [(0, 0x79, true), (8, 0x79, true), (9, 0x79, false), (15, 0x71, true)] {
        let program = joined(&[&value(1, ARRAY), &[i(bytes_code, 0, 1, off, 0), EXIT]]);
        assert_eq!(wrong(&program).is_none(), right, "at {off}");
    }
    let before = joined(&[&value(1, ARRAY), &[i(0x71, 0, 1, -1, 0), EXIT]]);
    assert!(matches!(wrong(&before), Some((2, Wrong::Outside { region: "map value", offset: -1, .. }))));
    for (off, right) in [(-8, true), (-512, true), (-513, false), (-7, false)] {
        let program = [i(0x7a, 10, 0, off, 1), ZERO, EXIT];
        assert_eq!(wrong(&program).is_none(), right, "stack at {off}");
    }
}

#[test]
fn numbers_are_no_addresses() {
    assert_eq!(wrong(&[i(0xb7, 1, 0, 0, 64), i(0x79, 0, 1, 0, 0), EXIT]), Some((1, Wrong::ThroughNumber(64))));
    // The bits of an address, after arithmetic that no address survives: r1 *= 1.
    let program = [i(0x27, 1, 0, 0, 1), i(0x79, 0, 1, 0, 0), EXIT];
    assert!(matches!(wrong(&program), Some((1, Wrong::ThroughNumber(_)))));
    // r2 = r10 - r1; r1 += r2 leads to the stack, but by way of the context.
    let program = [i(0xbf, 2, 10, 0, 0), i(0x1f, 2, 1, 0, 0), i(0x0f, 1, 2, 0, 0), i(0x79, 0, 1, -8, 0), EXIT];
    assert!(matches!(wrong(&program), Some((3, Wrong::Outside { region: "context", .. }))));
}

#[test]
fn an_address_survives_a_spill_only_whole() {
    let whole = [i(0x7b, 10, 1, -8, 0), i(0x79, 2, 10, -8, 0), i(0x79, 0, 2, 0, 0), EXIT];
    assert_eq!(wrong(&whole), None);
    let patched = [i(0x7b, 10, 1, -8, 0), i(0x72, 10, 0, -8, 0), i(0x79, 2, 10, -8, 0), i(0x79, 0, 2, 0, 0), EXIT];
    assert!(matches!(wrong(&patched), Some((3, Wrong::ThroughNumber(_)))));
    let shifted = [i(0x7b, 10, 1, -16, 0), i(0x7a, 10, 0, -8, 0), i(0x79, 2, 10, -12, 0), i(0x79, 0, 2, 0, 0), EXIT];
    assert!(matches!(wrong(&shifted), Some((3, Wrong::ThroughNumber(_)))));
    let through_a_map =
        joined(&[&value(2, ARRAY), &[i(0x7b, 2, 1, 0, 0), i(0x79, 3, 2, 0, 0), i(0x79, 0, 3, 0, 0), EXIT]]);
    assert!(matches!(wrong(&through_a_map), Some((4, Wrong::ThroughNumber(_)))));
}

#[test]
fn what_was_never_written_is_not_read() {
    assert_eq!(wrong(&[i(0xbf, 0, 3, 0, 0), EXIT]), Some((0, Wrong::UnsetRegister(3))));
    assert_eq!(wrong(&[EXIT]), Some((0, Wrong::UnsetRegister(0))));
    // Calls take r1 to r5 away.
    let called = [call(helper::KTIME_GET_NS), i(0xbf, 0, 1, 0, 0), EXIT];
    assert_eq!(wrong(&called), Some((1, Wrong::UnsetRegister(1))));
    let stack = [i(0x72, 10, 0, -8, 1), i(0x69, 0, 10, -8, 0), EXIT];
    assert!(run_with(&stack, prog_type::KPROBE, true, 1).is_ok());
    let fault = run_with(&stack, prog_type::KPROBE, false, 1).expect_err("a byte was not written");
    assert_eq!(fault.wrong, Wrong::UnwrittenStack(504));
}

#[test]
fn a_lookup_that_finds_nothing_gives_no_address() {
    let start = joined(&[
        &[i(0x62, 10, 0, -4, 3), i(0xbf, 2, 10, 0, 0), i(0x07, 2, 0, 0, -4)],
        &map(1, ARRAY),
        &[call(helper::MAP_LOOKUP_ELEM)],
    ]);
    let unchecked = joined(&[&start, &[i(0x79, 0, 0, 0, 0), EXIT]]);
    assert_eq!(wrong(&unchecked), Some((6, Wrong::ThroughNumber(0))));
    let checked = joined(&[&start, &[i(0x15, 0, 0, 1, 0), i(0x79, 0, 0, 0, 0), EXIT]]);
    assert_eq!(wrong(&checked), None);
}

#[test]
fn what_is_only_to_be_read_is_not_written() {
    let constant = joined(&[&value(1, CONSTANT), &[i(0x72, 1, 0, 0, 1), ZERO, EXIT]]);
    assert_eq!(wrong(&constant), Some((2, Wrong::ReadOnly("map value", 0))));
    let length = [i(0x62, 1, 0, 0, 1), ZERO, EXIT];
    assert_eq!(wrong_in(&length, prog_type::SOCKET_FILTER), Some((0, Wrong::ReadOnly("context", 0))));
    let control_block = [i(0x62, 1, 0, 48, 1), ZERO, EXIT];
    assert_eq!(wrong_in(&control_block, prog_type::SOCKET_FILTER), None);
}

#[test]
fn a_record_is_submitted_once_and_then_left_alone() {
    let reserve = joined(&[
        &map(1, RING),
        &[i(0xb7, 2, 0, 0, 8), i(0xb7, 3, 0, 0, 0), call(helper::RINGBUF_RESERVE)],
        &[i(0xbf, 6, 0, 0, 0)],
    ]);
    let submit = [i(0xbf, 1, 6, 0, 0), i(0xb7, 2, 0, 0, 0), call(helper::RINGBUF_SUBMIT)];
    let end = [ZERO, EXIT];
    let right = joined(&[&reserve, &[i(0x15, 0, 0, 4, 0), i(0x7a, 6, 0, 0, 7)], &submit, &end]);
    assert_eq!(wrong(&right), None);
    let kept = joined(&[&reserve, &end]);
    assert_eq!(wrong(&kept), Some((7, Wrong::Leak("ring buffer record"))));
    let used = joined(&[&reserve, &[i(0x15, 0, 0, 4, 0)], &submit, &[i(0x7a, 6, 0, 0, 7)], &end]);
    assert_eq!(wrong(&used), Some((10, Wrong::Ended("record"))));
    let twice = joined(&[&reserve, &[i(0x15, 0, 0, 6, 0)], &submit, &submit, &end]);
    assert!(matches!(wrong(&twice), Some((12, Wrong::Argument(1, _)))));
    let beyond = joined(&[&reserve, &[i(0x15, 0, 0, 4, 0), i(0x7a, 6, 0, 1, 7)], &submit, &end]);
    assert!(matches!(wrong(&beyond), Some((7, Wrong::Outside { region: "record", offset: 1, .. }))));
}

#[test]
fn a_packet_is_read_up_to_its_end_and_not_after_it_moved() {
    let start = [i(0xbf, 6, 1, 0, 0), i(0x61, 2, 1, 0, 0), i(0x61, 3, 1, 4, 0), i(0xbf, 4, 2, 0, 0)];
    let check = |bytes| [i(0x07, 4, 0, 0, bytes), i(0x2d, 4, 3, 1, 0)];
    let right = joined(&[&start, &check(8), &[i(0x79, 0, 2, 0, 0), ZERO, EXIT]]);
    assert_eq!(wrong_in(&right, prog_type::XDP), None);
    let short = joined(&[&start, &check(7), &[i(0x79, 0, 2, 0, 0), ZERO, EXIT]]);
    assert!(matches!(wrong_in(&short, prog_type::XDP), Some((6, Wrong::Outside { region: "packet", .. }))));
    let moved = joined(&[
        &[i(0xbf, 6, 1, 0, 0), i(0x61, 7, 1, 0, 0), i(0xb7, 2, 0, 0, 0), call(helper::XDP_ADJUST_HEAD)],
        &[i(0x71, 0, 7, 0, 0), EXIT],
    ]);
    assert_eq!(wrong_in(&moved, prog_type::XDP), Some((4, Wrong::Ended("packet"))));
}

#[test]
fn helpers_read_and_write_only_what_their_arguments_are() {
    let read = |size| {
        let start = [i(0xbf, 1, 10, 0, 0), i(0x07, 1, 0, 0, -16), i(0xb7, 2, 0, 0, size), i(0xb7, 3, 0, 0, 0)];
        joined(&[&start, &[call(helper::PROBE_READ_KERNEL), ZERO, EXIT]])
    };
    assert_eq!(wrong(&read(16)), None);
    assert!(matches!(wrong(&read(17)), Some((4, Wrong::Outside { region: "stack", .. }))));
    assert!(matches!(wrong(&read(-1)), Some((4, Wrong::Outside { region: "stack", .. }))));
    let no_map = [i(0xbf, 2, 10, 0, 0), i(0x07, 2, 0, 0, -4), call(helper::MAP_LOOKUP_ELEM), EXIT];
    assert!(matches!(wrong(&no_map), Some((2, Wrong::Argument(1, _)))));
    assert_eq!(wrong(&[i(0xb7, 1, 0, 0, 0), call(9999), EXIT]), Some((1, Wrong::UnknownHelper(9999))));
}

#[test]
fn frames_end_with_their_calls_and_calls_have_a_depth() {
    // r0 = the callee's r10 - 8.
    let callee = [i(0xbf, 0, 10, 0, 0), i(0x07, 0, 0, 0, -8), EXIT];
    let escaped = joined(&[&[i(0x85, 0, 1, 0, 2), i(0x79, 0, 0, 0, 0), EXIT], &callee]);
    assert_eq!(wrong(&escaped), Some((1, Wrong::Ended("stack"))));
    assert_eq!(wrong(&[i(0x85, 0, 1, 0, -1), EXIT]), Some((0, Wrong::TooDeep)));
    assert_eq!(wrong(&[i(0x05, 0, 0, -1, 0), EXIT]), Some((0, Wrong::Runaway)));
}

#[test]
fn callbacks_get_their_count_and_context_and_say_whether_to_stop() {
    // bpf_loop(3, f, r10 - 8, 0), where f adds its count to what r2 leads to.
    let program = |result| {
        joined(&[
            &[i(0x7a, 10, 0, -8, 5), i(0xb7, 1, 0, 0, 3), i(0x18, 2, 4, 0, 7), i(0, 0, 0, 0, 0)],
            &[i(0xbf, 3, 10, 0, 0), i(0x07, 3, 0, 0, -8), i(0xb7, 4, 0, 0, 0), call(helper::LOOP)],
            &[i(0x79, 0, 10, -8, 0), EXIT],
            &[i(0xdb, 2, 1, 0, 0), i(0xb7, 0, 0, 0, result), EXIT],
        ])
    };
    let on_all = run_with(&program(0), prog_type::KPROBE, true, 1);
    assert_eq!(on_all, Ok(End::Returned(5 + 1 + 2)));
    assert_eq!(run_with(&program(1), prog_type::KPROBE, true, 1), Ok(End::Returned(5)));
    assert_eq!(wrong(&program(2)), Some((12, Wrong::CallbackResult(2))));
}
