//! Calls on contexts that are no mutable bytes.

use ring3_run::{CallError, Program};

use crate::Context;

/// Calls a program that writes nothing of its context.
#[inline]
pub(crate) fn call_readonly(program: &Program, context: &[u8]) -> Result<u64, CallError> {
    if context.len() < program.context_bytes() || program.has_pointers() {
        return Err(CallError::ContextTooShort { given: context.len(), wanted: program.context_bytes() });
    }
    // SAFETY: there are as many bytes as the program may touch, none of which it writes; no addresses are among them.
    unsafe { program.call_at(context.as_ptr().cast_mut()) }
}

/// Calls a program on a packet, whose addresses are written into the context.
#[inline]
pub(crate) fn call_packet(
    program: &Program,
    form: &Context,
    context: &mut [u8],
    packet: &mut [u8],
) -> Result<u64, CallError> {
    /// Bytes of a context that has nothing but a packet.
    const ALONE: usize = 16;
    let wanted = program.context_bytes();
    let too_short = CallError::ContextTooShort { given: context.len(), wanted };
    let Some((data, end)) = form.packet_place().filter(|_| form.pointers().len() == 1) else { return Err(too_short) };
    let mut alone = [0; ALONE];
    let context = if context.is_empty() && wanted <= ALONE { &mut alone[..] } else { context };
    if context.len() < wanted {
        return Err(too_short);
    }
    let span = packet.as_mut_ptr_range();
    context[data..data + 8].copy_from_slice(&(span.start as u64).to_le_bytes());
    context[end..end + 8].copy_from_slice(&(span.end as u64).to_le_bytes());
    // SAFETY: there are as many bytes as the program may touch, and their addresses are those of a packet that nobody else uses
    // meanwhile.
    unsafe { program.call_at(context.as_mut_ptr()) }
}
