//! Names of addresses.

/// Knows the names of addresses in stacks.
pub trait Symbols {
    /// The function at an address of a process, if it is known. (Of a frame but the innermost, the address is the one to which
    /// the function returns.)
    fn name(&mut self, pid: u32, address: u64) -> Option<String>;
}

/// Knows none.
pub struct NoSymbols;

impl Symbols for NoSymbols {
    fn name(&mut self, _: u32, _: u64) -> Option<String> {
        None
    }
}

impl<F: FnMut(u32, u64) -> Option<String>> Symbols for F {
    fn name(&mut self, pid: u32, address: u64) -> Option<String> {
        self(pid, address)
    }
}
