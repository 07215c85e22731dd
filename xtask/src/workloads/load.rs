//! What loads a server, and what its output says.

use std::path::Path;
use std::process::Command;

use super::workload::Place;
use crate::web_server::Packages;

/// What makes the traced program work.
pub(crate) enum Load {
    /// It works by itself and ends: it is run again and again.
    Runs,
    /// As often as can be asked for this address by so many connections.
    Wrk { address: String, connections: u32 },
    /// `redis-benchmark` with SET and GET, by so many connections.
    Redis { connections: u32 },
    /// `pgbench -S` by so many clients.
    Pgbench { clients: u32 },
}

/// What was done.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    /// Requests, transactions or runs.
    pub(crate) units: f64,
    pub(crate) per_second: f64,
    /// The latency of the slowest hundredth.
    pub(crate) p99_ms: Option<f64>,
}

/// Requests of `redis-benchmark` for each second: it knows no time.
const REDIS_A_SECOND: usize = 40_000;

impl Load {
    /// How many requests may be under way when a load ends.
    pub(crate) fn under_way(&self) -> f64 {
        f64::from(match self {
            Load::Runs => 0,
            Load::Wrk { connections, .. } | Load::Redis { connections } => *connections,
            Load::Pgbench { clients } => *clients,
        })
    }

    /// The command that loads a server for some seconds, where there is one.
    pub(crate) fn command(&self, place: &Place, seconds: usize) -> Result<Command, String> {
        match self {
            Load::Runs => Err("this work is not a server's".to_owned()),
            Load::Wrk { address, connections } => wrk(place.packages, *connections, seconds, &[&place.fill(address)]),
            Load::Redis { connections } => {
                let mut command = Command::new("redis-benchmark");
                command.args(["-p", &place.port.to_string(), "-t", "set,get", "--csv"]);
                command.args(["-c", &connections.to_string(), "-n", &(seconds * REDIS_A_SECOND).to_string()]);
                Ok(command)
            }
            Load::Pgbench { clients } => {
                let mut command = Command::new("pgbench");
                command.args(["-n", "-S", "-h", "127.0.0.1", "-U", "postgres", "-p", &place.port.to_string()]);
                command.args(["-c", &clients.to_string(), "-T", &seconds.to_string(), "-l", "postgres"]);
                command.current_dir(place.directory.join(PGBENCH_LOGS));
                Ok(command)
            }
        }
    }

    /// What that command said.
    pub(crate) fn parse(&self, place: &Place, seconds: usize, text: &str) -> Result<Told, String> {
        let told = match self {
            Load::Runs => None,
            Load::Wrk { .. } => return parse_wrk(text),
            Load::Redis { .. } => parse_redis(text, (seconds * REDIS_A_SECOND) as f64),
            Load::Pgbench { .. } => {
                let latencies = latencies_us(&place.directory.join(PGBENCH_LOGS))?;
                parse_pgbench(text).map(|told| Told { p99_ms: p99(latencies).map(|us| us / 1000.0), ..told })
            }
        };
        told.ok_or_else(|| format!("the load generator said {text:?}"))
    }
}

/// Where `pgbench` leaves its logs, in the family's directory.
pub(super) const PGBENCH_LOGS: &str = "logs";

/// wrk with these arguments, among them an address.
pub(crate) fn wrk(
    packages: &Packages,
    connections: u32,
    seconds: usize,
    arguments: &[&str],
) -> Result<Command, String> {
    let mut wrk = Command::new(packages.program("usr/bin/wrk").ok_or("there is no wrk")?);
    packages.libraries().map(|libraries| wrk.env("LD_LIBRARY_PATH", libraries));
    wrk.args(["-t1", "--latency", &format!("-c{connections}"), &format!("-d{seconds}s")]).args(arguments);
    Ok(wrk)
}

/// What wrk says. Requests that failed are an error.
pub(crate) fn parse_wrk(text: &str) -> Result<Told, String> {
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return Err(format!("the server does not answer as it should: {text}"));
    }
    let after = |what: &str| text.split_once(what)?.1.split_whitespace().next();
    let requests = text.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    let per_second = after("Requests/sec:").and_then(|word| word.parse().ok());
    match (requests, per_second) {
        (Some(units), Some(per_second)) if units > 0.0 => {
            Ok(Told { units, per_second, p99_ms: after("99%").and_then(milliseconds) })
        }
        _ => Err(format!("wrk said {text:?}")),
    }
}

/// A time as wrk writes it.
fn milliseconds(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 6e4)];
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.parse::<f64>().ok()?, factor)))?;
    Some(number * factor)
}

/// The lines of `redis-benchmark --csv`, each of which is about so many requests of one command.
/// (Of `requests` for each command.)
pub(crate) fn parse_redis(text: &str, requests: f64) -> Option<Told> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("\"test\""));
    let names: Vec<&str> = lines.next()?.split(',').collect();
    let column = |name: &str| names.iter().position(|column| column.trim_matches('"') == name);
    let (rate, late) = (column("rps")?, column("p99_latency_ms")?);
    let (mut seconds, mut units, mut p99_ms) = (0.0, 0.0, 0.0f64);
    for line in lines {
        let cells: Vec<&str> = line.split(',').map(|cell| cell.trim_matches('"')).collect();
        seconds += requests / cells.get(rate)?.parse::<f64>().ok()?;
        units += requests;
        p99_ms = p99_ms.max(cells.get(late)?.parse().ok()?);
    }
    (units > 0.0).then(|| Told { units, per_second: units / seconds, p99_ms: Some(p99_ms) })
}

fn parse_pgbench(text: &str) -> Option<Told> {
    let after = |what: &str| text.split_once(what)?.1.split_whitespace().next()?.parse::<f64>().ok();
    let failed = after("number of failed transactions: ")?;
    let units = after("number of transactions actually processed: ")?;
    let per_second = after("tps = ")?;
    (failed == 0.0 && units > 0.0).then_some(Told { units, per_second, p99_ms: None })
}

/// The third numbers of all lines of all files in a directory, which are removed: `pgbench -l`.
fn latencies_us(directory: &Path) -> Result<Vec<f64>, String> {
    let text = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut latencies = vec![];
    for file in std::fs::read_dir(directory).map_err(text)? {
        let path = file.map_err(text)?.path();
        let log = std::fs::read_to_string(&path).map_err(text)?;
        latencies.extend(log.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok()));
        std::fs::remove_file(&path).map_err(text)?;
    }
    Ok(latencies)
}

/// The figure below which 99 of 100 are.
fn p99(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().checked_sub(1)? * 99 / 100).copied()
}

#[cfg(test)]
mod tests {
    use super::{Told, milliseconds, p99, parse_pgbench, parse_redis, parse_wrk};

    const WRK: &str = "Running 2s test @ https://127.0.0.1:7780/\n  1 threads and 20 connections\n  \
        Latency Distribution\n     50%  157.00us\n     99%    4.36ms\n  199824 requests in 2.00s, 217.82MB read\n\
        Requests/sec:  99888.03\nTransfer/sec:    108.88MB\n";

    #[test]
    fn wrk_tells_requests_rate_and_latency() {
        let told = Told { units: 199824.0, per_second: 99888.03, p99_ms: Some(4.36) };
        assert_eq!(parse_wrk(WRK), Ok(told));
    }

    #[test]
    fn requests_that_fail_are_an_error() {
        for errors in ["  Socket errors: connect 39921, read 2, write 0, timeout 0\n", "  Non-2xx responses: 3\n"] {
            assert!(parse_wrk(&WRK.replace("Requests/sec", &format!("{errors}Requests/sec"))).is_err());
        }
        assert!(parse_wrk("wrk: unable to connect").is_err());
    }

    #[test]
    fn times_have_units() {
        assert_eq!(milliseconds("552.00us"), Some(0.552));
        assert_eq!(milliseconds("1.50s"), Some(1500.0));
        assert_eq!(milliseconds("fast"), None);
    }

    #[test]
    fn commands_of_redis_are_added_up() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
            \"p99_latency_ms\",\"max_latency_ms\"\n\"SET\",\"100000.00\",\"0.1\",\"0.1\",\"0.1\",\"0.1\",\"0.159\",\"1.5\"\n\
            \"GET\",\"50000.00\",\"0.1\",\"0.1\",\"0.1\",\"0.1\",\"0.3\",\"1.5\"\n";
        let told = parse_redis(text, 100_000.0).expect("it is well formed");
        assert_eq!(told.units, 200_000.0);
        assert!((told.per_second - 200_000.0 / 3.0).abs() < 1e-6);
        assert_eq!(told.p99_ms, Some(0.3));
        assert_eq!(parse_redis("Could not connect to Redis\n", 1.0), None);
    }

    #[test]
    fn pgbench_must_not_fail() {
        let text = "number of transactions actually processed: 66512\nnumber of failed transactions: 0 (0.000%)\n\
            latency average = 0.120 ms\ntps = 33350.966878 (without initial connection time)\n";
        let told = Told { units: 66512.0, per_second: 33350.966878, p99_ms: None };
        assert_eq!(parse_pgbench(text), Some(told));
        assert_eq!(parse_pgbench(&text.replace(": 0 (", ": 1 (")), None);
    }

    #[test]
    fn the_slowest_hundredth_is_found() {
        assert_eq!(p99((1..=101).map(f64::from).collect()), Some(100.0));
        assert_eq!(p99(vec![]), None);
    }
}
