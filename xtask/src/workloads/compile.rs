//! A compiler for C++ under tools that watch `malloc`: what memleak and stackcount do, as scripts of bpftrace.

use super::load::Load;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, library, words};

pub(super) const FAMILY: Family = Family { name: "compile", needs, prepare, workloads };

const SOURCE: &str = "#include <map>\n#include <string>\n#include <vector>\nstd::map<std::string, std::vector<int>> numbers;\n\
                      int main() { numbers[\"one\"].push_back(1); return numbers.size(); }\n";

fn needs() -> Vec<Need> {
    vec![Need::new("g++", "g++"), Need::new("bpftrace", "bpftrace")]
}

fn prepare(place: &Place) -> Result<(), String> {
    place.write("source.cc", SOURCE)?;
    place.copy(&library("libc.so.6")?, "lib/libc.so.6")
}

fn workloads() -> Vec<Workload> {
    let count = "uprobe:{DIR}/lib/libc.so.6:malloc { @n = count(); }";
    let stacks = "uprobe:{DIR}/lib/libc.so.6:malloc { @stacks[ustack] = count(); @n = count(); }";
    let leaks = "uprobe:{DIR}/lib/libc.so.6:malloc { @size[tid] = arg0; @n = count(); } \
                 uretprobe:{DIR}/lib/libc.so.6:malloc /@size[tid]/ \
                 { @live[retval] = @size[tid]; @stack[retval] = ustack; delete(@size[tid]); } \
                 uprobe:{DIR}/lib/libc.so.6:free { delete(@live[arg0]); delete(@stack[arg0]); }";
    let row = |name: &str, script: &str| Workload {
        name: name.to_owned(),
        unit: "run",
        files: vec![],
        victim: words("env LD_LIBRARY_PATH={DIR}/lib g++ -O1 -c source.cc -o source.o"),
        seen: Seen::FromStart,
        is_pinned: false,
        load: Load::Runs,
        tool: Tool::bpftrace(script, Events::Map("@n")),
        // (The compiler allocates the same in each run, but for what depends on its environment.)
        events: 100_000.0..=2_000_000.0,
        goals: Goals::default(),
    };
    vec![row("g++-malloc-count", count), row("g++-stackcount", stacks), row("g++-memleak", leaks)]
}
