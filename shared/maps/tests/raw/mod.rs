//! Maps in memory that processes share, and processes that are stepped instruction by instruction.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use ring3_maps::{Attributes, Context, Geometry, Map};

/// Owners from here on are dead.
pub(crate) const DEAD: u32 = 600;

pub(crate) fn context(owner: u32) -> Context {
    Context { owner, cpu: 0, owner_is_dead: |tid| tid >= DEAD, relax: |_| (), interrupts: false }
}

/// Of a thread that others run beside.
pub(crate) fn waiting(owner: u32) -> Context {
    let relax = |sleeps| match sleeps {
        true => std::thread::sleep(std::time::Duration::from_nanos(ring3_maps::NAP_NS)),
        false => std::thread::yield_now(),
    };
    Context { relax, ..context(owner) }
}

/// A map in memory that children share.
pub(crate) struct Shared {
    pub(crate) base: *mut u8,
    pub(crate) geometry: Geometry,
}

// SAFETY: the memory is shared between processes by design; access goes through ring3-maps, or atomics.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(geometry: Geometry) -> Shared {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = geometry.file_bytes() as usize;
        // SAFETY: asks for fresh memory.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Shared { base: base.cast(), geometry }
    }

    pub(crate) fn fresh(attributes: Attributes) -> Shared {
        Shared::new(Geometry::new(&attributes).expect("valid"))
    }

    pub(crate) fn of(state: &[u8], geometry: Geometry) -> Shared {
        let shared = Shared::new(geometry);
        shared.restore(state);
        shared
    }

    /// Makes the memory what it was.
    pub(crate) fn restore(&self, state: &[u8]) {
        assert_eq!(state.len(), self.bytes().len());
        // SAFETY: a state has the bytes of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(state.as_ptr(), self.base, state.len()) };
    }

    pub(crate) fn map(&self) -> Map<'_> {
        // SAFETY: mapped with the geometry's size while self lives.
        unsafe { Map::trusted(self.base, &self.geometry) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped; whoever writes is stopped while the slice is used.
        unsafe { std::slice::from_raw_parts(self.base, self.geometry.file_bytes() as usize) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size.
        unsafe { libc::munmap(self.base.cast(), self.geometry.file_bytes() as usize) };
    }
}

/// A child that does something with memory that is shared, and that runs as far as it is told.
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// It is stopped before `operation`.
    pub(crate) fn start(operation: &dyn Fn()) -> Child {
        // SAFETY: the child operates on the memory and ends; it allocates nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes no memory.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            // SAFETY: stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
            operation();
            // SAFETY: ends this process without cleaning up.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0);
        assert!(wait(child));
        Child(child)
    }

    /// Runs one instruction; false: it has ended.
    pub(crate) fn step(&self) -> bool {
        go_on(self.0, libc::PTRACE_SINGLESTEP)
    }

    /// Runs the rest.
    fn finish(&self) {
        while go_on(self.0, libc::PTRACE_CONT) {}
    }

    /// Ends it where it is.
    pub(crate) fn kill(&self) {
        // SAFETY: our child, which nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
        let mut status = 0;
        // SAFETY: waits for our child and writes the status.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) }, self.0);
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
    }
}

/// Whether a child has stopped; else it has ended well.
fn wait(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: waits for our child and writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
    let stopped = libc::WIFSTOPPED(status);
    assert!(stopped || libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    stopped
}

/// Runs one instruction of a stopped child, or with `PTRACE_CONT` the rest; whether it has stopped again.
fn go_on(child: libc::pid_t, how: libc::c_uint) -> bool {
    // SAFETY: our child, which is stopped.
    assert_eq!(unsafe { libc::ptrace(how, child, 0, 0) }, 0);
    wait(child)
}

/// Runs `operation` once for each of its instructions, with `other` as a whole before that instruction, and `judge` at
/// the end. All begin with the memory as it is now.
pub(crate) fn interrupted(shared: &Shared, operation: &dyn Fn(&Map), other: &dyn Fn(&Map), judge: &dyn Fn()) {
    let before = shared.bytes().to_vec();
    for steps in 0.. {
        shared.restore(&before);
        let child = Child::start(&|| operation(&shared.map()));
        let stopped = (0..steps).all(|_| child.step());
        if !stopped {
            println!("{steps} schedules");
            return;
        }
        other(&shared.map());
        child.finish();
        judge();
    }
}

/// Every state of the shared memory that a death during `operation` leaves, the first and the last included.
pub(crate) fn states(shared: &Shared, operation: &dyn Fn(&Map)) -> Vec<Vec<u8>> {
    let child = Child::start(&|| operation(&shared.map()));
    let mut found = vec![shared.bytes().to_vec()];
    let mut steps = 0;
    while child.step() {
        if found.last().is_some_and(|last| last != shared.bytes()) {
            found.push(shared.bytes().to_vec());
        }
        steps += 1;
    }
    println!("{steps} instructions, {} states", found.len());
    found
}

pub(crate) const ENTRIES: u32 = 8;

pub(crate) fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

pub(crate) type Model = BTreeMap<u32, Vec<u8>>;

/// What a hash map has, by iteration, and by look-ups of all keys that the tests use.
pub(crate) fn contents(map: &Map) -> Model {
    let value_of = |number: u32| {
        let mut value = vec![0; map.geometry().user_value_bytes()];
        map.user_lookup(&key(number), &mut value).ok().map(|()| value)
    };
    let found: Model = (0..40).filter_map(|number| Some((number, value_of(number)?))).collect();
    let mut listed = vec![];
    let mut last = None;
    let mut next = [0; 4];
    while map.user_next_key(last.as_ref().map(<[u8; 4]>::as_slice), &mut next).is_ok() {
        listed.push(u32::from_le_bytes(next));
        last = Some(next);
        assert!(listed.len() < 100);
    }
    listed.sort();
    assert_eq!(listed, found.keys().copied().collect::<Vec<_>>());
    found
}

/// Keys in the order of iteration.
pub(crate) fn keys(map: &Map) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = vec![];
    loop {
        let mut key = vec![0; map.header().key_size as usize];
        if map.user_next_key(found.last().map(Vec::as_slice), &mut key).is_err() {
            return found;
        }
        found.push(key);
        assert!(found.len() < 100_000, "iteration does not end");
    }
}

pub(crate) fn put(map: &Map, owner: u32, number: u32, byte: u8) {
    let value = [byte; 64];
    let _ = map.user_update(&context(owner), &key(number), &value[..map.geometry().user_value_bytes()], 0);
}

/// Xorshift.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A seed from the environment (`RING3_SEED`), or a fresh one; it is printed.
    pub(crate) fn seeded() -> Random {
        let given = std::env::var("RING3_SEED").ok().and_then(|text| text.parse().ok());
        let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64 | 1);
        let seed = given.unwrap_or_else(now);
        println!("RING3_SEED={seed}");
        Random(seed)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // A seed of 0 would give zeros for ever.
        self.0 |= u64::from(self.0 == 0);
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

/// Zeroed memory that children share.
pub(crate) fn zeroed_and_shared<T>() -> &'static T {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: asks for fresh memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: mapped for good, page-aligned, and the callers' types are made of atomics, for which zeros are valid.
    unsafe { &*base.cast() }
}

/// Takes a ring buffer's next record: its first two words, or `None` for one that was discarded.
pub(crate) fn next_record(ring: &Shared, bytes: u64, consumed: &mut u64) -> Option<(Option<u64>, u64)> {
    let word = |at: u64| {
        let word = ring.base.wrapping_add(at as usize);
        // SAFETY: positions, headers and data lie in the data area and are aligned words.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    };
    if word(4096).load(Acquire) == *consumed {
        return None;
    }
    let at = 8192 + (*consumed & (bytes - 1));
    let header = word(at).load(Acquire) as u32;
    if header & 1 << 31 != 0 {
        return None;
    }
    let data = (word(at + 8).load(Acquire), word(at + 16).load(Acquire));
    *consumed += u64::from((header & !(1 << 30)) + 8).next_multiple_of(8);
    word(0).store(*consumed, Release);
    Some(((header & 1 << 30 == 0).then_some(data.0), data.1))
}

/// Lets a child that is stopped by SIGSTOP go on to where it has just counted another operation.
pub(crate) fn step_out(child: libc::pid_t, operations: &AtomicU64) {
    // SAFETY: our child; the tracer's thread is this one.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, child, 0, 0) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(child, libc::SIGCONT) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, child, 0, 0) }, 0);
    assert!(wait(child));
    let before = operations.load(Acquire);
    while operations.load(Acquire) == before {
        assert!(go_on(child, libc::PTRACE_SINGLESTEP));
    }
}

impl Shared {
    /// Whether an owner holds a bucket of this hash map.
    pub(crate) fn is_locked_by(&self, owner: u32) -> bool {
        let locks = (self.geometry.header.data_bytes + ring3_layout::map::TABLES_OFFSET) as usize + 4;
        (0..=self.geometry.hash.bucket_mask as usize).any(|bucket| {
            let word = self.base.wrapping_add(locks + bucket * 8);
            // SAFETY: the lock words lie behind the header, the data and the own words.
            unsafe { AtomicU32::from_ptr(word.cast()) }.load(Relaxed) == owner
        })
    }
}
