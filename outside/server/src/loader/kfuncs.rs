//! The running kernel's functions that programs may call, and its tracepoints.

use std::sync::OnceLock;

use ring3_btf::Btf;
use ring3_verifier::KernelFunctions;

pub(crate) const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Those that are here too; none without the kernel's types.
pub(super) fn known() -> &'static KernelFunctions {
    static KNOWN: OnceLock<KernelFunctions> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let types = std::fs::read(KERNEL_BTF).ok().and_then(|bytes| Btf::parse_any(bytes).ok());
        types.map(|types| KernelFunctions::new(&types)).unwrap_or_default()
    })
}

/// Whether the kernel has a raw tracepoint of this name: its BTF has a `typedef` for each.
pub(super) fn has_tracepoint(name: &str) -> bool {
    let wanted = format!("\0btf_trace_{name}\0").into_bytes();
    let types = std::fs::read(KERNEL_BTF).unwrap_or_default();
    types.windows(wanted.len()).any(|bytes| bytes == wanted)
}
