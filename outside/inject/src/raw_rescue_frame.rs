//! The code of a rescue frame, which runs in other processes.

use std::arch::global_asm;

use ring3_layout::PAGE_BYTES;

/// What a thread needs that is told what to call over a socket: two pages.
pub(crate) mod page {
    use super::PAGE_BYTES;

    /// `struct msghdr`: where the page begins.
    pub(crate) const HEADER: u64 = 0;
    /// The only `struct iovec`: of the list.
    pub(crate) const IOVEC: u64 = 64;
    /// Where file descriptors come: `struct cmsghdr` and what follows.
    pub(crate) const CONTROL: u64 = 128;
    /// Room there.
    pub(crate) const CONTROL_BYTES: u64 = LIST - CONTROL;
    /// The list of calls.
    pub(crate) const LIST: u64 = 1024;
    /// Room there.
    pub(crate) const LIST_BYTES: u64 = BYTES - LIST;
    /// All of it.
    pub(crate) const BYTES: u64 = 2 * PAGE_BYTES;
}

/// Bytes of a call in a list: the number, which what it returns takes the place of, and six arguments. Behind the last one is a
/// negative number.
pub(crate) const CALL_BYTES: usize = 56;

/// Looks for a list that come one right after the other, before the thread sleeps until one comes. (To wake a thread on an idle
/// CPU takes some ten times as long as all that is done for a list.)
const LOOKS: u32 = 256;
/// How long a thread that has been told to go waits to be stopped, seconds: longer than whoever stops it may have to wait for a CPU,
/// since a thread that goes by itself makes calls, executes a program say, while it is taken to be stopped. If the server dies just then,
/// the thread waits for all this time.
const GOES_AFTER_S: u64 = 10;

// With the stack pointer at the frame of a signal. The first lines: a call, and home. Then lists of calls, with the socket in
// `ebx`, the process's own descriptor of the other end, which is closed, in `r13d`, and the page in `rbp`; what is shorter than a
// list says to go. If the other end was closed, nobody will stop the thread.
global_asm!(
    ".pushsection .rodata.ring3_rescue_frame, \"a\"",
    ".globl ring3_rescue_frame, ring3_rescue_frame_serve, ring3_rescue_frame_end",
    "ring3_rescue_frame:",
    "syscall",
    "2: mov eax, {rt_sigreturn}",
    "syscall",
    "ring3_rescue_frame_serve:",
    "mov eax, {close}",
    "mov edi, r13d",
    "syscall",
    "10: mov r14d, {looks}",
    "mov r15d, {cloexec} + {dontwait}",
    "3: mov qword ptr [rbp + 40], {control_bytes}",
    "mov eax, {recvmsg}",
    "mov edi, ebx",
    "mov rsi, rbp",
    "mov edx, r15d",
    "syscall",
    "xor r12d, r12d",
    "cmp eax, 1",
    "jg 5f",
    "je 7f",
    "cmp eax, {again}",
    "jne 8f",
    "dec r14d",
    "jnz 4f",
    "mov r15d, {cloexec}",
    "4: mov eax, {sched_yield}",
    "syscall",
    "jmp 3b",
    "5: lea r12, [rbp + {list}]",
    "mov r13, r12",
    "6: cmp dword ptr [r13], 0",
    "jl 9f",
    "mov rax, [r13]",
    "mov rdi, [r13 + 8]",
    "mov rsi, [r13 + 16]",
    "mov rdx, [r13 + 24]",
    "mov r10, [r13 + 32]",
    "mov r8, [r13 + 40]",
    "mov r9, [r13 + 48]",
    "syscall",
    "mov [r13], rax",
    "add r13, {call_bytes}",
    "cmp rax, -4095",
    "jb 6b",
    // What was returned so far, and a word more: nothing at all would say that this end was closed.
    "9: mov eax, {sendto}",
    "mov edi, ebx",
    "mov rsi, r12",
    "lea rdx, [r13 + 8]",
    "sub rdx, r12",
    "mov r10d, {nosignal}",
    "xor r8d, r8d",
    "syscall",
    "jmp 10b",
    "7: inc r12d",
    "8: mov eax, {munmap}",
    "mov rdi, rbp",
    "mov esi, {page_bytes}",
    "syscall",
    "mov eax, {close}",
    "mov edi, ebx",
    "syscall",
    "dec r12d",
    "js 2b",
    // (Not `poll`, nor a call that sleeps: these would take the place of a call that the kernel is to go on with, which
    // `restart_syscall` knows of one per thread.)
    "mov eax, {ppoll}",
    "xor edi, edi",
    "xor esi, esi",
    "lea rdx, [rip + 11f]",
    "xor r10d, r10d",
    "syscall",
    "jmp 2b",
    "11: .quad {goes_after}, 0",
    "ring3_rescue_frame_end:",
    ".popsection",
    rt_sigreturn = const libc::SYS_rt_sigreturn,
    recvmsg = const libc::SYS_recvmsg,
    sendto = const libc::SYS_sendto,
    sched_yield = const libc::SYS_sched_yield,
    munmap = const libc::SYS_munmap,
    close = const libc::SYS_close,
    ppoll = const libc::SYS_ppoll,
    again = const -libc::EAGAIN,
    looks = const LOOKS,
    goes_after = const GOES_AFTER_S,
    cloexec = const libc::MSG_CMSG_CLOEXEC,
    dontwait = const libc::MSG_DONTWAIT,
    nosignal = const libc::MSG_NOSIGNAL,
    control_bytes = const page::CONTROL_BYTES,
    list = const page::LIST,
    page_bytes = const page::BYTES,
    call_bytes = const CALL_BYTES,
);

unsafe extern "C" {
    #[link_name = "ring3_rescue_frame"]
    static CODE: u8;
    #[link_name = "ring3_rescue_frame_serve"]
    static SERVE: u8;
    #[link_name = "ring3_rescue_frame_end"]
    static END: u8;
}

/// The code.
pub(crate) fn code() -> &'static [u8] {
    // SAFETY: the bytes between two labels of one section.
    unsafe { std::slice::from_raw_parts(&raw const CODE, (&raw const END).addr() - (&raw const CODE).addr()) }
}

/// Where in it lists of calls are served.
pub(crate) fn serve_at() -> u64 {
    ((&raw const SERVE).addr() - (&raw const CODE).addr()) as u64
}
