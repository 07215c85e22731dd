//! Programs run by the process that asks for it: the agent and the program are mapped as into a target, but into itself.
//!
//! Runs: in the command `ring3 exec`, in benchmarks and tests.
//! May touch: its own address space, the GS base of the thread that runs programs.
//! Never: runs what is not `Verified`.
//! Start reading at: `Runner`.

pub mod child;
pub mod events;
mod packet;
mod raw_region;
mod raw_ring;
pub mod samples;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use ring3_jit::{Code, LinkError, Target};
use ring3_layout::control::{ATTACHMENT_ALONE, ATTACHMENT_CPU_SLOT, Attachment, TestRun};
use ring3_layout::region::{TEXT_BYTES, TEXT_OFFSET, got_offset};
use ring3_layout::sampled::Sampled;
use ring3_maps::{Attributes, Geometry, Map};
use ring3_uapi::Errno;
use ring3_verifier::{HashShape, MapShape, Verified};

use raw_region::{Memory, Region};

/// Programs begin at multiples of this.
const PROGRAM_ALIGN: u64 = 64;

/// Why a program cannot be run.
#[derive(Debug)]
pub enum Error {
    /// The region could not be mapped.
    Mapping(io::Error),
    /// A map could not be made.
    Map(Errno),
    /// The code could not be placed.
    Link(LinkError),
    /// There is no room for so much code.
    Full,
    /// This processor does not let programs read the base of FS.
    NoFsGsBase,
    /// The thread is in a program already.
    Busy,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Mapping(error) => write!(f, "memory for programs: {error}"),
            Error::Map(errno) => write!(f, "a map: {}", errno.name()),
            Error::Link(error) => error.fmt(f),
            Error::Full => write!(f, "more than {TEXT_BYTES} bytes of code"),
            Error::NoFsGsBase => f.write_str("the processor or the kernel does not allow rdfsbase"),
            Error::Busy => f.write_str("this thread runs a program already"),
        }
    }
}

impl std::error::Error for Error {}

/// What is told of a map, with where its parts lie.
pub fn placed(geometry: &Geometry, told: MapShape) -> MapShape {
    let (header, hash) = (&geometry.header, &geometry.hash);
    let hash = HashShape {
        bucket_mask: hash.bucket_mask,
        elements: hash.elements,
        element_stride: hash.element_stride,
        values: hash.values,
        value_stride: hash.value_stride,
    };
    let hash = geometry.is_hash().then_some(hash);
    MapShape { stride: header.stride, cpus: header.cpus, cpu_stride: geometry.cpu_stride, hash, ..told }
}

/// A map of this process.
#[derive(Debug)]
pub struct OwnMap {
    geometry: Box<Geometry>,
    memory: Memory,
}

impl OwnMap {
    /// What is told of a map, with where its parts lie.
    pub fn shape(&self, told: MapShape) -> MapShape {
        placed(&self.geometry, told)
    }

    /// The map's operations.
    pub fn map(&self) -> Map<'_> {
        self.memory.map(&self.geometry)
    }
}

/// A program that can be run.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Address of its entry.
    entry: u64,
    uses_per_cpu: bool,
    cookie: u64,
}

/// How a run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// r0 of the last run.
    pub result: u64,
    /// All runs together, ns.
    pub duration_ns: u64,
}

/// Where programs run.
#[derive(Debug)]
pub struct Runner {
    region: Region,
    maps: Vec<OwnMap>,
    text_used: u64,
    cpus: u32,
}

impl Runner {
    /// Maps the agent, for a machine that can have so many CPUs.
    ///
    /// # Errors
    /// The memory cannot be had, or the processor lacks what the agent needs.
    pub fn new(cpus: u32) -> Result<Runner, Error> {
        if !raw_region::has_fsgsbase() {
            return Err(Error::NoFsGsBase);
        }
        let region = Region::new(ring3_image::bytes(), cpus).map_err(Error::Mapping)?;
        Ok(Runner { region, maps: vec![], text_used: 0, cpus })
    }

    /// Makes a map, of which programs know by the slot that is returned: the first is 0.
    ///
    /// # Errors
    /// Those of `BPF_MAP_CREATE`.
    pub fn add_map(&mut self, attributes: &Attributes) -> Result<u32, Error> {
        let geometry = Geometry::new(&Attributes { cpus: self.cpus, ..*attributes }).map_err(Error::Map)?;
        let geometry = Box::new(geometry);
        let memory = Memory::new(geometry.file_bytes()).map_err(Error::Mapping)?;
        let slot = self.maps.len() as u32;
        self.region.show_map(slot, memory.address(), &geometry);
        self.maps.push(OwnMap { geometry, memory });
        Ok(slot)
    }

    /// Shares programs, maps and what targets share with a server.
    ///
    /// # Errors
    /// The memory cannot be had.
    fn share(&mut self, realm: BorrowedFd<'_>, text: BorrowedFd<'_>) -> Result<(), Error> {
        self.region.share(realm, text).map_err(Error::Mapping)
    }

    /// Lets programs read these fields of tasks ([`ring3_layout::task::TaskField`]).
    fn know_tasks(&self, fields: &[[u16; 4]]) {
        self.region.write_tasks(fields);
    }

    /// Makes a server's map known by its slot there, for as long as this process lives: programs may be using it.
    fn show_file(&self, slot: u32, geometry: &Geometry, file: BorrowedFd<'_>, write: bool) -> Result<(), Error> {
        let memory = Memory::of_file(file, geometry.file_bytes(), write).map_err(Error::Mapping)?;
        self.region.show_map(slot, memory.address(), geometry);
        std::mem::forget(memory);
        Ok(())
    }

    /// A program that lies in the text already, by the offset of its entry.
    fn at(&self, entry: u32, uses_per_cpu: bool) -> Loaded {
        Loaded { entry: self.region.base() + TEXT_OFFSET + u64::from(entry), uses_per_cpu, cookie: 0 }
    }

    /// Gives a map of variables its value. Panics if it is larger than the map's.
    pub fn set_value(&mut self, slot: u32, value: &[u8]) {
        self.maps[slot as usize].memory.write(0, value);
    }

    /// The maps, by slot.
    pub fn maps(&self) -> &[OwnMap] {
        &self.maps
    }

    /// Takes all programs away; those that are loaded later lie where they lay.
    pub fn unload(&mut self) {
        self.text_used = 0;
    }

    /// Places a program's code.
    ///
    /// # Errors
    /// There is no room, or the code wants something that is not there.
    pub fn load(&mut self, program: &Verified, code: &Code) -> Result<Loaded, Error> {
        let at = self.text_used.next_multiple_of(PROGRAM_ALIGN);
        if at + code.bytes.len() as u64 > TEXT_BYTES {
            return Err(Error::Full);
        }
        let resolve = |target: Target| match target {
            Target::Helper(id) => ring3_image::helper(id),
            Target::Symbol(symbol) => ring3_image::symbol(symbol),
            Target::GotHeader(slot) => Some(got_offset(slot)),
            Target::GotData(slot) => Some(got_offset(slot) + size_of::<u64>() as u64),
        };
        let bytes = code.link(TEXT_OFFSET + at, &resolve).map_err(Error::Link)?;
        self.region.write_text(at, &bytes).map_err(Error::Mapping)?;
        self.text_used = at + bytes.len() as u64;
        let entry = self.region.base() + TEXT_OFFSET + at + u64::from(code.entry);
        Ok(Loaded { entry, uses_per_cpu: program.uses_per_cpu(), cookie: 0 })
    }

    /// Runs a program `repeat` times on a context that it may change.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn run(&self, program: Loaded, context: &mut [u8], repeat: u32) -> Result<Outcome, Error> {
        self.run_on(program, context, repeat, None)
    }

    /// The same, for a sample: it stands for the running thread.
    fn run_on(
        &self,
        program: Loaded,
        context: &mut [u8],
        repeat: u32,
        sampled: Option<&Sampled>,
    ) -> Result<Outcome, Error> {
        let mut test = TestRun {
            attachment: Attachment {
                code: program.entry,
                cookie: program.cookie,
                pid: 0,
                flags: ATTACHMENT_ALONE | if program.uses_per_cpu { ATTACHMENT_CPU_SLOT } else { 0 },
                link_id: 0,
                prog_id: 0,
                timed_code: 0,
                budget_ns: 0,
            },
            context: context.as_mut_ptr() as u64,
            sampled: sampled.map_or(0, |sampled| std::ptr::from_ref(sampled) as u64),
            repeat,
            reserved: 0,
            result: 0,
            duration_ns: 0,
        };
        if !self.region.test_run(&mut test) {
            return Err(Error::Busy);
        }
        Ok(Outcome { result: test.result, duration_ns: test.duration_ns })
    }
}
