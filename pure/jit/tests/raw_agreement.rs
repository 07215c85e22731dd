//! Random programs do the same on the interpreter and on the processor.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use ring3_interp::{Fault, Host, Memory};
use ring3_isa::Insn;
use ring3_jit::{Options, compile};
use ring3_layout::thread::{CPU_SLOT_HELD, CPU_SLOT_SET};
use ring3_uapi::bpf::prog_type;
use ring3_verifier::{Content, Context, Field, Input, MapShape, Policy, Sizes, Verified, verify};

/// Bytes that programs may read and write here.
const BUFFER_BYTES: usize = 64;
const BUFFER_AT: u64 = 0x1000_0000;
const CONTEXT_AT: u64 = 0x2000_0000;

struct NoHost;

impl Host for NoHost {
    fn call(&mut self, helper: u32, _: [u64; 5], _: &mut Memory) -> Result<u64, Fault> {
        Err(Fault::UnknownHelper(helper))
    }

    fn map(&self, _: u32, _: Option<u32>) -> u64 {
        0
    }
}

/// A context that is the address of plain bytes.
fn with_buffer() -> Policy {
    let content = Content::Buffer { bytes: BUFFER_BYTES as u32 };
    let buffer = Field { at: 0..8, sizes: Sizes::Only(8), write: false, content };
    Policy { context: Context::new(vec![buffer]), ..Policy::targets(prog_type::KPROBE) }
}

fn verified(insns: &[Insn]) -> Verified {
    let input = Input {
        insns,
        prog_type: prog_type::KPROBE,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: with_buffer(),
        log_level: 1,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|_| None,
        constant_value: &|_| None,
    };
    verify(&input).unwrap_or_else(|report| panic!("{}", report.log))
}

/// Runs compiled code in this process: r0 and the buffer afterwards.
fn run_natively(program: &Verified, buffer: &[u8]) -> (u64, Vec<u8>) {
    let code = compile(program, &Options::default()).expect("compiles");
    let bytes = code.link(0, &|_| None).expect("no references");
    let length = bytes.len().next_multiple_of(4096);
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for fresh memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the mapping has room for the code.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    let entry = memory as usize + code.entry as usize;
    // SAFETY: the compiler made a function of this type at the entry.
    let function: extern "sysv64" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(entry) };
    let mut buffer = buffer.to_vec();
    let context = [buffer.as_mut_ptr() as u64];
    let mut environment = vec![0u8; size_of::<ring3_layout::thread::ThreadBlock>()];
    let result = function(context.as_ptr() as u64, environment.as_mut_ptr() as u64);
    // SAFETY: mapped above, not used any more.
    unsafe { libc::munmap(memory, length) };
    (result, buffer)
}

fn run_interpreted(program: &Verified, buffer: &[u8]) -> (u64, Vec<u8>) {
    let mut memory = Memory::default();
    memory.add(CONTEXT_AT, BUFFER_AT.to_le_bytes().to_vec());
    memory.add(BUFFER_AT, buffer.to_vec());
    let result = ring3_interp::run(program, CONTEXT_AT, &mut memory, &mut NoHost, 1 << 20).expect("runs");
    (result, memory.region(BUFFER_AT).expect("added").to_vec())
}

/// One instruction that touches r0-r5 and the buffer (r9), never out of bounds. r9 and r10 are not written.
fn instruction() -> impl Strategy<Value = Vec<Insn>> {
    let register = 0u8..6;
    let width = prop_oneof![Just(0x04u8), Just(0x07)];
    let constant = prop_oneof![any::<i32>(), -3..4i32, Just(i32::MIN), Just(i32::MAX)];
    let alu = prop_oneof![
        Just(0x00u8),
        Just(0x10),
        Just(0x20),
        Just(0x30),
        Just(0x40),
        Just(0x50),
        Just(0x60),
        Just(0x70),
        Just(0x90),
        Just(0xa0),
        Just(0xb0),
        Just(0xc0),
    ];
    let by_register = (alu.clone(), width.clone(), register.clone(), register.clone(), any::<bool>()).prop_map(
        |(op, width, dst, src, signed)| {
            let off = i16::from(signed && matches!(op, 0x30 | 0x90));
            vec![Insn::new(op | width | 8, dst, src, off, 0)]
        },
    );
    let by_constant = (alu, width.clone(), register.clone(), constant).prop_map(|(op, width, dst, value)| {
        let bits = if width == 7 { 63 } else { 31 };
        let value = match op {
            0x60 | 0x70 | 0xc0 => value & bits,
            0x30 | 0x90 if value == 0 => 7,
            _ => value,
        };
        vec![Insn::new(op | width, dst, 0, 0, value)]
    });
    let sign = (width.clone(), register.clone(), register.clone(), prop_oneof![Just(8i16), Just(16)])
        .prop_map(|(width, dst, src, bits)| vec![Insn::new(0xb8 | width, dst, src, bits, 0)]);
    let negate = (width, register.clone()).prop_map(|(width, dst)| vec![Insn::new(0x80 | width, dst, 0, 0, 0)]);
    let swap = (
        prop_oneof![Just(0xd4u8), Just(0xdc), Just(0xd7)],
        register.clone(),
        prop_oneof![Just(16), Just(32), Just(64)],
    )
        .prop_map(|(opcode, dst, bits)| vec![Insn::new(opcode, dst, 0, 0, bits)]);
    let size = prop_oneof![Just(0x00u8), Just(0x08), Just(0x10), Just(0x18)];
    let slot = (0..7i16).prop_map(|slot| slot * 8);
    let load = (size.clone(), register.clone(), slot.clone(), any::<bool>()).prop_map(|(size, dst, off, signed)| {
        let mode = if signed && size != 0x18 { 0x81 } else { 0x61 };
        vec![Insn::new(mode | size, dst, 9, off, 0)]
    });
    let store = (size.clone(), register.clone(), slot.clone())
        .prop_map(|(size, src, off)| vec![Insn::new(0x63 | size, 9, src, off, 0)]);
    let store_constant = (size, slot.clone(), any::<i32>())
        .prop_map(|(size, off, value)| vec![Insn::new(0x62 | size, 9, 0, off, value)]);
    static OPERATIONS: [i32; 10] = [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1];
    let atomic =
        (prop_oneof![Just(0xc3u8), Just(0xdb)], prop::sample::select(&OPERATIONS[..]), register.clone(), slot)
            .prop_map(|(opcode, operation, src, off)| vec![Insn::new(opcode, 9, src, off, operation)]);
    let wide = (register, any::<u64>()).prop_map(|(dst, value)| {
        vec![Insn::new(0x18, dst, 0, 0, value as i32), Insn::new(0, 0, 0, 0, (value >> 32) as i32)]
    });
    prop_oneof![by_register, by_constant, sign, negate, swap, load, store, store_constant, atomic, wide]
}

/// A program: the buffer goes to r9, registers are filled, then blocks of instructions, some skipped by jumps.
fn program() -> impl Strategy<Value = Vec<Insn>> {
    let jump = (0usize..10, 0u8..6, 0u8..6, any::<bool>());
    prop::collection::vec((instruction(), prop::option::of(jump)), 1..60).prop_map(|parts| {
        const JUMPS: [u8; 11] = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0];
        let mut insns = vec![Insn::new(0x79, 9, 1, 0, 0)]; // r9 = *(u64 *)(r1 + 0)
        insns.extend((0..6).map(|register| Insn::new(0xb7, register, 0, 0, i32::from(register) * 0x0123_4567 - 9)));
        for (body, jump) in parts {
            if let Some((kind, dst, src, narrow)) = jump {
                let class = if narrow { 0x0e } else { 0x0d };
                insns.push(Insn::new(JUMPS[kind] | class, dst, src, body.len() as i16, 0));
            }
            insns.extend(body);
        }
        insns.push(Insn::new(0x95, 0, 0, 0, 0));
        insns
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_do_the_same_on_both_engines(
        insns in program(),
        buffer in prop::collection::vec(any::<u8>(), BUFFER_BYTES),
    ) {
        let program = verified(&insns);
        prop_assert_eq!(run_natively(&program, &buffer), run_interpreted(&program, &buffer));
    }
}

#[test]
fn a_function_too_large_to_be_optimised_does_the_same_on_both_engines() {
    const STEPS: i32 = 80_000;
    let mut insns = vec![Insn::new(0xb7, 0, 0, 0, 1)];
    // r0 += step; r0 *= 3 now and then: a chain in which each number depends on the one before.
    insns.extend((0..STEPS).map(|step| match step % 1000 {
        999 => Insn::new(0x27, 0, 0, 0, 3),
        _ => Insn::new(0x07, 0, 0, 0, step),
    }));
    insns.push(Insn::new(0x95, 0, 0, 0, 0));
    let program = verified(&insns);
    let buffer = [0; BUFFER_BYTES];
    assert_eq!(run_natively(&program, &buffer), run_interpreted(&program, &buffer));
}

#[test]
fn calls_of_subprograms_keep_r6_to_r9_and_have_stacks_of_their_own() {
    let insns = [
        Insn::new(0xb7, 6, 0, 0, 100), // r6 = 100
        Insn::new(0x7a, 10, 0, -8, 5), // *(u64 *)(r10 - 8) = 5
        Insn::new(0xb7, 1, 0, 0, 7),   // r1 = 7
        Insn::new(0x85, 0, 1, 0, 3),   // call +3
        Insn::new(0x79, 2, 10, -8, 0), // r2 = *(u64 *)(r10 - 8)
        Insn::new(0x0f, 0, 6, 0, 0),   // r0 += r6
        Insn::new(0x05, 0, 0, 5, 0),   // goto end
        Insn::new(0xb7, 6, 0, 0, 1),   // r6 = 1
        Insn::new(0x7a, 10, 0, -8, 9), // *(u64 *)(r10 - 8) = 9
        Insn::new(0xbf, 0, 1, 0, 0),   // r0 = r1
        Insn::new(0x27, 0, 0, 0, 3),   // r0 *= 3
        Insn::new(0x95, 0, 0, 0, 0),   // exit
    ];
    // The end belongs to the first subprogram: lay it out before the callee.
    let mut ordered = insns[..6].to_vec();
    ordered.push(Insn::new(0x0f, 0, 2, 0, 0)); // r0 += r2
    ordered.push(Insn::new(0x95, 0, 0, 0, 0));
    ordered.extend_from_slice(&insns[7..]);
    ordered[3].imm = 4;
    let program = verified(&ordered);
    let buffer = vec![0; BUFFER_BYTES];
    assert_eq!(run_interpreted(&program, &buffer).0, 21 + 100 + 5);
    assert_eq!(run_natively(&program, &buffer).0, 21 + 100 + 5);
}

#[test]
fn a_loop_without_bounds_ends_where_may_goto_leads() {
    let insns = [
        Insn::new(0xb7, 0, 0, 0, 0),  // r0 = 0
        Insn::new(0xe5, 0, 0, 2, 0),  // may_goto +2
        Insn::new(0x07, 0, 0, 0, 1),  // r0 += 1
        Insn::new(0x05, 0, 0, -3, 0), // goto -3
        Insn::new(0x95, 0, 0, 0, 0),  // exit
    ];
    let rounds = run_natively(&verified(&insns), &[0; BUFFER_BYTES]).0;
    assert!(rounds >= 8 << 20, "{rounds}");
}

#[test]
fn no_compiled_instruction_touches_vector_registers() {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..50 {
        let insns = program().new_tree(&mut runner).expect("a program").current();
        let code = compile(&verified(&insns), &Options::default()).expect("compiles");
        let mut factory = InstructionInfoFactory::new();
        // Constants lie behind the code: only what control reaches is code.
        let (mut open, mut seen) = (vec![u64::from(code.entry)], std::collections::HashSet::new());
        while let Some(at) = open.pop().filter(|at| seen.insert(*at)) {
            let mut decoder = Decoder::with_ip(64, &code.bytes[at as usize..], at, DecoderOptions::NONE);
            let instruction = decoder.decode();
            for used in factory.info(&instruction).used_registers() {
                let register = used.register();
                assert!(!register.is_vector_register() && !register.is_st() && !register.is_mm(), "{instruction}");
            }
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Call => open.push(instruction.next_ip()),
                FlowControl::UnconditionalBranch => open.push(instruction.near_branch_target()),
                FlowControl::ConditionalBranch => {
                    open.extend([instruction.next_ip(), instruction.near_branch_target()]);
                }
                _ => {}
            }
            while open.last().is_some_and(|at| seen.contains(at)) {
                open.pop();
            }
        }
    }
}

/// Compiles a lookup of `key` in a per-CPU array and runs it: the distance of the value from the array's data.
fn per_cpu_array_lookup(map: MapShape, cpu: u32, key: i32) -> Option<u64> {
    const DATA: u64 = 0x10_0000;
    let insns = [
        Insn::new(0x62, 10, 0, -4, key),
        Insn::new(0xbf, 2, 10, 0, 0),
        Insn::new(0x07, 2, 0, 0, -4),
        Insn::new(0x18, 1, 1, 0, 5),
        Insn::new(0, 0, 0, 0, 0),
        Insn::new(0x85, 0, 0, 0, ring3_uapi::helper::MAP_LOOKUP_ELEM as i32),
        Insn::new(0x95, 0, 0, 0, 0),
    ];
    let input = Input {
        insns: &insns,
        prog_type: prog_type::KPROBE,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: with_buffer(),
        log_level: 1,
        lines: vec![],
        map_by_fd: &|fd| (fd == 5).then_some(map),
        map_by_index: &|_| None,
        constant_value: &|_| None,
    };
    let program = verify(&input).unwrap_or_else(|report| panic!("{}", report.log));
    let code = compile(&program, &Options::default()).expect("compiles");
    // Behind the code: the words of the GOT.
    let got = code.bytes.len().next_multiple_of(8);
    let mut bytes = code.link(0, &|_| Some(got as u64)).expect("near");
    bytes.resize(got, 0);
    bytes.extend(DATA.to_le_bytes());
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for fresh memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes.len(), protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the mapping has room for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    // SAFETY: the compiler made a function of this type at the entry.
    let function: extern "sysv64" fn(u64, u64) -> u64 =
        unsafe { std::mem::transmute(memory as usize + code.entry as usize) };
    let mut environment = vec![0u64; size_of::<ring3_layout::thread::ThreadBlock>() / 8];
    let slot = std::mem::offset_of!(ring3_layout::thread::ThreadBlock, cpu_slot);
    environment[slot / 8] |= u64::from(cpu | CPU_SLOT_SET | CPU_SLOT_HELD) << (slot % 8 * 8);
    let value = function(0, environment.as_mut_ptr() as u64);
    // SAFETY: mapped above, not used any more.
    unsafe { libc::munmap(memory, bytes.len()) };
    value.checked_sub(DATA)
}

#[test]
fn a_per_cpu_array_lookup_leads_to_the_value_of_the_cpu_that_dispatch_set() {
    let map = MapShape {
        slot: 0,
        map_type: ring3_uapi::bpf::map_type::PERCPU_ARRAY,
        key_size: 4,
        value_size: 12,
        max_entries: 10,
        map_flags: 0,
        stride: 16,
        cpus: 300,
        lock: None,
        inner: None,
        cpu_stride: 192,
        hash: None,
    };
    assert_eq!(per_cpu_array_lookup(map, 0, 0), Some(0));
    assert_eq!(per_cpu_array_lookup(map, 0, 9), Some(9 * 16));
    assert_eq!(per_cpu_array_lookup(map, 299, 3), Some(299 * 192 + 3 * 16));
    assert_eq!(per_cpu_array_lookup(map, 299, 10), None);
    assert_eq!(per_cpu_array_lookup(map, 1, -1), None);
}
