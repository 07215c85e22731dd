//! Arguments of static probes, as programs that include libbpf's `bpf/usdt.bpf.h` look for them: an element of the map
//! `__bpf_usdt_specs` for each place, whose index is the place's cookie.

use std::os::fd::OwnedFd;

use ring3_bpf::Place;
use ring3_elf::At;
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

/// An argument (`-4@%eax`, `8@-16(%rbp)`, `4@$7`); `None`: a program of libbpf cannot find it.
fn argument(text: &str) -> Option<[u8; ARGUMENT_BYTES]> {
    let unknown = |_: &str| Err("libbpf knows no variables".to_owned());
    let place = ring3_elf::argument_place(text, &unknown);
    let (kind, value, register) = match place.at {
        _ if place.float => return None,
        At::Constant(value) => (KINDS[0], value, 0),
        At::Register { register, shift: 0 } => (KINDS[1], 0, register.context_offset()),
        At::Memory { base: Some(base), index: None, displacement } => (KINDS[2], displacement, base.context_offset()),
        _ => return None,
    };
    let mut bytes = [0; ARGUMENT_BYTES];
    bytes[..8].copy_from_slice(&value.to_ne_bytes());
    bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
    bytes[12..14].copy_from_slice(&register.to_ne_bytes());
    bytes[14] = u8::from(place.signed);
    bytes[15] = 64 - 8 * place.bytes;
    Some(bytes)
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
