//! Entry points of syscall trampolines.
//!
//! A trampoline passes its identity in `ecx`, and in `r11` the address at which to continue if nothing is left to do. All other
//! registers and the stack are the caller's. The caller may use memory below its stack pointer (the red zone).
//!
//! Some callers have no usable stack: goroutines, whose stacks have only the room that the linker planned, and threads that end
//! and have unmapped theirs. Their calls run on a stack in the thread's block, which GS points to. Threads that are not known yet
//! use the last stack, one at a time. The thread's own stack is not touched.

use core::arch::{asm, naked_asm};
use core::mem::offset_of;

use ring3_layout::control::Attachment;
use ring3_layout::region::{
    CONTROL_OFFSET, LAST_STACK_OFFSET, PROCESS_OFFSET, STATE_BYTES, STATE_OFFSET, TRAMPOLINES_OFFSET,
};
use ring3_layout::syscall::{
    AGENT_STACK_BYTES, CALL_AT, DONE_AT, SyscallTables, TABLES_OFFSET, TRACED_AT, TRACED_DONE_AT, TRAMPOLINE_BYTES,
};
use ring3_layout::thread::{ProcessPage, StateHeader, ThreadBlock};
use ring3_runtime::raw_fast_path::{self, Next};
use ring3_runtime::raw_syscalls::{self, CallFrame, FRAME_BYTES, LAST_STACK, NO_FLAGS, STACK_OF_BLOCK};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_registers::{asm_on_registers, load_arguments, store_arguments, store_kept};
use ring3_runtime::raw_system::image_base;

/// Where the tables lie, from the region's first byte on.
const TABLES: usize = CONTROL_OFFSET as usize + TABLES_OFFSET as usize;
const STACK: usize = offset_of!(CallFrame, stack);

unsafe extern "sysv64" fn enter_on_agent_stack(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the trampoline's promise.
    unsafe { raw_syscalls::enter_slow(image_base(), regs, passed) }
}

unsafe extern "sysv64" fn exit_on_agent_stack(regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the trampoline's promise.
    unsafe { raw_syscalls::exit_slow(image_base(), regs, passed) }
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

pub(crate) use restore_flags;

/// Where in a frame the arguments of a call are that begins, and of one that has ended.
mod arguments {
    use super::{CallFrame, PtRegs, offset_of};

    pub(super) const BEGUN: [usize; 6] = {
        let first = offset_of!(CallFrame, begun) + 2 * size_of::<u64>();
        [first, first + 8, first + 16, first + 24, first + 32, first + 40]
    };
    pub(super) const ENDED: [usize; 6] = [
        offset_of!(PtRegs, rdi),
        offset_of!(PtRegs, rsi),
        offset_of!(PtRegs, rdx),
        offset_of!(PtRegs, r10),
        offset_of!(PtRegs, r8),
        offset_of!(PtRegs, r9),
    ];
}

/// `naked_asm!` or `asm!` on the frame of a call whose arguments are there, as `asm_on_registers`.
macro_rules! asm_on_frame {
    ($asm:ident, $arguments:path: $($line:expr),* $(,)?; $($operands:tt)*) => {
        asm_on_registers!($asm:
            $($line,)*
            "/* {frame} {keeps_flags} {leave} {number} {first} {second} {third} {fourth} {fifth} {sixth} */";
            frame = const FRAME_BYTES,
            keeps_flags = const offset_of!(CallFrame, keeps_flags),
            leave = const offset_of!(CallFrame, leave),
            number = const offset_of!(CallFrame, rax),
            first = const $arguments[0],
            second = const $arguments[1],
            third = const $arguments[2],
            fourth = const $arguments[3],
            fifth = const $arguments[4],
            sixth = const $arguments[5],
            $($operands)*
        )
    };
}

/// Loads all but the flags from the frame at `rsp`, and goes on where that says.
macro_rules! load_and_go {
    () => {
        concat!(
            "mov rax, [rsp + {number}]\n",
            "mov rdi, [rsp + {first}]\n",
            "mov rsi, [rsp + {second}]\n",
            "mov rdx, [rsp + {third}]\n",
            "mov r10, [rsp + {fourth}]\n",
            "mov r8, [rsp + {fifth}]\n",
            "mov r9, [rsp + {sixth}]\n",
            "mov rbx, [rsp + {rbx}]\n",
            "mov r11, [rsp + {leave}]\n",
            "lea rsp, [rsp + {frame}]\n",
            "jmp r11",
        )
    };
}

/// As `load_and_go`, with the flags if they were kept.
macro_rules! leave {
    () => {
        concat!("cmp dword ptr [rsp + {keeps_flags}], 0\n", "jne {with_flags}\n", load_and_go!())
    };
}

/// Has a routine called with the frame and two numbers; then the thread goes on.
macro_rules! call_and_leave {
    ($routine:ident, $frame:ident, $second:expr, $third:expr) => {
        asm!(
            "lea rax, [rip + {routine}]",
            "jmp {call}",
            routine = sym $routine,
            call = sym call_and_leave,
            in("rdi") $frame,
            in("rsi") $second,
            in("rdx") $third,
            options(nostack)
        )
    };
}

/// How a call is seen on the caller's stack, at this end: `$see` says what comes next, `$context` is where in the frame the only
/// program's is. The entry that keeps the flags is the one for callers to whom they mean something.
///
/// But for that program nothing is called and returns: behind a system call that takes as long as up to forty plain instructions.
/// Registers that functions keep are not touched, but `rbx`.
macro_rules! seen_here {
    ($end:ident, $entry:literal, $seen:literal, $see:path, $slow:path, $context:ident, $arguments:path) => {
        mod $end {
            use super::*;

            #[unsafe(export_name = concat!("ring3_syscall_", $entry, "_with_flags"))]
            #[unsafe(naked)]
            #[unsafe(link_section = concat!(".text.", stringify!($end), ".entry"))]
            unsafe extern "C" fn entry_with_flags() {
                asm_on_frame!(naked_asm, $arguments:
                    "lea rsp, [rsp - {frame}]",
                    "pushfq",
                    "pop [rsp + {eflags}]",
                    "cld",
                    "mov dword ptr [rsp + {keeps_flags}], 1",
                    "jmp 2f",
                    concat!(".globl ring3_syscall_", $entry),
                    concat!(".type ring3_syscall_", $entry, ", @function"),
                    concat!("ring3_syscall_", $entry, ":"),
                    "lea rsp, [rsp - {frame}]",
                    "mov qword ptr [rsp + {eflags}], {no_flags}",
                    "mov dword ptr [rsp + {keeps_flags}], 0",
                    "2: mov [rsp + {leave}], r11",
                    "mov [rsp + {number}], rax",
                    "mov [rsp + {first}], rdi",
                    "mov [rsp + {second}], rsi",
                    "mov [rsp + {third}], rdx",
                    "mov [rsp + {fourth}], r10",
                    "mov [rsp + {fifth}], r8",
                    "mov [rsp + {sixth}], r9",
                    "mov [rsp + {rbx}], rbx",
                    "mov rdi, rsp",
                    // What comes next follows (`image.ld`).
                    ".p2align 4";
                    no_flags = const NO_FLAGS,
                )
            }

            /// Where `passed` is in `ecx` still.
            #[unsafe(export_name = concat!("ring3_syscall_", $seen))]
            #[unsafe(link_section = concat!(".text.", stringify!($end), ".seen"))]
            unsafe extern "sysv64" fn seen(frame: *mut CallFrame, _: u64, _: u64, passed: u32) {
                // SAFETY: the trampoline's promise.
                match unsafe { $see(image_base(), &mut *frame, passed) } {
                    // SAFETY: what is to be run.
                    Next::Run { code, block } => unsafe {
                        asm!(
                            "mov rbx, rdi",
                            "mov [rdi + {block}], rsi",
                            "mov rsp, rdi",
                            "and rsp, -16",
                            "lea rdi, [rdi + {context}]",
                            "call rax",
                            // (The guard does not say where the frame is: a signal handler on another stack may have taken it away.)
                            "mov rdi, rbx",
                            "mov rsi, [rbx + {block}]",
                            "jmp {ran}",
                            block = const offset_of!(CallFrame, block),
                            context = const offset_of!(CallFrame, $context),
                            ran = sym ran,
                            in("rax") code,
                            in("rdi") frame,
                            in("rsi") block,
                            options(nostack)
                        )
                    },
                    // SAFETY: the frame is there.
                    Next::Leave => unsafe {
                        asm!("jmp {leave}", leave = sym leave, in("rdi") frame, options(nostack))
                    },
                    // SAFETY: nothing has been done.
                    Next::SlowPath => unsafe {
                        call_and_leave!(slow, frame, u64::from(passed), 0u64)
                    },
                    // SAFETY: what is to be run.
                    Next::RunOtherwise { attachment, block } => unsafe {
                        call_and_leave!(run, frame, block, attachment)
                    },
                }
            }

            /// The only program has run.
            #[unsafe(export_name = concat!("ring3_syscall_", stringify!($end), "_ran"))]
            #[unsafe(link_section = concat!(".text.", stringify!($end), ".ran"))]
            unsafe extern "sysv64" fn ran(frame: *mut CallFrame, block: *mut ThreadBlock) {
                // SAFETY: the running thread's own block.
                unsafe { raw_fast_path::ran(image_base(), &mut *block) };
                // SAFETY: the frame is there still.
                unsafe {
                    asm_on_frame!(asm, $arguments:
                        "mov rsp, rdi",
                        leave!();
                        with_flags = sym leave_with_flags,
                        in("rdi") frame,
                        options(nostack)
                    )
                }
            }

            /// The thread goes on where the frame at `rsp` says, with its flags.
            #[unsafe(naked)]
            unsafe extern "C" fn leave_with_flags() {
                asm_on_frame!(naked_asm, $arguments: restore_flags!(), load_and_go!();)
            }

            /// The thread goes on where the frame at `rdi` says.
            #[unsafe(naked)]
            unsafe extern "C" fn leave() {
                asm_on_frame!(naked_asm, $arguments: "mov rsp, rdi", leave!(); with_flags = sym leave_with_flags,)
            }

            /// Calls the routine at `rax` with the frame in `rdi`, and what `rsi` and `rdx` are; then the thread goes on.
            #[unsafe(naked)]
            unsafe extern "C" fn call_and_leave() {
                asm_on_registers!(naked_asm:
                    "mov rbx, rdi",
                    "mov rsp, rdi",
                    store_kept!(),
                    "and rsp, -16",
                    "call rax",
                    "mov rdi, rbx",
                    "jmp {leave}";
                    leave = sym leave,
                )
            }

            unsafe extern "sysv64" fn slow(frame: &mut CallFrame, passed: u32) {
                // SAFETY: the trampoline's promise.
                unsafe { $slow(image_base(), frame, passed) };
            }

            unsafe extern "sysv64" fn run(frame: &mut CallFrame, block: &mut ThreadBlock, attachment: &Attachment) {
                // SAFETY: what is to be run.
                unsafe { raw_fast_path::run(image_base(), block, attachment, frame.$context.as_ptr() as u64) };
            }
        }
    };
}

/// The entry on an agent stack. `$known` and `$unknown`: where in its trampoline a caller continues if no agent stack
/// is free.
macro_rules! entry_on_agent_stack {
    ($name:ident, $slow:ident, $number:ident, $known:expr, $unknown:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            asm_on_registers!(naked_asm:
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
                "mov r11, gs:[{agent_stack_top}]",
                "cmp r11, gs:[{agent_stack_end}]",
                "jbe 4f",
                "sub qword ptr gs:[{agent_stack_top}], {agent_stack_bytes}",
                "mov dword ptr [r11 - {frame} + {stack}], {stack_of_block}",
                "2: lea r11, [r11 - {frame}]",
                "xchg r11, rsp",
                "mov [rsp + {rsp}], r11",
                "mov qword ptr [rsp + {eflags}], {no_flags}",
                "mov [rsp + {number}], rax",
                "mov [rsp + {rbx}], rbx",
                store_kept!(),
                store_arguments!(),
                "mov esi, ecx",
                "mov rdi, rsp",
                "mov rbx, rsp",
                "call {slow}",
                "mov rsp, rbx",
                "mov r11, rax",
                "mov rax, [rsp + {number}]",
                load_arguments!(),
                "mov rbx, [rsp + {rbx}]",
                "cmp dword ptr [rsp + {stack}], {is_last}",
                "je 3f",
                "mov rsp, [rsp + {rsp}]",
                "add qword ptr gs:[{agent_stack_top}], {agent_stack_bytes}",
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
                "mov dword ptr [r11 - {frame} + {stack}], {is_last}",
                "jmp 2b",
                // Somebody else is not known either: the call goes on unseen.
                "5: lock inc qword ptr [rip + __ehdr_start + {missed}]",
                "movzx r11d, cx",
                "imul r11, r11, {trampoline_bytes}",
                "test ecx, ecx",
                "lea rcx, [rip + __ehdr_start + {trampolines}]",
                "lea r11, [r11 + rcx]",
                "js 6f",
                "add r11, {unknown}",
                "jmp r11",
                "6: add r11, {known}",
                "jmp r11";
                frame = const FRAME_BYTES,
                stack = const STACK,
                stack_of_block = const STACK_OF_BLOCK,
                is_last = const LAST_STACK,
                no_flags = const NO_FLAGS,
                state_bytes = const STATE_BYTES,
                agent_stack_bytes = const AGENT_STACK_BYTES,
                blocks = const TABLES + offset_of!(SyscallTables, blocks),
                process = const PROCESS_OFFSET as usize + offset_of!(ProcessPage, generation),
                lock = const STATE_OFFSET as usize + offset_of!(StateHeader, last_stack),
                missed = const STATE_OFFSET as usize + offset_of!(StateHeader, missed_no_block),
                last_stack = const LAST_STACK_OFFSET + AGENT_STACK_BYTES,
                trampolines = const TRAMPOLINES_OFFSET,
                trampoline_bytes = const TRAMPOLINE_BYTES,
                known = const $known,
                unknown = const $unknown,
                fs_base = const offset_of!(ThreadBlock, fs_base),
                generation = const offset_of!(ThreadBlock, generation),
                agent_stack_top = const offset_of!(ThreadBlock, agent_stack_top),
                agent_stack_end = const offset_of!(ThreadBlock, agent_stack_end),
                number = const offset_of!(PtRegs, $number),
                slow = sym $slow,
            )
        }
    };
}

seen_here!(begin, "enter", "begun", raw_fast_path::begin, raw_fast_path::begin_slow, begun, arguments::BEGUN);
seen_here!(end, "exit", "ended", raw_fast_path::end, raw_fast_path::end_slow, ended, arguments::ENDED);
entry_on_agent_stack!(ring3_syscall_enter_on_agent_stack, enter_on_agent_stack, orig_rax, CALL_AT, TRACED_AT);
/// The end of a call that begins a thread, of a site whose callers have no stack that could be used.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_syscall_exit_of_clone() {
    naked_asm!(
        "test rax, rax",
        "jz ring3_syscall_exit",
        "jmp {creator}",
        creator = sym ring3_syscall_exit_on_agent_stack,
    )
}

entry_on_agent_stack!(ring3_syscall_exit_on_agent_stack, exit_on_agent_stack, rax, DONE_AT, TRACED_DONE_AT);
