//! Functions of this process that programs call, and programs that are run by a function instead of code.
//!
//! Compiled code reaches what lies within 2 GiB. So there is a stub in the program memory for each function: it puts the address of a
//! [`Function`] into the last argument register, where helpers get the thread block, and jumps.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ring3_interp::Fault;
use ring3_verifier::{Returned, Signature};

/// What a function does with r1 to r5.
pub type FunctionBody = dyn Fn([u64; 5]) -> u64 + Send + Sync;

/// A function of C: r1 to r5, and what it was registered with.
pub type PlainFunction = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut c_void) -> u64;

/// A function of C with what it was registered with. Where nobody relies on its result, programs call it without anything between.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    function: PlainFunction,
    data: *mut c_void,
}

// SAFETY: who made it has promised that it can be called from any thread.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

impl Plain {
    /// A function that gets `data` with each call.
    ///
    /// # Safety
    /// It can be called with `data` from any thread, as long as there are programs that can, and does not unwind.
    pub unsafe fn new(function: PlainFunction, data: *mut c_void) -> Plain {
        Plain { function, data }
    }

    /// Calls it.
    pub fn call(&self, [r1, r2, r3, r4, r5]: [u64; 5]) -> u64 {
        // SAFETY: the promise of `new`.
        unsafe { (self.function)(r1, r2, r3, r4, r5, self.data) }
    }
}

/// A function of this process that programs can call.
pub(crate) struct Function {
    /// It is called without anything between.
    direct: Option<Plain>,
    name: String,
    parameters: usize,
    /// Results that the verifier lets programs rely on.
    range: RangeInclusive<i64>,
    /// What stands for another one, or for none.
    instead: i64,
    /// Zeros, to which a program is led that relies on memory.
    _memory: Box<[u64]>,
    body: Box<FunctionBody>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What went wrong in the midst of a run, to be told at its end.
pub(crate) enum Trouble {
    /// A function returned a number that it said it would not.
    Result { function: String, result: i64 },
    /// A function panicked.
    Panic(Box<dyn Any + Send>),
    /// The interpreter stopped.
    Fault(Fault),
}

thread_local! {
    /// The first trouble of the run that this thread is in.
    static TROUBLE: RefCell<Option<Trouble>> = const { RefCell::new(None) };
    /// Whether there is any.
    static IS_THERE: Cell<bool> = const { Cell::new(false) };
}

/// Notes trouble, if there is none yet.
pub(crate) fn note(trouble: Trouble) {
    TROUBLE.with_borrow_mut(|noted| {
        noted.get_or_insert(trouble);
    });
    IS_THERE.set(true);
}

/// Whether the run that this thread is in has had trouble. (Not inlined: where the word is may take a call to find out, which others
/// than those who ask are not to make.)
#[inline(never)]
pub(crate) fn has_trouble() -> bool {
    IS_THERE.get()
}

/// The trouble of the run that has ended. A panic goes on from here.
#[cold]
pub(crate) fn take_trouble() -> Option<Trouble> {
    IS_THERE.set(false);
    match TROUBLE.take() {
        Some(Trouble::Panic(payload)) => resume_unwind(payload),
        other => other,
    }
}

#[cold]
fn set_aside() -> Option<Trouble> {
    IS_THERE.set(false);
    TROUBLE.take()
}

impl Function {
    /// What the signature says. A result outside of its range, which is the run's error, is replaced by one that is inside.
    pub(crate) fn new(signature: &Signature, body: Box<FunctionBody>, plain: Option<Plain>) -> Function {
        let zeros = |bytes: u32| vec![0u64; bytes.div_ceil(8) as usize].into_boxed_slice();
        let (range, memory) = match signature.result {
            Returned::Nothing => (i64::MIN..=i64::MAX, zeros(0)),
            Returned::Number(ref range) => (range.clone(), zeros(0)),
            // (Addresses of this process are positive.)
            Returned::Memory { nullable: true, .. } => (0..=i64::MAX, zeros(0)),
            Returned::Memory { bytes, nullable: false, .. } => (1..=i64::MAX, zeros(bytes)),
        };
        let instead = if memory.is_empty() { *range.start() } else { memory.as_ptr() as i64 };
        let (name, parameters) = (signature.name.clone(), signature.parameters.len());
        let direct = plain.filter(|_| range == (i64::MIN..=i64::MAX));
        Function { direct, name, parameters, range, instead, _memory: memory, body }
    }

    /// Calls it.
    pub(crate) fn call(&self, mut arguments: [u64; 5]) -> u64 {
        for (index, argument) in arguments.iter_mut().enumerate() {
            *argument = if index < self.parameters { *argument } else { 0 };
        }
        // (Other programs that it calls have troubles of their own.)
        let outer = if has_trouble() { set_aside() } else { None };
        // (Code that was compiled cannot be unwound.)
        let result = catch_unwind(AssertUnwindSafe(|| (self.body)(arguments)));
        if outer.is_some() {
            IS_THERE.set(true);
            TROUBLE.set(outer);
        }
        match result {
            Ok(result) if self.range.contains(&(result as i64)) => return result,
            Ok(result) => note(Trouble::Result { function: self.name.clone(), result: result as i64 }),
            Err(payload) => note(Trouble::Panic(payload)),
        }
        self.instead as u64
    }

    /// Whether a run can have trouble with it.
    pub(crate) fn is_checked(&self) -> bool {
        self.direct.is_none()
    }

    /// The code of a stub for a function at this address, which stays there.
    pub(crate) fn stub(&self) -> Vec<u8> {
        const MOV_R9: [u8; 2] = [0x49, 0xb9];
        if let Some(Plain { function, data }) = self.direct {
            return stub(MOV_R9, data as u64, function as *const () as u64);
        }
        stub(MOV_R9, std::ptr::from_ref(self) as u64, enter_function as *const () as u64)
    }
}

/// # Safety
/// Called by a stub of [`Function::stub`].
unsafe extern "sysv64" fn enter_function(a1: u64, a2: u64, a3: u64, a4: u64, a5: u64, function: &Function) -> u64 {
    function.call([a1, a2, a3, a4, a5])
}

/// What runs instead of code: from context and thread block to r0.
pub(crate) type RunBody = dyn Fn(u64, u64) -> u64 + Send + Sync;

/// A program that is run by a function.
pub(crate) struct Run(pub(crate) Box<RunBody>);

impl Run {
    /// Code of a program that has this function run.
    pub(crate) fn stub(&self) -> Vec<u8> {
        const MOV_RDX: [u8; 2] = [0x48, 0xba];
        stub(MOV_RDX, std::ptr::from_ref(self) as u64, enter_run as *const () as u64)
    }
}

/// # Safety
/// Called by a stub of [`Run::stub`], as a program.
unsafe extern "sysv64" fn enter_run(context: u64, env: u64, run: &Run) -> u64 {
    catch_unwind(AssertUnwindSafe(|| (run.0)(context, env))).unwrap_or_else(|payload| {
        note(Trouble::Panic(payload));
        0
    })
}

/// `mov REGISTER, value; mov rax, routine; jmp rax`
fn stub(load: [u8; 2], value: u64, routine: u64) -> Vec<u8> {
    const MOV_RAX: [u8; 2] = [0x48, 0xb8];
    const JMP_RAX: [u8; 2] = [0xff, 0xe0];
    [&load[..], &value.to_le_bytes(), &MOV_RAX, &routine.to_le_bytes(), &JMP_RAX].concat()
}
