//! Real and damaged files.

use ring3_elf::{Error, File};

fn own() -> Vec<u8> {
    std::fs::read(std::env::current_exe().expect("known")).expect("readable")
}

#[test]
fn a_symbol_is_found_by_name_address_and_offset() {
    let bytes = own();
    let file = File::parse(&bytes).expect("valid");
    let symbol = file.symbols().iter().find(|symbol| symbol.size > 64).expect("functions");
    let offset = file.vaddr_to_offset(symbol.address).expect("in the file");
    assert_eq!(file.offset_to_vaddr(offset), Some(symbol.address));
    let (_, start, size) = file.symbol_at(symbol.address + 8).expect("covered");
    assert_eq!(start, symbol.address);
    assert_eq!(file.function_bounds(symbol.address + 8), Some(start..start + size));
}

#[test]
fn unwind_tables_tell_bounds_where_symbols_do_not() {
    let Ok(bytes) = std::fs::read("/lib64/ld-linux-x86-64.so.2") else {
        println!("SKIPPED: no glibc dynamic loader here");
        return;
    };
    let file = File::parse(&bytes).expect("valid");
    let segment = file.executable_segments()[0].clone();
    let known = (segment.start..segment.end).step_by(64).filter(|at| file.function_bounds(*at).is_some()).count();
    let all = (segment.start..segment.end).step_by(64).count();
    assert!(known * 10 > all * 7, "{known} of {all}");
}

#[test]
fn landing_pads_lie_inside_functions() {
    let bytes = own();
    let file = File::parse(&bytes).expect("valid");
    let pads = file.landing_pads().expect("the tables can be read");
    assert!(pads.len() > 100, "{}", pads.len());
    for (pad, _) in pads {
        let bounds = file.function_bounds(pad).expect("a function has it");
        assert_ne!(bounds.start, pad, "a function that begins with a landing pad");
    }
}

#[test]
fn damaged_files_are_refused_or_read_without_a_panic() {
    let bytes = own();
    assert_eq!(File::parse(b"#!/bin/sh").err(), Some(Error::NotElf));
    let mut narrow = bytes[..4096].to_vec();
    narrow[4] = 1;
    assert!(matches!(File::parse(&narrow), Err(Error::WrongMachine(_))));
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..300 {
        let mut damaged = bytes[..bytes.len().min(1 << 16)].to_vec();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (seed >> 33) as usize % 4096;
            damaged[at] = (seed >> 20) as u8;
        }
        if let Ok(file) = File::parse(&damaged) {
            let _ = (file.symbols().len(), file.function_bounds(0x1000), file.usdt_notes(), file.interpreter());
            let _ = (
                file.landing_pads(),
                file.go_text(),
                file.build_id(),
                file.code(0..u64::MAX),
                file.offset_to_vaddr(u64::MAX),
            );
        }
    }
}
