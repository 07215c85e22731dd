//! Events for the tests of formats.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ring3_event::{EventType, Field, Header, Kind, Names, Phase, Show, State, Value, encode};
use ring3_formats::Origin;

fn field(name: &str, kind: Kind, phase: Phase) -> Field {
    Field { name: name.into(), kind, phase }
}

fn int(bytes: u32, signed: bool, show: Show) -> Kind {
    Kind::Int { bytes, signed, show }
}

fn names(names: &[(u64, &str)]) -> Arc<Names> {
    Arc::new(Names(names.iter().map(|(value, name)| (*value, (*name).into())).collect()))
}

/// A system call with fields of most kinds, and a duration.
pub(crate) fn openat() -> EventType {
    let flags = names(&[(1, "O_WRONLY"), (0, "O_RDONLY"), (0o100, "O_CREAT"), (0o2000000, "O_CLOEXEC")]);
    EventType {
        id: 257,
        provider: "syscalls".into(),
        name: "openat".into(),
        fields: vec![
            field("dfd", int(4, true, Show::Descriptor), Phase::Entry),
            field("filename", Kind::Text { bytes_max: 256, path: true }, Phase::Entry),
            field("flags", int(4, false, Show::Flags(flags)), Phase::Entry),
            field("mode", int(2, false, Show::Octal), Phase::Entry),
            field("result", int(8, true, Show::Result), Phase::Exit),
            field("duration", int(8, false, Show::Nanoseconds), Phase::Exit),
        ],
    }
}

/// A probe with the other kinds of fields, and names that formats must change.
pub(crate) fn probe() -> EventType {
    let whence = names(&[(0, "SEEK_SET"), (1, "SEEK_CUR"), (u64::MAX, "MINUS \"ONE\"")]);
    EventType {
        id: 1000,
        provider: "lib\"x\".so".into(),
        name: "int".into(),
        fields: vec![
            field("string", int(4, true, Show::Enumeration(whence)), Phase::Entry),
            field("req.tv_sec", int(8, true, Show::Decimal), Phase::Entry),
            field("req_tv_sec", int(1, false, Show::Hex), Phase::Entry),
            field("ratio", Kind::Float { bytes: 8 }, Phase::Entry),
            field("small", Kind::Float { bytes: 4 }, Phase::Entry),
            field("data", Kind::data(16), Phase::Entry),
            field("data_length", int(8, false, Show::Pointer), Phase::Entry),
            field("note", Kind::Text { bytes_max: 16, path: false }, Phase::Entry),
        ],
    }
}

/// A probe with a stack.
pub(crate) fn stacked() -> EventType {
    let fields = vec![field("stack", Kind::data(1016), Phase::Entry)];
    EventType { id: 1001, provider: "a.out".into(), name: "hit".into(), fields }
}

/// A hit of [`stacked`].
pub(crate) fn stack_record(time_ns: u64, stack: &[u64]) -> Vec<u8> {
    let bytes: Vec<_> = stack.iter().flat_map(|address| address.to_le_bytes()).collect();
    let values = [Value::Bytes(State::Whole, &bytes)];
    encode(&stacked(), &header(1001, time_ns), &values).expect("they are its values")
}

pub(crate) fn header(event: u32, time_ns: u64) -> Header {
    let mut comm = [0; 16];
    comm[..3].copy_from_slice(b"cat");
    Header { time_ns, event, cpu: 1, tid: 12, pid: 11, comm }
}

/// `openat("/etc/NUMBER", O_WRONLY|O_CREAT|O_CLOEXEC, 0644)`, which took `number` microseconds.
pub(crate) fn open_record(time_ns: u64, number: u64) -> Vec<u8> {
    let path = format!("/etc/{number}");
    let values = [
        Value::Int(-100),
        Value::Text(State::Whole, path.as_bytes()),
        Value::Int(0o2000101),
        Value::Int(0o644),
        Value::Int(if number.is_multiple_of(7) { -2 } else { i128::from(number) }),
        Value::Int(i128::from(number * 1000)),
    ];
    encode(&openat(), &header(257, time_ns), &values).expect("they are its values")
}

/// A hit of [`probe`].
pub(crate) fn probe_record(time_ns: u64) -> Vec<u8> {
    let values = [
        Value::Int(-1),
        Value::Int(-5),
        Value::Int(0xab),
        Value::Float(0.25),
        Value::Float(-1.5),
        Value::Bytes(State::Truncated, b"a\0\xff\\"),
        Value::Int(0xdead_beef),
        Value::Text(State::Whole, b"gr\xc3\xbc\xc3\x9f\xff\"<&>"),
    ];
    encode(&probe(), &header(1000, time_ns), &values).expect("they are its values")
}

/// A place for a test's files, which goes away with the value.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(test: &str) -> Place {
        let place = std::env::temp_dir().join(format!("ring3-formats-{test}-{}", std::process::id()));
        fs::create_dir_all(&place).expect("the temporary directory can be written");
        Place(place)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An origin that is always the same.
pub(crate) fn origin() -> Origin {
    Origin {
        hostname: "host".into(),
        kernel: "6.18".into(),
        command: "ring3 record -- \"cat\" /etc/passwd".into(),
        offset_ns: 1_700_000_000_000_000_000,
        begin_ns: 1_000,
        uuid: *b"0123456789abcdef",
    }
}

/// What babeltrace2 says of a trace: its lines, and its errors; `None` if it is not installed.
pub(crate) fn babeltrace(directory: &Path) -> Option<(String, String)> {
    let mut command = Command::new("babeltrace2");
    command.args(["--clock-cycles"]).arg(directory);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED IN PART: babeltrace2 cannot be run: {error}");
            return None;
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let errors = text(output.stderr);
    assert!(output.status.success(), "babeltrace2 fails: {errors}");
    Some((text(output.stdout), errors))
}
