//! The HTTP server that scrapers ask: each connection has a thread, a deadline and one answer.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::exporter::Exporter;
use crate::text;

/// A request must have come, and an answer gone, within this time.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Headers of a request at most.
const HEADERS_MAX: usize = 64;
/// Connections at a time at most. Others are told to come again.
const CONNECTIONS_MAX: usize = 128;
/// When no connection can be taken (no descriptors are left), the next try is after this time.
const RETRY: Duration = Duration::from_millis(100);

/// What is where.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The metrics.
    pub metrics: String,
}

/// Answers scrapers until the process ends.
pub fn serve(listener: &TcpListener, exporter: &Arc<Exporter>, paths: &Paths) {
    let busy = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(RETRY);
            continue;
        };
        let turn = Turn::take(&busy);
        let (exporter, paths) = (Arc::clone(exporter), paths.clone());
        let answer = move || {
            // (A client that has gone needs no answer.)
            let _ = if turn.is_free { answer(&stream, &exporter, &paths) } else { refuse(&stream) };
        };
        if std::thread::Builder::new().name("scrape".into()).spawn(answer).is_err() {
            std::thread::sleep(RETRY);
        }
    }
}

/// A connection's place among those at a time.
struct Turn {
    busy: Arc<AtomicUsize>,
    is_free: bool,
}

impl Turn {
    fn take(busy: &Arc<AtomicUsize>) -> Turn {
        let before = busy.fetch_add(1, Ordering::Relaxed);
        Turn { busy: Arc::clone(busy), is_free: before < CONNECTIONS_MAX }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn refuse(stream: &TcpStream) -> io::Result<()> {
    stream.set_write_timeout(Some(RETRY))?;
    respond(stream, "503 Service Unavailable", "text/plain", "too many connections\n", true)
}

/// What a request asks for.
enum Asked {
    Get(String),
    Head(String),
    Other,
}

fn answer(stream: &TcpStream, exporter: &Exporter, paths: &Paths) -> io::Result<()> {
    let plain = "text/plain; charset=utf-8";
    let (path, with_body) = match read_request(stream)? {
        Ok(Asked::Get(path)) => (path, true),
        Ok(Asked::Head(path)) => (path, false),
        Ok(Asked::Other) => return respond(stream, "405 Method Not Allowed", plain, "only GET and HEAD\n", true),
        Err(status) => return respond(stream, status, plain, &format!("{status}\n"), true),
    };
    let path = path.split('?').next().unwrap_or_default();
    if path == paths.metrics {
        return match exporter.gather() {
            Ok(families) => respond(stream, "200 OK", text::CONTENT_TYPE, &text::write(&families), with_body),
            Err(why) => {
                let why = format!("{why}\nHas the ring3 server ended? Its log (server.log) says why.\n");
                respond(stream, "500 Internal Server Error", plain, &why, with_body)
            }
        };
    }
    match path {
        "/" => {
            let page = format!(
                "<html><head><title>ring3 export</title></head><body><h1>ring3 export</h1>\
                 <p><a href=\"{}\">Metrics</a></p></body></html>\n",
                paths.metrics
            );
            respond(stream, "200 OK", "text/html; charset=utf-8", &page, with_body)
        }
        "/healthz" => respond(stream, "200 OK", plain, "ok\n", with_body),
        _ => respond(stream, "404 Not Found", plain, &format!("metrics are at {}\n", paths.metrics), with_body),
    }
}

/// Reads a request's head; the error within is the status to answer with.
fn read_request(mut stream: &TcpStream) -> io::Result<Result<Asked, &'static str>> {
    let deadline = Instant::now() + REQUEST_WITHIN;
    let mut head = Vec::with_capacity(1024);
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.unwrap_or_default().to_owned();
                return Ok(Ok(match request.method {
                    Some("GET") => Asked::Get(path),
                    Some("HEAD") => Asked::Head(path),
                    _ => Asked::Other,
                }));
            }
            Ok(httparse::Status::Partial) => {}
            Err(httparse::Error::TooManyHeaders) => return Ok(Err("431 Request Header Fields Too Large")),
            Err(_) => return Ok(Err("400 Bad Request")),
        }
        if head.len() >= HEAD_BYTES_MAX {
            return Ok(Err("431 Request Header Fields Too Large"));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err("408 Request Timeout"));
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 4096];
        match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => head.extend_from_slice(&part[..bytes]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(Err("408 Request Timeout"));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn respond(mut stream: &TcpStream, status: &str, kind: &str, body: &str, with_body: bool) -> io::Result<()> {
    let length = body.len();
    let mut whole =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    if with_body {
        whole.push_str(body);
    }
    let deadline = Instant::now() + ANSWER_WITHIN;
    let mut rest = whole.as_bytes();
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => rest = &rest[bytes..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // What the client has sent and nobody has read would reset the connection, and the answer with it.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(RETRY))?;
    let mut part = [0; 4096];
    for _ in 0..HEADERS_MAX {
        if !stream.read(&mut part).is_ok_and(|bytes| bytes > 0) {
            break;
        }
    }
    Ok(())
}
