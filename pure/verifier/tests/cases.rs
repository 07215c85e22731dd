//! The case files against our verifier. `BLESS=1` writes what it says into them; where that is not the kernel's verdict
//! any more, a line `; kernel:` is written too, whose reason is left to whoever blesses.

mod case_file;

use case_file::{Case, Map, Verdict};
use ring3_uapi::bpf::{map_type, prog_type};
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
        hash: None,
        lock: map.lock,
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
        lock: map.lock,
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
    verdict_under(case, Policy::kernel(case.prog_type))
}

fn verdict_under(case: &Case, policy: Policy) -> Verdict {
    let said = ring3_verifier::verify(&Input {
        insns: &case.insns,
        prog_type: case.prog_type,
        gpl_compatible: true,
        // They can be nothing else.
        sleepable: case.prog_type == prog_type::SYSCALL,
        cpus: 2,
        policy,
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

/// Stands where a reason is missing.
const NO_REASON: &str = "(why?)";

/// Stands where a line was.
const GONE: &str = "\0";

/// Writes what was `said` into a case's lines.
fn bless(lines: &mut [String], case: &Case, said: &Verdict) {
    let expect = case.expect_line - 1;
    let title = |line: &String| line.starts_with("; case:");
    let end = lines[expect..].iter().position(title).map_or(lines.len(), |length| expect + length);
    let kernel = (expect + 1..end).find(|at| lines[*at].starts_with("; kernel:"));
    let kernel_says = case.kernel.as_ref().unwrap_or(&case.expect).wordless();
    lines[expect] = format!("; expect: {}", on_one_line(said));
    match kernel {
        Some(kernel) if kernel_says == said.wordless() => lines[kernel] = GONE.to_owned(),
        None if kernel_says != said.wordless() => lines[expect] += &format!("\n; kernel: {kernel_says} {NO_REASON}"),
        _ => {}
    }
}

#[test]
fn our_verdicts_are_those_of_the_case_files() {
    let blessing = std::env::var_os("BLESS").is_some();
    let (mut cases, mut wrong) = (0, vec![]);
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")) {
        let name = file.file_name().unwrap_or_default().display().to_string();
        let text = std::fs::read_to_string(&file).expect("read");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for case in case_file::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}")) {
            cases += 1;
            let said = verdict(&case);
            if !case.expect.covers(&said) {
                bless(&mut lines, &case, &said);
                wrong.push(format!(
                    "{name}:{}: {}\n  expected {}\n  said {said}",
                    case.expect_line, case.title, case.expect
                ));
            }
        }
        if blessing {
            lines.retain(|line| line != GONE);
            std::fs::write(&file, lines.join("\n") + "\n").expect("written");
        }
    }
    assert!(blessing || wrong.is_empty(), "{} of {cases} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_is_accepted_is_so_when_all_paths_are_walked_to_their_ends() {
    /// Refusals that come of walking so far, or of taking a pointer for a number of which nothing is known.
    const NO_MATTER: [&str; 3] = ["too large", "too complex", "infinite loop"];
    let mut wrong = vec![];
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")) {
        let text = std::fs::read_to_string(&file).expect("read");
        for case in case_file::parse(&text).expect("read before").iter().filter(|case| case.expect == Verdict::Accept)
        {
            let policy = Policy { walks_all: true, processed_max: 20_000, ..Policy::kernel(case.prog_type) };
            if let Verdict::Refuse { message: Some(message), .. } = verdict_under(case, policy)
                && !NO_MATTER.iter().any(|part| message.contains(part))
            {
                wrong.push(format!("{}:{}: {}: {message}", file.display(), case.expect_line, case.title));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_case_files_can_be_read_no_title_stands_twice_and_differences_have_reasons() {
    let mut titles = std::collections::BTreeSet::new();
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")) {
        let text = std::fs::read_to_string(&file).expect("read");
        assert!(!text.contains(NO_REASON), "{}: a reason is missing: {NO_REASON}", file.display());
        for case in case_file::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())) {
            assert!(titles.insert(case.title.clone()), "{}:{}: {}", file.display(), case.expect_line, case.title);
        }
    }
}
