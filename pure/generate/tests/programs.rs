//! The generator's promises.

use ring3_generate::{Program, joins, program, shrink};
use ring3_isa::op;

#[test]
fn a_seed_and_a_number_give_the_same_program_each_time_and_others_give_others() {
    for writes in [program, joins] {
        for number in 0..200 {
            assert_eq!(writes(7, number), writes(7, number));
            assert_ne!(writes(7, number), writes(7, number + 1));
            assert_ne!(writes(7, number), writes(8, number));
        }
    }
}

#[test]
fn programs_are_made_of_instructions_and_end() {
    for (writes, number) in
        (0..2000).flat_map(|number| [(program as fn(u64, u64) -> Program, number), (joins, number)])
    {
        let insns = writes(3, number).insns;
        let mut at = 0;
        while at < insns.len() {
            // A slip may give what is none; jumps never leave the program.
            let decoded = op(&insns, at);
            assert_ne!(decoded, Err(ring3_isa::DecodeError::TargetOutside), "program {number} at {at}");
            at += if insns[at].is_wide() { 2 } else { 1 };
        }
        assert_eq!(at, insns.len());
        assert_eq!(insns.last().map(|insn| insn.opcode), Some(0x95), "program {number}");
    }
}

#[test]
fn programs_have_all_that_verifiers_find_hard() {
    use ring3_isa::{AluOp, AtomicOp, Call, Cond, Op, Width};
    let ops: Vec<Op> = (0..4000)
        .flat_map(|number| {
            let insns = program(5, number).insns;
            (0..insns.len()).filter_map(move |at| op(&insns, at).ok()).collect::<Vec<_>>()
        })
        .collect();
    let has = |what: &str, fits: &dyn Fn(&Op) -> bool| {
        assert!(ops.iter().filter(|op| fits(op)).count() >= 10, "hardly any {what}");
    };
    use AluOp::{Add, And, Arsh, Div, Lsh, Mod, Mov, Mul, Or, Rsh, Sdiv, Smod, Sub, Xor};
    for wanted in [Add, Sub, Mul, Div, Sdiv, Or, And, Lsh, Rsh, Mod, Smod, Xor, Mov, Arsh] {
        for wide in [Width::W32, Width::W64] {
            let fits = |found: &Op| matches!(found, Op::Alu { width, op, .. } if *op == wanted && *width == wide);
            has(&format!("{wanted:?} {wide:?}"), &fits);
        }
    }
    use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    for wanted in [Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt] {
        for wide in [Width::W32, Width::W64] {
            let fits =
                |found: &Op| matches!(found, Op::Jump { width, cond, .. } if *cond == wanted && *width == wide);
            has(&format!("{wanted:?} {wide:?}"), &fits);
        }
    }
    use AtomicOp::{Cmpxchg, Xchg};
    for wanted in [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, Xchg, Cmpxchg] {
        has(&format!("{wanted:?}"), &|found| matches!(found, Op::Atomic { op, .. } if *op == wanted));
    }
    use ring3_uapi::helper as id;
    let lookups = [id::MAP_LOOKUP_ELEM, id::MAP_UPDATE_ELEM, id::MAP_DELETE_ELEM, id::FOR_EACH_MAP_ELEM, id::LOOP];
    let rings = [id::RINGBUF_RESERVE, id::RINGBUF_SUBMIT, id::RINGBUF_DISCARD, id::RINGBUF_OUTPUT];
    let others = [id::TAIL_CALL, id::PROBE_READ_KERNEL, id::GET_CURRENT_COMM, id::SKB_LOAD_BYTES, id::CSUM_DIFF];
    for wanted in lookups.into_iter().chain(rings).chain(others).chain([id::XDP_ADJUST_HEAD]) {
        has(&format!("helper {wanted}"), &|found| *found == Op::Call(Call::Helper(wanted)));
    }
    has("sign-extending moves", &|found| matches!(found, Op::MovSx { .. }));
    has("sign-extending loads", &|found| matches!(found, Op::Load { signed: true, .. }));
    has("byte swaps", &|found| matches!(found, Op::Swap { .. }));
    has("acquiring loads", &|found| matches!(found, Op::LoadAcquire { .. }));
    has("releasing stores", &|found| matches!(found, Op::StoreRelease { .. }));
    has("calls", &|found| matches!(found, Op::Call(Call::Local(_))));
}

#[test]
fn short_programs_have_rounds_and_calls_of_all_kinds() {
    use ring3_isa::{Call, Immediate, Op};
    use ring3_uapi::helper::{ITER_NUM_NEXT, LOOP};
    let insns: Vec<_> = (0..500).map(|number| joins(5, number).insns).collect();
    let counted = |fits: &dyn Fn(&Op) -> bool| {
        let has = |insns: &&Vec<_>| (0..insns.len()).filter_map(|at| op(insns, at).ok()).any(|op| fits(&op));
        insns.iter().filter(has).count()
    };
    assert!(counted(&|op| matches!(op, Op::MayGoto(_))) > 50);
    assert!(counted(&|op| *op == Op::Call(Call::Helper(LOOP))) > 50);
    assert!(counted(&|op| *op == Op::Call(Call::Kfunc(ITER_NUM_NEXT))) > 50);
    assert!(counted(&|op| matches!(op, Op::Call(Call::Local(_)))) > 50);
    assert!(counted(&|op| matches!(op, Op::LoadImm64 { value: Immediate::MapIdx(_), .. })) > 5);
}

/// As a mistake would be that a multiplication some way before an atomic operation shows.
fn shows(program: &Program) -> bool {
    let is = |insn: &ring3_isa::Insn, opcode| insn.opcode & !0x08 == opcode;
    let first = program.insns.iter().position(|insn| is(insn, 0x27));
    first.is_some_and(|first| program.insns[first..].iter().any(|insn| matches!(insn.opcode, 0xdb | 0xc3)))
}

#[test]
fn what_shows_something_shrinks_to_what_it_shows_it_with() {
    let large = (0..).map(|number| program(1, number)).find(|program| shows(program) && program.insns.len() > 60);
    let small = shrink(large.expect("some number"), &mut shows);
    assert_eq!(small.insns.len(), 2, "{}", ring3_generate::text(&small.insns));
}
