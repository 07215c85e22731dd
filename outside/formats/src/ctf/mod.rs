//! The Common Trace Format, version 1.8 (<https://diamon.org/ctf/v1.8.3>): a directory with a file `metadata` and files of
//! packets. babeltrace2 and Trace Compass read it.
//!
//! A trace has one stream for each ring buffer. Records are copied as they are (`ring3_event`), into packets of `packet`'s
//! layout. The problem is to have a directory that can be read at any moment, since this process may be killed at any moment:
//! readers refuse a file of which the last packet is incomplete, and `kill -9` may cut every write of more than a page. So a
//! file of packets is made under a hidden name with all its packets, which are empty, and then gets its name (`stream.rs`).
//! Records are written behind a packet's content, and then one write of less than a page to the packet's header makes them
//! part of it. The metadata is replaced as a whole by `rename`, before the first record of a type that it lacks.

mod metadata;
mod packet;
mod read;
mod stream;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring3_event::EventType;

use crate::types::Types;
use crate::{Origin, Sink};
pub use read::{Damage, Trace};
use stream::Stream;

/// Sizes of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a packet: a multiple of 4096. No record may be larger. Each stream has a buffer of this size.
    pub packet_bytes: usize,
    /// Packets of a file.
    pub packets: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { packet_bytes: 256 << 10, packets: 64 }
    }
}

/// Writes a trace.
pub struct Ctf {
    directory: PathBuf,
    origin: Origin,
    sizes: Sizes,
    types: Types,
    /// The file `metadata` has all types.
    metadata_is_written: bool,
    streams: Vec<Option<Stream>>,
    /// The last record.
    copy: Vec<u8>,
}

impl Ctf {
    /// A trace in a directory, which must not exist or be empty: what a viewer finds there would be part of the trace.
    pub fn create(directory: &Path, origin: Origin, sizes: Sizes) -> io::Result<Ctf> {
        assert!(sizes.packet_bytes.is_multiple_of(packet::PAGE_BYTES) && sizes.packet_bytes > 0 && sizes.packets > 0);
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if fs::read_dir(directory)?.next().is_some() {
            let text = format!("{} is not empty: name a new directory for the trace", directory.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let (types, streams, copy) = (Types::default(), vec![], vec![]);
        let mut trace =
            Ctf { directory: directory.to_owned(), origin, sizes, types, metadata_is_written: false, streams, copy };
        trace.write_metadata()?;
        Ok(trace)
    }

    /// How many records had an earlier time than records of their stream that were in the file already: they got the time of
    /// the last of those, because readers require that a stream's time does not go back. (What is late by less than a buffer
    /// is put into its place.)
    pub fn late(&self) -> u64 {
        self.streams.iter().flatten().map(Stream::late).sum()
    }

    /// Replaces the metadata at once: who reads finds the old or the new.
    fn write_metadata(&mut self) -> io::Result<()> {
        if self.metadata_is_written {
            return Ok(());
        }
        // (Viewers take no file for a stream whose name begins with a dot.)
        let new = self.directory.join(".metadata");
        let text = metadata::write(&self.origin, self.types.iter());
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, self.directory.join("metadata")));
        if written.is_err() {
            // What cannot be written completely takes no space on a full disk.
            let _ = fs::remove_file(&new);
        }
        self.metadata_is_written = written.is_ok();
        written
    }

    fn write(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        let (header, bytes) = self.types.cut(bytes)?;
        self.write_metadata()?;
        self.stream(stream)?.record(header.time_ns, bytes)
    }

    fn stream(&mut self, number: u32) -> io::Result<&mut Stream> {
        let at = number as usize;
        if at >= STREAMS_MAX {
            return Err(crate::types::bad(format!("there is no stream {number}: at most {STREAMS_MAX}")));
        }
        if self.streams.len() <= at {
            self.streams.resize_with(at + 1, || None);
        }
        let make = || Stream::new(&self.directory, number, &self.origin, self.sizes);
        Ok(self.streams[at].get_or_insert_with(make))
    }
}

/// Streams of a trace at most.
const STREAMS_MAX: usize = 1 << 16;

impl Sink for Ctf {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        if self.types.add(of) {
            self.metadata_is_written = false;
        }
        Ok(())
    }

    fn record(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        // (Copied before it is judged: a ring buffer is memory of targets, too.)
        let mut copy = std::mem::take(&mut self.copy);
        copy.clear();
        copy.extend_from_slice(bytes);
        let result = self.write(stream, &copy);
        self.copy = copy;
        result
    }

    fn lost(&mut self, stream: u32, count: u64) -> io::Result<()> {
        self.stream(stream)?.lose(count);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_metadata()?;
        self.streams.iter_mut().flatten().try_for_each(Stream::commit)
    }

    fn finish(&mut self) -> io::Result<()> {
        // One file's failure (a full disk) does not keep the others from being completed.
        let metadata = self.write_metadata();
        let streams: Vec<_> = self.streams.iter_mut().flatten().map(Stream::finish).collect();
        streams.into_iter().fold(metadata, Result::and)
    }
}
