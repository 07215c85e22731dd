//! Metrics: families of samples, and histograms made of buckets.

use std::collections::BTreeMap;

use crate::config::{BucketType, Histogram};

/// Before the name of every metric.
pub(crate) const PREFIX: &str = "ebpf_exporter_";

/// What kind of metric a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It grows.
    Counter,
    /// It is now.
    Gauge,
    /// Values counted by size.
    Histogram,
}

/// Samples of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The metric's whole name.
    pub name: String,
    /// What it is.
    pub help: String,
    /// Its kind.
    pub kind: Kind,
    /// The names of labels.
    pub labels: Vec<String>,
    /// Values, by those of the labels, in the order of `labels`.
    pub samples: BTreeMap<Vec<String>, Value>,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or gauge.
    Number(f64),
    /// Of a histogram.
    Buckets(Buckets),
}

/// What a histogram has counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper bounds, and how many values were in each bucket alone.
    pub counts: Vec<(f64, u64)>,
    /// The sum of all values, if the program keeps it.
    pub sum: Option<f64>,
}

impl Buckets {
    /// How many values there were.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

impl Family {
    pub(crate) fn new(kind: Kind, name: &str, help: &str, labels: &[&str]) -> Family {
        Family {
            name: format!("{PREFIX}{name}"),
            help: help.to_owned(),
            kind,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            samples: BTreeMap::new(),
        }
    }

    pub(crate) fn set(&mut self, labels: &[&str], value: f64) {
        self.samples.insert(labels.iter().map(|label| (*label).to_owned()).collect(), Value::Number(value));
    }
}

/// Makes a histogram of counts by bucket number.
pub(crate) fn buckets(counts: &BTreeMap<u64, u64>, of: &Histogram) -> Buckets {
    let multiplier = if of.bucket_multiplier == 0.0 { 1.0 } else { of.bucket_multiplier };
    // (Numbers of buckets are whole and not negative; keys of a configuration need not be.)
    let count = |key: f64| {
        let is_whole = key >= 0.0 && key.fract() == 0.0;
        if is_whole { counts.get(&(key as u64)).copied() } else { None }
    };
    let bound = |key: f64| match of.bucket_type {
        BucketType::Exp2 => key.exp2() * multiplier,
        BucketType::Exp2zero if key == 0.0 => 0.0,
        BucketType::Exp2zero => (key - 1.0).exp2() * multiplier,
        BucketType::Linear | BucketType::Fixed => key * multiplier,
    };
    let keys: Vec<f64> = match of.bucket_type {
        BucketType::Fixed => of.bucket_keys.clone(),
        _ => (of.bucket_min..=of.bucket_max).map(|key| key as f64).collect(),
    };
    let sum = keys.last().and_then(|last| count(last + 1.0)).map(|sum| sum as f64 * multiplier);
    Buckets { counts: keys.into_iter().map(|key| (bound(key), count(key).unwrap_or(0))).collect(), sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn made(settings: &str, counts: &[(u64, u64)]) -> Buckets {
        let text = format!(
            "metrics: {{histograms: [{{name: h, help: h, {settings}, labels: [{{name: b, size: 8, decoders: [{{name: uint}}]}}]}}]}}"
        );
        let config = Config::parse("test", "test.bpf.o".into(), &text).expect("it is right");
        buckets(&counts.iter().copied().collect(), &config.histograms[0])
    }

    #[test]
    fn buckets_have_the_bounds_of_their_type() {
        let exp2 = made("bucket_type: exp2, bucket_max: 2", &[(0, 1), (2, 3), (3, 12), (9, 9)]);
        assert_eq!(exp2.counts, [(1.0, 1), (2.0, 0), (4.0, 3)]);
        assert_eq!((exp2.sum, exp2.total()), (Some(12.0), 4));
        let zero = made("bucket_type: exp2zero, bucket_max: 2, bucket_multiplier: 0.5", &[(0, 1), (1, 2)]);
        assert_eq!((zero.counts, zero.sum), (vec![(0.0, 1), (0.5, 2), (1.0, 0)], None));
        let linear =
            made("bucket_type: linear, bucket_min: 1, bucket_max: 3, bucket_multiplier: 10", &[(1, 1), (4, 7)]);
        assert_eq!((linear.counts, linear.sum), (vec![(10.0, 1), (20.0, 0), (30.0, 0)], Some(70.0)));
        let fixed = made("bucket_type: fixed, bucket_keys: [1, 5, 2.5], bucket_multiplier: 2", &[(5, 4), (1, 1)]);
        assert_eq!((fixed.counts, fixed.sum), (vec![(2.0, 1), (10.0, 4), (5.0, 0)], None));
    }
}
