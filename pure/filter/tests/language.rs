//! The language: what is read, what is refused and with which words, and what it says of records.

use std::sync::Arc;

use ring3_event::{EventType, Field, Header, Kind, Names, Phase, Record, Show, State, Value};
use ring3_filter::{Context, EventScope, Expression, Scope, check_all, parse};

fn field(name: &str, kind: Kind, phase: Phase) -> Field {
    Field { name: name.into(), kind, phase }
}

fn flags() -> Show {
    let names = [(0o100, "O_CREAT"), (0o1, "O_WRONLY"), (0o2000, "O_APPEND")];
    Show::Flags(Arc::new(Names(names.iter().map(|(value, name)| (*value, (*name).to_owned())).collect())))
}

fn openat() -> EventType {
    EventType {
        id: 257,
        provider: "syscalls".into(),
        name: "openat".into(),
        fields: vec![
            field("dfd", Kind::Int { bytes: 4, signed: true, show: Show::Descriptor }, Phase::Entry),
            field("filename", Kind::Text { bytes_max: 64, path: true }, Phase::Entry),
            field("flags", Kind::Int { bytes: 4, signed: false, show: flags() }, Phase::Entry),
            field("ret", Kind::Int { bytes: 8, signed: true, show: Show::Result }, Phase::Exit),
            field("dur", Kind::Int { bytes: 8, signed: false, show: Show::Nanoseconds }, Phase::Exit),
            field("ratio", Kind::Float { bytes: 8 }, Phase::Entry),
            field("data", Kind::data(16), Phase::Entry),
            field("pid", Kind::int(4, true), Phase::Entry),
            field("req.tv_sec", Kind::int(8, true), Phase::Entry),
        ],
    }
}

fn close() -> EventType {
    let fd = field("fd", Kind::int(4, true), Phase::Entry);
    let ret = field("ret", Kind::Int { bytes: 8, signed: true, show: Show::Result }, Phase::Exit);
    EventType { id: 3, provider: "syscalls".into(), name: "close".into(), fields: vec![fd, ret] }
}

/// `openat(AT_FDCWD, "/etc/passwd", O_WRONLY | O_CREAT)`, which fails with ENOENT after 2 ms.
fn record(of: &EventType) -> Record<'_> {
    let comm = *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let header = Header { event: of.id, tid: 12, pid: 11, cpu: 1, time_ns: 99, comm };
    let values = vec![
        Value::Int(-100),
        Value::Text(State::Whole, b"/etc/passwd"),
        Value::Int(0o101),
        Value::Int(-2),
        Value::Int(2_000_000),
        Value::Float(0.5),
        Value::Bytes(State::Null, b""),
        Value::Int(77),
        Value::Int(5),
    ];
    Record { header, of, values }
}

fn read(text: &str) -> Expression {
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn accepts(text: &str) -> bool {
    let of = openat();
    let typed = read(text).check(&EventScope::new(&of)).unwrap_or_else(|error| panic!("{text}: {error}"));
    typed.evaluate(&record(&of))
}

#[test]
fn filters_say_of_a_record_what_they_mean() {
    let all_true = [
        r#"(ret < 0 && path ~ "/etc/*") || dur > 1ms"#,
        "ret == -ENOENT",
        "ret == ENOENT",
        "ret in (EACCES, ENOENT)",
        "ret == -2 && ret != ENOSYS",
        "flags & O_CREAT",
        "flags & O_CREAT == O_CREAT",
        "flags == O_CREAT | O_WRONLY",
        "!(flags & O_APPEND)",
        "dfd == AT_FDCWD",
        "dfd < flags",
        "dur >= 2ms && dur < 2_000_001 && dur == 0.002s && dur == 2000us",
        "pid == 11 && tid == 12 && cpu == 1 && time == 99ns && $ctx.vpid == 11",
        "args.pid == 77",
        r#"comm == "cat" && comm ~ "c?[s-u]""#,
        r#"filename =~ "*pass*" && filename !~ "*shadow*""#,
        r#"path in ("/etc/shadow", "/etc/passwd")"#,
        r#"event == "openat" && event == "syscalls:openat" && event ~ "sys*" && event != "close""#,
        "ratio > 0.25 && ratio < 1 && ratio == 0.5",
        "data == null && path != null",
        "req.tv_sec * 1000 + 1 == 5001",
        "req.tv_sec % 3 == 2 && -req.tv_sec / 2 == -2",
        "req.tv_sec << 2 == 20 && ~req.tv_sec == -6 && req.tv_sec ^ 1 == 4",
        "0x10 == 16 && 0b101 == 5 && 010 == 8 && 0o17 == 15 && 'a' == 97 && 4k == 4096 && 1M == 1048576",
        "SIGKILL == 9",
        "(int)dur == 2000000 && (u8)dur == 0x80 && (char)dur == -128 && (unsigned)ret == 0xfffffffe",
        "(int)flags < (long)dur && -(int16)flags == -65 && (s8)(dur * 1) + 1 == -127 && (uint64)ret > 1",
        "(u64)-1 == 18446744073709551615 && (int)0xffffffff == -1",
        r#"path == "\x2fetc/passwd" && "/etc/passwd" == path"#,
        "-1 < 18446744073709551615",
        "dur > -1",
        "1 | 2 == 3",
        "args.pid",
    ];
    for text in all_true {
        assert!(accepts(text), "{text}");
        assert!(!accepts(&format!("!({text})")), "!({text})");
    }
}

#[test]
fn what_has_no_value_makes_a_comparison_false() {
    let all_false = [
        "req.tv_sec / (dur - dur) == 0",
        "req.tv_sec / 0 == 0",
        "req.tv_sec / 0 != 0",
        "1 << req.tv_sec * 20 != 7",
        "nothing == 1",
        "nothing != 1",
        r#"nothing ~ "*""#,
        r#"path == "\/etc/passw*""#,
    ];
    for text in all_false {
        assert!(!accepts(text), "{text}");
    }
}

#[test]
fn a_syntax_error_points_at_the_column_and_says_what_to_write() {
    let cases = [
        ("ret = 1", 5, "`=` compares nothing; write `==`"),
        ("ret < 0 and dur > 1", 9, "`and` stands where an operator or the end is missing; write `&&`"),
        ("ret <", 6, "the filter ends where a value is missing"),
        ("(ret < 0", 9, "the filter ends where `)` is missing"),
        ("ret < 0)", 8, "`)` stands where an operator or the end is missing; there is no `(` for it"),
        ("1 < ret < 5", 9, "a comparison cannot be compared; write `1 < x && x < 5` for `1 < x < 5`"),
        (r#"path == "abc"#, 9, "the closing quote is missing"),
        ("path == 'abc'", 9, "single quotes hold one character; text goes into double quotes: \"...\""),
        ("dur > 5m", 7, "`m` is no unit; write ns, us, ms or s for times, k, M, G or T for sizes"),
        ("dur > 1.5ns", 7, "the number is no whole count of nanoseconds or bytes"),
        ("dur > 09", 7, "`09` is no number of base 8"),
        ("dur > 99999999999999999999", 7, "the number does not fit in 64 bits"),
        ("ret in 5", 8, "`5` stands where `(` is missing; write `in (1, 2)`"),
        ("ret in ()", 9, "the set is empty; write `in (1, 2)`"),
        ("(foo)ret < 0", 2, "`foo` is no type; there are char, short, int, long, unsigned, s8 to s64 and u8 to u64"),
        ("", 1, "the filter is empty"),
        ("ä == 1", 1, "`ä` has no meaning here"),
        (r#"path == "\xq""#, 10, "the escape is no byte: write `\\x41` or `\\101`"),
        (r#"path == "\é""#, 10, "a backslash stands before a character that needs none"),
        ("a == 'é'", 6, "single quotes hold one byte, and this character has several"),
        (r#"path == "\0""#, 10, "a text contains no zero byte"),
    ];
    for (text, column, message) in cases {
        let error = parse(text).expect_err(text);
        assert_eq!((error.column, error.message.as_str()), (column, message), "{text}");
    }
    let error = parse("äö && ret = 1").expect_err("`ä`");
    assert_eq!(error.to_string(), "filter, column 1: `ä` has no meaning here\n    äö && ret = 1\n    ^");
    let deep = "(".repeat(100) + "1";
    assert!(parse(&deep).expect_err("deep").message.contains("deeper"));
    let long = "1 && ".repeat(2000) + "1";
    assert!(parse(&long).expect_err("long").message.contains("8192 are allowed"));
}

#[test]
fn a_type_error_says_what_the_operands_are() {
    let of = openat();
    let cases = [
        (r#"ret == "abc""#, 1, "a whole number cannot be compared with text"),
        (r#"ret == 1 || path < "b""#, 13, "texts have no order; write `==`, `!=`, `~` or `!~`"),
        ("path", 1, "text alone is no condition; write `... != null` or `... != \"\"`"),
        ("path + 1 == 2", 1, "arithmetic is for whole numbers, and an operand is text"),
        ("path ~ filename", 1, "a pattern in quotes must stand on the right of `~`: `path ~ \"/etc/*\"`"),
        (r#"path ~ "[a""#, 1, "the `]` of a set is missing; write `\\[` for the character itself"),
        ("dur == 1.5", 1, "a whole number cannot be compared with a fraction"),
        ("ratio + 1 > 2", 1, "arithmetic is for whole numbers, and an operand is a floating point number"),
        (r#"data == "x""#, 1, "a string of bytes can be compared with null only"),
        (
            "!ret == 1",
            1,
            "`!` makes a condition, and it binds stronger than comparisons: write `!(a == b)`, or `~` for bits",
        ),
        ("dur * (1 << 40 << 40) == 1", 1, "the constant does not fit in 64 bits"),
    ];
    for (text, column, message) in cases {
        let error = read(text).check(&EventScope::new(&of)).expect_err(text);
        assert_eq!((error.column, error.message.as_str()), (column, message), "{text}");
    }
}

#[test]
fn an_unsigned_field_that_is_to_be_negative_is_an_error_that_says_what_to_write() {
    let (openat, close) = (openat(), close());
    for text in ["dur < 0", "dur == -1", "-1 >= dur", "0 > flags", "flags in (-1, -2)"] {
        let error = read(text).check(&EventScope::new(&openat)).expect_err(text);
        assert!(error.message.contains("is unsigned") && error.message.contains("write `(int)"), "{text}: {error}");
    }
    for text in ["(int)dur < 0", "dur > -1", "dur != -1", "dur <= 0", "dur + 0 < 0", "flags in (-1, 1)", "(int)0 < 1"]
    {
        read(text).check(&EventScope::new(&openat)).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    // (Of several types one may have the field, and another a signed one of that name.)
    let signed = EventType { fields: vec![field("dur", Kind::int(8, true), Phase::Exit)], ..close };
    let scopes: [&dyn Scope; 2] = [&EventScope::new(&openat), &EventScope::new(&signed)];
    check_all(&read("dur < 0"), &scopes).expect("it may be true of one");
    let error = check_all(&read("dur:s32 < 0"), &scopes).expect_err("perf's way");
    assert_eq!(error.message, "a field's type stands before it: write `(s32)dur`");
}

#[test]
fn a_field_with_the_name_of_a_type_is_no_type_unless_parentheses_are_around_it_alone() {
    let u8 = EventType { fields: vec![field("u8", Kind::int(8, true), Phase::Exit)], ..close() };
    for text in ["(u8 + 1) == 2", "u8 == 2", "(args.u8) == 1"] {
        read(text).check(&EventScope::new(&u8)).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    assert!(parse("(u8) == 2").is_err());
}

#[test]
fn one_filter_serves_several_types() {
    let (openat, close) = (openat(), close());
    let (one, two) = (EventScope::new(&openat), EventScope::new(&close));
    let scopes: [&dyn Scope; 2] = [&one, &two];
    let typed = check_all(&read(r#"fd == 3 || path ~ "/etc/*""#), &scopes).expect("each has one of them");
    assert_eq!(typed.iter().map(|typed| typed.constant()).collect::<Vec<_>>(), [None, None]);
    let typed = check_all(&read("dfd == 3 && ret < 0"), &scopes).expect("one has both");
    assert_eq!(typed.iter().map(|typed| typed.constant()).collect::<Vec<_>>(), [None, Some(false)]);
    let typed = check_all(&read(r#"event == "close""#), &scopes).expect("names are known");
    assert_eq!(typed.iter().map(|typed| typed.constant()).collect::<Vec<_>>(), [Some(false), Some(true)]);
    let refused = |text: &str| check_all(&read(text), &scopes).expect_err(text).message;
    assert_eq!(
        refused("ret < 0 && filenam == 1"),
        "none of these events has a field `filenam`, and it is no known constant; did you mean `filename`?"
    );
    assert_eq!(
        refused("flags & O_CREATE"),
        "none of these events has a field `O_CREATE`, and it is no known constant; did you mean `O_CREAT`?"
    );
    let unlike = refused("wholly_unlike == 1");
    assert!(unlike.contains("; their fields: ") && unlike.contains("dfd"), "{unlike}");
    assert_eq!(refused("fd == dfd"), "none of these events has `fd` together with the rest of the comparison");
    assert_eq!(refused(r#"fd == "x""#), "a whole number cannot be compared with text");
}

#[test]
fn conjuncts_come_in_the_order_in_which_they_can_be_asked() {
    let of = openat();
    let typed = read(r#"dur > 1ms && path ~ "*x*" && ret < 0 && path == "a" && pid == 3 && flags & 1"#);
    let typed = typed.check(&EventScope::new(&of)).expect("it fits");
    let fields: Vec<Vec<usize>> = typed.conjuncts().iter().map(|part| part.fields().into_iter().collect()).collect();
    assert_eq!(fields, [vec![], vec![2], vec![1], vec![1], vec![4], vec![3]]);
    let phases: Vec<Phase> = typed.conjuncts().iter().map(|part| part.phase()).collect();
    assert_eq!(phases[3..], [Phase::Entry, Phase::Exit, Phase::Exit]);
    assert_eq!(typed.contexts().into_iter().collect::<Vec<_>>(), [Context::Pid]);
    assert_eq!(typed.phase(), Phase::Exit);
}
