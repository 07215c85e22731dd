//! Headers of classes compile for BPF, and their structures are laid out as those of the program.

use ring3_btf::{Btf, kind};
use ring3_eim::{Binary, header};

use crate::build::{Scratch, binary, btf, run, specification, with};

/// Compiles a program that includes a header; its types.
fn types_of(header: &str, program: &str) -> Btf {
    let scratch = Scratch::new();
    let (source, output) = (scratch.path("extension.bpf.c"), scratch.path("extension.bpf.o"));
    std::fs::write(&source, format!("{header}\n{program}")).expect("the directory takes files");
    let (source, output) = (source.to_str().expect("text"), output.to_str().expect("text"));
    run(&["clang", "-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c", source, "-o", output]);
    let bytes = std::fs::read(output).expect("the compiler writes a file");
    Binary::read(("extension", &bytes), None, &specification()).unwrap_or_else(|error| panic!("{error}")).types
}

/// Each member that the header has is where the program has it.
fn compare(own: &Btf, program: &Btf, structure: &str) -> usize {
    let find = |types: &Btf| types.find(structure.as_bytes(), kind::STRUCT).expect("the structure");
    let (ours, theirs) = (find(own), find(program));
    assert_eq!(own.sized(ours).map(|(_, size)| size), program.sized(theirs).map(|(_, size)| size), "{structure}");
    let mut compared = 0;
    for member in own.members(ours).filter(|member| !member.name.is_empty() && !member.name.starts_with(b"ring3_")) {
        let same = program.members(theirs).find(|other| other.name == member.name).expect("a member of the program");
        let name = String::from_utf8_lossy(member.name);
        assert_eq!((member.at_bits, member.bits), (same.at_bits, same.bits), "{structure}.{name}");
        compared += 1;
    }
    compared
}

#[test]
fn a_header_has_the_granted_fields_at_their_places() {
    let all = with(
        "class all { entry request; allow uri, args, host, method, status, digest, port, load, current, listener, name, \
         inline_headers, refuse, alloc, find }",
    );
    let class = all.class("all").expect("the class");
    for types in [btf(), binary(&["gcc", "-g", "-O2"], &all).types, binary(&["clang", "-g", "-O2"], &all).types] {
        let text = header(&all, class, &types).unwrap_or_else(|errors| panic!("{}", errors[0]));
        // (Compilers leave out what is behind pointers to types of which there is no object.)
        let program = "
            struct connection connection; struct request_s request;
            __attribute__((section(\"extend/request\"), used)) long program(struct ring3_request *args) {
                request_t *r = args->r;
                header_t *host = r->headers_in.host;
                if (host && host->value.length > 5) return 404;
                r->status = r->digest[3] + r->method + r->keepalive + r->version + r->ports[1][1];
                load += listener.fd + args->flags + r->inline_headers[1].key.length + r->connection->port;
                if (current && current->signature == 7 && request_alloc(r, 8)) request_refuse(r, 400);
                r->name[2] = 'x';
                return (long)request_find(3) + (ring3_dynptr_from_slice(r->uri.data, 0, 0) != 0);
            }";
        let own = types_of(&text, program);
        assert!(compare(&own, &types, "request_s") >= 13, "{text}");
        assert_eq!(compare(&own, &types, "connection"), 2, "{text}");
        assert!(!text.contains("private_key") && !text.contains("tagged"), "{text}");
    }
}

#[test]
fn a_header_has_nothing_that_a_class_has_not() {
    let specification = specification();
    for (class, has, has_not) in [
        ("logger", ["request_t", "uri", "struct ring3_request"], ["headers_in", "request_refuse", "result"]),
        ("watcher", ["long result", "extern long load", "enum method"], ["uri", "headers_in", "request_refuse"]),
        (
            "firewall",
            ["headers_in", "request_refuse(struct request_s *r, long status)", "value"],
            ["keepalive", "extern long load", "args;"],
        ),
    ] {
        let found = header(&specification, specification.class(class).expect("the class"), &btf());
        let text = found.unwrap_or_else(|errors| panic!("{}", errors[0]));
        assert!(has.iter().all(|word| text.contains(word)), "{class}: {text}");
        assert!(!has_not.iter().any(|word| text.contains(word)), "{class}: {text}");
        types_of(&text, "long program(void *args) { return 0; }");
    }
}

#[test]
fn a_header_has_pointers_of_unions_that_are_granted() {
    let all = with(
        "state s {
             read request_t.value.tag, request_t.value.connection->port
             member request_t.value.connection when request_t.value.tag = 1
         }
         class unions { entry request; allow s }",
    );
    let class = all.class("unions").expect("the class");
    let text = header(&all, class, &btf()).unwrap_or_else(|errors| panic!("{}", errors[0]));
    let program = "long program(struct ring3_request *args) {
        request_t *r = args->r;
        return r->value.tag == 1 && r->value.connection && r->value.connection->port == 80;
    }";
    types_of(&text, program);
    assert!(!text.contains("*pointer"), "{text}");
}

#[test]
fn bits_in_bytes_that_are_not_granted_are_hidden() {
    let all = with("state k { read request_t.keepalive }\nclass k { entry request; allow k }");
    let text =
        header(&all, all.class("k").expect("the class"), &btf()).unwrap_or_else(|errors| panic!("{}", errors[0]));
    types_of(&text, "struct request_s request;");
    assert!(text.contains("unsigned int keepalive : 1;") && !text.contains("version"), "{text}");
}

#[test]
fn structures_without_alignment_keep_their_places() {
    let scratch = Scratch::new();
    let source = scratch.path("packed.c");
    let text = "
        struct __attribute__((packed)) inner { char tag; long value; short end; };
        typedef struct { unsigned a : 3, b : 20; unsigned char c; unsigned d : 9; struct inner inner; char rest[3]; } wire_t;
        struct outer { char kind; wire_t wire[2]; union { long number; struct { int low, high; } parts; }; };
        long handle(struct outer *o) { return o->wire[0].a; }";
    std::fs::write(&source, text).expect("the directory takes files");
    let source = source.to_str().expect("text");
    let policy = "
        state s {
            read wire_t.b, outer.wire[1].b, outer.wire[1].c, outer.wire[1].d, outer.wire[1].inner.value
            read outer.wire[0].inner.end, outer.parts.high
        }
        entry e { function handle }
        class c { entry e; allow s }";
    let policy = ring3_eim::parse("packed.eim", policy).unwrap_or_else(|errors| panic!("{}", errors[0]));
    let class = policy.class("c").expect("the class");
    for compiler in [&["gcc", "-g", "-c"][..], &["clang", "-target", "bpf", "-g", "-O1", "-c"]] {
        let bytes = crate::build::compile(source, compiler);
        let types = Binary::read(("packed.o", &bytes), None, &policy).unwrap_or_else(|error| panic!("{error}")).types;
        let text = header(&policy, class, &types).unwrap_or_else(|errors| panic!("{}", errors[0]));
        let program = "struct outer whole; struct inner part;
            long program(struct ring3_e *args) {
            struct outer *o = args->o;
            return o->wire[1].b + o->wire[1].c + o->wire[1].d + o->wire[1].inner.value + o->wire[0].inner.end + o->parts.high;
        }";
        let own = types_of(&text, program);
        assert!(compare(&own, &types, "inner") == 2 && compare(&own, &types, "outer") >= 1, "{text}");
        let wire = |types: &Btf| -> Vec<(Vec<u8>, u32, u32)> {
            let id = types.plain(types.find(b"wire_t", kind::TYPEDEF).expect("the typedef"));
            let members = types.members(id).filter(|member| [&b"b"[..], b"c", b"d"].contains(&member.name));
            members.map(|member| (member.name.to_vec(), member.at_bits, member.bits)).collect()
        };
        assert_eq!(wire(&own), wire(&types), "{text}");
        assert_eq!(wire(&own).len(), 3);
    }
}
