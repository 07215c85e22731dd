//! System calls as events: what their parameters are, and where it comes from.
//!
//! The kernel's table has types and names of parameters as C has them (`ring3_uapi::syscalls`); what a pointer leads to follows
//! from type and name, with a few exceptions that this module lists. Structures are in `structures.rs`.

use ring3_event::{EventType, Field, Form, Kind, Phase, Show, TEXT_BYTES_MAX};
use ring3_uapi::syscalls::{Syscall, TABLE};

use crate::groups;
use crate::names::SHOWS;
use crate::{Operand, Recipe, Source, structures};

/// The provider of these events.
pub const PROVIDER: &str = "syscalls";
/// The name of the field with the result.
pub const RESULT: &str = "ret";
/// The name of the field with the duration, in nanoseconds.
pub const DURATION: &str = "dur";
/// Where the context of `sys_exit_*` has the result (`struct syscall_trace_exit`).
pub(crate) const RESULT_AT: i16 = 16;

/// The bytes of a buffer that are recorded at most.
pub const BYTES_MAX_DEFAULT: u32 = 32;

/// The recipe of a system call's events; `bytes_max` of each buffer are recorded.
pub fn recipe(call: &Syscall, bytes_max: u32) -> Recipe {
    let parameters: Vec<Parameter<'_>> = call.parameters().map(Parameter::of).collect();
    let mut fields = vec![];
    let mut sources = vec![];
    let mut add = |name: &str, kind: Kind, phase: Phase, source: Source| {
        fields.push(Field { name: name.to_owned(), kind, phase });
        sources.push(source);
    };
    for (index, parameter) in parameters.iter().enumerate() {
        let word = argument(index);
        let name = parameter.name;
        if parameter.is_text() {
            let kind = Kind::Text { bytes_max: TEXT_BYTES_MAX, path: parameter.is_path() };
            add(name, kind, Phase::Entry, Source::Text(word));
        } else if let Some((phase, length)) = buffer(call, &parameters, index) {
            let kind = match call.name {
                "getrandom" => Kind::Bytes { bytes_max, form: Form::Random },
                // (A number has room, however little of data is wanted.)
                "setsockopt" | "getsockopt" => Kind::Bytes { bytes_max: bytes_max.max(8), form: Form::OptionValue },
                _ => Kind::data(bytes_max),
            };
            add(name, kind, phase, Source::Bytes { address: word, length, unit: 1 });
        } else if let Some((kind, phase, source)) = structures::of(call, &parameters, index, bytes_max) {
            add(name, kind, phase, source);
        } else {
            add(name, parameter.number(call.name), Phase::Entry, Source::Number(word));
        }
    }
    if !never_returns(call) {
        let result = Kind::Int { bytes: 8, signed: true, show: Show::Result };
        add(RESULT, result, Phase::Exit, Source::Number(Operand::Context(RESULT_AT)));
        let duration = Kind::Int { bytes: 8, signed: false, show: Show::Nanoseconds };
        add(DURATION, duration, Phase::Exit, Source::Duration);
    }
    let of = EventType { id: call.number, provider: PROVIDER.to_owned(), name: shown_name(call).to_owned(), fields };
    Recipe { of, sources }
}

/// The system calls with a name: people's names, the kernel's tracepoints' names, and groups as strace has them (`%file`,
/// `%desc`, `%network`, `%process`, `%memory`, `%signal`); `None`: there is no such name.
pub fn named(name: &str) -> Option<Vec<&'static Syscall>> {
    let chosen: Vec<&Syscall> = match name.strip_prefix('%') {
        Some(group) => TABLE.iter().filter(|call| groups::contains(group, call)).collect(),
        None => TABLE.iter().filter(|call| call.name == name || shown_name(call) == name).collect(),
    };
    (!chosen.is_empty()).then_some(chosen)
}

/// The name that people know: the tracepoint of `stat` is `sys_enter_newstat`.
pub fn shown_name(call: &Syscall) -> &'static str {
    match call.name {
        "newstat" => "stat",
        "newfstat" => "fstat",
        "newlstat" => "lstat",
        "newuname" => "uname",
        "sendfile64" => "sendfile",
        "umount" => "umount2",
        name => name,
    }
}

/// Whether its end is never seen: the thread is gone, or its registers are others.
pub fn never_returns(call: &Syscall) -> bool {
    matches!(call.name, "exit" | "exit_group" | "rt_sigreturn")
}

pub(crate) fn argument(index: usize) -> Operand {
    Operand::Argument(index as u8)
}

/// Whether a parameter leads to bytes whose number another one, or the result, has.
fn buffer(call: &Syscall, parameters: &[Parameter<'_>], index: usize) -> Option<(Phase, Operand)> {
    const RESULT: Operand = Operand::Context(RESULT_AT);
    let named = |name: &str| parameters.iter().position(|parameter| parameter.name == name).map(argument);
    let (phase, length) = match (call.name, parameters[index].name) {
        ("write" | "pwrite64", "buf") => (Phase::Entry, named("count")?),
        ("sendto", "buff") => (Phase::Entry, named("len")?),
        ("setsockopt", "optval") => (Phase::Entry, named("optlen")?),
        ("getsockopt", "optval") => {
            let length = parameters.iter().position(|parameter| parameter.name == "optlen")?;
            (Phase::Exit, Operand::Pointed(length as u8))
        }
        ("mq_timedsend", "u_msg_ptr") => (Phase::Entry, named("msg_len")?),
        ("setxattr" | "lsetxattr" | "fsetxattr", "value") => (Phase::Entry, named("size")?),
        ("sethostname" | "setdomainname", "name") => (Phase::Entry, named("len")?),
        ("add_key", "_payload") => (Phase::Entry, named("plen")?),
        ("read" | "pread64" | "readlink" | "readlinkat" | "getcwd", "buf") => (Phase::Exit, RESULT),
        ("recvfrom" | "getrandom", "ubuf") => (Phase::Exit, RESULT),
        ("mq_timedreceive", "u_msg_ptr") => (Phase::Exit, RESULT),
        ("getxattr" | "lgetxattr" | "fgetxattr", "value") => (Phase::Exit, RESULT),
        ("listxattr" | "llistxattr" | "flistxattr", "list") => (Phase::Exit, RESULT),
        _ => return None,
    };
    Some((phase, length))
}

/// A parameter.
pub(crate) struct Parameter<'a> {
    of: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> Parameter<'a> {
    pub(crate) fn of(text: &'a str) -> Parameter<'a> {
        let (of, name) = text.rsplit_once(' ').unwrap_or(("", text));
        Parameter { of: of.strip_prefix("const ").unwrap_or(of), name: name.trim_start_matches('*') }
    }

    fn is_pointer(&self) -> bool {
        self.of.contains('*') || matches!(self.of, "cap_user_header_t" | "cap_user_data_t")
    }

    fn is_text(&self) -> bool {
        let others = ["buf", "u_msg_ptr", "optval", "value", "list", "shmaddr", "cmdline_ptr", "ubuf"];
        self.of == "char *" && !others.contains(&self.name) && !self.name.is_empty()
    }

    pub(crate) fn is_path(&self) -> bool {
        let of_files = [
            "filename",
            "pathname",
            "path",
            "oldname",
            "newname",
            "dev_name",
            "dir_name",
            "new_root",
            "put_old",
            "specialfile",
            "special",
            "from_pathname",
            "to_pathname",
        ];
        self.is_text() && of_files.contains(&self.name)
    }

    pub(crate) fn is_descriptor(&self) -> bool {
        let names = [
            "fd",
            "dfd",
            "olddfd",
            "newdfd",
            "oldfd",
            "newfd",
            "fildes",
            "epfd",
            "out_fd",
            "in_fd",
            "fd_in",
            "fd_out",
            "fdin",
            "fdout",
            "ufd",
            "pidfd",
            "mqdes",
            "group_fd",
            "from_dfd",
            "to_dfd",
            "fs_fd",
            "fanotify_fd",
            "mountdirfd",
            "ruleset_fd",
            "kernel_fd",
            "initrd_fd",
        ];
        !self.is_pointer() && names.contains(&self.name)
    }

    /// What a number is, in a system call.
    fn number(&self, call: &str) -> Kind {
        if self.is_pointer() {
            return Kind::Int { bytes: 8, signed: false, show: Show::Pointer };
        }
        let (bytes, signed) = match self.of {
            // (-1 means "leave it" to chown and its kin.)
            "uid_t" | "gid_t" | "int" | "pid_t" | "clockid_t" | "key_serial_t" | "mqd_t" | "__s32" | "key_t"
            | "timer_t" | "rwf_t" => (4, true),
            "unsigned int" | "unsigned" | "u32" | "__u32" | "qid_t" => (4, false),
            "umode_t" => (2, false),
            "long" | "off_t" | "loff_t" => (8, true),
            _ if self.of.starts_with("enum ") => (4, false),
            _ => (8, false),
        };
        if self.is_descriptor() {
            // (`mmap` declares it `unsigned long`; -1 is what people write.)
            return Kind::Int { bytes: 4, signed: true, show: Show::Descriptor };
        }
        Kind::Int { bytes, signed, show: self.show(call) }
    }

    fn show(&self, call: &str) -> Show {
        let of = &*SHOWS;
        let names = match (call, self.name) {
            ("open" | "openat" | "open_by_handle_at", "flags") | ("mq_open", "oflag") => &of.open,
            ("pipe2" | "dup3", "flags") => &of.descriptor,
            ("epoll_create1", "flags") => &of.epoll,
            ("eventfd2", "flags") => &of.eventfd,
            ("inotify_init1", "flags") => &of.inotify,
            ("inotify_add_watch", "mask") => &of.watch,
            ("timerfd_create", "flags") => &of.timerfd,
            ("timerfd_settime", "flags") => &of.timer,
            ("timer_settime" | "clock_nanosleep", "flags") => &of.clock_flags,
            ("signalfd4", "flags") => &of.signalfd,
            ("statx", "flags") => &of.statx,
            ("statx", "mask") => &of.statx_mask,
            ("unlinkat", "flag") => &of.removal,
            ("fadvise64", "advice") => &of.advice,
            ("msync", "flags") => &of.sync,
            ("mlockall", "flags") => &of.lock_all,
            ("memfd_create", "flags") => &of.memfd,
            ("fallocate", "mode") => &of.fallocate,
            ("close_range", "flags") => &of.close_range,
            ("splice" | "tee" | "vmsplice", "flags") => &of.splice,
            ("sync_file_range", "flags") => &of.sync_range,
            ("preadv2" | "pwritev2", "flags") => &of.read_write,
            ("setxattr" | "lsetxattr" | "fsetxattr", "flags") => &of.attribute,
            ("umount", "flags") => &of.unmount,
            ("mount", "flags") => &of.mount,
            ("getpriority" | "setpriority", "which") => &of.priority,
            ("getitimer" | "setitimer", "which") => &of.interval,
            ("sched_setscheduler", "policy") => &of.policy,
            ("kcmp", "type") => &of.compared,
            ("prctl", "option") => &of.prctl,
            ("ioctl", "cmd") => &of.ioctl,
            ("mmap" | "mprotect" | "pkey_mprotect", "prot") => &of.protection,
            ("mmap", "flags") => &of.map,
            ("mremap", "flags") => &of.mremap,
            ("access" | "faccessat" | "faccessat2", "mode") => &of.access,
            ("clone", "clone_flags") | ("unshare", "unshare_flags") => &of.clone,
            ("lseek", "whence") => &of.whence,
            ("rt_sigprocmask", "how") => &of.mask_how,
            ("mmap", "off") | ("rseq", "rseq_len" | "sig") => return Show::Hex,
            (_, "sig") => &of.signal,
            ("socket" | "socketpair", "family") => &of.family,
            ("socket" | "socketpair", "type") => &of.socket_type,
            ("accept4", "flags") => &of.nonblocking,
            ("shutdown", "how") => &of.shutdown,
            ("sendto" | "recvfrom" | "sendmsg" | "recvmsg" | "sendmmsg" | "recvmmsg", "flags") => &of.message,
            ("setsockopt" | "getsockopt", "level") => &of.level,
            ("fcntl", "cmd") => &of.fcntl,
            ("flock", "cmd") => &of.lock,
            ("wait4" | "waitid", "options") => &of.wait,
            ("waitid", "which") => &of.wait_which,
            ("futex", "op") => &of.futex_op,
            ("epoll_ctl", "op") => &of.epoll_op,
            ("madvise" | "process_madvise", "behavior") => &of.madvise,
            ("prlimit64" | "getrlimit" | "setrlimit", "resource") => &of.resource,
            (_, "which_clock" | "clockid" | "clock_id") => &of.clock,
            ("arch_prctl", "option") => &of.arch_prctl,
            ("getrandom", "flags") => &of.random,
            ("renameat2", "flags") => &of.rename,
            ("getrusage", "who") => &of.rusage,
            (
                "newfstatat" | "unlinkat" | "linkat" | "fchownat" | "faccessat2" | "utimensat" | "statx" | "execveat",
                "flag" | "flags",
            ) => &of.at,
            _ => return self.plain_show(),
        };
        names.clone()
    }

    fn plain_show(&self) -> Show {
        match (self.of, self.name) {
            ("umode_t", _) | (_, "mask") => Show::Octal,
            (_, "addr" | "start" | "brk" | "new_addr" | "newsp" | "tls") => Show::Pointer,
            // (Most commands of `ioctl` have an address.)
            ("unsigned long", "arg") => Show::Pointer,
            (_, "arg" | "arg2" | "arg3" | "arg4" | "arg5") => Show::Hex,
            (_, "flags" | "flag" | "cmd") => Show::Hex,
            _ => Show::Decimal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Recipe {
        recipe(named(name).expect("it is known")[0], BYTES_MAX_DEFAULT)
    }

    #[test]
    fn paths_buffers_and_descriptors_are_recognised() {
        let openat = of("openat");
        let names: Vec<&str> = openat.of.fields.iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["dfd", "filename", "flags", "mode", "ret", "dur"]);
        assert_eq!(openat.of.fields[1].kind, Kind::Text { bytes_max: TEXT_BYTES_MAX, path: true });
        assert_eq!(openat.sources[1], Source::Text(Operand::Argument(1)));
        let read = of("read");
        assert_eq!(read.of.fields[1].phase, Phase::Exit);
        let length = Operand::Context(RESULT_AT);
        assert_eq!(read.sources[1], Source::Bytes { address: Operand::Argument(1), length, unit: 1 });
        assert_eq!(of("exit_group").of.fields.len(), 1);
    }

    #[test]
    fn every_call_has_a_recipe_with_distinct_names() {
        for call in TABLE {
            let recipe = recipe(call, BYTES_MAX_DEFAULT);
            let mut names: Vec<&str> = recipe.of.fields.iter().map(|field| &*field.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), recipe.of.fields.len(), "{}", call.name);
            assert_eq!(recipe.sources.len(), recipe.of.fields.len());
        }
    }

    #[test]
    fn groups_are_strace_s() {
        let has = |group: &str, name: &str| named(group).expect("a group").iter().any(|call| call.name == name);
        assert!(has("%file", "openat") && has("%file", "execve") && !has("%file", "read"));
        assert!(has("%desc", "read") && has("%desc", "mmap") && !has("%desc", "getpid"));
        assert!(has("%network", "connect") && has("%process", "execve") && has("%memory", "mmap"));
        assert_eq!(named("%nothing"), None);
        assert_eq!(named("nothing"), None);
        assert_eq!(named("stat").map(|calls| calls[0].number), Some(4));
    }
}
