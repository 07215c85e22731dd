//! A slice of a host's object: a pointer, and how many elements are behind it in another field of the same object.

/// How a slice lies in its object, seen from the field with the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// From the pointer's field to the field with the length, bytes.
    pub length_at: i32,
    /// Bytes of that field: 1, 2, 4 or 8.
    pub length_bytes: u8,
    /// Bytes of an element.
    pub element_bytes: u16,
    /// The elements may be written.
    pub write: bool,
}

/// A slice as a word ([`crate::thread::ThreadBlock::call_word`]).
pub const fn pack(slice: Slice) -> u64 {
    slice.length_at as u32 as u64
        | (slice.length_bytes as u64) << 32
        | (slice.write as u64) << 40
        | (slice.element_bytes as u64) << 48
}

/// The slice of a word.
pub const fn unpack(word: u64) -> Slice {
    Slice {
        length_at: word as u32 as i32,
        length_bytes: (word >> 32) as u8,
        write: word >> 40 & 1 != 0,
        element_bytes: (word >> 48) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_slice() {
        for length_at in [-8, 0, 8, i32::MIN, i32::MAX] {
            for write in [false, true] {
                let slice = Slice { length_at, length_bytes: 8, element_bytes: u16::MAX, write };
                assert_eq!(unpack(pack(slice)), slice);
            }
        }
    }
}
