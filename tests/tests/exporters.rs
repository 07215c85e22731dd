//! `ring3 export`: what scrapers and collectors get is what the victim did, to the last call; as root and as an ordinary user.
//!
//! `tests/programs/export` has the configurations and programs, `tests/victims/exported.c` is the victim. `*.expected` is what
//! ebpf_exporter shows of the same objects on the kernel.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use ring3_tests::{Bench, Process, WITHIN, is_root, ready, root, victim, wait_until};

/// A user without any privilege.
const ORDINARY: u32 = 65534;

fn exported() -> PathBuf {
    victim("exported", "gcc", "exported.c", &[])
}

fn marked() -> PathBuf {
    victim("marked", "gcc", "marked.c", &[])
}

/// The directory with configurations and objects.
fn configs() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let (sources, directory) = (root().join("tests/programs/export"), root().join("target/export"));
        std::fs::create_dir_all(&directory).expect("target is writable");
        for name in ["work", "calls", "marks", "events"] {
            let mut clang = Command::new("clang");
            clang.args(["-O2", "-g", "-Wall", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86", "-c"]);
            clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
            clang.arg(format!("-DVICTIM=\"{}\"", exported().display()));
            clang.arg(format!("-DMARKED=\"{}\"", marked().display()));
            clang.arg(sources.join(format!("{name}.bpf.c"))).arg("-o").arg(directory.join(format!("{name}.bpf.o")));
            let output = clang.output().expect("clang runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::copy(sources.join(format!("{name}.yaml")), directory.join(format!("{name}.yaml")))
                .expect("copied");
        }
        directory
    })
}

/// An exporter, and the program that it runs if there is one: their output is one.
struct Exporting {
    process: Process,
    address: SocketAddr,
    /// What the exporter said before it was ready.
    said: Vec<String>,
}

impl Exporting {
    fn start(bench: &Bench, names: &str, options: &[&str], program: Option<&Path>) -> Exporting {
        let mut export = bench.ring3_command(&["export", "--config.dir"]);
        export.arg(configs()).args(["--config.names", names, "--web.listen-address", "127.0.0.1:0"]).args(options);
        export.args(program.iter().flat_map(|program| [Path::new("--"), program]));
        // (What it says, it says to standard error.)
        let mut process = Process::start_joined(&export);
        let mut said = vec![];
        let address = loop {
            let line = process.line();
            if let Some((_, url)) = line.split_once("metrics at http://") {
                break url.trim_end_matches("/metrics").parse().expect("an address");
            }
            said.push(line);
        };
        if program.is_some() {
            assert_eq!(process.line(), "ready");
        }
        Exporting { process, address, said }
    }

    fn scrape(&self) -> String {
        let (status, text) = get(self.address, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK", "{text}");
        text
    }
}

fn have_done(victim: &mut Process, line: &str) {
    victim.say(line);
    assert_eq!(victim.line(), "done");
}

/// The status line and the body of an answer.
fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(WITHIN)).expect("set");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.lines().next().expect("a status").to_owned(), body.to_owned())
}

/// A sample's value; 0 if there is none.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().expect("a number"))
}

/// A text without what differs from run to run: ids of programs are left out, and CPUs are added up.
fn comparable(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for line in text.lines().filter(|line| !line.contains("id=\"") && !line.contains("build_info")) {
        let summed = ["0", "1"].iter().find_map(|cpu| Some((*cpu, line.split_once(&format!("cpu=\"{cpu}\""))?)));
        let Some((cpu, (before, behind))) = summed else {
            lines.push(line.to_owned());
            continue;
        };
        let (labels, count) = behind.rsplit_once(' ').expect("a value");
        let shown = format!("{before}cpu=\"all\"{labels} ");
        let count: f64 = count.parse().expect("a number");
        match lines.iter_mut().find(|line| line.starts_with(&shown)) {
            Some(line) if cpu != "0" => *line = format!("{shown}{}", value(line, shown.trim_end()) + count),
            _ => lines.push(format!("{shown}{count}")),
        }
    }
    lines
}

const WORK: [&str; 4] = ["work 1 3 worker-17 5", "work 2 40 main 3", "work 2 700 other 2", "work 7 5 worker-x 1"];

/// As root, and as a user without any privilege.
fn as_each_user(test: impl Fn(&Bench)) {
    test(&Bench::ring3());
    if is_root() {
        test(&Bench::ring3_as(ORDINARY));
    } else {
        println!("SKIPPED IN PART: another user's half needs root");
    }
}

#[test]
fn every_shape_of_map_is_exported_as_ebpf_exporter_does() {
    as_each_user(|bench| {
        let mut exporting = Exporting::start(bench, "work", &[], Some(&exported()));
        assert_eq!(exporting.said, [""; 0]);
        for line in WORK {
            have_done(&mut exporting.process, line);
        }
        let text = exporting.scrape();
        let expected =
            std::fs::read_to_string(root().join("tests/programs/export/work.expected")).expect("it is there");
        assert_eq!(comparable(&text), comparable(&expected), "{text}");
        assert!(text.contains("ebpf_exporter_ebpf_program_info{config=\"work\",id=\""), "{text}");
        assert!(
            text.lines()
                .any(|line| line.starts_with("ebpf_exporter_ebpf_program_attached{id=") && line.ends_with("} 1"))
        );
        parses(&text);
        // The exporter ends with the program.
        let address = exporting.address;
        assert_eq!(exporting.process.finish().0, Some(0));
        wait_until("the exporter has ended", || TcpStream::connect(address).is_err());
    });
}

/// Whether parsers that are not ours take the text.
fn parses(text: &str) {
    const PARSE: &str = "import sys, prometheus_client.parser as p\n\
                         print(sum(len(f.samples) for f in p.text_string_to_metric_families(sys.stdin.read())))";
    let feed = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        child.stdin.take().expect("piped").write_all(text.as_bytes()).ok()?;
        child.wait_with_output().ok()
    };
    let shown = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    match feed(&python, &["-c", PARSE]) {
        Some(output) if output.status.success() => assert_eq!(shown(output.stdout).trim(), samples.to_string()),
        Some(output) if !shown(output.stderr.clone()).contains("ModuleNotFoundError") => {
            panic!("{}\n{text}", shown(output.stderr))
        }
        _ => {
            println!("SKIPPED IN PART: python3 has no prometheus_client (pip install prometheus-client; PYTHON=...)")
        }
    }
    // (It also has opinions about names, with exit code 3; those are the configuration's.)
    match feed("promtool", &["check", "metrics"]) {
        Some(output) => {
            assert!(matches!(output.status.code(), Some(0 | 3)), "{}\n{text}", shown(output.stderr));
        }
        None => println!("SKIPPED IN PART: there is no promtool (Debian: prometheus)"),
    }
}

#[test]
fn system_calls_are_counted_and_what_only_the_kernel_sees_is_refused_by_a_line() {
    as_each_user(|bench| {
        let mut exporting = Exporting::start(bench, "calls,work", &[], Some(&exported()));
        assert_eq!(exporting.said.len(), 1, "{:?}", exporting.said);
        let refusal =
            "ring3: calls: program on_read is not loaded: SEC(\"kprobe/vfs_read\") is an event of the kernel's own";
        assert!(exporting.said[0].starts_with(refusal), "{:?}", exporting.said);
        let before = exporting.scrape();
        have_done(&mut exporting.process, "calls 1000");
        let after = exporting.scrape();
        for sample in [
            "syscalls_total{syscall=\"getppid\"}",
            "syscalls_total{syscall=\"close\"}",
            "syscall_errors_total{errno=\"EBADF\"}",
        ] {
            let sample = format!("ebpf_exporter_{sample}");
            assert_eq!(value(&after, &sample) - value(&before, &sample), 1000.0, "{sample}\n{after}");
        }
        let closes =
            after.lines().find(|line| line.starts_with("ebpf_exporter_closes_total{cgroup=\"/")).expect("a path");
        assert!(closes.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()) >= Some(1000.0), "{closes}");
        let refused =
            "ebpf_exporter_ebpf_program_refused{config=\"calls\",program=\"on_read\",section=\"kprobe/vfs_read\"}";
        assert_eq!(value(&after, refused), 1.0, "{after}");
        assert_eq!(value(&after, "ebpf_exporter_enabled_configs{name=\"calls\"}"), 1.0);
        assert_eq!(value(&after, "ebpf_exporter_decoder_errors_total{config=\"calls\"}"), 0.0);
        parses(&after);
    });
}

#[test]
fn static_probes_are_exported_with_their_arguments() {
    as_each_user(|bench| {
        let mut exporting = Exporting::start(bench, "marks", &[], Some(&marked()));
        for (line, answer) in [("guarded 5", "5"), ("shared 4", "8")] {
            exporting.process.say(line);
            assert_eq!(exporting.process.line(), answer);
        }
        let text = exporting.scrape();
        let guarded = "guarded_total{byte=\"200\",constant=\"5\",small=\"fdffffffffffffff\",third=\"1099511627776\"}";
        for (sample, expected) in [
            (guarded, 5.0),
            ("shared_total{value=\"1\"}", 1.0),
            ("shared_total{value=\"3\"}", 1.0),
            ("shared_total{value=\"1000\"}", 2.0),
            ("guarded_values_bucket{le=\"0\"}", 1.0),
            ("guarded_values_bucket{le=\"3\"}", 4.0),
            ("guarded_values_count", 4.0),
        ] {
            assert_eq!(value(&text, &format!("ebpf_exporter_{sample}")), expected, "{sample}\n{text}");
        }
    });
}

/// What a collector was sent: paths and bodies.
fn collector() -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                while let Some(sent) = request(&stream) {
                    if sender.send(sent).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (url, receiver)
}

/// A request of a connection: its path and body. It is answered.
fn request(mut stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut bytes, mut kind) = (String::new(), 0, String::new());
    reader.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => bytes = value.parse().ok()?,
            Some(("content-type", value)) => kind = value.to_owned(),
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(kind, "application/x-protobuf");
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n").ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    Some((path, body))
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    of.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

/// The last value of `events_total` by name, and all spans with their service.
fn collected(sent: &[(String, Vec<u8>)]) -> (BTreeMap<String, f64>, Vec<(String, Span)>) {
    let (mut counts, mut spans) = (BTreeMap::new(), vec![]);
    for (path, body) in sent {
        if path == "/v1/traces" {
            let request = ExportTraceServiceRequest::decode(&body[..]).expect("as the protocol has it");
            for of_service in request.resource_spans {
                let service =
                    attributes(&of_service.resource.expect("a resource").attributes)["service.name"].clone();
                let all = of_service.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.extend(all.map(|span| (service.clone(), span)));
            }
            continue;
        }
        assert_eq!(path, "/v1/metrics");
        let request = ExportMetricsServiceRequest::decode(&body[..]).expect("as the protocol has it");
        let metrics = request.resource_metrics.iter().flat_map(|one| &one.scope_metrics).flat_map(|one| &one.metrics);
        for metric in metrics.filter(|metric| metric.name == "ebpf_exporter_events_total") {
            let Some(metric::Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
            assert!(sum.is_monotonic);
            for point in &sum.data_points {
                let Some(number_data_point::Value::AsDouble(count)) = point.value else { panic!("{point:?}") };
                assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano <= point.time_unix_nano);
                counts.insert(attributes(&point.attributes)["name"].clone(), count);
            }
        }
    }
    (counts, spans)
}

#[test]
fn records_are_counted_and_spans_and_metrics_reach_a_collector() {
    as_each_user(|bench| {
        let (url, receiver) = collector();
        let options = ["--otlp", &url, "--otlp.interval", "1"];
        let mut exporting = Exporting::start(bench, "events", &options, Some(&exported()));
        for line in ["work 1 300 worker-17 5", "work 2 40 main 3", "work 0 9 none 1"] {
            have_done(&mut exporting.process, line);
        }
        let text = exporting.scrape();
        assert_eq!(value(&text, "ebpf_exporter_events_total{kind=\"1\",name=\"worker-17\"}"), 5.0, "{text}");
        assert_eq!(value(&text, "ebpf_exporter_lost_records_total{config=\"events\",map=\"events_total\"}"), 0.0);

        let mut sent = vec![];
        wait_until("all spans have come", || {
            sent.extend(receiver.try_iter());
            collected(&sent).1.len() == 9
        });
        // What was done last is sent when the program ends.
        have_done(&mut exporting.process, "work 2 41 last 2");
        assert_eq!(exporting.process.finish().0, Some(0));
        wait_until("the last ones have come", || {
            sent.extend(receiver.recv_timeout(Duration::from_millis(10)));
            collected(&sent).1.len() == 11 && collected(&sent).0.contains_key("last")
        });
        let (counts, spans) = collected(&sent);
        let expected = [("last", 2.0), ("main", 3.0), ("none", 1.0), ("worker-17", 5.0)];
        assert_eq!(counts.iter().map(|(name, count)| (name.as_str(), *count)).collect::<Vec<_>>(), expected);
        check_spans(&spans);
    });
}

fn check_spans(spans: &[(String, Span)]) {
    let named = |name: &str| spans.iter().filter(|(_, span)| span.name == name).collect::<Vec<_>>();
    assert_eq!((named("worker-17").len(), named("main").len(), named("last").len()), (5, 3, 2));
    let (service, span) = named("worker-17")[0];
    assert_eq!(service, "worker");
    assert_eq!((span.trace_id[0], span.trace_id.len()), (1, 16));
    assert_eq!(span.parent_span_id, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(span.span_id, 300u64.to_ne_bytes());
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 300);
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    assert!(now - span.start_time_unix_nano < WITHIN.as_nanos() as u64, "{span:?}");
    let told = attributes(&span.attributes);
    assert_eq!(
        told.into_iter().collect::<Vec<_>>(),
        [("ebpf_exporter.config".to_owned(), "events".to_owned()), ("kind".to_owned(), "1".to_owned())]
    );
    // A span without a trace begins one.
    let (_, alone) = named("none")[0];
    assert!(alone.parent_span_id.is_empty() && alone.trace_id.iter().any(|byte| *byte != 0), "{alone:?}");
}

#[test]
fn bad_clients_do_not_stop_scrapes_while_the_victim_works() {
    const ROUNDS: usize = 50;
    const SCRAPERS: usize = 4;
    let bench = Bench::ring3();
    let mut exporting = Exporting::start(&bench, "work", &[], Some(&exported()));
    let address = exporting.address;
    // Some say nothing, some say half, some say what is no HTTP, some go away with their answer unread.
    let silent: Vec<TcpStream> = (0..32).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    let mut half: Vec<TcpStream> = (0..32).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    for stream in &mut half {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHo").expect("sent");
    }
    for garbage in [&b"\x16\x03\x01\0\xff\0\xff\r\n\r\n"[..], b"GET\r\n\r\n", b"\r\n\r\n\0\0\0", &[b'A'; 40_000]] {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let _ = stream.write_all(garbage);
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", answer.escape_ascii());
    }
    for _ in 0..16 {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
    }
    let last = Mutex::new(0.0);
    std::thread::scope(|scope| {
        for _ in 0..SCRAPERS {
            scope.spawn(|| {
                let mut before = 0.0;
                for _ in 0..ROUNDS {
                    let (status, text) = get(address, "/metrics");
                    assert_eq!(status, "HTTP/1.1 200 OK");
                    let now = value(&text, "ebpf_exporter_work_runs_total");
                    assert!(now >= before, "counters grow: {before}, then {now}");
                    before = now;
                }
                let mut last = last.lock().expect("no scraper has failed");
                *last = before.max(*last);
            });
        }
        for _ in 0..ROUNDS {
            have_done(&mut exporting.process, "work 1 3 worker-1 2000");
        }
    });
    assert!(*last.lock().expect("no scraper has failed") > 0.0);
    let total = value(&exporting.scrape(), "ebpf_exporter_work_runs_total");
    assert_eq!(total, 2000.0 * ROUNDS as f64);
    for (path, status) in [("/", "200 OK"), ("/healthz", "200 OK"), ("/nothing", "404 Not Found")] {
        assert_eq!(get(address, path).0, format!("HTTP/1.1 {status}"));
    }
    drop((silent, half));
}

#[test]
fn running_processes_are_exported_by_their_id_by_the_probed_file_or_all() {
    as_each_user(|bench| {
        for option in ["--pid", "", "--all"] {
            // (Root's would take all that other tests have begun.)
            if option == "--all" && !bench.directory().metadata().is_ok_and(|meta| meta.uid() == ORDINARY) {
                continue;
            }
            let mut victim = ready(&mut bench.command(exported()));
            let (pid, all) = (victim.pid(), option == "--all");
            let shown = pid.to_string();
            let options =
                if option == "--pid" { vec!["--pid", &shown] } else { Vec::from_iter(all.then_some("--all")) };
            let mut exporting = Exporting::start(bench, "work,calls", &options, None);
            wait_until("the process is a target", || {
                let status = bench.status();
                status["targets"].as_array().is_some_and(|rows| rows.iter().any(|row| row["pid"] == pid))
            });
            let before = exporting.scrape();
            have_done(&mut victim, "work 1 3 only-me 1234");
            have_done(&mut victim, "calls 77");
            let after = exporting.scrape();
            for (sample, expected) in
                [("work_total{kind=\"small\"}", 1234.0), ("syscalls_total{syscall=\"getppid\"}", 77.0)]
            {
                let sample = format!("ebpf_exporter_{sample}");
                let seen = value(&after, &sample) - value(&before, &sample);
                // (Without an id, victims of other tests at the same time may be seen, too.)
                let is_right = if option == "--pid" { seen == expected } else { seen >= expected };
                assert!(is_right, "{option}: {sample}: {seen}\n{after}");
            }
            exporting.process.signal(rustix::process::Signal::TERM);
            assert_eq!(exporting.process.wait(), Some(0));
            wait_until("the probes are gone", || bench.status()["links"].as_array().is_none_or(Vec::is_empty));
        }
    });
}

#[test]
fn wrong_configurations_and_objects_are_refused_by_a_place_and_a_reason() {
    let bench = Bench::ring3();
    let directory = root().join("target/export-wrong");
    std::fs::create_dir_all(&directory).expect("target is writable");
    let refusal = |yaml: &str| {
        std::fs::write(directory.join("wrong.yaml"), yaml).expect("written");
        std::fs::copy(configs().join("work.bpf.o"), directory.join("wrong.bpf.o")).expect("copied");
        let directory = directory.to_str().expect("a plain name");
        let (code, out, error) = bench.run(&["export", "--config.dir", directory, "--config.names", "wrong"]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{error}");
        error
    };
    let counter = |name: &str, labels: &str| {
        format!("metrics:\n  counters:\n    - name: {name}\n      help: it\n      labels: [{labels}]\n")
    };
    for (yaml, expected) in [
        ("metrics:\n  gauges: []\n".to_owned(), "wrong.yaml: error: line 2 column 3: unknown field `gauges`"),
        (
            counter("work_total", "{name: a, size: 8, decoders: [{name: kaddr}]}"),
            "there is no decoder `kaddr`; the decoders are",
        ),
        (
            counter("nothing", ""),
            "wrong.bpf.o: it has no map nothing, which the configuration names; its maps are work_total,",
        ),
        (
            counter("work_total", "{name: a, size: 4, decoders: [{name: uint}]}"),
            "map work_total has keys of 8 bytes, and its labels (size and padding) have 4",
        ),
    ] {
        let error = refusal(&yaml);
        assert!(error.contains(expected), "{yaml}\n{error}");
    }
    let directory = configs().to_str().expect("a plain name");
    let strict =
        ["export", "--config.dir", directory, "--config.names", "calls", "--config.check", "--config.strict"];
    let (code, _, error) = bench.run(&strict);
    assert!(code == Some(1) && error.contains("not attached:\n  calls: program on_read is not loaded"), "{error}");
    let (code, _, error) = bench.run(&strict[..6]);
    assert!(code == Some(0) && error.contains("3 program(s) attached"), "{error}");
}
