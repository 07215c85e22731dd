//! Signals that ring3's agent raises for itself in a tracee: nobody is shown those.

use std::fs::File;
use std::os::unix::fs::FileExt;

use libc::{c_int, pid_t};
use ring3_layout::region::{CONTROL_OFFSET, CONTROL_PATH};

use crate::raw_calls::{registers, signal_info};
use crate::raw_steps::Places;

/// Whether a signal is one that ring3's agent in the tracee raises, or has raised, for itself.
pub(crate) fn is_of_agent(tid: pid_t, signal: c_int, places: &mut Option<Places>) -> bool {
    /// `si_code`s (include/uapi/asm-generic/siginfo.h).
    const SYS_USER_DISPATCH: c_int = 2;
    const SI_KERNEL: c_int = 0x80;
    const SI_TIMER: c_int = -2;
    const SIGCANCEL: c_int = 32;
    if ![libc::SIGSYS, libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, SIGCANCEL].contains(&signal) {
        return false;
    }
    let Some(info) = signal_info(tid) else { return false };
    let may_be = match signal {
        libc::SIGSYS => info.si_code == SYS_USER_DISPATCH,
        libc::SIGTRAP => info.si_code == SI_KERNEL,
        SIGCANCEL => info.si_code == SI_TIMER,
        _ => info.si_code > 0,
    };
    if !may_be {
        return false;
    }
    if places.is_none() {
        *places = places_of(tid);
    }
    let Some(places) = *places else { return false };
    // SAFETY: a timer's signal has a value; that of others is not used.
    let value = unsafe { info.si_value() }.sival_ptr.addr() as u64;
    match signal {
        libc::SIGSYS => true,
        SIGCANCEL => value == places.region,
        _ => registers(tid).is_ok_and(|registers| match signal {
            libc::SIGTRAP => is_breakpoint_of_ours(tid, registers.rip.wrapping_sub(1)),
            _ => places.have_in_region(registers.rip),
        }),
    }
}

/// Where a process has ring3's code, and the vDSO; `None`: it is no target.
pub(crate) fn places_of(tid: pid_t) -> Option<Places> {
    let maps = std::fs::read_to_string(format!("/proc/{tid}/maps")).ok()?;
    let range = |is_it: &dyn Fn(&str) -> bool| {
        let (start, end) = maps.lines().find(|line| is_it(line))?.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let (control, _) = range(&|line| line.contains(CONTROL_PATH))?;
    let vdso = range(&|line| line.ends_with("[vdso]")).unwrap_or_default();
    Some(Places { region: control.checked_sub(CONTROL_OFFSET)?, vdso })
}

/// Whether the breakpoint at an address is not in the file that is mapped there.
fn is_breakpoint_of_ours(tid: pid_t, address: u64) -> bool {
    let is_in_file = || -> Option<bool> {
        let maps = std::fs::read_to_string(format!("/proc/{tid}/maps")).ok()?;
        let (range, offset) = maps.lines().find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let range = fields.next()?;
            let (start, end) = range.split_once('-')?;
            let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
            (start..end).contains(&address).then(|| (range.to_owned(), offset + (address - start)))
        })?;
        let path = format!("/proc/{tid}/map_files/{range}");
        // (Only root may follow those.)
        let named = || {
            let line = maps.lines().find(|line| line.starts_with(&range))?;
            File::open(line.splitn(6, ' ').nth(5)?.trim_start()).ok()
        };
        let file = File::open(path).ok().or_else(named)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).ok()?;
        Some(byte == [0xcc])
    };
    is_in_file() == Some(false)
}
