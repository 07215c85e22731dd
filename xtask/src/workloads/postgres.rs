//! PostgreSQL under `pgbench -S`: the text of each query is copied, and its time is taken.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::load::{Load, PGBENCH_LOGS};
use super::tool::{Events, Tool};
use super::victim::{Server, free_port};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, words};
use crate::bench::output;

pub(super) const FAMILY: Family = Family { name: "postgres", needs, prepare, workloads };

/// PostgreSQL does not run as root.
const AS_USER: &str = "setpriv --reuid postgres --regid postgres --clear-groups";

/// Where the newest version has its programs.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|entry| entry.path().join("bin")).filter(|path| path.join("postgres").exists()).max();
    newest.unwrap_or_else(|| Path::new("/usr/lib/postgresql/15/bin").to_owned())
}

fn needs() -> Vec<Need> {
    let programs = programs().display().to_string();
    vec![
        Need::new(&format!("{programs}/postgres"), "postgresql"),
        Need::new("pgbench", "postgresql"),
        Need::new("bpftrace", "bpftrace"),
    ]
}

fn victim() -> Vec<String> {
    words(&format!("{AS_USER} {}/postgres -D {{DIR}}/data -p {{PORT}} -k {{DIR}} -c fsync=off", programs().display()))
}

fn prepare(place: &Place) -> Result<(), String> {
    let directory = &place.directory;
    std::fs::create_dir(directory.join(PGBENCH_LOGS)).map_err(|error| error.to_string())?;
    output(Command::new("chown").arg("postgres:postgres").arg(directory))?;
    let initdb = format!("{AS_USER} {}/initdb -D {{DIR}}/data -A trust -U postgres", programs().display());
    output(&mut place.command(&words(&initdb)))?;
    let port = free_port()?;
    let place = Place { directory: directory.clone(), port, ..*place };
    let server = Server::start(&place.command(&victim()), port, &directory.join("victim.log"), false)?;
    let fill = format!("pgbench -i -s 2 -q -h 127.0.0.1 -U postgres -p {port} postgres");
    output(&mut place.command(&words(&fill)))?;
    drop(server);
    Ok(())
}

fn workloads() -> Vec<Workload> {
    let server = programs().join("postgres").display().to_string();
    let script = format!(
        "usdt:{server}:postgresql:query__start {{ @began[tid] = nsecs; printf(\"%d %s\\n\", pid, str(arg0)); }} \
         usdt:{server}:postgresql:query__done /@began[tid]/ {{ @us = hist((nsecs - @began[tid]) / 1000); delete(@began[tid]); }}"
    );
    vec![Workload {
        name: "postgres".to_owned(),
        unit: "transaction",
        files: vec![],
        victim: victim(),
        seen: Seen::ByFile,
        is_pinned: false,
        load: Load::Pgbench { clients: 4 },
        tool: Tool::bpftrace(&script, Events::Lines(" SELECT abalance ")),
        events: 1.0..=1.0,
        goals: Goals::default(),
    }]
}
