//! Programs that this process calls, from any of its threads, and takes away while others may be calling them.

use std::fmt;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring3_interp::Fault;
use ring3_layout::control::{Attachment, Called, called};
use ring3_layout::thread::ThreadBlock;

use crate::Shared;
use crate::raw_function::{Run, Trouble, has_trouble, take_trouble};

/// How long [`Program::unload`] waits for runs.
const UNLOAD_WAIT: Duration = Duration::from_secs(10);

/// The agent's entry for calls.
type Enter = unsafe extern "sysv64" fn(context: u64, slot: &AtomicU64) -> Called;

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The context has too few bytes.
    ContextTooShort {
        /// Those that it has.
        given: usize,
        /// Those that the program may touch.
        wanted: usize,
    },
    /// The program was taken away.
    Unloaded,
    /// The run has had all instructions, or rounds of loops, that it may have; the program has done a part of its work.
    OutOfBudget,
    /// More threads are in programs than there is room for (1024).
    TooManyThreads,
    /// This thread is in too many runs, each called by a function that the one before it has called.
    TooDeep,
    /// A function returned a number outside of the range that it was registered with.
    Result {
        /// Its name.
        function: String,
        /// What it returned.
        result: i64,
    },
    /// The interpreter stopped: a defect of ring3, or of what a function returned.
    Fault(Fault),
    /// The program still runs somewhere, so its code stays.
    StillRunning,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::ContextTooShort { given, wanted } => {
                write!(f, "the context has {given} bytes, the program was verified for {wanted}")
            }
            CallError::Unloaded => f.write_str("the program was unloaded"),
            CallError::OutOfBudget => f.write_str("the run has used its budget and was ended"),
            CallError::TooManyThreads => f.write_str("too many threads run programs of this instance"),
            CallError::TooDeep => f.write_str("this thread is in too many runs of programs within each other"),
            CallError::Result { function, result } => {
                write!(f, "the function {function} returned {result}, which is outside of its range")
            }
            CallError::Fault(fault) => write!(f, "the interpreter stopped: {fault}"),
            CallError::StillRunning => f.write_str("the program still runs"),
        }
    }
}

impl std::error::Error for CallError {}

/// A program that this process can call.
pub struct Program {
    enter: Enter,
    /// Address of the attachment; 0: unloaded. (Read by the agent.)
    slot: AtomicU64,
    /// Bytes that a context must have; `usize::MAX`: contexts with pointers, which only [`Program::call_at`] takes.
    least_bytes: usize,
    /// Something besides the status may have to be told of a run.
    has_trouble: bool,
    context_bytes: usize,
    attachment: Box<Attachment>,
    /// Its code, until it is given back.
    span: Mutex<Option<Range<u64>>>,
    run: Option<Box<Run>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("context_bytes", &self.context_bytes).finish_non_exhaustive()
    }
}

/// A run that has ended.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Ended(Called);

/// What a [`Program`] is made of.
pub(crate) struct Parts {
    pub(crate) attachment: Attachment,
    pub(crate) span: Range<u64>,
    pub(crate) run: Option<Box<Run>>,
    pub(crate) has_trouble: bool,
    pub(crate) context_bytes: usize,
    pub(crate) has_pointers: bool,
}

impl Program {
    pub(crate) fn new(parts: Parts, shared: Arc<Shared>) -> Program {
        let Parts { attachment, span, run, has_trouble, context_bytes, has_pointers } = parts;
        let attachment = Box::new(attachment);
        let at = shared.region.routine("ring3_call").expect("the agent has it");
        Program {
            // SAFETY: the agent's symbol is a function of this type.
            enter: unsafe { std::mem::transmute::<u64, Enter>(at) },
            slot: AtomicU64::new(std::ptr::from_ref(&*attachment) as u64),
            least_bytes: if has_pointers { usize::MAX } else { context_bytes },
            has_trouble,
            context_bytes,
            attachment,
            span: Mutex::new(Some(span)),
            run,
            shared,
        }
    }

    /// Bytes of a context that the program may touch.
    pub fn context_bytes(&self) -> usize {
        self.context_bytes
    }

    /// Whether there are addresses in its contexts: only [`Program::call_at`] takes them.
    pub fn has_pointers(&self) -> bool {
        self.least_bytes > self.context_bytes
    }

    /// Runs the program on a context: r0.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// With the panic of a function that the program has called.
    #[inline]
    pub fn call(&self, context: &mut [u8]) -> Result<u64, CallError> {
        if context.len() < self.least_bytes {
            return Err(self.too_short(context.len()));
        }
        // SAFETY: the context has the bytes that the verifier let the program touch, and nobody else uses it meanwhile.
        unsafe { self.call_at(context.as_mut_ptr()) }
    }

    /// The same for a context at an address.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// With the panic of a function that the program has called.
    ///
    /// # Safety
    /// There are [`Program::context_bytes`] bytes, which the program may read, and write where it was verified for that. Pointers
    /// in it lead to what the program was verified for.
    #[inline]
    pub unsafe fn call_at(&self, context: *mut u8) -> Result<u64, CallError> {
        // SAFETY: the caller's promise.
        let ended = unsafe { self.run_at(context) };
        self.result(ended).map_or_else(|| self.outcome(ended), Ok)
    }

    /// Runs the program on a context at an address, and leaves what came of it to [`Program::result`] and [`Program::outcome`]. Never
    /// panics.
    ///
    /// # Safety
    /// As for [`Program::call_at`].
    #[inline]
    pub unsafe fn run_at(&self, context: *mut u8) -> Ended {
        // SAFETY: the slot holds 0 or the address of the attachment, which names a verified program; the caller has a context.
        Ended(unsafe { (self.enter)(context as u64, &self.slot) })
    }

    /// The result of a run that this thread has just had; `None`: ask [`Program::outcome`]. Never panics.
    #[inline]
    pub fn result(&self, ended: Ended) -> Option<u64> {
        let Ended(called) = ended;
        (called.status == called::RAN && !(self.has_trouble && has_trouble())).then_some(called.result)
    }

    #[cold]
    fn too_short(&self, given: usize) -> CallError {
        CallError::ContextTooShort { given, wanted: self.context_bytes }
    }

    /// What came of a run that this thread has just had.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// With the panic of a function that the program has called.
    #[cold]
    pub fn outcome(&self, ended: Ended) -> Result<u64, CallError> {
        let Ended(called) = ended;
        match called.status {
            called::RAN if self.has_trouble => match take_trouble() {
                None => Ok(called.result),
                Some(Trouble::Fault(Fault::OutOfFuel)) => Err(CallError::OutOfBudget),
                Some(Trouble::Fault(fault)) => Err(CallError::Fault(fault)),
                Some(Trouble::Result { function, result }) => Err(CallError::Result { function, result }),
                Some(Trouble::Panic(_)) => unreachable!("goes on in take_trouble"),
            },
            called::RAN => Ok(called.result),
            called::NO_BLOCK => Err(CallError::TooManyThreads),
            called::TOO_DEEP => Err(CallError::TooDeep),
            called::UNLOADED => Err(CallError::Unloaded),
            _ => {
                take_trouble();
                Err(CallError::OutOfBudget)
            }
        }
    }

    /// Takes the program away: calls that begin later are refused, those under way end first.
    ///
    /// # Errors
    /// [`CallError::StillRunning`]: it is called by this function's own caller, or still runs after 10 s. Its code stays until this
    /// value is dropped. [`CallError::Unloaded`]: it was taken away before.
    pub fn unload(&self) -> Result<(), CallError> {
        if self.slot.swap(0, Ordering::SeqCst) == 0 {
            return Err(CallError::Unloaded);
        }
        if !everybody_sees() {
            return Err(CallError::StillRunning);
        }
        let began = Instant::now();
        let mine = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        while let Some(runner) = self.shared.region.blocks().find_map(|block| self.runs_in(block)) {
            if runner == mine || began.elapsed() > UNLOAD_WAIT {
                return Err(CallError::StillRunning);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.give_back();
        Ok(())
    }

    /// Its code is not needed any more.
    fn give_back(&self) {
        if let Some(span) = crate::lock(&self.span).take() {
            self.shared.text().give(span);
        }
    }

    /// The thread whose block this is, if it may be running the program.
    fn runs_in(&self, block: *const ThreadBlock) -> Option<u32> {
        let at = |offset: usize| block.cast::<u8>().wrapping_add(offset);
        // SAFETY: blocks are mapped with the region, and fields are read one by one, as they are while the thread runs.
        let guard = unsafe { at(offset_of!(ThreadBlock, guard)).cast::<u64>().read_volatile() };
        if guard == 0 {
            return None;
        }
        // SAFETY: as above.
        let attachment = unsafe { at(offset_of!(ThreadBlock, attachment)).cast::<u64>().read_volatile() };
        // SAFETY: as above. (Runs that were interrupted are noted where they were interrupted.)
        let interrupted = unsafe { at(offset_of!(ThreadBlock, interrupted)).cast::<u32>().read_volatile() };
        if attachment != std::ptr::from_ref(&*self.attachment) as u64 && interrupted == 0 {
            return None;
        }
        // SAFETY: as above.
        Some(unsafe { at(offset_of!(ThreadBlock, tcb_tid)).cast::<u32>().read_volatile() })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // (Nobody is in `call`, which borrows. A run that a `longjmp` has left may look as if it went on: what it uses stays.)
        self.slot.store(0, Ordering::SeqCst);
        if self.shared.region.blocks().all(|block| self.runs_in(block).is_none()) {
            self.give_back();
        } else if let Some(run) = self.run.take() {
            std::mem::forget(run);
        }
    }
}

/// Makes all threads of this process see what this one has written before; false if the kernel cannot.
fn everybody_sees() -> bool {
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    const PRIVATE_EXPEDITED: i32 = 1 << 3;
    // SAFETY: a call that only has barriers.
    let membarrier = |command: i32| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 };
    membarrier(PRIVATE_EXPEDITED) || membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED)
}
