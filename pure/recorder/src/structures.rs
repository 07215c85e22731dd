//! Structures to which arguments of system calls lead, and the arrays of arguments of `execve`: they are recorded as bytes, and
//! decoded when they are shown ([`Form`]).

use ring3_event::{Form, Kind, Phase};
use ring3_uapi::syscalls::Syscall;

use crate::syscalls::{Parameter, RESULT_AT, argument};
use crate::{Operand, Source};

/// Elements of an array that are recorded at most.
const ELEMENTS_MAX: u32 = 16;
/// `struct sockaddr_storage`, and `cpu_set_t`
const ADDRESS_BYTES_MAX: u32 = 128;
/// An array of descriptors, and its bytes.
const TWO: i64 = 2;

/// What is recorded of a parameter that leads to a structure.
pub(crate) fn of(
    call: &Syscall,
    parameters: &[Parameter<'_>],
    index: usize,
    bytes_max: u32,
) -> Option<(Kind, Phase, Source)> {
    const ONE: Operand = Operand::Constant(1);
    let named = |name: &str| parameters.iter().position(|parameter| parameter.name == name);
    let number = |name: &str| named(name).map(argument);
    let pointed = |name: &str| named(name).map(|index| Operand::Pointed(index as u8));
    let (form, phase, length) = match (call.name, parameters[index].name) {
        ("execve" | "execveat", "argv") => {
            // (One byte more tells that a text goes on.)
            let each = bytes_max + 2;
            let kind = Kind::Bytes { bytes_max: ELEMENTS_MAX * each, form: Form::Texts(bytes_max) };
            return Some((kind, Phase::Entry, Source::Texts { address: argument(index), each }));
        }
        ("newstat" | "newfstat" | "newlstat" | "newfstatat", "statbuf") => (Form::Stat, Phase::Exit, ONE),
        ("nanosleep" | "clock_nanosleep", "rqtp") | ("rt_sigtimedwait", "uts") => (Form::Timespec, Phase::Entry, ONE),
        ("ppoll", "tsp") => (Form::Timespec, Phase::Entry, ONE),
        ("clock_gettime" | "clock_getres", "tp") => (Form::Timespec, Phase::Exit, ONE),
        ("gettimeofday", "tv") => (Form::Timeval, Phase::Exit, ONE),
        ("utimensat", "utimes") => (Form::Timespecs, Phase::Entry, ONE),
        ("poll", "ufds") => (Form::PollFds, Phase::Exit, number("nfds")?),
        // (What comes behind it is recorded at the start.)
        ("ppoll", "ufds") => (Form::PollFds, Phase::Entry, number("nfds")?),
        ("epoll_ctl", "event") => (Form::EpollEvent, Phase::Entry, ONE),
        ("epoll_wait", "events") => (Form::EpollEvents, Phase::Exit, Operand::Context(RESULT_AT)),
        ("readv" | "writev" | "preadv" | "pwritev" | "preadv2" | "pwritev2", "vec") => {
            (Form::IoVecs, Phase::Entry, number("vlen")?)
        }
        ("rt_sigaction", "act") => (Form::SigAction, Phase::Entry, ONE),
        ("rt_sigaction", "oact") => (Form::SigAction, Phase::Exit, ONE),
        ("rt_sigprocmask", "nset") | ("rt_sigsuspend", "unewset") | ("rt_sigtimedwait", "uthese") => {
            (Form::SigSet, Phase::Entry, ONE)
        }
        ("rt_sigprocmask", "oset") | ("rt_sigpending", "uset") => (Form::SigSet, Phase::Exit, ONE),
        ("connect" | "bind", "uservaddr" | "umyaddr") => (Form::SockAddr, Phase::Entry, number("addrlen")?),
        ("sendto", "addr") => (Form::SockAddr, Phase::Entry, number("addr_len")?),
        ("recvfrom", "addr") => (Form::SockAddr, Phase::Exit, pointed("addr_len")?),
        ("accept" | "accept4", "upeer_sockaddr") => (Form::SockAddr, Phase::Exit, pointed("upeer_addrlen")?),
        ("getsockname" | "getpeername", "usockaddr") => (Form::SockAddr, Phase::Exit, pointed("usockaddr_len")?),
        ("setrlimit", "rlim") | ("prlimit64", "new_rlim") => (Form::RLimit, Phase::Entry, ONE),
        ("getrlimit", "rlim") | ("prlimit64", "old_rlim") => (Form::RLimit, Phase::Exit, ONE),
        ("pipe" | "pipe2", "fildes") | ("socketpair", "usockvec") => {
            (Form::Ints, Phase::Exit, Operand::Constant(TWO))
        }
        ("wait4", "stat_addr") => (Form::WaitStatus, Phase::Exit, ONE),
        ("wait4" | "waitid" | "getrusage", "ru") => (Form::Usage, Phase::Exit, ONE),
        ("waitid", "infop") => (Form::Child, Phase::Exit, ONE),
        ("statx", "buffer") => (Form::Statx, Phase::Exit, ONE),
        ("statfs" | "fstatfs", "buf") => (Form::StatFs, Phase::Exit, ONE),
        ("newuname", "name") => (Form::Names, Phase::Exit, ONE),
        ("sysinfo", "info") => (Form::System, Phase::Exit, ONE),
        ("setitimer", "value") => (Form::IntervalUs, Phase::Entry, ONE),
        ("setitimer", "ovalue") | ("getitimer", "value") => (Form::IntervalUs, Phase::Exit, ONE),
        ("timerfd_settime", "utmr") | ("timer_settime", "new_setting") => (Form::IntervalNs, Phase::Entry, ONE),
        ("timerfd_settime" | "timerfd_gettime", "otmr") => (Form::IntervalNs, Phase::Exit, ONE),
        ("timer_settime", "old_setting") | ("timer_gettime", "setting") => (Form::IntervalNs, Phase::Exit, ONE),
        ("timer_create", "created_timer_id") => (Form::Ints, Phase::Exit, ONE),
        ("sigaltstack", "uss") => (Form::Stack, Phase::Entry, ONE),
        ("sigaltstack", "uoss") => (Form::Stack, Phase::Exit, ONE),
        ("futex", "utime") => (Form::Timespec, Phase::Entry, ONE),
        ("pselect6", "tsp") => (Form::Timespec, Phase::Entry, ONE),
        ("signalfd4", "user_mask") => (Form::SigSet, Phase::Entry, ONE),
        ("clone3", "uargs") => (Form::CloneArguments, Phase::Entry, ONE),
        ("sched_setparam" | "sched_setscheduler", "param") => (Form::Priority, Phase::Entry, ONE),
        ("sched_getparam", "param") => (Form::Priority, Phase::Exit, ONE),
        ("sched_setaffinity", "user_mask_ptr") => (Form::Cpus, Phase::Entry, number("len")?),
        ("sched_getaffinity", "user_mask_ptr") => (Form::Cpus, Phase::Exit, Operand::Context(RESULT_AT)),
        ("copy_file_range", "off_in" | "off_out") | ("splice", "off_in" | "off_out") => {
            (Form::Longs, Phase::Entry, ONE)
        }
        ("getgroups", "grouplist") => (Form::Ints, Phase::Exit, Operand::Context(RESULT_AT)),
        ("setgroups", "grouplist") => (Form::Ints, Phase::Entry, number("gidsetsize")?),
        ("getresuid" | "getresgid", _) => (Form::Ints, Phase::Exit, ONE),
        ("getsockname" | "getpeername", "usockaddr_len") | ("getsockopt", "optlen") => (Form::Ints, Phase::Exit, ONE),
        ("accept" | "accept4", "upeer_addrlen") | ("recvfrom", "addr_len") => (Form::Ints, Phase::Exit, ONE),
        _ => return None,
    };
    let unit = form.unit().max(1);
    let bytes_max = match length {
        Operand::Constant(count) => unit * count as u32,
        _ if matches!(form, Form::SockAddr | Form::Cpus) => ADDRESS_BYTES_MAX,
        _ => unit * ELEMENTS_MAX,
    };
    // (An address has room.)
    let bytes_max = bytes_max.max(8);
    Some((Kind::Bytes { bytes_max, form }, phase, Source::Bytes { address: argument(index), length, unit }))
}
