//! Callers of routines in which threads are cancelled, in one target.

use std::mem::offset_of;

use ring3_layout::cancellation::{CALLS, RETURNS};
use ring3_layout::region::{CONTROL_OFFSET, STATE_OFFSET};
use ring3_layout::syscall::{SyscallSite, SyscallTables, TABLES_OFFSET};
use ring3_layout::thread::StateHeader;
use ring3_patch::{CallerLinks, JUMP_BYTES, Replaced, Routine, SyscallPlan};

use crate::realm::sites::in_agent;
use crate::realm::target::Target;

impl Target {
    /// Where the near stub of a routine's caller leads.
    pub(super) fn caller_links(&self, plan: &SyscallPlan, index: u32) -> CallerLinks {
        let symbol = match plan.replaced {
            Replaced::Call(_) => "ring3_cancellation_enter",
            Replaced::Instruction | Replaced::Return => "ring3_cancellation_exit",
        };
        CallerLinks {
            index,
            tables: self.region + CONTROL_OFFSET + TABLES_OFFSET,
            awaited: self.region + STATE_OFFSET + offset_of!(StateHeader, awaited) as u64,
            agent: in_agent(self.region, symbol),
        }
    }

    /// Ends of calls that are under way will not be seen: they are not to be taken for ones that were left.
    pub(super) fn count_restored_returns(&self) {
        let returns_restored = TABLES_OFFSET + offset_of!(SyscallTables, returns_restored) as u64;
        self.control.word32(returns_restored).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// What `SyscallSite::number` is for a plan.
pub(in crate::realm) fn number_of(plan: &SyscallPlan) -> i32 {
    match plan.replaced {
        Replaced::Instruction => plan.number.map_or(-1, |number| number as i32),
        Replaced::Call(_) => CALLS,
        Replaced::Return => RETURNS,
    }
}

/// What of a routine's caller was replaced at a site, these being the instructions that were there.
pub(super) fn replaced_at(entry: &SyscallSite, displaced: &[u8]) -> Replaced {
    match (entry.number, displaced) {
        (CALLS, [_, distance @ ..]) if distance.len() == 4 => {
            let distance = i32::from_le_bytes(distance.try_into().expect("4 bytes"));
            let start = entry.site.wrapping_add(JUMP_BYTES as u64).wrapping_add_signed(i64::from(distance));
            Replaced::Call(Routine { start, call: entry.call, cancelled: 0 })
        }
        (RETURNS, _) => Replaced::Return,
        _ => Replaced::Instruction,
    }
}
