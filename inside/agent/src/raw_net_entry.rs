//! Where calls go that no gate of a site makes: the handler of SIGSYS, and the net's gates.

use core::arch::naked_asm;
use core::mem::offset_of;

use ring3_layout::net::NET_SLOTS;
use ring3_layout::syscall::APART_BYTES;
use ring3_layout::thread::ThreadBlock;
use ring3_runtime::raw_net::{self, Context, Info};
use ring3_runtime::raw_syscalls::FRAME_BYTES;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_entry::image_base;
use crate::raw_syscall_entry::restore_flags;

extern "sysv64" fn take_stack() -> *mut ThreadBlock {
    raw_net::take_stack(image_base())
}

unsafe extern "sysv64" fn caught(info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the handler's promise.
    unsafe { raw_net::caught(image_base(), info, context, frame) }
}

unsafe extern "sysv64" fn exit(regs: *mut PtRegs, came: u64) {
    // SAFETY: the gate's promise.
    unsafe { raw_net::exit(image_base(), regs, came) }
}

/// The handler of SIGSYS. What programs need of a stack they have in the thread's block, if there is room.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_net_signal() {
    naked_asm!(
        // Whatever is in these comes back with the signal frame.
        "mov rbp, rsp",
        "mov r12, rdi",
        "mov r13, rsi",
        "mov r14, rdx",
        "and rsp, -16",
        "call {take_stack}",
        "mov r15, rax",
        "test rax, rax",
        "jz 2f",
        "mov rsp, [rax + {apart_top}]",
        "add rsp, {apart_bytes}",
        "2: mov rdi, r13",
        "mov rsi, r14",
        "mov rdx, rbp",
        "call {caught}",
        "mov rsp, rbp",
        "test r15, r15",
        "jz 3f",
        "add qword ptr [r15 + {apart_top}], {apart_bytes}",
        "3: test rax, rax",
        "jnz 4f",
        "ret",
        "4: mov rdi, r12",
        "mov rsi, r13",
        "mov rdx, r14",
        "jmp rax",
        take_stack = sym take_stack,
        caught = sym caught,
        apart_top = const offset_of!(ThreadBlock, apart_top),
        apart_bytes = const APART_BYTES,
    )
}

/// Where that handler returns to.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_net_restorer() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// The gates. Behind each call `rcx` says which one it was.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_net_gates() {
    naked_asm!(
        ".rept {slots}",
        "syscall",
        // jmp rel32, however near it is
        ".byte 0xe9",
        ".long {exit} - (. + 4)",
        "int3",
        ".endr",
        slots = const NET_SLOTS,
        exit = sym ring3_net_exit,
    )
}

/// Behind the call of a gate: all registers but `rcx` and `r11`, where the kernel left where it was and the flags, are the
/// thread's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_net_exit() {
    naked_asm!(
        "lea rsp, [rsp - {frame}]",
        "mov [rsp + {eflags}], r11",
        "mov [rsp + {r11}], r11",
        "lea r11, [rsp + {frame}]",
        "mov [rsp + {rsp}], r11",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {rbx}], rbx",
        "mov [rsp + {rbp}], rbp",
        "mov [rsp + {r12}], r12",
        "mov [rsp + {r13}], r13",
        "mov [rsp + {r14}], r14",
        "mov [rsp + {r15}], r15",
        "mov qword ptr [rsp + {orig_rax}], -1",
        "mov qword ptr [rsp + {cs}], 0x33",
        "mov qword ptr [rsp + {ss}], 0x2b",
        "cld",
        "mov rdi, rsp",
        "lea rsi, [rcx - 2]",
        "mov rbx, rsp",
        "and rsp, -16",
        "call {exit}",
        "mov rsp, rbx",
        restore_flags!(),
        "mov rax, [rsp + {rax}]",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov rbx, [rsp + {rbx}]",
        "mov r11, [rsp + {r11}]",
        "mov rcx, [rsp + {rip}]",
        "mov rsp, [rsp + {rsp}]",
        "jmp rcx",
        frame = const FRAME_BYTES,
        exit = sym exit,
        rax = const offset_of!(PtRegs, rax),
        orig_rax = const offset_of!(PtRegs, orig_rax),
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
        rip = const offset_of!(PtRegs, rip),
        rsp = const offset_of!(PtRegs, rsp),
    )
}
