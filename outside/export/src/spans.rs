//! Spans: records of ring buffers, as `tracing/extract.go` of ebpf_exporter reads them. Some labels have a meaning: `trace_id`,
//! `parent_span_id`, `span_id`, `span_monotonic_timestamp_ns`, `span_duration_ns`, `span_name`; the others are attributes.

use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{self as proto};
use ring3_bpf::RingBuffer;
use rustix::rand::GetRandomFlags;
use rustix::time::{ClockId, clock_gettime};

use crate::config::Span;
use crate::exporter::Exporter;
use crate::otlp::attribute;

/// Whose spans these are if the configuration does not say.
pub(crate) const SERVICE: &str = "ebpf_exporter";

/// A ring buffer whose records are spans.
#[derive(Debug)]
pub(crate) struct SpanSource<'e> {
    config: &'e str,
    span: &'e Span,
    ring: RingBuffer,
}

/// A span, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) service: String,
    pub(crate) span: proto::Span,
}

impl<'e> SpanSource<'e> {
    pub(crate) fn open(config: &'e str, span: &'e Span, map: &OwnedFd, bytes: u32) -> Result<SpanSource<'e>, String> {
        let ring = RingBuffer::map(map, bytes as usize);
        Ok(SpanSource { config, span, ring: ring.map_err(|error| format!("map {}: {error}", span.ringbuf.value))? })
    }

    /// Hands over the spans that the ring buffer tells of.
    pub(crate) fn take(&mut self, exporter: &Exporter, mut each: impl FnMut(Told)) {
        let SpanSource { config, span, ring } = self;
        let bytes: usize = span.labels.iter().map(|label| label.bytes()).sum();
        ring.take(|record| {
            let told = &record[..bytes.min(record.len())];
            let Some(values) = exporter.values(config, told, &span.labels) else { return };
            match make(config, span, &values, now_ns(), monotonic_ns()) {
                Ok(made) => {
                    let service = Some(&span.service).filter(|service| !service.is_empty());
                    each(Told { service: service.map_or(SERVICE, String::as_str).to_owned(), span: made });
                }
                Err(why) => exporter.complain(config, &why),
            }
        });
    }
}

fn make(config: &str, of: &Span, values: &[String], now_ns: u64, monotonic_ns: u64) -> Result<proto::Span, String> {
    let name = Some(&of.name).filter(|name| !name.is_empty()).unwrap_or(&of.ringbuf.value);
    let mut span = proto::Span { name: name.clone(), kind: SpanKind::Internal.into(), ..proto::Span::default() };
    let (mut start, mut duration) = (now_ns, 0);
    let mut attributes: Vec<KeyValue> = vec![];
    for (label, value) in of.labels.iter().zip(values) {
        let name = label.name.value.as_str();
        let wrong = |wanted: &str| format!("label {name} of a span is `{value}`, and {wanted} is wanted");
        let number = || value.parse::<u64>().map_err(|_| wrong("a number of nanoseconds"));
        match name {
            "trace_id" => span.trace_id = identifier(value, 16).ok_or_else(|| wrong("32 hexadecimal digits"))?,
            "span_id" => span.span_id = identifier(value, 8).ok_or_else(|| wrong("16 hexadecimal digits"))?,
            "parent_span_id" => {
                span.parent_span_id = identifier(value, 8).ok_or_else(|| wrong("16 hexadecimal digits"))?;
            }
            "span_monotonic_timestamp_ns" => {
                let since = number()? as i64;
                start = now_ns.wrapping_add_signed(since.wrapping_sub(monotonic_ns as i64));
            }
            "span_duration_ns" => duration = number()?,
            "span_name" => span.name = value.clone(),
            _ => attributes.push(attribute(name, value)),
        }
    }
    // (Those without a number are of a trace of their own, or of a number of our making.)
    if span.trace_id.is_empty() {
        span.trace_id = random(16);
        span.parent_span_id.clear();
    }
    if span.span_id.is_empty() {
        span.span_id = random(8);
    }
    attributes.push(attribute("ebpf_exporter.config", config));
    span.attributes = attributes;
    span.start_time_unix_nano = start;
    span.end_time_unix_nano = start.saturating_add(duration);
    Ok(span)
}

/// A number in hexadecimal digits; empty if it is 0, which means that there is none.
fn identifier(text: &str, bytes: usize) -> Option<Vec<u8>> {
    if text.len() != 2 * bytes {
        return None;
    }
    let digits = text.as_bytes().chunks_exact(2);
    let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let number: Vec<u8> = digits.map(digit).collect::<Option<_>>()?;
    Some(if number.iter().all(|byte| *byte == 0) { vec![] } else { number })
}

fn random(bytes: usize) -> Vec<u8> {
    let mut number = vec![0; bytes];
    // (So few bytes are never cut short, and an early boot is over.)
    let _ = rustix::rand::getrandom(&mut number, GetRandomFlags::empty());
    number
}

pub(crate) fn now_ns() -> u64 {
    unix_ns(SystemTime::now())
}

pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn labels_with_a_meaning_make_the_span() {
        let names = [
            "trace_id",
            "parent_span_id",
            "span_id",
            "span_monotonic_timestamp_ns",
            "span_duration_ns",
            "span_name",
            "user",
        ];
        let labels: Vec<String> =
            names.iter().map(|name| format!("{{name: {name}, size: 8, decoders: [{{name: string}}]}}")).collect();
        let text = format!("tracing: {{spans: [{{name: exec, ringbuf: spans, labels: [{}]}}]}}", labels.join(", "));
        let config = Config::parse("test", "test.bpf.o".into(), &text).expect("it is right");
        let made = |values: [&str; 7]| make("test", &config.spans[0], &values.map(str::to_owned), 10_000, 4_000);

        let trace = "beef000000000000feed000000000000";
        let span = made([trace, "feed000000000000", "beef000000000000", "3000", "500", "ls", "root"]).expect("right");
        assert_eq!((span.trace_id[0], span.trace_id.len()), (0xbe, 16));
        assert_eq!((span.parent_span_id[0], span.span_id[0]), (0xfe, 0xbe));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (9_000, 9_500));
        assert_eq!(span.name, "ls");
        assert_eq!(span.attributes, [attribute("user", "root"), attribute("ebpf_exporter.config", "test")]);

        let zero = ["0".repeat(32), "0".repeat(16)];
        let span = made([&zero[0], &zero[1], &zero[1], "4000", "0", "ls", ""]).expect("right");
        assert!(span.trace_id.iter().any(|byte| *byte != 0) && span.span_id.iter().any(|byte| *byte != 0));
        assert!(span.parent_span_id.is_empty());

        let why = made([trace, "feed", "", "0", "0", "", ""]).expect_err("it is short");
        assert!(why.contains("label parent_span_id of a span is `feed`"), "{why}");
    }
}
