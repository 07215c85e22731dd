//! Section names, and what libbpf takes the programs in them for.

use ring3_btf::kind;
use ring3_uapi::bpf::{attach_type, prog_type};
use ring3_uapi::flags::{BPF_F_SLEEPABLE, BPF_F_XDP_HAS_FRAGS};

use crate::Kernel;

/// Names, as libbpf writes them (`section_defs`): a `+` may be followed by what is attached to. Program type, attach
/// type, flags.
#[rustfmt::skip]
const SECTIONS: &[(&str, u32, u32, u32)] = &[
    ("socket", prog_type::SOCKET_FILTER, 0, 0),
    ("sk_reuseport/migrate", prog_type::SK_REUSEPORT, attach_type::SK_REUSEPORT_SELECT_OR_MIGRATE, 0),
    ("sk_reuseport", prog_type::SK_REUSEPORT, attach_type::SK_REUSEPORT_SELECT, 0),
    ("kprobe+", prog_type::KPROBE, 0, 0),
    ("uprobe+", prog_type::KPROBE, 0, 0),
    ("uprobe.s+", prog_type::KPROBE, 0, BPF_F_SLEEPABLE),
    ("kretprobe+", prog_type::KPROBE, 0, 0),
    ("uretprobe+", prog_type::KPROBE, 0, 0),
    ("uretprobe.s+", prog_type::KPROBE, 0, BPF_F_SLEEPABLE),
    ("kprobe.multi+", prog_type::KPROBE, attach_type::TRACE_KPROBE_MULTI, 0),
    ("kretprobe.multi+", prog_type::KPROBE, attach_type::TRACE_KPROBE_MULTI, 0),
    ("kprobe.session+", prog_type::KPROBE, attach_type::TRACE_KPROBE_SESSION, 0),
    ("uprobe.multi+", prog_type::KPROBE, attach_type::TRACE_UPROBE_MULTI, 0),
    ("uretprobe.multi+", prog_type::KPROBE, attach_type::TRACE_UPROBE_MULTI, 0),
    ("uprobe.session+", prog_type::KPROBE, attach_type::TRACE_UPROBE_SESSION, 0),
    ("uprobe.multi.s+", prog_type::KPROBE, attach_type::TRACE_UPROBE_MULTI, BPF_F_SLEEPABLE),
    ("uretprobe.multi.s+", prog_type::KPROBE, attach_type::TRACE_UPROBE_MULTI, BPF_F_SLEEPABLE),
    ("uprobe.session.s+", prog_type::KPROBE, attach_type::TRACE_UPROBE_SESSION, BPF_F_SLEEPABLE),
    ("ksyscall+", prog_type::KPROBE, 0, 0),
    ("kretsyscall+", prog_type::KPROBE, 0, 0),
    ("usdt+", prog_type::KPROBE, 0, 0),
    ("usdt.s+", prog_type::KPROBE, 0, BPF_F_SLEEPABLE),
    ("tc/ingress", prog_type::SCHED_CLS, attach_type::TCX_INGRESS, 0),
    ("tc/egress", prog_type::SCHED_CLS, attach_type::TCX_EGRESS, 0),
    ("tcx/ingress", prog_type::SCHED_CLS, attach_type::TCX_INGRESS, 0),
    ("tcx/egress", prog_type::SCHED_CLS, attach_type::TCX_EGRESS, 0),
    ("tc", prog_type::SCHED_CLS, 0, 0),
    ("classifier", prog_type::SCHED_CLS, 0, 0),
    ("action", prog_type::SCHED_ACT, 0, 0),
    ("netkit/primary", prog_type::SCHED_CLS, attach_type::NETKIT_PRIMARY, 0),
    ("netkit/peer", prog_type::SCHED_CLS, attach_type::NETKIT_PEER, 0),
    ("tracepoint+", prog_type::TRACEPOINT, 0, 0),
    ("tp+", prog_type::TRACEPOINT, 0, 0),
    ("tracepoint.s+", prog_type::TRACEPOINT, 0, BPF_F_SLEEPABLE),
    ("tp.s+", prog_type::TRACEPOINT, 0, BPF_F_SLEEPABLE),
    ("raw_tracepoint+", prog_type::RAW_TRACEPOINT, 0, 0),
    ("raw_tp+", prog_type::RAW_TRACEPOINT, 0, 0),
    ("raw_tracepoint.s+", prog_type::RAW_TRACEPOINT, 0, BPF_F_SLEEPABLE),
    ("raw_tp.s+", prog_type::RAW_TRACEPOINT, 0, BPF_F_SLEEPABLE),
    ("raw_tracepoint.w+", prog_type::RAW_TRACEPOINT_WRITABLE, 0, 0),
    ("raw_tp.w+", prog_type::RAW_TRACEPOINT_WRITABLE, 0, 0),
    ("tp_btf+", prog_type::TRACING, attach_type::TRACE_RAW_TP, 0),
    ("tp_btf.s+", prog_type::TRACING, attach_type::TRACE_RAW_TP, BPF_F_SLEEPABLE),
    ("fentry+", prog_type::TRACING, attach_type::TRACE_FENTRY, 0),
    ("fmod_ret+", prog_type::TRACING, attach_type::MODIFY_RETURN, 0),
    ("fexit+", prog_type::TRACING, attach_type::TRACE_FEXIT, 0),
    ("fentry.s+", prog_type::TRACING, attach_type::TRACE_FENTRY, BPF_F_SLEEPABLE),
    ("fmod_ret.s+", prog_type::TRACING, attach_type::MODIFY_RETURN, BPF_F_SLEEPABLE),
    ("fexit.s+", prog_type::TRACING, attach_type::TRACE_FEXIT, BPF_F_SLEEPABLE),
    ("freplace+", prog_type::EXT, 0, 0),
    ("lsm+", prog_type::LSM, attach_type::LSM_MAC, 0),
    ("lsm.s+", prog_type::LSM, attach_type::LSM_MAC, BPF_F_SLEEPABLE),
    ("lsm_cgroup+", prog_type::LSM, attach_type::LSM_CGROUP, 0),
    ("iter+", prog_type::TRACING, attach_type::TRACE_ITER, 0),
    ("iter.s+", prog_type::TRACING, attach_type::TRACE_ITER, BPF_F_SLEEPABLE),
    ("syscall", prog_type::SYSCALL, 0, BPF_F_SLEEPABLE),
    ("xdp.frags/devmap", prog_type::XDP, attach_type::XDP_DEVMAP, BPF_F_XDP_HAS_FRAGS),
    ("xdp/devmap", prog_type::XDP, attach_type::XDP_DEVMAP, 0),
    ("xdp.frags/cpumap", prog_type::XDP, attach_type::XDP_CPUMAP, BPF_F_XDP_HAS_FRAGS),
    ("xdp/cpumap", prog_type::XDP, attach_type::XDP_CPUMAP, 0),
    ("xdp.frags", prog_type::XDP, attach_type::XDP, BPF_F_XDP_HAS_FRAGS),
    ("xdp", prog_type::XDP, attach_type::XDP, 0),
    ("perf_event", prog_type::PERF_EVENT, 0, 0),
    ("lwt_in", prog_type::LWT_IN, 0, 0),
    ("lwt_out", prog_type::LWT_OUT, 0, 0),
    ("lwt_xmit", prog_type::LWT_XMIT, 0, 0),
    ("lwt_seg6local", prog_type::LWT_SEG6LOCAL, 0, 0),
    ("sockops", prog_type::SOCK_OPS, attach_type::CGROUP_SOCK_OPS, 0),
    ("sk_skb/stream_parser", prog_type::SK_SKB, attach_type::SK_SKB_STREAM_PARSER, 0),
    ("sk_skb/stream_verdict", prog_type::SK_SKB, attach_type::SK_SKB_STREAM_VERDICT, 0),
    ("sk_skb/verdict", prog_type::SK_SKB, attach_type::SK_SKB_VERDICT, 0),
    ("sk_skb", prog_type::SK_SKB, 0, 0),
    ("sk_msg", prog_type::SK_MSG, attach_type::SK_MSG_VERDICT, 0),
    ("lirc_mode2", prog_type::LIRC_MODE2, attach_type::LIRC_MODE2, 0),
    ("flow_dissector", prog_type::FLOW_DISSECTOR, attach_type::FLOW_DISSECTOR, 0),
    ("cgroup_skb/ingress", prog_type::CGROUP_SKB, attach_type::CGROUP_INET_INGRESS, 0),
    ("cgroup_skb/egress", prog_type::CGROUP_SKB, attach_type::CGROUP_INET_EGRESS, 0),
    ("cgroup/skb", prog_type::CGROUP_SKB, 0, 0),
    ("cgroup/sock_create", prog_type::CGROUP_SOCK, attach_type::CGROUP_INET_SOCK_CREATE, 0),
    ("cgroup/sock_release", prog_type::CGROUP_SOCK, attach_type::CGROUP_INET_SOCK_RELEASE, 0),
    ("cgroup/sock", prog_type::CGROUP_SOCK, attach_type::CGROUP_INET_SOCK_CREATE, 0),
    ("cgroup/post_bind4", prog_type::CGROUP_SOCK, attach_type::CGROUP_INET4_POST_BIND, 0),
    ("cgroup/post_bind6", prog_type::CGROUP_SOCK, attach_type::CGROUP_INET6_POST_BIND, 0),
    ("cgroup/bind4", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET4_BIND, 0),
    ("cgroup/bind6", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET6_BIND, 0),
    ("cgroup/connect4", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET4_CONNECT, 0),
    ("cgroup/connect6", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET6_CONNECT, 0),
    ("cgroup/connect_unix", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UNIX_CONNECT, 0),
    ("cgroup/sendmsg4", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UDP4_SENDMSG, 0),
    ("cgroup/sendmsg6", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UDP6_SENDMSG, 0),
    ("cgroup/sendmsg_unix", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UNIX_SENDMSG, 0),
    ("cgroup/recvmsg4", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UDP4_RECVMSG, 0),
    ("cgroup/recvmsg6", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UDP6_RECVMSG, 0),
    ("cgroup/recvmsg_unix", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UNIX_RECVMSG, 0),
    ("cgroup/getpeername4", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET4_GETPEERNAME, 0),
    ("cgroup/getpeername6", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET6_GETPEERNAME, 0),
    ("cgroup/getpeername_unix", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UNIX_GETPEERNAME, 0),
    ("cgroup/getsockname4", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET4_GETSOCKNAME, 0),
    ("cgroup/getsockname6", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_INET6_GETSOCKNAME, 0),
    ("cgroup/getsockname_unix", prog_type::CGROUP_SOCK_ADDR, attach_type::CGROUP_UNIX_GETSOCKNAME, 0),
    ("cgroup/sysctl", prog_type::CGROUP_SYSCTL, attach_type::CGROUP_SYSCTL, 0),
    ("cgroup/getsockopt", prog_type::CGROUP_SOCKOPT, attach_type::CGROUP_GETSOCKOPT, 0),
    ("cgroup/setsockopt", prog_type::CGROUP_SOCKOPT, attach_type::CGROUP_SETSOCKOPT, 0),
    ("cgroup/dev", prog_type::CGROUP_DEVICE, attach_type::CGROUP_DEVICE, 0),
    ("struct_ops+", prog_type::STRUCT_OPS, 0, 0),
    ("struct_ops.s+", prog_type::STRUCT_OPS, 0, BPF_F_SLEEPABLE),
    ("sk_lookup", prog_type::SK_LOOKUP, attach_type::SK_LOOKUP, 0),
    ("netfilter", prog_type::NETFILTER, attach_type::NETFILTER, 0),
];

/// What a section says of its programs.
pub(crate) struct Attachment<'a> {
    pub(crate) section: &'a str,
    pub(crate) autoload: bool,
    pub(crate) prog_type: u32,
    pub(crate) attach_type: u32,
    pub(crate) flags: u32,
    pub(crate) to: Option<&'a str>,
}

impl<'a> Attachment<'a> {
    /// Of a section's name. One that libbpf does not know is of no type; a loader that gives it one may still use it.
    pub(crate) fn of(name: &'a str) -> Attachment<'a> {
        let section = name.strip_prefix('?').unwrap_or(name);
        let known = SECTIONS.iter().find_map(|(known, prog_type, attach_type, flags)| {
            let rest = match known.strip_suffix('+') {
                Some(prefix) => {
                    section.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'))?
                }
                None => (section == *known).then_some("")?,
            };
            Some((*prog_type, *attach_type, *flags, rest.strip_prefix('/').filter(|rest| !rest.is_empty())))
        });
        let (prog_type, attach_type, flags, to) = known.unwrap_or_default();
        Attachment { section, autoload: section.len() == name.len(), prog_type, attach_type, flags, to }
    }

    /// The kernel's type of what it is attached to; 0: there is none, or it wants none.
    /// Mirrors src/libbpf.c:btf_get_kernel_prefix_kind.
    pub(crate) fn target(&self, kernel: &Kernel) -> u32 {
        let (prefix, kind) = match (self.prog_type, self.attach_type) {
            (prog_type::TRACING, attach_type::TRACE_RAW_TP) => ("btf_trace_", kind::TYPEDEF),
            (prog_type::TRACING, attach_type::TRACE_ITER) => ("bpf_iter_", kind::FUNC),
            (prog_type::TRACING, _) => ("", kind::FUNC),
            (prog_type::LSM, _) => ("bpf_lsm_", kind::FUNC),
            _ => return 0,
        };
        let name = self.to.map(|to| format!("{prefix}{to}"));
        name.and_then(|name| kernel.find(name.as_bytes(), kind)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_what_libbpf_takes_them_for() {
        let of = |name| {
            let found = Attachment::of(name);
            (found.prog_type, found.attach_type, found.flags, found.to)
        };
        assert_eq!(of("kprobe/vfs_read"), (prog_type::KPROBE, 0, 0, Some("vfs_read")));
        assert_eq!(of("usdt"), (prog_type::KPROBE, 0, 0, None));
        assert_eq!(
            of("?lsm.s/file_open"),
            (prog_type::LSM, attach_type::LSM_MAC, BPF_F_SLEEPABLE, Some("file_open"))
        );
        assert_eq!(of("kprobes"), (prog_type::UNSPEC, 0, 0, None));
        assert_eq!(of("tc/egress"), (prog_type::SCHED_CLS, attach_type::TCX_EGRESS, 0, None));
        assert!(!Attachment::of("?tp/a/b").autoload);
    }
}
