//! Processes that become targets because a link wants them, though nobody named them: a uprobe is on a file, and so in every process
//! that maps it. They stay targets as long as such a link is there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_uapi::Errno;

use super::executions::InheritedState;
use super::finder::Wanted;
use super::turns::{OfUser, Turns};
use crate::realm::calls::are_of_strace;
use crate::realm::files::FileId;
use crate::realm::meant::{check_reach, holds, is_of_family};
use crate::realm::process::{Maker, code_of};
use crate::realm::reports::{ReportTo, Terminal, report_untraced, report_untraced_now};
use crate::realm::sites::maps;
use crate::realm::target::{Link, Target};
use crate::realm::tracer::{Actor, Command};
use crate::realm::{AttachmentId, Following, LinkSpec, NotTraced, Point, Refusal, Scope, process};
use crate::rights::Subject;

/// Processes are made targets for so long, then everybody else has a turn.
const TAKE_AT_ONCE: Duration = Duration::from_millis(20);
/// Who makes a link waits so long at most for the processes that it wants. They are made targets all the same.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// What could not be made a target for a moment's sake is tried again after this time.
const TAKE_AGAIN: Duration = Duration::from_secs(1);
/// A program that is expected to map a file with probes is a target for so long if it does not.
const EXPECTED_FOR: Duration = Duration::from_millis(800);
/// If a process has waited for its turn so long when it ends, that is said.
const UNSEEN_AFTER: Duration = Duration::from_secs(1);
/// A tool that has seen no process for so long is told.
const NOTHING_SEEN_FOR: Duration = Duration::from_millis(400);
/// When so many processes are remembered that are not traced, those that have ended are forgotten.
const UNTAKEN_MAX: usize = 256;
/// Processes that are named on a terminal.
const NAMED_MAX: usize = 3;

/// Device and inode of ring3's own program.
static OWN_PROGRAM: LazyLock<Option<(u64, u64)>> = LazyLock::new(|| program_of("self"));

/// What the file of ring3's program is called.
const OWN_NAME: &str = "ring3";

fn program_of(process: &str) -> Option<(u64, u64)> {
    std::fs::metadata(format!("/proc/{process}/exe")).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether a process runs ring3, of whichever server: by this program, or by one of its name. (No security depends on it.)
fn runs_ring3(pid: u32) -> bool {
    let is_own = || OWN_PROGRAM.is_some() && program_of(&pid.to_string()) == *OWN_PROGRAM;
    let is_named = || {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let name = path.file_name()?.to_str()?;
        // (So it is shown when another file has replaced it.)
        Some(name.strip_suffix(" (deleted)").unwrap_or(name) == OWN_NAME)
    };
    is_own() || is_named() == Some(true) || process::other_server(pid) == Some(Maker::Runs(pid))
}

impl LinkSpec {
    /// Which processes become targets for it.
    pub(in crate::realm) fn wanted(&self) -> Option<Wanted> {
        match (&self.point, self.scope, self.pid) {
            (_, Scope::Targets | Scope::Family(_), _) | (_, _, Some(_)) => None,
            (Point::Probe(probe), ..) => Some(Wanted::File(probe.id)),
            (Point::Syscall(_) | Point::Task(_), Scope::All, _) => Some(Wanted::Everybody),
            (Point::Syscall(_) | Point::Task(_), Scope::Mapped, _) => Some(Wanted::OfLoader(self.loader)),
        }
    }
}

/// Who makes a link is answered when this is dropped.
#[derive(Debug)]
struct Answer {
    reply: Sender<Result<Vec<AttachmentId>, Refusal>>,
    ids: Vec<AttachmentId>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = self.reply.send(Ok(std::mem::take(&mut self.ids)));
    }
}

/// A process that may become a target, and who waits for that, until when.
#[derive(Debug)]
pub(in crate::realm) struct Candidate {
    pub(in crate::realm) pid: u32,
    /// Whose it is.
    user: u32,
    since: Instant,
    awaited: Option<(Instant, Arc<Answer>)>,
}

impl OfUser for Candidate {
    fn user(&self) -> u32 {
        self.user
    }
}

impl Candidate {
    fn new(pid: u32, awaited: Option<(Instant, Arc<Answer>)>) -> Candidate {
        Candidate { pid, user: process::user_of(pid), since: Instant::now(), awaited }
    }

    /// Whether it has ended, so long after it was found that nobody could expect that it be traced.
    fn has_ended_unseen(&self) -> bool {
        self.since.elapsed() > UNSEEN_AFTER && inject::started(self.pid).is_none()
    }

    pub(in crate::realm) fn unawaited(self) -> Candidate {
        Candidate { awaited: None, ..self }
    }
}

/// A process that a link wants and that could not be made a target.
#[derive(Debug)]
struct Untaken {
    started: u64,
    comm: String,
    refusal: Refusal,
    tried: Instant,
    /// The loaders whose users have been told of it.
    told: BTreeSet<u32>,
}

/// Processes that are to become targets, and those that could not.
#[derive(Debug, Default)]
pub(in crate::realm) struct Takes {
    queue: Turns<Candidate>,
    untaken: BTreeMap<u32, Untaken>,
    /// What has not been said yet of those, for whom.
    unsaid: BTreeMap<Terminal, Vec<String>>,
    /// Links of tools that may see nothing, and when that is said if it is still so.
    unseen: Vec<(AttachmentId, Instant)>,
    /// Who has been told that there are no targets.
    told: BTreeSet<Terminal>,
    /// Who has been told that programs ran before they could be traced.
    told_late: BTreeSet<Terminal>,
    /// Who has been told of programs that somebody else traces.
    told_held: BTreeSet<Terminal>,
}

impl Takes {
    pub(in crate::realm) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether something is to be said later.
    pub(in crate::realm) fn has_to_tell(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// Processes that are looked at when there is time. Nobody waits for those.
    pub(in crate::realm) fn add(&mut self, pids: BTreeSet<u32>) {
        let known: BTreeSet<u32> = self.queue.iter().map(|candidate| candidate.pid).collect();
        let new = pids.into_iter().filter(|pid| !known.contains(pid));
        new.for_each(|pid| self.queue.push(Candidate::new(pid, None)));
    }

    /// Processes that whoever makes a link waits for.
    fn add_awaited(&mut self, pids: BTreeSet<u32>, answer: Answer) {
        let (until, answer) = (Instant::now() + TAKEN_WITHIN, Arc::new(answer));
        pids.into_iter().for_each(|pid| self.queue.push(Candidate::new(pid, Some((until, answer.clone())))));
    }

    fn forget_ended(&mut self) {
        self.untaken.retain(|pid, one| inject::started(*pid) == Some(one.started));
    }

    /// Whether there is no use in trying.
    fn is_hopeless(&self, pid: u32) -> bool {
        let Some(untaken) = self.untaken.get(&pid) else { return false };
        let waits = untaken.refusal.errno != Errno::EBUSY || untaken.tried.elapsed() < TAKE_AGAIN;
        waits && inject::started(pid) == Some(untaken.started)
    }
}

impl Actor {
    /// Makes processes targets that links want, as far as there is time.
    pub(in crate::realm) fn take_candidates(&mut self) {
        let until = Instant::now() + TAKE_AT_ONCE;
        while Instant::now() < until {
            let Some(candidate) = self.takes.queue.next(|_| true) else { break };
            if candidate.has_ended_unseen() {
                self.note_ended_unseen(candidate.pid);
                continue;
            }
            // (Before their files are analysed.)
            if self.is_left_alone(candidate.pid) {
                continue;
            }
            self.handle(Command::TakeOne(candidate));
        }
        if self.takes.is_empty() {
            for (terminal, untaken) in std::mem::take(&mut self.takes.unsaid) {
                let more = if untaken.len() > NAMED_MAX { "; ... (`ring3 status` has them all)" } else { "" };
                let named = untaken[..untaken.len().min(NAMED_MAX)].join("; ");
                terminal.say(&format!("not traced: {named}{more}"));
            }
        }
        self.answer_those_who_waited_enough();
    }

    /// Who makes a link does not wait any longer for processes that are not targets yet, and is told how many these are.
    fn answer_those_who_waited_enough(&mut self) {
        let now = Instant::now();
        let deferred = self.deferred.iter_mut().filter_map(|(_, command)| match command {
            Command::TakeOne(candidate) => Some(candidate),
            _ => None,
        });
        let over = |candidate: &mut Candidate| candidate.awaited.take_if(|(until, _)| *until < now);
        let over = self.takes.queue.iter_mut().chain(deferred).filter_map(|one| Some((one.pid, over(one)?)));
        let over: Vec<(u32, (Instant, Arc<Answer>))> = over.collect();
        let mut waited: BTreeMap<Terminal, usize> = BTreeMap::new();
        for (pid, (_, answer)) in over {
            let terminal = answer.ids.first().and_then(|id| self.links.get(id)?.spec.terminal);
            if let Some(terminal) = terminal.filter(|_| self.is_to_be_taken(pid)) {
                *waited.entry(terminal).or_default() += 1;
            }
        }
        for (terminal, count) in waited {
            let who = if count == 1 { "1 process is" } else { &format!("{count} processes are") };
            terminal.say(&format!(
                "{who} not traced yet: that takes longer than {} s; `ring3 status` shows which",
                TAKEN_WITHIN.as_secs()
            ));
        }
    }

    /// Whether a process is no target yet, and a link wants it.
    fn is_to_be_taken(&self, pid: u32) -> bool {
        !self.targets.contains_key(&pid)
            && !self.takes.untaken.contains_key(&pid)
            && !self.is_left_alone(pid)
            && self.is_wanted(pid)
    }

    /// Processes that links want and that are no targets, or not yet: id, name and reason.
    pub(in crate::realm) fn not_traced(&mut self) -> Vec<NotTraced> {
        self.takes.forget_ended();
        let untaken = self.takes.untaken.iter();
        let mut found: Vec<NotTraced> =
            untaken.map(|(pid, one)| (*pid, one.comm.clone(), one.refusal.message.clone())).collect();
        let deferred = self.deferred.iter().filter_map(|(_, command)| match command {
            Command::TakeOne(candidate) => Some(candidate.pid),
            _ => None,
        });
        let waiting: BTreeSet<u32> = self.takes.queue.iter().map(|one| one.pid).chain(deferred).collect();
        for pid in waiting {
            if self.is_to_be_taken(pid) {
                let why = match self.awaits_files(pid) {
                    true => "not yet: its files are being analysed",
                    false => "not yet: its turn has not come, or it cannot be stopped",
                };
                found.push((pid, comm_of(pid), why.to_owned()));
            }
        }
        found
    }

    /// Programs that were expected to map a file with probes, and have not, are targets no more.
    pub(in crate::realm) fn let_unwanted_go(&mut self) {
        let is_due = |target: &&Target| target.is_expected && target.since.elapsed() > EXPECTED_FOR;
        let due: Vec<u32> = self.targets.values().filter(is_due).map(|target| target.pid).collect();
        for pid in due {
            let is_wanted = self.is_wanted(pid);
            let Some(target) = self.targets.get_mut(&pid) else { continue };
            target.is_expected = false;
            if !is_wanted && target.following == Following::Wanted && !target.is_detaching() {
                tracing::info!(pid, "no link wants it");
                target.begin_detach();
            }
        }
    }

    /// Answers who makes a link once the processes are targets that it wants.
    pub(in crate::realm) fn take_for(
        &mut self,
        ids: Vec<AttachmentId>,
        mut found: BTreeSet<u32>,
        reply: Sender<Result<Vec<AttachmentId>, Refusal>>,
    ) {
        self.note_hopeless(&found, &ids);
        let may_be_taken = |pid: &u32| !self.targets.contains_key(pid) && !self.takes.is_hopeless(*pid);
        found.retain(|pid| may_be_taken(pid) && !self.is_left_alone(*pid));
        let first = ids.first().copied();
        self.takes.add_awaited(found, Answer { reply, ids });
        if let Some(id) = first {
            self.note_unreachable(id);
            self.tell_of_children(id);
            if self.sees_nothing(id) {
                self.takes.unseen.push((id, Instant::now() + NOTHING_SEEN_FOR));
            }
        }
    }

    /// Notes of processes that could not be made targets for others, and are not tried again, that new links want them, too.
    fn note_hopeless(&mut self, found: &BTreeSet<u32>, ids: &[AttachmentId]) {
        let Some(loader) = ids.first().and_then(|id| Some(self.links.get(id)?.spec.loader)) else { return };
        let untold = |pid: &u32| {
            let one = self.takes.untaken.get(pid).filter(|one| !one.told.contains(&loader))?;
            self.takes.is_hopeless(*pid).then(|| (*pid, one.refusal.clone()))
        };
        for (pid, refusal) in found.iter().filter_map(untold).collect::<Vec<_>>() {
            let wanting = self.links_that_want(pid).into_iter().filter(|id| ids.contains(id)).collect::<Vec<_>>();
            self.note_untaken(pid, refusal, &wanting);
        }
    }

    /// Notes which processes a link's program names that its loader may not trace.
    fn note_unreachable(&mut self, id: AttachmentId) {
        let spec = &self.links[&id].spec;
        if !matches!(spec.wanted(), Some(Wanted::OfLoader(_))) {
            return;
        }
        let refusal = |pid| check_reach(&spec.rights, pid).err().filter(|refusal| refusal.errno == Errno::EPERM);
        let refused: Vec<(u32, Refusal)> = spec.filter.named().filter_map(|pid| Some((pid, refusal(pid)?))).collect();
        for (pid, refusal) in refused {
            self.note_untaken(pid, refusal, &[id]);
        }
    }

    /// Whether a tool that traces targets only, or system calls of targets, has none.
    fn sees_nothing(&self, id: AttachmentId) -> bool {
        self.links.get(&id).is_some_and(|link| {
            let spec = &link.spec;
            let is_of_calls = !matches!(spec.point, Point::Probe(_)) && spec.scope == Scope::Mapped;
            let sees_targets_only = spec.pid.is_none() && (is_of_calls || spec.scope == Scope::Targets);
            // (Of `opensnoop -p PID` one program names the process, others take what that one has recorded.)
            let names_one = |other: &Link| other.spec.loader == spec.loader && other.spec.filter.chooses();
            sees_targets_only
                && self.targets.is_empty()
                && !self.links.values().any(names_one)
                && spec.terminal.is_some_and(|terminal| !self.takes.told.contains(&terminal))
                // (What it has begun may be about to execute what is to be traced: `bpftrace -c`.)
                && inject::children(spec.loader).is_empty()
        })
    }

    /// Says to a tool that sees targets only, once, that a program which it has begun is none: `bpftrace -c` means that program.
    fn tell_of_children(&mut self, id: AttachmentId) {
        let spec = &self.links[&id].spec;
        let is_by_name = spec.pid.is_some() || spec.filter.chooses();
        let Some(terminal) = spec.terminal.filter(|_| spec.scope == Scope::Targets && !is_by_name) else { return };
        // (`ring3 start -- PROGRAM` makes one of it.)
        let is_none = |child: &u32| {
            !self.targets.contains_key(child) && !self.executions.contains_key(child) && !runs_ring3(*child)
        };
        let Some(child) = inject::children(spec.loader).into_iter().find(is_none) else { return };
        if self.takes.told.insert(terminal) {
            terminal.say(&format!(
                "process {child}, which the tool has begun, is not traced: with `--only-targets` a tool sees targets only; leave the \
                 option out, or begin the program by `ring3 start -- PROGRAM`"
            ));
        }
    }

    /// Says to tools, once, that they have seen nothing: not at once, since the next link may take processes, or its user makes them
    /// targets.
    pub(in crate::realm) fn tell_who_sees_nothing(&mut self) {
        let now = Instant::now();
        for (id, _) in self.takes.unseen.extract_if(.., |(_, at)| *at <= now).collect::<Vec<_>>() {
            if self.sees_nothing(id)
                && let Some(terminal) = self.links[&id].spec.terminal
                && self.takes.told.insert(terminal)
            {
                const MADE: &str = "targets only, which `ring3 start -- PROGRAM` and `ring3 attach PID` make";
                terminal.say(&match self.links[&id].spec.scope {
                    Scope::Targets => format!("no process is traced yet: with `--only-targets` a tool sees {MADE}"),
                    _ => format!(
                        "no process is traced yet: system calls are seen of {MADE}; `ring3 load --all` sees those of all processes"
                    ),
                });
            }
        }
    }

    /// Makes a process a target if a link wants that.
    pub(in crate::realm) fn take(&mut self, candidate: &Candidate) {
        let pid = candidate.pid;
        if self.targets.contains_key(&pid) || self.executions.contains_key(&pid) || self.takes.is_hopeless(pid) {
            return;
        }
        let wanting = self.links_that_want(pid);
        if wanting.is_empty() || self.is_left_alone(pid) {
            return;
        }
        if process::region_in(pid).is_some_and(|(_, header)| self.known_nonces().contains(&header.nonce)) {
            // A fork of a target: it has that one's probes. (Or a `vfork` child, which is about to execute a program.)
            self.has_orphans = true;
            return;
        }
        match self.add_target(pid, Asked::Links, ReportTo::Loader) {
            Ok(()) => drop(self.takes.untaken.remove(&pid)),
            // (It is a target all the same.)
            Err(refusal) if self.targets.contains_key(&pid) => tracing::warn!(pid, "{refusal}"),
            Err(refusal) if refusal.errno == Errno::ESRCH => {}
            // (`bpftrace -c` has begun it, and lets it go soon: it is a target then.)
            Err(_) if wanting.iter().any(|id| process::is_traced_by(pid, self.links[id].spec.loader)) => {
                self.await_tool(pid);
            }
            Err(refusal) => self.note_untaken(pid, refusal, &wanting),
        }
    }

    /// A process that links want is traced by their tool: it becomes a target when the tool lets it go.
    pub(in crate::realm) fn await_tool(&self, pid: u32) {
        self.shared.held_by_tools.lock().expect("no panic under this lock").insert(pid);
    }

    /// A program has run for a moment without probes, since it could not wait any longer for its turn.
    pub(in crate::realm) fn note_ran_on(&mut self, pid: u32) {
        tracing::warn!(pid, "it runs before it could be traced: too many programs begin at once");
        self.takes.add([pid].into());
        self.tell_of_execution(
            |takes| &mut takes.told_late,
            &format!(
                "process {pid} ran before it could be traced: too many programs begin at once; there may be more"
            ),
        );
    }

    /// A process that was found for a link has ended before its turn came.
    fn note_ended_unseen(&mut self, pid: u32) {
        tracing::warn!(pid, "it ended before it could be traced: too many processes are to be traced at once");
        self.tell_of_execution(
            |takes| &mut takes.told_late,
            &format!(
                "process {pid} ended before it could be traced: too many are to be traced at once; there may be more"
            ),
        );
    }

    /// A program could not be followed from its first instruction. It is looked at later, if it runs still.
    pub(super) fn note_not_followed(&mut self, pid: u32, refusal: &Refusal) {
        self.takes.add([pid].into());
        if refusal.errno == Errno::EBUSY {
            self.tell_of_execution(
                |takes| &mut takes.told_held,
                &format!("not traced from its first instruction: {refusal}; there may be more"),
            );
        }
    }

    /// Says something once to all whose links want programs that begin.
    fn tell_of_execution(&mut self, told: impl Fn(&mut Takes) -> &mut BTreeSet<Terminal>, what: &str) {
        let wanting = self.links.values().filter(|link| link.spec.wanted().is_some());
        let terminals: BTreeSet<Terminal> = wanting.filter_map(|link| link.spec.terminal).collect();
        for terminal in terminals {
            if told(&mut self.takes).insert(terminal) {
                terminal.say(what);
            }
        }
    }

    fn note_untaken(&mut self, pid: u32, refusal: Refusal, wanting: &[AttachmentId]) {
        let Some(started) = inject::started(pid) else { return };
        let known = self.takes.untaken.remove(&pid).filter(|known| known.started == started);
        let comm = comm_of(pid);
        if known.is_none() {
            tracing::warn!(pid, comm, "a link wants it, and it is not traced: {refusal}");
        }
        let mut told = known.map(|known| known.told).unwrap_or_default();
        for spec in wanting.iter().filter_map(|id| Some(&self.links.get(id)?.spec)) {
            if let Some(terminal) = spec.terminal.filter(|_| told.insert(spec.loader)) {
                self.takes.unsaid.entry(terminal).or_default().push(format!("{pid} ({comm}): {refusal}"));
            }
        }
        if self.takes.untaken.len() >= UNTAKEN_MAX {
            self.takes.forget_ended();
        }
        self.takes.untaken.insert(pid, Untaken { started, comm, refusal, tried: Instant::now(), told });
    }

    /// The links for which a process should be a target, though nobody named it.
    fn links_that_want(&self, pid: u32) -> Vec<AttachmentId> {
        let wants: Vec<(AttachmentId, &Link, Wanted)> =
            self.links.iter().filter_map(|(id, link)| Some((*id, link, link.spec.wanted()?))).collect();
        if wants.is_empty() {
            return vec![];
        }
        // (They cannot be read of whom the server may not trace. If a link names it that is said.)
        let mappings = inject::mappings(inject::Pid(pid)).unwrap_or_default();
        let Ok(subject) = Subject::of(pid) else { return vec![] };
        let whose = (pid, subject);
        let mut known = BTreeMap::new();
        let mut is_mapped = |file: FileId| *known.entry(file).or_insert_with(|| maps(&mappings, pid, file));
        let mut is_meant = |link: &Link, wanted: Wanted| match wanted {
            Wanted::File(file) => is_mapped(file) && holds(&link.spec, &whose),
            Wanted::Everybody => !mappings.is_empty() && holds(&link.spec, &whose),
            // (A program may do something in processes only that it names: `opensnoop -p PID`.)
            Wanted::OfLoader(loader) => {
                (link.spec.filter.chooses() || descends(pid, loader)) && holds(&link.spec, &whose)
            }
        };
        wants.into_iter().filter(|(_, link, wanted)| is_meant(link, *wanted)).map(|(id, ..)| id).collect()
    }

    /// Whether a process is to be a target without anybody having named it.
    pub(in crate::realm) fn is_wanted(&self, pid: u32) -> bool {
        !self.links_that_want(pid).is_empty()
    }

    /// Whether a process, at the first instruction of a program, may be wanted for a library that it will map.
    pub(super) fn may_map_a_wanted_library(&self, pid: u32) -> bool {
        let is_library = |link: &Link| match &link.spec.point {
            Point::Probe(probe) => probe.file.file_name().is_some_and(|name| name.to_string_lossy().contains(".so")),
            Point::Syscall(_) | Point::Task(_) => false,
        };
        self.links.values().any(|link| link.spec.wanted().is_some() && is_library(link)) && is_dynamic(pid)
    }

    /// Processes that nobody named and that are left as they are: the first one, those of ring3, and loaders.
    pub(super) fn is_left_alone(&self, pid: u32) -> bool {
        pid == 1 || self.shared.is_loader(pid) || runs_ring3(pid)
    }

    /// A process that has executed a program is no target, for a reason. (strace asks for it.)
    pub(super) fn tell_untraced(&self, pid: u32, kept: &InheritedState, refusal: &Refusal) {
        let mut family = kept.forebears.clone();
        family.insert(pid);
        if are_of_strace(family.iter()) {
            tracing::warn!(pid, "not traced: {refusal}");
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return self.shared.note_let_go(pid, comm.trim_end(), &refusal.message);
        }
        let of_tools = || {
            let mut specs = self.links.values().map(|link| &link.spec);
            specs.find(|spec| matches!(spec.scope, Scope::Family(_)) && is_of_family(spec, &family))?.terminal
        };
        let terminal: Option<Terminal> = kept.terminal.or_else(of_tools);
        // (It was there, and goes on as soon as it is refused: it may have ended since. Of who is gone before there is no program to miss.)
        let tell = if refusal.errno == Errno::ESRCH { report_untraced } else { report_untraced_now };
        tell(terminal, pid, &format!("what it has executed: {refusal}"));
    }
}

fn comm_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Whether a process that has just executed a program has a dynamic loader, too.
fn is_dynamic(pid: u32) -> bool {
    let mappings = inject::mappings(inject::Pid(pid)).unwrap_or_default();
    let files: BTreeSet<u64> = code_of(&mappings).map(|mapping| mapping.inode).filter(|inode| *inode != 0).collect();
    files.len() > 1
}

/// Whether a process was begun by another, or by one that this has begun.
fn descends(pid: u32, from: u32) -> bool {
    inject::ancestors(pid).skip(1).any(|(ancestor, _)| ancestor == from)
}

/// Who asked for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::realm) enum Asked {
    /// A user: it stays one when its links are gone.
    User(Following),
    /// A link names it.
    Name,
    /// The same, and it runs ring3 until it executes its program.
    BeforeProgram,
    /// Links want processes like it.
    Links,
}

impl Asked {
    pub(in crate::realm) fn is_explicit(self) -> bool {
        matches!(self, Asked::User(_))
    }

    pub(in crate::realm) fn following(self) -> Following {
        match self {
            Asked::User(following) => following,
            Asked::Name | Asked::BeforeProgram => Following::All,
            Asked::Links => Following::Wanted,
        }
    }
}
