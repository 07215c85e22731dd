//! What takes events.

use std::io;

use ring3_event::EventType;

/// Takes events, and puts them into a file or several.
///
/// A *stream* is a source with an order of its own: a ring buffer, so one for each CPU slot. Its number is small (streams are
/// kept in a table). Records of one stream come in the order of their times; those of several streams may come in any order.
/// Nobody needs to merge them: formats for viewers have a place for each stream or sort by time themselves, and text is
/// written in the order in which it comes (a caller that wants it sorted merges).
///
/// All methods may wait for the disk. A sink keeps at most a buffer for each stream; a caller that reads ring buffers lets
/// them overflow meanwhile, and says so with [`lost`](Sink::lost).
pub trait Sink {
    /// Says what events with this type's number are; before the first of them. The same type may come again.
    fn event_type(&mut self, of: &EventType) -> io::Result<()>;

    /// A record (see `ring3_event`) of a stream. Bytes that are no record of a known type are an error of kind `InvalidData`,
    /// after which the sink can be used further.
    fn record(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()>;

    /// So many events of a stream were lost since the last call.
    fn lost(&mut self, stream: u32, count: u64) -> io::Result<()>;

    /// Gives all that came so far to the operating system, so that a `kill -9` of this process does not lose it. To be called
    /// from time to time.
    fn flush(&mut self) -> io::Result<()>;

    /// Completes the files. Nothing may come afterwards.
    fn finish(&mut self) -> io::Result<()>;
}
