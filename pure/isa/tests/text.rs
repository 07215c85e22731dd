//! Text in both directions.

use proptest::prelude::*;
use ring3_isa::{Insn, assemble, listing, text};

fn one(line: &str) -> Insn {
    assemble(line).unwrap_or_else(|error| panic!("{line}: {error}"))[0]
}

#[test]
fn what_the_kernel_writes_is_written_and_read() {
    let lines = [
        "r1 = r2",
        "w1 += w2",
        "r1 s/= r2",
        "w1 s%= -3",
        "r1 s>>= 3",
        "r1 <<= 32",
        "r1 = (s8)r2",
        "w1 = (s16)w2",
        "r3 = (s32)r4",
        "w3 = -w3",
        "r1 = be16 r1",
        "r1 = le64 r1",
        "r1 = bswap32 r1",
        "r1 = *(u64 *)(r10 -8)",
        "r1 = *(s16 *)(r2 +0)",
        "*(u8 *)(r10 -1) = 255",
        "*(u32 *)(r10 -8) = r3",
        "lock *(u64 *)(r1 +0) += r2",
        "lock *(u32 *)(r1 -4) ^= r2",
        "r2 = atomic64_fetch_add((u64 *)(r1 +0), r2)",
        "r2 = atomic_xchg((u32 *)(r1 +4), r2)",
        "r0 = atomic64_cmpxchg((u64 *)(r1 +0), r0, r2)",
        "r1 = load_acquire((u16 *)(r2 +0))",
        "store_release((u8 *)(r1 +0), r2)",
        "if r1 > 0x5 goto pc+0",
        "if w1 s<= 0xfffffffb goto pc+0",
        "if r1 & r2 goto pc-1",
        "goto pc+0",
        "gotol pc+0",
        "may_goto pc+3",
        "call bpf_map_lookup_elem#1",
        "call unknown#1000",
        "call pc+0",
        "call kernel-function#1234",
        "r0 = *(u16 *)skb[12]",
        "r0 = *(u8 *)skb[r7 + -4]",
        "r1 = addr_space_cast(r2, 0, 1)",
        "exit",
        "r1 = map[fd:4]",
        "r1 = map[idx:1][0]+8",
        "r1 = subprog[-1]",
        "r1 = btf[7]",
    ];
    for line in lines {
        let mut insns = assemble(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        insns.push(one("exit"));
        assert_eq!(text(&insns, 0).to_string(), line);
    }
}

#[test]
fn sixteen_byte_loads_end_in_ll_where_they_are_to_be_read_back() {
    let insns = assemble("r1 = 0x10 ll").expect("right");
    assert_eq!(insns, [Insn::new(0x18, 1, 0, 0, 16), Insn::new(0, 0, 0, 0, 0)]);
    assert_eq!(text(&insns, 0).to_string(), "r1 = 0x10");
    assert_eq!(format!("{:#}", text(&insns, 0)), "r1 = 0x10 ll");
    let insns = assemble("r1 = -1 ll").expect("right");
    assert_eq!(format!("{:#}", text(&insns, 0)), "r1 = 0xffffffffffffffff ll");
}

#[test]
fn labels_name_targets_of_jumps_calls_and_addresses() {
    let program = "
        r2 = func sub       ; 0
        if r1 == 0 goto out // 2
        call sub
        goto out
        gotol out
    sub: r0 = 0
    out:
        exit";
    let relative = "r2 = subprog[5]\nif r1 == 0 goto pc+4\ncall pc+2\ngoto pc+2\ngotol +1\nr0 = 0\nexit";
    assert_eq!(assemble(program), assemble(relative));
}

#[test]
fn helpers_are_called_by_name_by_number_and_by_both() {
    let call = one("call 12");
    assert_eq!(call, one("call bpf_tail_call"));
    assert_eq!(call, one("call bpf_tail_call#12"));
}

#[test]
fn maps_are_named_by_index() {
    assert_eq!(assemble("r1 = map[3] ll"), assemble("r1 = map[idx:3]"));
    assert_eq!(assemble("r1 = map[3]").expect("right")[0].src(), 5);
    assert_eq!(assemble("r1 = map[3][0]+4 ll"), assemble("r1 = map[idx:3][0]+4"));
}

#[test]
fn mistakes_are_told_with_their_line() {
    let mistakes = [
        ("r1 = 0xffffffff", "4294967295 does not fit (`0xffffffff ll`?)"),
        ("r11 = 1", "`r11 = 1` is no instruction"),
        ("r1 = w2", "`w2` is no number"),
        ("goto nowhere", "there is no label `nowhere`"),
        ("x:\nx:", "the label `x` stands twice"),
        ("call bpf_tail_call#1", "`bpf_tail_call` has not the number 1"),
        ("r1 = be16 r2", "the register must be r2 on both sides"),
        ("exit 1", "`1` is too much"),
        ("*(u7 *)(r1 +0) = 1", "`u7` is no size"),
        ("if r1 == 1 jump", "`goto` is missing before ` jump`"),
        ("r1 = *(u8 *)(r2 +40000)", "40000 does not fit"),
    ];
    for (wrong, message) in mistakes {
        let error = assemble(&format!("exit\n{wrong}\n")).expect_err(wrong);
        assert_eq!(error.message, message, "{wrong}");
        assert!(error.line >= 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are: what the kernel knows has its text, the rest is an `.insn`.
    #[test]
    fn every_instruction_comes_back_from_its_text(
        opcode: u8,
        regs: u8,
        off in prop_oneof![Just(0i16), Just(1), Just(8), Just(16), Just(32), any::<i16>()],
        imm in prop_oneof![Just(0i32), Just(1), Just(16), Just(0x41), Just(0x100), Just(0x110), any::<i32>()],
        high: i32,
    ) {
        let insns = [Insn { opcode, regs, off, imm }, Insn::new(0, 0, 0, 0, high), Insn::new(0x95, 0, 0, 0, 0)];
        let written = listing(&insns);
        prop_assert_eq!(assemble(&written), Ok(insns.to_vec()), "{}", written);
    }

    #[test]
    fn instructions_of_the_known_opcodes_come_back(
        class in 0u8..8, code in 0u8..32, dst in 0u8..=10, src in 0u8..=10, off in -1i16..=1, imm in -2i32..=1,
    ) {
        let opcode = class | code << 3;
        for (src, imm) in [(src, 0), (0, imm), (src, imm)] {
            let exit = Insn::new(0x95, 0, 0, 0, 0);
            let insns = [exit, Insn::new(opcode, dst, src, off, imm), Insn::new(0, 0, 0, 0, imm), exit];
            let written = listing(&insns);
            prop_assert_eq!(assemble(&written), Ok(insns.to_vec()), "{}", written);
        }
    }
}

#[test]
fn mnemonics_are_instructions_and_mistakes_are_told_with_their_lines() {
    use ring3_isa::assemble_mnemonics;
    let text = "
        mov32 %r1, 0xffffffff   # comment
        ldxsh r2, [r1-4]        // another
        lock fetch add32 [%r10-8], %r1
        jsle32 %r1, %r2, exit
        lddw %r3, 0x8000000000000000
    again:
        ja32 again
        movsx3264 %r4, %r5
        be16 %r4
        call local again
        call %r4
        call 5
        exit
        exit";
    let kernel = "
        w1 = -1
        r2 = *(s16 *)(r1 -4)
        r1 = atomic_fetch_add((u32 *)(r10 -8), r1)
        if w1 s<= w2 goto out
        r3 = 0x8000000000000000 ll
    again:
        gotol again
        r4 = (s32)r5
        r4 = be16 r4
        call again
        callx r4
        call 5
    out:
        exit
        exit";
    assert_eq!(assemble_mnemonics(text), assemble(kernel));
    for (text, line, part) in [
        ("exit\nmov %r11, 1", 2, "a register is missing"),
        ("mov %r1, 0x100000000", 1, "does not fit"),
        ("\n\nfrob %r1", 3, "`frob %r1` is no instruction"),
        ("ja nowhere", 1, "there is no label `nowhere`"),
        ("lock fetch xchg [%r1], %r2", 1, "`xchg` is no atomic operation"),
        ("stw [%r1+2", 1, "`]` is missing"),
        ("exit now", 1, "`now` is too much"),
    ] {
        let error = assemble_mnemonics(text).expect_err(text);
        assert!(error.line == line && error.message.contains(part), "{text}: {error}");
    }
}
