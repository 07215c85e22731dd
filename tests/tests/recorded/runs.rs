//! What is run: bpftrace's tools, programs in its language, and bcc's tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_tests::{root, shapes};

/// A tool, as it is started.
pub(crate) struct Run {
    /// Whose it is.
    pub(crate) source: &'static str,
    pub(crate) name: String,
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Files of an installed package.
fn files_of(package: &str) -> Vec<PathBuf> {
    let listed = Command::new("dpkg").args(["-L", package]).output();
    let listed = listed.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    let mut files: Vec<PathBuf> = listed.lines().map(PathBuf::from).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// bpftrace's own tools.
pub(crate) fn bpftrace_tools() -> Vec<Run> {
    let tools = files_of("bpftrace").into_iter().filter(|path| path.extension().is_some_and(|end| end == "bt"));
    let run = |path: PathBuf| Run {
        source: "bpftrace",
        name: name_of(&path),
        program: "bpftrace".into(),
        arguments: vec!["--unsafe".into(), path.display().to_string()],
        environment: headers().map(|headers| ("BPFTRACE_KERNEL_SOURCE", headers)).into_iter().collect(),
    };
    tools.map(run).collect()
}

/// Programs that use what bpftrace's language has.
pub(crate) fn one_liners() -> Vec<Run> {
    let victim = shapes().display().to_string();
    let python = Path::new(PYTHON).canonicalize().map_or(PYTHON.into(), |path| path.display().to_string());
    let lines = include_str!("one_liners").lines().filter(|line| !line.starts_with('#'));
    let run = |line: &str| {
        let (name, program) = line.split_once(": ").expect("a name and a program");
        let program = program.replace("VICTIM", &victim).replace("PYTHON", &python);
        Run {
            source: "one-liner",
            name: name.into(),
            program: "bpftrace".into(),
            arguments: vec!["--unsafe".into(), "-e".into(), program],
            environment: vec![],
        }
    };
    lines.map(run).collect()
}

/// Tools of bcc that want to be told something, and variants of others. `VICTIM` is a binary with functions,
/// `PYTHON` and `JAVA` are processes.
const BCC_ARGUMENTS: &[(&str, &[&str])] = &[
    ("argdist", &["-H", "p:VICTIM:plain(long a):long:a"]),
    ("argdist", &["-C", "r:VICTIM:plain(long a):long,u64,long:$retval,$latency,$entry(a)", "-z", "32"]),
    ("argdist", &["-C", "p::vfs_write(void *f, const char *b, size_t n):char*,size_t:b,n:n>10"]),
    ("argdist", &["-H", "t:sched:sched_switch():u32:args->prev_prio"]),
    ("biolatency", &[]),
    ("biolatency", &["-D"]),
    ("biolatency", &["-F"]),
    ("biolatpcts", &["vda"]),
    ("capable", &[]),
    ("capable", &["-K", "-U", "--unique"]),
    ("cobjnew", &["-l", "c", "VICTIM_PID"]),
    ("cpudist", &[]),
    ("cpudist", &["-O", "-P"]),
    ("dbslower", &["mysql", "-x", "VICTIM"]),
    ("dbstat", &["mysql", "-p", "VICTIM_PID"]),
    ("deadlock", &["VICTIM_PID"]),
    ("dirtop", &["-d", "/tmp"]),
    ("execsnoop", &[]),
    ("execsnoop", &["-x", "-U", "-T"]),
    ("ext4slower", &["0"]),
    ("funccount", &["VICTIM:*"]),
    ("funccount", &["t:sched:sched_s*"]),
    ("funccount", &["vfs_read"]),
    ("funcinterval", &["VICTIM:plain"]),
    ("funclatency", &["VICTIM:plain"]),
    ("funclatency", &["-F", "-m", "-l", "2", "VICTIM:plain"]),
    ("funclatency", &["vfs_read"]),
    ("funcslower", &["VICTIM:plain"]),
    ("funcslower", &["-U", "-K", "-a", "6", "-u", "1", "VICTIM:plain"]),
    ("inject", &["kmalloc", "-P", "0.1", "SyS_mount()"]),
    ("inject", &["bio", "-P", "0.1", "SyS_mount()"]),
    ("inject", &["alloc_page", "-P", "0.1", "SyS_mount()"]),
    ("javacalls", &["JAVA"]),
    ("javaflow", &["JAVA"]),
    ("javagc", &["JAVA"]),
    ("javaobjnew", &["JAVA"]),
    ("javastat", &["JAVA"]),
    ("javathreads", &["JAVA"]),
    ("memleak", &["-p", "VICTIM_PID"]),
    ("memleak", &[]),
    ("memleak", &["-p", "VICTIM_PID", "--combined-only", "-s", "3", "-z", "16"]),
    ("mysqld_qslower", &["VICTIM_PID"]),
    ("netqtop", &["-n", "lo"]),
    ("offcputime", &[]),
    ("offcputime", &["-p", "VICTIM_PID", "-U"]),
    ("opensnoop", &[]),
    ("opensnoop", &["-U", "-x", "-T", "-n", "of"]),
    ("opensnoop", &["-F"]),
    ("perlcalls", &["VICTIM_PID"]),
    ("phpcalls", &["VICTIM_PID"]),
    ("profile", &[]),
    ("profile", &["-p", "VICTIM_PID", "-U"]),
    ("pythoncalls", &["PYTHON"]),
    ("pythonflow", &["PYTHON"]),
    ("pythongc", &["PYTHON"]),
    ("pythonstat", &["PYTHON"]),
    ("rubycalls", &["VICTIM_PID"]),
    ("runqlat", &[]),
    ("runqlat", &["-P"]),
    ("stackcount", &["VICTIM:plain"]),
    ("stackcount", &["-P", "-d", "vfs_read"]),
    ("stackcount", &["t:sched:sched_switch"]),
    ("syscount", &[]),
    ("syscount", &["-L", "-P"]),
    ("tcpconnect", &[]),
    ("tcpconnect", &["-c"]),
    ("tcpconnect", &["-d"]),
    ("tcplife", &[]),
    ("tcptracer", &[]),
    ("tcptracer", &["-v"]),
    ("trace", &["VICTIM:plain \"%d %s\", arg1, arg2"]),
    ("trace", &["-U", "-K", "r:VICTIM:plain (retval > 3) \"%d\", retval"]),
    ("trace", &["do_sys_openat2 \"%s\", arg2@user"]),
    ("trace", &["t:block:block_rq_complete \"sectors=%d\", args->nr_sector"]),
    ("trace", &["-p", "PYTHON", "u:PYTHON_BINARY:gc__start \"%d\", arg1"]),
    ("trace", &["t:syscalls:sys_enter_openat (STRCMP(\"of\", args->filename)) \"%s\", args->filename"]),
    ("ttysnoop", &["/dev/tty1"]),
];

/// They load nothing; one of them would end what others trace.
const BCC_NEVER: [&str; 3] = ["bpflist", "reset-trace", "tplist"];
/// Those that are worth their time each time.
const BCC_ALWAYS: [&str; 12] = [
    "argdist",
    "bashreadline",
    "biosnoop",
    "execsnoop",
    "funclatency",
    "memleak",
    "offcputime",
    "opensnoop",
    "runqlat",
    "sslsniff",
    "tcplife",
    "trace",
];

/// libbpf's tools that want to be told something.
const LIBBPF_ARGUMENTS: [(&str, &str); 4] =
    [("fsdist", "-t ext4"), ("fsslower", "-t ext4"), ("funclatency", "vfs_read"), ("ksnoop", "trace vfs_read")];

/// Of libbpf's tools.
const LIBBPF_ALWAYS: [&str; 4] = ["execsnoop", "offcputime", "opensnoop", "runqlat"];

/// Processes that tools look at.
pub(crate) struct Victims {
    pub(crate) plain: u32,
    pub(crate) python: Option<u32>,
    pub(crate) java: Option<u32>,
}

/// A tool that is a script around another becomes the other with its arguments.
fn unwrapped(path: &Path) -> (PathBuf, Vec<String>) {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let command =
        text.lines().find_map(|line| line.strip_prefix("$lib/")).filter(|_| text.starts_with("#!/bin/bash"));
    let Some(command) = command else { return (path.to_owned(), vec![]) };
    let mut words = command.split_whitespace().filter(|word| *word != "\"$@\"").map(str::to_owned);
    let other = path.with_file_name(words.next().unwrap_or_default());
    (other, words.collect())
}

/// bcc's tools: all of them, or those that are run always.
pub(crate) fn bcc_tools(victims: &Victims, all: bool) -> Vec<Run> {
    let binary = shapes().display().to_string();
    if headers().is_none() && !has_own_headers() {
        println!("SKIPPED IN PART: bcc's tools want headers of a kernel: install a package linux-headers-*");
        return vec![];
    }
    let tools = files_of("bpfcc-tools").into_iter().filter(|path| name_of(path).ends_with("-bpfcc"));
    let mut runs = vec![];
    for path in tools {
        let name = name_of(&path).trim_end_matches("-bpfcc").to_owned();
        if BCC_NEVER.contains(&name.as_str()) || !all && !BCC_ALWAYS.contains(&name.as_str()) {
            continue;
        }
        let mut variants: Vec<&[&str]> =
            BCC_ARGUMENTS.iter().filter(|(of, _)| *of == name).map(|(_, arguments)| *arguments).collect();
        if variants.is_empty() {
            variants.push(&[]);
        }
        variants.truncate(if all { usize::MAX } else { 1 });
        for (index, variant) in variants.iter().enumerate() {
            let process = |pid: Option<u32>| pid.map_or("0".into(), |pid| pid.to_string());
            let filled = |argument: &&str| {
                argument
                    .replace("VICTIM_PID", &victims.plain.to_string())
                    .replace("PYTHON_BINARY", PYTHON)
                    .replace("PYTHON", &process(victims.python))
                    .replace("JAVA", &process(victims.java))
                    .replace("VICTIM", &binary)
            };
            let (script, first) = unwrapped(&path);
            let start = ["-c".into(), include_str!("start.py").into(), script.display().to_string()];
            runs.push(Run {
                source: "bcc",
                name: if index == 0 { name.clone() } else { format!("{name}.{}", index + 1) },
                program: PYTHON.into(),
                arguments: start.into_iter().chain(first).chain(variant.iter().map(filled)).collect(),
                environment: headers().map(|headers| ("BCC_KERNEL_SOURCE", headers)).into_iter().collect(),
            });
        }
    }
    runs
}

/// libbpf's tools, whose constants are theirs only once they run.
pub(crate) fn libbpf_tools(all: bool) -> Vec<Run> {
    let is_tool =
        |path: &PathBuf| path.parent().is_some_and(|directory| directory.ends_with("sbin")) && !path.is_symlink();
    let tools = files_of("libbpf-tools").into_iter().filter(is_tool);
    let run = |path: PathBuf| {
        let name = name_of(&path);
        let told = LIBBPF_ARGUMENTS.iter().find(|(of, _)| *of == name);
        Run {
            source: "libbpf-tools",
            program: path.display().to_string(),
            arguments: told.map_or(vec![], |(_, words)| words.split(' ').map(str::to_owned).collect()),
            environment: vec![],
            name,
        }
    };
    tools.map(run).filter(|run| all || LIBBPF_ALWAYS.contains(&run.name.as_str())).collect()
}

/// The one that bcc's modules are installed for.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Whether headers of this kernel are where tools look for them.
fn has_own_headers() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Path::new("/lib/modules").join(release.trim()).join("build").exists()
}

/// Headers of a kernel for tools that compile, as one directory: those of this kernel if they are where they are looked
/// for anyhow (`None`), or those of any kernel that is installed, which Debian has in two.
pub(crate) fn headers() -> Option<String> {
    if has_own_headers() {
        return None;
    }
    let installed = std::fs::read_dir("/usr/src").ok()?.flatten().map(|entry| entry.path());
    let is_common = |path: &PathBuf| {
        name_of(path).starts_with("linux-headers-") && path.display().to_string().ends_with("-common")
    };
    let common = installed.filter(is_common).max()?;
    let machine = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let own = PathBuf::from(common.display().to_string().replace("common", machine));
    let made = root().join("target/headers");
    if !made.join("done").exists() {
        std::fs::create_dir_all(&made).expect("target is writable");
        for directory in [common, own] {
            let mut copy = Command::new("cp");
            copy.arg("-rsf").args([directory.join("include"), directory.join("arch")]).arg(&made);
            assert!(copy.status().expect("cp runs").success());
        }
        std::fs::write(made.join("done"), "").expect("target is writable");
    }
    Some(made.display().to_string())
}
