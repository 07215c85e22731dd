//! Faults in programs, and in helpers that they call: such a fault is a defect of ours, or somebody has taken a map's memory
//! away. It ends that run of the program; the thread goes on as if the program had returned 0.
//!
//! Runs cost nothing for that: nobody remembers where the caller goes on. The server reads it from the code and the stack while the
//! thread waits, and releases what the run held in maps. Without a server the fault is the process's own.

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::control::Attachment;
use ring3_layout::fault::{FAULT_MAGIC, Fault, register};
use ring3_layout::realm::request;
use ring3_layout::region::{CONTROL_BYTES, CONTROL_OFFSET, TEXT_BYTES, TEXT_OFFSET};
use ring3_layout::thread::{ENDED, OPEN_RECORDS_MAX};

use crate::raw_request::file;
use crate::raw_sud::{Context, Info};
use crate::raw_thread::current;

/// The direction flag, which functions find clear.
const DIRECTION: u64 = 1 << 10;

fn is_in_agent(base: u64, address: u64) -> bool {
    address.wrapping_sub(base) < CONTROL_OFFSET
}

/// If a program's run has faulted, the thread goes on where it returns to. False: the fault is not ours, or nobody knows where.
pub(crate) fn end_run(base: u64, info: &Info, context: &mut Context) -> bool {
    let rip = context.rip();
    if !is_in_agent(base, rip) && rip.wrapping_sub(base + TEXT_OFFSET) >= TEXT_BYTES {
        return false;
    }
    // SAFETY: the running thread's own block, or null.
    let Some(tb) = (unsafe { current(base).as_mut() }) else { return false };
    let (guard, attachment) = (tb.guard.load(Relaxed), tb.attachment);
    if guard == 0 || attachment.wrapping_sub(base + CONTROL_OFFSET) >= CONTROL_BYTES {
        return false;
    }
    // SAFETY: the control page is mapped with the region; the dispatcher last wrote the address of an attachment there.
    let attachment = unsafe { &*(attachment as *const Attachment) };
    let mut fault = Fault {
        magic: 0,
        registers: context.kept_registers(),
        guard,
        address: info.address(),
        link_id: attachment.link_id,
        prog_id: attachment.prog_id,
        signal: info.signal(),
        interrupted: tb.interrupted,
        is_answered: 0,
    };
    fault.magic = FAULT_MAGIC ^ &raw const fault as u64;
    let at = &raw mut fault;
    if !file(base, request::KIND_FAULT, tb.pid_tgid, at as u64, true) {
        return false;
    }
    // SAFETY: a local value; volatile, since another process has written it.
    let answer = unsafe { at.read_volatile() };
    let (rip, rsp) = (answer.registers[register::RIP], answer.registers[register::RSP]);
    if answer.is_answered == 0 || !is_in_agent(base, rip) || rsp <= context.rsp() || rsp > guard {
        return false;
    }
    tb.open_records = [[0; 2]; OPEN_RECORDS_MAX];
    tb.tail_target = 0;
    tb.fuel = ENDED;
    context.go_on_with(answer.registers, DIRECTION);
    true
}
