//! Runs the programs of `bench/engine/programs.c` on one engine or another, for `cargo xtask bench engine`, which tells it
//! on standard input what to do:
//!
//! ```text
//! list                       names of the programs, a line each, then `end`
//! run ENGINE NAME COUNT      runs a program so often: `NS RESULT`, ns of all runs together and the low half of r0
//! compile ENGINE NAME        `NS BYTES`: what compiling takes, and the code's size
//! ```
//!
//! Engines: ring3, llvm (if it was built with that), kernel (`BPF_PROG_TEST_RUN`), rbpf (its compiler), native (what clang makes of the same C).

#[path = "../../tests/calls/raw_bpf.rs"]
mod raw_bpf;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use ring3_isa::code::BPF_LD_IMM64;
use ring3_isa::{Insn, encode};
use ring3_jit::{Code, Options};
use ring3_object::{Kernel, Object, Settings};
use ring3_run::{Loaded, Runner};
use ring3_uapi::attr::{map_create, map_elem, prog_load, test_run};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_verifier::{Input, Policy, Verified, verify};

use raw_bpf::{Attr, address, bpf};

/// Bytes that programs get.
const MEMORY_BYTES: usize = 1024;

/// The memory that each run of a measurement begins with.
fn memory() -> Vec<u8> {
    let mut state = 1u32;
    let mut bytes: Vec<u8> = (0..MEMORY_BYTES / 2)
        .map(|_| {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            (state >> 24) as u8 | 1
        })
        .collect();
    bytes.extend_from_within(..);
    bytes
}

struct Bench {
    programs: BTreeMap<String, Vec<Insn>>,
    library: *mut libc::c_void,
    runner: Runner,
    loaded: BTreeMap<(String, String), Loaded>,
    native: BTreeMap<String, (OwnedFd, OwnedFd)>,
}

fn verified(insns: &[Insn]) -> Result<Verified, String> {
    verify(&Input {
        insns,
        prog_type: prog_type::SYSCALL,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: Policy::memory(MEMORY_BYTES as u32),
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|_| None,
        constant_value: &|_| None,
    })
    .map_err(|report| report.to_string())
}

fn compiled(engine: &str, program: &Verified) -> Result<Code, String> {
    let code = match engine {
        "llvm" => ring3_llvm::compile(program),
        _ => ring3_jit::compile(program, &Options::default()),
    };
    code.map_err(|error| error.to_string())
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the call that gave the number made the descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

impl Bench {
    fn new(object: &str, library: &str) -> Result<Bench, String> {
        let bytes = std::fs::read(object).map_err(|error| format!("{object}: {error}"))?;
        let object = Object::load(&bytes, &Kernel::without_types(), &Settings::default());
        let programs = object.map_err(|error| error.to_string())?.programs;
        let library = CString::new(library).map_err(|error| error.to_string())?;
        // SAFETY: loads a library that has no constructors.
        let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("the native library cannot be loaded".into());
        }
        Ok(Bench {
            programs: programs.into_iter().map(|program| (program.name, program.insns)).collect(),
            library,
            runner: Runner::new(1).map_err(|error| error.to_string())?,
            loaded: BTreeMap::new(),
            native: BTreeMap::new(),
        })
    }

    fn insns(&self, name: &str) -> Result<&[Insn], String> {
        self.programs.get(name).map(Vec::as_slice).ok_or_else(|| format!("no program {name}"))
    }

    fn run(&mut self, engine: &str, name: &str, count: u32) -> Result<(u64, u32), String> {
        let mut memory = memory();
        match engine {
            "ring3" | "llvm" => self.run_compiled(engine, name, count, &mut memory),
            "kernel" => self.run_kernel(name, count),
            "rbpf" => self.run_rbpf(name, count, &mut memory),
            "native" => self.run_native(name, count, &mut memory),
            _ => Err(format!("no engine {engine}")),
        }
    }

    fn run_compiled(
        &mut self,
        engine: &str,
        name: &str,
        count: u32,
        memory: &mut [u8],
    ) -> Result<(u64, u32), String> {
        let key = (engine.to_owned(), name.to_owned());
        if !self.loaded.contains_key(&key) {
            let program = verified(self.insns(name)?)?;
            let code = compiled(engine, &program)?;
            let loaded = self.runner.load(&program, &code).map_err(|error| error.to_string())?;
            self.loaded.insert(key.clone(), loaded);
        }
        let outcome = self.runner.run(self.loaded[&key], memory, count).map_err(|error| error.to_string())?;
        Ok((outcome.duration_ns, outcome.result as u32))
    }

    fn run_kernel(&mut self, name: &str, count: u32) -> Result<(u64, u32), String> {
        if !self.native.contains_key(name) {
            let loaded = load_natively(self.insns(name)?)?;
            self.native.insert(name.to_owned(), loaded);
        }
        let (program, map) = &self.native[name];
        write_memory(map)?;
        let packet = [0u8; 64];
        let mut attr = Attr::new()
            .with(test_run::PROG_FD, program.as_raw_fd() as u64)
            .with(test_run::DATA_IN, address(&packet))
            .with(test_run::DATA_SIZE_IN, packet.len() as u64)
            .with(test_run::REPEAT, count.into());
        bpf(cmd::PROG_TEST_RUN, &mut attr).map_err(|errno| format!("BPF_PROG_TEST_RUN: {}", errno.name()))?;
        // The kernel tells the mean.
        let each = attr.get(test_run::DURATION);
        Ok((each * u64::from(count), attr.get(test_run::RETVAL) as u32))
    }

    fn run_rbpf(&self, name: &str, count: u32, memory: &mut [u8]) -> Result<(u64, u32), String> {
        let code = encode(self.insns(name)?);
        let mut vm = rbpf::EbpfVmRaw::new(Some(&code)).map_err(|error| error.to_string())?;
        vm.jit_compile().map_err(|error| error.to_string())?;
        let mut result = 0;
        let started = Instant::now();
        for _ in 0..count {
            // SAFETY: our verifier has proved what rbpf's compiler does not check.
            result = unsafe { vm.execute_program_jit(memory) }.map_err(|error| error.to_string())?;
        }
        Ok((started.elapsed().as_nanos() as u64, result as u32))
    }

    fn run_native(&self, name: &str, count: u32, memory: &mut [u8]) -> Result<(u64, u32), String> {
        let symbol = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: looks a symbol up in the library that was loaded.
        let at = unsafe { libc::dlsym(self.library, symbol.as_ptr()) };
        if at.is_null() {
            return Err(format!("the native library has no {name}"));
        }
        // SAFETY: the library's functions are of this type.
        let function: extern "C" fn(*mut u8, u64) -> u64 = unsafe { std::mem::transmute(at) };
        let mut result = 0;
        let started = Instant::now();
        for _ in 0..count {
            result = function(memory.as_mut_ptr(), memory.len() as u64);
        }
        Ok((started.elapsed().as_nanos() as u64, result as u32))
    }

    fn compile(&self, engine: &str, name: &str) -> Result<(u64, u64), String> {
        let insns = self.insns(name)?;
        match engine {
            "ring3" | "llvm" => {
                let program = verified(insns)?;
                let started = Instant::now();
                let code = compiled(engine, &program)?;
                Ok((started.elapsed().as_nanos() as u64, code.bytes.len() as u64))
            }
            "rbpf" => {
                let code = encode(insns);
                let mut vm = rbpf::EbpfVmRaw::new(Some(&code)).map_err(|error| error.to_string())?;
                let started = Instant::now();
                vm.jit_compile().map_err(|error| error.to_string())?;
                Ok((started.elapsed().as_nanos() as u64, 0))
            }
            _ => Err(format!("{engine} does not tell")),
        }
    }

    fn obey(&mut self, line: &str) -> Result<String, String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is no number"));
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["list"] => {
                let names: String = self.programs.keys().map(|name| format!("{name}\n")).collect();
                Ok(names + "end")
            }
            ["run", engine, name, count] => {
                let (ns, result) = self.run(engine, name, number(count)?)?;
                Ok(format!("{ns} {result}"))
            }
            ["compile", engine, name] => {
                let (ns, bytes) = self.compile(engine, name)?;
                Ok(format!("{ns} {bytes}"))
            }
            _ => Err(format!("`{line}` is no order")),
        }
    }
}

/// Loads a program whose memory is a map's value: it and the map.
fn load_natively(insns: &[Insn]) -> Result<(OwnedFd, OwnedFd), String> {
    const PSEUDO_MAP_VALUE: u8 = 2;
    const MOV: u8 = 0xb7;
    let fail = |what: &str, errno: ring3_uapi::Errno| format!("{what}: {}", errno.name());
    let mut attr = Attr::new()
        .with(map_create::MAP_TYPE, map_type::ARRAY.into())
        .with(map_create::KEY_SIZE, 4)
        .with(map_create::VALUE_SIZE, MEMORY_BYTES as u64)
        .with(map_create::MAX_ENTRIES, 1);
    let map = owned(bpf(cmd::MAP_CREATE, &mut attr).map_err(|errno| fail("BPF_MAP_CREATE", errno))?);
    let mut all = vec![
        Insn::new(BPF_LD_IMM64, 1, PSEUDO_MAP_VALUE, 0, map.as_raw_fd()),
        Insn::new(0, 0, 0, 0, 0),
        Insn::new(MOV, 2, 0, 0, MEMORY_BYTES as i32),
    ];
    all.extend_from_slice(insns);
    let code = encode(&all);
    let mut attr = Attr::new()
        .with(prog_load::PROG_TYPE, prog_type::SCHED_CLS.into())
        .with(prog_load::INSN_CNT, all.len() as u64)
        .with(prog_load::INSNS, address(code.as_slice()))
        .with(prog_load::LICENSE, address(c"GPL".to_bytes_with_nul()));
    let program = bpf(cmd::PROG_LOAD, &mut attr).map_err(|errno| fail("BPF_PROG_LOAD", errno))?;
    Ok((owned(program), map))
}

fn write_memory(map: &OwnedFd) -> Result<(), String> {
    let memory = memory();
    let mut attr = Attr::new()
        .with(map_elem::MAP_FD, map.as_raw_fd() as u64)
        .with(map_elem::KEY, address(&0u32))
        .with(map_elem::VALUE, address(memory.as_slice()));
    bpf(cmd::MAP_UPDATE_ELEM, &mut attr).map(drop).map_err(|errno| format!("BPF_MAP_UPDATE_ELEM: {}", errno.name()))
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [object, library] = arguments.as_slice() else { return Err("wants an object file and a library".into()) };
    let mut bench = Bench::new(object, library)?;
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = bench.obey(&line).unwrap_or_else(|why| format!("error {}", why.replace('\n', " ")));
        println!("{answer}");
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}
