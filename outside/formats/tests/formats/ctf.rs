//! Traces in CTF: read by babeltrace2, and by ourselves.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::{Place, babeltrace, open_record, openat, origin, probe, probe_record};
use ring3_event::{EventType, Header};
use ring3_formats::Sink;
use ring3_formats::ctf::{Ctf, Damage, Sizes, Trace};

const SMALL: Sizes = Sizes { packet_bytes: 4096, packets: 3 };

/// Keeps what it is given.
#[derive(Default)]
struct Kept {
    records: Vec<(u32, Vec<u8>)>,
    lost: u64,
    types: Vec<EventType>,
}

impl Sink for Kept {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        self.types.push(of.clone());
        Ok(())
    }

    fn record(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        self.records.push((stream, bytes.to_vec()));
        Ok(())
    }

    fn lost(&mut self, _: u32, count: u64) -> io::Result<()> {
        self.lost += count;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(place: &Place, sizes: Sizes) -> Ctf {
    let mut trace = Ctf::create(&place.join("trace"), origin(), sizes).expect("the directory is new");
    trace.event_type(&openat()).expect("nothing is written yet");
    trace.event_type(&probe()).expect("nothing is written yet");
    trace
}

fn read(place: &Place) -> (Kept, Damage) {
    let mut kept = Kept::default();
    let damage = Trace::open(&place.join("trace")).and_then(|trace| trace.copy_to(&mut kept));
    (kept, damage.expect("it can be read"))
}

#[test]
fn babeltrace2_reads_the_fields_that_were_written() {
    let place = Place::new("fields");
    let mut trace = start(&place, Sizes::default());
    trace.record(0, &open_record(2_000, 4)).expect("written");
    trace.record(1, &probe_record(3_000)).expect("written");
    trace.finish().expect("written");
    let Some((lines, errors)) = babeltrace(&place.join("trace")) else { return };
    assert_eq!(errors, "");
    let expected = "\
[00000000000000002000] (+????????????) host syscalls:openat: { cpu = 1, tid = 12, pid = 11, comm = \"cat\" }, { dfd = -100, \
filename_state = ( \"whole\" : container = 0 ), flags = ( <unknown> : container = 0x80041 ), mode = 0644, result = 4, \
duration = 4000, filename = \"/etc/4\" }
[00000000000000003000] (+000000001000) host lib\"x\".so:int: { cpu = 1, tid = 12, pid = 11, comm = \"cat\" }, { string = ( \
\"MINUS \\\"ONE\\\"\" : container = -1 ), req_tv_sec = -5, req_tv_sec_ = 0xAB, ratio = 0.25, small = -1.5, data_state = ( \
\"truncated\" : container = 1 ), data_length_ = 0xDEADBEEF, note_state = ( \"whole\" : container = 0 ), data_length = 4, \
data = [ [0] = 97, [1] = 0, [2] = 255, [3] = 92 ], note = \"grüß\u{fffd}\\\"<&>\" }
";
    assert_eq!(lines, expected);
}

#[test]
fn many_records_in_several_streams_and_files_are_read_in_order() {
    let place = Place::new("many");
    let mut trace = start(&place, SMALL);
    let record = |at: u64| open_record(1_000 * at, at);
    for at in 1..=2_000 {
        trace.record((at % 3) as u32, &record(at)).expect("written");
    }
    trace.finish().expect("written");
    assert!(fs::read_dir(place.join("trace")).expect("it is there").count() > 10, "there are several files");
    let (kept, damage) = read(&place);
    assert_eq!((damage, kept.lost, kept.types), (Damage::default(), 0, vec![openat(), probe()]));
    assert_eq!(kept.records, (1..=2_000).map(|at| ((at % 3) as u32, record(at))).collect::<Vec<_>>());
    let Some((lines, errors)) = babeltrace(&place.join("trace")) else { return };
    assert_eq!((errors.as_str(), lines.lines().count()), ("", 2_000));
    for (at, line) in (1..).zip(lines.lines()) {
        assert!(line.ends_with(&format!("filename = \"/etc/{at}\" }}")), "{line}");
    }
}

#[test]
fn lost_events_are_counted_where_they_were_lost() {
    let place = Place::new("lost");
    let mut trace = start(&place, SMALL);
    trace.lost(0, 5).expect("counted");
    for at in 1..200 {
        trace.record(0, &open_record(1_000 * at, at)).expect("written");
    }
    trace.lost(0, 7).expect("counted");
    trace.lost(4, 3).expect("counted");
    trace.finish().expect("written");
    assert_eq!(read(&place).0.lost, 15);
    let Some((lines, errors)) = babeltrace(&place.join("trace")) else { return };
    assert_eq!(lines.lines().count(), 199);
    for count in [5, 7, 3] {
        assert!(errors.contains(&format!("Tracer discarded {count} events")), "{errors}");
    }
}

#[test]
fn a_record_that_is_late_is_put_into_its_place() {
    let place = Place::new("late");
    let mut trace = start(&place, SMALL);
    for at in [10, 30, 20, 5, 30, 40, 35] {
        trace.record(0, &open_record(1_000 * at, at)).expect("written");
    }
    assert_eq!(trace.late(), 0, "they are in the buffer");
    trace.flush().expect("written");
    trace.record(0, &open_record(39_000, 39)).expect("written");
    trace.record(0, &open_record(50_000, 50)).expect("written");
    assert_eq!(trace.late(), 1);
    trace.finish().expect("written");
    let time = |bytes: &[u8]| Header::parse(bytes).expect("it is whole").time_ns / 1_000;
    let times: Vec<_> = read(&place).0.records.iter().map(|(_, bytes)| time(bytes)).collect();
    assert_eq!(times, [5, 10, 20, 30, 30, 35, 40, 40, 50]);
    let Some((lines, errors)) = babeltrace(&place.join("trace")) else { return };
    assert_eq!((errors.as_str(), lines.lines().count()), ("", 9));
}

#[test]
fn what_is_no_record_is_refused_and_the_trace_continues() {
    let place = Place::new("refused");
    let mut trace = start(&place, SMALL);
    let whole = open_record(1_000, 1);
    let unknown = [&whole[..8], &77_u32.to_le_bytes(), &whole[12..]].concat();
    for (bytes, why) in [(&whole[..whole.len() - 1], "damaged"), (&whole[..20], "too short"), (&unknown, "number 77")]
    {
        let error = trace.record(0, bytes).expect_err("it is no record");
        assert!(error.to_string().contains(why), "{error}");
    }
    // (Programs may reserve more than they need.)
    trace.record(0, &[&whole[..], &[0; 9]].concat()).expect("it begins with a record");
    trace.finish().expect("written");
    assert_eq!(read(&place).0.records, [(0, whole)]);
    let again = Ctf::create(&place.join("trace"), origin(), SMALL).err().expect("a trace is there");
    assert!(again.to_string().contains("not empty"), "{again}");
}

#[test]
fn damaged_files_are_read_as_far_as_they_can_be() {
    let place = Place::new("damaged");
    let mut trace = start(&place, SMALL);
    for at in 1..=1_000 {
        trace.record(0, &open_record(1_000 * at, at)).expect("written");
    }
    trace.finish().expect("written");
    let path = place.join("trace/stream_0_0001");
    let whole = fs::read(&path).expect("it is there");
    let mut seed = 12_345_u64;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..4 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] = (seed >> 20) as u8;
        }
        bytes.truncate((seed >> 30) as usize % (2 * bytes.len()));
        fs::write(&path, &bytes).expect("it can be written");
        let (kept, _) = read(&place);
        assert!(kept.records.len() <= 1_100 && kept.records.len() > 500, "{}", kept.records.len());
    }
    fs::write(&path, &whole[..whole.len() - 1]).expect("it can be written");
    let (kept, damage) = read(&place);
    assert!(kept.records.len() < 1_000 && damage.0[0].contains("the rest is left out"), "{damage:?}");
    fs::write(place.join("trace/metadata"), "/* CTF 1.8 */").expect("it can be written");
    let error = Trace::open(&place.join("trace")).err().expect("it has no types");
    assert!(error.to_string().contains("not of a trace that ring3 recorded"), "{error}");
}

/// The process that the next test kills: not a test of its own.
#[test]
fn writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os("RING3_TEST_WRITES_TO") else { return };
    let mut trace =
        Ctf::create(directory.as_ref(), origin(), Sizes { packet_bytes: 64 << 10, packets: 4 }).expect("new");
    for at in 1_u64.. {
        if at % 50_000 == 1 {
            // A type that is new, so that the metadata changes.
            trace.event_type(&EventType { id: at as u32 + 10_000, ..openat() }).expect("known");
            trace.event_type(&openat()).expect("known");
        }
        trace.record((at % 2) as u32, &open_record(at, at)).expect("written");
    }
}

#[test]
fn a_trace_can_be_read_at_any_moment_at_which_its_writer_is_killed() {
    for round in 0..12_u64 {
        let place = Place::new(&format!("killed-{round}"));
        let mut writer = Command::new(std::env::current_exe().expect("it is known"));
        writer.args(["--exact", "ctf::writes_until_it_is_killed"]).env("RING3_TEST_WRITES_TO", place.join("trace"));
        let mut writer = writer.stdout(Stdio::null()).spawn().expect("it is a program");
        // (A file is there before its first records are.)
        let exists = || fs::exists(place.join("trace/stream_1_0000")).expect("it can be asked");
        while !exists() || read(&place).0.records.len() <= 500 {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(1_777 * round));
        writer.kill().expect("it runs");
        writer.wait().expect("it was started");
        let (kept, damage) = read(&place);
        assert_eq!(damage, Damage::default(), "round {round}");
        assert!(kept.records.len() > 500, "round {round}: {}", kept.records.len());
        let mut next = [2, 1];
        for (stream, bytes) in &kept.records {
            let at = next[*stream as usize];
            assert_eq!(bytes, &open_record(at, at), "round {round}");
            next[*stream as usize] += 2;
        }
        let Some((lines, errors)) = babeltrace(&place.join("trace")) else { return };
        assert_eq!((errors.as_str(), lines.lines().count()), ("", kept.records.len()), "round {round}");
    }
}
