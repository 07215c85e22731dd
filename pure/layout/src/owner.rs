//! Owner ids of threads in shared memory: of map locks, ring buffer records and CPU slots (docs/design/maps.md).
//!
//! A thread id identifies a thread in one pid namespace only. So an owner id is the thread id, and above it the number that the
//! server gave to the namespace. Only a thread of the same namespace may conclude from an owner id that the owner has ended
//! (`tkill` says `ESRCH`). The server releases what owners of other namespaces left, because it notices every target's end.

/// Bits of a name that are the thread id; `PID_MAX_LIMIT` is 2^22.
pub const TID_BITS: u32 = 22;
/// The server's own pid namespace.
pub const NAMESPACE_SERVER: u32 = 0;
/// A namespace without a number: nobody but the server judges its threads.
pub const NAMESPACE_UNKNOWN: u32 = (1 << (32 - TID_BITS)) - 1;

/// The name of a thread.
pub const fn name(namespace: u32, tid: u32) -> u32 {
    namespace << TID_BITS | tid & ((1 << TID_BITS) - 1)
}

/// The thread id in a name, in the namespace of that thread.
pub const fn tid(name: u32) -> u32 {
    name & ((1 << TID_BITS) - 1)
}

/// The number of the namespace in a name.
pub const fn namespace(name: u32) -> u32 {
    name >> TID_BITS
}

/// Whether the thread named `other` is one of the namespace of the thread named `own`, as far as is known.
pub const fn is_near(own: u32, other: u32) -> bool {
    namespace(own) == namespace(other) && namespace(own) != NAMESPACE_UNKNOWN
}
