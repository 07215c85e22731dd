//! An object's maps, types and programs, given to the kernel as libbpf gives them.

mod raw_fds;

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use ring3_btf::Btf;
use ring3_object::{MapDef, Object, Program, Slot};
use ring3_uapi::Errno;
use ring3_uapi::attr::{self, Field, NAME_BYTES, map_create, map_elem, prog_load};
use ring3_uapi::bpf::{cmd, map_type};
use ring3_uapi::flags::STACK_FRAMES_MAX;

use crate::raw_bpf::{Attr, address, bpf};
use raw_fds::made;

const LOG_BYTES: usize = 1 << 24;
/// `BPF_LOG_LEVEL1`: the path to the error.
const LOG_WAY: u64 = 1;
/// `BPF_LOG_STATS`.
const LOG_STATS: u64 = 4;
/// What tools set at run time and the file leaves open.
const ENTRIES_UNTOLD: u32 = 1024;
const FUNC_INFO_BYTES: u64 = 8;
const LINE_INFO_BYTES: u64 = 16;

/// What the kernel tells of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    /// `verification time`, microseconds.
    pub(crate) usec: u64,
    /// Instructions that were gone through, over all paths.
    pub(crate) insns_processed: u64,
    pub(crate) total_states: u64,
    pub(crate) peak_states: u64,
}

/// Why the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    /// The last line of its log that is no statistics.
    pub(crate) why: String,
}

/// What programs of an object need.
pub(crate) struct LoadedMaps {
    maps: Vec<OwnedFd>,
    btf: Option<OwnedFd>,
    log: Vec<u8>,
}

fn with_name(mut attr: Attr, field: Field, name: &str) -> Attr {
    let name = &name.as_bytes()[..name.len().min(NAME_BYTES - 1)];
    attr.0[field.at..field.at + name.len()].copy_from_slice(name);
    attr
}

fn text(log: &[u8]) -> String {
    String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// The number that follows a word.
fn number_after(log: &str, word: &str) -> u64 {
    let rest = log.rsplit_once(word).map_or("", |(_, rest)| rest.trim_start());
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn make_map(def: &MapDef, btf: Option<&OwnedFd>) -> Result<OwnedFd, String> {
    let inner = def.inner.as_ref().map(|inner| make_map(inner, btf)).transpose()?;
    let (mut value_size, mut entries) = (def.value_size, def.max_entries);
    if def.map_type == map_type::STACK_TRACE && value_size == 0 {
        value_size = STACK_FRAMES_MAX as u32 * 8;
    }
    if entries == 0 {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        entries = match def.map_type {
            map_type::PERF_EVENT_ARRAY => processors,
            map_type::TASK_STORAGE => 0,
            _ => ENTRIES_UNTOLD,
        };
    }
    let mut attr = Attr::new()
        .with(map_create::MAP_TYPE, def.map_type.into())
        .with(map_create::KEY_SIZE, def.key_size.into())
        .with(map_create::VALUE_SIZE, value_size.into())
        .with(map_create::MAX_ENTRIES, entries.into())
        .with(map_create::MAP_FLAGS, def.map_flags.into())
        .with(map_create::NUMA_NODE, def.numa_node.into())
        .with(map_create::MAP_EXTRA, def.map_extra);
    if let Some(inner) = &inner {
        attr = attr.with(map_create::INNER_MAP_FD, inner.as_raw_fd() as u64);
    }
    if let Some(btf) = btf.filter(|_| def.key_type != 0 || def.value_type != 0) {
        attr = attr
            .with(map_create::BTF_FD, btf.as_raw_fd() as u64)
            .with(map_create::BTF_KEY_TYPE_ID, def.key_type.into())
            .with(map_create::BTF_VALUE_TYPE_ID, def.value_type.into());
    }
    let fd = made(cmd::MAP_CREATE, &mut with_name(attr, map_create::MAP_NAME, &def.name));
    let fd = fd.map_err(|errno| format!("map {}: {errno:?}", def.name))?;
    let elem = Attr::new().with(map_elem::MAP_FD, fd.as_raw_fd() as u64);
    if let Some(initial) = &def.initial {
        let attr =
            elem.clone().with(map_elem::KEY, address(&0u32)).with(map_elem::VALUE, address(initial.as_slice()));
        bpf(cmd::MAP_UPDATE_ELEM, &mut attr.clone()).map_err(|errno| format!("value of {}: {errno:?}", def.name))?;
    }
    if def.frozen {
        bpf(cmd::MAP_FREEZE, &mut elem.clone()).map_err(|errno| format!("freezing {}: {errno:?}", def.name))?;
    }
    Ok(fd)
}

impl LoadedMaps {
    /// Loads an object's types and makes its maps.
    pub(crate) fn of(object: &Object) -> Result<LoadedMaps, String> {
        let mut log = vec![0; LOG_BYTES];
        let btf = object.btf.as_ref().map(Btf::bytes).map(|types| {
            let mut attr = Attr::new()
                .with(attr::btf_load::BTF, address(types))
                .with(attr::btf_load::BTF_SIZE, types.len() as u64)
                .with(attr::btf_load::BTF_LOG_BUF, log.as_mut_ptr() as u64)
                .with(attr::btf_load::BTF_LOG_SIZE, LOG_BYTES as u64)
                .with(attr::btf_load::BTF_LOG_LEVEL, LOG_WAY);
            made(cmd::BTF_LOAD, &mut attr).map_err(|errno| {
                let log = text(&log);
                format!("types: {errno:?}: {}", log.lines().last().unwrap_or_default())
            })
        });
        let btf = btf.transpose()?;
        let maps = object.maps.iter().map(|def| make_map(def, btf.as_ref())).collect::<Result<_, _>>()?;
        let mut made = LoadedMaps { maps, btf, log };
        made.fill(object)?;
        Ok(made)
    }

    /// Puts into maps what the file says that they hold.
    fn fill(&mut self, object: &Object) -> Result<(), String> {
        for (map, def) in object.maps.iter().enumerate() {
            for (index, slot) in &def.slots {
                let to = self.maps[map].as_raw_fd() as u64;
                let put = |fd: i32| {
                    let attr = Attr::new().with(map_elem::MAP_FD, to);
                    bpf(
                        cmd::MAP_UPDATE_ELEM,
                        &mut attr.with(map_elem::KEY, address(index)).with(map_elem::VALUE, address(&fd)),
                    )
                };
                let put = match slot {
                    Slot::Map(inner) => put(self.maps[*inner].as_raw_fd()),
                    Slot::Program(name) => {
                        let program = object.programs.iter().find(|program| program.name == *name);
                        let program = program.ok_or_else(|| format!("{}: no program {name}", def.name))?;
                        let loaded = self.load_logged(object, program, LOG_STATS);
                        loaded.and_then(|fd| put(fd.as_raw_fd()))
                    }
                };
                put.map_err(|errno| format!("{}[{index}]: {errno:?}", def.name))?;
            }
        }
        Ok(())
    }

    /// Loads a program, once more with the whole log if it is refused.
    pub(crate) fn load(&mut self, object: &Object, program: &Program) -> Result<Stats, Refusal> {
        if let Err(errno) = self.load_logged(object, program, LOG_STATS) {
            let _ = self.load_logged(object, program, LOG_WAY);
            let log = text(&self.log);
            let is_told = |line: &&str| !line.is_empty() && !line.starts_with("processed ");
            let why = log.lines().rev().find(is_told).unwrap_or_default().to_owned();
            return Err(Refusal { errno, why });
        }
        let log = text(&self.log);
        Ok(Stats {
            usec: number_after(&log, "verification time"),
            insns_processed: number_after(&log, "processed"),
            total_states: number_after(&log, "total_states"),
            peak_states: number_after(&log, "peak_states"),
        })
    }

    fn load_logged(&mut self, object: &Object, program: &Program, level: u64) -> Result<OwnedFd, Errno> {
        let insns = ring3_isa::encode(&program.insns);
        let license = CString::new(object.license.as_str()).unwrap_or_default();
        let fds: Vec<i32> = self.maps.iter().map(AsRawFd::as_raw_fd).collect();
        let functions: Vec<u32> = program.func_info.iter().flat_map(|(at, of)| [*at, *of]).collect();
        let lines = program.line_info.as_flattened();
        self.log[0] = 0;
        let mut attr = Attr::new()
            .with(prog_load::PROG_TYPE, program.prog_type.into())
            .with(prog_load::EXPECTED_ATTACH_TYPE, program.expected_attach_type.into())
            .with(prog_load::PROG_FLAGS, program.flags.into())
            .with(prog_load::ATTACH_BTF_ID, program.attach_btf_id.into())
            .with(prog_load::INSNS, address(insns.as_slice()))
            .with(prog_load::INSN_CNT, program.insns.len() as u64)
            .with(prog_load::LICENSE, license.as_ptr() as u64)
            .with(prog_load::FD_ARRAY, address(fds.as_slice()))
            .with(prog_load::LOG_LEVEL, level)
            .with(prog_load::LOG_SIZE, LOG_BYTES as u64)
            .with(prog_load::LOG_BUF, self.log.as_mut_ptr() as u64);
        if let Some(btf) = &self.btf {
            attr = attr
                .with(prog_load::PROG_BTF_FD, btf.as_raw_fd() as u64)
                .with(prog_load::FUNC_INFO_REC_SIZE, FUNC_INFO_BYTES)
                .with(prog_load::FUNC_INFO, address(functions.as_slice()))
                .with(prog_load::FUNC_INFO_CNT, program.func_info.len() as u64)
                .with(prog_load::LINE_INFO_REC_SIZE, LINE_INFO_BYTES)
                .with(prog_load::LINE_INFO, address(lines))
                .with(prog_load::LINE_INFO_CNT, program.line_info.len() as u64);
        }
        let mut attr = with_name(attr, prog_load::PROG_NAME, &program.name);
        let loaded = made(cmd::PROG_LOAD, &mut attr);
        assert!(attr.get(prog_load::LOG_TRUE_SIZE) <= LOG_BYTES as u64, "the log is cut");
        loaded
    }
}
