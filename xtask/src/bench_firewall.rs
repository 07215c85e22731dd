//! `cargo xtask bench firewall`: what a web server loses when each request is judged by a firewall.
//!
//! The case of "Extending Applications Safely and Efficiently" (OSDI 2025): nginx under wrk with no plugin, with the
//! extension of `examples/nginx-firewall`, and with the same rules in nginx's Lua module and in a module in C. Each
//! measurement has an nginx of its own, with one worker; variants take turns in each round, and are compared with the
//! server without a plugin of the same round. The worker's CPU time per request says most: others who want the CPU
//! change requests per second, and hardly that.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Ring3, Spread, machine, machine_text, output};
use crate::bench_options::{Output, count};
use crate::root;
use crate::web_server::{self, Packages};
use crate::workloads::load::{parse_wrk, wrk};
use crate::workloads::measures::{self, Measured, Series};
use crate::workloads::victim::{Server, await_some, free_port};

const ROUNDS: usize = 15;
const SECONDS_WARM: usize = 1;
const SECONDS: usize = 2;
const CONNECTIONS: u32 = 30;
const FILE_BYTES: usize = 1400;
/// What is asked for: arguments as a shop has them, one of them with an escape.
const TARGET: &str = "file.txt?q=red+running+shoes&brand=o%27neill&category=12&sort=price&page=2";
const AGENT: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:121.0) Gecko/20100101 Firefox/121.0";
/// What must be refused.
const ATTACK: &str = "file.txt?q=1%27%20Or%201=1";
/// Most by which the server without a plugin may differ from itself, in percent: else nothing can be said.
const NOISE_MAX: f64 = 5.0;
const LUA: &str = "/usr/lib/nginx/modules/ngx_http_lua_module.so";
const SOURCES: &str = "/usr/share/nginx/src";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Plain,
    /// The same: so much do figures differ by themselves.
    Again,
    /// Under ring3, with no extension.
    Target,
    Extension,
    C,
    Lua,
}
use Variant::{Again, C, Extension, Lua, Plain, Target};

const VARIANTS: [Variant; 6] = [Plain, Again, Target, Extension, C, Lua];

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Plain => "no plugin",
            Again => "no plugin, again",
            Target => "a target of ring3, no extension",
            Extension => "ring3 extension",
            C => "module in C",
            Lua => "Lua module",
        }
    }
}

struct Bench {
    packages: Packages,
    ring3: Ring3,
    /// Configuration and file.
    directory: PathBuf,
    example: PathBuf,
    module: PathBuf,
    figures: BTreeMap<Variant, Series>,
    /// Load averages of a minute, one for each round.
    loads: Vec<f64>,
    skipped: BTreeMap<Variant, &'static str>,
}

/// What `cargo xtask bench firewall` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn firewall(options: &Options) -> Result<(), String> {
    if !Path::new(SOURCES).exists() {
        return Err(format!("there is no {SOURCES}: install nginx-dev"));
    }
    let build = root().join("target/bench");
    let example = root().join("examples/nginx-firewall");
    let ring3 = Ring3::new()?;
    let binary = ring3.command(&[]).get_program().to_owned();
    let make = format!("RING3={}", Path::new(&binary).display());
    crate::run("make", &["-s", "-C", "examples/nginx-firewall", &make])?;
    crate::run("make", &["-s", "-C", "bench/firewall", &format!("OUT={}", build.display())])?;
    let mut bench = Bench {
        packages: Packages::in_directory(&build),
        directory: ring3.directory().join("nginx"),
        ring3,
        example,
        module: build.join("ngx_http_firewall_module.so"),
        figures: BTreeMap::new(),
        loads: vec![],
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
        let text = |error: std::io::Error| format!("{}: {error}", self.directory.display());
        fs::create_dir(&self.directory).map_err(text)?;
        fs::write(self.directory.join("file.txt"), "x".repeat(FILE_BYTES)).map_err(text)?;
        if !Path::new(LUA).exists() {
            eprintln!("SKIPPED: {}: libnginx-mod-http-lua is not installed", Lua.name());
            self.skipped.insert(Lua, "libnginx-mod-http-lua is not installed");
        }
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}");
            self.loads.extend(measures::load_average());
            for turn in 0..VARIANTS.len() {
                let variant = VARIANTS[(round + turn) % VARIANTS.len()];
                if !self.skipped.contains_key(&variant) {
                    self.measure(variant).map_err(|why| format!("{}: {why}", variant.name()))?;
                }
            }
        }
        Ok(())
    }

    fn configuration(&self, variant: Variant, port: u16) -> String {
        let rules = self.example.join("default.rules");
        let (rules, directory) = (rules.display(), self.directory.display());
        let (before, http, server) = match variant {
            Plain | Again | Target | Extension => Default::default(),
            C => (format!("load_module {};\n", self.module.display()), format!("  firewall {rules};\n"), ""),
            Lua => (
                format!("load_module {};\nload_module {LUA};\n", LUA.replace("ngx_http_lua", "ndk_http")),
                format!(
                    "  lua_package_path \"{}/?.lua;;\";\n  \
                     init_by_lua_block {{ require(\"firewall\").read(\"{rules}\") }}\n",
                    root().join("bench/firewall").display()
                ),
                " access_by_lua_block { require(\"firewall\").check() }",
            ),
        };
        let server = format!("  server {{ listen 127.0.0.1:{port}; root {directory};{server} }}\n");
        web_server::configuration(&directory.to_string(), 1, &before, &(http + &server))
    }

    /// A server in its control group. ring3's server must be there before it, or would be in that group.
    fn server(&self, variant: Variant) -> Result<Server, String> {
        let port = free_port()?;
        let file = self.directory.join("nginx.conf");
        fs::write(&file, self.configuration(variant, port)).map_err(|error| error.to_string())?;
        let binary = self.packages.program("usr/sbin/nginx").ok_or("there is no nginx")?;
        let class = format!("{}:firewall", self.example.join("nginx.eim").display());
        let object = self.example.join("firewall.bpf.o").display().to_string();
        let mut command = match variant {
            Extension => self.ring3.command(&["extend", "--class", &class, &object, "--"]),
            Target => self.ring3.command(&["start", "--"]),
            _ => Command::new("env"),
        };
        command.arg(binary).arg("-p").arg(&self.directory).args(["-e", "stderr", "-c"]).arg(&file);
        Server::start(&command, port, &self.directory.join("nginx.log"), true)
    }

    fn start(&self, variant: Variant) -> Result<Server, String> {
        let server = self.server(variant)?;
        if variant == Extension {
            let mut rules = Command::new(self.example.join("rules"));
            for (name, value) in self.ring3.command(&[]).get_envs() {
                value.map(|value| rules.env(name, value));
            }
            rules.env("RING3", self.ring3.command(&[]).get_program());
            output(rules.arg("load").arg(self.example.join("default.rules")))?;
        }
        let refuses = refuses(&server)?;
        let shall = matches!(variant, Extension | C | Lua);
        if refuses == shall {
            Ok(server)
        } else {
            Err(format!("it {} an attack", if shall { "lets in" } else { "refuses" }))
        }
    }

    fn load(&self, server: &mut Server, seconds: usize) -> Result<Measured, String> {
        let address = format!("http://127.0.0.1:{}/{TARGET}", server.port);
        let command = wrk(&self.packages, CONNECTIONS, seconds, &["-H", AGENT, &address])?;
        server.load(&command, None, parse_wrk)
    }

    fn measure(&mut self, variant: Variant) -> Result<(), String> {
        // (It waits for its input to end, and keeps ring3's server.)
        let waiting = match variant {
            Target | Extension => Some(Process::start(&mut self.ring3.command(&["start", "--", "cat"]))?),
            _ => None,
        };
        if let Some(waiting) = &waiting {
            await_some("ring3's server", || self.ring3.target(waiting.child.id()).ok().flatten())?;
        }
        let mut server = self.start(variant)?;
        self.load(&mut server, SECONDS_WARM)?;
        let measured = self.load(&mut server, SECONDS)?;
        self.figures.entry(variant).or_default().push(&measured);
        Ok(())
    }

    /// What the figures of a variant are compared with.
    fn compared(&self, variant: Variant, of: fn(&Series, &Series) -> Option<Spread>) -> Option<Spread> {
        of(self.figures.get(&variant)?, self.figures.get(&Plain)?)
    }

    fn lost(&self, variant: Variant) -> Option<Spread> {
        self.compared(variant, Series::lost)
    }

    fn added(&self, variant: Variant) -> Option<Spread> {
        self.compared(variant, Series::cpu_added)
    }

    /// Whether the server without a plugin differs from itself by so much that losses mean nothing.
    fn is_noisy(&self) -> bool {
        self.added(Again).is_none_or(|spread| spread.reach() > NOISE_MAX)
    }

    fn goals(&self) -> Vec<Goal> {
        let goal = |what: &str, spread: Option<Spread>, limit| Goal {
            text: format!("{}: {what}, %", Extension.name()),
            figure: spread.map(|spread| spread.median).filter(|_| !self.is_noisy()),
            limit: Limit::AtMost(limit),
        };
        // (A tenth of a percent is as much as is shown.)
        let noise = self.added(Again).map_or(0.0, |spread| (spread.reach() * 10.0).round() / 10.0);
        vec![goal("lost", self.lost(Extension), 1.0), goal("CPU per request added", self.added(Extension), noise)]
    }

    fn print(&self, rounds: usize, goals: &[Goal]) {
        let show = |spread: Option<Spread>| spread.map(|spread| spread.to_string()).unwrap_or_default();
        println!("\n{}", machine_text());
        println!(
            "nginx, one worker, {CONNECTIONS} connections, {FILE_BYTES} bytes, load {}: medians of {rounds} rounds (middle half)\n",
            show(Spread::of(&self.loads)).trim()
        );
        println!("{:<34}{}", "", measures::head());
        let plain = self.figures.get(&Plain);
        for (variant, series) in &self.figures {
            let line = series.line(plain.filter(|_| *variant != Plain));
            println!("{:<34}{line}", variant.name());
        }
        for (variant, why) in &self.skipped {
            println!("\nskipped: {}: {why}", variant.name());
        }
        if self.is_noisy() {
            println!(
                "\nNO VERDICT: without a plugin, CPU time per request differs from itself by more than {NOISE_MAX} %"
            );
        }
        println!("\ngoals");
        for goal in goals {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize, goals: &[Goal]) -> Value {
        let plain = self.figures.get(&Plain);
        let variants = self.figures.iter();
        let variants =
            variants.map(|(variant, series)| json!({"what": variant.name(), "figures": series.json(plain)}));
        json!({
            "machine": machine(), "rounds": rounds, "loads": self.loads,
            "skipped": self.skipped.iter().map(|(v, why)| (v.name(), why)).collect::<BTreeMap<_, _>>(),
            "variants": variants.collect::<Vec<_>>(),
            "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}

/// Whether an attack is refused.
fn refuses(server: &Server) -> Result<bool, String> {
    use std::io::{Read, Write};
    let text = |error: std::io::Error| format!("nginx: {error}");
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).map_err(text)?;
    write!(stream, "GET /{ATTACK} HTTP/1.0\r\n\r\n").map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    Ok(answer.starts_with("HTTP/1.1 403"))
}
