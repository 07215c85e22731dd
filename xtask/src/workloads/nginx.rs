//! nginx: with TLS, what it receives and sends is copied; without, its system calls are counted.

use std::process::Command;

use super::load::Load;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, library, words};
use crate::bench::output;
use crate::web_server;

pub(super) const FAMILY: Family = Family { name: "nginx", needs, prepare, workloads };

/// Sizes of replies, in KB.
const SIZES: [usize; 3] = [1, 16, 256];
/// The largest record of TLS, which is the most that one `SSL_write` of nginx has, in KB.
const RECORD: usize = 16;

fn needs() -> Vec<Need> {
    vec![
        Need::new("openssl", "openssl"),
        Need::new("clang", "clang"),
        Need::new("bpftool", "bpftool"),
        Need::new("/usr/sbin/syscount", "libbpf-tools"),
    ]
}

fn prepare(place: &Place) -> Result<(), String> {
    place.packages.unpack()?;
    crate::run("make", &["-s", "-C", "bench/tls", &format!("OUT={}", place.build.display())])?;
    place.copy(&library("libssl.so.3")?, "lib/libssl.so.3")?;
    for size in SIZES {
        place.write(&format!("{size}k"), "x".repeat(size << 10))?;
    }
    make_certificate(place)
}

/// `key.pem` and `certificate.pem`, for localhost.
pub(super) fn make_certificate(place: &Place) -> Result<(), String> {
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "30",
        "-batch",
    ]);
    openssl.args(["-keyout", "key.pem", "-out", "certificate.pem"]).current_dir(&place.directory);
    output(&mut openssl).map(|_| ())
}

fn workloads() -> Vec<Workload> {
    let tls = [1, 2].into_iter().flat_map(|workers| SIZES.map(|size| tls(size, workers)));
    // The case of "Extending Applications Safely and Efficiently" (OSDI 2025): syscount counts the calls of all
    // processes, or of another one.
    let counted = plain("nginx-syscount", "", true);
    let another = plain("nginx-syscount-other", "--pid={BYSTANDER}", false);
    tls.chain([counted, another]).collect()
}

fn victim() -> Vec<String> {
    words("env LD_LIBRARY_PATH={DIR}/lib {NGINX} -p {DIR} -e stderr -c {DIR}/nginx.conf")
}

fn configuration(workers: u32, ssl: &str, certificate: &str) -> String {
    let server = format!("  server {{ listen 127.0.0.1:{{PORT}}{ssl};{certificate} root {{DIR}}; }}\n");
    web_server::configuration("{DIR}", workers, "", &server)
}

/// As sslsniff: the texts of `SSL_read` and `SSL_write` go to a perf buffer.
fn tls(size: usize, workers: u32) -> Workload {
    let certificate = " ssl_certificate {DIR}/certificate.pem; ssl_certificate_key {DIR}/key.pem;";
    // One text is read and the answer is written: with its head, in so many records at most.
    let most = (1 + size / RECORD + 2) as f64;
    Workload {
        name: format!("nginx-tls-{size}k-{workers}w"),
        unit: "request",
        files: vec![("nginx.conf", configuration(workers, " ssl", certificate))],
        victim: victim(),
        seen: Seen::ByFile,
        is_pinned: workers == 1,
        load: Load::Wrk { address: format!("https://127.0.0.1:{{PORT}}/{size}k"), connections: 50 },
        tool: Tool::built("tls_tool", "-1 {DIR}/lib/libssl.so.3"),
        events: 2.0..=most,
        goals: Goals { lost: Some(15.0), cpu_added: Some(7.0) },
    }
}

fn plain(name: &str, options: &str, is_counted: bool) -> Workload {
    Workload {
        name: name.to_owned(),
        unit: "request",
        files: vec![("nginx.conf", configuration(1, "", ""))],
        victim: victim(),
        seen: if is_counted { Seen::FromStart } else { Seen::Never },
        is_pinned: true,
        load: Load::Wrk { address: "http://127.0.0.1:{PORT}/1k".to_owned(), connections: 100 },
        tool: Tool::listing("syscount", options, "Tracing", Events::Counts),
        // (The process that waits has a few calls, whatever nginx does.)
        events: if is_counted { 1.0..=50.0 } else { 1e-6..=1e-3 },
        goals: Goals { lost: Some(2.0), cpu_added: None },
    }
}
