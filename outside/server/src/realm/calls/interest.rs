//! Which system calls of a target are to be seen.
//!
//! A tool that traces each call (`tracepoint:syscalls:*`) makes hundreds of links, one after the other, and each wants the sites of
//! another call. A stop for each of them would take longer than everything else. So after some of them all sites are replaced in
//! one stop: the links that follow find theirs. Once no more come, the sites that no link wants are restored.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ring3_layout::syscall::{CLONE_SYSCALLS, IDENTITY_CHANGERS};
use ring3_layout::task_event::TaskEvent;
use ring3_patch::{Replaced, SyscallPlan};
use ring3_uapi::nr;

use super::sud::is_changer;
use crate::realm::tracer::Actor;
use crate::realm::{Calls, Following, LinkSpec, Point};

/// After so many links of a call each for which sites were placed, those of all calls are.
const LINKS_BEFORE_ALL: u32 = 6;
/// Links of a series come within this time of each other.
const SERIES_WITHIN: Duration = Duration::from_millis(500);

/// Which system calls the links of a target want, and why else calls are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::realm) struct SyscallInterest {
    /// Some link wants system calls.
    pub(in crate::realm) any: bool,
    /// There is a link.
    pub(in crate::realm) programs: bool,
    /// There is a probe: code that is mapped is to be seen.
    probes: bool,
    /// There is a return probe: it must be known whose shadow frames are whose.
    pub(in crate::realm) returns: bool,
    /// Some link wants all of them.
    all: bool,
    /// Some link wants those that have no names.
    unnamed: bool,
    /// What is executed is traced, too.
    pub(in crate::realm) follow: bool,
    /// Sites are to be `int3`s: calls that change signal masks are seen.
    traps: bool,
    /// Programs ask for names and users: calls that change them are seen.
    pub(in crate::realm) identity: bool,
    numbers: BTreeSet<u32>,
    /// A tool makes links of one call after the other: sites are there before it asks for them.
    ahead: bool,
}

impl SyscallInterest {
    /// What these links want.
    pub(in crate::realm) fn of<'a>(
        following: Following,
        traps: bool,
        ahead: bool,
        specs: impl Iterator<Item = &'a LinkSpec>,
    ) -> SyscallInterest {
        let mut interest =
            SyscallInterest { follow: following.follows(), traps, ahead, ..SyscallInterest::default() };
        for spec in specs {
            interest.identity |= spec.identity;
            interest.programs = true;
            let point = match &spec.point {
                Point::Probe(probe) => {
                    interest.probes = true;
                    interest.returns |= probe.ret;
                    continue;
                }
                Point::Syscall(point) => point,
                Point::Task(point) => {
                    interest.any = true;
                    interest.numbers.extend(point.event.calls().iter().map(|number| *number as u32));
                    continue;
                }
            };
            interest.any = true;
            match point.calls {
                Calls::Of(number) => drop(interest.numbers.insert(number)),
                Calls::All => interest.all = true,
                Calls::Unnamed => interest.unnamed = true,
                Calls::Never => {}
            }
        }
        interest
    }

    /// What is left of it in a process of which only executions are to be seen.
    pub(super) fn in_executions(self) -> SyscallInterest {
        SyscallInterest { all: false, unnamed: false, ahead: false, ..self }
    }

    /// Whether the sites of a call that no link wants yet are replaced all the same, so that none is needed for a link of it.
    pub(in crate::realm) fn covers(&self, number: u32) -> bool {
        self.any && (self.all || self.ahead || self.numbers.contains(&number))
    }

    /// Whether a call is seen at best for what hardly any program does: it takes the vDSO away, or limits its address space.
    pub(in crate::realm) fn can_do_without(&self, number: Option<i64>) -> bool {
        const RARELY_MATTER: [i64; 5] = [nr::MUNMAP, nr::MREMAP, nr::GETRLIMIT, nr::SETRLIMIT, nr::PRLIMIT64];
        number.is_some_and(|number| RARELY_MATTER.contains(&number) && !self.covers(number as u32))
    }

    /// Whether a site is to be replaced. A dynamic loader's mappings are always seen.
    pub(in crate::realm) fn has(&self, plan: &SyscallPlan, in_loader: bool, uses_sud: bool) -> bool {
        match plan.number.map(i64::from) {
            // What is left would be caught each time.
            _ if uses_sud => true,
            Some(nr::MMAP) if in_loader || self.probes => true,
            Some(nr::EXECVE | nr::EXECVEAT) if self.follow => true,
            // (Where threads may be in trampolines they may be cancelled there.)
            Some(nr::RT_SIGACTION | nr::RT_SIGRETURN) => self.any || self.follow,
            Some(number) if self.traps && concerns_traps(number) => true,
            Some(number) if self.identity && IDENTITY_CHANGERS.contains(&number) => true,
            Some(number) if self.returns && CLONE_SYSCALLS.contains(&number) => true,
            // A process may filter its calls whatever it is traced for.
            Some(nr::PRCTL | nr::SECCOMP) => true,
            // Or take away the vDSO, by which programs read clocks.
            Some(nr::MUNMAP | nr::MREMAP) => self.programs,
            // Or limit its address space, of which ring3 takes some.
            Some(nr::GETRLIMIT | nr::SETRLIMIT | nr::PRLIMIT64) => true,
            Some(number) if self.unnamed && Calls::Unnamed.has(number as u32) => true,
            Some(number) => self.covers(number as u32) || self.any && is_watched(number),
            // (Nobody is executed from where threads are cancelled.)
            None => self.any || plan.replaced == Replaced::Instruction,
        }
    }
}

/// Whether the agent has to know of a call so that it sees others rightly.
fn is_watched(number: i64) -> bool {
    CLONE_SYSCALLS.contains(&number)
        || [nr::MMAP, nr::MPROTECT, nr::PKEY_MPROTECT, nr::ARCH_PRCTL, nr::EXECVE, nr::EXECVEAT].contains(&number)
}

/// Links of one system call each that come one after the other.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct CallSeries {
    /// How many had sites placed, and when the last link came.
    seen: Option<(u32, Instant)>,
}

impl CallSeries {
    /// One more comes; it needs sites of its own, or those that it needs are there.
    pub(in crate::realm) fn note(&mut self, needs_sites: bool) {
        let now = Instant::now();
        let before = self.seen.filter(|(_, last)| now - *last < SERIES_WITHIN).map_or(0, |(count, _)| count);
        self.seen = Some((before + u32::from(needs_sites), now));
    }

    /// Whether so many came that there will be more: the sites of all calls are placed.
    pub(super) fn places_all(&self) -> bool {
        self.seen.is_some_and(|(count, _)| count >= LINKS_BEFORE_ALL)
    }

    /// Whether a long one is over; it is forgotten.
    fn ends(&mut self) -> bool {
        self.places_all() && self.seen.take_if(|(_, last)| last.elapsed() >= SERIES_WITHIN).is_some()
    }
}

impl Actor {
    /// Restores sites that were placed for links which have not come.
    pub(in crate::realm) fn end_call_series(&mut self) {
        let ended = self.targets.iter_mut().filter_map(|(pid, target)| target.syscalls.series.ends().then_some(*pid));
        for pid in ended.collect::<Vec<_>>() {
            self.apply_or_log(pid);
        }
    }
}

/// Whether the agent looks at the beginning or the end of a call whoever wants it; `any`: some link wants some call;
/// `follow`: what is executed is traced.
pub(super) fn is_always(number: usize, exit: bool, any: bool, follow: bool) -> bool {
    match number as i64 {
        nr::MMAP => exit,
        nr::MPROTECT | nr::PKEY_MPROTECT => exit && any,
        // (Their sites are there for return probes, too.)
        number if CLONE_SYSCALLS.contains(&number) => true,
        nr::ARCH_PRCTL => any,
        // (Also when nobody wants anything any more, and sites cannot be restored at present.)
        nr::RT_SIGACTION | nr::RT_SIGRETURN | nr::PRCTL | nr::SECCOMP => !exit,
        nr::GETRLIMIT | nr::SETRLIMIT | nr::PRLIMIT64 | nr::MUNMAP | nr::MREMAP => !exit,
        number if IDENTITY_CHANGERS.contains(&number) => !exit,
        nr::EXECVE | nr::EXECVEAT => follow && !exit,
        _ => false,
    }
}

/// Whether the agent looks at the beginning or the end of a call for an event.
pub(super) fn is_of_event(event: TaskEvent, number: i64, exit: bool) -> bool {
    let at_end = matches!(event, TaskEvent::Exec | TaskEvent::Fork);
    exit == at_end && event.calls().contains(&number)
}

/// Whether a call may be one that blocks SIGTRAP, or takes its handler away.
pub(super) fn may_change_masks(plan: &SyscallPlan) -> bool {
    plan.replaced == Replaced::Instruction && plan.number.is_none_or(|number| concerns_traps(i64::from(number)))
}

pub(super) fn concerns_traps(number: i64) -> bool {
    is_changer(number) || number == nr::CLONE3
}

/// Whether the SUD fallback needs the beginning and the end of a call.
pub(super) fn concerns_sud(number: usize) -> bool {
    let number = number as i64;
    is_changer(number) || [nr::MUNMAP, nr::PRCTL, nr::SECCOMP].contains(&number)
}
