//! Classes to grants: the same whatever compiler wrote the types.

use ring3_eim::model::{At, Specification};
use ring3_eim::{Limits, parse, resolve};
use ring3_verifier::host::*;

use crate::build::{binary, btf, specification, with};
use crate::first_lines;

/// Compilers and formats of types.
const VARIANTS: [&[&str]; 6] = [
    &["gcc", "-g", "-O2"],
    &["gcc", "-gdwarf-4", "-O0"],
    &["gcc", "-gdwarf-2", "-O1", "-gstrict-dwarf"],
    &["clang", "-g", "-O2"],
    &["clang", "-gdwarf-4", "-O0"],
    &["gcc", "-g", "-O2", "-gz=zlib"],
];

fn grant_of(specification: &Specification, class: &str, types: &ring3_btf::Btf) -> (Grant, Limits) {
    let class = specification.class(class).expect("the class");
    match resolve(specification, class, types) {
        Ok((grant, limits, _)) => (grant, limits),
        Err(errors) => panic!("{}", errors[0]),
    }
}

/// Fields as text: name, place, rights, value.
fn fields(object: &HostObject) -> Vec<String> {
    let rights = |field: &HostField| match (field.read, field.write) {
        (true, true) => "rw",
        (true, false) => "r",
        _ => "w",
    };
    let value = |field: &HostField| match field.value {
        HostValue::Number => "number".to_owned(),
        HostValue::Object { nullable, .. } => format!("object{}", if nullable { "?" } else { "" }),
        HostValue::Slice { length_at, length_bytes, element_bytes, write } => {
            format!("slice {length_at}/{length_bytes}*{element_bytes}{}", if write { " w" } else { "" })
        }
    };
    let when = |field: &HostField| -> String {
        let one = |when: &Discriminator| format!(" if {} {:?} {:?}", when.name, when.at, when.values);
        field.when.iter().map(one).collect()
    };
    let shown = |field: &HostField| {
        format!("{} {:?} {} {}{}", field.name, field.at, rights(field), value(field), when(field))
    };
    object.fields.iter().map(shown).collect()
}

fn behind<'g>(grant: &'g Grant, value: &HostValue) -> &'g HostObject {
    let HostValue::Object { object, .. } = value else { panic!("{value:?}") };
    &grant.objects[*object]
}

fn field<'g>(object: &'g HostObject, name: &str) -> &'g HostField {
    object.fields.iter().find(|field| field.name == name).unwrap_or_else(|| panic!("{name} in {object:?}"))
}

/// The firewall's grant: what the specification says, by hand.
fn check_firewall(grant: &Grant, limits: &Limits) {
    let [HostValue::Object { nullable: false, .. }, HostValue::Number, HostValue::Object { nullable: true, .. }] =
        grant.arguments[..]
    else {
        panic!("{:?}", grant.arguments)
    };
    let request = behind(grant, &grant.arguments[0]);
    assert_eq!(request.name, "struct request_s");
    assert_eq!(
        fields(request),
        ["headers_in.host 16..24 r object?", "uri.length 40..48 r number", "uri.data 48..56 r slice 40/8*1"]
    );
    let host = behind(grant, &field(request, "headers_in.host").value);
    assert_eq!((host.name.as_str(), host.size), ("struct header_s", 40));
    assert_eq!(fields(host), ["value.length 16..24 r number", "value.data 24..32 r slice 16/8*1"]);
    assert_eq!(behind(grant, &grant.arguments[2]).fields, []);
    let [refuse] = &grant.functions[..] else { panic!("{:?}", grant.functions) };
    let parameters =
        [HostParameter::Object { type_id: request.type_id, nullable: false }, HostParameter::Number(400..=599)];
    assert_eq!(
        (refuse.symbol.as_str(), &refuse.parameters[..], refuse.result),
        ("request_refuse", &parameters[..], None)
    );
    assert_eq!(
        grant.verdicts,
        [
            Verdict { values: 0..=0, action: Action::Continue },
            Verdict { values: 1..=1, action: Action::Return(0) },
            Verdict { values: 400..=599, action: Action::ReturnVerdict },
        ]
    );
    assert_eq!(
        (limits.instructions, limits.memory_bytes, limits.time_ns, limits.maps),
        (100_000, 1 << 20, 50_000, 4)
    );
    use ring3_uapi::helper::{KTIME_GET_NS, MAP_LOOKUP_ELEM, PROBE_READ_USER, STRNCMP, TRACE_PRINTK};
    let has = |id| limits.helpers.contains(&id);
    assert!(has(KTIME_GET_NS) && has(MAP_LOOKUP_ELEM) && has(STRNCMP));
    assert!(!has(PROBE_READ_USER) && !has(TRACE_PRINTK));
}

#[test]
fn a_class_is_the_same_grant_by_btf_and_by_dwarf() {
    let specification = specification();
    let (grant, limits) = grant_of(&specification, "firewall", &btf());
    check_firewall(&grant, &limits);
    for flags in VARIANTS {
        let binary = binary(flags, &specification);
        let (grant, limits) = grant_of(&specification, "firewall", &binary.types);
        check_firewall(&grant, &limits);
    }
}

#[test]
fn object_files_of_gcc_have_types_too() {
    let specification = specification();
    let binary = binary(&["gcc", "-g", "-c"], &specification);
    let (grant, limits) = grant_of(&specification, "firewall", &binary.types);
    check_firewall(&grant, &limits);
}

#[test]
fn all_states_and_functions_resolve() {
    let all = with(
        "class all { entry request; allow uri, args, host, method, status, digest, port, load, current, listener, name, \
         inline_headers, refuse, alloc, find; helpers none }",
    );
    let mut seen = vec![];
    let mut types = vec![btf()];
    types.extend(VARIANTS.map(|flags| binary(flags, &all).types));
    for types in &types {
        let (grant, limits) = grant_of(&all, "all", types);
        assert!(limits.helpers.is_empty());
        let request = behind(&grant, &grant.arguments[0]);
        assert_eq!(
            fields(request),
            [
                "connection 8..16 r object",
                "headers_in.host 16..24 r object?",
                "uri.length 40..48 r number",
                "uri.data 48..56 r slice 40/8*1",
                "args.length 56..64 r number",
                "args.data 64..72 r slice 56/8*1",
                "method 72..76 r number",
                // `keepalive` and `chunked` are in the first byte, `version` is in both.
                "keepalive 76..78 r number",
                "status 80..88 rw number",
                "digest 100..120 rw number",
                "inline_headers[0].key.length 120..128 r number",
                "inline_headers[1].key.length 160..168 r number",
                "inline_headers[2].key.length 200..208 r number",
                "ports 240..256 r number",
                "name 264..272 r object?",
            ]
        );
        assert_eq!(fields(behind(&grant, &field(request, "connection").value)), ["port 4..6 r number"]);
        assert_eq!(fields(behind(&grant, &field(request, "name").value)), ["elements 0..16 rw number"]);
        let globals: Vec<(&str, Vec<String>)> = grant
            .globals
            .iter()
            .map(|global| (global.symbol.as_str(), fields(&grant.objects[global.object])))
            .collect();
        assert_eq!(globals[0], ("current", vec!["current 0..8 r object?".to_owned()]));
        assert_eq!(globals[1], ("listener", vec!["fd 0..4 r number".to_owned()]));
        assert_eq!(globals[2], ("load", vec!["load 0..8 rw number".to_owned()]));
        // What is behind `current` has more than what is granted of all requests.
        let HostValue::Object { object, .. } = grant.objects[grant.globals[0].object].fields[0].value else {
            panic!()
        };
        let current = &grant.objects[object];
        assert_eq!(fields(current)[0], "signature 0..4 r number");
        assert!(!fields(current).iter().any(|field| field.starts_with("headers_in")), "{:?}", fields(current));
        let [refuse, alloc, find] = &grant.functions[..] else { panic!("{:?}", grant.functions) };
        assert_eq!((refuse.ensures.clone(), refuse.result), (None, None));
        assert_eq!(alloc.parameters[1], HostParameter::Number(1..=64));
        assert_eq!(alloc.ensures, Some(1..=i64::MAX));
        assert!(matches!(alloc.result, Some(HostValue::Object { nullable: false, .. })));
        assert_eq!(find.parameters[0], HostParameter::Number(0..=0xffff_ffff));
        let found = behind(&grant, &find.result.expect("a result"));
        assert_eq!(found.type_id, request.type_id);
        assert!(!fields(found).iter().any(|field| field.starts_with("headers_in")));
        seen.push(grant.arguments.len());
    }
    assert_eq!(seen, [3; 7]);
}

#[test]
fn a_result_is_the_first_argument_at_a_return() {
    let specification = specification();
    let class = specification.class("watcher").expect("the class");
    let (grant, limits, entry) =
        resolve(&specification, class, &btf()).unwrap_or_else(|errors| panic!("{}", errors[0]));
    assert_eq!((entry.function.as_str(), entry.at), ("request_begin", At::Return));
    let names: Vec<&str> = entry.arguments.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["return", "r", "flags", "why"]);
    assert_eq!(grant.arguments[0], HostValue::Number);
    assert!(matches!(grant.arguments[1], HostValue::Object { nullable: true, .. }));
    assert_eq!(
        grant.verdicts,
        [
            Verdict { values: i64::MIN..=-1, action: Action::ReturnVerdict },
            Verdict { values: 0..=0, action: Action::Continue },
            Verdict { values: 1..=i64::MAX, action: Action::ReturnVerdict },
        ]
    );
    assert!(limits.helpers.contains(&ring3_uapi::helper::TRACE_PRINTK));
    assert!(!limits.helpers.contains(&ring3_uapi::helper::PROBE_READ_USER));
}

#[test]
fn paths_and_types_grant_different_parts() {
    let all = with(
        "state a { read r->headers_in.host->key.length of entry request }
         state b { read header_t.next }
         state c { read r->headers_in.cookie of entry request }
         class paths { entry request; allow a, b, c }",
    );
    let (grant, _) = grant_of(&all, "paths", &btf());
    let request = behind(&grant, &grant.arguments[0]);
    let host = behind(&grant, &field(request, "headers_in.host").value);
    let cookie = behind(&grant, &field(request, "headers_in.cookie").value);
    assert_eq!(fields(host), ["key.length 0..8 r number", "next 32..40 r object?"]);
    assert_eq!(fields(cookie), ["next 32..40 r object?"]);
    // A list ends in itself.
    let next = behind(&grant, &field(host, "next").value);
    assert!(std::ptr::eq(next, cookie) && std::ptr::eq(behind(&grant, &field(next, "next").value), next));
}

/// What is wrong, for a class that allows a state and a function, by the place of the error.
fn refused(more: &str) -> Vec<String> {
    let all = with(more);
    let class = all.class("x").expect("the class");
    match resolve(&all, class, &binary(&["gcc", "-g", "-O1"], &all).types) {
        Ok(_) => panic!("accepted: {more}"),
        Err(errors) => first_lines(&errors),
    }
}

#[test]
fn what_cannot_be_granted_is_refused_with_its_place() {
    let state = |text: &str| refused(&format!("state s {{ {text} }}\nclass x {{ entry request; allow s }}"));
    let cases = [
        ("read request_t.urj", "1:26: `struct request_s` has no field `urj`; did you mean `uri`?"),
        ("read reqest_t.uri", "1:16: no type `reqest_t` in the program's types; did you mean `request_t`?"),
        (
            "read struct request.uri",
            "1:16: no type `struct request` in the program's types; did you mean `request_s`?",
        ),
        ("read request_t.uri->length", "1:31: `request_t.uri` is a structure, no pointer; write `.`"),
        ("read request_t.connection.fd", "1:37: `request_t.connection` is a pointer; write `->fd`"),
        ("read request_t.kind.x", "1:31: `request_t.kind` is `const int`, which has no fields"),
        ("read request_t.digest[20]", "1:32: `request_t.digest` has 20 elements, the first is 0; correct the number"),
        ("read request_t.kind[0]", "1:30: `request_t.kind` is `const int`, no array; remove `[...]`"),
        (
            "read request_t.headers_in.host[*]",
            "1:41: how many elements are behind `request_t.headers_in.host` is not known; add `length \
             request_t.headers_in.host = ...`",
        ),
        ("read request_t.tagged", "1:16: `request_t.tagged` is a union; name one of its members"),
        (
            "read request_t.tagged.pointer",
            "1:16: `request_t.tagged.pointer` is a pointer in a union: whether it is one at run time is not known; say when it \
             is one (`member request_t.tagged.pointer when FIELD = NUMBER`), or grant a function of the program that returns the \
             pointer",
        ),
        (
            "write request_t.tagged.number",
            "1:17: `request_t.tagged.number` shares its bytes with a pointer (a union), so it cannot be written; it can only \
             be read, unless `member request_t.tagged.number when FIELD = NUMBER` says when it is no pointer",
        ),
        (
            "length request_t.connection = 2; read request_t.connection",
            "1:49: the elements behind `request_t.connection` hold pointers, which cannot be read as bytes",
        ),
        ("write request_t.connection", "1:17: `request_t.connection` is a pointer, and only numbers can be written"),
        ("write request_t.kind", "1:17: `request_t.kind` is const in the program; it can only be read"),
        (
            "write request_t.chunked",
            "1:17: `request_t.chunked` is a bit field, which cannot be written: a store would change its neighbours, too",
        ),
        (
            "write request_t.uri.length",
            "1:17: `request_t.uri.length` is the length of what a pointer leads to (`length`), so it can only be read",
        ),
        ("write request_t.uri", "1:17: `request_t.uri` holds pointers, which cannot be written; name its numbers"),
        ("read global lod", "1:23: no variable `lod` in the program's types; did you mean `load`?"),
        ("write global version", "1:17: `global version` is const in the program; it can only be read"),
        ("write flags of entry request", "1:17: `flags` is an argument, and those cannot be written; grant a field"),
        ("read q->uri of entry request", "1:16: `request` has no parameter `q`; did you mean `r`?"),
        ("read return->uri of entry request", "1:16: there is a result only at the function's return: `at return`"),
        (
            "nonnull request_t.kind",
            "1:19: `request_t.kind` is no pointer, but `const int`; only of pointers such a thing can be said",
        ),
        (
            "length request_t.name = header_t.key.length",
            "1:35: the length has to be in the structure that holds the pointer; name a field of that one",
        ),
        (
            "length request_t.name = request_t.digest",
            "1:35: a length is an integer of 4 or 8 bytes, and `request_t.digest` is `char[20]`; name another field, or a \
             number of elements",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(state(text), [format!("more.eim:{message}")], "{text}");
    }
}

#[test]
fn members_of_unions_are_granted_with_what_says_when_they_are_there() {
    let all = with(
        "state a {
             read request_t.value.tag, request_t.value.level, request_t.value.number, request_t.value.connection->port
             read request_t.value.text, request_t.value.pair.high, request_t.value.inner.name
             write request_t.value.number, request_t.value.level
             member request_t.value.number when request_t.value.tag = 1
             member request_t.value.connection when request_t.value.tag = 2
             member request_t.value.text when request_t.value.tag in 3..4
             member request_t.value.pair when request_t.value.tag > 5
             member request_t.value.inner when request_t.value.tag = 5
             member request_t.value.inner.name when request_t.signature = 7
             length request_t.value.inner.name = 3
         }
         state b {
             read request_t.signature, request_t.items[*].which, request_t.items[*].first
             write request_t.items[*].which, request_t.items[*].first
             member request_t.items[*].first when request_t.items[*].which in -3..-2
         }
         class unions { entry request; allow a, b }",
    );
    let mut types = vec![btf()];
    types.extend(VARIANTS.map(|flags| binary(flags, &all).types));
    for types in &types {
        let (grant, _) = grant_of(&all, "unions", types);
        let request = behind(&grant, &grant.arguments[0]);
        assert_eq!(
            fields(request),
            [
                "signature 0..4 r number",
                "value.tag 280..282 r number",
                "value.level 282..283 rw number",
                "value.number 288..296 rw number if value.tag 280..282 1..=1",
                "value.text.length 288..296 r number if value.tag 280..282 3..=4",
                "value.connection 288..296 r object? if value.tag 280..282 2..=2",
                "value.inner.name 288..296 r object? if value.tag 280..282 5..=5 if signature 0..4 7..=7",
                "value.pair.high 292..296 r number if value.tag 280..282 6..=65535",
                "value.text.data 296..304 r slice 288/8*1 if value.tag 280..282 3..=4",
                "items[0].which 304..308 rw number",
                "items[0].first 308..312 rw number if items[0].which 304..308 4294967293..=4294967294",
                "items[1].which 312..316 rw number",
                "items[1].first 316..320 rw number if items[1].which 312..316 4294967293..=4294967294",
            ]
        );
    }
    let class = all.class("unions").expect("the class");
    let found = ring3_eim::resolve_all(&all, class, &btf()).unwrap_or_else(|errors| panic!("{}", errors[0]));
    let words = ring3_eim::describe("unions", &found);
    let line =
        "    request_t.value.number: long, 8 bytes at offset 288 of struct request_s, only while value.tag is 1\n";
    assert!(words.contains(line), "{words}");
}

#[test]
fn elements_of_an_array_have_lengths_of_their_own() {
    let all = with(
        "state s {
             read request_t.inline_headers[*].key
             length request_t.inline_headers[*].key.data = request_t.inline_headers[*].key.length
         }
         class x { entry request; allow s }",
    );
    let (grant, _) = grant_of(&all, "x", &btf());
    let lengths = behind(&grant, &grant.arguments[0]).fields.iter().filter_map(|field| match field.value {
        HostValue::Slice { length_at, .. } => Some((field.at.start, length_at)),
        _ => None,
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [(128, 120), (168, 160), (208, 200)]);
}

#[test]
fn what_is_said_of_unions_and_cannot_be_is_refused_with_its_place() {
    let state = |text: &str| refused(&format!("state s {{ {text} }}\nclass x {{ entry request; allow s }}"));
    let cases = [
        (
            "member request_t.uri when request_t.value.tag = 1",
            "1:18: `request_t.uri` is no member of a union; only of those such a thing can be said",
        ),
        (
            "member request_t.value.number when header_t.key.length = 1",
            "1:46: `header_t.key.length` is not in the same object as `request_t.value.number`, or it is in a union itself; \
             name a field beside the union",
        ),
        (
            "member request_t.value.number when request_t.value.pair.low = 1",
            "1:46: `request_t.value.pair.low` is not in the same object as `request_t.value.number`, or it is in a union \
             itself; name a field beside the union",
        ),
        (
            "member request_t.value.number when request_t.weight = 1",
            "1:46: `request_t.weight` is `double`; what says which member a union has is an integer",
        ),
        (
            "member request_t.value.number when request_t.value.small = 1",
            "1:46: `request_t.value.small` is a bit field, which a check does not cover; name a whole field",
        ),
        (
            "member request_t.value.number when request_t.value.level > -2",
            "1:68: the range has negative and other values; name one or the other",
        ),
        (
            "member request_t.value.number when request_t.value.tag = 70000",
            "1:66: 70000 is no value of its type, whose values are 0..65535; correct it",
        ),
        (
            "member request_t.items[*].first when request_t.items[0].which = 1",
            "1:48: `request_t.items[*].first` and `request_t.items[0].which` are not as many; write `[*]` at the same places of \
             both",
        ),
        (
            "member request_t.value.number when request_t.value.tag = 1; member request_t.value.number when request_t.value.tag = 2",
            "1:78: when a union has `request_t.value.number` was said already; write one range of values",
        ),
        (
            "member request_t.value.number when request_t.value.tag in 1..3; member request_t.value.connection when \
             request_t.value.tag = 3",
            "1:82: the union could have `request_t.value.connection` and `request_t.value.number` at a time, and one holds a \
             pointer; name other values of the same field",
        ),
        (
            "member request_t.value.number when request_t.value.tag = 1; member request_t.value.connection when \
             request_t.value.level = 3",
            "1:78: the union could have `request_t.value.connection` and `request_t.value.number` at a time, and one holds a \
             pointer; name other values of the same field",
        ),
        (
            "member request_t.value.number when request_t.value.tag = 1; read request_t.value.number",
            "1:76: which member the union has must be checked before `value.number` is used, but `value.tag` is not granted; \
             add it to `read`",
        ),
        (
            "member request_t.value.number when request_t.value.tag = 1; write request_t.value.tag",
            "1:77: `request_t.value.tag` says whether a union has a pointer (`member`), so it can only be read",
        ),
        (
            "member request_t.value.connection when request_t.value.tag = 1; read request_t.value.connection, \
             request_t.value.tag, request_t.value.number",
            "1:129: `value.number` and `value.connection` share bytes (a union); grant one of them, or say of both when the \
             union has them (`member`)",
        ),
        (
            "length request_t.uri.data = request_t.value.text.length",
            "1:39: the length has to be in the structure that holds the pointer; name a field of that one",
        ),
        (
            "length request_t.inline_headers[*].key.data = request_t.inline_headers[0].key.length",
            "1:57: `request_t.inline_headers[*].key.data` and `request_t.inline_headers[0].key.length` are not as many; write \
             `[*]` at the same places of both",
        ),
        (
            "member request_t.value.inner when request_t.value.tag = 1; read request_t.value.tag, request_t.value.inner.name",
            "1:96: `request_t.value.inner.name` is a pointer in a union: whether it is one at run time is not known; say when \
             it is one (`member request_t.value.inner.name when FIELD = NUMBER`), or grant a function of the program that returns \
             the pointer",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(state(text), [format!("more.eim:{message}")], "{text}");
    }
    // What is true of one member is not true of another one at the same place.
    let nonnull = "nonnull request_t.value.connection; member request_t.value.connection when request_t.value.tag = 1
        member request_t.value.inner when request_t.value.tag = 2; member request_t.value.inner.name when request_t.value.level = 2
        read request_t.value.tag, request_t.value.level, request_t.value.connection->port, request_t.value.inner.name";
    let all = with(&format!("state s {{ {nonnull} }}\nclass x {{ entry request; allow s }}"));
    let (grant, _) = grant_of(&all, "x", &btf());
    let request = behind(&grant, &grant.arguments[0]);
    let nullable = |name| matches!(field(request, name).value, HostValue::Object { nullable: true, .. });
    assert!(!nullable("value.connection") && nullable("value.inner.name"));
}

#[test]
fn functions_and_entries_that_cannot_be_had_are_refused_with_their_place() {
    let function = |text: &str| refused(&format!("function f {{ {text} }}\nclass x {{ entry request; allow f }}"));
    let cases = [
        (
            "symbol request_refus",
            "1:21: no function `request_refus` in the program's types; did you mean `request_refuse`?",
        ),
        (
            "prototype \"int request_refuse(request_t *r, long status)\"",
            "1:25: wrong prototype: the result's type differs; the program has `void request_refuse(request_t *r, long \
             int status)`: correct the prototype, or take the program that it is of",
        ),
        (
            "prototype \"void request_refuse(request_t *r, int status)\"",
            "1:59: wrong prototype: the type of `status` differs; the program has `void request_refuse(request_t *r, long \
             int status)`: correct the prototype, or take the program that it is of",
        ),
        (
            "prototype \"void request_refuse(request_t *r)\"",
            "1:30: wrong prototype: 1 parameters instead of 2; the program has `void request_refuse(request_t *r, long \
             int status)`: correct the prototype, or take the program that it is of",
        ),
        (
            "prototype \"void request_refuse(reqest_t *r, long s)\"",
            "1:45: no type `reqest_t` in the program's types; did you mean `request_t`?",
        ),
        ("symbol request_refuse; require s in 1..2", "1:45: `f` has no parameter `s`; did you mean `r`?"),
        (
            "symbol request_refuse; require r in 1..2",
            "1:50: a range is of a number, and this is none; for a pointer write `nonnull`",
        ),
        (
            "symbol request_refuse; nonnull status",
            "1:45: `status` of `request_refuse` is no pointer; write `require` for it",
        ),
        ("symbol request_refuse; ensure return > 0", "1:51: the function returns nothing; remove `ensure`"),
        (
            "symbol request_alloc; ensure return = 0",
            "1:50: the result is a pointer, of which only `> 0` can be said: that it is not null",
        ),
        (
            "symbol request_find; require id > 4294967295",
            "1:46: 4294967296 is no value of its type, whose values are 0..4294967295; correct it",
        ),
        (
            "prototype \"int main(int argc, char **argv)\"; require x in 1..2",
            "1:67: `f` has no parameter `x`; it has argc, argv",
        ),
        (
            "symbol request_find; require id > 5; require id < 3",
            "1:62: no value of `id` has all that is required; correct one of the conditions",
        ),
        (
            "prototype \"int strange(char **list)\"",
            "1:37: the program's types have no such type, so a prototype cannot name it; take types from a file that declares \
             the function",
        ),
        (
            "prototype \"int six(int a, int b, int c, int d, int e, int f)\"",
            "1:29: `six` has more than 5 parameters, so programs cannot call it; grant a function that wraps it",
        ),
        (
            "symbol request_weight",
            "1:21: parameter `by` of `request_weight` is a floating-point number, which is in no register that programs have; \
             choose another function",
        ),
        (
            "symbol request_log",
            "1:21: `request_log` takes a variable number of arguments, so programs cannot call it; grant a function that \
             wraps it",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(function(text), [format!("more.eim:{message}")], "{text}");
    }
    let entry = |text: &str| refused(&format!("entry e {{ function {text} }}\nclass x {{ entry e }}"));
    let cases = [
        ("request_begn", "1:20: no function `request_begn` in the program's types; did you mean `request_begin`?"),
        (
            "request_begin; return 0 = keep",
            "1:46: `keep` is nothing that happens at an entry; write continue or skip",
        ),
        (
            "request_begin; at return; return 0 = skip",
            "1:57: `skip` is nothing that happens at a return; write keep or replace",
        ),
        (
            "request_begin; return 0 = skip; return 0..3 = continue",
            "1:59: one of these results has a meaning already; write each once",
        ),
        (
            "request_find; return 1 = skip",
            "1:34: the function returns a pointer, which a program cannot make up; name 0 (null) as the result",
        ),
        ("request_find; return 1 = skip 5", "1:34: the function returns a pointer; only 0 (null) can be its result"),
        ("request_refuse; return 1 = skip 5", "1:36: the function returns nothing; leave the number out"),
        (
            "request_weight",
            "1:20: parameter `by` of `request_weight` is a floating-point number, which is in no register that programs have; \
             choose another function",
        ),
        (
            "request_log; return 2147483648 = skip",
            "1:33: 2147483648 is not within the function's result, whose values are -2147483648..2147483647; correct it",
        ),
        (
            "request_log; return 1 = skip 2147483648",
            "1:33: 2147483648 is no value of the function's result, whose values are -2147483648..2147483647; correct it",
        ),
        ("request_begin; nonnull q", "1:43: `e` has no parameter `q`; did you mean `r`?"),
    ];
    for (text, message) in cases {
        assert_eq!(entry(text), [format!("more.eim:{message}")], "{text}");
    }
}

#[test]
fn classes_can_only_name_what_is_declared() {
    let class = |text: &str| refused(&format!("class x {{ {text} }}"));
    assert_eq!(
        class("entry request; allow urj"),
        ["more.eim:1:32: no state and no function `urj` in the specification; did you mean `uri`?"]
    );
    assert_eq!(
        class("entry reqest; allow uri"),
        ["more.eim:1:17: no entry `reqest` in the specification; did you mean `request`?"]
    );
    assert_eq!(
        class("entry result; allow host"),
        [
            "more.eim:1:31: state `host` is of entry `request`, but the class is of entry `result`; leave it out, or change the entry"
        ]
    );
    assert_eq!(
        class("entry request; helpers map, tme"),
        ["more.eim:1:39: no group of helpers and no helper `tme`; did you mean `time`?"]
    );
    // Helpers that no group has can be named.
    let all = with("class x { entry request; helpers map, bpf_probe_read_user }");
    let (_, limits) = grant_of(&all, "x", &btf());
    assert!(limits.helpers.contains(&ring3_uapi::helper::PROBE_READ_USER));
}

#[test]
fn what_is_behind_an_argument_is_granted_by_name_only() {
    let all = with(
        "state why { length why = flags of entry request; read why of entry request }
         class without { entry request }
         class has { entry request; allow why }",
    );
    let (without, _) = grant_of(&all, "without", &btf());
    let opaque = behind(&without, &without.arguments[2]);
    assert_eq!((opaque.name.as_str(), &opaque.fields[..]), ("char", &[][..]));
    assert_eq!(behind(&without, &without.arguments[0]).fields, []);
    let (has, _) = grant_of(&all, "has", &btf());
    let slice = HostValue::Slice { length_at: 8, length_bytes: 4, element_bytes: 1, write: false };
    assert_eq!(has.arguments[2], slice);
}

#[test]
fn conditions_of_one_parameter_hold_together() {
    let all = with(
        "function f { symbol request_find; require id >= 3; require id <= 9 }
         class x { entry request; allow f }",
    );
    let (grant, _) = grant_of(&all, "x", &btf());
    assert_eq!(grant.functions[0].parameters, [HostParameter::Number(3..=9)]);
}

#[test]
fn lengths_cannot_be_written_by_another_way() {
    let policy = |write: &str| {
        let text = format!(
            "state s {{ read header_t.value; length header_t.value.data = header_t.value.length }}
             state w {{ write {write} }}
             entry request {{ function request_begin }}
             class x {{ entry request; allow s, w }}"
        );
        parse("x.eim", &text).expect("the text is right")
    };
    for write in
        ["text_t.length", "header_t.value.length", "request_t.inline_headers[1].value.length", "request_t.uri.length"]
    {
        let policy = policy(write);
        let class = policy.class("x").expect("the class");
        let errors = resolve(&policy, class, &btf()).map(|_| ()).expect_err(write);
        assert!(errors[0].message.contains("is the length of what a pointer leads to"), "{write}: {errors:?}");
    }
}

#[test]
fn a_name_that_is_declared_twice_is_refused() {
    let mut all = specification();
    all.add(parse("more.eim", "state uri { read request_t.uri }").expect("the text alone is right"));
    let class = all.class("logger").expect("the class");
    let errors = resolve(&all, class, &btf()).expect_err("two states of one name");
    assert_eq!(
        first_lines(&errors),
        ["more.eim:1:7: `uri` is declared already at host.eim:4; give one of them another name"]
    );
}
