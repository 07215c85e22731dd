//! Code that is written into a process at once.

use ring3_inject::{self as inject, INT3};
use ring3_layout::syscall::TRAMPOLINE_BYTES;

use super::code_memory::CodeMemory;

/// Code that is written at once: to many places, some of which lie one behind the other.
#[derive(Debug, Default)]
pub(in crate::realm) struct Batch(pub(in crate::realm) Vec<(u64, Vec<u8>)>);

impl Batch {
    pub(in crate::realm) fn write(mut self, memory: &mut dyn CodeMemory) -> Result<(), inject::Error> {
        self.0.sort();
        let mut run: Option<(u64, Vec<u8>)> = None;
        for (address, code) in self.0 {
            match &mut run {
                Some((start, bytes)) if address - *start - (bytes.len() as u64) < TRAMPOLINE_BYTES => {
                    bytes.resize((address - *start) as usize, INT3);
                    bytes.extend(code);
                }
                _ => {
                    if let Some((start, bytes)) = run.replace((address, code)) {
                        memory.write(start, &bytes)?;
                    }
                }
            }
        }
        run.map_or(Ok(()), |(start, bytes)| memory.write(start, &bytes))
    }
}
