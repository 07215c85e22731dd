//! CO-RE: instructions that reach into the kernel's structures, fitted to how those are in this kernel.
//!
//! A compiler writes what an access is (`a.b[2]` of `struct s`) beside the offset that it had when it compiled. The
//! access is parsed on the object's types (`spec.rs`), looked for by names in each kernel type of the same name
//! (`fit.rs`), and the instruction gets the number that it has there (`patch.rs`). All candidates must agree. What is
//! not found is 0 where the question was whether or how large it is; else the instruction becomes a call of a helper
//! that there is not, which matters only if it can be reached.
//!
//! Mirrors src/relo_core.c (libbpf 1.8) and kernel/bpf/btf.c (v6.18).

mod fit;
mod patch;
mod spec;

use ring3_btf::Btf;

use crate::Error;
use crate::extended::Extended;
use crate::file::File;
use crate::kernel::{Kernel, essential};
use crate::program::Functions;

pub(crate) use fit::types_are_compatible;
use spec::Spec;

/// `enum bpf_core_relo_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FieldByteOffset,
    FieldByteSize,
    FieldExists,
    FieldSigned,
    FieldLshift,
    FieldRshift,
    TypeIdLocal,
    TypeIdTarget,
    TypeExists,
    TypeSize,
    ValueExists,
    Value,
    TypeMatches,
}

impl Kind {
    fn of(value: u32) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 13] = [
            FieldByteOffset,
            FieldByteSize,
            FieldExists,
            FieldSigned,
            FieldLshift,
            FieldRshift,
            TypeIdLocal,
            TypeIdTarget,
            TypeExists,
            TypeSize,
            ValueExists,
            Value,
            TypeMatches,
        ];
        ALL.get(value as usize).copied()
    }

    fn is_of_type(self) -> bool {
        use Kind::*;
        matches!(self, TypeIdLocal | TypeIdTarget | TypeExists | TypeSize | TypeMatches)
    }

    fn is_of_value(self) -> bool {
        matches!(self, Kind::ValueExists | Kind::Value)
    }
}

/// Fits all instructions that the compiler tells of.
pub(crate) fn apply(
    functions: &mut Functions<'_>,
    file: &File<'_>,
    extended: &Extended,
    types: &Btf,
    kernel: &Kernel,
) -> Result<(), Error> {
    for record in &extended.relocations {
        let [of, access, kind] = record.words;
        // libbpf leaves what no program can be found for, weak functions' old copies.
        let Some(function) = functions.at(record.section, record.insn) else { continue };
        let at = record.insn - function.start;
        let failed = |what: &str| {
            let section = file.sections.get(record.section).map_or("", |section| section.name);
            let name = String::from_utf8_lossy(types.name_of(of)).into_owned();
            let access = String::from_utf8_lossy(types.text(access).unwrap_or_default()).into_owned();
            Error::Unsupported(format!(
                "{what}: relocation kind {kind} of {name} ({access}), at instruction {} of {section}",
                record.insn
            ))
        };
        let known = Kind::of(kind).ok_or_else(|| failed("an unknown relocation"))?;
        let access = types.text(access).unwrap_or_default();
        let spec = Spec::parse(types, of, access, known).ok_or_else(|| failed("an access of its own types"))?;
        let change = resolve(&spec, kernel).map_err(failed)?;
        let code = function.insns.get_mut(at..).unwrap_or_default();
        change.write(code).map_err(failed)?;
    }
    Ok(())
}

fn resolve(local: &Spec<'_>, kernel: &Kernel) -> Result<patch::Change, &'static str> {
    if local.kind == Kind::TypeIdLocal {
        return Ok(patch::Change::to(u64::from(local.root)));
    }
    let name = essential(local.btf.name_of(local.root));
    if name.is_empty() {
        return Err("an access of a type without a name");
    }
    let wanted = local.btf.kind(local.root);
    let mut found: Option<(Spec<'_>, patch::Change)> = None;
    for candidate in kernel.named(name) {
        if !fit::kinds_agree(wanted, kernel.btf().kind(candidate)) {
            continue;
        }
        let Some(spec) = local.fit(kernel.btf(), candidate)? else { continue };
        let change = patch::Change::of(local, Some(&spec))?;
        match &found {
            Some((other, _)) if other.at_bits != spec.at_bits => return Err("the kernel's types do not agree"),
            Some((_, other)) if !other.agrees(&change) => return Err("the kernel's types do not agree"),
            Some(_) => {}
            None => found = Some((spec, change)),
        }
    }
    match found {
        Some((_, change)) => Ok(change),
        None => patch::Change::of(local, None),
    }
}
