//! One stream: its buffer, and its files.
//!
//! A file has a fixed number of packets from the moment at which it has its name. At each moment the first are full, one is in
//! use, and the others are empty. All have valid headers, and times that never go back; so the headers of the empty packets
//! follow the last record's time. The first file begins with one packet more, which is always empty: readers take the count
//! of lost events of a stream's first packet for what was lost before the stream.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ring3_event::header;

use super::Sizes;
use super::packet::{HEADER_BYTES, PAGE_BYTES, Packet};
use crate::Origin;
use crate::types::bad;

pub(super) struct Stream {
    directory: PathBuf,
    number: u32,
    uuid: [u8; 16],
    sizes: Sizes,
    /// How many files it had so far.
    files: u32,
    file: Option<PacketFile>,
    /// The packet in use, without what is in the buffer.
    packet: Packet,
    /// Records for the packet in use, in the order of their times, and where each begins.
    buffer: Vec<u8>,
    begins: Vec<usize>,
    /// The time of the buffer's last record, or else of the file's.
    last_ns: u64,
    lost: u64,
    late: u64,
    /// When the trace began, in nanoseconds.
    trace_begin_ns: u64,
}

struct PacketFile {
    file: File,
    path: PathBuf,
    /// Where its first packet for records begins.
    base: u64,
    /// Number of the packet in use.
    current: usize,
}

impl Stream {
    pub(super) fn new(directory: &Path, number: u32, origin: &Origin, sizes: Sizes) -> Stream {
        let packet = Packet {
            stream: number.into(),
            begin_ns: 0,
            end_ns: 0,
            content_bytes: HEADER_BYTES as u64,
            packet_bytes: sizes.packet_bytes as u64,
            lost: 0,
        };
        let (buffer, begins, directory) = (vec![], vec![], directory.to_owned());
        let (files, file, uuid, last_ns, lost, late) = (0, None, origin.uuid, 0, 0, 0);
        Stream {
            directory,
            number,
            uuid,
            sizes,
            files,
            file,
            packet,
            buffer,
            begins,
            last_ns,
            lost,
            late,
            trace_begin_ns: origin.begin_ns,
        }
    }

    pub(super) fn late(&self) -> u64 {
        self.late
    }

    pub(super) fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
    }

    pub(super) fn record(&mut self, time_ns: u64, bytes: &[u8]) -> io::Result<()> {
        if HEADER_BYTES + bytes.len() > self.sizes.packet_bytes {
            return Err(bad(format!("a record of {} bytes does not fit into a packet", bytes.len())));
        }
        if self.packet.content_bytes as usize + self.buffer.len() + bytes.len() > self.sizes.packet_bytes {
            self.commit()?;
            self.next_packet();
        }
        if time_ns < self.last_ns {
            self.insert_late(time_ns, bytes);
        } else {
            self.begins.push(self.buffer.len());
            self.buffer.extend_from_slice(bytes);
            self.last_ns = time_ns;
        }
        Ok(())
    }

    /// Puts a record before those of the buffer that are younger. (A thread may be preempted after its program has read the
    /// clock, and before it has a place in the ring buffer.)
    fn insert_late(&mut self, time_ns: u64, bytes: &[u8]) {
        let time_at = |begin: usize| {
            let time = self.buffer[begin + header::TIME..].first_chunk().expect("it is in a record");
            u64::from_le_bytes(*time)
        };
        let place = self.begins.iter().rposition(|begin| time_at(*begin) <= time_ns).map_or(0, |before| before + 1);
        let begin = self.begins.get(place).copied().unwrap_or(self.buffer.len());
        self.buffer.splice(begin..begin, bytes.iter().copied());
        for later in &mut self.begins[place..] {
            *later += bytes.len();
        }
        self.begins.insert(place, begin);
        if time_ns < self.packet.end_ns {
            let time = begin + header::TIME;
            self.buffer[time..time + 8].copy_from_slice(&self.packet.end_ns.to_le_bytes());
            self.late += 1;
            self.last_ns = self.last_ns.max(self.packet.end_ns);
        }
    }

    /// Writes the buffer, and the count of what was lost.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() && self.lost == self.packet.lost {
            return Ok(());
        }
        let mut packet = self.packet;
        if packet.content_bytes == HEADER_BYTES as u64 && !self.buffer.is_empty() {
            packet.begin_ns = u64::from_le_bytes(*self.buffer[header::TIME..].first_chunk().expect("a record"));
        }
        if self.files == 0 && self.buffer.is_empty() {
            // All was lost so far: no record has a time.
            (packet.begin_ns, self.last_ns) = (self.trace_begin_ns, self.trace_begin_ns);
        }
        packet.end_ns = packet.end_ns.max(self.last_ns);
        packet.lost = self.lost;
        self.open(packet.begin_ns)?;
        let file = self.file.as_ref().expect("it is open");
        let begin = file.base + (file.current * self.sizes.packet_bytes) as u64;
        file.file.write_all_at(&self.buffer, begin + packet.content_bytes)?;
        packet.content_bytes += self.buffer.len() as u64;
        let empty = empty_after(&packet).bytes(&self.uuid);
        for later in (file.current + 1..self.sizes.packets).rev() {
            file.file.write_all_at(&empty, file.base + (later * self.sizes.packet_bytes) as u64)?;
        }
        file.file.write_all_at(&packet.bytes(&self.uuid), begin)?;
        self.packet = packet;
        self.buffer.clear();
        self.begins.clear();
        Ok(())
    }

    fn next_packet(&mut self) {
        self.packet = empty_after(&self.packet);
        if let Some(file) = &mut self.file {
            file.current += 1;
            if file.current == self.sizes.packets {
                self.file = None;
            }
        }
    }

    /// Makes the next file, if none is open.
    fn open(&mut self, begin_ns: u64) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let path = self.directory.join(format!("stream_{}_{:04}", self.number, self.files));
        let hidden = self.hidden();
        let made = self.make(&hidden, begin_ns).and_then(|made| fs::rename(&hidden, &path).map(|()| made));
        let (file, base) = made.inspect_err(|_| drop(fs::remove_file(&hidden)))?;
        self.files += 1;
        self.file = Some(PacketFile { file, path, base, current: 0 });
        Ok(())
    }

    fn hidden(&self) -> PathBuf {
        self.directory.join(format!(".stream_{}", self.number))
    }

    /// A file of empty packets, and where those for records begin.
    fn make(&self, path: &Path, begin_ns: u64) -> io::Result<(File, u64)> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        // (What was lost is said by packets that come after the first.)
        let empty = Packet { begin_ns, end_ns: begin_ns, ..empty_after(&self.packet) };
        let mut base = 0;
        if self.files == 0 {
            base = PAGE_BYTES as u64;
            // (Before the next: babeltrace2 sorts packets by their begins, and those that begin together the other way round.)
            let before_ns = begin_ns.saturating_sub(1);
            let first = Packet { packet_bytes: base, lost: 0, begin_ns: before_ns, end_ns: before_ns, ..empty };
            file.write_all_at(&first.bytes(&self.uuid), 0)?;
        }
        for at in 0..self.sizes.packets {
            file.write_all_at(&empty.bytes(&self.uuid), base + (at * self.sizes.packet_bytes) as u64)?;
        }
        file.set_len(base + (self.sizes.packets * self.sizes.packet_bytes) as u64)?;
        Ok((file, base))
    }

    /// Writes what is left, and takes the empty packets away.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.commit()?;
        let Some(PacketFile { mut file, path, base, current }) = self.file.take() else { return Ok(()) };
        let begin = base + (current * self.sizes.packet_bytes) as u64;
        file.set_len(begin + self.sizes.packet_bytes as u64)?;
        // The last packet becomes as long as its content: in a copy, because its header and the file's length cannot change
        // at the same time.
        let hidden = self.hidden();
        let trimmed = Packet { packet_bytes: self.packet.content_bytes, ..self.packet };
        let mut copy = || {
            let mut copy = File::create(&hidden)?;
            file.seek(SeekFrom::Start(0))?;
            io::copy(&mut io::Read::take(&mut file, begin + trimmed.packet_bytes), &mut copy)?;
            copy.write_all_at(&trimmed.bytes(&self.uuid), begin)?;
            fs::rename(&hidden, &path)
        };
        // A full disk has no space for the copy: the packet stays as long as it is, and most of it takes no space.
        let () = copy().unwrap_or_else(|_: io::Error| drop(fs::remove_file(&hidden)));
        Ok(())
    }
}

/// The empty packet that follows a packet.
fn empty_after(packet: &Packet) -> Packet {
    Packet { begin_ns: packet.end_ns, content_bytes: HEADER_BYTES as u64, ..*packet }
}
