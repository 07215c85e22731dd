//! Entry points of stubs, and the trampoline that replaces return addresses.

use core::arch::{asm, naked_asm};
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

use ring3_layout::control::{Called, ControlHeader, Hook, TestRun};
use ring3_layout::frame::{self, AgentStackFrame};
use ring3_layout::region::{CONTROL_OFFSET, LAST_STACK_OFFSET, STATE_OFFSET};
use ring3_layout::syscall::AGENT_STACK_BYTES;
use ring3_layout::thread::StateHeader;
use ring3_runtime::raw_system::image_base;
use ring3_runtime::{raw_budget, raw_call, raw_counted, raw_dispatch, raw_thread};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_registers::{asm_on_registers, load_arguments, store_arguments, store_kept};

/// Address of the trampoline.
#[inline(always)]
fn trampoline() -> u64 {
    let address;
    // SAFETY: computes an address in this image.
    unsafe {
        asm!(
            "lea {}, [rip + ring3_return_trampoline]",
            out(reg) address,
            options(nomem, nostack, preserves_flags)
        );
    }
    address
}

/// Called by stubs: what they are to do (`ENTER_*`).
///
/// # Safety
/// As `raw_dispatch::enter`.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_enter(regs: *mut PtRegs, hook: *const Hook, all: u32) -> u8 {
    // SAFETY: the stub's promise.
    unsafe { raw_dispatch::enter(image_base(), regs, hook, all != 0) }
}

/// What attachments with a budget name instead of their program.
///
/// # Safety
/// As `raw_budget::run_timed`.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_run_timed(context: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { raw_budget::run_timed(context, env) }
}

/// What attachments name instead of their program while runs are counted.
///
/// # Safety
/// As `raw_counted::run_counted`.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_run_counted(context: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { raw_counted::run_counted(context, env) }
}

unsafe extern "sysv64" fn enter_on_agent_stack(frame: &mut AgentStackFrame, hook: *const Hook, eflags: u64) {
    // SAFETY: the stub's promise.
    unsafe { raw_dispatch::enter_on_agent_stack(image_base(), frame, hook, eflags) }
}

/// Called by stubs that do not use the thread's stack, with the hook in `r11`: changes that register, `rax` and the status flags.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_enter_on_agent_stack() {
    asm_on_registers!(naked_asm:
        "lea rsp, [rsp - {registers}]",
        "mov [rsp + {rcx}], rcx",
        "mov [rsp + {rbx}], rbx",
        store_kept!(),
        store_arguments!(),
        "pushfq",
        "pop rdx",
        "cld",
        "mov rdi, rsp",
        "mov rsi, r11",
        "call {enter_on_agent_stack}",
        "test dword ptr [rsp + {eflags}], 0x400",
        "jz 2f",
        "std",
        "2:",
        load_arguments!(),
        "mov rcx, [rsp + {rcx}]",
        "lea rsp, [rsp + {registers}]",
        "ret";
        registers = const size_of::<PtRegs>(),
        enter_on_agent_stack = sym enter_on_agent_stack,
    )
}

unsafe extern "sysv64" fn find_at_gs() -> bool {
    raw_thread::find_at_gs(image_base())
}

/// Stubs that do not use the thread's stack come here if GS does not lead to its block. They go on at `r11` once it does, or if
/// that cannot be 5 bytes before; only the status flags are changed. The block is looked for on the last stack, by one thread at a time.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_find_agent_stack() {
    naked_asm!(
        // The low bits of `r11` count how often it was tried.
        "rol r11, 16",
        "2: pause",
        "lock bts dword ptr [rip + __ehdr_start + {lock}], 0",
        "jnc 3f",
        "inc r11w",
        "jnz 2b",
        "ror r11, 16",
        "lock inc qword ptr [rip + __ehdr_start + {missed}]",
        "sub r11, 5",
        "jmp r11",
        "3: xor r11w, r11w",
        "ror r11, 16",
        "mov [rip + __ehdr_start + {last_stack} - 8], rsp",
        "lea rsp, [rip + __ehdr_start + {last_stack} - 8]",
        "push r11",
        "push rax",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "pushfq",
        "cld",
        "sub rsp, 8",
        "call {find_at_gs}",
        "add rsp, 8",
        "test al, al",
        "jnz 4f",
        "sub qword ptr [rsp + 72], 5",
        "4: test dword ptr [rsp], 0x400",
        "jz 5f",
        "std",
        "5: lea rsp, [rsp + 8]",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "pop r11",
        "mov rsp, [rip + __ehdr_start + {last_stack} - 8]",
        "mov dword ptr [rip + __ehdr_start + {lock}], 0",
        "jmp r11",
        lock = const STATE_OFFSET as usize + offset_of!(StateHeader, last_stack),
        missed = const STATE_OFFSET as usize + offset_of!(StateHeader, missed_no_block),
        last_stack = const LAST_STACK_OFFSET + AGENT_STACK_BYTES,
        find_at_gs = sym find_at_gs,
    )
}

/// Called by a process of ring3's that runs a program by itself: 1 if it could, else 0.
///
/// # Safety
/// As `raw_dispatch::test_run`.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_test_run(test: *mut TestRun) -> u64 {
    // SAFETY: the caller's promise.
    u64::from(unsafe { raw_dispatch::test_run(image_base(), test) })
}

/// # Safety
/// As `raw_call::call`.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_call(context: u64, slot: &AtomicU64) -> Called {
    // SAFETY: the caller's promise.
    unsafe { raw_call::call(image_base(), context, slot) }
}

/// Called by the trampoline: the address to return to.
unsafe extern "sysv64" fn leave(regs: *mut PtRegs, all: u32) -> u64 {
    // SAFETY: the trampoline passes the registers that it saved.
    unsafe { raw_dispatch::leave(image_base(), trampoline(), regs, all != 0) }
}

/// Stubs of functions whose return is awaited go on here, as they were entered, with the address of what was displaced in
/// the word below the stack. The call takes the place of the caller's, which is kept in the shadow stack: so the CPU predicts
/// both returns, that to the trampoline and that from it.
///
/// The trampoline follows, where functions return to. All registers go on as they came; the flags mean nothing after a
/// return. The slot that held the return address is free again and gets the real one.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_call_probed() {
    asm_on_registers!(naked_asm:
        "lea rsp, [rsp + 8]",
        "call qword ptr [rsp - 16]",
        ".globl ring3_return_trampoline",
        ".type ring3_return_trampoline, @function",
        "ring3_return_trampoline:",
        "lea rsp, [rsp - 8 - {frame}]",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rcx}], rcx",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {rbx}], rbx",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r11}], r11",
        "xor esi, esi",
        "lea rdi, [rip + __ehdr_start]",
        "cmp dword ptr [rdi + {all_registers}], 0",
        "jne 3f",
        "2: mov rdi, rsp",
        "mov rbx, rsp",
        "and rsp, -16",
        "call {leave}",
        "mov rsp, rbx",
        "test rax, rax",
        "jz 4f",
        "mov [rsp + {frame}], rax",
        "mov rbx, [rsp + {rbx}]",
        "mov r11, [rsp + {r11}]",
        "mov r10, [rsp + {r10}]",
        "mov r9, [rsp + {r9}]",
        "mov r8, [rsp + {r8}]",
        "mov rax, [rsp + {rax}]",
        "mov rcx, [rsp + {rcx}]",
        "mov rdx, [rsp + {rdx}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdi, [rsp + {rdi}]",
        "lea rsp, [rsp + {frame}]",
        "ret",
        // The registers that not every frame has.
        "3: mov [rsp + {rbp}], rbp",
        "mov [rsp + {r12}], r12",
        "mov [rsp + {r13}], r13",
        "mov [rsp + {r14}], r14",
        "mov [rsp + {r15}], r15",
        "mov qword ptr [rsp + {orig_rax}], -1",
        "mov qword ptr [rsp + {cs}], 0x33",
        "mov qword ptr [rsp + {ss}], 0x2b",
        "mov qword ptr [rsp + {eflags}], 0x202",
        "lea rsi, [rsp + {frame} + 8]",
        "mov [rsp + {rsp}], rsi",
        "mov esi, 1",
        "jmp 2b",
        // Nobody knows where to go: the slot was reached by a jump into freed stack.
        "4: ud2";
        frame = const frame::TRAMPOLINE_FRAME_BYTES,
        all_registers = const CONTROL_OFFSET as usize + offset_of!(ControlHeader, all_registers),
        leave = sym leave,
    )
}

/// A word that is 0: what code adds to constants that are not to stand in it (`ring3_jit::Options`). (Not a static, with which
/// the compiler would unite other zeros, whose address it would then look up.)
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ring3_zero() {
    core::arch::naked_asm!(".quad 0")
}
