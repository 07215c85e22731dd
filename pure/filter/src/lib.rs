//! Filters of events: an expression language, its checks against the types of events, and its compilation to eBPF.
//!
//! Runs: anywhere: it computes and does no I/O.
//! May touch: what it is given.
//! Never: panics on a text, whatever it is; reads memory that a [`Place`] does not name.
//! Start reading at: [`parse`], then [`Expression::check`], then [`Typed::assemble`].
//!
//! ```
//! use ring3_event::{EventType, Field, Kind, Phase};
//! use ring3_filter::{EventScope, parse};
//!
//! let ret = Field { name: "ret".into(), kind: Kind::int(8, true), phase: Phase::Exit };
//! let close = EventType { id: 3, provider: "syscalls".into(), name: "close".into(), fields: vec![ret] };
//! let filter = parse("ret < 0 && pid == 4711").unwrap().check(&EventScope::new(&close)).unwrap();
//! assert_eq!(filter.conjuncts().len(), 2);
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod assemble;
mod assemble_text;
mod check;
mod evaluate;
mod float;
mod glob;
mod lex;
mod names;
mod parse;
mod resolve;
mod scope;
mod text;
mod typed;

pub use assemble::{LabelCounter, Place, Places, STACK_BEGIN, STACK_END, StatePlace};
pub use check::{TypeError, check_all};
pub use parse::{Expression, SyntaxError, parse};
pub use scope::{Context, EventScope, Meaning, Scope};
pub use typed::Typed;

/// Bytes of a filter's text at most.
pub const FILTER_BYTES_MAX: usize = 8192;
/// How deep an expression may be nested.
pub const DEPTH_MAX: usize = 64;
