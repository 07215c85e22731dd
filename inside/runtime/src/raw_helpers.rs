//! The helper functions, with the kernel's results and errors (kernel/bpf/helpers.c, kernel/trace/bpf_trace.c; v6.18).
//!
//! Each takes the five argument registers and the thread block. Addresses that a helper's prototype calls memory
//! were proved by the verifier; addresses of the traced program's memory are any numbers and are read guarded.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Acquire;

use ring3_layout::control::{Attachment, GotEntry, Hook, MAPS_MAX};
use ring3_layout::region::got_offset;
use ring3_layout::thread::ThreadBlock;
use ring3_maps::{Context, Map};
use ring3_uapi::Errno;
use ring3_uapi::flags::BPF_F_GET_BRANCH_RECORDS_SIZE;
use ring3_uapi::nr;

use crate::numbers;
use crate::raw_callbacks::LOOPS_MAX;
use crate::raw_clock::{
    CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_TAI, clock_ns, jiffies, ticks,
};
use crate::raw_dispatch::{cpu_of, map_cpu};
use crate::raw_identity::{comm_of, uid_gid_of};
use crate::raw_kernel::{read_any, read_any_string, read_kernel, read_kernel_string};
use crate::raw_memory::{clear, read, read_string, read_user_string, write};
use crate::raw_sampled::{of_process, sampled, shown_ids};
use crate::raw_slot::name;
use crate::raw_system::{is_dead, relax, syscall};
use crate::raw_trace::{formatted, print, with_arguments};

const PR_GET_NAME: u64 = 16;

/// What a helper returns for a result.
pub(crate) fn answer(result: Result<u64, Errno>) -> u64 {
    match result {
        Ok(value) => value,
        Err(errno) => errno.negated() as u64,
    }
}

fn done(result: Result<(), Errno>) -> u64 {
    answer(result.map(|()| 0))
}

/// The thread block that a program hands to its helpers.
///
/// # Safety
/// `env` is what `raw_dispatch` gave to the program.
#[inline(always)]
pub(crate) unsafe fn block<'t>(env: u64) -> &'t mut ThreadBlock {
    // SAFETY: the caller's promise; the block is this thread's.
    unsafe { &mut *(env as *mut ThreadBlock) }
}

/// Who operates on maps.
#[inline(always)]
pub(crate) fn context(tb: &ThreadBlock) -> Context {
    let (owner, cpu, interrupts) = (name(tb.region_base, tb), map_cpu(tb), tb.interrupted != 0);
    Context { owner, cpu, owner_is_dead: is_dead, relax, interrupts }
}

/// The thread's name, zero-padded, as the kernel has it.
pub(crate) fn comm() -> [u64; 2] {
    let mut name = [0u64; 2];
    // SAFETY: the kernel writes 16 bytes.
    unsafe { syscall(nr::PRCTL, [PR_GET_NAME, &raw mut name as u64, 0, 0, 0, 0]) };
    name
}

/// Zeroes what a read that failed had promised.
///
/// # Safety
/// `to` is writable for `bytes` bytes.
unsafe fn cleared<T>(to: u64, bytes: u64, result: Result<T, Errno>) -> Result<T, Errno> {
    if result.is_err() {
        // SAFETY: the caller's promise.
        unsafe { clear(to, bytes) };
    }
    result
}

/// The map that a program passes by the address of its view.
///
/// # Safety
/// `view` is the address of a mapped map's view.
pub(crate) unsafe fn map_at<'m>(view: u64) -> Result<Map<'m>, Errno> {
    // SAFETY: the caller's promise.
    unsafe { Map::from_view(view) }.ok_or(Errno::EINVAL)
}

/// The view of the map that an element of an array of objects names by its slot plus one; 0 for none.
#[inline]
pub(crate) fn view_named(tb: &ThreadBlock, word: u32) -> u64 {
    let Some(slot) = word.checked_sub(1).filter(|slot| *slot < MAPS_MAX) else { return 0 };
    let entry = (tb.region_base + got_offset(slot)) as *const GotEntry;
    // SAFETY: the GOT is mapped in every target, and consists of atomics; the slot is inside it.
    unsafe { &*entry }.view.load(Acquire)
}

/// The view of the map that an element of a map of maps names; 0 for none. `value` is the element's address, or 0.
/// Mirrors kernel/bpf/arraymap.c:array_of_map_lookup_elem.
fn inner_map(tb: &ThreadBlock, value: u64) -> u64 {
    if value == 0 {
        return 0;
    }
    // SAFETY: a map operation gave the address of an element's value, a word. Only the server writes it.
    view_named(tb, unsafe { AtomicU32::from_ptr(value as *mut u32) }.load(Acquire))
}

/// Writes a number, 0 if there is none; the bytes that it takes in its text.
///
/// # Safety
/// `to` is writable for a word.
unsafe fn told(number: Result<(u64, u64), Errno>, to: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (to as *mut u64).write_unaligned(number.map_or(0, |(value, _)| value)) };
    answer(number.map(|(_, taken)| taken))
}

/// Arguments of `long __x64_sys_*(const struct pt_regs *)`.
const FUNCTION_ARGUMENTS: u64 = 1;

macro_rules! helpers {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident),*; $tb:ident) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Called by a verified program with the thread block that it was given.
            #[inline]
            pub unsafe extern "sysv64" fn $name(a1: u64, a2: u64, a3: u64, a4: u64, a5: u64, env: u64) -> u64 {
                // SAFETY: this function's contract.
                let $tb = unsafe { block(env) };
                let _arguments = [a1, a2, a3, a4, a5];
                let [$($argument,)* ..] = _arguments;
                let _ = &$tb;
                $body
            }
        )*
    };
}

helpers! {
    /// `bpf_map_lookup_elem`
    fn map_lookup_elem(map, key; tb) {
        // SAFETY: the verifier proved a map and a key of its size.
        let Some(map) = (unsafe { Map::from_view(map) }) else { return 0 };
        // SAFETY: as above.
        let value = unsafe { map.lookup(key, map_cpu(tb)) };
        if map.is_of_maps() { inner_map(tb, value) } else { value }
    }

    /// `bpf_map_lookup_percpu_elem`
    fn map_lookup_percpu_elem(map, key, cpu; tb) {
        // SAFETY: the verifier proved a map and a key of its size.
        unsafe { Map::from_view(map) }.map_or(0, |map| {
            // SAFETY: as above.
            unsafe { map.lookup_percpu(key, cpu as u32) }
        })
    }

    /// `bpf_map_sum_elem_count`
    fn map_sum_elem_count(map; tb) {
        // SAFETY: the verifier proved a map.
        unsafe { Map::from_view(map) }.map_or(0, |map| map.count())
    }

    /// `bpf_iter_num_new`. Mirrors kernel/bpf/bpf_iter.c.
    fn iter_num_new(iterator, start, end; tb) {
        let (start, end) = (i64::from(start as i32), i64::from(end as i32));
        let error = match end - start {
            length if length < 0 => Some(Errno::EINVAL),
            length if length > LOOPS_MAX as i64 => Some(Errno::E2BIG),
            _ => None,
        };
        let iterator = iterator as *mut [i32; 2];
        let range = if error.is_some() { [0, 0] } else { [(start as i32).wrapping_sub(1), end as i32] };
        // SAFETY: the verifier proved a `struct bpf_iter_num` on the program's stack, which has this form.
        unsafe { iterator.write(range) };
        done(error.map_or(Ok(()), Err))
    }

    /// `bpf_iter_num_next`: where the number is, or null behind the last one.
    fn iter_num_next(iterator; tb) {
        let iterator = iterator as *mut [i32; 2];
        // SAFETY: as above, and it was initialised.
        let [current, end] = unsafe { iterator.read() };
        let goes_on = i64::from(current.wrapping_add(1)) < i64::from(end);
        let range = if goes_on { [current + 1, end] } else { [0, 0] };
        // SAFETY: as above.
        unsafe { iterator.write(range) };
        if goes_on { iterator as u64 } else { 0 }
    }

    /// `bpf_iter_num_destroy`
    fn iter_num_destroy(iterator; tb) {
        let iterator = iterator as *mut [i32; 2];
        // SAFETY: as above.
        unsafe { iterator.write([0, 0]) };
        0
    }

    /// `bpf_map_update_elem`
    fn map_update_elem(map, key, value, flags; tb) {
        // SAFETY: the verifier proved a map, a key and a value of its sizes.
        let change = |map: Map<'_>| unsafe { map.update(&context(tb), key, value, flags) };
        // SAFETY: as above.
        done(unsafe { map_at(map) }.and_then(change))
    }

    /// `bpf_map_delete_elem`
    fn map_delete_elem(map, key; tb) {
        // SAFETY: the verifier proved a map and a key of its size.
        let change = |map: Map<'_>| unsafe { map.delete(&context(tb), key) };
        // SAFETY: as above.
        done(unsafe { map_at(map) }.and_then(change))
    }

    /// `bpf_map_push_elem`
    fn map_push_elem(map, value, flags; tb) {
        // SAFETY: the verifier proved a map and a value of its size.
        let change = |map: Map<'_>| unsafe { map.push(&context(tb), value, flags) };
        // SAFETY: as above.
        done(unsafe { map_at(map) }.and_then(change))
    }

    /// `bpf_map_pop_elem`
    fn map_pop_elem(map, value; tb) {
        // SAFETY: the verifier proved a map and room for a value.
        let change = |map: Map<'_>| unsafe { map.pop(&context(tb), value) };
        // SAFETY: as above.
        done(unsafe { map_at(map) }.and_then(change))
    }

    /// `bpf_map_peek_elem`
    fn map_peek_elem(map, value; tb) {
        // SAFETY: the verifier proved a map and room for a value.
        let change = |map: Map<'_>| unsafe { map.peek(&context(tb), value) };
        // SAFETY: as above.
        done(unsafe { map_at(map) }.and_then(change))
    }

    /// `bpf_probe_read_user`
    fn probe_read_user(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = of_process(tb, |tb| unsafe { read(tb, to, from, bytes) });
        // SAFETY: as above.
        done(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_probe_read`: the address says whether it is user memory. The program's own is user memory here.
    fn probe_read(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = unsafe { read_any(tb, to, from, bytes) };
        // SAFETY: as above.
        done(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_probe_read_kernel`
    fn probe_read_kernel(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = unsafe { read_kernel(tb, to, from, bytes) };
        // SAFETY: as above.
        done(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_probe_read_user_str`
    fn probe_read_user_str(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = of_process(tb, |tb| unsafe { read_user_string(tb, to, from, bytes) });
        // SAFETY: as above.
        answer(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_probe_read_str`: as `bpf_probe_read`.
    fn probe_read_str(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = unsafe { read_any_string(tb, to, from, bytes) };
        // SAFETY: as above.
        answer(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_probe_read_kernel_str`
    fn probe_read_kernel_str(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = unsafe { read_kernel_string(tb, to, from, bytes) };
        // SAFETY: as above.
        answer(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_copy_from_user`
    fn copy_from_user(to, bytes, from; tb) {
        let bytes = u64::from(bytes as u32);
        // SAFETY: the verifier proved `to` writable.
        let result = of_process(tb, |tb| unsafe { read(tb, to, from, bytes) });
        // SAFETY: as above.
        done(unsafe { cleared(to, bytes, result) })
    }

    /// `bpf_probe_write_user`: not in an interrupt, as the program of a perf event is
    /// (kernel/trace/bpf_trace.c:bpf_probe_write_user).
    fn probe_write_user(to, from, bytes; tb) {
        if sampled(tb).is_some() {
            return done(Err(Errno::EPERM));
        }
        // SAFETY: the verifier proved `from` readable.
        done(unsafe { write(tb, to, from, u64::from(bytes as u32)) })
    }

    /// `bpf_ktime_get_ns`
    fn ktime_get_ns(; tb) { clock_ns(tb, CLOCK_MONOTONIC) }

    /// `bpf_ktime_get_boot_ns`
    fn ktime_get_boot_ns(; tb) { clock_ns(tb, CLOCK_BOOTTIME) }

    /// `bpf_ktime_get_coarse_ns`
    fn ktime_get_coarse_ns(; tb) { clock_ns(tb, CLOCK_MONOTONIC_COARSE) }

    /// `bpf_jiffies64`
    fn jiffies64(; tb) { jiffies(tb) }

    /// `bpf_ktime_get_tai_ns`
    fn ktime_get_tai_ns(; tb) { clock_ns(tb, CLOCK_TAI) }

    /// `bpf_get_current_pid_tgid`
    fn get_current_pid_tgid(; tb) { shown_ids(tb) }

    /// `bpf_get_current_uid_gid`
    fn get_current_uid_gid(; tb) {
        uid_gid_of(tb)
    }

    /// `bpf_get_current_comm`: at most `bytes` bytes, always ended, the rest zero (`strscpy_pad`).
    fn get_current_comm(to, bytes; tb) {
        let bytes = u64::from(bytes as u32);
        let name = comm_of(tb);
        if bytes >= size_of_val(&name) as u64 {
            // SAFETY: the verifier proved `to` writable for `bytes` bytes. (The kernel's last byte of a name is 0.)
            unsafe { (to as *mut [u64; 2]).write_unaligned(name) };
            // SAFETY: as above.
            unsafe { clear(to + size_of_val(&name) as u64, bytes - size_of_val(&name) as u64) };
            return 0;
        }
        let name = name.iter().flat_map(|word| word.to_le_bytes());
        // SAFETY: the verifier proved `to` writable for `bytes` bytes.
        unsafe { clear(to, bytes) };
        for (index, byte) in name.enumerate().take_while(|(_, byte)| *byte != 0) {
            if index as u64 + 1 >= bytes {
                break;
            }
            // SAFETY: index < bytes, as above.
            unsafe { (to as *mut u8).wrapping_add(index).write(byte) };
        }
        0
    }

    /// `bpf_get_smp_processor_id`: the CPU whose part of per-CPU maps this run uses.
    fn get_smp_processor_id(; tb) { u64::from(cpu_of(tb)) }

    /// `bpf_get_numa_node_id`
    fn get_numa_node_id(; tb) {
        let mut node = 0u32;
        // SAFETY: the kernel writes 4 bytes.
        unsafe { syscall(nr::GETCPU, [0, &raw mut node as u64, 0, 0, 0, 0]) };
        u64::from(node)
    }

    /// `bpf_get_prandom_u32` (xorshift64*, Vigna 2016)
    fn get_prandom_u32(; tb) {
        let mut state = match tb.random {
            0 => ticks(tb) ^ tb.this << 20 | 1,
            state => state,
        };
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        tb.random = state;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// `bpf_get_attach_cookie`
    fn get_attach_cookie(; tb) {
        // SAFETY: dispatch set the attachment that runs.
        unsafe { (*(tb.attachment as *const Attachment)).cookie }
    }

    /// `bpf_override_return`: of programs that see the beginning of a system call. It takes effect behind all of them.
    fn override_return(_context, result; tb) {
        (tb.overrides, tb.override_result) = (1, result);
        0
    }

    /// `bpf_get_func_ip`: the probed address, on entry and on return.
    fn get_func_ip(; tb) {
        // SAFETY: dispatch set the hook that runs.
        unsafe { (*(tb.hook as *const Hook)).site }
    }

    /// `bpf_get_func_arg`: of a kernel's function of a system call, which has one argument, the thread's registers.
    fn get_func_arg(context, number, value; _tb) {
        if u64::from(number as u32) >= FUNCTION_ARGUMENTS {
            return done(Err(Errno::EINVAL));
        }
        // SAFETY: the verifier proved the context, whose words are the arguments.
        let argument = unsafe { *(context as *const u64) };
        // SAFETY: the verifier proved room for a word.
        unsafe { *(value as *mut u64) = argument };
        0
    }

    /// `bpf_get_func_ret`
    fn get_func_ret(context, value; _tb) {
        // SAFETY: the context is that of a program that sees the function's end, whose result comes behind the arguments.
        let result = unsafe { *(context as *const u64).wrapping_add(FUNCTION_ARGUMENTS as usize) };
        // SAFETY: the verifier proved room for a word.
        unsafe { *(value as *mut u64) = result };
        0
    }

    /// `bpf_get_func_arg_cnt`
    fn get_func_arg_cnt(_context; _tb) { FUNCTION_ARGUMENTS }

    /// `bpf_strncmp`
    fn strncmp(text, bytes, other; tb) {
        for index in 0..u64::from(bytes as u32) {
            // SAFETY: the verifier proved `text` readable for `bytes` bytes, and `other` a string constant.
            let a = unsafe { ((text + index) as *const u8).read() };
            // SAFETY: as above; the loop ends at the constant's NUL at the latest.
            let b = unsafe { ((other + index) as *const u8).read() };
            if a != b || a == 0 {
                return (i64::from(a) - i64::from(b)).signum() as u64;
            }
        }
        0
    }

    /// `bpf_strtol`
    fn strtol(text, bytes, flags, to; tb) {
        // SAFETY: the verifier proved the text readable.
        let number = numbers::signed(unsafe { core::slice::from_raw_parts(text as *const u8, bytes as u32 as usize) }, flags);
        // SAFETY: the verifier proved a word writable there.
        unsafe { told(number, to) }
    }

    /// `bpf_strtoul`
    fn strtoul(text, bytes, flags, to; tb) {
        // SAFETY: the verifier proved the text readable.
        let number = numbers::unsigned(unsafe { core::slice::from_raw_parts(text as *const u8, bytes as u32 as usize) }, flags);
        // SAFETY: the verifier proved a word writable there.
        unsafe { told(number, to) }
    }

    /// `bpf_trace_printk`
    fn trace_printk(format, bytes, first, second, third; tb) {
        // SAFETY: the verifier proved the format readable.
        let text = unsafe { core::slice::from_raw_parts(format as *const u8, bytes as u32 as usize) };
        if !text.ends_with(&[0]) {
            return Errno::EINVAL.negated() as u64;
        }
        answer(print(tb, text, &[first, second, third]))
    }

    /// `bpf_trace_vprintk`
    fn trace_vprintk(format, bytes, data, data_bytes; tb) {
        // SAFETY: the verifier proved the format readable.
        let text = unsafe { core::slice::from_raw_parts(format as *const u8, bytes as u32 as usize) };
        // SAFETY: the verifier proved the data readable.
        answer(unsafe { with_arguments(data, u64::from(data_bytes as u32), |words| print(tb, text, words)) })
    }

    /// `bpf_snprintf`: bytes of the whole text with its NUL.
    fn snprintf(to, bytes, format, data, data_bytes; tb) {
        const FORMAT_MAX: u64 = 256;
        let mut text = [0u8; FORMAT_MAX as usize];
        // SAFETY: the local buffer has FORMAT_MAX bytes; the format is a constant string in a map.
        if unsafe { read_string(tb, text.as_mut_ptr() as u64, format, FORMAT_MAX) }.is_err() {
            return Errno::EINVAL.negated() as u64;
        }
        let bytes = u64::from(bytes as u32) as usize;
        let room: &mut [u8] = if bytes == 0 {
            &mut []
        } else {
            // SAFETY: the verifier proved `to` writable for `bytes` bytes.
            unsafe { core::slice::from_raw_parts_mut(to as *mut u8, bytes) }
        };
        // SAFETY: the verifier proved the data readable.
        let result = unsafe {
            with_arguments(data, u64::from(data_bytes as u32), |words| {
                let length = formatted(tb, room, &text, words)?;
                if let Some(end) = room.get_mut(length.min(bytes.saturating_sub(1))) {
                    *end = 0;
                }
                Ok(length as u64 + 1)
            })
        };
        answer(result)
    }

    /// `bpf_read_branch_records`: no event here asks for branches. Mirrors kernel/trace/bpf_trace.c:bpf_read_branch_records.
    fn read_branch_records(_context, _to, _bytes, flags; tb) {
        let is_known = flags & !BPF_F_GET_BRANCH_RECORDS_SIZE == 0;
        done(Err(if is_known { Errno::ENOENT } else { Errno::EINVAL }))
    }

    /// `bpf_current_task_under_cgroup`: no cgroup can be set in such an array yet, which the kernel answers so.
    fn current_task_under_cgroup(map, index; tb) {
        // SAFETY: the verifier proved a map.
        let object = unsafe { map_at(map) }.and_then(|map| map.object(index as u32));
        answer(object.and(Err(Errno::EAGAIN)))
    }
}
