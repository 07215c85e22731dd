//! Perfetto's trace format (<https://perfetto.dev/docs/reference/trace-packet-proto>), for ui.perfetto.dev and its trace
//! processor.
//!
//! Each thread has a track. An event with a duration is a slice of it, other events are instants; fields are annotations. Names
//! are written once, and are numbers afterwards (*interned*). The reader sorts by time, so streams need not be merged.

mod intern;
mod messages;

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message;
use ring3_event::{EventType, Header, Kind, Record, Show, State, Value};

use crate::flame::duration;
use crate::types::Types;
use crate::{Origin, Sink, Symbols, show};
use intern::Interned;
use messages::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, EventKind,
    InternedData, ProcessDescriptor, SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, SystemInfo,
    ThreadDescriptor, Trace, TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent, Utsname,
};

/// The number of our sequence of packets: interned names belong to it.
const SEQUENCE: u32 = 1;
/// Track of the count of lost events. (Those of threads and processes have larger numbers.)
const LOST_TRACK: u64 = 1;
/// The numbers of tracks have one of these bits, and ids below (those of processes are smaller than 2^22).
const PROCESS_TRACK: u64 = 1 << 62;
const THREAD_TRACK: u64 = 1 << 61;

/// Writes a trace.
pub struct Perfetto<W: Write> {
    to: W,
    types: Types,
    symbols: Box<dyn Symbols>,
    /// Names that the next packet explains.
    new: InternedData,
    categories: Interned,
    names: Interned,
    fields: Interned,
    texts: Interned,
    /// Threads that have a track, with the name that it has; and processes that have one.
    threads: HashMap<(u32, u32), [u8; 16]>,
    processes: HashMap<u32, [u8; 16]>,
    lost: u64,
    last_ns: u64,
    buffer: Vec<u8>,
}

/// Texts that are interned at most: those of fields may be all different.
const TEXTS_MAX: usize = 1 << 14;
/// Longer texts are not interned.
const TEXT_BYTES_MAX: usize = 256;

impl<W: Write> Perfetto<W> {
    /// To a writer, which should have a buffer.
    pub fn new(to: W, origin: &Origin, symbols: Box<dyn Symbols>) -> io::Result<Perfetto<W>> {
        let mut trace = Perfetto {
            to,
            types: Types::default(),
            symbols,
            new: InternedData::default(),
            categories: Interned::new(usize::MAX),
            names: Interned::new(usize::MAX),
            fields: Interned::new(usize::MAX),
            texts: Interned::new(TEXTS_MAX),
            threads: HashMap::new(),
            processes: HashMap::new(),
            lost: 0,
            last_ns: origin.begin_ns,
            buffer: vec![],
        };
        trace.begin(origin)?;
        Ok(trace)
    }

    fn begin(&mut self, origin: &Origin) -> io::Result<()> {
        let clock = |id, time| Clock { clock_id: Some(id), timestamp: Some(time) };
        let real = origin.begin_ns.saturating_add_signed(origin.offset_ns);
        let clocks = vec![clock(CLOCK_MONOTONIC, origin.begin_ns), clock(CLOCK_REALTIME, real)];
        let utsname = Utsname { sysname: Some("Linux".into()), release: Some(origin.kernel.clone()) };
        self.packet(TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks, primary_trace_clock: Some(CLOCK_MONOTONIC) }),
            trusted_packet_sequence_id: Some(SEQUENCE),
            ..TracePacket::default()
        })?;
        self.packet(TracePacket {
            system_info: Some(SystemInfo { utsname: Some(utsname) }),
            trusted_packet_sequence_id: Some(SEQUENCE),
            ..TracePacket::default()
        })?;
        self.packet(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults { timestamp_clock_id: Some(CLOCK_MONOTONIC) }),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        self.buffer.clear();
        Trace { packet: vec![packet] }.encode(&mut self.buffer).expect("a vector grows");
        self.to.write_all(&self.buffer)
    }

    fn event(&mut self, time_ns: u64, event: TrackEvent) -> io::Result<()> {
        let new = std::mem::take(&mut self.new);
        self.packet(TracePacket {
            timestamp: Some(time_ns),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(SEQ_NEEDS_INCREMENTAL_STATE),
            interned_data: (new != InternedData::default()).then_some(new),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn describe(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    /// Says which thread a track is of, again when the name has changed.
    fn thread_track(&mut self, header: &Header) -> io::Result<u64> {
        let (pid, tid) = (header.pid, header.tid);
        let track = THREAD_TRACK | u64::from(pid) << 32 | u64::from(tid);
        if self.threads.get(&(pid, tid)) == Some(&header.comm) {
            return Ok(track);
        }
        self.threads.insert((pid, tid), header.comm);
        let name = show::escape(header.comm().as_bytes(), false);
        // A process has the name of its first thread, or as long as that is not known, of another.
        if !self.processes.contains_key(&pid) || pid == tid && self.processes.get(&pid) != Some(&header.comm) {
            self.processes.insert(pid, header.comm);
            let process = ProcessDescriptor { pid: Some(pid as i32), process_name: Some(name.clone()) };
            let uuid = Some(PROCESS_TRACK | u64::from(pid));
            self.describe(TrackDescriptor { uuid, process: Some(process), ..TrackDescriptor::default() })?;
        }
        let thread = ThreadDescriptor { pid: Some(pid as i32), tid: Some(i64::from(tid)), thread_name: Some(name) };
        self.describe(TrackDescriptor { uuid: Some(track), thread: Some(thread), ..TrackDescriptor::default() })?;
        Ok(track)
    }
}

/// A record's annotations, with what they add to the interned names.
struct Annotations<'s> {
    fields: &'s mut Interned,
    texts: &'s mut Interned,
    new: &'s mut InternedData,
    symbols: &'s mut dyn Symbols,
}

impl Annotations<'_> {
    fn of(&mut self, record: &Record<'_>) -> Vec<DebugAnnotation> {
        let mut all = Vec::with_capacity(record.values.len() + 1);
        all.push(self.named("cpu", DebugAnnotation { uint_value: Some(record.header.cpu.into()), ..none() }));
        let stack = show::stack(&record.of.fields, &record.values);
        for (field, value) in record.of.fields.iter().zip(&record.values) {
            let annotation = match &stack {
                Some(stack) if field.name == "stack" => self.stack(stack, record.header.pid),
                _ => self.value(&field.kind, *value),
            };
            all.push(self.named(&field.name, annotation));
            if let Value::Text(state, _) | Value::Bytes(state, _) = value
                && *state != State::Whole
            {
                let annotation = self.text(state.name());
                all.push(self.named(&format!("{}_state", field.name), annotation));
            }
        }
        all
    }

    fn named(&mut self, name: &str, annotation: DebugAnnotation) -> DebugAnnotation {
        let name_iid = self.fields.number(name, &mut self.new.debug_annotation_names);
        DebugAnnotation { name_iid, ..annotation }
    }

    fn value(&mut self, kind: &Kind, value: Value<'_>) -> DebugAnnotation {
        if let Some(shown) = show::structure(kind, value) {
            return self.text(&shown);
        }
        match (value, kind) {
            (Value::Int(number), Kind::Int { signed, show, .. }) => match kind.name_of(number) {
                Some(name) => self.text(&name),
                None if *show == Show::Pointer => DebugAnnotation { pointer_value: Some(number as u64), ..none() },
                None if *signed => DebugAnnotation { int_value: Some(number as i64), ..none() },
                None => DebugAnnotation { uint_value: Some(number as u64), ..none() },
            },
            (Value::Int(number), _) => DebugAnnotation { int_value: Some(number as i64), ..none() },
            (Value::Float(number), _) => DebugAnnotation { double_value: Some(number), ..none() },
            (Value::Text(_, bytes), _) => self.text(&show::escape(bytes, false)),
            (Value::Bytes(_, bytes), _) => self.text(&show::escape(bytes, true)),
        }
    }

    fn text(&mut self, text: &str) -> DebugAnnotation {
        let new = &mut self.new.debug_annotation_string_values;
        let number = if text.len() <= TEXT_BYTES_MAX { self.texts.number(text, new) } else { None };
        match number {
            Some(number) => DebugAnnotation { string_value_iid: Some(number), ..none() },
            None => DebugAnnotation { string_value: Some(text.to_owned()), ..none() },
        }
    }

    fn stack(&mut self, stack: &[u64], pid: u32) -> DebugAnnotation {
        let frame = |address: &u64| match self.symbols.name(pid, *address) {
            Some(name) => self.text(&name),
            None => DebugAnnotation { pointer_value: Some(*address), ..none() },
        };
        DebugAnnotation { array_values: stack.iter().map(frame).collect(), ..none() }
    }
}

fn none() -> DebugAnnotation {
    DebugAnnotation::default()
}

impl<W: Write> Sink for Perfetto<W> {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        self.types.add(of);
        Ok(())
    }

    fn record(&mut self, _: u32, bytes: &[u8]) -> io::Result<()> {
        let record = self.types.parse(bytes)?;
        let Header { time_ns, .. } = record.header;
        let duration = duration(&record);
        let category = self.categories.number(&record.of.provider, &mut self.new.event_categories);
        let name_iid = self.names.number(&record.of.name, &mut self.new.event_names);
        let (fields, texts) = (&mut self.fields, &mut self.texts);
        let mut annotations = Annotations { fields, texts, new: &mut self.new, symbols: &mut *self.symbols };
        let debug_annotations = annotations.of(&record);
        let header = record.header;
        let track_uuid = Some(self.thread_track(&header)?);
        self.last_ns = self.last_ns.max(time_ns);
        let kind = if duration.is_some() { EventKind::SliceBegin } else { EventKind::Instant };
        let category_iids = category.into_iter().collect();
        let kind = Some(kind as i32);
        let event =
            TrackEvent { category_iids, debug_annotations, kind, name_iid, track_uuid, ..TrackEvent::default() };
        self.event(time_ns.saturating_sub(duration.unwrap_or(0)), event)?;
        if duration.is_some() {
            let kind = Some(EventKind::SliceEnd as i32);
            self.event(time_ns, TrackEvent { kind, track_uuid, ..TrackEvent::default() })?;
        }
        Ok(())
    }

    fn lost(&mut self, _: u32, count: u64) -> io::Result<()> {
        let track_uuid = Some(LOST_TRACK);
        if self.lost == 0 {
            let (name, counter) = (Some("lost events".into()), Some(CounterDescriptor {}));
            self.describe(TrackDescriptor { uuid: track_uuid, name, counter, ..TrackDescriptor::default() })?;
        }
        self.lost += count;
        let (kind, counter_value) = (Some(EventKind::Counter as i32), Some(self.lost as i64));
        self.event(self.last_ns, TrackEvent { kind, track_uuid, counter_value, ..TrackEvent::default() })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
