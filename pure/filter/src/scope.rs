//! What names mean in an event of one type.

use ring3_event::{EventType, Kind};

/// What every event has beside its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Context {
    /// The process (u32).
    Pid,
    /// The thread (u32).
    Tid,
    /// The CPU (u32).
    Cpu,
    /// When: nanoseconds of `CLOCK_MONOTONIC` (u64).
    Time,
    /// The thread's name: text of at most 16 bytes with its zero byte.
    Comm,
}

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A field, by its index.
    Field(usize),
    /// What every event has.
    Context(Context),
    /// The type's name: text that is known before any event.
    Event,
}

/// What names mean in an event of one type.
pub trait Scope {
    /// The type.
    fn event(&self) -> &EventType;
    /// What a name means; `None` if it means nothing in this type.
    fn lookup(&self, name: &str) -> Option<Meaning>;
}

/// Names of the context. They mean the same in each type of events: a field of such a name is `args.NAME`.
const CONTEXT: [(&str, Meaning); 6] = [
    ("pid", Meaning::Context(Context::Pid)),
    ("tid", Meaning::Context(Context::Tid)),
    ("cpu", Meaning::Context(Context::Cpu)),
    ("time", Meaning::Context(Context::Time)),
    ("comm", Meaning::Context(Context::Comm)),
    ("event", Meaning::Event),
];
/// LTTng's names of the same.
const LTTNG: [(&str, Context); 6] = [
    ("$ctx.vpid", Context::Pid),
    ("$ctx.pid", Context::Pid),
    ("$ctx.vtid", Context::Tid),
    ("$ctx.tid", Context::Tid),
    ("$ctx.cpu_id", Context::Cpu),
    ("$ctx.procname", Context::Comm),
];

/// The names that all types of events have: `pid`, `tid`, `cpu`, `time`, `comm`, `event`.
pub(crate) fn context_names<'a>() -> impl Iterator<Item = &'a str> {
    CONTEXT.iter().map(|(name, _)| *name)
}

/// The usual scope of a type: the context, then `args.NAME` and `NAME` for fields, then `path` for the first text that is the path of
/// a file.
#[derive(Clone, Copy, Debug)]
pub struct EventScope<'a> {
    of: &'a EventType,
}

impl<'a> EventScope<'a> {
    /// For this type.
    pub fn new(of: &'a EventType) -> EventScope<'a> {
        EventScope { of }
    }
}

impl Scope for EventScope<'_> {
    fn event(&self) -> &EventType {
        self.of
    }

    fn lookup(&self, name: &str) -> Option<Meaning> {
        let context = CONTEXT.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning);
        let lttng = || LTTNG.iter().find(|(known, _)| *known == name).map(|(_, of)| Meaning::Context(*of));
        let field = || {
            let is_path = |kind: &Kind| matches!(kind, Kind::Text { path: true, .. });
            let first_path = || self.of.fields.iter().position(|field| is_path(&field.kind));
            let plain = name.strip_prefix("args.").unwrap_or(name);
            self.of.field(plain).or_else(|| first_path().filter(|_| name == "path")).map(Meaning::Field)
        };
        context.or_else(lttng).or_else(field)
    }
}
