//! The limit of a target's address space (`RLIMIT_AS`): what ring3 maps counts, so the kernel's limit is higher than the one that the
//! program has set or was given.
//!
//! Such a limit is a number of pages and `MARK` bytes more: the kernel counts pages only (mm/mmap.c:may_expand_vm), and programs
//! give whole pages. So it is known again in a child, in what the process executes, and by the next server.

use crate::PAGE_BYTES;
use crate::region::REGION_BYTES;

/// The number of `RLIMIT_AS`.
pub const RLIMIT_AS: u32 = 9;
/// No limit (`RLIM64_INFINITY`).
pub const INFINITE: u64 = u64::MAX;
/// What a raised limit has over whole pages, bytes.
const MARK: u64 = 0x333;
/// Room for maps of tools and for stubs, bytes.
const OTHER_BYTES: u64 = 0x600_0000;
/// By how much a limit is raised.
const ADDED: u64 = REGION_BYTES.next_multiple_of(PAGE_BYTES) + OTHER_BYTES + MARK;

/// A program's limit with room for ring3.
pub const fn raised(limit: u64) -> u64 {
    match (limit & !(PAGE_BYTES - 1)).checked_add(ADDED) {
        Some(sum) if limit != INFINITE => sum,
        _ => INFINITE,
    }
}

/// The program's own limit, if this one was raised; to whole pages.
pub const fn before(limit: u64) -> Option<u64> {
    if limit % PAGE_BYTES == MARK { limit.checked_sub(ADDED) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_limit_is_known_again() {
        for limit in [0, 4096, 300_000 << 10, 1 << 40] {
            assert_eq!(before(raised(limit)), Some(limit));
            assert_eq!(before(limit), None);
        }
        assert_eq!(before(raised(4097)), Some(4096));
        assert_eq!((raised(INFINITE), before(INFINITE)), (INFINITE, None));
    }
}
