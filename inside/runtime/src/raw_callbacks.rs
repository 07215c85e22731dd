//! Helpers that run other code of programs: callbacks, and the programs of tail calls.

use ring3_layout::region::{TEXT_BYTES, TEXT_OFFSET};
use ring3_layout::thread::{TAIL_CALLS_MAX, ThreadBlock};
use ring3_maps::Map;
use ring3_uapi::Errno;

use crate::raw_dispatch::cpu_of;
use crate::raw_helpers::{answer, block};

/// `BPF_MAX_LOOPS`.
pub(crate) const LOOPS_MAX: u64 = 8 << 20;

pub(crate) type Callback = unsafe extern "sysv64" fn(u64, u64, u64, u64, u64, u64) -> u64;
type Program = unsafe extern "sysv64" fn(u64, u64) -> u64;

/// A subprogram as a helper calls it: with five arguments and the thread block.
///
/// # Safety
/// `address` is that of a compiled subprogram.
pub(crate) unsafe fn callback(address: u64) -> Callback {
    // SAFETY: the caller's promise; all subprograms have this convention.
    unsafe { core::mem::transmute::<u64, Callback>(address) }
}

/// One round of a loop; false if the run has had all that it may have.
///
/// # Safety
/// `env` is the running thread's block.
pub(crate) unsafe fn burn(env: u64) -> bool {
    // SAFETY: the caller's promise.
    let fuel = unsafe { &raw mut (*(env as *mut ThreadBlock)).fuel };
    // SAFETY: as above; only this thread uses the word.
    let left = unsafe { fuel.read() } - 1;
    // SAFETY: as above.
    unsafe { fuel.write(left) };
    left >= 0
}

/// `bpf_loop`. Mirrors kernel/bpf/bpf_iter.c:bpf_loop.
///
/// # Safety
/// Called by a verified program with a subprogram's address and the thread block that it was given.
pub unsafe extern "sysv64" fn bpf_loop(rounds: u64, function: u64, data: u64, flags: u64, _: u64, env: u64) -> u64 {
    let rounds = u64::from(rounds as u32);
    if flags != 0 {
        return Errno::EINVAL.negated() as u64;
    }
    if rounds > LOOPS_MAX {
        // The verifier's inlined form moves 32 bits (kernel/bpf/verifier.c:inline_bpf_loop).
        return u64::from(Errno::E2BIG.negated() as u32);
    }
    // SAFETY: the verifier proved a subprogram.
    let function = unsafe { callback(function) };
    for round in 0..rounds {
        // SAFETY: this function's contract.
        let goes_on = unsafe { burn(env) };
        // SAFETY: a callback of a verified program.
        if !goes_on || unsafe { function(round, data, 0, 0, 0, env) } != 0 {
            return round + 1;
        }
    }
    rounds
}

/// `bpf_for_each_map_elem`. Mirrors kernel/bpf/hashtab.c:bpf_for_each_hash_elem and
/// arraymap.c:bpf_for_each_array_elem.
///
/// # Safety
/// Called by a verified program with a map, a subprogram's address and the thread block that it was given.
pub unsafe extern "sysv64" fn for_each_map_elem(
    map: u64,
    function: u64,
    data: u64,
    flags: u64,
    _: u64,
    env: u64,
) -> u64 {
    if flags != 0 {
        return Errno::EINVAL.negated() as u64;
    }
    // SAFETY: the verifier proved a map.
    let Some(elements) = (unsafe { Map::from_view(map) }) else { return Errno::EINVAL.negated() as u64 };
    // SAFETY: this function's contract.
    let cpu = cpu_of(unsafe { block(env) });
    // SAFETY: the verifier proved a subprogram.
    let function = unsafe { callback(function) };
    answer(elements.for_each(cpu, |key, value| {
        // SAFETY: this function's contract.
        let goes_on = unsafe { burn(env) };
        // SAFETY: a callback of a verified program, with the addresses of a key and a value of the map.
        goes_on && unsafe { function(map, key, value, data, 0, env) } == 0
    }))
}

/// `bpf_tail_call`: the address of the program to go on with, 0 if there is none or the limit is reached. Compiled code
/// goes on there. Mirrors arch/x86/net/bpf_jit_comp.c:emit_bpf_tail_call_indirect (v6.18).
///
/// # Safety
/// Called by a verified program with an array of programs and the thread block that it was given.
pub unsafe extern "sysv64" fn tail_call(_: u64, programs: u64, index: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    let tb = unsafe { block(env) };
    // SAFETY: the verifier proved a map.
    let Some(programs) = (unsafe { Map::from_view(programs) }) else { return 0 };
    let Ok(place) = programs.object(index as u32) else { return 0 };
    if place == 0 || tb.tail_calls >= TAIL_CALLS_MAX || u64::from(place) > TEXT_BYTES {
        return 0;
    }
    tb.tail_calls += 1;
    tb.region_base + TEXT_OFFSET + u64::from(place) - 1
}

/// Runs the program that a tail call goes on with, then the one that it goes on with, and so on; the last one's result.
///
/// # Safety
/// Called by a compiled program with its context, and the thread block that it was given, which names a program.
pub unsafe extern "sysv64" fn tail_run(context: u64, env: u64) -> u64 {
    let mut result = 0;
    loop {
        // SAFETY: this function's contract.
        let target = core::mem::take(&mut unsafe { block(env) }.tail_target);
        if target == 0 {
            return result;
        }
        // SAFETY: the server put the offset of a compiled program into the array, which targets cannot write.
        let program = unsafe { core::mem::transmute::<u64, Program>(target) };
        // SAFETY: the program's convention: context and environment.
        result = unsafe { program(context, env) };
    }
}
