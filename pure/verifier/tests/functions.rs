//! Functions of the application: what they may be given, what is known of what they return.

use ring3_isa::assemble;
use ring3_uapi::bpf::prog_type;
use ring3_verifier::{FUNCTION_FIRST, Input, Parameter, Policy, Returned, Signature, Use, verify};

const FIRST: u32 = FUNCTION_FIRST;

fn function(parameters: Vec<Parameter>, result: Returned) -> Signature {
    Signature { name: "visit".into(), number: Some(7), parameters, result }
}

/// What the verifier says of a program that may call this function, with 16 bytes of memory.
fn said_with(policy: Policy, text: &str) -> String {
    let text = text.replace("visit", &FIRST.to_string());
    let insns = assemble(&text).unwrap_or_else(|error| panic!("line {}: {}", error.line, error.message));
    let verdict = verify(&Input {
        insns: &insns,
        prog_type: prog_type::SYSCALL,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy,
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|_| None,
        constant_value: &|_| None,
    });
    verdict.map_or_else(|report| report.message, |_| String::new())
}

fn said(signature: Signature, text: &str) -> String {
    assert_eq!(signature.check(), Ok(()));
    said_with(Policy { functions: vec![signature], ..Policy::memory(16) }, text)
}

fn number() -> Signature {
    function(vec![Parameter::Number(0..=10)], Returned::Number(0..=3))
}

#[test]
fn a_number_must_be_in_the_range() {
    assert_eq!(said(number(), "r1 = 10\ncall visit\nexit"), "");
    assert_eq!(said(number(), "r1 = 11\ncall visit\nexit"), "R1 is from 11 to 11: visit wants a number from 0 to 10");
    assert_eq!(said(number(), "r1 = -1\ncall visit\nexit"), "R1 is from -1 to -1: visit wants a number from 0 to 10");
    assert_eq!(said(number(), "call visit\nexit"), "R1 type=mem: visit wants a number from 0 to 10");
    assert_eq!(said(number(), "r1 = *(u32 *)(r1 +0)\nif r1 > 10 goto out\ncall visit\nout:\nr0 = 0\nexit"), "");
}

#[test]
fn a_result_is_known_to_be_in_the_range() {
    let reads = "r6 = r1\nr1 = 1\ncall visit\nr6 += r0\nr0 = *(u8 *)(r6 +12)\nexit";
    assert_eq!(said(number(), reads), "", "12 + 3 is inside of 16 bytes");
    let further = reads.replace("+12", "+13");
    assert_eq!(said(number(), &further), "invalid access to memory, mem_size=16 off=16 size=1");
    let nothing = function(vec![], Returned::Nothing);
    assert_eq!(said(nothing, "call visit\nexit"), "R0 !read_ok");
}

#[test]
fn registers_that_arguments_come_from_are_lost() {
    let text = "r1 = 1\nr2 = 2\ncall visit\nr0 = r2\nexit";
    assert_eq!(said(number(), text), "R2 !read_ok");
}

#[test]
fn memory_must_be_there_and_written_where_it_is_read() {
    let with = |how| function(vec![Parameter::Memory { bytes: 8, how }], Returned::Number(0..=0));
    let stack = "r1 = r10\nr1 += -8\ncall visit\nexit";
    assert!(said(with(Use::Fills), stack).is_empty());
    let filled = "r1 = r10\nr1 += -8\ncall visit\nr0 = *(u64 *)(r10 -8)\nexit";
    assert_eq!(said(with(Use::Fills), filled), "");
    let written = format!("*(u64 *)(r10 -8) = 0\n{stack}");
    assert_eq!(said(with(Use::Reads), &written), "");
    assert_eq!(said(with(Use::Reads), "call visit\nexit"), "", "r1 leads to 16 bytes");
    assert_eq!(
        said(with(Use::Reads), "r1 += 9\ncall visit\nexit"),
        "invalid access to memory, mem_size=16 off=9 size=8"
    );
    assert_eq!(
        said(with(Use::Reads), "r1 = 4096\ncall visit\nexit"),
        "R1 type=scalar: visit wants a pointer to memory"
    );
}

#[test]
fn memory_that_is_read_only_is_not_given_to_be_changed() {
    for (how, wanted) in [
        (Use::Reads, ""),
        (Use::Fills, "R1 cannot write into rdonly_mem"),
        (Use::Changes, "R1 cannot write into rdonly_mem"),
    ] {
        let signature = function(vec![Parameter::Memory { bytes: 8, how }], Returned::Number(0..=0));
        let policy = Policy { functions: vec![signature], memory_writes: false, ..Policy::memory(16) };
        let said = said_with(policy, "call visit\nexit");
        assert_eq!(said.is_empty(), wanted.is_empty(), "{said}");
    }
    let policy = Policy { memory_writes: false, ..Policy::memory(16) };
    assert!(said_with(policy.clone(), "*(u8 *)(r1 +0) = 1\nr0 = 0\nexit").contains("cannot write into"));
    assert_eq!(said_with(policy, "r0 = *(u8 *)(r1 +15)\nexit"), "");
}

#[test]
fn a_buffer_is_as_large_as_its_size_says() {
    let parameters = vec![Parameter::Buffer { how: Use::Reads }, Parameter::Size { max: 64 }];
    let signature = || function(parameters.clone(), Returned::Number(0..=0));
    assert_eq!(said(signature(), "r2 = 16\ncall visit\nexit"), "");
    assert_eq!(said(signature(), "r2 = 17\ncall visit\nexit"), "invalid access to memory, mem_size=16 off=0 size=17");
    assert_eq!(said(signature(), "r2 = 65\ncall visit\nexit"), "R2 is from 65 to 65: visit wants 0 to 64 bytes");
    let computed = "r2 = *(u64 *)(r1 +0)\nif r2 > 16 goto out\ncall visit\nout:\nr0 = 0\nexit";
    assert_eq!(said(signature(), computed), "");
}

#[test]
fn memory_that_a_function_returns_is_compared_with_null_first() {
    let signature = || function(vec![], Returned::Memory { bytes: 4, write: false, nullable: true });
    assert!(said(signature(), "call visit\nr0 = *(u32 *)(r0 +0)\nexit").contains("invalid mem access"));
    assert_eq!(said(signature(), "call visit\nif r0 == 0 goto out\nr0 = *(u32 *)(r0 +0)\nout:\nexit"), "");
    let further = "call visit\nif r0 == 0 goto out\nr0 = *(u32 *)(r0 +1)\nout:\nexit";
    assert_eq!(said(signature(), further), "invalid access to memory, mem_size=4 off=1 size=4");
}

#[test]
fn memory_that_may_be_null_is_given_to_nobody() {
    let find = function(vec![], Returned::Memory { bytes: 8, write: true, nullable: true });
    let parameters = vec![Parameter::Memory { bytes: 8, how: Use::Reads }];
    let read = Signature { number: Some(8), name: "read".into(), ..function(parameters, Returned::Number(0..=0)) };
    let policy = Policy { functions: vec![find, read], ..Policy::memory(0) };
    let text = format!("call visit\nr1 = r0\nCHECK\ncall {}\nout:\nr0 = 0\nexit", FIRST + 1);
    let unchecked = said_with(policy.clone(), &text.replace("CHECK", ""));
    assert_eq!(unchecked, "R1 invalid mem access 'mem_or_null'");
    assert_eq!(said_with(policy, &text.replace("CHECK", "if r1 == 0 goto out")), "");
}

#[test]
fn callx_names_a_function_by_its_number() {
    assert_eq!(said(number(), "r6 = 7\nr1 = 1\ncallx r6\nexit"), "");
    assert!(said(number(), "r6 = 7\nr1 = 99\ncallx r6\nexit").contains("visit wants"));
}

#[test]
fn what_no_function_has_is_no_signature() {
    let wrong = |parameters: Vec<Parameter>| function(parameters, Returned::Nothing).check().unwrap_err();
    let buffer = Parameter::Buffer { how: Use::Reads };
    assert_eq!(wrong(vec![buffer.clone()]), "parameter 1 of visit is a buffer, and no size follows it");
    assert_eq!(wrong(vec![Parameter::Size { max: 1 }]), "parameter 1 of visit is a size, and no buffer is before it");
    assert_eq!(wrong(vec![Parameter::Anything; 6]), "visit has more than 5 parameters");
    assert_eq!(
        wrong(vec![Parameter::Memory { bytes: 0, how: Use::Fills }]),
        "parameter 1 of visit is memory of no bytes, or of more than 512 MiB"
    );
}
