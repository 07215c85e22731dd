//! `cargo xtask syscalls`: the table of system call tracepoints, brought up to date from the running kernel (needs root).
//!
//! Events that this kernel has not (options, age) stay in the table. Numbers come from the table, else from the C library's
//! headers; the kernel names a few events otherwise than the headers do: their numbers are written by hand, once.

use std::collections::BTreeMap;
use std::process::Command;

use ring3_uapi::syscalls::TABLE;

use crate::root;

const FILE: &str = "pure/uapi/src/syscalls.rs";
const HEADER: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
/// The lines around the rows.
const BEGIN: &str = "table! {\n";
const END: &str = "}\n";
/// In a mount namespace of its own: nothing stays.
const LIST: &str = "mount -t tracefs none /mnt && cd /mnt/events/syscalls && grep -H '\tfield:' sys_enter_*/format";

/// Writes the rows anew.
pub(crate) fn run() -> Result<(), String> {
    let path = root().join(FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{FILE}: {error}"))?;
    let (before, rest) = text.split_once(BEGIN).ok_or("no table in the file")?;
    let (_, after) = rest.split_once(&format!("\n{END}")).ok_or("no end of the table in the file")?;
    let mut rows: BTreeMap<u32, (String, String)> =
        TABLE.iter().map(|call| (call.number, (call.name.to_owned(), call.parameters.to_owned()))).collect();
    let header = numbers()?;
    for (name, parameters) in events()? {
        let known = TABLE.iter().find(|call| call.name == name).map(|call| call.number);
        match known.or_else(|| header.get(&name).copied()) {
            Some(number) => drop(rows.insert(number, (name, parameters))),
            None => println!("sys_enter_{name} has no number that is known here: ({parameters})"),
        }
    }
    let rows = rows.iter().map(|(number, (name, parameters))| format!("    {number} {name} {parameters:?},\n"));
    let text = format!("{before}{BEGIN}{}{END}{after}", rows.collect::<String>());
    std::fs::write(&path, text).map_err(|error| format!("{FILE}: {error}"))
}

/// `__NR_*` by name.
fn numbers() -> Result<BTreeMap<String, u32>, String> {
    let text = std::fs::read_to_string(HEADER).map_err(|error| format!("{HEADER}: {error}"))?;
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(number).collect())
}

/// Parameters by name, as the kernel's format files tell them.
fn events() -> Result<BTreeMap<String, String>, String> {
    /// Fields before the parameters.
    const FIRST: usize = 5;
    let output =
        Command::new("unshare").args(["-m", "sh", "-c", LIST]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("tracefs cannot be read: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    let mut fields = BTreeMap::<String, Vec<String>>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let found = line.split_once("/format:\tfield:").and_then(|(event, field)| {
            Some((event.strip_prefix("sys_enter_")?.to_owned(), field.split_once(';')?.0.to_owned()))
        });
        let (event, field) = found.ok_or_else(|| format!("a format file has an unknown form: {line}"))?;
        fields.entry(event).or_default().push(field);
    }
    Ok(fields.into_iter().map(|(event, fields)| (event, fields[FIRST..].join(", "))).collect())
}
