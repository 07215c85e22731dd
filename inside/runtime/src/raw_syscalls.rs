//! What happens when a thread begins a system call that somebody wants, and when it has ended.
//!
//! The call itself is made by the site's trampoline, between [`enter_slow`] and [`exit_slow`], or what `raw_fast_path` does,
//! with nothing of ours on the stack and no guard
//! set: signal handlers that interrupt it find the thread as they would without us. Calls that begin a thread or a process
//! end twice; who it is that goes on must be settled before programs ask.
//!
//! A call that a signal handler interrupts and that is then made again is seen as the kernel shows it: it ends and
//! begins again. `rt_sigreturn` says so: the frame that it takes goes on at the call, and `rcx` shows that it was made.
//! The end of a call that a handler has abandoned by `longjmp` is seen when the thread makes its next one. The end of a
//! call by which a process kills itself is seen before it is made.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::PAGE_BYTES;
use ring3_layout::control::{
    ATTACHMENT_KPROBE, ATTACHMENT_RAW, Attachment, HOOKS_MAX, HOOKS_OFFSET, Hook, range_unpack,
};
use ring3_layout::frame::RED_ZONE_BYTES;
use ring3_layout::realm::request;
use ring3_layout::region::{CONTROL_OFFSET, STATE_BYTES, STATE_OFFSET, TRAMPOLINES_BYTES, TRAMPOLINES_OFFSET};
use ring3_layout::syscall::{
    ALWAYS, CALL_AT, CALLS_MAX, CLONE_SYSCALLS, COPY_BYTES, COPY_SHIFT, Call, DONE_AT, NUMBER_KNOWN, OTHER_NUMBERS,
    Progress, SITES_MAX, SITES_OFFSET, SYSCALL_BYTES, Subscribers, SyscallSite, SyscallTables, TABLES_OFFSET,
    TRACED_AT, TRACED_DONE_AT, TRAMPOLINE_BYTES, UNTRACED_AT,
};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_actions;
use crate::raw_cancellation;
use crate::raw_clock;
use crate::raw_dispatch::{TAKEN_BYTES, abandoned_by_longjmp, attachments, hit, is_for, miss, run_guarded, run_one};
use crate::raw_identity;
use crate::raw_limits;
use crate::raw_memory::read_own;
use crate::raw_request::{WAITS_MAX, answer, control, file};
use crate::raw_sampled::stand_for;
use crate::raw_shown;
use crate::raw_sud;
use crate::raw_system::{gs_base, syscall, syscall0};
use crate::raw_task_events;
use crate::raw_thread::{
    begin_without_tcb, current, find_by_fs_base, is_tcb, set_ids, state, stop_using_tcbs, update_fs_base,
};

const ARCH_SET_FS: u64 = 0x1002;
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_SETTLS: u64 = 0x8_0000;
/// What the kernel has in `rax` while a call runs (arch/x86/entry/entry_64.S:entry_SYSCALL_64): `-ENOSYS`.
const ENOSYS: u64 = (-38i64) as u64;
/// What the kernel shows as the result of a call that it makes again.
pub(crate) const ERESTARTSYS: i64 = -512;

/// What programs find behind r1.
#[repr(C)]
struct Contexts {
    /// Of a raw tracepoint: `struct pt_regs *`, and the number or the result.
    raw: [u64; 2],
    /// `struct syscall_trace_enter`, `struct syscall_trace_exit`: the registers, the number, arguments or the result.
    trace: [u64; 8],
}

pub(crate) fn tables(base: u64) -> &'static SyscallTables {
    // SAFETY: the control page is mapped with the region; the tables are made of atomics.
    unsafe { &*((base + CONTROL_OFFSET + TABLES_OFFSET) as *const SyscallTables) }
}

/// The table of sites, and behind it the place of an `execve` that has begun the program.
pub(crate) fn sites(base: u64) -> &'static [SyscallSite] {
    let table = (base + CONTROL_OFFSET + SITES_OFFSET) as *const SyscallSite;
    // SAFETY: the table is mapped with the control page; an entry is written while all threads are stopped, with its
    // trampoline.
    unsafe { core::slice::from_raw_parts(table, SITES_MAX as usize + 1) }
}

/// The site of a trampoline that passes this.
pub(crate) fn site(base: u64, passed: u32) -> &'static SyscallSite {
    &sites(base)[usize::from(passed as u16).min(SITES_MAX as usize)]
}

/// `__USER_CS` and `__USER_DS` (arch/x86/include/asm/segment.h).
const USER_SEGMENTS: (u64, u64) = (0x33, 0x2b);
/// The flags where nobody reads them: interrupts are on, and what is always set.
pub const NO_FLAGS: u64 = 0x246;

/// Registers of user code, of which nothing else is known yet.
fn user_registers() -> PtRegs {
    let (cs, ss) = USER_SEGMENTS;
    PtRegs { cs, ss, eflags: NO_FLAGS, ..PtRegs::default() }
}

/// The site of a trampoline that passes this. `regs` are those of a thread behind its call, and get what they have
/// there in any case.
#[inline(always)]
pub(crate) fn place_at(base: u64, regs: &mut PtRegs, passed: u32) -> &'static SyscallSite {
    let site = site(base, passed);
    (regs.cs, regs.ss) = USER_SEGMENTS;
    regs.r11 = regs.eflags;
    regs.rip = site.call + SYSCALL_BYTES;
    regs.rcx = regs.rip;
    site
}

fn entry(number: i64) -> usize {
    usize::try_from(number).map_or(OTHER_NUMBERS, |number| number.min(OTHER_NUMBERS))
}

/// The entry of the calls with a number.
#[inline(always)]
fn subscribers(base: u64, number: i64) -> &'static Subscribers {
    let calls = &tables(base).calls;
    calls.get(entry(number)).unwrap_or(&calls[OTHER_NUMBERS])
}

/// What lies on the stack of who makes a call, below its red zone, while the agent is at work.
#[repr(C)]
#[derive(Debug)]
pub struct CallFrame {
    /// The thread's registers: those that functions keep, and the others once they are `CallFrame::complete`.
    pub regs: PtRegs,
    /// Where it lies, if not on the caller's stack: `STACK_OF_BLOCK` or `LAST_STACK`. (There it says nothing.)
    pub stack: u32,
    /// On the caller's stack: whether the caller is to have its flags back.
    pub keeps_flags: u32,
    /// Where the thread goes on.
    pub leave: u64,
    /// What `rax` is: the call's number, or its result.
    pub rax: u64,
    /// Address of the thread's block while the only program runs.
    pub block: u64,
    /// What the only program that sees the call's end finds behind r1. (The arguments are in `regs` in any case.)
    pub ended: [u64; 3],
    /// What the only program that sees its beginning finds there. At a beginning the arguments, from the third word on, are
    /// there in any case.
    pub begun: [u64; 8],
}

/// Bytes from the registers to the caller's stack pointer, where they lie on its stack.
/// (On an agent stack it lies below a page, and is aligned as stacks are.)
pub const FRAME_BYTES: u64 = (size_of::<CallFrame>() as u64 + RED_ZONE_BYTES).next_multiple_of(16);

/// Of [`CallFrame::stack`]: on a stack in the block of the thread, which GS leads to.
pub const STACK_OF_BLOCK: u32 = 1;
/// On the last stack.
pub const LAST_STACK: u32 = 2;

/// The running thread's block, the registers at its call being there.
pub(crate) fn block_of(base: u64, regs: &PtRegs) -> Option<&'static mut ThreadBlock> {
    let address = &raw const *regs as u64;
    // SAFETY: what lies on an agent stack are registers in a frame.
    let stack = if is_on_agent_stack(base, address) { unsafe { (*(address as *const CallFrame)).stack } } else { 0 };
    let block = match stack {
        STACK_OF_BLOCK => gs_base() as *mut ThreadBlock,
        LAST_STACK => find_by_fs_base(base),
        _ => current(base),
    };
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    unsafe { block.as_mut() }
}

/// Whether registers at this address do not lie on the caller's stack.
fn is_on_agent_stack(base: u64, address: u64) -> bool {
    address.wrapping_sub(base + STATE_OFFSET) < STATE_BYTES
}

/// Which of [`CLONE_SYSCALLS`] this call is, if it is one.
fn clone_syscall(number: i64) -> Option<usize> {
    CLONE_SYSCALLS.iter().position(|call| *call == number)
}

/// Of what a trampoline passes: which copy of the call it was.
const COPIES: u32 = !NUMBER_KNOWN >> COPY_SHIFT << COPY_SHIFT;

fn trampoline(base: u64, passed: u32) -> u64 {
    base + TRAMPOLINES_OFFSET + u64::from(passed as u16) * TRAMPOLINE_BYTES
}

/// Where a call is made that somebody has seen begin, and whose end nobody wants.
#[inline(always)]
pub(crate) fn address_of_unawaited(base: u64, passed: u32) -> u64 {
    trampoline(base, passed) + if passed & NUMBER_KNOWN != 0 { CALL_AT } else { UNTRACED_AT }
}

/// What comes behind a call.
fn done_address(base: u64, passed: u32) -> u64 {
    trampoline(base, passed) + if passed & NUMBER_KNOWN != 0 { DONE_AT } else { TRACED_DONE_AT }
}

impl CallFrame {
    /// The caller's stack pointer, where the frame lies on its stack.
    #[inline(always)]
    pub(crate) fn sp(&self) -> u64 {
        &raw const *self as u64 + FRAME_BYTES
    }

    /// Has all registers there, of a thread whose call begins, or has ended and had this number, and the context lead to them.
    /// (One after the other: together they would take registers that the caller must keep.)
    #[inline(always)]
    pub(crate) fn complete(&mut self, base: u64, passed: u32, ended: Option<u64>) {
        let set = |register: &mut u64, value: u64| {
            *register = value;
            compiler_fence(Release);
        };
        let (orig_rax, rax) = match ended {
            Some(number) => (number, self.rax),
            None => {
                set(&mut self.regs.rdi, self.begun[2]);
                set(&mut self.regs.rsi, self.begun[3]);
                set(&mut self.regs.rdx, self.begun[4]);
                set(&mut self.regs.r10, self.begun[5]);
                set(&mut self.regs.r8, self.begun[6]);
                set(&mut self.regs.r9, self.begun[7]);
                (self.rax, ENOSYS)
            }
        };
        set(&mut self.regs.orig_rax, orig_rax);
        set(&mut self.regs.rax, rax);
        self.regs.rsp = self.sp();
        place_at(base, &mut self.regs, passed);
        (self.begun[0], self.ended[0]) = (&raw const self.regs as u64, &raw const self.regs as u64);
    }
}

/// A thread begins a call that somebody wants. `regs` are its registers, on its stack or on an agent stack. The result
/// is where the call is made.
///
/// # Safety
/// Called through a trampoline of the region at `base`, which passes what it is: `regs` are valid registers, and the
/// stack is aligned.
#[inline(never)]
pub unsafe fn enter_slow(base: u64, regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    place_at(base, regs, passed);
    regs.rax = ENOSYS;
    // The kernel takes 32 bits.
    let number = i64::from(regs.orig_rax as i32);
    // SAFETY: the caller's promise.
    if unsafe { begin(base, regs, number, passed, None) } {
        return done_address(base, passed);
    }
    let at = match clone_syscall(number) {
        _ if passed & NUMBER_KNOWN != 0 => CALL_AT,
        Some(copy) => TRACED_AT + (copy as u64 + 1) * COPY_BYTES,
        None if has_end(base, number) => TRACED_AT,
        // (Its end would be taken for that of an abandoned one.)
        None => UNTRACED_AT,
    };
    trampoline(base, passed) + at
}

/// A call begins, through a trampoline that passes this. True: it is over already, with the result in `rax`. `mask`: as for
/// `raw_sud::before`.
///
/// # Safety
/// As for `enter_slow`.
pub(crate) unsafe fn begin(base: u64, regs: *mut PtRegs, number: i64, passed: u32, mask: Option<&mut u64>) -> bool {
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    if number == nr::RT_SIGRETURN {
        // SAFETY: the stack pointer of this call is at a frame.
        unsafe { raw_shown::lead_back(base, regs.rsp) };
    }
    let mut shown = None;
    let runs = control(base).retired.load(Relaxed) == 0;
    if runs {
        // SAFETY: the registers of the call.
        if clone_syscall(number).is_some() && unsafe { CloneArguments::of(number, regs) }.lacks_tcb()
            || number == nr::ARCH_PRCTL && regs.rdi == ARCH_SET_FS && !is_tcb(regs.rsi)
        {
            stop_using_tcbs(base);
        }
        // (A `vfork` child that only announces its `execve` must not set its creator's process up.)
        let is_wanted = is_wanted(base, number);
        shown = if is_wanted { block_of(base, regs) } else { None };
        if let Some(tb) = &mut shown {
            // SAFETY: the caller's promise.
            unsafe { end_abandoned(base, tb, regs) };
            if has_end(base, number) && ![nr::RT_SIGRETURN, nr::EXIT, nr::EXIT_GROUP].contains(&number) {
                push(tb, (tb.next_call, tb.first_call), regs.rsp, number, passed);
            }
            // SAFETY: the caller's promise.
            if let Some(result) = unsafe { show_beginning(base, tb, regs, number) } {
                // SAFETY: the caller's promise.
                unsafe { end_at_once(base, Some(tb), regs, number, result) };
                return true;
            }
            if has_end(base, number) && ends_process(tb, regs, number) {
                // SAFETY: the caller's promise.
                unsafe { end_before(base, tb, regs, number) };
            }
        }
    }
    let result = raw_sud::before(base, regs, number, mask).or_else(|| raw_clock::before(base, regs, number));
    if let Some(result) = result.or_else(|| raw_limits::before(base, regs, number)) {
        // SAFETY: the caller's promise.
        unsafe { end_at_once(base, shown, regs, number, result as u64) };
        return true;
    }
    if runs {
        raw_identity::changes(base, regs, number);
        match number {
            // SAFETY: the stack pointer of this call is at a frame.
            nr::RT_SIGRETURN => unsafe { before_return(base, regs.rsp) },
            nr::EXECVE | nr::EXECVEAT if tables(base).follow.load(Relaxed) != 0 => {
                file(base, request::KIND_EXEC, own_ids(), 0, true);
            }
            // SAFETY: the caller's promise.
            nr::EXIT | nr::EXIT_GROUP => unsafe {
                raw_task_events::ending(base, regs, regs.rdi, number == nr::EXIT_GROUP);
            },
            nr::KILL
            | nr::TKILL
            | nr::TGKILL
            | nr::RT_SIGQUEUEINFO
            | nr::RT_TGSIGQUEUEINFO
            | nr::PIDFD_SEND_SIGNAL => {
                // SAFETY: the caller's promise.
                unsafe { raw_task_events::sending(base, regs, number) };
            }
            _ => {}
        }
    }
    if let Some(filter) = raw_sud::filter_given(regs, number)
        && answer(base, request::KIND_FILTER, own_ids(), filter, WAITS_MAX) != Some(request::FILTER_MET)
    {
        state(base).no_syscalls.store(1, Release);
    }
    if number == nr::MREMAP && moves_sites(base, regs) {
        let pages = regs.rsi.div_ceil(PAGE_BYTES).min((1 << request::PAGES_BITS) - 1);
        file(
            base,
            request::KIND_CODE_MOVES,
            own_ids(),
            ((regs.rdi / PAGE_BYTES) << request::PAGES_BITS) | pages,
            true,
        );
    }
    if raw_sud::dispatches(regs, number) {
        file(base, request::KIND_OWN_DISPATCH, own_ids(), 0, true);
        state(base).no_syscalls.store(1, Release);
    }
    false
}

/// Whether `mremap` may move code in which there is a jump of ours, or was.
#[inline(never)]
fn moves_sites(base: u64, regs: &PtRegs) -> bool {
    const MAYMOVE: u64 = 1;
    let is_inside = |site: u64| site.wrapping_sub(regs.rdi) < regs.rsi;
    let hooks = (base + CONTROL_OFFSET + HOOKS_OFFSET) as *const Hook;
    let count = control(base).hooks.load(Acquire).min(HOOKS_MAX) as usize;
    let is_hook = |index: usize| {
        // SAFETY: a table of so many entries in the control page, of which the first ones were written.
        let hook = unsafe { &*hooks.wrapping_add(index) };
        is_inside(hook.site)
    };
    let mut calls = sites(base).iter().take_while(|call| call.near != 0);
    regs.r10 & MAYMOVE != 0 && ((0..count).any(is_hook) || calls.any(|call| is_inside(call.site)))
}

/// A call that has begun is not made: it ends with this result.
///
/// # Safety
/// As for `enter_slow`.
unsafe fn end_at_once(base: u64, tb: Option<&mut ThreadBlock>, regs: &mut PtRegs, number: i64, result: u64) {
    regs.rax = result;
    if let Some(tb) = tb {
        pop(tb, regs.rsp, Some(number), false);
        // SAFETY: the caller's promise.
        unsafe { show_end(base, tb, regs, number) };
    }
    // What `rax` is when the thread goes on.
    regs.orig_rax = regs.rax;
}

/// A call has ended. `regs` are the thread's registers, on its stack or on an agent stack. The result is where the
/// thread goes on.
///
/// # Safety
/// As for `enter_slow`.
#[inline(never)]
pub unsafe fn exit_slow(base: u64, regs: *mut PtRegs, passed: u32) -> u64 {
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    let site = place_at(base, regs, passed);
    let copy = (passed & COPIES) >> COPY_SHIFT;
    if u32::from(passed as u16) == SITES_MAX && control(base).retired.load(Relaxed) == 0 {
        // SAFETY: the caller's promise.
        unsafe { raw_task_events::executed(base, regs) };
    }
    // SAFETY: the caller's promise.
    unsafe { end(base, regs, Some(i64::from(site.number)).filter(|number| *number >= 0), copy as usize) };
    done_address(base, passed)
}

/// A call of this number, if that is known, made by this copy in a trampoline, has ended.
///
/// # Safety
/// As for `enter_slow`.
pub(crate) unsafe fn end(base: u64, regs: &mut PtRegs, number: Option<i64>, copy: usize) {
    let runs = control(base).retired.load(Relaxed) == 0;
    if !runs && raw_sud::sud(base).armed.load(Relaxed) == 0 {
        return;
    }
    let clone_of_copy = copy.checked_sub(1).and_then(|copy| CLONE_SYSCALLS.get(copy));
    let known = clone_of_copy.copied().or(number);
    let created = match known {
        // SAFETY: the registers of the call.
        Some(number) if clone_syscall(number).is_some() => unsafe { after_clone(base, number, regs) },
        Some(nr::ARCH_PRCTL) | None if regs.rdi == ARCH_SET_FS && regs.rax == 0 => {
            update_fs_base(base);
            Created::Nothing
        }
        _ => Created::Nothing,
    };
    let Some(tb) = block_of(base, regs) else { return };
    raw_sud::after(base, tb, regs);
    if !runs {
        return;
    }
    let borrows = matches!(created, Created::Borrower);
    match created {
        Created::Nothing => {}
        // SAFETY: the caller's promise.
        Created::Borrower => unsafe { raw_task_events::created(base, tb, regs, None) },
        // SAFETY: the caller's promise.
        Created::Thread(tid) => unsafe { raw_task_events::created(base, tb, regs, Some(tid)) },
    }
    let begun = pop(tb, regs.rsp, known, borrows);
    let Some(number) = known.or(begun.map(|call| i64::from(call.number))) else { return };
    raw_clock::after(base, regs, number);
    if begun.is_none_or(|call| call.ended == 0) {
        // SAFETY: the caller's promise.
        unsafe { show_end(base, tb, regs, number) };
    }
    if raw_sud::is_new_mapping(base, number, regs) {
        file(base, request::KIND_MAPPING_ADDED, tb.pid_tgid, 0, true);
    }
}

/// Remembers a call, of a trampoline that passes this, behind those that there are (`next_call`, `first_call`). A
/// signal handler may come at each point, and does the same behind it.
#[inline(always)]
pub(crate) fn push(tb: &mut ThreadBlock, (at, first_call): (u32, u32), sp: u64, number: i64, passed: u32) {
    let Some(place) = tb.calls.get_mut(at as usize % CALLS_MAX) else { return };
    place.sp = 0;
    compiler_fence(Release);
    tb.next_call = at.wrapping_add(1);
    compiler_fence(Release);
    (place.number, place.trampoline, place.first_call) = (number as i32, passed, first_call);
    (place.ended, place.routine) = (0, 0);
    compiler_fence(Release);
    place.sp = sp;
}

/// The youngest call at this stack pointer, of this number if that is known; it and younger ones, which a `longjmp` has
/// abandoned, are under way no more. Who borrows its creator's block leaves it that.
pub(crate) fn pop(tb: &mut ThreadBlock, sp: u64, number: Option<i64>, borrows: bool) -> Option<Call> {
    for back in 1..=CALLS_MAX as u32 {
        let at = tb.next_call.wrapping_sub(back);
        let call = tb.calls.get_mut(at as usize % CALLS_MAX)?;
        if call.sp != sp || number.is_some_and(|number| number != i64::from(call.number)) {
            continue;
        }
        let found = *call;
        if !borrows {
            call.sp = 0;
            tb.next_call = at;
            tb.first_call = found.first_call;
        }
        return Some(found);
    }
    None
}

/// Shows the ends of calls that the thread has abandoned: it makes another one from there or from higher up its stack.
///
/// # Safety
/// `regs` are the registers of a call that begins.
pub(crate) unsafe fn end_abandoned(base: u64, tb: &mut ThreadBlock, regs: &PtRegs) {
    /// What stacks have at most, usually: what is further away is another one, of a signal handler.
    const STACK_BYTES: u64 = 8 << 20;
    let count = tb.next_call.wrapping_sub(tb.first_call).min(CALLS_MAX as u32);
    for back in 1..=count {
        let at = tb.next_call.wrapping_sub(back) as usize % CALLS_MAX;
        let Some(call) = tb.calls.get_mut(at) else { return };
        if call.sp == 0 || regs.rsp < call.sp || regs.rsp - call.sp >= STACK_BYTES || call.ended != 0 {
            continue;
        }
        call.ended = 1;
        let (sp, number) = (call.sp, i64::from(call.number));
        if raw_cancellation::is_past(base, call) {
            continue;
        }
        let result = interrupted(number) as u64;
        let mut left = PtRegs { rax: result, rsp: sp, orig_rax: number as u64, ..user_registers() };
        // SAFETY: valid registers.
        unsafe { show_end(base, tb, &mut left, number) };
    }
}

/// Runs the programs that see the beginning of a call: its result, if one wants it not to be made.
///
/// # Safety
/// `regs` are valid registers, as they are before the call.
pub(crate) unsafe fn show_beginning(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, number: i64) -> Option<u64> {
    // (A program that this call's handler interrupted may have said so of another.)
    let outer = (core::mem::take(&mut tb.overrides), tb.override_result);
    // SAFETY: the caller's promise.
    unsafe { run(base, tb, regs, number, None) };
    let result = (tb.overrides != 0).then_some(tb.override_result);
    (tb.overrides, tb.override_result) = outer;
    result
}

/// Runs the programs that see the end of a call.
///
/// # Safety
/// `regs` are valid registers, as they are behind the call.
pub(crate) unsafe fn show_end(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, number: i64) {
    const EINTR: u64 = (-4i64) as u64;
    regs.orig_rax = number as u64;
    let result = regs.rax;
    if result == EINTR {
        regs.rax = interrupted(number) as u64;
    }
    // SAFETY: the caller's promise.
    unsafe { run(base, tb, regs, number, Some(regs.rax)) };
    regs.rax = result;
}

/// What the kernel shows as the result of a call that a signal interrupts (`ERESTARTSYS` and its kin, include/linux/errno.h),
/// where its caller finds `EINTR`.
pub(crate) fn interrupted(number: i64) -> i64 {
    const EINTR: i64 = -4;
    const ERESTARTNOHAND: i64 = -514;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    match number {
        nr::EPOLL_WAIT | nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 | nr::SEMOP | nr::SEMTIMEDOP => EINTR,
        nr::RT_SIGTIMEDWAIT | nr::IO_GETEVENTS => EINTR,
        nr::PAUSE | nr::RT_SIGSUSPEND | nr::SELECT | nr::PSELECT6 | nr::PPOLL => ERESTARTNOHAND,
        nr::NANOSLEEP | nr::CLOCK_NANOSLEEP | nr::POLL | nr::RESTART_SYSCALL => ERESTART_RESTARTBLOCK,
        _ => ERESTARTSYS,
    }
}

/// Whether a call sends the thread's process a signal that ends it: then nobody sees the call's end.
fn ends_process(tb: &ThreadBlock, regs: &PtRegs, number: i64) -> bool {
    /// Signals that are ignored, or stop a process, where nobody handles them: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH.
    const HARMLESS: u64 = 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23 | 1 << 28;
    const SIGNALS: u64 = 64;
    let (process, thread) = (tb.pid_tgid >> 32, u64::from(tb.pid_tgid as u32));
    let (to_itself, signal) = match number {
        nr::KILL | nr::RT_SIGQUEUEINFO => (regs.rdi == process, regs.rsi),
        nr::TKILL => (regs.rdi == thread, regs.rsi),
        nr::TGKILL | nr::RT_TGSIGQUEUEINFO => (regs.rdi == process && regs.rsi == thread, regs.rdx),
        _ => (false, 0),
    };
    if !to_itself || !(1..=SIGNALS).contains(&signal) || signal < SIGNALS && HARMLESS & 1 << signal != 0 {
        return false;
    }
    // `struct kernel_sigaction`: handler, flags, restorer, mask.
    let mut action = [1u64; 4];
    // SAFETY: asks only; room for the answer.
    unsafe { syscall(nr::RT_SIGACTION, [signal, 0, action.as_mut_ptr() as u64, 8, 0, 0]) };
    if let Some(own) = raw_actions::handler_instead(tb.region_base, signal) {
        action[0] = own;
    }
    let mut blocked = 0u64;
    // SAFETY: asks only; room for the answer.
    unsafe { syscall(nr::RT_SIGPROCMASK, [0, 0, &raw mut blocked as u64, 8, 0, 0]) };
    action[0] == 0 && blocked & 1 << (signal - 1) == 0
}

/// Shows the end of a call that is about to be made.
///
/// # Safety
/// `regs` are the registers of a call that begins, which is the youngest.
unsafe fn end_before(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, number: i64) {
    if let Some(call) = tb.calls.get_mut(tb.next_call.wrapping_sub(1) as usize % CALLS_MAX) {
        call.ended = 1;
    }
    let (result, begun) = (regs.rax, regs.orig_rax);
    regs.rax = 0;
    // SAFETY: valid registers.
    unsafe { show_end(base, tb, regs, number) };
    (regs.rax, regs.orig_rax) = (result, begun);
}

/// The packed range of attachments that see the beginning of a call, or its end.
fn range_of(base: u64, number: i64, is_end: bool) -> u64 {
    let subscribers = subscribers(base, number);
    let range = if is_end { &subscribers.exit } else { &subscribers.enter };
    range.load(Acquire) & !ALWAYS
}

/// Whether anybody wants the beginning of a call, or somebody, be it the agent itself, its end.
pub(crate) fn is_wanted(base: u64, number: i64) -> bool {
    let subscribers = subscribers(base, number);
    (subscribers.enter.load(Acquire) & !ALWAYS) | subscribers.exit.load(Acquire) != 0
}

/// Whether somebody wants the end of a call: then it is remembered.
fn has_end(base: u64, number: i64) -> bool {
    subscribers(base, number).exit.load(Acquire) != 0
}

/// Runs the programs that see the beginning of a call, or its end with a result.
///
/// # Safety
/// `regs` are valid registers, and lie on the stack on which the thread is, or on an agent stack.
pub(crate) unsafe fn run(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, number: i64, result: Option<u64>) {
    let range = || range_of(base, number, result.is_some());
    if range_unpack(range()).1 == 0 {
        return;
    }
    let address = &raw const *regs as u64;
    let raw = [address, result.unwrap_or(number as u64)];
    let trace = match result {
        None => [address, number as u64, regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9],
        Some(result) => [address, number as u64, result, 0, 0, 0, 0, 0],
    };
    let contexts = Contexts { raw, trace };
    let (raw, trace) = (&raw const contexts.raw as u64, &raw const contexts.trace as u64);
    let programs = Programs { range, raw, trace, result, sampled: 0, exit_code: 0 };
    // SAFETY: the caller's promise; contexts of this call.
    unsafe { run_programs(base, tb, regs, programs) };
}

/// What is to run, and what it finds.
pub(crate) struct Programs<R> {
    /// The packed range of the attachments.
    pub(crate) range: R,
    /// Address of the context of raw tracepoints, of tracepoints.
    pub(crate) raw: u64,
    pub(crate) trace: u64,
    /// The result of a call that has ended.
    pub(crate) result: Option<u64>,
    /// For [`ThreadBlock::sampled`] and `exit_code` meanwhile.
    pub(crate) sampled: u64,
    pub(crate) exit_code: u64,
}

/// Runs the programs of a range.
///
/// # Safety
/// As for `run`; the contexts are such as the programs may have, and lie on the stack on which the thread is, below `regs`.
#[inline(never)]
pub(crate) unsafe fn run_programs<R: Fn() -> u64>(
    base: u64,
    tb: &mut ThreadBlock,
    regs: &mut PtRegs,
    programs: Programs<R>,
) {
    let hook = tables(base).hook.load(Relaxed);
    if hook == 0 {
        return;
    }
    // SAFETY: the server wrote the address of a hook.
    let hook = unsafe { &*(hook as *const Hook) };
    let address = &raw mut *regs as u64;
    let on_agent_stack = is_on_agent_stack(base, address);
    // What a signal handler goes back to may be on another stack; what is said of an abandoned call is of the past.
    let is_here = !on_agent_stack && regs.rsp.wrapping_sub(address) < TAKEN_BYTES;
    let sp = if is_here { regs.rsp } else { 0 }.max(address + FRAME_BYTES);
    let left = |tb: &mut ThreadBlock| !on_agent_stack && abandoned_by_longjmp(base, tb, sp);
    // SAFETY: as for this function.
    let run = |tb: &mut ThreadBlock| unsafe { run_at(base, tb, &programs, sp, hook) };
    if run_guarded(tb, left, run).is_none() {
        miss(tb, hook);
    }
}

/// Runs the programs, with this guard, which the caller sets back.
///
/// # Safety
/// As for `run`.
#[inline(always)]
unsafe fn run_at<R: Fn() -> u64>(base: u64, tb: &mut ThreadBlock, programs: &Programs<R>, guard: u64, hook: &Hook) {
    tb.guard.store(guard, Relaxed);
    compiler_fence(Acquire);
    tb.hook = &raw const *hook as u64;
    stand_for(tb, programs.sampled);
    tb.exit_code = programs.exit_code;
    let mut ran = false;
    // Looked up behind the guard, which keeps what is found there.
    for attachment in attachments(base, (programs.range)()) {
        if is_for(tb, attachment) {
            // SAFETY: as for this function; the server wrote the address of a compiled, verified program for the context.
            unsafe { run_program(tb, attachment, programs) };
            ran = true;
        }
    }
    stand_for(tb, 0);
    tb.exit_code = 0;
    if ran {
        hit(tb, hook);
    }
    compiler_fence(Release);
}

/// Runs a program with the context that it has.
///
/// # Safety
/// The attachment names a compiled, verified program for it.
#[inline(always)]
unsafe fn run_program<R>(tb: &mut ThreadBlock, attachment: &Attachment, programs: &Programs<R>) {
    if attachment.flags & ATTACHMENT_KPROBE != 0 {
        // SAFETY: a call's context begins with the address of the registers.
        let regs = unsafe { (programs.raw as *const u64).read() };
        // SAFETY: the caller's promise.
        return unsafe { run_in_function(tb, attachment, regs, programs.result) };
    }
    let is_raw = attachment.flags & ATTACHMENT_RAW != 0;
    // SAFETY: the caller's promise.
    unsafe { run_one(tb, attachment, if is_raw { programs.raw } else { programs.trace }) };
}

/// Runs a program as if it were at the kernel's function of the call, whose only argument are the thread's registers.
///
/// # Safety
/// As for `run_program`.
#[inline(never)]
unsafe fn run_in_function(tb: &mut ThreadBlock, attachment: &Attachment, regs: u64, result: Option<u64>) {
    let function = PtRegs { rdi: regs, rax: result.unwrap_or(0), ..PtRegs::default() };
    // SAFETY: the caller's promise.
    unsafe { run_one(tb, attachment, &raw const function as u64) };
}

/// The arguments of a call that begins a thread or a process.
struct CloneArguments {
    flags: u64,
    tls: u64,
}

impl CloneArguments {
    /// # Safety
    /// `regs` are those of a call with this number.
    unsafe fn of(number: i64, regs: &PtRegs) -> CloneArguments {
        /// Words of `struct clone_args` up to `tls`.
        const ARGUMENTS: usize = 8;
        match number {
            nr::CLONE => CloneArguments { flags: regs.rdi, tls: regs.r8 },
            nr::VFORK => CloneArguments { flags: CLONE_VM | CLONE_VFORK, tls: 0 },
            nr::CLONE3 => {
                let mut words = [0u64; ARGUMENTS];
                // SAFETY: room for the words; the address may be any.
                let _ = unsafe { read_own(words.as_mut_ptr() as u64, regs.rdi, ARGUMENTS as u64 * 8) };
                CloneArguments { flags: words[0], tls: words[7] }
            }
            _ => CloneArguments { flags: 0, tls: 0 },
        }
    }

    /// Whether it runs in its creator's memory, which waits meanwhile.
    fn lends(&self) -> bool {
        self.flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM | CLONE_VFORK
    }

    /// Whether it runs in its creator's memory, beside it, without a TCB of its own.
    fn lacks_tcb(&self) -> bool {
        let beside = self.flags & CLONE_VM != 0 && self.flags & CLONE_VFORK == 0;
        beside && (self.flags & CLONE_SETTLS == 0 || !is_tcb(self.tls))
    }
}

/// What a call that begins a thread or a process has done, for the thread that goes on behind it.
enum Created {
    /// Nothing, or somebody else shows it.
    Nothing,
    /// This one is a child that runs on its creator's stack, with its block. The creator waits: what it would show comes too late.
    Borrower,
    /// This one is the creator of the thread with this id.
    Thread(u32),
}

/// Settles who goes on behind a call that begins a thread or a process.
///
/// # Safety
/// `regs` are those of a call with this number.
unsafe fn after_clone(base: u64, number: i64, regs: &PtRegs) -> Created {
    // SAFETY: the caller's promise.
    let arguments = unsafe { CloneArguments::of(number, regs) };
    let is_child = regs.rax == 0;
    if is_child && arguments.lacks_tcb() {
        begin_without_tcb(base);
        // SAFETY: the running thread's own block, or null.
        if let Some(tb) = unsafe { current(base).as_mut() } {
            set_ids(tb, own_ids());
        }
    }
    if !arguments.lends() {
        if is_child {
            raw_sud::begin_thread(base, arguments.flags);
        }
        return if regs.rax as i64 > 0 { Created::Thread(regs.rax as u32) } else { Created::Nothing };
    }
    // The creator waits, and lends the child its block.
    // SAFETY: the running thread's own block, or null.
    if let Some(tb) = unsafe { current(base).as_mut() } {
        if is_child {
            set_ids(tb, own_ids());
            tb.first_call = tb.next_call;
        } else {
            set_ids(tb, tb.generation << 32 | u64::from(tb.tcb_tid));
            // (What the child has found out is true of the child.)
            tb.tsc.store(0, Relaxed);
        }
        raw_sud::begin_thread(base, arguments.flags);
    }
    if is_child { Created::Borrower } else { Created::Nothing }
}

pub(crate) fn own_ids() -> u64 {
    (syscall0(nr::GETPID) as u64) << 32 | syscall0(nr::GETTID) as u64
}

/// Words of a signal frame from the stack pointer of `rt_sigreturn` on (`struct ucontext`, arch/x86/include/uapi/asm/sigcontext.h).
pub(crate) mod sigframe {
    pub(crate) const R8: usize = 5;
    pub(crate) const R9: usize = 6;
    pub(crate) const R10: usize = 7;
    pub(crate) const RDI: usize = 13;
    pub(crate) const RSI: usize = 14;
    pub(crate) const RDX: usize = 17;
    pub(crate) const RAX: usize = 18;
    pub(crate) const RCX: usize = 19;
    pub(crate) const RSP: usize = 20;
    pub(crate) const RIP: usize = 21;
    pub(crate) const WORDS: usize = 22;
}

/// A signal handler returns: the end of `rt_sigreturn`, which the kernel shows without a number, and the end of the call that
/// the handler interrupted, if that is made again.
///
/// # Safety
/// A thread is about to call `rt_sigreturn` with this stack pointer.
unsafe fn before_return(base: u64, sp: u64) {
    use sigframe as at;
    // SAFETY: the running thread's own block, or null.
    let Some(tb) = (unsafe { current(base).as_mut() }) else { return };
    if tb.next_call == tb.first_call && range_of(base, -1, true) == 0 {
        return;
    }
    let mut frame = [0u64; at::WORDS];
    // SAFETY: room for the words; the address may be any.
    if unsafe { read_own(frame.as_mut_ptr() as u64, sp, (at::WORDS * 8) as u64) }.is_err() {
        return;
    }
    let mut regs = PtRegs {
        rax: frame[at::RAX],
        rdi: frame[at::RDI],
        rsi: frame[at::RSI],
        rdx: frame[at::RDX],
        r10: frame[at::R10],
        r8: frame[at::R8],
        r9: frame[at::R9],
        rsp: frame[at::RSP],
        rip: frame[at::RIP],
        orig_rax: u64::MAX,
        ..user_registers()
    };
    // SAFETY: valid registers.
    unsafe { run(base, tb, &mut regs, -1, Some(frame[at::RAX])) };
    let offset = frame[at::RIP].wrapping_sub(base + TRAMPOLINES_OFFSET);
    let is_before = |(_, progress): &(u64, Progress)| *progress == Progress::Before;
    let place = raw_sud::place_of(base, frame[at::RIP]).filter(is_before);
    if offset >= TRAMPOLINES_BYTES && place.is_none() {
        // SAFETY: what has been read there.
        return unsafe { raw_cancellation::before_return(base, tb, &mut regs, frame[at::RCX], sp) };
    }
    // Right before the instruction was made `rcx` was no address of a trampoline.
    if frame[at::RCX] != frame[at::RIP].wrapping_add(SYSCALL_BYTES) {
        return;
    }
    let again = if offset < TRAMPOLINES_BYTES {
        let index = (offset / TRAMPOLINE_BYTES) as u32;
        regs.rip = site(base, index).call + SYSCALL_BYTES;
        trampoline(base, index)
    } else {
        let Some((behind, _)) = place else { return };
        regs.rip = behind;
        behind - SYSCALL_BYTES
    };
    let number = i64::from(frame[at::RAX] as i32);
    regs.rax = ERESTARTSYS as u64;
    if pop(tb, frame[at::RSP], Some(number), false).is_none_or(|call| call.ended == 0) {
        // SAFETY: valid registers.
        unsafe { show_end(base, tb, &mut regs, number) };
    }
    // SAFETY: the word that was read, in the frame of this thread.
    unsafe { ((sp + at::RIP as u64 * 8) as *mut u64).write(again) };
}
