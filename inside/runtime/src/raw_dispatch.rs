//! Runs programs when a thread hits a site, or when a probed function returns.
//!
//! The guard (`ThreadBlock::guard`) tells whether programs of the thread run already. If so, either a signal handler has
//! interrupted them, and the hit runs its own programs in between (`run_guarded`), or a `longjmp` has abandoned them
//! (`abandoned_by_longjmp`). docs/design/probes.md and docs/design/threads.md have the reasons.

use core::hint::cold_path;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::control::{
    ATTACHMENT_ALL_REGISTERS, ATTACHMENT_CPU_SLOT, ATTACHMENT_EXTENSION, ATTACHMENTS_MAX, ATTACHMENTS_OFFSET,
    Attachment, HOOK_MANY, Hook, HookKind, TestRun, range_unpack,
};
use ring3_layout::frame::{self, ADDRESS_BITS, AgentStackFrame, ENTER_CALL, ENTER_CONTINUE, ENTER_RETURN};
use ring3_layout::region::{CONTROL_OFFSET, STATE_BYTES, STATE_OFFSET};
use ring3_layout::thread::{COUNTED_HOOKS_MAX, CPU_SLOT_HELD, CPU_SLOT_SET, ENDED, OPEN_RECORDS_MAX, ThreadBlock};
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_clock::monotonic_ns;
use crate::raw_request::control;
use crate::raw_sampled::stand_for;
use crate::raw_system::{cpu_number, gs_base, syscall};
use crate::raw_thread::{current, find, known};
use crate::{raw_extension, raw_protection, raw_shadow, raw_signals, raw_slot};

/// A compiled program: its context, and the thread block for its environment.
pub(crate) type Program = unsafe extern "sysv64" fn(u64, u64) -> u64;

/// The registers of a thread at a hit, stored in a [`frame`]: all of them, or those that every frame has.
#[derive(Clone, Copy)]
struct Frame {
    regs: *mut PtRegs,
    all: bool,
}

impl Frame {
    /// Whether the frame has the registers that an attachment's program needs. If not, the program was attached after the frame
    /// was made.
    #[inline(always)]
    fn suits(self, attachment: &Attachment) -> bool {
        self.all || attachment.flags & ATTACHMENT_ALL_REGISTERS == 0
    }
}

/// A thread has hit a site. `regs` are its registers there (all of them if `all`), which the stub restores. The result is what the
/// stub has to do (`ENTER_*`).
///
/// # Safety
/// Called by a stub of the region at `base`: `regs` and `hook` are valid, the stack is aligned.
#[inline(always)]
pub unsafe fn enter(base: u64, regs: *mut PtRegs, hook: *const Hook, all: bool) -> u8 {
    let block = known(base);
    let frame = Frame { regs, all };
    if block.is_null() {
        // SAFETY: as for this function.
        unsafe { enter_unknown(base, frame, hook) }
    } else {
        // SAFETY: as for this function; the block is the running thread's own.
        unsafe { enter_with(block, base, frame, hook) }
    }
}

/// A thread whose block the hints do not give has hit a site.
#[cold]
unsafe fn enter_unknown(base: u64, frame: Frame, hook: *const Hook) -> u8 {
    let block = find(base);
    // SAFETY: as for `enter`; the block is the running thread's own.
    if block.is_null() { ENTER_CONTINUE } else { unsafe { enter_with(block, base, frame, hook) } }
}

/// # Safety
/// As for `enter`; `block` is the running thread's own.
#[inline(always)]
unsafe fn enter_with(block: *mut ThreadBlock, base: u64, frame: Frame, hook: *const Hook) -> u8 {
    // SAFETY: the running thread's own block; a signal handler that uses it too finds the guard set.
    let tb = unsafe { &mut *block };
    // SAFETY: the stub passes a hook of the control page.
    let hook = unsafe { &*hook };
    let sp = frame.regs as u64 + frame::STUB_FRAME_BYTES;
    if tb.guard.load(Relaxed) != 0 {
        // SAFETY: as for this function.
        return unsafe { enter_guarded(block, base, frame, hook) };
    }
    // SAFETY: as for this function.
    let next = unsafe { enter_free(tb, base, frame, hook, sp) };
    tb.guard.store(0, Relaxed);
    // SAFETY: as for this function.
    unsafe { raw_signals::send_wanted(block) };
    next
}

/// A thread has hit a site whose stub does not use the thread's stack (Go).
///
/// # Safety
/// Called by a stub of the region at `base`, which has made sure that GS leads to the thread's own block: `frame` and `hook` are
/// valid, the stack is aligned and ends behind the frame.
pub unsafe fn enter_on_agent_stack(base: u64, frame: &mut AgentStackFrame, hook: *const Hook, eflags: u64) {
    // SAFETY: the running thread's own block; a signal handler that uses it too finds the guard set.
    let tb = unsafe { &mut *(gs_base() as *mut ThreadBlock) };
    let address = hook as u64;
    // SAFETY: the stub passes a hook of the control page.
    let hook = unsafe { &*hook };
    let returns = hook.kind == HookKind::Return as u32;
    complete(frame, hook, returns, eflags);
    let end = &raw const *frame as u64 + size_of::<AgentStackFrame>() as u64;
    let frame = Frame { regs: &raw mut frame.regs, all: true };
    let run = |tb: &mut ThreadBlock| {
        if !returns {
            // SAFETY: as for this function.
            unsafe { enter_elsewhere(tb, base, frame, hook, end) };
            return;
        }
        tb.guard.store(end, Relaxed);
        compiler_fence(Acquire);
        // SAFETY: as for this function.
        if unsafe { finish_one(base, tb, frame, false, address) } {
            hit(tb, hook);
        }
    };
    // (What runs on an agent stack is never abandoned.)
    if run_guarded(tb, |_| false, run).is_none() {
        miss(tb, hook);
    }
}

/// Completes the registers as programs see them, with those that the stub has saved elsewhere: behind a `ret`, or at the probed
/// instruction.
fn complete(frame: &mut AgentStackFrame, hook: &Hook, returns: bool, eflags: u64) {
    /// The bits that `lahf` stores, and the overflow flag.
    const STATUS: u64 = 0x8d5;
    const STATUS_LOW: u64 = 0xd5;
    let (overflow, low) = (frame.state >> ADDRESS_BITS & 1, frame.state >> (ADDRESS_BITS + 8));
    let regs = &mut frame.regs;
    (regs.rax, regs.r11, regs.orig_rax) = (frame.rax, frame.r11, u64::MAX);
    (regs.cs, regs.ss) = (0x33, 0x2b);
    regs.eflags = eflags & !STATUS | low & STATUS_LOW | overflow << 11;
    (regs.rip, regs.rsp) = match returns {
        true => (frame.state & ((1 << ADDRESS_BITS) - 1), frame.rsp + 8),
        false => (hook.site, frame.rsp),
    };
}

/// A hit while the guard is set: programs of this thread are running, or were abandoned.
///
/// # Safety
/// As for `enter_with`.
#[cold]
unsafe fn enter_guarded(block: *mut ThreadBlock, base: u64, frame: Frame, hook: *const Hook) -> u8 {
    // SAFETY: as for `enter_with`.
    let tb = unsafe { &mut *block };
    // SAFETY: the stub passes a hook of the control page.
    let hook = unsafe { &*hook };
    let sp = frame.regs as u64 + frame::STUB_FRAME_BYTES;
    let left = |tb: &mut ThreadBlock| abandoned_by_longjmp(base, tb, sp);
    // SAFETY: as for this function.
    let entered = run_guarded(tb, left, |tb| unsafe { enter_elsewhere(tb, base, frame, hook, sp) });
    if entered.is_none() {
        if hook.kind == HookKind::Probe as u32 {
            miss(tb, hook);
        } else {
            // SAFETY: the stub's registers.
            unsafe { serve(tb, frame.regs, hook) };
        }
    }
    entered.unwrap_or(ENTER_CONTINUE)
}

/// Runs the hook's programs. Sets the guard; the caller restores it.
///
/// # Safety
/// As for `enter_with`.
#[inline(always)]
unsafe fn enter_free(tb: &mut ThreadBlock, base: u64, frame: Frame, hook: &Hook, sp: u64) -> u8 {
    tb.guard.store(sp, Relaxed);
    compiler_fence(Acquire);
    let only = hook.only.load(Acquire);
    let mut next = ENTER_CONTINUE;
    if only == HOOK_MANY {
        cold_path();
        // SAFETY: as for this function.
        next = unsafe { arrive_at_many(base, tb, frame, hook) };
    } else if control(base).retired.load(Relaxed) != 0 {
        cold_path();
    } else {
        // SAFETY: the server wrote the address of an attachment of a probe, whose context registers are.
        let ran = only != 0 && unsafe { run_only(tb, only, frame, hook) };
        // SAFETY: this hook. To read it again spares a register that would have to be kept.
        let hook = if ran { unsafe { &*(tb.hook as *const Hook) } } else { hook };
        let only_return = hook.only_return.load(Acquire);
        if only_return != 0 {
            // SAFETY: the thread is at a function's entry; the server wrote the address of an attachment.
            next = u8::from(unsafe { await_only(tb, only_return, hook, ran) });
        } else if ran {
            hit(tb, hook);
        }
    }
    compiler_fence(Release);
    next
}

/// As `enter_free`, but not inlined: for rare paths.
///
/// # Safety
/// As for `enter_with`.
#[inline(never)]
unsafe fn enter_elsewhere(tb: &mut ThreadBlock, base: u64, frame: Frame, hook: &Hook, sp: u64) -> u8 {
    // SAFETY: as for this function.
    unsafe { enter_free(tb, base, frame, hook, sp) }
}

/// Whether a `longjmp` has abandoned the programs that set the guard. They ran below the stack pointer `sp`; anything that
/// interrupts them runs below them, except a signal handler on the alternate stack. What abandoned programs held is released,
/// unless `sp` may be on another stack, and they continue after a signal handler. Programs that run on an agent stack are never
/// abandoned.
#[cold]
pub(crate) fn abandoned_by_longjmp(base: u64, tb: &mut ThreadBlock, sp: u64) -> bool {
    /// The usual maximum size of a stack (`RLIMIT_STACK`), bytes.
    const STACK_BYTES: u64 = 8 << 20;
    let guard = tb.guard.load(Relaxed);
    let on_agent_stack = guard.wrapping_sub(base + STATE_OFFSET) < STATE_BYTES;
    let left = sp >= guard && !on_agent_stack && !is_on_alternate_stack(guard, sp);
    if left {
        (tb.interrupted, tb.shadow_change) = (0, 0);
        if sp - guard < STACK_BYTES {
            raw_slot::give(base, tb);
        }
    }
    left
}

/// How many runs of programs of one thread may be interrupted at a time, each by a signal handler in the previous one.
const INTERRUPTED_MAX: u32 = 3;

/// The state of interrupted programs, which they need when they continue.
struct Outer {
    interrupted: u32,
    cpu_slot: u32,
    attachment: u64,
    hook: u64,
    open_records: [[u64; 2]; OPEN_RECORDS_MAX],
    fuel: i64,
    tail_target: u64,
    tail_calls: u64,
    sampled: u64,
    exit_code: u64,
    call_word: u64,
    context: u64,
    task_regs: PtRegs,
}

/// No sample stands for the thread any more; which one did.
fn stand_aside(tb: &mut ThreadBlock) -> u64 {
    let sampled = tb.sampled;
    stand_for(tb, 0);
    sampled
}

impl Outer {
    fn take(tb: &mut ThreadBlock) -> Outer {
        Outer {
            interrupted: tb.interrupted,
            cpu_slot: tb.cpu_slot,
            attachment: tb.attachment,
            hook: tb.hook,
            open_records: tb.open_records,
            fuel: tb.fuel,
            tail_target: tb.tail_target,
            tail_calls: tb.tail_calls,
            sampled: stand_aside(tb),
            exit_code: core::mem::take(&mut tb.exit_code),
            call_word: tb.call_word,
            context: tb.context,
            task_regs: tb.task_regs,
        }
    }

    /// Restores the state. The CPU slot of programs that were abandoned, not `interrupted`, was given back.
    fn resume(self, tb: &mut ThreadBlock, interrupted: bool) {
        if interrupted {
            tb.cpu_slot = self.cpu_slot;
        }
        tb.attachment = self.attachment;
        tb.hook = self.hook;
        tb.open_records = self.open_records;
        tb.fuel = self.fuel;
        tb.tail_target = self.tail_target;
        tb.tail_calls = self.tail_calls;
        stand_for(tb, self.sampled);
        tb.exit_code = self.exit_code;
        tb.call_word = self.call_word;
        tb.context = self.context;
        tb.task_regs = self.task_regs;
        tb.interrupted = self.interrupted;
    }
}

/// Calls `run`, which sets the guard, and restores the guard. If the guard is set already, a signal handler has interrupted
/// programs, unless `abandoned_by_longjmp` says that they were abandoned. `None` if too many runs are interrupted.
pub(crate) fn run_guarded<R>(
    tb: &mut ThreadBlock,
    abandoned_by_longjmp: impl FnOnce(&mut ThreadBlock) -> bool,
    run: impl FnOnce(&mut ThreadBlock) -> R,
) -> Option<R> {
    let before = tb.guard.load(Relaxed);
    let interrupts = before != 0 && !abandoned_by_longjmp(tb);
    if interrupts && tb.interrupted >= INTERRUPTED_MAX {
        return None;
    }
    // (Programs that seem to be abandoned may go on, on another stack.)
    let outer = (before != 0).then(|| Outer::take(tb));
    tb.interrupted += u32::from(interrupts);
    compiler_fence(Release);
    let result = run(tb);
    if let Some(outer) = outer {
        outer.resume(tb, interrupts);
    }
    compiler_fence(Release);
    tb.guard.store(if interrupts { before } else { 0 }, Relaxed);
    // SAFETY: blocks are their threads' own, whose programs have just run.
    unsafe { raw_signals::send_wanted(tb) };
    Some(result)
}

/// Whether `sp` is on the thread's alternate signal stack (sigaltstack(2)) and `other` is not. Then whatever ran at `other` is
/// interrupted, wherever the alternate stack lies. (A stack that the kernel disarms meanwhile, `SS_AUTODISARM`, is not known.)
pub(crate) fn is_on_alternate_stack(other: u64, sp: u64) -> bool {
    const SS_DISABLE: u64 = 2;
    // `stack_t`: address, flags, bytes.
    let mut stack = [0u64, SS_DISABLE, 0];
    // SAFETY: asks only; room for the answer.
    unsafe { syscall(nr::SIGALTSTACK, [0, stack.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    let [start, flags, bytes] = stack;
    let is_there = |sp: u64| sp.wrapping_sub(start) <= bytes;
    flags & SS_DISABLE == 0 && is_there(sp) && !is_there(other)
}

#[cold]
pub(crate) fn miss(tb: &mut ThreadBlock, hook: &Hook) {
    if let Some(count) = tb.misses.get((hook.index % COUNTED_HOOKS_MAX) as usize) {
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Counters have one writer: no locked instruction is needed.
#[inline(always)]
pub(crate) fn hit(tb: &ThreadBlock, hook: &Hook) {
    if let Some(count) = tb.hits.get((hook.index % COUNTED_HOOKS_MAX) as usize) {
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Runs the program of an attachment, if it is for this process. True if it ran.
///
/// # Safety
/// `attachment` is the address of one of this hook, and `frame` are valid registers.
#[inline(always)]
unsafe fn run_only(tb: &mut ThreadBlock, attachment: u64, frame: Frame, hook: &Hook) -> bool {
    // SAFETY: the caller's promise.
    let attachment = unsafe { &*(attachment as *const Attachment) };
    if !is_for(tb, attachment) || !frame.suits(attachment) {
        cold_path();
        return false;
    }
    tb.hook = &raw const *hook as u64;
    // SAFETY: the caller's promise.
    unsafe { run_here(tb, attachment, frame.regs as u64) };
    true
}

/// Awaits the return for the hook's only return attachment, and counts a hit if that, or a program on entry (`ran`), ran. True:
/// the stub must call the function.
///
/// # Safety
/// The thread is at a function's entry, `attachment` is the address of one of this hook.
#[inline(never)]
unsafe fn await_only(tb: &mut ThreadBlock, attachment: u64, hook: &Hook, ran: bool) -> bool {
    // SAFETY: the caller's promise.
    let wanted = is_for(tb, unsafe { &*(attachment as *const Attachment) });
    let awaited = if wanted { await_return(tb, hook) } else { None };
    if ran || awaited.is_some() {
        hit(tb, hook);
    }
    awaited == Some(true)
}

/// A hit of a hook with several attachments on entry or return, with an extension, or of one of ring3's own hooks. The result is
/// what the stub has to do.
///
/// # Safety
/// As for `enter`.
#[inline(never)]
unsafe fn arrive_at_many(base: u64, tb: &mut ThreadBlock, frame: Frame, hook: &Hook) -> u8 {
    if hook.kind != HookKind::Probe as u32 {
        // SAFETY: the caller's promise; the server's own hooks always have all registers.
        unsafe { serve(tb, frame.regs, hook) };
        return ENTER_CONTINUE;
    }
    if control(base).retired.load(Relaxed) != 0 {
        return ENTER_CONTINUE;
    }
    // SAFETY: the hook's ranges are the server's.
    let Ran { any: mut ran, decided } = unsafe { run(base, tb, frame, hook, hook.entry.load(Acquire)) };
    if decided {
        hit(tb, hook);
        return ENTER_RETURN;
    }
    let returns = hook.ret.load(Acquire);
    let mut awaited = None;
    if range_unpack(returns).1 != 0 && wanted(base, tb, returns) {
        awaited = await_return(tb, hook);
        ran |= awaited.is_some() && range_unpack(hook.entry.load(Relaxed)).1 == 0;
    }
    if ran {
        hit(tb, hook);
    }
    if awaited == Some(true) { ENTER_CALL } else { ENTER_CONTINUE }
}

/// The most stack that the agent and the stub use, bytes.
pub(crate) const TAKEN_BYTES: u64 = 0x1000;

/// As `raw_shadow::push`, for the stack pointer at the hit. Counts a miss if the return cannot be awaited, or if the return
/// address's slot is no longer certain: a signal handler on another stack took the guard for an abandoned one, or switched the
/// thread to another stack for a while.
#[inline(always)]
fn await_return(tb: &mut ThreadBlock, hook: &Hook) -> Option<bool> {
    let slot = tb.guard.load(Relaxed);
    let here = 0u8;
    let is_here = slot.wrapping_sub(&raw const here as u64) < TAKEN_BYTES;
    let awaited = if is_here { raw_shadow::push(tb, slot, hook) } else { None };
    if awaited.is_none() {
        miss(tb, hook);
    }
    awaited
}

#[inline(always)]
pub(crate) fn attachments(base: u64, range: u64) -> &'static [Attachment] {
    let (first, count) = range_unpack(range);
    if u64::from(first) + u64::from(count) > u64::from(ATTACHMENTS_MAX) {
        return &[];
    }
    let table = (base + CONTROL_OFFSET + ATTACHMENTS_OFFSET) as *const Attachment;
    // SAFETY: the table is mapped with the control page; the range lies in it, and of published entries only an atomic changes.
    unsafe { core::slice::from_raw_parts(table.wrapping_add(first as usize), count as usize) }
}

#[inline(always)]
pub(crate) fn is_for(tb: &ThreadBlock, attachment: &Attachment) -> bool {
    attachment.pid == 0 || u64::from(attachment.pid) == tb.pid_tgid >> 32
}

fn wanted(base: u64, tb: &ThreadBlock, range: u64) -> bool {
    attachments(base, range).iter().any(|attachment| is_for(tb, attachment))
}

/// What came of the programs of a range.
#[derive(Default)]
struct Ran {
    /// Some ran.
    any: bool,
    /// An extension has decided what the function returns.
    decided: bool,
}

/// Runs the programs of a range. What an extension has the function return is put into the registers.
///
/// # Safety
/// `frame` are valid registers, and the range is a published one.
#[inline(never)]
unsafe fn run(base: u64, tb: &mut ThreadBlock, frame: Frame, hook: &Hook, range: u64) -> Ran {
    let mut ran = Ran::default();
    tb.hook = &raw const *hook as u64;
    for attachment in attachments(base, range) {
        if !is_for(tb, attachment) || !frame.suits(attachment) {
            continue;
        }
        let extends = attachment.flags & ATTACHMENT_EXTENSION != 0;
        if extends {
            // (Programs without loops leave it as it is.)
            tb.fuel = 0;
            raw_protection::enable_access(base);
        }
        // SAFETY: the server wrote the address of a compiled, verified program for probes, whose context registers are.
        let result = unsafe { run_one(tb, attachment, frame.regs as u64) };
        if extends {
            raw_protection::disable_access(base);
            // (Who has ended a run otherwise has counted it.)
            if tb.fuel < 0 && tb.fuel > ENDED / 2 {
                cold_path();
                miss(tb, hook);
            }
        }
        ran.any = true;
        // (A run that was ended has no fuel, and no say.)
        if extends
            && tb.fuel >= 0
            && let Some(returned) = raw_extension::judge(base, attachment, result)
        {
            ran.decided = true;
            // SAFETY: the caller's promise.
            unsafe { (*frame.regs).rax = returned };
        }
    }
    ran
}

/// Runs the program of an attachment once, and returns its result. (Inlined; rare paths use [`run_one`].)
///
/// # Safety
/// The attachment names a compiled, verified program, and `context` is one that it may have.
#[inline(always)]
pub(crate) unsafe fn run_here(tb: &mut ThreadBlock, attachment: &Attachment, context: u64) -> u64 {
    tb.attachment = &raw const *attachment as u64;
    // SAFETY: the caller's promise.
    let program: Program = unsafe { core::mem::transmute(attachment.code.load(Relaxed)) };
    let env = &raw mut *tb as u64;
    if attachment.flags & ATTACHMENT_CPU_SLOT == 0 {
        // SAFETY: the program's convention: context and environment.
        return unsafe { program(context, env) };
    }
    let base = tb.region_base;
    // (One that a signal handler's call interrupted goes on with it.)
    let is_held = tb.cpu_slot & CPU_SLOT_HELD != 0 && tb.interrupted != 0;
    raw_slot::take(base, tb);
    // SAFETY: as above.
    let result = unsafe { program(context, env) };
    if !is_held {
        raw_slot::give(base, tb);
    }
    result
}

/// Runs the program of an attachment once, and returns its result.
///
/// # Safety
/// As for `run_here`.
#[inline(never)]
pub(crate) unsafe fn run_one(tb: &mut ThreadBlock, attachment: &Attachment, context: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { run_here(tb, attachment, context) }
}

/// Runs a program by itself, `repeat` times. False if it could not run.
///
/// # Safety
/// `test` is valid, and names a compiled, verified program of the region at `base` and a context that it may have.
pub unsafe fn test_run(base: u64, test: *mut TestRun) -> bool {
    let block = current(base);
    // SAFETY: the running thread's own block, or null.
    let Some(tb) = (unsafe { block.as_mut() }) else { return false };
    // SAFETY: the caller's promise.
    let test = unsafe { &mut *test };
    // (What programs lie on is below.)
    let here = 0u8;
    if tb.guard.load(Relaxed) != 0 {
        return false;
    }
    tb.guard.store(&raw const here as u64, Relaxed);
    stand_for(tb, test.sampled);
    compiler_fence(Acquire);
    let started = monotonic_ns(tb);
    for _ in 0..test.repeat {
        // SAFETY: the caller's promise.
        test.result = unsafe { run_one(tb, &test.attachment, test.context) };
    }
    test.duration_ns = monotonic_ns(tb).wrapping_sub(started);
    compiler_fence(Release);
    stand_for(tb, 0);
    tb.guard.store(0, Relaxed);
    true
}

/// The CPU whose part of per-CPU maps the running program uses; 0 if it uses no such maps. (To ask for the number of the
/// CPU would take longer than most operations do.)
#[inline(always)]
pub(crate) fn map_cpu(tb: &ThreadBlock) -> u32 {
    u32::from(tb.cpu_slot as u16)
}

/// The CPU that the running program is told: the one whose part of per-CPU maps it uses, or the present one.
pub(crate) fn cpu_of(tb: &ThreadBlock) -> u32 {
    if tb.cpu_slot & CPU_SLOT_SET != 0 { map_cpu(tb) } else { cpu_number(tb.region_base) }
}

/// A hit of one of ring3's own hooks, in an unwinder.
#[cold]
unsafe fn serve(tb: &mut ThreadBlock, regs: *mut PtRegs, hook: &Hook) {
    // SAFETY: the registers are the stub's.
    let regs = unsafe { &*regs };
    if hook.kind == HookKind::UnwindStart as u32 {
        raw_shadow::unwinder_begins(tb, regs.rsp, hook.trampoline);
    } else if hook.kind == HookKind::StackWalk as u32 {
        raw_shadow::restore_all(tb, regs.rsp, hook.trampoline);
    } else if hook.kind == HookKind::UnwindEnd as u32 {
        raw_shadow::unwinder_ends(tb, regs.rsp, hook.trampoline);
    }
}

/// A probed function has returned to the trampoline. `regs` are the registers right after its `ret` (all of them if `all`).
/// Returns the real return address, 0 if it is not known.
///
/// # Safety
/// Called by the trampoline of the region at `base` with the registers it saved.
pub unsafe fn leave(base: u64, trampoline: u64, regs: *mut PtRegs, all: bool) -> u64 {
    let block = known(base);
    let frame = Frame { regs, all };
    let slot = regs as u64 + frame::TRAMPOLINE_FRAME_BYTES;
    // SAFETY: the running thread's own block, or null.
    if let Some(tb) = unsafe { block.as_mut() }
        && tb.guard.load(Relaxed) == 0
        && let Some((return_address, hook)) = raw_shadow::pop_last(tb, slot, trampoline)
    {
        tb.guard.store(slot, Relaxed);
        compiler_fence(Acquire);
        // SAFETY: the registers are the trampoline's.
        unsafe { (*regs).rip = return_address };
        // SAFETY: as for this function; a frame holds the address of a hook of this region.
        unsafe { finish_here(base, tb, frame, hook) };
        compiler_fence(Release);
        tb.guard.store(0, Relaxed);
        // SAFETY: as for this function.
        unsafe { raw_signals::send_wanted(block) };
        return return_address;
    }
    // SAFETY: as for this function.
    unsafe { leave_otherwise(base, trampoline, frame, slot) }
}

/// A return that is not the one of the last shadow frame, or that comes while the guard is set.
///
/// # Safety
/// As for `leave`.
#[cold]
unsafe fn leave_otherwise(base: u64, trampoline: u64, frame: Frame, slot: u64) -> u64 {
    let block = current(base);
    // SAFETY: as for this function.
    let finish = |guarded| unsafe { finish(base, trampoline, block, frame, slot, guarded) };
    // SAFETY: the running thread's own block, or null.
    let Some(tb) = (unsafe { block.as_mut() }) else { return finish(true) };
    let left = |tb: &mut ThreadBlock| abandoned_by_longjmp(base, tb, slot);
    let finished = run_guarded(tb, left, |tb| {
        tb.guard.store(slot, Relaxed);
        compiler_fence(Acquire);
        finish(false)
    });
    finished.unwrap_or_else(|| finish(true))
}

/// Takes the frames of a slot and runs their programs. Returns the real return address.
unsafe fn finish(base: u64, trampoline: u64, block: *mut ThreadBlock, frame: Frame, slot: u64, guarded: bool) -> u64 {
    let call = raw_shadow::pop(block, base, slot).or_else(|| raw_shadow::pop_below(block, slot, trampoline));
    let Some(call) = call else { return 0 };
    let slot = call.slot;
    if call.return_address == trampoline {
        // SAFETY: as for this function.
        return unsafe { finish_chain(base, trampoline, block, frame, slot, guarded, call.hook) };
    }
    // SAFETY: the registers are the trampoline's.
    unsafe { (*frame.regs).rip = call.return_address };
    // SAFETY: as for this function; a frame holds the address of a hook of this region.
    unsafe { finish_one(base, block, frame, guarded, call.hook) };
    call.return_address
}

/// Several frames have one slot: a probed function made a tail call to another probed one. The first frame, which is taken last,
/// has the real return address.
#[cold]
unsafe fn finish_chain(
    base: u64,
    trampoline: u64,
    block: *mut ThreadBlock,
    frame: Frame,
    slot: u64,
    guarded: bool,
    last: u64,
) -> u64 {
    const CHAIN_MAX: usize = 64;
    let mut hooks = [last; CHAIN_MAX];
    let mut chained = 1;
    let mut address = 0;
    while let Some(call) = raw_shadow::pop(block, base, slot) {
        if let Some(hook) = hooks.get_mut(chained) {
            *hook = call.hook;
            chained += 1;
        // SAFETY: null, or the running thread's own block.
        } else if let Some(tb) = unsafe { block.as_mut() } {
            // SAFETY: a frame holds the address of a hook of this region.
            miss(tb, unsafe { &*(call.hook as *const Hook) });
        }
        address = call.return_address;
        if address != trampoline {
            break;
        }
    }
    // SAFETY: the registers are the trampoline's.
    unsafe { (*frame.regs).rip = address };
    for hook in hooks.iter().take(chained) {
        // SAFETY: as for this function; a frame holds the address of a hook of this region.
        unsafe { finish_one(base, block, frame, guarded, *hook) };
    }
    address
}

/// Runs the programs of one return, or counts a miss; true if any ran.
///
/// # Safety
/// `block` is null or the running thread's own, and is not null unless `guarded`; `frame` are valid registers, `hook` is
/// the address of a hook of this region, which stays in the table.
#[inline(never)]
unsafe fn finish_one(base: u64, block: *mut ThreadBlock, frame: Frame, guarded: bool, hook: u64) -> bool {
    // SAFETY: the caller's promise.
    let Some(tb) = (unsafe { block.as_mut() }) else { return false };
    if guarded {
        // SAFETY: the caller's promise.
        miss(tb, unsafe { &*(hook as *const Hook) });
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { finish_here(base, tb, frame, hook) }
}

/// Runs the programs of one return; true if any ran.
///
/// # Safety
/// As for `finish_one`.
#[inline(always)]
unsafe fn finish_here(base: u64, tb: &mut ThreadBlock, frame: Frame, hook: u64) -> bool {
    // SAFETY: the caller's promise.
    let hook = unsafe { &*(hook as *const Hook) };
    if control(base).retired.load(Relaxed) != 0 {
        return false;
    }
    if hook.only.load(Acquire) == HOOK_MANY {
        // SAFETY: the registers are the caller's, and the range is the server's.
        return unsafe { run(base, tb, frame, hook, hook.ret.load(Acquire)) }.any;
    }
    let only = hook.only_return.load(Acquire);
    // SAFETY: the server wrote the address of an attachment of a probe, whose context registers are.
    only != 0 && unsafe { run_only(tb, only, frame, hook) }
}
