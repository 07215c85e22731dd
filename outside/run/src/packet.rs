//! What programs that see packets find in their context, when they are run by themselves.
//! Mirrors net/bpf/test_run.c:bpf_prog_test_run_skb and bpf_prog_test_run_xdp.

use ring3_layout::packet::{SK_BUFF_BYTES, XDP_BYTES, packet_context_offset};
use ring3_uapi::bpf::prog_type;

/// `ETH_HLEN`
const ETHERNET_BYTES: usize = 14;
/// The loopback device, from which such packets come.
const LOOPBACK: u32 = 1;

/// A context whose fields are filled in.
struct Context(Vec<u8>);

impl Context {
    fn number(&mut self, off: i16, value: u32) {
        let at = packet_context_offset(off) as usize;
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn address(&mut self, off: i16, value: u64) {
        let at = packet_context_offset(off) as usize;
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// The context for a packet that lies in `packet`.
pub(crate) fn context(kind: u32, packet: &mut [u8]) -> Vec<u8> {
    let start = packet.as_mut_ptr() as u64;
    let end = start + packet.len() as u64;
    if kind == prog_type::XDP {
        let mut context = Context(vec![0; XDP_BYTES * 2]);
        context.address(0, start);
        context.address(4, end);
        context.address(8, start);
        context.number(12, LOOPBACK);
        return context.0;
    }
    let mut context = Context(vec![0; SK_BUFF_BYTES * 2]);
    // Socket filters see what is behind the Ethernet header.
    let header = if kind == prog_type::SOCKET_FILTER { ETHERNET_BYTES } else { 0 };
    let length = (packet.len() - header) as u32;
    // To all of a group, to the loopback device, to somebody else.
    let kind_of_frame = match packet[..6] {
        [first, ..] if first & 1 != 0 => 2,
        [0, 0, 0, 0, 0, 0] => 0,
        _ => 3,
    };
    context.number(0, length);
    context.number(4, kind_of_frame);
    context.number(16, u32::from(u16::from_le_bytes([packet[12], packet[13]])));
    context.number(40, LOOPBACK);
    context.address(76, start + header as u64);
    context.address(80, end);
    context.address(140, start + header as u64);
    // wire_len
    context.number(160, length);
    context.0
}
