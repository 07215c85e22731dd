//! What maps hold, and what programs are.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use ring3_uapi::attr::{PROG_INFO_BYTES, batch, info, map_elem, prog_info};
use ring3_uapi::bpf::cmd;
use ring3_uapi::perf;

use crate::attach::{event, set};
use crate::raw_calls::{Attr, open_event};

/// Elements that are asked for at once, at first.
const BATCH: usize = 512;
/// Bytes of a batch at most.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// `PERF_SAMPLE_RAW`.
const SAMPLE_RAW: u64 = 1 << 10;

/// What the kernel tells of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Its id.
    pub id: u32,
    /// Digest of its instructions.
    pub tag: [u8; 8],
}

/// Looks at a program.
///
/// # Errors
/// As `BPF_OBJ_GET_INFO_BY_FD`.
pub fn program_info(program: &impl AsFd) -> io::Result<ProgramInfo> {
    let mut told = [0; PROG_INFO_BYTES];
    let mut attr = Attr::new(cmd::OBJ_GET_INFO_BY_FD);
    attr.word(info::BPF_FD, program.as_fd().as_raw_fd() as u32).word(info::INFO_LEN, PROG_INFO_BYTES as u32);
    attr.room(info::INFO, &mut told).call()?;
    drop(attr);
    let id = told[prog_info::ID.at..prog_info::ID.end()].try_into().expect("4 bytes");
    let tag = told[prog_info::TAG.at..prog_info::TAG.end()].try_into().expect("8 bytes");
    Ok(ProgramInfo { id: u32::from_ne_bytes(id), tag })
}

/// An element of a map, as long as `value`.
///
/// # Errors
/// As `BPF_MAP_LOOKUP_ELEM`.
pub fn look_up(map: &impl AsFd, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    let mut attr = Attr::new(cmd::MAP_LOOKUP_ELEM);
    attr.word(map_elem::MAP_FD, map.as_fd().as_raw_fd() as u32);
    attr.buffer(map_elem::KEY, key).room(map_elem::VALUE, value);
    attr.call()
}

fn next_key(map: &impl AsFd, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<()> {
    let mut attr = Attr::new(cmd::MAP_GET_NEXT_KEY);
    attr.word(map_elem::MAP_FD, map.as_fd().as_raw_fd() as u32);
    if let Some(key) = key {
        attr.buffer(map_elem::KEY, key);
    }
    attr.room(map_elem::NEXT_KEY, next).call()
}

/// All elements of a map, in its order: keys, and values as bpf(2) writes them (`value_bytes`: for maps with a value for each CPU,
/// all of them). Elements that are added or removed meanwhile may be missing.
///
/// # Errors
/// As `BPF_MAP_LOOKUP_BATCH`, or where a map has no batches as `BPF_MAP_GET_NEXT_KEY` and `BPF_MAP_LOOKUP_ELEM`.
pub fn entries(map: &impl AsFd, key_bytes: usize, value_bytes: usize) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    /// `ENOTSUPP`, which is the kernel's own.
    const NOT_SUPPORTED: i32 = 524;
    match by_batches(map, key_bytes, value_bytes) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | NOT_SUPPORTED)) => {
            one_by_one(map, key_bytes, value_bytes)
        }
        result => result,
    }
}

fn by_batches(map: &impl AsFd, key_bytes: usize, value_bytes: usize) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut found, mut place) = (vec![], None::<Vec<u8>>);
    let mut wanted = BATCH;
    loop {
        let (mut keys, mut values) = (vec![0; wanted * key_bytes], vec![0; wanted * value_bytes]);
        // (Where a hash goes on is a word, where others do is a key.)
        let mut next = vec![0; key_bytes.max(8)];
        let mut attr = Attr::new(cmd::MAP_LOOKUP_BATCH);
        attr.word(batch::MAP_FD, map.as_fd().as_raw_fd() as u32).word(batch::COUNT, wanted as u32);
        if let Some(place) = &place {
            attr.buffer(batch::IN_BATCH, place);
        }
        attr.room(batch::OUT_BATCH, &mut next).room(batch::KEYS, &mut keys).room(batch::VALUES, &mut values);
        let result = attr.call();
        let count = (attr.left(batch::COUNT) as usize).min(wanted);
        drop(attr);
        let is_last = match &result {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            // A bucket of the hash has more elements than there was room for.
            Err(error)
                if error.raw_os_error() == Some(libc::ENOSPC)
                    && wanted * 2 * (key_bytes + value_bytes) <= BATCH_BYTES_MAX =>
            {
                wanted *= 2;
                continue;
            }
            Err(_) => return result.map(|()| vec![]),
        };
        let keys = keys.chunks_exact(key_bytes).take(count).map(<[u8]>::to_vec);
        found.extend(keys.zip(values.chunks_exact(value_bytes).map(<[u8]>::to_vec)));
        if is_last {
            return Ok(found);
        }
        place = Some(next);
    }
}

fn one_by_one(map: &impl AsFd, key_bytes: usize, value_bytes: usize) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut found, mut key) = (vec![], None::<Vec<u8>>);
    loop {
        let (mut next, mut value) = (vec![0; key_bytes], vec![0; value_bytes]);
        match next_key(map, key.as_deref(), &mut next) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
            Err(error) => return Err(error),
        }
        match look_up(map, &next, &mut value) {
            Ok(()) => found.push((next.clone(), value)),
            // It was removed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
        key = Some(next);
    }
}

/// How many CPUs there may ever be: values of maps with one for each CPU have that many parts.
///
/// # Errors
/// `/sys/devices/system/cpu/possible` cannot be read, or says something else than ranges.
pub fn possible_cpus() -> io::Result<usize> {
    listed_cpus("possible").map(|cpus| cpus.last().map_or(0, |last| *last as usize + 1))
}

/// The CPUs that run.
///
/// # Errors
/// `/sys/devices/system/cpu/online` cannot be read, or says something else than ranges.
pub fn online_cpus() -> io::Result<Vec<u32>> {
    listed_cpus("online")
}

/// A list such as `0-3,8`.
fn listed_cpus(which: &str) -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}"))?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let ranges: Option<Vec<std::ops::RangeInclusive<u32>>> = text.trim().split(',').map(range).collect();
    let ranges = ranges.ok_or_else(|| io::Error::other(format!("{which} CPUs are `{}`", text.trim())))?;
    Ok(ranges.into_iter().flatten().collect())
}

/// The event of a CPU into which `bpf_perf_event_output` writes, for an element of a map of such events; map it with
/// [`crate::OutputRing`].
///
/// # Errors
/// As perf_event_open(2).
pub fn open_output(cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = event(perf::TYPE_SOFTWARE, perf::COUNT_SW_BPF_OUTPUT);
    set(&mut attr, perf::SAMPLE_PERIOD, &1u64.to_ne_bytes());
    set(&mut attr, perf::SAMPLE_TYPE, &SAMPLE_RAW.to_ne_bytes());
    set(&mut attr, perf::WAKEUP_EVENTS, &1u32.to_ne_bytes());
    open_event(&attr, -1, cpu as i32)
}
