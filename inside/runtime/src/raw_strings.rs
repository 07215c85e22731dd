//! The kernel's string functions, of strings in what programs read as the kernel's memory: their stack and maps, and objects of tasks.
//! Mirrors kernel/bpf/helpers.c:bpf_strcmp and those behind it (v6.18).

use core::cell::Cell;

use ring3_layout::thread::ThreadBlock;
use ring3_uapi::Errno;

use crate::raw_helpers::block;
use crate::raw_kernel::read_kernel;

/// Bytes of a string at most (`XATTR_SIZE_MAX`).
const STRING_MAX: u64 = 65536;

/// Bytes that are read at a time, where as many are there.
const WINDOW_BYTES: usize = 64;

/// A string that a program names.
struct Text<'t> {
    tb: &'t ThreadBlock,
    address: u64,
    /// The bytes that were read last.
    window: [Cell<u8>; WINDOW_BYTES],
    /// Index of the first one.
    start: Cell<u64>,
    /// How many there are.
    filled: Cell<u64>,
}

impl<'t> Text<'t> {
    /// `ERANGE` if its first byte is none of the kernel's.
    fn new(tb: &'t ThreadBlock, address: u64) -> Result<Text<'t>, Errno> {
        let window = [const { Cell::new(0) }; WINDOW_BYTES];
        let text = Text { tb, address, window, start: Cell::new(0), filled: Cell::new(0) };
        match text.byte(0) {
            Err(Errno::ERANGE) => Err(Errno::ERANGE),
            _ => Ok(text),
        }
    }

    /// A byte; `EFAULT` if it cannot be read, `ERANGE` if it is none of the kernel's.
    fn byte(&self, index: u64) -> Result<u8, Errno> {
        if index.wrapping_sub(self.start.get()) >= self.filled.get() {
            self.fill(index)?;
        }
        let place = index.wrapping_sub(self.start.get()) as usize;
        self.window.get(place).map(Cell::get).ok_or(Errno::EFAULT)
    }

    fn fill(&self, index: u64) -> Result<(), Errno> {
        let (to, from) = (self.window.as_ptr() as u64, self.address.wrapping_add(index));
        let mut result = Ok(());
        for bytes in [WINDOW_BYTES as u64, 1] {
            // SAFETY: the window has room, and is made of cells.
            result = unsafe { read_kernel(self.tb, to, from, bytes) };
            if result.is_ok() {
                self.start.set(index);
                self.filled.set(bytes);
                break;
            }
        }
        result
    }

    /// What is behind the string in memory is the kernel's there, too.
    fn at(&self, index: u64) -> Result<u8, Errno> {
        self.byte(index).map_err(|_| Errno::EFAULT)
    }

    /// The index of the first byte of the first `count` that is `wanted`, or `missing` if there is none.
    fn find(&self, count: u64, missing: Result<u64, Errno>, wanted: impl Fn(u8) -> bool) -> Result<u64, Errno> {
        for index in 0..count.min(STRING_MAX) {
            if wanted(self.at(index)?) {
                return Ok(index);
            }
        }
        if count < STRING_MAX { missing } else { Err(Errno::E2BIG) }
    }

    /// Bytes of its beginning that `set` has, or has not.
    fn span(&self, set: &Text<'_>, has: bool) -> Result<u64, Errno> {
        for index in 0..STRING_MAX {
            let byte = self.at(index)?;
            if byte == 0 {
                return Ok(index);
            }
            let mut place = 0;
            let found = loop {
                match set.at(place)? {
                    0 => break false,
                    other if other == byte => break true,
                    _ => place += 1,
                }
                if place == STRING_MAX {
                    return Err(Errno::E2BIG);
                }
            };
            if found != has {
                return Ok(index);
            }
        }
        Err(Errno::E2BIG)
    }

    /// Where another string begins in the first `count` bytes.
    fn find_text(&self, other: &Text<'_>, count: u64) -> Result<u64, Errno> {
        for start in 0..STRING_MAX {
            let mut length = 0;
            while start + length <= count && length < STRING_MAX {
                let wanted = other.at(length)?;
                if wanted == 0 {
                    return Ok(start);
                }
                if start + length == count {
                    break;
                }
                match self.at(start + length)? {
                    0 => return Err(Errno::ENOENT),
                    byte if byte != wanted => break,
                    _ => length += 1,
                }
            }
            if length == STRING_MAX {
                return Err(Errno::E2BIG);
            }
            if start + length == count {
                return Err(Errno::ENOENT);
            }
        }
        Err(Errno::E2BIG)
    }
}

/// -1, 0 or 1, as `one` is less, equal or greater.
fn compare(one: &Text<'_>, other: &Text<'_>, fold: impl Fn(u8) -> u8) -> Result<i32, Errno> {
    for index in 0..STRING_MAX {
        let (a, b) = (fold(one.at(index)?), fold(other.at(index)?));
        if a != b {
            return Ok(if a < b { -1 } else { 1 });
        }
        if a == 0 {
            return Ok(0);
        }
    }
    Err(Errno::E2BIG)
}

/// As the kernel's `tolower` (include/linux/ctype.h, lib/ctype.c): of ISO 8859-1.
fn lower(byte: u8) -> u8 {
    const MULTIPLICATION_SIGN: u8 = 0xd7;
    match byte {
        b'A'..=b'Z' => byte + 32,
        MULTIPLICATION_SIGN => byte,
        0xc0..=0xde => byte + 32,
        other => other,
    }
}

/// An `int`.
fn int(result: Result<i32, Errno>) -> u64 {
    u64::from(result.unwrap_or_else(|errno| errno.negated() as i32) as u32)
}

/// An index as an `int`.
fn index(result: Result<u64, Errno>) -> u64 {
    int(result.map(|index| index as i32))
}

macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($tb:ident $(, $argument:ident)*) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Called by a verified program with the thread block that it was given.
            pub unsafe extern "sysv64" fn $name(a1: u64, a2: u64, a3: u64, a4: u64, a5: u64, env: u64) -> u64 {
                // SAFETY: this function's contract.
                let $tb = &*unsafe { block(env) };
                let [$($argument,)* ..] = [a1, a2, a3, a4, a5];
                $body
            }
        )*
    };
}

functions! {
    /// `bpf_strcmp`
    fn strcmp(tb, one, other) {
        int(Text::new(tb, one).and_then(|one| compare(&one, &Text::new(tb, other)?, |byte| byte)))
    }

    /// `bpf_strcasecmp`
    fn strcasecmp(tb, one, other) {
        int(Text::new(tb, one).and_then(|one| compare(&one, &Text::new(tb, other)?, lower)))
    }

    /// `bpf_strnchr`: the index of a byte among the first `count`.
    fn strnchr(tb, text, count, byte) {
        index(find_byte(tb, text, count, byte as u8))
    }

    /// `bpf_strchr`
    fn strchr(tb, text, byte) {
        index(find_byte(tb, text, STRING_MAX, byte as u8))
    }

    /// `bpf_strchrnul`: the index of a byte, or of the end.
    fn strchrnul(tb, text, byte) {
        let is_it = |other| other == byte as u8 || other == 0;
        index(Text::new(tb, text).and_then(|text| text.find(STRING_MAX, Err(Errno::E2BIG), is_it)))
    }

    /// `bpf_strrchr`: the last index of a byte, which is an `int` here.
    fn strrchr(tb, text, byte) {
        index(Text::new(tb, text).and_then(|text| {
            let mut last = Err(Errno::ENOENT);
            for index in 0..STRING_MAX {
                let found = text.at(index)?;
                if i32::from(found) == byte as i32 {
                    last = Ok(index);
                }
                if found == 0 {
                    return last;
                }
            }
            Err(Errno::E2BIG)
        }))
    }

    /// `bpf_strlen`
    fn strlen(tb, text) {
        index(Text::new(tb, text).and_then(|text| text.find(STRING_MAX, Err(Errno::E2BIG), |byte| byte == 0)))
    }

    /// `bpf_strnlen`
    fn strnlen(tb, text, count) {
        index(Text::new(tb, text).and_then(|text| text.find(count, Ok(count), |byte| byte == 0)))
    }

    /// `bpf_strspn`: bytes of the beginning that are all in a set.
    fn strspn(tb, text, set) {
        index(Text::new(tb, text).and_then(|text| text.span(&Text::new(tb, set)?, true)))
    }

    /// `bpf_strcspn`: bytes of the beginning that are not in a set.
    fn strcspn(tb, text, set) {
        index(Text::new(tb, text).and_then(|text| text.span(&Text::new(tb, set)?, false)))
    }

    /// `bpf_strnstr`: where another string begins in the first `count` bytes.
    fn strnstr(tb, text, other, count) {
        index(Text::new(tb, text).and_then(|text| text.find_text(&Text::new(tb, other)?, count)))
    }

    /// `bpf_strstr`
    fn strstr(tb, text, other) {
        index(Text::new(tb, text).and_then(|text| text.find_text(&Text::new(tb, other)?, STRING_MAX)))
    }
}

/// The index of a byte among the first `count`, up to the end: that is one, too.
fn find_byte(tb: &ThreadBlock, text: u64, count: u64, byte: u8) -> Result<u64, Errno> {
    let text = Text::new(tb, text)?;
    let index = text.find(count, Err(Errno::ENOENT), |other| other == byte || other == 0)?;
    if text.at(index)? == byte { Ok(index) } else { Err(Errno::ENOENT) }
}
