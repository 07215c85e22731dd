//! The kernel's `bstr_printf` for `bpf_trace_printk` and `bpf_snprintf`, without `core::fmt` (which would
//! bring relocations and panics into the agent).

use ring3_uapi::Errno;

/// Bytes of one string argument at most.
const STRING_MAX: usize = 128;

/// Where the formatter gets strings from.
pub(crate) trait Strings {
    /// Copies the string at `address` to `out`, cut if too long; bytes without NUL, or `None` on a bad address.
    fn string(&self, address: u64, out: &mut [u8]) -> Option<usize>;

    /// Fills `out` from `address`; false on a bad one.
    fn bytes(&self, address: u64, out: &mut [u8]) -> bool;
}

struct Output<'o> {
    bytes: &'o mut [u8],
    /// Bytes produced, also those that did not fit.
    length: usize,
}

impl Output<'_> {
    fn push(&mut self, byte: u8) {
        if let Some(to) = self.bytes.get_mut(self.length) {
            *to = byte;
        }
        self.length += 1;
    }

    fn repeat(&mut self, byte: u8, count: usize) {
        for _ in 0..count.min(256) {
            self.push(byte);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    longs: u8,
}

/// Formats into `out`. Returns the length of the whole text without NUL, which may be more than fits.
///
/// # Errors
/// `EINVAL` for conversions that the kernel's helpers do not know and for missing arguments.
pub(crate) fn format(
    out: &mut [u8],
    format: &[u8],
    arguments: &[u64],
    strings: &impl Strings,
) -> Result<usize, Errno> {
    let mut output = Output { bytes: out, length: 0 };
    let mut arguments = arguments.iter().copied();
    let mut bytes = format.iter().copied().take_while(|byte| *byte != 0).peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            output.push(byte);
            continue;
        }
        if bytes.next_if_eq(&b'%').is_some() {
            output.push(b'%');
            continue;
        }
        let mut spec = Spec::default();
        while let Some(flag) = bytes.next_if(|byte| matches!(byte, b'-' | b'0' | b'+' | b' ' | b'#')) {
            match flag {
                b'-' => spec.left = true,
                b'0' => spec.zero = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                _ => spec.alternate = true,
            }
        }
        while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
            spec.width = (spec.width * 10 + usize::from(digit - b'0')).min(1024);
        }
        if bytes.next_if_eq(&b'.').is_some() {
            let mut precision = 0;
            while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
                precision = (precision * 10 + usize::from(digit - b'0')).min(1024);
            }
            spec.precision = Some(precision);
        }
        while bytes.next_if_eq(&b'l').is_some() {
            spec.longs += 1;
        }
        let conversion = bytes.next().ok_or(Errno::EINVAL)?;
        let argument = arguments.next().ok_or(Errno::EINVAL)?;
        match conversion {
            b's' => push_string(&mut output, spec, argument, strings),
            b'p' => match bytes.peek() {
                Some(b'k' | b'u') => {
                    bytes.next();
                    bytes.next_if_eq(&b's').ok_or(Errno::EINVAL)?;
                    push_string(&mut output, spec, argument, strings);
                }
                Some(separated @ (b'i' | b'I')) => {
                    let separated = *separated == b'I';
                    bytes.next();
                    match bytes.next() {
                        Some(b'4') => push_ip4(&mut output, argument, strings, separated),
                        Some(b'6') => push_ip6(&mut output, argument, strings, separated),
                        _ => return Err(Errno::EINVAL),
                    }
                }
                _ => {
                    while bytes.next_if(|byte| matches!(byte, b'x' | b'K' | b'S' | b's' | b'B')).is_some() {}
                    let spec = Spec { zero: true, width: 16, ..Spec::default() };
                    push_number(&mut output, spec, argument, 16, false, false);
                }
            },
            b'c' => output.push(argument as u8),
            b'd' | b'i' => {
                let value = if spec.longs == 0 { i64::from(argument as i32) } else { argument as i64 };
                push_number(&mut output, spec, value.unsigned_abs(), 10, value < 0, false);
            }
            b'u' | b'x' | b'X' => {
                let value = if spec.longs == 0 { u64::from(argument as u32) } else { argument };
                let radix = if conversion == b'u' { 10 } else { 16 };
                push_number(&mut output, spec, value, radix, false, conversion == b'X');
            }
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(output.length)
}

fn push_string(output: &mut Output<'_>, spec: Spec, address: u64, strings: &impl Strings) {
    let mut text = [0u8; STRING_MAX];
    let length = strings.string(address, &mut text).unwrap_or(0);
    let length = spec.precision.map_or(length, |precision| length.min(precision));
    let padding = spec.width.saturating_sub(length);
    if !spec.left {
        output.repeat(b' ', padding);
    }
    for byte in text.iter().take(length) {
        output.push(*byte);
    }
    if spec.left {
        output.repeat(b' ', padding);
    }
}

/// `%pi4`: `127.000.000.001`; `%pI4`: `127.0.0.1`.
fn push_ip4(output: &mut Output<'_>, address: u64, strings: &impl Strings, short: bool) {
    let mut bytes = [0u8; 4];
    if !strings.bytes(address, &mut bytes) {
        bytes = [0; 4];
    }
    let spec = Spec { zero: true, width: if short { 0 } else { 3 }, ..Spec::default() };
    for (index, byte) in bytes.iter().enumerate() {
        if index > 0 {
            output.push(b'.');
        }
        push_number(output, spec, u64::from(*byte), 10, false, false);
    }
}

/// `%pi6`: 32 digits; `%pI6`: with colons.
fn push_ip6(output: &mut Output<'_>, address: u64, strings: &impl Strings, colons: bool) {
    let mut bytes = [0u8; 16];
    if !strings.bytes(address, &mut bytes) {
        bytes = [0; 16];
    }
    let spec = Spec { zero: true, width: 2, ..Spec::default() };
    for (index, byte) in bytes.iter().enumerate() {
        if colons && index > 0 && index % 2 == 0 {
            output.push(b':');
        }
        push_number(output, spec, u64::from(*byte), 16, false, false);
    }
}

fn push_number(output: &mut Output<'_>, spec: Spec, value: u64, radix: u64, negative: bool, upper: bool) {
    let mut digits = [0u8; 20];
    let mut count = 0;
    let mut rest = value;
    loop {
        let digit = (rest % radix.max(1)) as u8;
        let letter = if upper { b'A' } else { b'a' };
        if let Some(to) = digits.get_mut(count) {
            *to = if digit < 10 { b'0' + digit } else { letter + digit - 10 };
            count += 1;
        }
        rest /= radix.max(1);
        if rest == 0 {
            break;
        }
    }
    let sign = if negative {
        Some(b'-')
    } else if spec.plus {
        Some(b'+')
    } else if spec.space {
        Some(b' ')
    } else {
        None
    };
    let prefix = spec.alternate && radix == 16;
    let length = count + usize::from(sign.is_some()) + if prefix { 2 } else { 0 };
    let padding = spec.width.saturating_sub(length);
    if !spec.left && !spec.zero {
        output.repeat(b' ', padding);
    }
    if let Some(sign) = sign {
        output.push(sign);
    }
    if prefix {
        output.push(b'0');
        output.push(b'x');
    }
    if !spec.left && spec.zero {
        output.repeat(b'0', padding);
    }
    for digit in digits.iter().take(count).rev() {
        output.push(*digit);
    }
    if spec.left {
        output.repeat(b' ', padding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;
    impl Strings for One {
        fn string(&self, address: u64, out: &mut [u8]) -> Option<usize> {
            let text = if address == 1 { b"hello" } else { return None };
            out.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
            Some(text.len())
        }

        fn bytes(&self, address: u64, out: &mut [u8]) -> bool {
            out.iter_mut().zip([192, 168, 0, 1].iter().cycle()).for_each(|(to, from)| *to = *from);
            address == 1
        }
    }

    fn check(text: &str, arguments: &[u64], expected: &str) {
        let mut out = [0; 64];
        let length = format(&mut out, text.as_bytes(), arguments, &One).expect("valid");
        assert_eq!(core::str::from_utf8(&out[..length.min(64)]), Ok(expected));
    }

    #[test]
    fn conversions_are_those_of_the_kernel() {
        check("%d %u %x %s|%5d|%-5d|%05d%%", &[u64::MAX, 7, 255, 1, 42, 42, 42], "-1 7 ff hello|   42|42   |00042%");
        check("%lld %llu %lx %c", &[u64::MAX, u64::MAX, 1 << 40, 65], "-1 18446744073709551615 10000000000 A");
        check("%8s|%-8s|%.2s|%s", &[1, 1, 1, 2], "   hello|hello   |he|");
        check("%pi4 %pI4 %pI4", &[1, 1, 2], "192.168.000.001 192.168.0.1 0.0.0.0");
        check("%pI6", &[1], "c0a8:0001:c0a8:0001:c0a8:0001:c0a8:0001");
        check("%#x %+d % d", &[16, 5, 5], "0x10 +5  5");
        assert_eq!(format(&mut [], b"%f", &[1], &One), Err(Errno::EINVAL));
        assert_eq!(format(&mut [], b"%d", &[], &One), Err(Errno::EINVAL));
        assert_eq!(format(&mut [0; 2], b"abcd", &[], &One), Ok(4));
    }
}
