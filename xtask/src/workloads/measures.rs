//! What is measured of a row, and how it is shown: one line for each variant.

use serde_json::{Value, json};

use super::load::Told;
use crate::bench::Spread;

/// What one measurement found.
pub(crate) struct Measured {
    pub(crate) told: Told,
    /// CPU time of the traced program, in microseconds.
    pub(crate) cpu_us: f64,
    /// CPU time of who traces: the tool, and ring3's server.
    pub(crate) tool_us: Option<f64>,
}

/// A figure per round.
#[derive(Default)]
pub(crate) struct Series {
    pub(crate) per_second: Vec<f64>,
    /// CPU time of the traced program for each unit of work, in microseconds.
    pub(crate) cpu_us: Vec<f64>,
    pub(crate) p99_ms: Vec<f64>,
    /// CPU time of who traces for each unit of work, in microseconds.
    pub(crate) tool_us: Vec<f64>,
    /// Events that were read for each unit of work.
    pub(crate) events: Vec<f64>,
    /// Events that were lost, in percent.
    pub(crate) events_lost: Vec<f64>,
}

impl Series {
    pub(crate) fn push(&mut self, measured: &Measured) {
        let told = &measured.told;
        self.per_second.push(told.per_second);
        self.cpu_us.push(measured.cpu_us / told.units);
        self.p99_ms.extend(told.p99_ms);
        self.tool_us.extend(measured.tool_us.map(|us| us / told.units));
    }

    /// What of the work of the same rounds is missing, in percent.
    pub(crate) fn lost(&self, plain: &Series) -> Option<Spread> {
        changed(&plain.per_second, &self.per_second).map(Spread::negative)
    }

    /// How much more CPU time a unit of work takes, in percent.
    pub(crate) fn cpu_added(&self, plain: &Series) -> Option<Spread> {
        changed(&plain.cpu_us, &self.cpu_us)
    }

    /// A line of the table; `plain` is what it is compared with.
    pub(crate) fn line(&self, plain: Option<&Series>) -> String {
        let percent = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| spread.to_string());
        let figure = |figures: &[f64]| {
            Spread::of(figures).map_or_else(String::new, |Spread { median, .. }| {
                let places = if median < 10.0 { 2 } else { usize::from(median < 1000.0) };
                format!("{median:.places$}")
            })
        };
        format!(
            "{:>10} {:<24}{:>10} {:<24}{:>8}{:>10}{:>10}{:>8}",
            figure(&self.per_second),
            percent(plain.and_then(|plain| self.lost(plain))),
            figure(&self.cpu_us),
            percent(plain.and_then(|plain| self.cpu_added(plain))),
            figure(&self.p99_ms),
            figure(&self.tool_us),
            figure(&self.events),
            Spread::of(&self.events_lost).map_or_else(String::new, |lost| format!("{:.1}", lost.median)),
        )
        .trim_end()
        .to_owned()
    }

    pub(crate) fn json(&self, plain: Option<&Series>) -> Value {
        json!({
            "per_second": self.per_second, "cpu_us": self.cpu_us, "p99_ms": self.p99_ms, "tool_us": self.tool_us,
            "events": self.events, "events_lost_percent": self.events_lost,
            "lost_percent": plain.and_then(|plain| self.lost(plain)).map(|spread| spread.median),
            "cpu_added_percent": plain.and_then(|plain| self.cpu_added(plain)).map(|spread| spread.median),
        })
    }
}

/// The head over [`Series::line`].
pub(crate) fn head() -> String {
    format!(
        "{:>10} {:<24}{:>10} {:<24}{:>8}{:>10}{:>10}{:>8}",
        "a second", " lost, %", "CPU us", "added, %", "p99 ms", "tracer us", "events", "lost, %"
    )
}

/// What of the plain figures of the same rounds is missing or added, in percent.
fn changed(plain: &[f64], ours: &[f64]) -> Option<Spread> {
    Spread::of(&plain.iter().zip(ours).map(|(plain, ours)| 100.0 * (ours - plain) / plain).collect::<Vec<_>>())
}

/// The load average of a minute.
pub(crate) fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Measured, Series, Told};

    #[test]
    fn figures_are_compared_with_those_of_the_same_round() {
        let measured = |per_second, cpu_us| Measured {
            told: Told { units: 10.0, per_second, p99_ms: None },
            cpu_us,
            tool_us: None,
        };
        let (mut plain, mut ours) = (Series::default(), Series::default());
        for (theirs, mine) in [(100.0, 90.0), (200.0, 180.0), (50.0, 45.0)] {
            plain.push(&measured(theirs, 1000.0));
            ours.push(&measured(mine, 1200.0));
        }
        assert_eq!(ours.lost(&plain).map(|spread| spread.median), Some(10.0));
        assert_eq!(ours.cpu_added(&plain).map(|spread| spread.median), Some(20.0));
        assert_eq!(ours.cpu_us, [120.0; 3]);
    }
}
