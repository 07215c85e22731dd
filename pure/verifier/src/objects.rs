//! Kernel objects: what lies where in them, by the kernel's own types.
//! Mirrors kernel/bpf/btf.c:btf_struct_walk, btf_struct_ids_match and btf_ctx_access.

use std::collections::HashMap;

use ring3_btf::{Array, Btf, kind};
use ring3_isa::{Insn, code};
use ring3_uapi::bpf::{attach_type, prog_type};
use ring3_uapi::helper::{KFUNC_FIRST, KFUNC_NAMES};

use crate::policy::{Content, Context, Field, Sizes};

/// Structures within structures that are followed at most.
const DEPTH_MAX: u32 = 32;

/// Kernel functions: programs name them by type ids in the running kernel's BTF, where libbpf has found them.
#[derive(Clone, Debug, Default)]
pub struct KernelFunctions {
    /// Our numbers by the kernel's ids.
    numbers: HashMap<u32, u32>,
}

impl KernelFunctions {
    /// Those of a kernel's types that are here too.
    pub fn new(btf: &Btf) -> KernelFunctions {
        let number = |name: &[u8]| {
            let name = name.strip_prefix(b"bpf_")?;
            (KFUNC_FIRST..).zip(KFUNC_NAMES).find(|(_, ours)| ours.as_bytes() == name).map(|(number, _)| number)
        };
        let functions = btf.of_kind(kind::FUNC);
        KernelFunctions { numbers: functions.filter_map(|(id, name)| Some((id, number(name)?))).collect() }
    }

    /// Puts our numbers in place of the kernel's for functions that are here; the others stay, and will be refused.
    pub fn renumber(&self, insns: &mut [Insn]) {
        let calls = |insn: &&mut Insn| insn.opcode == code::BPF_CALL && insn.src() == code::BPF_PSEUDO_KFUNC_CALL;
        for insn in insns.iter_mut().filter(calls) {
            // With an offset it would be a module's BTF; a number of ours was never an id.
            let known = u32::try_from(insn.imm).ok().filter(|_| insn.off == 0).and_then(|id| self.numbers.get(&id));
            insn.imm = known.map_or(insn.imm.max(0), |number| *number as i32);
        }
    }
}

/// What a load from a kernel object gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// A number.
    Number,
    /// A pointer to another object.
    Object(u32),
    /// A pointer to something else, of which no size is known.
    Memory,
}

/// What a kernel variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variable {
    /// An object of this type.
    Object(u32),
    /// Plain memory of this many bytes.
    Memory(u32),
}

/// The kernel's types, for programs that walk its objects.
#[derive(Clone, Debug)]
pub struct KernelTypes {
    btf: Btf,
    structures: HashMap<Vec<u8>, u32>,
}

impl KernelTypes {
    /// Those of a kernel's BTF.
    pub fn new(btf: Btf) -> KernelTypes {
        let mut structures = HashMap::new();
        for (id, name) in btf.of_kind(kind::STRUCT) {
            structures.entry(name.to_vec()).or_insert(id);
        }
        KernelTypes { btf, structures }
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.structures.get(name.as_bytes()).copied()
    }

    fn name(&self, id: u32) -> String {
        String::from_utf8_lossy(self.btf.name_of(id)).into_owned()
    }

    fn is_structure(&self, id: u32) -> bool {
        matches!(self.btf.kind(id), Some(kind::STRUCT | kind::UNION))
    }

    /// The structure that a pointer points to.
    fn pointed_to(&self, id: u32) -> Option<u32> {
        let pointer = self.btf.plain(id);
        let to = self.btf.plain(self.btf.size_or_type(pointer));
        (self.btf.kind(pointer) == Some(kind::PTR) && self.is_structure(to)).then_some(to)
    }

    /// What lies at a place of an object.
    pub(crate) fn member(&self, id: u32, at: u32, bytes: u32) -> Result<Member, String> {
        self.walk(id, at, bytes, false, DEPTH_MAX)
    }

    /// Mirrors kernel/bpf/btf.c:btf_struct_walk. `in_union`: of which member the bytes are is not known.
    fn walk(&self, id: u32, at: u32, bytes: u32, in_union: bool, depth: u32) -> Result<Member, String> {
        let name = || self.name(id);
        let depth = depth.checked_sub(1).ok_or_else(|| format!("{} is nested too deeply", name()))?;
        if !self.is_structure(id) {
            return Err(format!("type {id} is no structure"));
        }
        let end = at.checked_add(bytes).ok_or("an offset that overflows")?;
        let size = self.btf.size_or_type(id);
        let in_union = in_union || self.btf.kind(id) == Some(kind::UNION) && self.btf.members(id).nth(1).is_some();
        for member in self.btf.members(id) {
            let (first, last) = (member.at_bits / 8, (member.at_bits + u32::from(member.bits as u8)).div_ceil(8));
            if member.bits != 0 {
                if at <= first && last <= end {
                    return Ok(Member::Number);
                }
                continue;
            }
            let Array { of: inner, count: length } = self.btf.elements(member.of);
            let Some((_, element)) = self.btf.sized(inner).filter(|(_, element)| *element > 0) else { continue };
            // An array without a length at the end is as long as need be.
            let flexible = length == 0 && first == size;
            let stretch =
                first..if flexible { u32::MAX } else { first.saturating_add(element.saturating_mul(length)) };
            if !stretch.contains(&at) {
                continue;
            }
            let plain = self.btf.plain(inner);
            let within = (at - first) % element;
            if self.is_structure(plain) {
                return self.walk(plain, within, bytes, in_union, depth);
            }
            let is_pointer = self.btf.kind(plain) == Some(kind::PTR);
            if end > stretch.end && (is_pointer || !in_union || end > size) {
                return Err(format!("access beyond the end of a member of {} at off {at} size {bytes}", name()));
            }
            if !is_pointer {
                return Ok(Member::Number);
            }
            if within != 0 || bytes != 8 {
                return Err(format!("cannot access ptr member of struct {} with off {at} size {bytes}", name()));
            }
            return Ok(self.pointed_to(plain).map_or(Member::Memory, Member::Object));
        }
        if end > size {
            return Err(format!("access beyond struct {} at off {at} size {bytes}", name()));
        }
        Err(format!("struct {} doesn't have field at offset {at}", name()))
    }

    /// Whether the first is the second, or begins with it.
    pub(crate) fn is_a(&self, id: u32, wanted: u32) -> bool {
        let mut id = id;
        for _ in 0..DEPTH_MAX {
            if id == wanted || self.btf.name_of(id) == self.btf.name_of(wanted) && !self.btf.name_of(id).is_empty() {
                return true;
            }
            let first = self.btf.members(id).find(|member| member.at_bits == 0 && member.bits == 0);
            match first.map(|member| self.btf.plain(member.of)).filter(|inner| self.is_structure(*inner)) {
                Some(inner) => id = inner,
                None => return false,
            }
        }
        false
    }

    /// What a kernel variable is, by its id.
    pub(crate) fn variable(&self, id: u32) -> Option<Variable> {
        if self.btf.kind(id) != Some(kind::VAR) {
            return None;
        }
        let plain = self.btf.plain(self.btf.size_or_type(id));
        if self.is_structure(plain) {
            return Some(Variable::Object(plain));
        }
        self.btf.sized(plain).map(|(_, bytes)| Variable::Memory(bytes))
    }

    /// What a program finds behind r1 that is attached to a function or a raw tracepoint with types.
    pub fn context(&self, kind: u32, attach: u32, attach_btf_id: u32) -> Option<Context> {
        if !matches!(kind, prog_type::TRACING | prog_type::LSM) || attach_btf_id == 0 {
            return None;
        }
        let tracepoint = attach == attach_type::TRACE_RAW_TP;
        let prototype = match self.btf.kind(attach_btf_id)? {
            kind::FUNC => self.btf.size_or_type(attach_btf_id),
            // `btf_trace_*`: a pointer to a function whose first argument is not the program's.
            kind::TYPEDEF if tracepoint => self.btf.size_or_type(self.btf.plain(attach_btf_id)),
            _ => return None,
        };
        let mut arguments: Vec<u32> = self.btf.parameters(prototype).map(|(_, of)| of).collect();
        if tracepoint && !arguments.is_empty() {
            arguments.remove(0);
        }
        if matches!(attach, attach_type::TRACE_FEXIT | attach_type::MODIFY_RETURN) {
            arguments.push(self.btf.size_or_type(prototype));
        }
        let nullable = attach == attach_type::TRACE_ITER;
        Some(Context::new((0..).zip(arguments).map(|(index, of)| self.argument(index, of, nullable)).collect()))
    }

    fn argument(&self, index: u32, of: u32, iterator: bool) -> Field {
        let at = index * 8..index * 8 + 8;
        match self.pointed_to(of) {
            Some(id) => {
                let nullable = iterator && index > 0;
                let content = Content::Object { id, nullable, trusted: true };
                Field { at, sizes: Sizes::Only(8), write: false, content }
            }
            None => Field { at, sizes: Sizes::Any, write: false, content: Content::Number },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_functions_are_found_by_name() {
        // int (id 1), func_proto (id 2), func (id 3), func (id 4).
        let types = [1u32, 0x0100_0000, 4, 0x20, 0, 0x0d00_0000, 1, 5, 0x0c00_0000, 2, 7, 0x0c00_0000, 2];
        let text = b"\0int\0f\0bpf_map_sum_elem_count\0";
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let header = [24, 0, types.len() as u32 * 4, types.len() as u32 * 4, text.len() as u32];
        bytes.extend(header.iter().chain(&types).flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(text);
        let known = KernelFunctions::new(&Btf::parse_any(bytes).expect("well-formed"));
        let call = |off, imm| Insn::new(code::BPF_CALL, 0, code::BPF_PSEUDO_KFUNC_CALL, off, imm);
        let mut insns = [call(0, 4), call(0, 3), call(1, 4), call(0, KFUNC_FIRST as i32)];
        known.renumber(&mut insns);
        assert_eq!(insns, [call(0, KFUNC_FIRST as i32), call(0, 3), call(1, 4), call(0, 0)]);
    }
}
