//! What an argument of a system call is, if another argument decides that: the command of `fcntl` says what `arg` is, and whether
//! there is one.

use ring3_event::Show;

use crate::names::SHOWS;

/// How a field is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// Not at all: the call does not look at it.
    Hidden,
    /// So.
    As(Show),
}

/// When a row is for a call.
enum When {
    /// The other argument is one of these.
    Is(&'static [u64]),
    /// So are its lowest seven bits.
    Command(&'static [u64]),
    /// It has none of these bits.
    Lacks(u64),
}
use When::{Command, Is, Lacks};

/// Calls, the fields that are shown otherwise, the field that decides, and when.
type Row = (&'static [&'static str], &'static [&'static str], &'static str, When, fn() -> How);

fn hidden() -> How {
    How::Hidden
}

fn decimal() -> How {
    How::As(Show::Decimal)
}

macro_rules! show {
    ($of:ident) => {
        || How::As(SHOWS.$of.clone())
    };
}

const CLONE_SETTLS: u64 = 0x8_0000;
/// `CLONE_PARENT_SETTID`, `CLONE_PIDFD`
const CLONE_PARENT: u64 = 0x10_1000;
/// `CLONE_CHILD_SETTID`, `CLONE_CHILD_CLEARTID`
const CLONE_CHILD: u64 = 0x120_0000;
/// `O_CREAT`, and the bit of `O_TMPFILE` that others do not have.
const MAKES_FILE: u64 = 0o20000100;
/// `MREMAP_FIXED`, `MREMAP_DONTUNMAP`
const HAS_ADDRESS: u64 = 6;

static ROWS: [Row; 32] = [
    (&["open", "openat"], &["mode"], "flags", Lacks(MAKES_FILE), hidden),
    (&["mremap"], &["new_addr"], "flags", Lacks(HAS_ADDRESS), hidden),
    (&["clone"], &["parent_tidptr"], "clone_flags", Lacks(CLONE_PARENT), hidden),
    (&["clone"], &["child_tidptr"], "clone_flags", Lacks(CLONE_CHILD), hidden),
    (&["clone"], &["tls"], "clone_flags", Lacks(CLONE_SETTLS), hidden),
    // F_GETFD, F_GETFL, F_GETOWN, F_GETSIG, F_GETLEASE, F_GETPIPE_SZ, F_GET_SEALS
    (&["fcntl"], &["arg"], "cmd", Is(&[1, 3, 9, 11, 1025, 1032, 1034]), hidden),
    // F_SETFD; F_SETFL; F_SETSIG; F_ADD_SEALS
    (&["fcntl"], &["arg"], "cmd", Is(&[2]), show!(close_on_exec)),
    (&["fcntl"], &["arg"], "cmd", Is(&[4]), show!(open)),
    (&["fcntl"], &["arg"], "cmd", Is(&[10]), show!(signal)),
    (&["fcntl"], &["arg"], "cmd", Is(&[1033]), show!(seals)),
    // F_DUPFD, F_SETOWN, F_DUPFD_CLOEXEC, F_SETPIPE_SZ
    (&["fcntl"], &["arg"], "cmd", Is(&[0, 8, 1030, 1031]), decimal),
    // FUTEX_WAIT
    (&["futex"], &["uaddr2", "val3"], "op", Command(&[0]), hidden),
    // FUTEX_WAKE, FUTEX_FD
    (&["futex"], &["utime", "uaddr2", "val3"], "op", Command(&[1, 2]), hidden),
    // FUTEX_REQUEUE
    (&["futex"], &["val3"], "op", Command(&[3]), hidden),
    // FUTEX_LOCK_PI, FUTEX_LOCK_PI2
    (&["futex"], &["val", "uaddr2", "val3"], "op", Command(&[6, 13]), hidden),
    // FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI
    (&["futex"], &["val", "utime", "uaddr2", "val3"], "op", Command(&[7, 8]), hidden),
    // FUTEX_WAIT_BITSET
    (&["futex"], &["uaddr2"], "op", Command(&[9]), hidden),
    // FUTEX_WAKE_BITSET
    (&["futex"], &["utime", "uaddr2"], "op", Command(&[10]), hidden),
    (&["futex"], &["val3"], "op", Command(&[9, 10]), show!(futex_set)),
    // FIONCLEX, FIOCLEX, TIOCEXCL, TIOCNXCL, TIOCNOTTY
    (&["ioctl"], &["arg"], "cmd", Is(&[0x5450, 0x5451, 0x540c, 0x540d, 0x5422]), hidden),
    // FICLONE
    (&["ioctl"], &["arg"], "cmd", Is(&[0x4004_9409]), decimal),
    // PR_GET_DUMPABLE, PR_GET_KEEPCAPS, PR_GET_TIMING, PR_GET_SECCOMP, PR_GET_SECUREBITS, PR_GET_TIMERSLACK
    (&["prctl"], &["arg2", "arg3", "arg4", "arg5"], "option", Is(&[3, 7, 13, 21, 27, 30]), hidden),
    // PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_TIMING, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ,
    // PR_CAPBSET_DROP, PR_GET_TSC, PR_SET_TSC, PR_SET_SECUREBITS, PR_SET_TIMERSLACK, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER
    (
        &["prctl"],
        &["arg3", "arg4", "arg5"],
        "option",
        Is(&[1, 2, 4, 8, 14, 15, 16, 23, 24, 25, 26, 28, 29, 36, 37]),
        hidden,
    ),
    (&["prctl"], &["arg2"], "option", Is(&[1]), show!(signal)),
    (&["prctl"], &["arg2"], "option", Is(&[23, 24]), show!(capability)),
    // PR_SET_TIMERSLACK, PR_SET_NO_NEW_PRIVS
    (&["prctl"], &["arg2", "arg3", "arg4", "arg5"], "option", Is(&[4, 8, 29, 36, 38]), decimal),
    // AF_INET, AF_INET6; AF_NETLINK
    (&["socket", "socketpair"], &["protocol"], "family", Is(&[2, 10]), show!(protocol)),
    (&["socket", "socketpair"], &["protocol"], "family", Is(&[16]), show!(netlink)),
    // SOL_SOCKET; SOL_IP; SOL_TCP; SOL_IPV6
    (&["setsockopt", "getsockopt"], &["optname"], "level", Is(&[1]), show!(socket_option)),
    (&["setsockopt", "getsockopt"], &["optname"], "level", Is(&[0]), show!(ip_option)),
    (&["setsockopt", "getsockopt"], &["optname"], "level", Is(&[6]), show!(tcp_option)),
    (&["setsockopt", "getsockopt"], &["optname"], "level", Is(&[41]), show!(ipv6_option)),
];

/// How a field of a call is shown, unless as its kind says; `number` gives the call's other arguments.
pub fn of(call: &str, field: &str, number: impl Fn(&str) -> Option<u64>) -> Option<How> {
    let is_for = |row: &&Row| {
        let (calls, fields, by, when, _) = row;
        calls.contains(&call)
            && fields.contains(&field)
            && number(by).is_some_and(|value| match when {
                Is(values) => values.contains(&value),
                Command(values) => values.contains(&(value & 0x7f)),
                Lacks(bits) => value & bits == 0,
            })
    };
    ROWS.iter().find(is_for).map(|(.., how)| how())
}

/// The order and the names of a call's arguments, where people know others than the kernel's.
pub fn order(call: &str) -> Option<&'static [(&'static str, &'static str)]> {
    const CLONE: [(&str, &str); 5] = [
        ("newsp", "child_stack"),
        ("clone_flags", "flags"),
        ("parent_tidptr", "parent_tid"),
        ("tls", "tls"),
        ("child_tidptr", "child_tidptr"),
    ];
    (call == "clone").then_some(&CLONE)
}

/// What the bits of a call's result are, and how they are shown.
pub fn result(call: &str, number: impl Fn(&str) -> Option<u64>) -> Option<(&'static str, Show)> {
    match (call, number("cmd")?) {
        ("fcntl", 1) => Some(("flags", SHOWS.close_on_exec.clone())),
        ("fcntl", 3) => Some(("flags", SHOWS.open.clone())),
        ("fcntl", 1034) => Some(("seals", SHOWS.seals.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ring3_event::Kind;

    use super::*;
    use crate::syscalls;

    #[test]
    fn rows_name_calls_and_fields_that_there_are() {
        for (calls, fields, by, ..) in &ROWS {
            for call in *calls {
                let of = syscalls::recipe(syscalls::named(call).expect("it is a call")[0], 32).of;
                let has = |name: &str| of.field(name).is_some();
                assert!(fields.iter().all(|field| has(field)) && has(by), "{call} {fields:?} {by}");
            }
        }
        let clone = syscalls::recipe(syscalls::named("clone").expect("it is a call")[0], 32).of;
        assert!(order("clone").expect("it has one").iter().all(|(field, _)| clone.field(field).is_some()));
    }

    #[test]
    fn commands_decide() {
        let fcntl = |cmd: u64| of("fcntl", "arg", |name| (name == "cmd").then_some(cmd));
        assert_eq!((fcntl(1), fcntl(0)), (Some(How::Hidden), Some(How::As(Show::Decimal))));
        assert_eq!(fcntl(6), None);
        let Some(How::As(show)) = fcntl(2) else { panic!("F_SETFD has flags") };
        let kind = Kind::Int { bytes: 8, signed: false, show };
        assert_eq!(kind.name_of(1).as_deref(), Some("FD_CLOEXEC"));
        let futex = |op: u64| of("futex", "val3", |name| (name == "op").then_some(op));
        assert_eq!((futex(129), futex(4)), (Some(How::Hidden), None));
        let clone = |flags: u64| of("clone", "tls", |name| (name == "clone_flags").then_some(flags));
        assert_eq!((clone(17), clone(CLONE_SETTLS)), (Some(How::Hidden), None));
    }
}
