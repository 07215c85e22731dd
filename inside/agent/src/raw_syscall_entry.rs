//! Where gates of system calls lead.
//!
//! A gate passes what it is in `ecx`, and in `r11` where to go on if there is no more to do. All other registers and the stack
//! are those of the caller, who may use what lies below its stack pointer.
//!
//! Some callers have no stack that could be used: goroutines, whose stacks have room for nothing that the linker has not seen,
//! and threads that end and have unmapped theirs. Calls of these run on a stack in the thread's block, which GS leads to; of
//! threads that are not known yet, one at a time, on the last stack. The thread's own is not touched.

use core::arch::naked_asm;
use core::mem::offset_of;

use ring3_layout::control::Attachment;
use ring3_layout::region::{
    CONTROL_OFFSET, GATES_OFFSET, LAST_STACK_OFFSET, PROCESS_OFFSET, STATE_BYTES, STATE_OFFSET,
};
use ring3_layout::syscall::{
    ALL_REGISTERS, APART_BYTES, CALL_AT, DONE_AT, GATE_BYTES, SyscallTables, TABLES_OFFSET, WANTED_AT, WANTED_DONE_AT,
};
use ring3_layout::thread::{ProcessPage, StateHeader, ThreadBlock};
use ring3_runtime::raw_plain_calls::{self, Shown};
use ring3_runtime::raw_syscalls::{self, CallFrame, FRAME_BYTES, LAST_STACK, STACK_OF_BLOCK};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_entry::image_base;
use crate::raw_registers::{asm_on_registers, load_arguments, store_arguments, store_kept};

/// Where the tables lie, from the region's first byte on.
const TABLES: usize = CONTROL_OFFSET as usize + TABLES_OFFSET as usize;
const STACK: usize = offset_of!(CallFrame, stack);

unsafe extern "sysv64" fn enter_plainly(frame: *mut CallFrame, passed: u32) -> Shown {
    // SAFETY: the gate's promise.
    unsafe { raw_plain_calls::begin(image_base(), &mut *frame, passed) }
}

unsafe extern "sysv64" fn exit_plainly(frame: *mut CallFrame, passed: u32) -> Shown {
    // SAFETY: the gate's promise.
    unsafe { raw_plain_calls::end(image_base(), &mut *frame, passed) }
}

unsafe extern "sysv64" fn enter_closely(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the gate's promise.
    unsafe { raw_syscalls::enter_closely(image_base(), regs, passed) }
}

unsafe extern "sysv64" fn exit_closely(regs: *mut PtRegs, passed: u32) -> u64 {
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

/// Has a routine see the frame at `rbx`, which says where to go on.
macro_rules! pass_closely {
    () => {
        concat!("mov rdi, rbx\n", "call {closely}\n", "mov rsp, rbx\n", "mov [rsp + {leave}], rax")
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
///
/// The only program that there is runs from here, so that `$plainly` calls nobody, and one register is all that is kept.
macro_rules! entry {
    ($name:ident, $plainly:ident, $closely:ident, $number:ident, $result:literal, $save:literal, $assume:literal, $restore:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            asm_on_registers!(
                "lea rsp, [rsp - {frame}]",
                "mov [rsp + {leave}], r11",
                "lea r11, [rsp + {frame}]",
                $save,
                store_some!(),
                "cmp dword ptr [rip + __ehdr_start + {registers}], 0",
                "jne 8f",
                "3: mov [rsp + {passed}], ecx",
                "mov rdi, rsp",
                "mov esi, ecx",
                "mov rbx, rsp",
                "and rsp, -16",
                "call {plainly}",
                "test rdx, rdx",
                "jz 6f",
                "test rax, rax",
                "jz 4f",
                "mov [rbx + {block}], rdx",
                "lea rdi, [rbx + {context}]",
                "mov rsi, rdx",
                "call [rax + {runner}]",
                "mov rcx, [rbx + {block}]",
                "mov rax, [rip + __ehdr_start + {hits_at}]",
                "inc qword ptr [rcx + rax]",
                // As `raw_plain_calls::release`.
                "mov rax, [rbx + {before}]",
                "mov [rcx + {guard_sp}], rax",
                "mov dword ptr [rcx + {guard}], 0",
                "4: mov rsp, rbx",
                "5:",
                $restore,
                load!(),
                "mov r11, [rsp + {leave}]",
                "mov rsp, [rsp + {rsp}]",
                "jmp r11",
                "6: mov esi, [rbx + {passed}]",
                pass_closely!(),
                "jmp 5b",
                "8:",
                $assume,
                store_others!($result),
                "jmp 3b";
                frame = const FRAME_BYTES,
                registers = const TABLES + offset_of!(SyscallTables, registers),
                hits_at = const TABLES + offset_of!(SyscallTables, hits_at),
                passed = const offset_of!(CallFrame, passed),
                block = const offset_of!(CallFrame, block),
                before = const offset_of!(CallFrame, guard_sp),
                context = const offset_of!(CallFrame, context),
                leave = const offset_of!(CallFrame, leave),
                runner = const offset_of!(Attachment, runner),
                guard_sp = const offset_of!(ThreadBlock, guard_sp),
                guard = const offset_of!(ThreadBlock, guard),
                all_registers = const ALL_REGISTERS,
                number = const offset_of!(PtRegs, $number),
                plainly = sym $plainly,
                closely = sym $closely,
            )
        }
    };
}

/// As `entry`, on another stack. `$known` and `$unknown` are where in gates a caller goes on for which there is none at present.
macro_rules! entry_apart {
    ($name:ident, $closely:ident, $number:ident, $result:literal, $known:expr, $unknown:expr) => {
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
                "mov esi, ecx",
                "mov rbx, rsp",
                pass_closely!(),
                load!(),
                "mov r11, [rsp + {leave}]",
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
                blocks = const TABLES + offset_of!(SyscallTables, blocks),
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
                leave = const offset_of!(CallFrame, leave),
                closely = sym $closely,
            )
        }
    };
}

// Where the flags mean nothing: `-38` is `-ENOSYS`, which the kernel has in `rax` while a call runs.
entry!(
    ring3_syscall_enter,
    enter_plainly,
    enter_closely,
    orig_rax,
    "mov qword ptr [rsp + {rax}], -38",
    "",
    "mov qword ptr [rsp + {eflags}], 0x246",
    ""
);
entry!(
    ring3_syscall_enter_with_flags,
    enter_plainly,
    enter_closely,
    orig_rax,
    "mov qword ptr [rsp + {rax}], -38",
    "pushfq; pop [rsp + {eflags}]; cld",
    "",
    restore_flags!()
);
entry!(ring3_syscall_exit, exit_plainly, exit_closely, rax, "", "", "mov qword ptr [rsp + {eflags}], 0x246", "");
entry!(
    ring3_syscall_exit_with_flags,
    exit_plainly,
    exit_closely,
    rax,
    "",
    "pushfq; pop [rsp + {eflags}]; cld",
    "",
    restore_flags!()
);
entry_apart!(
    ring3_syscall_enter_apart,
    enter_closely,
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

entry_apart!(ring3_syscall_exit_apart, exit_closely, rax, "", DONE_AT, WANTED_DONE_AT);
