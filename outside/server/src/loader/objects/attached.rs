//! Attached programs, and the sites that they occupy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ring3_uapi::Errno;
use serde_json::{Value, json};

use super::kinds::Program;
use super::tracepoints::{TracepointSite, Tracepoints};
use crate::loader::tracepoint::Tracepoint;
use crate::realm::{AttachmentId, HostedEvent, LinkSpec, Point, Realm, Refusal, SyscallContext};
use crate::rights::Rights;

/// A program that is attached; detached when dropped.
pub struct Attached {
    hold: Hold,
    /// The program.
    pub program: Arc<Program>,
    /// Cookie; of many points, that of the first.
    pub cookie: u64,
    /// Free after the program is detached.
    _seat: Option<EventSlot>,
}

/// What makes it run.
enum Hold {
    /// Sites in targets.
    Targets(Arc<Realm>, Vec<AttachmentId>),
    /// An event.
    Event(#[expect(dead_code, reason = "ends with it")] Arc<HostedEvent>),
}

impl Attached {
    /// A program that runs whenever an event occurs.
    pub(super) fn hosted(program: Arc<Program>, cookie: u64, event: Arc<HostedEvent>, seat: EventSlot) -> Attached {
        Attached { program, cookie, hold: Hold::Event(event), _seat: Some(seat) }
    }

    /// Attaches a program: by a link (or event) of this id, to points with a cookie each (to all or to none), of one process or all
    /// that `rights` reach.
    pub(super) fn new(
        realm: &Arc<Realm>,
        program: Arc<Program>,
        link_id: u32,
        points: Vec<(Point, u64)>,
        (pid, rights): (Option<u32>, &Arc<Rights>),
        seat: Option<EventSlot>,
    ) -> Result<Attached, Refusal> {
        if let Some(class) = &program.extension {
            points.iter().try_for_each(|(point, _)| class.check_point(point))?;
        } else {
            program.check_isolation()?;
        }
        let facts = &program.facts;
        let first_cookie = points.first().map_or(0, |(_, cookie)| *cookie);
        let spec = |(point, cookie): (Point, u64)| LinkSpec {
            link_id,
            prog_id: program.id,
            prog_name: program.name.clone(),
            text: program.text.clone(),
            all_registers: match &point {
                Point::Probe(_) => facts.all_registers,
                Point::Task(_) => true,
                Point::Syscall(point) => facts.call_registers || point.context == SyscallContext::Kprobe,
            },
            point,
            cookie,
            pid,
            scope: program.scope,
            loader: program.loader,
            per_cpu: facts.uses_per_cpu,
            // (A fault in what the host's own pointers lead to ends that run.)
            reads: facts.reads || program.extension.is_some(),
            identity: facts.identity,
            stacks: facts.stacks,
            signals: facts.signals || program.makes_threads_wait(),
            filter: program.filter.clone(),
            terminal: program.terminal,
            budget: program.budget,
            rights: rights.clone(),
            extension: program.extension.clone(),
            watch: None,
        };
        let ids = realm.attach(points.into_iter().map(spec).collect())?;
        Ok(Attached { program, cookie: first_cookie, hold: Hold::Targets(realm.clone(), ids), _seat: seat })
    }

    /// What all rows of `ring3 status` tell of it.
    pub(super) fn describe(&self, id: u32) -> Value {
        json!({ "id": id, "prog_id": self.program.id, "cookie": self.cookie })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Hold::Targets(realm, ids) = &self.hold {
            ids.iter().for_each(|id| realm.detach(*id));
        }
    }
}

/// A program's place at a perf event, and at the tracepoints that it is for. Free again when dropped.
pub(super) struct EventSlot {
    event: Option<Arc<AtomicU32>>,
    program: u32,
    tracepoints: Option<(Arc<Tracepoints>, Vec<Tracepoint>)>,
}

impl EventSlot {
    /// Mirrors kernel/trace/bpf_trace.c:perf_event_attach_bpf_prog.
    pub(super) fn take(
        event: &Arc<AtomicU32>,
        program: u32,
        site: Option<&TracepointSite>,
    ) -> Result<EventSlot, Refusal> {
        if event.compare_exchange(0, program, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Refusal::new(Errno::EEXIST, "the event has a program already"));
        }
        let mut seat = EventSlot { event: Some(event.clone()), program, tracepoints: None };
        if let Some(site) = site {
            seat.add(&site.programs, &[site.tracepoint])?;
        }
        Ok(seat)
    }

    /// A place at tracepoints, without an event: at all of them, or at none.
    pub(super) fn of_tracepoints(
        all: &Arc<Tracepoints>,
        wanted: &[Tracepoint],
        program: u32,
    ) -> Result<EventSlot, Refusal> {
        let mut seat = EventSlot { event: None, program, tracepoints: None };
        seat.add(all, wanted)?;
        Ok(seat)
    }

    fn add(&mut self, all: &Arc<Tracepoints>, wanted: &[Tracepoint]) -> Result<(), Refusal> {
        let (all, taken) = self.tracepoints.insert((all.clone(), vec![]));
        for tracepoint in wanted {
            all.add(*tracepoint, self.program)?;
            taken.push(*tracepoint);
        }
        Ok(())
    }
}

impl Drop for EventSlot {
    fn drop(&mut self) {
        if let Some((all, taken)) = &self.tracepoints {
            taken.iter().for_each(|tracepoint| all.remove(*tracepoint, self.program));
        }
        if let Some(event) = &self.event {
            event.store(0, Ordering::Release);
        }
    }
}
