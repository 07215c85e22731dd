//! Taking the sites of system calls out of a process, from the table in its control block.
//!
//! Threads are moved from gates and near stubs to the instructions that these stand for.

use ring3_inject as inject;
use ring3_layout::region::{CONTROL_OFFSET, GATES_BYTES, GATES_OFFSET};
use ring3_layout::syscall::{GATE_BYTES, Progress, SITES_MAX, SITES_OFFSET, SYSCALL_BYTES, SyscallSite, progress};
use ring3_patch::{CallerLinks, JUMP_BYTES, NEAR_BYTES_MAX, Replaced, SyscallPlan};

use super::cancellation::replaced_at;
use super::net::net_gate;
use super::raw_mapping::{read_process, value_from};
use super::recovery::put_back;

/// Puts the bytes of all sites back that the table in a process's control block names, and moves threads out of what belongs
/// to them.
pub(super) fn restore(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    let pid = stopped.pid();
    let mut table = vec![0u8; SITES_MAX as usize * size_of::<SyscallSite>()];
    if read_process(pid, region + CONTROL_OFFSET + SITES_OFFSET, &mut table).is_err() {
        return Ok(());
    }
    let entries: Vec<SyscallSite> = table
        .chunks_exact(size_of::<SyscallSite>())
        .map_while(value_from::<SyscallSite>)
        .take_while(|entry| entry.near != 0)
        .collect();
    for entry in &entries {
        put_back(stopped, entry.site, &entry.written[..JUMP_BYTES], &entry.original[..JUMP_BYTES])?;
    }
    let homes = Homes { region, gates: region + GATES_OFFSET, entries };
    for tid in stopped.threads().to_vec() {
        let registers = stopped.registers(tid)?;
        let to = match homes.of(stopped, registers.rip) {
            Some((call, Progress::Before)) => inject::Registers { rip: call, ..registers },
            Some((call, Progress::After)) => match inject::made_again(&registers) {
                Some(again) => inject::Registers { rip: call, ..again },
                None => inject::Registers { rip: call + SYSCALL_BYTES, rcx: call + SYSCALL_BYTES, ..registers },
            },
            None => continue,
        };
        stopped.set_registers(tid, &to)?;
    }
    for context in stopped.saved_contexts()? {
        let to = match homes.of(stopped, context.rip) {
            Some((call, Progress::Before)) => inject::SavedContext { rip: call, ..context },
            Some((call, Progress::After)) => {
                let after = call + SYSCALL_BYTES;
                inject::SavedContext { rip: after, rcx: after, ..context }
            }
            None => continue,
        };
        stopped.set_context(&to)?;
    }
    Ok(())
}

/// Where threads belong that are in gates and near stubs.
struct Homes {
    region: u64,
    /// Address of the gates.
    gates: u64,
    entries: Vec<SyscallSite>,
}

impl Homes {
    /// For a thread at `rip`: an instruction of the original code, and whether it is at that or behind it.
    fn of(&self, stopped: &inject::Stopped, rip: u64) -> Option<(u64, Progress)> {
        let in_gates = rip.checked_sub(self.gates).filter(|offset| *offset < GATES_BYTES);
        if let Some(offset) = in_gates {
            let entry = self.entries.get((offset / GATE_BYTES) as usize)?;
            return Some((entry.call, progress(entry.number >= 0, offset % GATE_BYTES)));
        }
        if let Some(home) = net_gate(stopped, self.region, rip) {
            return Some(home);
        }
        let is_near = |entry: &&SyscallSite| (entry.near..entry.near + NEAR_BYTES_MAX as u64).contains(&rip);
        // They lie closer together than they may be long.
        self.entries.iter().filter(is_near).find_map(|entry| {
            let moved = moved_of(stopped, entry);
            let (original, _) = moved.into_iter().find(|(_, near)| *near == rip)?;
            Some((original, Progress::Before))
        })
    }
}

/// Original address and address in the near stub of the displaced instructions of a site, whose bytes have been put back.
fn moved_of(stopped: &inject::Stopped, entry: &SyscallSite) -> Vec<(u64, u64)> {
    const DISPLACED_MAX: u32 = 64;
    let mut displaced = vec![0u8; entry.displaced.min(DISPLACED_MAX) as usize];
    if entry.site == 0 || stopped.read(entry.site, &mut displaced).is_err() {
        return vec![];
    }
    let replaced = replaced_at(entry, &displaced);
    let plan = SyscallPlan { displaced, replaced, ..SyscallPlan::at(entry.site, entry.call) };
    let stub = match replaced {
        Replaced::Instruction => plan.near(entry.near, 0).map(|(stub, _)| stub),
        Replaced::Call(_) | Replaced::Return => plan.near_of_caller(entry.near, &CallerLinks::default()),
    };
    let Ok(stub) = stub else { return vec![] };
    stub.moved.iter().map(|m| (m.original, entry.near + u64::from(m.stub_offset))).collect()
}
