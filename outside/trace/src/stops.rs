//! A session of [`ring3_recorder::stops`]: the programs of system calls' starts and ends, and the ring buffer for a reader in
//! another process.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ring3_bpf::Loaded;
use ring3_layout::ring::RING3_F_BLOCK;
use ring3_object::{MapDef, Object, Program};
use ring3_recorder::stops::{self, SLOT_BYTES, Wanted, map};
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::syscalls;

use crate::session::{Tracepoints, why_not_loaded};

/// Threads whose arguments are remembered while they are in a call: of more, the oldest ones are forgotten, and their calls' ends
/// WAIT.
const THREADS_MAX: u32 = 8192;

/// What a session records.
#[derive(Clone, Debug)]
pub struct StopsOptions {
    /// Numbers of the calls. (Those without a tracepoint of their own are recorded in any case.)
    pub numbers: Vec<u32>,
    /// Bytes of data that the reader shows at most (strace's `-s`).
    pub bytes_max: u32,
    /// All records WAIT.
    pub exact: bool,
    /// Bytes of the ring buffer: a power of two, and at least a page.
    pub ring_bytes: u32,
}

/// A session. The programs are detached when it is dropped.
#[derive(Debug)]
pub struct StopsSession {
    loaded: Loaded,
    _links: Vec<OwnedFd>,
}

/// What a session loads, and where it attaches it.
#[derive(Debug)]
pub struct StopsPlan {
    object: Object,
    tracepoints: Tracepoints,
    /// Functions of the kernel, each with the index of its program.
    functions: Vec<(usize, String)>,
}

impl StopsPlan {
    /// Makes the programs. Equal ones are loaded once.
    ///
    /// # Errors
    /// There is no call to record.
    pub fn new(options: &StopsOptions) -> Result<StopsPlan, String> {
        let wanted = Wanted { bytes_max: options.bytes_max, exact: options.exact };
        let mut numbers = options.numbers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let (mut programs, mut known) = (vec![], BTreeMap::new());
        let (mut tracepoints, mut functions) = (Tracepoints::default(), vec![]);
        for call in numbers.iter().filter_map(|number| syscalls::by_number(*number)) {
            let mut attach = |when: &str, text: String, function: Option<String>| {
                let insns = ring3_isa::assemble(&text).map_err(|error| format!("{}: {error}\n{text}", call.name))?;
                let kind = if function.is_some() { prog_type::KPROBE } else { prog_type::TRACEPOINT };
                let index = *known.entry(text).or_insert_with(|| {
                    programs.push(Program::new(format!("{when}_{}", call.name), kind, insns));
                    programs.len() - 1
                });
                match function {
                    Some(function) => functions.push((index, function)),
                    None => tracepoints.add(index, format!("syscalls:sys_{when}_{}", call.name)),
                }
                Ok::<(), String>(())
            };
            attach("enter", stops::entry(call, wanted), stops::function(call))?;
            if stops::returns(call.name) {
                attach("exit", stops::exit(call, wanted), None)?;
            }
        }
        if tracepoints.is_empty() && functions.is_empty() {
            return Err("none of the system calls has a tracepoint".to_owned());
        }
        for (when, text) in ["enter", "exit"].into_iter().zip(stops::unnamed()) {
            let insns =
                ring3_isa::assemble(&text).map_err(|error| format!("calls without names: {error}\n{text}"))?;
            tracepoints.add(programs.len(), format!("raw_syscalls:sys_{when}_unnamed"));
            programs.push(Program::new(format!("{when}_unnamed"), prog_type::TRACEPOINT, insns));
        }
        let object = Object { license: "GPL".to_owned(), maps: maps(options.ring_bytes), programs, btf: None };
        Ok(StopsPlan { object, tracepoints, functions })
    }

    /// Its maps and programs.
    pub fn object(&self) -> &Object {
        &self.object
    }
}

impl StopsSession {
    /// Loads the programs and attaches them. Calls are recorded from now on.
    ///
    /// # Errors
    /// What could not be loaded or attached, and why. Nothing is attached then.
    pub fn open(options: &StopsOptions) -> Result<StopsSession, String> {
        let plan = StopsPlan::new(options)?;
        let loaded = Loaded::load(&plan.object).map_err(|error| why_not_loaded(&error))?;
        let mut links = plan.tracepoints.attach(&loaded)?;
        for (index, name) in &plan.functions {
            let link = ring3_bpf::link_function(&loaded.programs[*index].1, name);
            links.push(link.map_err(|error| format!("cannot attach to {name}: {error}; server.log says why"))?);
        }
        Ok(StopsSession { loaded, _links: links })
    }

    /// The ring buffer's descriptor, for its reader.
    pub fn ring_fd(&self) -> BorrowedFd<'_> {
        self.loaded.maps[map::RECORDS].as_fd()
    }
}

/// The maps, in the order of [`map`].
fn maps(ring_bytes: u32) -> Vec<MapDef> {
    let records =
        MapDef { map_flags: RING3_F_BLOCK, ..MapDef::new("records", map_type::RINGBUF, (0, 0), ring_bytes) };
    vec![
        records,
        MapDef::new("slots", map_type::LRU_HASH, (4, SLOT_BYTES), THREADS_MAX),
        MapDef::new("new_slot", map_type::ARRAY, (4, SLOT_BYTES), 1),
    ]
}
