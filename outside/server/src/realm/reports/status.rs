//! What `ring3 status` shows of a target, and what its thread blocks say.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ring3_layout::control::HookKind;
use ring3_layout::region::{PROCESS_OFFSET, STATE_OFFSET};
use ring3_layout::thread::{
    COUNTED_HOOKS_MAX, STATE_HEADER_BYTES, StateHeader, THREAD_BLOCK_BYTES, THREADS_MAX, ThreadBlock,
};
use serde::Serialize;

use crate::realm::AttachmentId;
use crate::realm::process::{read_process, read_value};
use crate::realm::sites::Site;
use crate::realm::target::{Link, Target};

/// A site for `ring3 status -v`.
#[derive(Clone, Debug, Serialize)]
pub struct SiteStatus {
    /// Runtime address.
    pub address: u64,
    /// `symbol+offset`.
    pub symbol: String,
    /// The module's path.
    pub module: String,
    /// How it is instrumented.
    pub tactic: String,
    /// `probe`, `return` (one `ret` of a function in Go), or ring3's own: `unwind-start`, `unwind-end`,
    /// `stack-walk`.
    pub kind: String,
    /// Programs on entry.
    pub entry_programs: Vec<u32>,
    /// Programs on return.
    pub return_programs: Vec<u32>,
    /// Arrivals that ran programs.
    pub hits: u64,
    /// Arrivals that could not.
    pub misses: u64,
}

/// Runs of a program, by one link, that took longer than their budget, in all threads of a target.
#[derive(Clone, Debug, Serialize)]
pub struct OverrunStatus {
    /// The link.
    pub link_id: u32,
    /// The program.
    pub prog_id: u32,
    /// How many.
    pub runs: u64,
    /// What the longest one took, ns.
    pub worst_ns: u64,
}

/// Runs of a program, by one link, that faulted in a target.
#[derive(Clone, Debug, Serialize)]
pub struct FaultStatus {
    /// The link.
    pub link_id: u32,
    /// The program.
    pub prog_id: u32,
    /// How many.
    pub runs: u64,
    /// What the last one was, and where.
    pub last: String,
}

/// A target for `ring3 status`.
#[derive(Clone, Debug, Serialize)]
pub struct TargetStatus {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Whose it is, if it shares no memory with the targets of the server's own user.
    pub user: Option<String>,
    /// Asked for by `start` or `attach` (else by a link for its pid, or as a fork of a target).
    pub explicit: bool,
    /// Everything is being taken out.
    pub leaving: bool,
    /// Microseconds from the request to the end of injecting; 0 for an adopted fork.
    pub inject_us: u64,
    /// Microseconds from the first thread's stop to the last one's release for it.
    pub stopped_us: u64,
    /// How often all links were looked at since it is a target: a new one alone seldom needs that.
    pub looks: u64,
    /// Arrivals without a thread block.
    pub missed_no_block: u64,
    /// What it asked of the server and nobody answered in time: new code or programs may be without probes.
    pub requests_lost: u64,
    /// Patched sites.
    pub sites: Vec<SiteStatus>,
    /// `syscall` instructions that were replaced.
    pub syscall_sites: usize,
    /// System calls, or what may be some, that were to be seen and are not: address and reason.
    pub syscalls_left: Vec<String>,
    /// System calls that ran programs, their beginnings and their ends; and those that could not.
    pub syscall_hits: (u64, u64),
    /// Why the SUD fallback is enabled. Absent: it is not.
    pub sud: Option<String>,
    /// Why the SUD fallback is not enabled, if it should be.
    pub sud_refused: Option<String>,
    /// Calls that the SUD fallback caught, and those of them that ran no program.
    pub sud_calls: (u64, u64),
    /// How programs read memory of the process: `directly` if the agent handles faults, or why not. Absent: it need not.
    pub reads: Option<String>,
    /// How the maps of its extensions are kept from it, or why they are not. Absent: they are not to be.
    pub isolation: Option<String>,
    /// Runs of programs that took longer than their budget.
    pub overruns: Vec<OverrunStatus>,
    /// Runs of programs that faulted, and were ended.
    pub faulted_runs: Vec<FaultStatus>,
    /// Links that could not be applied: link id and reason.
    pub refused: Vec<(u32, String)>,
}

impl Target {
    pub(in crate::realm) fn status(&self, links: &BTreeMap<AttachmentId, Link>) -> TargetStatus {
        let counts = self.counts();
        let programs = |site: &Site, ret: bool| -> Vec<u32> {
            site.uses
                .iter()
                .filter(|u| u.ret == ret)
                .filter_map(|u| Some(links.get(&u.attachment)?.spec.prog_id))
                .collect()
        };
        let in_force = self.sites.iter().filter(|(address, _)| self.is_in_force(**address));
        let sites = in_force.map(|(_, site)| {
            let (hits, misses) = counts.get(site.hook as usize).copied().unwrap_or_default();
            SiteStatus {
                address: site.place.address,
                symbol: site.name.clone(),
                module: site.place.path.clone(),
                tactic: site.plan.tactic.to_string(),
                kind: kind_name(site.place.kind).to_owned(),
                entry_programs: programs(site, false),
                return_programs: programs(site, true),
                hits,
                misses,
            }
        });
        let missed = read_value::<u64>(self.pid, self.region + STATE_OFFSET + 8);
        let lost = self.region + STATE_OFFSET + std::mem::offset_of!(StateHeader, requests_lost) as u64;
        let (syscall_sites, syscalls_left) = self.syscalls.status();
        TargetStatus {
            looks: self.looks,
            syscall_sites,
            syscalls_left,
            syscall_hits: self.syscalls.hook_index().and_then(|hook| counts.get(hook).copied()).unwrap_or_default(),
            sud: self.sud.why.clone().filter(|_| self.sud.armed),
            sud_refused: self.sud.refused(),
            sud_calls: self.sud_counts(),
            reads: self.reads_how(),
            isolation: self.protection.status(),
            pid: self.pid,
            comm: self.comm.clone(),
            user: (!self.domain.is_own()).then(|| self.domain.to_string()),
            explicit: self.explicit,
            leaving: self.is_detaching(),
            inject_us: self.inject_us,
            stopped_us: self.stopped_us.load(Ordering::Relaxed),
            missed_no_block: missed.unwrap_or(0),
            requests_lost: read_value(self.pid, lost).unwrap_or(0),
            sites: sites.collect(),
            overruns: self.overruns(),
            faulted_runs: self.faulted_runs(),
            refused: links
                .values()
                .filter_map(|link| Some((link.spec.link_id, link.refused.get(&self.pid)?.message.clone())))
                .collect(),
        }
    }

    /// Addresses of the thread blocks of this process.
    pub(in crate::realm) fn blocks(&self) -> impl Iterator<Item = u64> + use<> {
        let (pid, region) = (self.pid, self.region);
        let used = read_value::<u32>(pid, region + STATE_OFFSET).unwrap_or(0).min(THREADS_MAX);
        let generation = read_value::<u64>(pid, region + PROCESS_OFFSET).unwrap_or(0);
        let address = move |block| region + STATE_OFFSET + STATE_HEADER_BYTES + block * THREAD_BLOCK_BYTES;
        (0..u64::from(used)).map(address).filter(move |base| {
            read_value(pid, base + std::mem::offset_of!(ThreadBlock, generation) as u64) == Ok(generation)
        })
    }

    /// The serial of the thread with this id (in its own namespace), if a program has seen it.
    pub(in crate::realm) fn serial(&self, tid: u32) -> Option<u32> {
        let word = |base, offset: usize| read_value::<u64>(self.pid, base + offset as u64);
        let blocks = self.blocks().filter(|base| {
            word(*base, std::mem::offset_of!(ThreadBlock, pid_tgid)).is_ok_and(|ids| ids as u32 == tid)
        });
        // A thread has another block from before its C library gave it an FS base.
        let serials = blocks.filter_map(|base| word(base, std::mem::offset_of!(ThreadBlock, serial)).ok());
        serials.map(|serial| serial as u32).max()
    }

    /// Hits and misses per hook, summed over the thread blocks of this process.
    fn counts(&self) -> Vec<(u64, u64)> {
        let hooks = self.hooks_used.min(COUNTED_HOOKS_MAX) as usize;
        let mut sums = vec![(0u64, 0u64); hooks];
        for base in self.blocks() {
            let mut hits = vec![0u8; hooks * 8];
            let mut misses = vec![0u8; hooks * 4];
            let hits_at = base + std::mem::offset_of!(ThreadBlock, hits) as u64;
            let misses_at = base + std::mem::offset_of!(ThreadBlock, misses) as u64;
            if read_process(self.pid, hits_at, &mut hits).is_err()
                || read_process(self.pid, misses_at, &mut misses).is_err()
            {
                continue;
            }
            for (index, sum) in sums.iter_mut().enumerate() {
                sum.0 += u64::from_le_bytes(hits[index * 8..][..8].try_into().expect("8 bytes"));
                sum.1 += u64::from(u32::from_le_bytes(misses[index * 4..][..4].try_into().expect("4 bytes")));
            }
        }
        sums
    }
}

fn kind_name(kind: HookKind) -> &'static str {
    match kind {
        HookKind::Probe => "probe",
        HookKind::UnwindStart => "unwind-start",
        HookKind::UnwindEnd => "unwind-end",
        HookKind::StackWalk => "stack-walk",
        HookKind::Syscalls => "syscalls",
        HookKind::Return => "return",
    }
}
