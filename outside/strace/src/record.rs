//! Records of the starts and ends of system calls, as [`ring3_recorder::stops`] writes them.

use ring3_recorder::stops::record as stops;

/// Whether a call starts or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Start,
    End,
}

/// A record, copied out of the ring buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    bytes: Vec<u8>,
}

impl Record {
    /// Takes over a record; false: it is too short for one.
    pub(crate) fn copy_from(&mut self, bytes: &[u8]) -> bool {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        bytes.len() >= stops::HEAD_BYTES
    }

    /// One that no program has written: registers have said it.
    pub(crate) fn synthesize(&mut self, phase: Phase, (pid, tid): (i32, i32), number: i64, words: [u64; 6]) {
        self.bytes.clear();
        let kind = if phase == Phase::Start { stops::START } else { stops::END };
        self.bytes.extend_from_slice(&kind.to_le_bytes());
        self.bytes.extend_from_slice(&stops::WAITS.to_le_bytes());
        self.bytes.extend_from_slice(&pid.to_le_bytes());
        self.bytes.extend_from_slice(&tid.to_le_bytes());
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(&0u64.to_le_bytes());
        words.iter().for_each(|word| self.bytes.extend_from_slice(&word.to_le_bytes()));
        self.bytes.resize(stops::HEAD_BYTES, 0);
    }

    fn word(&self, at: usize) -> u32 {
        self.bytes.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    fn long(&self, at: usize) -> u64 {
        self.bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.word(stops::KIND) == stops::START { Phase::Start } else { Phase::End }
    }

    /// The thread waits until the record is consumed.
    pub(crate) fn waits(&self) -> bool {
        self.word(stops::FLAGS) & stops::WAITS != 0
    }

    pub(crate) fn tid(&self) -> i32 {
        self.word(stops::TID) as i32
    }

    pub(crate) fn number(&self) -> i64 {
        self.long(stops::NUMBER) as i64
    }

    /// Of `CLOCK_MONOTONIC`, in ns; 0: unknown.
    pub(crate) fn time(&self) -> u64 {
        self.long(stops::TIME)
    }

    pub(crate) fn arguments(&self) -> [u64; 6] {
        std::array::from_fn(|index| self.long(stops::VALUES + 8 * index))
    }

    pub(crate) fn result(&self) -> i64 {
        self.long(stops::VALUES) as i64
    }

    /// Lays what was copied of the memory from `address` on over `into`. False: nothing of it was.
    pub(crate) fn copy_memory(&self, address: u64, into: &mut [u8]) -> bool {
        let (mut at, mut any) = (stops::HEAD_BYTES, false);
        // (A record may be longer than its chunks. What is behind them is left from earlier records.)
        let end = self.bytes.len().min(at + self.word(stops::CHUNKS_BYTES) as usize);
        while at + stops::CHUNK_HEAD_BYTES <= end {
            let (from, length) = (self.long(at), self.word(at + 8) as usize);
            at += stops::CHUNK_HEAD_BYTES;
            let Some(bytes) = self.bytes[..end].get(at..at + length) else { break };
            let (start, end) = (from.max(address), (from + length as u64).min(address + into.len() as u64));
            if start < end {
                let count = (end - start) as usize;
                let (of, to) = ((start - from) as usize, (start - address) as usize);
                into[to..to + count].copy_from_slice(&bytes[of..of + count]);
                any = true;
            }
            at += length.next_multiple_of(8);
        }
        any
    }
}
