//! The kernel's functions that carry system calls out, and what else of the kernel programs of type `TRACING` can be attached to here.

use ring3_uapi::bpf::attach_type;
use ring3_uapi::syscalls::{self, Syscall};

use super::tracepoint::Tracepoint;
use crate::kernel;
use crate::realm::{Calls, Point, SyscallContext, SyscallPoint};

/// What the name of a system call's function in the kernel begins with (arch/x86/include/asm/syscall_wrapper.h).
pub(crate) const PREFIX: &str = "__x64_sys_";

/// What it began with before.
const OLD_PREFIX: &str = "sys_";

/// What there is here of the kernel's functions.
pub(super) const HERE: &str =
    "in user space there are the functions __x64_sys_* of system calls, at their entry and return";

/// The function that carries a system call out.
pub(super) fn function_of(call: &Syscall) -> String {
    format!("{PREFIX}{}", call.name)
}

/// A function of the kernel that carries a system call out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFunction {
    /// Its name.
    pub name: String,
    /// The calls that it carries out.
    pub calls: Calls,
}

impl CallFunction {
    /// The one with this name. The kernel also has some that no 64-bit program can call, `__x64_sys_stat` say: tools that attach to
    /// each of several functions expect that.
    ///
    /// `sys_openat`, as kernels before Linux 4.17 call it, is `__x64_sys_openat`: bcc asks for that where it cannot read addresses
    /// in /proc/kallsyms, as an ordinary user cannot.
    pub(super) fn named(name: &str) -> Option<CallFunction> {
        let name = &name.strip_prefix(OLD_PREFIX).map_or(name.to_owned(), |call| format!("{PREFIX}{call}"));
        let known = name.strip_prefix(PREFIX).and_then(syscalls::by_name).map(|call| Calls::Of(call.number));
        let never = || kernel::known().call_functions.values().any(|other| other == name).then_some(Calls::Never);
        Some(CallFunction { name: name.clone(), calls: known.or_else(never)? })
    }
}

/// Where a program of type `TRACING` is attached: the kernel's function or raw tracepoint, by its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// `BPF_TRACE_*`.
    pub attach_type: u32,
    /// The type of the function, or of the tracepoint, in the kernel's BTF.
    pub btf_id: u32,
    /// The function's or the tracepoint's name.
    pub name: String,
    calls: Calls,
    exit: bool,
}

impl Typed {
    /// The place that a loader names. `name_of` names one that is not here, by its type.
    ///
    /// # Errors
    /// Why a program cannot be attached there.
    pub(super) fn new(attach_type: u32, btf_id: u32, name_of: impl Fn(u32) -> String) -> Result<Typed, String> {
        let kernel = kernel::known();
        let typed = |name: &str, calls, exit| Typed { attach_type, btf_id, name: name.to_owned(), calls, exit };
        if attach_type == attach_type::TRACE_RAW_TP {
            let found = kernel.call_tracepoints.iter().find(|(id, _)| *id == btf_id);
            let what = "with types there are the raw tracepoints sys_enter and sys_exit here";
            let (_, name) =
                found.ok_or_else(|| format!("raw tracepoint {} is the kernel's own; {what}", name_of(btf_id)))?;
            return Ok(typed(name, Calls::All, *name == "sys_exit"));
        }
        let exit = match attach_type {
            attach_type::TRACE_FENTRY => false,
            attach_type::TRACE_FEXIT => true,
            other => {
                let name = attach_type::name(other).unwrap_or("unknown");
                return Err(format!("attach type {name}: here are fentry, fexit and tp_btf"));
            }
        };
        let name = kernel.call_functions.get(&btf_id);
        let function = name.and_then(|name| CallFunction::named(name));
        let function =
            function.ok_or_else(|| format!("the function {} is in the kernel; {HERE}", name_of(btf_id)))?;
        Ok(typed(&function.name, function.calls, exit))
    }

    /// Whether a program finds a number behind the registers: a tracepoint's second argument, or a function's result.
    pub(super) fn has_number(&self) -> bool {
        self.exit || self.attach_type == attach_type::TRACE_RAW_TP
    }

    /// The raw tracepoint, if it is one.
    pub(super) fn tracepoint(&self) -> Option<Tracepoint> {
        let tracepoint = Tracepoint::Call { calls: self.calls, exit: self.exit };
        (self.attach_type == attach_type::TRACE_RAW_TP).then_some(tracepoint)
    }

    /// Where it runs. The arguments are those of the raw tracepoint.
    pub(super) fn point(&self) -> Point {
        Point::Syscall(SyscallPoint { calls: self.calls, exit: self.exit, context: SyscallContext::Raw })
    }
}
