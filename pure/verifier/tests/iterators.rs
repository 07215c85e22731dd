//! Iterators over numbers. They are kernel functions, whose numbers case files cannot say.

use ring3_isa::assemble;
use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper::{ITER_NUM_DESTROY, ITER_NUM_NEW, ITER_NUM_NEXT};
use ring3_verifier::{Input, Policy, verify};

/// What the verifier says of a program in which `new`, `next` and `destroy` with an offset are calls on an iterator at
/// that place of the stack; nothing if it accepts it.
fn said(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (function, at) = (words.next(), words.next().unwrap_or_default());
        let call = |id: u32| format!("r1 = r10\nr1 += {at}\n.insn 0x85 0 2 0 {id}\n");
        lines += &match function {
            Some("new") => format!("r2 = 0\nr3 = 10\n{}", call(ITER_NUM_NEW)),
            Some("next") => call(ITER_NUM_NEXT),
            Some("destroy") => call(ITER_NUM_DESTROY),
            _ => format!("{line}\n"),
        };
    }
    let insns = assemble(&lines).unwrap_or_else(|error| panic!("line {}: {}\n{lines}", error.line, error.message));
    let verdict = verify(&Input {
        insns: &insns,
        prog_type: prog_type::XDP,
        gpl_compatible: true,
        sleepable: false,
        cpus: 2,
        policy: Policy::kernel(prog_type::XDP),
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|_| None,
        constant_value: &|_| None,
    });
    verdict.map_or_else(|report| report.message, |_| String::new())
}

/// A loop whose body is `body`, with the number's address in r0.
fn rounds(body: &str) -> String {
    format!("new -8\nagain:\nnext -8\nif r0 == 0 goto out\n{body}\ngoto again\nout:\ndestroy -8\nr0 = 0\nexit")
}

#[test]
fn an_iterator_goes_round_and_is_given_back() {
    assert_eq!(said(&rounds("r6 = *(u32 *)(r0 +0)")), "");
    assert_eq!(said("new -8\ndestroy -8\nr0 = 0\nexit"), "");
    let forgotten = said("new -8\nr0 = 0\nexit");
    assert!(forgotten.contains("Unreleased reference"), "{forgotten}");
    let left = said(
        "new -8\nagain:\nnext -8\nif r0 == 0 goto out\nr6 = *(u32 *)(r0 +0)\nif r6 != 3 goto again\nr0 = 0\nexit\n\
         out:\ndestroy -8\nr0 = 0\nexit",
    );
    assert!(left.contains("Unreleased reference"), "{left}");
}

#[test]
fn its_number_has_four_bytes_that_are_read_only_and_may_be_none() {
    for (body, message) in [
        ("r6 = *(u64 *)(r0 +0)", "invalid access to memory"),
        ("r6 = *(u8 *)(r0 +4)", "invalid access to memory"),
        ("*(u32 *)(r0 +0) = 1", "cannot write into rdonly_mem"),
    ] {
        let refusal = said(&rounds(body));
        assert!(refusal.contains(message), "{body}: {refusal}");
    }
    let untested = said("new -8\nnext -8\nr6 = *(u32 *)(r0 +0)\ndestroy -8\nr0 = 0\nexit");
    assert!(untested.contains("invalid mem access 'scalar'"), "{untested}");
}

#[test]
fn only_what_was_made_and_not_given_back_is_an_iterator() {
    for text in [
        "next -8\nr0 = 0\nexit",
        "destroy -8\nr0 = 0\nexit",
        "*(u64 *)(r10 -8) = 0\nnext -8\nr0 = 0\nexit",
        "new -8\ndestroy -8\ndestroy -8\nr0 = 0\nexit",
        "new -8\ndestroy -8\nnext -8\nr0 = 0\nexit",
        "new -8\nnew -16\ndestroy -8\nr0 = 0\nexit",
        "new -12\ndestroy -12\nr0 = 0\nexit",
        "new -16\ndestroy -12\nr0 = 0\nexit",
        "new 0\ndestroy 0\nr0 = 0\nexit",
        "new -8\n*(u64 *)(r10 -8) = 0\ndestroy -8\nr0 = 0\nexit",
        "new -8\nr0 = *(u64 *)(r10 -8)\ndestroy -8\nr0 = 0\nexit",
    ] {
        assert_ne!(said(text), "", "{text}");
    }
    let twice = said("new -8\nnew -8\ndestroy -8\nr0 = 0\nexit");
    assert!(twice.contains("expected uninitialized iter_num"), "{twice}");
}

#[test]
fn rounds_of_one_iterator_are_not_rounds_of_another() {
    // Two iterators, one after the other; then each inside of the other.
    let two = "new -8\nfirst:\nnext -8\nif r0 == 0 goto half\ngoto first\nhalf:\ndestroy -8\n\
               new -8\nsecond:\nnext -8\nif r0 == 0 goto out\ngoto second\nout:\ndestroy -8\nr0 = 0\nexit";
    assert_eq!(said(two), "");
    let inner = "new -16\ninner:\nnext -16\nif r0 == 0 goto end\ngoto inner\nend:\ndestroy -16";
    assert_eq!(said(&rounds(inner)), "");
    // It is at its end for ever; nothing changes from round to round.
    let endless =
        said("new -8\ndrain:\nnext -8\nif r0 != 0 goto drain\nagain:\nnext -8\nif r0 == 0 goto again\nexit");
    assert!(endless.contains("infinite loop"), "{endless}");
    // One that is made anew begins again.
    let anew = said(
        "r6 = 0\nouter:\nnew -8\nif r6 == 0 goto skip\nnext -8\nif r0 == 0 goto out\nskip:\nnext -8\nif r0 == 0 goto out\n\
         r6 = 1\ndestroy -8\ngoto outer\nout:\ndestroy -8\nr0 = 0\nexit",
    );
    assert!(anew.contains("infinite loop"), "{anew}");
}

#[test]
fn what_a_round_changes_is_not_known_in_the_next() {
    let grows = "r6 = 0\nr7 = r10\n".to_owned()
        + &rounds("r6 += 1").replace("destroy -8\nr0 = 0", "destroy -8\nr7 += r6\nr0 = *(u8 *)(r7 -8)\nr0 = 0");
    assert_ne!(said(&grows), "", "nobody knows how many rounds there were");
}
