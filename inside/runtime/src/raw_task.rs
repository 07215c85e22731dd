//! The running thread as an object: its addresses, and task storage, values that belong to it
//! (kernel/bpf/bpf_task_storage.c; v6.18).

use ring3_layout::thread::ThreadBlock;
use ring3_maps::Map;
use ring3_uapi::Errno;
use ring3_uapi::flags::BPF_LOCAL_STORAGE_GET_F_CREATE;

use crate::raw_helpers::{answer, block, context, map_at};
use crate::raw_identity::pid_namespace_of;
use crate::raw_kernel::own_task;
use crate::raw_memory::{clear, read};
use crate::raw_sampled::sampled;

/// What programs hold for the running thread's `task_struct`: the zeros behind its block. The verifier refuses what reads
/// there as far as it sees it.
pub(crate) fn task_of(tb: &ThreadBlock) -> u64 {
    tb.this + size_of::<ThreadBlock>() as u64
}

/// `bpf_get_current_task`: an address that only reads of the kernel's memory know (`raw_kernel`).
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn get_current_task(_: u64, _: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    own_task(unsafe { block(env) }).address()
}

/// `bpf_get_ns_current_pid_tgid`: the thread's ids (`struct bpf_pidns_info`) in its own pid namespace, if that is the one with this
/// device and inode. Mirrors kernel/bpf/helpers.c:bpf_get_ns_current_pid_tgid.
///
/// # Safety
/// Called by a verified program with memory of this size and the thread block that it was given.
pub unsafe extern "sysv64" fn get_ns_current_pid_tgid(
    device: u64,
    inode: u64,
    to: u64,
    bytes: u64,
    _: u64,
    env: u64,
) -> u64 {
    const INFO_BYTES: u64 = 8;
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let bytes = u64::from(bytes as u32);
    if bytes == INFO_BYTES && pid_namespace_of(tb) == [device, inode] && inode != 0 {
        let (pid, tgid) = (tb.pid_tgid as u32, (tb.pid_tgid >> 32) as u32);
        // SAFETY: the verifier proved `bytes` writable bytes.
        unsafe { (to as *mut [u32; 2]).write_unaligned([pid, tgid]) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { clear(to, bytes) };
    Errno::EINVAL.negated() as u64
}

/// `bpf_get_current_task_btf`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn get_current_task_btf(_: u64, _: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    task_of(unsafe { block(env) })
}

/// `bpf_copy_from_user_task`, of the running thread's process: programs hold no other task. Mirrors
/// kernel/bpf/helpers.c:bpf_copy_from_user_task.
///
/// # Safety
/// Called by a verified program with writable memory, an address, a task, and the thread block that it was given.
pub unsafe extern "sysv64" fn copy_from_user_task(
    to: u64,
    bytes: u64,
    from: u64,
    task: u64,
    flags: u64,
    env: u64,
) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let bytes = u64::from(bytes as u32);
    if flags != 0 {
        return Errno::EINVAL.negated() as u64;
    }
    let is_own = task == task_of(tb) && sampled(tb).is_none();
    // SAFETY: the verifier proved `bytes` writable bytes; of the address nothing is assumed.
    let copied = is_own && unsafe { read(tb, to, from, bytes) }.is_ok();
    if bytes == 0 || copied {
        return 0;
    }
    // SAFETY: as above.
    unsafe { clear(to, bytes) };
    Errno::EFAULT.negated() as u64
}

/// `bpf_task_storage_get`: address of the running thread's value, 0 if there is none.
///
/// # Safety
/// Called by a verified program with a map, a task, the address of a value or 0, and the thread block that it was given.
pub unsafe extern "sysv64" fn task_storage_get(map: u64, task: u64, value: u64, flags: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    let is_own = task == task_of(tb) && sampled(tb).is_none();
    if flags & !BPF_LOCAL_STORAGE_GET_F_CREATE != 0 || !is_own {
        return 0;
    }
    // SAFETY: the verifier proved a map.
    let Some(map) = (unsafe { Map::from_view(map) }) else { return 0 };
    let create = flags & BPF_LOCAL_STORAGE_GET_F_CREATE != 0;
    // SAFETY: the verifier proved a value of the map's size, or nothing.
    unsafe { map.task_value(&context(tb), tb.serial, value, create) }
}

/// `bpf_task_storage_delete`
///
/// # Safety
/// Called by a verified program with a map, a task and the thread block that it was given.
pub unsafe extern "sysv64" fn task_storage_delete(map: u64, task: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    if task != task_of(tb) || sampled(tb).is_some() {
        return Errno::EINVAL.negated() as u64;
    }
    // SAFETY: the verifier proved a map.
    let map = unsafe { map_at(map) };
    answer(map.and_then(|map| map.user_delete(&context(tb), &tb.serial.to_le_bytes())).map(|()| 0))
}
