//! Programs run by the process that asks for it: the agent and the program are mapped as into a target, but into itself.
//!
//! Runs: in the command `ring3 exec`, in benchmarks and tests.
//! May touch: its own address space, the GS base of the thread that runs programs.
//! Never: runs what is not `Verified`.
//! Start reading at: `Runner`.

pub mod child;
pub mod events;
mod packet;
mod raw_function;
mod raw_interpreted;
mod raw_program;
mod raw_region;
pub mod samples;
mod text;
mod wait;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_jit::{Code, LinkError, Target};
use ring3_layout::control::{ATTACHMENT_ALONE, ATTACHMENT_CPU_SLOT, ATTACHMENT_FUEL, Attachment, MAPS_MAX, TestRun};
use ring3_layout::region::{TEXT_BYTES, TEXT_OFFSET, got_offset};
use ring3_layout::sampled::Sampled;
use ring3_maps::{Attributes, Geometry, Map};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_verifier::{FUNCTION_FIRST, HashShape, MapShape, Returned, Signature, Verified};

use raw_function::{Function, Run};
use raw_interpreted::Interpreted;
use raw_program::Parts;
use raw_region::{Memory, Region};
use text::Text;

pub use raw_function::{FunctionBody, Plain, PlainFunction};
pub use raw_interpreted::{POINTERS_MAX, Pointer};
pub use raw_program::{CallError, Ended, Program};
pub use wait::{map_context, possible_cpus};

/// The doorbell of ring buffers whose consumers are in this process.
const DOORBELL: u32 = 1;

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
    /// There are as many maps as there can be.
    TooManyMaps,
    /// A file is too small for the map that it is to be.
    WrongFile,
    /// The interpreter does not do what this helper does.
    NotInterpreted(&'static str),
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
            Error::TooManyMaps => write!(f, "more than {MAPS_MAX} maps"),
            Error::WrongFile => f.write_str("the file is no map of this type and size, or may shrink"),
            Error::NotInterpreted(helper) => write!(f, "bpf_{helper} is only for compiled programs"),
        }
    }
}

impl std::error::Error for Error {}

/// Nanoseconds from one of the kernel's ticks to the next: the resolution of coarse clocks (kernel/time/posix-timers.c).
pub fn tick_ns() -> u32 {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    u32::try_from(tick.tv_nsec).unwrap_or(0)
}

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
    /// Its memory, if others can have it too.
    file: Option<OwnedFd>,
}

impl OwnMap {
    fn new(geometry: Geometry) -> Result<OwnMap, Error> {
        let memory = Memory::new(geometry.file_bytes()).map_err(Error::Mapping)?;
        Ok(OwnMap { geometry: Box::new(geometry), memory, file: None })
    }

    /// In a file, a fresh one if none is given.
    fn shared(geometry: Geometry, file: Option<OwnedFd>) -> Result<OwnMap, Error> {
        let bytes = geometry.file_bytes();
        let file = file.map_or_else(|| wait::map_file(bytes).map_err(Error::Mapping), Ok)?;
        if !wait::holds(file.as_fd(), bytes) {
            return Err(Error::WrongFile);
        }
        let memory = Memory::of_file(file.as_fd(), bytes, true).map_err(Error::Mapping)?;
        Ok(OwnMap { geometry: Box::new(geometry), memory, file: Some(file) })
    }

    /// What is told of a map, with where its parts lie.
    pub fn shape(&self, told: MapShape) -> MapShape {
        placed(&self.geometry, told)
    }

    /// The map's operations.
    pub fn map(&self) -> Map<'_> {
        self.memory.map(&self.geometry)
    }

    /// Its file, if it has one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

/// What programs, maps and functions of one region share; it lives as long as any of them.
#[derive(Debug)]
pub(crate) struct Shared {
    region: Region,
    text: Mutex<Text>,
    kept: Mutex<Kept>,
}

/// What programs may come to.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    maps: Vec<Arc<OwnMap>>,
    /// Functions, and how many bytes they return the address of.
    functions: Vec<(Arc<Function>, u32)>,
    /// Offsets of the functions' stubs in the text.
    stubs: Vec<u64>,
}

/// (What is behind a lock is changed in one step: who panics leaves it whole.)
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn text(&self) -> MutexGuard<'_, Text> {
        lock(&self.text)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    /// Writes code to pages of its own: where they are in the text.
    fn place(&self, bytes: usize, code: impl FnOnce(u64) -> Result<Vec<u8>, LinkError>) -> Result<Range<u64>, Error> {
        let mut text = self.text();
        let span = text.take(bytes as u64).ok_or(Error::Full)?;
        let written = code(span.start).map_err(Error::Link);
        let written = written.and_then(|code| self.region.write_text(span.start, &code).map_err(Error::Mapping));
        if let Err(error) = written {
            text.give(span);
            return Err(error);
        }
        Ok(span)
    }

    fn place_code(&self, code: &Code) -> Result<Range<u64>, Error> {
        let stubs = self.kept().stubs.clone();
        let resolve = |target: Target| match target {
            Target::Helper(id) if (FUNCTION_FIRST..FUNCTION_FIRST + stubs.len() as u32).contains(&id) => {
                Some(TEXT_OFFSET + stubs[(id - FUNCTION_FIRST) as usize])
            }
            Target::Helper(id) => ring3_image::helper(id),
            Target::Symbol(symbol) => ring3_image::symbol(symbol),
            Target::GotHeader(slot) => Some(got_offset(slot)),
            Target::GotData(slot) => Some(got_offset(slot) + size_of::<u64>() as u64),
        };
        self.place(code.bytes.len(), |at| code.link(TEXT_OFFSET + at, &resolve))
    }

    /// Address of a place in the text.
    fn text_address(&self, at: u64) -> u64 {
        self.region.base() + TEXT_OFFSET + at
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

/// What a program that is to be called needs besides its code.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Bytes of its contexts.
    pub context_bytes: usize,
    /// Pointers in its contexts, at most [`POINTERS_MAX`].
    pub pointers: Vec<Pointer>,
    /// `bpf_get_attach_cookie`.
    pub cookie: u64,
}

/// Where programs run.
#[derive(Debug)]
pub struct Runner {
    shared: Arc<Shared>,
    maps: Vec<Arc<OwnMap>>,
    loaded: Vec<Range<u64>>,
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
        let shared = Shared { region, text: Mutex::new(Text::new()), kept: Mutex::default() };
        Ok(Runner { shared: Arc::new(shared), maps: vec![], loaded: vec![], cpus })
    }

    fn geometry(&self, attributes: &Attributes) -> Result<Geometry, Error> {
        Geometry::new(&Attributes { cpus: self.cpus, ..*attributes }).map_err(Error::Map)
    }

    fn show(&mut self, map: OwnMap) -> Result<u32, Error> {
        let slot = self.maps.len() as u32;
        if slot >= MAPS_MAX {
            return Err(Error::TooManyMaps);
        }
        self.shared.region.show_map(slot, map.memory.address(), &map.geometry);
        let map = Arc::new(map);
        self.shared.kept().maps.push(map.clone());
        self.maps.push(map);
        Ok(slot)
    }

    /// Makes a map, of which programs know by the slot that is returned: the first is 0.
    ///
    /// # Errors
    /// Those of `BPF_MAP_CREATE`.
    pub fn add_map(&mut self, attributes: &Attributes) -> Result<u32, Error> {
        let map = OwnMap::new(self.geometry(attributes)?)?;
        self.show(map)
    }

    /// The same, in memory that other processes can share by its file: a fresh one, or one that was made for such a map.
    /// Ring buffers wake [`Bell::wait`].
    ///
    /// # Errors
    /// Those of `BPF_MAP_CREATE`; the file is another one.
    pub fn add_shared_map(&mut self, attributes: &Attributes, file: Option<OwnedFd>) -> Result<u32, Error> {
        let mut geometry = self.geometry(attributes)?;
        if attributes.map_type == map_type::RINGBUF {
            geometry.header.doorbell = DOORBELL;
        }
        let map = OwnMap::shared(geometry, file)?;
        self.show(map)
    }

    /// Lets programs call a function of this process, by the number that is returned (`FUNCTION_FIRST` is the first): programs must
    /// have been verified with the same functions in the same order.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_function(&mut self, signature: &Signature, body: Box<FunctionBody>) -> Result<u32, Error> {
        self.add(signature, body, None)
    }

    /// The same for a function of C.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_plain_function(&mut self, signature: &Signature, function: Plain) -> Result<u32, Error> {
        self.add(signature, Box::new(move |words| function.call(words)), Some(function))
    }

    fn add(&mut self, signature: &Signature, body: Box<FunctionBody>, plain: Option<Plain>) -> Result<u32, Error> {
        let returned = if let Returned::Memory { bytes, .. } = signature.result { bytes } else { 0 };
        let function = Arc::new(Function::new(signature, body, plain));
        let stub = function.stub();
        let span = self.shared.place(stub.len(), |_| Ok(stub))?;
        let mut kept = self.shared.kept();
        kept.functions.push((function, returned));
        kept.stubs.push(span.start);
        Ok(FUNCTION_FIRST + kept.stubs.len() as u32 - 1)
    }

    /// Shares programs, maps and what targets share with a server.
    ///
    /// # Errors
    /// The memory cannot be had.
    fn share(&mut self, realm: BorrowedFd<'_>, text: BorrowedFd<'_>) -> Result<(), Error> {
        self.shared.region.share(realm, text).map_err(Error::Mapping)
    }

    /// Lets programs read these fields of tasks ([`ring3_layout::task::TaskField`]).
    fn know_tasks(&self, fields: &[[u16; 4]]) {
        self.shared.region.write_tasks(fields);
    }

    /// Makes a server's map known by its slot there, for as long as this process lives: programs may be using it.
    fn show_file(&self, slot: u32, geometry: &Geometry, file: BorrowedFd<'_>, write: bool) -> Result<(), Error> {
        let memory = Memory::of_file(file, geometry.file_bytes(), write).map_err(Error::Mapping)?;
        self.shared.region.show_map(slot, memory.address(), geometry);
        std::mem::forget(memory);
        Ok(())
    }

    /// A program that lies in the text already, by the offset of its entry.
    fn at(&self, entry: u32, uses_per_cpu: bool) -> Loaded {
        Loaded { entry: self.shared.text_address(u64::from(entry)), uses_per_cpu, cookie: 0 }
    }

    /// Gives a map of variables its value. Panics if it is larger than the map's.
    pub fn set_value(&mut self, slot: u32, value: &[u8]) {
        self.maps[slot as usize].memory.write(0, value);
    }

    /// The maps, by slot.
    pub fn maps(&self) -> &[Arc<OwnMap>] {
        &self.maps
    }

    /// What wakes who waits for records of ring buffers of this runner.
    pub fn bell(&self) -> Bell {
        Bell(self.shared.clone())
    }

    /// Takes all programs away that [`Runner::load`] has placed.
    pub fn unload(&mut self) {
        for span in self.loaded.drain(..) {
            self.shared.text().give(span);
        }
    }

    /// Places a program's code.
    ///
    /// # Errors
    /// There is no room, or the code wants something that is not there.
    pub fn load(&mut self, program: &Verified, code: &Code) -> Result<Loaded, Error> {
        let span = self.shared.place_code(code)?;
        let entry = self.shared.text_address(span.start + u64::from(code.entry));
        self.loaded.push(span);
        Ok(Loaded { entry, uses_per_cpu: program.uses_per_cpu(), cookie: 0 })
    }

    /// Places a program's code for calls from any thread. `has_budget`: it counts the rounds of its loops.
    ///
    /// # Errors
    /// There is no room, or the code wants something that is not there.
    pub fn place(
        &self,
        program: &Verified,
        code: &Code,
        wanted: &Wanted,
        has_budget: bool,
    ) -> Result<Program, Error> {
        let span = self.shared.place_code(code)?;
        let entry = self.shared.text_address(span.start + u64::from(code.entry));
        let fuel = if has_budget || program.needs_fuel() { ATTACHMENT_FUEL } else { 0 };
        let calls_functions = program.helpers().iter().any(|id| self.is_checked(*id));
        Ok(self.program(
            program,
            wanted,
            Placed { span, entry, flags: fuel, run: None, has_trouble: calls_functions },
        ))
    }

    /// The same for the interpreter. `budget`: instructions of a run at most.
    ///
    /// # Errors
    /// There is no room, or the program calls what only compiled code can.
    pub fn interpret(&self, program: &Verified, wanted: &Wanted, budget: Option<u64>) -> Result<Program, Error> {
        let interpreted = Interpreted::new(program, &self.shared, wanted.context_bytes, &wanted.pointers, budget)?;
        let run = Box::new(Run(Box::new(move |context, env| interpreted.run(context, env))));
        let stub = run.stub();
        let span = self.shared.place(stub.len(), |_| Ok(stub))?;
        let entry = self.shared.text_address(span.start);
        Ok(self.program(program, wanted, Placed { span, entry, flags: 0, run: Some(run), has_trouble: true }))
    }

    /// Whether it is a function with which runs can have trouble.
    fn is_checked(&self, id: u32) -> bool {
        let index = id.wrapping_sub(FUNCTION_FIRST) as usize;
        self.shared.kept().functions.get(index).is_some_and(|(function, _)| function.is_checked())
    }

    fn program(&self, program: &Verified, wanted: &Wanted, placed: Placed) -> Program {
        let Placed { span, entry, flags, run, has_trouble } = placed;
        let slot = if program.uses_per_cpu() { ATTACHMENT_CPU_SLOT } else { 0 };
        let attachment = Attachment {
            code: entry.into(),
            cookie: wanted.cookie,
            pid: 0,
            flags: ATTACHMENT_ALONE | flags | slot,
            link_id: 0,
            prog_id: 0,
            program: entry,
            budget_ns: 0,
        };
        let (context_bytes, has_pointers) = (wanted.context_bytes, !wanted.pointers.is_empty());
        Program::new(Parts { attachment, span, run, has_trouble, context_bytes, has_pointers }, self.shared.clone())
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
                code: self.shared.region.counting_routine().unwrap_or(program.entry).into(),
                cookie: program.cookie,
                pid: 0,
                flags: ATTACHMENT_ALONE | if program.uses_per_cpu { ATTACHMENT_CPU_SLOT } else { 0 },
                link_id: 0,
                prog_id: 0,
                program: program.entry,
                budget_ns: 0,
            },
            context: context.as_mut_ptr() as u64,
            sampled: sampled.map_or(0, |sampled| std::ptr::from_ref(sampled) as u64),
            repeat,
            reserved: 0,
            result: 0,
            duration_ns: 0,
        };
        if !self.shared.region.test_run(&mut test) {
            return Err(Error::Busy);
        }
        Ok(Outcome { result: test.result, duration_ns: test.duration_ns })
    }
}

/// A program's place.
struct Placed {
    span: Range<u64>,
    entry: u64,
    flags: u32,
    run: Option<Box<Run>>,
    has_trouble: bool,
}

/// Wakes who waits for records of a runner's ring buffers.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Shared>);
