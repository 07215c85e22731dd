//! Calls that scenarios make, and how they show what came of them.

use crate::calls::raw_bpf::{Attr, address, bpf};
use ring3_uapi::Errno;
use ring3_uapi::attr;
use ring3_uapi::attr::Field;
use ring3_uapi::bpf::cmd;

/// What starts a line of a scenario's output; the rest is the test harness's.
pub(crate) const MARK: &str = "| ";

/// Prints a result: descriptors differ from run to run, so only their being there counts.
pub(crate) fn show(what: &str, outcome: Result<i64, Errno>) {
    match outcome {
        Ok(value) => println!("{MARK}{what}: {value}"),
        Err(errno) => println!("{MARK}{what}: {}", errno.name()),
    }
}

pub(crate) fn show_fd(what: &str, outcome: Result<i64, Errno>) -> i64 {
    show(what, outcome.map(|_| 0));
    outcome.unwrap_or(-1)
}

pub(crate) fn create(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> Attr {
    use attr::map_create as m;
    let attr = Attr::new().with(m::MAP_TYPE, kind.into()).with(m::KEY_SIZE, key.into());
    attr.with(m::VALUE_SIZE, value.into()).with(m::MAX_ENTRIES, entries.into()).with(m::MAP_FLAGS, flags.into())
}

/// An operation on one element; the value behind it is printed.
pub(crate) fn element(
    map: i64,
    command: u32,
    key: Option<&[u8]>,
    value: &mut [u8],
    flags: u64,
) -> Result<i64, Errno> {
    use attr::map_elem as e;
    let attr = Attr::new().with(e::MAP_FD, map as u64).with(e::KEY, key.map_or(0, address));
    bpf(command, &mut attr.with(e::VALUE, value.as_mut_ptr() as u64).with(e::FLAGS, flags))
}

/// Of a map or a program.
pub(crate) fn id_of(fd: i64) -> u64 {
    let mut told = [0u32; 26];
    let attr = Attr::new().with(attr::info::BPF_FD, fd as u64).with(attr::info::INFO_LEN, 104);
    let _ = bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(attr::info::INFO, told.as_mut_ptr() as u64));
    told[1].into()
}

/// Prints what `/proc` has on a descriptor. What differs from run to run, or by what it is made of, only has to be there.
pub(crate) fn show_descriptor(what: &str, fd: i64) {
    const VARIES: [&str; 11] =
        ["mnt_id", "ino", "map_id", "prog_id", "link_id", "btf_id", "prog_tag", "memlock", "offset", "path", "type"];
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    println!(
        "{MARK}{what} is called {}",
        name.map_or_else(|error| error.to_string(), |name| name.display().to_string())
    );
    let process = std::process::id();
    let text =
        std::fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).unwrap_or_else(|error| error.to_string());
    for line in text.lines() {
        match line.split_once('\t') {
            Some((name, value)) if VARIES.contains(&name.trim_end_matches(':')) => {
                println!("{MARK}  {name} {}", !value.is_empty());
            }
            // A path, or a probe's cookie, offset and counter.
            Some(("name:", value)) => println!("{MARK}  name: {}", value.starts_with('/')),
            Some((cookie, places)) if cookie.parse::<u64>().is_ok() => {
                println!("{MARK}  {cookie} {:?}", places.rsplit('\t').next());
            }
            _ => println!("{MARK}  {line}"),
        }
    }
}

pub(crate) const MOV_R0_0: u64 = 0xb7;

pub(crate) const EXIT: u64 = 0x95;

/// A jump to nowhere.
pub(crate) const BAD: u64 = 0x50_0005;

pub(crate) fn load_attr(kind: u32, insns: &[u64]) -> Attr {
    use attr::prog_load as p;
    let attr = Attr::new().with(p::PROG_TYPE, kind.into()).with(p::INSN_CNT, insns.len() as u64);
    attr.with(p::INSNS, address(insns)).with(p::LICENSE, address(c"GPL".to_bytes_with_nul()))
}

/// BTF: header, one int (id 1), then `types`; `strings` behind "\0int\0".
pub(crate) fn btf_blob(types: &[u32], strings: &[u8]) -> Vec<u8> {
    let mut all = vec![1, 0x0100_0000, 4, 0x0100_0020];
    all.extend_from_slice(types);
    let mut text = b"\0int\0".to_vec();
    text.extend_from_slice(strings);
    let bytes = all.len() as u32 * 4;
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, bytes, bytes, text.len() as u32] {
        blob.extend_from_slice(&word.to_le_bytes());
    }
    all.iter().for_each(|word| blob.extend_from_slice(&word.to_le_bytes()));
    blob.extend_from_slice(&text);
    blob
}

pub(crate) fn load_btf(blob: &[u8]) -> Result<i64, Errno> {
    use attr::btf_load as b;
    bpf(cmd::BTF_LOAD, &mut Attr::new().with(b::BTF, address(blob)).with(b::BTF_SIZE, blob.len() as u64))
}

pub(crate) fn close(fd: i64) {
    // SAFETY: the scenario owns the descriptor.
    unsafe { libc::close(fd as i32) };
}

/// With a name in it.
pub(crate) fn named(mut attr: Attr, field: Field, name: &[u8]) -> Attr {
    attr.0[field.at..field.at + name.len()].copy_from_slice(name);
    attr
}
