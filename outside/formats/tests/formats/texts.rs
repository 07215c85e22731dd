//! Text, JSON, and pictures.

use ring3_formats::{FlameGraph, HeatMap, JsonLines, NoSymbols, Script, Sink, Weight};
use serde_json::{Value, json};

use crate::support::{open_record, openat, probe, probe_record, stack_record, stacked};

fn names(_: u32, address: u64) -> Option<String> {
    (address == 0x1000).then(|| "main".into())
}

/// Gives a sink some events.
fn fill(sink: &mut dyn Sink) {
    for of in [openat(), probe(), stacked()] {
        sink.event_type(&of).expect("known");
    }
    sink.record(0, &open_record(1_234_000_050_000, 7)).expect("written");
    sink.record(0, &open_record(1_234_000_060_000, 8)).expect("written");
    sink.lost(1, 5).expect("written");
    sink.record(1, &probe_record(1_234_000_070_000)).expect("written");
    sink.record(1, &stack_record(1_234_000_080_000, &[0x2000, 0x1000])).expect("written");
    let error = sink.record(1, &stack_record(1, &[])[..42]).expect_err("it is cut");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    sink.finish().expect("written");
}

#[test]
fn a_script_has_a_line_for_each_event() {
    let mut text = vec![];
    fill(&mut Script::new(&mut text, Box::new(names)));
    let expected = concat!(
        "             cat      11/12      [001]   1234.000050000: syscalls:openat: dfd=AT_FDCWD filename=\"/etc/7\" ",
        "flags=O_WRONLY|O_CREAT|O_CLOEXEC mode=0644 result=-2 ENOENT duration=7000\n",
        "             cat      11/12      [001]   1234.000060000: syscalls:openat: dfd=AT_FDCWD filename=\"/etc/8\" ",
        "flags=O_WRONLY|O_CREAT|O_CLOEXEC mode=0644 result=8 duration=8000\n",
        "LOST 5 events of stream 1\n",
        "             cat      11/12      [001]   1234.000070000: lib\"x\".so:int: string=MINUS \"ONE\" req.tv_sec=-5 ",
        "req_tv_sec=0xab ratio=0.25 small=-1.5 data=\"a\\x00\\xff\\\\\"... data_length=0xdeadbeef ",
        "note=\"grüß\\xff\\\"<&>\"\n",
        "             cat      11/12      [001]   1234.000080000: a.out:hit:\n",
        "\t            2000 [unknown]\n\t            1000 main\n\n",
    );
    assert_eq!(String::from_utf8(text).expect("it is UTF-8"), expected);
}

#[test]
fn json_has_an_object_for_each_event() {
    let mut text = vec![];
    fill(&mut JsonLines::new(&mut text, Box::new(names)));
    let text = String::from_utf8(text).expect("it is UTF-8");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let event = |time: u64, name: &str, fields: Value| json!({ "time": time, "event": name, "pid": 11, "tid": 12, "comm": "cat", "cpu": 1, "fields": fields });
    let opened = |number: u64, result: i64| {
        json!({
            "dfd": "AT_FDCWD", "filename": format!("/etc/{number}"), "flags": "O_WRONLY|O_CREAT|O_CLOEXEC", "mode": 0o644,
            "result": result, "duration": number * 1000,
        })
    };
    let hit = json!({
        "string": "MINUS \"ONE\"", "req.tv_sec": -5, "req_tv_sec": 0xab, "ratio": 0.25, "small": -1.5,
        "data": "a\\x00\\xff\\\\", "data_state": "truncated", "data_length": 0xdead_beef_u64, "note": "grüß\\xff\"<&>",
    });
    let expected = [
        event(1_234_000_050_000, "syscalls:openat", opened(7, -2)),
        event(1_234_000_060_000, "syscalls:openat", opened(8, 8)),
        json!({ "lost": 5, "stream": 1 }),
        event(1_234_000_070_000, "lib\"x\".so:int", hit),
        event(1_234_000_080_000, "a.out:hit", json!({ "stack": [0x2000, "main"] })),
    ];
    assert_eq!(lines, expected);
}

/// The titles of a picture's rectangles.
fn titles(svg: &str) -> Vec<&str> {
    let after = svg.split("<title>").skip(1);
    after.map(|rest| rest.split_once("</title>").expect("it has an end").0).collect()
}

#[test]
fn a_flame_graph_has_the_stacks_with_their_weights() {
    let draw = |weight| {
        let mut picture = vec![];
        fill(&mut FlameGraph::new(&mut picture, weight, Box::new(names)));
        String::from_utf8(picture).expect("it is UTF-8")
    };
    let counts = draw(Weight::Count);
    let expected = [
        "all: 4 events (100.00 %)",
        "cat: 4 events (100.00 %)",
        "lib&quot;x&quot;.so: 1 events (25.00 %)",
        "int: 1 events (25.00 %)",
        "main: 1 events (25.00 %)",
        "0x2000: 1 events (25.00 %)",
        "a.out:hit: 1 events (25.00 %)",
        "syscalls: 2 events (50.00 %)",
        "openat: 2 events (50.00 %)",
    ];
    assert_eq!(titles(&counts), expected);
    assert!(counts.contains("4 events; 5 events were lost"), "{counts}");
    let times = draw(Weight::Time);
    assert_eq!(titles(&times)[3], "openat: 15000 ns (100.00 %)");
}

#[test]
fn a_heat_map_has_a_cell_for_each_time_and_duration() {
    let mut picture = vec![];
    let mut map = HeatMap::new(&mut picture);
    map.event_type(&openat()).expect("known");
    map.event_type(&probe()).expect("known");
    map.record(0, &probe_record(1)).expect("it has no duration, and is left out");
    for at in 0..1_000 {
        // 2^10 us to 2^11 us, or just below 1 us.
        let micros = if at % 4 == 3 { 1_500 } else { 0 };
        map.record(0, &open_record(1_000_000_000 + 1_000_000 * at, micros)).expect("counted");
    }
    map.finish().expect("drawn");
    let picture = String::from_utf8(picture).expect("it is UTF-8");
    let cells: Vec<_> = titles(&picture).into_iter().filter(|title| title.contains(" to ")).collect();
    let count = |cell: &str| -> u64 {
        cell.rsplit_once(": ").and_then(|(_, count)| count.strip_suffix(" events")?.parse().ok()).expect("a count")
    };
    let sum = |range: &str| cells.iter().filter(|cell| cell.contains(range)).map(|cell| count(cell)).sum::<u64>();
    assert_eq!((sum(", 0 ns to 1 ns"), sum(", 1.0 ms to 2.1 ms")), (750, 250), "{cells:?}");
    assert!(cells.len() > 200 && cells.len() <= 480, "{}", cells.len());
    assert!(picture.contains("syscalls:openat: 1000 events"));
}

#[test]
fn a_heat_map_without_durations_is_an_error() {
    let mut map = HeatMap::new(vec![]);
    map.event_type(&probe()).expect("known");
    map.record(0, &probe_record(1)).expect("left out");
    assert!(map.finish().expect_err("it is empty").to_string().contains("no event has a duration"));
}

#[test]
fn pictures_are_well_formed() {
    let mut pictures = [vec![], vec![]];
    let [flame, heat] = &mut pictures;
    fill(&mut FlameGraph::new(flame, Weight::Count, Box::new(NoSymbols)));
    fill(&mut HeatMap::new(heat));
    for picture in &pictures {
        let text = std::str::from_utf8(picture).expect("it is UTF-8");
        let opened = text.matches('<').count() - text.matches("</").count() - text.matches("/>").count();
        assert_eq!(opened, text.matches("</").count(), "each element has an end: {text}");
    }
}
