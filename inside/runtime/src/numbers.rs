//! Numbers in text, as `bpf_strtol` and `bpf_strtoul` read them (kernel/bpf/helpers.c:__bpf_strtoull and
//! lib/kstrtox.c:_parse_integer_limit, v6.18).

use ring3_uapi::Errno;

/// Bits of the flags that are the base.
const BASE: u64 = 0x1f;
/// Digits that are looked at, with the prefix of the base.
const DIGITS_MAX: usize = 63;

/// What a text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    magnitude: u64,
    is_negative: bool,
    /// Bytes that it takes, with spaces before it.
    bytes: u64,
}

fn is_space(byte: u8) -> bool {
    const NO_BREAK: u8 = 0xa0;
    byte == b' ' || (b'\t'..=b'\r').contains(&byte) || byte == NO_BREAK
}

/// The base that the flags or a prefix say, and the bytes of the prefix.
fn base(flags: u64, digits: &[u8]) -> Result<(u64, usize), Errno> {
    let at = |index: usize| digits.get(index).copied().unwrap_or(0);
    let has_prefix = at(0) == b'0' && at(1) | 0x20 == b'x';
    let base = match flags {
        0 if has_prefix && at(2).is_ascii_hexdigit() => 16,
        0 if at(0) == b'0' => 8,
        0 => 10,
        8 | 10 | 16 => flags,
        _ => return Err(Errno::EINVAL),
    };
    Ok((base, if base == 16 && has_prefix { 2 } else { 0 }))
}

fn parse(text: &[u8], flags: u64) -> Result<Number, Errno> {
    if flags & !BASE != 0 {
        return Err(Errno::EINVAL);
    }
    let spaces = text.iter().take_while(|byte| is_space(**byte)).count();
    let is_negative = text.get(spaces) == Some(&b'-');
    let before = spaces + usize::from(is_negative);
    let digits = text.get(before..).unwrap_or(&[]);
    let digits = digits.get(..DIGITS_MAX).unwrap_or(digits);
    let (base, prefix) = base(flags, digits)?;
    let (mut magnitude, mut count) = (0u64, 0);
    let mut overflows = false;
    for byte in digits.get(prefix..).unwrap_or(&[]) {
        let Some(digit) = (*byte as char).to_digit(16).map(u64::from).filter(|digit| *digit < base) else { break };
        let next = magnitude.checked_mul(base).and_then(|shifted| shifted.checked_add(digit));
        overflows |= next.is_none();
        magnitude = next.unwrap_or(0);
        count += 1;
    }
    match count {
        _ if overflows => Err(Errno::ERANGE),
        0 => Err(Errno::EINVAL),
        _ => Ok(Number { magnitude, is_negative, bytes: (before + prefix + count) as u64 }),
    }
}

/// The number, as the bits of an `i64`, and the bytes that it takes.
pub(crate) fn signed(text: &[u8], flags: u64) -> Result<(u64, u64), Errno> {
    let Number { magnitude, is_negative, bytes } = parse(text, flags)?;
    let value = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    let fits = if is_negative { value as i64 <= 0 } else { value as i64 >= 0 };
    if fits { Ok((value, bytes)) } else { Err(Errno::ERANGE) }
}

/// The number, which has no sign, and the bytes that it takes.
pub(crate) fn unsigned(text: &[u8], flags: u64) -> Result<(u64, u64), Errno> {
    let Number { magnitude, is_negative, bytes } = parse(text, flags)?;
    if is_negative { Err(Errno::EINVAL) } else { Ok((magnitude, bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_and_the_smallest_numbers_are_read_and_no_larger_ones() {
        assert_eq!(signed(b"9223372036854775807", 10), Ok((i64::MAX as u64, 19)));
        assert_eq!(signed(b"9223372036854775808", 10), Err(Errno::ERANGE));
        assert_eq!(signed(b"-9223372036854775808", 10), Ok((i64::MIN as u64, 20)));
        assert_eq!(signed(b"-9223372036854775809", 10), Err(Errno::ERANGE));
        assert_eq!(unsigned(b"0xffffffffffffffff", 0), Ok((u64::MAX, 18)));
        assert_eq!(unsigned(b"0x10000000000000000", 0), Err(Errno::ERANGE));
    }

    #[test]
    fn a_prefix_is_one_where_a_digit_follows_or_the_base_is_16() {
        assert_eq!(unsigned(b" 0x", 0), Ok((0, 2)));
        assert_eq!(unsigned(b" 0x", 16), Err(Errno::EINVAL));
        assert_eq!(unsigned(b"0X1fg", 16), Ok((0x1f, 4)));
        assert_eq!(unsigned(b"019", 0), Ok((1, 2)));
        assert_eq!((unsigned(b"-1", 0), unsigned(b"", 0)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    }
}
