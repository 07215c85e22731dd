//! The symbols by which compiled programs call helpers: `ring3_helper_` and the kernel's name.

use ring3_runtime::{
    raw_buffers, raw_callbacks, raw_cgroup, raw_dynptr, raw_extension, raw_helpers, raw_signals, raw_stack,
    raw_strings, raw_task,
};

macro_rules! exports {
    ($($symbol:ident = $function:path;)*) => {
        $(
            /// # Safety
            /// Called by a verified program with the thread block that it was given.
            #[unsafe(no_mangle)]
            unsafe extern "sysv64" fn $symbol(a1: u64, a2: u64, a3: u64, a4: u64, a5: u64, env: u64) -> u64 {
                // SAFETY: this function's contract.
                unsafe { $function(a1, a2, a3, a4, a5, env) }
            }
        )*
    };
}

exports! {
    ring3_helper_map_lookup_elem = raw_helpers::map_lookup_elem;
    ring3_helper_map_update_elem = raw_helpers::map_update_elem;
    ring3_helper_map_delete_elem = raw_helpers::map_delete_elem;
    ring3_helper_map_lookup_percpu_elem = raw_helpers::map_lookup_percpu_elem;
    ring3_helper_map_sum_elem_count = raw_helpers::map_sum_elem_count;
    ring3_helper_iter_num_new = raw_helpers::iter_num_new;
    ring3_helper_iter_num_next = raw_helpers::iter_num_next;
    ring3_helper_iter_num_destroy = raw_helpers::iter_num_destroy;
    ring3_helper_map_push_elem = raw_helpers::map_push_elem;
    ring3_helper_map_pop_elem = raw_helpers::map_pop_elem;
    ring3_helper_map_peek_elem = raw_helpers::map_peek_elem;
    ring3_helper_probe_read = raw_helpers::probe_read;
    ring3_helper_probe_read_user = raw_helpers::probe_read_user;
    ring3_helper_probe_read_kernel = raw_helpers::probe_read_kernel;
    ring3_helper_probe_read_str = raw_helpers::probe_read_str;
    ring3_helper_probe_read_user_str = raw_helpers::probe_read_user_str;
    ring3_helper_probe_read_kernel_str = raw_helpers::probe_read_kernel_str;
    ring3_helper_copy_from_user = raw_helpers::copy_from_user;
    ring3_helper_override_return = raw_helpers::override_return;
    ring3_helper_probe_write_user = raw_helpers::probe_write_user;
    ring3_helper_ktime_get_ns = raw_helpers::ktime_get_ns;
    ring3_helper_ktime_get_boot_ns = raw_helpers::ktime_get_boot_ns;
    ring3_helper_ktime_get_coarse_ns = raw_helpers::ktime_get_coarse_ns;
    ring3_helper_jiffies64 = raw_helpers::jiffies64;
    ring3_helper_ktime_get_tai_ns = raw_helpers::ktime_get_tai_ns;
    ring3_helper_get_current_pid_tgid = raw_helpers::get_current_pid_tgid;
    ring3_helper_get_current_uid_gid = raw_helpers::get_current_uid_gid;
    ring3_helper_get_current_comm = raw_helpers::get_current_comm;
    ring3_helper_get_smp_processor_id = raw_helpers::get_smp_processor_id;
    ring3_helper_get_numa_node_id = raw_helpers::get_numa_node_id;
    ring3_helper_get_prandom_u32 = raw_helpers::get_prandom_u32;
    ring3_helper_get_current_cgroup_id = raw_cgroup::get_current_cgroup_id;
    ring3_helper_get_current_ancestor_cgroup_id = raw_cgroup::get_current_ancestor_cgroup_id;
    ring3_helper_get_ns_current_pid_tgid = raw_task::get_ns_current_pid_tgid;
    ring3_helper_send_signal = raw_signals::send_signal;
    ring3_helper_send_signal_thread = raw_signals::send_signal_thread;
    ring3_helper_get_current_task = raw_task::get_current_task;
    ring3_helper_get_attach_cookie = raw_helpers::get_attach_cookie;
    ring3_helper_get_func_ip = raw_helpers::get_func_ip;
    ring3_helper_get_func_arg = raw_helpers::get_func_arg;
    ring3_helper_get_func_ret = raw_helpers::get_func_ret;
    ring3_helper_get_func_arg_cnt = raw_helpers::get_func_arg_cnt;
    ring3_helper_strncmp = raw_helpers::strncmp;
    ring3_helper_strtol = raw_helpers::strtol;
    ring3_helper_strtoul = raw_helpers::strtoul;
    ring3_helper_strcmp = raw_strings::strcmp;
    ring3_helper_strcasecmp = raw_strings::strcasecmp;
    ring3_helper_strchr = raw_strings::strchr;
    ring3_helper_strchrnul = raw_strings::strchrnul;
    ring3_helper_strnchr = raw_strings::strnchr;
    ring3_helper_strrchr = raw_strings::strrchr;
    ring3_helper_strlen = raw_strings::strlen;
    ring3_helper_strnlen = raw_strings::strnlen;
    ring3_helper_strspn = raw_strings::strspn;
    ring3_helper_strcspn = raw_strings::strcspn;
    ring3_helper_strstr = raw_strings::strstr;
    ring3_helper_strnstr = raw_strings::strnstr;
    ring3_helper_copy_from_user_task = raw_task::copy_from_user_task;
    ring3_helper_read_branch_records = raw_helpers::read_branch_records;
    ring3_helper_trace_printk = raw_helpers::trace_printk;
    ring3_helper_trace_vprintk = raw_helpers::trace_vprintk;
    ring3_helper_snprintf = raw_helpers::snprintf;
    ring3_helper_current_task_under_cgroup = raw_helpers::current_task_under_cgroup;
    ring3_helper_perf_event_output = raw_buffers::perf_event_output;
    ring3_helper_ringbuf_output = raw_buffers::ringbuf_output;
    ring3_helper_ringbuf_reserve = raw_buffers::ringbuf_reserve;
    ring3_helper_ringbuf_submit = raw_buffers::ringbuf_submit;
    ring3_helper_ringbuf_discard = raw_buffers::ringbuf_discard;
    ring3_helper_ringbuf_query = raw_buffers::ringbuf_query;
    ring3_helper_get_stackid = raw_stack::get_stackid;
    ring3_helper_get_stack = raw_stack::get_stack;
    ring3_helper_get_task_stack = raw_stack::get_task_stack;
    ring3_helper_task_pt_regs = raw_stack::task_pt_regs;
    ring3_helper_loop = raw_callbacks::bpf_loop;
    ring3_helper_for_each_map_elem = raw_callbacks::for_each_map_elem;
    ring3_helper_dynptr_from_mem = raw_dynptr::dynptr_from_mem;
    ring3_helper_dynptr_read = raw_dynptr::dynptr_read;
    ring3_helper_dynptr_write = raw_dynptr::dynptr_write;
    ring3_helper_dynptr_size = raw_dynptr::dynptr_size;
    ring3_helper_dynptr_is_null = raw_dynptr::dynptr_is_null;
    ring3_helper_dynptr_is_rdonly = raw_dynptr::dynptr_is_rdonly;
    ring3_helper_dynptr_data = raw_dynptr::dynptr_data;
    ring3_helper_ringbuf_reserve_dynptr = raw_dynptr::ringbuf_reserve_dynptr;
    ring3_helper_ringbuf_submit_dynptr = raw_dynptr::ringbuf_submit_dynptr;
    ring3_helper_ringbuf_discard_dynptr = raw_dynptr::ringbuf_discard_dynptr;
    ring3_helper_user_ringbuf_drain = raw_dynptr::user_ringbuf_drain;
    ring3_helper_get_current_task_btf = raw_task::get_current_task_btf;
    ring3_helper_task_storage_get = raw_task::task_storage_get;
    ring3_helper_task_storage_delete = raw_task::task_storage_delete;
    ring3_helper_dynptr_from_slice = raw_extension::dynptr_from_slice;
    ring3_helper_tail_call = raw_callbacks::tail_call;
}

/// # Safety
/// Called by a compiled program with its context and the thread block that it was given.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_tail_run(context: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { raw_callbacks::tail_run(context, env) }
}

/// # Safety
/// Called by a compiled program with the thread block that it was given.
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn ring3_run_dry(env: u64) -> u64 {
    // SAFETY: this function's contract.
    unsafe { raw_buffers::run_dry(env) }
}

macro_rules! lookups {
    ($($symbol:ident($($argument:ident),*) = $function:path;)*) => {
        $(
            /// # Safety
            /// Called by a verified program with a map of this type and key size.
            #[unsafe(no_mangle)]
            unsafe extern "sysv64" fn $symbol($($argument: u64),*) -> u64 {
                // SAFETY: this function's contract.
                unsafe { $function($($argument),*) }
            }
        )*
    };
}

lookups! {
    ring3_hash_lookup_4(map, key) = ring3_maps::hash_lookup_4;
    ring3_hash_lookup_8(map, key) = ring3_maps::hash_lookup_8;
    ring3_hash_lookup_16(map, key) = ring3_maps::hash_lookup_16;
    ring3_hash_lookup_64(map, key) = ring3_maps::hash_lookup_64;
    ring3_percpu_hash_lookup_4(map, key, cpu) = ring3_maps::percpu_hash_lookup_4;
    ring3_percpu_hash_lookup_8(map, key, cpu) = ring3_maps::percpu_hash_lookup_8;
    ring3_percpu_hash_lookup_16(map, key, cpu) = ring3_maps::percpu_hash_lookup_16;
    ring3_percpu_hash_lookup_64(map, key, cpu) = ring3_maps::percpu_hash_lookup_64;
    ring3_lru_hash_lookup_4(map, key) = ring3_maps::lru_hash_lookup_4;
    ring3_lru_hash_lookup_8(map, key) = ring3_maps::lru_hash_lookup_8;
    ring3_lru_hash_lookup_16(map, key) = ring3_maps::lru_hash_lookup_16;
    ring3_lru_hash_lookup_64(map, key) = ring3_maps::lru_hash_lookup_64;
    ring3_lru_percpu_hash_lookup_4(map, key, cpu) = ring3_maps::lru_percpu_hash_lookup_4;
    ring3_lru_percpu_hash_lookup_8(map, key, cpu) = ring3_maps::lru_percpu_hash_lookup_8;
    ring3_lru_percpu_hash_lookup_16(map, key, cpu) = ring3_maps::lru_percpu_hash_lookup_16;
    ring3_lru_percpu_hash_lookup_64(map, key, cpu) = ring3_maps::lru_percpu_hash_lookup_64;
    ring3_trie_lookup_8(map, key) = ring3_maps::trie_lookup_8;
    ring3_trie_lookup_20(map, key) = ring3_maps::trie_lookup_20;
}
