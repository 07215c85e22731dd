//! The C API (`include/ring3.h`): machines, settings, functions.
//!
//! Every function catches panics, checks null pointers, and keeps the reason of a failure for `ring3_error`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring3_run::PlainFunction;

use crate::settings::Source;
use crate::{
    CallError, Context, Engine, Error, Field, FieldKind, Function, Map, Maps, Parameter, Plain, Program, Returned,
};
use crate::{Settings, Use, Vm};

/// Numbers of failures (`RING3_E...`).
pub(super) mod code {
    pub(crate) const INVALID: i32 = -1;
    pub(crate) const REFUSED: i32 = -2;
    pub(crate) const SHORT: i32 = -3;
    pub(crate) const UNLOADED: i32 = -4;
    pub(crate) const BUDGET: i32 = -5;
    pub(crate) const BUSY: i32 = -6;
    pub(crate) const RESULT: i32 = -7;
    pub(crate) const MAP: i32 = -8;
    pub(crate) const NOT_FOUND: i32 = -9;
    pub(crate) const MACHINE: i32 = -10;
    pub(crate) const DEFECT: i32 = -11;
}

/// What a thread is told of its last failure: why, and the verifier's log.
#[derive(Default)]
struct Told {
    why: CString,
    log: CString,
}

thread_local! {
    static TOLD: RefCell<Told> = RefCell::default();
}

/// A failure for C.
#[derive(Debug)]
pub(super) struct Failure {
    code: i32,
    why: String,
    log: String,
}

impl Failure {
    pub(super) fn invalid(why: impl Into<String>) -> Failure {
        Failure { code: code::INVALID, why: why.into(), log: String::new() }
    }

    /// Keeps it for `ring3_error`; its number.
    fn tell(self) -> i32 {
        let text = |text: String| CString::new(text.replace('\0', "?")).unwrap_or_default();
        let told = Told { why: text(self.why), log: text(self.log) };
        // (A thread that is about to end has no room for it any more.)
        let _ = TOLD.try_with(|place| place.replace(told));
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let why = error.to_string();
        let (code, log) = match error {
            Error::Refused { log, .. } => (code::REFUSED, log),
            Error::Budget(_) => (code::BUDGET, String::new()),
            Error::Map { .. } => (code::MAP, String::new()),
            Error::NotFound(_) => (code::NOT_FOUND, String::new()),
            Error::Machine(_) => (code::MACHINE, String::new()),
            Error::Compiler(_) => (code::DEFECT, String::new()),
            _ => (code::INVALID, String::new()),
        };
        Failure { code, why, log }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let code = match error {
            CallError::ContextTooShort { .. } => code::SHORT,
            CallError::Unloaded => code::UNLOADED,
            CallError::OutOfBudget => code::BUDGET,
            CallError::TooManyThreads | CallError::TooDeep | CallError::StillRunning => code::BUSY,
            CallError::Result { .. } => code::RESULT,
            CallError::Fault(_) => code::DEFECT,
        };
        Failure { code, why: error.to_string(), log: String::new() }
    }
}

/// Runs what C has called; a panic becomes a failure.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, i32> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(failure.tell()),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let why = format!("ring3 or a function failed: {}", text.unwrap_or_default());
            Err(Failure { code: code::DEFECT, why, log: String::new() }.tell())
        }
    }
}

/// The same for functions that return a number.
pub(super) fn answered(run: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    guarded(run).unwrap_or_else(|code| code)
}

/// What a pointer of C leads to.
///
/// # Safety
/// The pointer is null, or leads to a value that nobody changes as long as the result is used.
pub(super) unsafe fn seen<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// Bytes, or elements, of C.
///
/// # Safety
/// The pointer is null, or leads to so many elements that nobody changes as long as the result is used.
pub(super) unsafe fn listed<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::invalid(format!("{what} is no address of {count} elements")));
    }
    // SAFETY: the caller's promise; checked above.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Text of C.
///
/// # Safety
/// The pointer is null, or leads to a string.
pub(super) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::invalid(format!("{what} is no UTF-8")))
}

/// `ring3_vm`
pub(super) struct Machine {
    vm: Vm,
    pub(super) state: Mutex<State>,
}

/// What a machine has for C, which has addresses of programs' inside and of maps.
pub(super) struct State {
    settings: Settings,
    pub(super) programs: Vec<Program>,
    #[expect(clippy::vec_box, reason = "C has their addresses")]
    pub(super) maps: Vec<Box<Map>>,
    pub(super) reused: Maps,
}

impl Machine {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Changes the settings of what is loaded later.
    fn set(&self, change: impl FnOnce(Settings) -> Result<Settings, Error>) -> Result<c_int, Failure> {
        let mut state = self.state();
        state.settings = change(state.settings.clone())?;
        Ok(0)
    }

    pub(super) fn settings(&self) -> Settings {
        self.state().settings.clone()
    }
}

/// `ring3_version`
#[unsafe(no_mangle)]
extern "C" fn ring3_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// `ring3_error`
#[unsafe(no_mangle)]
extern "C" fn ring3_error() -> *const c_char {
    TOLD.try_with(|told| told.borrow().why.as_ptr()).unwrap_or(c"".as_ptr())
}

/// `ring3_log`
#[unsafe(no_mangle)]
extern "C" fn ring3_log() -> *const c_char {
    TOLD.try_with(|told| told.borrow().log.as_ptr()).unwrap_or(c"".as_ptr())
}

/// `ring3_vm_new`
#[unsafe(no_mangle)]
extern "C" fn ring3_vm_new() -> *mut Machine {
    let made = guarded(|| {
        let settings = Settings::new(Context::none());
        let state = State { settings, programs: vec![], maps: vec![], reused: Maps::new() };
        Ok(Box::new(Machine { vm: Vm::new()?, state: Mutex::new(state) }))
    });
    made.map_or(std::ptr::null_mut(), Box::into_raw)
}

/// `ring3_vm_free`
///
/// # Safety
/// `vm` is null, or of `ring3_vm_new` and not used any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_vm_free(vm: *mut Machine) {
    if !vm.is_null() {
        // SAFETY: the caller's promise.
        let machine = unsafe { Box::from_raw(vm) };
        let _ = guarded(|| {
            drop(machine);
            Ok(())
        });
    }
}

macro_rules! settings {
    ($($(#[$doc:meta])* fn $name:ident($machine:ident, $($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// `vm` is null or of `ring3_vm_new`; other pointers are null or lead to what `ring3.h` says.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(vm: *const Machine, $($argument: $type),*) -> c_int {
                answered(|| {
                    // SAFETY: this function's contract.
                    let $machine = unsafe { seen(vm, "the machine") }?;
                    $body
                })
            }
        )*
    };
}

settings! {
    /// `ring3_set_engine`
    fn ring3_set_engine(machine, engine: c_int) {
        let engine = match engine {
            0 => Engine::Jit,
            1 => Engine::Interpreter,
            _ => return Err(Failure::invalid(format!("there is no engine {engine}"))),
        };
        machine.set(|settings| Ok(settings.engine(engine)))
    }

    /// `ring3_set_memory`
    fn ring3_set_memory(machine, bytes: u32, writable: c_int) {
        let memory = Context::memory(bytes);
        let memory = if writable == 0 { memory.read_only() } else { memory };
        memory.check().map_err(Failure::invalid)?;
        machine.set(|settings| Ok(Settings { context: memory, ..settings }))
    }

    /// `ring3_set_fields`
    fn ring3_set_fields(machine, fields: *const CField, count: usize, packet_writable: c_int) {
        // SAFETY: this function's contract.
        let fields = unsafe { listed(fields, count, "the fields") }?;
        let mut context = Context::fields();
        for field in fields {
            // SAFETY: this function's contract.
            let name = unsafe { text(field.name, "a field's name") }?.to_owned();
            let kind = match field.kind {
                0 => FieldKind::Number { write: false },
                1 => FieldKind::Number { write: true },
                2 => FieldKind::Buffer { bytes: field.target },
                3 => FieldKind::Packet,
                4 => FieldKind::PacketEnd,
                kind => return Err(Failure::invalid(format!("the field {name} is of kind {kind}, which is unknown"))),
            };
            context = context.field(Field { name, at: field.at, bytes: field.bytes, kind });
        }
        let context = if packet_writable == 0 { context } else { context.packet_writes() };
        context.check().map_err(Failure::invalid)?;
        machine.set(|settings| Ok(Settings { context, ..settings }))
    }

    /// `ring3_set_budget`
    fn ring3_set_budget(machine, instructions: u64) {
        machine.set(|settings| Ok(Settings { budget: (instructions != 0).then_some(instructions), ..settings }))
    }

    /// `ring3_set_results`
    fn ring3_set_results(machine, least: i64, greatest: i64) {
        if least > greatest {
            return Err(Failure::invalid("no number is between these"));
        }
        machine.set(|settings| Ok(settings.results(least, greatest)))
    }

    /// `ring3_set_blinding`
    fn ring3_set_blinding(machine, secret: u64) {
        machine.set(|settings| Ok(Settings { blinding: (secret != 0).then_some(secret), ..settings }))
    }

    /// `ring3_set_types`
    fn ring3_set_types(machine, btf: *const u8, length: usize) {
        // SAFETY: this function's contract.
        let btf = unsafe { listed(btf, length, "the types") }?;
        machine.set(|settings| settings.types(btf))
    }

    /// `ring3_set_log_level`
    fn ring3_set_log_level(machine, level: u32) {
        machine.vm.set_log_level(level);
        Ok(0)
    }

    /// `ring3_allow_helper`
    fn ring3_allow_helper(machine, name: *const c_char) {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the helper's name") }?;
        machine.set(|settings| settings.allow(name))
    }

    /// `ring3_deny_helper`
    fn ring3_deny_helper(machine, name: *const c_char) {
        if name.is_null() {
            return machine.set(|settings| Ok(settings.no_helpers()));
        }
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the helper's name") }?;
        machine.set(|settings| settings.deny(name))
    }

    /// `ring3_map_reuse`
    fn ring3_map_reuse(machine, name: *const c_char, file: c_int) {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the map's name") }?.to_owned();
        let file = duplicate(file)?;
        machine.state().reused.0.insert(name, Source::File(file));
        Ok(0)
    }
}

/// A descriptor of our own for a file of the caller's.
fn duplicate(file: c_int) -> Result<OwnedFd, Failure> {
    if file < 0 {
        return Err(Failure::invalid("the file is no descriptor"));
    }
    // SAFETY: the descriptor is only used for this call; if it is none, the call fails.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(file) };
    borrowed.try_clone_to_owned().map_err(|error| Failure::invalid(format!("the file: {error}")))
}

/// `struct ring3_field`
#[repr(C)]
#[derive(Debug)]
struct CField {
    name: *const c_char,
    at: u32,
    bytes: u32,
    kind: u32,
    target: u32,
}

/// `struct ring3_parameter`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CParameter {
    kind: u32,
    how: u32,
    bytes: u32,
    reserved: u32,
    least: i64,
    greatest: i64,
}

/// `struct ring3_result`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CResult {
    kind: u32,
    bytes: u32,
    writable: u32,
    nullable: u32,
    least: i64,
    greatest: i64,
}

fn parameter(told: &CParameter) -> Result<Parameter, Failure> {
    let how = match told.how {
        0 => Use::Reads,
        1 => Use::Fills,
        2 => Use::Changes,
        how => return Err(Failure::invalid(format!("a parameter's use is {how}, which is unknown"))),
    };
    Ok(match told.kind {
        0 => Parameter::Anything,
        1 => Parameter::Number(told.least..=told.greatest),
        2 => Parameter::Context,
        3 => Parameter::Memory { bytes: told.bytes, how },
        4 => Parameter::Buffer { how },
        5 => Parameter::Size { max: told.bytes },
        kind => return Err(Failure::invalid(format!("a parameter is of kind {kind}, which is unknown"))),
    })
}

fn returned(told: Option<&CResult>) -> Result<Returned, Failure> {
    let any = Returned::Number(i64::MIN..=i64::MAX);
    let Some(told) = told else { return Ok(any) };
    Ok(match told.kind {
        0 if (told.least, told.greatest) == (0, 0) => any,
        0 => Returned::Number(told.least..=told.greatest),
        1 => Returned::Nothing,
        2 => Returned::Memory { bytes: told.bytes, write: told.writable != 0, nullable: told.nullable != 0 },
        kind => return Err(Failure::invalid(format!("the result is of kind {kind}, which is unknown"))),
    })
}

/// `ring3_register`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`; the pointers are null or lead to what `ring3.h` says; `function` can be called with `data` from
/// any thread as long as the machine is there.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_register(
    vm: *const Machine,
    name: *const c_char,
    number: i64,
    function: Option<PlainFunction>,
    data: *mut c_void,
    parameters: *const CParameter,
    count: usize,
    result: *const CResult,
) -> c_int {
    answered(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the function's name") }?;
        // SAFETY: this function's contract.
        let parameters = unsafe { listed(parameters, count, "the parameters") }?;
        // SAFETY: this function's contract.
        let result = returned(unsafe { result.as_ref() })?;
        let function = function.ok_or_else(|| Failure::invalid("the function is NULL"))?;
        let parameters = parameters.iter().map(parameter).collect::<Result<Vec<Parameter>, Failure>>()?;
        // SAFETY: this function's contract; functions of C do not unwind.
        let function = unsafe { Plain::new(function, data) };
        let mut made = Function::plain(name, parameters, result, function);
        match u32::try_from(number) {
            Ok(number) => made = made.numbered(number),
            Err(_) if number == -1 => {}
            Err(_) => return Err(Failure::invalid(format!("{number} is no number of a function"))),
        }
        machine.vm.register(made)?;
        Ok(0)
    })
}
