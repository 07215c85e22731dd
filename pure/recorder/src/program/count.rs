//! Counting events instead of recording them: nothing can be lost for want of room.
//!
//! A kind of event has a value for each CPU: calls, errors, nanoseconds together and at most (u64 each), then a histogram of
//! durations with [`STEPS`] buckets for each power of two.

use ring3_event::header;

use super::{RECORD_AT, Text, WORD_AT, map};
use crate::lines::Lines;
use crate::syscalls::{DURATION, PROVIDER, RESULT};

/// Buckets of the histogram.
pub const BUCKETS: usize = 64 * STEPS;
/// Buckets of a power of two: a bucket's ends are at most 1/8 apart.
pub const STEPS: usize = 1 << STEP_BITS;
/// Bits that tell them apart.
pub const STEP_BITS: u32 = 3;
/// Where a value has the calls, the errors, the sum and the longest duration in ns (u64), and the histogram.
pub mod at {
    /// Calls.
    pub const CALLS: usize = 0;
    /// Those that failed.
    pub const ERRORS: usize = 8;
    /// The sum of their durations.
    pub const TOTAL: usize = 16;
    /// The longest.
    pub const MAX: usize = 24;
    /// The buckets.
    pub const BUCKETS: usize = 32;
}
/// Bytes of a value.
pub const VALUE_BYTES: u32 = (at::BUCKETS + 8 * BUCKETS) as u32;
/// Numbers of events that are no system calls begin here.
pub const FIRST_PROBE_ID: u32 = 1 << 16;
/// Numbers of system calls are less.
const CALLS_MAX: u32 = 512;

/// Where the array has an event, by its number.
pub fn index(id: u32) -> u32 {
    if id < FIRST_PROBE_ID { id } else { CALLS_MAX + (id - FIRST_PROBE_ID) }
}

/// The bucket of a duration.
pub fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - STEP_BITS;
    (power as usize + 1) * STEPS + ((ns >> power) as usize & (STEPS - 1))
}

/// The largest duration of a bucket.
pub fn bucket_end(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let (power, step) = (index / STEPS - 1, index % STEPS);
    (((STEPS + step + 1) as u128) << power).saturating_sub(1).min(u64::MAX.into()) as u64
}

/// Counts the event.
pub(super) fn count(text: &mut Text<'_>, before_exec: Option<[u8; 8]>) {
    let recipe = text.recipe;
    let place = |name: &str| recipe.of.field(name).map(|index| RECORD_AT as u32 + text.offsets[index]);
    let (result, duration) = (place(RESULT), place(DURATION));
    if let Some(name) = before_exec {
        text.line(&format!("r1 = *(u64 *)(r6 + {})", RECORD_AT + header::COMM));
        text.line(&format!("r2 = {} ll", u64::from_le_bytes(name)));
        text.line("if r1 != r2 goto counted");
        // (A call that executes a program begins with the old name.)
        match result.filter(|_| matches!(&*recipe.of.name, "execve" | "execveat")) {
            Some(result) => {
                text.line(&format!("r1 = *(u64 *)(r6 + {result})"));
                text.line(&format!("if r1 != 0 goto {}", text.out));
            }
            None => text.line(&format!("goto {}", text.out)),
        }
        text.label("counted");
    }
    match recipe.of.provider == PROVIDER {
        true => text.line(&format!("r1 = *(u32 *)(r6 + {})", RECORD_AT + header::EVENT)),
        false => text.line(&format!("r1 = {}", index(recipe.of.id))),
    }
    text.line(&format!("*(u32 *)(r10 {WORD_AT}) = r1"));
    text.look_up(map::COUNTS, WORD_AT);
    text.line(&format!("if r0 == 0 goto {}", text.out));
    add(text, at::CALLS, "1");
    if let Some(result) = result {
        text.line(&format!("r1 = *(u64 *)(r6 + {result})"));
        text.line("if r1 s>= 0 goto no_error");
        text.line("if r1 s< -4095 goto no_error");
        add(text, at::ERRORS, "1");
        text.label("no_error");
    }
    if let Some(duration) = duration {
        text.line(&format!("r1 = *(u64 *)(r6 + {duration})"));
        add(text, at::TOTAL, "r1");
        text.line(&format!("r2 = *(u64 *)(r0 + {})", at::MAX));
        text.line("if r1 <= r2 goto no_maximum");
        text.line(&format!("*(u64 *)(r0 + {}) = r1", at::MAX));
        text.label("no_maximum");
        histogram(text);
    }
}

fn add(text: &mut Text<'_>, at: usize, what: &str) {
    text.line(&format!("r2 = *(u64 *)(r0 + {at})"));
    text.line(&format!("r2 += {what}"));
    text.line(&format!("*(u64 *)(r0 + {at}) = r2"));
}

/// Counts the duration in r1 in its bucket; the value is at r0.
fn histogram(text: &mut Text<'_>) {
    text.line("r2 = r1");
    text.line(&format!("if r1 < {STEPS} goto bucket"));
    // r3 becomes the power of two.
    text.line("r3 = 0");
    text.line("r4 = r1");
    for bits in [32, 16, 8, 4, 2, 1] {
        text.line("r5 = r4");
        text.line(&format!("r5 >>= {bits}"));
        text.line(&format!("if r5 == 0 goto less_{bits}"));
        text.line("r4 = r5");
        text.line(&format!("r3 += {bits}"));
        text.label(&format!("less_{bits}"));
    }
    text.line(&format!("r3 -= {STEP_BITS}"));
    text.line("r2 >>= r3");
    text.line(&format!("r2 &= {}", STEPS - 1));
    text.line("r3 += 1");
    text.line(&format!("r3 <<= {STEP_BITS}"));
    text.line("r2 += r3");
    text.label("bucket");
    text.line(&format!("r2 &= {}", BUCKETS - 1));
    text.line("r2 <<= 3");
    text.line("r0 += r2");
    add(text, at::BUCKETS, "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_its_bucket() {
        for ns in (0..5000).chain([u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            let index = bucket(ns);
            assert!(ns <= bucket_end(index), "{ns}");
            assert!(index == 0 || ns > bucket_end(index - 1), "{ns}");
        }
    }
}
