//! What the server knows of executable files: where a probe may go, and where ring3 itself needs one.
//!
//! Files are parsed outside any stop and remembered by device, inode, size and modification time.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use ring3_elf::File as Elf;
use ring3_layout::control::HookKind;
use ring3_patch::{Function, plan_detour};
use ring3_uapi::Errno;

use super::Refusal;

/// `__NR_mmap` of x86-64.
const NR_MMAP: u32 = 9;
/// What is looked at behind a function whose end is unknown, and behind one that is tiny (padding), bytes.
const UNKNOWN_FUNCTION_BYTES: u64 = 512;
const BEHIND_FUNCTION_BYTES: u64 = 32;
/// Files larger than this are not parsed.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// Entries of unwinders: from here on the stack is walked and must show its real return addresses.
const UNWIND_STARTS: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
];
/// Where a walk is over and the frames that survived go on.
const UNWIND_ENDS: [&str; 2] = ["__cxa_begin_catch", "_Unwind_DeleteException"];

/// A place in a file where a probe is wanted, with what planning needs. Addresses are the file's own.
#[derive(Debug)]
pub(super) struct StaticSite {
    /// Address of the probed instruction in the file's address space.
    pub(super) vaddr: u64,
    /// Address of the function's first byte.
    pub(super) function: u64,
    /// Bytes of the function proper; 0: unknown.
    pub(super) function_bytes: usize,
    /// The function's bytes and some behind it.
    pub(super) bytes: Vec<u8>,
    /// `symbol+offset`, or the address where no symbol covers it.
    pub(super) name: String,
}

impl StaticSite {
    /// The function as mapped with `bias` added to the file's addresses.
    pub(super) fn function(&self, bias: u64) -> Function<'_> {
        Function { bytes: &self.bytes, address: self.function.wrapping_add(bias), size: self.function_bytes }
    }
}

/// Where ring3 itself wants hooks in a file: kind and file offset.
pub(super) type Specials = Vec<(HookKind, u64)>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileKey {
    dev: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// The memory of parsed files.
#[derive(Debug, Default)]
pub(super) struct Modules {
    sites: HashMap<(FileKey, u64), Result<Arc<StaticSite>, Refusal>>,
    specials: HashMap<(FileKey, bool), Arc<Specials>>,
}

impl Modules {
    /// The site at `offset` of `path`.
    pub(super) fn site(&mut self, path: &Path, offset: u64) -> Result<Arc<StaticSite>, Refusal> {
        let (key, file) = open(path)?;
        if let Some(known) = self.sites.get(&(key, offset)) {
            return known.clone();
        }
        let found = read(file, path).and_then(|bytes| static_site(&bytes, path, offset)).map(Arc::new);
        self.sites.insert((key, offset), found.clone());
        found
    }

    /// The file's special places: the loader's `mmap` where `loader` says that this is the dynamic loader,
    /// else the unwinder's entries and ends. Files that cannot be read or parsed have none.
    pub(super) fn specials(&mut self, path: &Path, loader: bool) -> Arc<Specials> {
        let Ok((key, file)) = open(path) else { return Arc::default() };
        if let Some(known) = self.specials.get(&(key, loader)) {
            return known.clone();
        }
        let found = read(file, path).ok().and_then(|bytes| {
            let elf = Elf::parse(&bytes).ok()?;
            Some(if loader { mmap_sites(&elf) } else { unwind_sites(&elf) })
        });
        let found = Arc::new(found.unwrap_or_default());
        self.specials.insert((key, loader), found.clone());
        found
    }
}

/// Whether the instruction at `offset` of `path` can be probed: found in an executable segment, and plannable.
pub(super) fn check_site(path: &Path, offset: u64) -> Result<(), Refusal> {
    let site = Modules::default().site(path, offset)?;
    plan_detour(&site.function(0), site.vaddr)
        .map(drop)
        .map_err(|why| Refusal::new(Errno::ENOTSUPP, format!("{}: {}: {why}", path.display(), site.name)))
}

fn open(path: &Path) -> Result<(FileKey, File), Refusal> {
    let fail = |error: std::io::Error| {
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
        Refusal::new(errno, format!("{}: {error}", path.display()))
    };
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err(Refusal::new(Errno::EINVAL, format!("{}: not a regular file", path.display())));
    }
    let key = FileKey {
        dev: meta.dev(),
        inode: meta.ino(),
        bytes: meta.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
    };
    Ok((key, file))
}

fn read(mut file: File, path: &Path) -> Result<Vec<u8>, Refusal> {
    let length = file.metadata().map(|meta| meta.len()).unwrap_or(0);
    if length > FILE_BYTES_MAX {
        return Err(Refusal::new(Errno::EFBIG, format!("{}: larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.read_to_end(&mut bytes).map_err(|error| Refusal::new(Errno::EIO, format!("{}: {error}", path.display())))?;
    Ok(bytes)
}

fn static_site(bytes: &[u8], path: &Path, offset: u64) -> Result<StaticSite, Refusal> {
    let refuse = |why: String| Refusal::new(Errno::EINVAL, format!("{}: {why}", path.display()));
    let elf = Elf::parse(bytes).map_err(|error| refuse(error.to_string()))?;
    let vaddr =
        elf.offset_to_vaddr(offset).ok_or_else(|| refuse(format!("offset {offset:#x} is in no loaded segment")))?;
    let segment = elf
        .executable_segments()
        .into_iter()
        .find(|segment| segment.contains(&vaddr))
        .ok_or_else(|| refuse(format!("offset {offset:#x} is not in an executable segment")))?;
    let bounds = elf.function_bounds(vaddr);
    let start = bounds.as_ref().map_or(vaddr, |range| range.start);
    let end = bounds.as_ref().map_or(vaddr + UNKNOWN_FUNCTION_BYTES, |range| range.end + BEHIND_FUNCTION_BYTES);
    let code = elf
        .code(start..end.min(segment.end))
        .ok_or_else(|| refuse(format!("no code at offset {offset:#x}")))?
        .to_vec();
    let name = match elf.symbol_at(vaddr) {
        Some((name, at, _)) if at == vaddr => name.to_owned(),
        Some((name, at, _)) => format!("{name}+{:#x}", vaddr - at),
        None => format!("{vaddr:#x}"),
    };
    let function_bytes = bounds.map_or(0, |range| (range.end - range.start) as usize);
    Ok(StaticSite { vaddr, function: start, function_bytes, bytes: code, name })
}

/// The instructions behind the `mmap` system calls of a dynamic loader.
fn mmap_sites(elf: &Elf<'_>) -> Specials {
    let mut found = Specials::new();
    for segment in elf.executable_segments() {
        let Some(code) = elf.code(segment.clone()) else { continue };
        for at in memchr_syscall(code) {
            let vaddr = segment.start + at as u64;
            let Some(function) = elf.function_bounds(vaddr) else { continue };
            let Some(bytes) = elf.code(function.clone()) else { continue };
            if ring3_patch::find_syscall_sites(bytes, function.start, NR_MMAP).contains(&vaddr)
                && let Some(offset) = elf.vaddr_to_offset(vaddr + 2)
            {
                found.push((HookKind::MappingAdded, offset));
            }
        }
    }
    found
}

/// Where the bytes of a `syscall` instruction stand, instruction boundaries unknown.
fn memchr_syscall(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    code.windows(2).enumerate().filter(|(_, pair)| *pair == [0x0f, 0x05]).map(|(at, _)| at)
}

fn unwind_sites(elf: &Elf<'_>) -> Specials {
    let defined = |name: &&str| elf.find(name).and_then(|vaddr| Some((vaddr, elf.vaddr_to_offset(vaddr)?)));
    let starts = UNWIND_STARTS.iter().filter_map(defined).map(|(_, offset)| (HookKind::UnwindStart, offset));
    let ends = UNWIND_ENDS.iter().filter_map(defined).map(|(_, offset)| (HookKind::UnwindEnd, offset));
    starts.chain(ends).collect()
}
