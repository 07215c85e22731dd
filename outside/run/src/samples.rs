//! Samples of perf events as the kernel writes them (`PERF_RECORD_SAMPLE`, linux/perf_event.h), and the context that programs get
//! for one (`struct bpf_perf_event_data`).

use ring3_uapi::perf as p;
use serde::{Deserialize, Serialize};

/// General registers, by their numbers in `enum perf_event_x86_regs`: all but the segments that the kernel does not tell.
pub const REGISTERS: u64 = 0xff_0fff;
/// Bytes of `struct bpf_perf_event_data`: `struct pt_regs`, `sample_period`, `addr`.
pub const CONTEXT_BYTES: usize = 168 + 8 + 8;
/// For each register of a sample, its place in `struct pt_regs`, in words.
const PLACES: [usize; 20] = [10, 5, 11, 12, 13, 14, 4, 19, 16, 18, 17, 20, 9, 8, 7, 6, 3, 2, 1, 0];
/// Place of `orig_ax`, of which samples tell nothing; in an interrupt it is no number of a system call.
const ORIG_AX: usize = 15;

/// What samples have besides the thread and its registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// The stacks.
    pub stacks: bool,
    /// The period. (A software event with a fixed period that is asked for it gives a sample each time that it occurs:
    /// kernel/events/core.c:perf_swevent_event.)
    pub period: bool,
}

impl Form {
    /// `sample_type` of such samples.
    pub const fn sample_type(self) -> u64 {
        let stacks = if self.stacks { p::SAMPLE_CALLCHAIN } else { 0 };
        let period = if self.period { p::SAMPLE_PERIOD_BIT } else { 0 };
        p::SAMPLE_IP | p::SAMPLE_TID | p::SAMPLE_ADDR | p::SAMPLE_REGS | stacks | period
    }
}

/// A sample.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// What r1 leads to.
    pub(crate) context: [u64; CONTEXT_BYTES / 8],
    /// Return addresses in the kernel, and in the process, the innermost first.
    pub(crate) kernel: Vec<u64>,
    pub(crate) user: Vec<u64>,
}

impl Sample {
    /// Of a record; `None`: it is damaged. `period`: what it is if the record does not tell.
    pub(crate) fn parse(record: &[u8], form: Form, period: u64) -> Option<Sample> {
        let mut words = record.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let ip = words.next()?;
        let ids = words.next()?;
        let address = words.next()?;
        let period = if form.period { words.next()? } else { period };
        let (mut kernel, mut user) = (vec![], vec![]);
        if form.stacks {
            let mut is_user = false;
            for _ in 0..words.next()? {
                match words.next()? {
                    p::CONTEXT_KERNEL => is_user = false,
                    p::CONTEXT_USER => is_user = true,
                    context if context >= p::CONTEXT_MAX => {}
                    address if is_user => user.push(address),
                    address => kernel.push(address),
                }
            }
        }
        let mut context = [0; CONTEXT_BYTES / 8];
        context[ORIG_AX] = u64::MAX;
        // (0: no registers, as of a CPU that was idle.)
        if words.next()? != 0 {
            for place in PLACES {
                context[place] = words.next()?;
            }
        } else {
            context[16] = ip;
        }
        context[21] = period;
        context[22] = address;
        Some(Sample { pid: ids as u32, tid: (ids >> 32) as u32, context, kernel, user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn registers_lie_where_programs_look_for_them() {
        // In the order of enum perf_event_x86_regs: ax bx cx dx si di bp sp ip flags cs ss r8 to r15.
        let registers: Vec<u64> = (1..=20).collect();
        let mut words = vec![9, 7 << 32 | 5, 0xadd2, 1000, 2];
        words.extend(&registers);
        let form = Form { stacks: false, period: true };
        let sample = Sample::parse(&record(&words), form, 3).expect("whole");
        assert_eq!((sample.pid, sample.tid), (5, 7));
        let wanted = [20, 19, 18, 17, 7, 2, 16, 15, 14, 13, 1, 3, 4, 5, 6, u64::MAX, 9, 11, 10, 8, 12, 1000, 0xadd2];
        assert_eq!(sample.context, wanted);
        assert_eq!(Sample::parse(&record(&words[..20]), form, 3), None);
    }

    #[test]
    fn the_parts_of_a_call_chain_are_told_apart() {
        let chain = [p::CONTEXT_KERNEL, 0xffff_ffff_8100_0000, p::CONTEXT_USER, 0x40_1000, 0x40_2000];
        let mut words = vec![0, 0, 0, chain.len() as u64];
        words.extend(chain);
        words.push(0);
        let form = Form { stacks: true, period: false };
        let sample = Sample::parse(&record(&words), form, 100).expect("whole");
        assert_eq!(sample.context[21], 100, "the period");
        assert_eq!((sample.kernel, sample.user), (vec![0xffff_ffff_8100_0000], vec![0x40_1000, 0x40_2000]));
    }
}
