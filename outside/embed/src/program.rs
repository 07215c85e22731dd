//! Programs that can be called.

use std::sync::Arc;

use ring3_isa::Insn;
use ring3_run::CallError;

use crate::raw::call_packet;
use crate::{Bound, Context, Error};

/// A program that can be called, from any number of threads at once.
#[derive(Clone, Debug)]
pub struct Program {
    inner: Arc<Inner>,
}

/// What a program is.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) placed: ring3_run::Program,
    pub(crate) context: Context,
    pub(crate) insns: Vec<Insn>,
    pub(crate) code: Vec<u8>,
    pub(crate) bound: Bound,
    pub(crate) stack_bytes: u32,
    pub(crate) log: String,
}

impl Program {
    pub(crate) fn new(inner: Inner) -> Program {
        Program { inner: Arc::new(inner) }
    }

    /// What C has the address of, which stays as long as there is a clone.
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Runs it on a context: r0. The context may be longer than the program was verified for.
    ///
    /// # Errors
    /// See [`CallError`]; a context with addresses is too short however long it is: those are for [`Program::call_packet`] and
    /// [`Program::placed`].
    ///
    /// # Panics
    /// With the panic of a function that the program has called.
    #[inline]
    pub fn call(&self, context: &mut [u8]) -> Result<u64, CallError> {
        self.inner.placed.call(context)
    }

    /// The same, for a program that may write nothing of its context.
    ///
    /// # Errors
    /// See [`CallError`]; the context is too short if the program may write it.
    ///
    /// # Panics
    /// As [`Program::call`].
    #[inline]
    pub fn call_readonly(&self, context: &[u8]) -> Result<u64, CallError> {
        if self.inner.context.writes() {
            return Err(CallError::ContextTooShort { given: 0, wanted: self.context_bytes() });
        }
        crate::raw::call_readonly(&self.inner.placed, context)
    }

    /// Runs it on a packet of any length, or on none. `context` has the other fields; the packet's addresses are written into it. For
    /// [`Context::packet`] alone it may be empty.
    ///
    /// # Errors
    /// See [`CallError`]; the context is too short if it has other addresses, or none for a packet.
    ///
    /// # Panics
    /// As [`Program::call`].
    #[inline]
    pub fn call_packet(&self, context: &mut [u8], packet: &mut [u8]) -> Result<u64, CallError> {
        call_packet(&self.inner.placed, &self.inner.context, context, packet)
    }

    /// The program as [`ring3_run`] has it: its `call_at` takes a context by its address.
    pub fn placed(&self) -> &ring3_run::Program {
        &self.inner.placed
    }

    /// Bytes that a context must have.
    pub fn context_bytes(&self) -> usize {
        self.inner.placed.context_bytes()
    }

    /// How many instructions a run has at most.
    pub fn bound(&self) -> Bound {
        self.inner.bound
    }

    /// Bytes of stack that its functions touch, all together (a run does not have all of them at once).
    pub fn stack_bytes(&self) -> u32 {
        self.inner.stack_bytes
    }

    /// Its instructions in the kernel's notation, a line each.
    pub fn listing(&self) -> String {
        self.inner.listing()
    }

    /// Its machine code, if it was compiled: before it was placed, so distances to helpers are 0.
    pub fn code(&self) -> &[u8] {
        &self.inner.code
    }

    /// What the verifier logged ([`crate::Vm::set_log_level`]).
    pub fn log(&self) -> &str {
        &self.inner.log
    }

    /// Takes it away, also from clones: calls that begin later are refused, those under way end first.
    ///
    /// # Errors
    /// [`CallError::StillRunning`]: it still runs after 10 s, or this is called by a function that it has called; [`CallError::Unloaded`].
    pub fn unload(&self) -> Result<(), CallError> {
        self.inner.placed.unload()
    }
}

impl Inner {
    pub(crate) fn listing(&self) -> String {
        ring3_isa::listing(&self.insns)
    }
}

/// The program is refused: with what the fields of its context allow.
pub(crate) fn refused(name: &str, context: &Context, report: &ring3_verifier::Report) -> Error {
    let mut message = report.message.clone();
    let offset = message.split_once("invalid bpf_context access off=").and_then(|(_, rest)| rest.split(' ').next());
    if let Some(field) = offset.and_then(|text| text.parse().ok()).and_then(|at: u32| context.field_at(at)) {
        message = format!("{message}: {}", field.told());
    } else if offset.is_some() {
        message = format!("{message}: no field is there");
    }
    if let Some(advice) = report.advice() {
        message = format!("{message} ({advice})");
    }
    Error::Refused { program: name.to_owned(), insn: report.insn, message, log: report.log.clone() }
}
