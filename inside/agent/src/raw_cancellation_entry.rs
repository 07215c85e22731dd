//! Where the near stubs lead of those who call routines in which threads are cancelled.
//!
//! Both come on the caller's stack, where functions begin and where calls have returned to: the flags mean nothing, and nothing
//! lies below the stack pointer.

use core::arch::naked_asm;
use core::mem::offset_of;

use ring3_runtime::raw_cancellation;
use ring3_runtime::raw_syscalls::FRAME_BYTES;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_entry::image_base;

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
        concat!(
            "mov [rsp + {rbx}], rbx\n",
            "mov [rsp + {rbp}], rbp\n",
            "mov [rsp + {r12}], r12\n",
            "mov [rsp + {r13}], r13\n",
            "mov [rsp + {r14}], r14\n",
            "mov [rsp + {r15}], r15\n",
            "mov qword ptr [rsp + {r11}], 0x246\n",
            "mov qword ptr [rsp + {eflags}], 0x246\n",
            "mov qword ptr [rsp + {cs}], 0x33\n",
            "mov qword ptr [rsp + {ss}], 0x2b\n",
        )
    };
}

/// The arguments of the routine are in its registers and on the stack; the index is in `eax`, and where the routine begins
/// in `r10`. All but `rax`, `r10` and `r11` are as they were when it is gone on there, or the routine's caller goes on with the
/// result. What the routine gets is kept below the caller's stack pointer, where it may itself store what it likes.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_cancellation_enter() {
    naked_asm!(
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
        "2: ret",
        frame = const FRAME_BYTES,
        target = const TARGET,
        orig_rax = const offset_of!(PtRegs, orig_rax),
        rax = const offset_of!(PtRegs, rax),
        rdi = const offset_of!(PtRegs, rdi),
        rsi = const offset_of!(PtRegs, rsi),
        rdx = const offset_of!(PtRegs, rdx),
        r10 = const offset_of!(PtRegs, r10),
        r11 = const offset_of!(PtRegs, r11),
        r8 = const offset_of!(PtRegs, r8),
        r9 = const offset_of!(PtRegs, r9),
        rbx = const offset_of!(PtRegs, rbx),
        rbp = const offset_of!(PtRegs, rbp),
        r12 = const offset_of!(PtRegs, r12),
        r13 = const offset_of!(PtRegs, r13),
        r14 = const offset_of!(PtRegs, r14),
        r15 = const offset_of!(PtRegs, r15),
        cs = const offset_of!(PtRegs, cs),
        ss = const offset_of!(PtRegs, ss),
        eflags = const offset_of!(PtRegs, eflags),
        rsp = const offset_of!(PtRegs, rsp),
        enter = sym enter,
    )
}

/// The result is in `rax`, the index in `ecx`, and where the displaced code begins in `r11`. All but `rcx`, `r11` and the flags
/// are as they were when it is gone on there. At the call the stack pointer was lower by the return address.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_cancellation_exit() {
    naked_asm!(
        "lea rsp, [rsp - {frame}]",
        "mov [rsp + {target}], r11",
        "lea r11, [rsp + {frame} - 8]",
        "mov [rsp + {rsp}], r11",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        store!(),
        "mov rdi, rsp",
        "mov esi, ecx",
        "mov rbx, rsp",
        "and rsp, -16",
        "call {exit}",
        "mov rsp, rbx",
        "mov rax, [rsp + {rax}]",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov rbx, [rsp + {rbx}]",
        "mov r11, [rsp + {target}]",
        "lea rsp, [rsp + {frame}]",
        "jmp r11",
        frame = const FRAME_BYTES,
        target = const TARGET,
        rax = const offset_of!(PtRegs, rax),
        rdi = const offset_of!(PtRegs, rdi),
        rsi = const offset_of!(PtRegs, rsi),
        rdx = const offset_of!(PtRegs, rdx),
        r10 = const offset_of!(PtRegs, r10),
        r11 = const offset_of!(PtRegs, r11),
        r8 = const offset_of!(PtRegs, r8),
        r9 = const offset_of!(PtRegs, r9),
        rbx = const offset_of!(PtRegs, rbx),
        rbp = const offset_of!(PtRegs, rbp),
        r12 = const offset_of!(PtRegs, r12),
        r13 = const offset_of!(PtRegs, r13),
        r14 = const offset_of!(PtRegs, r14),
        r15 = const offset_of!(PtRegs, r15),
        cs = const offset_of!(PtRegs, cs),
        ss = const offset_of!(PtRegs, ss),
        eflags = const offset_of!(PtRegs, eflags),
        rsp = const offset_of!(PtRegs, rsp),
        exit = sym exit,
    )
}
