//! Prometheus' text format (version 0.0.4; prometheus.io/docs/instrumenting/exposition_formats).
//!
//! It is written here, and not by a crate, because numbers must be those of ebpf_exporter to the byte: a bound of a bucket is the value
//! of a label (`le="1e-06"`), by which stored series and dashboards find it, and the crates write it as `0.000001`.

use std::fmt::Write as _;

use crate::metric::{Buckets, Family, Kind, Value};

/// The format's media type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes families that have samples, by name; samples by the values of their labels, labels by name.
pub fn write(families: &[Family]) -> String {
    let mut out = String::new();
    let mut sorted: Vec<&Family> = families.iter().filter(|family| !family.samples.is_empty()).collect();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    for family in sorted {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(out, "# HELP {} {help}\n# TYPE {} {kind}", family.name, family.name);
        let mut order: Vec<usize> = (0..family.labels.len()).collect();
        order.sort_by(|one, other| family.labels[*one].cmp(&family.labels[*other]));
        let mut rows: Vec<(Vec<&str>, &Value)> = family
            .samples
            .iter()
            .map(|(labels, value)| (order.iter().map(|index| labels[*index].as_str()).collect(), value))
            .collect();
        rows.sort_by(|one, other| one.0.cmp(&other.0));
        for (values, value) in rows {
            let names = order.iter().map(|index| family.labels[*index].as_str());
            let labels: Vec<String> =
                names.zip(values).map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            match value {
                Value::Number(number) => line(&mut out, &family.name, &labels, *number),
                Value::Buckets(buckets) => histogram(&mut out, &family.name, &labels, buckets),
            }
        }
    }
    out
}

fn histogram(out: &mut String, name: &str, labels: &[String], buckets: &Buckets) {
    let mut sorted = buckets.counts.clone();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut below = 0;
    for (bound, count) in sorted {
        below += count;
        let labels = [labels, &[format!("le=\"{}\"", number(bound))]].concat();
        line(out, &format!("{name}_bucket"), &labels, below as f64);
    }
    let labels_of_all = [labels, &["le=\"+Inf\"".to_owned()]].concat();
    line(out, &format!("{name}_bucket"), &labels_of_all, below as f64);
    line(out, &format!("{name}_sum"), labels, buckets.sum.unwrap_or(0.0));
    line(out, &format!("{name}_count"), labels, below as f64);
}

fn line(out: &mut String, name: &str, labels: &[String], value: f64) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(out, "{name}{labels} {}", number(value));
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

/// A number as Go's `strconv.FormatFloat(value, 'g', -1, 64)` writes it: the shortest digits that give the same number, with an
/// exponent below 1e-4 and from 1e6 on.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value.is_nan() {
        return "NaN".to_owned();
    }
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e').expect("it has an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_go_writes_them() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (100_000.0, "100000"),
            (999_999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (67.108864, "67.108864"),
            (0.0001, "0.0001"),
            (0.000128, "0.000128"),
            (0.00001, "1e-05"),
            (0.000001, "1e-06"),
            (1.6e-05, "1.6e-05"),
            (1e21, "1e+21"),
            (1e100, "1e+100"),
            (f64::INFINITY, "+Inf"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn families_and_labels_are_in_order_and_escaped() {
        let mut one = Family::new(Kind::Counter, "b_total", "One\nand \\", &["z", "a"]);
        one.set(&["2", "say \"\\\n\""], 3.0);
        one.set(&["1", "x"], 1e7);
        let mut histogram = Family::new(Kind::Histogram, "a_seconds", "Time", &["k"]);
        let buckets = Buckets { counts: vec![(0.000002, 1), (0.000001, 2)], sum: None };
        histogram.samples.insert(vec!["v".into()], Value::Buckets(buckets));
        let empty = Family::new(Kind::Gauge, "c", "Nothing", &[]);
        let expected = "\
# HELP ebpf_exporter_a_seconds Time
# TYPE ebpf_exporter_a_seconds histogram
ebpf_exporter_a_seconds_bucket{k=\"v\",le=\"1e-06\"} 2
ebpf_exporter_a_seconds_bucket{k=\"v\",le=\"2e-06\"} 3
ebpf_exporter_a_seconds_bucket{k=\"v\",le=\"+Inf\"} 3
ebpf_exporter_a_seconds_sum{k=\"v\"} 0
ebpf_exporter_a_seconds_count{k=\"v\"} 3
# HELP ebpf_exporter_b_total One\\nand \\\\
# TYPE ebpf_exporter_b_total counter
ebpf_exporter_b_total{a=\"say \\\"\\\\\\n\\\"\",z=\"2\"} 3
ebpf_exporter_b_total{a=\"x\",z=\"1\"} 1e+07
";
        assert_eq!(write(&[one, empty, histogram]), expected);
    }
}
