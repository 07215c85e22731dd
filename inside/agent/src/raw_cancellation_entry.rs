//! Entry points of near stubs at calls of routines in which threads are cancelled: before the call, and at its return.
//!
//! Both run on the caller's stack at a function's entry or right after a call. So the flags mean nothing there, and nothing lies
//! below the stack pointer.

use ring3_runtime::raw_cancellation;
use ring3_runtime::raw_syscalls::{FRAME_BYTES, NO_FLAGS};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_registers::{asm_on_registers, load_arguments, store_arguments, store_kept};
use ring3_runtime::raw_system::image_base;

/// Where in the frame stands where to go on, behind the word that says what stack it is on.
const TARGET: usize = size_of::<PtRegs>() + 8;

unsafe extern "sysv64" fn enter(regs: *mut PtRegs, index: u32) -> bool {
    // SAFETY: the stub's promise.
    unsafe { raw_cancellation::enter(image_base(), regs, index) }
}

unsafe extern "sysv64" fn exit(regs: *mut PtRegs, index: u32) {
    // SAFETY: the stub's promise.
    unsafe { raw_cancellation::exit(image_base(), regs, index) }
}

/// Stores what both have at the same place in the frame at `rsp`.
macro_rules! store {
    () => {
        concat!("mov [rsp + {rbx}], rbx\n", store_kept!(), "\n", "mov qword ptr [rsp + {eflags}], {no_flags}")
    };
}

/// The arguments of the routine are in its registers and on the stack; the index is in `eax`, and where the routine begins
/// in `r10`. All but `rax`, `r10` and `r11` are as they were when it is gone on there, or the routine's caller goes on with the
/// result. What the routine gets is kept below the caller's stack pointer, where it may itself store what it likes.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_cancellation_enter() {
    asm_on_registers!(naked_asm:
        "mov r11, rsp",
        "lea rsp, [rsp - {frame}]",
        "mov [r11 - 8], rdi",
        "mov [r11 - 16], rsi",
        "mov [r11 - 24], rdx",
        "mov [r11 - 32], rcx",
        "mov [r11 - 40], r8",
        "mov [r11 - 48], r9",
        "mov [rsp + {target}], r10",
        "mov [rsp + {rsp}], r11",
        "mov [rsp + {orig_rax}], rsi",
        "mov qword ptr [rsp + {rax}], -38",
        "mov [rsp + {rdi}], rdx",
        "mov [rsp + {rsi}], rcx",
        "mov [rsp + {rdx}], r8",
        "mov [rsp + {r10}], r9",
        "mov r10, [r11 + 8]",
        "mov [rsp + {r8}], r10",
        "mov r10, [r11 + 16]",
        "mov [rsp + {r9}], r10",
        store!(),
        "mov rdi, rsp",
        "mov esi, eax",
        "mov rbx, rsp",
        "and rsp, -16",
        "call {enter}",
        "mov rsp, rbx",
        "mov rbx, [rsp + {rbx}]",
        "mov r10, [rsp + {target}]",
        "test al, al",
        "mov rax, [rsp + {rax}]",
        "lea rsp, [rsp + {frame}]",
        "jz 2f",
        "mov rdi, [rsp - 8]",
        "mov rsi, [rsp - 16]",
        "mov rdx, [rsp - 24]",
        "mov rcx, [rsp - 32]",
        "mov r8, [rsp - 40]",
        "mov r9, [rsp - 48]",
        "jmp r10",
        "2: ret";
        frame = const FRAME_BYTES,
        target = const TARGET,
        no_flags = const NO_FLAGS,
        enter = sym enter,
    )
}

/// The result is in `rax`, the index in `ecx`, and where the displaced code begins in `r11`. All but `rcx`, `r11` and the flags
/// are as they were when it is gone on there. At the call the stack pointer was lower by the return address.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_cancellation_exit() {
    asm_on_registers!(naked_asm:
        "lea rsp, [rsp - {frame}]",
        "mov [rsp + {target}], r11",
        "lea r11, [rsp + {frame} - 8]",
        "mov [rsp + {rsp}], r11",
        "mov [rsp + {rax}], rax",
        store_arguments!(),
        store!(),
        "mov rdi, rsp",
        "mov esi, ecx",
        "mov rbx, rsp",
        "and rsp, -16",
        "call {exit}",
        "mov rsp, rbx",
        "mov rax, [rsp + {rax}]",
        load_arguments!(),
        "mov rbx, [rsp + {rbx}]",
        "mov r11, [rsp + {target}]",
        "lea rsp, [rsp + {frame}]",
        "jmp r11";
        frame = const FRAME_BYTES,
        target = const TARGET,
        no_flags = const NO_FLAGS,
        exit = sym exit,
    )
}
