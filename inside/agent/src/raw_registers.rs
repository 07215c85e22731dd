//! Assembler on a thread's registers, which lie in a `PtRegs` at `rsp`.

/// `naked_asm!` or `asm!`, lines and then operands, in which the names of registers stand for their places.
macro_rules! asm_on_registers {
    ($asm:ident: $($line:expr),* $(,)?; $($operands:tt)*) => {
        core::arch::$asm!(
            $($line,)*
            // What nobody names would be an error.
            "/* {r15} {r14} {r13} {r12} {rbp} {rbx} {r11} {r10} {r9} {r8} {rax} {rcx} {rdx} {rsi} {rdi} */",
            "/* {orig_rax} {rip} {cs} {eflags} {rsp} {ss} */",
            r15 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r15),
            r14 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r14),
            r13 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r13),
            r12 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r12),
            rbp = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rbp),
            rbx = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rbx),
            r11 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r11),
            r10 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r10),
            r9 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r9),
            r8 = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, r8),
            rax = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rax),
            rcx = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rcx),
            rdx = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rdx),
            rsi = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rsi),
            rdi = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rdi),
            orig_rax = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, orig_rax),
            rip = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rip),
            cs = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, cs),
            eflags = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, eflags),
            rsp = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, rsp),
            ss = const core::mem::offset_of!(ring3_uapi::ptrace::PtRegs, ss),
            $($operands)*
        )
    };
}

/// Stores the arguments of system calls.
macro_rules! store_arguments {
    () => {
        concat!(
            "mov [rsp + {rdi}], rdi\n",
            "mov [rsp + {rsi}], rsi\n",
            "mov [rsp + {rdx}], rdx\n",
            "mov [rsp + {r10}], r10\n",
            "mov [rsp + {r8}], r8\n",
            "mov [rsp + {r9}], r9",
        )
    };
}

/// Loads them.
macro_rules! load_arguments {
    () => {
        concat!(
            "mov rdi, [rsp + {rdi}]\n",
            "mov rsi, [rsp + {rsi}]\n",
            "mov rdx, [rsp + {rdx}]\n",
            "mov r10, [rsp + {r10}]\n",
            "mov r8, [rsp + {r8}]\n",
            "mov r9, [rsp + {r9}]",
        )
    };
}

/// Stores what functions keep, but for `rbx`.
macro_rules! store_kept {
    () => {
        concat!(
            "mov [rsp + {rbp}], rbp\n",
            "mov [rsp + {r12}], r12\n",
            "mov [rsp + {r13}], r13\n",
            "mov [rsp + {r14}], r14\n",
            "mov [rsp + {r15}], r15",
        )
    };
}

pub(crate) use {asm_on_registers, load_arguments, store_arguments, store_kept};
