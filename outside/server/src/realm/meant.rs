//! Which links are for which targets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::target::{Link, Target};
use super::{AttachmentId, LinkSpec, Refusal, Scope};
use crate::rights::{Rights, Subject};
use ring3_uapi::Errno;

impl Target {
    /// The links that hold for this process.
    pub(super) fn links_for<'a>(
        &self,
        links: &'a BTreeMap<AttachmentId, Link>,
    ) -> impl Iterator<Item = (AttachmentId, &'a LinkSpec)> + use<'a> {
        let whose = (self.pid, self.subject.clone());
        let before_program = self.before_program;
        let kept_out: BTreeSet<AttachmentId> =
            self.kept_out.keys().chain(self.switched_off.keys()).copied().collect();
        let specs = links.iter().map(|(id, link)| (*id, &link.spec));
        let family = self.with_forebears();
        // (A tool has thousands of links with the same rights.)
        let mut last: Option<(&Arc<Rights>, bool)> = None;
        let mut reaches = move |rights: &'a Arc<Rights>, subject: &Subject| match last {
            Some((judged, reaches)) if Arc::ptr_eq(judged, rights) => reaches,
            _ => last.insert((rights, rights.reaches(subject))).1,
        };
        specs.filter(move |(id, spec)| {
            let (pid, subject) = &whose;
            is_for(spec, *pid)
                && is_of_family(spec, &family)
                && (!before_program || spec.point.sees_executions())
                && !kept_out.contains(id)
                && reaches(&spec.rights, subject)
        })
    }

    /// The targets that it comes from, and itself.
    pub(super) fn with_forebears(&self) -> BTreeSet<u32> {
        self.forebears.iter().copied().chain([self.pid]).collect()
    }

    /// Whether a link is for this process, wherever its memory is.
    pub(super) fn is_meant(&self, spec: &LinkSpec) -> bool {
        holds(spec, &(self.pid, self.subject.clone())) && is_of_family(spec, &self.with_forebears())
    }
}

/// Whether a link is for a process, given by its id and whose it is.
pub(super) fn holds(spec: &LinkSpec, (pid, subject): &(u32, Subject)) -> bool {
    is_for(spec, *pid) && spec.rights.reaches(subject)
}

/// As [`holds`], whoever's the process is.
fn is_for(spec: &LinkSpec, pid: u32) -> bool {
    spec.pid.is_none_or(|wanted| wanted == pid) && spec.filter.lets(pid)
}

impl LinkSpec {
    /// Whether it names a process, or the family that it is of (with its own id).
    pub(super) fn names(&self, pid: u32, family: &BTreeSet<u32>) -> bool {
        self.pid == Some(pid) || matches!(self.scope, Scope::Family(root) if family.contains(&root))
    }
}

/// Whether a link is not for another family's processes.
pub(super) fn is_of_family(spec: &LinkSpec, family: &BTreeSet<u32>) -> bool {
    !matches!(spec.scope, Scope::Family(pid) if !family.contains(&pid))
}

/// Whether a process may be reached with these rights.
pub(super) fn check_reach(rights: &Rights, pid: u32) -> Result<(), Refusal> {
    let gone = |errno| Refusal::new(errno, format!("no process with id {pid}"));
    if rights.reaches_all() || rights.reaches(&Subject::of(pid).map_err(gone)?) {
        return Ok(());
    }
    let why = "it is another user's, has more rights than the asker, or may not be traced";
    Err(Refusal::new(Errno::EPERM, format!("process {pid}: not permitted: {why}")))
}
