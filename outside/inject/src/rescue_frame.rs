//! The rescue frame of a thread that makes system calls for us: it returns the thread to its own code if we die meanwhile.
//!
//! A tracee whose tracer is killed runs on with whatever registers it has. A thread in the middle of a remote system call would
//! run on behind some `syscall` instruction of the process. So remote calls are made from a place of our own: the `syscall` there
//! is followed by `rt_sigreturn`, and the stack pointer points to a signal frame with the thread's own registers, vector
//! registers and signal mask. The thread executes that only if we die; a thread that serves lists of calls does so when the other
//! end of its socket is closed.
//!
//! The place is the unused end of the vDSO, which is executable, readable and in every process. If the vector registers do not
//! fit there (AVX-512 in use, and not in a system call), or if there is no vDSO, it is in ring3's region, if the process has one;
//! else it is a page that the first remote call maps: then a death within that call, or within the last one, which unmaps the
//! page, is fatal to the process. When the region is unmapped, a frame in it moves to such a page before.

use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

use crate::raw_ptrace::Registers;
use crate::raw_rescue_frame::{code, serve_at};

/// Where the signal frame begins: `struct rt_sigframe` (arch/x86/include/asm/sigframe.h).
const FRAME_AT: usize = 256;
/// Where the vector registers begin; aligned for XRSTOR. The `siginfo` of a real frame is not needed.
const VECTORS_AT: usize = 576;
/// In the frame, behind `pretcode`: `struct ucontext`.
const UCONTEXT_AT: usize = FRAME_AT + 8;
/// `uc_flags`: the vector registers are an XSAVE image, the stack segment is meant.
const UC_FLAGS: u64 = 1 | 2 | 4;
/// Neither on nor off: the kernel refuses to change the thread's alternate stack to this, and ignores that.
const ALTSTACK_UNCHANGED: u32 = 0x55;
/// `struct _fpx_sw_bytes`, in the part of the FXSAVE image that software may use.
const SOFTWARE_AT: usize = 464;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// `XSTATE_BV`: components that are not in their initial state.
const IN_USE_AT: usize = 512;
/// x87 and SSE.
const LEGACY_COMPONENTS: u64 = 3;
/// Components that a thread asks for by itself, and that signal frames have only then (AMX): not kept.
const DYNAMIC_COMPONENTS: u64 = 1 << 17 | 1 << 18;
/// Bytes of the legacy area and the header of an XSAVE image.
const XSAVE_BYTES_MIN: usize = 576;
/// Bytes at the end of the vDSO: enough for x87, SSE and AVX.
pub(crate) const VDSO_BYTES: usize = 1472;
/// Bytes of pages of our own.
pub(crate) const PAGE_BYTES: usize = ring3_layout::region::RESCUE_BYTES as usize;

/// Whether what lies at the end of a vDSO is free, or was left by a server that died.
pub(crate) fn is_free(there: &[u8]) -> bool {
    there.iter().all(|byte| *byte == 0) || there.starts_with(code())
}

/// Where lists of calls are served.
pub(crate) fn serve(address: u64) -> u64 {
    address + serve_at()
}

/// Stack pointer for calls from `address`: `rt_sigreturn` finds its frame 8 bytes below.
pub(crate) fn stack_pointer(address: u64) -> u64 {
    address + UCONTEXT_AT as u64
}

/// `room` bytes for `address`: code, and the state that a thread goes on with. `vectors` is an XSAVE image as
/// `PTRACE_GETREGSET` gives it. `None` if there is no room for the components in use.
pub(crate) fn image(address: u64, room: usize, registers: &Registers, mask: u64, vectors: &[u8]) -> Option<Vec<u8>> {
    let in_use = u64::from_le_bytes(vectors.get(IN_USE_AT..IN_USE_AT + 8)?.try_into().ok()?);
    let mut components = in_use | LEGACY_COMPONENTS;
    if is_in_call(registers) && VECTORS_AT + standard_bytes(components) + 4 > room {
        // No calling convention keeps vector registers over a system call.
        components &= LEGACY_COMPONENTS;
    }
    components &= !DYNAMIC_COMPONENTS;
    let bytes = standard_bytes(components);
    if bytes > vectors.len() || VECTORS_AT + bytes + 4 > room {
        return None;
    }
    let mut image = vec![0u8; room];
    let mut put = |at: usize, value: &[u8]| image[at..at + value.len()].copy_from_slice(value);
    put(0, code());
    put(UCONTEXT_AT, &UC_FLAGS.to_le_bytes());
    put(UCONTEXT_AT + 24, &ALTSTACK_UNCHANGED.to_le_bytes());
    let r = restarted(registers);
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip, r.eflags,
    ];
    let context = UCONTEXT_AT + 40;
    for (index, value) in general.iter().enumerate() {
        put(context + index * 8, &value.to_le_bytes());
    }
    let segments = context + general.len() * 8;
    put(segments, &(r.cs as u16).to_le_bytes());
    put(segments + 6, &(r.ss as u16).to_le_bytes());
    let vectors_pointer = segments + 8 + 4 * 8;
    put(vectors_pointer, &(address + VECTORS_AT as u64).to_le_bytes());
    put(vectors_pointer + 8 + 8 * 8, &mask.to_le_bytes());
    put(VECTORS_AT, &vectors[..bytes]);
    let software = VECTORS_AT + SOFTWARE_AT;
    put(software, &MAGIC1.to_le_bytes());
    put(software + 4, &(bytes as u32 + 4).to_le_bytes());
    put(software + 8, &components.to_le_bytes());
    put(software + 16, &(bytes as u32).to_le_bytes());
    put(VECTORS_AT + bytes, &MAGIC2.to_le_bytes());
    Some(image)
}

/// Whether a thread was in a system call when it stopped: then its vector registers mean nothing.
pub(crate) fn is_in_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0
}

/// The registers with which an interrupted system call is made again. Mirrors arch/x86/kernel/signal.c:arch_do_signal_or_restart.
fn restarted(registers: &Registers) -> Registers {
    const RESTART: [i64; 4] = [-512, -513, -514, -516];
    let mut registers = *registers;
    if is_in_call(&registers) && RESTART.contains(&(registers.rax as i64)) {
        registers.rax = registers.orig_rax;
        registers.rip -= 2;
    }
    registers
}

/// Components of an XSAVE image.
const COMPONENTS: u32 = 63;
/// Where each component ends in the standard format. (In a virtual machine CPUID takes tens of microseconds.)
static ENDS: LazyLock<[usize; COMPONENTS as usize]> = LazyLock::new(|| {
    const LEAF: u32 = 0xd;
    std::array::from_fn(|component| {
        let part = __cpuid_count(LEAF, component as u32);
        (part.ebx + part.eax) as usize
    })
});

/// Asks the CPU what later is needed while a process is stopped.
pub(crate) fn prepare() {
    LazyLock::force(&ENDS);
}

/// Bytes of an XSAVE image in the standard format with these components.
fn standard_bytes(components: u64) -> usize {
    let extended = (2..COMPONENTS).filter(|component| components & 1 << component != 0);
    extended.map(|component| ENDS[component as usize]).max().unwrap_or(0).max(XSAVE_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_has_room_before_the_frame() {
        assert!(code().starts_with(&[0x0f, 0x05, 0xb8]), "a call, and then home");
        // (Nobody looks at the frame's first word, where the handler would return to.)
        assert!(code().len() <= UCONTEXT_AT, "{} bytes", code().len());
    }
}
