//! An access, as a path of members and elements.

use ring3_btf::{Array, Btf, kind};

use super::Kind;

/// Steps of an access at most (`BPF_CORE_SPEC_MAX_LEN`).
pub(super) const STEPS_MAX: usize = 64;

/// A step that a program's author wrote: a named member, an element, or an enumeration's value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'b> {
    /// The type that it is taken in; of an element, its own.
    pub(super) of: u32,
    pub(super) index: u32,
    /// A member's, or a value's.
    pub(super) name: Option<&'b [u8]>,
}

/// An access in some types.
#[derive(Clone, Debug)]
pub(super) struct Spec<'b> {
    pub(super) btf: &'b Btf,
    pub(super) kind: Kind,
    /// Where it begins.
    pub(super) root: u32,
    pub(super) steps: Vec<Step<'b>>,
    /// Where it ends up, bits from the beginning.
    pub(super) at_bits: u32,
}

pub(super) fn size_bits(btf: &Btf, of: u32) -> Option<u32> {
    btf.sized(of)?.1.checked_mul(8)
}

/// Whether an array that a step leads to is the last member of a structure, and of no length.
pub(super) fn is_flexible(btf: &Btf, step: Option<&Step<'_>>, array: Array) -> bool {
    let last = |step: &Step<'_>| step.name.is_some() && step.index as usize + 1 == btf.len_of(step.of);
    array.count == 0 && step.is_some_and(last)
}

impl<'b> Spec<'b> {
    pub(super) fn new(btf: &'b Btf, kind: Kind, root: u32) -> Spec<'b> {
        Spec { btf, kind, root, steps: vec![], at_bits: 0 }
    }

    /// Parses the compiler's `0:1:2`. Mirrors src/relo_core.c:bpf_core_parse_spec.
    pub(super) fn parse(btf: &'b Btf, root: u32, access: &[u8], kind: Kind) -> Option<Spec<'b>> {
        btf.kind(root)?;
        let mut spec = Spec::new(btf, kind, root);
        if kind.is_of_type() {
            return (access == b"0").then_some(spec);
        }
        let numbers: Vec<u32> = access
            .split(|byte| *byte == b':')
            .take(STEPS_MAX + 1)
            .map(|number| std::str::from_utf8(number).ok()?.parse().ok())
            .collect::<Option<_>>()?;
        let (first, rest) = numbers.split_first().filter(|(_, rest)| rest.len() < STEPS_MAX)?;
        let mut of = btf.plain(root);
        if kind.is_of_value() {
            let (name, _) = btf.values(of).nth(*first as usize).filter(|_| rest.is_empty())?;
            spec.steps.push(Step { of, index: *first, name: Some(name) });
            return Some(spec);
        }
        spec.steps.push(Step { of, index: *first, name: None });
        spec.at_bits = first.checked_mul(size_bits(btf, of)?)?;
        for index in rest.iter().copied() {
            of = btf.plain(of);
            match btf.kind(of)? {
                kind::STRUCT | kind::UNION => {
                    let member = btf.member(of, index as usize)?;
                    spec.at_bits = spec.at_bits.checked_add(member.at_bits)?;
                    if !member.name.is_empty() {
                        spec.steps.push(Step { of, index, name: Some(member.name) });
                    }
                    of = member.of;
                }
                kind::ARRAY => {
                    let array = btf.array(of)?;
                    if index >= array.count && !is_flexible(btf, spec.steps.last(), array) {
                        return None;
                    }
                    of = btf.plain(array.of);
                    spec.steps.push(Step { of, index, name: None });
                    spec.at_bits = spec.at_bits.checked_add(index.checked_mul(size_bits(btf, of)?)?)?;
                }
                _ => return None,
            }
        }
        Some(spec)
    }
}
