//! Kernel objects: what lies where in them, by the kernel's own types.
//! Mirrors kernel/bpf/btf.c:btf_struct_walk, btf_struct_ids_match and btf_ctx_access.

use std::collections::HashMap;

use ring3_btf::{Btf, kind};
use ring3_uapi::bpf::{attach_type, prog_type};

use crate::policy::{Content, Context, Field, Sizes};

/// Structures within structures that are followed at most.
const DEPTH_MAX: u32 = 32;

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
        self.walk(id, at, bytes, DEPTH_MAX)
    }

    fn walk(&self, id: u32, at: u32, bytes: u32, depth: u32) -> Result<Member, String> {
        let name = || self.name(id);
        let depth = depth.checked_sub(1).ok_or_else(|| format!("{} is nested too deeply", name()))?;
        if !self.is_structure(id) {
            return Err(format!("type {id} is no structure"));
        }
        let end = at.checked_add(bytes).ok_or("an offset that overflows")?;
        let size = self.btf.size_or_type(id);
        for member in self.btf.members(id) {
            let (first, last) = (member.at_bits / 8, (member.at_bits + u32::from(member.bits as u8)).div_ceil(8));
            if member.bits != 0 {
                if at <= first && last <= end {
                    return Ok(Member::Number);
                }
                continue;
            }
            let (inner, length) = self.elements(member.of);
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
                return self.walk(plain, within, bytes, depth);
            }
            if end > stretch.end {
                return Err(format!("access beyond the end of a member of {} at off {at} size {bytes}", name()));
            }
            if self.btf.kind(plain) != Some(kind::PTR) {
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

    /// The innermost element of an array type, and how many there are; else the type itself.
    fn elements(&self, mut id: u32) -> (u32, u32) {
        let mut count = 1u32;
        for _ in 0..DEPTH_MAX {
            let Some(array) = self.btf.array(self.btf.plain(id)) else { break };
            count = count.saturating_mul(array.count);
            id = array.of;
        }
        (id, count)
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
