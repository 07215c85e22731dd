//! The C API: programs.

use std::ffi::{c_char, c_int, c_void};

use super::c_api::{Failure, Machine, answered, guarded, listed, seen, text};
use super::calls::call_packet;
use crate::program::Inner;
use crate::{Bound, CallError, Maps, Object, Program};

impl Machine {
    /// Keeps what an object became; handles of the same names stay, and are found no more.
    fn keep(&self, object: &Object) {
        let mut state = self.state();
        state.programs.extend(object.programs().iter().cloned());
        state.maps.extend(object.maps().iter().cloned().map(Box::new));
    }

    fn load(&self, bytes: &[u8]) -> Result<c_int, Failure> {
        let maps = std::mem::replace(&mut self.state().reused, Maps::new());
        let object = self.vm().load_object_with(bytes, &self.settings(), maps)?;
        self.keep(&object);
        Ok(0)
    }

    fn keep_program(&self, program: Program) -> c_int {
        self.state().programs.push(program);
        0
    }
}

/// `ring3_load_object`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, `bytes` is null or leads to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_load_object(vm: *const Machine, bytes: *const u8, length: usize) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        machine.load(unsafe { listed(bytes, length, "the object") }?)
    })
}

/// `ring3_load_file`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, `path` is null or a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_load_file(vm: *const Machine, path: *const c_char) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let path = unsafe { text(path, "the path") }?;
        let bytes = std::fs::read(path).map_err(|error| Failure::invalid(format!("{path}: {error}")))?;
        machine.load(&bytes)
    })
}

/// `ring3_load_insns`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, `name` is null or a string, `insns` is null or leads to `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_load_insns(
    vm: *const Machine,
    name: *const c_char,
    insns: *const u8,
    bytes: usize,
) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the program's name") }?;
        // SAFETY: this function's contract.
        let insns = unsafe { listed(insns, bytes, "the instructions") }?;
        Ok(machine.keep_program(machine.vm().load_bytes(name, insns, &machine.settings())?))
    })
}

/// `ring3_load_text`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, the others are null or strings.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_load_text(vm: *const Machine, name: *const c_char, assembly: *const c_char) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the program's name") }?;
        // SAFETY: this function's contract.
        let assembly = unsafe { text(assembly, "the text") }?;
        Ok(machine.keep_program(machine.vm().load_named_text(name, assembly, &machine.settings())?))
    })
}

/// `ring3_program_find`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, `name` is null or a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_program_find(vm: *const Machine, name: *const c_char) -> *const Inner {
    let found = guarded(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the program's name") }?;
        let state = machine.state();
        let found = state.programs.iter().rev().find(|program| program.name() == name);
        let absent = || crate::Error::NotFound(format!("program {name}"));
        Ok(std::ptr::from_ref(found.ok_or_else(absent)?.inner()))
    });
    found.unwrap_or(std::ptr::null())
}

/// `ring3_call`
///
/// # Safety
/// `program` is null or of `ring3_program_find`, and its machine is there; `context` is null or leads to `bytes` bytes, which the
/// program may read and, where it was verified for that, write; addresses in it lead to what the program was verified for. `result`
/// is null or leads to a word.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_call(
    program: *const Inner,
    context: *mut c_void,
    bytes: usize,
    result: *mut u64,
) -> c_int {
    // SAFETY: this function's contract.
    let Some(placed) = (unsafe { program.as_ref() }).map(|program| &program.placed) else {
        return answered(|| Err(Failure::invalid("the program is NULL")));
    };
    let wanted = placed.context_bytes();
    let given = if context.is_null() { 0 } else { bytes };
    if given < wanted {
        return answered(|| Err(CallError::ContextTooShort { given, wanted }.into()));
    }
    // SAFETY: this function's contract.
    let ended = unsafe { placed.run_at(context.cast()) };
    // (What never panics needs no guard.)
    let r0 = placed.result(ended);
    // SAFETY: this function's contract.
    if let Some(result) = unsafe { result.as_mut() } {
        *result = r0.unwrap_or(0);
    }
    if r0.is_some() { 0 } else { answered(|| placed.outcome(ended).map(|_| 0).map_err(Failure::from)) }
}

/// `ring3_call_packet`
///
/// # Safety
/// As `ring3_call`; `packet` is null or leads to `packet_bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_call_packet(
    program: *const Inner,
    context: *mut u8,
    context_bytes: usize,
    packet: *mut u8,
    packet_bytes: usize,
    result: *mut u64,
) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let program = unsafe { seen(program, "the program") }?;
        // SAFETY: this function's contract: the program changes them, and nobody else does meanwhile.
        let context = unsafe { changed(context, context_bytes) }?;
        // SAFETY: as above.
        let packet = unsafe { changed(packet, packet_bytes) }?;
        let called = call_packet(&program.placed, &program.context, context, packet);
        // SAFETY: this function's contract.
        if let Some(result) = unsafe { result.as_mut() } {
            *result = *called.as_ref().unwrap_or(&0);
        }
        called.map(|_| 0).map_err(Failure::from)
    })
}

/// # Safety
/// The pointer is null, or leads to so many bytes that nobody else uses as long as the result is used.
unsafe fn changed<'a>(pointer: *mut u8, bytes: usize) -> Result<&'a mut [u8], Failure> {
    if pointer.is_null() || bytes > isize::MAX as usize {
        return if bytes == 0 { Ok(&mut []) } else { Err(Failure::invalid("an address of bytes is NULL")) };
    }
    // SAFETY: the caller's promise; checked above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, bytes) })
}

/// `ring3_program_unload`
///
/// # Safety
/// `program` is null or of `ring3_program_find`, and its machine is there.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_program_unload(program: *const Inner) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let program = unsafe { seen(program, "the program") }?;
        program.placed.unload()?;
        Ok(0)
    })
}

/// `ring3_program_bound`
///
/// # Safety
/// `program` is null or of `ring3_program_find`, and its machine is there; `proved` is null or leads to an `int`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_program_bound(program: *const Inner, proved: *mut c_int) -> u64 {
    let bound = guarded(|| {
        // SAFETY: this function's contract.
        let bound = unsafe { seen(program, "the program") }?.bound;
        // SAFETY: this function's contract.
        if let Some(proved) = unsafe { proved.as_mut() } {
            *proved = c_int::from(matches!(bound, Bound::Proved(_)));
        }
        Ok(bound.instructions())
    });
    bound.unwrap_or(0)
}

/// Copies as much as fits, and for text a 0 behind it; how much there is.
///
/// # Safety
/// `to` is null or leads to `room` bytes.
unsafe fn copied(from: &[u8], to: *mut u8, room: usize, is_text: bool) -> usize {
    if to.is_null() || room == 0 {
        return from.len();
    }
    let count = from.len().min(room - usize::from(is_text));
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, count) };
    if is_text {
        // SAFETY: count < room.
        unsafe { to.wrapping_add(count).write(0) };
    }
    from.len()
}

macro_rules! told {
    ($($(#[$doc:meta])* fn $name:ident($program:ident, $to:ty, $is_text:expr) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// `program` is null or of `ring3_program_find`, and its machine is there; `to` is null or leads to `room` bytes.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(program: *const Inner, to: *mut $to, room: usize) -> usize {
                let length = guarded(|| {
                    // SAFETY: this function's contract.
                    let $program = unsafe { seen(program, "the program") }?;
                    let bytes: Vec<u8> = $body;
                    // SAFETY: this function's contract.
                    Ok(unsafe { copied(&bytes, to.cast(), room, $is_text) })
                });
                length.unwrap_or(0)
            }
        )*
    };
}

told! {
    /// `ring3_program_listing`
    fn ring3_program_listing(program, c_char, true) { program.listing().into_bytes() }

    /// `ring3_program_log`
    fn ring3_program_log(program, c_char, true) { program.log.as_bytes().to_vec() }

    /// `ring3_program_code`
    fn ring3_program_code(program, c_void, false) { program.code.clone() }
}
