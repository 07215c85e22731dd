//! Where gates of system calls lead.
//!
//! A gate passes what it is in `ecx`; `r11` is free. All other registers and the stack are those of the caller, who may use what
//! lies below its stack pointer.
//!
//! Some callers have no stack that could be used: goroutines, whose stacks have room for nothing that the linker has not seen,
//! and threads that end and have unmapped theirs. Calls of these run on a stack in the thread's block, which GS leads to; of
//! threads that are not known yet, one at a time, on the last stack. The thread's own is not touched.

use core::arch::naked_asm;
use core::mem::offset_of;

use ring3_layout::region::{
    CONTROL_OFFSET, GATES_OFFSET, LAST_STACK_OFFSET, PROCESS_OFFSET, STATE_BYTES, STATE_OFFSET,
};
use ring3_layout::syscall::{
    ALL_REGISTERS, APART_BYTES, CALL_AT, DONE_AT, GATE_BYTES, SyscallTables, TABLES_OFFSET, WANTED_AT, WANTED_DONE_AT,
};
use ring3_layout::thread::{ProcessPage, StateHeader, ThreadBlock};
use ring3_runtime::raw_syscalls::{self, FRAME_BYTES, LAST_STACK, STACK_OF_BLOCK};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_entry::image_base;
use crate::raw_registers::{asm_on_registers, load_arguments, store_arguments, store_kept};

/// Where in the frame stands how to leave.
const STACK: usize = size_of::<PtRegs>();
/// Whether programs need all registers, from the region's first byte.
const REGISTERS: usize = CONTROL_OFFSET as usize + TABLES_OFFSET as usize + offset_of!(SyscallTables, registers);

unsafe extern "sysv64" fn enter(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the gate's promise.
    unsafe { raw_syscalls::enter(image_base(), regs, passed) }
}

unsafe extern "sysv64" fn exit(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the gate's promise.
    unsafe { raw_syscalls::exit(image_base(), regs, passed) }
}

unsafe extern "sysv64" fn enter_apart(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the gate's promise.
    unsafe { raw_syscalls::enter_closely(image_base(), regs, passed) }
}

unsafe extern "sysv64" fn exit_apart(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the gate's promise.
    unsafe { raw_syscalls::exit_closely(image_base(), regs, passed) }
}

/// Stores the registers in the frame at `rsp` that the agent needs, `r11` being the caller's stack pointer.
macro_rules! store_some {
    () => {
        concat!(
            "mov [rsp + {rsp}], r11\n",
            "mov [rsp + {number}], rax\n",
            "mov [rsp + {rbx}], rbx\n",
            store_arguments!(),
        )
    };
}

/// Stores the others, and says so.
macro_rules! store_others {
    ($result:literal) => {
        concat!(
            $result,
            "\n",
            store_kept!(),
            "\n",
            "mov rax, [rsp + {eflags}]\n",
            "mov [rsp + {r11}], rax\n",
            "or ecx, {all_registers}",
        )
    };
}

/// Passes the frame at `rsp` on.
macro_rules! pass {
    () => {
        concat!("mov rdi, rsp\n", "mov esi, ecx\n", "mov rbx, rsp\n", "and rsp, -16\n", "call {of}\n", "mov rsp, rbx")
    };
}

/// The status and direction flags as they were. Not by `popfq`: a debugger that steps over that leaves its trap flag behind
/// (arch/x86/kernel/step.c:enable_single_step).
macro_rules! restore_flags {
    () => {
        concat!(
            "test dword ptr [rsp + {eflags}], 0x400\n",
            "jz 2f\n",
            "std\n",
            "2: mov ecx, [rsp + {eflags}]\n",
            "mov eax, ecx\n",
            "shl eax, 8\n",
            "shr ecx, 11\n",
            "and ecx, 1\n",
            "mov al, cl\n",
            // The overflow flag, if it was set; the others come from `ah`.
            "add al, 0x7f\n",
            "sahf",
        )
    };
}

/// Loads the registers from the frame at `rsp`.
macro_rules! load {
    () => {
        concat!("mov rax, [rsp + {number}]\n", load_arguments!(), "\n", "mov rbx, [rsp + {rbx}]",)
    };
}

pub(crate) use restore_flags;

/// On the caller's stack: `$number` is what `rax` is, `$result` what else there is to store. `$save` and `$restore` are for the
/// flags; `$assume` is for those that mean nothing.
macro_rules! entry {
    ($name:ident, $of:ident, $number:ident, $result:literal, $save:literal, $assume:literal, $restore:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            asm_on_registers!(
                "mov r11, rsp",
                "lea rsp, [rsp - {frame}]",
                $save,
                store_some!(),
                "cmp dword ptr [rip + __ehdr_start + {registers}], 0",
                "jne 8f",
                "7:",
                pass!(),
                "mov r11, rax",
                $restore,
                load!(),
                "mov rsp, [rsp + {rsp}]",
                "jmp r11",
                "8:",
                $assume,
                store_others!($result),
                "jmp 7b";
                frame = const FRAME_BYTES,
                registers = const REGISTERS,
                all_registers = const ALL_REGISTERS,
                number = const offset_of!(PtRegs, $number),
                of = sym $of,
            )
        }
    };
}

/// As `entry`, on another stack. `$known` and `$unknown` are where in gates a caller goes on for which there is none at present.
macro_rules! entry_apart {
    ($name:ident, $of:ident, $number:ident, $result:literal, $known:expr, $unknown:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            asm_on_registers!(
                // Whether GS leads to a block that is the thread's own: as `raw_thread::at_gs`.
                "rdgsbase r11",
                "sub r11, [rip + __ehdr_start + {blocks}]",
                "cmp r11, {state_bytes}",
                "jae 4f",
                "rdfsbase r11",
                "cmp gs:[{fs_base}], r11",
                "jne 4f",
                "mov r11, [rip + __ehdr_start + {process}]",
                "test r11, r11",
                "jz 4f",
                "cmp gs:[{generation}], r11",
                "jne 4f",
                "mov r11, gs:[{apart_top}]",
                "cmp r11, gs:[{apart_end}]",
                "jbe 4f",
                "sub qword ptr gs:[{apart_top}], {apart_bytes}",
                "mov qword ptr [r11 - {frame} + {stack}], {stack_of_block}",
                "2: lea r11, [r11 - {frame}]",
                "xchg r11, rsp",
                "mov qword ptr [rsp + {eflags}], 0x246",
                store_some!(),
                store_others!($result),
                pass!(),
                "mov r11, rax",
                load!(),
                "cmp dword ptr [rsp + {stack}], {is_last}",
                "je 3f",
                "mov rsp, [rsp + {rsp}]",
                "add qword ptr gs:[{apart_top}], {apart_bytes}",
                "jmp r11",
                "3: mov rsp, [rsp + {rsp}]",
                "mov dword ptr [rip + __ehdr_start + {lock}], 0",
                "jmp r11",
                // The thread is not known.
                "4: mov r11d, 1",
                "xchg dword ptr [rip + __ehdr_start + {lock}], r11d",
                "test r11d, r11d",
                "jnz 5f",
                "lea r11, [rip + __ehdr_start + {last_stack}]",
                "mov qword ptr [r11 - {frame} + {stack}], {is_last}",
                "jmp 2b",
                // Somebody else is not known either: the call goes on unseen.
                "5: lock inc qword ptr [rip + __ehdr_start + {missed}]",
                "movzx r11d, cx",
                "imul r11, r11, {gate_bytes}",
                "test ecx, ecx",
                "lea rcx, [rip + __ehdr_start + {gates}]",
                "lea r11, [r11 + rcx]",
                "js 6f",
                "add r11, {unknown}",
                "jmp r11",
                "6: add r11, {known}",
                "jmp r11";
                frame = const FRAME_BYTES,
                all_registers = const ALL_REGISTERS,
                stack = const STACK,
                stack_of_block = const STACK_OF_BLOCK,
                is_last = const LAST_STACK,
                state_bytes = const STATE_BYTES,
                apart_bytes = const APART_BYTES,
                blocks = const CONTROL_OFFSET as usize + TABLES_OFFSET as usize + offset_of!(SyscallTables, blocks),
                process = const PROCESS_OFFSET as usize + offset_of!(ProcessPage, generation),
                lock = const STATE_OFFSET as usize + offset_of!(StateHeader, last_stack),
                missed = const STATE_OFFSET as usize + offset_of!(StateHeader, missed_no_block),
                last_stack = const LAST_STACK_OFFSET + APART_BYTES,
                gates = const GATES_OFFSET,
                gate_bytes = const GATE_BYTES,
                known = const $known,
                unknown = const $unknown,
                fs_base = const offset_of!(ThreadBlock, fs_base),
                generation = const offset_of!(ThreadBlock, generation),
                apart_top = const offset_of!(ThreadBlock, apart_top),
                apart_end = const offset_of!(ThreadBlock, apart_end),
                number = const offset_of!(PtRegs, $number),
                of = sym $of,
            )
        }
    };
}

// Where the flags mean nothing: `-38` is `-ENOSYS`, which the kernel has in `rax` while a call runs.
entry!(
    ring3_syscall_enter,
    enter,
    orig_rax,
    "mov qword ptr [rsp + {rax}], -38",
    "",
    "mov qword ptr [rsp + {eflags}], 0x246",
    ""
);
entry!(
    ring3_syscall_enter_with_flags,
    enter,
    orig_rax,
    "mov qword ptr [rsp + {rax}], -38",
    "pushfq; pop [rsp + {eflags}]; cld",
    "",
    restore_flags!()
);
entry!(ring3_syscall_exit, exit, rax, "", "", "mov qword ptr [rsp + {eflags}], 0x246", "");
entry!(ring3_syscall_exit_with_flags, exit, rax, "", "pushfq; pop [rsp + {eflags}]; cld", "", restore_flags!());
entry_apart!(
    ring3_syscall_enter_apart,
    enter_apart,
    orig_rax,
    "mov qword ptr [rsp + {rax}], -38",
    CALL_AT,
    WANTED_AT
);
/// The end of a call that begins a thread, of a site whose callers have no stack that could be used.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_syscall_exit_of_clone() {
    naked_asm!(
        "test rax, rax",
        "jz {child}",
        "jmp {creator}",
        child = sym ring3_syscall_exit,
        creator = sym ring3_syscall_exit_apart,
    )
}

entry_apart!(ring3_syscall_exit_apart, exit_apart, rax, "", DONE_AT, WANTED_DONE_AT);
