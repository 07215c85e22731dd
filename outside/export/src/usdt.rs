//! Arguments of static probes, as programs that include libbpf's `bpf/usdt.bpf.h` look for them: an element of the map
//! `__bpf_usdt_specs` for each place, whose index is the place's cookie.

use std::os::fd::OwnedFd;

use ring3_bpf::Place;
use ring3_object::{MapDef, Object};

/// The map of specifications.
const SPECS: &str = "__bpf_usdt_specs";
/// `BPF_USDT_MAX_ARG_CNT`.
const ARGUMENTS_MAX: usize = 12;
/// `sizeof(struct __bpf_usdt_arg_spec)`: offset or value (u64), kind (u32), register (i16), signed (u8), shift (u8).
const ARGUMENT_BYTES: usize = 16;
/// `sizeof(struct __bpf_usdt_spec)`: arguments, cookie (u64), their number (i16).
const SPEC_BYTES: usize = ARGUMENTS_MAX * ARGUMENT_BYTES + 16;
/// `BPF_USDT_ARG_CONST`, `_REG`, `_REG_DEREF`.
const KINDS: [u32; 3] = [0, 1, 2];

/// Names of a register by size (8, 4, 2 and 1 bytes), and its offset in `struct pt_regs`.
const REGISTERS: &[(&[&str], u16)] = &[
    (&["r15", "r15d", "r15w", "r15b"], 0),
    (&["r14", "r14d", "r14w", "r14b"], 8),
    (&["r13", "r13d", "r13w", "r13b"], 16),
    (&["r12", "r12d", "r12w", "r12b"], 24),
    (&["rbp", "ebp", "bp", "bpl"], 32),
    (&["rbx", "ebx", "bx", "bl"], 40),
    (&["r11", "r11d", "r11w", "r11b"], 48),
    (&["r10", "r10d", "r10w", "r10b"], 56),
    (&["r9", "r9d", "r9w", "r9b"], 64),
    (&["r8", "r8d", "r8w", "r8b"], 72),
    (&["rax", "eax", "ax", "al"], 80),
    (&["rcx", "ecx", "cx", "cl"], 88),
    (&["rdx", "edx", "dx", "dl"], 96),
    (&["rsi", "esi", "si", "sil"], 104),
    (&["rdi", "edi", "di", "dil"], 112),
    (&["rip", "eip"], 128),
    (&["rsp", "esp", "sp", "spl"], 152),
];

/// Specifications of an object, which all its programs share.
#[derive(Debug, Default)]
pub(crate) struct Specs {
    known: Vec<String>,
}

impl Specs {
    /// Writes the specifications of places into the object's map, and gives the places their cookies.
    pub(crate) fn tell(
        &mut self,
        object: &Object,
        maps: &[OwnedFd],
        places: Vec<(Place, String)>,
    ) -> Result<Vec<Place>, String> {
        let found = object.maps.iter().zip(maps).find(|(def, _)| def.name == SPECS);
        let Some((def, map)) = found else { return Ok(places.into_iter().map(|(place, _)| place).collect()) };
        if def.value_size as usize != SPEC_BYTES {
            let size = def.value_size;
            return Err(format!(
                "{SPECS} has values of {size} bytes; those of libbpf 1.0 and newer have {SPEC_BYTES}"
            ));
        }
        places.into_iter().map(|(place, arguments)| self.place(def, map, place, arguments)).collect()
    }

    fn place(&mut self, def: &MapDef, map: &OwnedFd, place: Place, arguments: String) -> Result<Place, String> {
        let index = match self.known.iter().position(|known| *known == arguments) {
            Some(index) => index,
            None => {
                let index = self.known.len();
                if index >= def.max_entries as usize {
                    return Err(format!("{SPECS} has room for {index}; define BPF_USDT_MAX_SPEC_CNT to be more"));
                }
                let key = (index as u32).to_ne_bytes();
                ring3_bpf::update(map, &key, &spec(&arguments)?).map_err(|error| format!("{SPECS}: {error}"))?;
                self.known.push(arguments);
                index
            }
        };
        Ok(Place { cookie: index as u64, ..place })
    }
}

/// `struct __bpf_usdt_spec` of the arguments of a note.
fn spec(arguments: &str) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    let words: Vec<&str> = arguments.split_whitespace().collect();
    if words.len() > ARGUMENTS_MAX {
        return Err(format!("a static probe with {} arguments; there may be {ARGUMENTS_MAX}", words.len()));
    }
    for word in &words {
        let parsed = argument(word);
        bytes.extend(
            parsed.ok_or_else(|| {
                format!("an argument of the static probe is in a place that is not supported: {word}")
            })?,
        );
    }
    bytes.resize(ARGUMENTS_MAX * ARGUMENT_BYTES, 0);
    bytes.extend(0u64.to_ne_bytes());
    bytes.extend((words.len() as u64).to_ne_bytes());
    Ok(bytes)
}

/// An argument: its size, negative if it is signed, and its place: `-4@%eax`, `8@-16(%rbp)`, `4@$7`.
fn argument(text: &str) -> Option<[u8; ARGUMENT_BYTES]> {
    let (size, place) = text.split_once('@')?;
    let size: i8 = size.parse().ok()?;
    if ![1, 2, 4, 8].contains(&size.unsigned_abs()) {
        return None;
    }
    let (kind, value, register) = if let Some(constant) = place.strip_prefix('$') {
        (KINDS[0], signed(constant)?, 0)
    } else if let Some(name) = place.strip_prefix('%') {
        (KINDS[1], 0, register(name)?)
    } else {
        let (offset, name) = place.strip_suffix(')')?.split_once("(%")?;
        let offset = if offset.is_empty() { 0 } else { signed(offset)? };
        (KINDS[2], offset, register(name)?)
    };
    let mut bytes = [0; ARGUMENT_BYTES];
    bytes[..8].copy_from_slice(&value.to_ne_bytes());
    bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
    bytes[12..14].copy_from_slice(&register.to_ne_bytes());
    bytes[14] = u8::from(size < 0);
    bytes[15] = 64 - 8 * size.unsigned_abs();
    Some(bytes)
}

fn signed(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { -value } else { value })
}

fn register(name: &str) -> Option<u16> {
    REGISTERS.iter().find(|(names, _)| names.contains(&name)).map(|(_, offset)| *offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_where_the_note_says() {
        let made = |value: i64, kind: u32, register: u16, signed: u8, shift: u8| {
            let parts = [&value.to_ne_bytes()[..], &kind.to_ne_bytes(), &register.to_ne_bytes(), &[signed, shift]];
            Some(parts.concat().try_into().expect("16 bytes"))
        };
        assert_eq!(argument("-4@%eax"), made(0, 1, 80, 1, 32));
        assert_eq!(argument("8@%rdi"), made(0, 1, 112, 0, 0));
        assert_eq!(argument("8@-16(%rbp)"), made(-16, 2, 32, 0, 0));
        assert_eq!(argument("1@(%r15)"), made(0, 2, 0, 0, 56));
        assert_eq!(argument("-2@$-7"), made(-7, 0, 0, 1, 48));
        for odd in ["8@name(%rip)", "8@8(%rax,%rbx,4)", "3@%rax", "8@%xmm0", "8", ""] {
            assert_eq!(argument(odd), None, "{odd}");
        }
        assert_eq!(spec("8@%rdi -4@$1").map(|spec| (spec.len(), spec[200])), Ok((SPEC_BYTES, 2)));
    }
}
