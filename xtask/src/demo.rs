//! `make demo`: the main job, live, in half a minute.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::root;

/// The victim's calls, per thread.
const CALLS: &str = "1000000";
const THREADS: &str = "4";

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
    println!("\n$ ring3 load -- funclatency -d 4 -p {pid} c:malloc        # Debian's binary, unchanged");
    let mut tool = Command::new(&ring3)
        .args(["load", "--", "funclatency", "-d", "4", "-p", &pid, "c:malloc"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let first = run_line(&mut tool)?;
    println!("{first}");
    say(&mut victim, "go\n")?;
    println!("the victim says: {} calls", run_line(&mut victim)?);
    show("status", &ring3, &["status", "-v"])?;
    let mut rest = String::new();
    std::io::Read::read_to_string(tool.stdout.as_mut().ok_or("no output")?, &mut rest).map_err(|e| e.to_string())?;
    print!("{rest}");
    tool.wait().map_err(|error| error.to_string())?;
    let counted: u64 =
        rest.lines().filter_map(|line| line.split(':').nth(1)?.split('|').next()?.trim().parse::<u64>().ok()).sum();
    println!("the tool counted {counted} calls, in user space: no uprobe, no kernel eBPF was used.");
    victim.kill().and_then(|()| victim.wait()).map_err(|error| error.to_string())?;
    std::thread::sleep(Duration::from_millis(10));
    show("stop", &ring3, &["stop"])
}

fn show(what: &str, ring3: &std::path::Path, arguments: &[&str]) -> Result<(), String> {
    println!("\n$ ring3 {}", arguments.join(" "));
    let status = Command::new(ring3).args(arguments).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("ring3 {what} failed")) }
}
