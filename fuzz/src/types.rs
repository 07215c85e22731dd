//! BTF, and object files of programs.

use std::sync::LazyLock;

use ring3_btf::Btf;
use ring3_generate::Random;
use ring3_object::{Kernel, Object, Settings};

use crate::bytes::Bytes;

/// Types that are asked for all that they tell.
const TYPES_MAX: u32 = 200;

/// The bytes are types.
pub(crate) fn btf(input: &[u8]) {
    let own = Btf::parse(input.to_vec());
    let any = Btf::parse_any(input.to_vec());
    assert!(own.is_err() || any.is_ok(), "what a program may have as its own types can be read");
    let Ok(types) = any else { return };
    assert_eq!(types.bytes(), input);
    for id in (0..=types.count().min(TYPES_MAX)).chain([u32::MAX]) {
        let named = types.name_of(id).to_vec();
        assert!(types.members(id).count() <= types.len_of(id) && types.values(id).count() <= types.len_of(id));
        let _ = (types.parameters(id).count(), types.variables(id).count(), types.array(id), types.elements(id));
        let _ = (types.linkage(id), types.int_encoding(id), types.int_offset(id), types.is_i32(id));
        let (plain, sized) = (types.plain(id), types.sized(id));
        assert!(sized.is_none_or(|(of, _)| types.kind(of).is_some()), "{plain}");
        let _ = types.specials(id);
        if let Some(kind) = types.kind(id).filter(|_| !named.is_empty()) {
            assert!(types.find(&named, kind).is_some_and(|first| first <= id));
        }
    }
    let mut rest = Bytes(input);
    for _ in 0..16 {
        let record = [rest.u32() & 0xff, rest.u32() & 0xff, rest.u32() & 0xff, rest.u32()];
        let _ = ring3_names::line(&types, record);
    }
}

/// Types that are nearly right.
fn types(random: &mut Random) -> Vec<u8> {
    const KINDS: [u32; 19] = [1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19];
    let strings = b"\0int\0bpf_spin_lock\0a\0b\0main.c\0bpf_timer\0";
    let names = [0u32, 1, 5, 19, 21, 23, 30];
    let mut words: Vec<u32> = vec![1, 0x0100_0000, 4, 0x0100_0020, 5, 0x0400_0001, 4, 19, 1, 0];
    let count = random.below(12) as u32 + 3;
    for _ in 0..count {
        let kind = random.of(&KINDS);
        let fields = random.below(4) as u32;
        let id = |random: &mut Random| random.below(u64::from(count) + 1) as u32;
        let (vlen, words_of_one) = match kind {
            4 | 5 | 15 | 19 => (fields, 3),
            6 | 13 => (fields, 2),
            _ => (0, 0),
        };
        let size_or_type = if matches!(kind, 4 | 5 | 15 | 19 | 6 | 1) { random.below(40) as u32 } else { id(random) };
        words.extend([random.of(&names), kind << 24 | (random.below(2) as u32) << 31 | vlen, size_or_type]);
        for _ in 0..vlen {
            for at in 0..words_of_one {
                let word = match (kind, at) {
                    (15, 0) | (4 | 5, 1) | (13, 1) => id(random),
                    (15 | 4 | 5, _) if at > 0 => random.below(20) as u32 * 8,
                    _ => random.of(&names),
                };
                words.push(word);
            }
        }
        match kind {
            1 => words.push(random.of(&[32, 64, 8, 0x0100_0020])),
            3 => words.extend([id(random), 1, random.below(9) as u32]),
            14 | 17 => words.push(random.below(3) as u32),
            _ => {}
        }
    }
    let bytes = words.len() as u32 * 4;
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    let header = [24, 0, bytes, bytes, strings.len() as u32];
    blob.extend(header.iter().chain(&words).flat_map(|word| word.to_le_bytes()));
    blob.extend(strings);
    blob
}

pub(crate) fn make_btf(random: &mut Random) -> Vec<u8> {
    let mut blob = types(random);
    if random.one_in(2) {
        crate::damage(&mut blob, random);
    }
    blob
}

static KERNEL: LazyLock<Kernel> = LazyLock::new(|| {
    let types = types(&mut Random::new(1, 0));
    Kernel::parse(types).unwrap_or_else(|_| Kernel::without_types())
});

/// The bytes are an object file.
pub(crate) fn object(input: &[u8]) {
    let settings = Settings::of_kernel("6.18.0", "CONFIG_HZ=250\nCONFIG_KPROBES=y\n");
    for kernel in [&*KERNEL, &Kernel::without_types()] {
        let Ok(object) = Object::load(input, kernel, &settings) else { continue };
        for program in &object.programs {
            assert!(!program.insns.is_empty());
            assert!(program.func_info.iter().all(|(insn, _)| (*insn as usize) < program.insns.len()));
            assert!(program.line_info.iter().all(|line| (line[0] as usize) < program.insns.len()));
        }
    }
}

/// What clang makes, with types and lines; damaged.
const OBJECTS: [&[u8]; 2] = [include_bytes!("../seeds/counts.elf"), include_bytes!("../seeds/relocated.elf")];

pub(crate) fn make_object(random: &mut Random) -> Vec<u8> {
    let mut file = random.of(&OBJECTS).to_vec();
    for _ in 0..random.below(4) {
        crate::damage(&mut file, random);
    }
    file
}
