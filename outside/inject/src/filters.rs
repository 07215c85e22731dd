//! Seccomp filters of a process: which system calls can be made in it without harm.
//!
//! While we trace a thread, its filters are suspended (`PTRACE_O_SUSPEND_SECCOMP`). But they apply to calls that the agent makes
//! later, and to calls that a thread still makes for us if we die. So the filters are asked first.

use std::collections::BTreeMap;
use std::sync::Mutex;

use ring3_layout::filter::AGENT_CALLS_MAX;
use ring3_uapi::pidfd::PIDFD_GET_INFO;
use ring3_uapi::seccomp::{FilterInsn, FilteredCall, allows, judges_places};

use crate::Error;
use crate::process::{Statuses, ancestors, children, proc_file, started, status_field, threads};
use crate::proxy;
use crate::raw_ptrace::{self as ptrace, Tid};
use crate::stopped::Stopped;

/// What `SECCOMP_MODE_STRICT` allows.
const STRICT_CALLS: [i64; 4] = [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn];

/// The filters of one or more threads, none of which is there twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    strict: bool,
    programs: Vec<Vec<FilterInsn>>,
}

impl Filters {
    /// `SECCOMP_MODE_STRICT`.
    pub fn strict() -> Filters {
        Filters { strict: true, programs: vec![] }
    }

    /// One filter.
    pub fn of(program: Vec<FilterInsn>) -> Filters {
        Filters { strict: false, programs: vec![program] }
    }

    /// The same without one that is known to do no harm.
    pub fn without(mut self, known: &[FilterInsn]) -> Filters {
        self.programs.retain(|program| program != known);
        self
    }

    /// Whether all of them certainly let a call be made.
    pub fn allow(&self, call: &FilteredCall) -> bool {
        (!self.strict || STRICT_CALLS.contains(&i64::from(call.number)))
            && self.programs.iter().all(|one| allows(one, call))
    }

    /// Whether one looks at where calls are made.
    pub fn judge_places(&self) -> bool {
        self.programs.iter().any(|one| judges_places(one))
    }

    /// The first call that is needed and not allowed: by injecting, by the way home if we die meanwhile, or by the agent, which
    /// does without others.
    pub fn in_the_way(&self) -> Option<&'static str> {
        needed_calls().find(|(_, call)| !self.allow(call)).map(|(name, _)| name)
    }

    /// The numbers of the agent's calls that are not allowed, a bit for each.
    pub fn denied_to_agent(&self) -> [u64; AGENT_CALLS_MAX / 64] {
        let mut denied = [0; AGENT_CALLS_MAX / 64];
        for call in agent_calls().filter(|call| !self.allow(call)) {
            denied[call.number as usize / 64] |= 1 << (call.number % 64);
        }
        denied
    }

    fn add(&mut self, program: Vec<FilterInsn>) {
        if !self.programs.contains(&program) {
            self.programs.push(program);
        }
    }
}

/// What threads call for us (`calls.rs`, `raw_rescue_frame.rs`, `region.rs`), with the arguments that filters look at,
/// and how the agent knows a thread.
fn needed_calls() -> impl Iterator<Item = (&'static str, FilteredCall)> {
    const READ: i32 = libc::PROT_READ;
    const SOCKET: u64 = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
    let call = |number: i64| FilteredCall::any(number as u32);
    let protections = [libc::PROT_NONE, READ, READ | libc::PROT_WRITE, READ | libc::PROT_EXEC];
    let mappings = protections.map(|bits| ("mmap", call(libc::SYS_mmap).with(2, bits as u64)));
    let others = [
        ("socketpair", call(libc::SYS_socketpair).with(0, libc::AF_UNIX as u64).with(1, SOCKET).with(2, 0)),
        ("recvmsg", call(libc::SYS_recvmsg)),
        ("sendto", call(libc::SYS_sendto)),
        ("close", call(libc::SYS_close)),
        ("munmap", call(libc::SYS_munmap)),
        ("madvise", call(libc::SYS_madvise).with(2, libc::MADV_WIPEONFORK as u64)),
        ("sched_yield", call(libc::SYS_sched_yield)),
        ("ppoll", call(libc::SYS_ppoll)),
        ("rt_sigreturn", call(libc::SYS_rt_sigreturn)),
        ("getpid", call(libc::SYS_getpid)),
        ("gettid", call(libc::SYS_gettid)),
    ];
    others.into_iter().chain(mappings)
}

/// What the agent may call (`inside/runtime`).
fn agent_calls() -> impl Iterator<Item = FilteredCall> {
    const PR_GET_NAME: u64 = 16;
    const PR_GET_TSC: u64 = 25;
    const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
    let [prctl, ioctl] = [libc::SYS_prctl, libc::SYS_ioctl].map(|number| FilteredCall::any(number as u32));
    let is_one_of = move |number: &u32| [prctl.number, ioctl.number].contains(number);
    let any = (0..AGENT_CALLS_MAX as u32).filter(move |number| !is_one_of(number)).map(FilteredCall::any);
    let options = [PR_GET_NAME, PR_GET_TSC, PR_SET_SYSCALL_USER_DISPATCH].map(|option| prctl.with(0, option));
    any.chain(options).chain([ioctl.with(1, PIDFD_GET_INFO)])
}

/// A bit of the flags of mmap(2) that the kernel ignores, and that everything shared is mapped with: the filter of ring3's loaders
/// lets such a call pass. Who serves the loader may wait for what needs the mapping.
pub const UNCAUGHT_MAPPING: i32 = libc::MAP_DENYWRITE;

/// What is known of a process that is a loader or descends from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descent {
    began: u64,
    /// It has the filter of ring3's loaders, and so have all that descend from it.
    has_filter: bool,
}

/// Loaders, what descends from them, and their children that were there before the filter.
static OF_LOADERS: Mutex<BTreeMap<u32, Descent>> = Mutex::new(BTreeMap::new());

/// A process installed the filter of ring3's loaders, which catches no call that is made in it for us. If a process has one filter and
/// descends from this one, it has the same, unless it descends from a child that has none now. (Who may not read filters learns it
/// so.)
pub fn note_loader(pid: u32) {
    const ENOUGH_TO_TIDY: usize = 1024;
    let Some(began) = started(pid) else { return };
    let mut known = OF_LOADERS.lock().expect("no panic under this lock");
    if known.len() >= ENOUGH_TO_TIDY {
        known.retain(|pid, descent| started(*pid) == Some(descent.began));
    }
    known.insert(pid, Descent { began, has_filter: true });
    let without = children(pid).into_iter().filter(|child| {
        let status = proc_file(*child, "status").unwrap_or_default();
        status_field(&status, "Seccomp") == Some("0")
    });
    for child in without {
        if let Some(began) = started(child) {
            known.insert(child, Descent { began, has_filter: false });
        }
    }
}

/// Whether a process is a loader or descends from one that had installed the filter. It stays so when its parents end.
pub(crate) fn is_of_loader(pid: u32) -> bool {
    let mut known = OF_LOADERS.lock().expect("no panic under this lock");
    let mut descendants = vec![];
    for (at, began) in ancestors(pid) {
        if let Some(descent) = known.get(&at).copied().filter(|descent| descent.began == began) {
            known.extend(descendants.into_iter().map(|(pid, began)| (pid, Descent { began, ..descent })));
            return descent.has_filter;
        }
        descendants.push((at, began));
    }
    false
}

/// Whether calls of any thread of a process are filtered.
pub(crate) fn is_filtered(pid: u32) -> Result<bool, Error> {
    let statuses = Statuses::of(pid);
    Ok(threads(pid)?.into_iter().any(|tid| statuses.is_filtered(tid)))
}

impl Stopped {
    /// The filters of all threads.
    ///
    /// # Errors
    /// [`Error::Seccomp`]: there are some that cannot be read.
    pub fn filters(&self) -> Result<Filters, Error> {
        let mut filters = Filters::default();
        // (Of those that are not suspended there are none.)
        for tid in self.threads().iter().filter(|_| self.suspends_filters()) {
            let one = self.filters_of(*tid)?;
            filters.strict |= one.strict;
            one.programs.into_iter().for_each(|program| filters.add(program));
        }
        Ok(filters)
    }

    /// Between having been looked at and being stopped a process may have begun to filter its calls: then no filter is suspended.
    pub(crate) fn check_filters(&self) -> Result<(), Error> {
        if !self.suspends_filters() && self.threads().iter().any(|tid| self.statuses.is_filtered(*tid)) {
            let why = "it began to filter its calls just now; try again".to_owned();
            return Err(Error::Seccomp { pid: self.pid(), why });
        }
        Ok(())
    }

    /// By proxy no filter is suspended: calls that are made for us must be allowed.
    pub(crate) fn check_unsuspended(&self, tid: Tid) -> Result<(), Error> {
        if !self.suspends_filters() || !proxy::holds(tid) || self.statuses.has_loaders_filter_only(tid) {
            return Ok(());
        }
        match self.filters_of(tid)?.in_the_way() {
            None => Ok(()),
            Some(call) => {
                let why = format!(
                    "it does not allow {call}, and another process traces it, so that it cannot be suspended"
                );
                Err(Error::Seccomp { pid: self.pid(), why })
            }
        }
    }

    /// Whether a thread's filters allow `restart_syscall`. (If not, it waits as long again as it was to from the beginning.)
    pub(crate) fn may_restart(&self, tid: Tid) -> bool {
        let call = FilteredCall::any(libc::SYS_restart_syscall as u32);
        self.filters_of(tid).is_ok_and(|filters| filters.allow(&call))
    }

    /// The filters of one thread.
    pub(crate) fn filters_of(&self, tid: Tid) -> Result<Filters, Error> {
        let unknown = |why: String| Error::Seccomp { pid: self.pid(), why };
        let mut filters = Filters::default();
        for index in 0.. {
            match ptrace::filter(tid, index) {
                Ok(Some(program)) => filters.add(program),
                Ok(None) => break,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                    return Err(Error::Exited { pid: self.pid() });
                }
                // No programs, or who may not ask.
                Err(error) => {
                    let status = proc_file(self.pid(), &format!("task/{tid}/status"));
                    let status = status.map_err(|_| Error::Exited { pid: self.pid() })?;
                    match status_field(&status, "Seccomp") {
                        None | Some("0") => {}
                        Some("1") => filters.strict = true,
                        Some(_) => return Err(unknown(format!("its filter cannot be read: {error}"))),
                    }
                    break;
                }
            }
        }
        Ok(filters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_mode_is_in_the_way_and_no_filter_is_not() {
        assert_eq!(Filters::strict().in_the_way(), Some("socketpair"));
        assert_eq!(Filters::default().in_the_way(), None);
        assert_eq!(Filters::default().denied_to_agent(), [0; AGENT_CALLS_MAX / 64]);
        let [first, ..] = Filters::strict().denied_to_agent();
        assert_eq!(first & 0xffff, !(1 | 2 | 1 << 15) & 0xffff);
    }
}
