//! Signals that come while ring3's programs record a call of a thread, and are told later.
//!
//! The tracer passes them over, and has the agent send them anew behind the programs, as it sends those that programs want
//! ([`ThreadBlock::wanted_signals`]). The thread waits for room in the ring buffer, or for strace, meanwhile, as if nothing had come. Then
//! - behind the end of a call a signal comes where the agent sends it;
//! - before a call is made it is put off once more. The thread goes on by `PTRACE_SYSCALL`, and when the kernel stops it at the call, the
//!   tracer sends all that was put off: the call meets them as signals that were sent meanwhile. (A call that makes a process or a thread
//!   is made first: the kernel would begin it again for each signal that waits, and if signals come often it would never be made.)
//!
//! If the tracer dies, the agent sends what was put off, without what was known of it. Only a signal that waits for the end of a call which
//! makes a process or a thread is lost then: the tracer alone has it.

use std::mem::offset_of;

use libc::{c_int, pid_t};
use ring3_layout::control::{ATTACHMENT_BEGINS, ATTACHMENT_SIGNALS, Attachment};
use ring3_layout::region::{STATE_BYTES, STATE_OFFSET};
use ring3_layout::sud::{FIRST_QUEUED, SIGNALS};
use ring3_layout::syscall::{CALLS_MAX, CLONE_SYSCALLS, Call, SYSCALL_BYTES};
use ring3_layout::thread::{
    STATE_HEADER_BYTES, StateHeader, THREAD_BLOCK_BYTES, THREADS_MAX, TO_THREAD, ThreadBlock,
};

use crate::raw_calls::{peek, poke, registers, set_signal_info, signal_info};
use crate::raw_steps::Places;
use crate::shim::RAISED;

/// Stack below a call that ring3's code takes at most, its programs apart.
const FRAMES_BYTES_MAX: u64 = 3072;
/// What the kernel has in `rax` where it stops a thread that begins a system call: `-ENOSYS`.
const BEGINS: i64 = -38;

/// The agent's state of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    tid: pid_t,
    at: u64,
}

impl Block {
    /// `None`: it has none, or its process is no target.
    pub(crate) fn of(tid: pid_t, places: Places, registers: &libc::user_regs_struct) -> Option<Block> {
        let state = places.region + STATE_OFFSET;
        let owner = |at: u64| {
            let is_block = at.wrapping_sub(state) < STATE_BYTES;
            if is_block {
                peek(libc::PTRACE_PEEKTEXT, tid, at + offset_of!(ThreadBlock, fs_base) as u64)
            } else {
                None
            }
        };
        if owner(registers.gs_base) == Some(registers.fs_base) {
            return Some(Block { tid, at: registers.gs_base });
        }
        let word = |at: usize| peek(libc::PTRACE_PEEKTEXT, tid, state + at as u64);
        let used = (word(offset_of!(StateHeader, used))? as u32).min(THREADS_MAX) as usize;
        let is_its = |index: &usize| word(offset_of!(StateHeader, fs_bases) + index * 8) == Some(registers.fs_base);
        let index = (0..used).find(is_its)? as u64;
        Some(Block { tid, at: state + STATE_HEADER_BYTES + index * THREAD_BLOCK_BYTES })
    }

    fn word(self, offset: usize) -> Option<u64> {
        peek(libc::PTRACE_PEEKTEXT, self.tid, self.at + offset as u64)
    }

    /// `ATTACHMENT_*` of the program that runs, or has run last.
    fn flags(self) -> u32 {
        let attachment = self.word(offset_of!(ThreadBlock, attachment)).filter(|address| *address != 0);
        let flags = |address: u64| {
            peek(libc::PTRACE_PEEKTEXT, self.tid, address.wrapping_add(offset_of!(Attachment, flags) as u64))
        };
        attachment.and_then(flags).unwrap_or(0) as u32
    }

    /// Whether programs run behind which the agent sends what is wanted.
    fn runs_programs(self) -> bool {
        self.runs_any() && self.flags() & ATTACHMENT_SIGNALS != 0
    }

    /// Whether programs run, be it those of other tools.
    pub(crate) fn runs_any(self) -> bool {
        self.word(offset_of!(ThreadBlock, guard)).is_some_and(|guard| guard != 0)
    }

    /// Whether a call that was made from about this place of the stack has begun, and has not ended: it is still to be made, or its end to be
    /// recorded.
    fn has_call_at(self, sp: u64) -> bool {
        let index = |offset| self.word(offset).map(|word| word as u32);
        let (Some(next), Some(first)) =
            (index(offset_of!(ThreadBlock, next_call)), index(offset_of!(ThreadBlock, first_call)))
        else {
            return false;
        };
        let place = next.wrapping_sub(1) as usize % CALLS_MAX;
        let call = offset_of!(ThreadBlock, calls) + place * size_of::<Call>();
        let (at, ended) = (self.word(call + offset_of!(Call, sp)), index(call + offset_of!(Call, ended)));
        let is_on_agent_stack = sp.wrapping_sub(self.at) < THREAD_BLOCK_BYTES;
        let is_here = |at: u64| at != 0 && (is_on_agent_stack || at.wrapping_sub(sp) <= FRAMES_BYTES_MAX);
        next != first && at.is_some_and(is_here) && ended == Some(0)
    }

    /// Whether the programs that have run last were at the beginning of a call.
    fn is_before_call(self) -> bool {
        self.flags() & ATTACHMENT_BEGINS != 0
    }

    /// Has the agent send a signal once more, or once less.
    fn want(self, signal: c_int, more: bool) {
        let count = offset_of!(ThreadBlock, wanted_signals)
            + TO_THREAD * size_of::<[u16; SIGNALS]>()
            + (signal as usize - 1) * size_of::<u16>();
        // (It has taken note of a signal before it sends that.)
        if self.change(count, u64::from(u16::MAX), more) {
            self.change(offset_of!(ThreadBlock, signals), u64::from(u32::MAX), more);
        }
    }

    /// Changes a number that lies in the low bits (`mask`) at an offset by one. False if it is as small, or as great, as it can be.
    fn change(self, offset: usize, mask: u64, more: bool) -> bool {
        let Some(word) = self.word(offset) else { return false };
        let (number, last) = (word & mask, if more { mask } else { 0 });
        let changed = if more { number.wrapping_add(1) } else { number.wrapping_sub(1) };
        number != last && poke(self.tid, self.at + offset as u64, word & !mask | changed).is_ok()
    }
}

/// Where a signal is that was put off.
#[derive(Clone, Copy, Debug)]
enum Whereabouts {
    /// Its thread's tracer has it.
    Here,
    /// The agent will send it.
    Agent(Block),
    /// It waits in the kernel.
    Kernel,
}

#[derive(Clone, Copy)]
struct Signal {
    info: libc::siginfo_t,
    place: Whereabouts,
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.info.si_signo, self.place)
    }
}

/// The signals of a thread that were put off and have not come again.
#[derive(Debug, Default)]
pub(crate) struct Postponed(Vec<Signal>);

impl Postponed {
    /// Whether the thread is to stop where it makes its call.
    pub(crate) fn await_call(&self) -> bool {
        self.0.iter().any(|signal| !matches!(signal.place, Whereabouts::Kernel))
    }

    /// Whether the thread, which a signal has stopped in ring3's code, is to go on without it: programs run, it is about to make the call
    /// whose beginning they have seen, or has made it and they are still to see its end.
    pub(crate) fn is_early(&self, block: Block, registers: &libc::user_regs_struct) -> bool {
        let is_sent = [libc::SYS_rt_tgsigqueueinfo, libc::SYS_rt_sigqueueinfo].contains(&(registers.orig_rax as i64));
        block.runs_programs()
            || block.has_call_at(registers.rsp)
            || is_sent && !self.0.is_empty() && block.is_before_call()
    }

    /// Puts off the signal that has stopped a thread. If it waits already, it is one, as in the kernel.
    pub(crate) fn put_off(&mut self, block: Block, info: libc::siginfo_t) {
        let info = self.take(&info).unwrap_or(info);
        self.0.push(Signal { info, place: Whereabouts::Agent(block) });
        block.want(info.si_signo, true);
    }

    /// The signal that has stopped a thread is told now: with all that was known of it when it came first.
    pub(crate) fn comes(&mut self, tid: pid_t) {
        if let Some(info) = signal_info(tid)
            && let Some(mut first) = self.take(&info)
        {
            let _ = set_signal_info(tid, &mut first);
        }
    }

    /// Takes back the signal that waits already, or that comes again now.
    fn take(&mut self, info: &libc::siginfo_t) -> Option<libc::siginfo_t> {
        const SI_KERNEL: c_int = 0x80;
        const SI_TKILL: c_int = -6;
        let is_again = matches!(info.si_code, SI_KERNEL | SI_TKILL);
        // (A thread may raise one of its own while another one waits.)
        let is_one = (info.si_signo as u32) < FIRST_QUEUED && !RAISED.contains(&info.si_signo);
        let is_it = |signal: &Signal| signal.info.si_signo == info.si_signo && (is_one || is_again);
        let index = self.0.iter().position(is_it)?;
        let signal = self.0.remove(index);
        if let Whereabouts::Agent(block) = signal.place {
            block.want(info.si_signo, false);
        }
        Some(signal.info)
    }

    /// The kernel has stopped a thread at a system call.
    pub(crate) fn at_call(&mut self, tid: pid_t, places: Places) {
        if let Ok(now) = registers(tid)
            && !places.have_of_ring3(now.rip - SYSCALL_BYTES)
        {
            self.meet(tid, &now);
        }
    }

    /// The kernel has stopped a thread at the beginning of its call, behind the beginning that the programs have seen: a signal that came on
    /// the way there, and all others, meet it in the call. The result is how the thread is to be resumed.
    pub(crate) fn enters_call(&mut self, tid: pid_t, info: libc::siginfo_t) -> libc::c_uint {
        let info = self.take(&info).unwrap_or(info);
        self.0.push(Signal { info, place: Whereabouts::Here });
        if let Ok(now) = registers(tid) {
            self.meet(tid, &now);
        }
        if self.await_call() { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT }
    }

    fn meet(&mut self, tid: pid_t, now: &libc::user_regs_struct) {
        if now.rax as i64 == BEGINS && CLONE_SYSCALLS.contains(&(now.orig_rax as i64)) {
            // (The child has a copy of the block.)
            self.take_from_agent();
        } else {
            self.send(tid);
        }
    }

    fn take_from_agent(&mut self) {
        for signal in &mut self.0 {
            if let Whereabouts::Agent(block) = signal.place {
                block.want(signal.info.si_signo, false);
                signal.place = Whereabouts::Here;
            }
        }
    }

    /// The thread executes a program: its block is gone.
    pub(crate) fn executed(&mut self, tid: pid_t) {
        for signal in &mut self.0 {
            if let Whereabouts::Agent(_) = signal.place {
                signal.place = Whereabouts::Here;
            }
        }
        self.send(tid);
    }

    /// Sends the stopped thread all that is not in the kernel yet.
    pub(crate) fn send(&mut self, tid: pid_t) {
        self.take_from_agent();
        for signal in &mut self.0 {
            if let Whereabouts::Here = signal.place {
                // SAFETY: takes numbers.
                unsafe { libc::syscall(libc::SYS_tkill, tid, signal.info.si_signo) };
                signal.place = Whereabouts::Kernel;
            }
        }
    }
}
