//! The kernel's types, and those of a name among them.

use ring3_btf::{Btf, kind};

use crate::Error;

/// The kernel's types.
#[derive(Clone, Debug)]
pub struct Kernel {
    btf: Btf,
    /// The types that have names, in the order of those.
    by_name: Vec<u32>,
}

/// A name without what follows `___`. Mirrors src/libbpf_internal.h:bpf_core_essential_name_len.
pub(crate) fn essential(name: &[u8]) -> &[u8] {
    let flavor = |at: &usize| {
        let around = &name[*at..*at + 5];
        around[0] != b'_' && around[1..4] == *b"___" && around[4] != b'_'
    };
    match (0..name.len().saturating_sub(4)).rev().find(flavor) {
        Some(at) => &name[..=at],
        None => name,
    }
}

impl Kernel {
    /// Checks the bytes of `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    /// They are no types.
    pub fn parse(bytes: Vec<u8>) -> Result<Kernel, Error> {
        let btf = Btf::parse_any(bytes).map_err(|(_, what)| Error::types(what))?;
        let mut by_name: Vec<u32> = (1..=btf.count()).filter(|id| !btf.name_of(*id).is_empty()).collect();
        by_name.sort_by_cached_key(|id| essential(btf.name_of(*id)));
        Ok(Kernel { btf, by_name })
    }

    /// A kernel that tells nothing of itself.
    pub fn without_types() -> Kernel {
        // One type, `int`: there is no BTF without any.
        const INT: [u32; 9] = [24, 0, 16, 16, 5, 1, kind::INT << 24, 4, 32];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(INT.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(b"\0int\0");
        Kernel::parse(bytes).expect("well-formed")
    }

    /// The types themselves.
    pub fn btf(&self) -> &Btf {
        &self.btf
    }

    /// All types of a name, whatever their flavors.
    pub(crate) fn named<'k>(&'k self, name: &[u8]) -> impl Iterator<Item = u32> + use<'k> {
        let of = |id: &u32| essential(self.btf.name_of(*id));
        let start = self.by_name.partition_point(|id| of(id) < name);
        let count = self.by_name[start..].partition_point(|id| of(id) == name);
        self.by_name[start..start + count].iter().copied()
    }

    /// The first type of a name and kind.
    pub fn find(&self, name: &[u8], kind: u32) -> Option<u32> {
        let is = |id: &u32| self.btf.kind(*id) == Some(kind) && self.btf.name_of(*id) == name;
        self.named(essential(name)).find(is)
    }

    /// The first function or variable of a name.
    pub(crate) fn symbol(&self, name: &[u8], function: bool) -> Option<u32> {
        self.find(name, if function { kind::FUNC } else { kind::VAR })
    }
}
