//! Text: of `/proc`, and requests on the control socket.

use ring3_generate::Random;
use ring3_inject::{Mapping, mappings_in, status_field};
use ring3_server::control::Request;

use crate::bytes::{Bytes, put_part};

/// A path as the kernel writes it: line breaks are escaped (fs/seq_file.c:seq_path).
fn escaped(path: &[u8]) -> String {
    String::from_utf8_lossy(path).replace('\n', "\\012")
}

/// A mapping whose file has any name, and any text.
pub(crate) fn proc(input: &[u8]) {
    let mut input = Bytes(input);
    let (start, bytes, offset, inode) = (input.u64() >> 17, input.u32(), input.u64(), input.u64());
    let (device, path) = (input.u16(), escaped(input.part()));
    let (major, minor) = (u32::from(device >> 8), u32::from(device & 0xff));
    let end = start + u64::from(bytes);
    let line = format!("{start:08x}-{end:08x} r-xp {offset:08x} {major:02x}:{minor:02x} {inode} {path}\n");
    // What the file is called decides nothing but the path.
    let read = mappings_in(&line);
    assert_eq!(read.len(), 1, "{line:?}");
    let Mapping { range, permissions, offset: at, dev, inode: file, .. } = &read[0];
    assert_eq!((range.clone(), permissions.as_str(), *at, *file), (start..end, "r-xp", offset, inode));
    assert_eq!(*dev, rustix::fs::makedev(major, minor));
    let blank = |path: &str| path.is_empty() || path.starts_with(' ') || path.ends_with(" (deleted)");
    if !blank(&path) {
        assert_eq!(read[0].path, path);
    }
    let any = String::from_utf8_lossy(input.0);
    for mapping in mappings_in(&any) {
        assert!(mapping.range.start <= mapping.range.end);
        let _ = (mapping.is_executable(), mapping.is_shared());
    }
    // A process's name is first, and the kernel escapes its line breaks (fs/proc/array.c:proc_task_name).
    let name = any.replace('\n', "\\n");
    let status = format!("Name:\t{name}\nUid:\t7\t8\t9\t10\nTgid:\t77\n");
    assert_eq!(status_field(&status, "Tgid"), Some("77"));
    assert_eq!(status_field(&status, "Uid"), Some("7\t8\t9\t10"));
    ring3_server::rights::check_status(&any);
}

pub(crate) fn make_proc(random: &mut Random) -> Vec<u8> {
    const NAMES: [&[u8]; 8] = [
        b"/usr/lib/libc.so.6",
        b"[heap]",
        b"/tmp/a b (deleted)",
        b"/tmp/a\n7f00-7f01 r-xp 0 0:0 1 /x",
        b"  /leading",
        b"/\xff\xfe",
        b"7f00-7f01 rwxp 00000000 00:00 0",
        b"",
    ];
    let mut input = vec![];
    for _ in 0..4 {
        input.extend(random.edge().to_le_bytes());
    }
    input.truncate(30);
    put_part(&mut input, random.of(&NAMES));
    for _ in 0..random.below(3) {
        input.extend(b"7f0000000000-7f0000001000 r-xp 00000000 fe:01 1234     /x\nUid:\t0\t0\t0\t0\nCapEff:\tffff\n");
    }
    crate::damage(&mut input, random);
    input
}

/// A request: what is read can be written, and means the same again.
pub(crate) fn control(input: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Request>(input) else { return };
    let written = serde_json::to_vec(&request).expect("what was read can be written");
    let again: Request = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(format!("{request:?}"), format!("{again:?}"));
}

pub(crate) fn make_control(random: &mut Random) -> Vec<u8> {
    const REQUESTS: [&str; 9] = [
        r#"{"Load":{"command":"a tool","compiling":{"engine":"Auto","harden":true}}}"#,
        r#"{"Load":{"command":""}}"#,
        r#"{"Start":{"follow":true}}"#,
        r#"{"Attach":{"pid":4294967295,"follow":false}}"#,
        r#"{"Detach":{"pid":1}}"#,
        r#"{"Symbols":{"pid":0}}"#,
        r#"{"Trace":{"from":18446744073709551615}}"#,
        r#"{"Unpin":{"path":"/sys/fs/bpf/x"}}"#,
        r#""Status""#,
    ];
    let mut input = random.of(&REQUESTS).as_bytes().to_vec();
    crate::damage(&mut input, random);
    input
}
