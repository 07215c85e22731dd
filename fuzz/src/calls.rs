//! bpf(2), perf_event_open(2) and ioctl(2) of a hostile loader: attributes of any bytes, with addresses and descriptors that lead
//! somewhere. The loader is this process, whose calls a server's code answers that has no process to instrument.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex};

use ring3_generate::Random;
use ring3_server::loader::objects::Subsystem;
use ring3_server::loader::own_call;
use ring3_server::realm::Realm;
use ring3_uapi::attr::{ATTR_BYTES, Field, batch, btf_load, info, last_field_end, link_create, map_create, map_elem};
use ring3_uapi::attr::{prog_load, raw_tracepoint};
use ring3_uapi::bpf::cmd;

use crate::bytes::Bytes;
use crate::raw_memory::Fenced;

const CALLS_MAX: usize = 24;
/// Descriptors of an input's loader at most.
const HELD_MAX: usize = 64;
/// Memory that attributes lead to.
const MEMORY_BYTES: usize = 0x2000;
const PERF_ATTR_BYTES: usize = 128;
/// `BPF_*` commands that are known, and one that is not.
const COMMANDS: u8 = 40;
/// `PERF_EVENT_IOC_*`.
const REQUESTS: [u64; 8] = [0x2400, 0x2401, 0x2402, 0x2403, 0x8008_2407, 0x4004_2408, 0xc008_240a, 0x4008_2406];

/// One input at a time: each has the server alone.
static SUBSYSTEM: LazyLock<Mutex<Arc<Subsystem>>> = LazyLock::new(|| {
    let realm = Realm::start(0, None, vec![]).expect("shared memory");
    Mutex::new(Subsystem::new(realm))
});

/// A loader, as far as its calls see it.
struct Loader<'s> {
    subsystem: &'s Arc<Subsystem>,
    memory: Fenced,
    held: Vec<OwnedFd>,
}

impl Loader<'_> {
    fn address(&self, at: u16) -> u64 {
        match at {
            0 => 0,
            u16::MAX => u64::MAX - 8,
            at => self.memory.base() as u64 + u64::from(at) % MEMORY_BYTES as u64,
        }
    }

    fn descriptor(&self, number: u8) -> u32 {
        match number {
            0xff => u32::MAX,
            0xfe => 0,
            number => self.held.get(usize::from(number) % HELD_MAX).map_or(1 << 20, |fd| fd.as_raw_fd() as u32),
        }
    }

    fn call(&mut self, number: i64, args: [u64; 6]) {
        if let Ok(Some(fd)) = own_call(self.subsystem, number, args)
            && self.held.len() < HELD_MAX
        {
            self.held.push(fd);
        }
    }

    fn bpf(&mut self, input: &mut Bytes<'_>) {
        let command = u32::from(input.u8() % COMMANDS);
        let mut attr = vec![0; ATTR_BYTES];
        let size = match input.u8() {
            size @ 0..=0x1f => usize::from(size) * 8,
            _ => last_field_end(command).unwrap_or(ATTR_BYTES),
        };
        for at in (0..size.min(ATTR_BYTES)).step_by(8) {
            let word = input.u64();
            attr[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        self.relocate(command, &mut attr);
        self.memory.bytes()[..ATTR_BYTES].copy_from_slice(&attr);
        // Runs of programs are processes of their own, and answered later.
        if command != cmd::PROG_TEST_RUN {
            self.call(libc::SYS_bpf, [command.into(), self.memory.base() as u64, size as u64, 0, 0, 0]);
        }
    }

    /// Members that are addresses or descriptors get some that lead somewhere; what is written there chooses which.
    fn relocate(&self, command: u32, attr: &mut [u8]) {
        let (addresses, descriptors): (&[Field], &[Field]) = match command {
            cmd::MAP_CREATE => (&[], &[map_create::INNER_MAP_FD, map_create::BTF_FD]),
            cmd::MAP_LOOKUP_ELEM
            | cmd::MAP_UPDATE_ELEM
            | cmd::MAP_DELETE_ELEM
            | cmd::MAP_GET_NEXT_KEY
            | cmd::MAP_LOOKUP_AND_DELETE_ELEM
            | cmd::MAP_FREEZE => (&[map_elem::KEY, map_elem::VALUE], &[map_elem::MAP_FD]),
            cmd::MAP_LOOKUP_BATCH
            | cmd::MAP_LOOKUP_AND_DELETE_BATCH
            | cmd::MAP_UPDATE_BATCH
            | cmd::MAP_DELETE_BATCH => {
                (&[batch::IN_BATCH, batch::OUT_BATCH, batch::KEYS, batch::VALUES], &[batch::MAP_FD])
            }
            cmd::PROG_LOAD => (
                &[
                    prog_load::INSNS,
                    prog_load::LICENSE,
                    prog_load::LOG_BUF,
                    prog_load::FUNC_INFO,
                    prog_load::LINE_INFO,
                    prog_load::FD_ARRAY,
                    prog_load::CORE_RELOS,
                ],
                &[prog_load::PROG_BTF_FD, prog_load::ATTACH_PROG_FD],
            ),
            cmd::BTF_LOAD => (&[btf_load::BTF, btf_load::BTF_LOG_BUF], &[]),
            cmd::OBJ_GET_INFO_BY_FD => (&[info::INFO], &[info::BPF_FD]),
            cmd::LINK_CREATE => (&[], &[link_create::PROG_FD, link_create::TARGET_FD]),
            cmd::RAW_TRACEPOINT_OPEN => (&[raw_tracepoint::NAME], &[raw_tracepoint::PROG_FD]),
            cmd::OBJ_PIN | cmd::OBJ_GET => (&[raw_tracepoint::NAME], &[raw_tracepoint::PROG_FD]),
            _ => (&[], &[map_elem::MAP_FD]),
        };
        for Field { at, .. } in addresses {
            let which = u16::from_le_bytes([attr[*at], attr[at + 1]]);
            attr[*at..at + 8].copy_from_slice(&self.address(which).to_le_bytes());
        }
        for Field { at, .. } in descriptors {
            let descriptor = self.descriptor(attr[*at]);
            attr[*at..at + 4].copy_from_slice(&descriptor.to_le_bytes());
        }
    }

    fn perf_event_open(&mut self, input: &mut Bytes<'_>) {
        let kind = input.u8() % 4;
        let mut attr = input.take(PERF_ATTR_BYTES).to_vec();
        attr.resize(PERF_ATTR_BYTES, 0);
        if kind != 0 {
            // A tracepoint, the output of programs, or a PMU by its number; the size is usually right.
            attr[..4].copy_from_slice(&[0u32, 2, 1, 0x1_0000][usize::from(kind)].to_le_bytes());
            attr[4..8].copy_from_slice(&(PERF_ATTR_BYTES as u32).to_le_bytes());
            let name = u16::from_le_bytes([attr[56], attr[57]]);
            attr[56..64].copy_from_slice(&self.address(name).to_le_bytes());
        }
        self.memory.bytes()[..PERF_ATTR_BYTES].copy_from_slice(&attr);
        // Of no process but those that are none, or all targets, of which there are none.
        let pid = if input.u8() & 1 == 0 { -1i64 } else { i64::from(i32::MAX) };
        let (cpu, flags) = (i64::from(input.u8() as i8), u64::from(input.u8() & 0x1f));
        let address = self.memory.base() as u64;
        self.call(libc::SYS_perf_event_open, [address, pid as u64, cpu as u64, u64::MAX, flags, 0]);
    }

    fn ioctl(&mut self, input: &mut Bytes<'_>) {
        let fd = self.descriptor(input.u8());
        let request = REQUESTS[usize::from(input.u8()) % REQUESTS.len()];
        let argument = match request {
            0x4004_2408 => u64::from(self.descriptor(input.u8())),
            _ => self.address(input.u16()),
        };
        self.call(libc::SYS_ioctl, [fd.into(), request, argument, 0, 0, 0]);
    }
}

/// What memory holds, then calls.
pub(crate) fn run(input: &[u8]) {
    let subsystem = SUBSYSTEM.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut input = Bytes(input);
    let mut memory = Fenced::new(MEMORY_BYTES);
    // Attributes are at the beginning.
    let behind = &mut memory.bytes()[ATTR_BYTES..];
    behind.iter_mut().zip(input.part()).for_each(|(to, from)| *to = *from);
    let mut loader = Loader { subsystem: &subsystem, memory, held: vec![] };
    for _ in 0..CALLS_MAX {
        if input.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0..=4 => loader.bpf(&mut input),
            5 | 6 => loader.perf_event_open(&mut input),
            _ => loader.ioctl(&mut input),
        }
    }
}

/// Words of an attribute: offset and value.
fn put_bpf(to: &mut Vec<u8>, command: u32, words: &[(Field, u64)]) {
    let mut attr = vec![0; ATTR_BYTES];
    for (Field { at, bytes }, value) in words {
        attr[*at..at + bytes].copy_from_slice(&value.to_le_bytes()[..*bytes]);
    }
    to.extend([0, command as u8, 0xff]);
    let size = last_field_end(command).unwrap_or(ATTR_BYTES);
    attr.resize(size.next_multiple_of(8), 0);
    to.extend(attr);
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    // What is at the beginning of the part lies behind the attribute.
    const INSNS_AT: u64 = ATTR_BYTES as u64;
    let program = ring3_generate::program(random.next(), random.below(1000));
    let insns: Vec<u8> = program.insns.iter().flat_map(|insn| insn.to_bytes()).collect();
    let short = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0].to_vec();
    let (insns, kind) =
        if random.one_in(2) { (insns, program.prog_type) } else { (short, random.of(&[1, 2, 5, 6, 17, 26, 31])) };
    let mut memory = insns.clone();
    let license_at = INSNS_AT + memory.len() as u64;
    memory.extend(b"GPL\0/sys/fs/bpf/x\0sys_enter\0");
    let types_at = INSNS_AT + memory.len() as u64;
    let types = crate::types::make_btf(random);
    memory.extend(&types);
    let mut input = vec![];
    crate::bytes::put_part(&mut input, &memory);
    for _ in 0..2 + random.below(10) {
        let small = random.below(24);
        match random.below(10) {
            0 | 1 => put_bpf(
                &mut input,
                cmd::MAP_CREATE,
                &[
                    (map_create::MAP_TYPE, random.below(34)),
                    (map_create::KEY_SIZE, random.of(&[0, 4, 4, 8, 16])),
                    (map_create::VALUE_SIZE, random.of(&[0, 4, 8, 8, 24])),
                    (map_create::MAX_ENTRIES, random.of(&[0, 1, 4, 64, 4096])),
                    (map_create::MAP_FLAGS, random.of(&[0, 0, 0, 1, 3, 1 << 10])),
                ],
            ),
            2 => put_bpf(
                &mut input,
                cmd::PROG_LOAD,
                &[
                    (prog_load::PROG_TYPE, kind.into()),
                    (prog_load::INSN_CNT, insns.len() as u64 / 8),
                    (prog_load::INSNS, INSNS_AT),
                    (prog_load::LICENSE, license_at),
                    (prog_load::FUNC_INFO_REC_SIZE, random.of(&[0, 8, 8, 16])),
                    (prog_load::FUNC_INFO_CNT, random.below(3)),
                    (prog_load::FUNC_INFO, INSNS_AT + random.below(32)),
                    (prog_load::PROG_BTF_FD, random.below(6)),
                ],
            ),
            3 => put_bpf(
                &mut input,
                cmd::BTF_LOAD,
                &[(btf_load::BTF, types_at), (btf_load::BTF_SIZE, types.len() as u64 & 0xffff)],
            ),
            4..=6 => put_bpf(
                &mut input,
                random.of(&[1, 2, 3, 4, 21, 24, 25, 26, 27, 22]),
                &[
                    (map_elem::MAP_FD, random.below(6)),
                    (map_elem::KEY, 200 + small),
                    (map_elem::VALUE, 300 + small * 8),
                    (batch::COUNT, random.below(5)),
                    (batch::MAP_FD, random.below(6)),
                ],
            ),
            7 => put_bpf(
                &mut input,
                cmd::OBJ_GET_INFO_BY_FD,
                &[
                    (info::BPF_FD, random.below(6)),
                    (info::INFO_LEN, random.of(&[32, 64, 104, 232])),
                    (info::INFO, 400),
                ],
            ),
            8 => {
                input.extend([5, random.below(4) as u8]);
                let mut attr = vec![0; PERF_ATTR_BYTES];
                attr[8] = random.of(&[10, 10, 1, 0x60]);
                attr[56..58].copy_from_slice(&(license_at as u16 + random.of(&[4, 20])).to_le_bytes());
                input.extend(attr);
                input.extend([0, 0, 8]);
            }
            _ => input.extend([7, random.below(6) as u8, random.next() as u8, random.below(6) as u8, 1]),
        }
    }
    if random.one_in(3) {
        crate::damage(&mut input, random);
    }
    input
}
