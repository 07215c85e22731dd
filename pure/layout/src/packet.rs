//! Contexts of programs that see packets. Addresses in `struct xdp_md` and `struct __sk_buff` have 32 bits. In the context that
//! ring3 passes, each 4 bytes of them have 8, so that whole addresses fit. (The kernel rewrites context accesses, too:
//! `convert_ctx_access`.)

use ring3_uapi::bpf::prog_type;

/// Bytes of `struct xdp_md`.
pub const XDP_BYTES: usize = 24;
/// Bytes of `struct __sk_buff`.
pub const SK_BUFF_BYTES: usize = 192;
/// Where `struct xdp_md` has addresses: `data`, `data_end`, `data_meta`.
pub const XDP_POINTERS: [i16; 3] = [0, 4, 8];
/// Where `struct __sk_buff` has them: `data`, `data_end`, `data_meta`.
pub const SK_BUFF_POINTERS: [i16; 3] = [76, 80, 140];

/// Whether programs of a type have such a context.
pub const fn has_packet_context(kind: u32) -> bool {
    matches!(kind, prog_type::XDP | prog_type::SOCKET_FILTER | prog_type::SCHED_CLS | prog_type::SCHED_ACT)
}

/// Where a byte of the context lies when the program runs.
pub const fn packet_context_offset(off: i16) -> i32 {
    let (word, byte) = (off as i32 & !3, off as i32 & 3);
    word * 2 + byte
}
