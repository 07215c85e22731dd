//! The members of a map's value that are more than bytes (`struct btf_record`).

use ring3_uapi::Errno;

use crate::{Btf, DEPTH_MAX, Type, kind};

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum SpecialKind {
    SpinLock,
    ResSpinLock,
    Timer,
    Workqueue,
    TaskWork,
    ListHead,
    ListNode,
    RbRoot,
    RbNode,
    Refcount,
    Kptr,
}

use SpecialKind::{
    Kptr, ListHead, ListNode, RbNode, RbRoot, Refcount, ResSpinLock, SpinLock, TaskWork, Timer, Workqueue,
};

/// Structures that are members of their own kind: name, kind, size and alignment in bytes.
const STRUCTURES: &[(&[u8], SpecialKind, u32, u32)] = &[
    (b"bpf_spin_lock", SpinLock, 4, 4),
    (b"bpf_res_spin_lock", ResSpinLock, 4, 4),
    (b"bpf_timer", Timer, 16, 8),
    (b"bpf_wq", Workqueue, 16, 8),
    (b"bpf_task_work", TaskWork, 8, 8),
    (b"bpf_list_head", ListHead, 16, 8),
    (b"bpf_list_node", ListNode, 24, 8),
    (b"bpf_rb_root", RbRoot, 16, 8),
    (b"bpf_rb_node", RbNode, 32, 8),
    (b"bpf_refcount", Refcount, 4, 4),
];
/// Tags of pointers to kernel objects.
const TAGS: [&[u8]; 4] = [b"kptr_untrusted", b"kptr", b"percpu_kptr", b"uptr"];
/// Members of a value at most (`BTF_FIELDS_MAX`).
const SPECIALS_MAX: usize = 11;
/// Members that are looked at for all structures of some types: those of structures in structures are looked at
/// once for each place that they have, and a few bytes of types can have more places than there is time.
const VISITS_MAX: u32 = 1 << 24;

/// A member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// What it is.
    pub kind: SpecialKind,
    /// Where it begins in the value, bytes.
    pub at: u32,
}

impl SpecialKind {
    /// The kernel's word for it.
    pub fn name(self) -> &'static str {
        let known = STRUCTURES.iter().find(|(_, kind, ..)| *kind == self);
        known.and_then(|(name, ..)| std::str::from_utf8(name).ok()).unwrap_or("kptr")
    }

    /// There can be one only.
    fn is_unique(self) -> bool {
        matches!(self, SpinLock | ResSpinLock | Timer | Workqueue | TaskWork | Refcount)
    }
}

/// A walk through the members of a value.
struct Search<'a> {
    ignored: &'a [SpecialKind],
    found: Vec<Special>,
    /// Members that may still be looked at.
    visits: &'a mut u32,
}

impl Search<'_> {
    fn add(&mut self, special: Special, align: u32) -> Result<(), Errno> {
        if self.ignored.contains(&special.kind) {
            return Ok(());
        }
        let again = special.kind.is_unique() && self.found.iter().any(|other| other.kind == special.kind);
        if again || self.found.len() >= SPECIALS_MAX {
            return Err(Errno::E2BIG);
        }
        if !special.at.is_multiple_of(align) {
            return Err(Errno::EFAULT);
        }
        self.found.push(special);
        Ok(())
    }
}

impl Btf {
    /// The special members of a value of this type. Mirrors kernel/bpf/btf.c:btf_parse_fields and btf_find_field.
    ///
    /// # Errors
    /// `E2BIG` for two of which there can be one, too many, or too deep a nesting; `EFAULT` for a misplaced one,
    /// `EINVAL` for those that cannot be together.
    pub fn specials(&self, value: u32) -> Result<Vec<Special>, Errno> {
        let mut visits = VISITS_MAX;
        self.specials_but(value, &[], &mut visits)
    }

    /// Structures' members must make sense before there are maps of them: of the kinds that programs' own objects may
    /// have. Mirrors kernel/bpf/btf.c:btf_parse_struct_metas.
    pub(crate) fn check_structures(&self) -> Result<(), Errno> {
        let mut visits = VISITS_MAX;
        let mut structures = self.of_kind(kind::STRUCT);
        structures.try_for_each(|(id, _)| self.specials_but(id, &[Timer, Workqueue, TaskWork], &mut visits).map(drop))
    }

    fn specials_but(&self, value: u32, ignored: &[SpecialKind], visits: &mut u32) -> Result<Vec<Special>, Errno> {
        let mut search = Search { ignored, found: vec![], visits };
        if let Some(value) = self.get(value) {
            self.collect(value, 0, DEPTH_MAX, &mut search)?;
        }
        let has = |kind| search.found.iter().any(|special| special.kind == kind);
        let locked = has(SpinLock) || has(ResSpinLock);
        if has(SpinLock) && has(ResSpinLock) || (has(ListHead) || has(RbRoot)) && !locked {
            return Err(Errno::EINVAL);
        }
        Ok(search.found)
    }

    fn collect(&self, of: &Type, base: u32, depth: u32, search: &mut Search<'_>) -> Result<(), Errno> {
        let depth = depth.checked_sub(1).ok_or(Errno::E2BIG)?;
        // Members: name, type, bit offset; variables of a section: type, byte offset, size.
        let (type_at, offset_at, unit) = match of.kind {
            kind::STRUCT => (1, 2, 8),
            kind::DATASEC => (0, 1, 1),
            _ => return Ok(()),
        };
        for member in 0..of.count {
            *search.visits = search.visits.checked_sub(1).ok_or(Errno::E2BIG)?;
            let word = |at| self.extra(of, member * 3 + at).unwrap_or(0);
            let at = base.wrapping_add((word(offset_at) & 0x00ff_ffff) / unit);
            let id = match of.kind {
                kind::DATASEC => self.get(word(type_at)).map_or(0, |var| var.size_or_type),
                _ => word(type_at),
            };
            self.collect_member(id, at, depth, search)?;
        }
        Ok(())
    }

    fn collect_member(&self, id: u32, at: u32, depth: u32, search: &mut Search<'_>) -> Result<(), Errno> {
        let Some(member) = self.get(self.element(id)) else { return Ok(()) };
        let special = match member.kind {
            kind::STRUCT => {
                let known = STRUCTURES.iter().find(|(name, ..)| *name == self.name(member));
                match known.filter(|(_, _, size, _)| *size == member.size_or_type) {
                    Some((_, kind, _, align)) => Some((*kind, *align)),
                    None => return self.collect(member, at, depth, search),
                }
            }
            kind::PTR => {
                let tag = self.get(member.size_or_type).filter(|to| to.kind == kind::TYPE_TAG);
                tag.filter(|tag| TAGS.contains(&self.name(tag))).map(|_| (Kptr, 8))
            }
            _ => None,
        };
        match special {
            Some((kind, align)) => search.add(Special { kind, at }, align),
            None => Ok(()),
        }
    }

    /// The type of an array's elements, of any dimension; another type itself.
    fn element(&self, mut id: u32) -> u32 {
        for _ in 0..DEPTH_MAX {
            match self.get(id).filter(|found| found.kind == kind::ARRAY).and_then(|array| self.extra(array, 0)) {
                Some(of) => id = of,
                None => break,
            }
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types: 1 int, 2 struct bpf_spin_lock { int }, then `more`.
    fn parsed(more: &[u32], strings: &str) -> Result<Btf, Errno> {
        let mut words = vec![1, 0x0100_0000, 4, 0x0100_0020, 5, 0x0400_0001, 4, 1, 1, 0];
        words.extend_from_slice(more);
        let text = format!("\0int\0bpf_spin_lock\0{strings}");
        let bytes = words.len() as u32 * 4;
        let mut blob = vec![0x9f, 0xeb, 1, 0];
        let header = [24, 0, bytes, bytes, text.len() as u32];
        blob.extend(header.iter().chain(&words).flat_map(|word| word.to_le_bytes()));
        blob.extend_from_slice(text.as_bytes());
        Btf::parse(blob).map_err(|(errno, _)| errno)
    }

    #[test]
    fn a_lock_is_found_in_a_nested_structure() {
        // 3: struct { int; lock at 4 }, 4: struct { int; 3 at 8 bytes }
        let btf = parsed(&[0, 0x0400_0002, 8, 1, 1, 0, 1, 2, 32, 0, 0x0400_0002, 16, 1, 1, 0, 1, 3, 64], "")
            .expect("well-formed");
        assert_eq!(btf.specials(4), Ok(vec![Special { kind: SpinLock, at: 12 }]));
        assert_eq!(btf.sized(4), Some((4, 16)));
    }

    #[test]
    fn two_locks_and_a_misplaced_one_are_refused() {
        let two = parsed(&[0, 0x0400_0002, 8, 1, 2, 0, 1, 2, 32], "");
        assert_eq!(two.err(), Some(Errno::E2BIG));
        let odd = parsed(&[0, 0x0400_0001, 8, 1, 2, 16], "");
        assert_eq!(odd.err(), Some(Errno::EFAULT));
    }

    #[test]
    fn structures_in_structures_come_to_an_end() {
        // 3: struct { 3 a; 3 b; }
        let looped = parsed(&[0, 0x0400_0002, 16, 1, 3, 0, 1, 3, 64], "");
        assert_eq!(looped.err(), Some(Errno::E2BIG));
        // 3: struct { int; }, and 28 structures each of which holds the one before twice.
        let mut doubled = vec![0, 0x0400_0001, 4, 1, 1, 0];
        (3..31).for_each(|inner| doubled.extend([0, 0x0400_0002, 8, 1, inner, 0, 1, inner, 32]));
        assert_eq!(parsed(&doubled, "").err(), Some(Errno::E2BIG));
    }

    #[test]
    fn a_loop_of_types_has_no_size() {
        let looped = parsed(&[0, 0x0a00_0000, 4, 0, 0x0900_0000, 3], "");
        assert_eq!(looped.expect("well-formed").sized(3), None);
    }
}
