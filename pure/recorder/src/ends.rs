//! Ends of threads as events: the tracepoint `sched:sched_process_exit`, and what the thread ends with.
//!
//! The tracepoint's own fields do not say that, so it is read from the thread's `task_struct` (include/linux/sched.h).

use std::sync::Arc;

use ring3_event::{EventType, Field, Kind, Names, Phase, SIGNALS, Show};

use crate::{Operand, Recipe, Source};

/// The tracepoint's category: the provider of these events.
pub const CATEGORY: &str = "sched";
/// Its name, and that of these events.
pub const NAME: &str = "sched_process_exit";
/// The code that it gave `exit` or `exit_group`; 0 if a signal has ended it.
pub const CODE: &str = "code";
/// The signal that has ended it; else 0.
pub const SIGNAL: &str = "signal";
/// Whether there is a core dump.
pub const CORE: &str = "core";

/// Events at the ends of threads. `exit_code_at`: where `task_struct` has `exit_code`, in bytes, which is made as what wait(2)
/// tells.
pub fn recipe(id: u32, exit_code_at: u32) -> Recipe {
    let signals = SIGNALS.iter().zip(1..).map(|(name, number)| (number, (*name).to_owned()));
    let signals = Show::Enumeration(Arc::new(Names(signals.collect())));
    let field = |name: &str, show: Show| Field {
        name: name.to_owned(),
        kind: Kind::Int { bytes: 1, signed: false, show },
        phase: Phase::Entry,
    };
    let fields = vec![field(CODE, Show::Decimal), field(SIGNAL, signals), field(CORE, Show::Decimal)];
    let part = |shift, bits| Source::Number(Operand::Task { at: exit_code_at, shift, bits });
    let of = EventType { id, provider: CATEGORY.to_owned(), name: NAME.to_owned(), fields };
    Recipe { of, sources: vec![part(8, 8), part(0, 7), part(7, 1)] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{self, Output};

    #[test]
    fn the_program_is_assembled() {
        ring3_isa::assemble(&program::once(&recipe(1, 2500), None, &Output::Records)).expect("it is a program");
    }
}
