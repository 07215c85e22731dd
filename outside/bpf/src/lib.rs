//! A loader's system calls: the maps and programs of an object file, links of them, and rings that they write into.
//!
//! Runs: in processes of ours that load programs, be it into the kernel or, under `ring3 load`, into ring3; and where the kernel's
//! samples are read.
//! May touch: descriptors that bpf(2) and perf_event_open(2) give, and what they map.
//! Never: reads object files; decides what may be loaded.
//! Start reading at: `Loaded::load`.

mod attach;
mod output;
mod perf_ring;
mod raw_calls;
mod raw_mapped;
mod read;
mod ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use ring3_isa::code::{BPF_PSEUDO_MAP_IDX, BPF_PSEUDO_MAP_IDX_VALUE};
use ring3_isa::{Insn, encode};
use ring3_object::{MapDef, Object, Program, Slot};
use ring3_uapi::attr::{Field, btf_load, map_create, map_elem, prog_load};
use ring3_uapi::bpf::{cmd, map_type};
use ring3_uapi::flags::BPF_F_RDONLY_PROG;

pub use attach::{
    Place, link_function, link_sampling, link_tracepoint, link_tracepoints, link_uprobe, link_uprobes,
    open_raw_tracepoint,
};
pub use output::{Output, OutputRing};
pub use perf_ring::{PerfRing, Record};
pub use read::{ProgramInfo, entries, look_up, online_cpus, open_output, possible_cpus, program_info};
pub use ring::{RingBuffer, Waker, Writers};

use raw_calls::Attr;

/// Bytes and lines of the end of the verifier's log that are shown at most.
const LOG_BYTES: usize = 1 << 20;
const LOG_LINES: usize = 60;

/// Why something could not be loaded.
#[derive(Debug)]
pub struct Error {
    /// What was tried.
    pub what: String,
    /// What the call said.
    pub error: io::Error,
    /// What the verifier said.
    pub log: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.error)?;
        let lines: Vec<&str> = self.log.trim_end().lines().collect();
        let cut = lines.len().saturating_sub(LOG_LINES);
        if cut > 0 {
            write!(f, "\n({cut} lines of the verifier's log come before these; `ring3 verify FILE` shows them)")?;
        }
        lines[cut..].iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

impl std::error::Error for Error {}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    |error| Error { what, error, log: String::new() }
}

/// An object file's maps and programs, loaded. They are gone when this is dropped, unless something else holds them.
#[derive(Debug)]
pub struct Loaded {
    /// Its maps, in the object's order.
    pub maps: Vec<OwnedFd>,
    /// Its programs that are loaded unasked, with their index in the object.
    pub programs: Vec<(usize, OwnedFd)>,
}

impl Loaded {
    /// Makes the maps and loads the programs, as src/libbpf.c:bpf_object__load does.
    ///
    /// # Errors
    /// Which map or program, and what bpf(2) and the verifier said.
    pub fn load(object: &Object) -> Result<Loaded, Error> {
        let btf = object.btf.as_ref().and_then(|btf| load_btf(btf.bytes()).ok());
        let maps: Vec<OwnedFd> =
            object.maps.iter().map(|def| make_map(def, btf.as_ref())).collect::<Result<_, _>>()?;
        for (def, map) in object.maps.iter().zip(&maps) {
            fill_map(def, map, &maps)?;
        }
        let wanted = object.programs.iter().enumerate().filter(|(_, program)| program.autoload);
        let load =
            |(index, program): (usize, &Program)| Ok((index, load_program(object, program, &maps, btf.as_ref())?));
        let programs = wanted.map(load).collect::<Result<_, Error>>()?;
        Ok(Loaded { maps, programs })
    }
}

/// A name as the kernel takes it.
fn short(name: &str) -> Vec<u8> {
    const NAME_BYTES: usize = 15;
    let name: Vec<u8> = name.bytes().take(NAME_BYTES).collect();
    name.into_iter()
        .map(|byte| if byte.is_ascii_alphanumeric() || b"_.".contains(&byte) { byte } else { b'_' })
        .collect()
}

fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = Attr::new(cmd::BTF_LOAD);
    attr.buffer(btf_load::BTF, bytes).word(btf_load::BTF_SIZE, bytes.len() as u32);
    attr.open()
}

fn make_map(def: &MapDef, btf: Option<&OwnedFd>) -> Result<OwnedFd, Error> {
    let inner = def.inner.as_deref().map(|inner| make_map(inner, btf)).transpose()?;
    let mut attr = Attr::new(cmd::MAP_CREATE);
    let numbers = [
        (map_create::MAP_TYPE, def.map_type),
        (map_create::KEY_SIZE, def.key_size),
        (map_create::VALUE_SIZE, def.value_size),
        (map_create::MAX_ENTRIES, if def.max_entries == 0 { default_entries(def.map_type) } else { def.max_entries }),
        (map_create::MAP_FLAGS, def.map_flags),
        (map_create::NUMA_NODE, def.numa_node),
    ];
    for (field, value) in numbers {
        attr.word(field, value);
    }
    attr.long(map_create::MAP_EXTRA, def.map_extra).text(map_create::MAP_NAME, &short(&def.name));
    if let Some(inner) = &inner {
        attr.word(map_create::INNER_MAP_FD, inner.as_raw_fd() as u32);
    }
    if let Some(btf) = btf.filter(|_| def.key_type != 0 || def.value_type != 0) {
        attr.word(map_create::BTF_FD, btf.as_raw_fd() as u32);
        attr.word(map_create::BTF_KEY_TYPE_ID, def.key_type).word(map_create::BTF_VALUE_TYPE_ID, def.value_type);
    }
    attr.open().map_err(failed(format!("map {}", def.name)))
}

/// What libbpf takes where a definition says nothing.
fn default_entries(kind: u32) -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    if kind == map_type::PERF_EVENT_ARRAY { cpus } else { 0 }
}

fn fill_map(def: &MapDef, map: &OwnedFd, maps: &[OwnedFd]) -> Result<(), Error> {
    let describe = || format!("the first value of map {}", def.name);
    if let Some(value) = &def.initial {
        update(map, &0u32.to_ne_bytes(), value).map_err(failed(describe()))?;
    }
    for (index, slot) in &def.slots {
        let Slot::Map(other) = slot else { continue };
        let Some(other) = maps.get(*other) else { continue };
        update(map, &index.to_ne_bytes(), &(other.as_raw_fd() as u32).to_ne_bytes()).map_err(failed(describe()))?;
    }
    if def.frozen || def.initial.is_some() && def.map_flags & BPF_F_RDONLY_PROG != 0 {
        let mut attr = Attr::new(cmd::MAP_FREEZE);
        attr.word(map_elem::MAP_FD, map.as_raw_fd() as u32);
        attr.call().map_err(failed(describe()))?;
    }
    Ok(())
}

/// Sets an element of a map.
///
/// # Errors
/// As `BPF_MAP_UPDATE_ELEM`.
pub fn update(map: &impl AsFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attr = Attr::new(cmd::MAP_UPDATE_ELEM);
    attr.word(map_elem::MAP_FD, map.as_fd().as_raw_fd() as u32);
    attr.buffer(map_elem::KEY, key).buffer(map_elem::VALUE, value);
    attr.call()
}

fn load_program(
    object: &Object,
    program: &Program,
    maps: &[OwnedFd],
    btf: Option<&OwnedFd>,
) -> Result<OwnedFd, Error> {
    let mut insns = program.insns.clone();
    for insn in insns.iter_mut().filter(|insn| insn.is_wide()) {
        refer_to_map(insn, maps);
    }
    let bytes = encode(&insns);
    let license: Vec<u8> = object.license.bytes().chain([0]).collect();
    let functions: Vec<u8> =
        program.func_info.iter().flat_map(|(at, of)| [at.to_ne_bytes(), of.to_ne_bytes()]).flatten().collect();
    let lines: Vec<u8> = program.line_info.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
    let mut log = vec![0; LOG_BYTES];
    let build = |log: Option<&mut [u8]>| {
        let mut attr = Attr::new(cmd::PROG_LOAD);
        attr.word(prog_load::PROG_TYPE, program.prog_type).word(prog_load::PROG_FLAGS, program.flags);
        attr.word(prog_load::EXPECTED_ATTACH_TYPE, program.expected_attach_type);
        attr.buffer(prog_load::INSNS, &bytes).word(prog_load::INSN_CNT, insns.len() as u32);
        attr.buffer(prog_load::LICENSE, &license).text(prog_load::PROG_NAME, &short(&program.name));
        if let Some(btf) = btf.filter(|_| !program.func_info.is_empty()) {
            attr.word(prog_load::PROG_BTF_FD, btf.as_raw_fd() as u32);
            records(
                &mut attr,
                [prog_load::FUNC_INFO, prog_load::FUNC_INFO_REC_SIZE, prog_load::FUNC_INFO_CNT],
                &functions,
                8,
            );
            records(
                &mut attr,
                [prog_load::LINE_INFO, prog_load::LINE_INFO_REC_SIZE, prog_load::LINE_INFO_CNT],
                &lines,
                16,
            );
        }
        if let Some(log) = log {
            attr.word(prog_load::LOG_SIZE, log.len() as u32).word(prog_load::LOG_LEVEL, 1);
            attr.room(prog_load::LOG_BUF, log);
        }
        attr.open()
    };
    build(None)
        .or_else(|error| match error.raw_os_error() {
            // (A log that is longer than its buffer is an error of its own.)
            Some(libc::EINVAL | libc::EACCES | libc::E2BIG) => match build(Some(&mut log)) {
                Err(of_log) if of_log.raw_os_error() == Some(libc::ENOSPC) => Err(error),
                other => other,
            },
            _ => Err(error),
        })
        .map_err(|error| {
            let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
            Error {
                log: String::from_utf8_lossy(text).into_owned(),
                ..failed(format!("program {}", program.name))(error)
            }
        })
}

fn records(attr: &mut Attr<'_>, [place, size, count]: [Field; 3], bytes: &[u8], each: u32) {
    if !bytes.is_empty() {
        attr.word(size, each).word(count, bytes.len() as u32 / each);
        attr.copied(place, bytes);
    }
}

/// Object files name maps by their index, bpf(2) by descriptors.
fn refer_to_map(insn: &mut Insn, maps: &[OwnedFd]) {
    const BPF_PSEUDO_MAP_FD: u8 = 1;
    const BPF_PSEUDO_MAP_VALUE: u8 = 2;
    let kind = match insn.src() {
        BPF_PSEUDO_MAP_IDX => BPF_PSEUDO_MAP_FD,
        BPF_PSEUDO_MAP_IDX_VALUE => BPF_PSEUDO_MAP_VALUE,
        _ => return,
    };
    if let Some(map) = maps.get(insn.imm as u32 as usize) {
        insn.regs = insn.regs & 0xf | kind << 4;
        insn.imm = map.as_raw_fd();
    }
}
