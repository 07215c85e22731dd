//! Of a run that differs, makes the fewest probes on one function that still show it.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions};
use ring3_tests::Bench;

use super::batch::{Batch, Probe, last};

/// Numbers of the functions whose lines differ. If the victim has ended early, the one in which it did is among them.
fn changed(expected: &str, got: &str) -> Vec<u32> {
    let got: BTreeMap<&str, &str> = got.lines().filter_map(|line| line.split_once(' ')).collect();
    let differing = expected.lines().filter_map(|line| {
        let (number, hash) = line.split_once(' ')?;
        (got.get(number) != Some(&hash)).then(|| number.parse().ok())?
    });
    differing.collect()
}

/// A function and all that it leads to.
fn reached(batch: &Batch, function: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([function]);
    let mut left = vec![function];
    while let Some(next) = left.pop() {
        left.extend(batch.functions[next as usize].callees.iter().filter(|callee| found.insert(**callee)));
    }
    found
}

/// The differences between what was expected of a batch and what it printed, each with its cause.
pub(crate) fn findings(
    batch: &Batch,
    bench: &Bench,
    probes: &[Probe],
    expected: &str,
    got: &str,
    findings_max: usize,
) -> Vec<String> {
    let functions = changed(expected, got);
    let Some(first) = functions.first() else {
        return vec![format!("the same results, but it ends with: {}", last(got))];
    };
    let crashed = if got.lines().last() == expected.lines().last() { "" } else { ", and it ends early" };
    let head = format!("{} functions differ, function {first} first{crashed}", functions.len());
    let found = functions
        .iter()
        .take(findings_max)
        .map(|function| format!("{head}; function {function}:\n{}", finding(batch, bench, probes, *function)));
    found.collect()
}

fn finding(batch: &Batch, bench: &Bench, probes: &[Probe], function: u32) -> String {
    let words = ["only".to_owned(), function.to_string()];
    let expected = batch.alone(&words);
    let differs_with = |probes: &[Probe], plain: bool| batch.probed(bench, probes, plain, &words).output != expected;
    // (Plain jumps are what most probes get.)
    let plain = differs_with(probes, true);
    let differs = |probes: &[Probe]| differs_with(probes, plain);
    let reached = reached(batch, function);
    let mut few: Vec<Probe> = probes
        .iter()
        .filter(|probe| reached.contains(&batch.instructions[probe.instruction].function))
        .copied()
        .collect();
    if !differs(&few) {
        few = probes.to_vec();
        if !differs(&few) {
            return format!("the same if it is called alone\n{}", function_text(batch, function, &[]));
        }
    }
    let mut chunk = few.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < few.len() && few.len() > 1 {
            let end = few.len().min(at + chunk);
            let without = [&few[..at], &few[end..]].concat();
            if !without.is_empty() && differs(&without) {
                few = without;
            } else {
                at = end;
            }
        }
        if chunk == 1 {
            break;
        }
        chunk = chunk.div_ceil(2);
    }
    let words = ["full".to_owned(), words[0].clone(), words[1].clone()];
    let (expected, got) = (batch.alone(&words), batch.probed(bench, &few, plain, &words).output);
    let first = expected.lines().zip(got.lines()).find(|(a, b)| a != b);
    let first = first.map_or(format!("it ends with: {}", last(&got)), |(a, b)| format!("`{a}` became `{b}`"));
    let kind = if plain { "plain jumps" } else { "one-byte jumps" };
    let mut text = format!("{first}, by {kind}\n{}", tactics(batch, bench, &few));
    let shown: BTreeSet<u32> =
        few.iter().map(|probe| batch.instructions[probe.instruction].function).chain([function]).collect();
    for function in shown {
        text += &function_text(batch, function, &few);
    }
    text
}

/// What `ring3 explain` tells of probes.
pub(crate) fn tactics(batch: &Batch, bench: &Bench, probes: &[Probe]) -> String {
    let mut text = String::new();
    for probe in probes {
        let name = batch.name(*probe);
        let offset = format!("{:#x}", batch.instructions[probe.instruction].offset);
        let (_, out, errors) = bench.run(&["explain", &batch.binary.display().to_string(), &offset]);
        let head: Vec<&str> = out.lines().take_while(|line| !line.contains("before:")).collect();
        text += &format!("probe {name}: {}{}\n", head.join(";"), errors.trim_end());
    }
    text
}

/// A function's instructions, at their places in the file; `*` marks probes.
pub(crate) fn function_text(batch: &Batch, function: u32, probes: &[Probe]) -> String {
    let bytes = std::fs::read(&batch.binary).unwrap_or_default();
    let mut text = format!("function {function}:\n");
    for (number, instruction) in batch.instructions.iter().enumerate().filter(|(_, i)| i.function == function) {
        let code = bytes.get(instruction.offset as usize..).unwrap_or_default();
        let decoded =
            Decoder::with_ip(64, &code[..code.len().min(16)], instruction.offset, DecoderOptions::NONE).decode();
        let mark = if probes.iter().any(|probe| probe.instruction == number) { '*' } else { ' ' };
        text += &format!(" {mark}{:#x}: {decoded}\n", instruction.offset);
    }
    text
}
