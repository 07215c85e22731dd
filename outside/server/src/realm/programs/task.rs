//! The table of task fields that programs can read: from the kernel's types to the table in each target's control page.

use ring3_btf::{Btf, kind};
use ring3_layout::task::{
    NAMESPACES, NUMBER_FILES, PLACE_BITS, Source, TASK_FIELDS_MAX, TaskField, TaskTable, UTS_BYTES, VALUE_BYTES_MAX,
};

/// Objects begin at multiples of this among those of a thread.
const OBJECT_ALIGN: u32 = 8;

/// A thread's objects. Each namespace has one of its own, whether or not they are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Object {
    Task,
    Cred,
    Memory,
    Proxy,
    Pid,
    /// By its name in `/proc/PID/ns`.
    Namespace(&'static str),
}

use Object::{Cred, Memory, Namespace, Pid, Proxy, Task};

impl Object {
    /// The structure's name.
    fn structure(self) -> &'static str {
        match self {
            Task => "task_struct",
            Cred => "cred",
            Memory => "mm_struct",
            Proxy => "nsproxy",
            Pid => "pid",
            Namespace("cgroup") => "cgroup_namespace",
            Namespace("ipc") => "ipc_namespace",
            Namespace("mnt") => "mnt_namespace",
            Namespace("net") => "net",
            Namespace("pid" | "pid_for_children") => "pid_namespace",
            Namespace("time" | "time_for_children") => "time_namespace",
            Namespace("user") => "user_namespace",
            Namespace(_) => "uts_namespace",
        }
    }

    /// Which of [`NAMESPACES`] it is.
    fn namespace(self) -> Option<u16> {
        let Namespace(name) = self else { return None };
        index(NAMESPACES, name)
    }
}

/// What is in a field.
#[derive(Clone, Copy)]
enum Holds {
    /// What the agent finds out.
    Value(Source),
    /// The same, of a source that has several.
    One(Source, u16),
    /// The address of another object of the thread.
    To(Object),
    /// The number in a file of `/proc/PID`.
    File(&'static str),
    /// The number of the namespace that the object is.
    Number,
}

use Holds::{File, Number, One, To, Value};

/// Fields by object and path. Paths go through structures, and into the first element of an array. A kernel without a
/// member has no such field.
const FIELDS: &[(Object, &str, Holds)] = &[
    (Task, "pid", Value(Source::Tid)),
    (Task, "tgid", Value(Source::Tgid)),
    (Task, "comm", Value(Source::Comm)),
    (Task, "real_parent", Value(Source::Parent)),
    (Task, "parent", Value(Source::Tracer)),
    (Task, "group_leader", Value(Source::Leader)),
    (Task, "start_time", Value(Source::StartMonotonic)),
    (Task, "start_boottime", Value(Source::StartBoottime)),
    // Before 5.5.
    (Task, "real_start_time", Value(Source::StartBoottime)),
    (Task, "loginuid", File("loginuid")),
    (Task, "sessionid", File("sessionid")),
    (Task, "thread_info.cpu", Value(Source::Cpu)),
    // It runs: TASK_RUNNING.
    (Task, "__state", One(Source::Constant, 0)),
    (Task, "state", One(Source::Constant, 0)),
    (Task, "flags", stat(9)),
    (Task, "exit_signal", stat(38)),
    (Task, "rt_priority", stat(40)),
    (Task, "policy", stat(41)),
    (Task, "exit_code", Value(Source::ExitCode)),
    (Task, "cred", To(Cred)),
    (Task, "real_cred", To(Cred)),
    (Task, "mm", To(Memory)),
    (Task, "active_mm", To(Memory)),
    (Task, "nsproxy", To(Proxy)),
    (Task, "thread_pid", To(Pid)),
    (Cred, "uid", One(Source::Uid, 0)),
    (Cred, "euid", One(Source::Uid, 1)),
    (Cred, "suid", One(Source::Uid, 2)),
    (Cred, "fsuid", One(Source::Uid, 3)),
    (Cred, "gid", One(Source::Gid, 0)),
    (Cred, "egid", One(Source::Gid, 1)),
    (Cred, "sgid", One(Source::Gid, 2)),
    (Cred, "fsgid", One(Source::Gid, 3)),
    (Cred, "user_ns", To(Namespace("user"))),
    (Memory, "start_code", stat(26)),
    (Memory, "end_code", stat(27)),
    (Memory, "start_stack", stat(28)),
    (Memory, "start_data", stat(45)),
    (Memory, "end_data", stat(46)),
    (Memory, "start_brk", stat(47)),
    (Memory, "arg_start", stat(48)),
    (Memory, "arg_end", stat(49)),
    (Memory, "env_start", stat(50)),
    (Memory, "env_end", stat(51)),
    (Proxy, "uts_ns", To(Namespace("uts"))),
    (Proxy, "ipc_ns", To(Namespace("ipc"))),
    (Proxy, "mnt_ns", To(Namespace("mnt"))),
    (Proxy, "pid_ns_for_children", To(Namespace("pid_for_children"))),
    (Proxy, "net_ns", To(Namespace("net"))),
    (Proxy, "time_ns", To(Namespace("time"))),
    (Proxy, "time_ns_for_children", To(Namespace("time_for_children"))),
    (Proxy, "cgroup_ns", To(Namespace("cgroup"))),
    // The process's own pid namespace is the outermost one that programs here know of.
    (Pid, "level", One(Source::Constant, 0)),
    (Pid, "numbers.nr", Value(Source::Tid)),
    (Pid, "numbers.ns", To(Namespace("pid"))),
    (Namespace("pid"), "level", One(Source::Constant, 0)),
    (Namespace("pid_for_children"), "level", One(Source::Constant, 0)),
    (Namespace("uts"), "name", Value(Source::Uts)),
    (Namespace("cgroup"), "ns.inum", Number),
    (Namespace("ipc"), "ns.inum", Number),
    (Namespace("mnt"), "ns.inum", Number),
    (Namespace("net"), "ns.inum", Number),
    (Namespace("pid"), "ns.inum", Number),
    (Namespace("pid_for_children"), "ns.inum", Number),
    (Namespace("time"), "ns.inum", Number),
    (Namespace("time_for_children"), "ns.inum", Number),
    (Namespace("user"), "ns.inum", Number),
    (Namespace("uts"), "ns.inum", Number),
];

const _: () = assert!(FIELDS.len() <= TASK_FIELDS_MAX);

const fn stat(field: u16) -> Holds {
    One(Source::Stat, field)
}

/// The table for a kernel with these types; empty without.
pub(crate) fn task_table(types: Option<&Btf>) -> TaskTable {
    let mut table = TaskTable { count: 0, reserved: 0, fields: [TaskField::default(); TASK_FIELDS_MAX] };
    for (to, field) in table.fields.iter_mut().zip(types.map(fields).unwrap_or_default()) {
        *to = field;
        table.count += 1;
    }
    table
}

fn fields(types: &Btf) -> Vec<TaskField> {
    let found: Vec<_> = FIELDS
        .iter()
        .filter_map(|(object, path, holds)| Some((*object, member(types, object.structure(), path)?, *holds)))
        .collect();
    let mut places: Vec<(Object, u32)> = vec![];
    let mut end = 0;
    for (object, ..) in &found {
        if places.iter().any(|(known, _)| known == object) {
            continue;
        }
        places.push((*object, end));
        let ends = found.iter().filter(|(of, ..)| of == object).map(|(_, (at, bytes), _)| at + bytes);
        end = (end + ends.max().unwrap_or(0)).next_multiple_of(OBJECT_ALIGN);
    }
    let place = |object: Object| places.iter().find(|(known, _)| *known == object).map(|(_, place)| *place);
    let field = |(object, (at, bytes), holds): (Object, (u32, u32), Holds)| {
        let (source, which) = match holds {
            Value(source) => (source, 0),
            One(source, which) => (source, which),
            To(object) => (Source::Object, place(object)? as u16),
            File(name) => (Source::NumberFile, index(NUMBER_FILES, name)?),
            Number => (Source::Namespace, object.namespace()?),
        };
        let is_whole =
            if source == Source::Uts { bytes as usize == UTS_BYTES } else { bytes as usize <= VALUE_BYTES_MAX };
        let place = place(object)? + at;
        let fits = is_whole && place + bytes <= 1 << PLACE_BITS;
        fits.then_some(TaskField { place: place as u16, bytes: bytes as u16, source: source as u16, which })
    };
    found.into_iter().filter_map(field).collect()
}

/// The index of a word in a text.
fn index(text: &str, name: &str) -> Option<u16> {
    text.split(' ').position(|known| known == name).map(|index| index as u16)
}

/// Where a member is in a structure, and its size, bytes.
fn member(types: &Btf, structure: &str, path: &str) -> Option<(u32, u32)> {
    let (mut of, mut at) = (types.find(structure.as_bytes(), kind::STRUCT)?, 0);
    for name in path.split('.') {
        let (bits, next) = named(types, types.plain(types.elements(of).of), name.as_bytes())?;
        at += bits / 8;
        of = next;
    }
    Some((at, types.sized(of)?.1))
}

/// A member of a structure, or of one without a name in it: where it is, bits, and its type.
fn named(types: &Btf, of: u32, name: &[u8]) -> Option<(u32, u32)> {
    types.members(of).find_map(|member| match member.name {
        own if own == name && member.bits == 0 => Some((member.at_bits, member.of)),
        b"" => named(types, types.plain(member.of), name).map(|(bits, found)| (member.at_bits + bits, found)),
        _ => None,
    })
}
