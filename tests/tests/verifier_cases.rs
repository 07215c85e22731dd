//! The verifier's case files against the kernel's verifier: what they say of it is true, and the text of our
//! instructions is that of its log.

#[path = "../../pure/verifier/tests/case_file/mod.rs"]
mod case_file;
#[path = "calls/raw_bpf.rs"]
mod raw_bpf;
#[path = "verifier_cases/raw_descriptor.rs"]
mod raw_descriptor;

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use case_file::{Case, Map, Verdict};
use raw_bpf::{Attr, address, bpf};
use raw_descriptor::own;
use ring3_isa::{Call, Immediate, Op, encode, op, text};
use ring3_tests::is_root;
use ring3_uapi::Errno;
use ring3_uapi::attr::{btf_load, map_create, map_elem, prog_load};
use ring3_uapi::bpf::{cmd, prog_type};

/// Bytes for the kernel's log. What is longer loses its beginning.
const LOG_BYTES: usize = 4 << 20;
/// Every instruction that is looked at.
const LOG_LEVEL: u64 = 2;
/// A flag of `BPF_PROG_LOAD`.
const BPF_F_SLEEPABLE: u64 = 1 << 4;
const GPL: &[u8] = b"GPL\0";

fn make_map(map: &Map, made: &[OwnedFd]) -> Result<OwnedFd, Errno> {
    let mut attr = Attr::new()
        .with(map_create::MAP_TYPE, map.map_type.into())
        .with(map_create::KEY_SIZE, map.key.into())
        .with(map_create::VALUE_SIZE, map.value.into())
        .with(map_create::MAX_ENTRIES, map.entries.into())
        .with(map_create::MAP_FLAGS, map.flags.into());
    if let Some(inner) = map.inner {
        attr = attr.with(map_create::INNER_MAP_FD, made[inner].as_raw_fd() as u64);
    }
    let types = map.lock.map(|lock| make_lock_btf(map.value, lock)).transpose()?;
    if let Some(types) = &types {
        attr = attr
            .with(map_create::BTF_FD, types.as_raw_fd() as u64)
            .with(map_create::BTF_KEY_TYPE_ID, 1)
            .with(map_create::BTF_VALUE_TYPE_ID, 3);
    }
    let descriptor = own(bpf(cmd::MAP_CREATE, &mut attr)?);
    let element = Attr::new().with(map_elem::MAP_FD, descriptor.as_raw_fd() as u64);
    if !map.content.is_empty() {
        let (key, mut value) = (0u64, map.content.clone());
        value.resize(map.value as usize, 0);
        let mut update = element.clone().with(map_elem::KEY, address(&key));
        update = update.with(map_elem::VALUE, address(value.as_slice()));
        bpf(cmd::MAP_UPDATE_ELEM, &mut update)?;
    }
    if map.frozen {
        bpf(cmd::MAP_FREEZE, &mut element.clone())?;
    }
    Ok(descriptor)
}

/// BTF with `int f(void)`, static, as type 3.
fn make_btf() -> Result<OwnedFd, Errno> {
    load_btf(&[1, 0x0100_0000, 4, 0x0100_0020, 0, 0x0d00_0000, 1, 5, 0x0c00_0000, 2], b"\0int\0f\0")
}

/// BTF with `int` as type 1, and as type 3 a structure of so many bytes with a `struct bpf_spin_lock` in it.
fn make_lock_btf(bytes: u32, at: u32) -> Result<OwnedFd, Errno> {
    const STRUCT_OF_ONE: u32 = 0x0400_0001;
    let int = [1, 0x0100_0000, 4, 0x0100_0020];
    let lock = [5, STRUCT_OF_ONE, 4, 19, 1, 0];
    let value = [23, STRUCT_OF_ONE, bytes, 25, 2, at * 8];
    load_btf(&[&int[..], &lock, &value].concat(), b"\0int\0bpf_spin_lock\0val\0v\0lock\0")
}

fn load_btf(types: &[u32], strings: &[u8]) -> Result<OwnedFd, Errno> {
    let bytes = types.len() as u32 * 4;
    let header = [0x0001_eb9f, 24, 0, bytes, bytes, strings.len() as u32];
    let mut blob: Vec<u8> = header.iter().chain(types).flat_map(|word| word.to_le_bytes()).collect();
    blob.extend_from_slice(strings);
    let mut attr =
        Attr::new().with(btf_load::BTF, address(blob.as_slice())).with(btf_load::BTF_SIZE, blob.len() as u64);
    bpf(cmd::BTF_LOAD, &mut attr).map(own)
}

/// `struct bpf_func_info` of a program with subprograms: the kernel wants to know of callbacks that they are static,
/// and tail calls in subprograms only with it.
fn func_info(case: &Case) -> Vec<[u32; 2]> {
    let targets = (0..case.insns.len()).filter_map(|at| match op(&case.insns, at) {
        Ok(Op::LoadImm64 { value: Immediate::Func(target), .. } | Op::Call(Call::Local(target))) => Some(target),
        _ => None,
    });
    let starts: BTreeSet<usize> = targets.chain([0]).collect();
    if starts.len() > 1 { starts.into_iter().map(|start| [start as u32, 3]).collect() } else { vec![] }
}

/// What the kernel answers, and its log if one is wanted.
fn load(case: &Case, maps: &[OwnedFd], log_level: u64) -> Result<(Verdict, String), Errno> {
    let insns = encode(&case.insns);
    let descriptors: Vec<i32> = maps.iter().map(AsRawFd::as_raw_fd).collect();
    let mut attr = Attr::new()
        .with(prog_load::PROG_TYPE, case.prog_type.into())
        .with(prog_load::INSN_CNT, case.insns.len() as u64)
        .with(prog_load::INSNS, address(insns.as_slice()))
        .with(prog_load::LICENSE, address(GPL))
        .with(prog_load::FD_ARRAY, address(descriptors.as_slice()));
    let mut log = vec![0u8; if log_level > 0 { LOG_BYTES } else { 0 }];
    if log_level > 0 {
        attr = attr
            .with(prog_load::LOG_LEVEL, log_level)
            .with(prog_load::LOG_SIZE, log.len() as u64)
            .with(prog_load::LOG_BUF, log.as_mut_ptr() as u64);
    }
    if case.prog_type == prog_type::SYSCALL {
        // They can be nothing else.
        attr = attr.with(prog_load::PROG_FLAGS, BPF_F_SLEEPABLE);
    }
    let infos = func_info(case);
    let btf = if infos.is_empty() { None } else { Some(make_btf()?) };
    if let Some(btf) = &btf {
        attr = attr
            .with(prog_load::PROG_BTF_FD, btf.as_raw_fd() as u64)
            .with(prog_load::FUNC_INFO_REC_SIZE, 8)
            .with(prog_load::FUNC_INFO, address(infos.as_slice()))
            .with(prog_load::FUNC_INFO_CNT, infos.len() as u64);
    }
    let verdict = match bpf(cmd::PROG_LOAD, &mut attr).map(own) {
        Ok(_) => Verdict::Accept,
        Err(errno) => Verdict::Refuse { errno, message: None },
    };
    let written = (attr.get(prog_load::LOG_TRUE_SIZE) as usize).min(log.len());
    log.truncate(written.saturating_sub(1));
    Ok((verdict, String::from_utf8_lossy(&log).into_owned()))
}

/// What the kernel says at last, without its statistics.
fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

/// Lines `3: (b7) r0 = 1  ; R0=1` of a log that say something else than our text of that instruction does.
fn other_texts(case: &Case, log: &str) -> Vec<String> {
    let mut other = vec![];
    for line in log.lines().skip(1) {
        let Some((at, rest)) = line.split_once(": (") else { continue };
        let (Ok(at), Some((_, theirs))) = (at.parse::<usize>(), rest.split_once(") ")) else { continue };
        let theirs = theirs.split(';').next().unwrap_or_default().trim();
        // It writes invalid instructions without what is wrong with them, and addresses of maps and subprograms.
        let ours = text(&case.insns, at).to_string();
        let named =
            matches!(op(&case.insns, at), Ok(Op::LoadImm64 { value, .. }) if !matches!(value, Immediate::Value(_)));
        if ours != theirs && !named && !ours.starts_with(".insn") {
            other.push(format!("insn {at}: the kernel writes `{theirs}`, we `{ours}`"));
        }
    }
    other
}

fn differences(case: &Case) -> Result<Vec<String>, Errno> {
    let mut maps = vec![];
    for map in &case.maps {
        maps.push(make_map(map, &maps)?);
    }
    let (verdict, _) = load(case, &maps, 0)?;
    let too_long = matches!(verdict, Verdict::Refuse { errno: Errno::E2BIG, .. });
    let log = if too_long { String::new() } else { load(case, &maps, LOG_LEVEL)?.1 };
    let mut found = other_texts(case, &log);
    // Ours may be told in other words.
    let expected = case.kernel.as_ref().unwrap_or(&case.expect).wordless();
    if !expected.covers(&verdict) {
        found.push(format!("expected {expected}, the kernel says {verdict}: {}", end_of(&log)));
    }
    if case.kernel.as_ref().is_some_and(|kernel| kernel.wordless() == case.expect.wordless()) {
        found.push("`; kernel:` says what `; expect:` does".to_owned());
    }
    Ok(found)
}

#[test]
fn the_case_files_are_right_about_the_kernel() {
    if !is_root() {
        println!("SKIPPED: asking the kernel's verifier needs root");
        return;
    }
    let (mut cases, mut wrong) = (0, vec![]);
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/../pure/verifier/tests/cases")) {
        let name = file.file_name().unwrap_or_default().display().to_string();
        let text = std::fs::read_to_string(&file).expect("read");
        for case in case_file::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}")) {
            cases += 1;
            let found =
                differences(&case).unwrap_or_else(|errno| vec![format!("a map or BTF cannot be made: {errno:?}")]);
            for difference in found {
                wrong.push(format!("{name}:{}: {}\n  {difference}", case.expect_line, case.title));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences in {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
}
