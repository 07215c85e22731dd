//! What the verifier makes of the programs of system call stops.

use ring3_judge::{Judge, PolicySet};
use ring3_object::Kernel;
use ring3_trace::{StopsOptions, StopsPlan};
use ring3_uapi::syscalls::TABLE;

#[test]
fn programs_of_stops_are_verified_fast() {
    for (bytes_max, exact) in [(0, false), (32, false), (400, false), (1 << 20, false), (32, true)] {
        let numbers = TABLE.iter().map(|call| call.number).collect();
        let plan = StopsPlan::new(&StopsOptions { numbers, bytes_max, exact, ring_bytes: 1 << 20 }).expect("a plan");
        let policies = PolicySet::new(&Kernel::without_types(), 2);
        let judge = Judge::new(&policies, plan.object());
        let mut largest = 0;
        for program in &plan.object().programs {
            let steps = judge.ask(program, judge.policy(program), |input| match ring3_verifier::verify(input) {
                Ok(verified) => verified.statistics().processed,
                Err(error) => panic!("{}: {error:?}", program.name),
            });
            assert!(steps < 2000, "{} takes {steps} steps", program.name);
            largest = largest.max(program.insns.len());
        }
        println!("{} programs, the largest of {largest} instructions", plan.object().programs.len());
    }
}
