//! A configuration's object: which of its programs can run here, loading and attaching them.

use std::os::fd::OwnedFd;

use ring3_bpf::{Loaded, ProgramInfo};
use ring3_object::{Kernel, MapDef, Object, Program, Settings};
use ring3_uapi::bpf::{attach_type, map_type, prog_type};

use crate::config::{Config, Label};
use crate::places::{self, Attach};
use crate::usdt::Specs;

/// Bytes of a counter.
const COUNTER_BYTES: u32 = 8;
/// The last label of a map with a value for each CPU may have this name: then each CPU has samples of its own.
pub(crate) const CPU: &str = "cpu";
/// Bytes of the CPU's number behind a key.
pub(crate) const CPU_BYTES: usize = 2;

/// A configuration, and its object with the programs that can run here.
#[derive(Debug)]
pub struct Prepared {
    /// The configuration.
    pub config: Config,
    /// The object. Programs that cannot run here are not loaded.
    pub object: Object,
    /// Where programs are attached, by their index in the object.
    pub attachments: Vec<(usize, Attach)>,
    /// Programs that are not loaded: name, section and why.
    pub refused: Vec<(String, String, String)>,
}

impl Prepared {
    /// Reads a configuration's object, and checks that its maps are what the configuration says.
    ///
    /// # Errors
    /// The object cannot be read, or has no such maps.
    pub fn new(config: Config, kernel: &Kernel, settings: &Settings) -> Result<Prepared, String> {
        let shown = config.object.display().to_string();
        let bytes = std::fs::read(&config.object).map_err(|error| format!("{shown}: {error}"))?;
        let mut object = Object::load(&bytes, kernel, settings).map_err(|error| format!("{shown}: {error}"))?;
        let (mut attachments, mut refused) = (vec![], vec![]);
        for (index, program) in object.programs.iter_mut().enumerate().filter(|(_, program)| program.autoload) {
            match Attach::of(program) {
                Ok(attach) => {
                    make_attachable(program, &attach);
                    attachments.push((index, attach));
                }
                Err(why) => {
                    program.autoload = false;
                    refused.push((program.name.clone(), program.section.clone(), why));
                }
            }
        }
        let prepared = Prepared { config, object, attachments, refused };
        prepared.check_maps().map_err(|why| format!("{shown}: {why}"))?;
        Ok(prepared)
    }

    pub(crate) fn map(&self, name: &str) -> Result<(usize, &MapDef), String> {
        let found = self.object.maps.iter().enumerate().find(|(_, def)| def.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.object.maps.iter().map(|def| def.name.as_str()).collect();
            format!("it has no map {name}, which the configuration names; its maps are {}", names.join(", "))
        })
    }

    fn check_maps(&self) -> Result<(), String> {
        for counter in &self.config.counters {
            let name = &counter.name.value;
            let (_, def) = self.map(name)?;
            if counter.perf_event_array != (def.map_type == map_type::PERF_EVENT_ARRAY) {
                return Err(format!(
                    "map {name}: perf_event_array is for maps of BPF_MAP_TYPE_PERF_EVENT_ARRAY, and wanted for them"
                ));
            }
            if counter.perf_event_array {
                check_records(name, &counter.labels)?
            } else {
                check_map(def, &counter.labels)?
            }
        }
        for histogram in &self.config.histograms {
            check_map(self.map(&histogram.name.value)?.1, &histogram.labels)?;
        }
        for span in &self.config.spans {
            let (_, def) = self.map(&span.ringbuf.value)?;
            if def.map_type != map_type::RINGBUF {
                return Err(format!("map {}, from which spans are to come, is no ring buffer", def.name));
            }
            check_records(&def.name, &span.labels)?;
        }
        Ok(())
    }

    /// Loads the object, and attaches its programs.
    ///
    /// # Errors
    /// What could not be loaded, and what the verifier said. (A program that cannot be attached is said in `running`.)
    pub(crate) fn load(self) -> Result<Running, String> {
        let shown = self.config.object.display().to_string();
        let loaded = Loaded::load(&self.object).map_err(|error| format!("{shown}: {error}"))?;
        let mut specs = Specs::default();
        let mut programs = vec![];
        for (index, fd) in loaded.programs {
            let name = self.object.programs[index].name.clone();
            let info = ring3_bpf::program_info(&fd).map_err(|error| format!("{shown}: program {name}: {error}"))?;
            let attach = self.attachments.iter().find(|(of, _)| *of == index).map(|(_, attach)| attach);
            let links = attach.map_or(Ok(vec![]), |attach| link(&self.object, &loaded.maps, &mut specs, &fd, attach));
            let section = self.object.programs[index].section.clone();
            programs.push(RunningProgram { name, section, info, links, _fd: fd });
        }
        Ok(Running { prepared: self, maps: loaded.maps, programs })
    }
}

/// A configuration whose programs run.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) prepared: Prepared,
    /// In the object's order.
    pub(crate) maps: Vec<OwnedFd>,
    pub(crate) programs: Vec<RunningProgram>,
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct RunningProgram {
    pub(crate) name: String,
    pub(crate) section: String,
    pub(crate) info: ProgramInfo,
    /// What attaches it, or why that failed.
    pub(crate) links: Result<Vec<OwnedFd>, String>,
    _fd: OwnedFd,
}

/// Sets what a program must be for the kind of link that it gets.
fn make_attachable(program: &mut Program, attach: &Attach) {
    match attach {
        Attach::Uprobe { .. } | Attach::Usdt { .. } => program.expected_attach_type = attach_type::TRACE_UPROBE_MULTI,
        // (libbpf knows the section's name only without what is behind the slash.)
        Attach::Samples { .. } => program.prog_type = prog_type::PERF_EVENT,
        Attach::Tracepoint { .. } | Attach::RawTracepoint(_) => {}
    }
}

fn link(
    object: &Object,
    maps: &[OwnedFd],
    specs: &mut Specs,
    program: &OwnedFd,
    attach: &Attach,
) -> Result<Vec<OwnedFd>, String> {
    /// Of all processes.
    const ANY: u32 = 0;
    let told = |error: std::io::Error| error.to_string();
    let link = match attach {
        Attach::Uprobe { file, function, offset, ret } => {
            let path = places::find_file(file)?;
            let place = places::function_place(&path, function, *offset)?;
            ring3_bpf::link_uprobes(program, &path, &[place], *ret, ANY).map_err(told)?
        }
        Attach::Usdt { file, provider, name } => {
            let path = places::find_file(file)?;
            let places = specs.tell(object, maps, places::usdt_places(&path, provider, name)?)?;
            ring3_bpf::link_uprobes(program, &path, &places, false, ANY).map_err(told)?
        }
        Attach::Tracepoint { category, name } => {
            ring3_bpf::link_tracepoint(program, category, name, None).map_err(told)?
        }
        Attach::RawTracepoint(name) => ring3_bpf::open_raw_tracepoint(program, name).map_err(told)?,
        Attach::Samples { kind, config, frequency } => {
            let cpus = ring3_bpf::online_cpus().map_err(told)?;
            let links =
                cpus.into_iter().map(|cpu| ring3_bpf::link_sampling(program, *kind, *config, *frequency, cpu));
            return links.collect::<Result<_, _>>().map_err(told);
        }
    };
    Ok(vec![link])
}

/// Whether a map has a value for each CPU.
pub(crate) fn is_per_cpu(def: &MapDef) -> bool {
    matches!(def.map_type, map_type::PERCPU_HASH | map_type::PERCPU_ARRAY | map_type::LRU_PERCPU_HASH)
}

/// Whether each CPU has samples of its own.
pub(crate) fn splits_cpus(def: &MapDef, labels: &[Label]) -> bool {
    is_per_cpu(def) && labels.last().is_some_and(|label| label.name.value == CPU)
}

/// Whether a map's only key, 0, is no part of the labels.
pub(crate) fn is_single(def: &MapDef, labels: &[Label]) -> bool {
    let others = labels.len() - usize::from(splits_cpus(def, labels));
    others == 0 && def.key_size == 4
}

fn check_map(def: &MapDef, labels: &[Label]) -> Result<(), String> {
    let known = [
        map_type::HASH,
        map_type::ARRAY,
        map_type::PERCPU_HASH,
        map_type::PERCPU_ARRAY,
        map_type::LRU_HASH,
        map_type::LRU_PERCPU_HASH,
    ];
    let name = &def.name;
    if !known.contains(&def.map_type) {
        return Err(format!("map {name} is neither a hash nor an array; only of these metrics are made"));
    }
    if def.value_size != COUNTER_BYTES {
        return Err(format!("map {name} has values of {} bytes, and counters have 8 (u64)", def.value_size));
    }
    let key = if is_single(def, labels) { 0 } else { def.key_size as usize };
    let wanted = key + if splits_cpus(def, labels) { CPU_BYTES } else { 0 };
    let bytes: usize = labels.iter().map(Label::bytes).sum();
    if bytes != wanted {
        let of_cpu = if splits_cpus(def, labels) { ", with the 2 of the CPU's number" } else { "" };
        return Err(format!(
            "map {name} has keys of {wanted} bytes{of_cpu}, and its labels (size and padding) have {bytes}"
        ));
    }
    Ok(())
}

/// Records may be longer than their labels.
fn check_records(name: &str, labels: &[Label]) -> Result<(), String> {
    if labels.is_empty() { Err(format!("map {name}: its records have no labels")) } else { Ok(()) }
}
