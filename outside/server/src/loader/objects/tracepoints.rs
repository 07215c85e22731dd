//! The programs of each tracepoint. As in the kernel, programs belong to the tracepoint, by whichever perf events they came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ring3_uapi::Errno;

use crate::loader::call_function::CallFunction;
use crate::loader::tracepoint::Tracepoint;
use crate::realm::{Point, Refusal, SyscallContext, SyscallPoint, TaskPoint};

/// `BPF_TRACE_MAX_PROGS`.
pub const PROGRAMS_MAX: usize = 64;

/// Ids of programs, in the order in which they were attached.
#[derive(Default)]
pub struct Tracepoints(Mutex<BTreeMap<Tracepoint, Vec<u32>>>);

impl Tracepoints {
    /// Mirrors kernel/trace/bpf_trace.c:perf_event_attach_bpf_prog and kernel/bpf/core.c:bpf_prog_array_copy.
    pub(super) fn add(&self, tracepoint: Tracepoint, program: u32) -> Result<(), Refusal> {
        let mut all = self.0.lock().expect("no panic under this lock");
        let programs = all.entry(tracepoint).or_default();
        if programs.len() >= PROGRAMS_MAX {
            let words = format!("{tracepoint} has {PROGRAMS_MAX} programs already");
            return Err(Refusal::new(Errno::E2BIG, words));
        }
        if programs.contains(&program) {
            return Err(Refusal::new(Errno::EEXIST, format!("the program is attached to {tracepoint} already")));
        }
        programs.push(program);
        Ok(())
    }

    pub(super) fn remove(&self, tracepoint: Tracepoint, program: u32) {
        let mut all = self.0.lock().expect("no panic under this lock");
        if let Some(programs) = all.get_mut(&tracepoint) {
            programs.retain(|other| *other != program);
        }
    }

    /// Those of a tracepoint.
    pub fn of(&self, tracepoint: Tracepoint) -> Vec<u32> {
        self.0.lock().expect("no panic under this lock").get(&tracepoint).cloned().unwrap_or_default()
    }
}

/// What a perf event of a tracepoint is for.
pub struct TracepointSite {
    /// The tracepoint.
    pub tracepoint: Tracepoint,
    /// Only this process.
    pub pid: Option<u32>,
    /// The programs of all tracepoints.
    pub programs: Arc<Tracepoints>,
}

impl TracepointSite {
    pub(super) fn point(&self) -> Point {
        point(self.tracepoint, SyscallContext::Tracepoint)
    }
}

/// Where a kprobe event is: at the kernel's function of a system call.
pub struct KprobeSite {
    /// The function.
    pub function: CallFunction,
    /// On return.
    pub ret: bool,
    /// Only this process.
    pub pid: Option<u32>,
}

impl KprobeSite {
    pub(super) fn point(&self) -> Point {
        let (calls, exit) = (self.function.calls, self.ret);
        Point::Syscall(SyscallPoint { calls, exit, context: SyscallContext::Kprobe })
    }
}

/// Where programs of a tracepoint run.
pub(super) fn point(tracepoint: Tracepoint, context: SyscallContext) -> Point {
    match tracepoint {
        Tracepoint::Call { calls, exit } => Point::Syscall(SyscallPoint { calls, exit, context }),
        Tracepoint::Task(event) => Point::Task(TaskPoint { event, raw: context == SyscallContext::Raw }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::realm::Calls;

    #[test]
    fn a_tracepoint_has_each_program_once_and_64_at_most() {
        let tracepoints = Tracepoints::default();
        let [enter, exit] = [false, true].map(|exit| Tracepoint::Call { calls: Calls::Of(1), exit });
        let errno = |program| tracepoints.add(enter, program).map_err(|refusal| refusal.errno);
        assert_eq!((errno(7), errno(7)), (Ok(()), Err(Errno::EEXIST)));
        assert_eq!((1..=6).chain(8..65).find(|program| errno(*program).is_err()), None);
        assert_eq!((errno(65), errno(7)), (Err(Errno::E2BIG), Err(Errno::E2BIG)));
        assert!(tracepoints.add(exit, 7).is_ok());
        tracepoints.remove(enter, 7);
        assert_eq!((errno(65), tracepoints.of(exit), tracepoints.of(enter).len()), (Ok(()), vec![7], 64));
        assert_eq!(tracepoints.of(enter).last(), Some(&65));
    }
}
