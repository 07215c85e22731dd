//! Types that are being changed.

use crate::{Btf, HEADER_BYTES, MAGIC};

/// Types and strings, to be written anew. What it gives out is to be parsed again.
#[derive(Clone, Debug)]
pub struct Draft {
    types: Vec<u8>,
    /// Where each type begins.
    starts: Vec<usize>,
    strings: Vec<u8>,
}

impl Draft {
    /// No types.
    pub fn empty() -> Draft {
        Draft { types: vec![], starts: vec![], strings: vec![0] }
    }

    /// The types of a `Btf`, with their ids.
    pub fn new(of: &Btf) -> Draft {
        let first = of.types.first().map_or(0, |first| first.extra.start - 12);
        let end = of.types.last().map_or(0, |last| last.extra.end);
        let starts = of.types.iter().map(|found| found.extra.start - 12 - first).collect();
        Draft { types: of.bytes[first..end].to_vec(), starts, strings: of.bytes[of.strings.clone()].to_vec() }
    }

    fn place(&self, id: u32, index: usize) -> Option<usize> {
        let index_of = id.checked_sub(1)? as usize;
        let end = self.starts.get(index_of + 1).copied().unwrap_or(self.types.len());
        let at = self.starts.get(index_of)? + index * 4;
        (at + 4 <= end).then_some(at)
    }

    /// A word of a type: name, information, size or type, and what follows; 0 if there is none.
    pub fn word(&self, id: u32, index: usize) -> u32 {
        self.place(id, index).and_then(|at| crate::word_at(&self.types, at)).unwrap_or(0)
    }

    /// Writes a word of a type, if there is such.
    pub fn set(&mut self, id: u32, index: usize, value: u32) {
        if let Some(at) = self.place(id, index) {
            self.types[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Adds a type; its id.
    pub fn add(&mut self, words: &[u32]) -> u32 {
        self.starts.push(self.types.len());
        self.types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.starts.len() as u32
    }

    /// Adds a string; where it is.
    pub fn add_text(&mut self, text: &str) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }

    /// The bytes of `BPF_BTF_LOAD`.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let header = [HEADER_BYTES as u32, 0, types, types, strings];
        bytes.extend(header.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.types);
        bytes.extend(self.strings);
        bytes
    }
}
