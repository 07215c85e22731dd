//! The running kernel's functions that programs may call.

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
