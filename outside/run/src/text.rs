//! Which pages of a region's program memory are in use. Pages become writable while code is written, so programs that other
//! threads may be running share no page with it.

use std::ops::Range;

use ring3_layout::PAGE_BYTES;
use ring3_layout::region::TEXT_BYTES;

/// What is free: ranges of pages, in order, none beside another.
#[derive(Debug)]
pub(crate) struct Text {
    free: Vec<Range<u64>>,
}

impl Text {
    /// All of it is free.
    pub(crate) fn new() -> Text {
        Text { free: vec![Range { start: 0, end: TEXT_BYTES }] }
    }

    /// Takes room for so many bytes, a whole number of pages.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Range<u64>> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let index = self.free.iter().position(|free| free.end - free.start >= bytes)?;
        let start = self.free[index].start;
        self.free[index].start += bytes;
        if self.free[index].is_empty() {
            self.free.remove(index);
        }
        Some(start..start + bytes)
    }

    /// Gives room back.
    pub(crate) fn give(&mut self, span: Range<u64>) {
        let index = self.free.partition_point(|free| free.start < span.start);
        self.free.insert(index, span);
        self.free.dedup_by(|next, free| {
            let beside = free.end == next.start;
            if beside {
                free.end = next.end;
            }
            beside
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut text = Text::new();
        let all: Vec<Range<u64>> = (1..=9).map(|pages| text.take(pages * PAGE_BYTES - 1).expect("room")).collect();
        for span in all.iter().step_by(2).chain(all.iter().skip(1).step_by(2)) {
            text.give(span.clone());
        }
        assert_eq!(text.take(TEXT_BYTES), Some(0..TEXT_BYTES));
        assert_eq!(text.take(1), None);
    }

    #[test]
    fn spans_do_not_overlap() {
        let mut text = Text::new();
        let (first, second) = (text.take(1).expect("room"), text.take(2 * PAGE_BYTES).expect("room"));
        assert_eq!((first.clone(), second), (0..PAGE_BYTES, PAGE_BYTES..3 * PAGE_BYTES));
        text.give(first);
        assert_eq!(text.take(2 * PAGE_BYTES), Some(3 * PAGE_BYTES..5 * PAGE_BYTES));
        assert_eq!(text.take(1), Some(0..PAGE_BYTES));
    }
}
