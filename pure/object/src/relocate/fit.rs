//! The same access in other types.

use std::cell::Cell;

use ring3_btf::{Btf, encoding, kind};

use super::Kind;
use super::spec::{STEPS_MAX, Spec, Step, is_flexible, size_bits};
use crate::kernel::essential;

/// References followed at most.
const DEPTH_MAX: u32 = 32;
/// Structures inside structures that are compared at most.
const LEVELS_MAX: u32 = 32;
/// Types and members looked at for one question at most: a few bytes of types can lead to more than there is time for.
const VISITS_MAX: u32 = 1 << 20;

type Fitted<T> = Result<T, &'static str>;

fn is_composite(kind: Option<u32>) -> bool {
    matches!(kind, Some(kind::STRUCT | kind::UNION))
}

fn is_enumeration(kind: Option<u32>) -> bool {
    matches!(kind, Some(kind::ENUM | kind::ENUM64))
}

/// Mirrors src/relo_core.c:btf_kind_core_compat.
pub(super) fn kinds_agree(one: Option<u32>, other: Option<u32>) -> bool {
    one == other || is_enumeration(one) && is_enumeration(other)
}

impl Spec<'_> {
    /// This access in another type of the same name; `None` if there is none such.
    /// Mirrors src/relo_core.c:bpf_core_spec_match.
    pub(super) fn fit<'k>(&self, btf: &'k Btf, candidate: u32) -> Fitted<Option<Spec<'k>>> {
        let mut spec = Spec::new(btf, self.kind, candidate);
        if self.kind.is_of_type() {
            let fits = match self.kind {
                Kind::TypeMatches => Pair::new(self.btf, btf).types_match(self.root, candidate, false, LEVELS_MAX),
                _ => types_are_compatible(self.btf, self.root, btf, candidate),
            };
            return Ok(fits.then_some(spec));
        }
        let mut of = btf.plain(candidate);
        if self.kind.is_of_value() {
            let wanted = self.steps.first().and_then(|step| step.name).map(essential);
            let found = (0..).zip(btf.values(of)).find(|(_, (name, _))| Some(essential(name)) == wanted);
            let Some((index, (name, _))) = found else { return Ok(None) };
            spec.steps.push(Step { of, index, name: Some(name) });
            return Ok(Some(spec));
        }
        for (index, step) in self.steps.iter().enumerate() {
            of = btf.plain(of);
            if step.name.is_some() {
                let local = self.btf.member(step.of, step.index as usize).ok_or("a member that is not there")?;
                let mut wanted = MemberSearch { btf: self.btf, name: local.name, of: local.of, visits: VISITS_MAX };
                match spec.find_member(&mut wanted, of, STEPS_MAX)? {
                    Some(next) => of = next,
                    None => return Ok(None),
                }
                continue;
            }
            // The first index is that of the structure itself in an array of such.
            if index > 0 {
                let Some(array) = btf.array(of) else { return Ok(None) };
                if step.index >= array.count && !is_flexible(btf, spec.steps.last(), array) {
                    return Ok(None);
                }
                of = btf.plain(array.of);
            }
            spec.steps.push(Step { of, index: step.index, name: None });
            let at = size_bits(btf, of).and_then(|bits| step.index.checked_mul(bits));
            spec.at_bits = at.and_then(|at| spec.at_bits.checked_add(at)).ok_or("an element that is too far")?;
        }
        Ok(Some(spec))
    }
}

/// A member that is looked for.
struct MemberSearch<'b> {
    btf: &'b Btf,
    name: &'b [u8],
    of: u32,
    /// Members that may still be looked at.
    visits: u32,
}

impl Spec<'_> {
    /// Steps to a member, through members without a name; its type. Mirrors src/relo_core.c:bpf_core_match_member.
    fn find_member(&mut self, wanted: &mut MemberSearch<'_>, of: u32, depth: usize) -> Fitted<Option<u32>> {
        let of = self.btf.plain(of);
        let depth = depth.checked_sub(1).ok_or("an access that is too deep")?;
        for (index, member) in (0..).zip(self.btf.members(of)) {
            wanted.visits = wanted.visits.checked_sub(1).ok_or("an access to a structure that is too large")?;
            let before = self.at_bits;
            self.at_bits = before.checked_add(member.at_bits).ok_or("a member that is too far")?;
            if member.name.is_empty() {
                if let Some(found) = self.find_member(wanted, member.of, depth)? {
                    return Ok(Some(found));
                }
            } else if member.name == wanted.name {
                self.steps.push(Step { of, index, name: Some(member.name) });
                let agree = fields_are_compatible(wanted.btf, wanted.of, self.btf, member.of);
                return Ok(agree.then_some(member.of));
            }
            self.at_bits = before;
        }
        Ok(None)
    }
}

/// Mirrors src/relo_core.c:bpf_core_fields_are_compat.
fn fields_are_compatible(local: &Btf, local_id: u32, target: &Btf, target_id: u32) -> bool {
    let (mut one, mut other) = (local_id, target_id);
    for _ in 0..DEPTH_MAX {
        (one, other) = (local.plain(one), target.plain(other));
        let kind = local.kind(one);
        if is_composite(kind) && is_composite(target.kind(other)) {
            return true;
        }
        if !kinds_agree(kind, target.kind(other)) {
            return false;
        }
        match kind {
            Some(kind::PTR | kind::FLOAT) => return true,
            Some(kind::FWD | kind::ENUM | kind::ENUM64) => {
                let (one, other) = (essential(local.name_of(one)), essential(target.name_of(other)));
                return one.is_empty() || other.is_empty() || one == other;
            }
            Some(kind::INT) => return local.int_offset(one) == 0 && target.int_offset(other) == 0,
            Some(kind::ARRAY) => match (local.array(one), target.array(other)) {
                (Some(local), Some(target)) => (one, other) = (local.of, target.of),
                _ => return false,
            },
            _ => return false,
        }
    }
    false
}

/// Whether types are of the same kind as far as values go. Mirrors src/relo_core.c:bpf_core_types_are_compat.
pub(crate) fn types_are_compatible(local: &Btf, local_id: u32, target: &Btf, target_id: u32) -> bool {
    Pair::new(local, target).types_are_compatible(local_id, target_id, DEPTH_MAX)
}

/// The types between which two are compared.
struct Pair<'b> {
    local: &'b Btf,
    target: &'b Btf,
    /// Types that may still be looked at.
    visits: Cell<u32>,
}

fn names_match(one: &[u8], other: &[u8]) -> bool {
    if other.is_empty() { one.is_empty() } else { essential(one) == essential(other) }
}

impl<'b> Pair<'b> {
    fn new(local: &'b Btf, target: &'b Btf) -> Pair<'b> {
        Pair { local, target, visits: Cell::new(VISITS_MAX) }
    }

    /// One level deeper; `None` if that is too deep, or too much was looked at.
    fn descend(&self, level: u32) -> Option<u32> {
        self.visits.set(self.visits.get().checked_sub(1)?);
        level.checked_sub(1)
    }

    fn types_are_compatible(&self, one: u32, other: u32, depth: u32) -> bool {
        let Some(depth) = self.descend(depth) else { return false };
        let (local, target) = (self.local, self.target);
        let (one, other) = (local.plain(one), target.plain(other));
        let kind = local.kind(one);
        if !kinds_agree(kind, target.kind(other)) {
            return false;
        }
        match kind {
            None | Some(kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FWD) => true,
            Some(kind::INT) => local.int_offset(one) == 0 && target.int_offset(other) == 0,
            Some(kind::PTR) => self.types_are_compatible(local.size_or_type(one), target.size_or_type(other), depth),
            Some(kind::ARRAY) => match (local.array(one), target.array(other)) {
                (Some(one), Some(other)) => self.types_are_compatible(one.of, other.of, depth),
                _ => false,
            },
            Some(kind::FUNC_PROTO) => {
                let mut parameters = local.parameters(one).zip(target.parameters(other));
                local.len_of(one) == target.len_of(other)
                    && parameters.all(|((_, one), (_, other))| self.types_are_compatible(one, other, depth))
                    && self.types_are_compatible(local.size_or_type(one), target.size_or_type(other), depth)
            }
            _ => false,
        }
    }

    /// Whether a type holds all that another has. Mirrors src/relo_core.c:__bpf_core_types_match.
    fn types_match(&self, mut one: u32, mut other: u32, mut behind: bool, level: u32) -> bool {
        let Some(level) = self.descend(level) else { return false };
        let (local, target) = (self.local, self.target);
        for _ in 0..DEPTH_MAX {
            (one, other) = (local.plain(one), target.plain(other));
            if !names_match(local.name_of(one), target.name_of(other)) {
                return false;
            }
            let (kind, there) = (local.kind(one), target.kind(other));
            match kind {
                Some(kind::FWD) if behind && kind != there => {
                    let union = local.flag_of(one);
                    return there == Some(if union { kind::UNION } else { kind::STRUCT });
                }
                Some(kind::FWD) => return kind == there && local.flag_of(one) == target.flag_of(other),
                Some(kind::ENUM | kind::ENUM64) => {
                    let has = |name: &[u8]| target.values(other).any(|(known, _)| names_match(name, known));
                    return is_enumeration(there)
                        && local.size_or_type(one) == target.size_or_type(other)
                        && local.len_of(one) <= target.len_of(other)
                        && local.values(one).all(|(name, _)| has(name));
                }
                Some(kind::STRUCT | kind::UNION) if behind => {
                    let union = kind == Some(kind::UNION);
                    return kind == there || there == Some(kind::FWD) && union == target.flag_of(other);
                }
                _ if kind != there => return false,
                Some(kind::STRUCT | kind::UNION) => {
                    let has = |member: ring3_btf::Member<'_>| {
                        target.members(other).any(|known| {
                            names_match(member.name, known.name)
                                && self.types_match(member.of, known.of, behind, level)
                        })
                    };
                    return local.len_of(one) <= target.len_of(other) && local.members(one).all(has);
                }
                None => return true,
                Some(kind::INT) => {
                    let signed = |btf: &Btf, id| btf.int_encoding(id) & encoding::SIGNED;
                    return local.size_or_type(one) == target.size_or_type(other)
                        && signed(local, one) == signed(target, other);
                }
                Some(kind::PTR) => {
                    behind = true;
                    (one, other) = (local.size_or_type(one), target.size_or_type(other));
                }
                Some(kind::ARRAY) => match (local.array(one), target.array(other)) {
                    (Some(local), Some(target)) if local.count == target.count => {
                        (one, other) = (local.of, target.of);
                    }
                    _ => return false,
                },
                Some(kind::FUNC_PROTO) => {
                    let mut parameters = local.parameters(one).zip(target.parameters(other));
                    let all = |((_, one), (_, other))| self.types_match(one, other, behind, level);
                    if local.len_of(one) != target.len_of(other) || !parameters.all(all) {
                        return false;
                    }
                    (one, other) = (local.size_or_type(one), target.size_or_type(other));
                }
                _ => return false,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types: 1 int, 2 `struct s { int a; }`, 3 `struct s { int a; int b; }`, 4 a pointer to 2, 5 one to 3,
    /// 6 `struct s___other { unsigned a; }`, 7 unsigned int, 8 void *, 9 int(struct s *), 10 int(void *).
    fn types() -> Btf {
        let (structure, pointer, prototype) = (0x0400_0000, 0x0200_0000, 0x0d00_0001);
        #[rustfmt::skip]
        let words = [
            1, 0x0100_0000, 4, 0x0100_0020,
            5, structure | 1, 4, 7, 1, 0,
            5, structure | 2, 8, 7, 1, 0, 9, 1, 32,
            0, pointer, 2,
            0, pointer, 3,
            11, structure | 1, 4, 7, 7, 0,
            1, 0x0100_0000, 4, 32,
            0, pointer, 0,
            0, prototype, 1, 0, 4,
            0, prototype, 1, 0, 8,
        ];
        parsed(&words)
    }

    fn parsed(words: &[u32]) -> Btf {
        let text = b"\0int\0s\0a\0b\0s___other\0";
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let header = [24, 0, words.len() as u32 * 4, words.len() as u32 * 4, text.len() as u32];
        bytes.extend(header.iter().chain(words).flat_map(|word| word.to_le_bytes()));
        bytes.extend(text);
        Btf::parse_any(bytes).expect("well-formed")
    }

    #[test]
    fn a_type_matches_one_that_holds_all_it_has() {
        let types = types();
        let matches = |one, other| Pair::new(&types, &types).types_match(one, other, false, LEVELS_MAX);
        assert!(matches(2, 2) && matches(2, 3), "a member more is no matter");
        assert!(!matches(3, 2), "a member less is");
        assert!(matches(5, 4), "structures behind pointers are told by their names");
        assert!(!matches(6, 2), "a member of another sign is another");
    }

    #[test]
    fn structures_of_themselves_are_compared_in_time() {
        // 1: struct s { struct s a; struct s b; }, which is like itself down to any depth but that of the limit.
        let types = parsed(&[5, 0x0400_0002, 8, 7, 1, 0, 9, 1, 32]);
        assert!(!Pair::new(&types, &types).types_match(1, 1, false, LEVELS_MAX));
        // 1: struct { 1; 1; } without names, in which a member is looked for; 2: a structure that has it.
        let types = parsed(&[5, 0x0400_0002, 8, 0, 1, 0, 0, 1, 32, 5, 0x0400_0001, 8, 7, 1, 0]);
        let spec = Spec::parse(&types, 2, b"0:0", super::Kind::FieldExists).expect("an access");
        assert!(spec.fit(&types, 1).is_err());
    }

    #[test]
    fn prototypes_are_compatible_as_far_as_values_go() {
        let types = types();
        assert!(types_are_compatible(&types, 4, &types, 5));
        assert!(!types_are_compatible(&types, 9, &types, 10), "void is no structure");
        assert!(!types_are_compatible(&types, 1, &types, 4));
    }
}
