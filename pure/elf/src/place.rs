//! Where an argument of a probe lies: SystemTap's argument specification, version 3.
//!
//! A specification is a list of `[-]BYTES[f]@OPERAND`, separated by spaces. The sign says that the argument is signed, and `f` that it
//! is a floating-point number. The operand is what the assembler would read (AT&T syntax). Compilers, SystemTap's `sys/sdt.h`,
//! `libstapsdt`, and the Rust and Go libraries all write this form.

use std::fmt;

/// A general-purpose register of x86-64, in the order of the instruction encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the registers'")]
pub enum Register {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

use Register::{R8, R9, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi, Rsp};

const REGISTERS: [(&str, Register); 16] = [
    ("ax", Rax),
    ("cx", Rcx),
    ("dx", Rdx),
    ("bx", Rbx),
    ("sp", Rsp),
    ("bp", Rbp),
    ("si", Rsi),
    ("di", Rdi),
    ("r8", R8),
    ("r9", R9),
    ("r10", R10),
    ("r11", R11),
    ("r12", R12),
    ("r13", R13),
    ("r14", R14),
    ("r15", R15),
];

impl Register {
    /// Where the register is in a uprobe's context, in bytes: Linux's `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h).
    #[must_use]
    pub fn context_offset(self) -> u16 {
        const WORDS: [u16; 16] = [10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0];
        WORDS[self as usize] * 8
    }

    /// The register that the assembler calls so, without `%`, and the first of its bits that the name means: 8 for `ah`.
    fn named(name: &str) -> Option<(Register, u8)> {
        let find = |wanted: &str| REGISTERS.iter().find(|(name, _)| *name == wanted).map(|(_, register)| *register);
        let numbered = |name: &str| name.starts_with('r') && name[1..].starts_with(|c: char| c.is_ascii_digit());
        if numbered(name) {
            let bare = name.strip_suffix(['d', 'w', 'b']).unwrap_or(name);
            return Some((find(bare)?, 0));
        }
        if let Some(wide) = name.strip_prefix(['r', 'e']) {
            return Some((find(wide)?, 0));
        }
        if let Some(register) = find(name) {
            return Some((register, 0));
        }
        let (letter, part) = (name.strip_suffix(['l', 'h'])?, name.as_bytes().last()?);
        match letter {
            "a" | "b" | "c" | "d" => Some((find(&format!("{letter}x"))?, if *part == b'h' { 8 } else { 0 })),
            // `sil`, `dil`, `bpl`, `spl`.
            _ if *part == b'l' => Some((find(letter)?, 0)),
            _ => None,
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = REGISTERS[*self as usize].0;
        write!(f, "{}{name}", if name.starts_with('r') { "" } else { "r" })
    }
}

/// Where an argument is when a thread is at the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// It is this value.
    Constant(i64),
    /// In a register, from bit `shift` (0 or 8) on.
    Register {
        /// Which one.
        register: Register,
        /// The lowest bit.
        shift: u8,
    },
    /// In memory, at `base + index * scale + displacement`, modulo 2^64. Without registers the address is absolute.
    Memory {
        /// Its value counts once.
        base: Option<Register>,
        /// Its value counts `scale` times (1, 2, 4 or 8).
        index: Option<(Register, u8)>,
        /// Bytes.
        displacement: i64,
    },
    /// In memory, at this address of the file's address space (add where the file is loaded).
    Data {
        /// The address.
        address: u64,
    },
    /// In a place that no program can read, or that the specification does not say clearly.
    Unreadable {
        /// What the specification says, and why it is of no use.
        why: String,
    },
}

/// Place and size of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentPlace {
    /// Size of the value: 1, 2, 4 or 8 bytes. In a register these are the lowest bytes, from `shift` on.
    pub bytes: u8,
    /// Whether a shorter value is extended by its sign.
    pub signed: bool,
    /// Whether the specification calls it a floating-point number.
    pub float: bool,
    /// Where the value is.
    pub at: At,
}

/// The arguments of a specification. `address_of` gives the address of a variable by name, in the file's address space.
pub(crate) fn parse(specification: &str, address_of: &dyn Fn(&str) -> Result<u64, String>) -> Vec<ArgumentPlace> {
    specification.split_whitespace().map(|text| argument_place(text, address_of)).collect()
}

/// The place that one argument of a specification names. `address_of` gives the address of a variable by name, in the file's address
/// space.
pub fn argument_place(text: &str, address_of: &dyn Fn(&str) -> Result<u64, String>) -> ArgumentPlace {
    let sized = text.split_once('@').and_then(|(size, operand)| Some((self::size(size)?, operand)));
    // (Without a size it is a word: what the first version of the format meant.)
    let ((bytes, signed, float), operand) = match sized {
        Some(sized) => sized,
        None if text.starts_with(['$', '%', '(']) => ((8, true, false), text),
        None => {
            let why = format!("{text}: no size and operand, as in -4@%edi");
            return ArgumentPlace { bytes: 8, signed: false, float: false, at: At::Unreadable { why } };
        }
    };
    let at =
        self::operand(operand, address_of).unwrap_or_else(|why| At::Unreadable { why: format!("{text}: {why}") });
    ArgumentPlace { bytes, signed, float, at }
}

/// Bytes, whether signed, whether floating-point.
fn size(text: &str) -> Option<(u8, bool, bool)> {
    let (signed, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (float, digits) = digits.strip_suffix('f').map_or((false, digits), |digits| (true, digits));
    let bytes = digits.parse().ok().filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8))?;
    Some((bytes, signed, float))
}

fn operand(text: &str, address_of: &dyn Fn(&str) -> Result<u64, String>) -> Result<At, String> {
    if let Some(value) = text.strip_prefix('$') {
        return number(value).map(At::Constant).ok_or_else(|| "the constant is no number".to_owned());
    }
    if text.starts_with('%') && !text.contains([':', '(']) {
        let (register, shift) = register(text)?;
        return Ok(At::Register { register, shift });
    }
    if text.contains(':') {
        return Err("memory of a segment".to_owned());
    }
    let Some((displacement, inner)) = text.split_once('(') else { return absolute(text, address_of) };
    let inner = inner.strip_suffix(')').ok_or("a bracket is open")?;
    let mut parts = inner.split(',').map(str::trim);
    let (base, index, scale) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next());
    if parts.next().is_some() {
        return Err("too many parts of an address".to_owned());
    }
    if base == "%rip" || base == "%eip" {
        return match (number(displacement), index) {
            (None, "") => Ok(At::Data { address: symbol(displacement, address_of)? }),
            _ => Err("relative to an instruction that the specification does not name".to_owned()),
        };
    }
    let scale = scale.map_or(Some(1), |scale| scale.parse().ok().filter(|scale| matches!(scale, 1 | 2 | 4 | 8)));
    let scale: u8 = scale.ok_or("the scale is none of 1, 2, 4 and 8")?;
    let displacement = match displacement {
        "" => 0,
        text => match number(text) {
            Some(number) => number,
            // (In a file that is not position-independent a variable's address is a number.)
            None => symbol(text, address_of)?.cast_signed(),
        },
    };
    let wide = |text: &str| match text {
        "" => Ok(None),
        text => register(text).map(|(register, _)| Some(register)),
    };
    Ok(At::Memory { base: wide(base)?, index: wide(index)?.map(|register| (register, scale)), displacement })
}

fn absolute(text: &str, address_of: &dyn Fn(&str) -> Result<u64, String>) -> Result<At, String> {
    match number(text) {
        Some(displacement) => Ok(At::Memory { base: None, index: None, displacement }),
        None => Ok(At::Data { address: symbol(text, address_of)? }),
    }
}

fn register(text: &str) -> Result<(Register, u8), String> {
    let name = text.strip_prefix('%').ok_or_else(|| format!("{text} is no register"))?;
    if ["xmm", "ymm", "zmm", "st", "mm", "k"].iter().any(|vector| {
        name.strip_prefix(vector).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '('))
    }) {
        return Err("programs do not see vector registers".to_owned());
    }
    Register::named(name).ok_or_else(|| format!("{text} is no register of x86-64"))
}

/// `NAME`, `NAME+N`, `NAME-N` or `N+NAME`.
fn symbol(text: &str, address_of: &dyn Fn(&str) -> Result<u64, String>) -> Result<u64, String> {
    if text.contains('@') {
        return Err("the entry of the dynamic linker's table that it names need not exist".to_owned());
    }
    let (name, distance) = match text.rfind(['+', '-']).filter(|at| *at > 0) {
        Some(at) => match (number(&text[..at]), number(text[at..].strip_prefix('+').unwrap_or(&text[at..]))) {
            (Some(distance), None) => (&text[at + 1..], distance),
            (None, Some(distance)) => (&text[..at], distance),
            _ => return Err("neither a name nor a distance".to_owned()),
        },
        None => (text, 0),
    };
    if name.is_empty() {
        return Err("no name".to_owned());
    }
    Ok(address_of(name)?.wrapping_add_signed(distance))
}

/// Decimal, or hexadecimal with `0x`; also unsigned numbers of 64 bits.
fn number(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if negative { value.wrapping_neg().cast_signed() } else { value.cast_signed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> ArgumentPlace {
        let known = |name: &str| if name == "total" { Ok(0x4000) } else { Err(format!("no variable {name}")) };
        let mut places = parse(text, &known);
        assert_eq!(places.len(), 1, "{text}");
        places.remove(0)
    }

    fn in_register(text: &str) -> (u8, bool, Register, u8) {
        let place = place(text);
        let At::Register { register, shift } = place.at else { panic!("{text}: {place:?}") };
        (place.bytes, place.signed, register, shift)
    }

    fn in_memory(text: &str) -> (u8, Option<Register>, Option<(Register, u8)>, i64) {
        let place = place(text);
        let At::Memory { base, index, displacement } = place.at else { panic!("{text}: {place:?}") };
        (place.bytes, base, index, displacement)
    }

    fn refusal(text: &str) -> String {
        let At::Unreadable { why } = place(text).at else { panic!("{text} was read") };
        why
    }

    #[test]
    fn every_name_of_a_register_is_known() {
        assert_eq!(in_register("-4@%edi"), (4, true, Rdi, 0));
        assert_eq!(in_register("8@%rax"), (8, false, Rax, 0));
        assert_eq!(in_register("1@%ah"), (1, false, Rax, 8));
        assert_eq!(in_register("-1@%bpl"), (1, true, Rbp, 0));
        assert_eq!(in_register("2@%r10w"), (2, false, R10, 0));
        assert_eq!(in_register("4@%r8d"), (4, false, R8, 0));
        assert_eq!(in_register("1@%r15b"), (1, false, R15, 0));
        assert_eq!(in_register("2@%si"), (2, false, Rsi, 0));
        assert_eq!(in_register("4@%rbx"), (4, false, Rbx, 0));
        assert_eq!(in_register("%rdx"), (8, true, Rdx, 0));
        for (name, register) in REGISTERS {
            let name = if name.starts_with('r') { name.to_owned() } else { format!("r{name}") };
            assert_eq!((Register::named(&name), register.to_string()), (Some((register, 0)), name));
        }
    }

    #[test]
    fn addresses_have_all_their_parts() {
        assert_eq!(in_memory("8@-8(%rbp)"), (8, Some(Rbp), None, -8));
        assert_eq!(in_memory("4@(%rdi)"), (4, Some(Rdi), None, 0));
        assert_eq!(in_memory("2@0x10(%rax,%rcx,4)"), (2, Some(Rax), Some((Rcx, 4)), 16));
        assert_eq!(in_memory("1@(%rax,%r9)"), (1, Some(Rax), Some((R9, 1)), 0));
        assert_eq!(in_memory("8@16(,%rdx,8)"), (8, None, Some((Rdx, 8)), 16));
        assert_eq!(in_memory("4@total(,%rdx,8)"), (4, None, Some((Rdx, 8)), 0x4000));
        assert_eq!(in_memory("4@4096"), (4, None, None, 4096));
    }

    #[test]
    fn constants_and_variables_are_found() {
        assert_eq!(place("-8@$-5").at, At::Constant(-5));
        assert_eq!(place("8@$18446744073709551615").at, At::Constant(-1));
        assert_eq!(place("4@$0x1f").at, At::Constant(31));
        for text in ["8@total(%rip)", "8@total"] {
            assert_eq!(place(text).at, At::Data { address: 0x4000 });
        }
        for text in ["8@total+8(%rip)", "8@8+total(%rip)"] {
            assert_eq!(place(text).at, At::Data { address: 0x4008 });
        }
        assert_eq!(place("8@total-8(%rip)").at, At::Data { address: 0x3ff8 });
        assert!(place("8f@-8(%rbp)").float && place("-8f@$0").float);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        assert!(refusal("8@%xmm0").contains("vector"));
        assert!(refusal("8@%fs:16").contains("segment"));
        assert!(refusal("8@absent(%rip)").contains("no variable absent"));
        assert!(refusal("8@total@GOTPCREL(%rip)").contains("dynamic linker"));
        assert!(refusal("8@16(%rip)").contains("relative"));
        for text in
            ["", "@", "8@", "8@$", "3@%rax", "8@%", "8@(", "8@(%rax", "8@%zax", "8@(%rax,%rcx,3)", "8@$x", "x"]
        {
            for place in parse(text, &|name| Err(format!("no {name}"))) {
                assert!(matches!(place.at, At::Unreadable { .. }), "{text}: {place:?}");
            }
        }
        assert!(parse(" ", &|_| Ok(0)).is_empty());
    }

    #[test]
    fn the_context_has_the_registers_where_linux_puts_them() {
        assert_eq!([R15, Rbp, Rax, Rdi, Rsp].map(Register::context_offset), [0, 32, 80, 112, 152]);
    }
}
