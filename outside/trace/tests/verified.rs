//! What the verifier makes of the programs of sessions.

use ring3_judge::{Judge, PolicySet};
use ring3_object::Kernel;
use ring3_recorder::program::Output;
use ring3_trace::{Options, Plan};
use ring3_uapi::syscalls::TABLE;

/// The most instructions that the verifier looks at for one program of the session, and its name.
fn most_steps(filter: &str, output: Output) -> (u64, String) {
    let filter = ring3_filter::parse(filter).expect("a filter");
    let calls = TABLE.iter().collect();
    let options = Options {
        calls,
        probes: vec![],
        ends: None,
        bytes_max: 32,
        buffer_bytes: 1 << 20,
        filter: Some(filter),
        output,
    };
    let plan = Plan::new(&options).expect("a plan");
    let policies = PolicySet::new(&Kernel::without_types(), 2);
    let judge = Judge::new(&policies, plan.object());
    let steps = plan.object().programs.iter().map(|program| {
        let steps = judge.ask(program, judge.policy(program), |input| match ring3_verifier::verify(input) {
            Ok(verified) => verified.statistics().processed,
            Err(error) => panic!("{}: {error:?}", program.name),
        });
        (steps, program.name.clone())
    });
    steps.max().expect("programs")
}

#[test]
fn programs_with_filters_of_texts_are_verified_fast() {
    for filter in [
        "path ~ \"/etc/*\"",
        "path ~ \"*.so*\"",
        "path ~ \"*.so\" || path ~ \"*.cache\"",
        "path ~ \"*/lib*.so*\"",
        "path ~ \"*a*b*\"",
        "path ~ \"*[0-9]*.[a-z]*\" && ret < 0",
        "comm ~ \"*s*\" && path ~ \"*e*t*c*\"",
    ] {
        for output in [Output::Records, Output::Counts { before_exec: Some(*b"abcdefgh") }] {
            let (steps, name) = most_steps(filter, output);
            assert!(steps < 2000, "{filter}: {name} takes {steps} steps");
        }
    }
}
