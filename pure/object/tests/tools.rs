//! The objects of Debian's libbpf-tools, as they are installed, for the kernel that runs.

use std::sync::OnceLock;

use proptest::prelude::*;
use ring3_object::{Kernel, Object, Settings, embedded};

const TYPES: &str = "/sys/kernel/btf/vmlinux";

fn settings() -> Settings {
    Settings { version: 6 << 16 | 18 << 8, cookies: true, syscall_wrappers: true, ..Settings::default() }
}

/// The kernel's types, if they can be had.
fn kernel() -> Option<&'static Kernel> {
    static KERNEL: OnceLock<Option<Kernel>> = OnceLock::new();
    KERNEL.get_or_init(|| Some(Kernel::parse(std::fs::read(TYPES).ok()?).expect("the kernel's types"))).as_ref()
}

/// Names and objects of the tools that are installed.
fn tools() -> Vec<(String, Vec<u8>)> {
    let objects = |(name, bytes): (String, Vec<u8>)| -> Vec<(String, Vec<u8>)> {
        embedded(&bytes).map(|object| (name.clone(), object.to_vec())).collect()
    };
    ring3_tests::libbpf_tools().into_iter().flat_map(objects).collect()
}

#[test]
fn objects_of_installed_tools_are_made_ready() {
    let (Some(kernel), tools) = (kernel(), tools()) else { return println!("SKIPPED: no {TYPES}") };
    if tools.is_empty() {
        return println!("SKIPPED: libbpf-tools is not installed");
    }
    let (mut programs, mut failures) = (0, vec![]);
    for (name, bytes) in &tools {
        match Object::load(bytes, kernel, &settings()) {
            Ok(object) => {
                programs += object.programs.len();
                for program in &object.programs {
                    assert_eq!(program.func_info.first().map(|(at, _)| *at), Some(0), "{name}: {}", program.name);
                    assert!(program.func_info.is_sorted() && program.line_info.is_sorted());
                    assert!(program.line_info.len() > 1, "{name}: {}", program.name);
                }
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    println!("{} objects, {programs} programs", tools.len());
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(programs >= tools.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_objects_are_refused_without_a_panic(
        which: prop::sample::Index,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        static OBJECTS: OnceLock<(Vec<Vec<u8>>, Kernel)> = OnceLock::new();
        let (objects, small) = OBJECTS.get_or_init(|| {
            let mut all: Vec<Vec<u8>> = tools().into_iter().map(|(_, bytes)| bytes).collect();
            if all.is_empty() {
                println!("SKIPPED: libbpf-tools is not installed");
            }
            all.sort_by_key(Vec::len);
            (all, Kernel::without_types())
        });
        if objects.is_empty() {
            return Ok(());
        }
        let mut bytes = which.get(objects).clone();
        // Now and then in the tables at the end, where most depends on it and little gets past it.
        for (number, (at, value)) in damage.iter().enumerate() {
            let length = bytes.len();
            let at = if number % 8 != 7 { at.index(length) } else { length - 1 - at.index(length.min(4096)) };
            bytes[at] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = Object::load(&bytes, kernel().unwrap_or(small), &settings());
    }
}
