//! Reading the trace ring (`bpf_trace_printk`) in the format of the kernel's `trace_pipe`.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use ring3_layout::realm::{Realm, TRACE_ENTRIES, TRACE_TEXT_BYTES, TraceEntry};

/// Lines from number `from` on that are still in the ring, and the number to continue at.
/// Targets write here: lengths are clipped, torn lines skipped.
pub(crate) fn read(realm: &Realm, from: u64) -> (Vec<String>, u64) {
    let head = realm.trace_head.load(Acquire);
    let oldest = head.saturating_sub(u64::from(TRACE_ENTRIES));
    let mut lines = vec![];
    for number in from.max(oldest)..head {
        let entry = &realm.trace[(number % u64::from(TRACE_ENTRIES)) as usize];
        let done = number.wrapping_mul(2).wrapping_add(2);
        if entry.sequence.load(Acquire) != done {
            continue;
        }
        let line = format_entry(entry);
        if entry.sequence.load(Acquire) == done {
            lines.push(line);
        }
    }
    (lines, head)
}

fn format_entry(entry: &TraceEntry) -> String {
    let comm: Vec<u8> = entry.comm.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let text: Vec<u8> = entry.text.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let used = (entry.text_bytes.load(Relaxed) as usize).min(TRACE_TEXT_BYTES);
    let time = entry.time_ns.load(Relaxed);
    let until_nul = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    format!(
        "{:>16}-{:<7} [{:03}] {:>5}.{:06}: bpf_trace_printk: {}",
        until_nul(&comm),
        entry.tid.load(Relaxed),
        entry.cpu.load(Relaxed),
        time / 1_000_000_000,
        time / 1000 % 1_000_000,
        until_nul(&text[..used]),
    )
}
