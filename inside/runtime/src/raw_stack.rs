//! `bpf_get_stack`, `bpf_get_stackid` and `bpf_get_task_stack`: the user's stack (`raw_walk.rs`); `bpf_task_pt_regs`: the registers
//! that it is walked from.
//!
//! A probe in the kernel unwinds user stacks by frame pointers only (arch/x86/events/core.c:perf_callchain_user), and
//! so sees less. There are no kernel stacks. At a uprobe, where the registers are the user's, the
//! kernel's answer is an empty one, too. The program of a perf event gets the stacks of the sample, which the kernel has unwound.

use ring3_layout::control::{
    ATTACHMENT_ALONE, ATTACHMENT_KPROBE, ATTACHMENT_RAW, ATTACHMENT_TASK_EVENT, ATTACHMENT_TRACEPOINT, Attachment,
    HOOK_AT_ENTRY, Hook,
};
use ring3_layout::sampled::Sampled;
use ring3_layout::thread::ThreadBlock;
use ring3_maps::Map;
use ring3_uapi::Errno;
use ring3_uapi::flags::{
    BPF_F_FAST_STACK_CMP, BPF_F_REUSE_STACKID, BPF_F_SKIP_FIELD_MASK, BPF_F_USER_BUILD_ID, BPF_F_USER_STACK,
    STACK_BUILD_ID_BYTES, STACK_BUILD_ID_IP, STACK_BUILD_ID_IP_AT, STACK_FRAMES_MAX,
};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_helpers::{answer, block, context, map_at};
use crate::raw_memory::{clear, read, read_word};
use crate::raw_sampled::sampled;
use crate::raw_task::task_of;
use crate::raw_walk::walk;

/// Whether the return address is at the stack pointer still, as far as the kernel can tell from the first instruction.
/// Mirrors arch/x86/events/core.c:is_uprobe_at_func_entry.
fn is_at_entry(tb: &ThreadBlock, regs: &PtRegs) -> bool {
    // SAFETY: dispatch set the attachment that runs.
    if is_of_call(unsafe { &*(tb.attachment as *const Attachment) }) {
        return false;
    }
    // SAFETY: dispatch set the hook that runs.
    let hook = unsafe { &*(tb.hook as *const Hook) };
    regs.rip == hook.site && hook.flags & HOOK_AT_ENTRY != 0
}

/// Addresses of a stack.
type Addresses = [u64; STACK_FRAMES_MAX];

/// Where the addresses of a stack are.
enum Origin<'t> {
    /// In the process, from these registers on.
    Registers(PtRegs),
    /// In a sample.
    Sampled(&'t Sampled),
}

impl Origin<'_> {
    /// Of the run that is under way.
    fn of(tb: &ThreadBlock, context: u64) -> Result<Origin<'_>, Errno> {
        match sampled(tb) {
            Some(sampled) => Ok(Origin::Sampled(sampled)),
            None => registers(tb, context).map(Origin::Registers),
        }
    }

    /// Whether there may be a stack of the kernel's.
    fn has_kernel_stack(&self) -> bool {
        matches!(self, Origin::Sampled(_))
    }

    /// Whether there is a stack of the user's. (Only kernel threads and idle CPUs have none.)
    fn has_user_stack(&self) -> bool {
        !matches!(self, Origin::Sampled(sampled) if sampled.user_count == 0)
    }

    /// Reads the addresses of a stack, at most `room` behind those that `skip` leaves out; how many there are, with these.
    fn frames(&self, tb: &ThreadBlock, user: bool, (skip, room): (usize, usize), addresses: &mut Addresses) -> usize {
        let limit = (room + skip).min(STACK_FRAMES_MAX);
        let mut put = |number: usize, address| {
            if let Some(place) = number.checked_sub(skip).and_then(|place| addresses.get_mut(place)) {
                *place = address;
            }
        };
        let sampled = match self {
            Origin::Registers(regs) if user => return walk(tb, regs, is_at_entry(tb, regs), limit, put),
            Origin::Registers(_) => return 0,
            Origin::Sampled(sampled) => sampled,
        };
        let (at, count) = match user {
            true => (sampled.user_frames, sampled.user_count),
            false => (sampled.kernel_frames, sampled.kernel_count),
        };
        let count = (count as usize).min(limit);
        for number in 0..count {
            // SAFETY: whoever made the sample vouches for so many addresses there, as long as the run lasts.
            put(number, unsafe { (at as *const u64).wrapping_add(number).read() });
        }
        count
    }
}

/// Mirrors kernel/bpf/stackmap.c:bpf_get_stackid.
fn stack_id(tb: &ThreadBlock, origin: &Origin<'_>, map: &Map, flags: u64) -> Result<u64, Errno> {
    let known = BPF_F_SKIP_FIELD_MASK | BPF_F_USER_STACK | BPF_F_FAST_STACK_CMP | BPF_F_REUSE_STACKID;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let user = flags & BPF_F_USER_STACK != 0;
    if !user && !origin.has_kernel_stack() {
        return Err(Errno::EFAULT);
    }
    let skip = (flags & BPF_F_SKIP_FIELD_MASK) as usize;
    let mut addresses = [0; STACK_FRAMES_MAX];
    let count = origin.frames(tb, user, (skip, map.stack_depth()), &mut addresses);
    let addresses = addresses.get(..count.saturating_sub(skip)).unwrap_or_default();
    map.stack_id(&context(tb), addresses, flags).map(u64::from)
}

/// Bytes of an entry of a stack of so many bytes. Mirrors kernel/bpf/stackmap.c:__bpf_get_stack, as does [`stack`].
fn entry_bytes(bytes: u64, flags: u64) -> Result<u64, Errno> {
    let (user, builds) = (flags & BPF_F_USER_STACK != 0, flags & BPF_F_USER_BUILD_ID != 0);
    let entry_bytes = if builds { STACK_BUILD_ID_BYTES } else { 8 } as u64;
    let known = BPF_F_SKIP_FIELD_MASK | BPF_F_USER_STACK | BPF_F_USER_BUILD_ID;
    if flags & !known != 0 || !user && builds || !bytes.is_multiple_of(entry_bytes) {
        return Err(Errno::EINVAL);
    }
    Ok(entry_bytes)
}

/// Fills `bytes` bytes at `to`, which are zero; how many are addresses.
///
/// # Safety
/// `to` is writable for `bytes` bytes.
unsafe fn stack(tb: &ThreadBlock, origin: &Origin<'_>, to: u64, bytes: u64, flags: u64) -> Result<u64, Errno> {
    let (user, builds) = (flags & BPF_F_USER_STACK != 0, flags & BPF_F_USER_BUILD_ID != 0);
    let entry_bytes = entry_bytes(bytes, flags)?;
    let skip = (flags & BPF_F_SKIP_FIELD_MASK) as usize;
    let room = (bytes / entry_bytes) as usize;
    let mut addresses = [0; STACK_FRAMES_MAX];
    let count = origin.frames(tb, user, (skip, room), &mut addresses).checked_sub(skip).ok_or(Errno::EFAULT)?;
    let (status, address_at) = if builds { (STACK_BUILD_ID_IP, STACK_BUILD_ID_IP_AT) } else { (0, 0) };
    for (entry, address) in addresses.iter().take(count.min(room)).enumerate() {
        let at = to + entry as u64 * entry_bytes;
        // SAFETY: the entry lies in the room, which the caller vouches for.
        unsafe { (at as *mut u32).write_unaligned(status) };
        // SAFETY: as above; an entry has room for its address.
        unsafe { ((at + address_at as u64) as *mut u64).write_unaligned(*address) };
    }
    Ok(count as u64 * entry_bytes)
}

/// Whether it sees the beginnings or the ends of system calls, where `ThreadBlock::hook` says nothing.
fn is_of_call(attachment: &Attachment) -> bool {
    attachment.flags & (ATTACHMENT_RAW | ATTACHMENT_TRACEPOINT) != 0
}

/// The registers that the running program's context is, or begins with the address of. A program that is run by itself has
/// none. (They are read as any memory: what attachment it is a signal handler may have changed that was left by a `longjmp`.)
fn registers(tb: &ThreadBlock, context: u64) -> Result<PtRegs, Errno> {
    let at = |address: u64| -> Result<PtRegs, Errno> {
        let mut regs = PtRegs::default();
        // SAFETY: there is room for them.
        unsafe { read(tb, &raw mut regs as u64, address, size_of::<PtRegs>() as u64) }?;
        Ok(regs)
    };
    // SAFETY: dispatch set the attachment that runs.
    let attachment = unsafe { &*(tb.attachment as *const Attachment) };
    if attachment.flags & ATTACHMENT_ALONE != 0 {
        return Err(Errno::EFAULT);
    }
    if attachment.flags & ATTACHMENT_KPROBE != 0 {
        // The context is the registers at the kernel's function, whose only argument are the thread's.
        return at(at(context)?.rdi);
    }
    if !is_of_call(attachment) {
        return at(context);
    }
    // The context of a system call's program begins with their address; that of a task event's raw tracepoint lies behind it.
    let is_behind = attachment.flags & ATTACHMENT_TASK_EVENT != 0;
    at(read_word(tb, if is_behind { context - size_of::<u64>() as u64 } else { context })?)
}

/// `bpf_get_stackid`
///
/// # Safety
/// Called by a verified program with its context, a stack map and the thread block that it was given.
pub unsafe extern "sysv64" fn get_stackid(regs: u64, map: u64, flags: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    // SAFETY: the verifier proved a map.
    let map = unsafe { map_at(map) };
    answer(map.and_then(|map| stack_id(tb, &Origin::of(tb, regs)?, &map, flags)))
}

/// `bpf_get_stack`
///
/// # Safety
/// Called by a verified program with its context, writable memory and the thread block that it was given.
pub unsafe extern "sysv64" fn get_stack(regs: u64, to: u64, bytes: u64, flags: u64, _: u64, env: u64) -> u64 {
    let bytes = u64::from(bytes as u32);
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let origin = Origin::of(tb, regs);
    // SAFETY: the verifier proved `to` writable for `bytes` bytes.
    unsafe { clear(to, bytes) };
    // SAFETY: as above.
    answer(origin.and_then(|origin| unsafe { stack(tb, &origin, to, bytes, flags) }))
}

/// As [`stack`], of a task: programs hold that of the running thread. Where there is no stack of the kernel's, it answers as a
/// kernel that cannot walk its own (without `CONFIG_STACKTRACE`).
///
/// # Safety
/// `to` is writable for `bytes` bytes, which are zero.
unsafe fn task_stack(tb: &ThreadBlock, task: u64, to: u64, bytes: u64, flags: u64) -> Result<u64, Errno> {
    entry_bytes(bytes, flags)?;
    let user = flags & BPF_F_USER_STACK != 0;
    if task != task_of(tb) {
        return Err(if user { Errno::EOPNOTSUPP } else { Errno::EFAULT });
    }
    let origin = Origin::of(tb, tb.context)?;
    let has_it = if user { origin.has_user_stack() } else { origin.has_kernel_stack() };
    if !has_it {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { stack(tb, &origin, to, bytes, flags) }
}

/// `bpf_get_task_stack`
///
/// # Safety
/// Called by a verified program with a task, writable memory and the thread block that it was given.
pub unsafe extern "sysv64" fn get_task_stack(task: u64, to: u64, bytes: u64, flags: u64, _: u64, env: u64) -> u64 {
    let bytes = u64::from(bytes as u32);
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    // SAFETY: the verifier proved `to` writable for `bytes` bytes.
    unsafe { clear(to, bytes) };
    // SAFETY: as above.
    answer(unsafe { task_stack(tb, task, to, bytes, flags) })
}

/// `bpf_task_pt_regs`: the address of a copy, from which programs load without a check: where the registers themselves are may be
/// gone. All are 0 where none are known.
///
/// # Safety
/// Called by a verified program with a task and the thread block that it was given.
pub unsafe extern "sysv64" fn task_pt_regs(task: u64, _: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let is_known = task == task_of(tb) && sampled(tb).is_none();
    let found = if is_known { registers(tb, tb.context).ok() } else { None };
    tb.task_regs = found.unwrap_or_default();
    &raw const tb.task_regs as u64
}
