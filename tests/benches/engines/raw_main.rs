//! Runs the programs of `bench/engine/programs.c` on one engine or another, for `cargo xtask bench engine`, which tells it
//! on standard input what to do:
//!
//! ```text
//! list                       names of the programs, a line each, then `end`
//! run ENGINE NAME COUNT      runs a program so often: `NS RESULT`, ns of all runs together and the low half of r0
//! compile ENGINE NAME        `NS BYTES`: what compiling takes, and the code's size
//! ```
//!
//! Engines: ring3, llvm (if it was built with that), kernel (`BPF_PROG_TEST_RUN`), rbpf (its compiler), ubpf (the same; a shared
//! library, if one is named), native (what clang makes of the same C).

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
use ring3_judge::{Judge, PolicySet};
use ring3_maps::Attributes;
use ring3_object::{Kernel, MapDef, Object, Settings};
use ring3_run::{Loaded, Runner};
use ring3_uapi::attr::{map_create, map_elem, prog_load, test_run};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_verifier::{Input, MapShape, Policy, Verified, verify};

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
    maps: Vec<MapDef>,
    /// The maps as programs of the runner know them.
    shapes: Vec<MapShape>,
    /// The kernel's.
    kernel_maps: Vec<OwnedFd>,
    library: *mut libc::c_void,
    ubpf: Option<Ubpf>,
    runner: Runner,
    loaded: BTreeMap<(String, String), Loaded>,
    native: BTreeMap<String, (OwnedFd, OwnedFd)>,
}

type Function = extern "C" fn(*mut u8, u64) -> u64;

/// ubpf's functions (its header `ubpf.h`), and what it has compiled.
struct Ubpf {
    create: extern "C" fn() -> *mut libc::c_void,
    load: extern "C" fn(*mut libc::c_void, *const u8, u32, *mut *mut libc::c_char) -> i32,
    compile: extern "C" fn(*mut libc::c_void, *mut *mut libc::c_char) -> Option<Function>,
    compiled: BTreeMap<String, Function>,
}

impl Ubpf {
    fn new(path: &str) -> Result<Ubpf, String> {
        let library = open(path)?;
        let at = |name: &std::ffi::CStr| {
            // SAFETY: looks a symbol up in the library that was loaded.
            let at = unsafe { libc::dlsym(library, name.as_ptr()) };
            if at.is_null() { Err(format!("{path} has no {}", name.to_string_lossy())) } else { Ok(at) }
        };
        let (create, load, compile) = (at(c"ubpf_create")?, at(c"ubpf_load")?, at(c"ubpf_compile")?);
        Ok(Ubpf {
            // SAFETY: `struct ubpf_vm* ubpf_create(void)`
            create: unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> *mut libc::c_void>(create) },
            // SAFETY: `int ubpf_load(struct ubpf_vm*, const void* code, uint32_t code_len, char** errmsg)`
            load: unsafe {
                std::mem::transmute::<
                    *mut libc::c_void,
                    extern "C" fn(*mut libc::c_void, *const u8, u32, *mut *mut libc::c_char) -> i32,
                >(load)
            },
            // SAFETY: `ubpf_jit_fn ubpf_compile(struct ubpf_vm*, char** errmsg)`
            compile: unsafe {
                std::mem::transmute::<
                    *mut libc::c_void,
                    extern "C" fn(*mut libc::c_void, *mut *mut libc::c_char) -> Option<Function>,
                >(compile)
            },
            compiled: BTreeMap::new(),
        })
    }

    /// Compiles instructions. The machine and its code stay: nobody asks for so many that it mattered.
    fn compile(&self, code: &[u8]) -> Result<Function, String> {
        let (vm, mut message) = ((self.create)(), std::ptr::null_mut());
        let loaded = (self.load)(vm, code.as_ptr(), code.len() as u32, &raw mut message) == 0;
        let function = if loaded { (self.compile)(vm, &raw mut message) } else { None };
        function.ok_or_else(|| {
            if message.is_null() {
                return "it does not say why".into();
            }
            // SAFETY: ubpf gives a string when it fails.
            unsafe { std::ffi::CStr::from_ptr(message) }.to_string_lossy().trim().to_owned()
        })
    }
}

/// Loads a library that has no constructors.
fn open(path: &str) -> Result<*mut libc::c_void, String> {
    let name = CString::new(path).map_err(|error| error.to_string())?;
    // SAFETY: as this function says.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() { Err(format!("{path} cannot be loaded")) } else { Ok(library) }
}

fn compiled(engine: &str, program: &Verified) -> Result<Code, String> {
    let code = match engine {
        "llvm" => ring3_engine::compile_with(program, &Options::default(), ring3_llvm::object),
        _ => ring3_jit::compile(program, &Options::default()),
    };
    code.map_err(|error| error.to_string())
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the call that gave the number made the descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

impl Bench {
    fn new(object: &str, library: &str, ubpf: Option<&str>) -> Result<Bench, String> {
        let bytes = std::fs::read(object).map_err(|error| format!("{object}: {error}"))?;
        let object = Object::load(&bytes, &Kernel::without_types(), &Settings::default());
        let object = object.map_err(|error| error.to_string())?;
        let mut runner = Runner::new(1).map_err(|error| error.to_string())?;
        for map in &object.maps {
            runner.add_map(&attributes(map)).map_err(|error| format!("{}: {error}", map.name))?;
        }
        let policies = PolicySet::new(&Kernel::without_types(), 1);
        let judge =
            Judge::new(&policies, &object).with_places(|shape| runner.maps()[shape.slot as usize].shape(shape));
        Ok(Bench {
            shapes: (0..object.maps.len() as u32).filter_map(|index| judge.map(index)).collect(),
            programs: object.programs.iter().map(|program| (program.name.clone(), program.insns.clone())).collect(),
            maps: object.maps,
            kernel_maps: vec![],
            library: open(library)?,
            ubpf: ubpf.map(Ubpf::new).transpose()?,
            runner,
            loaded: BTreeMap::new(),
            native: BTreeMap::new(),
        })
    }

    fn insns(&self, name: &str) -> Result<&[Insn], String> {
        self.programs.get(name).map(Vec::as_slice).ok_or_else(|| format!("no program {name}"))
    }

    fn verified(&self, name: &str) -> Result<Verified, String> {
        verify(&Input {
            insns: self.insns(name)?,
            prog_type: prog_type::SYSCALL,
            gpl_compatible: true,
            sleepable: false,
            cpus: 1,
            policy: Policy::memory(MEMORY_BYTES as u32),
            log_level: 0,
            lines: vec![],
            map_by_fd: &|_| None,
            map_by_index: &|index| self.shapes.get(index as usize).copied(),
            constant_value: &|_| None,
        })
        .map_err(|report| report.to_string())
    }

    fn run(&mut self, engine: &str, name: &str, count: u32) -> Result<(u64, u32), String> {
        let mut memory = memory();
        match engine {
            "ring3" | "llvm" => self.run_compiled(engine, name, count, &mut memory),
            "kernel" => self.run_kernel(name, count),
            "rbpf" => self.run_rbpf(name, count, &mut memory),
            "ubpf" => self.run_ubpf(name, count, &mut memory),
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
            let program = self.verified(name)?;
            let code = compiled(engine, &program)?;
            let loaded = self.runner.load(&program, &code).map_err(|error| error.to_string())?;
            self.loaded.insert(key.clone(), loaded);
        }
        let outcome = self.runner.run(self.loaded[&key], memory, count).map_err(|error| error.to_string())?;
        Ok((outcome.duration_ns, outcome.result as u32))
    }

    fn run_kernel(&mut self, name: &str, count: u32) -> Result<(u64, u32), String> {
        if !self.native.contains_key(name) {
            if self.kernel_maps.is_empty() {
                self.kernel_maps = self.maps.iter().map(make_natively).collect::<Result<_, _>>()?;
            }
            let loaded = load_natively(self.insns(name)?, &self.kernel_maps)?;
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

    fn run_ubpf(&mut self, name: &str, count: u32, memory: &mut [u8]) -> Result<(u64, u32), String> {
        let code = encode(self.insns(name)?);
        let ubpf = self.ubpf.as_mut().ok_or("no ubpf was named")?;
        let function = match ubpf.compiled.get(name) {
            Some(known) => *known,
            None => {
                let made = ubpf.compile(&code)?;
                ubpf.compiled.insert(name.to_owned(), made);
                made
            }
        };
        Ok(time(function, count, memory))
    }

    fn run_native(&self, name: &str, count: u32, memory: &mut [u8]) -> Result<(u64, u32), String> {
        let symbol = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: looks a symbol up in the library that was loaded.
        let at = unsafe { libc::dlsym(self.library, symbol.as_ptr()) };
        if at.is_null() {
            return Err(format!("the native library has no {name}"));
        }
        // SAFETY: the library's functions are of this type.
        let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(at) };
        Ok(time(function, count, memory))
    }

    fn compile(&self, engine: &str, name: &str) -> Result<(u64, u64), String> {
        let insns = self.insns(name)?;
        match engine {
            "ring3" | "llvm" => {
                let program = self.verified(name)?;
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
            "ubpf" => {
                let (code, ubpf) = (encode(insns), self.ubpf.as_ref().ok_or("no ubpf was named")?);
                let started = Instant::now();
                ubpf.compile(&code)?;
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

/// What so many calls take, ns, and the last one's result.
fn time(function: Function, count: u32, memory: &mut [u8]) -> (u64, u32) {
    let mut result = 0;
    let started = Instant::now();
    for _ in 0..count {
        result = function(memory.as_mut_ptr(), memory.len() as u64);
    }
    (started.elapsed().as_nanos() as u64, result as u32)
}

fn attributes(map: &MapDef) -> Attributes {
    Attributes {
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        map_flags: map.map_flags,
        cpus: 1,
        map_extra: map.map_extra,
    }
}

/// The same map in the kernel.
fn make_natively(map: &MapDef) -> Result<OwnedFd, String> {
    let mut attr = Attr::new()
        .with(map_create::MAP_TYPE, map.map_type.into())
        .with(map_create::KEY_SIZE, map.key_size.into())
        .with(map_create::VALUE_SIZE, map.value_size.into())
        .with(map_create::MAX_ENTRIES, map.max_entries.into());
    bpf(cmd::MAP_CREATE, &mut attr).map(owned).map_err(|errno| format!("{}: {}", map.name, errno.name()))
}

/// Loads a program whose memory is a map's value: it and the map. `maps` are those that it names by index.
fn load_natively(insns: &[Insn], maps: &[OwnedFd]) -> Result<(OwnedFd, OwnedFd), String> {
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
    let fds: Vec<i32> = maps.iter().map(AsRawFd::as_raw_fd).collect();
    let mut attr = Attr::new()
        .with(prog_load::PROG_TYPE, prog_type::SCHED_CLS.into())
        .with(prog_load::INSN_CNT, all.len() as u64)
        .with(prog_load::INSNS, address(code.as_slice()))
        .with(prog_load::FD_ARRAY, address(fds.as_slice()))
        .with(prog_load::LICENSE, address(c"GPL".to_bytes_with_nul()));
    let program = bpf(cmd::PROG_LOAD, &mut attr).map_err(|errno| {
        const LOG_BYTES: usize = 1 << 24;
        let log = vec![0u8; LOG_BYTES];
        let told = attr.clone().with(prog_load::LOG_BUF, address(log.as_slice()));
        let told = told.with(prog_load::LOG_SIZE, LOG_BYTES as u64).with(prog_load::LOG_LEVEL, 1);
        let _ = bpf(cmd::PROG_LOAD, &mut told.clone());
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.trim_end_matches('\0').trim_end().lines().rev().take(2).collect();
        format!("{}: {}", fail("BPF_PROG_LOAD", errno), lines.join(" / "))
    })?;
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
    let [object, library, ubpf @ ..] = arguments.as_slice() else {
        return Err("wants an object file and a library, and perhaps ubpf's".into());
    };
    let mut bench = Bench::new(object, library, ubpf.first().map(String::as_str))?;
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = bench.obey(&line).unwrap_or_else(|why| format!("error {}", why.replace('\n', " ")));
        println!("{answer}");
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}
