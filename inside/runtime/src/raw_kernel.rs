//! Memory that programs read as the kernel's: their own stack and maps, and objects of tasks that do not exist here.
//!
//! `bpf_get_current_task` returns an address of [`ring3_layout::task`]. A program that reads from it, or from addresses that it
//! finds there, gets what the process may know of itself. Each field is computed when it is read, by system calls. A field that
//! is not in the server's table, or that cannot be found out, reads as unmapped memory.

use core::ptr::copy_nonoverlapping;

use ring3_layout::control::TASK_TABLE_OFFSET;
use ring3_layout::owner;
use ring3_layout::region::CONTROL_OFFSET;
use ring3_layout::sampled::Sampled;
use ring3_layout::task::{Source, TASKS_START, TaskAddress, TaskField, TaskTable, UTS_BYTES};
use ring3_layout::thread::{EXIT_CODE_SET, ThreadBlock};
use ring3_uapi::Errno;
use ring3_uapi::nr;

use crate::raw_clock::{CLOCK_BOOTTIME, CLOCK_MONOTONIC, clock_ns};
use crate::raw_helpers::comm;
use crate::raw_memory::{USER_END, is_program_memory, read, read_string, read_user_string};
use crate::raw_proc::Task;
use crate::raw_sampled::{ids_at_home, of_any, sampled};
use crate::raw_slot::name;
use crate::raw_system::{cpu_number, syscall, syscall0};
use crate::raw_task::task_of;

/// First address of the kernel's half.
const KERNEL_START: u64 = 0xffff_8000_0000_0000;
/// What a program can read behind a `task_struct`'s address that it may load from.
const TASK_BYTES: u64 = 0x4000;
/// Nanoseconds of a tick of `/proc/PID/stat` (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;
/// Clocks that are so near, ns, were never apart.
const APART_NS: u64 = 100_000_000;

const _: () = assert!(TASKS_START >= KERNEL_START);

/// The running thread's `task_struct`.
pub(crate) fn own_task(tb: &ThreadBlock) -> TaskAddress {
    TaskAddress::new(owner::namespace(name(tb.region_base, tb)), ids_at_home(tb) as u32)
}

/// The error for reading what is not kernel memory: some address of the kernel's half, or none of its.
/// Mirrors arch/x86/mm/maccess.c:copy_from_kernel_nofault_allowed.
fn not_kernel_memory(address: u64) -> Errno {
    if address >= KERNEL_START { Errno::EFAULT } else { Errno::ERANGE }
}

/// Copies `bytes` bytes of what is the kernel's to programs.
///
/// # Safety
/// `to` is writable for `bytes` bytes.
pub(crate) unsafe fn read_kernel(tb: &ThreadBlock, to: u64, from: u64, bytes: u64) -> Result<(), Errno> {
    if let Some(at) = of_task(tb, from) {
        // SAFETY: the caller's promise.
        return unsafe { read_task(tb, at, to, bytes) };
    }
    if !is_program_memory(tb, from, bytes) {
        return Err(not_kernel_memory(from));
    }
    // SAFETY: the caller's promise.
    unsafe { read(tb, to, from, bytes) }
}

/// Copies a string of what is the kernel's to programs; as [`read_string`].
///
/// # Safety
/// `to` is writable for `bytes` bytes.
pub(crate) unsafe fn read_kernel_string(tb: &ThreadBlock, to: u64, from: u64, bytes: u64) -> Result<u64, Errno> {
    if let Some(at) = of_task(tb, from) {
        // SAFETY: the caller's promise.
        return unsafe { read_task_string(tb, at, to, bytes) };
    }
    if !is_program_memory(tb, from, 1) {
        return Err(not_kernel_memory(from));
    }
    // SAFETY: the caller's promise.
    unsafe { read_string(tb, to, from, bytes) }
}

/// Copies `bytes` bytes of anything: the address says whose it is. The program's own is user memory here.
///
/// # Safety
/// `to` is writable for `bytes` bytes.
pub(crate) unsafe fn read_any(tb: &mut ThreadBlock, to: u64, from: u64, bytes: u64) -> Result<(), Errno> {
    if let Some(at) = of_task(tb, from) {
        // SAFETY: the caller's promise.
        return unsafe { read_task(tb, at, to, bytes) };
    }
    if from >= USER_END {
        return Err(not_kernel_memory(from));
    }
    // SAFETY: the caller's promise.
    of_any(tb, from, bytes, |tb| unsafe { read(tb, to, from, bytes) })
}

/// Copies a string of anything, as [`read_any`].
///
/// # Safety
/// `to` is writable for `bytes` bytes.
pub(crate) unsafe fn read_any_string(tb: &mut ThreadBlock, to: u64, from: u64, bytes: u64) -> Result<u64, Errno> {
    if let Some(at) = of_task(tb, from) {
        // SAFETY: the caller's promise.
        return unsafe { read_task_string(tb, at, to, bytes) };
    }
    if from >= USER_END {
        return Err(not_kernel_memory(from));
    }
    // SAFETY: the caller's promise.
    of_any(tb, from, 1, |tb| unsafe { read_user_string(tb, to, from, bytes) })
}

/// What an address says of a task's objects, if it is one of those. What `bpf_get_current_task_btf` gives, which is memory,
/// stands for the running thread's.
fn of_task(tb: &ThreadBlock, address: u64) -> Option<TaskAddress> {
    let behind = address.wrapping_sub(task_of(tb));
    if behind < TASK_BYTES {
        return Some(TaskAddress { place: behind as u32, ..own_task(tb) });
    }
    TaskAddress::of(address)
}

/// Copies `bytes` bytes of a task's objects, all of which are in known fields.
///
/// # Safety
/// `to` is writable for `bytes` bytes.
unsafe fn read_task(tb: &ThreadBlock, at: TaskAddress, to: u64, bytes: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let mut value = [0; UTS_BYTES];
        let found = bytes_at(tb, at, done, &mut value).ok_or(Errno::EFAULT)?;
        let count = (found.len() as u64).min(bytes - done);
        // SAFETY: done + count <= bytes, which the caller vouches for; `found` has `count` bytes.
        unsafe { copy_nonoverlapping(found.as_ptr(), (to + done) as *mut u8, count as usize) };
        done += count;
    }
    Ok(())
}

/// Copies a string of a task's objects with its NUL, at most `bytes` bytes; as [`read_string`].
///
/// # Safety
/// `to` is writable for `bytes` bytes.
unsafe fn read_task_string(tb: &ThreadBlock, at: TaskAddress, to: u64, bytes: u64) -> Result<u64, Errno> {
    let mut done = 0;
    while done < bytes {
        let mut value = [0; UTS_BYTES];
        let found = bytes_at(tb, at, done, &mut value).ok_or(Errno::EFAULT)?;
        let end = found.iter().position(|byte| *byte == 0);
        let count = end.map_or(found.len(), |end| end + 1).min((bytes - done) as usize);
        // SAFETY: done + count <= bytes, which the caller vouches for; `found` has `count` bytes.
        unsafe { copy_nonoverlapping(found.as_ptr(), (to + done) as *mut u8, count) };
        done += count as u64;
        if end.is_some_and(|end| end < count) {
            return Ok(done);
        }
    }
    if bytes > 0 {
        // SAFETY: the last of `bytes` writable bytes.
        unsafe { ((to + bytes - 1) as *mut u8).write(0) };
    }
    Ok(bytes)
}

/// What is `done` bytes behind an address, as far as the field goes. `None`: nothing that is known.
fn bytes_at<'v>(tb: &ThreadBlock, at: TaskAddress, done: u64, value: &'v mut [u8; UTS_BYTES]) -> Option<&'v [u8]> {
    let place = u64::from(at.place) + done;
    // SAFETY: the table is in the control page, which is mapped with the region; the server wrote it before.
    let table = unsafe { &*((tb.region_base + CONTROL_OFFSET + TASK_TABLE_OFFSET) as *const TaskTable) };
    let holds = |field: &&TaskField| place.wrapping_sub(u64::from(field.place)) < u64::from(field.bytes);
    let field = table.fields.iter().take(table.count as usize).find(holds)?;
    fill(tb, at, field, value)?;
    value.get((place - u64::from(field.place)) as usize..usize::from(field.bytes))
}

/// Finds out what a field holds.
fn fill(tb: &ThreadBlock, at: TaskAddress, field: &TaskField, value: &mut [u8; UTS_BYTES]) -> Option<()> {
    if !at.may_be_near(own_task(tb)) {
        return None;
    }
    if let Some(ended) = sampled(tb).filter(|sampled| sampled.has_ended != 0) {
        if at.tid == ended.pid_tgid as u32 {
            return of_ended(at, field, ended, value);
        }
        // (The parent, which is named by its first thread, may have ended, too.)
        if u64::from(at.tid) == ended.parent && field.source == Source::Tgid as u16 {
            put(value, at.tid.to_le_bytes());
            return Some(());
        }
    }
    let task = Task::new(tb, at.tid);
    match Source::of(field.source)? {
        Source::Comm if task.is_running() => put(value, comm().iter().flat_map(|word| word.to_le_bytes())),
        Source::Comm => task.comm(value)?,
        Source::Uts => task.is_running().then(|| uname(value))??,
        source => put(value, number(tb, at, task, source, field.which)?.to_le_bytes()),
    }
    Some(())
}

/// The same of a thread that has ended.
fn of_ended(at: TaskAddress, field: &TaskField, ended: &Sampled, value: &mut [u8; UTS_BYTES]) -> Option<()> {
    let another = |tid: u64| TaskAddress { tid: tid as u32, place: 0, ..at }.address();
    let number = match Source::of(field.source)? {
        Source::Comm => {
            put(value, ended.comm.iter().flat_map(|word| word.to_le_bytes()));
            return Some(());
        }
        Source::Object => TaskAddress { place: u32::from(field.which), ..at }.address(),
        Source::Tid => u64::from(at.tid),
        Source::Tgid => ended.pid_tgid >> 32,
        Source::Leader => another(ended.pid_tgid >> 32),
        Source::Parent | Source::Tracer => another(ended.parent),
        Source::ExitCode if ended.exit_code & EXIT_CODE_SET != 0 => u64::from(ended.exit_code as u32),
        Source::StartBoottime | Source::StartMonotonic if ended.started_ns != 0 => ended.started_ns,
        _ => return None,
    };
    put(value, number.to_le_bytes());
    Some(())
}

fn put(value: &mut [u8], bytes: impl IntoIterator<Item = u8>) {
    for (to, byte) in value.iter_mut().zip(bytes) {
        *to = byte;
    }
}

/// The value of a field that is a number or an address.
fn number(tb: &ThreadBlock, at: TaskAddress, task: Task, source: Source, which: u16) -> Option<u64> {
    let another = |tid: u32| TaskAddress { tid, place: 0, ..at }.address();
    let own = task.is_running();
    Some(match source {
        Source::Constant => own.then_some(u64::from(which))?,
        Source::Object => TaskAddress { place: u32::from(which), ..at }.address(),
        Source::Tid => u64::from(at.tid),
        Source::Tgid => u64::from(task.tgid()?),
        Source::Leader => another(task.tgid()?),
        Source::Parent => another(parent(task)?),
        Source::Tracer => match task.status(b"TracerPid:")? {
            0 => another(parent(task)?),
            tracer => another(tracer as u32),
        },
        Source::Stat => task.stat(which)?,
        Source::ExitCode => exit_code(tb, at, task)?,
        Source::StartBoottime => started(task)?,
        Source::StartMonotonic => started(task).filter(|_| !was_suspended(tb))?,
        Source::NumberFile => task.number_in(which)?,
        Source::Uid => own.then(|| id(nr::GETRESUID, nr::SETFSUID, which))??,
        Source::Gid => own.then(|| id(nr::GETRESGID, nr::SETFSGID, which))??,
        Source::Namespace => task.namespace(which)?,
        Source::Cpu => own.then(|| u64::from(cpu_number(tb.region_base)))?,
        Source::Comm | Source::Uts => return None,
    })
}

/// The code with which a thread ends that programs see ending; of others what the kernel tells.
fn exit_code(tb: &ThreadBlock, at: TaskAddress, task: Task) -> Option<u64> {
    const EXIT_CODE: u16 = 52;
    let ends = tb.exit_code & EXIT_CODE_SET != 0 && at.tid == ids_at_home(tb) as u32;
    if ends { Some(u64::from(tb.exit_code as u32)) } else { task.stat(EXIT_CODE) }
}

/// The parent's process id; 0: it is in another pid namespace.
fn parent(task: Task) -> Option<u32> {
    if task.is_running() { Some(syscall0(nr::GETPPID) as u32) } else { task.status(b"PPid:").map(|id| id as u32) }
}

/// When a thread began, to the tick: nobody tells it more exactly.
fn started(task: Task) -> Option<u64> {
    const STARTTIME: u16 = 22;
    task.stat(STARTTIME).map(|ticks| ticks.wrapping_mul(TICK_NS))
}

/// Whether the machine slept since it started, or the process has another time of its start.
fn was_suspended(tb: &ThreadBlock) -> bool {
    let monotonic = clock_ns(tb, CLOCK_MONOTONIC);
    clock_ns(tb, CLOCK_BOOTTIME).wrapping_sub(monotonic) > APART_NS
}

/// An id of the running thread: real, effective, saved, of file systems.
fn id(get: i64, set_for_files: i64, which: u16) -> Option<u64> {
    let mut ids = [0u32; 3];
    let Some(place) = ids.get(usize::from(which)) else {
        // An id that is none: only the old one is told. Mirrors kernel/sys.c:__sys_setfsuid.
        // SAFETY: takes no address.
        let id = unsafe { syscall(set_for_files, [u64::from(u32::MAX), 0, 0, 0, 0, 0]) };
        return (id >= 0).then_some(id as u64);
    };
    let place: *const u32 = place;
    let [first, second, third] = &mut ids;
    let arguments = [&raw mut *first as u64, &raw mut *second as u64, &raw mut *third as u64, 0, 0, 0];
    // SAFETY: the kernel writes three ids.
    if unsafe { syscall(get, arguments) } != 0 {
        return None;
    }
    // SAFETY: one of `ids`.
    Some(u64::from(unsafe { place.read() }))
}

/// `struct new_utsname`, which is what the system call writes.
fn uname(value: &mut [u8; UTS_BYTES]) -> Option<()> {
    // SAFETY: the kernel writes UTS_BYTES bytes.
    let result = unsafe { syscall(nr::UNAME, [value.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) };
    (result == 0).then_some(())
}
