//! The text format: what is read, and what is said of what cannot be read.

use ring3_eim::model::{At, Meaning, Root, Step};
use ring3_eim::parse;

use crate::build::file;
use crate::first_lines;

#[test]
fn a_specification_is_read() {
    let text = std::fs::read_to_string(file("tests/host.eim")).expect("the specification");
    let found = parse("host.eim", &text).unwrap_or_else(|errors| panic!("{}", errors[0]));
    assert_eq!(found.application.as_ref().map(|application| application.name.text.as_str()), Some("host"));
    let counts = (found.states.len(), found.functions.len(), found.entries.len(), found.classes.len());
    assert_eq!(counts, (12, 3, 2, 3));
    let host = &found.states[2];
    let path = &host.accesses[0].path;
    assert!(matches!(&path.root, Root::Parameter { name, entry } if name.text == "r" && entry.text == "request"));
    assert!(matches!(&path.steps[1], Step::Member(name) if name.text == "host"));
    assert!(matches!(&path.steps[2], Step::Behind(name) if name.text == "value"));
    assert_eq!(found.functions[1].symbol().text, "request_alloc");
    assert_eq!(found.functions[2].symbol().text, "request_find");
    assert_eq!(found.entries[1].at, At::Return);
    assert_eq!(found.entries[0].outcomes[1].meaning, Meaning::Constant(0));
    let firewall = found.class("firewall").expect("the class");
    assert_eq!((firewall.time_ns, firewall.memory_bytes, firewall.maps), (Some(50_000), Some(1 << 20), Some(4)));
}

#[test]
fn lines_or_semicolons_end_statements() {
    let lines = parse("a", "state s {\n read t.a,\n  t.b\n write t.c\n}").expect("lines");
    let signs = parse("a", "state s { read t.a, t.b; write t.c; }").expect("semicolons");
    let shown = |found: &ring3_eim::model::Specification| -> Vec<(bool, String)> {
        found.states[0].accesses.iter().map(|access| (access.write, access.path.span.text().to_owned())).collect()
    };
    assert_eq!(shown(&lines), shown(&signs));
    assert_eq!(lines.states[0].accesses.len(), 3);
}

#[test]
fn what_cannot_be_read_is_said_with_its_place() {
    let cases: &[(&str, &[&str])] = &[
        ("stat s { read t.a }", &["1:1: `stat` begins no declaration; did you mean `state`?"]),
        (
            "banana",
            &["1:1: `banana` begins no declaration; write one of application, use, state, function, entry, class"],
        ),
        ("state { read t.a }", &["1:7: `{` stands where the state's name is expected"]),
        ("state s { red t.a }", &["1:11: `red` has no meaning here; did you mean `read`?"]),
        ("state s { read t.a t.b }", &["1:20: `t` stands where `;` or a new line is expected"]),
        ("state s { read t. }", &["1:19: `}` stands where a field's name is expected"]),
        (
            "state s { read t.a",
            &["1:19: the text ends where one of read, write, length, nonnull, member or `}` is expected"],
        ),
        (
            "state s { read r->a }",
            &[
                "1:16: `r` is taken for a parameter, but no entry is named; add `of entry NAME`, or write `TYPE.FIELD` for a \
               field of all objects of a type",
            ],
        ),
        ("state s { read r->a of e }", &["1:24: `e` stands where `entry` is expected"]),
        ("state s { length t.a = 0 }", &["1:24: a pointer to 0 elements leads to nothing; leave the length out"]),
        ("state s { member t.a if t.b = 1 }", &["1:22: `if` stands where `when` is expected"]),
        (
            "state s { member t.a when t.b }",
            &["1:31: `}` stands where `in`, `=`, `<`, `<=`, `>` or `>=` is expected"],
        ),
        ("state s { read t.a[x] }", &["1:20: `x` stands where an element's number, or `*` is expected"]),
        ("use \"a", &["1:5: the text has no end; close it with `\"` on the same line"]),
        ("use a", &["1:5: `a` stands where a file's name in quotation marks is expected"]),
        ("state s { read t.a } €", &["1:22: `€` has no meaning here; remove it"]),
        ("class c { maps 0xzz }", &["1:16: `0xzz` is no number; write digits, or 0x and hexadecimal digits"]),
        ("class c { allow a }", &["1:7: class `c` names no entry; add `entry NAME`"]),
        ("class c { entry e; maps -1 }", &["1:25: -1 is out of range for a number of maps"]),
        ("class c { entry e; memory 1 MB }", &["1:29: `MB` is no unit of a size; write one of B, KiB, MiB, GiB"]),
        (
            "class c { entry e; instructions 0 }",
            &["1:33: no program can run under a limit of 0; write a greater number"],
        ),
        ("class c { entry e; time 0 s }", &["1:25: no program can run under a limit of 0; write a greater number"]),
        ("class c { entry e; time 5 }", &["1:27: `}` stands where a unit (ns, us, ms, s) is expected"]),
        ("class c { entry e; memory 99999999999999999 GiB }", &["1:27: a size is too large"]),
        ("entry e { at entry }", &["1:7: entry `e` names no function; add `function SYMBOL`"]),
        ("entry e { function f; at noon }", &["1:26: `noon` stands where `entry` or `return` is expected"]),
        ("entry e { function f; return 5..1 = skip }", &["1:30: the range is empty: 1 is less than 5; swap them"]),
        (
            "entry e { function f; return 1 = skp }",
            &["1:34: `skp` is nothing that a result can mean; did you mean `skip`?"],
        ),
        ("function f { ensure rc > 0 }", &["1:21: `rc` stands where `return` is expected"]),
        ("function f { require rc != 0 }", &["1:25: a range has no holes; write `in A..B`, `> A` or `< A`"]),
        ("function f { require rc 0 }", &["1:25: `0` stands where `in`, `=`, `<`, `<=`, `>` or `>=` is expected"]),
        (
            "function f { prototype \"void\" }",
            &[
                "1:29: the prototype ends where the function's name is expected; write `RESULT NAME(TYPE NAME, ...)` as in C",
            ],
        ),
        ("function f { prototype \"long short g(void)\" }", &["1:25: `long short` is no type of C; correct it"]),
        ("state s { }\nstate s { }", &["2:7: `s` is declared already at x.eim:1; give one of them another name"]),
        (
            "application \"a\"\napplication \"b\"",
            &["2:13: the application is declared already; a specification is of one application"],
        ),
        // All errors of a text, one for each declaration.
        (
            "state a { rad t.x }\nentry request {\n  function f\n  class g\n}\nclass c {\n  entry e\n  alow a\n}",
            &[
                "1:11: `rad` has no meaning here; did you mean `read`?",
                "4:3: `class` has no meaning here; write one of function, prototype, at, nonnull, return",
                "8:3: `alow` has no meaning here; did you mean `allow`?",
            ],
        ),
    ];
    for (text, expected) in cases {
        let expected: Vec<String> = expected.iter().map(|message| format!("x.eim:{message}")).collect();
        match parse("x.eim", text) {
            Ok(found) => panic!("{text}: {found:?}"),
            Err(errors) => assert_eq!(first_lines(&errors), expected, "{text}"),
        }
    }
}

#[test]
fn an_error_shows_its_line_and_a_caret() {
    let errors = parse("x.eim", "state s {\n\tread t.a, struct\n}").expect_err("no tag");
    assert_eq!(errors[0].to_string(), "x.eim:3:1: `}` stands where the type's name is expected\n    }\n    ^");
    let errors = parse("x.eim", "state s {\n\tread tt.ä\n}").expect_err("no letter");
    assert_eq!(
        errors[0].to_string(),
        "x.eim:2:10: `ä` has no meaning here; remove it\n    \tread tt.ä\n    \t        ^"
    );
    let errors = parse("x.eim", "class c { entry e; helpers }").expect_err("no helpers");
    assert!(
        errors[0].to_string().ends_with("    class c { entry e; helpers }\n                               ^"),
        "{}",
        errors[0]
    );
    let errors = parse("x.eim", "stat s").expect_err("no keyword");
    assert!(errors[0].to_string().ends_with("    stat s\n    ^~~~"), "{}", errors[0]);
}

/// A generator of numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

#[test]
fn damaged_texts_are_read_or_refused_without_a_panic() {
    let text = std::fs::read_to_string(file("tests/host.eim")).expect("the specification");
    let pieces = [
        "{",
        "}",
        ";",
        "->",
        "..",
        "\"",
        "-",
        "0x",
        "99999999999999999999999",
        "ä",
        "\n",
        "#",
        "[*]",
        "of entry",
        "*(",
    ];
    let (mut random, mut refused) = (Random(26), 0);
    for _ in 0..20_000 {
        let mut damaged = text.clone();
        for _ in 0..1 + random.below(4) {
            let mut at = random.below(damaged.len());
            while !damaged.is_char_boundary(at) {
                at -= 1;
            }
            let mut end = (at + random.below(12)).min(damaged.len());
            while !damaged.is_char_boundary(end) {
                end += 1;
            }
            let piece = if random.below(3) == 0 { "" } else { pieces[random.below(pieces.len())] };
            damaged.replace_range(at..end, piece);
        }
        if let Err(errors) = parse("x.eim", &damaged) {
            refused += 1;
            assert!(errors.iter().all(|error| !error.to_string().is_empty()));
        }
    }
    // (Damage in comments, names and numbers makes texts that are right.)
    assert!((5_000..20_000).contains(&refused), "{refused}");
}
