//! Entry points for calls that no syscall trampoline of a site makes: the handler of SIGSYS, and the code after the SUD
//! trampolines.

use core::arch::naked_asm;
use core::mem::offset_of;

use ring3_layout::syscall::AGENT_STACK_BYTES;
use ring3_layout::thread::ThreadBlock;
use ring3_runtime::raw_guarded;
use ring3_runtime::raw_sud::{self, Context, Info};
use ring3_runtime::raw_syscalls::FRAME_BYTES;
use ring3_runtime::raw_trap;
use ring3_runtime::raw_unwound::{self, Sent};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_registers::{asm_on_registers, load_arguments, store_arguments, store_kept};
use crate::raw_syscall_entry::restore_flags;
use ring3_runtime::raw_system::image_base;

extern "sysv64" fn take_stack() -> *mut ThreadBlock {
    raw_sud::take_stack(image_base())
}

unsafe extern "sysv64" fn caught(info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the handler's promise.
    unsafe { raw_sud::caught(image_base(), info, context, frame) }
}

unsafe extern "sysv64" fn exit(regs: *mut PtRegs, came: u64) {
    // SAFETY: the trampoline's promise.
    unsafe { raw_sud::exit(image_base(), regs, came) }
}

/// Keeps what a signal handler was called with, and its stack pointer, in registers that come back with the signal frame.
macro_rules! keep_arguments {
    () => {
        "mov rbp, rsp; mov r12, rdi; mov r13, rsi; mov r14, rdx; and rsp, -16"
    };
}

/// Goes on as the handler in `rax` would have been called.
macro_rules! go_on {
    () => {
        "mov rdi, r12; mov rsi, r13; mov rdx, r14; jmp rax"
    };
}

/// A handler that asks a function what is to be done.
macro_rules! ask {
    () => {
        concat!(
            keep_arguments!(),
            "\nmov rdi, r13; mov rsi, r14; mov rdx, rbp; call {ask}; mov rsp, rbp; test rax, rax; jnz 2f; ret\n2: ",
            go_on!(),
        )
    };
}

/// The handler of SIGSYS. What programs need of a stack they have in the thread's block, if there is room.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_sud_signal() {
    naked_asm!(
        keep_arguments!(),
        "call {take_stack}",
        "mov r15, rax",
        "test rax, rax",
        "jz 2f",
        "mov rsp, [rax + {agent_stack_top}]",
        "add rsp, {agent_stack_bytes}",
        "2: mov rdi, r13",
        "mov rsi, r14",
        "mov rdx, rbp",
        "call {caught}",
        "mov rsp, rbp",
        "test r15, r15",
        "jz 3f",
        "add qword ptr [r15 + {agent_stack_top}], {agent_stack_bytes}",
        "3: test rax, rax",
        "jnz 4f",
        "ret",
        "4:",
        go_on!(),
        take_stack = sym take_stack,
        caught = sym caught,
        agent_stack_top = const offset_of!(ThreadBlock, agent_stack_top),
        agent_stack_bytes = const AGENT_STACK_BYTES,
    )
}

unsafe extern "sysv64" fn trapped(info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the handler's promise.
    unsafe { raw_trap::trapped(image_base(), info, context, frame) }
}

/// The handler of SIGTRAP.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_trap_signal() {
    naked_asm!(ask!(), ask = sym trapped)
}

unsafe extern "sysv64" fn faulted(info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the handler's promise.
    unsafe { raw_guarded::faulted(image_base(), info, context, frame) }
}

/// The handler of SIGSEGV and SIGBUS.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_fault_signal() {
    naked_asm!(ask!(), ask = sym faulted)
}

/// Where these handlers return to.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_signal_restorer() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// The handler of SIGCANCEL that stands before the process's own, and has the return address and the registers that this is to
/// find.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_cancel_signal() {
    naked_asm!(
        keep_arguments!(),
        "lea rdi, [rip + __ehdr_start]",
        "mov rcx, rbp",
        "call {arrived}",
        "mov rsp, rbp",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2:",
        go_on!(),
        arrived = sym arrived,
    )
}

unsafe extern "sysv64" fn arrived(base: u64, sent: *mut Sent, context: *mut Context, frame: *const u64) -> u64 {
    // SAFETY: the handler's promise.
    unsafe { raw_unwound::arrived(base, sent, context, frame) }
}

/// Where the SUD trampolines lead after their calls: all registers but `rcx` and `r11`, where the kernel left where it
/// was and the flags, are the thread's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_sud_exit() {
    asm_on_registers!(naked_asm:
        "lea rsp, [rsp - {frame}]",
        "mov [rsp + {eflags}], r11",
        "mov [rsp + {r11}], r11",
        "lea r11, [rsp + {frame}]",
        "mov [rsp + {rsp}], r11",
        "mov [rsp + {rax}], rax",
        store_arguments!(),
        "mov [rsp + {rbx}], rbx",
        store_kept!(),
        "mov qword ptr [rsp + {cs}], 0x33",
        "mov qword ptr [rsp + {ss}], 0x2b",
        "mov qword ptr [rsp + {orig_rax}], -1",
        "cld",
        "mov rdi, rsp",
        "lea rsi, [rcx - 2]",
        "mov rbx, rsp",
        "and rsp, -16",
        "call {exit}",
        "mov rsp, rbx",
        restore_flags!(),
        "mov rax, [rsp + {rax}]",
        load_arguments!(),
        "mov rbx, [rsp + {rbx}]",
        "mov r11, [rsp + {r11}]",
        "mov rcx, [rsp + {rip}]",
        "mov rsp, [rsp + {rsp}]",
        "jmp rcx";
        frame = const FRAME_BYTES,
        exit = sym exit,
    )
}
