//! A program for some memory that r1 leads to, run by whatever runs programs.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ring3_interp::{Fault, Host, Memory};
use ring3_isa::code::BPF_LD_IMM64;
use ring3_isa::{Insn, encode};
use ring3_jit::{Code, Error, Options};
use ring3_run::Runner;
use ring3_uapi::attr::{map_create, map_elem, prog_load, test_run};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_uapi::flags::BPF_F_SLEEPABLE;
use ring3_uapi::helper;
use ring3_verifier::{Input, Policy, Verified, verify};

use crate::raw_bpf::{Attr, address, bpf};

/// Room for the kernel's log.
const LOG_BYTES: usize = 1 << 20;
/// Where the interpreter has memory.
const MEMORY_AT: u64 = 0x1000_0000;

/// A program and its memory.
pub(crate) struct Case {
    pub(crate) insns: Vec<Insn>,
    pub(crate) memory: Vec<u8>,
}

/// What a run leaves: r0 and the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) result: u64,
    pub(crate) memory: Vec<u8>,
}

/// What compiles a program.
pub(crate) type Compile = fn(&Verified, &Options) -> Result<Code, Error>;

/// LLVM, in this process: for thousands of small programs, to start it each time would take longest.
pub(crate) fn llvm(program: &Verified, options: &Options) -> Result<Code, Error> {
    ring3_engine::compile_with(program, options, ring3_llvm::object)
}

/// Cranelift, and LLVM where it is built in.
pub(crate) fn compilers() -> Vec<Compile> {
    let mut compilers = vec![ring3_jit::compile as Compile];
    if ring3_llvm::IS_BUILT {
        compilers.push(llvm);
    } else {
        println!("SKIPPED IN PART: the tests were built without LLVM (feature ring3-llvm/llvm)");
    }
    compilers
}

/// With the program's constants as they are, and hidden.
pub(crate) const BLINDING: [Options; 2] =
    [Options { blinding: None, rounds: None }, Options { blinding: Some(0x72_696e_6733), rounds: None }];

/// The only helper that the interpreter's programs call.
struct Clock;

impl Host for Clock {
    fn call(&mut self, id: u32, _: [u64; 5], _: &mut Memory) -> Result<u64, Fault> {
        if id == helper::KTIME_GET_NS { Ok(1) } else { Err(Fault::UnknownHelper(id)) }
    }

    fn map(&self, _: u32, _: Option<u32>) -> u64 {
        0
    }
}

impl Case {
    /// The program, proved.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(crate) fn verified(&self) -> Result<Verified, String> {
        let input = Input {
            insns: &self.insns,
            prog_type: prog_type::SYSCALL,
            gpl_compatible: true,
            sleepable: false,
            cpus: 1,
            policy: Policy::memory(self.memory.len() as u32),
            log_level: 1,
            lines: vec![],
            map_by_fd: &|_| None,
            map_by_index: &|_| None,
            constant_value: &|_| None,
        };
        verify(&input).map_err(|report| report.log)
    }

    /// What the interpreter leaves.
    pub(crate) fn interpreted(&self, program: &Verified) -> Left {
        let mut memory = Memory::default();
        memory.add(MEMORY_AT, self.memory.clone());
        let at = if self.memory.is_empty() { 0 } else { MEMORY_AT };
        let result = ring3_interp::run(program, at, &mut memory, &mut Clock, 1 << 32).expect("no fault");
        Left { result, memory: memory.region(MEMORY_AT).unwrap_or_default().to_vec() }
    }

    /// What a compiler's code leaves.
    pub(crate) fn compiled(
        &self,
        program: &Verified,
        runner: &mut Runner,
        compile: Compile,
        options: &Options,
    ) -> Left {
        let code = compile(program, options).expect("it compiles");
        runner.unload();
        let loaded = runner.load(program, &code).expect("there is room");
        let mut memory = self.memory.clone();
        let result = runner.run(loaded, &mut memory, 1).expect("this thread is free").result;
        Left { result, memory }
    }
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the call that gave the number made the descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// The kernel, with a map whose value is the memory of cases.
pub(crate) struct Kernel {
    map: OwnedFd,
    log: Vec<u8>,
}

impl Kernel {
    /// For cases with so many bytes of memory.
    pub(crate) fn new(bytes: usize) -> Kernel {
        let mut attr = Attr::new()
            .with(map_create::MAP_TYPE, map_type::ARRAY.into())
            .with(map_create::KEY_SIZE, 4)
            .with(map_create::VALUE_SIZE, bytes.max(1) as u64)
            .with(map_create::MAX_ENTRIES, 1);
        Kernel { map: owned(bpf(cmd::MAP_CREATE, &mut attr).expect("a map")), log: vec![0; LOG_BYTES] }
    }

    fn element(&self, value: u64) -> Attr {
        Attr::new()
            .with(map_elem::MAP_FD, self.map.as_raw_fd() as u64)
            .with(map_elem::KEY, address(&0u32))
            .with(map_elem::VALUE, value)
    }

    /// What the kernel leaves; r0 is cut to 32 bits.
    ///
    /// # Errors
    /// Why it refuses the program.
    pub(crate) fn run(&mut self, case: &Case) -> Result<Left, String> {
        const PSEUDO_MAP_VALUE: u8 = 2;
        let mut insns = vec![];
        if !case.memory.is_empty() {
            insns.push(Insn::new(BPF_LD_IMM64, 1, PSEUDO_MAP_VALUE, 0, self.map.as_raw_fd()));
            insns.push(Insn::new(0, 0, 0, 0, 0));
            bpf(cmd::MAP_UPDATE_ELEM, &mut self.element(address(case.memory.as_slice()))).expect("a value");
        }
        insns.extend_from_slice(&case.insns);
        let code = encode(&insns);
        let mut attr = Attr::new()
            .with(prog_load::PROG_TYPE, prog_type::SYSCALL.into())
            .with(prog_load::INSN_CNT, insns.len() as u64)
            .with(prog_load::INSNS, address(code.as_slice()))
            .with(prog_load::LICENSE, address(c"GPL".to_bytes_with_nul()))
            .with(prog_load::PROG_FLAGS, BPF_F_SLEEPABLE.into());
        let loaded = bpf(cmd::PROG_LOAD, &mut attr).or_else(|_| {
            let mut attr = attr
                .with(prog_load::LOG_LEVEL, 1)
                .with(prog_load::LOG_SIZE, self.log.len() as u64)
                .with(prog_load::LOG_BUF, self.log.as_mut_ptr() as u64);
            bpf(cmd::PROG_LOAD, &mut attr)
        });
        let program = owned(loaded.map_err(|errno| {
            let end = self.log.iter().position(|byte| *byte == 0).unwrap_or(0);
            format!("{}: {}", errno.name(), String::from_utf8_lossy(&self.log[..end]))
        })?);
        let mut attr = Attr::new().with(test_run::PROG_FD, program.as_raw_fd() as u64);
        bpf(cmd::PROG_TEST_RUN, &mut attr).expect("it runs");
        let mut memory = vec![0u8; case.memory.len()];
        if !memory.is_empty() {
            bpf(cmd::MAP_LOOKUP_ELEM, &mut self.element(memory.as_mut_ptr() as u64)).expect("a value");
        }
        Ok(Left { result: attr.get(test_run::RETVAL), memory })
    }
}
