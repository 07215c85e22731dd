//! The SUD fallback of a target: when the kernel catches calls that go through no trampoline, and that nothing of it is
//! left after it is disabled.
//!
//! It is enabled only while somebody wants a process's system calls and some of its code cannot be looked at before it
//! runs, or has a call that cannot be replaced: it makes every call slower. What must never happen is that a thread is
//! dispatched and blocks SIGSYS, or has no handler for it (`inside/runtime/src/raw_sud.rs`). So the server enables and
//! disables it only while no thread has read whether it is enabled without having acted on that, and while no SIGSYS is
//! pending.

use std::mem::offset_of;
use std::time::Duration;

use ring3_inject as inject;
use ring3_layout::region::REGION_BYTES;
use ring3_layout::sud::{
    SIGSYS_BIT, SUD_ADDRESS_MASK, SUD_ALLOWED_BYTES, SUD_LEFT_IN_PLACE_MAX, SUD_SLOTS, SUD_TRAMPOLINE_BYTES,
    SUD_TRAMPOLINES_OFFSET, SudState,
};
use ring3_layout::syscall::{MASK_SETTERS, SIGCANCEL, SYSCALL_BYTES};
use ring3_layout::thread::ThreadBlock;
use ring3_patch::JUMP_BYTES;
use ring3_uapi::{Errno, nr};

use crate::realm::Refusal;
use crate::realm::files::file_of;
use crate::realm::process::{Cleaning, own_pid, read_process, read_value};
use crate::realm::refusal::refusal_of;
use crate::realm::signals::{
    action_of, actions, blocks_meanwhile, field, masks_are_stable, read_word, set_action, write_flag,
};
use crate::realm::sites::{CaughtCalls, in_agent};
use crate::realm::target::{STOP_WITHIN, Target};

/// Attempts to find a process in a state in which the fallback can be enabled or disabled, and pauses between them.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(300);

const SIGSYS: u64 = 31;
const SIG_IGN: u64 = 1;
/// Whether a call may change masks or actions, be it for its own time.
pub(super) fn is_changer(number: i64) -> bool {
    [nr::RT_SIGACTION, nr::RT_SIGPROCMASK, nr::RT_SIGRETURN].contains(&number) || MASK_SETTERS.contains(&number)
}

/// What the server knows of a target's SUD fallback.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct SudFallback {
    pub(in crate::realm) armed: bool,
    /// Why it is wanted.
    pub(in crate::realm) why: Option<String>,
    /// Why there will be none, whatever happens.
    pub(in crate::realm) given_up: Option<String>,
}

impl SudFallback {
    /// Why there is none where it is wanted.
    pub(in crate::realm) fn refused(&self) -> Option<String> {
        let why = self.why.as_ref().filter(|_| !self.armed);
        let not_yet = |why: &String| format!("could not quiesce all threads to enable SUD ({why})");
        self.given_up.clone().or_else(|| why.map(not_yet))
    }

    /// Whether it is enabled exactly if it is wanted.
    pub(in crate::realm) fn is_settled(&self) -> bool {
        self.armed == self.why.is_some()
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

/// No thread is dispatched any more that was by this region.
fn disarm(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    for tid in stopped.threads().to_vec() {
        if stopped.dispatch(tid).is_ok_and(|config| config.mode != 0 && config.offset == region) {
            stopped.set_dispatch(tid, inject::Dispatch::default())?;
        }
    }
    write_flag(stopped, field(region, offset_of!(SudState, armed)), false)
}

/// Disables the fallback of a process, all at once: whoever finds calls as they were must find actions as they were.
/// False: that is not possible at present.
pub(in crate::realm) fn disable(stopped: &mut inject::Stopped, region: u64) -> Result<bool, inject::Error> {
    if !actions::is_taken(stopped.pid(), region, SIGSYS) {
        return Ok(true);
    }
    if !masks_are_stable(stopped, region, SIGSYS_BIT)? {
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

/// Has the agent's handler of SIGCANCEL stand before the process's own, if it has one: threads that are cancelled in a
/// trampoline are unwound from there (`inside/runtime/src/raw_unwound.rs`). From then on the agent sees what becomes of
/// it.
fn interpose_cancel_handler(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    if stopped.signals_handled()? & 1 << (SIGCANCEL - 1) == 0 {
        return Ok(());
    }
    let mut action = action_of(stopped, region, SIGCANCEL)?;
    if (region..region + REGION_BYTES).contains(&action[0]) || action[0] <= SIG_IGN {
        return Ok(());
    }
    stopped.write(field(region, offset_of!(SudState, cancel_handler)), &action[0].to_le_bytes())?;
    action[0] = cancel_handler(region);
    set_action(stopped, region, SIGCANCEL, action)
}

/// The process's handler of SIGCANCEL, if the agent's has ever stood before it.
pub(super) fn own_cancel_handler(stopped: &inject::Stopped, region: u64) -> Option<u64> {
    read_word(stopped, field(region, offset_of!(SudState, cancel_handler))).ok().filter(|own| *own != 0)
}

/// The handler of SIGCANCEL is the process's own again.
pub(super) fn restore_cancel_handler(
    stopped: &mut inject::Stopped,
    region: u64,
    own: u64,
) -> Result<(), inject::Error> {
    let mut action = action_of(stopped, region, SIGCANCEL)?;
    if (region..region + REGION_BYTES).contains(&action[0]) {
        action[0] = own;
        set_action(stopped, region, SIGCANCEL, action)?;
    }
    Ok(())
}

/// The SUD trampolines, which lie at the same distance from the agent in all processes. After each call `rcx` says
/// which one it was.
pub(in crate::realm) fn trampolines() -> Vec<u8> {
    let exit = in_agent(0, "ring3_sud_exit");
    let trampoline = |slot: u64| {
        let behind = SUD_TRAMPOLINES_OFFSET + slot * SUD_TRAMPOLINE_BYTES + SYSCALL_BYTES + JUMP_BYTES as u64;
        let distance = (exit.wrapping_sub(behind) as u32).to_le_bytes();
        // syscall; jmp rel32; int3
        [0x0f, 0x05, 0xe9, distance[0], distance[1], distance[2], distance[3], 0xcc]
    };
    (0..SUD_SLOTS as u64).flat_map(trampoline).collect()
}

impl Cleaning {
    /// The handler of SIGCANCEL is the process's own again, and what was put off comes now, as from the process itself. (As long
    /// as threads are in our code, they may be cancelled there.)
    pub(in crate::realm) fn leave_cancels(self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        let Some(handler) = own_cancel_handler(stopped, self.region) else { return Ok(()) };
        restore_cancel_handler(stopped, self.region, handler)?;
        let own_pid = own_pid(self.pid);
        let field = |block: u64, offset: usize| read_value::<u64>(self.pid, block + offset as u64).unwrap_or(0);
        let waits = |block: &u64| field(*block, std::mem::offset_of!(ThreadBlock, cancel_waits)) as u32 != 0;
        for block in self.blocks().filter(waits) {
            let ids = field(block, std::mem::offset_of!(ThreadBlock, pid_tgid));
            // (A fork has its creator's until its thread comes by.)
            if own_pid != Some((ids >> 32) as u32) {
                continue;
            }
            let arguments = [ids >> 32, u64::from(ids as u32), SIGCANCEL, 0, 0, 0];
            // (It may have ended since.)
            match stopped.syscall("tgkill", nr::TGKILL, arguments) {
                Ok(_) | Err(inject::Error::RemoteCall { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Nobody wants a process's calls any more: threads that are cancelled are its own again, unless some are in our code.
fn leave_cancels(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    let cleaning = Cleaning { pid: stopped.pid(), region };
    let is_theirs = own_cancel_handler(stopped, region).is_none();
    if is_theirs || !stopped.threads_inside(&cleaning.code())?.is_empty() {
        return Ok(());
    }
    cleaning.leave_cancels(stopped)
}

impl Target {
    /// Threads that are cancelled in trampolines are unwound from their calls.
    pub(in crate::realm) fn update_cancel_handler(&self, stopped: &mut inject::Stopped) {
        let has_trampolines = !self.syscalls.subscribers.is_empty() || self.following.follows();
        let done = match has_trampolines {
            true => interpose_cancel_handler(stopped, self.region),
            false => leave_cancels(stopped, self.region),
        };
        if let Err(error) = done {
            tracing::warn!(pid = self.pid, "threads that are cancelled in calls are not unwound from there: {error}");
        }
    }

    /// Enables or disables the SUD fallback, as it is wanted; false: that is not possible at present.
    pub(in crate::realm) fn reconcile_sud(&mut self, stopped: &mut inject::Stopped) -> bool {
        let done = match (self.sud.armed, self.sud.why.is_some()) {
            (false, true) => self.enable_sud(stopped),
            (true, false) => self.disable_sud_now(stopped).map_err(refusal_of),
            _ => Ok(true),
        };
        done.unwrap_or_else(|refusal| {
            tracing::warn!(pid = self.pid, "calls from code that cannot be looked at are not seen: {refusal}");
            self.give_up_sud(stopped, refusal.message);
            true
        })
    }

    /// As `reconcile_sud`, with some retries.
    pub(in crate::realm) fn reconcile_sud_with_retries(&mut self) -> bool {
        for _ in 0..ATTEMPTS {
            std::thread::sleep(PAUSE);
            match inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| self.reconcile_sud(stopped)) {
                Ok(false) => {}
                done => return done.is_ok(),
            }
        }
        tracing::debug!(pid = self.pid, "could not quiesce all threads to enable or disable SUD");
        false
    }

    /// Disables the fallback, since nobody wants it any more; false: that is not possible at present.
    pub(in crate::realm) fn disable_sud(&mut self) -> bool {
        let why = self.sud.why.take();
        let is_gone = self.reconcile_sud_with_retries() && !self.sud.armed;
        if !is_gone {
            self.sud.why = why;
        }
        is_gone
    }

    fn give_up_sud(&mut self, stopped: &mut inject::Stopped, why: String) {
        self.sud.given_up = Some(why);
        self.sud.why = None;
        let given_up = field(self.region, offset_of!(SudState, given_up));
        if let Err(error) = write_flag(stopped, given_up, true) {
            tracing::debug!(pid = self.pid, "{error}");
        }
    }

    /// The process is about to do something that is incompatible with the SUD fallback.
    pub(in crate::realm) fn abandon_sud(&mut self, why: &str) {
        self.sud.why = None;
        for _ in 0..ATTEMPTS {
            let is_gone = inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| {
                let is_gone = !self.sud.armed || self.reconcile_sud(stopped);
                if is_gone {
                    self.give_up_sud(stopped, why.to_owned());
                }
                is_gone
            });
            if is_gone.unwrap_or(true) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn enable_sud(&mut self, stopped: &mut inject::Stopped) -> Result<bool, Refusal> {
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
        if !masks_are_stable(stopped, self.region, SIGSYS_BIT).map_err(refusal_of)? {
            return Ok(false);
        }
        self.install(stopped).map_err(refusal_of)?;
        let config = inject::Dispatch { mode: 1, selector: 0, offset: self.region, bytes: SUD_ALLOWED_BYTES };
        for tid in stopped.threads().to_vec() {
            if self.may_dispatch(stopped, tid).map_err(refusal_of)? {
                stopped.set_dispatch(tid, config).map_err(refusal_of)?;
            }
        }
        self.sud.armed = true;
        Ok(true)
    }

    /// Whether SUD may be switched on for a thread: it does not block SIGSYS now, nor before the agent sees its next call. A thread
    /// in a call with a mask of its own makes the call again when it is resumed. If the agent does not see that, SUD stays off, and
    /// the agent is told to switch it on when the call has ended.
    fn may_dispatch(&self, stopped: &mut inject::Stopped, tid: u32) -> Result<bool, inject::Error> {
        if stopped.signal_mask(tid)? & SIGSYS_BIT != 0 {
            return Ok(false);
        }
        let registers = stopped.registers(tid)?;
        match inject::made_again(&registers).filter(|_| blocks_meanwhile(stopped, tid, SIGSYS_BIT).unwrap_or(true)) {
            None => Ok(stopped.signals_blocked(tid)? & SIGSYS_BIT == 0),
            Some(again) if (self.region..self.region + REGION_BYTES).contains(&again.rip) => {
                let cleaning = Cleaning { pid: self.pid, region: self.region };
                if let Some(block) = cleaning.block_of(stopped, tid)? {
                    let off_until = block + offset_of!(ThreadBlock, sud_off_until) as u64;
                    stopped.write(off_until, &registers.rsp.to_le_bytes())?;
                }
                Ok(false)
            }
            Some(_) => {
                // The mask of the call, with which a handler would begin that runs before the call is made again, is gone then.
                stopped.unblock(tid, 0)?;
                Ok(true)
            }
        }
    }

    /// Makes the action of SIGSYS ours, takes it out of the masks of all others, and tells the agent.
    fn install(&mut self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        let region = self.region;
        let left_in_place: Vec<u8> = self
            .syscalls
            .unseen
            .left_in_place
            .iter()
            .take(SUD_LEFT_IN_PLACE_MAX)
            .chain([&0])
            .flat_map(|at| at.to_le_bytes())
            .collect();
        stopped.write(
            field(region, offset_of!(SudState, left_in_place)),
            &left_in_place[..left_in_place.len().min(SUD_LEFT_IN_PLACE_MAX * 8)],
        )?;
        actions::take(stopped, region, SIGSYS, "ring3_sud_signal")?;
        write_flag(stopped, field(region, offset_of!(SudState, armed)), true)
    }

    fn disable_sud_now(&mut self, stopped: &mut inject::Stopped) -> Result<bool, inject::Error> {
        let done = disable(stopped, self.region)?;
        self.sud.armed &= !done;
        Ok(done)
    }

    /// Where calls go back that SUD has caught, in a process that is stopped.
    pub(in crate::realm) fn caught_calls(&self) -> CaughtCalls {
        if !self.sud.armed {
            return CaughtCalls(Some(vec![]));
        }
        let mut slots = vec![0u8; SUD_SLOTS * 8];
        let read = read_process(self.pid, field(self.region, offset_of!(SudState, slots)), &mut slots);
        let place = |slot: &[u8]| u64::from_le_bytes(slot.try_into().expect("8 bytes")) & SUD_ADDRESS_MASK;
        CaughtCalls(read.ok().map(|_| slots.chunks_exact(8).map(place).filter(|place| *place != 0).collect()))
    }

    /// Calls that were caught, and those of them that were let through.
    pub(in crate::realm) fn sud_counts(&self) -> (u64, u64) {
        let word = |offset: usize| read_value::<u64>(self.pid, field(self.region, offset)).unwrap_or(0);
        (word(offset_of!(SudState, caught)), word(offset_of!(SudState, passed)))
    }
}
