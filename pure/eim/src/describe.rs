//! What a class allows, in words, and how two classes differ.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ring3_verifier::host::{Action, Verdict};

use crate::limits::{Limits, in_words};
use crate::model::At;
use crate::places::Permission;
use crate::resolve::{EntryPoint, Resolved, range_text};

/// A class in words: where it runs, what it may read, write and call, what its results mean, how much it may use.
pub fn describe(name: &str, class: &Resolved) -> String {
    let mut out = format!("class {name}\n  runs {}\n", place(&class.entry));
    for (verb, title) in [("read", "may read"), ("write", "may write"), ("call", "may call")] {
        let of_verb: Vec<&Permission> =
            class.permissions.iter().filter(|permission| permission.verb == verb).collect();
        if of_verb.is_empty() {
            let _ = writeln!(out, "  {title} nothing");
            continue;
        }
        let _ = writeln!(out, "  {title}");
        for permission in of_verb {
            let _ = writeln!(out, "    {}", line(permission));
        }
    }
    let _ = writeln!(out, "  its result");
    for verdict in &class.grant.verdicts {
        let _ = writeln!(out, "    {}", meaning(verdict, class.entry.at));
    }
    let _ = writeln!(out, "    any other: the verifier refuses the program");
    let _ = writeln!(out, "  at most");
    for (what, amount) in amounts(&class.limits) {
        let _ = writeln!(out, "    {what}: {amount}");
    }
    out
}

/// What a class has and another one has not (`+`), and the other way round (`-`); empty if they allow the same.
pub fn difference(class: &Resolved, against: &Resolved) -> String {
    let mut out = String::new();
    let mut side = |own: Vec<String>, other: Vec<String>| {
        let (own, other): (BTreeSet<String>, BTreeSet<String>) =
            (own.into_iter().collect(), other.into_iter().collect());
        for line in own.difference(&other) {
            let _ = writeln!(out, "  + {line}");
        }
        for line in other.difference(&own) {
            let _ = writeln!(out, "  - {line}");
        }
    };
    let run = |class: &Resolved| vec![format!("runs {}", place(&class.entry))];
    side(run(class), run(against));
    for verb in ["read", "write", "call"] {
        let lines = |class: &Resolved| -> Vec<String> {
            let of_verb = class.permissions.iter().filter(|permission| permission.verb == verb);
            of_verb.map(|permission| format!("{verb} {}", line(permission))).collect()
        };
        side(lines(class), lines(against));
    }
    let results = |class: &Resolved| -> Vec<String> {
        class.grant.verdicts.iter().map(|verdict| format!("result {}", meaning(verdict, class.entry.at))).collect()
    };
    side(results(class), results(against));
    let helpers = |class: &Resolved| -> Vec<String> {
        in_words(&class.limits.helpers).into_iter().map(|word| format!("helpers {word}")).collect()
    };
    side(helpers(class), helpers(against));
    for ((what, own), (_, other)) in amounts(&class.limits).into_iter().zip(amounts(&against.limits)) {
        if own != other && what != "helpers" {
            let _ = writeln!(out, "  ~ {what}: {own} (was {other})");
        }
    }
    out
}

fn place(entry: &EntryPoint) -> String {
    let when = match entry.at {
        At::Entry => "before",
        At::Return => "after",
    };
    format!("{when} {} (entry {})", entry.function, entry.name)
}

fn line(permission: &Permission) -> String {
    match permission.verb {
        "call" => format!("{}{}", permission.what, permission.detail),
        _ => format!("{}: {}", permission.what, permission.detail),
    }
}

fn meaning(verdict: &Verdict, at: At) -> String {
    let values = range_text(&verdict.values);
    match (verdict.action, at) {
        (Action::Continue, At::Entry) => format!("{values}: the function runs"),
        (Action::Continue, At::Return) => format!("{values}: the function's result stays"),
        (Action::ReturnVerdict, At::Entry) => format!("{values}: the function does not run, and returns this value"),
        (Action::ReturnVerdict, At::Return) => format!("{values}: replaces the function's result"),
        (Action::Return(value), At::Entry) => format!("{values}: the function does not run, and returns {value}"),
        (Action::Return(value), At::Return) => format!("{values}: the function's result becomes {value}"),
    }
}

fn amounts(limits: &Limits) -> [(&'static str, String); 5] {
    let time = match limits.time_ns {
        ns if ns.is_multiple_of(1_000_000) => format!("{} ms", ns / 1_000_000),
        ns if ns.is_multiple_of(1_000) => format!("{} us", ns / 1_000),
        ns => format!("{ns} ns"),
    };
    let memory = match limits.memory_bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    };
    let helpers = in_words(&limits.helpers);
    [
        ("instructions of one run", limits.instructions.to_string()),
        ("time of one run", time),
        ("memory of maps", memory),
        ("maps", limits.maps.to_string()),
        ("helpers", if helpers.is_empty() { "none".to_owned() } else { helpers.join(", ") }),
    ]
}
