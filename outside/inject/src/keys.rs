//! Protection keys of a stopped process (pkeys(7)).

use std::arch::x86_64::__cpuid_count;

use crate::Error;
use crate::calls::Call;
use crate::proxy;
use crate::raw_ptrace as ptrace;
use crate::stopped::Stopped;

/// `PKEY_DISABLE_ACCESS`, also as a bit of the key's two in PKRU.
const DISABLE_ACCESS: u32 = 1;
/// Bits of PKRU for each key.
const KEY_BITS: u32 = 2;

/// A protection key that was allocated in a process, with access disabled for all of its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionKey(u32);

impl ProtectionKey {
    /// The bit of PKRU that disables access to memory with this key.
    pub fn access_bit(self) -> u32 {
        DISABLE_ACCESS << (KEY_BITS * self.0)
    }

    /// The key of [`ProtectionKey::access_bit`]; `None`: it is that of no key.
    pub fn of_access_bit(bit: u32) -> Option<ProtectionKey> {
        let place = bit.trailing_zeros();
        (bit.is_power_of_two() && place.is_multiple_of(KEY_BITS)).then_some(ProtectionKey(place / KEY_BITS))
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Whether the CPU has protection keys and the kernel uses them (CPUID leaf 7, `OSPKE`).
pub fn has_protection_keys() -> bool {
    const FEATURES: u32 = 7;
    const OSPKE: u32 = 1 << 4;
    __cpuid_count(0, 0).eax >= FEATURES && __cpuid_count(FEATURES, 0).ecx & OSPKE != 0
}

/// PKRU in an XSAVE image in the standard format (Intel SDM volume 1, 13.4), as `NT_X86_XSTATE` has it.
fn pkru(image: &[u8]) -> u32 {
    const PKRU_COMPONENT: u32 = 9;
    const IN_USE_AT: usize = 512;
    let in_use =
        image.get(IN_USE_AT..IN_USE_AT + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let at = __cpuid_count(0xd, PKRU_COMPONENT).ebx as usize;
    // (A component that is not in use has its initial value, which is 0.)
    match image.get(at..at + 4) {
        Some(word) if in_use & (1 << PKRU_COMPONENT) != 0 => u32::from_le_bytes(word.try_into().expect("4 bytes")),
        _ => 0,
    }
}

impl Stopped {
    /// Allocates a protection key in the process (`pkey_alloc`), to which no thread has access.
    ///
    /// # Errors
    /// There are none, or all 15 are in use ([`Error::RemoteCall`], `ENOSPC`); or a thread has enabled access to keys that are not
    /// allocated, or another process traces it ([`Error::Unsupported`]).
    pub fn allocate_key(&mut self) -> Result<ProtectionKey, Error> {
        // (By proxy no filter is suspended, and one may kill for a call that it does not know.)
        if self.threads().iter().any(|tid| proxy::holds(*tid)) {
            return Err(Error::Unsupported { what: "it is traced by another process".to_owned() });
        }
        let args = [0, u64::from(DISABLE_ACCESS), 0, 0, 0, 0];
        let number = self.make(Call { name: "pkey_alloc", number: libc::SYS_pkey_alloc, args })?;
        let key = ProtectionKey(number as u32);
        let open = self.threads().iter().copied().find(|tid| {
            // (The thread that made the call has what the call has given it, or what it had before.)
            !ptrace::vectors(*tid).is_ok_and(|image| pkru(&image) & key.access_bit() != 0)
        });
        match open {
            None => Ok(key),
            Some(tid) => {
                let _ = self.free_key(key);
                let what = format!("thread {tid} has enabled access to protection keys that nobody has allocated");
                Err(Error::Unsupported { what })
            }
        }
    }

    /// Frees a key (`pkey_free`): no memory must have it any more.
    pub fn free_key(&mut self, key: ProtectionKey) -> Result<(), Error> {
        let args = [u64::from(key.0), 0, 0, 0, 0, 0];
        self.make(Call { name: "pkey_free", number: libc::SYS_pkey_free, args }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_a_bit_of_its_own() {
        for number in 0..16 {
            let key = ProtectionKey(number);
            assert_eq!(ProtectionKey::of_access_bit(key.access_bit()), Some(key));
        }
        assert_eq!([0, 2, 3, 5, 8].map(ProtectionKey::of_access_bit), [None; 5]);
    }

    #[test]
    fn a_register_that_is_not_in_use_is_zero() {
        let at = __cpuid_count(0xd, 9).ebx as usize;
        let mut image = vec![0u8; at.max(576) + 8];
        image[at..at + 4].copy_from_slice(&0x5555_5554u32.to_le_bytes());
        assert_eq!(pkru(&image), 0);
        if at != 0 {
            image[512..520].copy_from_slice(&(1u64 << 9).to_le_bytes());
            assert_eq!(pkru(&image), 0x5555_5554);
        }
        assert_eq!(pkru(&[]), 0);
    }
}
