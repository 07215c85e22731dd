//! Every function of real files: planned, or refused for a reason. The table is printed.

use std::collections::BTreeMap;

use ring3_patch::{Entries, Function, Refusal, plan_detour};

fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotCode { .. } => "no code",
        Refusal::NotABoundary { .. } => "not a boundary",
        Refusal::TooShort { .. } => "too short",
        Refusal::BranchInto { .. } => "branch into",
        Refusal::ReturnInto { .. } => "return into",
        Refusal::Immovable { .. } => "immovable",
        Refusal::OutOfReach { .. } => "out of reach",
    }
}

#[test]
fn nearly_all_functions_of_real_files_can_be_probed() {
    let files = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/bin/bash",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/local/go/bin/go",
    ];
    for path in files {
        let Ok(bytes) = std::fs::read(path) else {
            println!("SKIPPED IN PART: no {path} here");
            continue;
        };
        let elf = ring3_elf::File::parse(&bytes).expect("valid");
        let (mut planned, mut refused) = (0u32, BTreeMap::<&str, u32>::new());
        for symbol in elf.symbols().iter().filter(|symbol| symbol.size > 0) {
            let end = symbol.address + symbol.size;
            let code = elf.code(symbol.address..end + 24).or_else(|| elf.code(symbol.address..end));
            let Some(code) = code else { continue };
            let function =
                Function { bytes: code, address: symbol.address, size: symbol.size as usize, entered: None };
            match plan_detour(&function, symbol.address) {
                Ok(plan) => {
                    let stub = symbol.address & !0xffff;
                    let stub = stub.wrapping_sub(0x10_0000);
                    let made = plan.stub(
                        stub,
                        Entries { enter: 0x7000_0000_0000, call: 0x7000_0000_1000 },
                        0x7000_0010_0000,
                    );
                    assert!(made.is_ok(), "{}: {:?}", symbol.name, made.err());
                    planned += 1;
                }
                Err(refusal) => *refused.entry(reason(&refusal)).or_default() += 1,
            }
        }
        let all = planned + refused.values().sum::<u32>();
        println!(
            "{path}: {planned} of {all} functions ({:.1} %); refused: {refused:?}",
            f64::from(planned) * 100.0 / f64::from(all.max(1))
        );
        assert!(planned * 100 >= all * 90, "{path}");
    }
}
