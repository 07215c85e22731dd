//! eBPF programs inside an application that hosts them itself: no server, no privilege.
//!
//! Runs: in any process that links it, on any of its threads.
//! May touch: memory that it maps itself, the contexts that it is given; GS, of threads that have none.
//! Never: runs what is not `Verified`; lets a panic into C; allocates in a call of a compiled program.
//! Start reading at: `Vm`; `raw/mod.rs` for the C API (`include/ring3.h`).
//!
//! ```
//! use ring3_embed::{Context, Settings, Vm};
//!
//! let vm = Vm::new()?;
//! let settings = Settings::new(Context::memory(16).read_only());
//! let program = vm.load_text("r0 = *(u8 *)(r1 +3)\nr0 += r2\nexit", &settings)?;
//! assert_eq!(program.call_readonly(&[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?, 5 + 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod context;
mod error;
mod map;
mod program;
mod raw;
mod settings;
mod vm;

pub use budget::Bound;
pub use context::{Context, Field, FieldKind};
pub use error::Error;
pub use map::{Entry, Map};
pub use program::Program;
pub use raw::Arguments;
pub use ring3_object::Kernel;
pub use ring3_run::{CallError, Plain};
pub use ring3_verifier::{Parameter, Returned, Use};
pub use settings::{Engine, Function, Maps, Settings};
pub use vm::{Object, Vm};
