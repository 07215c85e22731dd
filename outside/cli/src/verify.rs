//! `ring3 verify`: what the verifier says of the programs in an object file.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ring3_judge::{Court, Judge};
use ring3_object::{Kernel, Object, Program, Settings};
use ring3_server::realm::possible_cpus;
use ring3_uapi::bpf::prog_type;
use ring3_verifier::{Policy, Report, Statistics, Verified, verify};
use serde_json::{Value, json};

use crate::show::write_out;

/// The running kernel's types.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) file: PathBuf,
    pub(crate) program: Option<String>,
    pub(crate) btf: Option<PathBuf>,
    pub(crate) targets: bool,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
}

/// A program and its verdict.
struct Judged {
    name: String,
    section: String,
    kind: u32,
    insns: usize,
    usec: u128,
    verdict: Result<Verified, Report>,
}

/// Prints the verdicts; false if a program was refused.
pub(crate) fn run(wanted: &Wanted) -> Result<bool, String> {
    let bytes = read(&wanted.file)?;
    let btf_file = wanted.btf.as_deref().unwrap_or(Path::new(KERNEL_BTF));
    let types = read(btf_file).map_err(|why| format!("{why}; name a kernel's types with --btf FILE"))?;
    let kernel = Kernel::parse(types).map_err(|error| format!("{}: {error}", btf_file.display()))?;
    let object =
        Object::load(&bytes, &kernel, &settings()).map_err(|error| format!("{}: {error}", wanted.file.display()))?;
    if let Some(name) = &wanted.program
        && !object.programs.iter().any(|program| program.name == *name)
    {
        let names: Vec<&str> = object.programs.iter().map(|program| program.name.as_str()).collect();
        return Err(format!("{} has no program {name}; it has {}", wanted.file.display(), names.join(", ")));
    }
    let court = Court::new(&kernel, possible_cpus());
    let of_object = Judge::new(&court, &object);
    let programs = object.programs.iter();
    let judged: Vec<Judged> = programs
        .filter(|program| wanted.program.as_ref().is_none_or(|name| program.name == *name))
        .map(|program| judge(&of_object, program, wanted))
        .collect();
    let text = if wanted.json { format!("{:#}\n", as_json(&judged, wanted)) } else { as_text(&judged, wanted) };
    write_out(&text)?;
    Ok(judged.iter().all(|program| program.verdict.is_ok()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What programs can ask of this machine's kernel.
fn settings() -> Settings {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open("/proc/config.gz") {
        let _ = flate2::read::GzDecoder::new(file).read_to_string(&mut text);
    }
    Settings::of_kernel(&release, &text)
}

/// A program's verdict, with the log that is wanted.
fn judge(judge: &Judge<'_>, program: &Program, wanted: &Wanted) -> Judged {
    let policy = if wanted.targets { Policy::targets(program.prog_type) } else { judge.policy(program) };
    judge.ask(program, policy, |input| {
        let begun = Instant::now();
        let mut verdict = verify(input);
        let usec = begun.elapsed().as_micros();
        if verdict.is_err() || wanted.verbose {
            input.log_level = if wanted.verbose { 2 } else { 1 };
            verdict = verify(input);
        }
        let (name, section) = (program.name.clone(), program.section.clone());
        Judged { name, section, kind: program.prog_type, insns: input.insns.len(), usec, verdict }
    })
}

impl Judged {
    fn statistics(&self) -> Statistics {
        match &self.verdict {
            Ok(verified) => verified.statistics(),
            Err(report) => report.statistics,
        }
    }

    fn log(&self) -> &str {
        match &self.verdict {
            Ok(verified) => verified.log(),
            Err(report) => &report.log,
        }
    }

    fn kind(&self) -> String {
        let name = prog_type::name(self.kind).map(|name| name.trim_start_matches("BPF_PROG_TYPE_").to_lowercase());
        name.unwrap_or_else(|| self.kind.to_string())
    }
}

fn as_json(judged: &[Judged], wanted: &Wanted) -> Value {
    let programs = judged.iter().map(|program| {
        let refused = program.verdict.as_ref().err();
        let mut row = json!({
            "name": program.name,
            "section": program.section,
            "type": program.kind(),
            "accepted": refused.is_none(),
            "reason": refused.map(|report| report.message.clone()),
            "advice": refused.and_then(Report::advice),
            "errno": refused.map(|report| report.errno.name()),
            "insn": refused.and_then(|report| report.insn),
            "insns": program.insns,
            "processed": program.statistics().processed,
            "states": program.statistics().states,
            "usec": program.usec as u64,
        });
        if wanted.verbose {
            row["log"] = program.log().into();
        }
        row
    });
    json!({ "programs": programs.collect::<Vec<_>>() })
}

fn as_text(judged: &[Judged], wanted: &Wanted) -> String {
    let mut out = String::new();
    for program in judged {
        let Statistics { processed, states, .. } = program.statistics();
        let verdict = if program.verdict.is_ok() { "accepted" } else { "REFUSED" };
        out += &format!(
            "{verdict}  {}  ({}, {})  {} insns, {processed} processed, {states} states, {} us\n",
            program.name,
            program.section,
            program.kind(),
            program.insns,
            program.usec
        );
        if program.verdict.is_err() && !wanted.verbose {
            // The end of the way that led there.
            const LINES: usize = 16;
            let lines: Vec<&str> = program.log().lines().collect();
            lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| out += &format!("    {line}\n"));
        }
        if wanted.verbose {
            program.log().lines().for_each(|line| out += &format!("    {line}\n"));
        }
    }
    let refused = judged.iter().filter(|program| program.verdict.is_err()).count();
    out += &format!("{} programs, {} accepted, {refused} refused\n", judged.len(), judged.len() - refused);
    out
}
