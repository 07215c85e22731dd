//! `bpf_trace_printk` into the realm's trace ring, and `bpf_snprintf`.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use ring3_layout::realm::{TRACE_ENTRIES, TRACE_TEXT_BYTES};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::Errno;

use crate::format::{Strings, format};
use crate::raw_clock::monotonic_ns;
use crate::raw_dispatch::cpu_of;
use crate::raw_extension::extends;
use crate::raw_helpers::comm;
use crate::raw_kernel::{read_kernel, read_kernel_string};
use crate::raw_memory::{read, read_string};
use crate::raw_request::realm;
use crate::raw_sampled::{sampled, shown_ids};

/// Arguments of one call at most (the kernel: `MAX_BPRINTF_VARARGS`, 12).
const ARGUMENTS_MAX: usize = 12;

/// Where strings are. Of its host an extension has nothing but what its class grants: its own stack and maps it may print.
struct Memory<'t>(&'t ThreadBlock);

impl Strings for Memory<'_> {
    fn string(&self, address: u64, out: &mut [u8]) -> Option<usize> {
        let (to, bytes) = (out.as_mut_ptr() as u64, out.len() as u64);
        let read = match extends(self.0) {
            // SAFETY: `out` is writable for its length.
            true => unsafe { read_kernel_string(self.0, to, address, bytes) },
            // SAFETY: as above.
            false => unsafe { read_string(self.0, to, address, bytes) },
        };
        read.ok().map(|length| length.saturating_sub(1) as usize)
    }

    fn bytes(&self, address: u64, out: &mut [u8]) -> bool {
        let (to, bytes) = (out.as_mut_ptr() as u64, out.len() as u64);
        match extends(self.0) {
            // SAFETY: `out` is writable for its length.
            true => unsafe { read_kernel(self.0, to, address, bytes) }.is_ok(),
            // SAFETY: as above.
            false => unsafe { read(self.0, to, address, bytes) }.is_ok(),
        }
    }
}

/// Formats `text` with `arguments` into `out`; the length without NUL.
pub(crate) fn formatted(tb: &ThreadBlock, out: &mut [u8], text: &[u8], arguments: &[u64]) -> Result<usize, Errno> {
    format(out, text, arguments, &Memory(tb))
}

/// Writes a line; the length of the text, as `bpf_trace_printk` returns it.
pub(crate) fn print(tb: &mut ThreadBlock, text: &[u8], arguments: &[u64]) -> Result<u64, Errno> {
    let mut line = [0u8; TRACE_TEXT_BYTES];
    let length = formatted(tb, &mut line, text, arguments)?;
    let used = length.min(TRACE_TEXT_BYTES);
    let ends = line.get(used.saturating_sub(1)).is_some_and(|byte| *byte == b'\n');
    let shown = if ends && used > 0 { used - 1 } else { used };
    store(tb, &line, shown);
    Ok(length as u64)
}

fn store(tb: &mut ThreadBlock, line: &[u8; TRACE_TEXT_BYTES], bytes: usize) {
    let realm = realm(tb.region_base);
    let number = realm.trace_head.fetch_add(1, AcqRel);
    let Some(entry) = realm.trace.get((number % u64::from(TRACE_ENTRIES)) as usize) else { return };
    entry.sequence.store(number.wrapping_mul(2).wrapping_add(1), Release);
    entry.time_ns.store(monotonic_ns(tb), Relaxed);
    let (ids, name) = (shown_ids(tb), sampled(tb).map_or_else(comm, |sampled| sampled.comm));
    entry.pid.store((ids >> 32) as u32, Relaxed);
    entry.tid.store(ids as u32, Relaxed);
    entry.cpu.store(cpu_of(tb), Relaxed);
    entry.text_bytes.store(bytes as u32, Relaxed);
    for (to, from) in entry.comm.iter().zip(name) {
        to.store(from, Relaxed);
    }
    for (to, chunk) in entry.text.iter().zip(line.chunks_exact(8)) {
        to.store(u64::from_le_bytes(chunk.try_into().unwrap_or_default()), Relaxed);
    }
    entry.sequence.store(number.wrapping_mul(2).wrapping_add(2), Release);
}

/// The arguments of `trace_vprintk` and `snprintf`: `bytes` bytes of words at `data`.
///
/// # Safety
/// The verifier proved that the program may read them.
pub(crate) unsafe fn with_arguments<T>(
    data: u64,
    bytes: u64,
    use_them: impl FnOnce(&[u64]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if !bytes.is_multiple_of(8) || bytes > (ARGUMENTS_MAX * 8) as u64 {
        return Err(Errno::EINVAL);
    }
    let mut words = [0u64; ARGUMENTS_MAX];
    for (index, word) in words.iter_mut().enumerate().take((bytes / 8) as usize) {
        // SAFETY: index < bytes / 8, and the caller passes on the verifier's proof.
        *word = unsafe { (data as *const u64).wrapping_add(index).read_unaligned() };
    }
    use_them(words.get(..(bytes / 8) as usize).unwrap_or_default())
}
