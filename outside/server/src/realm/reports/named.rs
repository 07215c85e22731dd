//! Names of ring3's code in targets, for gdb (`ring3 symbols`) and perf.
//!
//! perf finds symbols by the mapped file's path: it opens that path and reads it as ELF. (It reads a perf map for anonymous
//! memory only, and a memfd is not anonymous.) So with `RING3_PERF` the agent and the programs lie in files with a path, as ELF:
//! the mapped bytes are the same at the same offsets, with headers before the code, and symbols and lines behind what is mapped.
//! A build id makes perf keep a copy with its recording, so that a report needs neither server nor target. Only stubs are
//! anonymous memory; a perf map names them.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use ring3_layout::PAGE_BYTES;
use ring3_layout::region::{AGENT_OFFSET, TEXT_BYTES, TEXT_OFFSET};
use ring3_names::elf::{HEAD_BYTES, PlacedSymbol, Wrapping};
use ring3_names::{Function, Names};

use crate::realm::Shared;
use crate::realm::process::SharedFile;
use crate::realm::sites::Site;
use crate::realm::target::Target;

/// Room for symbols and lines behind what is mapped; what needs more goes without.
pub(super) const TAIL_BYTES: u64 = 4 << 20;
/// Where files may lie whose directory forbids code.
const OTHER_DIRECTORY: &str = "/dev/shm";

/// Directories for files that perf finds, in the order in which they are tried, and the beginning of their names.
#[derive(Clone, Debug)]
pub struct PerfFiles {
    directories: [PathBuf; 2],
    name: String,
}

impl PerfFiles {
    /// In the run-time directory, or if code cannot lie there in `/dev/shm`, named by the directory's number.
    pub fn new(directory: &Path, number: u32) -> PerfFiles {
        PerfFiles { directories: [directory.to_owned(), OTHER_DIRECTORY.into()], name: format!("ring3-{number:08x}") }
    }

    /// A file of which `mapped` bytes are mapped into targets.
    pub(in crate::realm) fn create(&self, what: &str, mapped: u64) -> std::io::Result<SharedFile> {
        let mut why = None;
        for directory in &self.directories {
            let path = directory.join(format!("{}-{what}", self.name));
            match SharedFile::with_path(&path, mapped + TAIL_BYTES) {
                Ok(file) => return Ok(file),
                Err(error) => why = Some(std::io::Error::other(format!("{}: {error}", path.display()))),
            }
        }
        Err(why.expect("there are two directories"))
    }
}

/// Makes an ELF file of a file. Its head comes last: until then the old tables are read, or none.
pub(in crate::realm) fn wrap(
    file: &SharedFile,
    mapped: u64,
    text: std::ops::Range<u64>,
    pieces: &[(u64, Arc<Names>)],
) {
    // A recording of another server has other code, perhaps of the same names.
    static SALT: LazyLock<u64> = LazyLock::new(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_nanos() as u64) ^ u64::from(std::process::id()).rotate_left(48)
    });
    let Wrapping { head, tail } = Wrapping::new(mapped, text, pieces, *SALT);
    assert!(head.len() as u64 <= HEAD_BYTES, "a header outgrew its room");
    if tail.len() as u64 > TAIL_BYTES {
        tracing::warn!("names of programs take {} bytes: perf does not see the newest", tail.len());
        return;
    }
    file.write_bytes(mapped, &tail);
    file.write_bytes(0, &head);
}

/// The agent's functions.
pub(in crate::realm) fn of_agent() -> Names {
    let functions = ring3_image::functions();
    let functions =
        functions.map(|(name, offset, bytes)| Function { name, offset: offset as u32, bytes: bytes as u32 });
    Names { functions: functions.collect(), ..Names::default() }
}

/// A function that is there alone.
pub(in crate::realm) fn alone(name: String, bytes: u64) -> Names {
    Names { functions: vec![Function { name, offset: 0, bytes: bytes as u32 }], ..Names::default() }
}

/// A file that names anonymous code of a process (`tools/perf/Documentation/jit-interface.txt`), there as long as this value.
/// Such a file of somebody else, a language runtime's perhaps, is left alone.
#[derive(Debug)]
pub(in crate::realm) struct PerfMap(PathBuf);

impl PerfMap {
    fn write(pid: u32, text: &str) -> std::io::Result<PerfMap> {
        let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let map = PerfMap(path);
        file.write_all(text.as_bytes())?;
        Ok(map)
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether a process sees the same files as this one.
fn shares_files(pid: u32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    namespace("self").is_some_and(|own| namespace(&pid.to_string()) == Some(own))
}

impl Target {
    /// Writes the perf map of the stubs, if perf is to find names.
    pub(in crate::realm) fn tell_perf(&mut self, shared: &Shared) {
        if !shared.agent.has_path() || self.own_pid != self.pid || !shares_files(self.pid) {
            return;
        }
        let line = |site: &Site| format!("{:x} {:x} ring3_stub_{}\n", site.stub, site.stub_bytes, site.name);
        let text: String = self.sites.values().filter(|site| site.stub != 0).map(line).collect();
        // The old one goes first: it has the same name.
        self.perf_map = None;
        match PerfMap::write(self.pid, &text) {
            Ok(map) => self.perf_map = Some(map),
            Err(error) => tracing::info!(pid = self.pid, "perf does not see names of stubs: {error}"),
        }
    }

    /// What is ring3's in this process.
    pub(in crate::realm) fn named(&self, shared: &Shared) -> Vec<PlacedSymbol> {
        let agent = self.region + AGENT_OFFSET;
        let text = self.region + TEXT_OFFSET;
        let programs = shared.text.names().into_iter();
        let mut all = vec![
            PlacedSymbol {
                section: ".text.ring3_agent".into(),
                address: agent,
                bytes: (ring3_image::bytes().len() as u64).next_multiple_of(PAGE_BYTES),
                pieces: vec![(agent, of_agent())],
            },
            PlacedSymbol {
                section: ".text.ring3_programs".into(),
                address: text,
                bytes: TEXT_BYTES,
                pieces: programs.map(|(offset, names)| (text + u64::from(offset), (*names).clone())).collect(),
            },
        ];
        for (number, area) in self.stub_areas().enumerate() {
            let inside = |stub: &u64| area.contains(stub);
            let stubs = self.sites.values().filter(|site| inside(&site.stub));
            let piece = |(name, at, bytes): (String, u64, u64)| (at, alone(name, bytes));
            let stubs =
                stubs.map(|site| (format!("ring3_stub_{}", site.name), site.stub, u64::from(site.stub_bytes)));
            all.push(PlacedSymbol {
                section: format!(".text.ring3_stubs{number}"),
                address: area.start,
                bytes: area.end - area.start,
                pieces: stubs.map(piece).collect(),
            });
        }
        all
    }
}
