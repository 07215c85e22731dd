//! Children that a tool holds by ptrace until its programs are attached to them (`bpftrace -c` with USDT probes).
//!
//! A process has one tracer, so such a child cannot be a target before the tool lets it go, and from then on it must not run without
//! its probes. So a link to it is made all the same, and when the tool is about to let it go, it is sent SIGSTOP: it stops before its
//! next instruction, becomes a target, and is continued.

use std::time::{Duration, Instant};

use ring3_inject as inject;
use rustix::process::{Pid, Signal, kill_process};

use super::raw_seccomp::leader;
use super::{Caller, Outcome, Reply};
use crate::realm::{Terminal, process_named};

/// A tracer that has asked for it lets go of its tracee within this time.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// ptrace(2) with `PTRACE_DETACH`.
pub(super) fn detach(caller: &Caller<'_>) -> Reply {
    let realm = caller.subsystem().realm.clone();
    let named = u32::try_from(caller.arg(1)).ok().and_then(|pid| process_named(pid, caller.call.tid));
    let tool = leader(caller.call.tid);
    let Some(pid) = named.filter(|pid| realm.take_held(*pid, tool)) else { return Ok(Outcome::Continue) };
    let Some(process) = Pid::from_raw(pid as i32) else { return Ok(Outcome::Continue) };
    let stays_stopped = caller.arg(3) == libc::SIGSTOP as u64;
    let terminal = Terminal::of_loader(tool, caller.session.terminal);
    let tell = move |why: &str| {
        let what = format!("process {pid}, which the tool has begun, is not traced: {why}");
        tracing::warn!("{what}");
        terminal.iter().for_each(|terminal| terminal.say(&what));
    };
    if let Err(error) = kill_process(process, Signal::STOP) {
        tell(&format!("it cannot be stopped: {error}"));
        return Ok(Outcome::Continue);
    }
    let taken = std::thread::Builder::new().name("ring3-release".into()).spawn(move || {
        let until = Instant::now() + RELEASED_WITHIN;
        while inject::tracer_of(pid).is_some() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        if let Err(refusal) = realm.add_target(pid, None, None, false) {
            tell(&refusal.message);
        }
        if !stays_stopped {
            let _ = kill_process(process, Signal::CONT);
        }
    });
    if taken.is_err() {
        let _ = kill_process(process, Signal::CONT);
    }
    Ok(Outcome::Continue)
}
