//! A patched place in one target, and the numbers it takes in the target's control page.

use std::sync::Arc;

use ring3_inject as inject;
use ring3_layout::control::{ATTACHMENTS_MAX, HookKind};
use ring3_patch::Plan;
use ring3_uapi::Errno;

use crate::realm::files::{FileId, StaticSite, file_of};
use crate::realm::process::code_of;
use crate::realm::{AttachmentId, Refusal};

/// Where a site lies: what identifies it across reconciliations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::realm) struct Place {
    /// Runtime address.
    pub(in crate::realm) address: u64,
    /// Device, inode and offset of the mapped file.
    pub(in crate::realm) file: (u64, u64, u64),
    /// Range of the mapping, for the stub's neighbourhood.
    pub(in crate::realm) mapping: std::ops::Range<u64>,
    /// Path of the mapping.
    pub(in crate::realm) path: String,
    /// What it does.
    pub(in crate::realm) kind: HookKind,
}

/// One program on a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::realm) struct Use {
    pub(in crate::realm) attachment: AttachmentId,
    pub(in crate::realm) ret: bool,
}

/// A place that should be instrumented, with the programs to run there.
#[derive(Clone, Debug)]
pub(in crate::realm) struct WantedSite {
    pub(in crate::realm) place: Place,
    pub(in crate::realm) code: Arc<StaticSite>,
    /// Which of the function's returns is seen there, if it is one.
    pub(in crate::realm) ret: Option<usize>,
    pub(in crate::realm) uses: Vec<Use>,
}

impl WantedSite {
    /// How far the file's addresses are from those in the process.
    fn bias(&self) -> u64 {
        let inside = self.ret.and_then(|ret| self.code.returns(true).nth(ret)).unwrap_or(0);
        self.place.address.wrapping_sub(self.code.vaddr + inside)
    }

    pub(in crate::realm) fn plan(&self) -> Result<Plan, ring3_patch::Refusal> {
        self.code.plan(self.ret, self.bias())
    }

    /// Where the stub would lie if the site got a one-byte jump.
    pub(in crate::realm) fn one_byte_stub(&self) -> Option<u64> {
        let is_probe = self.place.kind == HookKind::Probe && self.ret.is_none();
        is_probe.then(|| self.code.one_byte_stub(self.bias())).flatten()
    }

    /// Address of the probed instruction, or of the function whose return is probed.
    pub(super) fn probed(&self) -> u64 {
        self.code.vaddr.wrapping_add(self.bias())
    }

    pub(in crate::realm) fn name(&self) -> String {
        match self.place.address - self.probed() {
            0 => self.code.name.clone(),
            inside => format!("{}+{inside:#x}", self.code.name),
        }
    }
}

/// A site of a target. Stays known after its probes are gone: returns may still be awaited there.
#[derive(Debug)]
pub(in crate::realm) struct Site {
    pub(in crate::realm) place: Place,
    pub(in crate::realm) name: String,
    pub(in crate::realm) plan: Plan,
    /// The plan that replaces that of a one-byte jump, if its stub finds no room or another site comes too near.
    pub(in crate::realm) plain: Option<Plan>,
    pub(in crate::realm) stub: u64,
    pub(in crate::realm) stub_bytes: u32,
    /// Original address and stub address of each displaced instruction.
    pub(in crate::realm) moved: Vec<(u64, u64)>,
    /// What is written at the site while it is patched.
    pub(in crate::realm) jump: Vec<u8>,
    /// Sites within the bytes of the jump, whose programs the stub runs, too.
    pub(in crate::realm) members: Vec<u64>,
    pub(in crate::realm) hook: u32,
    pub(in crate::realm) patched: bool,
    pub(in crate::realm) uses: Vec<Use>,
}

impl Site {
    /// Whether what was displaced there lies in these bytes, or what has to stay as it is.
    pub(in crate::realm) fn overlaps(&self, bytes: &std::ops::Range<u64>) -> bool {
        self.place.address < bytes.end && bytes.start < self.plan.end()
    }

    /// Whether the instruction at an address has to stay as it is for this site's jump, which is not displaced.
    pub(super) fn relies_on(&self, address: u64) -> bool {
        self.plan.is_punned() && (self.plan.resume..self.plan.end()).contains(&address)
    }

    pub(in crate::realm) fn copy(&self) -> Site {
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
pub(in crate::realm) fn places(
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
pub(in crate::realm) fn maps(mappings: &[inject::Mapping], pid: u32, file: FileId) -> bool {
    code_of(mappings).any(|mapping| !mapping.is_shared() && is_of_file(mapping, pid, file))
}

/// Whether a mapping is of a file. Stacked file systems show another device in `/proc/PID/maps` than in `stat`, and an overlay has one
/// of its own: then the path is asked.
pub(super) fn is_of_file(mapping: &inject::Mapping, pid: u32, file: FileId) -> bool {
    let is_it = || mapping.dev == file.dev || file_of(pid, mapping).is_some_and(|path| file.is_at(&path));
    mapping.inode == file.inode && is_it()
}

pub(in crate::realm) fn place_in(mapping: &inject::Mapping, offset: u64, kind: HookKind) -> Option<Place> {
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
pub(in crate::realm) fn taken(name: &str, address: u64) -> Refusal {
    Refusal::new(Errno::ENOTSUPP, format!("{name}: another probe has displaced the instructions at {address:#x}"))
}

/// Whether these bytes stand at an address.
pub(in crate::realm) fn is_written(stopped: &mut inject::Stopped, address: u64, bytes: &[u8]) -> bool {
    let mut there = vec![0u8; bytes.len()];
    stopped.read(address, &mut there).is_ok() && there == bytes
}

/// Hands out ranges of the attachment table. A retired range is free again once no thread can read it.
#[derive(Debug, Default)]
pub(in crate::realm) struct RangeAllocator {
    next: u32,
    free: Vec<(u32, u32)>,
    retired: Vec<(u32, u32)>,
}

impl RangeAllocator {
    /// `count` consecutive entries, or `None` when the table is full.
    pub(in crate::realm) fn reserve(&mut self, count: u32) -> Option<u32> {
        if let Some(at) = self.free.iter().position(|(_, c)| *c == count) {
            return Some(self.free.swap_remove(at).0);
        }
        let first = self.next;
        let end = first.checked_add(count).filter(|end| *end <= ATTACHMENTS_MAX)?;
        self.next = end;
        Some(first)
    }

    pub(in crate::realm) fn retire(&mut self, range: (u32, u32)) {
        if range.1 != 0 {
            self.retired.push(range);
        }
    }

    /// All threads were seen outside: nobody reads retired ranges any more.
    pub(in crate::realm) fn reclaim_retired(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Entries of the table that were ever in use.
    pub(in crate::realm) fn used(&self) -> u32 {
        self.next
    }

    /// For a fork's copy of the table.
    pub(in crate::realm) fn copy(&self) -> RangeAllocator {
        RangeAllocator { next: self.next, free: self.free.clone(), retired: self.retired.clone() }
    }

    pub(in crate::realm) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }
}

/// Where calls go back that were caught; `None`: that is not known.
pub(in crate::realm) struct CaughtCalls(pub(in crate::realm) Option<Vec<u64>>);

impl CaughtCalls {
    /// Whether some may go back into the middle of these bytes.
    pub(in crate::realm) fn lead_into(&self, bytes: &std::ops::Range<u64>) -> bool {
        let places = self.0.as_ref();
        places.is_none_or(|places| places.iter().any(|place| *place > bytes.start && *place < bytes.end))
    }
}
