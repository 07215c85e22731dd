//! Looks whether anything of ring3 is left in a process that was detached (`ring3 detach --verify`).
//!
//! What is looked at is the process itself, not what the server believes: its mappings, descriptors, code and threads.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use ring3_inject as inject;

use crate::realm::files::{file_of, is_c_library, regular_file};
use crate::realm::process::{code_of, read_process};
use crate::realm::target::{STOP_WITHIN, Target};

/// How the memfds of ring3 begin in `/proc/PID/maps`, and where descriptors lead.
const MEMFD_PREFIX: &str = "/memfd:ring3-";
/// Bytes of code that are compared at a time.
const CHUNK_BYTES: u64 = 0x1_0000;

impl Target {
    /// Where ring3's code and data lie in the process. Before the region is mapped, nothing is ring3's.
    pub(in crate::realm) fn own_ranges(&self) -> Vec<Range<u64>> {
        let region = (self.region != 0).then(|| self.region..self.region + ring3_layout::region::REGION_BYTES);
        self.stub_areas().chain(region).collect()
    }

    /// Mappings with code that are not ring3's; of a process that has yet to execute its program, the C library's.
    pub(in crate::realm) fn code_not_ours<'m>(
        &self,
        mappings: &'m [inject::Mapping],
    ) -> impl Iterator<Item = &'m inject::Mapping> + use<'m> {
        let own = self.own_ranges();
        let before_program = self.before_program;
        let is_ours = move |mapping: &inject::Mapping| {
            own.iter().any(|range| range.contains(&mapping.range.start))
                || before_program && mapping.inode != 0 && !is_c_library(&mapping.path)
        };
        code_of(mappings).filter(move |mapping| !is_ours(mapping))
    }
}

/// What is left, a line each. `ours`: where ring3's code and data were.
pub(in crate::realm) fn leftovers(pid: u32, ours: &[Range<u64>]) -> Result<Vec<String>, inject::Error> {
    let mappings = inject::mappings(inject::Pid(pid))?;
    let mut left = vec![];
    for mapping in &mappings {
        let was_ours = ours.iter().any(|range| range.start < mapping.range.end && mapping.range.start < range.end);
        // (The process may map something of its own there again.)
        if mapping.path.starts_with(MEMFD_PREFIX) || was_ours && mapping.inode == 0 && mapping.is_executable() {
            left.push(format!("memory at {:#x}..{:#x} {}", mapping.range.start, mapping.range.end, mapping.path));
        }
    }
    left.extend(descriptors(pid));
    let is_code = |mapping: &&inject::Mapping| {
        mapping.is_executable()
            && mapping.inode != 0
            && !mapping.is_shared()
            && !mapping.permissions.contains('w')
            && !mapping.path.starts_with("/memfd:")
    };
    left.extend(mappings.iter().filter(is_code).filter_map(|mapping| changed_code(pid, mapping)));
    left.extend(inject::while_stopped(inject::Pid(pid), STOP_WITHIN, |stopped| threads(stopped, ours))??);
    Ok(left)
}

/// Descriptors of ring3's files.
fn descriptors(pid: u32) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return vec![] };
    let links =
        entries.flatten().filter_map(|entry| Some((entry.file_name(), std::fs::read_link(entry.path()).ok()?)));
    let ours = links.filter(|(_, link)| link.to_string_lossy().starts_with(MEMFD_PREFIX));
    ours.map(|(fd, link)| format!("descriptor {} of {}", fd.to_string_lossy(), link.display())).collect()
}

/// How a mapping's code differs from that of its file, or that it cannot be compared.
fn changed_code(pid: u32, mapping: &inject::Mapping) -> Option<String> {
    let shown = format!("code of {} at {:#x}", mapping.path, mapping.range.start);
    let Some(file) = file_of(pid, mapping).and_then(|path| regular_file::open(&path).ok()) else {
        return Some(format!("{shown}: not compared, its file is not found"));
    };
    let (mut first, mut count) = (None, 0);
    let mut at = mapping.range.start;
    while at < mapping.range.end {
        let bytes = CHUNK_BYTES.min(mapping.range.end - at) as usize;
        let (mut there, mut stored) = (vec![0u8; bytes], vec![0u8; bytes]);
        let offset = mapping.offset + (at - mapping.range.start);
        let Ok(known) = file.read_at(&mut stored, offset) else { return Some(format!("{shown}: not compared")) };
        // (Behind the file's end there may be pages of the mapping that nobody can read.)
        let known = known.min(bytes);
        if read_process(pid, at, &mut there[..known]).is_err() {
            return Some(format!("{shown}: not compared, it cannot be read"));
        }
        let different = (0..known).filter(|index| there[*index] != stored[*index]);
        for index in different {
            first = first.or(Some(at + index as u64));
            count += 1;
        }
        at += bytes as u64;
    }
    first.map(|first| format!("{shown}: {count} bytes differ from its file, first at {first:#x}"))
}

/// Threads that are in ring3's memory, come back to it from a signal handler, or whose GS base or syscall user dispatch leads there.
fn threads(stopped: &mut inject::Stopped, ours: &[Range<u64>]) -> Result<Vec<String>, inject::Error> {
    let is_ours = |address: u64| ours.iter().any(|range| range.contains(&address));
    let mut left = vec![];
    for tid in stopped.threads().to_vec() {
        let registers = stopped.registers(tid)?;
        for (name, address) in [("instruction pointer", registers.rip), ("GS base", registers.gs_base)] {
            if is_ours(address) {
                left.push(format!("{name} {address:#x} of thread {tid}"));
            }
        }
        if stopped.dispatch(tid).is_ok_and(|dispatch| dispatch.mode != 0 && is_ours(dispatch.offset)) {
            left.push(format!("syscall user dispatch of thread {tid}"));
        }
    }
    let returns = stopped.saved_contexts()?.into_iter().filter(|context| is_ours(context.rip));
    left.extend(
        returns.map(|context| format!("signal frame at {:#x} that returns to {:#x}", context.address, context.rip)),
    );
    Ok(left)
}
