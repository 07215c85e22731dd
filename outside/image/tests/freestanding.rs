//! The image needs nothing and disturbs nothing.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use ring3_layout::region::{CONTROL_OFFSET, REGION_BYTES};

/// Goal for the image, bytes.
const IMAGE_BYTES_GOAL: usize = 200 << 10;

fn elf() -> ElfFile64<'static, Endianness> {
    ElfFile64::parse(ring3_image::file()).expect("valid")
}

fn text() -> (&'static [u8], u64) {
    let elf = elf();
    let endian = elf.endian();
    let header = elf.elf_program_headers().iter().find(|ph| ph.p_flags(endian) & object::elf::PF_X != 0);
    let header = header.expect("code");
    let (start, bytes) = (header.p_vaddr(endian), header.p_filesz(endian));
    (&ring3_image::bytes()[start as usize..(start + bytes) as usize], start)
}

#[test]
fn nothing_is_needed_from_outside() {
    let elf = elf();
    assert_eq!(elf.dynamic_symbols().filter(ObjectSymbol::is_undefined).filter(|s| s.name() != Ok("")).count(), 0);
    let dynamic = elf.imports().expect("readable");
    assert!(dynamic.is_empty(), "{dynamic:?}");
    for (at, relocation) in elf.dynamic_relocations().into_iter().flatten() {
        let object::RelocationFlags::Elf { r_type } = relocation.flags() else { panic!("not ELF") };
        assert_eq!(r_type, object::elf::R_X86_64_RELATIVE, "at {at:#x}");
    }
    assert!(elf.symbols().all(|symbol| !symbol.name().unwrap_or_default().contains("panic_fmt")), "a panic is left");
    println!("agent image: {} bytes mapped, {} symbols", ring3_image::bytes().len(), ring3_image::symbols().count());
    assert!(ring3_image::bytes().len() <= IMAGE_BYTES_GOAL);
}

#[test]
fn no_instruction_touches_vector_or_x87_registers_or_memory_outside_the_region() {
    let (code, address) = text();
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let end = ring3_image::bytes().len() as u64;
    let mut count = 0;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            continue;
        }
        count += 1;
        for used in factory.info(&instruction).used_registers() {
            let register: Register = used.register();
            let harmful = register.is_vector_register() || register.is_st() || register.is_mm() || register.is_k();
            assert!(!harmful, "{instruction} at {:#x}", instruction.ip());
        }
        // What never runs: the mark before the abort of a restartable sequence.
        if instruction.is_ip_rel_memory_operand() && instruction.mnemonic() != Mnemonic::Ud1 {
            let address = instruction.ip_rel_memory_address();
            let is_ours = address < end || (CONTROL_OFFSET..=REGION_BYTES).contains(&address);
            assert!(is_ours, "{instruction} at {:#x}", instruction.ip());
        }
    }
    assert!(count > 1000);
}

/// They are parts of one run through the agent, from which jumps lead on (`inside/agent/src/raw_syscall_entry.rs`): what they
/// changed nobody would restore.
#[test]
fn what_system_calls_come_by_changes_no_register_that_functions_keep_but_rbx() {
    const KEPT: [Register; 5] = [Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
    let mut factory = InstructionInfoFactory::new();
    for name in ["begun", "begin_ran", "ended", "end_ran"] {
        let name = format!("ring3_syscall_{name}");
        let (_, offset, bytes) = ring3_image::functions().find(|(own, ..)| **own == *name).expect(&name);
        let code = &ring3_image::bytes()[offset as usize..(offset + bytes) as usize];
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, code, offset, DecoderOptions::NONE).iter().collect();
        assert!(instructions.len() > 10, "{name}");
        for instruction in instructions {
            for used in factory.info(&instruction).used_registers() {
                let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                let harmful = KEPT.contains(&used.register().full_register()) && !reads;
                assert!(!harmful, "{name}: {instruction} at {:#x}", instruction.ip());
            }
        }
    }
}

/// What the linker was told (`inside/agent/image.ld`).
#[test]
fn the_entries_of_system_calls_go_on_into_what_sees_the_calls() {
    for (entry, seen) in [("enter", "begun"), ("exit", "ended")] {
        let at = |name: &str| ring3_image::symbol(&format!("ring3_syscall_{name}")).expect(name);
        let code = &ring3_image::bytes()[at(entry) as usize..at(seen) as usize];
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, code, at(entry), DecoderOptions::NONE).iter().collect();
        assert!(instructions.iter().all(|i| i.flow_control() == FlowControl::Next), "{instructions:?}");
        assert!((10..40).contains(&instructions.len()), "{entry}: {}", instructions.len());
        assert_eq!(instructions.last().expect("some").next_ip(), at(seen), "{entry}");
    }
}

#[test]
fn entry_points_and_helpers_have_symbols() {
    for name in ["ring3_enter", "ring3_return_trampoline", "ring3_hash_lookup_4", "ring3_hash_lookup_16"] {
        assert!(ring3_image::symbol(name).is_some(), "{name}");
    }
    assert!(ring3_image::helper(ring3_uapi::helper::MAP_LOOKUP_ELEM).is_some());
    assert!(ring3_image::helper(ring3_uapi::helper::XDP_ADJUST_HEAD).is_none());
}
