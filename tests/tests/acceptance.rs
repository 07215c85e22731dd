//! Real programs, those of the tools in Debian's libbpf-tools: what the kernel accepts of them, each loaded by itself,
//! and whether what we make of their files is what libbpf makes of them.

mod kernel;
#[path = "calls/raw_bpf.rs"]
mod raw_bpf;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ring3_btf::kind;
use ring3_isa::Insn;
use ring3_isa::code::BPF_EXIT;
use ring3_object::{Kernel, Object, Program, Settings, embedded};
use ring3_tests::{is_root, libbpf_tools, programs, root};
use ring3_uapi::Errno;
use ring3_uapi::bpf::{attach_type, prog_type};

use kernel::{Made, Refusal, Stats};

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
    // Our own verdict on the same program stands here, once there is one to compare: what the kernel accepts we accept,
    // what it refuses we may refuse for another reason.
}

impl Row {
    /// Refusals that are no fault of ours: libbpf gets the same.
    fn is_expected(&self, refusal: &Refusal, entries_forbidden: bool) -> bool {
        // A structure has no such member any more; the tool is older than the kernel.
        let outdated = refusal.why.contains(POISON);
        let forbidden = entries_forbidden && ENTRIES.contains(&self.attach_type) && refusal.why.is_empty();
        self.homeless || outdated || forbidden
    }

    fn line(&self) -> String {
        let verdict = match &self.kernel {
            Ok(stats) => format!(
                "{:>8} us {:>7} insns {:>5} states (peak {})",
                stats.usec, stats.insns_processed, stats.total_states, stats.peak_states
            ),
            Err(refusal) => format!("REFUSED {:?}: {}", refusal.errno, refusal.why),
        };
        let kind = prog_type::name(self.prog_type).unwrap_or("?").trim_start_matches("BPF_PROG_TYPE_");
        format!("{:<16} {:<32} {kind:<15} {:>5}  {verdict}", self.tool, self.program, self.insns)
    }
}

/// What the kernel says of a call that stands for what could not be relocated.
const POISON: &str = "invalid func unknown#195896080";
const ENTRIES: [u32; 3] = [attach_type::TRACE_FENTRY, attach_type::TRACE_FEXIT, attach_type::MODIFY_RETURN];

/// Whether this host lets nobody attach programs to entries of the kernel's functions.
fn forbids_entries(types: &Kernel) -> bool {
    let function = types.find(b"vfs_read", kind::FUNC).expect("every kernel has it");
    let program = Program {
        name: "trivial".into(),
        section: "fentry/vfs_read".into(),
        autoload: true,
        prog_type: prog_type::TRACING,
        expected_attach_type: attach_type::TRACE_FENTRY,
        attach_to: None,
        attach_btf_id: function,
        flags: 0,
        insns: vec![Insn::new(0xb7, 0, 0, 0, 0), Insn::new(BPF_EXIT, 0, 0, 0, 0)],
        func_info: vec![],
        line_info: vec![],
    };
    let object = Object { license: "GPL".into(), maps: vec![], programs: vec![], btf: None };
    let refusal = Made::of(&object).expect("nothing to make").load(&object, &program).err();
    refusal.is_some_and(|refusal| refusal.errno == Errno::EPERM)
}

fn settings() -> Settings {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel has a release");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0u32);
    let version = next() << 16 | next() << 8 | next().min(255);
    Settings { version, cookies: true, syscall_wrappers: true, ..Settings::default() }
}

/// All programs of the installed tools; what of their objects cannot be had at all.
fn rows(types: &Kernel) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut failures) = (vec![], vec![]);
    for (tool, binary) in libbpf_tools() {
        for bytes in embedded(&binary) {
            let object = Object::load(bytes, types, &settings()).map_err(|error| error.to_string());
            let made = object.and_then(|object| Ok((Made::of(&object)?, object)));
            let (mut made, object) = match made {
                Ok(made) => made,
                Err(why) => {
                    failures.push(format!("{tool}: {why}"));
                    continue;
                }
            };
            for program in &object.programs {
                let kernel = made.load(&object, program);
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
                });
            }
        }
    }
    (rows, failures)
}

#[test]
fn the_kernel_accepts_what_the_tools_load() {
    if !is_root() {
        return println!("SKIPPED: loading programs natively needs root");
    }
    let Ok(types) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return println!("SKIPPED: this kernel does not tell its types");
    };
    let types = Kernel::parse(types).expect("the kernel's types");
    let (rows, failures) = rows(&types);
    if rows.is_empty() && failures.is_empty() {
        return println!("SKIPPED: libbpf-tools is not installed");
    }
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
}

/// Name, type and attach type of a program to its instructions.
type Listing = BTreeMap<String, Vec<Insn>>;

/// Programs with their maps counted in the order of those that any of them uses: descriptors and indices are the same.
fn with_counted_maps(mut listing: Listing) -> Listing {
    const MAP_SOURCES: [u8; 4] = [1, 2, 5, 6];
    let refers = |insn: &&mut Insn| insn.is_wide() && MAP_SOURCES.contains(&insn.src());
    let used: BTreeSet<i32> = listing.values_mut().flatten().filter(refers).map(|insn| insn.imm).collect();
    for insn in listing.values_mut().flatten().filter(refers) {
        insn.imm = used.range(..insn.imm).count() as i32;
        // By descriptor, or by index: 1 and 5, 2 and 6.
        insn.regs = insn.dst() | (insn.src() % 4) << 4;
    }
    listing
}

fn by_libbpf(path: &std::path::Path) -> Listing {
    let output = Command::new(programs().join("relocated")).arg(path).output().expect("it runs");
    assert!(output.status.success(), "{}", path.display());
    let text = String::from_utf8(output.stdout).expect("text");
    let program = |line: &str| {
        let (name, code) = line.rsplit_once(' ').expect("a name and code");
        let byte = |at| u8::from_str_radix(&code[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..code.len()).step_by(2).map(byte).collect();
        (name.to_owned(), ring3_isa::decode(&bytes).expect("whole instructions"))
    };
    text.lines().map(program).collect()
}

#[test]
fn programs_are_what_libbpf_makes_of_them() {
    if !is_root() {
        return println!("SKIPPED: libbpf makes maps first, which needs root");
    }
    let Ok(types) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return println!("SKIPPED: this kernel does not tell its types");
    };
    let types = Kernel::parse(types).expect("the kernel's types");
    let tools = libbpf_tools();
    if tools.is_empty() {
        return println!("SKIPPED: libbpf-tools is not installed");
    }
    let folder = root().join("target/objects");
    std::fs::create_dir_all(&folder).expect("target is writable");
    let (mut compared, mut different) = (0, vec![]);
    for (tool, binary) in &tools {
        for bytes in embedded(binary) {
            let path = folder.join(format!("{tool}.o"));
            std::fs::write(&path, bytes).expect("target is writable");
            let object = Object::load(bytes, &types, &settings()).expect("an object");
            let named = object.programs.into_iter().map(|program| {
                let name = format!("{} {} {}", program.name, program.prog_type, program.expected_attach_type);
                (name, program.insns)
            });
            let ours = with_counted_maps(named.collect());
            let theirs = with_counted_maps(by_libbpf(&path));
            assert!(ours.keys().eq(theirs.keys()), "{tool}: left {:?}, right {:?}", ours.keys(), theirs.keys());
            compared += ours.len();
            for (name, insns) in ours.iter().filter(|(name, insns)| theirs[*name] != **insns) {
                let at = insns.iter().zip(&theirs[name]).position(|(ours, theirs)| ours != theirs);
                different.push(format!("{tool}: {name}: instruction {at:?}"));
            }
        }
    }
    println!("{compared} programs are the same as libbpf's");
    assert!(different.is_empty(), "{different:#?}");
}
