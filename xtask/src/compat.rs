//! `cargo xtask compat`: the same tool with the same victim, on the kernel and under ring3, and whether both print the same.
//!
//! Without names all rows are run, and `docs/COMPATIBILITY.md` is written. With names those rows are run and their output is shown
//! that contain one of them: `cargo xtask compat opensnoop.bt`. As root, with the release build, on a machine that does nothing else.

mod rows;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rows::{OF_BCC, ROWS, Row, Rule, Tool};
use rustix::process::Signal;

use crate::root;

/// A tool has said that it is ready within this time, or is taken for ready.
const READY_WITHIN: Duration = Duration::from_secs(4);
/// A tool that says nothing is ready after this time.
const SILENT_FOR: Duration = Duration::from_millis(1500);
/// A tool of bcc's has compiled its programs within this time.
const COMPILED_WITHIN: Duration = Duration::from_secs(8);
/// What happened reaches the tool within this time.
const ARRIVED_WITHIN: Duration = Duration::from_millis(400);
/// A tool that is interrupted and does not end is interrupted again after this time, so often at most.
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASKED_MAX: u32 = 4;
/// A line by which scripts say that they are ready.
const UP: &str = "up";

/// Has what tools look in for tracepoints mounted for a command alone.
const WITH_TRACEFS: &str = "at=/sys/kernel; mountpoint -q $at/debug || mount -t debugfs debugfs $at/debug
    mountpoint -q $at/tracing || mount -t tracefs tracefs $at/tracing
    exec \"$@\"";

/// What `cargo xtask compat` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only rows whose name contains one of these; their output is shown
    names: Vec<String>,
}

/// Where a tool runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Kernel,
    Ring3,
}

/// What a run has printed.
#[derive(Debug, Default)]
struct Run {
    out: Vec<String>,
    errors: Vec<String>,
    /// It had to be killed.
    hung: bool,
    is_success: bool,
}

const SAME: &str = "same";
const DIFFERS: &str = "differs";
const REFUSED: &str = "refused";
const NOT_HERE: &str = "not on this kernel";

/// What a row shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Same,
    Differs(String),
    Refused(String),
    /// It does not run on the kernel here either.
    NotHere(String),
}

impl Row {
    fn name(&self) -> String {
        match self.tool {
            Tool::Script(text) => text.to_owned(),
            Tool::Bt(name) => format!("{name}.bt"),
            Tool::Command(name, arguments) => [&[name], arguments].concat().join(" "),
        }
    }

    fn command(&self, victim: &str) -> Command {
        match self.tool {
            Tool::Script(text) => {
                let script = text.replace("{P}", victim);
                let up = format!(" BEGIN {{ printf(\"{UP}\\n\"); }}");
                let mut command = Command::new("bpftrace");
                // (There is one BEGIN.)
                command.args(["-e", &if script.contains("BEGIN") { script } else { script + &up }]).arg("argument");
                command
            }
            Tool::Bt(name) => {
                let mut command = Command::new("bpftrace");
                command.arg(format!("/usr/sbin/{name}.bt"));
                command
            }
            Tool::Command(name, arguments) => {
                let mut command = Command::new(name);
                command.args(arguments.iter().map(|argument| argument.replace("{P}", victim)));
                command
            }
        }
    }
}

/// A directory with a victim of its own, and a server's.
struct Bench {
    directory: PathBuf,
    ring3: PathBuf,
    /// Where bcc finds the kernel's headers, if it would not find them itself.
    headers: Option<PathBuf>,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let directory = std::env::temp_dir().join(format!("ring3-compat-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| format!("{}: {error}", directory.display()))?;
        let headers = headers(&directory)?;
        let bench = Bench { directory, ring3: root().join("target/release/ring3"), headers };
        let source = root().join("tests/victims/compat.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g", "-pthread", "-o"]).arg(bench.victim()).arg(source);
        match gcc.status() {
            Ok(status) if status.success() => Ok(bench),
            _ => Err("gcc could not make the victim".into()),
        }
    }

    fn victim(&self) -> PathBuf {
        self.directory.join("compat")
    }

    fn under(&self, place: Place, way: &str, command: &Command) -> Command {
        let mut whole = match place {
            Place::Kernel => {
                let mut whole = Command::new("unshare");
                whole.args(["--mount", "sh", "-c", WITH_TRACEFS, "sh"]).arg(command.get_program());
                whole
            }
            Place::Ring3 => {
                let mut whole = Command::new(&self.ring3);
                whole.args([way, "--"]).arg(command.get_program());
                whole
            }
        };
        whole.args(command.get_args()).env("RING3_RUNTIME_DIR", &self.directory);
        let path = std::env::var("PATH").unwrap_or_default();
        whole.env("PATH", format!("{path}:/usr/sbin:/sbin")).env_remove("LD_LIBRARY_PATH");
        // (For the tools that are in Python: what they print to pipes comes at once.)
        whole.env("PYTHONUNBUFFERED", "1");
        if let Some(headers) = &self.headers {
            whole.env("BCC_KERNEL_SOURCE", headers);
        }
        whole
    }

    /// Runs the tool while the victim runs, until it is interrupted.
    fn run(&self, row: &Row, place: Place) -> Result<Run, String> {
        let victim = self.victim();
        let command = row.command(&victim.display().to_string());
        let mut tool = self.under(place, "load", &command);
        tool.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut tool) = tool.spawn() else {
            return Ok(Run { errors: vec!["it is not installed".into()], ..Run::default() });
        };
        let out = lines(tool.stdout.take().expect("piped"));
        let errors = lines(tool.stderr.take().expect("piped"));
        let compiles = matches!(row.tool, Tool::Command(name, _) if name.ends_with(OF_BCC));
        let mut run = Run { out: until_ready(&mut tool, &out, compiles), ..Run::default() };
        let mut target = self.under(place, "start", &Command::new(&victim));
        let worked = target.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !worked.is_ok_and(|status| status.success()) {
            return Err("the victim failed".into());
        }
        // (Some of bcc's tools print once a second.)
        std::thread::sleep(if compiles { ARRIVED_WITHIN + Duration::from_secs(1) } else { ARRIVED_WITHIN });
        let pid = rustix::process::Pid::from_raw(tool.id() as i32).expect("a process id");
        let _ = rustix::process::kill_process(pid, Signal::INT);
        let (mut asked, mut looks) = (Instant::now(), 0);
        run.is_success = loop {
            match tool.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status.success(),
                // (One that comes too early is lost: bpftrace has no handler yet when it says that it is up.)
                None if asked.elapsed() > ASK_EVERY && looks < ASKED_MAX => {
                    let _ = rustix::process::kill_process(pid, Signal::INT);
                    (asked, looks) = (Instant::now(), looks + 1);
                }
                None if looks < ASKED_MAX => std::thread::sleep(Duration::from_millis(10)),
                None => {
                    run.hung = true;
                    let _ = tool.kill();
                    let _ = tool.wait();
                    break false;
                }
            }
        };
        run.out.extend(out.iter());
        run.errors.extend(errors.iter());
        Ok(run)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let mut stop = Command::new(&self.ring3);
        let _ = stop.arg("stop").env("RING3_RUNTIME_DIR", &self.directory).stdout(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A tree of headers of Debian's for bcc, if the running kernel has none where bcc looks: `None` if it has, or if none are installed.
fn headers(directory: &Path) -> Result<Option<PathBuf>, String> {
    let output = Command::new("sh").arg(root().join("tests/headers.sh")).arg(directory).output();
    let output = output.map_err(|error| format!("sh: {error}"))?;
    if !output.status.success() {
        return Err(format!("headers.sh: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let path = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    Ok(Some(path).filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// The lines of a pipe, read by a thread.
fn lines(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = vec![];
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            let _ = tell.send(String::from_utf8_lossy(&bytes).trim_end().to_owned());
            bytes.clear();
        }
    });
    told
}

/// What a tool prints until it is ready; one that `compiles` says something only then.
fn until_ready(tool: &mut Child, out: &Receiver<String>, compiles: bool) -> Vec<String> {
    let (mut said, began) = (vec![], Instant::now());
    let mut silent_since = Instant::now();
    let within = if compiles { COMPILED_WITHIN } else { READY_WITHIN };
    let awaits = |said: &[String], silent: Duration| compiles && said.is_empty() || silent < SILENT_FOR;
    while began.elapsed() < within && awaits(&said, silent_since.elapsed()) {
        if tool.try_wait().is_ok_and(|ended| ended.is_some()) {
            break;
        }
        if let Ok(line) = out.recv_timeout(Duration::from_millis(20)) {
            // (Some of bcc's tell the time each second.)
            if !compiles || said.is_empty() {
                silent_since = Instant::now();
            }
            let is_up = line == UP;
            said.push(line);
            if is_up {
                break;
            }
        }
    }
    said
}

/// A line with each number replaced.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split_whitespace() {
        let mut letters = word.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter.is_ascii_digit() {
                while letters.peek().is_some_and(|next| next.is_ascii_hexdigit() || matches!(next, '.' | 'x' | ':')) {
                    letters.next();
                }
                shape.push('N');
            } else {
                shape.push(letter);
            }
        }
        shape.push(' ');
    }
    shape.trim_end().to_owned()
}

/// The sum of what bars of histograms stand for.
fn events(lines: &[String]) -> u64 {
    let bar = |line: &String| line.split(" : ").nth(1)?.split('|').next()?.trim().parse::<u64>().ok();
    lines.iter().filter_map(bar).sum()
}

/// Whether a line tells the time of day and nothing else.
fn is_time(line: &str) -> bool {
    let parts: Vec<&str> = line.trim_matches(['[', ']']).split(':').collect();
    parts.len() == 3 && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What two runs must have in common.
fn compared(rule: Rule, run: &Run) -> Vec<String> {
    let is_said =
        |line: &&String| !line.is_empty() && !line.starts_with("Attaching") && *line != UP && !is_time(line);
    let said = || run.out.iter().filter(is_said);
    match rule {
        Rule::Lines => {
            let mut lines: Vec<String> = said().cloned().collect();
            lines.sort();
            lines
        }
        Rule::Shapes => said().map(|line| shape(line)).collect::<BTreeSet<_>>().into_iter().collect(),
        Rule::OfVictim => {
            let names =
                |line: &&String| line.contains("compat") || line.split_whitespace().any(|word| word == "true");
            let header = said().next().map(|line| shape(line));
            let lines: BTreeSet<String> = said().filter(names).map(|line| shape(line)).collect();
            header.into_iter().chain(lines).collect()
        }
        Rule::Histograms => vec![events(&run.out).to_string()],
    }
}

/// The line that says why, most likely.
fn reason(run: &Run) -> String {
    // (bpftrace says this where it cannot lift a limit that nobody needs.)
    let by = |word: &str| run.errors.iter().find(|line| line.contains(word) && !line.contains("MEMLOCK"));
    let line = by("ring3: ").or_else(|| by("ERROR")).or_else(|| by("rror")).or_else(|| by("ailed"));
    let line = line.or(run.errors.last()).or(run.out.last()).cloned().unwrap_or_default();
    let line = if run.hung { format!("it does not end: {line}") } else { line };
    line.chars().take(160).collect::<String>().replace('|', "\\|").replace('`', "'")
}

fn judge(row: &Row, kernel: &Run, ours: &Run) -> Verdict {
    let [theirs, mine] = [kernel, ours].map(|run| compared(row.rule, run));
    // (One that ends by the interrupt has said more than its header.)
    let fails = |run: &Run| run.hung || !run.is_success && compared(row.rule, run).len() < 2;
    match (fails(kernel), fails(ours)) {
        (true, true) => Verdict::NotHere(format!("kernel: {}; ring3: {}", reason(kernel), reason(ours))),
        (true, false) => Verdict::NotHere(format!("kernel: {}; under ring3 it runs", reason(kernel))),
        (false, true) => Verdict::Refused(reason(ours)),
        (false, false) if theirs == mine => Verdict::Same,
        (false, false) => {
            let first = |of: &[String], other: &[String]| {
                of.iter().find(|line| !other.contains(line)).cloned().unwrap_or_else(|| format!("{} lines", of.len()))
            };
            let (k, r) = (first(&theirs, &mine), first(&mine, &theirs));
            Verdict::Differs(
                format!("kernel: {k}; ring3: {r}").chars().take(160).collect::<String>().replace('|', "\\|"),
            )
        }
    }
}

/// The version that a Debian package has.
fn version(package: &str) -> String {
    let output = Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output();
    output.map_or("?".into(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the kernel's half needs root".into());
    }
    let bench = Bench::new()?;
    let is_asked =
        |row: &&Row| options.names.is_empty() || options.names.iter().any(|name| row.name().contains(name.as_str()));
    let mut lines = vec![];
    for row in ROWS.iter().filter(is_asked) {
        let (kernel, ours) = (bench.run(row, Place::Kernel)?, bench.run(row, Place::Ring3)?);
        let (verdict, why) = match judge(row, &kernel, &ours) {
            Verdict::Same => (SAME, String::new()),
            Verdict::Differs(why) => (DIFFERS, why),
            Verdict::Refused(why) => (REFUSED, why),
            Verdict::NotHere(why) => (NOT_HERE, why),
        };
        println!("{verdict:<20} {} {why}", row.name());
        if !options.names.is_empty() {
            println!("  on the kernel: {kernel:#?}\n  under ring3: {ours:#?}");
        }
        lines.push(format!("{} {verdict} | {why} |", beginning(row)));
    }
    let path = root().join("docs/COMPATIBILITY.md");
    if !options.names.is_empty() {
        // (The others are as they were.)
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let known: Vec<String> = known.lines().map(str::to_owned).collect();
        let line_of =
            |row: &Row, among: &[String]| among.iter().find(|line| line.starts_with(&beginning(row))).cloned();
        lines = ROWS.iter().filter_map(|row| line_of(row, &lines).or_else(|| line_of(row, &known))).collect();
    }
    write_table(&path, &lines)
}

/// What the line of a row begins with.
fn beginning(row: &Row) -> String {
    format!("| `{}` | {} |", row.name().replace('|', "\\|"), row.rule.name())
}

fn write_table(path: &Path, lines: &[String]) -> Result<(), String> {
    let count = |verdict: &str| lines.iter().filter(|line| line.contains(&format!(" | {verdict} | "))).count();
    let [same, differ, refused, not_here] = [SAME, DIFFERS, REFUSED, NOT_HERE].map(count);
    let sums = format!("{same} same, {differ} differ, {refused} refused, {not_here} do not run on this kernel");
    println!("{sums}");
    let [bpftrace, tools, bcc] = ["bpftrace", "libbpf-tools", "bpfcc-tools"].map(version);
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let kernel = release.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
    let table: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let text = format!(
        "# Compatibility\n\nWritten by `cargo xtask compat`; `cargo xtask compat NAME` runs rows alone, shows what both print, and writes them \
         here. Each\ntool runs twice as root with the same victim (`tests/victims/compat.c`): on the kernel, and as `ring3 load -- TOOL`\nwith \
         the victim begun by `ring3 start` (system calls are seen of targets). The rule says what must be equal. Scripts are\nprograms of \
         `bpftrace -e`, `{{P}}` is the victim.\n\nbpftrace {bpftrace}, libbpf-tools {tools}, bcc {bcc}, kernel {kernel} (without kprobes).\n\n{sums}.\n\n\
         | tool | rule | verdict | reason |\n|---|---|---|---|\n{table}"
    );
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
