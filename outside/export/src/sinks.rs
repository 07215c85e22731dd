//! Perf event arrays whose records are counted.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ring3_bpf::{Output, OutputRing};

use crate::config::Counter;
use crate::exporter::Exporter;

/// Between two looks at the rings.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// The rings of a map, one for each CPU, and what they have told.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) config: String,
    pub(crate) map: String,
    state: Mutex<State>,
    _events: Vec<OwnedFd>,
}

#[derive(Debug)]
struct State {
    rings: Vec<OutputRing>,
    samples: BTreeMap<Vec<String>, u64>,
    lost: u64,
    flushed: Instant,
}

impl Sink {
    pub(crate) fn open(config: &str, counter: &Counter, map: &OwnedFd) -> io::Result<Sink> {
        let (mut rings, mut events) = (vec![], vec![]);
        for cpu in ring3_bpf::online_cpus()? {
            let event = ring3_bpf::open_output(cpu)?;
            rings.push(OutputRing::new(&event)?);
            ring3_bpf::update(map, &cpu.to_ne_bytes(), &(event.as_raw_fd() as u32).to_ne_bytes())?;
            events.push(event);
        }
        let state = State { rings, samples: BTreeMap::new(), lost: 0, flushed: Instant::now() };
        let map = counter.name.value.clone();
        Ok(Sink { config: config.to_owned(), map, state: Mutex::new(state), _events: events })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes what is in the rings.
    pub(crate) fn read(&self, exporter: &Exporter) {
        let Some(counter) = exporter.counter_of(self) else { return };
        let mut state = self.state();
        let State { rings, samples, lost, flushed } = &mut *state;
        if !counter.flush_interval.is_zero() && flushed.elapsed() >= counter.flush_interval {
            samples.clear();
            *flushed = Instant::now();
        }
        let bytes: usize = counter.labels.iter().map(|label| label.bytes()).sum();
        let mut record = vec![];
        for ring in rings {
            while let Some(output) = ring.next(&mut record) {
                match output {
                    Output::Lost(count) => *lost += count,
                    // (The kernel puts bytes behind records.)
                    Output::Record => {
                        let told = &record[..bytes.min(record.len())];
                        if let Some(values) = exporter.values(&self.config, told, &counter.labels) {
                            *samples.entry(values).or_default() += 1;
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn samples(&self) -> BTreeMap<Vec<String>, u64> {
        self.state().samples.clone()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.state().lost
    }
}
