//! OTLP over HTTP (opentelemetry.io/docs/specs/otlp, binary protobuf): metrics are sent on an interval, spans soon.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use prost::Message;

use crate::exporter::Exporter;
use crate::metric::{Family, Kind, Value};
use crate::sinks::LOOK;
use crate::spans::{SERVICE, SpanSource, Told, now_ns, unix_ns};

/// A collector must answer within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Spans wait for others so long.
const SPANS_EVERY: Duration = Duration::from_secs(1);
/// Spans of one request at most.
const SPANS_MAX: usize = 512;
/// Spans that wait for a collector at most; the oldest are given up first.
const WAITING_MAX: usize = 8192;
/// Whose scope samples and spans are of.
const SCOPE: &str = "ring3-export";

/// A collector of metrics and spans.
#[derive(Debug)]
pub struct Collector {
    endpoint: String,
    interval: Duration,
    agent: ureq::Agent,
    waiting: Mutex<VecDeque<Told>>,
    given_up: AtomicU64,
}

/// A collector's base URL, to which `/v1/metrics` and `/v1/traces` are added (as OTEL_EXPORTER_OTLP_ENDPOINT).
///
/// # Errors
/// It is none, or not of HTTP.
pub fn endpoint(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    match url.split_once("://") {
        Some(("http", host)) if !host.is_empty() => Ok(url.to_owned()),
        Some(("https", _)) => {
            Err("https is not built in; send to a collector on this machine, http://localhost:4318".to_owned())
        }
        _ => Err("the base URL of a collector is wanted, such as http://localhost:4318".to_owned()),
    }
}

impl Collector {
    /// The collector at a base URL, to which metrics go on an interval.
    pub fn new(endpoint: String, interval: Duration) -> Collector {
        let config = ureq::Agent::config_builder().timeout_global(Some(ANSWER_WITHIN)).build();
        Collector { endpoint, interval, agent: config.into(), waiting: Mutex::default(), given_up: AtomicU64::new(0) }
    }

    /// Sends metrics and spans as long as `goes_on`, and then once more.
    ///
    /// # Errors
    /// A ring buffer cannot be mapped. (What a collector says is said on standard error, and sending goes on.)
    pub fn run(&self, exporter: &Exporter, goes_on: impl Fn() -> bool + Sync) -> Result<(), String> {
        let mut sources = exporter.span_sources()?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while goes_on() {
                    self.take_spans(exporter, &mut sources);
                    std::thread::sleep(LOOK);
                }
                self.take_spans(exporter, &mut sources);
            });
            let mut complaint = None;
            let (mut metrics_at, mut spans_at) = (Instant::now(), Instant::now());
            while goes_on() {
                let mut result = Ok(());
                if Instant::now() >= spans_at {
                    spans_at = Instant::now() + SPANS_EVERY;
                    result = self.send_spans();
                }
                if Instant::now() >= metrics_at {
                    metrics_at = Instant::now() + self.interval;
                    result = self.send_metrics(exporter).and(result);
                }
                say(&mut complaint, result);
                std::thread::sleep(LOOK);
            }
        });
        let result = self.send_metrics(exporter).and(self.send_spans());
        if let Err(why) = result {
            eprintln!("ring3: the last metrics and spans were not sent: {why}");
        }
        Ok(())
    }

    fn take_spans(&self, exporter: &Exporter, sources: &mut [SpanSource<'_>]) {
        for source in sources {
            source.take(exporter, |told| {
                let mut waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if waiting.len() >= WAITING_MAX {
                    waiting.pop_front();
                    self.given_up.fetch_add(1, Ordering::Relaxed);
                }
                waiting.push_back(told);
            });
        }
    }

    fn send_metrics(&self, exporter: &Exporter) -> Result<(), String> {
        let mut families = exporter.gather()?;
        let help = "Spans that no collector took in time";
        let mut given_up = Family::new(Kind::Counter, "spans_dropped_total", help, &[]);
        given_up.set(&[], self.given_up.load(Ordering::Relaxed) as f64);
        families.push(given_up);
        let request = metrics_request(&families, unix_ns(exporter.since()), now_ns());
        self.post("metrics", &request.encode_to_vec())
    }

    /// Sends what waits; what cannot be sent goes on waiting.
    fn send_spans(&self) -> Result<(), String> {
        loop {
            let spans: Vec<Told> = {
                let mut waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let count = waiting.len().min(SPANS_MAX);
                waiting.drain(..count).collect()
            };
            if spans.is_empty() {
                return Ok(());
            }
            if let Err(why) = self.post("traces", &spans_request(&spans).encode_to_vec()) {
                let mut waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                spans.into_iter().rev().for_each(|told| waiting.push_front(told));
                return Err(why);
            }
        }
    }

    fn post(&self, what: &str, body: &[u8]) -> Result<(), String> {
        let url = format!("{}/v1/{what}", self.endpoint);
        let sent = self.agent.post(&url).header("Content-Type", "application/x-protobuf").send(body);
        sent.map(drop).map_err(|error| format!("{url}: {error}"))
    }
}

/// Says what a collector says, once until it says something else.
fn say(last: &mut Option<String>, result: Result<(), String>) {
    match result {
        Ok(()) => *last = None,
        Err(why) => {
            if last.as_ref() != Some(&why) {
                eprintln!("ring3: {why}; sending goes on");
            }
            *last = Some(why);
        }
    }
}

/// An attribute that is text.
pub(crate) fn attribute(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn resource(service: &str) -> Option<Resource> {
    Some(Resource { attributes: vec![attribute("service.name", service)], ..Resource::default() })
}

fn scope() -> Option<InstrumentationScope> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Some(InstrumentationScope { name: SCOPE.to_owned(), version, ..InstrumentationScope::default() })
}

/// Whose metrics these are: `OTEL_SERVICE_NAME`, as the specification has it.
fn own_service() -> String {
    std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| SERVICE.to_owned())
}

fn spans_request(spans: &[Told]) -> ExportTraceServiceRequest {
    let mut by_service = BTreeMap::<&str, Vec<_>>::new();
    for told in spans {
        by_service.entry(&told.service).or_default().push(told.span.clone());
    }
    let of_service = |(service, spans)| ResourceSpans {
        resource: resource(service),
        scope_spans: vec![ScopeSpans { scope: scope(), spans, ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: by_service.into_iter().map(of_service).collect() }
}

fn metrics_request(families: &[Family], since_ns: u64, now_ns: u64) -> ExportMetricsServiceRequest {
    let filled = families.iter().filter(|family| !family.samples.is_empty());
    let metrics = filled.map(|family| metric_of(family, since_ns, now_ns)).collect();
    let scoped = ScopeMetrics { scope: scope(), metrics, ..ScopeMetrics::default() };
    let resource = resource(&own_service());
    let of_us = ResourceMetrics { resource, scope_metrics: vec![scoped], ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![of_us] }
}

fn metric_of(family: &Family, since_ns: u64, now_ns: u64) -> Metric {
    let attributes = |values: &[String]| -> Vec<KeyValue> {
        family.labels.iter().zip(values).map(|(name, value)| attribute(name, value)).collect()
    };
    let (mut numbers, mut histograms) = (vec![], vec![]);
    for (labels, value) in &family.samples {
        match value {
            Value::Number(number) => numbers.push(NumberDataPoint {
                attributes: attributes(labels),
                start_time_unix_nano: if family.kind == Kind::Gauge { 0 } else { since_ns },
                time_unix_nano: now_ns,
                value: Some(number_data_point::Value::AsDouble(*number)),
                ..NumberDataPoint::default()
            }),
            Value::Buckets(buckets) => {
                let mut counts = buckets.counts.clone();
                counts.sort_by(|one, other| one.0.total_cmp(&other.0));
                // (Behind the last bound there is one more bucket, into which ebpf_exporter puts nothing.)
                let bucket_counts = counts.iter().map(|(_, count)| *count).chain([0]).collect();
                histograms.push(HistogramDataPoint {
                    attributes: attributes(labels),
                    start_time_unix_nano: since_ns,
                    time_unix_nano: now_ns,
                    count: buckets.total(),
                    sum: buckets.sum,
                    bucket_counts,
                    explicit_bounds: counts.iter().map(|(bound, _)| *bound).collect(),
                    ..HistogramDataPoint::default()
                });
            }
        }
    }
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.kind {
        Kind::Gauge => metric::Data::Gauge(Gauge { data_points: numbers }),
        Kind::Counter => {
            metric::Data::Sum(Sum { data_points: numbers, aggregation_temporality: cumulative, is_monotonic: true })
        }
        Kind::Histogram => {
            metric::Data::Histogram(Histogram { data_points: histograms, aggregation_temporality: cumulative })
        }
    };
    let (name, description) = (family.name.clone(), family.help.clone());
    Metric { name, description, data: Some(data), ..Metric::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Buckets;

    #[test]
    fn collectors_are_named_by_their_base() {
        assert_eq!(endpoint("http://localhost:4318/").as_deref(), Ok("http://localhost:4318"));
        assert!(endpoint("https://host").expect_err("not built in").contains("http://localhost:4318"));
        assert!(endpoint("localhost:4318").is_err() && endpoint("http://").is_err());
    }

    #[test]
    fn metrics_are_as_the_specification_has_them() {
        let mut counter = Family::new(Kind::Counter, "a_total", "A", &["x"]);
        counter.set(&["1"], 2.0);
        let mut histogram = Family::new(Kind::Histogram, "b", "B", &[]);
        let buckets = Buckets { counts: vec![(2.0, 1), (1.0, 5)], sum: Some(9.0) };
        histogram.samples.insert(vec![], Value::Buckets(buckets));
        let request = metrics_request(&[counter, histogram, Family::new(Kind::Gauge, "c", "C", &[])], 1, 7);
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        assert_eq!(metrics.len(), 2);
        let Some(metric::Data::Sum(sum)) = &metrics[0].data else { panic!("a counter is a sum") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == AggregationTemporality::Cumulative as i32);
        assert_eq!(sum.data_points[0].attributes, [attribute("x", "1")]);
        assert_eq!((sum.data_points[0].start_time_unix_nano, sum.data_points[0].time_unix_nano), (1, 7));
        let Some(metric::Data::Histogram(histogram)) = &metrics[1].data else { panic!("a histogram") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (6, Some(9.0)));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[5, 1, 0][..], &[1.0, 2.0][..]));
    }
}
