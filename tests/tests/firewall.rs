//! `examples/nginx-firewall`: an extension judges the requests of an unmodified nginx.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ring3_tests::{Bench, Process, built_example, is_root, kill, ring3, root, wait_until};

const NOBODY: u32 = 65_534;
const NGINX: &str = "/usr/sbin/nginx";
const SOURCES: &str = "/usr/share/nginx/src";
/// What an attack is answered with.
const FORBIDDEN: u16 = 403;
const FILE: &str = "some text\n";

fn example() -> Option<PathBuf> {
    built_example("nginx-firewall", &[NGINX, SOURCES])
}

/// Statements of a server that tests ask for.
const SERVER: &str = "
    index a.txt;
    rewrite ^/old/(.*)$ /$1?;
    error_page 403 /forbidden;
    location = /forbidden { internal; return 403 \"our page\\n\"; }
    location = /answer { return 200 \"answer\\n\"; }";

struct Firewall {
    port: u16,
    nginx: Process,
    directory: PathBuf,
    // (Dropped last: it stops the server.)
    bench: Bench,
}

impl Firewall {
    /// An nginx that is extended from its beginning, with the default rules.
    fn start(bench: Bench) -> Option<Firewall> {
        let firewall = Firewall::run(bench, true)?;
        firewall.load_default_rules();
        Some(firewall)
    }

    fn run(bench: Bench, is_extended: bool) -> Option<Firewall> {
        let example = example()?;
        let mut directory = PathBuf::new();
        for name in ["nginx.eim", "types.o", "firewall.bpf.o", "rules", "default.rules"] {
            directory = bench.copy(&example.join(name)).parent().expect("a directory").to_owned();
        }
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        std::fs::write(directory.join("a.txt"), FILE).expect("written");
        let configuration = directory.join("nginx.conf");
        std::fs::write(&configuration, Firewall::configuration(&directory, port)).expect("written");
        let mut command = if is_extended {
            let mut command = Firewall::extend(&bench, &directory);
            command.args(["--", NGINX]);
            command
        } else {
            bench.command(NGINX)
        };
        let nginx = Process::start(command.args(["-e", "stderr", "-c"]).arg(configuration));
        let firewall = Firewall { port, nginx, directory, bench };
        wait_until("nginx answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(firewall)
    }

    /// `ring3 extend` with the class and the program, but for whom.
    fn extend(bench: &Bench, directory: &Path) -> Command {
        let class = format!("{}:firewall", directory.join("nginx.eim").display());
        let mut command = bench.ring3_command(&["extend", "--class", &class]);
        command.arg(directory.join("firewall.bpf.o"));
        command
    }

    fn load_default_rules(&self) {
        let defaults = self.directory.join("default.rules");
        assert_eq!(self.rules(&["load", &defaults.display().to_string()]), (true, String::new()));
    }

    fn configuration(directory: &Path, port: u16) -> String {
        let user = if is_root() { "user root;\n" } else { "" };
        let at = directory.display();
        let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|what| format!("  {what}_temp_path {at}/{what};\n"))
            .collect();
        format!(
            "{user}daemon off;\nworker_processes 1;\npid {at}/nginx.pid;\nerror_log stderr crit;\nevents {{}}\nhttp {{\n\
             access_log off;\nkeepalive_requests 1000000;\n{places}\
             server {{ listen 127.0.0.1:{port}; root {at};{SERVER} }}\n}}\n"
        )
    }

    /// Whether `rules` succeeds, and what it says.
    fn rules(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = self.bench.command(self.directory.join("rules"));
        let output = command.env("RING3", ring3()).args(arguments).output().expect("rules run");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    fn connect(&self) -> Connection {
        Connection::to(self.port)
    }

    /// The status of the answer to a request, with a connection of its own.
    fn ask(&self, target: &[u8], agent: &[u8]) -> u16 {
        let mut connection = self.connect();
        let request = [b"GET ", target, b" HTTP/1.1\r\nHost: x\r\nUser-Agent: ", agent, b"\r\n\r\n"].concat();
        connection.send(&request);
        connection.answer(true).0
    }

    fn worker(&self) -> u32 {
        let master = std::fs::read_to_string(self.directory.join("nginx.pid")).expect("nginx runs");
        let master = master.trim();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).expect("it runs");
        let mut workers = children.split_whitespace().filter(|child| name_of(child) == "nginx");
        workers.next_back().and_then(|pid| pid.parse().ok()).expect("a worker")
    }

    /// The process that keeps the extension.
    fn loader(&self) -> u32 {
        let loaders = self.bench.status()["loaders"].as_array().cloned().unwrap_or_default();
        let ours =
            loaders.iter().find(|loader| loader["command"].as_str().is_some_and(|text| text.contains("extend")));
        ours.and_then(|loader| loader["pid"].as_u64()).expect("a loader") as u32
    }

    /// Requests, and those refused by a pattern, so far.
    fn seen(&self) -> (u64, u64) {
        let (_, said) = self.rules(&["show"]);
        let numbers: Vec<u64> =
            said.lines().next().unwrap_or_default().split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        self.nginx.signal(rustix::process::Signal::TERM);
        self.nginx.wait();
    }
}

fn name_of(pid: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    fn to(port: u16) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("nginx listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        Connection { stream, read: vec![] }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("nginx reads");
    }

    /// The next answer: status, headers, body (which answers to HEAD lack).
    fn answer(&mut self, has_body: bool) -> (u16, String, Vec<u8>) {
        let end = loop {
            if let Some(at) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            self.more();
        };
        let headers = String::from_utf8_lossy(&self.read.drain(..end).collect::<Vec<_>>()).into_owned();
        let length = headers.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
        let length: usize = if has_body { length.expect("answers tell their length") } else { 0 };
        while self.read.len() < length {
            self.more();
        }
        let status = headers.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, headers, self.read.drain(..length).collect())
    }

    fn more(&mut self) {
        let mut bytes = [0; 4096];
        let count = self.stream.read(&mut bytes).expect("nginx answers");
        assert!(count > 0, "nginx closed the connection after {:?}", String::from_utf8_lossy(&self.read));
        self.read.extend_from_slice(&bytes[..count]);
    }
}

/// Requests of a file of the corpus: target and user agent.
fn corpus(name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = std::fs::read(root().join("examples/nginx-firewall/corpus").join(name)).expect("readable");
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#');
    let halves = lines.map(|line| match line.iter().position(|byte| *byte == b'\t') {
        Some(at) => (line[..at].to_vec(), line[at + 1..].to_vec()),
        None => (line.to_vec(), b"test".to_vec()),
    });
    halves.collect()
}

fn judge_corpus(bench: Bench) {
    let Some(firewall) = Firewall::start(bench) else { return };
    let (attacks, innocent) = (corpus("attacks.txt"), corpus("innocent.txt"));
    assert!(attacks.len() >= 60 && innocent.len() >= 100, "{} {}", attacks.len(), innocent.len());
    let mut wrong = vec![];
    for (requests, is_attack) in [(&attacks, true), (&innocent, false)] {
        for (target, agent) in requests {
            let status = firewall.ask(target, agent);
            if (status == FORBIDDEN) != is_attack || !matches!(status, 200 | 404 | FORBIDDEN) {
                wrong.push(format!(
                    "{status} {} {}",
                    String::from_utf8_lossy(target),
                    String::from_utf8_lossy(agent)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // (One connection was made to see that nginx answers. It has sent no request.)
    assert_eq!(firewall.seen(), ((attacks.len() + innocent.len()) as u64, attacks.len() as u64));
}

#[test]
fn every_request_of_the_corpus_is_judged_right() {
    judge_corpus(Bench::ring3());
}

#[test]
fn an_ordinary_user_can_have_the_firewall() {
    if is_root() {
        judge_corpus(Bench::ring3_as(NOBODY));
    } else {
        println!("SKIPPED: another user needs root (and the other tests are those of an ordinary user)");
    }
}

#[test]
fn rules_change_while_nginx_runs() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    let ask = |target: &str| firewall.ask(target.as_bytes(), b"test");
    assert_eq!((ask("/answer?q=secret+word"), ask("/answer?q=secret+wand")), (200, 200));
    // (Two patterns that begin alike.)
    assert_eq!(firewall.rules(&["add", "Secret Word", "secret+wand"]), (true, String::new()));
    assert_eq!((ask("/answer?q=secret+word"), ask("/answer?q=SECRET%20wand")), (FORBIDDEN, FORBIDDEN));
    assert!(firewall.rules(&["show"]).1.contains("\n  secret word\n"));
    assert_eq!(firewall.rules(&["remove", "secret word"]), (true, String::new()));
    assert_eq!((ask("/answer?q=secret+word"), ask("/answer?q=secret+wand")), (200, FORBIDDEN));
    let refused = [("add", "abc", "at least 4 bytes"), ("add", &"x".repeat(33), "at most 32 bytes")];
    for (what, pattern, why) in [&refused[..], &[("remove", "nothing such", "no such pattern")]].concat() {
        let (is_done, said) = firewall.rules(&[what, pattern]);
        assert!(!is_done && said.contains(why), "{said}");
    }
    assert_eq!(firewall.rules(&["add", &"y".repeat(32)]), (true, String::new()));
    assert_eq!(ask(&format!("/answer?{}", "y".repeat(31))), 200);
    assert_eq!(ask(&format!("/answer?{}", "y".repeat(32))), FORBIDDEN);
}

#[test]
fn a_client_that_asks_too_often_waits() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    assert_eq!(firewall.rules(&["limit", "5"]), (true, String::new()));
    // (At most three seconds begin in two and a bit.)
    let statuses: Vec<u16> = (0..60)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            firewall.ask(b"/answer", b"test")
        })
        .collect();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(count(200) + count(429), 60, "{statuses:?}");
    assert!(statuses[..5] == [200; 5] && count(429) >= 20, "{statuses:?}");
    assert_eq!(firewall.rules(&["limit", "0"]), (true, String::new()));
    assert_eq!(firewall.ask(b"/answer", b"test"), 200);
}

#[test]
fn a_refusal_is_an_answer_like_others() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    let mut connection = firewall.connect();
    // One connection for all of them: it is kept alive.
    connection.send(b"GET /a.txt?<script> HTTP/1.1\r\nHost: x\r\n\r\n");
    let (status, headers, body) = connection.answer(true);
    assert_eq!((status, &body[..]), (FORBIDDEN, &b"our page\n"[..]), "{headers}");
    connection.send(b"HEAD /a.txt?<script> HTTP/1.1\r\nHost: x\r\n\r\nHEAD /a.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((connection.answer(false).0, connection.answer(false).0), (FORBIDDEN, 200));
    connection.send(b"POST /answer?<script> HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nGET /no?<");
    assert_eq!(connection.answer(true).0, FORBIDDEN);
    connection.send(b"POST /answer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(connection.answer(true).0, 200);
    let one = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
    let targets = ["/answer", "/?<script>", "/a.txt", "/answer?<script>", "/missing"];
    connection.send(targets.map(one).concat().as_bytes());
    let statuses = targets.map(|_| connection.answer(true).0);
    assert_eq!(statuses, [200, FORBIDDEN, 200, FORBIDDEN, 404]);
}

#[test]
fn a_request_is_judged_once_also_if_nginx_rewrites_it() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    let ask = |target: &str| firewall.ask(target.as_bytes(), b"test");
    let counted = |target: &str, status: u16| {
        let before = firewall.seen();
        assert_eq!(ask(target), status, "{target}");
        let after = firewall.seen();
        (after.0 - before.0, after.1 - before.1)
    };
    // An index, an error page, the server's rewriting of path and arguments.
    assert_eq!(counted("/", 200), (1, 0));
    assert_eq!(counted("/?<script>", FORBIDDEN), (1, 1));
    assert_eq!(counted("/old/a.txt", 200), (1, 0));
    assert_eq!(counted("/old/a.txt?<script>", FORBIDDEN), (1, 1));
    assert_eq!(counted(&format!("/answer?{}", "x".repeat(7000)), 200), (1, 0));
    assert_eq!(counted(&format!("/answer?{}<script>", "x".repeat(7000)), FORBIDDEN), (1, 1));
    assert_eq!(counted(&format!("/answer?{}%3Cscript>", "%41".repeat(2000)), FORBIDDEN), (1, 1));
}

#[test]
fn nginx_serves_unextended_when_its_loader_is_killed() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    let worker = firewall.worker();
    let attack = || firewall.ask(b"/answer?<script>", b"test");
    assert_eq!(attack(), FORBIDDEN);
    kill(firewall.loader());
    wait_until("the extension is gone", || attack() == 200);
    assert_eq!(firewall.ask(b"/a.txt", b"test"), 200);
    assert_eq!(firewall.worker(), worker);
}

#[test]
fn a_running_nginx_is_extended_with_its_workers() {
    let Some(firewall) = Firewall::run(Bench::ring3(), false) else { return };
    let attack = || firewall.ask(b"/answer?<script>", b"test");
    assert_eq!(attack(), 200);
    let master = std::fs::read_to_string(firewall.directory.join("nginx.pid")).expect("nginx runs");
    let mut extend = Firewall::extend(&firewall.bench, &firewall.directory);
    extend.args(["--pid", master.trim()]);
    // (What it says, it says to standard error.)
    let mut loader = Process::start_joined(&extend);
    let line = loader.line();
    assert!(line.contains(&format!(" in process {} and 1 of its children;", master.trim())), "{line}");
    firewall.load_default_rules();
    assert_eq!((attack(), firewall.ask(b"/a.txt", b"test")), (FORBIDDEN, 200));
    loader.signal(rustix::process::Signal::INT);
    loader.wait();
    wait_until("the extension is gone", || attack() == 200);
}

#[test]
fn workers_that_follow_a_reload_are_extended() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    let worker = firewall.worker();
    firewall.nginx.signal(rustix::process::Signal::HUP);
    wait_until("there is another worker", || firewall.worker() != worker);
    wait_until("the worker before is gone", || !Path::new(&format!("/proc/{worker}")).exists());
    assert_eq!(firewall.ask(b"/answer?<script>", b"test"), FORBIDDEN);
    assert_eq!(firewall.ask(b"/answer", b"test"), 200);
}

#[test]
fn a_worker_survives_200000_requests_while_rules_change() {
    let Some(firewall) = Firewall::start(Bench::ring3()) else { return };
    const CLIENTS: usize = 4;
    const BATCHES: usize = 1000;
    const BATCH: usize = 50;
    let (worker, port) = (firewall.worker(), firewall.port);
    let targets =
        ["/answer?q=red+shoes", "/answer?q=%3Cscript%3e", "/a.txt?name=o%27neill", "/a.txt?x='+or+1=1", "/answer"];
    let wanted = [200, FORBIDDEN, 200, FORBIDDEN, 200];
    let request = |at: usize| format!("GET {} HTTP/1.1\r\nHost: x\r\nUser-Agent: test\r\n\r\n", targets[at % 5]);
    let batch: String = (0..BATCH).map(request).collect();
    let changes = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = Connection::to(port);
                    for _ in 0..BATCHES {
                        connection.send(batch.as_bytes());
                        for at in 0..BATCH {
                            assert_eq!(connection.answer(true).0, wanted[at % 5], "{}", targets[at % 5]);
                        }
                    }
                })
            })
            .collect();
        let mut changes = 0;
        while !clients.iter().all(|client| client.is_finished()) {
            assert!(firewall.rules(&["add", "some other word"]).0);
            assert!(firewall.rules(&["remove", "some other word"]).0);
            changes += 2;
        }
        let ended: Vec<_> = clients.into_iter().map(|client| client.join().is_ok()).collect();
        assert_eq!(ended, [true; CLIENTS]);
        changes
    });
    assert!(changes >= 2);
    assert_eq!(firewall.worker(), worker, "a worker has ended, and nginx has begun another");
    assert_eq!(firewall.seen(), ((CLIENTS * BATCHES * BATCH) as u64, (CLIENTS * BATCHES * BATCH * 2 / 5) as u64));
}
