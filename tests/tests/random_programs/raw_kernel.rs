//! The kernel's verdict.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ring3_btf::{Btf, kind};
use ring3_generate::{MAPS, Program};
use ring3_isa::{Call, Immediate, Insn, Op, code, op};
use ring3_uapi::Errno;
use ring3_uapi::attr::{btf_load, map_create, map_elem, prog_load};
use ring3_uapi::bpf::{cmd, prog_type};
use ring3_uapi::flags::BPF_F_RDONLY_PROG;
use ring3_uapi::helper::{KFUNC_FIRST, KFUNC_NAMES};

use super::reasons::calls_back;
use crate::raw_bpf::{Attr, address, bpf};

/// Room for the text that says why.
const LOG_BYTES: usize = 1 << 22;

fn bpf_fd(command: u32, attr: &mut Attr) -> Result<OwnedFd, Errno> {
    let fd = bpf(command, attr)?;
    // SAFETY: the call made the descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `int`, a function of no argument that returns it, and a static function `f` of that type.
#[rustfmt::skip]
const BTF: [u32; 19] = [
    0x0001_eb9f, 24, 0, 40, 40, 8,
    1, 0x0100_0000, 4, 0x0100_0020,
    0, 0x0d00_0000, 1,
    5, 0x0c00_0000, 2,
    // "\0int\0f\0", after which nothing may follow.
    u32::from_le_bytes(*b"\0int"), u32::from_le_bytes(*b"\0f\0\0"),
    0,
];
const BTF_BYTES: u64 = 24 + 40 + 8;
/// The function's number in it.
const BTF_FUNCTION: u32 = 3;

/// Where subprograms start, as `struct bpf_func_info`: the kernel calls back none that has no type.
fn functions(insns: &[Insn]) -> Vec<[u32; 2]> {
    let mut starts = std::collections::BTreeSet::from([0]);
    for at in 0..insns.len() {
        let decoded = op(insns, at);
        if let Ok(Op::Call(Call::Local(target)) | Op::LoadImm64 { value: Immediate::Func(target), .. }) = decoded {
            starts.insert(target as u32);
        }
    }
    starts.into_iter().map(|start| [start, BTF_FUNCTION]).collect()
}

fn kfuncs() -> Vec<Option<u32>> {
    let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok().and_then(|bytes| Btf::parse(bytes).ok());
    let id_of = |name: &&str| {
        let is_it = |found: &[u8]| found.strip_prefix(b"bpf_") == Some(name.as_bytes());
        btf.as_ref()?.of_kind(kind::FUNC).find(|(_, found)| is_it(found)).map(|(id, _)| id)
    };
    KFUNC_NAMES.iter().map(id_of).collect()
}

/// The maps and the types, made once.
pub(crate) struct Kernel {
    /// By program type: an array of programs takes those of one type only.
    fds: BTreeMap<u32, Vec<i32>>,
    btf: OwnedFd,
    /// The kernel's ids of the functions of `KFUNC_NAMES`, as far as it has them.
    kfuncs: Vec<Option<u32>>,
    _maps: Vec<OwnedFd>,
}

impl Kernel {
    /// # Errors
    /// The kernel's, for maps.
    pub(crate) fn new() -> Result<Kernel, Errno> {
        let (mut maps, mut fds) = (vec![], BTreeMap::<u32, Vec<i32>>::new());
        let types = [prog_type::SOCKET_FILTER, prog_type::XDP, prog_type::KPROBE];
        for (prog_type, map) in types.into_iter().flat_map(|prog_type| MAPS.iter().map(move |map| (prog_type, map))) {
            let flags = if map.constant.is_some() { BPF_F_RDONLY_PROG } else { 0 };
            let mut attr = Attr::new()
                .with(map_create::MAP_TYPE, map.map_type.into())
                .with(map_create::KEY_SIZE, map.key_bytes.into())
                .with(map_create::VALUE_SIZE, map.value_bytes.into())
                .with(map_create::MAX_ENTRIES, map.entries.into())
                .with(map_create::MAP_FLAGS, flags.into());
            let fd = bpf_fd(cmd::MAP_CREATE, &mut attr)?;
            if let Some(constant) = map.constant {
                let attr = Attr::new().with(map_elem::MAP_FD, fd.as_raw_fd() as u64);
                let value = attr.clone().with(map_elem::KEY, address(&0u32)).with(map_elem::VALUE, address(constant));
                bpf(cmd::MAP_UPDATE_ELEM, &mut value.clone())?;
                bpf(cmd::MAP_FREEZE, &mut attr.clone())?;
            }
            fds.entry(prog_type).or_default().push(fd.as_raw_fd());
            maps.push(fd);
        }
        let mut attr = Attr::new().with(btf_load::BTF, address(&BTF)).with(btf_load::BTF_SIZE, BTF_BYTES);
        let btf = bpf_fd(cmd::BTF_LOAD, &mut attr)?;
        Ok(Kernel { fds, btf, kfuncs: kfuncs(), _maps: maps })
    }

    /// The program with the kernel's numbers of its functions.
    fn translated(&self, program: &Program) -> Program {
        let mut program = program.clone();
        for insn in &mut program.insns {
            let number =
                (insn.imm as u32).checked_sub(KFUNC_FIRST).and_then(|index| *self.kfuncs.get(index as usize)?);
            if insn.opcode == code::BPF_CALL && insn.src() == code::BPF_PSEUDO_KFUNC_CALL {
                insn.imm = number.map_or(insn.imm, |id| id as i32);
            }
        }
        program
    }

    /// `functions` must outlive the attributes.
    fn attr(&self, program: &Program, functions: &[[u32; 2]]) -> Attr {
        let attr = if functions.is_empty() {
            Attr::new()
        } else {
            Attr::new()
                .with(prog_load::PROG_BTF_FD, self.btf.as_raw_fd() as u64)
                .with(prog_load::FUNC_INFO_REC_SIZE, 8)
                .with(prog_load::FUNC_INFO, address(functions))
                .with(prog_load::FUNC_INFO_CNT, functions.len() as u64)
        };
        attr.with(prog_load::PROG_TYPE, program.prog_type.into())
            .with(prog_load::INSN_CNT, program.insns.len() as u64)
            .with(prog_load::INSNS, address(program.insns.as_slice()))
            .with(prog_load::LICENSE, address(c"GPL"))
            .with(prog_load::FD_ARRAY, address(self.fds[&program.prog_type].as_slice()))
    }

    /// Whether the kernel takes it.
    pub(crate) fn accepts(&self, program: &Program) -> bool {
        let functions = if calls_back(program) { functions(&program.insns) } else { vec![] };
        let program = self.translated(program);
        bpf_fd(cmd::PROG_LOAD, &mut self.attr(&program, &functions)).is_ok()
    }

    /// What the kernel says to it; `Err` has the log of a refusal.
    pub(crate) fn judge(&self, program: &Program) -> Result<(), String> {
        let log = vec![0u8; LOG_BYTES];
        let functions = if calls_back(program) { functions(&program.insns) } else { vec![] };
        let program = self.translated(program);
        let attr =
            self.attr(&program, &functions).with(prog_load::LOG_LEVEL, 1).with(prog_load::LOG_SIZE, LOG_BYTES as u64);
        let mut attr = attr.with(prog_load::LOG_BUF, address(log.as_slice()));
        match bpf_fd(cmd::PROG_LOAD, &mut attr) {
            Ok(_) => Ok(()),
            Err(errno) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
                Err(format!("{}errno {}", String::from_utf8_lossy(&log[..end]), errno.0))
            }
        }
    }
}

/// The instruction that a log ends with.
pub(crate) fn refused_at(log: &str) -> Option<usize> {
    let number = |line: &str| line.split_once(": (").and_then(|(number, _)| number.parse().ok());
    log.lines().rev().find_map(number)
}

/// The line of a log that says what is wrong.
pub(crate) fn message(log: &str) -> String {
    // Of a log that is too long the kernel keeps the end, from the middle of a line on.
    let cut = usize::from(log.len() >= LOG_BYTES - 1);
    let lines: Vec<&str> = log.lines().skip(cut).filter(|line| !line.starts_with("processed ")).collect();
    let said = |line: &&&str| {
        let insn = line.split_once(": ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let other = [
            "from ",
            "mark_precise",
            "errno ",
            "func#",
            "verification time",
            "stack depth",
            "; ",
            "caller:",
            "old state:",
            "cur state:",
        ];
        !insn && !line.is_empty() && !other.iter().any(|start| line.starts_with(start))
    };
    let last = lines.iter().rfind(said).or(lines.last());
    last.map_or_else(String::new, |line| (*line).to_owned())
}
