//! The net of a target: when calls that come by no gate are caught, and that nothing of it is left when it goes.
//!
//! A process has it only while somebody wants its system calls and some of its code cannot be looked at before it runs, or
//! has a call that cannot be replaced: it makes every call slower. What must never happen is that a thread is dispatched and
//! blocks SIGSYS, or has no handler for it (`inside/runtime/src/raw_net.rs`). So the net comes and goes only while no
//! thread is between having asked whether it is there and doing something about it, and while no SIGSYS waits.

use std::mem::offset_of;
use std::time::Duration;

use ring3_inject as inject;
use ring3_layout::net::{
    NET_ADDRESS_MASK, NET_ALLOWED_BYTES, NET_ALONE_MAX, NET_GATE_BYTES, NET_GATES_BYTES, NET_GATES_OFFSET, NET_SLOTS,
    Net, SIGSYS_BIT,
};
use ring3_layout::region::{AGENT_BYTES_MAX, GATES_BYTES, GATES_OFFSET, REGION_BYTES, TEXT_BYTES, TEXT_OFFSET};
use ring3_layout::syscall::{Progress, SIGCANCEL, SYSCALL_BYTES};
use ring3_patch::JUMP_BYTES;
use ring3_uapi::Errno;

use super::actions::{self, action_of, field, read_word, set_action, write_flag};
use super::modules::file_of;
use super::raw_mapping::{read_process, read_value};
use super::recovery;
use super::tables::in_agent;
use super::target::{STOP_WITHIN, Target};
use super::tracer::refusal_of;
use super::{Following, Refusal};

/// Attempts to find a process in a state in which the net can come or go, and pauses between them.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(300);

const FUTEX: u64 = 202;
const SIGSYS: u64 = 31;
const SIG_IGN: u64 = 1;
/// Calls that change masks or actions: `rt_sigaction`, `rt_sigprocmask`, `rt_sigreturn`, and those with a mask for their own
/// time.
pub(super) const CHANGERS: [u64; 10] = [13, 14, 15, 130, 270, 271, 281, 333, 426, 441];

/// What the server knows of a target's net.
#[derive(Clone, Debug, Default)]
pub(super) struct NetState {
    pub(super) armed: bool,
    /// Why it is wanted.
    pub(super) why: Option<String>,
    /// Why there will be none, whatever happens.
    pub(super) given_up: Option<String>,
}

impl NetState {
    /// Why there is none where it is wanted.
    pub(super) fn refused(&self) -> Option<String> {
        let why = self.why.as_ref().filter(|_| !self.armed);
        let not_yet = |why: &String| format!("no moment was found when that could begin ({why})");
        self.given_up.clone().or_else(|| why.map(not_yet))
    }

    /// Whether it is there if it is wanted, and not else.
    pub(super) fn is_settled(&self) -> bool {
        self.armed == self.why.is_some()
    }
}

/// Where calls go back that were caught; `None`: that is not known.
pub(super) struct CaughtCalls(Option<Vec<u64>>);

impl CaughtCalls {
    /// Whether some may go back into the middle of these bytes.
    pub(super) fn lead_into(&self, bytes: &std::ops::Range<u64>) -> bool {
        let places = self.0.as_ref();
        places.is_none_or(|places| places.iter().any(|place| *place > bytes.start && *place < bytes.end))
    }
}

/// Why code of a process cannot be looked at before it runs, if there is such. The mappings are those that are not ring3's.
pub(super) fn unscanned(pid: u32, mappings: &[inject::Mapping]) -> Option<String> {
    let mut code = mappings.iter().filter(|mapping| mapping.is_executable());
    code.find_map(|mapping| {
        const WRITTEN: &str = "is written while the process runs";
        let (what, why) = match &mapping.path[..] {
            // (In `[uprobes]` the kernel runs copies of single instructions, kernel/events/uprobes.c:xol_add_vma.)
            "[vdso]" | "[vsyscall]" | "[uprobes]" => return None,
            path if path.starts_with("/memfd:ring3-") => return None,
            "" => ("anonymous memory", WRITTEN),
            path if mapping.inode == 0 => (path, WRITTEN),
            path if mapping.permissions.contains('w') || path.starts_with("/memfd:") => (path, WRITTEN),
            path if file_of(pid, mapping).is_none() => (path, "is of a file that is not found"),
            path if mapping.is_shared() => (path, "is shared with others"),
            _ => return None,
        };
        Some(format!("code in {what} at {:#x} {why}", mapping.range.start))
    })
}

/// The words of a call's registers by which it may change a mask.
struct Changer {
    number: u64,
    rdi: u64,
    r8: u64,
    r9: u64,
    r10: u64,
}

impl Changer {
    fn of(registers: &inject::Registers) -> Changer {
        let inject::Registers { rax, rdi, r8, r9, r10, .. } = *registers;
        Changer { number: rax, rdi, r8, r9, r10 }
    }

    /// What a signal frame keeps (`struct sigcontext`), `context` being where `rax` lies there.
    fn kept(stopped: &inject::Stopped, context: u64) -> Result<Changer, inject::Error> {
        let word = |index: u64| read_word(stopped, context - (13 - index) * 8);
        Ok(Changer { number: word(13)?, r8: word(0)?, r9: word(1)?, r10: word(2)?, rdi: word(8)? })
    }

    /// Whether one of these signals may be blocked by it, for a while or for good.
    fn changes(&self, stopped: &inject::Stopped, signals: u64) -> bool {
        matches!(self.number, 13..=15) || self.blocks_meanwhile(stopped, signals)
    }

    /// Whether one of these signals may be blocked by it for its own time.
    fn blocks_meanwhile(&self, stopped: &inject::Stopped, signals: u64) -> bool {
        let word = |at: u64| Some(at).filter(|at| *at != 0).map(|at| read_word(stopped, at));
        let mask = match self.number {
            130 => word(self.rdi),
            271 => word(self.r10),
            281 | 441 => word(self.r8),
            270 | 333 => word(self.r9).and_then(|at| word(at.ok()?)),
            426 => return true,
            _ => return false,
        };
        mask.is_some_and(|mask| mask.is_ok_and(|mask| mask & signals != 0))
    }
}

/// Whether a thread is in a call during which it blocks one of these signals.
pub(super) fn blocks_meanwhile(stopped: &inject::Stopped, tid: u32, signals: u64) -> Result<bool, inject::Error> {
    let registers = stopped.registers(tid)?;
    let in_call = registers.orig_rax as i64 >= 0;
    let call = Changer { number: registers.orig_rax, ..Changer::of(&registers) };
    Ok(in_call && call.blocks_meanwhile(stopped, signals))
}

/// Whether no thread is where it has asked how these signals may be blocked, and is about to do what depends on the answer; nor
/// waits one of them.
pub(super) fn is_calm(stopped: &inject::Stopped, region: u64, signals: u64) -> Result<bool, inject::Error> {
    let ours = [region..region + AGENT_BYTES_MAX, region + TEXT_OFFSET..region + TEXT_OFFSET + TEXT_BYTES];
    let gates = region + GATES_OFFSET..region + GATES_OFFSET + GATES_BYTES;
    let is_inside = |rip: u64| ours.iter().any(|range| range.contains(&rip));
    for tid in stopped.threads().to_vec() {
        let registers = stopped.registers(tid)?;
        let in_call = registers.orig_rax as i64 >= 0;
        // Who waits for the server, or for a lock, has not asked yet, or does not ask any more.
        let waits = in_call && registers.orig_rax == FUTEX;
        let at_net_gate = net_gate(stopped, region, registers.rip).is_some();
        let at_gate = at_net_gate || gates.contains(&registers.rip);
        let changes = at_gate && !in_call && Changer::of(&registers).changes(stopped, signals);
        if is_inside(registers.rip) && !waits && !at_net_gate || changes || stopped.is_pending(tid, signals)? {
            return Ok(false);
        }
    }
    for context in stopped.saved_contexts()? {
        let at_net_gate = net_gate(stopped, region, context.rip).is_some();
        let at_gate = at_net_gate || gates.contains(&context.rip);
        let changes = at_gate && Changer::kept(stopped, context.address)?.changes(stopped, signals);
        if is_inside(context.rip) && !at_net_gate || changes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// No thread is dispatched any more that was by this region.
fn disarm(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    for tid in stopped.threads().to_vec() {
        if stopped.dispatch(tid).is_ok_and(|config| config.mode != 0 && config.offset == region) {
            stopped.set_dispatch(tid, inject::Dispatch::default())?;
        }
    }
    write_flag(stopped, field(region, offset_of!(Net, armed)), false)
}

/// Takes the net out of a process, all at once: whoever finds calls as they were must find actions as they were. False: that
/// cannot be at present.
pub(super) fn take_in(stopped: &mut inject::Stopped, region: u64) -> Result<bool, inject::Error> {
    if !actions::is_taken(stopped.pid(), region, SIGSYS) {
        return Ok(true);
    }
    if !is_calm(stopped, region, SIGSYS_BIT)? {
        return Ok(false);
    }
    disarm(stopped, region)?;
    actions::give_back(stopped, region, SIGSYS)?;
    Ok(true)
}

/// The agent's handler of SIGCANCEL.
pub(super) fn cancel_handler(region: u64) -> u64 {
    in_agent(region, "ring3_cancel_signal")
}

/// Has the agent's handler of SIGCANCEL stand before the process's own, if it has one: threads that are cancelled in a gate are
/// unwound from there (`inside/runtime/src/raw_unwound.rs`). From then on the agent sees what becomes of it.
fn stand_before_cancel(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    if stopped.signals_handled()? & 1 << (SIGCANCEL - 1) == 0 {
        return Ok(());
    }
    let mut action = action_of(stopped, region, SIGCANCEL)?;
    if (region..region + REGION_BYTES).contains(&action[0]) || action[0] <= SIG_IGN {
        return Ok(());
    }
    stopped.write(field(region, offset_of!(Net, cancel_handler)), &action[0].to_le_bytes())?;
    action[0] = cancel_handler(region);
    set_action(stopped, region, SIGCANCEL, action)
}

/// The process's handler of SIGCANCEL, if the agent's has ever stood before it.
pub(super) fn own_cancel_handler(stopped: &inject::Stopped, region: u64) -> Option<u64> {
    read_word(stopped, field(region, offset_of!(Net, cancel_handler))).ok().filter(|own| *own != 0)
}

/// The handler of SIGCANCEL is the process's own again.
pub(super) fn give_cancel_back(stopped: &mut inject::Stopped, region: u64, own: u64) -> Result<(), inject::Error> {
    let mut action = action_of(stopped, region, SIGCANCEL)?;
    if (region..region + REGION_BYTES).contains(&action[0]) {
        action[0] = own;
        set_action(stopped, region, SIGCANCEL, action)?;
    }
    Ok(())
}

/// The gates, which lie at the same distance from the agent in all processes. Behind each call `rcx` says which one it was.
pub(super) fn gates() -> Vec<u8> {
    let exit = in_agent(0, "ring3_net_exit");
    let gate = |slot: u64| {
        let behind = NET_GATES_OFFSET + slot * NET_GATE_BYTES + SYSCALL_BYTES + JUMP_BYTES as u64;
        let distance = (exit.wrapping_sub(behind) as u32).to_le_bytes();
        // syscall; jmp rel32; int3
        [0x0f, 0x05, 0xe9, distance[0], distance[1], distance[2], distance[3], 0xcc]
    };
    (0..NET_SLOTS as u64).flat_map(gate).collect()
}

/// For a thread at `rip` in a gate of the net: the call's own place, and whether it is at that or behind it.
pub(super) fn net_gate(stopped: &inject::Stopped, region: u64, rip: u64) -> Option<(u64, Progress)> {
    let offset = rip.checked_sub(region + NET_GATES_OFFSET).filter(|offset| *offset < NET_GATES_BYTES)?;
    let slot = field(region, offset_of!(Net, slots)) + offset / NET_GATE_BYTES * 8;
    let behind = read_word(stopped, slot).ok().map(|slot| slot & NET_ADDRESS_MASK).filter(|behind| *behind != 0)?;
    let progress = if offset.is_multiple_of(NET_GATE_BYTES) { Progress::Before } else { Progress::After };
    Some((behind - SYSCALL_BYTES, progress))
}

impl Target {
    /// Threads that are cancelled in gates are unwound from their calls.
    pub(super) fn see_cancels(&self, stopped: &mut inject::Stopped) {
        let has_gates = !self.syscalls.seers.is_empty() || self.following == Following::All;
        let done = match has_gates {
            true => stand_before_cancel(stopped, self.region),
            false => recovery::leave_cancels(stopped, self.region),
        };
        if let Err(error) = done {
            tracing::warn!(pid = self.pid, "threads that are cancelled in calls are not unwound from there: {error}");
        }
    }

    /// Has the net come or go; false: that cannot be at present.
    pub(super) fn cast_net(&mut self, stopped: &mut inject::Stopped) -> bool {
        let done = match (self.net.armed, self.net.why.is_some()) {
            (false, true) => self.arm(stopped),
            (true, false) => self.take_in(stopped).map_err(refusal_of),
            _ => Ok(true),
        };
        done.unwrap_or_else(|refusal| {
            tracing::warn!(pid = self.pid, "calls from code that cannot be looked at are not seen: {refusal}");
            self.give_net_up(stopped, refusal.message);
            true
        })
    }

    /// As `cast_net`, with patience.
    pub(super) fn cast_net_patiently(&mut self) -> bool {
        for _ in 0..ATTEMPTS {
            std::thread::sleep(PAUSE);
            match inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| self.cast_net(stopped)) {
                Ok(false) => {}
                done => return done.is_ok(),
            }
        }
        tracing::debug!(pid = self.pid, "no moment was found to change the net");
        false
    }

    /// Nobody wants it any more; false: that cannot be at present.
    pub(super) fn take_net_away(&mut self) -> bool {
        let why = self.net.why.take();
        let is_gone = self.cast_net_patiently() && !self.net.armed;
        if !is_gone {
            self.net.why = why;
        }
        is_gone
    }

    fn give_net_up(&mut self, stopped: &mut inject::Stopped, why: String) {
        self.net.given_up = Some(why);
        self.net.why = None;
        let given_up = field(self.region, offset_of!(Net, given_up));
        if let Err(error) = write_flag(stopped, given_up, true) {
            tracing::debug!(pid = self.pid, "{error}");
        }
    }

    /// The process is about to do what does not go with the net.
    pub(super) fn abandon_net(&mut self, why: &str) {
        self.net.why = None;
        for _ in 0..ATTEMPTS {
            let is_gone = inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| {
                let is_gone = !self.net.armed || self.cast_net(stopped);
                if is_gone {
                    self.give_net_up(stopped, why.to_owned());
                }
                is_gone
            });
            if is_gone.unwrap_or(true) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn arm(&mut self, stopped: &mut inject::Stopped) -> Result<bool, Refusal> {
        let refuse = |why: &str| Refusal::new(Errno::ENOTSUPP, why);
        for tid in stopped.threads().to_vec() {
            let config = stopped
                .dispatch(tid)
                .map_err(|_| refuse("the kernel does not let calls be caught from outside (Linux 6.4 does)"))?;
            if config.mode != 0 && config.offset != self.region {
                return Err(refuse("the process has its own calls dispatched"));
            }
            if stopped.is_filtered(tid).map_err(refusal_of)? {
                return Err(refuse("the process filters its own calls"));
            }
        }
        if !is_calm(stopped, self.region, SIGSYS_BIT).map_err(refusal_of)? {
            return Ok(false);
        }
        self.install(stopped).map_err(refusal_of)?;
        let config = inject::Dispatch { mode: 1, selector: 0, offset: self.region, bytes: NET_ALLOWED_BYTES };
        for tid in stopped.threads().to_vec() {
            if stopped.signals_blocked(tid).map_err(refusal_of)? & SIGSYS_BIT == 0 {
                stopped.set_dispatch(tid, config).map_err(refusal_of)?;
            }
        }
        self.net.armed = true;
        Ok(true)
    }

    /// Makes the action of SIGSYS ours, takes it out of the masks of all others, and tells the agent.
    fn install(&mut self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        let region = self.region;
        let alone: Vec<u8> =
            self.syscalls.alone.iter().take(NET_ALONE_MAX).chain([&0]).flat_map(|at| at.to_le_bytes()).collect();
        stopped.write(field(region, offset_of!(Net, alone)), &alone[..alone.len().min(NET_ALONE_MAX * 8)])?;
        actions::take(stopped, region, SIGSYS, "ring3_net_signal")?;
        write_flag(stopped, field(region, offset_of!(Net, armed)), true)
    }

    fn take_in(&mut self, stopped: &mut inject::Stopped) -> Result<bool, inject::Error> {
        let done = take_in(stopped, self.region)?;
        self.net.armed &= !done;
        Ok(done)
    }

    /// Where calls go back that the net has caught, in a process that is stopped.
    pub(super) fn caught_calls(&self) -> CaughtCalls {
        if !self.net.armed {
            return CaughtCalls(Some(vec![]));
        }
        let mut slots = vec![0u8; NET_SLOTS * 8];
        let read = read_process(self.pid, field(self.region, offset_of!(Net, slots)), &mut slots);
        let place = |slot: &[u8]| u64::from_le_bytes(slot.try_into().expect("8 bytes")) & NET_ADDRESS_MASK;
        CaughtCalls(read.ok().map(|_| slots.chunks_exact(8).map(place).filter(|place| *place != 0).collect()))
    }

    /// Calls that were caught, and those of them that were let through.
    pub(super) fn net_counts(&self) -> (u64, u64) {
        let word = |offset: usize| read_value::<u64>(self.pid, field(self.region, offset)).unwrap_or(0);
        (word(offset_of!(Net, caught)), word(offset_of!(Net, passed)))
    }
}
