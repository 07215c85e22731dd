//! Real programs, those of the tools in Debian's libbpf-tools: what the kernel accepts of them, each loaded by itself,
//! and whether what we make of their files is what libbpf makes of them.

mod kernel;
#[path = "calls/raw_bpf.rs"]
mod raw_bpf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use ring3_btf::kind;
use ring3_isa::Insn;
use ring3_isa::code::BPF_EXIT;
use ring3_object::{Kernel, MapDef, Object, Program, Settings, embedded};
use ring3_tests::{hexadecimal, is_root, kernel_configuration, libbpf_tools, programs, ring3, root};
use ring3_uapi::Errno;
use ring3_uapi::bpf::{attach_type, prog_type};

use serde_json::Value;

use kernel::{LoadedMaps, Refusal, Stats};

/// A program, and what is said of it.
struct Row {
    tool: String,
    program: String,
    section: String,
    prog_type: u32,
    insns: usize,
    attach_type: u32,
    /// What it is attached to is not in this kernel.
    homeless: bool,
    kernel: Result<Stats, Refusal>,
    /// What `ring3 verify --json` says of it.
    ours: Value,
}

impl Row {
    /// Refusals that are no fault of ours: libbpf gets the same.
    fn is_expected(&self, refusal: &Refusal, entries_forbidden: bool) -> bool {
        let told = NO_FAULT_OF_OURS.iter().any(|known| refusal.why.contains(known));
        let forbidden = entries_forbidden && ENTRIES.contains(&self.attach_type) && refusal.why.is_empty();
        self.homeless || told || forbidden
    }

    fn line(&self) -> String {
        let verdict = match &self.kernel {
            Ok(stats) => format!(
                "{:>8} us {:>7} insns {:>5} states (peak {})",
                stats.usec, stats.insns_processed, stats.total_states, stats.peak_states
            ),
            Err(refusal) if self.homeless => {
                format!("REFUSED {:?}: what it is attached to is not here", refusal.errno)
            }
            Err(refusal) => format!("REFUSED {:?}: {}", refusal.errno, refusal.why),
        };
        let ours = format!(
            "{:>8} us {:>7} insns {:>5} states  {}",
            self.ours["usec"],
            self.ours["processed"],
            self.ours["states"],
            if self.is_accepted() { "accepted".into() } else { format!("REFUSED {}", self.ours["reason"]) }
        );
        let kind = prog_type::name(self.prog_type).unwrap_or("?").trim_start_matches("BPF_PROG_TYPE_");
        format!("{:<16} {:<32} {kind:<15} {:>5}  {verdict} | ours {ours}", self.tool, self.program, self.insns)
    }

    fn is_not_known(&self) -> bool {
        self.tool == "features" && NOT_KNOWN.iter().any(|(name, _)| *name == self.program)
    }

    fn is_accepted(&self) -> bool {
        self.ours["accepted"] == true
    }
}

/// What kernels say of programs that are as they should be.
const NO_FAULT_OF_OURS: [&str; 3] = [
    // A structure has no such member any more: the tool is older than the kernel.
    "invalid func unknown#195896080",
    // Data is not among the names that the kernel keeps.
    "failed to find the address for kernel symbol",
    // Locked down.
    "cannot use helper bpf_probe_write_user",
];
/// What the kernel accepts and we do not, and why.
const NOT_KNOWN: [(&str, &str); 2] = [
    ("functions", "a kernel function that programs in targets have no use for"),
    ("connects", "the context of CGROUP_SOCK_ADDR is not known"),
];
/// Programs that stand between the kernel's functions and their callers.
const ENTRIES: [u32; 4] =
    [attach_type::TRACE_FENTRY, attach_type::TRACE_FEXIT, attach_type::MODIFY_RETURN, attach_type::LSM_MAC];

/// Whether this host lets nobody attach programs to entries of the kernel's functions.
fn forbids_entries(types: &Kernel) -> bool {
    let function = types.find(b"vfs_read", kind::FUNC).expect("every kernel has it");
    let returns_zero = vec![Insn::new(0xb7, 0, 0, 0, 0), Insn::new(BPF_EXIT, 0, 0, 0, 0)];
    let program = Program {
        section: "fentry/vfs_read".into(),
        expected_attach_type: attach_type::TRACE_FENTRY,
        attach_btf_id: function,
        ..Program::new("trivial", prog_type::TRACING, returns_zero)
    };
    let object = Object { license: "GPL".into(), maps: vec![], programs: vec![], btf: None };
    let refusal = LoadedMaps::of(&object).expect("nothing to make").load(&object, &program).err();
    refusal.is_some_and(|refusal| refusal.errno == Errno::EPERM)
}

fn settings() -> Settings {
    let (release, configuration) = kernel_configuration();
    Settings::of_kernel(&release, &configuration)
}

/// An object, and the file that it was written to.
struct Sample {
    name: String,
    bytes: Vec<u8>,
    path: PathBuf,
}

/// The kernel's types; `None` if it does not tell them.
fn kernel_types() -> Option<Kernel> {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
    Some(Kernel::parse(types).expect("the kernel's types"))
}

/// The objects of the installed tools, and our own, one of which asks for what no tool does.
fn samples() -> &'static [Sample] {
    static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
        let directory = root().join("target/objects");
        std::fs::create_dir_all(&directory).expect("target is writable");
        let write = |(name, bytes): (String, Vec<u8>)| {
            let path = directory.join(format!("{name}.o"));
            std::fs::write(&path, &bytes).expect("target is writable");
            Sample { name, bytes, path }
        };
        objects().into_iter().map(write).collect()
    });
    &SAMPLES
}

fn objects() -> Vec<(String, Vec<u8>)> {
    let tools = libbpf_tools();
    if tools.is_empty() {
        println!("SKIPPED IN PART: libbpf-tools is not installed");
    }
    let inside = |(name, bytes): &(String, Vec<u8>)| -> Vec<(String, Vec<u8>)> {
        embedded(bytes).map(|object| (name.clone(), object.to_vec())).collect()
    };
    let own = ["features", "flow", "helpers", "storm"].map(|name| {
        let path = programs().join(format!("{name}.bpf.o"));
        (name.to_owned(), std::fs::read(path).expect("it is built"))
    });
    tools.iter().flat_map(inside).chain(own).collect()
}

/// What `ring3 verify` says of each program of an object.
fn our_verdicts(path: &Path) -> Vec<Value> {
    let output = Command::new(ring3()).args(["verify", "--json"]).arg(path).output().expect("it runs");
    let complaint = || format!("{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    let said: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", complaint()));
    said["programs"].as_array().cloned().unwrap_or_else(|| panic!("no programs: {}", complaint()))
}

/// All programs of all objects; what of the objects cannot be had at all.
fn rows(types: &Kernel) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut failures) = (vec![], vec![]);
    for Sample { name: tool, bytes, path } in samples() {
        let object = Object::load(bytes, types, &settings()).map_err(|error| error.to_string());
        let made = object.and_then(|object| Ok((LoadedMaps::of(&object)?, object)));
        let (mut made, object) = match made {
            Ok(made) => made,
            Err(why) => {
                failures.push(format!("{tool}: {why}"));
                continue;
            }
        };
        let verdicts = our_verdicts(path);
        for program in &object.programs {
            let kernel = made.load(&object, program);
            let ours = verdicts.iter().find(|verdict| verdict["name"] == program.name.as_str());
            let wants_type = matches!(program.prog_type, prog_type::TRACING | prog_type::LSM);
            rows.push(Row {
                tool: tool.clone(),
                program: program.name.clone(),
                section: program.section.clone(),
                prog_type: program.prog_type,
                attach_type: program.expected_attach_type,
                insns: program.insns.len(),
                homeless: wants_type && program.attach_btf_id == 0,
                kernel,
                ours: ours.cloned().unwrap_or_default(),
            });
        }
    }
    (rows, failures)
}

#[test]
fn the_kernel_accepts_what_the_tools_load() {
    if !is_root() {
        return println!("SKIPPED: loading programs natively needs root");
    }
    let Some(types) = kernel_types() else {
        return println!("SKIPPED: this kernel does not tell its types");
    };
    let (rows, failures) = rows(&types);
    for row in &rows {
        println!("{}", row.line());
    }
    let accepted = rows.iter().filter(|row| row.kernel.is_ok()).count();
    println!("{} programs, {accepted} accepted", rows.len());
    assert!(failures.is_empty(), "{failures:#?}");
    let forbidden = forbids_entries(&types);
    let unexpected =
        rows.iter().filter(|row| row.kernel.as_ref().is_err_and(|refusal| !row.is_expected(refusal, forbidden)));
    let unexpected: Vec<String> = unexpected.map(|row| format!("{} ({})", row.line(), row.section)).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    let total = |usec: &dyn Fn(&Row) -> u64| rows.iter().filter(|row| row.kernel.is_ok()).map(usec).sum::<u64>();
    let kernel = total(&|row| row.kernel.as_ref().map_or(0, |stats| stats.usec));
    let ours = total(&|row| row.ours["usec"].as_u64().unwrap_or(0));
    let also = rows.iter().filter(|row| row.kernel.is_err() && row.is_accepted()).count();
    println!(
        "verification of what the kernel accepts: kernel {kernel} us, ours {ours} us; {also} more accepted by ours"
    );
    for (name, why) in NOT_KNOWN {
        let known = rows.iter().find(|row| row.tool == "features" && row.program == name).expect("it is there");
        assert!(known.kernel.is_ok() && !known.is_accepted(), "no longer so: {why}: {}", known.line());
    }
    let refused: Vec<String> = rows
        .iter()
        .filter(|row| row.kernel.is_ok() && !row.is_accepted() && !row.is_not_known())
        .map(Row::line)
        .collect();
    assert!(refused.is_empty(), "the kernel accepts what ours refuses:\n{}", refused.join("\n"));
}

/// A call of a function that there is none of was one of function 0 in older libbpf.
const OTHERWISE: &str = "functions_not_there ";

/// Name, type and attach type of a program to its instructions.
type Listing = BTreeMap<String, Vec<Insn>>;

/// Which maps of ours are which descriptors of libbpf's.
#[derive(Default)]
struct SameMaps(BTreeMap<i32, i32>);

impl SameMaps {
    /// Whether two instructions are the same but for how they name maps: we by index, libbpf by descriptor.
    fn same(&mut self, ours: &Insn, theirs: &Insn) -> bool {
        let by_index = ours.is_wide() && matches!(ours.src(), 5 | 6);
        if !by_index {
            return ours == theirs;
        }
        let known = *self.0.entry(ours.imm).or_insert(theirs.imm);
        let other = self.0.iter().any(|(index, fd)| *index != ours.imm && *fd == theirs.imm);
        let named = Insn::new(ours.opcode, ours.dst(), ours.src() - 4, ours.off, known);
        named == *theirs && !other
    }
}

/// What is made of an object.
#[derive(Default)]
struct Listed {
    maps: Vec<String>,
    types: Vec<u8>,
    programs: Listing,
}

fn by_libbpf(path: &std::path::Path) -> Listed {
    let output = Command::new(programs().join("relocated")).arg(path).output().expect("it runs");
    assert!(output.status.success(), "{}", path.display());
    let text = String::from_utf8(output.stdout).expect("text");
    let mut listed = Listed::default();
    // Sections of variables are called after the object as well.
    let mut add_map = |line: &str| {
        let (name, rest) = line.split_once(' ').expect("a name and more");
        let name = name.find('.').map_or(name, |at| &name[at..]);
        listed.maps.push(format!("{name} {rest}"));
    };
    for line in text.lines() {
        let of_map = ["map ", "value of ", "types of "].iter().find_map(|prefix| line.strip_prefix(prefix));
        if let Some(map) = of_map {
            add_map(map);
        } else if let Some(types) = line.strip_prefix("types ") {
            listed.types = hexadecimal(types);
        } else if let Some((name, code)) = line.strip_prefix("program ").and_then(|line| line.rsplit_once(' ')) {
            listed.programs.insert(name.into(), ring3_isa::decode(&hexadecimal(code)).expect("whole instructions"));
        }
    }
    listed
}

fn by_us(object: Object) -> Listed {
    let map = |map: &MapDef| {
        let MapDef { name, map_type, key_size, value_size, max_entries, map_flags, numa_node, map_extra, .. } = map;
        let flags = if *map_flags == 0 { "0".into() } else { format!("{map_flags:#x}") };
        let extra = if *map_extra == 0 { "0".into() } else { format!("{map_extra:#x}") };
        format!("{name} {map_type} {key_size} {value_size} {max_entries} {flags} {numa_node} {extra}")
    };
    let value = |map: &MapDef| {
        let bytes: String = map.initial.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {bytes}", map.name)
    };
    let types = |map: &MapDef| format!("{} {} {}", map.name, map.key_type, map.value_type);
    let program = |program: Program| {
        let name = format!("{} {} {}", program.name, program.prog_type, program.expected_attach_type);
        (name, program.insns)
    };
    Listed {
        maps: object
            .maps
            .iter()
            .map(map)
            .chain(object.maps.iter().map(value))
            .chain(object.maps.iter().map(types))
            .collect(),
        types: object.btf.map_or(vec![], |types| types.bytes().to_vec()),
        programs: object.programs.into_iter().map(program).collect(),
    }
}

#[test]
fn objects_are_what_libbpf_makes_of_them() {
    if !is_root() {
        return println!("SKIPPED: libbpf makes maps first, which needs root");
    }
    let Some(types) = kernel_types() else {
        return println!("SKIPPED: this kernel does not tell its types");
    };
    let (mut compared, mut different) = (0, vec![]);
    for Sample { name: tool, bytes, path } in samples() {
        let object = Object::load(bytes, &types, &settings()).expect("an object");
        let (ours, theirs) = (by_us(object), by_libbpf(path));
        assert_eq!(ours.maps, theirs.maps, "{tool}");
        assert!(ours.types == theirs.types, "{tool}: types");
        let (ours, theirs) = (ours.programs, theirs.programs);
        assert!(ours.keys().eq(theirs.keys()), "{tool}: left {:?}, right {:?}", ours.keys(), theirs.keys());
        let mut maps = SameMaps::default();
        for ((name, ours), theirs) in ours.iter().zip(theirs.values()) {
            if name.starts_with(OTHERWISE) {
                continue;
            }
            compared += 1;
            let at = ours.iter().zip(theirs).position(|(ours, theirs)| !maps.same(ours, theirs));
            if at.is_some() || ours.len() != theirs.len() {
                different.push(format!("{tool}: {name}: instruction {at:?}, {} and {}", ours.len(), theirs.len()));
            }
        }
    }
    println!("{compared} programs are the same as libbpf's");
    assert!(different.is_empty(), "{different:#?}");
}
