//! Takes the part of per-CPU maps that belongs to this CPU (the CPU's slot) for the duration of a run.
//!
//! Only a thread that runs on the slot's CPU takes a free slot. There are two methods:
//! - A restartable sequence (rseq(2)): test that the slot is free and take it, by plain instructions. If the thread is
//!   interrupted or migrated in between, the kernel makes it start again, so no other thread on this CPU came in between. This
//!   needs a `struct rseq` that the C library has registered. It saves a locked instruction, some 3 of the 12 ns that counting
//!   per CPU took.
//! - A locked instruction. The thread may have migrated after it read the CPU's number, and so come between another thread's test
//!   and store. So it counts only if the thread is on that CPU afterwards and the slot is still its own: then no sequence is
//!   under way there, and the effects of an earlier one are visible.
//!
//! A slot that is not free goes to the thread that finds its owner dead, or to a thread that has waited for long: then the holder
//! hands the slot over. (A thread that takes the slot all the time mostly holds it when it is preempted.)

use core::arch::{asm, naked_asm};
use core::hint::cold_path;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::owner::{self, NAMESPACE_UNKNOWN, is_near, tid};
use ring3_layout::realm::{CPUS_MAX, CpuSlot};
use ring3_layout::thread::{CPU_SLOT_HELD, CPU_SLOT_SET, ThreadBlock};

use crate::raw_clock::ticks;
use crate::raw_request::{control, realm};
use crate::raw_system::{cpu_number, is_dead, relax};
use crate::raw_thread::{is_tcb, process};

/// Rounds of waiting for a CPU slot, in which others are let run, and then asleep: a holder that lost its CPU gets it
/// back within some tens of milliseconds, later on a busy machine; all naps together are 0.5 s.
const SLOT_YIELDS: u32 = 64;
const SLOT_NAPS: u32 = SLOT_YIELDS + 2000;
/// Rounds after which the slot is to be handed over. Until the next one is awake nobody has it.
const SLOT_PATIENCE: u32 = SLOT_YIELDS + 20;
/// What a thread may sleep for slots: [`WAITS_PRICE`] - 1 ticks of the time stamp counter pass without for each, after so many
/// ticks in advance (some 2 s). Slots can be written by every process that has the realm block: without this, one that writes
/// a living thread's name into all of them would have others sleep at each run.
const WAITS_PRICE: u64 = 8;
const WAITS_AHEAD: u64 = WAITS_PRICE * 6_000_000_000;
/// No slot was taken.
const NONE: u32 = u32::MAX;
/// What stands before the place where an interrupted sequence goes on: the kernel looks for it (glibc's `RSEQ_SIG`).
const SIGNATURE: u32 = 0x5305_3053;
/// Where in a `struct rseq` the number of the CPU lies, and the address of the present sequence.
const CPU_ID: usize = 4;
const SEQUENCE: usize = 8;

const _: () = assert!(size_of::<CpuSlot>() == 64 && core::mem::offset_of!(CpuSlot, owner) == 0);

/// What this thread is called in shared memory. The control page tells of the namespace of its process; in a fork that
/// has not been adopted yet nothing is known of it.
pub(crate) fn name(base: u64, tb: &ThreadBlock) -> u32 {
    let control = control(base);
    let namespace = if u64::from(control.pid) == tb.generation { control.namespace } else { NAMESPACE_UNKNOWN };
    owner::name(namespace, tb.pid_tgid as u32)
}

/// Takes this CPU's slot for one run; if it cannot be had, its part of maps is shared. A thread that left a run by a
/// `longjmp` still has one.
#[inline(always)]
pub(crate) fn take(base: u64, tb: &mut ThreadBlock) {
    if !take_at_once(base, tb) {
        take_otherwise(base, tb);
    }
}

/// Takes this CPU's slot if that can be had at once: whether it could.
#[inline(always)]
pub(crate) fn take_at_once(base: u64, tb: &mut ThreadBlock) -> bool {
    if tb.cpu_slot & CPU_SLOT_HELD != 0 {
        return true;
    }
    if tb.rseq != 0 {
        let slots = &raw const realm(base).cpu_slots as u64;
        let sequence = &raw const tb.sequence as u64;
        let (cpus, own) = (control(base).cpus, name(base, tb));
        let cpu: u64;
        // SAFETY: `find_rseq` has found this thread's registered area, and has filled in the sequence. (No call: a return would
        // take longer than the rest.)
        unsafe {
            asm!(
                "lea r10, [rip + 2f]",
                "jmp {routine}",
                "2:",
                routine = sym take_by_sequence,
                in("rdx") tb.rseq,
                in("r8") slots,
                in("ecx") cpus,
                in("r9d") own,
                inout("rax") sequence => cpu,
                out("r10") _,
                out("r11") _,
                options(nostack)
            );
        }
        if cpu as u32 != NONE {
            tb.cpu_slot = cpu as u32 | CPU_SLOT_SET | CPU_SLOT_HELD;
            return true;
        }
    }
    false
}

/// Gives the slot back. (It stays the parent's in a child that was forked by a signal handler in the midst of a run.)
#[inline(always)]
pub(crate) fn give(base: u64, tb: &mut ThreadBlock) {
    let held = tb.cpu_slot;
    // (First, for the calls of a handler that comes in between.)
    tb.cpu_slot &= !CPU_SLOT_HELD;
    compiler_fence(Release);
    if held & CPU_SLOT_HELD != 0
        && process(base).generation.load(Relaxed) == tb.generation
        && let Some(slot) = realm(base).cpu_slots.get(usize::from(held as u16))
    {
        if slot.outlasted.load(Relaxed) | slot.waiting.load(Relaxed) == 0 {
            slot.owner.store(0, Release);
        } else {
            cold_path();
            hand_over(slot);
        }
    }
    tb.cpu_slot = 0;
}

/// Gives the slot to who waits for it.
#[inline(always)]
fn hand_over(slot: &CpuSlot) {
    slot.outlasted.store(0, Relaxed);
    let waiting = slot.waiting.swap(0, AcqRel);
    slot.owner.store(waiting, Release);
}

/// Takes the slot of this CPU if it is free: `eax` is the CPU then, else [`NONE`]. `r10` is where it goes on, `rdx` the running
/// thread's registered `struct rseq`, `rax` this sequence, `r8` the slots, of which there are `ecx`, and `r9d` the thread's
/// name. `r11` and the flags change.
#[unsafe(naked)]
unsafe extern "C" fn take_by_sequence() {
    naked_asm!(
        "mov [rdx + {sequence}], rax",
        "ring3_slot_start:",
        "mov eax, [rdx + {cpu_id}]",
        "cmp eax, ecx",
        "jae 2f",
        "mov r11d, eax",
        "shl r11, 6",
        "cmp dword ptr [r8 + r11], 0",
        "jne 2f",
        "mov [r8 + r11], r9d",
        "ring3_slot_end:",
        // The area outlives this code.
        "mov qword ptr [rdx + {sequence}], 0",
        "jmp r10",
        "2: mov qword ptr [rdx + {sequence}], 0",
        "3: mov eax, {none}",
        "jmp r10",
        // The signature, as the end of an instruction that is none.
        ".byte 0x0f, 0xb9, 0x3d",
        ".long {signature}",
        "ring3_slot_abort:",
        "jmp 3b",
        cpu_id = const CPU_ID,
        sequence = const SEQUENCE,
        none = const NONE as i32,
        signature = const SIGNATURE,
    )
}

/// The slot is not free, or was not to be had by a sequence.
#[cold]
fn take_otherwise(base: u64, tb: &mut ThreadBlock) {
    if tb.rseq == 0 {
        find_rseq(base, tb);
    }
    let own = name(base, tb);
    let began = ticks(tb);
    let may_wait = tb.slot_waits <= began.saturating_add(WAITS_AHEAD);
    // It waits for this CPU's to be handed over.
    let mut awaited = None;
    for round in 0..=SLOT_NAPS {
        let cpu = awaited.unwrap_or_else(|| slot_number(base));
        // Shared with whoever has it, unless it can be had.
        tb.cpu_slot = cpu | CPU_SLOT_SET;
        let Some(slot) = realm(base).cpu_slots.get(cpu as usize) else { return };
        let owner = slot.owner.load(Acquire);
        let sleeps = round >= SLOT_YIELDS;
        let taken = if owner == own && awaited.is_none() && tb.interrupted != 0 {
            // That of the run that this one has interrupted just as it took it or gave it back, and which does so still.
            return;
        } else if owner == own {
            // Handed over, now or after this thread had given up.
            true
        } else if owner == 0 && awaited.is_some() {
            // Nobody has it who would hand it over: again as before, unless somebody just does.
            awaited = awaited.filter(|_| !withdraw(slot, own));
            false
        } else if owner == 0 {
            take_locked(base, slot, cpu, own)
        } else {
            let looks = round % SLOT_YIELDS == SLOT_YIELDS - 1;
            let stale = looks && is_near(own, owner) && is_dead(tid(owner));
            stale && slot.owner.compare_exchange(owner, own, Acquire, Relaxed).is_ok()
        };
        // A holder that somebody has waited for in vain is suspended: it is not worth to sleep for it.
        let suspended = sleeps && owner != 0 && owner == slot.outlasted.load(Relaxed) || !may_wait && owner != 0;
        if taken || suspended || round == SLOT_NAPS {
            let promised = awaited.is_some() && !withdraw(slot, own);
            if taken || promised && await_hand_over(slot, own) {
                tb.cpu_slot |= CPU_SLOT_HELD;
            } else {
                // Share this CPU's part rather than wait on another process without a bound.
                slot.outlasted.store(owner, Relaxed);
            }
            if sleeps {
                let spent = ticks(tb).wrapping_sub(began).min(WAITS_AHEAD / WAITS_PRICE);
                tb.slot_waits = tb.slot_waits.max(began).saturating_add(spent * WAITS_PRICE);
            }
            return;
        }
        if round >= SLOT_PATIENCE && awaited.is_none() && slot.waiting.load(Relaxed) == 0 {
            let first = slot.waiting.compare_exchange(0, own, AcqRel, Relaxed).is_ok();
            awaited = first.then_some(cpu);
        }
        relax(sleeps);
    }
}

/// Waits until a slot that is about to be handed over is there: its holder is two instructions away from it, unless it dies.
fn await_hand_over(slot: &CpuSlot, own: u32) -> bool {
    for round in 0..SLOT_NAPS {
        let owner = slot.owner.load(Acquire);
        if owner == own {
            return true;
        }
        if owner == 0 || is_near(own, owner) && is_dead(tid(owner)) {
            return false;
        }
        relax(round >= SLOT_YIELDS);
    }
    false
}

/// No longer waits for a slot; false: it was handed over meanwhile, or is about to be.
fn withdraw(slot: &CpuSlot, own: u32) -> bool {
    slot.waiting.compare_exchange(own, 0, AcqRel, Relaxed).is_ok()
}

/// The number of this CPU's slot. Where there are more CPUs than slots, some share one, and none is taken by sequences.
fn slot_number(base: u64) -> u32 {
    let (cpu, cpus) = (cpu_number(base), control(base).cpus.clamp(1, CPUS_MAX));
    if cpu < cpus { cpu } else { cpu.checked_rem(cpus).unwrap_or(0) }
}

/// Takes the free slot of this CPU by a locked instruction.
fn take_locked(base: u64, slot: &CpuSlot, cpu: u32, own: u32) -> bool {
    if slot.owner.compare_exchange(0, own, AcqRel, Relaxed).is_err() {
        return false;
    }
    let holds = slot_number(base) == cpu && slot.owner.load(Acquire) == own;
    if !holds {
        // If another has taken it meanwhile, it is that one's.
        let _ = slot.owner.compare_exchange(own, 0, Release, Relaxed);
    }
    holds
}

/// Looks for the running thread's `struct rseq`, where its C library says that there is one.
fn find_rseq(base: u64, tb: &mut ThreadBlock) {
    let at = control(base).rseq_offset;
    if at == 0 || tb.fs_base == 0 || control(base).cpus >= CPUS_MAX {
        return;
    }
    // SAFETY: the server found the C library's variable there, which is never unmapped.
    let distance = unsafe { (at as *const u64).read_volatile() };
    // (In a process of that library there may be threads without a TCB of it.)
    if distance == 0 || !is_tcb(tb.fs_base) {
        return;
    }
    let (start, end, abort): (u64, u64, u64);
    // SAFETY: computes addresses of this image.
    unsafe {
        asm!(
            "lea {start}, [rip + ring3_slot_start]",
            "lea {end}, [rip + ring3_slot_end]",
            "lea {abort}, [rip + ring3_slot_abort]",
            start = out(reg) start,
            end = out(reg) end,
            abort = out(reg) abort,
            options(nomem, nostack, preserves_flags)
        );
    }
    tb.sequence.start = start;
    tb.sequence.bytes = end - start;
    tb.sequence.abort = abort;
    tb.rseq = tb.fs_base.wrapping_add(distance);
}
