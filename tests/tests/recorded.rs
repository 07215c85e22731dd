//! What bpftrace and bcc make at run time, as the kernel gets it: what the kernel accepts of it, we accept.
//!
//! The tools run on the kernel, as they are, with `tests/programs/record.c` between them and bpf(2). All of bcc's
//! tools, which take minutes to compile, only with `RING3_RECORD_ALL=1`.

#[path = "recorded/record.rs"]
mod record;
#[path = "recorded/runs.rs"]
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ring3_judge::PolicySet;
use ring3_object::Kernel;
use ring3_tests::{is_root, programs, root, shapes, wait_until};
use ring3_uapi::Errno;
use ring3_uapi::bpf::prog_type;

use record::Record;
use runs::{PYTHON, Run, Victims};

/// A tool that has loaded something and has used no processor for so long has attached, or cannot.
const SETTLED: Duration = Duration::from_millis(200);
/// One that has loaded nothing may be waiting for something.
const SETTLED_EMPTY: Duration = Duration::from_secs(3);
/// Tools that are never quiet: no more programs for so long.
const LAST_LOAD: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(60);
/// Tools at a time.
const TOOLS_MAX: usize = 2;

/// Programs by which tools find out what the kernel can do.
const FEATURE_PROBES: [&str; 3] = ["", "libbpf_nametest", "ksys_read"];

/// A process that is ended with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn waiting(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Option<Ended> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().ok().map(Ended)
}

/// Clock ticks that a process has used; `None` if it wants to use more right now, or is no more.
fn quiet_at(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let used = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
    (fields[0] == "S").then_some(used)
}

/// Bytes that were recorded in a directory.
fn recorded_bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).expect("the directory of a run").flatten();
    let records = files.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json"));
    records.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Runs a tool until it has loaded all that it will.
fn run(run: &Run, directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("target is writable");
    let file = |name: &str| File::create(directory.join(name)).expect("target is writable");
    let mut command = Command::new(&run.program);
    command.args(&run.arguments).envs(run.environment.iter().map(|(name, value)| (name, value)));
    command
        .env("LD_PRELOAD", programs().join("record.so"))
        .env("RING3_RECORD", directory)
        .env("PYTHONUNBUFFERED", "1");
    command.stdin(Stdio::null()).stdout(file("output")).stderr(file("errors"));
    let mut tool = Ended(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", run.name)));
    let started = Instant::now();
    let (mut quiet, mut quiet_since) = (None, started);
    let (mut bytes, mut bytes_since) = (0, started);
    while started.elapsed() < DEADLINE && !matches!(tool.0.try_wait(), Ok(Some(_))) {
        std::thread::sleep(Duration::from_millis(20));
        let now = (quiet_at(tool.0.id()), recorded_bytes(directory));
        if now.0.is_none() || now.0 != quiet {
            (quiet, quiet_since) = (now.0, Instant::now());
        }
        if now.1 != bytes {
            (bytes, bytes_since) = (now.1, Instant::now());
        }
        let enough = if bytes == 0 { SETTLED_EMPTY } else { SETTLED };
        if quiet_since.elapsed() >= enough || bytes != 0 && bytes_since.elapsed() >= LAST_LOAD {
            break;
        }
    }
}

fn directory_of(run: &Run) -> PathBuf {
    root().join("target/recorded").join(format!("{}-{}", run.source, run.name))
}

fn run_all(runs: &[Run]) {
    let rest = Mutex::new(runs.iter());
    std::thread::scope(|scope| {
        for _ in 0..TOOLS_MAX {
            scope.spawn(|| {
                loop {
                    let Some(next) = rest.lock().expect("nobody panics with it").next() else { break };
                    run(next, &directory_of(next));
                }
            });
        }
    });
}

/// What became of a source's tools.
#[derive(Default)]
struct Totals {
    tools: usize,
    loads: usize,
    feature_probes: usize,
    /// Not seen before.
    programs: usize,
    accepted_by_both: usize,
    refused_by_both: usize,
    only_we_accept: usize,
    only_kernel_accepts: usize,
    of_unknown_type: usize,
    processed_by_kernel: u64,
    processed_by_us: u64,
    processed_the_same: usize,
    usec_by_kernel: u64,
    usec_by_us: u64,
    silent: Vec<String>,
}

impl Totals {
    fn line(&self) -> String {
        let Totals { tools, loads, feature_probes, programs, accepted_by_both, refused_by_both, .. } = self;
        let Totals { only_we_accept, only_kernel_accepts, of_unknown_type, processed_the_same, .. } = self;
        let mut line = format!(
            "{tools} tools, {loads} loads ({feature_probes} of feature probes), {programs} different programs: \
             {accepted_by_both} accepted by both, {refused_by_both} refused by both, {only_kernel_accepts} accepted \
             by the kernel only, {only_we_accept} by us only, {of_unknown_type} of types that we do not know"
        );
        let of_both = "of those accepted by both";
        write!(
            line,
            "\n    {of_both}: kernel {} insns {} us, ours {} insns {} us; {processed_the_same} the same number of insns",
            self.processed_by_kernel, self.usec_by_kernel, self.processed_by_us, self.usec_by_us
        )
        .expect("a string");
        write!(line, "\n    loaded nothing: {}", self.silent.join(" ")).expect("a string");
        line
    }
}

/// The last lines of a text.
fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Both verdicts on a program; what is to be told if we are the stricter ones.
fn compare(run: &Run, record: &Record, policies: &PolicySet, totals: &mut Totals) -> Option<String> {
    let kernel = &record.kernel;
    let kind = prog_type::name(record.prog_type).unwrap_or("?").trim_start_matches("BPF_PROG_TYPE_");
    let theirs = match kernel.errno {
        0 => format!("{:>7} us {:>7} insns", kernel.usec, kernel.processed),
        errno => format!("REFUSED {:?}: {}", Errno(errno), kernel.why),
    };
    let head = format!("{:<24} {:<16} {kind:<14} {:>5}  kernel {theirs}", run.name, record.name, record.insns.len());
    let Some(policy) = record.policy(policies) else {
        totals.of_unknown_type += 1;
        println!("{head}  ours UNKNOWN TYPE");
        return None;
    };
    let started = Instant::now();
    let ours = record.verify(policies, &policy, 0);
    let usec = started.elapsed().as_micros() as u64;
    match ours {
        Ok(verified) => {
            let processed = verified.statistics().processed;
            println!("{head}  ours {usec:>7} us {processed:>7} insns");
            if kernel.errno != 0 {
                totals.only_we_accept += 1;
                return None;
            }
            totals.accepted_by_both += 1;
            totals.processed_by_kernel += kernel.processed;
            totals.usec_by_kernel += kernel.usec;
            totals.processed_by_us += processed;
            totals.usec_by_us += usec;
            totals.processed_the_same += usize::from(processed == kernel.processed);
            None
        }
        Err(report) => {
            println!("{head}  ours REFUSED {:?}: {report}", report.errno);
            if kernel.errno != 0 {
                totals.refused_by_both += 1;
                return None;
            }
            totals.only_kernel_accepts += 1;
            let log = record.verify(policies, &policy, 1).err().map_or(String::new(), |report| report.log);
            let text = format!("{}\n{}", ring3_isa::listing(&record.insns), log);
            let path = directory_of(run).join(format!("refused-{}", totals.only_kernel_accepts));
            std::fs::write(&path, text).expect("target is writable");
            Some(format!("{head}\n{report} (all of it in {}):\n{}", path.display(), tail(&log, 30)))
        }
    }
}

/// Java programs are classes; this one waits.
fn java() -> Option<Ended> {
    let path = root().join("target/recorded/Waits.java");
    let text = "public class Waits { public static void main(String[] of) throws Exception { System.in.read(); } }";
    std::fs::create_dir_all(path.parent()?).ok()?;
    std::fs::write(&path, text).ok()?;
    let java = waiting("java", &[path.to_str()?])?;
    let maps = format!("/proc/{}/maps", java.0.id());
    wait_until("java has the library with its probes", || {
        std::fs::read_to_string(&maps).unwrap_or_default().contains("libjvm")
    });
    Some(java)
}

#[test]
fn what_the_kernel_accepts_of_bpftrace_and_bcc_we_accept() {
    if !is_root() {
        return println!("SKIPPED: running tools natively needs root");
    }
    let Ok(types) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return println!("SKIPPED: this kernel does not tell its types");
    };
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let policies = PolicySet::new(&Kernel::parse(types).expect("the kernel's types"), cpus);
    let all = std::env::var_os("RING3_RECORD_ALL").is_some();
    let plain = waiting(shapes(), &["plain", "1"]).expect("the victim runs");
    let python = waiting(PYTHON, &["-c", "input()"]);
    let java = if all { java() } else { None };
    let pid = |process: &Ended| process.0.id();
    let victims = Victims { plain: pid(&plain), python: python.as_ref().map(pid), java: java.as_ref().map(pid) };
    let sources =
        [runs::bpftrace_tools(), runs::one_liners(), runs::bcc_tools(&victims, all), runs::libbpf_tools(all)];
    let runs: Vec<Run> = sources.into_iter().flatten().collect();
    for source in ["bpftrace", "bcc", "libbpf-tools"] {
        if !runs.iter().any(|run| run.source == source) {
            println!("SKIPPED IN PART: {source}'s tools are not installed");
        }
    }
    run_all(&runs);

    let mut totals: BTreeMap<&str, Totals> = BTreeMap::new();
    let (mut seen, mut stricter) = (BTreeSet::new(), vec![]);
    for run in &runs {
        let totals = totals.entry(run.source).or_default();
        let records = Record::read(&directory_of(run));
        totals.tools += 1;
        totals.loads += records.len();
        let is_probe = |record: &&Record| FEATURE_PROBES.contains(&record.name.as_str());
        let probes = records.iter().filter(is_probe).count();
        totals.feature_probes += probes;
        if probes == records.len() {
            totals.silent.push(run.name.clone());
        }
        for record in &records {
            if seen.insert(record.identity()) {
                totals.programs += 1;
                stricter.extend(compare(run, record, &policies, totals));
            }
        }
    }
    for (source, totals) in &totals {
        println!("{source}: {}", totals.line());
        assert!(totals.accepted_by_both > 0, "nothing was recorded of {source}'s tools");
    }
    assert!(stricter.is_empty(), "{} programs:\n{}", stricter.len(), stricter.join("\n\n"));
}
