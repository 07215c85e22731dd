//! The notes of this very program. (How tools see others': tests/tests/static_tracepoints.rs.)
#![deny(unsafe_code)]

use ring3_elf::{File, Kind};
use ring3_tracepoint::{ring3_trace, ring3_trace_enabled};

#[inline(never)]
fn report(id: u32, name: &str) -> bool {
    ring3_trace!(own, event, id, name: &str = name, half = 0.5f32);
    ring3_trace_enabled!(own, event)
}

#[test]
fn a_program_finds_its_own_tracepoint() {
    assert!(!report(7, "seven"));
    let bytes = std::fs::read(std::env::current_exe().expect("known")).expect("readable");
    let file = File::parse(&bytes).expect("an ELF file");
    let found = file.tracepoints().into_iter().find(|one| one.provider == "own").expect("it is there");
    assert_eq!(found.name, "event");
    assert_ne!(found.semaphore, 0);
    let arguments: Vec<_> =
        found.arguments.iter().map(|one| (one.name.as_deref(), one.kind, one.place.bytes)).collect();
    assert_eq!(
        arguments,
        [(Some("id"), Kind::Unsigned, 4), (Some("name"), Kind::Text, 8), (Some("half"), Kind::Float, 4)]
    );
    assert!(found.arguments[1].length.is_some());
}
