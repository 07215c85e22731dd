//! `union bpf_attr` as bytes: fields by offset, unknown tails refused as the kernel does.

use ring3_uapi::Errno;
use ring3_uapi::attr::{ATTR_BYTES, NAME_BYTES, last_field_end};

/// `PAGE_SIZE`, the kernel's limit.
pub(super) const BYTES_MAX: usize = 4096;

/// The attribute of a call, zero-filled to what is known.
#[derive(Clone)]
pub(super) struct Attr {
    bytes: Vec<u8>,
    /// Bytes that the caller passed.
    pub(super) passed: usize,
}

impl Attr {
    /// Reads it. Mirrors kernel/bpf/syscall.c:bpf_check_uarg_tail_zero: `E2BIG` for unknown bytes that are not zero.
    pub(super) fn read(size: usize, read: impl FnOnce(usize) -> Result<Vec<u8>, Errno>) -> Result<Attr, Errno> {
        if size > BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let mut bytes = read(size)?;
        if bytes.iter().skip(ATTR_BYTES).any(|byte| *byte != 0) {
            return Err(Errno::E2BIG);
        }
        bytes.resize(ATTR_BYTES, 0);
        Ok(Attr { bytes, passed: size })
    }

    pub(super) fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes[offset..offset + 4].try_into().expect("4 bytes"))
    }

    pub(super) fn i32(&self, offset: usize) -> i32 {
        self.u32(offset) as i32
    }

    pub(super) fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes[offset..offset + 8].try_into().expect("8 bytes"))
    }

    /// `EINVAL` if a byte behind the command's last member is not zero. Mirrors `CHECK_ATTR`.
    pub(super) fn check_tail(&self, command: u32) -> Result<(), Errno> {
        let end = last_field_end(command).ok_or(Errno::EINVAL)?;
        if self.bytes[end..].iter().any(|byte| *byte != 0) { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// An object's name: letters, digits, `_` and `.`, ended by NUL. Mirrors kernel/bpf/syscall.c:bpf_obj_name_cpy.
    pub(super) fn name(&self, offset: usize) -> Result<String, Errno> {
        let bytes = &self.bytes[offset..offset + NAME_BYTES];
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
        let name = std::str::from_utf8(&bytes[..end]).map_err(|_| Errno::EINVAL)?;
        let good = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if good { Ok(name.to_owned()) } else { Err(Errno::EINVAL) }
    }
}
