//! `make demo`: the main job, live, in half a minute.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::root;

/// The victim's calls, per thread.
const CALLS: &str = "1000000";
const THREADS: &str = "4";
/// The tool must have attached within this time.
const WITHIN: Duration = Duration::from_secs(20);

pub(crate) fn run_line(child: &mut Child) -> Result<String, String> {
    let out = child.stdout.as_mut().ok_or("no output")?;
    let mut line = String::new();
    // One byte at a time: nothing may be read ahead.
    let mut reader = BufReader::with_capacity(1, out);
    reader.read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(line.trim().to_owned())
}

pub(crate) fn say(child: &mut Child, text: &str) -> Result<(), String> {
    let input = child.stdin.as_mut().ok_or("no input")?;
    input.write_all(text.as_bytes()).and_then(|()| input.flush()).map_err(|error| error.to_string())
}

pub(crate) fn run() -> Result<(), String> {
    crate::run("make", &["-s", "-C", "examples/malloc"])?;
    let ring3 = root().join("target/release/ring3");
    let build = root().join("examples/malloc/build");
    println!("\nThe victim: {THREADS} threads that call malloc {CALLS} times each. A process like any other.");
    let mut victim = Command::new(build.join("alloc"))
        .args([THREADS, CALLS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    run_line(&mut victim)?;
    let pid = victim.id().to_string();
    println!("\n$ ring3 load -- funclatency -p {pid} c:malloc        # Debian's binary, unchanged");
    let mut tool = Command::new(&ring3)
        .args(["load", "--", "funclatency", "-p", &pid, "c:malloc"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    wait_for_links(&ring3, &mut tool, 2)?;
    say(&mut victim, "go\n")?;
    println!("the victim says: {} calls", run_line(&mut victim)?);
    show("status", &ring3, &["status", "-v"])?;
    println!("\nCtrl-C to the tool; it prints:");
    let tool_pid = rustix::process::Pid::from_child(&tool);
    rustix::process::kill_process(tool_pid, rustix::process::Signal::INT).map_err(|error| error.to_string())?;
    let mut report = String::new();
    std::io::Read::read_to_string(tool.stdout.as_mut().ok_or("no output")?, &mut report)
        .map_err(|error| error.to_string())?;
    print!("{report}");
    tool.wait().map_err(|error| error.to_string())?;
    victim.kill().and_then(|()| victim.wait()).map_err(|error| error.to_string())?;
    show("stop", &ring3, &["stop"])?;
    let counted: u64 =
        report.lines().filter_map(|line| line.split(':').nth(1)?.split('|').next()?.trim().parse::<u64>().ok()).sum();
    println!("\nThe tool counted {counted} calls in user space: no kernel uprobe, no kernel eBPF was used.");
    Ok(())
}

/// Waits until the tool has made this many links.
fn wait_for_links(ring3: &std::path::Path, tool: &mut Child, links: usize) -> Result<(), String> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let status = Command::new(ring3).args(["status", "--json"]).output().map_err(|error| error.to_string())?;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        if status["links"].as_array().is_some_and(|made| made.len() >= links) {
            return Ok(());
        }
        if let Ok(Some(code)) = tool.try_wait() {
            return Err(format!("the tool ended before it had attached: {code}"));
        }
        if Instant::now() > deadline {
            return Err("the tool does not attach".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn show(what: &str, ring3: &std::path::Path, arguments: &[&str]) -> Result<(), String> {
    println!("\n$ ring3 {}", arguments.join(" "));
    let status = Command::new(ring3).args(arguments).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("ring3 {what} failed")) }
}
