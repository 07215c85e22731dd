//! `union bpf_attr` as bytes: fields by offset, unknown tails refused as the kernel does.

use ring3_uapi::Errno;

/// Bytes of the largest attribute that is understood (kernel 6.18).
const KNOWN_BYTES: usize = 168;
/// `PAGE_SIZE`, the kernel's limit.
const BYTES_MAX: usize = 4096;

/// The attribute of a call, zero-filled to what is known.
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
        if bytes.iter().skip(KNOWN_BYTES).any(|byte| *byte != 0) {
            return Err(Errno::E2BIG);
        }
        bytes.resize(KNOWN_BYTES, 0);
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

    /// `EINVAL` if a byte from `offset` on is not zero. Mirrors `CHECK_ATTR`.
    pub(super) fn zero_from(&self, offset: usize) -> Result<(), Errno> {
        if self.bytes[offset..].iter().any(|byte| *byte != 0) { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// An object's name: letters, digits, `_` and `.`, ended by NUL. Mirrors kernel/bpf/syscall.c:bpf_obj_name_cpy.
    pub(super) fn name(&self, offset: usize) -> Result<String, Errno> {
        const NAME_BYTES: usize = 16;
        let bytes = &self.bytes[offset..offset + NAME_BYTES];
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
        let name = std::str::from_utf8(&bytes[..end]).map_err(|_| Errno::EINVAL)?;
        let good = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if good { Ok(name.to_owned()) } else { Err(Errno::EINVAL) }
    }
}
