//! A script for bash that runs a program again and again, under execsnoop.

use super::load::Load;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, words};

pub(super) const FAMILY: Family = Family { name: "scripts", needs, prepare, workloads };

const PROGRAMS: usize = 50;

fn needs() -> Vec<Need> {
    vec![Need::new("/bin/bash", "bash"), Need::new("/usr/sbin/execsnoop", "libbpf-tools")]
}

fn prepare(place: &Place) -> Result<(), String> {
    // (Under a name that no other process of the machine has: the kernel's tool sees all.)
    place.copy("/bin/true".as_ref(), "doer")?;
    place.write("script.sh", format!("for ((i = 0; i < {PROGRAMS}; i++)); do ./doer $i; done\n"))
}

fn workloads() -> Vec<Workload> {
    vec![Workload {
        name: "bash-execsnoop".to_owned(),
        unit: "run",
        files: vec![],
        victim: words("/bin/bash {DIR}/script.sh"),
        seen: Seen::FromStart,
        is_pinned: false,
        load: Load::Runs,
        tool: Tool::listing("execsnoop", "", "PCOMM", Events::Lines("./doer ")),
        events: PROGRAMS as f64..=PROGRAMS as f64,
        goals: Goals::default(),
    }]
}
