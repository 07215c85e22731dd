//! The command line: one definition for the parser, the help texts, the manual pages and the shells' completions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use ring3_server::realm::Scope;

use crate::strace::LoaderOptions;
use crate::{aot, assembly, eim, exec, explain, export, extend, record, trace, verify};

/// Run eBPF tools in user space, without root and without the kernel's eBPF
///
/// `ring3 load` runs an unmodified tool and answers its bpf(2) and perf_event_open(2) calls. The tool's probes fire inside
/// the traced processes, which ring3 calls targets: those that map a file with one of the tool's uprobes, the process that a
/// tool names by its id, and those that `ring3 start` or `ring3 attach` made targets.
///
/// A server process, one for each user, holds maps, programs and links. The first `load`, `start` or `attach` starts it; it
/// ends by itself when it has had no tools, targets and pinned objects for 10 seconds.
#[derive(Debug, Parser)]
#[command(name = "ring3", version, arg_required_else_help = true, after_long_help = OVERVIEW)]
#[command(subcommand_value_name = "COMMAND", subcommand_help_heading = "Commands")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) action: Action,
}

const OVERVIEW: &str = "\
Examples:
  ring3 load -- funclatency -p 4711 :handle    Trace one running process
  ring3 load -- opensnoop                      Trace all targets: these are made by
  ring3 start -- ./server                        running a program as a target, and by
  ring3 attach 4711                              making a running process a target
  ring3 status -v                              Show tools, targets, programs, maps, probes
  ring3 stop                                   Remove all probes and end the server

Environment:
  RING3_RUNTIME_DIR    Directory of the server's socket and log. It must be an absolute path to a
                       directory that only its owner can use. Default: /run/ring3 for root, else
                       $XDG_RUNTIME_DIR/ring3, else /tmp/ring3-UID
  RING3_LOG            What the server logs: warn, info (default) or debug
  RING3_PERF           1: let perf name programs, helpers and stubs
  RING3_IDLE_SECONDS   How long the server waits for work before it ends (default 60)
  The server reads the last three when it starts: run `ring3 stop` first to change them.
  RING3_STRACE_BACKEND How `ring3 load -- strace` is told of system calls: auto (default), ptrace, exact or
                       streaming (docs/TRACING.md)

Files:
  server.log in the runtime directory says why a call of a tool was refused.

Exit status:
  0    Success; `load` and `start` have the exit status of the program that they run
  1    The command failed, or `verify` refused a program; standard error says why
  2    The command line, or what `verify` was given, is wrong
  126  The program exists and cannot be run (`load`, `start`)
  127  The program was not found (`load`, `start`)
";

/// Which compiler translates the programs of a tool.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Compiler {
    /// LLVM for programs with loops, if it is installed; Cranelift for the others
    #[default]
    Auto,
    /// Cranelift
    Jit,
    /// LLVM
    Llvm,
}

/// Whether a target's children are targets.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Following {
    /// Trace children of the process, and the programs that they execute (default)
    #[arg(long, overrides_with = "no_follow")]
    follow: bool,
    /// Trace the process only
    #[arg(long, overrides_with = "follow")]
    pub(crate) no_follow: bool,
}

/// Which processes a tool sees that names none.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Seen {
    /// See the system calls of all processes, not only of targets
    ///
    /// All are those that you may trace. A process that is there, or begins, becomes a target, except process 1, ring3 itself,
    /// and loaders.
    #[arg(long)]
    all: bool,
    /// See targets only: no process becomes a target because it maps a probed file
    #[arg(long, conflicts_with = "all")]
    only_targets: bool,
}

impl Seen {
    pub(crate) fn scope(self) -> Scope {
        match self {
            Seen { only_targets: true, .. } => Scope::Targets,
            Seen { all: true, .. } => Scope::All,
            _ => Scope::Mapped,
        }
    }
}

/// A time that a run may take: a whole number and its unit.
fn budget(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    const WRONG: &str = "a time is a whole number, at least 1, and a unit (ns, us, ms, s): 10us";
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, unit_ns) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(WRONG)?;
    let number: u64 = number.parse().map_err(|_| WRONG)?;
    let ns = number.checked_mul(*unit_ns).filter(|ns| *ns > 0).ok_or(WRONG)?;
    Ok(Duration::from_nanos(ns))
}

/// A process id.
pub(crate) fn process_id(text: &str) -> Result<u32, String> {
    let pid = text.parse::<i32>().ok().filter(|pid| *pid > 0);
    pid.map(|pid| pid as u32).ok_or_else(|| {
        "a process id is a whole number, at least 1; `pgrep NAME` prints those of a program".to_owned()
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run an eBPF tool, and answer its bpf(2) and perf_event_open(2) calls
    ///
    /// The tool keeps its terminal, its signals and its exit status. Its uprobes are in each process that maps the probed file
    /// now or later and that you may trace, its tracepoints of system calls in all targets (`ring3 start`, `ring3 attach`; with
    /// `--all` in every process). A tool that names a process id to the kernel, as that of a uprobe, traces that process;
    /// `ring3 attach PID` makes any process a target. When the tool ends, its probes are removed.
    #[command(after_long_help = "\
Examples:
  ring3 load -- funclatency -p 4711 :handle      Debian's tool on one process
  ring3 load -- bpftrace -e 'uprobe:/bin/bash:readline { @[pid] = count(); }'
                                                 Every bash, present and future
  ring3 load -- opensnoop                        System calls of all targets
  ring3 load --all -- opensnoop                  System calls of all processes
  ring3 load --aot tool.aot -- ./tool            Use programs that `ring3 aot` compiled

If the tool says `Invalid argument` or `Operation not supported`, server.log in the runtime
directory says which call was refused, and why.
")]
    Load {
        /// Which compiler translates the tool's programs
        #[arg(long, value_enum, default_value_t)]
        engine: Compiler,
        /// Hide the constants of programs in their machine code (as net.core.bpf_jit_harden of the kernel)
        #[arg(long)]
        harden: bool,
        #[command(flatten)]
        scope: Seen,
        /// Let targets of all users share its maps: each can then read and forge what the tool records of the others
        #[arg(long)]
        trust: bool,
        /// Switch a program off in a process where one run often takes longer than this, e.g. 10us (units: ns, us, ms, s)
        ///
        /// A run is never cut short. After 100 runs of a program over the budget within a second, in one thread, the program
        /// runs no more in that process, and the tool's terminal says so; `ring3 status` shows the runs over the budget. Each
        /// run is timed, which takes some time itself.
        #[arg(long, value_name = "TIME", value_parser = budget)]
        budget: Option<Duration>,
        /// Use the programs in this file of `ring3 aot` instead of verifying and compiling them again
        #[arg(long, value_name = "FILE")]
        aot: Option<PathBuf>,
        /// The tool and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "TOOL")]
        command: Vec<String>,
    },
    /// Check what extensions of a program may touch, and write headers for them
    ///
    /// A specification says what exists: fields, variables and functions of a program, and where extensions run. A policy says
    /// in classes what one extension gets. docs/EXTENSIONS.md has the format of both.
    #[command(subcommand, subcommand_value_name = "COMMAND", subcommand_help_heading = "Commands")]
    Eim(eim::Eim),
    /// Extend a program: run code of yours at a function of it, as far as a class of a policy allows
    ///
    /// The class says at which function the extension runs, which fields, variables and functions of the program it may use, and
    /// what its result means. The extension is verified against that before it is loaded.
    #[command(after_long_help = "\
Examples:
  ring3 extend --class nginx.eim:firewall firewall.bpf.o -- nginx -g 'daemon off;'
  ring3 extend --class nginx.eim:firewall firewall.bpf.o --pid 4711
")]
    Extend(extend::Extend),
    /// Export metrics and spans from the maps of BPF programs, by configurations of ebpf_exporter
    ///
    /// A configuration NAME.yaml says what the maps of NAME.bpf.o count; both are as for ebpf_exporter. Scrapers of Prometheus ask
    /// for the metrics by HTTP, and with --otlp they go to a collector, too. docs/TRACING.md says what is supported.
    #[command(after_long_help = "\
Examples:
  ring3 export --config.dir /etc/ebpf_exporter --config.names mallocs
                                         Every process that maps the probed file
  ring3 export --config.dir . --config.names calls --all
                                         System calls of all processes
  ring3 export --config.dir . --config.names calls --web.listen-address 127.0.0.1:9435 -- ./server
                                         Of a program and its children
  curl http://127.0.0.1:9435/metrics
")]
    Export(export::Export),
    /// Run a program as a target, from its first instruction
    ///
    /// The program keeps its terminal, its signals and its exit status, and runs on if the server ends.
    #[command(after_long_help = "\
Examples:
  ring3 start -- ./server --port 80      Trace a program and its children
  ring3 start --no-follow -- make        Trace make, but not what it runs
")]
    Start {
        #[command(flatten)]
        following: Following,
        /// Stop before the program begins; its parent continues it
        #[arg(long, hide = true)]
        held: bool,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        command: Vec<String>,
    },
    /// Show the system calls of a program
    ///
    /// The calls are recorded inside the process, which does not stop for them. Each call is a line when it has returned.
    #[command(after_long_help = "\
Examples:
  ring3 trace -- ls -l                       Every system call of a program and its children
  ring3 trace -e %file,close -o out -- make  Calls with paths, and close, into a file
  ring3 trace --filter 'ret < 0 && path ~ \"/etc/*\"' -- ./server
                                             Calls that failed for files below /etc
  ring3 trace -c --histogram -p 4711         Count the calls of a running process until Ctrl-C
")]
    Trace(trace::Trace),
    /// Record the events of a program in a file
    ///
    /// The events are those of `ring3 trace`. A trace in the Common Trace Format can be read at any moment, also after a
    /// `kill -9` of ring3 or the program; what is lost because the disk is too slow is counted.
    #[command(after_long_help = "\
Examples:
  ring3 record -o out -- make                     A directory for babeltrace2 and Trace Compass
  ring3 record -o out.pftrace -p 4711             A file for ui.perfetto.dev, until Ctrl-C
  ring3 record -e %file -o out.json -- ls -l      An object for each call
  ring3 convert out --to heatmap -o latency.svg   Make other files of a recorded directory
")]
    Record(record::Record),
    /// Convert a recorded trace to another format
    #[command(after_long_help = "\
Examples:
  ring3 convert out -o out.pftrace                For ui.perfetto.dev
  ring3 convert out --to script -o - | less       As `perf script` prints it
  ring3 convert out --to flamegraph --weight time -o calls.svg
")]
    Convert(record::Convert),
    /// Make a running process a target
    ///
    /// Its children are targets, too: those that it has, and those to come. You must be permitted to ptrace(2) the process. Probes that
    /// cannot be applied in it are named on standard error.
    #[command(after_long_help = "\
Examples:
  ring3 attach 4711
  ring3 attach $(pgrep -o nginx)         The master, and its workers
  ring3 attach $(pgrep -u www-data)
")]
    Attach {
        #[command(flatten)]
        following: Following,
        /// Its process id
        #[arg(required = true, value_name = "PID", value_parser = process_id, allow_negative_numbers = true)]
        pids: Vec<u32>,
    },
    /// Remove all probes and the agent from a target
    ///
    /// The bytes of its code are then what they were before. If a server was killed, this also cleans up what it had changed
    /// in the process.
    #[command(after_long_help = "\
Examples:
  ring3 detach 4711
  ring3 detach --verify 4711             Is its code as in its files, and is nothing of ring3 left? Exit code 1 if not.
")]
    Detach {
        /// Look at mappings, descriptors, code and threads, and say what is left of ring3 or differs from the files
        #[arg(long)]
        verify: bool,
        /// Its process id
        #[arg(required = true, value_name = "PID", value_parser = process_id, allow_negative_numbers = true)]
        pids: Vec<u32>,
    },
    /// Show the server, tools, targets, programs, maps, links and probe sites
    #[command(after_long_help = "\
Examples:
  ring3 status -v                        Why was a probe not applied? How often did one hit?
  ring3 status --json | jq .targets
  ring3 status --trace                   What programs print with bpf_printk, until Ctrl-C
")]
    Status {
        /// Also show each site with its hits, and why a probe was not applied
        #[arg(short, long)]
        verbose: bool,
        /// Print everything as JSON; `{}` if no server is running
        #[arg(long)]
        json: bool,
        /// Print what programs write with bpf_trace_printk, until interrupted
        #[arg(long, conflicts_with_all = ["verbose", "json"])]
        trace: bool,
    },
    /// Remove the path of an object that a tool pinned
    ///
    /// A pinned object (BPF_OBJ_PIN) exists until its path is removed or the server ends.
    #[command(after_long_help = "\
Example:
  ring3 unpin /sys/fs/bpf/counts
")]
    Unpin {
        /// The path, as `ring3 status` shows it
        path: PathBuf,
    },
    /// Detach from all targets and end the server
    ///
    /// Targets run on. Tools that are still loaded run on, too, but their bpf(2) calls fail from then on.
    Stop,
    /// Verify the programs of a BPF object file, and print the verdicts
    ///
    /// The exit status is 0 if all programs are accepted, 1 if one is refused, and 2 if the file cannot be read.
    #[command(after_long_help = "\
Examples:
  ring3 verify prog.bpf.o
  ring3 verify prog.bpf.o --program on_entry -v     One program, with the verifier's log
")]
    Verify(verify::VerifyOptions),
    /// Show how a probe would be written into a file's code, and why not better
    #[command(after_long_help = "\
Examples:
  ring3 explain /bin/bash readline            The tactic, the code before and after, and the stub
  ring3 explain /bin/bash readline --ret
  ring3 explain libc.so.6 malloc+0x10
  ring3 explain libc.so.6 --all               How many instructions have which tactic
")]
    Explain(explain::ExplainOptions),
    /// Write the names and source lines of a target's programs for gdb
    #[command(after_long_help = "\
Example:
  ring3 symbols 4711 -o prog.debug       Then in gdb: add-symbol-file prog.debug
")]
    Symbols {
        /// The target's process id
        #[arg(value_parser = process_id, allow_negative_numbers = true)]
        pid: u32,
        /// The ELF file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Verify and compile the programs of a BPF object file ahead of time
    #[command(after_long_help = "\
Examples:
  ring3 aot prog.bpf.o -o prog.aot                For `ring3 load --aot prog.aot -- TOOL`
  ring3 aot prog.bpf.o --emit obj -o prog.o       An ordinary relocatable object file
")]
    Aot(aot::AotOptions),
    /// Run one program on given memory, and print r0 and the time
    #[command(after_long_help = "\
Examples:
  ring3 exec prog.bpf.o --memory 0a0b --repeat 9
  printf 'r0 = 1\\nexit\\n' | ring3 exec -
")]
    Exec(exec::Execute),
    /// Assemble text to eBPF instructions
    #[command(after_long_help = "\
Examples:
  ring3 asm prog.s                       Hexadecimal digits on standard output
  ring3 asm prog.s -o prog.bin
")]
    Asm(assembly::Assemble),
    /// Print eBPF instructions as text, as `bpftool prog dump xlated` does
    #[command(after_long_help = "\
Examples:
  ring3 disasm prog.bpf.o --program on_entry
  ring3 asm prog.s | ring3 disasm -
")]
    Disasm(assembly::Disassemble),
    /// Print which parts of bpf(2) are supported
    Features {
        /// As docs/SUPPORT.md
        #[arg(long)]
        markdown: bool,
    },
    /// Run a program for the server, which is at the other end of standard input
    #[command(hide = true)]
    RunProgram,
    /// Run a program for the server, which is at the other end of standard input, whenever a perf event occurs
    #[command(hide = true)]
    RunEvents,
    /// Answer the calls of loaders whose server, which is at the other end of standard input, has ended
    #[command(hide = true)]
    Keep,
    /// Load the programs that tell strace of system calls; the socket to it is standard input
    #[command(hide = true)]
    StraceLoader(LoaderOptions),
    /// Run the server (started on demand by the others)
    #[command(hide = true)]
    Serve {
        /// Stay in the foreground and log to standard error
        #[arg(long)]
        foreground: bool,
    },
    /// Write manual pages and completions for bash, zsh and fish below a share directory, as `make install` does
    #[command(hide = true)]
    ShareFiles {
        /// For example /usr/local/share or ~/.local/share
        directory: PathBuf,
    },
}
