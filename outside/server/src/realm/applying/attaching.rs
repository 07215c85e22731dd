//! Links that are made and removed, and what that changes in all targets.

use std::collections::{BTreeMap, BTreeSet};

use crate::realm::life::Asked;
use crate::realm::meant::check_reach;
use crate::realm::reports::ReportTo;
use crate::realm::target::Link;
use crate::realm::tracer::{Actor, Command};
use crate::realm::{AttachmentId, LinkSpec, Refusal, process};

/// Links that are removed together, and what their programs had, which is dropped after that: closing a program's last descriptor
/// between two links' must not make two changes of them.
#[derive(Default)]
pub(in crate::realm) struct Removed {
    pub(in crate::realm) links: Vec<AttachmentId>,
    dropped: Vec<Command>,
}

impl Removed {
    /// Takes a command that removes something; gives back any other one.
    pub(in crate::realm) fn take(&mut self, command: Command) -> Result<(), Command> {
        match command {
            Command::Detach(id) => self.links.push(id),
            Command::DropMap(_) | Command::DropText(_) if !self.links.is_empty() => self.dropped.push(command),
            command => return Err(command),
        }
        Ok(())
    }
}

impl Actor {
    pub(in crate::realm) fn remove(&mut self, Removed { links, dropped }: Removed) {
        self.detach(&links);
        dropped.into_iter().for_each(|command| self.handle_command(command));
    }

    pub(in crate::realm) fn attach(&mut self, specs: Vec<LinkSpec>) -> Result<Vec<AttachmentId>, Refusal> {
        self.forget_vanished();
        let Some(LinkSpec { pid, rights, loader, .. }) = specs.first().cloned() else { return Ok(vec![]) };
        // (Of a single target forks are looked for when it gets the link.)
        let is_for_targets = pid.is_none_or(|pid| self.targets.contains_key(&pid));
        if self.targets.len() != 1 || !is_for_targets || self.has_orphans || !self.forks_only.is_empty() {
            self.adopt_all_children();
        }
        if let Some(pid) = pid {
            check_reach(&rights, pid)?;
        }
        let first = self.next_attachment;
        for spec in specs {
            self.links
                .insert(AttachmentId(self.next_attachment), Link { spec, refused: BTreeMap::new(), host: None });
            self.next_attachment += 1;
        }
        let ids: Vec<AttachmentId> = (first..self.next_attachment).map(AttachmentId).collect();
        let requester = ReportTo::RequesterOf { first: ids[0], last: AttachmentId(self.next_attachment - 1) };
        let result = match pid {
            Some(pid) if !self.targets.contains_key(&pid) && process::is_traced_by(pid, loader) => {
                self.await_tool(pid);
                Ok(())
            }
            Some(pid) if !self.targets.contains_key(&pid) => self.add_target(pid, Asked::Name, requester),
            Some(pid) => self.apply_new(pid, &ids, requester),
            None => {
                // (Forks are found meanwhile, and are targets then.)
                let (mut done, mut due) = (BTreeSet::new(), self.targets.keys().copied().collect::<Vec<_>>());
                while let Some(pid) = due.pop() {
                    done.insert(pid);
                    if let Err(refusal) = self.apply_new(pid, &ids, ReportTo::Loader) {
                        tracing::warn!(pid, "{refusal}");
                    }
                    if due.is_empty() {
                        due.extend(self.targets.keys().filter(|pid| !done.contains(pid)));
                    }
                }
                Ok(())
            }
        };
        let refused = pid.and_then(|pid| ids.iter().find_map(|id| self.links[id].refused.get(&pid).cloned()));
        if let Some(refusal) = result.err().or(refused) {
            self.detach(&ids);
            return Err(refusal);
        }
        Ok(ids)
    }

    fn detach(&mut self, ids: &[AttachmentId]) {
        if ids.is_empty() {
            return;
        }
        self.forget_vanished();
        self.adopt_all_children();
        ids.iter().for_each(|id| self.forget_switched_off(*id));
        let gone: Vec<Option<u32>> = ids.iter().filter_map(|id| Some(self.links.remove(id)?.spec.pid)).collect();
        let is_concerned = |pid: &u32| gone.iter().any(|only| only.is_none_or(|only| only == *pid));
        for pid in self.targets.keys().copied().filter(is_concerned).collect::<Vec<_>>() {
            self.apply_or_log(pid);
            let Some(target) = self.targets.get(&pid) else { continue };
            let family = target.with_forebears();
            let is_named = || self.links.values().any(|link| link.spec.names(pid, &family));
            let stays = target.explicit || target.is_detaching() || is_named() || self.is_wanted(pid);
            if !stays {
                self.begin_detach(pid);
            }
        }
        self.finish_detach();
    }
}
