//! The agent image as bytes, and where its symbols are; the library that strace preloads.
//!
//! Runs: in the server.
//! May touch: nothing; the image is part of the binary.
//! Never: changes the image.
//! Start reading at: `bytes`.
#![forbid(unsafe_code)]

use std::arch::x86_64::__cpuid_count;
use std::collections::HashMap;
use std::sync::OnceLock;

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

/// ELF headers are read in place.
#[repr(align(16))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("RING3_AGENT")));

/// The shared library of `outside/strace`.
pub static STRACE_LIBRARY: &[u8] = include_bytes!(env!("RING3_STRACE"));

struct Image {
    bytes: Vec<u8>,
    symbols: HashMap<String, u64>,
}

/// The agent's ELF file, for checks.
pub fn file() -> &'static [u8] {
    &FILE.0
}

/// The image as it is mapped: byte n is what lies n bytes from its base.
pub fn bytes() -> &'static [u8] {
    &image().bytes
}

/// Whether this machine's CPUs have the instruction RDPID (`CPUID.7:ECX[22]`), which takes a quarter of the time that reading
/// the CPU's number from a segment limit takes.
pub fn cpu_has_rdpid() -> bool {
    const FEATURES: u32 = 7;
    const RDPID: u32 = 1 << 22;
    // (In a virtual machine this instruction takes tens of microseconds.)
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| __cpuid_count(0, 0).eax >= FEATURES && __cpuid_count(FEATURES, 0).ecx & RDPID != 0)
}

/// Offset of a symbol from the image's base.
pub fn symbol(name: &str) -> Option<u64> {
    image().symbols.get(name).copied()
}

/// Offset of the helper with this number (`BPF_FUNC_*`).
pub fn helper(id: u32) -> Option<u64> {
    symbol(&format!("ring3_helper_{}", ring3_uapi::helper::name(id)?))
}

/// Where in the image code lies.
pub fn code() -> std::ops::Range<u64> {
    let elf = ElfFile64::<Endianness>::parse(file()).expect("the build made a valid file");
    let endian = elf.endian();
    let segments = elf.elf_program_headers().iter();
    let mut code = segments.filter(|ph| ph.p_flags(endian) & object::elf::PF_X != 0);
    code.next().map_or(0..0, |ph| ph.p_vaddr(endian)..ph.p_vaddr(endian) + ph.p_memsz(endian))
}

/// All functions: name, offset and bytes.
pub fn functions() -> impl Iterator<Item = (String, u64, u64)> {
    let elf = ElfFile64::<Endianness>::parse(file()).expect("the build made a valid file");
    let symbols = elf.symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    let mut found: Vec<(String, u64, u64)> = symbols
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address(), symbol.size())))
        .collect();
    found.sort_by_key(|(_, offset, _)| *offset);
    found.into_iter()
}

/// All symbols with their offsets.
pub fn symbols() -> impl Iterator<Item = (&'static str, u64)> {
    image().symbols.iter().map(|(name, offset)| (name.as_str(), *offset))
}

fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let elf = ElfFile64::<Endianness>::parse(file()).expect("the build made a valid file");
        let endian = elf.endian();
        let mut bytes = vec![];
        let executable = elf
            .elf_program_headers()
            .iter()
            .filter(|ph| ph.p_type(endian) == object::elf::PT_LOAD && ph.p_flags(endian) & object::elf::PF_W == 0);
        for header in executable {
            let (start, data) =
                (header.p_vaddr(endian) as usize, header.data(endian, file()).expect("inside the file"));
            bytes.resize(bytes.len().max(start + data.len()), 0);
            bytes[start..start + data.len()].copy_from_slice(data);
        }
        relax(&elf, &mut bytes);
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let symbols = symbols
            .filter(|symbol| symbol.is_definition())
            .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
            .collect();
        Image { bytes, symbols }
    })
}

/// Makes uses of the table of addresses direct, as linkers do for `R_X86_64_(REX_)GOTPCRELX`: calls and jumps
/// through it (`call [rip + slot]`, which the compiler emits for `memcpy` and its kin), and loads from it
/// (`mov reg, [rip + slot]`), which become `lea`. So the image needs no relocation and no data.
fn relax(elf: &ElfFile64<'_, Endianness>, bytes: &mut [u8]) {
    let slots: HashMap<u64, u64> = elf
        .dynamic_relocations()
        .into_iter()
        .flatten()
        .map(|(slot, relocation)| (slot, relocation.addend() as u64))
        .collect();
    for at in 0..bytes.len().saturating_sub(5) {
        // Offset of the displacement, and the bytes that replace what is before it. A prefix keeps the length:
        // addr32 call, addr32 jmp.
        let (displacement_at, direct): (usize, &[u8]) = match bytes[at..at + 3] {
            [0xff, 0x15, _] => (2, &[0x67, 0xe8]),
            [0xff, 0x25, _] => (2, &[0x67, 0xe9]),
            [0x48 | 0x4c, 0x8b, modrm] if modrm & 0xc7 == 0x05 => (3, &[bytes[at], 0x8d, modrm]),
            _ => continue,
        };
        let direct = direct.to_vec();
        let end = at + displacement_at + 4;
        let Some(displacement) = bytes.get(end - 4..end) else { continue };
        let displacement = i32::from_le_bytes(displacement.try_into().expect("4 bytes"));
        let Some(target) = slots.get(&(end as u64).wrapping_add_signed(i64::from(displacement))) else { continue };
        bytes[at..end - 4].copy_from_slice(&direct);
        bytes[end - 4..end].copy_from_slice(&(target.wrapping_sub(end as u64) as i32).to_le_bytes());
    }
}
