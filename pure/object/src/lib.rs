//! The bytes of a BPF object file, and those of a kernel's types, to programs as `BPF_PROG_LOAD` wants them.
//!
//! Runs: anywhere.
//! May touch: the bytes it is given, which are hostile.
//! Never: panics on a corrupt file; does I/O; makes a map or loads a program.
//! Start reading at: `Object::load`.
//!
//! Does what libbpf does between opening an object and its first system call, with the same results: the layouts of
//! sections, relocations of maps, externs and calls, and CO-RE. What cannot be had on this kernel is no error unless it
//! is one in libbpf; instructions that need it become calls that the verifier refuses if they can be reached.
#![forbid(unsafe_code)]

mod attach;
mod error;
mod extended;
mod externs;
mod file;
mod kernel;
mod maps;
mod program;
mod relocate;
mod types;

use std::collections::BTreeMap;

use ring3_btf::Btf;
use ring3_isa::Insn;

pub use error::Error;
pub use file::embedded;
pub use kernel::Kernel;

/// What programs can ask of a kernel besides its types.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `LINUX_KERNEL_VERSION`, as `KERNEL_VERSION()` makes it.
    pub version: u32,
    /// `LINUX_HAS_BPF_COOKIE`.
    pub cookies: bool,
    /// `LINUX_HAS_SYSCALL_WRAPPER`.
    pub syscall_wrappers: bool,
    /// `CONFIG_*` as they are written in the kernel's configuration.
    pub config: BTreeMap<String, String>,
    /// Addresses of the kernel's symbols, for untyped `.ksyms`.
    pub symbols: BTreeMap<String, u64>,
    /// The program extends another one, whose symbols `.ksyms` names.
    pub host: Option<HostSymbols>,
    /// Functions that are no kernel's, for typed `.ksyms`: the number that calls name them by, as if they were helpers.
    pub functions: BTreeMap<String, u32>,
    /// If there are only functions in `.text`, those that are global are programs, as in objects for other virtual machines than the
    /// kernel's.
    pub text_programs: bool,
}

/// The symbols of the host of an extension. Instructions name them by their index: calls have
/// [`ring3_uapi::helper::HOST_MARK`] as their offset, and [`ring3_uapi::helper::HOST_FUNCTION_FIRST`] plus the index, or the number of a function of the agent.
#[derive(Clone, Debug, Default)]
pub struct HostSymbols {
    /// Functions.
    pub functions: Vec<String>,
    /// Variables.
    pub variables: Vec<String>,
}

/// An object file that was made ready.
#[derive(Clone, Debug)]
pub struct Object {
    /// The license that its programs declare.
    pub license: String,
    /// Its maps. Instructions name them by their index here.
    pub maps: Vec<MapDef>,
    /// Its programs, in the order of the file.
    pub programs: Vec<Program>,
    /// Its types, as `BPF_BTF_LOAD` wants them.
    pub btf: Option<Btf>,
}

/// A map to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names are those of union bpf_attr")]
pub struct MapDef {
    /// Whole; the kernel takes 15 bytes.
    pub name: String,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub numa_node: u32,
    pub map_extra: u64,
    /// What its values are like, if they are maps.
    pub inner: Option<Box<MapDef>>,
    /// What it holds from the beginning, by index: other objects of the file.
    pub slots: Vec<(u32, Slot)>,
    /// The value to begin with, at key 0.
    pub initial: Option<Vec<u8>>,
    /// To be frozen once it has that value.
    pub frozen: bool,
    /// To be pinned by its name (`LIBBPF_PIN_BY_NAME`).
    pub pinned: bool,
    /// Type of its keys; 0: not told.
    pub key_type: u32,
    /// Type of its values; 0: not told.
    pub value_type: u32,
}

impl MapDef {
    /// A map of this type, with bytes of a key and of a value, and entries. All else is as for a map that asks for nothing.
    pub fn new(
        name: impl Into<String>,
        map_type: u32,
        (key_size, value_size): (u32, u32),
        max_entries: u32,
    ) -> MapDef {
        MapDef { name: name.into(), map_type, key_size, value_size, max_entries, ..MapDef::default() }
    }
}

/// What a map of objects holds from the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A map, by its index in [`Object::maps`].
    Map(usize),
    /// A program, by name.
    Program(String),
}

/// A program to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its function's name, whole; the kernel takes 15 bytes.
    pub name: String,
    /// Its section's name, without the `?` of programs that are not loaded unasked.
    pub section: String,
    /// Whether it is loaded unasked.
    pub autoload: bool,
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// `BPF_*` of `enum bpf_attach_type`.
    pub expected_attach_type: u32,
    /// What the section says that it is attached to.
    pub attach_to: Option<String>,
    /// The type of that in the kernel; 0: the program wants none, or the kernel has none.
    pub attach_btf_id: u32,
    /// Flags of `BPF_PROG_LOAD`.
    pub flags: u32,
    /// Its instructions, those of the functions that it calls behind its own.
    pub insns: Vec<Insn>,
    /// Where functions begin (instructions), and their types.
    pub func_info: Vec<(u32, u32)>,
    /// `struct bpf_line_info`, with offsets in instructions.
    pub line_info: Vec<[u32; 4]>,
}

impl Program {
    /// A program of this type that comes from no file: it has no section and no types, and is attached to nothing by itself.
    pub fn new(name: impl Into<String>, prog_type: u32, insns: Vec<Insn>) -> Program {
        Program {
            name: name.into(),
            section: String::new(),
            autoload: true,
            prog_type,
            expected_attach_type: 0,
            attach_to: None,
            attach_btf_id: 0,
            flags: 0,
            insns,
            func_info: vec![],
            line_info: vec![],
        }
    }
}

impl Settings {
    /// Of a kernel, by its release (`6.18.2-custom`) and its configuration, which may be empty.
    pub fn of_kernel(release: &str, configuration: &str) -> Settings {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0u32);
        let version = next() << 16 | next() << 8 | next().min(255);
        let lines = configuration.lines().filter(|line| !line.starts_with('#'));
        let set = lines.filter_map(|line| line.split_once('='));
        let config: BTreeMap<String, String> = set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        // libbpf finds that out by making a kprobe.
        let syscall_wrappers = config.contains_key("CONFIG_KPROBES");
        Settings { version, cookies: true, syscall_wrappers, config, ..Settings::default() }
    }
}

impl Object {
    /// Whether its programs may call GPL-only helpers.
    pub fn is_gpl_compatible(&self) -> bool {
        ring3_uapi::bpf::is_gpl_compatible(&self.license)
    }

    /// Reads an object file and fits it to a kernel.
    ///
    /// # Errors
    /// What of the file is damaged, unknown, or demanded of the kernel in vain.
    pub fn load(bytes: &[u8], kernel: &Kernel, settings: &Settings) -> Result<Object, Error> {
        let file = file::File::parse(bytes)?;
        let license = file.section("license").map_or(String::new(), |(_, section)| {
            let text = section.data.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        });
        let types = match file.section(".BTF") {
            Some((_, section)) => {
                Some(Btf::parse_any(section.data.to_vec()).map_err(|(_, what)| Error::types(what))?)
            }
            None => None,
        };
        let externs = externs::Externs::collect(&file, types.as_ref())?;
        let fixed = match &types {
            Some(types) => {
                let bytes = types::fixed(types, &file, &externs)?;
                Some(Btf::parse_any(bytes).map_err(|(_, what)| Error::types(what))?)
            }
            None => None,
        };
        let maps = maps::Maps::collect(&file, fixed.as_ref(), externs.configuration(settings)?)?;
        let resolved = externs.resolve(types.as_ref(), kernel, settings)?;
        let extended = extended::Extended::parse(&file, types.as_ref())?;
        let mut functions = program::Functions::cut(&file)?;
        if let Some(types) = &types {
            relocate::apply(&mut functions, &file, &extended, types, kernel)?;
        }
        functions.refer(&file, &maps, &resolved)?;
        let programs = functions.programs(&file, &extended, kernel, settings.text_programs)?;
        Ok(Object { license, maps: maps.defs, programs, btf: fixed })
    }
}
