//! bpf(2) as it is.

use ring3_uapi::Errno;
use ring3_uapi::attr::{ATTR_BYTES, Field};

#[derive(Clone)]
pub(crate) struct Attr(pub(crate) [u8; ATTR_BYTES]);

impl Attr {
    pub(crate) fn new() -> Attr {
        Attr([0; ATTR_BYTES])
    }

    pub(crate) fn with(mut self, field: Field, value: u64) -> Attr {
        self.0[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
        self
    }

    pub(crate) fn get(&self, field: Field) -> u64 {
        let mut bytes = [0; 8];
        bytes[..field.bytes].copy_from_slice(&self.0[field.at..field.end()]);
        u64::from_ne_bytes(bytes)
    }
}

pub(crate) fn result(value: i64) -> Result<i64, Errno> {
    if value < 0 { Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))) } else { Ok(value) }
}

pub(crate) fn bpf_sized(command: u32, attr: *mut u8, bytes: usize) -> Result<i64, Errno> {
    // SAFETY: bpf(2) reads and writes `bytes` bytes at `attr`; a wrong address is an error that it returns.
    result(unsafe { libc::syscall(libc::SYS_bpf, command, attr, bytes) })
}

pub(crate) fn bpf(command: u32, attr: &mut Attr) -> Result<i64, Errno> {
    bpf_sized(command, attr.0.as_mut_ptr(), ATTR_BYTES)
}

pub(crate) fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>() as u64
}
