//! Owners in shared memory: which threads, of all pid namespaces, are still alive.
//!
//! Targets judge threads of their own namespace only (`ring3_layout::owner`). The server notices each target's end, and releases
//! what the target's threads held: CPU slots here, locks and records where maps are known ([`Deaths`]). That also bounds the time
//! in which another thread could get a dead owner's thread id.

use std::any::Any;
use std::collections::BTreeSet;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex};

use ring3_inject::status_field;
use ring3_layout::owner;
use ring3_layout::realm::Realm as RealmBlock;

use super::doorbell::EventFd;
use crate::realm::MapSlot;
use crate::realm::process::all_processes;
use crate::realm::tracer::Actor;

/// Numbers of pid namespaces: the index in a list of their inodes, the server's own first.
#[derive(Debug)]
pub(in crate::realm) struct Namespaces {
    inodes: Mutex<Vec<u64>>,
}

/// A target that has ended, or a thread whose run of a program has.
#[derive(Clone, Debug)]
pub struct Death {
    /// Name of the thread; of a target the first one: the others' names are names of threads that no longer exist.
    pub owner: u32,
    /// What the target had mapped.
    pub maps: Vec<MapSlot>,
    /// Dropped when what it held is released.
    pub until_tended: Option<Arc<dyn Any + Send + Sync>>,
}

/// Ends of targets, for whoever tends the maps.
#[derive(Debug)]
pub(in crate::realm) struct Deaths {
    pub(in crate::realm) bell: Arc<EventFd>,
    told: Mutex<Vec<Death>>,
}

/// The end of a target that nobody has tended yet. When it is dropped the acting thread goes on with what has waited for that.
#[derive(Debug)]
pub(in crate::realm) struct Untended(Arc<EventFd>);

impl Drop for Untended {
    fn drop(&mut self) {
        self.0.signal();
    }
}

impl Actor {
    /// Tells of the end of a target, so that what it held is released.
    pub(in crate::realm) fn tell_death(&mut self, pid: u32, death: Death) {
        let untended = Arc::new(Untended(self.sender.wake.clone()));
        self.untended.retain(|_, untended| untended.strong_count() > 0);
        self.untended.insert(pid, Arc::downgrade(&untended));
        self.shared.deaths.tell(Death { until_tended: Some(untended), ..death });
    }

    /// Whether what a process held as an earlier target is still to be released. (What it held as a new one would be released with
    /// that: owners are known by their thread ids.)
    pub(in crate::realm) fn is_untended(&mut self, pid: u32) -> bool {
        if self.targets.get(&pid).is_some_and(|target| !target.is_present()) {
            self.forget_vanished();
        }
        self.untended.get(&pid).is_some_and(|untended| untended.strong_count() > 0)
    }
}

impl Namespaces {
    pub(in crate::realm) fn new() -> Namespaces {
        Namespaces { inodes: Mutex::new(vec![inode_of("self").unwrap_or(0)]) }
    }

    /// The number of a process's namespace; `NAMESPACE_UNKNOWN` if there are too many.
    pub(in crate::realm) fn number_of(&self, pid: u32) -> u32 {
        let Some(inode) = inode_of(&pid.to_string()) else { return owner::NAMESPACE_UNKNOWN };
        let mut inodes = self.inodes.lock().expect("no panic under this lock");
        if let Some(number) = inodes.iter().position(|known| *known == inode) {
            return number as u32;
        }
        if inodes.len() >= owner::NAMESPACE_UNKNOWN as usize {
            return owner::NAMESPACE_UNKNOWN;
        }
        inodes.push(inode);
        inodes.len() as u32 - 1
    }

    /// Those names whose threads run no more. For a name without a namespace: no thread of that number in any. The
    /// names were read before; what is read later may be of threads that have begun since.
    pub(in crate::realm) fn dead_among(&self, names: &BTreeSet<u32>) -> BTreeSet<u32> {
        let is_near = |name: u32| owner::namespace(name) == owner::NAMESPACE_SERVER;
        let (near, far): (Vec<u32>, Vec<u32>) = names.iter().partition(|name| is_near(**name));
        let gone = |tid: u32| own_tid(&format!("/proc/{tid}")) != Some(tid);
        let mut dead: BTreeSet<u32> = near.into_iter().filter(|name| gone(owner::tid(*name))).collect();
        if far.is_empty() {
            return dead;
        }
        let inodes = self.inodes.lock().expect("no panic under this lock").clone();
        let mut living = BTreeSet::new();
        for pid in all_processes() {
            let number = inode_of(&pid.to_string()).and_then(|inode| inodes.iter().position(|known| *known == inode));
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for tid in tasks.filter_map(|task| own_tid(&task.path().to_string_lossy())) {
                living.extend(number.map(|number| owner::name(number as u32, tid)));
                living.insert(owner::name(owner::NAMESPACE_UNKNOWN, tid));
            }
        }
        dead.extend(far.into_iter().filter(|name| !living.contains(name)));
        dead
    }
}

/// Inode of a process's pid namespace.
fn inode_of(process: &str) -> Option<u64> {
    std::fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|meta| meta.st_ino())
}

/// The id in its own namespace of the thread in a directory of `/proc`, if it runs: is not a zombie at most.
fn own_tid(directory: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("{directory}/status")).ok()?;
    let field = |name: &str| status_field(&status, name).unwrap_or_default();
    let runs = !field("State").starts_with(['Z', 'X']);
    field("NSpid").split_whitespace().last().filter(|_| runs)?.parse().ok()
}

/// The process that a thread means by a number: one of its own pid namespace.
pub fn process_named(number: u32, by: u32) -> Option<u32> {
    let inode = inode_of(&by.to_string())?;
    if inode_of("self") == Some(inode) {
        return Path::new(&format!("/proc/{number}")).exists().then_some(number);
    }
    let is_it =
        |pid: &u32| inode_of(&pid.to_string()) == Some(inode) && own_tid(&format!("/proc/{pid}")) == Some(number);
    all_processes().into_iter().find(is_it)
}

/// What number a process has for the process `by`; 0: none.
pub fn number_of_process(pid: u32, by: u32) -> u32 {
    let inode = inode_of(&by.to_string());
    if inode.is_some() && inode == inode_of("self") {
        return pid;
    }
    let is_same = inode.is_some() && inode == inode_of(&pid.to_string());
    is_same.then(|| own_tid(&format!("/proc/{pid}"))).flatten().unwrap_or(0)
}

impl Deaths {
    pub(in crate::realm) fn new() -> std::io::Result<Deaths> {
        Ok(Deaths { bell: Arc::new(EventFd::new()?), told: Mutex::new(vec![]) })
    }

    pub(in crate::realm) fn tell(&self, death: Death) {
        self.told.lock().expect("no panic under this lock").push(death);
        self.bell.signal();
    }

    pub(in crate::realm) fn take(&self) -> Vec<Death> {
        self.bell.clear();
        std::mem::take(&mut self.told.lock().expect("no panic under this lock"))
    }
}

/// Frees the CPU slots of dead owners, and of dead ones that wait for them: those named, and whoever else is found to be dead.
pub(in crate::realm) fn free_cpu_slots(block: &RealmBlock, namespaces: &Namespaces, leader: u32) {
    let words = || block.cpu_slots.iter().flat_map(|slot| [&slot.owner, &slot.waiting]);
    let owners = words().map(|word| word.load(Relaxed)).filter(|name| *name != 0).collect();
    let dead = namespaces.dead_among(&owners);
    for word in words() {
        let name = word.load(Relaxed);
        if name == leader || dead.contains(&name) {
            let _ = word.compare_exchange(name, 0, Acquire, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn wait_until(mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    fn started(program: &str, arguments: &[&str]) -> Child {
        Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts")
    }

    #[test]
    fn a_process_that_was_killed_is_dead_before_it_is_waited_for() {
        let namespaces = Namespaces::new();
        let is_dead = |name| !namespaces.dead_among(&[name].into()).is_empty();
        let mut child = started("cat", &[]);
        assert_eq!(namespaces.number_of(child.id()), owner::NAMESPACE_SERVER);
        let name = owner::name(owner::NAMESPACE_SERVER, child.id());
        assert!(!is_dead(name));
        child.kill().expect("killed");
        wait_until(|| is_dead(name));
        child.wait().expect("waited for");
        assert!(is_dead(name));
    }

    #[test]
    fn threads_of_another_pid_namespace_are_told_from_those_with_the_same_number_here() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: making a pid namespace needs root");
            return;
        }
        let namespaces = Namespaces::new();
        let is_dead = |name| !namespaces.dead_among(&[name].into()).is_empty();
        let mut child = started("unshare", &["--pid", "--fork", "--kill-child", "cat"]);
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let inner = || std::fs::read_to_string(&children).ok()?.trim().parse::<u32>().ok();
        // Before it is cat, it may not have asked yet to end with its parent.
        let is_cat = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "cat\n");
        wait_until(|| inner().is_some_and(is_cat));
        assert_ne!(inode_of(&inner().expect("there").to_string()), inode_of("self"));
        let number = namespaces.number_of(inner().expect("there"));
        assert_ne!(number, owner::NAMESPACE_SERVER);
        assert!(!is_dead(owner::name(number, 1)));
        assert!(is_dead(owner::name(number, 2)), "there is one thread");
        assert!(!owner::is_near(owner::name(number, 1), owner::name(owner::NAMESPACE_SERVER, 1)));
        child.kill().expect("killed");
        wait_until(|| is_dead(owner::name(number, 1)));
        child.wait().expect("waited for");
        // A fork's name without a namespace is anybody's of that number.
        assert!(!is_dead(owner::name(owner::NAMESPACE_UNKNOWN, std::process::id())));
    }
}
