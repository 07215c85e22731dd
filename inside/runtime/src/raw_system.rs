//! System calls and special instructions. No libc, no `errno`.

use core::arch::{asm, naked_asm};
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::filter::{DENIED_OFFSET, Denied};
use ring3_layout::region::{CONTROL_OFFSET, STATE_OFFSET};
use ring3_layout::thread::StateHeader;
use ring3_uapi::nr;

use crate::raw_request::control;
use crate::raw_thread::state;

pub(crate) const EPERM: i64 = 1;
pub(crate) const ESRCH: i64 = 3;
pub(crate) const EINTR: i64 = 4;
pub(crate) const ETIMEDOUT: i64 = 110;

/// Address of the image's first byte, which is the region's base.
#[inline(always)]
pub fn image_base() -> u64 {
    let base;
    // SAFETY: computes an address that the linker defines.
    unsafe {
        asm!("lea {}, [rip + __ehdr_start]", out(reg) base, options(nomem, nostack, preserves_flags));
    }
    base
}

/// A system call as the kernel takes it, but that one which the process's filters forbid is not made ([`ring3_layout::filter::Denied`]): to who makes it
/// it has failed with `EPERM`. All calls of the agent are made here.
#[unsafe(naked)]
unsafe extern "C" fn make_call() {
    naked_asm!(
        "bt dword ptr [rip + __ehdr_start + {denied}], eax",
        "jc 2f",
        "cmp dword ptr [rip + __ehdr_start + {no_syscalls}], 0",
        "jne 2f",
        "syscall",
        "ret",
        "2: mov rax, {eperm}",
        "ret",
        denied = const CONTROL_OFFSET + DENIED_OFFSET,
        no_syscalls = const STATE_OFFSET + offset_of!(StateHeader, no_syscalls) as u64,
        eperm = const -EPERM,
    )
}

/// A system call with up to six arguments; returns what the kernel returns, or `EPERM` if the process must not make it.
///
/// # Safety
/// As the system call: pointers are valid for what it does with them.
pub(crate) unsafe fn syscall(number: i64, arguments: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11, and `make_call` uses no others; the caller vouches for the
    // arguments.
    unsafe {
        asm!(
            "call {make_call}",
            make_call = sym make_call,
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Whether the process may make a call, as far as its filters are known ([`ring3_layout::filter::Denied`]).
pub(crate) fn may_call(base: u64, number: i64) -> bool {
    // SAFETY: the control page is mapped with the region; the words are atomics.
    let denied = unsafe { &*((base + CONTROL_OFFSET + DENIED_OFFSET) as *const Denied) };
    let word = denied.words.get(number as usize / 64).map_or(u64::MAX, |word| word.load(Relaxed));
    word & 1 << (number % 64) == 0 && state(base).no_syscalls.load(Relaxed) == 0
}

/// A system call without pointers.
pub(crate) fn syscall0(number: i64) -> i64 {
    // SAFETY: used for calls without arguments.
    unsafe { syscall(number, [0; 6]) }
}

/// Lets other threads run; `sleeps`: for [`ring3_maps::NAP_NS`].
pub(crate) fn relax(sleeps: bool) {
    if !sleeps {
        syscall0(nr::SCHED_YIELD);
        return;
    }
    let time = [0u64, ring3_maps::NAP_NS];
    // SAFETY: nanosleep reads the time; what was left of it is not wanted.
    unsafe { syscall(nr::NANOSLEEP, [&raw const time as u64, 0, 0, 0, 0, 0]) };
}

/// Whether no thread of this pid namespace has this id any more, or it has no memory any more: a process that was
/// killed is a zombie until its parent waits for it, but runs nothing. Mirrors mm/process_vm_access.c:process_vm_rw_core.
pub(crate) fn is_dead(tid: u32) -> bool {
    // SAFETY: tkill with signal 0 only looks.
    if unsafe { syscall(nr::TKILL, [u64::from(tid), 0, 0, 0, 0, 0]) } == -ESRCH {
        return true;
    }
    let mut byte = 0u64;
    let local = [&raw mut byte as u64, 1];
    // Nothing is mapped there: of a living thread no byte is read.
    let remote = [1u64, 1];
    let (local, remote) = (&raw const local as u64, &raw const remote as u64);
    // SAFETY: reads at most a byte into `byte`.
    unsafe { syscall(nr::PROCESS_VM_READV, [u64::from(tid), local, 1, remote, 1, 0]) == -ESRCH }
}

/// Base of FS. The server checked that user code may ask (`AT_HWCAP2`).
#[inline(always)]
pub(crate) fn fs_base() -> u64 {
    let base;
    // SAFETY: reads a register.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// The word at the base of FS.
///
/// # Safety
/// FS points to a TCB.
#[inline(always)]
pub(crate) unsafe fn word_at_fs() -> u64 {
    let word;
    // SAFETY: the caller's promise.
    unsafe { asm!("mov {}, fs:0", out(reg) word, options(nostack, readonly, preserves_flags)) };
    word
}

/// The four bytes at a distance from the base of FS.
///
/// # Safety
/// They are there.
#[inline(always)]
pub(crate) unsafe fn half_at_fs(distance: u32) -> u32 {
    let half;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("mov {:e}, fs:[{:r}]", out(reg) half, in(reg) u64::from(distance), options(nostack, readonly, preserves_flags));
    }
    half
}

/// The TCB at FS: its first word, and the thread's id, which lies at a distance.
///
/// # Safety
/// FS points to a TCB in which the id lies there.
#[inline(always)]
pub(crate) unsafe fn tcb_at_fs(tid_at: u32) -> (u64, u32) {
    // SAFETY: the caller's promise.
    let word = unsafe { word_at_fs() };
    // SAFETY: the caller's promise.
    (word, unsafe { half_at_fs(tid_at) })
}

/// Base of GS.
#[inline(always)]
pub(crate) fn gs_base() -> u64 {
    let base;
    // SAFETY: reads a register.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Sets the base of GS, which nobody else uses: the caller has checked that.
pub(crate) fn set_gs_base(base: u64) {
    // SAFETY: writes a register that this process does not use.
    unsafe { asm!("wrgsbase {}", in(reg) base, options(nomem, nostack, preserves_flags)) };
}

/// Number of the current CPU, which the kernel keeps where RDPID reads it (`TSC_AUX`), and as the limit of a segment
/// (arch/x86/include/asm/segment.h:vdso_read_cpunode).
#[inline(always)]
pub(crate) fn cpu_number(base: u64) -> u32 {
    const CPU_SEGMENT: u64 = 0x7b;
    const CPU_MASK: u64 = 0xfff;
    let number: u64;
    if control(base).rdpid != 0 {
        // SAFETY: reads a register; the server has seen that there is such an instruction.
        unsafe { asm!("rdpid {}", out(reg) number, options(nomem, nostack, preserves_flags)) };
    } else {
        // SAFETY: reads a segment limit.
        unsafe { asm!("lsl {0:e}, {1:e}", out(reg) number, in(reg) CPU_SEGMENT, options(nomem, nostack)) };
    }
    (number & CPU_MASK) as u32
}

/// The time stamp counter, which is not disabled in the running thread (`raw_clock.rs`).
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}
