use super::{Base, Frame, Registers, Unknown, caller, frame_at};

mod oracle;

const ADDRESS: u64 = 0x1000;
const RBX: usize = 0;
const RBP: usize = 1;
const R12: usize = 2;
const R15: usize = 5;

/// Instructions one behind another, and where each begins.
struct Code {
    bytes: Vec<u8>,
    starts: Vec<u64>,
}

impl Code {
    fn of(instructions: &[&[u8]]) -> Code {
        let mut code = Code { bytes: vec![], starts: vec![] };
        for instruction in instructions {
            code.starts.push(ADDRESS + code.bytes.len() as u64);
            code.bytes.extend_from_slice(instruction);
        }
        code
    }

    /// The frame before an instruction, by its index.
    fn frame(&self, index: usize) -> Result<Frame, Unknown> {
        frame_at(&self.bytes, ADDRESS, ADDRESS, self.starts[index])
    }

    /// Each instruction has the same frame in its last byte as before it. Returns these frames.
    fn frames(&self) -> Vec<Result<Frame, Unknown>> {
        let ends = self.starts[1..].iter().copied().chain([ADDRESS + self.bytes.len() as u64]);
        let check = |(index, end)| {
            let frame = self.frame(index);
            assert_eq!(frame_at(&self.bytes, ADDRESS, ADDRESS, end - 1), frame, "instruction {index}");
            frame
        };
        ends.enumerate().map(check).collect()
    }
}

fn frame(base: Base, distance: i64, saved: &[(usize, i64)]) -> Result<Frame, Unknown> {
    let mut frame = Frame { base, distance, saved: [None; 6] };
    for (register, offset) in saved {
        frame.saved[*register] = Some(*offset);
    }
    Ok(frame)
}

fn on_rsp(distance: i64, saved: &[(usize, i64)]) -> Result<Frame, Unknown> {
    frame(Base::Rsp, distance, saved)
}

fn on(register: usize, distance: i64, saved: &[(usize, i64)]) -> Result<Frame, Unknown> {
    frame(Base::Preserved(register), distance, saved)
}

#[test]
fn pushes_save_and_pops_restore() {
    let code = Code::of(&[
        &[0x55],                   // push rbp
        &[0x41, 0x57],             // push r15
        &[0x53],                   // push rbx
        &[0x48, 0x83, 0xec, 0x28], // sub rsp, 0x28
        &[0x31, 0xdb],             // xor ebx, ebx
        &[0x31, 0xed],             // xor ebp, ebp
        &[0x45, 0x31, 0xff],       // xor r15d, r15d
        &[0xff, 0xd0],             // call rax
        &[0x48, 0x83, 0xc4, 0x28], // add rsp, 0x28
        &[0x5b],                   // pop rbx
        &[0x41, 0x5f],             // pop r15
        &[0x5d],                   // pop rbp
        &[0xc3],                   // ret
    ]);
    let all = [(RBX, -32), (R15, -24), (RBP, -16)];
    let expected = [
        on_rsp(8, &[]),
        on_rsp(16, &[]),
        on_rsp(24, &[]),
        on_rsp(32, &[]),
        on_rsp(72, &[]),
        on_rsp(72, &all[..1]),
        on_rsp(72, &[all[0], all[2]]),
        on_rsp(72, &all),
        on_rsp(72, &all),
        on_rsp(32, &all),
        on_rsp(24, &all[1..]),
        on_rsp(16, &all[2..]),
        on_rsp(8, &[]),
    ];
    assert_eq!(code.frames(), expected);
}

#[test]
fn a_frame_pointer_tells_the_frame_where_rsp_does_not() {
    let code = Code::of(&[
        &[0x55],                   // push rbp
        &[0x48, 0x89, 0xe5],       // mov rbp, rsp
        &[0x53],                   // push rbx
        &[0x48, 0x29, 0xc4],       // sub rsp, rax
        &[0x31, 0xdb],             // xor ebx, ebx
        &[0x48, 0x8d, 0x65, 0xf8], // lea rsp, [rbp - 8]
        &[0x5b],                   // pop rbx
        &[0xc9],                   // leave
        &[0xc3],                   // ret
    ]);
    let saved = [(RBP, -16), (RBX, -24)];
    let expected = [
        on_rsp(8, &[]),
        on_rsp(16, &[]),
        on_rsp(16, &saved[..1]),
        on_rsp(24, &saved[..1]),
        on(RBP, 16, &saved[..1]),
        on(RBP, 16, &saved),
        on_rsp(24, &saved),
        on_rsp(16, &saved[..1]),
        on_rsp(8, &[]),
    ];
    assert_eq!(code.frames(), expected);
}

#[test]
fn moves_save_and_restore_as_cranelift_writes_them() {
    let code = Code::of(&[
        &[0x55],                         // push rbp
        &[0x48, 0x89, 0xe5],             // mov rbp, rsp
        &[0x48, 0x83, 0xec, 0x30],       // sub rsp, 0x30
        &[0x48, 0x89, 0x5c, 0x24, 0x20], // mov [rsp + 0x20], rbx
        &[0x4c, 0x89, 0x65, 0xf8],       // mov [rbp - 8], r12
        &[0x48, 0x89, 0xfb],             // mov rbx, rdi
        &[0x49, 0x89, 0xf4],             // mov r12, rsi
        &[0xff, 0xd0],                   // call rax
        &[0x48, 0x8b, 0x5c, 0x24, 0x20], // mov rbx, [rsp + 0x20]
        &[0x4c, 0x8b, 0x65, 0xf8],       // mov r12, [rbp - 8]
        &[0x48, 0x89, 0xec],             // mov rsp, rbp
        &[0x5d],                         // pop rbp
        &[0xc3],                         // ret
    ]);
    let all = [(RBP, -16), (RBX, -32), (R12, -24)];
    let expected = [
        on_rsp(8, &[]),
        on_rsp(16, &[]),
        on_rsp(16, &all[..1]),
        on_rsp(64, &all[..1]),
        on_rsp(64, &all[..1]),
        on_rsp(64, &all[..1]),
        on_rsp(64, &all[..2]),
        on_rsp(64, &all),
        on_rsp(64, &all),
        on_rsp(64, &[all[0], all[2]]),
        on_rsp(64, &all[..1]),
        on_rsp(16, &all[..1]),
        on_rsp(8, &[]),
    ];
    assert_eq!(code.frames(), expected);
}

#[test]
fn ways_with_different_frames_are_told_apart() {
    let code = Code::of(&[
        &[0x48, 0x85, 0xff],                   // test rdi, rdi
        &[0x74, 0x07],                         // je early
        &[0x53],                               // push rbx
        &[0x31, 0xdb],                         // xor ebx, ebx
        &[0xff, 0xd0],                         // call rax
        &[0x5b],                               // pop rbx
        &[0xc3],                               // ret
        &[0x48, 0x89, 0xf8],                   // early: mov rax, rdi
        &[0xc3],                               // ret
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00], // nop
    ]);
    let expected = [
        on_rsp(8, &[]),
        on_rsp(8, &[]),
        on_rsp(8, &[]),
        on_rsp(16, &[]),
        on_rsp(16, &[(RBX, -16)]),
        on_rsp(16, &[(RBX, -16)]),
        on_rsp(8, &[]),
        on_rsp(8, &[]),
        on_rsp(8, &[]),
        Err(Unknown::NotReached),
    ];
    assert_eq!(code.frames(), expected);
}

#[test]
fn ways_that_contradict_each_other_are_no_answer() {
    let code = Code::of(&[
        &[0x74, 0x03],       // je over
        &[0x53],             // push rbx
        &[0x31, 0xdb],       // xor ebx, ebx
        &[0x48, 0x31, 0xc0], // over: xor rax, rax
        &[0x0f, 0x0b],       // ud2
    ]);
    assert_eq!(code.frame(2), on_rsp(16, &[]));
    assert_eq!(code.frame(3), Err(Unknown::NoBase));
}

#[test]
fn cases_of_a_jump_table_keep_its_frame() {
    // The table of Cranelift lies behind the jump, that of LLVM among the data.
    let behind = Code::of(&[
        &[0x53],                         // push rbx
        &[0x48, 0x8d, 0x05, 5, 0, 0, 0], // lea rax, [rip + 5]: the table
        &[0x48, 0x01, 0xc8],             // add rax, rcx
        &[0xff, 0xe0],                   // jmp rax
        &[8, 0, 0, 0, 0x0c, 0, 0, 0],    // the table: the next instruction, and the third one
        &[0x31, 0xdb],                   // xor ebx, ebx
        &[0x5b],                         // pop rbx
        &[0xc3],                         // ret
        &[0x5b],                         // pop rbx
        &[0xc3],                         // ret
    ]);
    assert_eq!(behind.frame(4), Err(Unknown::NotReached));
    assert_eq!(behind.frame(5), on_rsp(16, &[]));
    assert_eq!(behind.frame(6), on_rsp(16, &[(RBX, -16)]));
    assert_eq!(behind.frame(7), on_rsp(8, &[]));
    assert_eq!(behind.frame(8), on_rsp(16, &[]));
    let elsewhere = Code::of(&[
        &[0x53],       // push rbx
        &[0x85, 0xff], // test edi, edi
        &[0x75, 0x02], // jne over
        &[0xff, 0xe0], // jmp rax
        &[0x5b],       // over: pop rbx
        &[0xc3],       // ret
        &[0x31, 0xdb], // xor ebx, ebx
        &[0x5b],       // pop rbx
        &[0xc3],       // ret
    ]);
    assert_eq!(elsewhere.frame(6), on_rsp(16, &[]));
    assert_eq!(elsewhere.frame(7), on_rsp(16, &[(RBX, -16)]));
    assert_eq!(elsewhere.frame(8), on_rsp(8, &[]));
}

#[test]
fn a_jump_table_without_entries_ends_the_search() {
    let code = Code::of(&[
        &[0x48, 0x8d, 0x05, 2, 0, 0, 0], // lea rax, [rip + 2]
        &[0xff, 0xe0],                   // jmp rax
        &[0x0f, 0x1f, 0x40, 0x7f],       // nop: no offset of the function's code
        &[0xc3],                         // ret
    ]);
    assert_eq!(code.frame(3), on_rsp(8, &[]));
}

#[test]
fn a_jump_table_in_the_code_leads_to_its_cases_for_sure() {
    let code = Code::of(&[
        &[0x50],                         // push rax
        &[0x74, 0x12],                   // je other
        &[0x48, 0x8d, 0x05, 5, 0, 0, 0], // lea rax, [rip + 5]
        &[0x48, 0x01, 0xc8],             // add rax, rcx
        &[0xff, 0xe0],                   // jmp rax
        &[4, 0, 0, 0],                   // the table
        &[0x0f, 0x0b],                   // ud2
        &[0x48, 0x83, 0xec, 0x10],       // other: sub rsp, 0x10
        &[0xff, 0xd0],                   // call rax
    ]);
    assert_eq!(code.frame(6), on_rsp(16, &[]));
    assert_eq!(code.frame(8), on_rsp(32, &[]));
}

/// What a guess says about the third instruction. Before it: an indirect jump to another function (or a table) with the frame of
/// the entry, behind it: `other`, which makes a call with a larger frame.
fn guessed(case: &[&[u8]], other: &[&[u8]]) -> Result<Frame, Unknown> {
    let bytes: usize = case.iter().map(|instruction| instruction.len()).sum();
    let skip = [0x74, 2 + u8::try_from(bytes).expect("short")];
    let mut all: Vec<&[u8]> = vec![&skip, &[0xff, 0xe0]]; // je other; jmp rax
    all.extend_from_slice(case);
    all.extend_from_slice(other);
    Code::of(&all).frame(2)
}

#[test]
fn a_guess_is_judged_by_the_code_that_follows() {
    let call: [&[u8]; 3] = [
        &[0x50],       // push rax
        &[0xff, 0xd0], // call rax
        &[0x0f, 0x0b], // ud2
    ];
    let call_below: [&[u8]; 4] = [
        &[0x55],                   // push rbp
        &[0x48, 0x83, 0xe4, 0xf0], // and rsp, -16
        &[0xff, 0xd0],             // call rax
        &[0x0f, 0x0b],             // ud2
    ];
    // Nothing tells which one is right.
    assert_eq!(guessed(&[&[0x0f, 0x0b]], &call), Err(Unknown::NoBase)); // ud2
    // `rsp` is right at a return, or not.
    assert_eq!(guessed(&[&[0xc3]], &call_below), on_rsp(8, &[]));
    assert_eq!(guessed(&[&[0x58], &[0xc3]], &call), on_rsp(16, &[])); // pop rax; ret
    // A jump to another function leaves its caller's return address on the stack's top.
    assert_eq!(guessed(&[&[0xe9, 0, 1, 0, 0]], &call), on_rsp(8, &[])); // jmp elsewhere
    // At a call, `rsp` is aligned.
    assert_eq!(guessed(&[&[0xff, 0xd0], &[0x0f, 0x0b]], &call), on_rsp(16, &[])); // call rax; ud2
}

#[test]
fn better_ways_to_code_behind_a_call_replace_a_guess() {
    let code = Code::of(&[
        &[0x53],                   // push rbx
        &[0x74, 0x0c],             // je common
        &[0x75, 0x02],             // jne deep
        &[0xff, 0xe0],             // jmp rax
        &[0x48, 0x83, 0xec, 0x10], // deep: sub rsp, 0x10
        &[0xff, 0xd1],             // call rcx
        &[0xeb, 0x00],             // behind: jmp common
        &[0x5b],                   // common: pop rbx
        &[0xc3],                   // ret
        &[0x74, 0xfa],             // a case: je behind
    ]);
    assert_eq!(code.frame(5), on_rsp(32, &[]));
    assert_eq!(code.frame(6), on_rsp(16, &[]));
    let code = Code::of(&[
        &[0x53],                   // push rbx
        &[0x75, 0x04],             // jne over
        &[0xff, 0xe0],             // jmp rax
        &[0x74, 0x08],             // a case: je behind
        &[0x74, 0x08],             // over: je common
        &[0x48, 0x83, 0xec, 0x10], // sub rsp, 0x10
        &[0xff, 0xd1],             // call rcx
        &[0x0f, 0x0b],             // behind: ud2
        &[0x5b],                   // common: pop rbx
        &[0xc3],                   // ret
    ]);
    assert_eq!(code.frame(6), on_rsp(32, &[]));
    assert_eq!(code.frame(7), on_rsp(16, &[]));
    // And a guess that knows less changes nothing.
    let code = Code::of(&[
        &[0x55],             // push rbp
        &[0x48, 0x89, 0xe5], // mov rbp, rsp
        &[0x74, 0x05],       // je over
        &[0x48, 0x29, 0xc4], // sub rsp, rax
        &[0xff, 0xd1],       // call rcx
        &[0x5d],             // over: pop rbp
        &[0xc3],             // ret
    ]);
    assert_eq!(code.frame(4), on(RBP, 16, &[(RBP, -16)]));
    assert_eq!(code.frame(5), on_rsp(16, &[(RBP, -16)]));
}

#[test]
fn a_leaf_has_only_its_return_address() {
    let code = Code::of(&[&[0x48, 0x89, 0xf8], &[0xc3]]); // mov rax, rdi; ret
    assert_eq!(code.frames(), [on_rsp(8, &[]), on_rsp(8, &[])]);
    assert_eq!(frame_at(&code.bytes, ADDRESS, ADDRESS, ADDRESS - 1), Err(Unknown::NotReached));
    assert_eq!(frame_at(&code.bytes, ADDRESS, ADDRESS, ADDRESS + 4), Err(Unknown::NotReached));
    // Code before the function is not part of it, also where the function jumps there.
    let code = Code::of(&[
        &[0x50],       // push rax
        &[0xeb, 0x02], // jmp to the ret
        &[0x74, 0xfb], // the function: je to the push
        &[0xc3],       // ret
    ]);
    assert_eq!(frame_at(&code.bytes, ADDRESS, ADDRESS + 3, ADDRESS + 5), on_rsp(8, &[]));
    assert_eq!(frame_at(&code.bytes, ADDRESS, ADDRESS + 3, ADDRESS), Err(Unknown::NotReached));
}

#[test]
fn a_call_that_ends_the_code_has_the_frame_before_it() {
    let code = Code::of(&[
        &[0x50],             // push rax
        &[0xe8, 0, 1, 0, 0], // call elsewhere
    ]);
    let back = ADDRESS + code.bytes.len() as u64;
    assert_eq!(frame_at(&code.bytes, ADDRESS, ADDRESS, back - 1), on_rsp(16, &[]));
    assert_eq!(frame_at(&code.bytes, ADDRESS, ADDRESS, back), Err(Unknown::NotReached));
}

#[test]
fn code_behind_a_call_that_never_returns_has_its_own_frame() {
    let code = Code::of(&[
        &[0x83, 0xff, 0x02], // cmp edi, 2
        &[0x73, 0x02],       // jae panic
        &[0xff, 0xe0],       // jmp rax: to one of the last two instructions
        &[0x50],             // panic: push rax
        &[0xff, 0xd1],       // call rcx
        &[0x31, 0xc0],       // xor eax, eax
        &[0xc3],             // ret
    ]);
    assert_eq!(code.frame(4), on_rsp(16, &[]));
    assert_eq!(code.frame(5), on_rsp(8, &[]));
    // Here a branch leads behind the call, and knows better than the call does.
    let code = Code::of(&[
        &[0x74, 0x03], // je over
        &[0x50],       // push rax
        &[0xff, 0xd1], // call rcx
        &[0x31, 0xc0], // over: xor eax, eax
        &[0xc3],       // ret
    ]);
    assert_eq!(code.frame(2), on_rsp(16, &[]));
    assert_eq!(code.frame(3), on_rsp(8, &[]));
}

#[test]
fn what_cannot_be_known_is_an_error() {
    let code = Code::of(&[
        &[0x31, 0xdb],       // xor ebx, ebx
        &[0x48, 0x89, 0xc4], // mov rsp, rax
        &[0xc3],             // ret
    ]);
    assert_eq!(code.frames(), [on_rsp(8, &[]), Err(Unknown::Lost(RBX)), Err(Unknown::NoBase)]);
    let long = vec![0x90; 100_001];
    assert_eq!(frame_at(&long, ADDRESS, ADDRESS, ADDRESS), Err(Unknown::TooLong));
    assert_eq!(frame_at(&long[1..], ADDRESS, ADDRESS, ADDRESS), on_rsp(8, &[]));
    // What is no instruction ends the function.
    assert_eq!(frame_at(&[0x90, 0x06], ADDRESS, ADDRESS, ADDRESS + 1), Err(Unknown::NotReached));
    assert_eq!(frame_at(&[], u64::MAX, u64::MAX, u64::MAX), Err(Unknown::NotReached));
}

#[test]
fn a_register_that_keeps_rsp_tells_the_frame_of_an_aligned_stack() {
    let code = Code::of(&[
        &[0x53],                   // push rbx
        &[0x9c],                   // pushfq
        &[0x48, 0x89, 0xe3],       // mov rbx, rsp
        &[0x48, 0x83, 0xe4, 0xf0], // and rsp, -16
        &[0xff, 0xd0],             // call rax
        &[0x48, 0x89, 0xdc],       // mov rsp, rbx
        &[0x9d],                   // popfq
        &[0x5b],                   // pop rbx
        &[0xc3],                   // ret
    ]);
    let saved = [(RBX, -16)];
    let expected = [
        on_rsp(8, &[]),
        on_rsp(16, &[]),
        on_rsp(24, &[]),
        on_rsp(24, &saved),
        on(RBX, 24, &saved),
        on(RBX, 24, &saved),
        on_rsp(24, &saved),
        on_rsp(16, &saved),
        on_rsp(8, &[]),
    ];
    assert_eq!(code.frames(), expected);
}

#[test]
fn a_word_that_is_overwritten_saves_nothing() {
    let prologue: [&[u8]; 2] = [
        &[0x53],       // push rbx
        &[0x31, 0xdb], // xor ebx, ebx
    ];
    let after = |instruction: &[u8]| {
        let code = Code::of(&[prologue[0], prologue[1], instruction, &[0x90]]);
        assert_eq!(code.frame(2), on_rsp(16, &[(RBX, -16)]));
        code.frame(3)
    };
    assert_eq!(after(&[0x48, 0x89, 0x04, 0x24]), Err(Unknown::Lost(RBX))); // mov [rsp], rax
    assert_eq!(after(&[0xc6, 0x44, 0x24, 0x07, 1]), Err(Unknown::Lost(RBX))); // mov byte [rsp + 7], 1
    assert_eq!(after(&[0x0f, 0x11, 0x44, 0x24, 0xf8]), Err(Unknown::Lost(RBX))); // movups [rsp - 8], xmm0
    assert_eq!(after(&[0x48, 0x89, 0x5c, 0x24, 0xf8]), on_rsp(16, &[(RBX, -16)])); // mov [rsp - 8], rbx
    assert_eq!(after(&[0x64, 0x48, 0x89, 0x04, 0x24]), on_rsp(16, &[(RBX, -16)])); // mov fs:[rsp], rax
    // Signal handlers overwrite what lies below the red zone.
    assert_eq!(after(&[0x48, 0x83, 0xec, 0x80]), on_rsp(-112, &[(RBX, -16)])); // sub rsp, -128
    assert_eq!(after(&[0x48, 0x81, 0xc4, 0x88, 0, 0, 0]), Err(Unknown::Lost(RBX))); // add rsp, 0x88
    // Calls overwrite what lies below `rsp`.
    let code = Code::of(&[
        &[0x50],       // push rax
        &[0x53],       // push rbx
        &[0x31, 0xdb], // xor ebx, ebx
        &[0x59],       // pop rcx
        &[0x59],       // pop rcx
        &[0xff, 0xd0], // call rax
        &[0x31, 0xc0], // xor eax, eax
    ]);
    assert_eq!(code.frame(5), on_rsp(8, &[(RBX, -24)]));
    assert_eq!(code.frame(6), Err(Unknown::Lost(RBX)));
    // Where ways meet, all of them must have saved it.
    let code = Code::of(&[
        &[0x74, 0x03], // je over
        &[0x53],       // push rbx
        &[0xeb, 0x01], // jmp behind
        &[0x50],       // over: push rax
        &[0x31, 0xdb], // behind: xor ebx, ebx
        &[0x0f, 0x0b], // ud2
    ]);
    assert_eq!(code.frame(4), on_rsp(16, &[]));
    assert_eq!(code.frame(5), Err(Unknown::Lost(RBX)));
}

#[test]
fn calls_change_scratch_registers_and_those_of_the_next_instruction_push() {
    let code = Code::of(&[
        &[0x50],             // push rax
        &[0x49, 0x89, 0xe2], // mov r10, rsp
        &[0xff, 0xd0],       // call rax
        &[0x4c, 0x89, 0xd4], // mov rsp, r10
        &[0x0f, 0x0b],       // ud2
    ]);
    assert_eq!(code.frame(3), on_rsp(16, &[]));
    assert_eq!(code.frame(4), Err(Unknown::NoBase));
    let code = Code::of(&[
        &[0xe8, 0, 0, 0, 0], // call the next instruction
        &[0x58],             // pop rax
        &[0xc3],             // ret
    ]);
    assert_eq!(code.frames(), [on_rsp(8, &[]), on_rsp(16, &[]), on_rsp(8, &[])]);
}

#[test]
fn a_loop_that_probes_the_stack_ends_with_a_known_frame() {
    let code = Code::of(&[
        &[0x4c, 0x8d, 0x9c, 0x24, 0x00, 0xa0, 0xff, 0xff], // lea r11, [rsp - 0x6000]
        &[0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00],       // sub rsp, 0x1000
        &[0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0],             // mov qword [rsp], 0
        &[0x4c, 0x39, 0xdc],                               // cmp rsp, r11
        &[0x75, 0xec],                                     // jne to the sub
        &[0x48, 0x83, 0xec, 0x10],                         // sub rsp, 0x10
        &[0xc3],                                           // ret
    ]);
    assert_eq!(code.frame(1), Err(Unknown::NoBase));
    assert_eq!(code.frame(4), Err(Unknown::NoBase));
    assert_eq!(code.frame(5), on_rsp(0x6008, &[]));
    assert_eq!(code.frame(6), on_rsp(0x6018, &[]));
}

#[test]
fn the_caller_has_what_its_callee_saved() {
    let registers = Registers { rip: 0x1234, rsp: 0x7000, preserved: [1, 0x7020, 3, 4, 5, 6] };
    // Words of the stack have their addresses as values.
    let read = |address| (0x7000..0x7100).contains(&address).then_some(address);
    let inner = on_rsp(0x40, &[(RBX, -24), (R15, -32)]).expect("a frame");
    let outer = Registers { rip: 0x7038, rsp: 0x7040, preserved: [0x7028, 0x7020, 3, 4, 5, 0x7020] };
    assert_eq!(caller(&registers, &inner, read), Some(outer));
    let by_rbp = on(RBP, 0x10, &[(RBP, -16)]).expect("a frame");
    let outer = Registers { rip: 0x7028, rsp: 0x7030, preserved: [1, 0x7020, 3, 4, 5, 6] };
    assert_eq!(caller(&registers, &by_rbp, read), Some(outer));
    // A word that cannot be read is no word.
    assert_eq!(caller(&registers, &on_rsp(0x200, &[]).expect("a frame"), read), None);
    assert_eq!(caller(&registers, &on_rsp(0x40, &[(RBX, -0x100)]).expect("a frame"), read), None);
    assert_eq!(caller(&registers, &on(6, 0x40, &[]).expect("a frame"), read), None);
}
