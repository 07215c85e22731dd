//! Reads the traces that [`Ctf`](super::Ctf) writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ring3_event::EventType;

use super::metadata;
use super::packet::{HEADER_BYTES, Packet};
use crate::types::{Types, bad};
use crate::{Origin, Sink};

/// A trace that was recorded.
pub struct Trace {
    directory: PathBuf,
    origin: Origin,
    types: Types,
}

/// What could not be read: the rest was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage(pub Vec<String>);

impl Trace {
    /// The trace in a directory.
    pub fn open(directory: &Path) -> io::Result<Trace> {
        let path = directory.join("metadata");
        let text =
            fs::read(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let known = metadata::read(&String::from_utf8_lossy(&text));
        let none = || bad(format!("{} is not of a trace that ring3 recorded, or is damaged", path.display()));
        let (origin, list) = known.ok_or_else(none)?;
        let mut types = Types::default();
        for of in &list {
            types.add(of);
        }
        Ok(Trace { directory: directory.to_owned(), origin, types })
    }

    /// Where and when it was recorded.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The types of its events.
    pub fn event_types(&self) -> impl Iterator<Item = &EventType> {
        self.types.iter()
    }

    /// Gives all records to a sink, in the order of their times, and says what could not be read.
    pub fn copy_to(&self, sink: &mut dyn Sink) -> io::Result<Damage> {
        for of in self.types.iter() {
            sink.event_type(of)?;
        }
        let mut damage = Damage::default();
        let mut readers = self.readers(&mut damage)?;
        for reader in &mut readers {
            reader.advance(&self.types, &mut damage)?;
        }
        // (Some ring buffers: a heap would not be faster.)
        while let Some(first) =
            readers.iter_mut().filter(|reader| reader.next.is_some()).min_by_key(|reader| reader.next)
        {
            if first.newly_lost > 0 {
                sink.lost(first.stream, std::mem::take(&mut first.newly_lost))?;
            }
            sink.record(first.stream, first.record())?;
            first.advance(&self.types, &mut damage)?;
        }
        for reader in &readers {
            if reader.newly_lost > 0 {
                sink.lost(reader.stream, reader.newly_lost)?;
            }
        }
        Ok(damage)
    }

    fn readers(&self, damage: &mut Damage) -> io::Result<Vec<Reader>> {
        let mut streams: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let number = name.strip_prefix("stream_").and_then(|rest| rest.split_once('_')?.0.parse().ok());
            match number {
                Some(number) => streams.entry(number).or_default().push(path),
                None if name.starts_with('.') || name == "metadata" => {}
                None => damage.0.push(format!("{} is no file of a stream", path.display())),
            }
        }
        let reader = |(stream, mut paths): (u32, Vec<PathBuf>)| {
            // By number of the file; its digits are more than four after the ten thousandth.
            paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
            paths.reverse();
            Reader::new(stream, self.origin.uuid, paths)
        };
        Ok(streams.into_iter().map(reader).collect())
    }
}

/// Reads a stream.
struct Reader {
    stream: u32,
    uuid: [u8; 16],
    /// Files to be read, the last first.
    paths: Vec<PathBuf>,
    file: Option<(File, PathBuf)>,
    /// Where the next packet of the file begins.
    next_packet: u64,
    packet: Vec<u8>,
    /// Where the next record is in the packet, and where it ends.
    begin: usize,
    end: usize,
    /// The next record's time; none at the stream's end.
    next: Option<u64>,
    lost: u64,
    newly_lost: u64,
}

impl Reader {
    fn new(stream: u32, uuid: [u8; 16], paths: Vec<PathBuf>) -> Reader {
        let (file, next_packet, packet, begin, end) = (None, 0, vec![], 0, 0);
        Reader { stream, uuid, paths, file, next_packet, packet, begin, end, next: None, lost: 0, newly_lost: 0 }
    }

    fn record(&self) -> &[u8] {
        &self.packet[self.begin..self.end]
    }

    /// Finds the next record.
    fn advance(&mut self, types: &Types, damage: &mut Damage) -> io::Result<()> {
        self.begin = self.end;
        loop {
            if self.begin < self.packet.len() {
                match types.cut(&self.packet[self.begin..]) {
                    Ok((header, bytes)) => {
                        self.end = self.begin + bytes.len();
                        self.next = Some(header.time_ns);
                        return Ok(());
                    }
                    Err(error) => self.say(damage, &format!("the rest of a packet is left out: {error}")),
                }
            }
            if !self.read_packet(damage)? {
                self.next = None;
                return Ok(());
            }
        }
    }

    fn say(&self, damage: &mut Damage, what: &str) {
        let path = self.file.as_ref().map(|(_, path)| path.display().to_string()).unwrap_or_default();
        damage.0.push(format!("{path}: {what}"));
    }

    /// Reads the next packet's content; false at the end.
    fn read_packet(&mut self, damage: &mut Damage) -> io::Result<bool> {
        loop {
            (self.begin, self.end) = (0, 0);
            self.packet.clear();
            let Some((file, _)) = &self.file else {
                let Some(path) = self.paths.pop() else { return Ok(false) };
                self.file = Some((File::open(&path)?, path));
                self.next_packet = 0;
                continue;
            };
            let left = file.metadata()?.len().saturating_sub(self.next_packet);
            if left == 0 {
                self.file = None;
                continue;
            }
            let mut header = [0; HEADER_BYTES];
            let whole = left >= HEADER_BYTES as u64 && file.read_exact_at(&mut header, self.next_packet).is_ok();
            let packet = Packet::parse(&header, &self.uuid).filter(|packet| whole && packet.packet_bytes <= left);
            let Some(packet) = packet else {
                self.say(
                    damage,
                    &format!("no packet of this trace at byte {}: the rest is left out", self.next_packet),
                );
                self.file = None;
                continue;
            };
            self.packet.resize(packet.content_bytes as usize - HEADER_BYTES, 0);
            file.read_exact_at(&mut self.packet, self.next_packet + HEADER_BYTES as u64)?;
            self.next_packet += packet.packet_bytes;
            self.newly_lost += packet.lost.saturating_sub(self.lost);
            self.lost = self.lost.max(packet.lost);
            return Ok(true);
        }
    }
}
