//! A second opinion: the crate `prevail`, an abstract interpreter with a theory of its own.
//!
//! It knows of no `bpf_loop` with callbacks that read their context, is given no types, and refuses reads of stack that
//! was not written: much that the kernel accepts it does not. What it accepts should be safe all the same. It may panic,
//! and over loops and calls it may sit for minutes.

use prevail::crab::ebpf_domain::DomainContext;
use prevail::crab::var_registry::VariableRegistry;
use prevail::fwd_analyzer;
use prevail::ir::program::Program as Graph;
use prevail::ir::unmarshal::unmarshal;
use prevail::linux::linux_platform::LinuxPlatform;
use prevail::platform::EbpfPlatform;
use prevail::spec::config::EbpfVerifierOptions;
use prevail::spec::type_descriptors::{EbpfMapDescriptor, ProgramInfo};
use prevail::spec::vm_isa::EbpfInst;
use ring3_generate::Map;
use ring3_isa::Insn;

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opinion {
    Accepts,
    Refuses,
    /// It cannot read the program: it uses what it does not know.
    Cannot,
}

/// Descriptors of maps are counted from 1 there.
fn with_descriptors(insns: &[Insn]) -> Vec<EbpfInst> {
    let mut second_half = false;
    let convert = |insn: &Insn| {
        let first = !second_half;
        second_half = first && insn.is_wide();
        let (src, imm) = match insn.src() {
            5 if second_half => (1, insn.imm + 1),
            6 if second_half => (2, insn.imm + 1),
            src => (src, insn.imm),
        };
        EbpfInst::new(insn.opcode, insn.dst(), src, insn.off, imm)
    };
    insns.iter().map(convert).collect()
}

fn descriptors(maps: &[Map]) -> Vec<EbpfMapDescriptor> {
    let descriptor = |(map, original_fd): (&Map, i32)| EbpfMapDescriptor {
        original_fd,
        map_type: map.map_type,
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: map.entries,
        inner_map_fd: -1,
        name: format!("map{original_fd}"),
        is_inner_map_template: false,
    };
    maps.iter().zip(1..).map(descriptor).collect()
}

/// What it says to a program of a section, whose instructions name maps by index.
pub(crate) fn ask(insns: &[Insn], section: &str, maps: &[Map]) -> Opinion {
    let mut platform = LinuxPlatform::new();
    let program_type = platform.get_program_type(section, "");
    platform.map_descriptors = descriptors(maps);
    platform.set_program_type(&program_type);
    let mut info = ProgramInfo { map_descriptors: descriptors(maps), program_type, ..ProgramInfo::default() };
    let mut options = EbpfVerifierOptions::default();
    options.runtime.check_for_termination = true;
    let insns = with_descriptors(insns);
    let Ok(sequence) = unmarshal(&insns, &mut vec![], &info, &platform, &options) else { return Opinion::Cannot };
    let Ok(graph) = Graph::from_sequence(&sequence, &mut info, &platform, &options) else { return Opinion::Cannot };
    let context = DomainContext {
        program_info: &info,
        program: &graph,
        runtime: &options.runtime,
        options: &options,
        platform: &platform,
    };
    let result = fwd_analyzer::analyze(&graph, &context, &mut VariableRegistry::new());
    if result.failed { Opinion::Refuses } else { Opinion::Accepts }
}
