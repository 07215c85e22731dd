//! Unwind tables of files, for programs that ask for stacks (docs/design/stacks.md).
//!
//! A table is made once for a file, in memory that all targets map and only the server writes. Each target's control page lists the code
//! that is mapped there with tables.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use ring3_elf::{File as Elf, NoTable, UnwindTable};
use ring3_inject as inject;
use ring3_layout::control::{
    ControlHeader, UNWIND_CODE_MAX, UnwindCode, UnwindCodeValue, range_pack, range_unpack, unwind_list_offset,
};
use ring3_layout::region::UNWIND_BYTES;

use super::mapped::likely_file_of;
use super::modules::{FileKey, Modules, vdso_image};
use crate::realm::process::{SharedFile, read_process, read_value};
use crate::realm::target::{Link, Target};
use crate::realm::{AttachmentId, LinkSpec, Shared};

/// Files of which it is remembered whether they have a table.
const FILES_MAX: usize = 1 << 16;
/// Alignment of a table, bytes: a cache line.
const TABLE_ALIGN: u64 = 64;
/// A longer build id is compared in part.
const BUILD_ID_BYTES_MAX: usize = 64;

/// What is made of a file.
#[derive(Clone, Debug)]
pub(super) struct Unwinding {
    table: UnwindTable,
    shape: FileShape,
}

/// What it takes to find a file's code in a process, and to see that it is this file's.
#[derive(Clone, Debug)]
struct FileShape {
    /// Addresses and file offsets of executable segments.
    segments: Vec<(Range<u64>, u64)>,
    /// Address and bytes of the build id.
    build_id: Option<(u64, Vec<u8>)>,
}

impl Unwinding {
    pub(in crate::realm) fn of(elf: &Elf<'_>) -> Result<Unwinding, NoTable> {
        let table = elf.unwind_table()?;
        let segments = elf.executable_segments().into_iter();
        let segments = segments.filter_map(|segment| Some((segment.clone(), elf.vaddr_to_offset(segment.start)?)));
        let build_id = elf.build_id().and_then(|id| {
            let (note, address) = elf.section(".note.gnu.build-id")?;
            let inside = note.windows(id.len().max(1)).position(|bytes| bytes == id)?;
            Some((address.checked_add(inside as u64)?, id[..id.len().min(BUILD_ID_BYTES_MAX)].to_vec()))
        });
        Ok(Unwinding { table, shape: FileShape { segments: segments.collect(), build_id } })
    }
}

/// A file's table in the memory of tables.
#[derive(Clone, Debug)]
struct Stored {
    shape: FileShape,
    start: u64,
    witness_at: u64,
    witness: u64,
    offset: u32,
    bytes: u32,
}

impl Stored {
    /// How this process finds the table for code that it has mapped; `None` if that is not from this file.
    fn in_mapping(&self, pid: u32, mapping: &inject::Mapping) -> Option<UnwindCodeValue> {
        let bytes = mapping.range.end - mapping.range.start;
        let is_in = |(segment, offset): &&(Range<u64>, u64)| {
            let end = offset.saturating_add(segment.end - segment.start);
            *offset < mapping.offset.saturating_add(bytes) && mapping.offset < end
        };
        let (segment, offset) = self.shape.segments.iter().find(is_in)?;
        let bias = mapping.range.start.wrapping_sub(mapping.offset).wrapping_add(*offset).wrapping_sub(segment.start);
        let at = |address: u64| bias.wrapping_add(address);
        let is_this = |(address, id): &(u64, Vec<u8>)| {
            let mut there = vec![0; id.len()];
            read_process(pid, at(*address), &mut there).is_ok() && there == *id
        };
        let is_there = read_value::<u64>(pid, at(self.witness_at)) == Ok(self.witness)
            && self.shape.build_id.as_ref().is_none_or(is_this);
        is_there.then(|| UnwindCodeValue {
            start: mapping.range.start,
            end: mapping.range.end,
            origin: at(self.start),
            witness_at: at(self.witness_at),
            witness: self.witness,
            table: range_pack(self.offset, self.bytes),
        })
    }
}

/// The memory of tables, and what is known of files.
#[derive(Debug)]
pub(in crate::realm) struct UnwindStore {
    file: SharedFile,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    files: HashMap<FileKey, Option<Stored>>,
    vdso: Option<Option<Stored>>,
    used: u64,
    is_full: bool,
}

impl UnwindStore {
    pub(in crate::realm) fn new() -> std::io::Result<UnwindStore> {
        Ok(UnwindStore { file: SharedFile::new("ring3-unwind", UNWIND_BYTES, true)?, known: Mutex::default() })
    }

    pub(in crate::realm) fn file(&self) -> BorrowedFd<'_> {
        self.file.file()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic under this lock")
    }

    /// How the process finds the table for this code, if its file has one, and is analysed already.
    fn code(&self, modules: &mut Modules, pid: u32, mapping: &inject::Mapping) -> Option<UnwindCodeValue> {
        match mapping.path.as_str() {
            "[vdso]" => self.vdso()?.in_mapping(pid, mapping),
            _ if mapping.inode == 0 => None,
            _ => self.stored(modules, &likely_file_of(pid, mapping)?)?.in_mapping(pid, mapping),
        }
    }

    fn stored(&self, modules: &mut Modules, path: &Path) -> Option<Stored> {
        let key = Modules::key(path).ok()?;
        if let Some(stored) = self.known().files.get(&key) {
            return stored.clone();
        }
        let made = modules.unwinding(key, path)?;
        let mut known = self.known();
        if known.files.len() >= FILES_MAX {
            // (Tables whose place is forgotten stay.)
            known.files.clear();
        }
        let stored = match made {
            Ok(made) => self.store(&mut known, made, path),
            Err(why) => {
                tracing::debug!("{}: stacks are walked by frame pointers there: {why}", path.display());
                None
            }
        };
        known.files.insert(key, stored.clone());
        stored
    }

    /// The table of the kernel's own code in processes, which is the same in all.
    fn vdso(&self) -> Option<Stored> {
        let mut known = self.known();
        if known.vdso.is_none() {
            let image = vdso_image();
            let made = image.and_then(|image| Unwinding::of(&Elf::parse(&image).ok()?).ok());
            let stored = made.and_then(|made| self.store(&mut known, made, Path::new("[vdso]")));
            known.vdso = Some(stored);
        }
        known.vdso.clone().flatten()
    }

    fn store(&self, known: &mut Known, made: Unwinding, path: &Path) -> Option<Stored> {
        let Unwinding { table, shape } = made;
        let (offset, bytes) = (known.used, table.bytes.len() as u64);
        if bytes > UNWIND_BYTES - offset {
            if !std::mem::replace(&mut known.is_full, true) {
                let file = path.display();
                tracing::warn!("no room for unwind tables: stacks are walked by frame pointers in {file} and others");
            }
            return None;
        }
        self.file.write_bytes(offset, &table.bytes);
        known.used = (offset + bytes).next_multiple_of(TABLE_ALIGN).min(UNWIND_BYTES);
        let UnwindTable { start, witness_at, witness, .. } = table;
        Some(Stored { shape, start, witness_at, witness, offset: offset as u32, bytes: bytes as u32 })
    }
}

impl Target {
    /// Lists the code that has unwind tables, if a program here asks for stacks. Files that are not known yet are analysed.
    pub(in crate::realm) fn publish_unwind_tables(
        &mut self,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
        mappings: &[inject::Mapping],
    ) {
        let asks = links.values().any(|link| link.spec.stacks) && self.links_for(links).any(|(_, spec)| spec.stacks);
        let mut code: Vec<UnwindCodeValue> = vec![];
        if asks {
            let mut modules = shared.modules();
            let found = self.code_not_ours(mappings);
            code = found.filter_map(|mapping| shared.unwind.code(&mut modules, self.pid, mapping)).collect();
            // (As `/proc/PID/maps` has them: ordered.)
            code.truncate(UNWIND_CODE_MAX);
        }
        let word = offset_of!(ControlHeader, unwind) as u64;
        let (version, count) = range_unpack(self.control.word(word).load(Ordering::SeqCst));
        let bytes = |code: &[UnwindCodeValue]| zerocopy::IntoBytes::as_bytes(code).to_vec();
        let (new, published) = (bytes(&code), count as usize * size_of::<UnwindCode>());
        if self.control.read_bytes(unwind_list_offset(version), published) == new {
            return;
        }
        let next = version.wrapping_add(1);
        self.control.write_bytes(unwind_list_offset(next), &new);
        self.control.word(word).store(range_pack(next, code.len() as u32), Ordering::SeqCst);
    }

    /// Whether a link's program asks for stacks, and none did before.
    pub(in crate::realm) fn lacks_unwind_tables(&self, spec: &LinkSpec) -> bool {
        let word = self.control.word(offset_of!(ControlHeader, unwind) as u64);
        spec.stacks && range_unpack(word.load(Ordering::SeqCst)).1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

    fn libc_here() -> (u32, inject::Mapping) {
        let pid = std::process::id();
        let mappings = inject::mappings(inject::Pid(pid)).expect("it runs");
        let is_it = |mapping: &inject::Mapping| mapping.is_executable() && mapping.path.contains("libc.so");
        (pid, mappings.into_iter().find(is_it).expect("the tests use it"))
    }

    #[test]
    fn code_has_its_files_table_only_if_the_process_has_that_file() {
        let (pid, mapping) = libc_here();
        let (store, mut modules) = (UnwindStore::new().expect("memory"), Modules::default());
        let stored = store.stored(&mut modules, LIBC.as_ref()).expect("it has a table");
        let code = stored.in_mapping(pid, &mapping).expect("it is mapped");
        assert_eq!((code.start, code.end), (mapping.range.start, mapping.range.end));
        let text = store.file.read_bytes(u64::from(stored.offset), stored.bytes as usize);
        let here = libc::qsort as *const () as u64;
        let table = ring3_unwind::Table::of(&text).expect("a table");
        assert_eq!(table.find(here - code.origin).kind, ring3_unwind::Rule::PLAIN);

        let other = |change: &dyn Fn(&mut Stored)| {
            let mut other = stored.clone();
            change(&mut other);
            other.in_mapping(pid, &mapping)
        };
        assert!(other(&|stored| stored.witness ^= 1).is_none());
        assert!(other(&|stored| stored.witness_at = 1 << 50).is_none());
        assert!(other(&|stored| stored.shape.build_id.as_mut().expect("it has one").1[3] ^= 1).is_none());
        assert!(other(&|stored| stored.shape.segments.clear()).is_none());
    }

    #[test]
    fn a_table_is_made_once_and_full_memory_is_no_error() {
        let (store, mut modules) = (UnwindStore::new().expect("memory"), Modules::default());
        let first = store.stored(&mut modules, LIBC.as_ref()).expect("it has a table");
        let again = store.stored(&mut modules, LIBC.as_ref()).expect("it has a table");
        assert_eq!((first.offset, store.known().used), (again.offset, u64::from(first.bytes).next_multiple_of(64)));
        store.known().used = UNWIND_BYTES - 64;
        assert!(store.vdso().is_none() && store.known().is_full);
        assert!(store.stored(&mut modules, LIBC.as_ref()).is_some());
    }
}
