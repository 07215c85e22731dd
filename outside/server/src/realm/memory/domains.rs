//! Which targets may see the same memory: domains (`docs/design/users.md`).
//!
//! Targets of one domain could trace each other, so memory that they share tells them nothing new. Targets that could trace all
//! others are of the server's own domain. Each other domain has a realm block of its own and its own memory of maps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ring3_inject as inject;
use ring3_layout::control::HookKind;
use ring3_layout::realm::{AWAKE, SERIALS_PER_DOMAIN};
use ring3_layout::region::{AGENT_OFFSET, CONTROL_OFFSET, REALM_BYTES, REALM_OFFSET};
use ring3_layout::ring::RING3_F_BLOCK;
use ring3_uapi::Errno;

use super::maps::{opened_for_targets, sources};
use super::runs::Runs;
use crate::realm::process::SharedFile;
use crate::realm::refusal::refusal_of;
use crate::realm::sites::places;
use crate::realm::target::{Link, Target};
use crate::realm::{AttachmentId, LinkSpec, MapFile, MapSlot, Point, Refusal, Shared};
use crate::rights::{Identity, Subject};

/// Domains at a time, the server's own included.
pub(super) const DOMAINS_MAX: usize = 128;
/// Of these, for one user other than root: a user can make as many user namespaces as they like.
const DOMAINS_OF_USER_MAX: usize = 32;

/// What a domain's targets ring and write to.
#[derive(Debug)]
pub(in crate::realm) struct Block {
    pub(in crate::realm) number: u32,
    pub(in crate::realm) file: SharedFile,
    /// Nobody rings here any more.
    pub(in crate::realm) ended: AtomicBool,
    /// The next line of its trace ring that was not read.
    pub(in crate::realm) trace_next: AtomicU64,
}

/// A domain. It is free for another identity when no target is of it and no map has memory for it.
#[derive(Debug)]
pub struct Domain {
    /// `None`: the server's own.
    identity: Option<Identity>,
    block: Arc<Block>,
}

impl Domain {
    /// 0: the server's own.
    pub fn number(&self) -> u32 {
        self.block.number
    }

    /// Of targets that could trace all others.
    pub fn is_own(&self) -> bool {
        self.identity.is_none()
    }

    pub(in crate::realm) fn block(&self) -> &Block {
        &self.block
    }
}

impl std::fmt::Display for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.identity {
            Some(identity) => identity.fmt(f),
            None => f.write_str("the server's own"),
        }
    }
}

/// Starts to listen to a block.
type Listen = dyn Fn(Arc<Block>) + Send + Sync;

/// The domains of a server.
pub(in crate::realm) struct Domains {
    own: Arc<Domain>,
    /// The index is the number less 1.
    others: Mutex<Vec<Option<Arc<Domain>>>>,
    listen: OnceLock<Box<Listen>>,
    pub(in crate::realm) runs: Runs,
}

impl std::fmt::Debug for Domains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domains").field("own", &self.own).field("others", &self.others).finish_non_exhaustive()
    }
}

fn domain(number: u32, identity: Option<Identity>) -> std::io::Result<Arc<Domain>> {
    let file = SharedFile::new("ring3-realm", REALM_BYTES, false)?;
    // Values in task storage are found by these numbers, whatever domain their thread is of.
    file.realm().threads.store(number * SERIALS_PER_DOMAIN, Ordering::Relaxed);
    let block = Block { number, file, ended: AtomicBool::new(false), trace_next: AtomicU64::new(0) };
    Ok(Arc::new(Domain { identity, block: Arc::new(block) }))
}

impl Domains {
    pub(in crate::realm) fn new() -> std::io::Result<Domains> {
        Ok(Domains {
            own: domain(0, None)?,
            others: Mutex::default(),
            listen: OnceLock::new(),
            runs: Runs::default(),
        })
    }

    /// From now on each block is listened to.
    pub(in crate::realm) fn begin(&self, listen: Box<Listen>) {
        listen(self.own.block.clone());
        let _ = self.listen.set(listen);
    }

    pub(in crate::realm) fn own(&self) -> &Arc<Domain> {
        &self.own
    }

    /// The one with this number, if there is one.
    pub(in crate::realm) fn numbered(&self, number: u32) -> Option<Arc<Domain>> {
        let Some(index) = number.checked_sub(1) else { return Some(self.own.clone()) };
        self.others.lock().expect("no panic under this lock").get(index as usize)?.clone()
    }

    /// All that there are now, the server's own first.
    pub(in crate::realm) fn all(&self) -> Vec<Arc<Domain>> {
        let others = self.others.lock().expect("no panic under this lock");
        [self.own.clone()].into_iter().chain(others.iter().flatten().cloned()).collect()
    }

    /// The domain of a process.
    ///
    /// # Errors
    /// `EUSERS` if there are too many, `ENOMEM`.
    pub(in crate::realm) fn of(&self, subject: &Subject) -> Result<Arc<Domain>, Refusal> {
        let Some(identity) = subject.identity() else { return Ok(self.own.clone()) };
        let mut others = self.others.lock().expect("no panic under this lock");
        let known = others.iter().flatten().find(|domain| domain.identity.as_ref() == Some(&identity));
        if let Some(domain) = known {
            return Ok(domain.clone());
        }
        let is_free =
            |place: &Option<Arc<Domain>>| place.as_ref().is_none_or(|domain| Arc::strong_count(domain) == 1);
        if let Some(user) = identity.user() {
            let in_use = others.iter().filter(|place| !is_free(place)).flatten();
            let of_user = |domain: &&Arc<Domain>| domain.identity.as_ref().and_then(Identity::user) == Some(user);
            if in_use.filter(of_user).count() >= DOMAINS_OF_USER_MAX {
                let what = format!(
                    "{identity}: this user has targets, or records of such, in {DOMAINS_OF_USER_MAX} user namespaces already, or with other rights"
                );
                return Err(Refusal::new(Errno::EUSERS, what));
            }
        }
        let index = others.iter().position(is_free).unwrap_or(others.len());
        if index + 1 >= DOMAINS_MAX {
            let what = format!("{identity}: there are targets, or records of such, of {DOMAINS_MAX} users already");
            return Err(Refusal::new(Errno::EUSERS, what));
        }
        if index == others.len() {
            others.push(None);
        }
        if let Some(old) = others[index].take() {
            old.block.end();
            self.runs.keep(&old.block);
        }
        let made = domain(index as u32 + 1, Some(identity));
        let made =
            made.map_err(|error| Refusal::new(Errno::ENOMEM, format!("memory for a user's targets: {error}")))?;
        others[index] = Some(made.clone());
        if let Some(listen) = self.listen.get() {
            listen(made.block.clone());
        }
        Ok(made)
    }
}

impl Block {
    /// Rings a doorbell as an agent does (`ring` in `inside/runtime/src/raw_request.rs`).
    pub(in crate::realm) fn ring(&self, number: u32) {
        let doorbell = &self.file.realm().doorbell;
        let Some(word) = doorbell.bits.get(number as usize / 64) else { return };
        word.fetch_or(1 << (number % 64), Ordering::SeqCst);
        if doorbell.sleeping.load(Ordering::SeqCst) != AWAKE {
            doorbell.sequence.fetch_add(1, Ordering::SeqCst);
            crate::realm::process::futex_wake(&doorbell.sequence);
        }
    }

    /// Nobody listens any more.
    pub(in crate::realm) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let sequence = &self.file.realm().doorbell.sequence;
        sequence.fetch_add(1, Ordering::SeqCst);
        crate::realm::process::futex_wake(sequence);
    }
}

impl Target {
    /// Finds the links that hold for this target and that its domain keeps it from.
    pub(in crate::realm) fn keep_out(&mut self, shared: &Shared, links: &BTreeMap<AttachmentId, Link>) {
        self.kept_out.clear();
        if self.next_domain.is_own() {
            return;
        }
        let kept = self
            .links_for(links)
            .filter_map(|(id, spec)| shared.kept_from(&spec.text.maps, &self.next_domain).map(|why| (id, why)));
        self.kept_out = kept.collect();
    }

    /// Whether the process can be a target for the links that want it, none of which a user has asked for. Writers into a buffer that wait
    /// for its reader do not have him in their own domain's memory, from which the server copies records when it can.
    ///
    /// # Errors
    /// `EPERM`
    pub(in crate::realm) fn check_reader(
        &self,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> Result<(), Refusal> {
        let waits = |slot: &MapSlot| {
            shared.map_file(*slot).is_some_and(|file| file.geometry.header.map_flags & RING3_F_BLOCK != 0)
        };
        let mut wanting = self.links_for(links).map(|(_, spec)| spec.text.maps.iter().any(waits)).peekable();
        if self.domain.is_own() || self.explicit || wanting.peek().is_none() || wanting.any(|waits| !waits) {
            return Ok(());
        }
        let what = format!("it is another user's ({}), and does not share the memory of what traces it", self.domain);
        Err(Refusal::new(Errno::EPERM, what))
    }

    /// These links, where there is something to attach to in a process with such mappings, and why they are refused.
    pub(in crate::realm) fn refused_to_domain(
        &self,
        links: &BTreeMap<AttachmentId, Link>,
        mappings: &[inject::Mapping],
    ) -> Vec<(AttachmentId, Refusal)> {
        let has_place = |spec: &LinkSpec| match &spec.point {
            Point::Syscall(_) | Point::Task(_) => true,
            Point::Probe(probe) => !places(mappings, self.pid, probe.id, probe.offset, HookKind::Probe).is_empty(),
        };
        let kept = self.kept_out.iter().filter(|(id, _)| links.get(id).is_some_and(|link| has_place(&link.spec)));
        let refused = kept.map(|(id, why)| {
            let whose = &self.next_domain;
            let what =
                format!("{why}: targets of other users ({whose}) do not share it; `ring3 load --trust` lets them");
            (*id, Refusal::new(Errno::EPERM, what))
        });
        refused.collect()
    }

    /// Whether it is to have another domain's memory than it has.
    pub(in crate::realm) fn changes_domain(&self) -> bool {
        !Arc::ptr_eq(&self.domain, &self.next_domain)
    }

    /// Begins with the memory, and without the links, of the target that it was forked from.
    pub(in crate::realm) fn inherit_domain(&mut self, other: &Target) {
        self.domain = other.domain.clone();
        self.kept_out = other.kept_out.clone();
        self.switched_off = other.switched_off.clone();
        self.faulted = other.faulted.clone();
    }

    /// Whether no thread is in the agent or in a program, or returns there from a signal handler.
    fn is_outside_agent(&self, stopped: &inject::Stopped) -> Result<bool, inject::Error> {
        let agent = self.region + AGENT_OFFSET..self.region + CONTROL_OFFSET;
        let returns = stopped.saved_contexts()?.iter().any(|context| agent.contains(&context.rip));
        Ok(!returns && self.is_quiescent() && stopped.threads_inside(&[agent])?.is_empty())
    }

    /// Gives the stopped process the memory of the domain that it is of now, at the same addresses; nothing if it has that.
    ///
    /// # Errors
    /// `EBUSY` if a thread is inside a program or the agent.
    pub(in crate::realm) fn change_domain(
        &mut self,
        shared: &Shared,
        stopped: &mut inject::Stopped,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> Result<(), Refusal> {
        if !self.changes_domain() {
            return Ok(());
        }
        if !self.is_outside_agent(stopped).map_err(refusal_of)? {
            let what = format!("it is of another user now ({}), but a thread is inside a program", self.next_domain);
            return Err(Refusal::new(Errno::EBUSY, what));
        }
        let wanted = self.slots_wanted(shared, links);
        let (kept, gone): (Vec<MapSlot>, Vec<MapSlot>) = self.maps.keys().partition(|slot| wanted.contains(slot));
        let files = shared.map_files(&kept, &self.next_domain)?;
        let opened = opened_for_targets(&files)?;
        self.protect(stopped, &files)?;
        let sources = sources(&files, &opened, &self.protection);
        let address = |(slot, _): &(MapSlot, Arc<MapFile>)| self.maps[slot].0;
        let mut replaced: Vec<_> = files.iter().map(address).zip(sources).collect();
        let domain = self.next_domain.clone();
        let realm =
            inject::MapSource { file: domain.block().file.file(), bytes: REALM_BYTES, writable: true, key: None };
        replaced.push((self.region + REALM_OFFSET, realm));
        inject::replace_files(stopped, &replaced).map_err(refusal_of)?;
        for (slot, file) in &files {
            self.note_map(*slot, self.maps[slot].0, &file.geometry);
        }
        self.forget_maps(stopped, &gone).map_err(refusal_of)?;
        tracing::info!(pid = self.pid, from = %self.domain, to = %domain, "it is of another user now");
        self.domain = domain;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{DOMAINS_OF_USER_MAX, Domains};
    use crate::rights::Subject;
    use ring3_uapi::Errno;

    #[test]
    fn one_users_namespaces_leave_domains_for_others() {
        let domains = Domains::new().expect("made");
        let of = |user, namespace| domains.of(&Subject::ordinary(user, namespace));
        let mut held: Vec<_> = (0..DOMAINS_OF_USER_MAX as u64).map(|n| of(54_321, 100 + n).expect("room")).collect();
        assert_eq!(of(54_321, 7).map_err(|refusal| refusal.errno).err(), Some(Errno::EUSERS));
        assert!(of(54_321, 100).is_ok() && of(54_322, 7).is_ok());
        held.pop();
        assert!(of(54_321, 7).is_ok());
    }
}
