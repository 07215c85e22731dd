//! Numbers and names of the helper functions (`___BPF_FUNC_MAPPER` in `linux/bpf.h`).

/// `bpf_unspec`
pub const UNSPEC: u32 = 0;
/// `bpf_map_lookup_elem`
pub const MAP_LOOKUP_ELEM: u32 = 1;
/// `bpf_map_update_elem`
pub const MAP_UPDATE_ELEM: u32 = 2;
/// `bpf_map_delete_elem`
pub const MAP_DELETE_ELEM: u32 = 3;
/// `bpf_probe_read`
pub const PROBE_READ: u32 = 4;
/// `bpf_ktime_get_ns`
pub const KTIME_GET_NS: u32 = 5;
/// `bpf_trace_printk`
pub const TRACE_PRINTK: u32 = 6;
/// `bpf_get_prandom_u32`
pub const GET_PRANDOM_U32: u32 = 7;
/// `bpf_get_smp_processor_id`
pub const GET_SMP_PROCESSOR_ID: u32 = 8;
/// `bpf_skb_store_bytes`
pub const SKB_STORE_BYTES: u32 = 9;
/// `bpf_l3_csum_replace`
pub const L3_CSUM_REPLACE: u32 = 10;
/// `bpf_l4_csum_replace`
pub const L4_CSUM_REPLACE: u32 = 11;
/// `bpf_tail_call`
pub const TAIL_CALL: u32 = 12;
/// `bpf_clone_redirect`
pub const CLONE_REDIRECT: u32 = 13;
/// `bpf_get_current_pid_tgid`
pub const GET_CURRENT_PID_TGID: u32 = 14;
/// `bpf_get_current_uid_gid`
pub const GET_CURRENT_UID_GID: u32 = 15;
/// `bpf_get_current_comm`
pub const GET_CURRENT_COMM: u32 = 16;
/// `bpf_get_cgroup_classid`
pub const GET_CGROUP_CLASSID: u32 = 17;
/// `bpf_skb_vlan_push`
pub const SKB_VLAN_PUSH: u32 = 18;
/// `bpf_skb_vlan_pop`
pub const SKB_VLAN_POP: u32 = 19;
/// `bpf_skb_get_tunnel_key`
pub const SKB_GET_TUNNEL_KEY: u32 = 20;
/// `bpf_skb_set_tunnel_key`
pub const SKB_SET_TUNNEL_KEY: u32 = 21;
/// `bpf_perf_event_read`
pub const PERF_EVENT_READ: u32 = 22;
/// `bpf_redirect`
pub const REDIRECT: u32 = 23;
/// `bpf_get_route_realm`
pub const GET_ROUTE_REALM: u32 = 24;
/// `bpf_perf_event_output`
pub const PERF_EVENT_OUTPUT: u32 = 25;
/// `bpf_skb_load_bytes`
pub const SKB_LOAD_BYTES: u32 = 26;
/// `bpf_get_stackid`
pub const GET_STACKID: u32 = 27;
/// `bpf_csum_diff`
pub const CSUM_DIFF: u32 = 28;
/// `bpf_skb_get_tunnel_opt`
pub const SKB_GET_TUNNEL_OPT: u32 = 29;
/// `bpf_skb_set_tunnel_opt`
pub const SKB_SET_TUNNEL_OPT: u32 = 30;
/// `bpf_skb_change_proto`
pub const SKB_CHANGE_PROTO: u32 = 31;
/// `bpf_skb_change_type`
pub const SKB_CHANGE_TYPE: u32 = 32;
/// `bpf_skb_under_cgroup`
pub const SKB_UNDER_CGROUP: u32 = 33;
/// `bpf_get_hash_recalc`
pub const GET_HASH_RECALC: u32 = 34;
/// `bpf_get_current_task`
pub const GET_CURRENT_TASK: u32 = 35;
/// `bpf_probe_write_user`
pub const PROBE_WRITE_USER: u32 = 36;
/// `bpf_current_task_under_cgroup`
pub const CURRENT_TASK_UNDER_CGROUP: u32 = 37;
/// `bpf_skb_change_tail`
pub const SKB_CHANGE_TAIL: u32 = 38;
/// `bpf_skb_pull_data`
pub const SKB_PULL_DATA: u32 = 39;
/// `bpf_csum_update`
pub const CSUM_UPDATE: u32 = 40;
/// `bpf_set_hash_invalid`
pub const SET_HASH_INVALID: u32 = 41;
/// `bpf_get_numa_node_id`
pub const GET_NUMA_NODE_ID: u32 = 42;
/// `bpf_skb_change_head`
pub const SKB_CHANGE_HEAD: u32 = 43;
/// `bpf_xdp_adjust_head`
pub const XDP_ADJUST_HEAD: u32 = 44;
/// `bpf_probe_read_str`
pub const PROBE_READ_STR: u32 = 45;
/// `bpf_get_socket_cookie`
pub const GET_SOCKET_COOKIE: u32 = 46;
/// `bpf_get_socket_uid`
pub const GET_SOCKET_UID: u32 = 47;
/// `bpf_set_hash`
pub const SET_HASH: u32 = 48;
/// `bpf_setsockopt`
pub const SETSOCKOPT: u32 = 49;
/// `bpf_skb_adjust_room`
pub const SKB_ADJUST_ROOM: u32 = 50;
/// `bpf_redirect_map`
pub const REDIRECT_MAP: u32 = 51;
/// `bpf_sk_redirect_map`
pub const SK_REDIRECT_MAP: u32 = 52;
/// `bpf_sock_map_update`
pub const SOCK_MAP_UPDATE: u32 = 53;
/// `bpf_xdp_adjust_meta`
pub const XDP_ADJUST_META: u32 = 54;
/// `bpf_perf_event_read_value`
pub const PERF_EVENT_READ_VALUE: u32 = 55;
/// `bpf_perf_prog_read_value`
pub const PERF_PROG_READ_VALUE: u32 = 56;
/// `bpf_getsockopt`
pub const GETSOCKOPT: u32 = 57;
/// `bpf_override_return`
pub const OVERRIDE_RETURN: u32 = 58;
/// `bpf_sock_ops_cb_flags_set`
pub const SOCK_OPS_CB_FLAGS_SET: u32 = 59;
/// `bpf_msg_redirect_map`
pub const MSG_REDIRECT_MAP: u32 = 60;
/// `bpf_msg_apply_bytes`
pub const MSG_APPLY_BYTES: u32 = 61;
/// `bpf_msg_cork_bytes`
pub const MSG_CORK_BYTES: u32 = 62;
/// `bpf_msg_pull_data`
pub const MSG_PULL_DATA: u32 = 63;
/// `bpf_bind`
pub const BIND: u32 = 64;
/// `bpf_xdp_adjust_tail`
pub const XDP_ADJUST_TAIL: u32 = 65;
/// `bpf_skb_get_xfrm_state`
pub const SKB_GET_XFRM_STATE: u32 = 66;
/// `bpf_get_stack`
pub const GET_STACK: u32 = 67;
/// `bpf_skb_load_bytes_relative`
pub const SKB_LOAD_BYTES_RELATIVE: u32 = 68;
/// `bpf_fib_lookup`
pub const FIB_LOOKUP: u32 = 69;
/// `bpf_sock_hash_update`
pub const SOCK_HASH_UPDATE: u32 = 70;
/// `bpf_msg_redirect_hash`
pub const MSG_REDIRECT_HASH: u32 = 71;
/// `bpf_sk_redirect_hash`
pub const SK_REDIRECT_HASH: u32 = 72;
/// `bpf_lwt_push_encap`
pub const LWT_PUSH_ENCAP: u32 = 73;
/// `bpf_lwt_seg6_store_bytes`
pub const LWT_SEG6_STORE_BYTES: u32 = 74;
/// `bpf_lwt_seg6_adjust_srh`
pub const LWT_SEG6_ADJUST_SRH: u32 = 75;
/// `bpf_lwt_seg6_action`
pub const LWT_SEG6_ACTION: u32 = 76;
/// `bpf_rc_repeat`
pub const RC_REPEAT: u32 = 77;
/// `bpf_rc_keydown`
pub const RC_KEYDOWN: u32 = 78;
/// `bpf_skb_cgroup_id`
pub const SKB_CGROUP_ID: u32 = 79;
/// `bpf_get_current_cgroup_id`
pub const GET_CURRENT_CGROUP_ID: u32 = 80;
/// `bpf_get_local_storage`
pub const GET_LOCAL_STORAGE: u32 = 81;
/// `bpf_sk_select_reuseport`
pub const SK_SELECT_REUSEPORT: u32 = 82;
/// `bpf_skb_ancestor_cgroup_id`
pub const SKB_ANCESTOR_CGROUP_ID: u32 = 83;
/// `bpf_sk_lookup_tcp`
pub const SK_LOOKUP_TCP: u32 = 84;
/// `bpf_sk_lookup_udp`
pub const SK_LOOKUP_UDP: u32 = 85;
/// `bpf_sk_release`
pub const SK_RELEASE: u32 = 86;
/// `bpf_map_push_elem`
pub const MAP_PUSH_ELEM: u32 = 87;
/// `bpf_map_pop_elem`
pub const MAP_POP_ELEM: u32 = 88;
/// `bpf_map_peek_elem`
pub const MAP_PEEK_ELEM: u32 = 89;
/// `bpf_msg_push_data`
pub const MSG_PUSH_DATA: u32 = 90;
/// `bpf_msg_pop_data`
pub const MSG_POP_DATA: u32 = 91;
/// `bpf_rc_pointer_rel`
pub const RC_POINTER_REL: u32 = 92;
/// `bpf_spin_lock`
pub const SPIN_LOCK: u32 = 93;
/// `bpf_spin_unlock`
pub const SPIN_UNLOCK: u32 = 94;
/// `bpf_sk_fullsock`
pub const SK_FULLSOCK: u32 = 95;
/// `bpf_tcp_sock`
pub const TCP_SOCK: u32 = 96;
/// `bpf_skb_ecn_set_ce`
pub const SKB_ECN_SET_CE: u32 = 97;
/// `bpf_get_listener_sock`
pub const GET_LISTENER_SOCK: u32 = 98;
/// `bpf_skc_lookup_tcp`
pub const SKC_LOOKUP_TCP: u32 = 99;
/// `bpf_tcp_check_syncookie`
pub const TCP_CHECK_SYNCOOKIE: u32 = 100;
/// `bpf_sysctl_get_name`
pub const SYSCTL_GET_NAME: u32 = 101;
/// `bpf_sysctl_get_current_value`
pub const SYSCTL_GET_CURRENT_VALUE: u32 = 102;
/// `bpf_sysctl_get_new_value`
pub const SYSCTL_GET_NEW_VALUE: u32 = 103;
/// `bpf_sysctl_set_new_value`
pub const SYSCTL_SET_NEW_VALUE: u32 = 104;
/// `bpf_strtol`
pub const STRTOL: u32 = 105;
/// `bpf_strtoul`
pub const STRTOUL: u32 = 106;
/// `bpf_sk_storage_get`
pub const SK_STORAGE_GET: u32 = 107;
/// `bpf_sk_storage_delete`
pub const SK_STORAGE_DELETE: u32 = 108;
/// `bpf_send_signal`
pub const SEND_SIGNAL: u32 = 109;
/// `bpf_tcp_gen_syncookie`
pub const TCP_GEN_SYNCOOKIE: u32 = 110;
/// `bpf_skb_output`
pub const SKB_OUTPUT: u32 = 111;
/// `bpf_probe_read_user`
pub const PROBE_READ_USER: u32 = 112;
/// `bpf_probe_read_kernel`
pub const PROBE_READ_KERNEL: u32 = 113;
/// `bpf_probe_read_user_str`
pub const PROBE_READ_USER_STR: u32 = 114;
/// `bpf_probe_read_kernel_str`
pub const PROBE_READ_KERNEL_STR: u32 = 115;
/// `bpf_tcp_send_ack`
pub const TCP_SEND_ACK: u32 = 116;
/// `bpf_send_signal_thread`
pub const SEND_SIGNAL_THREAD: u32 = 117;
/// `bpf_jiffies64`
pub const JIFFIES64: u32 = 118;
/// `bpf_read_branch_records`
pub const READ_BRANCH_RECORDS: u32 = 119;
/// `bpf_get_ns_current_pid_tgid`
pub const GET_NS_CURRENT_PID_TGID: u32 = 120;
/// `bpf_xdp_output`
pub const XDP_OUTPUT: u32 = 121;
/// `bpf_get_netns_cookie`
pub const GET_NETNS_COOKIE: u32 = 122;
/// `bpf_get_current_ancestor_cgroup_id`
pub const GET_CURRENT_ANCESTOR_CGROUP_ID: u32 = 123;
/// `bpf_sk_assign`
pub const SK_ASSIGN: u32 = 124;
/// `bpf_ktime_get_boot_ns`
pub const KTIME_GET_BOOT_NS: u32 = 125;
/// `bpf_seq_printf`
pub const SEQ_PRINTF: u32 = 126;
/// `bpf_seq_write`
pub const SEQ_WRITE: u32 = 127;
/// `bpf_sk_cgroup_id`
pub const SK_CGROUP_ID: u32 = 128;
/// `bpf_sk_ancestor_cgroup_id`
pub const SK_ANCESTOR_CGROUP_ID: u32 = 129;
/// `bpf_ringbuf_output`
pub const RINGBUF_OUTPUT: u32 = 130;
/// `bpf_ringbuf_reserve`
pub const RINGBUF_RESERVE: u32 = 131;
/// `bpf_ringbuf_submit`
pub const RINGBUF_SUBMIT: u32 = 132;
/// `bpf_ringbuf_discard`
pub const RINGBUF_DISCARD: u32 = 133;
/// `bpf_ringbuf_query`
pub const RINGBUF_QUERY: u32 = 134;
/// `bpf_csum_level`
pub const CSUM_LEVEL: u32 = 135;
/// `bpf_skc_to_tcp6_sock`
pub const SKC_TO_TCP6_SOCK: u32 = 136;
/// `bpf_skc_to_tcp_sock`
pub const SKC_TO_TCP_SOCK: u32 = 137;
/// `bpf_skc_to_tcp_timewait_sock`
pub const SKC_TO_TCP_TIMEWAIT_SOCK: u32 = 138;
/// `bpf_skc_to_tcp_request_sock`
pub const SKC_TO_TCP_REQUEST_SOCK: u32 = 139;
/// `bpf_skc_to_udp6_sock`
pub const SKC_TO_UDP6_SOCK: u32 = 140;
/// `bpf_get_task_stack`
pub const GET_TASK_STACK: u32 = 141;
/// `bpf_load_hdr_opt`
pub const LOAD_HDR_OPT: u32 = 142;
/// `bpf_store_hdr_opt`
pub const STORE_HDR_OPT: u32 = 143;
/// `bpf_reserve_hdr_opt`
pub const RESERVE_HDR_OPT: u32 = 144;
/// `bpf_inode_storage_get`
pub const INODE_STORAGE_GET: u32 = 145;
/// `bpf_inode_storage_delete`
pub const INODE_STORAGE_DELETE: u32 = 146;
/// `bpf_d_path`
pub const D_PATH: u32 = 147;
/// `bpf_copy_from_user`
pub const COPY_FROM_USER: u32 = 148;
/// `bpf_snprintf_btf`
pub const SNPRINTF_BTF: u32 = 149;
/// `bpf_seq_printf_btf`
pub const SEQ_PRINTF_BTF: u32 = 150;
/// `bpf_skb_cgroup_classid`
pub const SKB_CGROUP_CLASSID: u32 = 151;
/// `bpf_redirect_neigh`
pub const REDIRECT_NEIGH: u32 = 152;
/// `bpf_per_cpu_ptr`
pub const PER_CPU_PTR: u32 = 153;
/// `bpf_this_cpu_ptr`
pub const THIS_CPU_PTR: u32 = 154;
/// `bpf_redirect_peer`
pub const REDIRECT_PEER: u32 = 155;
/// `bpf_task_storage_get`
pub const TASK_STORAGE_GET: u32 = 156;
/// `bpf_task_storage_delete`
pub const TASK_STORAGE_DELETE: u32 = 157;
/// `bpf_get_current_task_btf`
pub const GET_CURRENT_TASK_BTF: u32 = 158;
/// `bpf_bprm_opts_set`
pub const BPRM_OPTS_SET: u32 = 159;
/// `bpf_ktime_get_coarse_ns`
pub const KTIME_GET_COARSE_NS: u32 = 160;
/// `bpf_ima_inode_hash`
pub const IMA_INODE_HASH: u32 = 161;
/// `bpf_sock_from_file`
pub const SOCK_FROM_FILE: u32 = 162;
/// `bpf_check_mtu`
pub const CHECK_MTU: u32 = 163;
/// `bpf_for_each_map_elem`
pub const FOR_EACH_MAP_ELEM: u32 = 164;
/// `bpf_snprintf`
pub const SNPRINTF: u32 = 165;
/// `bpf_sys_bpf`
pub const SYS_BPF: u32 = 166;
/// `bpf_btf_find_by_name_kind`
pub const BTF_FIND_BY_NAME_KIND: u32 = 167;
/// `bpf_sys_close`
pub const SYS_CLOSE: u32 = 168;
/// `bpf_timer_init`
pub const TIMER_INIT: u32 = 169;
/// `bpf_timer_set_callback`
pub const TIMER_SET_CALLBACK: u32 = 170;
/// `bpf_timer_start`
pub const TIMER_START: u32 = 171;
/// `bpf_timer_cancel`
pub const TIMER_CANCEL: u32 = 172;
/// `bpf_get_func_ip`
pub const GET_FUNC_IP: u32 = 173;
/// `bpf_get_attach_cookie`
pub const GET_ATTACH_COOKIE: u32 = 174;
/// `bpf_task_pt_regs`
pub const TASK_PT_REGS: u32 = 175;
/// `bpf_get_branch_snapshot`
pub const GET_BRANCH_SNAPSHOT: u32 = 176;
/// `bpf_trace_vprintk`
pub const TRACE_VPRINTK: u32 = 177;
/// `bpf_skc_to_unix_sock`
pub const SKC_TO_UNIX_SOCK: u32 = 178;
/// `bpf_kallsyms_lookup_name`
pub const KALLSYMS_LOOKUP_NAME: u32 = 179;
/// `bpf_find_vma`
pub const FIND_VMA: u32 = 180;
/// `bpf_loop`
pub const LOOP: u32 = 181;
/// `bpf_strncmp`
pub const STRNCMP: u32 = 182;
/// `bpf_get_func_arg`
pub const GET_FUNC_ARG: u32 = 183;
/// `bpf_get_func_ret`
pub const GET_FUNC_RET: u32 = 184;
/// `bpf_get_func_arg_cnt`
pub const GET_FUNC_ARG_CNT: u32 = 185;
/// `bpf_get_retval`
pub const GET_RETVAL: u32 = 186;
/// `bpf_set_retval`
pub const SET_RETVAL: u32 = 187;
/// `bpf_xdp_get_buff_len`
pub const XDP_GET_BUFF_LEN: u32 = 188;
/// `bpf_xdp_load_bytes`
pub const XDP_LOAD_BYTES: u32 = 189;
/// `bpf_xdp_store_bytes`
pub const XDP_STORE_BYTES: u32 = 190;
/// `bpf_copy_from_user_task`
pub const COPY_FROM_USER_TASK: u32 = 191;
/// `bpf_skb_set_tstamp`
pub const SKB_SET_TSTAMP: u32 = 192;
/// `bpf_ima_file_hash`
pub const IMA_FILE_HASH: u32 = 193;
/// `bpf_kptr_xchg`
pub const KPTR_XCHG: u32 = 194;
/// `bpf_map_lookup_percpu_elem`
pub const MAP_LOOKUP_PERCPU_ELEM: u32 = 195;
/// `bpf_skc_to_mptcp_sock`
pub const SKC_TO_MPTCP_SOCK: u32 = 196;
/// `bpf_dynptr_from_mem`
pub const DYNPTR_FROM_MEM: u32 = 197;
/// `bpf_ringbuf_reserve_dynptr`
pub const RINGBUF_RESERVE_DYNPTR: u32 = 198;
/// `bpf_ringbuf_submit_dynptr`
pub const RINGBUF_SUBMIT_DYNPTR: u32 = 199;
/// `bpf_ringbuf_discard_dynptr`
pub const RINGBUF_DISCARD_DYNPTR: u32 = 200;
/// `bpf_dynptr_read`
pub const DYNPTR_READ: u32 = 201;
/// `bpf_dynptr_write`
pub const DYNPTR_WRITE: u32 = 202;
/// `bpf_dynptr_data`
pub const DYNPTR_DATA: u32 = 203;
/// `bpf_tcp_raw_gen_syncookie_ipv4`
pub const TCP_RAW_GEN_SYNCOOKIE_IPV4: u32 = 204;
/// `bpf_tcp_raw_gen_syncookie_ipv6`
pub const TCP_RAW_GEN_SYNCOOKIE_IPV6: u32 = 205;
/// `bpf_tcp_raw_check_syncookie_ipv4`
pub const TCP_RAW_CHECK_SYNCOOKIE_IPV4: u32 = 206;
/// `bpf_tcp_raw_check_syncookie_ipv6`
pub const TCP_RAW_CHECK_SYNCOOKIE_IPV6: u32 = 207;
/// `bpf_ktime_get_tai_ns`
pub const KTIME_GET_TAI_NS: u32 = 208;
/// `bpf_user_ringbuf_drain`
pub const USER_RINGBUF_DRAIN: u32 = 209;
/// Those that call subprograms of their caller, of which the agent has any.
pub const CALLING_BACK: [u32; 3] = [FOR_EACH_MAP_ELEM, LOOP, USER_RINGBUF_DRAIN];
/// `bpf_cgrp_storage_get`
pub const CGRP_STORAGE_GET: u32 = 210;
/// `bpf_cgrp_storage_delete`
pub const CGRP_STORAGE_DELETE: u32 = 211;

/// Names in order of number, without the prefix `bpf_`.
pub const NAMES: &[&str] = &[
    "unspec",
    "map_lookup_elem",
    "map_update_elem",
    "map_delete_elem",
    "probe_read",
    "ktime_get_ns",
    "trace_printk",
    "get_prandom_u32",
    "get_smp_processor_id",
    "skb_store_bytes",
    "l3_csum_replace",
    "l4_csum_replace",
    "tail_call",
    "clone_redirect",
    "get_current_pid_tgid",
    "get_current_uid_gid",
    "get_current_comm",
    "get_cgroup_classid",
    "skb_vlan_push",
    "skb_vlan_pop",
    "skb_get_tunnel_key",
    "skb_set_tunnel_key",
    "perf_event_read",
    "redirect",
    "get_route_realm",
    "perf_event_output",
    "skb_load_bytes",
    "get_stackid",
    "csum_diff",
    "skb_get_tunnel_opt",
    "skb_set_tunnel_opt",
    "skb_change_proto",
    "skb_change_type",
    "skb_under_cgroup",
    "get_hash_recalc",
    "get_current_task",
    "probe_write_user",
    "current_task_under_cgroup",
    "skb_change_tail",
    "skb_pull_data",
    "csum_update",
    "set_hash_invalid",
    "get_numa_node_id",
    "skb_change_head",
    "xdp_adjust_head",
    "probe_read_str",
    "get_socket_cookie",
    "get_socket_uid",
    "set_hash",
    "setsockopt",
    "skb_adjust_room",
    "redirect_map",
    "sk_redirect_map",
    "sock_map_update",
    "xdp_adjust_meta",
    "perf_event_read_value",
    "perf_prog_read_value",
    "getsockopt",
    "override_return",
    "sock_ops_cb_flags_set",
    "msg_redirect_map",
    "msg_apply_bytes",
    "msg_cork_bytes",
    "msg_pull_data",
    "bind",
    "xdp_adjust_tail",
    "skb_get_xfrm_state",
    "get_stack",
    "skb_load_bytes_relative",
    "fib_lookup",
    "sock_hash_update",
    "msg_redirect_hash",
    "sk_redirect_hash",
    "lwt_push_encap",
    "lwt_seg6_store_bytes",
    "lwt_seg6_adjust_srh",
    "lwt_seg6_action",
    "rc_repeat",
    "rc_keydown",
    "skb_cgroup_id",
    "get_current_cgroup_id",
    "get_local_storage",
    "sk_select_reuseport",
    "skb_ancestor_cgroup_id",
    "sk_lookup_tcp",
    "sk_lookup_udp",
    "sk_release",
    "map_push_elem",
    "map_pop_elem",
    "map_peek_elem",
    "msg_push_data",
    "msg_pop_data",
    "rc_pointer_rel",
    "spin_lock",
    "spin_unlock",
    "sk_fullsock",
    "tcp_sock",
    "skb_ecn_set_ce",
    "get_listener_sock",
    "skc_lookup_tcp",
    "tcp_check_syncookie",
    "sysctl_get_name",
    "sysctl_get_current_value",
    "sysctl_get_new_value",
    "sysctl_set_new_value",
    "strtol",
    "strtoul",
    "sk_storage_get",
    "sk_storage_delete",
    "send_signal",
    "tcp_gen_syncookie",
    "skb_output",
    "probe_read_user",
    "probe_read_kernel",
    "probe_read_user_str",
    "probe_read_kernel_str",
    "tcp_send_ack",
    "send_signal_thread",
    "jiffies64",
    "read_branch_records",
    "get_ns_current_pid_tgid",
    "xdp_output",
    "get_netns_cookie",
    "get_current_ancestor_cgroup_id",
    "sk_assign",
    "ktime_get_boot_ns",
    "seq_printf",
    "seq_write",
    "sk_cgroup_id",
    "sk_ancestor_cgroup_id",
    "ringbuf_output",
    "ringbuf_reserve",
    "ringbuf_submit",
    "ringbuf_discard",
    "ringbuf_query",
    "csum_level",
    "skc_to_tcp6_sock",
    "skc_to_tcp_sock",
    "skc_to_tcp_timewait_sock",
    "skc_to_tcp_request_sock",
    "skc_to_udp6_sock",
    "get_task_stack",
    "load_hdr_opt",
    "store_hdr_opt",
    "reserve_hdr_opt",
    "inode_storage_get",
    "inode_storage_delete",
    "d_path",
    "copy_from_user",
    "snprintf_btf",
    "seq_printf_btf",
    "skb_cgroup_classid",
    "redirect_neigh",
    "per_cpu_ptr",
    "this_cpu_ptr",
    "redirect_peer",
    "task_storage_get",
    "task_storage_delete",
    "get_current_task_btf",
    "bprm_opts_set",
    "ktime_get_coarse_ns",
    "ima_inode_hash",
    "sock_from_file",
    "check_mtu",
    "for_each_map_elem",
    "snprintf",
    "sys_bpf",
    "btf_find_by_name_kind",
    "sys_close",
    "timer_init",
    "timer_set_callback",
    "timer_start",
    "timer_cancel",
    "get_func_ip",
    "get_attach_cookie",
    "task_pt_regs",
    "get_branch_snapshot",
    "trace_vprintk",
    "skc_to_unix_sock",
    "kallsyms_lookup_name",
    "find_vma",
    "loop",
    "strncmp",
    "get_func_arg",
    "get_func_ret",
    "get_func_arg_cnt",
    "get_retval",
    "set_retval",
    "xdp_get_buff_len",
    "xdp_load_bytes",
    "xdp_store_bytes",
    "copy_from_user_task",
    "skb_set_tstamp",
    "ima_file_hash",
    "kptr_xchg",
    "map_lookup_percpu_elem",
    "skc_to_mptcp_sock",
    "dynptr_from_mem",
    "ringbuf_reserve_dynptr",
    "ringbuf_submit_dynptr",
    "ringbuf_discard_dynptr",
    "dynptr_read",
    "dynptr_write",
    "dynptr_data",
    "tcp_raw_gen_syncookie_ipv4",
    "tcp_raw_gen_syncookie_ipv6",
    "tcp_raw_check_syncookie_ipv4",
    "tcp_raw_check_syncookie_ipv6",
    "ktime_get_tai_ns",
    "user_ringbuf_drain",
    "cgrp_storage_get",
    "cgrp_storage_delete",
];

/// Numbers from here on are ours, of kernel functions: programs name those by type ids of the kernel's BTF.
pub const KFUNC_FIRST: u32 = 1 << 31;
/// `bpf_map_sum_elem_count`
pub const MAP_SUM_ELEM_COUNT: u32 = KFUNC_FIRST;
/// `bpf_iter_num_new`
pub const ITER_NUM_NEW: u32 = KFUNC_FIRST + 1;
/// `bpf_iter_num_next`
pub const ITER_NUM_NEXT: u32 = KFUNC_FIRST + 2;
/// `bpf_iter_num_destroy`
pub const ITER_NUM_DESTROY: u32 = KFUNC_FIRST + 3;
/// `bpf_strcmp`
pub const STRCMP: u32 = KFUNC_FIRST + 4;
/// `bpf_strcasecmp`
pub const STRCASECMP: u32 = KFUNC_FIRST + 5;
/// `bpf_strchr`
pub const STRCHR: u32 = KFUNC_FIRST + 6;
/// `bpf_strchrnul`
pub const STRCHRNUL: u32 = KFUNC_FIRST + 7;
/// `bpf_strnchr`
pub const STRNCHR: u32 = KFUNC_FIRST + 8;
/// `bpf_strrchr`
pub const STRRCHR: u32 = KFUNC_FIRST + 9;
/// `bpf_strlen`
pub const STRLEN: u32 = KFUNC_FIRST + 10;
/// `bpf_strnlen`
pub const STRNLEN: u32 = KFUNC_FIRST + 11;
/// `bpf_strspn`
pub const STRSPN: u32 = KFUNC_FIRST + 12;
/// `bpf_strcspn`
pub const STRCSPN: u32 = KFUNC_FIRST + 13;
/// `bpf_strstr`
pub const STRSTR: u32 = KFUNC_FIRST + 14;
/// `bpf_strnstr`
pub const STRNSTR: u32 = KFUNC_FIRST + 15;
/// `bpf_dynptr_size`
pub const DYNPTR_SIZE: u32 = KFUNC_FIRST + 16;
/// `bpf_dynptr_is_null`
pub const DYNPTR_IS_NULL: u32 = KFUNC_FIRST + 17;
/// `bpf_dynptr_is_rdonly`
pub const DYNPTR_IS_RDONLY: u32 = KFUNC_FIRST + 18;
/// Numbers from here on are of functions that only extensions have: no kernel does.
pub const OWN_FIRST: u32 = KFUNC_FIRST + (1 << 16);
/// `ring3_dynptr_from_slice`
pub const DYNPTR_FROM_SLICE: u32 = OWN_FIRST;
/// Names of functions of ring3's without the prefix `ring3_`, from [`OWN_FIRST`] on.
pub const OWN_NAMES: &[&str] = &["dynptr_from_slice"];
/// Numbers from here on stand for functions of the host of an extension, in the order of its grant.
pub const HOST_FUNCTION_FIRST: u32 = 3 << 30;
/// What marks a call as one of the host, or of the agent, where an extension is loaded: no kernel function has such an offset, since
/// there are no modules here.
pub const HOST_MARK: i16 = 1;
/// Names of kernel functions without the prefix `bpf_`, from [`KFUNC_FIRST`] on.
pub const KFUNC_NAMES: &[&str] = &[
    "map_sum_elem_count",
    "iter_num_new",
    "iter_num_next",
    "iter_num_destroy",
    "strcmp",
    "strcasecmp",
    "strchr",
    "strchrnul",
    "strnchr",
    "strrchr",
    "strlen",
    "strnlen",
    "strspn",
    "strcspn",
    "strstr",
    "strnstr",
    "dynptr_size",
    "dynptr_is_null",
    "dynptr_is_rdonly",
];

/// The name of a helper, a kernel function or a function of ring3's, without its prefix.
pub fn name(helper: u32) -> Option<&'static str> {
    if let Some(own) = helper.checked_sub(OWN_FIRST) {
        return OWN_NAMES.get(own as usize).copied();
    }
    match helper.checked_sub(KFUNC_FIRST) {
        Some(kfunc) => KFUNC_NAMES.get(kfunc as usize).copied(),
        None => NAMES.get(helper as usize).copied(),
    }
}

/// Helpers that touch nothing but maps, clocks and the program's own memory, whoever runs the program.
pub const SELF_CONTAINED: [u32; 34] = [
    MAP_LOOKUP_ELEM,
    MAP_UPDATE_ELEM,
    MAP_DELETE_ELEM,
    MAP_PUSH_ELEM,
    MAP_POP_ELEM,
    MAP_PEEK_ELEM,
    MAP_LOOKUP_PERCPU_ELEM,
    FOR_EACH_MAP_ELEM,
    KTIME_GET_NS,
    KTIME_GET_BOOT_NS,
    KTIME_GET_COARSE_NS,
    KTIME_GET_TAI_NS,
    JIFFIES64,
    GET_PRANDOM_U32,
    GET_SMP_PROCESSOR_ID,
    GET_NUMA_NODE_ID,
    GET_ATTACH_COOKIE,
    STRNCMP,
    STRTOL,
    STRTOUL,
    LOOP,
    RINGBUF_OUTPUT,
    RINGBUF_RESERVE,
    RINGBUF_SUBMIT,
    RINGBUF_DISCARD,
    RINGBUF_QUERY,
    RINGBUF_RESERVE_DYNPTR,
    RINGBUF_SUBMIT_DYNPTR,
    RINGBUF_DISCARD_DYNPTR,
    USER_RINGBUF_DRAIN,
    DYNPTR_FROM_MEM,
    DYNPTR_READ,
    DYNPTR_WRITE,
    DYNPTR_DATA,
];
