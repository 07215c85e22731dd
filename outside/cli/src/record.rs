//! `ring3 record`: events into files; `ring3 convert`: recorded events into other files.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ring3_formats::ctf::{Ctf, Sizes, Trace};
use ring3_formats::{FlameGraph, HeatMap, JsonLines, NoSymbols, Origin, Perfetto, Script, Sink, Weight};

use crate::Failure;
use crate::trace::{SLEEP, SLEEP_MAX};
use crate::traced::{Begun, For, What, wrong};

/// How often what was recorded is given to the operating system, and the terminal shows how much.
const FLUSH: Duration = Duration::from_secs(1);
/// Bytes of a file's buffer.
const BUFFER_BYTES: usize = 1 << 18;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Common Trace Format 1.8, a directory: babeltrace2, Trace Compass, `ring3 convert`
    Ctf,
    /// Perfetto's protobuf: ui.perfetto.dev
    Perfetto,
    /// JSON, an object a line
    Json,
    /// Lines as `perf script` writes them
    Script,
    /// A flame graph (SVG)
    Flamegraph,
    /// A heat map of the latencies of each kind of event (SVG)
    Heatmap,
}

/// What the width of a flame graph's frame means.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Width {
    /// How many events
    #[default]
    Count,
    /// How long they took together
    Time,
}

/// `ring3 record`
#[derive(Debug, Args)]
pub(crate) struct Record {
    #[command(flatten)]
    what: What,
    /// The file to write; for ctf, the directory, which must be new or empty
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// What to write; by default what the name ends with says (.pftrace, .json, .jsonl, .txt), else ctf
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// What the width of a flame graph's frame means
    #[arg(long, value_enum, default_value_t)]
    weight: Width,
}

/// `ring3 convert`
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// The directory that `ring3 record` wrote
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// What to write; by default what the name ends with says (.pftrace, .json, .jsonl, .txt)
    #[arg(long = "to", value_enum)]
    format: Option<Format>,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What the width of a flame graph's frame means
    #[arg(long, value_enum, default_value_t)]
    weight: Width,
}

/// What the ending of a file's name says.
fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "pftrace" | "perfetto-trace" => Some(Format::Perfetto),
        "json" | "jsonl" => Some(Format::Json),
        "txt" => Some(Format::Script),
        _ => None,
    }
}

fn open(format: Format, path: &Path, origin: Origin, weight: Width) -> io::Result<Box<dyn Sink>> {
    if format == Format::Ctf {
        return Ok(Box::new(Ctf::create(path, origin, Sizes::default())?));
    }
    let to: Box<dyn Write> =
        if path == Path::new("-") { Box::new(io::stdout()) } else { Box::new(File::create(path)?) };
    let to = BufWriter::with_capacity(BUFFER_BYTES, to);
    let weight = match weight {
        Width::Count => Weight::Count,
        Width::Time => Weight::Time,
    };
    Ok(match format {
        Format::Ctf => unreachable!("it is a directory, made above"),
        Format::Perfetto => Box::new(Perfetto::new(to, &origin, Box::new(NoSymbols))?),
        Format::Json => Box::new(JsonLines::new(to, Box::new(NoSymbols))),
        Format::Script => Box::new(Script::new(to, Box::new(NoSymbols))),
        Format::Flamegraph => Box::new(FlameGraph::new(to, weight, Box::new(NoSymbols))),
        Format::Heatmap => Box::new(HeatMap::new(to)),
    })
}

pub(crate) fn record(wanted: &Record) -> Result<ExitCode, Failure> {
    let output = &wanted.output;
    if output == Path::new("-") {
        return Err(wrong("-o -: standard output is the traced program's; name a file"));
    }
    if wanted.format.is_none() && output.extension().is_some_and(|extension| extension == "svg") {
        return Err(wrong(format!("-o {}: which picture? --format flamegraph or heatmap", output.display())));
    }
    let format = wanted.format.or_else(|| format_of(output)).unwrap_or(Format::Ctf);
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let cannot = |error: &io::Error| {
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists());
        let why =
            parent.map_or(error.to_string(), |parent| format!("the directory {} does not exist", parent.display()));
        format!("cannot write {}: {why}", output.display())
    };
    let origin = Origin::here(&command).map_err(|error| error.to_string())?;
    let sink = open(format, output, origin, wanted.weight).map_err(|error| cannot(&error))?;
    let begun = match Begun::new(&wanted.what, For::Files) {
        Ok(Ok(begun)) => Ok(begun),
        Ok(Err(code)) => Err(Ok(code)),
        Err(failure) => Err(Err(failure)),
    };
    let mut begun = match begun {
        Ok(begun) => begun,
        // Nothing was recorded: there is no trace.
        Err(why) => {
            let _ = fs::remove_file(output).or_else(|_| fs::remove_file(output.join("metadata")));
            let _ = fs::remove_dir(output);
            return why;
        }
    };
    let mut recording =
        Recording { sink, begin: Instant::now(), flushed: Instant::now(), events: 0, bytes: 0, lost: 0 };
    let result = recording.run(&mut begun).map_err(|error| cannot(&error));
    begun.tell_lost();
    if let Err(why) = result {
        say!("ring3: {why}: recording has ended; what was written until then can be read");
        begun.give_up();
        return Ok(ExitCode::FAILURE);
    }
    recording.say_result(output);
    Ok(begun.exit_code())
}

/// A recording, and how much there is of it.
struct Recording {
    sink: Box<dyn Sink>,
    begin: Instant,
    flushed: Instant,
    events: u64,
    bytes: u64,
    lost: u64,
}

/// The one ring buffer's stream.
const STREAM: u32 = 0;

impl Recording {
    /// Records until the program ends, or somebody stops it, or the disk is full.
    fn run(&mut self, begun: &mut Begun) -> io::Result<()> {
        let mut result = begun.session.types().values().try_for_each(|of| self.sink.event_type(of));
        let mut sleep = SLEEP;
        while result.is_ok() {
            // (What was recorded before the end is in the buffer at the end.)
            let is_end = begun.has_ended();
            let count = self.read(begun, &mut result);
            if is_end && count == 0 {
                break;
            }
            if result.is_ok() && self.flushed.elapsed() >= FLUSH {
                result = self.count_lost(begun).and_then(|()| self.flush());
            }
            if count > 0 {
                sleep = SLEEP;
            } else {
                std::thread::sleep(sleep);
                sleep = (sleep * 2).min(SLEEP_MAX);
            }
        }
        let counted = self.count_lost(begun);
        result.and(counted).and(self.sink.finish())
    }

    fn read(&mut self, begun: &mut Begun, result: &mut io::Result<()>) -> usize {
        let Recording { sink, events, bytes, .. } = self;
        begun.session.read(|_, record| {
            if result.is_ok() {
                *result = match sink.record(STREAM, record) {
                    // A target that breaks the ring buffer's memory breaks its own records.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => sink.lost(STREAM, 1),
                    other => other,
                };
                *events += 1;
                *bytes += record.len() as u64;
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        if io::stderr().is_terminal() {
            let seconds = self.begin.elapsed().as_secs_f64();
            let rate = self.events as f64 / seconds;
            eprint!("\r{} events, {} MiB, {rate:.0} events/s, {} lost ", self.events, self.bytes >> 20, self.lost);
        }
        self.sink.flush()
    }

    fn count_lost(&mut self, begun: &Begun) -> io::Result<()> {
        let lost = begun.session.lost().count();
        let new = lost - self.lost;
        self.lost = lost;
        if new == 0 { Ok(()) } else { self.sink.lost(STREAM, new) }
    }

    fn say_result(&self, output: &Path) {
        let line = if io::stderr().is_terminal() { "\r" } else { "" };
        let Recording { events, bytes, lost, .. } = self;
        say!("{line}ring3: {events} events ({} KiB) in {}, {lost} lost", bytes >> 10, output.display());
    }
}

pub(crate) fn convert(wanted: &Convert) -> Result<(), Failure> {
    let Convert { trace, output, .. } = wanted;
    let formats = "perfetto, json, script, flamegraph or heatmap";
    let format = wanted
        .format
        .or_else(|| format_of(output))
        .ok_or_else(|| wrong(format!("convert to what? --to {formats}")))?;
    if format == Format::Ctf {
        return Err(wrong(format!("the trace is in CTF: convert it --to {formats}")));
    }
    if trace.exists() && !trace.is_dir() {
        let what =
            "is a file; ring3 convert reads the directory that `ring3 record` has written in ctf, its default format";
        return Err(wrong(format!("{} {what}", trace.display())));
    }
    let trace = Trace::open(trace).map_err(|error| error.to_string())?;
    let cannot = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => error.to_string(),
        _ => format!("cannot convert to {}: {error}", output.display()),
    };
    let mut sink = open(format, output, trace.origin().clone(), wanted.weight).map_err(cannot)?;
    let damage = match trace.copy_to(&mut *sink).and_then(|damage| sink.finish().map(|()| damage)) {
        // Whoever reads standard output (`head`) has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        other => other.map_err(cannot)?,
    };
    for damage in &damage.0 {
        say!("ring3: {damage}");
    }
    Ok(())
}
