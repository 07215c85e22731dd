//! Kernel functions: programs name them by type ids in the running kernel's BTF, where libbpf has found them.

use std::collections::HashMap;
use std::sync::OnceLock;

use ring3_btf::{Btf, kind};
use ring3_isa::{Insn, code};
use ring3_uapi::helper::{KFUNC_FIRST, KFUNC_NAMES};

const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
const PSEUDO_KFUNC_CALL: u8 = 2;

/// Puts our numbers in place of the kernel's for functions that are here; the others stay, and will be refused.
pub(super) fn renumber(insns: &mut [Insn]) {
    for insn in insns.iter_mut().filter(|insn| insn.opcode == code::BPF_CALL && insn.src() == PSEUDO_KFUNC_CALL) {
        // With an offset it would be a module's BTF; a number of ours was never an id.
        let known = u32::try_from(insn.imm).ok().filter(|_| insn.off == 0).and_then(|id| kernel_functions().get(&id));
        insn.imm = known.map_or(insn.imm.max(0), |number| *number as i32);
    }
}

/// Our numbers by the kernel's type ids; nothing without the kernel's BTF.
fn kernel_functions() -> &'static HashMap<u32, u32> {
    static KNOWN: OnceLock<HashMap<u32, u32>> = OnceLock::new();
    KNOWN.get_or_init(|| std::fs::read(KERNEL_BTF).ok().and_then(functions).unwrap_or_default())
}

fn functions(btf: Vec<u8>) -> Option<HashMap<u32, u32>> {
    let btf = Btf::parse(btf).ok()?;
    let ours = |name: &[u8]| KFUNC_NAMES.iter().position(|ours| name.strip_prefix(b"bpf_") == Some(ours.as_bytes()));
    let known = btf.of_kind(kind::FUNC).filter_map(|(id, name)| Some((id, KFUNC_FIRST + ours(name)? as u32)));
    Some(known.collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn functions_are_found_by_name() {
        // int (id 1), func_proto (id 2), func (id 3), func (id 4).
        let types = [1u32, 0x0100_0000, 4, 0x20, 0, 0x0d00_0000, 1, 5, 0x0c00_0000, 2, 7, 0x0c00_0000, 2];
        let text = b"\0int\0f\0bpf_map_sum_elem_count\0";
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types.len() as u32 * 4, types.len() as u32 * 4, text.len() as u32] {
            btf.extend_from_slice(&u32::to_le_bytes(word));
        }
        types.iter().for_each(|word| btf.extend_from_slice(&word.to_le_bytes()));
        btf.extend_from_slice(text);
        assert_eq!(super::functions(btf.clone()), Some([(4, super::KFUNC_FIRST)].into()));
        btf.truncate(60);
        assert_eq!(super::functions(btf), None);
    }
}
