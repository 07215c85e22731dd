//! `ring3 explain`: how a probe would be written into a file's code, and why not better.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use ring3_server::realm::{Explained, explain, survey};

use crate::show::write_out;

/// `ring3 explain`
#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// A program or library (ELF)
    file: PathBuf,
    /// FUNCTION, FUNCTION+OFFSET, or an offset in the file (0x...)
    #[arg(required_unless_present = "all")]
    place: Option<String>,
    /// Where the function's returns are seen
    #[arg(long)]
    ret: bool,
    /// Count the tactics of all instructions instead
    #[arg(long, conflicts_with_all = ["place", "ret"])]
    all: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Prints the plans.
pub(crate) fn run(options: &ExplainOptions) -> Result<(), String> {
    let Some(place) = &options.place else { return count(&options.file) };
    let found = explain(&options.file, place, options.ret)?;
    if options.json {
        let text = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
        return write_out(&(text + "\n"));
    }
    let by_entry = options.ret && found.iter().all(|one| one.name == found[0].name);
    let mut out = String::new();
    if by_entry {
        out.push_str("returns are seen by a replaced return address; the entry is\n");
    }
    for one in &found {
        write(&mut out, one);
    }
    write_out(&out)
}

fn write(out: &mut String, one: &Explained) {
    let _ = writeln!(out, "{} (offset {:#x}): {}", one.name, one.offset, one.tactic);
    if let Some(why) = &one.why {
        let _ = writeln!(out, "  no plain jump: {why}");
    }
    if let Some((start, end)) = one.relay {
        let _ =
            writeln!(out, "  relay in {start:#x}..{end:#x} of the file's address space; an int3 if that is not free");
    }
    if let Some(stub) = one.one_byte {
        let sign = if stub < 0 { "-" } else { "" };
        let _ = writeln!(
            out,
            "  one-byte jump instead, if {sign}{:#x} of the file's address space is free for the stub",
            stub.unsigned_abs()
        );
    }
    for (title, lines) in [("before", &one.before), ("after", &one.after), ("stub", &one.stub)] {
        let _ = writeln!(out, "  {title}:");
        for (address, text) in lines {
            let _ = writeln!(out, "    {address:#x}: {text}");
        }
    }
}

/// Instructions by tactic.
fn count(file: &Path) -> Result<(), String> {
    let counts = survey(file)?;
    let total = |kind: usize| counts.values().map(|count| count[kind]).sum::<u64>().max(1) as f64;
    let totals = [total(0), total(1), total(2)];
    let mut out = format!("{:<12} {:>20} {:>20} {:>20}\n", "tactic", "instructions", "function entries", "returns");
    for (tactic, count) in &counts {
        let share = |kind: usize| format!("{} ({:.3} %)", count[kind], 100.0 * count[kind] as f64 / totals[kind]);
        let _ = writeln!(out, "{tactic:<12} {:>20} {:>20} {:>20}", share(0), share(1), share(2));
    }
    write_out(&out)
}
