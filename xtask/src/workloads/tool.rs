//! The tools that trace: how one begins, when it is attached, how it ends, and which events it has read and lost.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::Signal;

use super::victim::{await_some, log_end, redirect, running, signal};
use super::workload::words;

/// A tool that is interrupted and prints nothing is interrupted again after so many looks.
const LOOKS_ASKED: u32 = 500;

/// A tool, its options, and what its output means.
pub(crate) struct Tool {
    /// The program and its arguments, with places to be filled in.
    pub(crate) words: Vec<String>,
    /// The program's name as the kernel shows it.
    name: &'static str,
    /// What the line begins with that it prints when it is attached.
    ready: &'static str,
    events: Events,
}

/// Where a tool's output has the number of events that it has read.
#[derive(Clone, Copy)]
pub(crate) enum Events {
    /// The sum of what a map of bpftrace has.
    Map(&'static str),
    /// Lines that contain this.
    Lines(&'static str),
    /// The sum of second columns: `syscount`.
    Counts,
    /// The line at the end has the numbers of events read, lost and damaged: the tools of `bench`.
    Totals,
}

/// What a tool has seen.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) events: f64,
    pub(crate) lost: f64,
    pub(crate) damaged: f64,
}

impl Tool {
    /// bpftrace's script. (What `BEGIN` prints comes out when all probes are attached.)
    pub(crate) fn bpftrace(script: &str, events: Events) -> Tool {
        let script = format!("BEGIN {{ printf(\"up\\n\"); }} {script}");
        let words = ["bpftrace", "-q", "-e", &script].map(str::to_owned).into();
        Tool { words, name: "bpftrace", ready: "up", events }
    }

    /// One of Debian's libbpf-tools: options, and the beginning of the line that it prints when it is attached.
    pub(crate) fn listing(name: &'static str, options: &str, ready: &'static str, events: Events) -> Tool {
        let words = words(&format!("stdbuf -oL /usr/sbin/{name} {options}"));
        Tool { words, name, ready, events }
    }

    /// One that `bench` has.
    pub(crate) fn built(name: &'static str, options: &str) -> Tool {
        Tool { words: words(&format!("{{BUILD}}/{name} {options}")), name, ready: "attached", events: Events::Totals }
    }

    /// What the tool's output says.
    pub(crate) fn seen(&self, text: &str) -> Seen {
        let (mut events, mut lost, mut damaged) = (0.0, lost(text), 0.0);
        match self.events {
            Events::Map(name) => events = text.lines().filter_map(|line| value(line, name)).fold(0.0, |a, b| a + b),
            Events::Lines(part) => events = text.lines().filter(|line| line.contains(part)).count() as f64,
            Events::Counts => {
                let second = |line: &str| line.split_whitespace().nth(1)?.parse::<f64>().ok();
                events = text.lines().filter_map(second).fold(0.0, |a, b| a + b);
            }
            Events::Totals => {
                let three = |line: &str| -> Option<[f64; 3]> {
                    line.split(' ').map(|word| word.parse().ok()).collect::<Option<Vec<_>>>()?.try_into().ok()
                };
                if let Some(totals) = text.lines().rev().find_map(three) {
                    [events, lost, damaged] = totals;
                }
            }
        }
        Seen { events, lost, damaged }
    }
}

/// What a line of a map of bpftrace says: `@name: 1` or `@name[key]: 1`.
fn value(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let number = match rest.strip_prefix(": ") {
        Some(number) => number,
        None if rest.starts_with('[') => rest.rsplit_once("]: ")?.1,
        None => return None,
    };
    number.trim().parse().ok()
}

/// The sum of all lines that say how many events were lost: bpftrace's, and those of libbpf-tools.
fn lost(text: &str) -> f64 {
    let number = |line: &str| {
        let rest = line.strip_prefix("Lost ").or_else(|| line.strip_prefix("lost "))?;
        let (number, rest) = rest.split_once(' ')?;
        rest.starts_with("events").then(|| number.parse::<f64>().ok())?
    };
    text.lines().filter_map(number).fold(0.0, |a, b| a + b)
}

/// A tool that is attached. It is killed when it is dropped.
pub(crate) struct Attached {
    child: Child,
    log: PathBuf,
    name: &'static str,
}

impl Attached {
    /// Begins the tool's command, and waits until it is attached. Its output goes to `log`.
    pub(crate) fn start(tool: &Tool, mut command: Command, log: &Path) -> Result<Attached, String> {
        redirect(&mut command, log)?;
        let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut attached = Attached { child, log: log.to_owned(), name: tool.name };
        let is_ready = || {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let ended = attached.child.try_wait().ok().flatten();
            let ready = text.split_inclusive('\n').any(|line| line.starts_with(tool.ready) && line.ends_with('\n'));
            if ready { Some(Ok(())) } else { ended.map(Err) }
        };
        match await_some("the tool to be attached", is_ready) {
            Ok(Ok(())) => Ok(attached),
            Ok(Err(status)) => Err(format!("the tool ended, {status}: {}", log_end(log))),
            Err(why) => Err(format!("{why}: {}", log_end(log))),
        }
    }

    /// Interrupts the tool: all that it has printed.
    pub(crate) fn finish(mut self) -> Result<String, String> {
        let printed = || std::fs::metadata(&self.log).map_or(0, |log| log.len());
        let (before, mut looks) = (printed(), 0u32);
        let status = await_some("the tool's end", || {
            // (bpftrace forgets a signal that comes while it does not wait for events, and a second one kills it.)
            if looks == 0 || looks.is_multiple_of(LOOKS_ASKED) && printed() == before {
                running(self.child.id(), self.name).inspect(|pid| signal(*pid, Signal::INT));
            }
            looks += 1;
            self.child.try_wait().ok().flatten()
        })?;
        if !status.success() {
            return Err(format!("the tool failed, {status}: {}", log_end(&self.log)));
        }
        let text = std::fs::read(&self.log).map_err(|error| format!("{}: {error}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{Events, Seen, Tool};

    fn seen(events: Events, text: &str) -> Seen {
        Tool::bpftrace("", events).seen(text)
    }

    #[test]
    fn values_of_a_map_are_added_up() {
        let text = "up\nLost 7 events\n\n@m: 5\n@n[redis-server, 1]: 20\n@n: 3\n@not: 4\nlost 2 events on CPU #1\n";
        assert_eq!(seen(Events::Map("@n"), text), Seen { events: 23.0, lost: 9.0, damaged: 0.0 });
    }

    #[test]
    fn lines_are_counted() {
        let text = "up\n12 SELECT 1\n13 BEGIN\n14 SELECT 2\n";
        assert_eq!(seen(Events::Lines("SELECT"), text).events, 2.0);
    }

    #[test]
    fn counts_are_second_columns() {
        let text = "Tracing syscalls, printing top 10... Ctrl+C to quit.\n[10:00:00]\nSYSCALL   COUNT\nread   30\nfutex   12\n";
        assert_eq!(seen(Events::Counts, text).events, 42.0);
    }

    #[test]
    fn totals_are_in_the_last_line() {
        let text = "attached\n100 3 1\n";
        assert_eq!(seen(Events::Totals, text), Seen { events: 100.0, lost: 3.0, damaged: 1.0 });
    }
}
