//! A table's bytes. Addresses in it are offsets from the first byte of code that it tells of.
//!
//! Code is cut into blocks of [`BLOCK_BYTES`]. A row begins at each block's start and wherever the rule changes, so a row's start is
//! one byte: its place in the block. There are few different rules, which rows name by their numbers. So a row has three bytes,
//! and a search touches one block's rows only.
//!
//! ```text
//! numbers of blocks, rows and rules      3 x u32, and 4 bytes of 0
//! rules                                  Rule each
//! first row of each block, and the end   u32 each
//! rule of each row                       u16 each
//! start of each row in its block         u8 each
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Rule;

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 256;
/// Different rules of one table.
pub const RULES_MAX: usize = 1 << 16;

/// What a table begins with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Shape {
    /// Blocks of code.
    pub blocks: u32,
    /// Rows.
    pub rows: u32,
    /// Different rules.
    pub rules: u32,
    /// Zero.
    pub reserved: u32,
}

/// A table, in its parts.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    rules: &'a [Rule],
    index: &'a [u32],
    names: &'a [u16],
    starts: &'a [u8],
}

impl<'a> Table<'a> {
    /// That says nothing.
    pub const EMPTY: Table<'static> = Table { rules: &[], index: &[], names: &[], starts: &[] };

    /// The table in `bytes`, which are aligned to 4; `None` if they are none.
    pub fn of(bytes: &'a [u8]) -> Option<Table<'a>> {
        let (shape, rest) = Shape::read_from_prefix(bytes).ok()?;
        let (rules, rest) = <[Rule]>::ref_from_prefix_with_elems(rest, shape.rules as usize).ok()?;
        let (index, rest) =
            <[u32]>::ref_from_prefix_with_elems(rest, (shape.blocks as usize).checked_add(1)?).ok()?;
        let (names, rest) = <[u16]>::ref_from_prefix_with_elems(rest, shape.rows as usize).ok()?;
        Some(Table { rules, index, names, starts: rest.get(..shape.rows as usize)? })
    }

    /// The rule for the instruction at `offset`; [`Rule::NONE`] where the table says nothing.
    #[inline(always)]
    pub fn find(&self, offset: u64) -> Rule {
        self.search(offset).copied().unwrap_or(Rule::none())
    }

    #[inline(always)]
    fn search(&self, offset: u64) -> Option<&Rule> {
        let (block, inside) = ((offset / BLOCK_BYTES) as usize, (offset % BLOCK_BYTES) as u8);
        let [first, end] = *self.index.get(block..)?.first_chunk()?;
        let starts = self.starts.get(first as usize..end as usize)?;
        let behind = starts.partition_point(|start| *start <= inside);
        let name = self.names.get((first as usize + behind).checked_sub(1)?)?;
        self.rules.get(*name as usize)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;

    use super::*;

    #[test]
    fn no_bytes_make_the_search_panic() {
        for shape in [[0; 4], [u32::MAX; 4], [1, 1, 1, 0], [1, 0, 0, 0], [2, 3, 1, 0], [u32::MAX, 0, 0, 0]] {
            for length in [0, 4, 16, 20, 36, 64, 100] {
                for fill in [0u8, 1, 0x7f, 0xff] {
                    let mut bytes = vec![fill; length];
                    let head = shape.map(u32::to_le_bytes).concat();
                    bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
                    let Some(table) = Table::of(&bytes) else { continue };
                    for offset in [0, 1, 255, 256, 1 << 32, u64::MAX] {
                        let _ = table.find(offset);
                    }
                }
            }
        }
    }
}
