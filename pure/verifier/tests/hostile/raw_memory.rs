//! Counts the memory that a thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, with a count.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn add(bytes: i64) {
    // A thread that ends has no counters any more.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: all is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the layout is the caller's, who promises what the trait wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: the caller got the memory from `alloc`, which is the system's, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What `work` gives, and how many bytes more than before there were at most.
pub(crate) fn with_peak<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}
