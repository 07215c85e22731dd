//! Programs that look at a tree of files, while opensnoop prints what they open, and a script what they look at: what
//! statsnoop does, which does not know the call that they use (`newfstatat`).

use std::process::Command;

use super::load::Load;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, words};
use crate::bench::output;

pub(super) const FAMILY: Family = Family { name: "files", needs, prepare, workloads };

const DIRECTORIES: usize = 500;
const FILES_OF_EACH: usize = 20;
const FILES: usize = DIRECTORIES * FILES_OF_EACH;

fn needs() -> Vec<Need> {
    vec![
        Need::new("git", "git"),
        Need::new("/usr/bin/find", "findutils"),
        Need::new("/usr/sbin/opensnoop", "libbpf-tools"),
        Need::new("bpftrace", "bpftrace"),
    ]
}

fn prepare(place: &Place) -> Result<(), String> {
    // (Under names that no other process of the machine has: the kernel's tools see all.)
    place.copy("/usr/bin/find".as_ref(), "looker")?;
    place.copy("/usr/bin/git".as_ref(), "keeper")?;
    let tree = place.directory.join("tree");
    for directory in 0..DIRECTORIES {
        let directory = tree.join(format!("{directory}"));
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for file in 0..FILES_OF_EACH {
            let path = directory.join(format!("{file}.txt"));
            std::fs::write(&path, "text\n").map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    for line in ["init -q", "add .", "-c user.name=x -c user.email=x commit -q -m x", "status"] {
        output(Command::new("git").args(words(line)).current_dir(&tree))?;
    }
    Ok(())
}

fn workloads() -> Vec<Workload> {
    const GIT: &str = "{DIR}/keeper -C {DIR}/tree status --short";
    const FIND: &str = "{DIR}/looker {DIR}/tree -size +1000k";
    let row = |name: &str, victim: &str, tool: Tool, events: usize| Workload {
        name: name.to_owned(),
        unit: "run",
        files: vec![],
        victim: words(victim),
        seen: Seen::FromStart,
        is_pinned: false,
        load: Load::Runs,
        tool,
        // (Besides: libraries, configuration, the index, and directories that are looked at twice.)
        events: events as f64..=events as f64 * 2.2 + 100.0,
        goals: Goals::default(),
    };
    let open = |name: &'static str, options| Tool::listing("opensnoop", options, "PID", Events::Lines(name));
    let stat = |name: &'static str| {
        let name = name.trim_end();
        let script = format!(
            "tracepoint:syscalls:sys_enter_newfstatat /comm == \"{name}\"/ {{ @file[tid] = args->filename; }} \
             tracepoint:syscalls:sys_exit_newfstatat /@file[tid]/ {{ \
             printf(\"%d %s %d %s\\n\", pid, comm, args->ret, str(@file[tid])); delete(@file[tid]); }}"
        );
        Tool::bpftrace(&script, Events::Lines(name))
    };
    vec![
        row("git-status-opensnoop", GIT, open("keeper ", "-n keeper"), DIRECTORIES),
        row("git-status-statsnoop", GIT, stat("keeper "), FILES),
        row("find-opensnoop", FIND, open("looker ", "-n looker"), DIRECTORIES),
        row("find-statsnoop", FIND, stat("looker "), FILES),
    ]
}
