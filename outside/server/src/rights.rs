//! Who may do what: the credentials of whoever asks, judged as the kernel judges them.
//!
//! The server asks nothing of a caller that it could not do itself, so its own credentials bound every answer. A capability is
//! wanted of the caller only if the server has it: root's callers need what the kernel wants of them, an ordinary user's need to
//! be that user. Credentials are read once, when something is made, and stay with it, as a kernel file keeps its `f_cred`.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};

use ring3_inject::status_field;
use ring3_uapi::Errno;

use crate::raw_process;

/// Capabilities (linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Capability {
    DacOverride = 1,
    Fowner = 3,
    NetAdmin = 12,
    SysPtrace = 19,
    SysAdmin = 21,
    SysResource = 24,
    Perfmon = 38,
    Bpf = 39,
}

/// User namespaces that are nested in each other at most (the kernel has 33 levels).
const NAMESPACES_MAX: usize = 34;

/// Device and inode of a user namespace.
type NamespaceId = (u64, u64);

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capabilities(u64);

/// What decides whether processes may trace each other: of two that have the same identity each may trace the other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Real, effective, saved.
    uids: [u32; 3],
    gids: [u32; 3],
    permitted: Capabilities,
    /// `None` if it is hidden from the server.
    namespace: Option<NamespaceId>,
    is_dumpable: bool,
    /// See [`Identity::user`].
    accountable: u32,
}

impl Identity {
    /// Who is accountable for it, as the server sees user namespaces: its user, or who has made the outermost namespace that it is in and
    /// the server is not (there, a user can have many ids). `None`: root.
    pub(crate) fn user(&self) -> Option<u32> {
        Some(self.accountable).filter(|user| *user != 0)
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "user {}", self.uids[1])?;
        if self.uids != [self.uids[1]; 3] {
            write!(f, " (real {}, saved {})", self.uids[0], self.uids[2])?;
        }
        if self.gids != [self.uids[1]; 3] {
            write!(f, ", group {}", self.gids[1])?;
        }
        if !OWN.is_in(self.namespace) {
            write!(f, ", in another user namespace")?;
        }
        if self.permitted != Capabilities::default() {
            write!(f, ", capabilities {:#x}", self.permitted.0)?;
        }
        if !self.is_dumpable {
            write!(f, ", not dumpable")?;
        }
        Ok(())
    }
}

impl Capabilities {
    fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u32 != 0
    }

    fn is_within(self, other: Capabilities) -> bool {
        self.0 & !other.0 == 0
    }
}

/// `struct cred`, as `/proc/PID/status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Credentials {
    /// Real, effective, saved, of the file system.
    uids: [u32; 4],
    gids: [u32; 4],
    permitted: Capabilities,
    effective: Capabilities,
}

impl Credentials {
    fn parse(status: &str) -> Option<Credentials> {
        let ids = |name: &str| {
            let words = status_field(status, name)?.split_ascii_whitespace();
            words.map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>()?.try_into().ok()
        };
        let set = |name: &str| Some(Capabilities(u64::from_str_radix(status_field(status, name)?, 16).ok()?));
        Some(Credentials {
            uids: ids("Uid")?,
            gids: ids("Gid")?,
            permitted: set("CapPrm")?,
            effective: set("CapEff")?,
        })
    }

    fn of(tid: u32) -> Result<Credentials, Errno> {
        let status = ring3_inject::proc_file(tid, "status").map_err(|_| Errno::ESRCH)?;
        Credentials::parse(&status).ok_or(Errno::ESRCH)
    }
}

/// Whether a text is a `/proc/PID/status` that credentials can be read of.
pub fn check_status(status: &str) -> bool {
    Credentials::parse(status).is_some()
}

fn namespace_of(process: &str) -> Option<NamespaceId> {
    std::fs::metadata(format!("/proc/{process}/ns/user")).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// What a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    credentials: Credentials,
    /// `None` if it is hidden from the server: then it is no namespace that counts.
    namespace: Option<NamespaceId>,
}

/// The server's own.
static OWN: LazyLock<Rights> = LazyLock::new(|| Rights {
    credentials: Credentials::of(std::process::id()).expect("/proc shows this process"),
    namespace: namespace_of("self"),
});

impl Rights {
    /// Those of a thread at this moment. Whoever asks knows that it is still the same thread afterwards.
    pub(crate) fn of(tid: u32) -> Result<Arc<Rights>, Errno> {
        let process = tid.to_string();
        let credentials = Credentials::of(tid)?;
        Ok(Arc::new(Rights { credentials, namespace: namespace_of(&process) }))
    }

    fn is_in(&self, namespace: Option<NamespaceId>) -> bool {
        self.namespace.is_some() && self.namespace == namespace
    }

    /// Whether it has one of these, beside the server `own`. Mirrors kernel/capability.c:capable, with the server's user namespace
    /// for the initial one. What the server has not is not wanted of its own user.
    fn holds_beside(&self, own: &Rights, any: &[Capability]) -> bool {
        let has = |credentials: &Credentials| any.iter().any(|capability| credentials.effective.has(*capability));
        let is_user = || self.credentials.uids == [own.credentials.uids[1]; 4];
        self.is_in(own.namespace) && has(&self.credentials) || !has(&own.credentials) && is_user()
    }

    fn holds(&self, capability: Capability) -> bool {
        // CAP_SYS_ADMIN stands for those that were split from it (linux/capability.h:bpf_capable, perfmon_capable).
        let any = match capability {
            Capability::DacOverride | Capability::Fowner => [capability; 2],
            _ => [capability, Capability::SysAdmin],
        };
        self.holds_beside(&OWN, &any)
    }

    /// What the kernel wants CAP_BPF for.
    pub(crate) fn may_bpf(&self) -> bool {
        self.holds(Capability::Bpf)
    }

    /// What the kernel wants CAP_PERFMON for.
    pub(crate) fn may_monitor(&self) -> bool {
        self.holds(Capability::Perfmon)
    }

    /// What the kernel wants CAP_NET_ADMIN for.
    pub(crate) fn may_administer_networks(&self) -> bool {
        self.holds(Capability::NetAdmin)
    }

    /// What the kernel wants CAP_SYS_ADMIN for.
    pub(crate) fn may_administer(&self) -> bool {
        self.holds(Capability::SysAdmin)
    }

    /// Whether it has CAP_SYS_RESOURCE, in whatever user namespace it is.
    pub(crate) fn has_resources(&self) -> bool {
        self.credentials.effective.has(Capability::SysResource)
    }

    /// Whether it may use what belongs to a user and nobody else may (fs/namei.c:acl_permission_check, mode 0600).
    pub(crate) fn may_open_of(&self, owner: u32) -> bool {
        self.file_uid() == owner || self.holds(Capability::DacOverride)
    }

    /// Whether it may use what belongs to the server's user.
    pub(crate) fn may_open_of_server(&self) -> bool {
        self.may_open_of(OWN.file_uid())
    }

    /// Whether it may take away a name of a user's in a directory for everybody (fs/namei.c:may_delete, sticky).
    pub(crate) fn may_remove_of(&self, owner: u32) -> bool {
        self.file_uid() == owner || self.holds(Capability::Fowner)
    }

    /// The real user.
    pub(crate) fn uid(&self) -> u32 {
        self.credentials.uids[0]
    }

    /// Whose files it makes.
    pub(crate) fn file_uid(&self) -> u32 {
        self.credentials.uids[3]
    }

    /// Whether it reaches every process that the server reaches: by CAP_PERFMON, or because it has all that the server has.
    pub(crate) fn reaches_all(&self) -> bool {
        self.reaches_all_beside(&OWN)
    }

    fn reaches_all_beside(&self, own: &Rights) -> bool {
        let (mine, servers) = (&self.credentials, &own.credentials);
        let monitors = mine.effective.has(Capability::Perfmon) || mine.effective.has(Capability::SysAdmin);
        let has_all = mine.uids == servers.uids
            && mine.gids == servers.gids
            && servers.effective.is_within(mine.effective)
            && servers.permitted.is_within(mine.permitted);
        self.is_in(own.namespace) && (monitors || has_all)
    }

    /// Whether its programs may run in a process. Mirrors kernel/events/core.c:perf_check_permission (v6.18).
    pub(crate) fn reaches(&self, subject: &Subject) -> bool {
        self.reaches_all() || self.traces(subject)
    }

    /// Mirrors kernel/ptrace.c:__ptrace_may_access with real credentials, and security/commoncap.c:cap_ptrace_access_check
    /// (v6.18). Other security modules are asked about the server, when it stops the process.
    fn traces(&self, subject: &Subject) -> bool {
        let (mine, theirs) = (&self.credentials, &subject.credentials);
        let is_user = theirs.uids[..3].iter().all(|uid| *uid == mine.uids[0])
            && theirs.gids[..3].iter().all(|gid| *gid == mine.gids[0]);
        let is_as_capable = self.is_in(subject.namespaces.first().map(|space| space.id))
            && theirs.permitted.is_within(mine.permitted);
        is_user && subject.is_dumpable && is_as_capable || self.may_trace_in(&subject.namespaces)
    }

    /// CAP_SYS_PTRACE in the innermost of these namespaces. Mirrors security/commoncap.c:cap_capable_helper.
    fn may_trace_in(&self, namespaces: &[Namespace]) -> bool {
        for (index, space) in namespaces.iter().enumerate() {
            if self.is_in(Some(space.id)) {
                return self.credentials.effective.has(Capability::SysPtrace);
            }
            let parent = namespaces.get(index + 1).map(|parent| parent.id);
            if self.is_in(parent) && space.owner == Some(self.credentials.uids[1]) {
                return true;
            }
        }
        false
    }
}

/// A user namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Namespace {
    id: NamespaceId,
    /// Who made it; `None` outside of the server's own.
    owner: Option<u32>,
}

/// A process as the object of an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    credentials: Credentials,
    /// The innermost first, as far as the server sees.
    namespaces: Vec<Namespace>,
    is_dumpable: bool,
}

impl Subject {
    /// A process at this moment.
    pub(crate) fn of(pid: u32) -> Result<Subject, Errno> {
        let credentials = Credentials::of(pid)?;
        // Files in /proc belong to root if their process may not be dumped (fs/proc/base.c:task_dump_owner). Of a
        // process of root's own they do not tell.
        let owner = std::fs::metadata(format!("/proc/{pid}/status")).map_err(|_| Errno::ESRCH)?.uid();
        let is_dumpable = owner == credentials.uids[1];
        Ok(Subject { credentials, namespaces: namespaces_of(pid), is_dumpable })
    }
}

impl Subject {
    /// Who this is among targets; `None` for whoever could trace all of them: those of the server's own user, or, if the server has
    /// CAP_SYS_PTRACE, those that have it. (A capability that is permitted can be made effective.)
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.identity_beside(&OWN)
    }

    fn identity_beside(&self, own: &Rights) -> Option<Identity> {
        let (theirs, servers) = (&self.credentials, &own.credentials);
        let namespace = self.namespaces.first().map(|space| space.id);
        let [uids, gids] = [theirs.uids, theirs.gids].map(|[real, effective, saved, _]| [real, effective, saved]);
        let traces_all = theirs.permitted.has(Capability::SysPtrace);
        let is_user = uids == [servers.uids[1]; 3] && gids == [servers.gids[1]; 3];
        let needs_capability = servers.permitted.has(Capability::SysPtrace);
        if own.is_in(namespace) && (traces_all || !needs_capability && is_user) {
            return None;
        }
        let permitted = theirs.permitted;
        let outermost = self.namespaces.iter().take_while(|space| !own.is_in(Some(space.id))).last();
        let accountable = outermost.and_then(|space| space.owner).unwrap_or(uids[0]);
        Some(Identity { uids, gids, permitted, namespace, is_dumpable: self.is_dumpable, accountable })
    }
}

fn namespaces_of(pid: u32) -> Vec<Namespace> {
    let mut all = vec![];
    let mut next = std::fs::File::open(format!("/proc/{pid}/ns/user")).ok().map(OwnedFd::from);
    while let Some(space) = next.filter(|_| all.len() < NAMESPACES_MAX) {
        let Ok(stat) = rustix::fs::fstat(&space) else { break };
        let owner = raw_process::namespace_owner(space.as_fd());
        all.push(Namespace { id: (stat.st_dev, stat.st_ino), owner });
        next = raw_process::namespace_parent(space.as_fd());
    }
    all
}

#[cfg(test)]
impl Subject {
    /// A process without capabilities, by the inode of its user namespace.
    pub(crate) fn ordinary(user: u32, namespace: u64) -> Subject {
        let none = Capabilities::default();
        let credentials = Credentials { uids: [user; 4], gids: [user; 4], permitted: none, effective: none };
        let namespaces = vec![Namespace { id: (4, namespace), owner: Some(user) }];
        Subject { credentials, namespaces, is_dumpable: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;
    const OUTER: NamespaceId = (4, 1);
    const INNER: NamespaceId = (4, 2);

    fn bits(capabilities: &[Capability]) -> u64 {
        capabilities.iter().fold(0, |all, capability| all | 1 << *capability as u32)
    }

    fn rights(uid: u32, capabilities: u64, namespace: NamespaceId) -> Rights {
        let capabilities = Capabilities(capabilities);
        let credentials =
            Credentials { uids: [uid; 4], gids: [uid; 4], permitted: capabilities, effective: capabilities };
        Rights { credentials, namespace: Some(namespace) }
    }

    fn subject(uid: u32, capabilities: u64, namespaces: &[(NamespaceId, u32)]) -> Subject {
        let namespaces = namespaces.iter().map(|(id, owner)| Namespace { id: *id, owner: Some(*owner) }).collect();
        let credentials = rights(uid, capabilities, OUTER).credentials;
        Subject { credentials, namespaces, is_dumpable: true }
    }

    #[test]
    fn a_status_of_the_kernels_is_read() {
        let status =
            "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000080000\n";
        let read = Credentials::parse(status).expect("whole");
        assert_eq!((read.uids, read.gids), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!(read.permitted, Capabilities(ALL));
        assert!(read.effective.has(Capability::SysPtrace) && !read.effective.has(Capability::SysAdmin));
        assert_eq!(Credentials::parse("Uid:\t1\t2\t3\n"), None);
    }

    #[test]
    fn roots_callers_need_the_capability_and_an_ordinary_users_need_to_be_him() {
        let (root, user) = (rights(0, ALL, OUTER), rights(1000, 0, OUTER));
        let wanted = [Capability::Bpf, Capability::SysAdmin];
        let holds = |who: &Rights, own: &Rights| who.holds_beside(own, &wanted);
        assert!(holds(&root, &root) && holds(&rights(7, bits(&[Capability::Bpf]), OUTER), &root));
        assert!(holds(&rights(7, bits(&[Capability::SysAdmin]), OUTER), &root));
        assert!(!holds(&user, &root) && !holds(&rights(0, 0, OUTER), &root));
        assert!(!holds(&rights(1000, ALL, INNER), &root), "root of a namespace of his own");
        assert!(holds(&user, &user) && holds(&rights(1000, ALL, INNER), &user));
        assert!(!holds(&rights(1001, 0, OUTER), &user) && !holds(&rights(1001, ALL, INNER), &user));
        let mut mixed = user.clone();
        mixed.credentials.uids[2] = 0;
        assert!(!holds(&mixed, &user));
        assert!(!holds(&Rights { namespace: None, ..root.clone() }, &root));
    }

    #[test]
    fn who_has_less_than_the_server_reaches_only_what_ptrace_reaches() {
        let own = rights(0, ALL, OUTER);
        assert!(own.reaches_all_beside(&own));
        assert!(rights(7, bits(&[Capability::Perfmon]), OUTER).reaches_all_beside(&own));
        assert!(!rights(0, 0, OUTER).reaches_all_beside(&own));
        assert!(!rights(0, ALL, INNER).reaches_all_beside(&own));
        let user = rights(1000, 0, OUTER);
        assert!(user.reaches_all_beside(&user) && !rights(1000, ALL, INNER).reaches_all_beside(&user));
    }

    #[test]
    fn who_has_made_a_namespace_is_accountable_for_the_users_in_it() {
        let own = rights(0, ALL, OUTER);
        let user = |uid: u32, namespaces: &[(NamespaceId, u32)]| {
            subject(uid, 0, namespaces).identity_beside(&own).expect("it is no target of root's").user()
        };
        assert_eq!(user(1000, &[(OUTER, 0)]), Some(1000));
        assert_eq!(user(100_001, &[(INNER, 1000), (OUTER, 0)]), Some(1000));
        assert_eq!(user(100_001, &[((4, 3), 100_000), (INNER, 1000), (OUTER, 0)]), Some(1000));
        assert_eq!(user(100_001, &[(INNER, 0), (OUTER, 0)]), None);
    }

    #[test]
    fn tracing_wants_the_same_user_no_more_capabilities_and_consent() {
        let outer = [(OUTER, 0)];
        let user = rights(1000, 0, OUTER);
        assert!(user.traces(&subject(1000, 0, &outer)));
        assert!(!user.traces(&subject(1001, 0, &outer)));
        assert!(!user.traces(&subject(1000, 1, &outer)), "it has a capability");
        assert!(!user.traces(&Subject { is_dumpable: false, ..subject(1000, 0, &outer) }));
        for id in 0..3 {
            let mut setuid = subject(1000, 0, &outer);
            setuid.credentials.uids[id] = 0;
            assert!(!user.traces(&setuid));
            let mut setgid = subject(1000, 0, &outer);
            setgid.credentials.gids[id] = 0;
            assert!(!user.traces(&setgid));
        }
        let tracer = rights(7, bits(&[Capability::SysPtrace]), OUTER);
        assert!(tracer.traces(&subject(0, ALL, &outer)));
        assert!(tracer.traces(&Subject { is_dumpable: false, ..subject(0, ALL, &outer) }));
        assert!(!rights(0, 0, OUTER).traces(&subject(0, ALL, &outer)));
    }

    #[test]
    fn namespaces_are_reached_from_outside_and_not_left() {
        let nested = [(INNER, 1000), (OUTER, 0)];
        assert!(rights(1000, 0, OUTER).traces(&subject(1000, ALL, &nested)), "its owner");
        assert!(rights(1000, 0, OUTER).traces(&subject(100_007, ALL, &nested)), "its owner, of anybody in it");
        assert!(!rights(1001, 0, OUTER).traces(&subject(1001, 0, &nested)));
        assert!(rights(0, bits(&[Capability::SysPtrace]), OUTER).traces(&subject(1000, ALL, &nested)));
        assert!(rights(1000, ALL, INNER).traces(&subject(1000, ALL, &nested)));
        assert!(!rights(1000, ALL, INNER).traces(&subject(1000, 0, &[(OUTER, 0)])));
        assert!(!rights(1000, ALL, INNER).traces(&subject(1000, 0, &[])), "hidden");
    }

    #[test]
    fn who_could_trace_all_targets_has_no_identity_and_others_are_told_apart_by_what_ptrace_looks_at() {
        let (root, user) = (rights(0, ALL, OUTER), rights(1000, 0, OUTER));
        let outer = [(OUTER, 0)];
        assert_eq!(subject(0, ALL, &outer).identity_beside(&root), None);
        assert_eq!(subject(7, bits(&[Capability::SysPtrace]), &outer).identity_beside(&root), None);
        assert_eq!(subject(1000, 0, &outer).identity_beside(&user), None);
        let nobody = subject(1000, 0, &outer);
        let identity = |subject: &Subject| subject.identity_beside(&root).expect("another one's");
        assert_eq!(identity(&nobody), identity(&nobody));
        let mut different = vec![
            subject(1001, 0, &outer),
            subject(0, 0, &outer),
            subject(1000, 1, &outer),
            subject(1000, ALL, &[(INNER, 1000), (OUTER, 0)]),
            subject(1000, 0, &[(INNER, 1000), (OUTER, 0)]),
            Subject { is_dumpable: false, ..nobody.clone() },
        ];
        for id in 0..3 {
            let mut other = nobody.clone();
            other.credentials.uids[id] = 0;
            different.push(other);
            let mut other = nobody.clone();
            other.credentials.gids[id] = 0;
            different.push(other);
        }
        for (index, one) in different.iter().enumerate() {
            assert_ne!(identity(one), identity(&nobody), "{index}");
            assert!(different[..index].iter().all(|other| identity(other) != identity(one)), "{index}");
        }
        let inside = subject(1000, ALL, &[(INNER, 1000), (OUTER, 0)]);
        assert!(inside.identity_beside(&user).is_some(), "who is in a namespace may not trace who is outside");
    }

    #[test]
    fn this_process_reaches_itself() {
        let own = Rights::of(std::process::id()).expect("it runs");
        assert!(own.reaches(&Subject::of(std::process::id()).expect("it runs")) && own.reaches_all());
        assert_eq!(Rights::of(u32::MAX).err(), Some(Errno::ESRCH));
    }
}
