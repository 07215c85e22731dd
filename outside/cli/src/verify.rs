//! `ring3 verify`: what the verifier says of the programs in an object file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use ring3_btf::KERNEL_BTF;
use ring3_judge::{Judge, PolicySet};
use ring3_object::Program;
use ring3_server::realm::possible_cpus;
use ring3_uapi::bpf::prog_type;
use ring3_verifier::{Policy, Report, Statistics, Verified, verify};
use serde_json::{Value, json};

use crate::input;
use crate::show::write_out;

/// `ring3 verify`
#[derive(Debug, Args)]
pub(crate) struct VerifyOptions {
    /// The object file (ELF)
    file: PathBuf,
    /// Verify only this program
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Take the kernel's types (BTF) from this file, not from the running kernel
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Judge programs as for targets: with the helpers of ring3's agent, and without kernel objects
    #[arg(long)]
    targets: bool,
    /// Print the verifier's whole log
    #[arg(short, long)]
    verbose: bool,
    /// Print the verdicts as JSON
    #[arg(long)]
    json: bool,
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
pub(crate) fn run(options: &VerifyOptions) -> Result<bool, String> {
    let bytes = input::read(&options.file)?;
    let kernel = input::kernel(options.btf.as_deref().unwrap_or(Path::new(KERNEL_BTF)))?;
    let object = input::object(&options.file, &bytes, &kernel)?;
    if let Some(name) = &options.program
        && !object.programs.iter().any(|program| program.name == *name)
    {
        return Err(input::no_program(&options.file, &object, name));
    }
    let policies = PolicySet::new(&kernel, possible_cpus());
    let of_object = Judge::new(&policies, &object);
    let programs = object.programs.iter();
    let judged: Vec<Judged> = programs
        .filter(|program| options.program.as_ref().is_none_or(|name| program.name == *name))
        .map(|program| judge(&of_object, program, options))
        .collect();
    let text = if options.json { format!("{:#}\n", as_json(&judged, options)) } else { as_text(&judged, options) };
    write_out(&text)?;
    Ok(judged.iter().all(|program| program.verdict.is_ok()))
}

/// A program's verdict, with the log that is wanted.
fn judge(judge: &Judge<'_>, program: &Program, options: &VerifyOptions) -> Judged {
    let policy = if options.targets { Policy::targets(program.prog_type) } else { judge.policy(program) };
    judge.ask(program, policy, |input| {
        let begun = Instant::now();
        let mut verdict = verify(input);
        let usec = begun.elapsed().as_micros();
        if verdict.is_err() || options.verbose {
            input.log_level = if options.verbose { 2 } else { 1 };
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

fn as_json(judged: &[Judged], options: &VerifyOptions) -> Value {
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
        if options.verbose {
            row["log"] = program.log().into();
        }
        row
    });
    json!({ "programs": programs.collect::<Vec<_>>() })
}

fn as_text(judged: &[Judged], options: &VerifyOptions) -> String {
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
        if program.verdict.is_err() && !options.verbose {
            // The end of the path that led there.
            const LINES: usize = 16;
            let lines: Vec<&str> = program.log().lines().collect();
            lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| out += &format!("    {line}\n"));
        }
        if options.verbose {
            program.log().lines().for_each(|line| out += &format!("    {line}\n"));
        }
    }
    let refused = judged.iter().filter(|program| program.verdict.is_err()).count();
    out += &format!("{} programs, {} accepted, {refused} refused\n", judged.len(), judged.len() - refused);
    out
}
