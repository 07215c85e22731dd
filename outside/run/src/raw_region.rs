//! The region, in this process.

use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use ring3_layout::control::{CONTROL_MAGIC, ControlHeader, TASK_TABLE_OFFSET, TestRun};
use ring3_layout::owner::NAMESPACE_SERVER;
use ring3_layout::realm::{Doorbell, Realm};
use ring3_layout::region::{
    AGENT_OFFSET, CONTROL_BYTES, CONTROL_OFFSET, PROCESS_BYTES, PROCESS_OFFSET, REALM_BYTES, REALM_OFFSET,
    REGION_ALIGN, REGION_BYTES, STATE_BYTES, STATE_OFFSET, TEXT_BYTES, TEXT_OFFSET, got_offset, view_offset,
};
use ring3_layout::task::TASK_FIELDS_MAX;
use ring3_layout::thread::{STATE_HEADER_BYTES, StateHeader, THREAD_BLOCK_BYTES, THREADS_MAX, ThreadBlock};
use ring3_layout::{LAYOUT_VERSION, PAGE_BYTES};
use ring3_maps::{Geometry, Map, View};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// Memory of this process; unmapped with the value.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    /// Fresh memory, zeroed, touched only where it is used.
    pub(crate) fn new(bytes: u64) -> io::Result<Memory> {
        Memory::reserve(bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn reserve(bytes: u64, protection: ProtFlags) -> io::Result<Memory> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?.max(1);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: asks for memory that nobody has.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { base, bytes })
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// As a map of this geometry, for which it was made.
    pub(crate) fn map<'a>(&self, geometry: &'a Geometry) -> Map<'a> {
        // SAFETY: the memory has the geometry's size and lives as long as the map's owner.
        unsafe { Map::trusted(self.base.as_ptr(), geometry) }
    }

    /// Copies bytes to `offset`. Panics if they do not fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let offset = usize::try_from(offset).expect("an offset of the layout");
        assert!(offset + bytes.len() <= self.bytes, "offsets are the layout's");
        // SAFETY: the destination is inside this memory, which no Rust reference covers.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().wrapping_add(offset), bytes.len())
        };
    }

    fn write_value<T: Copy>(&self, offset: u64, value: T) {
        let offset = usize::try_from(offset).expect("an offset of the layout");
        assert!(offset + size_of::<T>() <= self.bytes, "offsets are the layout's");
        // SAFETY: the destination is inside this memory, which no Rust reference covers.
        unsafe { self.base.as_ptr().wrapping_add(offset).cast::<T>().write_unaligned(value) };
    }

    /// Puts a file's pages in place of a part.
    fn place(&self, offset: u64, bytes: u64, protection: ProtFlags, file: BorrowedFd<'_>) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes as u64, "offsets are the layout's");
        let at = self.base.as_ptr().wrapping_add(offset as usize);
        // SAFETY: replaces pages of this memory, which no Rust reference covers.
        unsafe {
            rustix::mm::mmap(at.cast(), bytes as usize, protection, MapFlags::SHARED | MapFlags::FIXED, file, 0)
        }?;
        Ok(())
    }

    /// A whole file.
    pub(crate) fn of_file(file: BorrowedFd<'_>, bytes: u64, write: bool) -> io::Result<Memory> {
        let memory = Memory::reserve(bytes, ProtFlags::empty())?;
        let protection = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        memory.place(0, bytes, protection, file)?;
        Ok(memory)
    }

    fn wipe_on_fork(&self, offset: u64, bytes: u64) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes as u64, "offsets are the layout's");
        let at = self.base.as_ptr().wrapping_add(offset as usize);
        // SAFETY: pages of this memory; nothing changes in this process.
        unsafe { rustix::mm::madvise(at.cast(), bytes as usize, rustix::mm::Advice::LinuxWipeOnFork) }?;
        Ok(())
    }

    /// Where it lies, and how much there is.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.address(), self.bytes as u64)
    }

    fn protect(&self, offset: u64, bytes: u64, protection: MprotectFlags) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes as u64, "offsets are the layout's");
        let at = self.base.as_ptr().wrapping_add(offset as usize);
        // SAFETY: pages of this memory, which no Rust reference covers.
        unsafe { rustix::mm::mprotect(at.cast(), bytes as usize, protection) }?;
        Ok(())
    }
}

// SAFETY: a mapping does not belong to a thread; what is written to it, is written to places of the layout that are written once,
// before others are told of them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and nothing of it is in use any more. An error changes nothing.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A geometry as bytes, for another process of the same binary.
pub(crate) fn geometry_to_bytes(geometry: &Geometry) -> Vec<u8> {
    let at = std::ptr::from_ref(geometry).cast::<u8>();
    let mut bytes = vec![0; size_of::<Geometry>()];
    // SAFETY: a geometry is plain numbers; bytes between them, if any, mean nothing.
    unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// The geometry of such bytes.
pub(crate) fn geometry_of_bytes(bytes: &[u8]) -> Option<Geometry> {
    // SAFETY: a geometry is plain numbers, for which any bytes will do, and there are enough of them.
    (bytes.len() == size_of::<Geometry>()).then(|| unsafe { bytes.as_ptr().cast::<Geometry>().read_unaligned() })
}

/// What the agent sees around it.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    /// Bytes from the memory's start to the region's.
    start: u64,
    /// Entries of the GOT that are used.
    maps: AtomicU32,
}

const WRITABLE: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);
const EXECUTABLE: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::EXEC);

impl Region {
    pub(crate) fn new(agent: &[u8], cpus: u32) -> io::Result<Region> {
        let memory = Memory::reserve(REGION_BYTES + REGION_ALIGN, ProtFlags::empty())?;
        let start = memory.address().next_multiple_of(REGION_ALIGN) - memory.address();
        let region = Region { memory, start, maps: AtomicU32::new(0) };
        for (offset, bytes) in [
            (CONTROL_OFFSET, CONTROL_BYTES),
            (REALM_OFFSET, REALM_BYTES),
            (PROCESS_OFFSET, PROCESS_BYTES),
            (STATE_OFFSET, STATE_BYTES),
        ] {
            region.memory.protect(start + offset, bytes, WRITABLE)?;
        }
        // (After a fork the child's threads are others.)
        region.memory.wipe_on_fork(start + PROCESS_OFFSET, PROCESS_BYTES)?;
        region.write_code(AGENT_OFFSET, agent)?;
        region.write_header(cpus);
        Ok(region)
    }

    /// Shares programs and what targets share with a server.
    pub(crate) fn share(&self, realm: BorrowedFd<'_>, text: BorrowedFd<'_>) -> io::Result<()> {
        let executable = ProtFlags::READ | ProtFlags::EXEC;
        self.memory.place(self.start + REALM_OFFSET, REALM_BYTES, ProtFlags::READ | ProtFlags::WRITE, realm)?;
        self.memory.place(self.start + TEXT_OFFSET, TEXT_BYTES, executable, text)
    }

    /// Writes the table of the task fields that programs can read ([`ring3_layout::task::TaskTable`]).
    pub(crate) fn write_tasks(&self, fields: &[[u16; 4]]) {
        let fields = &fields[..fields.len().min(TASK_FIELDS_MAX)];
        let head = [fields.len() as u32, 0].into_iter().flat_map(u32::to_le_bytes);
        let bytes: Vec<u8> = head.chain(fields.iter().flatten().flat_map(|word| word.to_le_bytes())).collect();
        self.memory.write(self.start + CONTROL_OFFSET + TASK_TABLE_OFFSET, &bytes);
    }

    pub(crate) fn base(&self) -> u64 {
        self.memory.address() + self.start
    }

    fn write_header(&self, cpus: u32) {
        let header = ControlHeader {
            magic: CONTROL_MAGIC,
            version: LAYOUT_VERSION,
            pid: std::process::id(),
            nonce: 0,
            region_base: self.base(),
            vdso_clock_gettime: vdso_clock_gettime().unwrap_or(0),
            vdso_begin: 0,
            vdso_end: 0,
            rseq_offset: 0,
            cpus,
            request_wait_us: 0,
            retired: 0.into(),
            server_pid: 0,
            server_started: 0,
            namespace: NAMESPACE_SERVER,
            directory: 0,
            rdpid: u32::from(ring3_image::cpu_has_rdpid()),
            all_registers: 0.into(),
            hooks: 0.into(),
            maps: 0.into(),
            awaits_counters: 0.into(),
            maps_key: 0.into(),
            unwind: 0.into(),
            levels: 0,
            tick_ns: crate::tick_ns(),
        };
        // SAFETY: the header is plain numbers, of which nobody else has a reference yet.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const header).cast::<u8>(), size_of::<ControlHeader>()) };
        self.memory.write(self.start + CONTROL_OFFSET, bytes);
    }

    /// Tells programs of a map.
    pub(crate) fn show_map(&self, slot: u32, address: u64, geometry: &Geometry) {
        let maps = self.maps.fetch_max(slot + 1, Ordering::Relaxed).max(slot + 1);
        let header = self.start + CONTROL_OFFSET;
        self.memory.write_value(header + offset_of!(ControlHeader, maps) as u64, maps);
        let view = self.start + view_offset(slot);
        self.memory.write_value(view, View { base: address, geometry: *geometry });
        self.memory.write_value(self.start + got_offset(slot), [self.memory.address() + view, address]);
    }

    /// Writes a program's code.
    pub(crate) fn write_text(&self, at: u64, code: &[u8]) -> io::Result<()> {
        assert!(at + code.len() as u64 <= TEXT_BYTES, "the caller has looked for room");
        self.write_code(TEXT_OFFSET + at, code)
    }

    /// Pages are writable or executable, never both.
    fn write_code(&self, offset: u64, code: &[u8]) -> io::Result<()> {
        let first = (self.start + offset) / PAGE_BYTES * PAGE_BYTES;
        let bytes = (self.start + offset + code.len() as u64).next_multiple_of(PAGE_BYTES) - first;
        self.memory.protect(first, bytes, WRITABLE)?;
        self.memory.write(self.start + offset, code);
        self.memory.protect(first, bytes, EXECUTABLE)
    }

    /// Address of a routine of the agent.
    pub(crate) fn routine(&self, symbol: &str) -> Option<u64> {
        Some(self.base() + AGENT_OFFSET + ring3_image::symbol(symbol)?)
    }

    /// The address by which programs know the map in a slot, and that of its values.
    pub(crate) fn map_addresses(&self, slot: u32) -> (u64, u64) {
        let view = self.start + view_offset(slot);
        // SAFETY: a word of the control page, where `show_map` has written it.
        let data = unsafe { self.memory.base.as_ptr().wrapping_add(view as usize).cast::<u64>().read_unaligned() };
        (self.memory.address() + view, data)
    }

    /// The blocks of the threads that have run programs here.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = *const ThreadBlock> + '_ {
        let state = (self.base() + STATE_OFFSET) as *const StateHeader;
        // SAFETY: the state block is mapped with the region, and its header is made of atomics.
        let used = unsafe { &*state }.used.load(Ordering::Acquire).min(THREADS_MAX);
        let first = self.base() + STATE_OFFSET + STATE_HEADER_BYTES;
        (0..u64::from(used)).map(move |index| (first + index * THREAD_BLOCK_BYTES) as *const ThreadBlock)
    }

    fn realm(&self) -> &Realm {
        // SAFETY: the realm block is mapped with the region, and made of atomics.
        unsafe { &*((self.base() + REALM_OFFSET) as *const Realm) }
    }

    /// Where targets tell a server that there is something to do for it: here nobody but this process listens.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.realm().doorbell
    }

    /// Address of the routine that runs a program and counts that, if the server wants it.
    pub(crate) fn counting_routine(&self) -> Option<u64> {
        let counts = self.realm().counts_runs.load(Ordering::Relaxed) != 0;
        counts.then(|| self.routine("ring3_run_counted").expect("the agent has it"))
    }

    /// Runs a program of this region on this thread.
    pub(crate) fn test_run(&self, test: &mut TestRun) -> bool {
        let at = self.base() + AGENT_OFFSET + ring3_image::symbol("ring3_test_run").expect("the agent has it");
        // SAFETY: the agent's symbol is a function of this type.
        let function: extern "sysv64" fn(&mut TestRun) -> u64 = unsafe { std::mem::transmute(at) };
        function(test) != 0
    }
}

/// Whether programs may read and write the bases of FS and GS (`HWCAP2_FSGSBASE`).
pub(crate) fn has_fsgsbase() -> bool {
    const HWCAP2_FSGSBASE: usize = 1 << 1;
    let (_, second) = rustix::param::linux_hwcap();
    second & HWCAP2_FSGSBASE != 0
}

/// Address of the vDSO's `clock_gettime`.
fn vdso_clock_gettime() -> Option<u64> {
    // SAFETY: asks for a number.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (first, end) = range.split_once('-')?;
    let (first, end) = (u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    if first != base {
        return None;
    }
    // SAFETY: the vDSO is mapped there for as long as the process lives, and never written.
    let image = unsafe { std::slice::from_raw_parts(first as *const u8, (end - first) as usize) };
    Some(base + ring3_elf::File::parse(image).ok()?.find("__vdso_clock_gettime")?)
}
