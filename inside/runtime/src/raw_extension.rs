//! Extensions: what their results mean, and what they call of their host.
//!
//! A host's function runs on the thread's stack, in the midst of the extension's run, with the guard set. So hooks that it hits are
//! served as those in a signal handler that has interrupted the run (`raw_dispatch::run_guarded`): their programs run, three deep at
//! most.

use core::hint::cold_path;
use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::control::{
    ATTACHMENT_EXTENSION, ATTACHMENT_EXTENSION_SHIFT, Attachment, EXTENSIONS_MAX, EXTENSIONS_OFFSET, Extension, Hook,
    HostSymbol, VERDICT_CONTINUE, VERDICT_RETURN_RESULT,
};
use ring3_layout::region::CONTROL_OFFSET;
use ring3_layout::slice::{self, Slice};
use ring3_layout::thread::{ENDED, ThreadBlock};
use ring3_uapi::Errno;

use crate::raw_clock::monotonic_ns;
use crate::raw_dispatch::miss;
use crate::raw_dynptr::make_dynptr;
use crate::raw_helpers::{answer, block};
use crate::raw_protection;

fn extension(base: u64, attachment: &Attachment) -> Option<&'static Extension> {
    let index = (attachment.flags >> ATTACHMENT_EXTENSION_SHIFT) as usize;
    if attachment.flags & ATTACHMENT_EXTENSION == 0 || index >= EXTENSIONS_MAX {
        return None;
    }
    let table = (base + CONTROL_OFFSET + EXTENSIONS_OFFSET) as *const Extension;
    // SAFETY: the table is mapped with the control page, and the index lies in it; published entries do not change.
    Some(unsafe { &*table.wrapping_add(index) })
}

/// Whether an extension is running.
pub(crate) fn extends(tb: &ThreadBlock) -> bool {
    // SAFETY: the address of the attachment that runs, or 0.
    let attachment = unsafe { (tb.attachment as *const Attachment).as_ref() };
    tb.guard.load(Relaxed) != 0 && attachment.is_some_and(|attachment| attachment.flags & ATTACHMENT_EXTENSION != 0)
}

/// What the function returns because an extension has returned `result`; `None`: what it returns by itself.
pub(crate) fn judge(base: u64, attachment: &Attachment, result: u64) -> Option<u64> {
    let signed = result as i64;
    let verdicts = &extension(base, attachment)?.verdicts;
    let verdict = verdicts.iter().find(|verdict| (verdict.least..=verdict.greatest).contains(&signed))?;
    match verdict.action {
        VERDICT_CONTINUE => None,
        VERDICT_RETURN_RESULT => Some(result),
        _ => Some(verdict.value as u64),
    }
}

/// The symbol that the running extension means by the word that its code has just stored.
fn symbol(tb: &ThreadBlock) -> Option<&'static HostSymbol> {
    // SAFETY: the address of the attachment that runs.
    let attachment = unsafe { &*(tb.attachment as *const Attachment) };
    extension(tb.region_base, attachment)?.symbols.get(tb.call_word as usize)
}

/// When a call of the host's began, and what earlier ones had taken. (The stack keeps it: a call can lead to others.)
#[repr(C)]
pub struct HostTimes {
    began_ns: u64,
    before_ns: u64,
}

/// Where the function is that the running extension is about to call. (Never 0: the verifier knows how many there are.)
///
/// # Safety
/// Called by an extension's program, with the thread block that it was given.
pub unsafe extern "sysv64" fn begin_host_call(env: u64, times: &mut HostTimes) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let began_ns = if has_budget(tb) { monotonic_ns(tb) } else { 0 };
    *times = HostTimes { began_ns, before_ns: tb.host_ns };
    raw_protection::disable_access(tb.region_base);
    symbol(tb).map_or(0, |symbol| symbol.address)
}

/// The called function has returned `result`; returns the same as programs see it, in 64 bits. If the function's contract does not
/// allow the result, the run ends behind the call, as one that has no fuel left. `attachment` and `word` are those of the call.
///
/// # Safety
/// As for [`begin_host_call`].
pub unsafe extern "sysv64" fn end_host_call(
    env: u64,
    result: u64,
    attachment: u64,
    word: u64,
    times: &HostTimes,
) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    (tb.attachment, tb.call_word) = (attachment, word);
    raw_protection::enable_access(tb.region_base);
    if has_budget(tb) {
        tb.host_ns = times.before_ns + monotonic_ns(tb).wrapping_sub(times.began_ns);
    }
    let symbol = symbol(tb);
    let result = symbol.map_or(0, |symbol| extended(result, symbol));
    let is_kept = |symbol: &HostSymbol| (symbol.least..=symbol.greatest).contains(&(result as i64));
    if !symbol.is_some_and(is_kept) {
        cold_path();
        tb.fuel = ENDED;
        // SAFETY: the hook whose programs run.
        miss(tb, unsafe { &*(tb.hook as *const Hook) });
    }
    result
}

/// Whether the extension that runs has a budget of time.
fn has_budget(tb: &ThreadBlock) -> bool {
    // SAFETY: the address of the attachment that runs.
    unsafe { (*(tb.attachment as *const Attachment)).budget_ns != 0 }
}

fn extended(result: u64, symbol: &HostSymbol) -> u64 {
    let (shifted, bits) = (result.wrapping_shl(symbol.unused_bits), symbol.unused_bits);
    if symbol.signed != 0 { (shifted as i64).wrapping_shr(bits) as u64 } else { shifted.wrapping_shr(bits) }
}

/// The address of the variable of the host that the running extension names.
///
/// # Safety
/// As for [`begin_host_call`].
pub unsafe extern "sysv64" fn host_variable(env: u64) -> u64 {
    // SAFETY: this function's contract.
    symbol(unsafe { block(env) }).map_or(0, |symbol| symbol.address)
}

fn length_bytes(slice: Slice) -> usize {
    usize::from(slice.length_bytes).min(size_of::<u64>())
}

/// `ring3_dynptr_from_slice`: a dynamic pointer to what a pointer in a host's object leads to, as many elements as another field of
/// the object says.
///
/// # Safety
/// Called by a verified extension with the address of such a field, room for a dynamic pointer, and the thread block that it was
/// given.
pub unsafe extern "sysv64" fn dynptr_from_slice(field: u64, flags: u64, to: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let slice = slice::unpack(unsafe { block(env) }.call_word);
    let length_at = field.wrapping_add_signed(i64::from(slice.length_at));
    let mut count = 0u64;
    // SAFETY: the verifier proved that the field with the length lies in an object of the host's.
    unsafe { core::ptr::copy(length_at as *const u8, (&raw mut count).cast::<u8>(), length_bytes(slice)) };
    // SAFETY: the verifier proved that the field lies in an object of the host's.
    let data = unsafe { (field as *const u64).read_unaligned() };
    let bytes = match count.checked_mul(u64::from(slice.element_bytes)) {
        _ if flags != 0 => Err(Errno::EINVAL),
        None => Err(Errno::E2BIG),
        Some(1..) if data == 0 => Err(Errno::EFAULT),
        Some(bytes) => Ok(bytes),
    };
    // (Nothing is there, and nothing of it is touched: an empty text often has no address.)
    let data = if data == 0 { field } else { data };
    // SAFETY: this function's contract.
    answer(unsafe { make_dynptr(to, data, bytes, slice.write) })
}
