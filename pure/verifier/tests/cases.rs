//! The case files against our verifier. `BLESS=1` writes what it says into them.

mod case_file;

use case_file::{Case, Map, Verdict};
use ring3_uapi::bpf::map_type;
use ring3_verifier::{InnerShape, Input, MapShape, Policy};

/// CPUs that per-CPU maps are made for.
const CPUS: u32 = 2;

fn shape(maps: &[Map], index: usize) -> Option<MapShape> {
    let map = maps.get(index)?;
    let per_cpu = matches!(
        map.map_type,
        map_type::PERCPU_HASH | map_type::PERCPU_ARRAY | map_type::LRU_PERCPU_HASH | map_type::PERCPU_CGROUP_STORAGE
    );
    let stride = map.value.next_multiple_of(8);
    Some(MapShape {
        slot: index as u32,
        map_type: map.map_type,
        key_size: map.key,
        value_size: map.value,
        max_entries: map.entries,
        map_flags: map.flags,
        stride,
        cpus: if per_cpu { CPUS } else { 1 },
        cpu_stride: u64::from(stride) * u64::from(map.entries),
        lock: None,
        inner: map.inner.and_then(|inner| maps.get(inner)).map(inner_shape),
    })
}

fn inner_shape(map: &Map) -> InnerShape {
    InnerShape {
        map_type: map.map_type,
        key_size: map.key,
        value_size: map.value,
        max_entries: map.entries,
        map_flags: map.flags,
        lock: None,
    }
}

/// What a frozen map's only value holds.
fn constant(maps: &[Map], slot: u32) -> Option<Vec<u8>> {
    let map = maps.get(slot as usize).filter(|map| map.frozen && map.entries == 1)?;
    let mut value = map.content.clone();
    value.resize(map.value as usize, 0);
    Some(value)
}

/// As it stands in a file: the first line of the message.
fn on_one_line(said: &Verdict) -> Verdict {
    match said {
        Verdict::Refuse { errno, message: Some(message) } => {
            Verdict::Refuse { errno: *errno, message: message.lines().next().map(str::to_owned) }
        }
        other => other.clone(),
    }
}

fn verdict(case: &Case) -> Verdict {
    let said = ring3_verifier::verify(&Input {
        insns: &case.insns,
        prog_type: case.prog_type,
        gpl_compatible: true,
        sleepable: false,
        cpus: 2,
        policy: Policy::kernel(case.prog_type),
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|index| shape(&case.maps, index as usize),
        constant_value: &|slot| constant(&case.maps, slot),
    });
    match said {
        Ok(_) => Verdict::Accept,
        Err(report) => Verdict::Refuse { errno: report.errno, message: Some(report.message) },
    }
}

#[test]
fn our_verdicts_are_those_of_the_case_files() {
    let bless = std::env::var_os("BLESS").is_some();
    let (mut cases, mut wrong) = (0, vec![]);
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")) {
        let name = file.file_name().unwrap_or_default().display().to_string();
        let text = std::fs::read_to_string(&file).expect("read");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for case in case_file::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}")) {
            cases += 1;
            let said = verdict(&case);
            if !case.expect.covers(&said) {
                lines[case.expect_line - 1] = format!("; expect: {}", on_one_line(&said));
                wrong.push(format!(
                    "{name}:{}: {}\n  expected {}\n  said {said}",
                    case.expect_line, case.title, case.expect
                ));
            }
        }
        if bless {
            std::fs::write(&file, lines.join("\n") + "\n").expect("written");
        }
    }
    assert!(bless || wrong.is_empty(), "{} of {cases} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_case_files_can_be_read_and_no_title_stands_twice() {
    let mut titles = std::collections::BTreeSet::new();
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")) {
        let text = std::fs::read_to_string(&file).expect("read");
        for case in case_file::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())) {
            assert!(titles.insert(case.title.clone()), "{}:{}: {}", file.display(), case.expect_line, case.title);
        }
    }
}
