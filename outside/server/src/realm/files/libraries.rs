//! Addresses that the agent needs from a process's libraries: the clock, restartable sequences, TCBs.

use std::mem::offset_of;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use ring3_inject as inject;
use ring3_layout::region::PROCESS_OFFSET;
use ring3_layout::thread::ProcessPage;

use super::mapped::likely_key_of;
use super::modules::{Modules, vdso_image};
use crate::realm::process::{code_of, read_process, read_value};
use crate::realm::target::Target;

impl Target {
    /// Finds out where the C library says where its `struct rseq`s are.
    pub(in crate::realm) fn find_rseq(&mut self, modules: &mut Modules, mappings: &[inject::Mapping]) {
        self.rseq_offset = rseq_offset(self.pid, modules, mappings).unwrap_or(0);
    }

    /// Tells the agent if threads have no TCB of their own: then it does not use TCBs (`raw_thread`). A thread that ends
    /// and has no stack either can only make calls for which none is needed.
    pub(in crate::realm) fn publish_tcb_validity(&self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        if stopped.threads().len() == 1 {
            // (It may have none yet; the agent finds that out.)
            return Ok(());
        }
        let word_at = |address: u64| read_value::<u64>(self.pid, address);
        for tid in stopped.threads() {
            let registers = stopped.registers(*tid)?;
            let is_named = word_at(registers.fs_base) == Ok(registers.fs_base);
            if !is_named && word_at(registers.rsp.wrapping_sub(8)).is_ok() {
                let at = self.region + PROCESS_OFFSET + offset_of!(ProcessPage, tcbs_invalid) as u64;
                return stopped.write(at, &1u32.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// What tells a program in memory from another one that the same process has executed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::realm) struct Program {
    vdso: Option<u64>,
    loader: Option<u64>,
    /// Start, device and inode of the first code of a file.
    first: Option<(u64, u64, u64)>,
}

impl Program {
    pub(in crate::realm) fn of(mappings: &[inject::Mapping]) -> Program {
        let start =
            |is_it: &dyn Fn(&inject::Mapping) -> bool| mappings.iter().find(|m| is_it(m)).map(|m| m.range.start);
        let first = code_of(mappings).find(|mapping| mapping.inode != 0);
        Program {
            vdso: start(&|mapping| mapping.path == "[vdso]"),
            loader: start(&|mapping| is_dynamic_loader(&mapping.path)),
            first: first.map(|mapping| (mapping.range.start, mapping.dev, mapping.inode)),
        }
    }
}

/// By name, as gdb does it: the loader is `ld-linux-x86-64.so.2`, `ld-2.31.so`, `ld-musl-x86_64.so.1` ...
pub(in crate::realm) fn is_dynamic_loader(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("ld-") || name.starts_with("ld.so") || name.starts_with("ld64.so")
}

/// Whether a file is the C library, or a part of it, by name as well: `libc.so.6`, `libc-2.31.so`, or the dynamic loader.
pub(in crate::realm) fn is_c_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("libc.so") || name.starts_with("libc-") || is_dynamic_loader(name)
}

/// Whether a process maps the C library as a file of its own.
pub(in crate::realm) fn maps_c_library(pid: u32) -> bool {
    let mappings = inject::mappings(inject::Pid(pid)).unwrap_or_default();
    code_of(&mappings).any(|mapping| is_c_library(&mapping.path))
}

/// The vDSO that this process has, like nearly all others, and where its `__vdso_clock_gettime` is in it.
static OWN_VDSO: LazyLock<Option<(Vec<u8>, Option<u64>)>> = LazyLock::new(|| {
    let image = vdso_image()?;
    let offset = clock_gettime_in(&image);
    Some((image, offset))
});

/// The vDSO of a process, as a clock.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct VdsoClock {
    /// Address of `__vdso_clock_gettime`; 0: there is none.
    pub(in crate::realm) function: u64,
    /// What that uses: the vDSO and its data before it.
    pub(in crate::realm) range: Range<u64>,
}

/// The vDSO's clock of a process. One that was moved away from its data (`[vvar]`) is none.
pub(in crate::realm) fn vdso_clock(pid: u32, mappings: &[inject::Mapping]) -> Option<VdsoClock> {
    // (Nothing else has these names: fs/proc/task_mmu.c takes them from the kernel's own mappings.)
    let at = mappings.iter().position(|mapping| mapping.path == "[vdso]")?;
    let mapping = &mappings[at];
    let mut begin = mapping.range.start;
    for data in mappings[..at].iter().rev().take_while(|data| data.path.starts_with("[vvar")) {
        if data.range.end == begin {
            begin = data.range.start;
        }
    }
    if begin == mapping.range.start {
        return None;
    }
    let mut image = vec![0u8; (mapping.range.end - mapping.range.start) as usize];
    read_process(pid, mapping.range.start, &mut image).ok()?;
    let offset = match &*OWN_VDSO {
        Some((own, offset)) if *own == image => *offset,
        // (A process that was restored from an image may have brought its own.)
        _ => clock_gettime_in(&image),
    };
    Some(VdsoClock { function: mapping.range.start + offset?, range: begin..mapping.range.end })
}

fn clock_gettime_in(image: &[u8]) -> Option<u64> {
    ring3_elf::File::parse(image).ok()?.find("__vdso_clock_gettime")
}

/// Address of the C library's `__rseq_offset` in a process: it is in glibc's dynamic loader, or in a static executable. Without
/// the symbol it is taken for a library that registers no `struct rseq`.
fn rseq_offset(pid: u32, modules: &mut Modules, mappings: &[inject::Mapping]) -> Option<u64> {
    let loader = mappings.iter().find(|m| is_dynamic_loader(&m.path));
    let executable = || {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        mappings.iter().find(|m| Path::new(&m.path) == path)
    };
    let module = loader.or_else(executable)?;
    let start = mappings.iter().find(|m| m.inode == module.inode && m.path == module.path && m.offset == 0)?;
    let (file, key) = likely_key_of(pid, module)?;
    let distance = modules.rseq_offset(key, &file)?;
    Some(start.range.start + distance)
}
