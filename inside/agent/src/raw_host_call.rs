//! Calls of the host's functions by extensions.

use core::arch::naked_asm;
use core::mem::offset_of;

use ring3_layout::thread::ThreadBlock;
use ring3_runtime::raw_extension::{HostTimes, begin_host_call, end_host_call, host_variable};

/// Room for the state of the vector registers as XSAVE writes it without AMX: 2688 bytes on all CPUs with AVX-512 so far.
const XSAVE_BYTES: usize = 2752;
/// x87, SSE, AVX and AVX-512: all that functions' arguments and results may be in. (What the CPU or the kernel does not have is not
/// saved.)
const XSAVE_COMPONENTS: u32 = 0xe7;

/// Calls the function that `ThreadBlock::call_word` names, and returns its result.
///
/// | | |
/// |---|---|
/// | in | `rdi`, `rsi`, `rdx`, `rcx`, `r8`: the arguments; `r9`: the thread block |
/// | out | `rax`: the result |
/// | changes | what a function may change, but for vector registers and x87, which may hold arguments of the probed function or its result |
/// | stack | 3 KiB, and what the function takes |
/// | interrupted by | signal handlers; hooks in the called function find the guard set |
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_host_call() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "sub rsp, {times}",
        "mov rbx, r9",
        "mov r12, [rbx + {attachment}]",
        "mov r13, [rbx + {call_word}]",
        "sub rsp, {room}",
        "and rsp, -64",
        "mov r14, rsp",
        // The header of the area.
        "xor eax, eax",
        "lea rdi, [rsp + 512]",
        "mov ecx, 8",
        "rep stosq",
        "mov eax, {components}",
        "xor edx, edx",
        "xsave64 [r14]",
        "mov rdi, rbx",
        "lea rsi, [rbp - 72 - {times}]",
        "call {begin}",
        "mov r11, rax",
        "mov rdi, [rbp - 40]",
        "mov rsi, [rbp - 48]",
        "mov rdx, [rbp - 56]",
        "mov rcx, [rbp - 64]",
        "mov r8, [rbp - 72]",
        "xor eax, eax",
        "call r11",
        "mov [rbp - 40], rax",
        "mov eax, {components}",
        "xor edx, edx",
        "xrstor64 [r14]",
        "mov rdi, rbx",
        "mov rsi, [rbp - 40]",
        "mov rdx, r12",
        "mov rcx, r13",
        "lea r8, [rbp - 72 - {times}]",
        "call {end}",
        "lea rsp, [rbp - 32]",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        attachment = const offset_of!(ThreadBlock, attachment),
        call_word = const offset_of!(ThreadBlock, call_word),
        times = const size_of::<HostTimes>(),
        room = const XSAVE_BYTES + 64,
        components = const XSAVE_COMPONENTS,
        begin = sym begin_host_call,
        end = sym end_host_call,
    )
}

/// The address of the variable that `ThreadBlock::call_word` names.
///
/// # Safety
/// Called by an extension's program with the thread block that it was given.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_host_variable(env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { host_variable(env) }
}
