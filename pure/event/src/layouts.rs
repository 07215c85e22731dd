//! Structures that are shown member by member, as tables of members (include/uapi/, v6.18, x86-64).

use crate::form::{Decoded, SIGNALS, Words, flags, mode, signal};

/// A member of a structure: its name, where it is in bytes, and what it is.
type Member = (&'static str, usize, As);

/// A structure; `has_more`: it has other members, which are not shown.
pub(crate) struct Layout {
    members: &'static [Member],
    has_more: bool,
}

/// What a member is.
#[derive(Clone, Copy)]
enum As {
    /// Numbers of so many bits.
    U16,
    U32,
    U64,
    /// In base 16, or 0.
    Hex64,
    /// An address, or NULL.
    Address,
    /// `unsigned long[3]`
    Three,
    /// Text, with a zero byte at its end.
    Name,
    /// Bits of 32 or 64.
    Bits32(&'static [(u32, &'static str)]),
    Bits64(&'static [(u32, &'static str)]),
    /// Of 64 bits, one that has a name, or in base 16.
    One64(&'static [(u32, &'static str)]),
    /// What kind of file it is, and who may do what with it (16 bits).
    Mode,
    /// A signal, or 0 (64 bits).
    Signal64,
    /// Seconds and the member with the rest.
    Time(&'static str),
    /// `fsid_t`
    Id,
}

/// What may be asked of `statx`.
pub const STATX_FLAGS: [(u32, &str); 16] = [
    (0xfff, "STATX_ALL"),
    (0x7ff, "STATX_BASIC_STATS"),
    (0x1, "STATX_TYPE"),
    (0x2, "STATX_MODE"),
    (0x4, "STATX_NLINK"),
    (0x8, "STATX_UID"),
    (0x10, "STATX_GID"),
    (0x20, "STATX_ATIME"),
    (0x40, "STATX_MTIME"),
    (0x80, "STATX_CTIME"),
    (0x100, "STATX_INO"),
    (0x200, "STATX_SIZE"),
    (0x400, "STATX_BLOCKS"),
    (0x800, "STATX_BTIME"),
    (0x1000, "STATX_MNT_ID"),
    (0x2000, "STATX_DIOALIGN"),
];
const ATTRIBUTES: [(u32, &str); 8] = [
    (0x4, "STATX_ATTR_COMPRESSED"),
    (0x10, "STATX_ATTR_IMMUTABLE"),
    (0x20, "STATX_ATTR_APPEND"),
    (0x40, "STATX_ATTR_NODUMP"),
    (0x800, "STATX_ATTR_ENCRYPTED"),
    (0x1000, "STATX_ATTR_AUTOMOUNT"),
    (0x2000, "STATX_ATTR_MOUNT_ROOT"),
    (0x20_0000, "STATX_ATTR_DAX"),
];
const FILE_SYSTEMS: [(u32, &str); 22] = [
    (0x9fa0, "PROC_SUPER_MAGIC"),
    (0xef53, "EXT2_SUPER_MAGIC"),
    (0x0102_1994, "TMPFS_MAGIC"),
    (0x6265_6572, "SYSFS_MAGIC"),
    (0x6462_6720, "DEBUGFS_MAGIC"),
    (0x7472_6163, "TRACEFS_MAGIC"),
    (0x7363_6673, "SECURITYFS_MAGIC"),
    (0xf97c_ff8c, "SELINUX_MAGIC"),
    (0x27_e0eb, "CGROUP_SUPER_MAGIC"),
    (0x6367_7270, "CGROUP2_SUPER_MAGIC"),
    (0x9123_683e, "BTRFS_SUPER_MAGIC"),
    (0x5846_5342, "XFS_SUPER_MAGIC"),
    (0x794c_7630, "OVERLAYFS_SUPER_MAGIC"),
    (0x6969, "NFS_SUPER_MAGIC"),
    (0x4d44, "MSDOS_SUPER_MAGIC"),
    (0x9660, "ISOFS_SUPER_MAGIC"),
    (0x7371_7368, "SQUASHFS_MAGIC"),
    (0x5346_544e, "NTFS_SB_MAGIC"),
    (0x6573_5546, "FUSE_SUPER_MAGIC"),
    (0xcafe_4a11, "BPF_FS_MAGIC"),
    (0x9584_58f6, "HUGETLBFS_MAGIC"),
    (0x1cd1, "DEVPTS_SUPER_MAGIC"),
];
const MOUNTED: [(u32, &str); 12] = [
    (0x20, "ST_VALID"),
    (0x1, "ST_RDONLY"),
    (0x2, "ST_NOSUID"),
    (0x4, "ST_NODEV"),
    (0x8, "ST_NOEXEC"),
    (0x10, "ST_SYNCHRONOUS"),
    (0x40, "ST_MANDLOCK"),
    (0x80, "ST_WRITE"),
    (0x400, "ST_NOATIME"),
    (0x800, "ST_NODIRATIME"),
    (0x1000, "ST_RELATIME"),
    (0x2000, "ST_NOSYMFOLLOW"),
];
const STACK: [(u32, &str); 3] = [(0x1, "SS_ONSTACK"), (0x2, "SS_DISABLE"), (0x8000_0000, "SS_AUTODISARM")];
/// Flags of `clone` that are in a word of 32 bits.
pub const CLONE_FLAGS: [(u32, &str); 24] = [
    (0x100, "CLONE_VM"),
    (0x200, "CLONE_FS"),
    (0x400, "CLONE_FILES"),
    (0x800, "CLONE_SIGHAND"),
    (0x1000, "CLONE_PIDFD"),
    (0x2000, "CLONE_PTRACE"),
    (0x4000, "CLONE_VFORK"),
    (0x8000, "CLONE_PARENT"),
    (0x1_0000, "CLONE_THREAD"),
    (0x2_0000, "CLONE_NEWNS"),
    (0x4_0000, "CLONE_SYSVSEM"),
    (0x8_0000, "CLONE_SETTLS"),
    (0x10_0000, "CLONE_PARENT_SETTID"),
    (0x20_0000, "CLONE_CHILD_CLEARTID"),
    (0x40_0000, "CLONE_DETACHED"),
    (0x80_0000, "CLONE_UNTRACED"),
    (0x100_0000, "CLONE_CHILD_SETTID"),
    (0x200_0000, "CLONE_NEWCGROUP"),
    (0x400_0000, "CLONE_NEWUTS"),
    (0x800_0000, "CLONE_NEWIPC"),
    (0x1000_0000, "CLONE_NEWUSER"),
    (0x2000_0000, "CLONE_NEWPID"),
    (0x4000_0000, "CLONE_NEWNET"),
    (0x8000_0000, "CLONE_IO"),
];

/// `struct statx`
pub(crate) const STATX_LAYOUT: Layout = Layout {
    members: &[
        ("stx_mask", 0, As::Bits32(&STATX_FLAGS)),
        ("stx_attributes", 8, As::Bits64(&ATTRIBUTES)),
        ("stx_mode", 28, As::Mode),
        ("stx_size", 40, As::U64),
    ],
    has_more: true,
};
/// `struct statfs`
pub(crate) const STATFS: Layout = Layout {
    members: &[
        ("f_type", 0, As::One64(&FILE_SYSTEMS)),
        ("f_bsize", 8, As::U64),
        ("f_blocks", 16, As::U64),
        ("f_bfree", 24, As::U64),
        ("f_bavail", 32, As::U64),
        ("f_files", 40, As::U64),
        ("f_ffree", 48, As::U64),
        ("f_fsid", 56, As::Id),
        ("f_namelen", 64, As::U64),
        ("f_frsize", 72, As::U64),
        ("f_flags", 80, As::Bits64(&MOUNTED)),
    ],
    has_more: false,
};
/// `struct rusage`
pub(crate) const USAGE: Layout = Layout {
    members: &[("ru_utime", 0, As::Time("tv_usec")), ("ru_stime", 16, As::Time("tv_usec"))],
    has_more: true,
};
/// The first members of `struct new_utsname`.
pub(crate) const NAMES: Layout =
    Layout { members: &[("sysname", 0, As::Name), ("nodename", 65, As::Name)], has_more: true };
/// `struct sysinfo`
pub(crate) const SYSTEM: Layout = Layout {
    members: &[
        ("uptime", 0, As::U64),
        ("loads", 8, As::Three),
        ("totalram", 32, As::U64),
        ("freeram", 40, As::U64),
        ("sharedram", 48, As::U64),
        ("bufferram", 56, As::U64),
        ("totalswap", 64, As::U64),
        ("freeswap", 72, As::U64),
        ("procs", 80, As::U16),
        ("totalhigh", 88, As::U64),
        ("freehigh", 96, As::U64),
        ("mem_unit", 104, As::U32),
    ],
    has_more: false,
};
/// `struct itimerval`
pub(crate) const INTERVAL_US: Layout = Layout {
    members: &[("it_interval", 0, As::Time("tv_usec")), ("it_value", 16, As::Time("tv_usec"))],
    has_more: false,
};
/// `struct itimerspec`
pub(crate) const INTERVAL_NS: Layout = Layout {
    members: &[("it_interval", 0, As::Time("tv_nsec")), ("it_value", 16, As::Time("tv_nsec"))],
    has_more: false,
};
/// `stack_t`
pub(crate) const STACK_LAYOUT: Layout = Layout {
    members: &[("ss_sp", 0, As::Address), ("ss_flags", 8, As::Bits32(&STACK)), ("ss_size", 16, As::U64)],
    has_more: false,
};
/// The first members of `struct clone_args`.
pub(crate) const CLONE_ARGUMENTS: Layout = Layout {
    members: &[
        ("flags", 0, As::Bits64(&CLONE_FLAGS)),
        ("child_tid", 16, As::Address),
        ("parent_tid", 24, As::Address),
        ("exit_signal", 32, As::Signal64),
        ("stack", 40, As::Address),
        ("stack_size", 48, As::Hex64),
        ("tls", 56, As::Address),
    ],
    has_more: false,
};
/// What a child's `siginfo_t` says of it, as `waitid` writes it.
pub(crate) fn child(words: &Words<'_>) -> Option<Decoded> {
    const CODES: [&str; 6] =
        ["CLD_EXITED", "CLD_KILLED", "CLD_DUMPED", "CLD_TRAPPED", "CLD_STOPPED", "CLD_CONTINUED"];
    const EXITED: u32 = 1;
    let (number, code, status) = (words.u32(0)?, words.u32(8)?, words.u32(24)?);
    if number == 0 {
        return Some(Decoded::Members(vec![], false));
    }
    let known = CODES.get((code as usize).wrapping_sub(1));
    let code_name = known.map_or_else(|| Decoded::Number(code.into()), |name| Decoded::Word((*name).to_owned()));
    let word = |number: u32| Decoded::Word(format!("SIG{}", signal(number)));
    let status = if code == EXITED { Decoded::Number((status as i32).into()) } else { word(status) };
    let members = vec![
        ("si_signo", word(number)),
        ("si_code", code_name),
        ("si_pid", words.i32(16)?),
        ("si_uid", words.i32(20)?),
        ("si_status", status),
        ("si_utime", words.i64(32)?),
        ("si_stime", words.i64(40)?),
    ];
    Some(Decoded::Members(members, false))
}

/// The CPUs of a set.
pub(crate) fn cpus(set: &[u8]) -> Decoded {
    let bits = set
        .iter()
        .enumerate()
        .flat_map(|(at, byte)| (0..8).filter_map(move |bit| (byte >> bit & 1 != 0).then_some(at * 8 + bit)));
    Decoded::Signals(false, bits.map(|cpu| Decoded::Number(cpu as i128)).collect())
}

impl Layout {
    pub(crate) fn decode(&self, words: &Words<'_>) -> Option<Decoded> {
        let members = self.members.iter().map(|(name, at, of)| Some((*name, of.decode(words, *at)?)));
        Some(Decoded::Members(members.collect::<Option<_>>()?, self.has_more))
    }
}

impl As {
    fn decode(self, words: &Words<'_>, at: usize) -> Option<Decoded> {
        let number = |number: u64| Decoded::Number(number.into());
        let hex = |number: u64| Decoded::Word(if number == 0 { "0".to_owned() } else { format!("{number:#x}") });
        Some(match self {
            As::U16 => number(words.u16(at)?.into()),
            As::U32 => number(words.u32(at)?.into()),
            As::U64 => number(words.u64(at)?),
            As::Hex64 => hex(words.u64(at)?),
            As::Address => Decoded::Hex(words.u64(at)?),
            As::Three => {
                Decoded::List((0..3).map(|index| words.u64(at + 8 * index).map(number)).collect::<Option<_>>()?)
            }
            As::Name => {
                const NAME_BYTES: usize = 65;
                let text = words.0.get(at..at + NAME_BYTES)?;
                Decoded::Text(text.iter().copied().take_while(|byte| *byte != 0).collect(), false)
            }
            As::Bits32(names) => flags(words.u32(at)?, names),
            As::Bits64(names) => match words.u64(at)? {
                bits if bits >> 32 == 0 => flags(bits as u32, names),
                bits => hex(bits),
            },
            As::One64(names) => {
                let value = words.u64(at)?;
                let name = names.iter().find(|(known, _)| u64::from(*known) == value);
                name.map_or_else(|| hex(value), |(_, name)| Decoded::Word((*name).to_owned()))
            }
            As::Mode => mode(words.u16(at)?.into()),
            As::Signal64 => match words.u64(at)? {
                known @ 1..=64 if known as usize <= SIGNALS.len() => {
                    Decoded::Word(format!("SIG{}", signal(known as u32)))
                }
                other => number(other),
            },
            As::Time(rest) => Decoded::Members(vec![("tv_sec", words.i64(at)?), (rest, words.i64(at + 8)?)], false),
            As::Id => {
                let parts = vec![hex(words.u32(at)?.into()), hex(words.u32(at + 4)?.into())];
                Decoded::Members(vec![("val", Decoded::List(parts))], false)
            }
        })
    }
}
