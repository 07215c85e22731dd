//! What each packet begins with: CTF's packet header and packet context.

/// `CTF`, as a number (CTF 1.8, section 5.1).
const MAGIC: u32 = 0xc1fc_1fc1;
/// Bytes of [`Packet`] in a file.
pub(super) const HEADER_BYTES: usize = 72;
/// Bytes of a page: what one write of at most so many bytes within a page writes, it writes as a whole, whatever signal comes
/// (kernel: `generic_perform_write`, which looks for deadly signals between pages).
pub(super) const PAGE_BYTES: usize = 4096;

/// The packet header and context, in the order of their bytes in the file, after magic number, UUID and the stream class's
/// number, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) stream: u64,
    /// Not after the first record's time.
    pub(super) begin_ns: u64,
    /// The last record's time.
    pub(super) end_ns: u64,
    /// With the header.
    pub(super) content_bytes: u64,
    /// With what follows the content.
    pub(super) packet_bytes: u64,
    /// Since the stream's start.
    pub(super) lost: u64,
}

/// Their declaration in the metadata.
pub(super) const DECLARATION: [&str; 2] = [
    "struct { uint32_t magic; uint8_t uuid[16]; uint32_t stream_id; uint64_t stream_instance_id; }",
    "struct { nanoseconds_t timestamp_begin; nanoseconds_t timestamp_end; uint64_t content_size; uint64_t packet_size; \
     uint64_t events_discarded; }",
];

impl Packet {
    pub(super) fn bytes(&self, uuid: &[u8; 16]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..20].copy_from_slice(uuid);
        let (content, whole) = (8 * self.content_bytes, 8 * self.packet_bytes);
        let numbers = [self.stream, self.begin_ns, self.end_ns, content, whole, self.lost];
        // (Bytes 20 to 23 are the stream class's number.)
        let (places, _) = bytes[24..72].as_chunks_mut::<8>();
        for (place, number) in places.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    /// `None` if it is no packet of the trace with this UUID, or its sizes cannot be.
    pub(super) fn parse(bytes: &[u8], uuid: &[u8; 16]) -> Option<Packet> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let (places, _) = bytes[24..72].as_chunks::<8>();
        let number = |at: usize| u64::from_le_bytes(places[at]);
        let (content_bytes, packet_bytes) = (number(3) / 8, number(4) / 8);
        let packet = Packet {
            stream: number(0),
            begin_ns: number(1),
            end_ns: number(2),
            content_bytes,
            packet_bytes,
            lost: number(5),
        };
        let sizes = HEADER_BYTES as u64 <= content_bytes && content_bytes <= packet_bytes;
        (bytes[..4] == MAGIC.to_le_bytes() && bytes[4..20] == *uuid && sizes).then_some(packet)
    }
}
