#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| (ring3_fuzz::target_of("expressions").expect("a target").run)(input));
