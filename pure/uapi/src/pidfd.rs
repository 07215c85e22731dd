//! What a pidfd tells of its process (`linux/pidfd.h`).

/// `PIDFD_THREAD`: a flag of pidfd_open(2).
pub const PIDFD_THREAD: u64 = 0o200;
/// `PIDFD_GET_INFO`: a request of ioctl(2), of Linux 6.13 and later.
pub const PIDFD_GET_INFO: u64 = 0xc040_ff0b;
/// `PIDFD_INFO_CGROUPID`
pub const PIDFD_INFO_CGROUPID: u64 = 1 << 2;

/// `PIDFD_INFO_EXIT`, of Linux 6.15 and later.
pub const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info`, as it was first (`PIDFD_INFO_SIZE_VER0`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PidfdInfo {
    /// `PIDFD_INFO_*`: what is asked for, and then what was told.
    pub mask: u64,
    /// The id of its cgroup of version 2.
    pub cgroupid: u64,
    /// Process ids, users and groups.
    pub ids: [u32; 11],
    /// As wait(2) tells it.
    pub exit_code: u32,
}

const _: () = assert!(size_of::<PidfdInfo>() == (PIDFD_GET_INFO >> 16 & 0x3fff) as usize);
