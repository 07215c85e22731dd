//! `cargo xtask bench nginx`: what a web server loses when its system calls are counted.
//!
//! The case of "Extending Applications Safely and Efficiently" (OSDI 2025): nginx under wrk, while Debian's `syscount` counts
//! system calls of all processes, or of another one; natively, and under ring3. Each measurement has an nginx of its own,
//! with one worker. A loss is what is missing to the untraced server of the same round. The worker's time per request
//! is told as well: others who want the CPU change requests per second, and hardly that.
//!
//! With `--tls`: nginx with TLS, while a tool as sslsniff copies what `SSL_read` and `SSL_write` pass into a perf buffer, and reads it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Ring3, Spread, machine, machine_text, output};
use crate::bench_options::{Output, count};
use crate::bench_syscall::with_tracefs;
use crate::root;
use crate::web_server::{self, Measured, Nginx, Packages, running, signal};

const ROUNDS: usize = 9;
const SECONDS_WARM: u32 = 1;
const SECONDS: u32 = 2;
/// Most by which the untraced server may differ from itself, in percent: else nothing can be said.
const NOISE_MAX: f64 = 5.0;
/// The file that is asked for.
const FILE: &str = "file.txt";
const SYSCOUNT: &str = "/usr/sbin/syscount";

/// Who counts whose calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Untraced,
    /// The same: so much do figures differ by themselves.
    Again,
    Kernel,
    KernelAnother,
    Ring3,
    Ring3Another,
}
use Variant::{Again, Kernel, KernelAnother, Ring3Another, Untraced};

const VARIANTS_OF_TLS: [Variant; 4] = [Untraced, Again, Kernel, Variant::Ring3];
const VARIANTS: [Variant; 6] = [Untraced, Again, Kernel, KernelAnother, Variant::Ring3, Ring3Another];

impl Variant {
    fn name(self, tls: bool) -> &'static str {
        match self {
            Kernel if tls => "text of TLS, kernel",
            Variant::Ring3 if tls => "text of TLS, ring3",
            Untraced => "untraced",
            Again => "untraced, again",
            Kernel => "syscount, kernel",
            KernelAnother => "syscount of another process, kernel",
            Variant::Ring3 => "syscount, ring3",
            Ring3Another => "syscount of another process, ring3",
        }
    }

    fn is_kernel(self) -> bool {
        matches!(self, Kernel | KernelAnother)
    }
}

/// A figure per round.
#[derive(Default)]
struct Series {
    requests_per_second: Vec<f64>,
    worker_us: Vec<f64>,
    /// System calls that were counted, or events that were read, for each request.
    calls: Vec<f64>,
    /// Events that were lost, in percent.
    lost: Vec<f64>,
}

struct Bench {
    tls: bool,
    build: PathBuf,
    packages: Packages,
    ring3: Ring3,
    /// Configuration and file.
    directory: PathBuf,
    figures: BTreeMap<Variant, Series>,
    skipped: BTreeMap<Variant, String>,
}

/// What `cargo xtask bench nginx` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure a server with TLS whose text is read, not one whose system calls are counted
    #[arg(long)]
    tls: bool,
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn nginx(options: &Options) -> Result<(), String> {
    let build = root().join("target/bench");
    if options.tls {
        crate::run("make", &["-s", "-C", "bench/tls", &format!("OUT={}", build.display())])?;
    } else if !Path::new(SYSCOUNT).exists() {
        return Err(format!("there is no {SYSCOUNT}: install libbpf-tools"));
    }
    let ring3 = Ring3::new()?;
    let directory = ring3.directory().join("nginx");
    let mut bench = Bench {
        tls: options.tls,
        packages: Packages::in_directory(&build),
        build,
        ring3,
        directory,
        figures: BTreeMap::new(),
        skipped: BTreeMap::new(),
    };
    bench.run(options.rounds).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    let goals = bench.goals();
    bench.print(options.rounds, &goals);
    options.output.save(|| bench.json(options.rounds, &goals))
}

impl Bench {
    /// Rounds in which each variant begins once.
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        self.packages.unpack()?;
        self.write_configuration().map_err(|error| format!("{}: {error}", self.directory.display()))?;
        if !geteuid().is_root() {
            for variant in self.variants().iter().copied().filter(|variant| variant.is_kernel()) {
                eprintln!("SKIPPED: {}: needs root", variant.name(self.tls));
                self.skipped.insert(variant, "needs root".into());
            }
        }
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}");
            let variants = self.variants();
            for turn in 0..variants.len() {
                let variant = variants[(round + turn) % variants.len()];
                if !self.skipped.contains_key(&variant) {
                    self.measure(variant).map_err(|why| format!("{}: {why}", variant.name(self.tls)))?;
                }
            }
        }
        Ok(())
    }

    fn variants(&self) -> &'static [Variant] {
        if self.tls { &VARIANTS_OF_TLS } else { &VARIANTS }
    }

    fn connections(&self) -> u32 {
        if self.tls { 50 } else { 100 }
    }

    fn file_bytes(&self) -> usize {
        if self.tls { 1400 } else { 512 }
    }

    fn write_configuration(&self) -> std::io::Result<()> {
        std::fs::create_dir(&self.directory)?;
        std::fs::set_permissions(&self.directory, std::fs::Permissions::from_mode(0o700))?;
        std::fs::write(self.directory.join(FILE), "x".repeat(self.file_bytes()))?;
        if self.tls {
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "30"]);
            openssl.args(["-keyout", "key.pem", "-out", "certificate.pem"]).current_dir(&self.directory);
            output(&mut openssl).map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    fn configuration(&self, port: u16) -> String {
        let directory = self.directory.display();
        let (ssl, certificate) = match self.tls {
            true => (
                " ssl",
                format!(" ssl_certificate {directory}/certificate.pem; ssl_certificate_key {directory}/key.pem;"),
            ),
            false => ("", String::new()),
        };
        let server = format!("  server {{ listen 127.0.0.1:{port}{ssl};{certificate} root {directory}; }}\n");
        web_server::configuration(&self.directory, "", &server)
    }

    /// An nginx that answers.
    fn start(&self, traced: bool) -> Result<Nginx, String> {
        let port = web_server::free_port()?;
        let text = self.configuration(port);
        let before = traced.then(|| self.ring3.command(&["start", "--"]));
        Nginx::start(&self.packages, before, &self.directory, &text, port)
    }

    /// Syscount at work: of the calls of this process, or of all that there are to it.
    fn count(&self, variant: Variant, of: Option<u32>) -> Result<Process, String> {
        let mut command = if variant.is_kernel() {
            with_tracefs(Path::new("stdbuf"))
        } else {
            let mut command = self.ring3.command(&["load", "--"]);
            command.arg("stdbuf");
            command
        };
        command.args(["-oL", SYSCOUNT]).args(of.map(|pid| format!("--pid={pid}")));
        let mut tool = Process::start(&mut command)?;
        let line = tool.line()?;
        if line.starts_with("Tracing") { Ok(tool) } else { Err(format!("syscount: {line:?}")) }
    }

    /// Ends syscount; how many calls it has counted.
    fn counted(tool: Process) -> Result<f64, String> {
        let pid = running(tool.child.id(), "syscount").ok_or("syscount has gone")?;
        signal(pid, Signal::INT);
        let told = tool.finish()?;
        let row = |line: &str| line.split_whitespace().nth(1).and_then(|count| count.parse::<f64>().ok());
        Ok(told.lines().filter_map(row).sum())
    }

    /// A tool reads what the worker sends and receives.
    fn read_text(&self, variant: Variant, worker: u32) -> Result<Process, String> {
        let maps = format!("/proc/{worker}/maps");
        let maps = std::fs::read_to_string(&maps).map_err(|error| format!("{maps}: {error}"))?;
        let library =
            maps.split_whitespace().find(|word| word.contains("/libssl.so")).ok_or("nginx has no libssl")?;
        let tool = self.build.join("tls_tool");
        let mut command = match variant.is_kernel() {
            true => Command::new(tool),
            false => {
                let mut command = self.ring3.command(&["load", "--"]);
                command.arg(tool);
                command
            }
        };
        let mut tool = Process::start(command.args([&worker.to_string(), library]))?;
        tool.expect("attached")?;
        Ok(tool)
    }

    fn measure_text(&mut self, variant: Variant) -> Result<(), String> {
        let nginx = self.start(false)?;
        let is_traced = matches!(variant, Kernel | Variant::Ring3);
        let tool = is_traced.then(|| self.read_text(variant, nginx.worker)).transpose()?;
        let warm = self.load(&nginx, SECONDS_WARM)?;
        let measured = self.load(&nginx, SECONDS)?;
        let series = self.figures.entry(variant).or_default();
        if let Some(tool) = tool {
            let told = tool.finish()?;
            let numbers: Vec<f64> = told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [read, lost, wrong] = numbers[..] else { return Err(format!("tls_tool: {told:?}")) };
            let requests = warm.requests + measured.requests;
            // (A request is read, and an answer written, at least.)
            if wrong > 0.0 || read + lost < 2.0 * requests {
                return Err(format!("{requests} requests, {read} events, {lost} lost, {wrong} damaged"));
            }
            series.calls.push(read / requests);
            series.lost.push(100.0 * lost / (read + lost));
        }
        series.requests_per_second.push(measured.requests_per_second);
        series.worker_us.push(measured.worker_us);
        Ok(())
    }

    fn measure(&mut self, variant: Variant) -> Result<(), String> {
        if self.tls {
            return self.measure_text(variant);
        }
        let nginx = self.start(variant == Variant::Ring3)?;
        let mut bystander = match variant {
            Ring3Another => self.ring3.command(&["start", "--", "cat"]),
            _ => Command::new("cat"),
        };
        let bystander = Process::start(&mut bystander)?;
        let tool = match variant {
            Untraced | Again => None,
            Kernel | Variant::Ring3 => Some(self.count(variant, None)?),
            KernelAnother | Ring3Another => Some(self.count(variant, Some(bystander.child.id()))?),
        };
        self.load(&nginx, SECONDS_WARM)?;
        let measured = self.load(&nginx, SECONDS)?;
        let counted = tool.map(Bench::counted).transpose()?.unwrap_or(0.0);
        let series = self.figures.entry(variant).or_default();
        if matches!(variant, Kernel | Variant::Ring3) {
            if counted < measured.requests {
                return Err(format!("{} requests, and {counted} system calls counted", measured.requests));
            }
            let requests = measured.requests * f64::from(SECONDS + SECONDS_WARM) / f64::from(SECONDS);
            series.calls.push(counted / requests);
        }
        series.requests_per_second.push(measured.requests_per_second);
        series.worker_us.push(measured.worker_us);
        Ok(())
    }

    /// Asks for the file as often as can be.
    fn load(&self, nginx: &Nginx, seconds: u32) -> Result<Measured, String> {
        let scheme = if self.tls { "https" } else { "http" };
        nginx.load(
            &self.packages,
            self.connections(),
            seconds,
            &[&format!("{scheme}://127.0.0.1:{}/{FILE}", nginx.port)],
        )
    }

    /// What of the untraced figures of the same rounds is missing or added, in percent.
    fn changed(&self, variant: Variant, figures: impl Fn(&Series) -> &Vec<f64>) -> Option<Spread> {
        let (plain, ours) = (self.figures.get(&Untraced)?, self.figures.get(&variant)?);
        web_server::changed(figures(plain), figures(ours))
    }

    fn lost(&self, variant: Variant) -> Option<f64> {
        self.changed(variant, |series| &series.requests_per_second).map(|spread| 0.0 - spread.median)
    }

    /// Whether the untraced server differs from itself by so much that losses mean nothing.
    fn is_noisy(&self) -> bool {
        let control = self.changed(Again, |series| &series.requests_per_second);
        control.is_none_or(|spread| spread.reach() > NOISE_MAX)
    }

    fn goals(&self) -> Vec<Goal> {
        let goal = |variant: Variant, what: &str, figure: Option<f64>, limit| Goal {
            text: format!("{}: {what}, %", variant.name(self.tls)),
            figure: figure.filter(|_| !self.is_noisy()),
            limit: Limit::AtMost(limit),
        };
        if self.tls {
            let added = self.changed(Variant::Ring3, |series| &series.worker_us).map(|spread| spread.median);
            return vec![
                goal(Variant::Ring3, "lost", self.lost(Variant::Ring3), 15.0),
                goal(Variant::Ring3, "CPU per request added", added, 7.0),
            ];
        }
        [Variant::Ring3, Ring3Another].map(|variant| goal(variant, "lost", self.lost(variant), 2.0)).into()
    }

    fn print(&self, rounds: usize, goals: &[Goal]) {
        let show = |spread: Option<Spread>| spread.map(|spread| spread.to_string()).unwrap_or_default();
        println!("\n{}", machine_text());
        println!(
            "nginx{}, one worker, {} connections, {} bytes: medians of {rounds} rounds (middle half)\n",
            if self.tls { " with TLS" } else { "" },
            self.connections(),
            self.file_bytes(),
        );
        println!(
            "{:<38}{:>7} {:<16}{:>7} {:<16}{:>7} {:<16}{:>7} {:<16}{:>9}",
            "",
            "req/s",
            "",
            "lost, %",
            "",
            "us/req",
            "",
            "added,%",
            "",
            if self.tls { "events/req, lost of them, %" } else { "calls/req" }
        );
        for (variant, series) in &self.figures {
            let mut cells = vec![show(Spread::of(&series.requests_per_second))];
            let lost = self.changed(*variant, |series| &series.requests_per_second).map(Spread::negative);
            cells.push(show(lost.filter(|_| *variant != Untraced)));
            cells.push(show(Spread::of(&series.worker_us)));
            let added = self.changed(*variant, |series| &series.worker_us);
            cells.push(show(added.filter(|_| *variant != Untraced)));
            let lost = Spread::of(&series.lost).map(|lost| format!(", {:.1}", lost.median)).unwrap_or_default();
            let calls = Spread::of(&series.calls).map(|calls| format!("{:>9.1}{lost}", calls.median));
            let cells: String = cells.iter().map(|cell| format!("{cell:<24}")).collect();
            println!("{}", format!("{:<38}{cells}{}", variant.name(self.tls), calls.unwrap_or_default()).trim_end());
        }
        for (variant, why) in &self.skipped {
            println!("\nskipped: {}: {why}", variant.name(self.tls));
        }
        if self.is_noisy() {
            println!(
                "\nNO VERDICT: untraced, nginx differs from itself by more than {NOISE_MAX} %: others want the CPUs"
            );
        }
        println!("\ngoals");
        for goal in goals {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize, goals: &[Goal]) -> Value {
        let variants = self.figures.iter().map(|(variant, series)| {
            json!({
                "what": variant.name(self.tls), "requests_per_second": series.requests_per_second,
                "worker_us_per_request": series.worker_us, "calls_per_request": series.calls,
                "events_lost_percent": series.lost,
                "lost_percent": self.lost(*variant),
            })
        });
        json!({
            "machine": machine(),
            "rounds": rounds,
            "skipped": self.skipped.iter().map(|(v, why)| (v.name(self.tls), why)).collect::<BTreeMap<_, _>>(),
            "variants": variants.collect::<Vec<_>>(),
            "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}
