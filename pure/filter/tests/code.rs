//! Random filters say the same of random records by the evaluator and as code, which the verifier accepts.

#[path = "random/mod.rs"]
mod random;

use random::{Layout, sample};
use ring3_filter::STACK_BEGIN;
use ring3_generate::Random;
use ring3_interp::{Fault, Host, Memory};
use ring3_uapi::bpf::prog_type;
use ring3_verifier::{Input, Policy, Verified, verify};

const FILTERS: u64 = 3000;
const RECORDS: u64 = 8;
const MEMORY_AT: u64 = 0x1000_0000;

struct NoHost;

impl Host for NoHost {
    fn call(&mut self, helper: u32, _: [u64; 5], _: &mut Memory) -> Result<u64, Fault> {
        Err(Fault::UnknownHelper(helper))
    }

    fn map(&self, _: u32, _: Option<u32>) -> u64 {
        0
    }
}

fn verified(text: &str, bytes: usize) -> Result<Verified, String> {
    let insns = ring3_isa::assemble(text).map_err(|error| error.to_string())?;
    let input = Input {
        insns: &insns,
        prog_type: prog_type::SYSCALL,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: Policy::memory(bytes as u32),
        log_level: 1,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|_| None,
        constant_value: &|_| None,
    };
    verify(&input).map_err(|report| report.log)
}

#[test]
fn code_says_what_the_evaluator_says() {
    let (mut answers, mut constant, mut spilling) = ([0; 2], 0, 0);
    for number in 0..FILTERS {
        let mut random = Random::new(7, number);
        let sample = sample(&mut random);
        constant += u64::from(sample.typed.constant().is_some());
        let layout = Layout::new(&sample.of);
        let text = layout.program(&sample.typed);
        spilling += u64::from(text.contains(&format!("(r10 {STACK_BEGIN:+})")));
        let program =
            verified(&text, layout.bytes()).unwrap_or_else(|log| panic!("{number}: {}\n{text}\n{log}", sample.text));
        for _ in 0..RECORDS {
            let bytes = random::record(&mut random, &sample.of);
            let record = ring3_event::Record::parse(&sample.of, &bytes).expect("it is one");
            let mut memory = Memory::default();
            memory.add(MEMORY_AT, layout.memory(&mut random, &record, &bytes));
            let given = ring3_interp::run(&program, MEMORY_AT, &mut memory, &mut NoHost, 1 << 24).expect("it ends");
            let expected = sample.typed.evaluate(&record);
            answers[usize::from(expected)] += 1;
            assert_eq!(given, u64::from(expected), "{number}: {}\n{record:?}\n{text}", sample.text);
        }
    }
    println!("{answers:?} answers, {constant} filters are constant, {spilling} need the stack");
    assert!(spilling * 20 > FILTERS, "{spilling}");
    assert!(answers.iter().all(|count| count * 5 > FILTERS * RECORDS), "{answers:?}");
}
