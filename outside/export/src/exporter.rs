//! The exporter: what runs, and what it has counted.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::SystemTime;

use ring3_object::MapDef;

use crate::config::{Counter, Histogram, Label};
use crate::decode::{self, Undecoded};
use crate::loaded::{self, Prepared, Running};
use crate::metric::{self, Family, Kind, Value};
use crate::names::Names;
use crate::sinks::{LOOK, Sink};
use crate::spans::SpanSource;

/// Configurations whose programs run. When it is dropped, they are detached.
#[derive(Debug)]
pub struct Exporter {
    configs: Vec<Running>,
    sinks: Vec<Sink>,
    names: Mutex<Names>,
    /// By configuration: what decoders did not take.
    errors: Mutex<BTreeMap<String, u64>>,
    cpus: usize,
    since: SystemTime,
}

/// Samples by the values of their labels.
type Samples = BTreeMap<Vec<String>, u64>;

impl Exporter {
    /// Loads objects and attaches their programs.
    ///
    /// # Errors
    /// What could not be loaded, or which program could not be attached if `strict`, which also takes those for an error that
    /// cannot run here. (Otherwise the metrics say so.)
    pub fn load(prepared: Vec<Prepared>, strict: bool) -> Result<Exporter, String> {
        let cpus = ring3_bpf::possible_cpus().map_err(|error| error.to_string())?;
        let configs: Vec<Running> = prepared.into_iter().map(Prepared::load).collect::<Result<_, _>>()?;
        let mut sinks = vec![];
        for running in &configs {
            for counter in running.prepared.config.counters.iter().filter(|counter| counter.perf_event_array) {
                let (index, _) = running.prepared.map(&counter.name.value)?;
                let opened = Sink::open(&running.prepared.config.name, counter, &running.maps[index]);
                sinks.push(opened.map_err(|error| format!("map {}: {error}", counter.name.value))?);
            }
        }
        let errors = configs.iter().map(|running| (running.prepared.config.name.clone(), 0)).collect();
        let exporter = Exporter {
            configs,
            sinks,
            names: Mutex::default(),
            errors: Mutex::new(errors),
            cpus,
            since: SystemTime::now(),
        };
        let unattached = exporter.unattached();
        match unattached.first() {
            Some(_) if strict => Err(format!("not attached:\n  {}", unattached.join("\n  "))),
            _ => Ok(exporter),
        }
    }

    /// Since when it counts.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// How many programs are attached.
    pub fn attached(&self) -> usize {
        let programs = self.configs.iter().flat_map(|running| &running.programs);
        programs.filter(|program| program.links.is_ok()).count()
    }

    /// Programs that are not attached, and why: a line each.
    pub fn unattached(&self) -> Vec<String> {
        let mut lines = vec![];
        for running in &self.configs {
            let config = &running.prepared.config.name;
            for (name, _, why) in &running.prepared.refused {
                lines.push(format!("{config}: program {name} is not loaded: {why}"));
            }
            for program in &running.programs {
                if let Err(why) = &program.links {
                    let (name, section) = (&program.name, &program.section);
                    lines.push(format!("{config}: program {name}, SEC(\"{section}\"), is not attached: {why}"));
                }
            }
        }
        lines
    }

    /// Whether a configuration has spans.
    pub fn has_spans(&self) -> bool {
        self.configs.iter().any(|running| !running.prepared.config.spans.is_empty())
    }

    /// What gives spans.
    ///
    /// # Errors
    /// A ring buffer cannot be mapped.
    pub(crate) fn span_sources(&self) -> Result<Vec<SpanSource<'_>>, String> {
        let mut sources = vec![];
        for running in &self.configs {
            let config = &running.prepared.config;
            for span in &config.spans {
                let (index, def) = running.prepared.map(&span.ringbuf.value)?;
                sources.push(SpanSource::open(&config.name, span, &running.maps[index], def.max_entries)?);
            }
        }
        Ok(sources)
    }

    /// The values of labels that bytes have. What is wrong is counted, and said once for each configuration.
    pub(crate) fn values(&self, config: &str, bytes: &[u8], labels: &[Label]) -> Option<Vec<String>> {
        let mut names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match decode::values(bytes, labels, &mut names) {
            Ok(values) => Some(values),
            Err(Undecoded::Skipped) => None,
            Err(Undecoded::Wrong(why)) => {
                self.complain(config, &why);
                None
            }
        }
    }

    /// Counts something that could not be decoded, and says the first one of a configuration.
    pub(crate) fn complain(&self, config: &str, why: &str) {
        let mut errors = self.errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = errors.entry(config.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            eprintln!(
                "ring3: {config}: cannot decode: {why}; ebpf_exporter_decoder_errors_total counts the next ones"
            );
        }
    }

    pub(crate) fn counter_of(&self, sink: &Sink) -> Option<&Counter> {
        let running = self.configs.iter().find(|running| running.prepared.config.name == sink.config)?;
        running.prepared.config.counters.iter().find(|counter| counter.name.value == sink.map)
    }

    /// Takes records of perf event arrays out of their rings, again and again, as long as `goes_on`.
    pub fn drain(&self, goes_on: impl Fn() -> bool) {
        while !self.sinks.is_empty() && goes_on() {
            for sink in &self.sinks {
                sink.read(self);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Reads all maps.
    ///
    /// # Errors
    /// A map cannot be read: the server has ended.
    pub fn gather(&self) -> Result<Vec<Family>, String> {
        for sink in &self.sinks {
            sink.read(self);
        }
        let mut families = self.about_itself();
        let mut metrics = vec![];
        for running in &self.configs {
            for counter in &running.prepared.config.counters {
                metrics.push(self.counter(running, counter)?);
            }
            for histogram in &running.prepared.config.histograms {
                metrics.push(self.histogram(running, histogram)?);
            }
        }
        // (Configurations may have a metric of the same name; it is one family only if it is one metric.)
        for family in metrics {
            match families.iter_mut().find(|other| other.name == family.name) {
                Some(other) if (other.kind, &other.labels) == (family.kind, &family.labels) => {
                    other.samples.extend(family.samples);
                }
                Some(_) => return Err(format!("two configurations have a metric {} with other labels", family.name)),
                None => families.push(family),
            }
        }
        Ok(families)
    }

    fn about_itself(&self) -> Vec<Family> {
        let mut enabled = Family::new(Kind::Gauge, "enabled_configs", "The set of enabled configs", &["name"]);
        let labels = ["config", "program", "tag", "id"];
        let mut info = Family::new(Kind::Gauge, "ebpf_program_info", "Info about ebpf programs", &labels);
        let help = "Whether a program is attached";
        let mut attached = Family::new(Kind::Gauge, "ebpf_program_attached", help, &["id"]);
        let help = "Programs that are not loaded because they are for events of the kernel's own";
        let labels = ["config", "program", "section"];
        let mut refused = Family::new(Kind::Gauge, "ebpf_program_refused", help, &labels);
        let help = "How many times has decoders encountered errors";
        let mut errors = Family::new(Kind::Counter, "decoder_errors_total", help, &["config"]);
        let help = "Records of perf event arrays that found no room";
        let mut lost = Family::new(Kind::Counter, "lost_records_total", help, &["config", "map"]);
        for running in &self.configs {
            let config = &running.prepared.config.name;
            enabled.set(&[config], 1.0);
            for program in &running.programs {
                let id = program.info.id.to_string();
                let tag: String = program.info.tag.iter().map(|byte| format!("{byte:02x}")).collect();
                info.set(&[config, &program.name, &tag, &id], 1.0);
                attached.set(&[&id], if program.links.is_ok() { 1.0 } else { 0.0 });
            }
            for (name, section, _) in &running.prepared.refused {
                refused.set(&[config, name, section], 1.0);
            }
        }
        for (config, count) in self.errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
            errors.set(&[config], *count as f64);
        }
        for sink in &self.sinks {
            lost.set(&[&sink.config, &sink.map], sink.lost() as f64);
        }
        vec![enabled, info, attached, refused, errors, lost]
    }

    fn counter(&self, running: &Running, counter: &Counter) -> Result<Family, String> {
        let labels: Vec<&str> = counter.labels.iter().map(|label| label.name.value.as_str()).collect();
        let mut family = Family::new(Kind::Counter, &counter.name.value, &counter.help, &labels);
        let config = &running.prepared.config.name;
        let samples = match self.sinks.iter().find(|sink| sink.config == *config && sink.map == counter.name.value) {
            Some(sink) => sink.samples(),
            None => self.samples(running, &counter.name.value, &counter.labels)?,
        };
        family.samples = samples.into_iter().map(|(labels, count)| (labels, Value::Number(count as f64))).collect();
        Ok(family)
    }

    fn histogram(&self, running: &Running, histogram: &Histogram) -> Result<Family, String> {
        let split = histogram.labels.len().saturating_sub(1);
        let labels: Vec<&str> = histogram.labels[..split].iter().map(|label| label.name.value.as_str()).collect();
        let mut family = Family::new(Kind::Histogram, &histogram.name.value, &histogram.help, &labels);
        let mut sets = BTreeMap::<Vec<String>, BTreeMap<u64, u64>>::new();
        for (mut labels, count) in self.samples(running, &histogram.name.value, &histogram.labels)? {
            let bucket = labels.pop().unwrap_or_default();
            let number = bucket.parse().map_err(|_| {
                let name = &histogram.name.value;
                format!("histogram {name}: its last label, the bucket, is no number: {bucket}")
            })?;
            *sets.entry(labels).or_default().entry(number).or_default() += count;
        }
        let made = |counts: &BTreeMap<u64, u64>| Value::Buckets(metric::buckets(counts, histogram));
        family.samples = sets.iter().map(|(labels, counts)| (labels.clone(), made(counts))).collect();
        Ok(family)
    }

    /// Values of a map by labels. Keys that have the same labels are added up, and so are CPUs, if they are no label.
    fn samples(&self, running: &Running, map: &str, labels: &[Label]) -> Result<Samples, String> {
        let (index, def) = running.prepared.map(map)?;
        let config = &running.prepared.config.name;
        let mut samples = Samples::new();
        let mut add = |key: &[u8], count: u64| {
            if let Some(values) = self.values(config, key, labels) {
                let sum: &mut u64 = samples.entry(values).or_default();
                *sum = sum.wrapping_add(count);
            }
        };
        let is_single = loaded::is_single(def, labels);
        for (mut key, value) in
            self.entries(&running.maps[index], def).map_err(|error| format!("map {map}: {error}"))?
        {
            if is_single {
                key.clear();
            }
            let counts = value.chunks_exact(8).map(|count| u64::from_ne_bytes(count.try_into().expect("8 bytes")));
            if loaded::splits_cpus(def, labels) {
                for (cpu, count) in counts.enumerate() {
                    add(&[&key[..], &(cpu as u16).to_ne_bytes()[..]].concat(), count);
                }
            } else {
                add(&key, counts.fold(0, u64::wrapping_add));
            }
        }
        Ok(samples)
    }

    fn entries(&self, map: &OwnedFd, def: &MapDef) -> std::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let parts = if loaded::is_per_cpu(def) { self.cpus } else { 1 };
        ring3_bpf::entries(map, def.key_size as usize, parts * def.value_size as usize)
    }
}
