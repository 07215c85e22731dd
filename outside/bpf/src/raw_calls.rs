//! bpf(2), with the memory that its attribute leads to.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};

use ring3_uapi::attr::{ATTR_BYTES, Field};
use ring3_uapi::perf;

/// `union bpf_attr` of one call. The memory that it leads to lives as long.
pub(crate) struct Attr<'m> {
    command: u32,
    bytes: [u8; ATTR_BYTES],
    kept: Vec<Vec<u8>>,
    memory: PhantomData<&'m [u8]>,
}

impl<'m> Attr<'m> {
    pub(crate) fn new(command: u32) -> Attr<'m> {
        Attr { command, bytes: [0; ATTR_BYTES], kept: vec![], memory: PhantomData }
    }

    /// A member of 4 bytes.
    pub(crate) fn word(&mut self, field: Field, value: u32) -> &mut Attr<'m> {
        self.text(field, &value.to_ne_bytes())
    }

    /// A member of 8 bytes.
    pub(crate) fn long(&mut self, field: Field, value: u64) -> &mut Attr<'m> {
        self.text(field, &value.to_ne_bytes())
    }

    /// A member's bytes; what they do not fill stays 0.
    pub(crate) fn text(&mut self, field: Field, bytes: &[u8]) -> &mut Attr<'m> {
        let room = &mut self.bytes[field.at..field.at + field.bytes];
        room[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// A member that is the address of memory which the call reads.
    pub(crate) fn buffer(&mut self, field: Field, memory: &'m [u8]) -> &mut Attr<'m> {
        self.long(field, memory.as_ptr() as u64)
    }

    /// The same with a copy.
    pub(crate) fn copied(&mut self, field: Field, memory: &[u8]) -> &mut Attr<'m> {
        let copy = memory.to_vec();
        self.long(field, copy.as_ptr() as u64);
        self.kept.push(copy);
        self
    }

    /// A member that is the address of memory which the call writes.
    pub(crate) fn room(&mut self, field: Field, memory: &'m mut [u8]) -> &mut Attr<'m> {
        self.long(field, memory.as_mut_ptr() as u64)
    }

    fn make(&mut self) -> io::Result<i64> {
        // SAFETY: the attribute is of this size; what it leads to was borrowed, or is kept, and each size beside an address is that
        // of its memory (`lib.rs` sets them together).
        let result = unsafe { libc::syscall(libc::SYS_bpf, self.command, self.bytes.as_mut_ptr(), ATTR_BYTES) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// Makes the call.
    pub(crate) fn call(&mut self) -> io::Result<()> {
        self.make().map(drop)
    }

    /// Makes a call that gives a descriptor.
    pub(crate) fn open(&mut self) -> io::Result<OwnedFd> {
        let fd = self.make()?;
        // SAFETY: the call has just made the descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// A member of 4 bytes, as a call has left it.
    pub(crate) fn left(&self, field: Field) -> u32 {
        let bytes = self.bytes[field.at..field.at + 4].try_into().expect("4 bytes");
        u32::from_ne_bytes(bytes)
    }
}

/// perf_event_open(2) for an event in no group. `pid` and `cpu`: -1 for any.
pub(crate) fn open_event(attr: &[u8; perf::ATTR_BYTES], pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let no_group = -1;
    // SAFETY: the attribute is of the size that it says, and other memory that it leads to is only read; the other arguments are numbers.
    let result =
        unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), pid, cpu, no_group, perf::FLAG_FD_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}
