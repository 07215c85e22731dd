//! Functions patched in this process must behave as before, and arrive at the agent's entry once per call.

use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ring3_layout::control::Hook;
use ring3_layout::frame::STUB_FRAME_BYTES;
use ring3_patch::{AgentStackLinks, Entries, Function, JUMP_BYTES, Refusal, plan_detour};
use ring3_uapi::ptrace::PtRegs;

/// Shapes of function beginnings; each `f_*` maps a number to a number.
const SOURCE: &str = r#"
typedef unsigned long u;
__attribute__((noinline)) u helper(u x) { return x * 3 + 1; }
static u table[4] = {3, 1, 4, 1};
static u (*volatile pointer)(u) = helper;
u f_push(u x) { volatile u a[4] = {x, 1, 2, 3}; u s = 0; for (u i = 0; i < x % 9; i++) s += a[i % 4] * helper(i); return s; }
u f_rip(u x) { return table[x & 3]; }
u f_tail(u x) { return helper(x + 7); }
u f_switch(u x) { switch (x % 7) { case 0: return 11; case 1: return helper(2); case 2: return 5; case 3: return x * x; case 4: return 9; case 5: return x ^ 77; default: return 1; } }
u f_varargs(u x) { char b[64]; return __builtin_sprintf(b, "%lu-%g", x, (double)x / 3) + b[0]; }
u f_recursive(u x) { x %= 12; return x < 2 ? x : f_recursive(x - 1) + f_recursive(x - 2); }
__asm__(".text\n.globl f_loop\n.type f_loop,@function\nf_loop: lea (%rdi,%rdi,2),%rax\n shr $1,%rdi\n jne f_loop\n ret\n.size f_loop,.-f_loop\n.p2align 4\n"
 ".globl f_jcc\n.type f_jcc,@function\nf_jcc: test %rdi,%rdi\n je 1f\n lea 5(%rdi),%rax\n ret\n1: mov $9,%eax\n ret\n.size f_jcc,.-f_jcc\n.p2align 4\n"
 ".globl f_jrcxz\n.type f_jrcxz,@function\nf_jrcxz: mov %edi,%ecx\n jrcxz 1f\n mov $3,%eax\n ret\n1: mov $4,%eax\n ret\n.size f_jrcxz,.-f_jrcxz\n.p2align 4\n"
 ".globl f_call\n.type f_call,@function\nf_call: push %rbx\n call helper@PLT\n pop %rbx\n add $1,%rax\n ret\n.size f_call,.-f_call\n.p2align 4\n"
 ".globl f_calls_memory\n.type f_calls_memory,@function\nf_calls_memory: push %rdi\n mov pointer(%rip),%rax\n mov %rax,-200(%rsp)\n sub $208,%rsp\n call *8(%rsp)\n add $208,%rsp\n pop %rdi\n ret\n.size f_calls_memory,.-f_calls_memory\n.p2align 4\n"
 ".globl f_calls_below\n.type f_calls_below,@function\nf_calls_below: push %rdi\n mov pointer(%rip),%rax\n mov %rax,-8(%rsp)\n {disp32} call *-8(%rsp)\n pop %rdi\n ret\n.size f_calls_below,.-f_calls_below\n.p2align 4\n"
 ".globl f_calls_rip\n.type f_calls_rip,@function\nf_calls_rip: push %rdi\n call *pointer(%rip)\n pop %rdi\n ret\n.size f_calls_rip,.-f_calls_rip\n.p2align 4\n"
 ".globl f_tiny\n.type f_tiny,@function\nf_tiny: mov %edi,%eax\n ret\n.size f_tiny,.-f_tiny\n.p2align 4\n"
 ".globl f_redzone\n.type f_redzone,@function\nf_redzone: endbr64\n mov %rdi,-8(%rsp)\n movq $5,-128(%rsp)\n mov -128(%rsp),%rax\n add -8(%rsp),%rax\n ret\n.size f_redzone,.-f_redzone\n.p2align 4\n"
 ".globl f_flags\n.type f_flags,@function\nf_flags: cmp $100,%rdi\n mov $1,%eax\n mov $2,%ecx\n cmovb %rcx,%rax\n adc $0,%rax\n ret\n.size f_flags,.-f_flags\n.p2align 4\n"
 ".globl f_into\n.type f_into,@function\nf_into: dec %rdi\n1: nop\n dec %rdi\n jns 1b\n ret\n.size f_into,.-f_into\n.p2align 4\n"
 ".globl f_inside_call\n.type f_inside_call,@function\nf_inside_call: push %rax\n call *%rdi\n pop %rax\n ret\n.size f_inside_call,.-f_inside_call\n.p2align 4\n");
"#;

static ARRIVALS: AtomicU64 = AtomicU64::new(0);
static LAST_ARGUMENT: AtomicU64 = AtomicU64::new(0);
static LAST_SITE: AtomicU64 = AtomicU64::new(0);
/// Sum of the registers that functions keep, if all are there.
static LAST_KEPT: AtomicU64 = AtomicU64::new(0);
static HOOK: Hook = Hook {
    site: 0,
    kind: 0,
    index: 0,
    entry: AtomicU64::new(0),
    ret: AtomicU64::new(0),
    flags: 0,
    all_registers: AtomicU32::new(0),
    only: AtomicU64::new(0),
    only_return: AtomicU64::new(0),
    trampoline: 0,
};
/// Functions are called by `call_probed`, and where they return to then.
static CALLS: AtomicBool = AtomicBool::new(false);
static RETURN_ADDRESS: AtomicU64 = AtomicU64::new(0);
static RETURNS: AtomicU64 = AtomicU64::new(0);
/// Patching and counting are for one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// No site here needs another stack.
const AGENT_STACK: AgentStackLinks = AgentStackLinks { enter: 0, find: 0, state: 0, generation: 0, missed: 0 };

/// Stands for the agent: counts, and destroys everything that a callee may destroy.
extern "sysv64" fn enter(regs: *mut PtRegs, hook: *const Hook, all: u32) -> bool {
    let sp = regs as u64 + STUB_FRAME_BYTES;
    let aligned: u64;
    // SAFETY: reads the stack pointer.
    unsafe { std::arch::asm!("mov {}, rsp", out(reg) aligned, options(nomem, nostack, preserves_flags)) };
    assert_eq!(aligned % 16, 0, "the stack is aligned");
    // SAFETY: the stub passes a pointer to the PtRegs that it has just filled.
    let regs = unsafe { &*regs };
    assert_eq!(hook, &raw const HOOK, "the stub passes the hook");
    ARRIVALS.fetch_add(1, Ordering::SeqCst);
    LAST_ARGUMENT.store(regs.rdi, Ordering::SeqCst);
    assert!(all == 1 || HOOK.all_registers.load(Ordering::SeqCst) == 0, "all registers are asked for");
    if all == 1 {
        LAST_SITE.store(regs.rip, Ordering::SeqCst);
        let kept = [regs.rbp, regs.rbx, regs.r12, regs.r13, regs.r14, regs.r15];
        LAST_KEPT.store(kept.iter().fold(0, |sum, register| sum.wrapping_add(*register)), Ordering::SeqCst);
        assert_eq!(
            (regs.rsp, regs.orig_rax, regs.cs, regs.ss, regs.eflags & 0x202),
            (sp, u64::MAX, 0x33, 0x2b, 0x202)
        );
    }
    // SAFETY: all registers that are written are declared as clobbered; memory is not touched.
    unsafe {
        std::arch::asm!(
            "mov rax, -1", "mov rcx, -1", "mov rdx, -1", "mov rsi, -1", "mov rdi, -1", "mov r8, -1", "mov r9, -1",
            "mov r10, -1", "mov r11, -1", "cmp rax, 0",
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _,
            out("r10") _, out("r11") _, options(nostack, nomem),
        );
    }
    // SAFETY: at a function's entry the stack pointer leads to the return address.
    RETURN_ADDRESS.store(unsafe { (sp as *const u64).read() }, Ordering::SeqCst);
    CALLS.load(Ordering::SeqCst)
}

/// Stands for the agent's: counts the return.
#[unsafe(naked)]
extern "C" fn call_probed() {
    std::arch::naked_asm!(
        "lea rsp, [rsp + 8]",
        "call qword ptr [rsp - 16]",
        "lock inc qword ptr [rip + {returns}]",
        "jmp qword ptr [rip + {address}]",
        returns = sym RETURNS,
        address = sym RETURN_ADDRESS,
    )
}

/// Calls `function(input)`, on a stack that is moved by `shift` bytes (0 keeps the ABI), with 1, 10, 100, 1000, 10000 and 100000
/// in the registers that functions keep; what it gives if they are still there, else 0.
#[unsafe(naked)]
extern "sysv64" fn call_marked(_function: extern "sysv64" fn(u64) -> u64, _input: u64, _shift: u64) -> u64 {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "mov rcx, rsp",
        "sub rsp, rdx",
        "push rcx",
        "push rcx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov ebp, 1",
        "mov r12d, 10",
        "mov r13d, 100",
        "mov r14d, 1000",
        "mov r15d, 10000",
        "mov ebx, 100000",
        "call rax",
        "add rbp, r12",
        "add rbp, r13",
        "add rbp, r14",
        "add rbp, r15",
        "add rbp, rbx",
        "cmp rbp, 111111",
        "je 2f",
        "xor eax, eax",
        "2: mov rsp, [rsp]",
        "pop rdx",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

struct Library {
    handle: *mut libc::c_void,
    file: Vec<u8>,
    base: u64,
    stubs: u64,
    used: u64,
}

fn map_near(address: u64) -> u64 {
    // SAFETY: asks for new memory; nothing is replaced (MAP_FIXED_NOREPLACE).
    let at = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            0x1_0000,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    at as u64
}

impl Library {
    fn build(name: &str) -> Library {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = dir.join(format!("{name}-{}.so", std::process::id()));
        let source = path.with_extension("c");
        std::fs::write(&source, SOURCE).expect("writable");
        let status = Command::new("gcc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&path).arg(&source).status();
        assert!(status.expect("gcc runs").success());
        let c_path = CString::new(path.to_str().expect("utf-8")).expect("no nul");
        // SAFETY: dlopen wants a valid path; the library has no constructors.
        let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        let file = std::fs::read(&path).expect("readable");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
        let line = maps.lines().find(|line| line.contains(path.to_str().expect("utf-8"))).expect("mapped");
        let base = u64::from_str_radix(line.split('-').next().expect("range"), 16).expect("hex");
        let stubs = (1..100).map(|k| map_near(base - k * 0x100_0000)).find(|at| *at != u64::MAX).expect("room");
        Library { handle, file, base, stubs, used: 0 }
    }

    fn address(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("no nul");
        // SAFETY: the handle is a loaded library.
        unsafe { libc::dlsym(self.handle, name.as_ptr()) as u64 }
    }

    fn function(&self, name: &str) -> extern "sysv64" fn(u64) -> u64 {
        let address = self.address(name);
        assert_ne!(address, 0, "{name}");
        // SAFETY: all `f_*` have this type.
        unsafe { std::mem::transmute::<u64, extern "sysv64" fn(u64) -> u64>(address) }
    }

    /// Patches `name` at `offset` bytes from its start.
    fn patch(&mut self, name: &str, offset: u64) -> Result<(), Refusal> {
        let address = self.address(name);
        let elf = ring3_elf::File::parse(&self.file).expect("valid");
        let vaddr = elf.find(name).expect("exported");
        let bias = address - vaddr;
        assert_eq!(bias, self.base);
        let bounds = elf.function_bounds(vaddr).expect("sized");
        let size = (bounds.end - bounds.start) as usize;
        let bytes = elf.code(vaddr..bounds.end + 24).or_else(|| elf.code(bounds)).expect("in the file");
        let plan = plan_detour(&Function { bytes, address, size, entered: None, computed: false }, address + offset)?;
        let at = self.stubs + self.used;
        let entries = Entries {
            enter: enter as *const () as u64,
            call: call_probed as *const () as u64,
            agent_stack: AGENT_STACK,
        };
        let stub = plan.stub(at, entries, &raw const HOOK as u64)?;
        self.used += 512;
        let jump = plan.jump(at)?;
        assert_eq!(jump.len(), JUMP_BYTES);
        // SAFETY: the stub area is ours and writable, and large enough for the few stubs of this test.
        unsafe { std::ptr::copy_nonoverlapping(stub.bytes.as_ptr(), at as *mut u8, stub.bytes.len()) };
        let page = (address + offset) & !0xfff;
        let rwx = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: changes the protection of the library's own code pages.
        assert_eq!(unsafe { libc::mprotect(page as *mut libc::c_void, 0x2000, rwx) }, 0);
        // SAFETY: the bytes are the library's code; nobody else runs it (TURN is held).
        unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), (address + offset) as *mut u8, jump.len()) };
        Ok(())
    }
}

const INPUTS: [u64; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 99, 100, 12345, u32::MAX as u64];

fn behaves_as_before(name: &str, offset: u64, arrivals: impl Fn(u64) -> u64) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut library = Library::build(&format!("{name}{offset}"));
    let function = library.function(name);
    let expected = INPUTS.map(|input| function(input));
    library.patch(name, offset).unwrap_or_else(|why| panic!("{name}: {why}"));
    for all in [0, 1] {
        HOOK.all_registers.store(all, Ordering::SeqCst);
        for (input, expected) in INPUTS.iter().zip(expected) {
            let before = ARRIVALS.load(Ordering::SeqCst);
            assert_eq!(function(*input), expected, "{name}({input})");
            assert_eq!(ARRIVALS.load(Ordering::SeqCst) - before, arrivals(*input), "{name}({input})");
        }
    }
    HOOK.all_registers.store(0, Ordering::SeqCst);
    assert_eq!(LAST_SITE.load(Ordering::SeqCst), library.address(name) + offset);
}

#[test]
fn registers_that_functions_keep_are_there_when_they_are_asked_for() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut library = Library::build("kept");
    let function = library.function("f_tiny");
    library.patch("f_tiny", 0).expect("plannable");
    for shift in [0, 8] {
        LAST_KEPT.store(0, Ordering::SeqCst);
        assert_eq!(call_marked(function, 7, shift), 7);
        assert_eq!(LAST_KEPT.load(Ordering::SeqCst), 0, "nobody asked");
        HOOK.all_registers.store(1, Ordering::SeqCst);
        assert_eq!(call_marked(function, 7, shift), 7);
        HOOK.all_registers.store(0, Ordering::SeqCst);
        assert_eq!(LAST_KEPT.load(Ordering::SeqCst), 111_111);
    }
}

#[test]
fn functions_of_many_shapes_behave_as_before() {
    let names = [
        "f_push",
        "f_rip",
        "f_tail",
        "f_switch",
        "f_varargs",
        "f_jcc",
        "f_jrcxz",
        "f_call",
        "f_calls_memory",
        "f_calls_rip",
        "f_tiny",
        "f_redzone",
        "f_flags",
    ];
    for name in names {
        behaves_as_before(name, 0, |_| 1);
    }
    // The `call`, whose target is where the return address goes.
    behaves_as_before("f_calls_below", 13, |_| 1);
}

#[test]
fn functions_that_are_called_in_place_of_their_callers_return_through_the_agent() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for name in ["f_push", "f_rip", "f_tail", "f_switch", "f_varargs", "f_jcc", "f_tiny", "f_redzone", "f_flags"] {
        let mut library = Library::build(&format!("{name}called"));
        let function = library.function(name);
        let expected = INPUTS.map(|input| function(input));
        library.patch(name, 0).unwrap_or_else(|why| panic!("{name}: {why}"));
        CALLS.store(true, Ordering::SeqCst);
        let before = RETURNS.load(Ordering::SeqCst);
        let results = INPUTS.map(|input| function(input));
        CALLS.store(false, Ordering::SeqCst);
        assert_eq!(results, expected, "{name}");
        assert_eq!(RETURNS.load(Ordering::SeqCst) - before, INPUTS.len() as u64, "{name}");
    }
}

#[test]
fn a_loop_back_to_the_entry_arrives_once_per_round() {
    behaves_as_before("f_loop", 0, |x| u64::from(64 - x.leading_zeros()).max(1));
}

#[test]
fn recursion_arrives_once_per_call() {
    fn calls(x: u64) -> u64 {
        if x < 2 { 1 } else { 1 + calls(x - 1) + calls(x - 2) }
    }
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut library = Library::build("recursion");
    let function = library.function("f_recursive");
    library.patch("f_recursive", 0).expect("plannable");
    let before = ARRIVALS.load(Ordering::SeqCst);
    assert_eq!(function(10), 55);
    // The compiler may turn one of the two calls into a loop.
    let arrived = ARRIVALS.load(Ordering::SeqCst) - before;
    assert!((2..=calls(10)).contains(&arrived), "{arrived}");
}

#[test]
fn flags_that_are_read_later_survive_a_probe_in_the_middle() {
    behaves_as_before("f_flags", 4, |_| 1);
    behaves_as_before("f_jcc", 3, |_| 1);
}

#[test]
fn arguments_reach_the_agent() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut library = Library::build("arguments");
    library.patch("f_rip", 0).expect("plannable");
    library.function("f_rip")(77);
    assert_eq!(LAST_ARGUMENT.load(Ordering::SeqCst), 77);
}

#[test]
fn what_would_go_wrong_is_refused_with_the_reason() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut library = Library::build("refused");
    assert!(matches!(library.patch("f_into", 0), Err(Refusal::BranchInto { .. })));
    assert!(matches!(library.patch("f_inside_call", 0), Err(Refusal::ReturnInto { .. })));
    assert!(matches!(library.patch("f_flags", 1), Err(Refusal::NotABoundary { .. })));
    let packed = [0x31, 0xc0, 0xc3, 0x53, 0x5b, 0xc3, 0x90, 0x90];
    let function = Function { bytes: &packed, address: 0x1000, size: 3, entered: None, computed: false };
    assert_eq!(plan_detour(&function, 0x1000).err(), Some(Refusal::TooShort { bytes: 3 }));
}
