//! Signals whose handler in a target is the agent's: how they are taken, and given back (`inside/runtime/src/raw_actions.rs`).

use std::mem::offset_of;

use ring3_inject as inject;
use ring3_layout::region::{REGION_BYTES, SUD_OFFSET};
use ring3_layout::sud::{OwnAction, SIGNALS, SudState, TAKEN_SIGNALS, dependent_flags};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::nr;
use ring3_uapi::seccomp::FilteredCall;

use super::masks::{blocks_meanwhile, masks_are_stable};
use crate::realm::Shared;
use crate::realm::process::{Cleaning, read_value};
use crate::realm::sites::in_agent;

const SIGNAL_SET_BYTES: u64 = 8;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_NODEFER: u64 = 0x4000_0000;

/// `struct kernel_sigaction`: handler, flags, restorer, mask.
pub(in crate::realm) type Action = [u64; 4];

/// A signal's after an `execve`.
const NO_HANDLER: Action = [0; 4];

/// Actions that have room in [`SudState::scratch`].
const ACTIONS_AT_ONCE: usize = size_of::<[u64; 8]>() / size_of::<Action>();

/// Address of a field of [`SudState`].
pub(in crate::realm) fn field(region: u64, offset: usize) -> u64 {
    region + SUD_OFFSET + offset as u64
}

pub(in crate::realm) fn read_word(stopped: &inject::Stopped, address: u64) -> Result<u64, inject::Error> {
    let mut word = [0u8; 8];
    stopped.read(address, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

pub(in crate::realm) fn write_flag(
    stopped: &mut inject::Stopped,
    address: u64,
    flag: bool,
) -> Result<(), inject::Error> {
    stopped.write(address, &u32::from(flag).to_le_bytes())
}

/// The action of a signal.
pub(in crate::realm) fn action_of(
    stopped: &mut inject::Stopped,
    region: u64,
    signal: u64,
) -> Result<Action, inject::Error> {
    let scratch = field(region, offset_of!(SudState, scratch));
    stopped.syscall("rt_sigaction", nr::RT_SIGACTION, [signal, 0, scratch, SIGNAL_SET_BYTES, 0, 0])?;
    read_action(stopped, scratch)
}

pub(in crate::realm) fn set_action(
    stopped: &mut inject::Stopped,
    region: u64,
    signal: u64,
    action: Action,
) -> Result<(), inject::Error> {
    let scratch = field(region, offset_of!(SudState, scratch));
    stopped.write(scratch, &bytes_of(&action))?;
    stopped.syscall("rt_sigaction", nr::RT_SIGACTION, [signal, scratch, 0, SIGNAL_SET_BYTES, 0, 0]).map(drop)
}

fn read_action(stopped: &inject::Stopped, address: u64) -> Result<Action, inject::Error> {
    let mut bytes = [0; size_of::<Action>()];
    stopped.read(address, &mut bytes)?;
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("8 bytes"));
    Ok(std::array::from_fn(word))
}

fn bytes_of(action: &Action) -> Vec<u8> {
    action.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Where the process's own action of a signal is kept.
fn own_at(region: u64, signal: u64) -> u64 {
    let index = TAKEN_SIGNALS.iter().position(|taken| *taken == signal).expect("one of these");
    field(region, offset_of!(SudState, own) + index * size_of::<OwnAction>())
}

/// Whether the handler of a signal is the agent's.
pub(in crate::realm) fn is_taken(pid: u32, region: u64, signal: u64) -> bool {
    let at = own_at(region, signal) + offset_of!(OwnAction, installed) as u64;
    read_value::<u32>(pid, at).is_ok_and(|installed| installed != 0)
}

/// Makes the handler of a signal one of the agent's. The signal is in no other handler's mask from then on.
pub(in crate::realm) fn take(
    stopped: &mut inject::Stopped,
    region: u64,
    signal: u64,
    handler: &str,
) -> Result<(), inject::Error> {
    take_all(stopped, region, &[signal], handler)
}

/// As [`take`], of at most [`ACTIONS_AT_ONCE`] signals. The actions are asked for by the calls that replace them, which are made as if
/// no handler were there: most often there is none.
fn take_all(stopped: &mut inject::Stopped, region: u64, signals: &[u64], handler: &str) -> Result<(), inject::Error> {
    let handled = stopped.signals_handled()?;
    let action_at = |signal: u64| own_at(region, signal) + offset_of!(OwnAction, action) as u64;
    let scratch = field(region, offset_of!(SudState, scratch));
    let new = |signal: u64, own: &Action| -> Action {
        let flags = dependent_flags(signal, own[0], own[1]) | SA_SIGINFO | SA_RESTORER | SA_NODEFER;
        [in_agent(region, handler), flags, in_agent(region, "ring3_signal_restorer"), 0]
    };
    let (mut calls, mut actions) = (vec![], vec![]);
    for (index, signal) in signals.iter().enumerate() {
        // Whatever goes wrong from here on, actions are given back.
        write_flag(stopped, own_at(region, *signal) + offset_of!(OwnAction, installed) as u64, true)?;
        let at = scratch + (index * size_of::<Action>()) as u64;
        calls.push([*signal, at, action_at(*signal), SIGNAL_SET_BYTES, 0, 0]);
        actions.push(new(*signal, &NO_HANDLER));
    }
    stopped.write(scratch, &actions.iter().flat_map(bytes_of).collect::<Vec<u8>>())?;
    stopped.syscall_with_each("rt_sigaction", nr::RT_SIGACTION, &calls)?;
    for (signal, assumed) in signals.iter().zip(actions) {
        let action = new(*signal, &read_action(stopped, action_at(*signal))?);
        if action != assumed {
            set_action(stopped, region, *signal, action)?;
        }
    }
    let bits = bits_of(signals);
    let others = (1..=SIGNALS as u64).filter(|other| handled & 1 << (other - 1) != 0);
    let others = others.filter(|other| !TAKEN_SIGNALS.contains(other) || !is_taken(stopped.pid(), region, *other));
    for other in others.collect::<Vec<_>>() {
        let mut action = action_of(stopped, region, other)?;
        if action[3] & bits != 0 {
            let kept_out = kept_out_at(region, other);
            let kept = read_word(stopped, kept_out)? | action[3] & bits;
            stopped.write(kept_out, &kept.to_le_bytes())?;
            action[3] &= !bits;
            set_action(stopped, region, other, action)?;
        }
    }
    Ok(())
}

/// Makes the handler of signals that the kernel forces on threads one of the agent's, and has no thread block them any more. False:
/// a thread is about to change its mask, or waits with one of them blocked.
pub(super) fn take_for_good(
    stopped: &mut inject::Stopped,
    region: u64,
    signals: &[u64],
    handler: &str,
) -> Result<bool, inject::Error> {
    let bits = bits_of(signals);
    for tid in stopped.threads().to_vec() {
        if blocks_meanwhile(stopped, tid, bits)? {
            return Ok(false);
        }
    }
    if !masks_are_stable(stopped, region, bits)? {
        return Ok(false);
    }
    for some in signals.chunks(ACTIONS_AT_ONCE) {
        take_all(stopped, region, some, handler)?;
    }
    let never = field(region, offset_of!(SudState, never_blocked));
    let blocked = read_word(stopped, never)? | bits;
    stopped.write(never, &blocked.to_le_bytes())?;
    // (None is in a call that blocks others.)
    for tid in stopped.threads().to_vec() {
        if stopped.signal_mask(tid)? & bits != 0 {
            stopped.unblock(tid, bits)?;
        }
    }
    Ok(true)
}

/// Said where [`may_take`] is false.
pub(super) const MAY_NOT_TAKE: &str = "the process does not allow itself to handle signals (seccomp)";

/// Whether the process allows itself to handle and to block signals: what the agent needs for those that it takes.
pub(super) fn may_take(stopped: &inject::Stopped, shared: &Shared) -> Result<bool, inject::Error> {
    const ACTION_AND_MASK: [u32; 2] = [nr::RT_SIGACTION as u32, nr::RT_SIGPROCMASK as u32];
    let filters = stopped.filters()?.without(&shared.loader_filter);
    Ok(ACTION_AND_MASK.iter().all(|number| filters.allow(&FilteredCall::any(*number))))
}

/// Undoes what [`take_for_good`] has done, in a process in which nobody needs it any more. False: a thread may still rely on it.
pub(super) fn give_back_for_good(
    stopped: &mut inject::Stopped,
    region: u64,
    signals: &[u64],
) -> Result<bool, inject::Error> {
    let bits = bits_of(signals);
    if !signals.iter().any(|signal| is_taken(stopped.pid(), region, *signal)) {
        return Ok(true);
    }
    if !masks_are_stable(stopped, region, bits)? {
        return Ok(false);
    }
    really_block(stopped, region, bits)?;
    for signal in signals {
        give_back(stopped, region, *signal)?;
    }
    Ok(true)
}

/// Calls that change masks are the process's own from now on, and the agent does not see any more what threads want to block: so they
/// really do, unless one is about to change that, and nothing that is remembered of it counts.
pub(in crate::realm) fn leave_masks(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    let never = read_word(stopped, field(region, offset_of!(SudState, never_blocked)))?;
    if never == 0 {
        return Ok(());
    }
    match masks_are_stable(stopped, region, never)? {
        true => really_block(stopped, region, never),
        false => let_block(stopped, region, never),
    }
}

/// No signal among these is kept from being blocked; threads block those that they want to.
fn really_block(stopped: &mut inject::Stopped, region: u64, bits: u64) -> Result<(), inject::Error> {
    let never = read_word(stopped, field(region, offset_of!(SudState, never_blocked)))?;
    block_again(stopped, region, bits & never)?;
    let_block(stopped, region, bits)
}

fn bits_of(signals: &[u64]) -> u64 {
    signals.iter().fold(0, |bits, signal| bits | 1 << (signal - 1))
}

/// Threads really block those of these signals that they have blocked as far as they know. None is where that could end it.
fn block_again(stopped: &mut inject::Stopped, region: u64, bits: u64) -> Result<(), inject::Error> {
    let cleaning = Cleaning { pid: stopped.pid(), region };
    for block in cleaning.blocks() {
        let wants = read_word(stopped, block + offset_of!(ThreadBlock, wants_blocked) as u64)? & bits;
        if wants == 0 {
            continue;
        }
        if let Some(tid) = cleaning.thread_of(stopped, block)? {
            stopped.block(tid, wants)?;
        }
    }
    Ok(())
}

/// Threads may block these signals from now on.
pub(super) fn let_block(stopped: &mut inject::Stopped, region: u64, bits: u64) -> Result<(), inject::Error> {
    let never = field(region, offset_of!(SudState, never_blocked));
    let blocked = read_word(stopped, never)? & !bits;
    stopped.write(never, &blocked.to_le_bytes())
}

/// Actions are what the process has made them, as far as this signal is concerned.
pub(in crate::realm) fn give_back(
    stopped: &mut inject::Stopped,
    region: u64,
    signal: u64,
) -> Result<(), inject::Error> {
    let at = own_at(region, signal);
    let bit = 1 << (signal - 1);
    let real = action_of(stopped, region, signal)?;
    if (region..region + REGION_BYTES).contains(&real[0]) {
        let mut action = read_action(stopped, at + offset_of!(OwnAction, action) as u64)?;
        // (Other taken signals stay out of its mask.)
        let kept = action[3] & taken_of(stopped.pid(), region, signal);
        stopped.write(kept_out_at(region, signal), &kept.to_le_bytes())?;
        action[3] &= !kept;
        set_action(stopped, region, signal, action)?;
    }
    for other in 1..=SIGNALS as u64 {
        let kept_out = kept_out_at(region, other);
        let kept = read_word(stopped, kept_out)?;
        if kept & bit != 0 {
            let mut action = action_of(stopped, region, other)?;
            action[3] |= bit;
            set_action(stopped, region, other, action)?;
            stopped.write(kept_out, &(kept & !bit).to_le_bytes())?;
        }
    }
    write_flag(stopped, at + offset_of!(OwnAction, installed) as u64, false)
}

/// Taken signals but one, as a mask.
fn taken_of(pid: u32, region: u64, but: u64) -> u64 {
    let others = TAKEN_SIGNALS.iter().filter(|signal| **signal != but && is_taken(pid, region, **signal));
    others.fold(0, |mask, signal| mask | 1 << (signal - 1))
}

/// Where the signals are that are kept out of the mask of another one's handler.
fn kept_out_at(region: u64, signal: u64) -> u64 {
    field(region, offset_of!(SudState, kept_out) + (signal as usize - 1) * 8)
}
