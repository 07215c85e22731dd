//! Redis under redis-benchmark: each command is counted, and its time is taken.

use super::load::Load;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Seen, Workload, words};

pub(super) const FAMILY: Family = Family { name: "redis", needs, prepare: |_| Ok(()), workloads };

const SERVER: &str = "/usr/bin/redis-server";

fn needs() -> Vec<Need> {
    vec![
        Need::new(SERVER, "redis-server"),
        Need::new("redis-benchmark", "redis-tools"),
        Need::new("bpftrace", "bpftrace"),
    ]
}

fn workloads() -> Vec<Workload> {
    let row = |name: &str, script: String| Workload {
        name: name.to_owned(),
        unit: "command",
        files: vec![],
        victim: [words(&format!("{SERVER} --port {{PORT}} --save")), vec![String::new()]].concat(),
        seen: Seen::ByFile,
        is_pinned: true,
        load: Load::Redis { connections: 20 },
        tool: Tool::bpftrace(&script, Events::Map("@n")),
        events: 1.0..=1.0,
        goals: Goals::default(),
    };
    let timed = format!(
        "uprobe:{SERVER}:call {{ @began[tid] = nsecs; }} \
         uretprobe:{SERVER}:call /@began[tid]/ {{ @n = count(); @ns = hist(nsecs - @began[tid]); delete(@began[tid]); }}"
    );
    vec![row("redis", format!("uprobe:{SERVER}:call {{ @n = count(); }}")), row("redis-latency", timed)]
}
