//! Budgets of programs (`ring3 load --budget`): what threads have counted, and what becomes of a link that overruns too often.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::time::Duration;

use ring3_layout::thread::{OVERRUN_LINKS_MAX, Overruns, ThreadBlock};
use ring3_uapi::Errno;

use crate::realm::process::read_value;
use crate::realm::reports::OverrunStatus;
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{AttachmentId, LinkSpec, Refusal};

impl Target {
    /// Runs of programs that took longer than their budget, by link and program. (Written by the target.)
    pub(in crate::realm) fn overruns(&self) -> Vec<OverrunStatus> {
        let mut sums: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
        for block in self.blocks() {
            let table = block + offset_of!(ThreadBlock, overruns) as u64;
            let Ok(entries) = read_value::<[Overruns; OVERRUN_LINKS_MAX]>(self.pid, table) else { continue };
            for entry in entries.iter().filter(|entry| entry.link_id != 0) {
                let (runs, worst) = sums.entry((entry.link_id, entry.prog_id)).or_default();
                *runs = runs.saturating_add(entry.total);
                *worst = entry.worst_ns.max(*worst);
            }
        }
        let row = |((link_id, prog_id), (runs, worst_ns))| OverrunStatus { link_id, prog_id, runs, worst_ns };
        sums.into_iter().map(row).collect()
    }
}

impl Actor {
    /// A thread of a target says that a program overruns its budget too often. (What the target says is only about itself.)
    pub(in crate::realm) fn switch_off_overrunning(&mut self, pid: u32, link_id: u32, prog_id: u32) {
        let Some(target) = self.targets.get_mut(&pid) else { return };
        let overruns = target.overruns();
        let worst = overruns.iter().find(|row| (row.link_id, row.prog_id) == (link_id, prog_id));
        let (runs, worst) = worst.map_or((0, String::new()), |row| {
            (row.runs, format!(", the longest {:?}", Duration::from_nanos(row.worst_ns)))
        });
        self.switch_off(pid, (link_id, prog_id), Errno::ETIME, &|spec| {
            let budget = spec.budget?;
            let larger = if spec.extension.is_some() { "its class more `time`" } else { "it a larger --budget" };
            Some(format!(
                "program {:?} (link {link_id}) is switched off: too many of its runs in a second, or too long ones, took longer than its \
                 budget of {budget:?} ({runs} in all{worst}); give {larger}, or let it do less",
                spec.prog_name
            ))
        });
    }

    /// No link of this id with this program runs it in a target from now on, for the reason that `why` gives, if any.
    pub(in crate::realm) fn switch_off(
        &mut self,
        pid: u32,
        (link_id, prog_id): (u32, u32),
        errno: Errno,
        why: &dyn Fn(&LinkSpec) -> Option<String>,
    ) {
        let Some(target) = self.targets.get_mut(&pid) else { return };
        for (id, link) in &self.links {
            let spec = &link.spec;
            if (spec.link_id, spec.prog_id) != (link_id, prog_id) || target.switched_off.contains_key(id) {
                continue;
            }
            let Some(why) = why(spec) else { continue };
            target.report(spec.terminal, &why);
            target.told.insert(*id);
            target.switched_off.insert(*id, Refusal::new(errno, why));
        }
        self.apply_or_log(pid);
    }

    /// A link is gone.
    pub(in crate::realm) fn forget_switched_off(&mut self, id: AttachmentId) {
        self.targets.values_mut().for_each(|target| drop(target.switched_off.remove(&id)));
    }
}
