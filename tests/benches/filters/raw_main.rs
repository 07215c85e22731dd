//! Asks filters of events on one engine or another, for `cargo xtask bench filter`, which tells it on standard input what to do:
//!
//! ```text
//! filter NAME EXPRESSION     makes a program of a filter; NAME is also that of the C function
//! empty NAME                 one that accepts everything
//! ask ENGINE NAME COUNT      asks so often about an event that filters reject: `NS ANSWER`, ns of all together
//! accept ENGINE NAME         asks about one that they accept: `NS ANSWER`
//! code ENGINE NAME           writes machine code to standard error: `BYTES 0`
//! ```
//!
//! Engines: interpreter, cranelift, llvm (if it was built with that), kernel (`BPF_PROG_TEST_RUN`), c.

#[path = "../../tests/calls/raw_bpf.rs"]
mod raw_bpf;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use iced_x86::{Decoder, DecoderOptions};
use ring3_event::{EventType, Field, Kind, Phase};
use ring3_filter::{Context, EventScope, LabelCounter, Place, Places, StatePlace, parse};
use ring3_interp::{Fault, Host, Memory};
use ring3_isa::code::BPF_LD_IMM64;
use ring3_isa::{Insn, assemble, encode};
use ring3_jit::{Code, Options};
use ring3_run::{Loaded, Runner};
use ring3_uapi::attr::{map_create, map_elem, prog_load, test_run};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_verifier::{Input, Policy, Verified, verify};

use raw_bpf::{Attr, address, bpf};

/// `struct event` of `bench/filter/event.h`.
const INTEGERS: usize = 10;
const TEXT_BYTES: usize = 64;
const TEXTS: [&str; 4] = ["/etc/passwd", "/usr/lib/x86_64-linux-gnu/libc.so.6", "nginx", "GET /index.html"];
const LAST_TEXT: &str = "accept";
const INTEGERS_BYTES: usize = 8 * (INTEGERS + 1);
const EVENT_BYTES: usize = INTEGERS_BYTES + (TEXTS.len() + 1) * TEXT_BYTES;
/// Where the interpreter has the event.
const EVENT_AT: u64 = 0x1000_0000;

fn event_type() -> EventType {
    let field = |name: String, kind| Field { name, kind, phase: Phase::Entry };
    let integers = (0..INTEGERS).map(|at| field(format!("i{at}"), Kind::int(8, true)));
    let last = field("last".into(), Kind::int(8, true));
    let text = Kind::Text { bytes_max: TEXT_BYTES as u32, path: false };
    let texts = (0..=TEXTS.len()).map(|at| field(format!("s{at}"), text.clone()));
    let fields = integers.chain([last]).chain(texts).collect();
    EventType { id: 1, provider: "ring3_filter".into(), name: "asked".into(), fields }
}

fn event(accepted: bool) -> Vec<u8> {
    let integers = (10..10 + INTEGERS as i64).chain([i64::from(accepted)]);
    let mut bytes: Vec<u8> = integers.flat_map(i64::to_le_bytes).collect();
    for text in TEXTS.into_iter().chain([if accepted { LAST_TEXT } else { "" }]) {
        let end = bytes.len() + TEXT_BYTES;
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(end, 0);
    }
    bytes
}

/// The event is at r6.
struct InEvent;

impl Places for InEvent {
    fn place(&self, field: usize) -> Place {
        if field <= INTEGERS {
            return Place::Memory { base: 6, at: field as i16 * 8, bytes: 8, signed: true };
        }
        let at = INTEGERS_BYTES + (field - INTEGERS - 1) * TEXT_BYTES;
        Place::Text { base: 6, at: at as i16, bytes_max: TEXT_BYTES as u32 }
    }

    fn state(&self, _: usize) -> Option<StatePlace> {
        None
    }

    fn context(&self, context: Context) -> Place {
        panic!("no filter asks for {context:?}")
    }
}

struct NoHost;

impl Host for NoHost {
    fn call(&mut self, helper: u32, _: [u64; 5], _: &mut Memory) -> Result<u64, Fault> {
        Err(Fault::UnknownHelper(helper))
    }

    fn map(&self, _: u32, _: Option<u32>) -> u64 {
        0
    }
}

type Function = extern "C" fn(*const u8) -> i32;

struct Bench {
    of: EventType,
    programs: BTreeMap<String, Vec<Insn>>,
    library: *mut libc::c_void,
    runner: Runner,
    loaded: BTreeMap<(String, String), Loaded>,
    kernel: BTreeMap<String, (OwnedFd, OwnedFd)>,
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the call that gave the number made the descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

impl Bench {
    fn new(library: &str) -> Result<Bench, String> {
        let name = CString::new(library).map_err(|error| error.to_string())?;
        // SAFETY: the library has no constructors.
        let opened = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if opened.is_null() {
            return Err(format!("{library} cannot be loaded"));
        }
        Ok(Bench {
            of: event_type(),
            programs: BTreeMap::new(),
            library: opened,
            runner: Runner::new(1).map_err(|error| error.to_string())?,
            loaded: BTreeMap::new(),
            kernel: BTreeMap::new(),
        })
    }

    fn add(&mut self, name: &str, text: &str) -> Result<(), String> {
        self.programs.insert(name.to_owned(), assemble(text).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn filter(&mut self, name: &str, text: &str) -> Result<(), String> {
        let expression = parse(text).map_err(|error| error.to_string())?;
        let typed = expression.check(&EventScope::new(&self.of)).map_err(|error| error.to_string())?;
        let code = typed.assemble(&InEvent, &mut LabelCounter::default(), "refused");
        self.add(name, &format!("r6 = r1\n{code}r0 = 1\nexit\nrefused:\nr0 = 0\nexit\n"))
    }

    fn insns(&self, name: &str) -> Result<&[Insn], String> {
        self.programs.get(name).map(Vec::as_slice).ok_or_else(|| format!("no filter {name}"))
    }

    fn verified(&self, name: &str) -> Result<Verified, String> {
        verify(&Input {
            insns: self.insns(name)?,
            prog_type: prog_type::SYSCALL,
            gpl_compatible: true,
            sleepable: false,
            cpus: 1,
            policy: Policy::memory(EVENT_BYTES as u32),
            log_level: 0,
            lines: vec![],
            map_by_fd: &|_| None,
            map_by_index: &|_| None,
            constant_value: &|_| None,
        })
        .map_err(|report| report.to_string())
    }

    fn compiled(&self, engine: &str, program: &Verified) -> Result<Code, String> {
        let code = match engine {
            "llvm" => ring3_engine::compile_with(program, &Options::default(), ring3_llvm::object),
            _ => ring3_jit::compile(program, &Options::default()),
        };
        code.map_err(|error| error.to_string())
    }

    fn ask(&mut self, engine: &str, name: &str, count: u32, accepted: bool) -> Result<(u64, u64), String> {
        let mut event = event(accepted);
        match engine {
            "interpreter" => {
                let program = self.verified(name)?;
                let mut memory = Memory::default();
                memory.add(EVENT_AT, event);
                let (mut answer, started) = (0, Instant::now());
                for _ in 0..count {
                    // (A run leaves its stack in the memory.)
                    let mut memory = memory.clone();
                    let ran = ring3_interp::run(&program, EVENT_AT, &mut memory, &mut NoHost, 1 << 24);
                    answer = ran.map_err(|fault| fault.to_string())?;
                }
                Ok((started.elapsed().as_nanos() as u64, answer))
            }
            "cranelift" | "llvm" => {
                let key = (engine.to_owned(), name.to_owned());
                if !self.loaded.contains_key(&key) {
                    let program = self.verified(name)?;
                    let code = self.compiled(engine, &program)?;
                    let loaded = self.runner.load(&program, &code).map_err(|error| error.to_string())?;
                    self.loaded.insert(key.clone(), loaded);
                }
                let outcome =
                    self.runner.run(self.loaded[&key], &mut event, count).map_err(|error| error.to_string())?;
                Ok((outcome.duration_ns, outcome.result))
            }
            "kernel" => self.ask_kernel(name, count, &event),
            "c" => self.ask_c(name, count, &event),
            _ => Err(format!("no engine {engine}")),
        }
    }

    fn ask_c(&self, name: &str, count: u32, event: &[u8]) -> Result<(u64, u64), String> {
        let symbol = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: looks a symbol up in the library that was loaded.
        let at = unsafe { libc::dlsym(self.library, symbol.as_ptr()) };
        if at.is_null() {
            return Err(format!("the library has no {name}"));
        }
        // SAFETY: the library's functions are of this type.
        let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(at) };
        let (mut answer, started) = (0, Instant::now());
        for _ in 0..count {
            answer = function(std::hint::black_box(event.as_ptr()));
        }
        Ok((started.elapsed().as_nanos() as u64, answer as u64))
    }

    fn ask_kernel(&mut self, name: &str, count: u32, event: &[u8]) -> Result<(u64, u64), String> {
        if !self.kernel.contains_key(name) {
            let loaded = load_natively(self.insns(name)?)?;
            self.kernel.insert(name.to_owned(), loaded);
        }
        let (program, map) = &self.kernel[name];
        let mut attr = Attr::new()
            .with(map_elem::MAP_FD, map.as_raw_fd() as u64)
            .with(map_elem::KEY, address(&0u32))
            .with(map_elem::VALUE, address(event));
        bpf(cmd::MAP_UPDATE_ELEM, &mut attr).map_err(|errno| format!("BPF_MAP_UPDATE_ELEM: {}", errno.name()))?;
        let packet = [0u8; 64];
        let mut attr = Attr::new()
            .with(test_run::PROG_FD, program.as_raw_fd() as u64)
            .with(test_run::DATA_IN, address(&packet))
            .with(test_run::DATA_SIZE_IN, packet.len() as u64)
            .with(test_run::REPEAT, count.into());
        bpf(cmd::PROG_TEST_RUN, &mut attr).map_err(|errno| format!("BPF_PROG_TEST_RUN: {}", errno.name()))?;
        // The kernel tells the mean.
        Ok((attr.get(test_run::DURATION) * u64::from(count), attr.get(test_run::RETVAL)))
    }

    fn show(&self, engine: &str, name: &str) -> Result<(u64, u64), String> {
        let code = self.compiled(engine, &self.verified(name)?)?;
        for instruction in &mut Decoder::new(64, &code.bytes, DecoderOptions::NONE) {
            eprintln!("{:6x}  {instruction}", instruction.ip());
        }
        Ok((code.bytes.len() as u64, 0))
    }

    fn obey(&mut self, line: &str) -> Result<(u64, u64), String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is no number"));
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["filter", ..] => {
                let (name, text) = line["filter ".len()..].split_once(' ').ok_or("no expression")?;
                self.filter(name, text).map(|()| (0, 0))
            }
            ["empty", name] => self.add(name, "r0 = 1\nexit\n").map(|()| (0, 0)),
            ["ask", engine, name, count] => self.ask(engine, name, number(count)?, false),
            ["accept", engine, name] => self.ask(engine, name, 1, true),
            ["code", engine, name] => self.show(engine, name),
            _ => Err(format!("`{line}` is no order")),
        }
    }
}

/// Loads a program whose memory is a map's value: it and the map.
fn load_natively(insns: &[Insn]) -> Result<(OwnedFd, OwnedFd), String> {
    const PSEUDO_MAP_VALUE: u8 = 2;
    let fail = |what: &str, errno: ring3_uapi::Errno| format!("{what}: {}", errno.name());
    let mut attr = Attr::new()
        .with(map_create::MAP_TYPE, map_type::ARRAY.into())
        .with(map_create::KEY_SIZE, 4)
        .with(map_create::VALUE_SIZE, EVENT_BYTES as u64)
        .with(map_create::MAX_ENTRIES, 1);
    let map = owned(bpf(cmd::MAP_CREATE, &mut attr).map_err(|errno| fail("BPF_MAP_CREATE", errno))?);
    let mut all = vec![Insn::new(BPF_LD_IMM64, 1, PSEUDO_MAP_VALUE, 0, map.as_raw_fd()), Insn::new(0, 0, 0, 0, 0)];
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

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [library] = arguments.as_slice() else { return Err("wants a library".into()) };
    let mut bench = Bench::new(library)?;
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match bench.obey(&line) {
            Ok((one, two)) => format!("{one} {two}"),
            Err(why) => format!("error {}", why.replace('\n', " ")),
        };
        println!("{answer}");
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}
