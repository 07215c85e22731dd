//! The number that an access has, and the instruction that gets it.

use ring3_btf::{Btf, encoding, kind};
use ring3_isa::Insn;
use ring3_isa::code::{BPF_ALU, BPF_ALU64, BPF_CALL, BPF_LD, BPF_LDX, BPF_ST, BPF_STX, BPF_X};

use super::Kind;
use super::spec::Spec;

/// The helper that an instruction calls that must not be reached: libbpf's number, which is known from its logs.
const POISON: i32 = 0x0bad_2310;

/// A number, and what else of it can matter to an instruction.
#[derive(Clone, Copy, Default)]
struct Number {
    value: u64,
    /// Bytes that are loaded; 0: not told.
    bytes: u32,
    /// The type that is loaded.
    of: u32,
    /// The compiler may have thought of another.
    ambiguous: bool,
}

/// What is done to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Must not be reached.
    poison: bool,
    old: u64,
    new: u64,
    /// The old number is what the instruction has.
    check: bool,
    old_bytes: u32,
    new_bytes: u32,
    /// What is loaded has another size, and is not of a kind of which that makes no difference.
    resized: bool,
}

impl Change {
    /// A number that is as it was.
    pub(super) fn to(new: u64) -> Change {
        Change { poison: false, old: 0, new, check: false, old_bytes: 0, new_bytes: 0, resized: false }
    }

    /// What the access was, and what it is. Mirrors src/relo_core.c:bpf_core_calc_relo.
    pub(super) fn of(local: &Spec<'_>, found: Option<&Spec<'_>>) -> Result<Change, &'static str> {
        let old = number(local.kind, Some(local))?;
        let new = number(local.kind, found)?;
        let Some(old) = old else { return Err("an access that has no number") };
        let Some(new) = new else { return Ok(Change { poison: true, ..Change::to(0) }) };
        let harmless = |spec: &Spec<'_>, of: u32, kind: u32| {
            spec.btf.kind(of) == Some(kind) && spec.btf.int_encoding(of) != encoding::SIGNED
        };
        let both = |kind| harmless(local, old.of, kind) && found.is_some_and(|found| harmless(found, new.of, kind));
        Ok(Change {
            poison: false,
            old: old.value,
            new: new.value,
            check: !old.ambiguous,
            old_bytes: old.bytes,
            new_bytes: new.bytes,
            resized: old.bytes != new.bytes && !both(kind::PTR) && !both(kind::INT),
        })
    }

    /// Whether two types of the kernel give the same.
    pub(super) fn agrees(&self, other: &Change) -> bool {
        self.poison == other.poison && self.new == other.new
    }

    /// Mirrors src/relo_core.c:bpf_core_patch_insn.
    pub(super) fn write(&self, code: &mut [Insn]) -> Result<(), &'static str> {
        const OTHER: &str = "an instruction that does not have the number that it should";
        let first = *code.first().ok_or("an instruction that is not there")?;
        let poisoned = Insn::new(BPF_CALL, 0, 0, 0, POISON);
        let memory = matches!(first.class(), BPF_LDX | BPF_ST | BPF_STX);
        if self.poison || memory && self.resized {
            if let Some(second) = code.get_mut(1).filter(|_| first.is_wide()) {
                *second = poisoned;
            }
            code[0] = poisoned;
            return Ok(());
        }
        match first.class() {
            BPF_ALU | BPF_ALU64 if first.opcode & BPF_X == 0 => {
                if self.check && i64::from(first.imm) as u64 != self.old {
                    return Err(OTHER);
                }
                code[0].imm = self.new as i32;
            }
            BPF_LDX | BPF_ST | BPF_STX => {
                if self.check && i64::from(first.off) as u64 != self.old {
                    return Err(OTHER);
                }
                code[0].off = i16::try_from(self.new).map_err(|_| "a member that is too far for an instruction")?;
                if self.old_bytes != self.new_bytes {
                    if bytes_of(first) != self.old_bytes {
                        return Err("an instruction that loads another size than its member's");
                    }
                    let size = size_of(self.new_bytes).ok_or("a member that no instruction can load")?;
                    code[0].opcode = first.opcode & !SIZE_MASK | size;
                }
            }
            BPF_LD => {
                let second = *code.get(1).filter(|_| first.is_wide()).ok_or("an instruction of another form")?;
                if first.src() != 0 || first.off != 0 || (second.opcode, second.regs, second.off) != (0, 0, 0) {
                    return Err("an instruction of another form");
                }
                let had = u64::from(first.imm as u32) | u64::from(second.imm as u32) << 32;
                if self.check && had != self.old {
                    return Err(OTHER);
                }
                (code[0].imm, code[1].imm) = (self.new as i32, (self.new >> 32) as i32);
            }
            _ => return Err("an instruction that has no such number"),
        }
        Ok(())
    }
}

const SIZE_MASK: u8 = 0x18;

fn bytes_of(insn: Insn) -> u32 {
    match insn.opcode & SIZE_MASK {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

fn size_of(bytes: u32) -> Option<u8> {
    Some(match bytes {
        4 => 0x00,
        2 => 0x08,
        1 => 0x10,
        8 => 0x18,
        _ => return None,
    })
}

/// The number that an access has; `None`: it cannot have one.
fn number(kind: Kind, spec: Option<&Spec<'_>>) -> Result<Option<Number>, &'static str> {
    let plain = |value: u64| Number { value, ..Number::default() };
    let Some(spec) = spec else {
        let absent = kind.is_of_type() || matches!(kind, Kind::FieldExists | Kind::ValueExists);
        return Ok(absent.then(|| plain(0)));
    };
    Ok(Some(match kind {
        Kind::FieldExists | Kind::TypeExists | Kind::TypeMatches | Kind::ValueExists => plain(1),
        // Ids change when objects are linked.
        Kind::TypeIdLocal | Kind::TypeIdTarget => Number { ambiguous: true, ..plain(u64::from(spec.root)) },
        Kind::TypeSize => plain(u64::from(size(spec.btf, spec.root)?)),
        Kind::Value => {
            let step = spec.steps.first().and_then(|step| spec.btf.values(step.of).nth(step.index as usize));
            plain(step.ok_or("a value that is not there")?.1)
        }
        _ => field(kind, spec)?,
    }))
}

fn size(btf: &Btf, of: u32) -> Result<u32, &'static str> {
    btf.sized(of).map(|(_, size)| size).ok_or("a type without a size")
}

/// Mirrors src/relo_core.c:bpf_core_calc_field_relo.
fn field(kind: Kind, spec: &Spec<'_>) -> Result<Number, &'static str> {
    let btf = spec.btf;
    let last = spec.steps.last().ok_or("an access without steps")?;
    if last.name.is_none() {
        return match kind {
            Kind::FieldByteOffset => Ok(Number {
                value: u64::from(spec.at_bits / 8),
                bytes: size(btf, btf.elements(last.of).of)?,
                of: last.of,
                ambiguous: false,
            }),
            Kind::FieldByteSize => Ok(Number { value: u64::from(size(btf, last.of)?), ..Number::default() }),
            _ => Err("a question that cannot be asked of elements"),
        };
    }
    let member = btf.member(last.of, last.index as usize).ok_or("a member that is not there")?;
    let of = btf.plain(member.of);
    let is_field = member.bits != 0;
    let mut bytes = size(btf, of)?;
    let (mut at, mut bits) = (spec.at_bits / 8, bytes.saturating_mul(8));
    if is_field {
        if bytes == 0 {
            return Err("a bit field without a size");
        }
        bits = member.bits;
        at = at / bytes * bytes;
        // The smallest aligned integer that holds the whole field.
        while u64::from(spec.at_bits) + u64::from(bits) > (u64::from(at) + u64::from(bytes)) * 8 {
            if bytes >= 8 {
                return Err("a bit field that no load holds");
            }
            bytes *= 2;
            at = spec.at_bits / 8 / bytes * bytes;
        }
    }
    let of_field = |value: u64| Number { value, ambiguous: is_field, ..Number::default() };
    Ok(match kind {
        Kind::FieldByteOffset if is_field => of_field(u64::from(at)),
        Kind::FieldByteOffset => {
            Number { value: u64::from(at), bytes: size(btf, btf.elements(of).of)?, of, ambiguous: false }
        }
        Kind::FieldByteSize => of_field(u64::from(bytes)),
        Kind::FieldSigned => {
            let enumeration = matches!(btf.kind(of), Some(kind::ENUM | kind::ENUM64)) && btf.flag_of(of);
            let signed = enumeration || btf.int_encoding(of) & encoding::SIGNED != 0;
            Number { value: u64::from(signed), ..Number::default() }
        }
        Kind::FieldLshift => {
            of_field(u64::from(64u32.saturating_sub(spec.at_bits.saturating_sub(at * 8).saturating_add(bits))))
        }
        Kind::FieldRshift => Number { value: u64::from(64u32.saturating_sub(bits)), ..Number::default() },
        _ => return Err("a question that is not one of fields"),
    })
}
