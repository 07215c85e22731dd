//! A patched place in one target, and the numbers it takes in the target's control page.

use std::sync::Arc;

use ring3_inject as inject;
use ring3_layout::control::{ATTACHMENTS_MAX, HookKind};
use ring3_patch::Plan;
use ring3_uapi::Errno;

use super::modules::{StaticSite, file_of};
use super::process::code_of;
use super::raw_file_id::FileId;
use super::{AttachmentId, Refusal};

/// Where a site lies: what identifies it across reconciliations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Runtime address.
    pub(super) address: u64,
    /// Device, inode and offset of the mapped file.
    pub(super) file: (u64, u64, u64),
    /// Range of the mapping, for the stub's neighbourhood.
    pub(super) mapping: std::ops::Range<u64>,
    /// Path of the mapping.
    pub(super) path: String,
    /// What it does.
    pub(super) kind: HookKind,
}

/// One program on a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) attachment: AttachmentId,
    pub(super) ret: bool,
}

/// A place that should be instrumented, with the programs to run there.
#[derive(Clone, Debug)]
pub(super) struct WantedSite {
    pub(super) place: Place,
    pub(super) code: Arc<StaticSite>,
    /// Which of the function's returns is seen there, if it is one.
    pub(super) ret: Option<usize>,
    pub(super) uses: Vec<Use>,
}

impl WantedSite {
    /// How far the file's addresses are from those in the process.
    fn bias(&self) -> u64 {
        let inside = self.ret.and_then(|ret| self.code.returns().nth(ret)).unwrap_or(0);
        self.place.address.wrapping_sub(self.code.vaddr + inside)
    }

    pub(super) fn plan(&self) -> Result<Plan, ring3_patch::Refusal> {
        self.code.plan(self.ret, self.bias())
    }

    /// Where the stub would lie if the site got a one-byte jump.
    pub(super) fn one_byte_stub(&self) -> Option<u64> {
        let is_probe = self.place.kind == HookKind::Probe && self.ret.is_none();
        is_probe.then(|| self.code.one_byte_stub(self.bias())).flatten()
    }

    /// Address of the probed instruction, or of the function whose return is probed.
    pub(super) fn probed(&self) -> u64 {
        self.code.vaddr.wrapping_add(self.bias())
    }

    pub(super) fn name(&self) -> String {
        match self.place.address - self.probed() {
            0 => self.code.name.clone(),
            inside => format!("{}+{inside:#x}", self.code.name),
        }
    }
}

/// A site of a target. Stays known after its probes are gone: returns may still be awaited there.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) plan: Plan,
    /// The plan that replaces that of a one-byte jump, if its stub finds no room or another site comes too near.
    pub(super) plain: Option<Plan>,
    pub(super) stub: u64,
    pub(super) stub_bytes: u32,
    /// Original address and stub address of each displaced instruction.
    pub(super) moved: Vec<(u64, u64)>,
    /// What is written at the site while it is patched.
    pub(super) jump: Vec<u8>,
    /// Sites within the bytes of the jump, whose programs the stub runs, too.
    pub(super) members: Vec<u64>,
    pub(super) hook: u32,
    pub(super) patched: bool,
    pub(super) uses: Vec<Use>,
}

impl Site {
    /// Whether what was displaced there lies in these bytes, or what has to stay as it is.
    pub(super) fn overlaps(&self, bytes: &std::ops::Range<u64>) -> bool {
        self.place.address < bytes.end && bytes.start < self.plan.end()
    }

    /// Whether the instruction at an address has to stay as it is for this site's jump, which is not displaced.
    pub(super) fn relies_on(&self, address: u64) -> bool {
        self.plan.is_punned() && (self.plan.resume..self.plan.end()).contains(&address)
    }

    pub(super) fn copy(&self) -> Site {
        Site {
            place: self.place.clone(),
            name: self.name.clone(),
            plan: self.plan.clone(),
            plain: self.plain.clone(),
            stub: self.stub,
            stub_bytes: self.stub_bytes,
            moved: self.moved.clone(),
            jump: self.jump.clone(),
            members: self.members.clone(),
            hook: self.hook,
            patched: self.patched,
            uses: self.uses.clone(),
        }
    }
}

/// The places where `offset` of the file is mapped executable, for this process only (as kernel/events/uprobes.c:valid_vma has
/// it).
pub(super) fn places(
    mappings: &[inject::Mapping],
    pid: u32,
    file: FileId,
    offset: u64,
    kind: HookKind,
) -> Vec<Place> {
    code_of(mappings)
        .filter(|m| !m.is_shared() && is_of_file(m, pid, file))
        .filter_map(|m| place_in(m, offset, kind))
        .collect()
}

/// Whether a process maps a file with code that probes can be in.
pub(super) fn maps(mappings: &[inject::Mapping], pid: u32, file: FileId) -> bool {
    code_of(mappings).any(|mapping| !mapping.is_shared() && is_of_file(mapping, pid, file))
}

/// Whether a mapping is of a file. Stacked file systems show another device in `/proc/PID/maps` than in `stat`, and an overlay has one
/// of its own: then the path is asked.
pub(super) fn is_of_file(mapping: &inject::Mapping, pid: u32, file: FileId) -> bool {
    let is_it = || mapping.dev == file.dev || file_of(pid, mapping).is_some_and(|path| file.is_at(&path));
    mapping.inode == file.inode && is_it()
}

pub(super) fn place_in(mapping: &inject::Mapping, offset: u64, kind: HookKind) -> Option<Place> {
    let bytes = mapping.range.end - mapping.range.start;
    let inside = offset.checked_sub(mapping.offset).filter(|inside| *inside < bytes)?;
    Some(Place {
        address: mapping.range.start + inside,
        file: (mapping.dev, mapping.inode, offset),
        mapping: mapping.range.clone(),
        path: mapping.path.clone(),
        kind,
    })
}

/// Why nothing can be done at an address.
pub(super) fn taken(name: &str, address: u64) -> Refusal {
    Refusal::new(Errno::ENOTSUPP, format!("{name}: another probe has displaced the instructions at {address:#x}"))
}

/// Whether these bytes stand at an address.
pub(super) fn is_written(stopped: &mut inject::Stopped, address: u64, bytes: &[u8]) -> bool {
    let mut there = vec![0u8; bytes.len()];
    stopped.read(address, &mut there).is_ok() && there == bytes
}

/// Hands out ranges of the attachment table. A retired range is free again once no thread can read it.
#[derive(Debug, Default)]
pub(super) struct RangeAllocator {
    next: u32,
    free: Vec<(u32, u32)>,
    retired: Vec<(u32, u32)>,
}

impl RangeAllocator {
    /// `count` consecutive entries, or `None` when the table is full.
    pub(super) fn reserve(&mut self, count: u32) -> Option<u32> {
        if let Some(at) = self.free.iter().position(|(_, c)| *c == count) {
            return Some(self.free.swap_remove(at).0);
        }
        let first = self.next;
        let end = first.checked_add(count).filter(|end| *end <= ATTACHMENTS_MAX)?;
        self.next = end;
        Some(first)
    }

    pub(super) fn retire(&mut self, range: (u32, u32)) {
        if range.1 != 0 {
            self.retired.push(range);
        }
    }

    /// All threads were seen outside: nobody reads retired ranges any more.
    pub(super) fn reclaim_retired(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// For a fork's copy of the table.
    pub(super) fn copy(&self) -> RangeAllocator {
        RangeAllocator { next: self.next, free: self.free.clone(), retired: self.retired.clone() }
    }

    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }
}

/// Where calls go back that were caught; `None`: that is not known.
pub(super) struct CaughtCalls(pub(super) Option<Vec<u64>>);

impl CaughtCalls {
    /// Whether some may go back into the middle of these bytes.
    pub(super) fn lead_into(&self, bytes: &std::ops::Range<u64>) -> bool {
        let places = self.0.as_ref();
        places.is_none_or(|places| places.iter().any(|place| *place > bytes.start && *place < bytes.end))
    }
}
