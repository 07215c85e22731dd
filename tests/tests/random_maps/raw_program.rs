//! The program that does on a map what a control record says, and the process in which it runs.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ring3_uapi::attr::{Field, map_create, map_elem, prog_load};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_uapi::{Errno, helper, perf};

use super::generate::{PROGRAM_KEY_MAX, PROGRAM_VALUE_MAX};
use super::kinds::Shape;
use super::raw_calls::{bpf_fd, ioctl, perf_event_open};
use crate::calls::raw_bpf::{Attr, address, bpf};
use crate::calls::site::{probed, site};

/// The control record: operation, flags, result, key, value.
const FLAGS_AT: u32 = 8;
const RESULT_AT: u32 = 16;
const KEY_AT: u32 = 24;
const VALUE_AT: u32 = KEY_AT + PROGRAM_KEY_MAX;
const RECORD_BYTES: usize = (VALUE_AT + PROGRAM_VALUE_MAX) as usize;

/// `BPF_F_RDONLY_PROG` and `BPF_F_WRONLY_PROG`.
const RDONLY_PROG: u64 = 0x80;
const WRONLY_PROG: u64 = 0x100;

/// The operations, by their numbers in the record.
const OPERATIONS: [&str; 7] =
    ["prog-lookup", "prog-update", "prog-delete", "prog-add", "prog-push", "prog-pop", "prog-peek"];

/// An instruction.
const fn insn(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (offset as u16 as u64) << 16
        | (immediate as u32 as u64) << 32
}

const LOAD: u8 = 0x79;
const STORE: u8 = 0x7b;
const STORE_NUMBER: u8 = 0x7a;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const ATOMIC_ADD: u8 = 0xdb;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const SKIP_IF: u8 = 0x15;
const SKIP_UNLESS: u8 = 0x55;

fn load_map(register: u8, how: u8, map: &OwnedFd) -> [u64; 2] {
    [insn(0x18, register, how, 0, map.as_raw_fd()), 0]
}

/// Copies a value from r0 into the record, in pieces of 8, 4, 2 and 1 bytes.
fn copy_value(bytes: u32) -> Vec<u64> {
    let (mut code, mut at) = (vec![], 0u32);
    for (size, load, store) in [(8, 0x79, 0x7b), (4, 0x61, 0x63), (2, 0x69, 0x6b), (1, 0x71, 0x73)] {
        while bytes - at >= size {
            code.push(insn(load, 1, 0, at as i16, 0));
            code.push(insn(store, 6, 1, (VALUE_AT + at) as i16, 0));
            at += size;
        }
    }
    code
}

/// The code of one operation: r6 is the record; the result goes to r0.
fn operation(name: &str, map: &OwnedFd, value_bytes: u32) -> Vec<u64> {
    let mut code = load_map(1, 1, map).to_vec();
    let mut pointer = |register: u8, at: u32| {
        code.push(insn(MOVE, register, 6, 0, 0));
        code.push(insn(ADD, register, 0, 0, at as i32));
    };
    if matches!(name, "prog-push" | "prog-pop" | "prog-peek") {
        pointer(2, VALUE_AT);
        code.push(insn(LOAD, 3, 6, FLAGS_AT as i16, 0));
    } else {
        pointer(2, KEY_AT);
        pointer(3, VALUE_AT);
        code.push(insn(LOAD, 4, 6, FLAGS_AT as i16, 0));
    }
    let number = match name {
        "prog-lookup" | "prog-add" => helper::MAP_LOOKUP_ELEM,
        "prog-update" => helper::MAP_UPDATE_ELEM,
        "prog-delete" => helper::MAP_DELETE_ELEM,
        "prog-push" => helper::MAP_PUSH_ELEM,
        "prog-pop" => helper::MAP_POP_ELEM,
        _ => helper::MAP_PEEK_ELEM,
    };
    code.push(insn(CALL, 0, 0, 0, number as i32));
    let mut found = match name {
        "prog-lookup" => copy_value(value_bytes),
        "prog-add" => vec![insn(LOAD, 1, 6, FLAGS_AT as i16, 0), insn(ATOMIC_ADD, 0, 1, 0, 0)],
        _ => return code,
    };
    found.push(insn(SET, 0, 0, 0, 1));
    code.push(insn(SKIP_IF, 0, 0, found.len() as i16, 0));
    code.extend(found);
    code
}

fn code(of: Shown<'_>, control: &OwnedFd, verbs: impl Fn(&str) -> bool) -> Vec<u64> {
    let mut code = load_map(6, 2, control).to_vec();
    code.push(insn(LOAD, 7, 6, 0, 0));
    for (number, name) in OPERATIONS.iter().enumerate().filter(|(_, name)| of.fits(name) && verbs(name)) {
        let mut done = operation(name, of.map, of.value_bytes);
        done.push(insn(STORE, 6, 0, RESULT_AT as i16, 0));
        // Once: programs on other maps run at the same calls.
        done.push(insn(STORE_NUMBER, 6, 0, 0, -1));
        code.push(insn(SKIP_UNLESS, 7, 0, done.len() as i16, number as i32));
        code.extend(done);
    }
    code.extend([insn(SET, 0, 0, 0, 0), insn(EXIT, 0, 0, 0, 0)]);
    code
}

/// What a program knows of its map.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'m> {
    pub(crate) map: &'m OwnedFd,
    pub(crate) shape: Shape,
    pub(crate) value_bytes: u32,
    /// `BPF_F_*` that it was made with.
    pub(crate) flags: u64,
}

impl Shown<'_> {
    /// Whether the type has this operation.
    pub(crate) fn fits(&self, verb: &str) -> bool {
        let keyed = !matches!(self.shape, Shape::Queue | Shape::Bloom | Shape::Other);
        match verb {
            "prog-add" => keyed && self.value_bytes >= 8,
            "prog-lookup" | "prog-update" | "prog-delete" => keyed,
            "prog-pop" => self.shape == Shape::Queue,
            "prog-push" | "prog-peek" => matches!(self.shape, Shape::Queue | Shape::Bloom),
            _ => false,
        }
    }

    /// Whether programs may do it with this map.
    pub(crate) fn allows(&self, verb: &str) -> bool {
        let reads = matches!(verb, "prog-lookup" | "prog-add");
        let writes = matches!(verb, "prog-update" | "prog-delete" | "prog-add" | "prog-push" | "prog-pop");
        !(reads && self.flags & WRONLY_PROG != 0 || writes && self.flags & RDONLY_PROG != 0)
    }
}

fn control() -> Result<OwnedFd, Errno> {
    use map_create as m;
    let attr = Attr::new().with(m::MAP_TYPE, map_type::ARRAY.into()).with(m::KEY_SIZE, 4);
    bpf_fd(cmd::MAP_CREATE, &mut attr.with(m::VALUE_SIZE, RECORD_BYTES as u64).with(m::MAX_ENTRIES, 1))
}

fn load(insns: &[u64]) -> Result<OwnedFd, Errno> {
    let mut attr = Attr::new()
        .with(prog_load::PROG_TYPE, prog_type::KPROBE.into())
        .with(prog_load::INSN_CNT, insns.len() as u64)
        .with(prog_load::INSNS, address(insns))
        .with(prog_load::LICENSE, address(c"GPL".to_bytes_with_nul()));
    bpf_fd(cmd::PROG_LOAD, &mut attr)
}

/// What comes of loading a program that does just this.
///
/// # Errors
/// The kernel's or ring3's.
pub(crate) fn try_load(of: Shown<'_>, verb: &str) -> Result<(), Errno> {
    load(&code(of, &control()?, |name| name == verb)).map(drop)
}

/// A loaded program on a map, attached to the victim's function.
pub(crate) struct Program {
    control: OwnedFd,
    _held: [OwnedFd; 2],
}

impl Program {
    /// A program for all that the map allows.
    ///
    /// # Errors
    /// The kernel's or ring3's.
    pub(crate) fn attach(of: Shown<'_>, victim: &Victim) -> Result<Program, Errno> {
        let control = control()?;
        let program = load(&code(of, &control, |verb| of.allows(verb)))?;
        let event = perf_event_open(&uprobe(), victim.pid)?;
        ioctl(&event, perf::IOC_SET_BPF, program.as_raw_fd() as u64)?;
        ioctl(&event, perf::IOC_ENABLE, 0)?;
        Ok(Program { control, _held: [program, event] })
    }

    fn call_control(&self, command: u32, record: &mut [u8; RECORD_BYTES]) -> Result<i64, Errno> {
        let key = 0u32;
        let attr = Attr::new().with(map_elem::MAP_FD, self.control.as_raw_fd() as u64);
        let attr = attr.with(map_elem::KEY, &raw const key as u64);
        bpf(command, &mut attr.with(map_elem::VALUE, record.as_mut_ptr() as u64))
    }

    /// Has the program do something: its result, and what the record's value is then.
    ///
    /// # Errors
    /// Why it could not be asked.
    pub(crate) fn run(
        &self,
        victim: &mut Victim,
        verb: &str,
        (key, value): (&[u8], &[u8]),
        flags: u64,
    ) -> Result<(i64, Vec<u8>), String> {
        let number = OPERATIONS.iter().position(|name| *name == verb).ok_or("unknown")?;
        let mut record = [0u8; RECORD_BYTES];
        let mut put = |at: u32, bytes: &[u8]| record[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(0, &(number as u64).to_ne_bytes());
        put(FLAGS_AT, &flags.to_ne_bytes());
        // What a program that did not run leaves.
        put(RESULT_AT, &i64::MIN.to_ne_bytes());
        put(KEY_AT, key);
        put(VALUE_AT, value);
        self.call_control(cmd::MAP_UPDATE_ELEM, &mut record).map_err(|errno| errno.name().to_owned())?;
        victim.call().map_err(|error| error.to_string())?;
        self.call_control(cmd::MAP_LOOKUP_ELEM, &mut record).map_err(|errno| errno.name().to_owned())?;
        let told = i64::from_ne_bytes(record[RESULT_AT as usize..][..8].try_into().expect("8 bytes"));
        Ok((told, record[VALUE_AT as usize..][..value.len()].to_vec()))
    }
}

/// `struct perf_event_attr` of a uprobe on [`probed`].
fn uprobe() -> [u8; 136] {
    thread_local! { static SITE: (CString, u64) = site(); }
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").unwrap_or_default();
    let kind: u64 = text.trim().parse().unwrap_or(0);
    // The path lives as long as the thread.
    let (path, offset) = SITE.with(|(path, offset)| (path.as_ptr() as u64, *offset));
    let mut attr = [0u8; 136];
    let mut put = |field: Field, value: u64| {
        attr[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
    };
    put(perf::TYPE, kind);
    put(perf::SIZE, 136);
    put(perf::CONFIG1, path);
    put(perf::CONFIG2, offset);
    attr
}

/// The process in which programs run, as the executor has it.
pub(crate) struct Victim {
    pid: i32,
    stream: UnixStream,
}

impl Victim {
    /// From its connection.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn new(mut stream: UnixStream) -> std::io::Result<Victim> {
        let mut pid = [0; 4];
        stream.read_exact(&mut pid)?;
        Ok(Victim { pid: i32::from_ne_bytes(pid), stream })
    }

    /// Has it call the probed function once.
    fn call(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&[1])?;
        self.stream.read_exact(&mut [0])
    }

    /// What the victim's process does: a call for each byte, until there are no more.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn serve(mut stream: UnixStream) -> std::io::Result<()> {
        stream.write_all(&std::process::id().to_ne_bytes())?;
        let mut byte = [0];
        while stream.read(&mut byte)? == 1 {
            std::hint::black_box(probed(byte[0].into(), 2));
            stream.write_all(&byte)?;
        }
        Ok(())
    }
}
