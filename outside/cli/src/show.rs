//! Printing the server's answers.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use ring3_event::is_unseen;
use ring3_server::control::{Connection, Request};
use serde_json::Value;

/// How often new trace lines are asked for.
const TRACE_EVERY: Duration = Duration::from_millis(50);

/// Writes to standard output; a closed pipe is a quiet end.
pub(crate) fn write_out(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

pub(crate) fn json(status: &Value) -> Result<(), String> {
    write_out(&format!("{status:#}\n"))
}

pub(crate) fn attached(target: &Value) -> Result<(), String> {
    let sites = target["sites"].as_array().map_or(0, |sites| sites.iter().filter(|s| s["kind"] == "probe").count());
    let found = if sites == 0 { "ready, no probe yet".to_owned() } else { format!("{sites} probe site(s)") };
    write_out(&format!("attached to {} ({}): {found}\n", target["pid"], text(&target["comm"])))?;
    for line in refusals(target) {
        say!("ring3: {line}");
    }
    let children = target["children"].as_array().into_iter().flatten();
    children.filter(|child| child["why"].is_null()).try_for_each(attached)?;
    children_not_attached(target);
    Ok(())
}

/// Says which children that a process had when it was attached were not.
pub(crate) fn children_not_attached(target: &Value) {
    for child in target["children"].as_array().into_iter().flatten().filter(|child| !child["why"].is_null()) {
        say!("ring3: its child {} is not attached: {}", child["pid"], text(&child["why"]));
    }
}

/// What could not be applied in a target, one line for each reason.
fn refusals(target: &Value) -> Vec<String> {
    let mut links: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for refusal in target["refused"].as_array().into_iter().flatten() {
        links.entry(text(&refusal[1])).or_default().push(refusal[0].to_string());
    }
    links.into_iter().map(|(why, links)| format!("not applied: link {}: {why}", links.join(", "))).collect()
}

/// `ring3 status`.
pub(crate) fn status(status: &Value, verbose: bool) -> Result<(), String> {
    let mut out = String::new();
    let server = &status["server"];
    let _ = writeln!(
        out,
        "server {} (version {}, up {} s, programs {} bytes, agent {} bytes)",
        server["pid"],
        text(&server["version"]),
        server["uptime_s"],
        server["text_bytes"],
        server["agent_bytes"],
    );
    for row in server["let_go"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "let go: process {} ({}): {}", row[0], text(&row[1]), text(&row[2]));
    }
    for row in server["not_traced"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "not traced: process {} ({}): {}", row[0], text(&row[1]), text(&row[2]));
    }
    for tracer in server["traced_through"].as_array().into_iter().flatten().filter(|_| verbose) {
        let _ = writeln!(out, "traced through: process {tracer}");
    }
    section(&mut out, "loaders", &status["loaders"], &["pid", "command"]);
    section(&mut out, "maps", &status["maps"], &["id", "type", "name", "key_size", "value_size", "max_entries"]);
    let columns = ["id", "type", "name", "insns", "jited_bytes", "engine", "aot", "source"];
    let shown = if verbose { &columns[..] } else { &columns[..columns.len() - 1] };
    section(&mut out, "programs", &status["programs"], shown);
    let columns = [
        "id",
        "prog_id",
        "file",
        "offset",
        "function",
        "ret",
        "tracepoint",
        "tracepoints",
        "raw_tracepoint",
        "event",
        "cpu",
        "pid",
        "cookie",
    ];
    section(&mut out, "links", &status["links"], &columns);
    section(&mut out, "pins", &status["pins"], &["path", "object", "id"]);
    targets(&mut out, &status["targets"], verbose.then(|| Programs::of(&status["programs"])));
    write_out(&out)
}

fn section(out: &mut String, title: &str, rows: &Value, columns: &[&str]) {
    let empty = vec![];
    let rows = rows.as_array().unwrap_or(&empty);
    let _ = writeln!(out, "{title}: {}", rows.len());
    for row in rows {
        let cells =
            columns.iter().filter(|name| !row[**name].is_null()).map(|name| format!("{name} {}", text(&row[*name])));
        let _ = writeln!(out, "  {}", cells.collect::<Vec<_>>().join("  "));
    }
}

fn targets(out: &mut String, targets: &Value, verbose: Option<Programs>) {
    let empty = vec![];
    let targets = targets.as_array().unwrap_or(&empty);
    let _ = writeln!(out, "targets: {}", targets.len());
    for target in targets {
        let sites = target["sites"].as_array().unwrap_or(&empty);
        let probes = sites.iter().filter(|site| site["kind"] == "probe").count();
        let sum = |name: &str| sites.iter().filter_map(|site| site[name].as_u64()).sum::<u64>();
        let leaving = if target["leaving"] == true { "  leaving" } else { "" };
        let user = target["user"].as_str().map_or(String::new(), |user| format!("  {user}"));
        let _ = writeln!(
            out,
            "  pid {}  {}{user}  probe sites {probes}  hits {}  misses {}{leaving}",
            target["pid"],
            text(&target["comm"]),
            sum("hits"),
            sum("misses"),
        );
        for row in target["overruns"].as_array().into_iter().flatten() {
            let _ = writeln!(
                out,
                "    link {} (program {}): {} runs over its budget, at most {} us",
                row["link_id"],
                row["prog_id"],
                row["runs"],
                row["worst_ns"].as_u64().unwrap_or(0).div_ceil(1000),
            );
        }
        for row in target["faulted_runs"].as_array().into_iter().flatten() {
            let (runs, last) = (&row["runs"], text(&row["last"]));
            let _ = writeln!(
                out,
                "    link {} (program {}): {runs} runs faulted, last by {last}",
                row["link_id"], row["prog_id"]
            );
        }
        if let Some(count @ 1..) = target["refused"].as_array().map(Vec::len) {
            let _ = writeln!(out, "    {count} probe(s) not applied; `ring3 status -v` says why");
        }
        if let Some(programs) = &verbose {
            verbose_target(out, target, sites, programs);
        }
    }
}

/// Calls that are not seen, and why: a few of each file, and how many more there are.
fn write_unseen_calls(out: &mut String, target: &Value) {
    const OF_FILE_MAX: usize = 3;
    let mut of_files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for left in target["syscalls_left"].as_array().into_iter().flatten().map(text) {
        // (Of others only the address is known.)
        let file = left.split_once(": ").map(|(file, _)| file).filter(|file| file.starts_with('/'));
        let file = file.unwrap_or("other code").to_owned();
        of_files.entry(file).or_default().push(left);
    }
    for (file, calls) in of_files {
        for call in calls.iter().take(OF_FILE_MAX) {
            let _ = writeln!(out, "    system call not seen: {call}");
        }
        if let Some(more @ 1..) = calls.len().checked_sub(OF_FILE_MAX) {
            let _ = writeln!(
                out,
                "    system calls not seen: {more} more of {file}; `ring3 status --json` has all (syscalls_left)"
            );
        }
    }
}

fn verbose_target(out: &mut String, target: &Value, sites: &[Value], programs: &Programs) {
    let _ = writeln!(
        out,
        "    injected in {} us, threads stopped {} us; arrivals without a thread block {}",
        target["inject_us"], target["stopped_us"], target["missed_no_block"],
    );
    let _ = writeln!(
        out,
        "    system calls: {} replaced, programs ran at {} beginnings and ends, missed {}",
        target["syscall_sites"], target["syscall_hits"][0], target["syscall_hits"][1],
    );
    if let Some(lost @ 1..) = target["requests_lost"].as_u64() {
        let _ = writeln!(out, "    requests to the server that were not answered in time: {lost}");
    }
    if let Some(how) = target["reads"].as_str() {
        let _ = writeln!(out, "    memory that programs name is read {how}");
    }
    if let Some(how) = target["isolation"].as_str() {
        let _ = writeln!(out, "    maps of its extensions are {how}");
    }
    if let Some(why) = target["sud"].as_str() {
        let _ = writeln!(
            out,
            "    system calls are caught where they are not replaced ({why}): {}, let through unseen {}",
            target["sud_calls"][0], target["sud_calls"][1],
        );
    }
    if let Some(why) = target["sud_refused"].as_str() {
        let _ = writeln!(out, "    system calls are not caught where they are not replaced: {why}");
    }
    write_unseen_calls(out, target);
    for site in sites {
        let _ = writeln!(
            out,
            "    {:#x}  {} ({})  {}  {}  entry {}  return {}  hits {}  misses {}",
            site["address"].as_u64().unwrap_or(0),
            text(&site["symbol"]),
            text(&site["module"]),
            text(&site["kind"]),
            text(&site["tactic"]),
            programs.names(&site["entry_programs"]),
            programs.names(&site["return_programs"]),
            site["hits"],
            site["misses"],
        );
    }
    for line in refusals(target) {
        let _ = writeln!(out, "    {line}");
    }
}

/// What programs are called, by id.
struct Programs(HashMap<u64, String>);

impl Programs {
    fn of(rows: &Value) -> Programs {
        let name = |row: &Value| match row["source"].as_str() {
            Some(source) => format!("{} {} ({source})", row["id"], text(&row["name"])),
            None => format!("{} {}", row["id"], text(&row["name"])),
        };
        let rows = rows.as_array().into_iter().flatten();
        Programs(rows.filter_map(|row| Some((row["id"].as_u64()?, name(row)))).collect())
    }

    /// Programs of a site, by their ids: `[4 count_malloc (malloc.bpf.c:17)]`.
    fn names(&self, ids: &Value) -> String {
        let ids = ids.as_array().into_iter().flatten();
        let names =
            ids.map(|id| id.as_u64().and_then(|id| self.0.get(&id).cloned()).unwrap_or_else(|| id.to_string()));
        format!("[{}]", names.collect::<Vec<_>>().join(", "))
    }
}

/// A JSON value without quotes around strings, on one line. (Names of processes, files and functions are whoever's choice: none of
/// it may tell the terminal what to do.)
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.replace(is_unseen, "?"))
}

/// `ring3 status --trace`: like reading the kernel's `trace_pipe`.
pub(crate) fn follow_trace(connection: &Connection) -> Result<(), String> {
    let mut from = 0;
    loop {
        let answer = connection.ask(&Request::Trace { from }, None)?;
        for line in answer["lines"].as_array().into_iter().flatten() {
            write_out(&format!("{}\n", text(line)))?;
        }
        let next = answer["next"].as_u64().unwrap_or(from);
        if next == from {
            std::thread::sleep(TRACE_EVERY);
        }
        from = next;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::write_unseen_calls;

    #[test]
    fn of_many_calls_that_are_not_seen_a_few_of_each_file_are_named() {
        let mut left: Vec<String> = (0..300).map(|at| format!("/lib/large.so: {at:#x}: no symbol")).collect();
        left.push("/lib/small.so: 0x10: no symbol".to_owned());
        let mut out = String::new();
        write_unseen_calls(&mut out, &json!({ "syscalls_left": left }));
        assert_eq!(out.lines().count(), 5, "{out}");
        assert!(out.contains("297 more of /lib/large.so") && out.contains("/lib/small.so: 0x10"), "{out}");
    }
}
