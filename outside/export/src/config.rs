//! Configurations in ebpf_exporter's format (`config/config.go` and README.md of v2).
//!
//! Everything that the format has is read. What is unknown, or known and not supported, is an error at its line and column: nothing
//! is ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, de};
use serde_saphyr::{Location, Spanned};

use crate::decode::Decoder;

/// A configuration: what to load, and what to make of its maps.
#[derive(Debug)]
pub struct Config {
    /// Its name, which is that of its files.
    pub name: String,
    /// The object file.
    pub object: PathBuf,
    /// What maps count.
    pub counters: Vec<Counter>,
    /// What maps count by size.
    pub histograms: Vec<Histogram>,
    /// What ring buffers tell.
    pub spans: Vec<Span>,
}

/// A counter for each key of a map, or for each kind of record of a perf event array.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// The map's name, and the metric's without its prefix.
    pub name: Spanned<String>,
    /// What it counts.
    #[serde(default)]
    pub help: String,
    /// The map is a `BPF_MAP_TYPE_PERF_EVENT_ARRAY`, and its records are counted.
    #[serde(default)]
    pub perf_event_array: bool,
    /// After this time the counts of records begin anew.
    #[serde(default, deserialize_with = "duration")]
    pub flush_interval: Duration,
    /// The parts of a key.
    #[serde(default, deserialize_with = "list")]
    pub labels: Vec<Label>,
}

/// A histogram for each key of a map but for its last part, which is the bucket.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// The map's name, and the metric's without its prefix.
    pub name: Spanned<String>,
    /// What it counts.
    #[serde(default)]
    pub help: String,
    /// What a bucket's number means.
    pub bucket_type: BucketType,
    /// By this a bucket's number is multiplied; 0: by 1.
    #[serde(default)]
    pub bucket_multiplier: f64,
    /// The first bucket.
    #[serde(default)]
    pub bucket_min: i64,
    /// The last bucket. What is in the next one is the sum.
    #[serde(default)]
    pub bucket_max: i64,
    /// All buckets, if they are fixed.
    #[serde(default, deserialize_with = "list")]
    pub bucket_keys: Vec<f64>,
    /// The parts of a key; the last is the bucket.
    #[serde(default, deserialize_with = "list")]
    pub labels: Vec<Label>,
}

/// What a bucket's number means.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum BucketType {
    /// Values up to this power of two.
    Exp2,
    /// The same, and the first bucket is for 0.
    Exp2zero,
    /// Values up to this number.
    Linear,
    /// Values up to one of the keys.
    Fixed,
}

/// Spans that are records of a ring buffer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The map's name.
    pub ringbuf: Spanned<String>,
    /// The spans' name, if no label `span_name` gives it.
    #[serde(default)]
    pub name: String,
    /// Whose spans these are.
    #[serde(default)]
    pub service: String,
    /// The parts of a record.
    #[serde(default, deserialize_with = "list")]
    pub labels: Vec<Label>,
}

/// A part of a key, and what it is called.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The label's name.
    pub name: Spanned<String>,
    /// Bytes that are decoded.
    #[serde(default)]
    pub size: usize,
    /// Bytes behind them that are passed over.
    #[serde(default)]
    pub padding: usize,
    /// What makes text of the bytes, one after the other.
    #[serde(default, deserialize_with = "list")]
    pub decoders: Vec<Decoder>,
}

impl Label {
    /// Bytes of a key.
    pub fn bytes(&self) -> usize {
        self.size + self.padding
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metrics {
    #[serde(default, deserialize_with = "list")]
    counters: Vec<Counter>,
    #[serde(default, deserialize_with = "list")]
    histograms: Vec<Histogram>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tracing {
    #[serde(default, deserialize_with = "list")]
    spans: Vec<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// (The file's name wins, as in ebpf_exporter.)
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default)]
    metrics: Option<Metrics>,
    #[serde(default)]
    tracing: Option<Tracing>,
    #[serde(default)]
    kaddrs: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    cgroup_id_map: Option<Spanned<CgroupIdMap>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CgroupIdMap {
    #[serde(rename = "name")]
    _name: String,
    #[serde(default, rename = "type")]
    _kind: Option<String>,
    #[serde(default, rename = "regexps")]
    _regexps: Option<Vec<String>>,
}

/// A list, or nothing.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(from).map(Option::unwrap_or_default)
}

/// A time as Go writes it (`time.ParseDuration`: `1m30s`), or a number of nanoseconds.
fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    struct Time;
    impl Visitor<'_> for Time {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a time such as 90s, 1h30m or 250ms")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
    }
    from.deserialize_str(Time)
}

fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    if let Ok(ns) = text.parse() {
        return Some(Duration::from_nanos(ns));
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let letters = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let number: f64 = rest[..digits].parse().ok()?;
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[digits..letters])?;
        seconds += number * unit;
        rest = &rest[letters..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok())?
}

impl Config {
    /// Reads the configuration `name` of a directory: `name.yaml`, beside which is `name.bpf.o`.
    ///
    /// # Errors
    /// The file cannot be read, or what is wrong at which line and column.
    pub fn read(directory: &Path, name: &str) -> Result<Config, String> {
        let path = directory.join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let object = directory.join(format!("{name}.bpf.o"));
        Config::parse(name, object, &text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Reads a configuration's text.
    ///
    /// # Errors
    /// What is wrong at which line and column.
    pub fn parse(name: &str, object: PathBuf, text: &str) -> Result<Config, String> {
        let document: Document = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if let Some(kaddrs) = &document.kaddrs {
            return Err(at(
                kaddrs.referenced,
                "kaddrs: programs run in processes here, and addresses of the kernel lead nowhere there; remove it",
            ));
        }
        if let Some(map) = &document.cgroup_id_map {
            return Err(at(
                map.referenced,
                "cgroup_id_map is not supported; let the program use bpf_get_current_cgroup_id, and the label the decoder cgroup",
            ));
        }
        let (metrics, tracing) = (document.metrics.unwrap_or_default(), document.tracing.unwrap_or_default());
        let config = Config {
            name: name.to_owned(),
            object,
            counters: metrics.counters,
            histograms: metrics.histograms,
            spans: tracing.spans,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        if self.counters.is_empty() && self.histograms.is_empty() && self.spans.is_empty() {
            return Err("neither metrics nor tracing: it has no counters, histograms and spans".to_owned());
        }
        for counter in &self.counters {
            check_metric("counter", &counter.name, &counter.help)?;
            check_labels(&counter.name, &counter.labels)?;
        }
        for histogram in &self.histograms {
            check_metric("histogram", &histogram.name, &histogram.help)?;
            check_labels(&histogram.name, &histogram.labels)?;
            histogram.check()?;
        }
        for span in &self.spans {
            check_labels(&span.ringbuf, &span.labels)?;
        }
        let names = self.counters.iter().map(|counter| &counter.name);
        let mut seen = BTreeMap::new();
        for name in names.chain(self.histograms.iter().map(|histogram| &histogram.name)) {
            if seen.insert(&name.value, ()).is_some() {
                return Err(at(name.referenced, &format!("two metrics are called {}", name.value)));
            }
        }
        Ok(())
    }
}

impl Histogram {
    fn check(&self) -> Result<(), String> {
        let fail = |what: &str| Err(at(self.name.referenced, &format!("histogram {}: {what}", self.name.value)));
        /// Buckets of a histogram at most: each is a line of every scrape.
        const BUCKETS_MAX: i64 = 10_000;
        match self.bucket_type {
            BucketType::Fixed if self.bucket_keys.is_empty() => fail("`fixed` wants bucket_keys"),
            BucketType::Fixed => Ok(()),
            _ if !self.bucket_keys.is_empty() => fail("bucket_keys are for the bucket_type `fixed`"),
            _ if self.bucket_max <= self.bucket_min => {
                fail("bucket_max must be more than bucket_min (exp2, exp2zero, linear)")
            }
            _ if self.bucket_max - self.bucket_min >= BUCKETS_MAX => fail("it has more than 10000 buckets"),
            _ if self.labels.is_empty() => fail("its last label is the bucket, and it has no labels"),
            _ => Ok(()),
        }
    }
}

fn check_metric(kind: &str, name: &Spanned<String>, help: &str) -> Result<(), String> {
    if !is_name(&name.value, true) {
        let why = format!(
            "{kind} `{}`: a metric's name has letters, digits, _ and :, and begins with no digit",
            name.value
        );
        return Err(at(name.referenced, &why));
    }
    if help.is_empty() {
        return Err(at(name.referenced, &format!("{kind} {} lacks `help`", name.value)));
    }
    Ok(())
}

fn check_labels(metric: &Spanned<String>, labels: &[Label]) -> Result<(), String> {
    for (index, label) in labels.iter().enumerate() {
        let fail = |what: &str| {
            Err(at(label.name.referenced, &format!("label {} of {}: {what}", label.name.value, metric.value)))
        };
        if !is_name(&label.name.value, false) || label.name.value.starts_with("__") {
            return fail("a label's name has letters, digits and _, and begins with no digit and no __");
        }
        if label.size == 0 {
            return fail("`size` is missing or 0");
        }
        if label.decoders.is_empty() {
            return fail("it has no `decoders`");
        }
        if labels[..index].iter().any(|other| other.name.value == label.name.value) {
            return fail("there are two labels of this name");
        }
    }
    Ok(())
}

/// A name of the Prometheus data model; colons are for metrics.
fn is_name(name: &str, colons: bool) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    !name.is_empty() && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn at(place: Location, what: &str) -> String {
    format!("line {} column {}: {what}", place.line(), place.column())
}

/// What a decoder's name and settings must be, before the decoder is made of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecoderSettings {
    pub(crate) name: Spanned<String>,
    #[serde(default)]
    pub(crate) static_map: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) regexps: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(crate) allow_unknown: bool,
}

impl<'de> Deserialize<'de> for Decoder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Decoder, D::Error> {
        let settings = DecoderSettings::deserialize(from)?;
        Decoder::new(&settings).map_err(|(place, why)| D::Error::custom(at(place, &why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse("test", PathBuf::from("test.bpf.o"), text)
    }

    #[test]
    fn what_the_format_has_is_read() {
        let text = "
metrics:
  counters:
    - name: calls_total
      help: Calls
      perf_event_array: true
      flush_interval: 1m30s
      labels:
        - name: kind
          size: 1
          padding: 3
          decoders:
            - name: uint
            - name: static_map
              allow_unknown: true
              static_map:
                0: none # a number is a key
                0x10: some
  histograms:
    - name: seconds
      help: Time
      bucket_type: exp2zero
      bucket_min: 0
      bucket_max: 26
      bucket_multiplier: 0.000001
      labels: [{name: bucket, size: 8, decoders: [{name: uint}]}]
tracing:
  spans:
    - {name: exec, ringbuf: spans, service: shell, labels: [{name: trace_id, size: 16, decoders: [{name: hex}]}]}
";
        let config = parse(text).expect("it is right");
        assert_eq!(config.counters[0].flush_interval, Duration::from_secs(90));
        assert_eq!(config.counters[0].labels[0].bytes(), 4);
        assert_eq!(config.histograms[0].bucket_type, BucketType::Exp2zero);
        assert_eq!((config.spans[0].service.as_str(), config.spans[0].labels.len()), ("shell", 1));
    }

    #[test]
    fn errors_have_a_place_and_a_reason() {
        let label = "metrics:\n  counters:\n    - name: a\n      help: b\n      labels:\n        - name: c\n";
        let cases = [
            ("metrics:\n  counter: []\n", "line 2 column 3: unknown field `counter`"),
            ("metrics:\n  counters:\n    - name: a\n", "line 3 column 13: counter a lacks `help`"),
            (&format!("{label}          decoders: [{{name: uint}}]\n"), "line 6 column 17: label c of a: `size`"),
            (&format!("{label}          size: 8\n"), "line 6 column 17: label c of a: it has no `decoders`"),
            (
                &format!("{label}          size: 8\n          decoders:\n            - name: unit\n"),
                "line 9 column 21: there is no decoder `unit`; the decoders are cgroup, dname,",
            ),
            (
                &format!(
                    "{label}          size: 8\n          decoders:\n            - name: regexp\n              regexps: ['(']\n"
                ),
                "line 10 column 25: regexp `(`: ",
            ),
            ("kaddrs: [a]\nmetrics:\n", "line 1 column 9: kaddrs: "),
            ("metrics:\n  counters: []\n", "neither metrics nor tracing"),
            (
                "metrics:\n  histograms:\n    - {name: h, help: h, bucket_type: log10}\n",
                "line 3 column 39: unknown variant `log10`",
            ),
            (
                "metrics:\n  histograms:\n    - {name: h, help: h, bucket_type: exp2, bucket_max: 0}\n",
                "line 3 column 14: histogram h: bucket_max",
            ),
            ("metrics: [\n", "line 1 column 10: expected mapping start"),
        ];
        for (text, expected) in cases {
            let why = parse(text).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn times_are_as_go_writes_them() {
        assert_eq!(parse_duration("1h2m3.5s"), Some(Duration::from_millis(3_723_500)));
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("1000"), Some(Duration::from_micros(1)));
        for wrong in ["", "s", "1x", "-1s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }
}
