//! Static tracepoints for programs in Rust: one nop, and notes that say where it is and where its arguments lie.
//!
//! Runs: nothing by itself; the macros expand in the program that uses them.
//! May touch: nothing.
//! Never: calls or links anything; needs `std`.
//! Start reading at: `raw_trace.rs`.
//!
//! ```
//! use ring3_tracepoint::{ring3_trace, ring3_trace_enabled};
//!
//! struct Order {
//!     id: u32,
//!     cents: u64,
//!     customer: String,
//! }
//!
//! fn handle(order: &Order) {
//!     ring3_trace!(shop, order, id = order.id, cents = order.cents, customer: &str = &order.customer);
//!     if ring3_trace_enabled!(shop, dear) {
//!         ring3_trace!(shop, dear, words = order.customer.split(' ').count());
//!     }
//! }
//! handle(&Order { id: 7, cents: 1250, customer: "Ada".to_owned() });
//! ```
//!
//! `bpftrace -e 'usdt:./prog:shop:order { printf("%d %s\n", arg0, str(arg2, arg3)); }'` prints it, natively and under `ring3 load`.
#![no_std]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("ring3-tracepoint is for x86-64 Linux");

mod raw_trace;

pub use raw_trace::Field;
