//! Commands for objects that ring3 does not have. They are refused, after the kernel's checks of their descriptors: tools use
//! these errors to find out what is supported.

use std::os::fd::AsFd;

use ring3_uapi::Errno;
use ring3_uapi::bpf::cmd;

use super::attr::Attr;
use super::bpf::program_of;
use super::{Caller, refuse};
use crate::loader::objects::Object;

/// What programs are attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A cgroup, by its descriptor.
    Cgroup,
    /// Likewise, and nobody can ask for them.
    CgroupByLsm,
    /// A map of sockets.
    Sockets,
    /// A network namespace.
    Network,
    /// A network device, by its number.
    Device,
    /// By links only, or a remote control.
    Other,
}

/// By `enum bpf_attach_type`. Mirrors kernel/bpf/syscall.c:attach_type_to_prog_type, bpf_prog_detach and bpf_prog_query (v6.18).
fn place(attach_type: u32) -> Option<Place> {
    match attach_type {
        0..=3 | 6 | 8..=15 | 18..=22 | 29..=32 | 34 | 43 | 49..=53 => Some(Place::Cgroup),
        27 => Some(Place::CgroupByLsm),
        4 | 5 | 7 | 38 => Some(Place::Sockets),
        17 | 36 => Some(Place::Network),
        46 | 47 | 54 | 55 => Some(Place::Device),
        16 | 23..=26 | 28 | 37 => Some(Place::Other),
        _ => None,
    }
}

/// What the kernel says of the descriptors of a command that is not supported.
pub(super) fn check(caller: &Caller<'_>, attr: &Attr, command: u32) -> Result<(), Errno> {
    /// `enum bpf_stream_id`
    const BPF_STDOUT: u32 = 1;
    const BPF_STDERR: u32 = 2;
    let (target, program, place) = (attr.i32(0), attr.i32(4), place(attr.u32(8)));
    match command {
        cmd::PROG_ATTACH => place.map_or(Ok(()), |_| program_of(caller, program).map(drop)),
        cmd::PROG_DETACH => match place {
            Some(Place::Cgroup | Place::CgroupByLsm) => check_cgroup(caller, target),
            Some(Place::Sockets) => caller.fd(target).map(drop),
            Some(Place::Device) if program != 0 => program_of(caller, program).map(drop),
            _ => Ok(()),
        },
        cmd::PROG_QUERY => check_query(caller, target, attr.u32(4)),
        cmd::LINK_UPDATE | cmd::ITER_CREATE => caller.fd(attr.i32(0)).map(drop),
        cmd::TOKEN_CREATE => caller.fd(attr.i32(4)).map(drop),
        cmd::PROG_STREAM_READ_BY_FD => {
            let known = [BPF_STDOUT, BPF_STDERR].contains(&attr.u32(12));
            program_of(caller, attr.i32(16)).and(if known { Ok(()) } else { Err(Errno::ENOENT) })
        }
        _ => Ok(()),
    }
}

fn check_query(caller: &Caller<'_>, target: i32, attach_type: u32) -> Result<(), Errno> {
    if !caller.rights()?.may_administer_networks() {
        return Err(refuse(Errno::EPERM, "BPF_PROG_QUERY without CAP_NET_ADMIN"));
    }
    match place(attach_type) {
        Some(Place::Cgroup) => check_cgroup(caller, target),
        Some(Place::Network) => caller.fd(target).map(drop),
        Some(Place::Sockets) => match caller.object(target)? {
            Some(Object::Map(_)) => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Mirrors kernel/cgroup/cgroup.c:cgroup_get_from_fd.
fn check_cgroup(caller: &Caller<'_>, fd: i32) -> Result<(), Errno> {
    /// `CGROUP2_SUPER_MAGIC`
    const CGROUPS: i64 = 0x6367_7270;
    let copy = caller.fd(fd)?;
    let is_cgroup = rustix::fs::fstatfs(copy.as_fd()).is_ok_and(|stat| stat.f_type == CGROUPS);
    if is_cgroup { Ok(()) } else { Err(Errno::EBADF) }
}
