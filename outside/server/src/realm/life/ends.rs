//! Ends of processes that no program in them has seen: a signal has ended them (docs/design/life.md).
//!
//! A thread that ends itself shows that before it makes the call, and leaves a note in the realm block. Where there is none when a
//! target has ended, the programs run in a process of the server's, as those of perf events do (`hosted/events.rs`), with what the
//! kernel still tells of the process.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use ring3_inject as inject;
use ring3_layout::owner::NAMESPACE_SERVER;
use ring3_layout::task::TaskAddress;
use ring3_layout::task_event::{
    COMM_BYTES, ExitContext, Receiver, SEEN_EXITS, SIGCHLD, SignalContext, TaskEvent, seen_exit,
};
use ring3_run::events::{Asked, EndedThread, Order};

use crate::raw_process::exit_code_of;
use crate::realm::hosted::{Host, HostedProgram};
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{AttachmentId, Point};

/// Nanoseconds of a tick of `/proc/PID/stat`.
const TICK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// `MAX_RT_PRIO`
const MAX_RT_PRIO: i32 = 100;

/// What `/proc/PID/stat` tells of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::realm) struct Life {
    parent: u32,
    prio: i32,
    started_ns: u64,
    exit_signal: i32,
    /// While it is a zombie.
    exit_code: Option<u32>,
}

impl Life {
    /// Of a process that there is, be it as a zombie.
    pub(in crate::realm) fn of(pid: u32) -> Option<Life> {
        let stat = inject::Stat::of(pid)?;
        let is_over = matches!(stat.state(), Some('Z' | 'X'));
        Some(Life {
            parent: stat.number(4)? as u32,
            prio: stat.number(18)? as i32 + MAX_RT_PRIO,
            started_ns: stat.started()? * TICK_NS,
            exit_signal: stat.number(38)? as i32,
            exit_code: stat.number(52).filter(|_| is_over).map(|code| code as u32),
        })
    }
}

/// A process that has ended.
struct Ended {
    pid: u32,
    comm: [u8; COMM_BYTES],
    life: Life,
}

fn comm_bytes(name: &str) -> [u8; COMM_BYTES] {
    let mut comm = [0; COMM_BYTES];
    let bytes = &name.as_bytes()[..name.len().min(COMM_BYTES - 1)];
    comm[..bytes.len()].copy_from_slice(bytes);
    comm
}

impl Ended {
    /// `known` is what was known of it while it lived, `pidfd` leads to it.
    fn new(pid: u32, known: (&str, Life), pidfd: Option<BorrowedFd<'_>>) -> Ended {
        let (name, before) = known;
        let now = Life::of(pid).filter(|now| pidfd.is_none() || now.started_ns == before.started_ns);
        let comm = now.and_then(|_| inject::proc_file(pid, "comm").ok());
        let comm = comm_bytes(comm.as_deref().map_or(name, |comm| comm.trim_end_matches('\n')));
        let mut life = now.unwrap_or(before);
        life.exit_code = life.exit_code.or_else(|| pidfd.and_then(exit_code_of));
        Ended { pid, comm, life }
    }

    fn thread(&self) -> EndedThread {
        EndedThread {
            pid: self.pid,
            comm: self.comm,
            exit_code: self.life.exit_code,
            started_ns: self.life.started_ns,
            parent: self.life.parent,
        }
    }

    fn exit_context(&self) -> Vec<u8> {
        let mut context = vec![0; size_of::<ExitContext>()];
        put(&mut context, offset_of!(ExitContext, comm), &self.comm);
        put(&mut context, offset_of!(ExitContext, pid), &self.pid.to_le_bytes());
        put(&mut context, offset_of!(ExitContext, prio), &self.life.prio.to_le_bytes());
        put(&mut context, offset_of!(ExitContext, group_dead), &1u32.to_le_bytes());
        context
    }

    /// Of the signal that its parent gets; `None`: it gets none. Mirrors kernel/signal.c:do_notify_parent (v6.18).
    fn signal_context(&self) -> Option<Vec<u8>> {
        const CLD_EXITED: i32 = 1;
        const CLD_KILLED: i32 = 2;
        const CLD_DUMPED: i32 = 3;
        const DUMPED: u32 = 0x80;
        let Life { parent, exit_signal: sig, .. } = self.life;
        let receiver = receiver(parent).unwrap_or_default();
        if sig <= 0 || sig == SIGCHLD && receiver.ignored & 1 << (SIGCHLD - 1) != 0 {
            return None;
        }
        let code = match self.life.exit_code {
            Some(code) if code & 0x7f == 0 => CLD_EXITED,
            Some(code) if code & DUMPED != 0 => CLD_DUMPED,
            _ => CLD_KILLED,
        };
        let mut context = vec![0; size_of::<SignalContext>()];
        put(&mut context, offset_of!(SignalContext, sig), &sig.to_le_bytes());
        put(&mut context, offset_of!(SignalContext, code), &code.to_le_bytes());
        put(&mut context, offset_of!(SignalContext, comm), &receiver.comm);
        put(&mut context, offset_of!(SignalContext, pid), &parent.to_le_bytes());
        put(&mut context, offset_of!(SignalContext, group), &1u32.to_le_bytes());
        put(&mut context, offset_of!(SignalContext, result), &receiver.result(sig, true).to_le_bytes());
        Some(context)
    }

    /// The arguments of the raw tracepoint.
    fn raw_context(&self, event: TaskEvent, trace: &[u8]) -> Vec<u8> {
        let first = match event {
            TaskEvent::SignalGenerate => {
                let at = offset_of!(SignalContext, sig);
                u64::from(u32::from_le_bytes(trace[at..at + 4].try_into().expect("4 bytes")))
            }
            _ => TaskAddress::new(NAMESPACE_SERVER, self.pid).address(),
        };
        [first, 1, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

fn put(context: &mut [u8], at: usize, bytes: &[u8]) {
    context[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What becomes of signals to a process.
fn receiver(pid: u32) -> Option<Receiver> {
    let status = inject::proc_file(pid, "status").ok()?;
    let field = |name: &str| inject::status_field(&status, name).unwrap_or_default();
    let mask = |name: &str| u64::from_str_radix(field(name), 16).unwrap_or(0);
    Some(Receiver {
        comm: comm_bytes(inject::proc_file(pid, "comm").ok()?.trim_end_matches('\n')),
        is_dead: field("State").starts_with(['Z', 'X']),
        is_traced: field("TracerPid") != "0",
        is_init: pid == 1,
        pending: mask("SigPnd"),
        shared_pending: mask("ShdPnd"),
        blocked: mask("SigBlk"),
        ignored: mask("SigIgn"),
        caught: mask("SigCgt"),
    })
}

/// Processes whose ends have been dealt with lately, by their ids: a fork is told of by itself and by its creator, maybe too late.
#[derive(Debug, Default)]
pub(in crate::realm) struct RecentEnds(VecDeque<u32>);

impl RecentEnds {
    /// Remembers a process; false: it is remembered already.
    fn note(&mut self, pid: u32) -> bool {
        /// So many are remembered. No kernel gives a number again after so few processes.
        const MAX: usize = 256;
        let is_new = !self.0.contains(&pid);
        if is_new {
            self.0.truncate(MAX - 1);
            self.0.push_front(pid);
        }
        is_new
    }
}

/// Whether programs in a process that ran with the tables of `target` have seen its end.
fn was_seen(target: &Target, nonce: u64, own_pid: u32) -> bool {
    let seen = &target.domain.block().file.realm().seen_exits[own_pid as usize % SEEN_EXITS];
    seen.compare_exchange(seen_exit(nonce, own_pid), 0, AcqRel, Acquire).is_ok()
}

impl Actor {
    /// A target has ended: what programs have not seen of that, they see now.
    pub(in crate::realm) fn show_end(&mut self, pid: u32) {
        let Some(target) = self.targets.get(&pid) else { return };
        let links = self.links_that_see_ends(target);
        if links.is_empty() || target.check_identity().is_ok() {
            return;
        }
        self.ends.note(pid);
        // (A fork may have ended before it was adopted.)
        let mut nonces = std::iter::once(&target.nonce).chain(&target.ancestors);
        if nonces.any(|nonce| was_seen(target, *nonce, target.own_pid)) {
            return;
        }
        let ended = Ended::new(pid, (&target.comm, target.life), Some(target.pidfd()));
        self.run_on_end(&ended, &links);
    }

    /// A fork of a target, which was not adopted, has said that there is it: it may have ended meanwhile.
    pub(super) fn show_end_of_fork(&mut self, creator: u32, pid: u32) {
        let Some(target) = self.targets.get(&creator) else { return };
        let is_near = target.own_pid == target.pid && !self.targets.contains_key(&pid);
        let is_over = || Life::of(pid).is_none_or(|life| life.exit_code.is_some());
        let links = self.links_that_see_ends(target);
        if !is_near || links.is_empty() || !is_over() {
            return;
        }
        if !self.ends.note(pid) || was_seen(target, target.nonce, pid) {
            return;
        }
        // (That it has just begun is as near as one can come.)
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let started_ns = now.tv_sec as u64 * SECOND_NS + now.tv_nsec as u64;
        let life = target.life;
        let before = Life { parent: creator, prio: life.prio, started_ns, exit_signal: SIGCHLD, exit_code: None };
        let ended = Ended::new(pid, (&target.comm, before), None);
        self.run_on_end(&ended, &links);
    }

    /// Whether programs see the ends of forks of this process.
    pub(super) fn shows_ends_of(&self, pid: u32) -> bool {
        self.targets.get(&pid).is_some_and(|target| !self.links_that_see_ends(target).is_empty())
    }

    /// The links of a target whose programs see ends, or the signal that comes with one.
    fn links_that_see_ends(&self, target: &Target) -> Vec<AttachmentId> {
        let sees = |point: &Point| matches!(point, Point::Task(point) if [TaskEvent::Exit, TaskEvent::SignalGenerate].contains(&point.event));
        target.links_for(&self.links).filter(|(_, spec)| sees(&spec.point)).map(|(id, _)| id).collect()
    }

    fn run_on_end(&mut self, ended: &Ended, links: &[AttachmentId]) {
        let signal = ended.signal_context();
        // In the kernel the process ends first.
        for event in [TaskEvent::Exit, TaskEvent::SignalGenerate] {
            for id in links {
                let Some(link) = self.links.get_mut(id) else { continue };
                let Point::Task(point) = link.spec.point else { continue };
                let context = match event {
                    TaskEvent::Exit => Some(ended.exit_context()),
                    _ => signal.clone(),
                };
                let Some(context) = context.filter(|_| point.event == event) else { continue };
                let context = if point.raw { ended.raw_context(event, &context) } else { context };
                let host = match &link.host {
                    Some(host) => Ok(host.clone()),
                    None => {
                        let spec = &link.spec;
                        let program = HostedProgram {
                            id: spec.prog_id,
                            name: spec.prog_name.clone(),
                            text: spec.text.clone(),
                            per_cpu: spec.per_cpu,
                            terminal: spec.terminal,
                            // (A program goes after its links.)
                            keep: Arc::new(()),
                        };
                        Host::of(&self.shared, program, Asked::default())
                    }
                };
                let run = host.and_then(|host| {
                    link.host = Some(host.clone());
                    host.order(&Order::Ended { context, cookie: link.spec.cookie, thread: ended.thread() }, &[])
                });
                if let Err(refusal) = run {
                    tracing::error!(pid = ended.pid, "its end is not shown to {:?}: {refusal}", link.spec.prog_name);
                }
            }
        }
    }
}
