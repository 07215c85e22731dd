//! Programs as an application loads and calls them: contexts, engines, threads, unloading.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ring3_embed::{
    CallError, Context, Engine, Field, FieldKind, Function, Parameter, Program, Returned, Settings, Vm,
};

const ENGINES: [Engine; 2] = [Engine::Jit, Engine::Interpreter];

fn vm() -> Vm {
    Vm::new().expect("this machine runs programs")
}

fn memory(bytes: u32) -> Settings {
    Settings::new(Context::memory(bytes))
}

/// Why a text is refused.
fn refused(vm: &Vm, text: &str, settings: &Settings) -> String {
    vm.load_text(text, settings).expect_err(text).to_string()
}

/// The corpus of the engines' tests: title, memory, program; each returns 1.
fn corpus() -> Vec<(String, Vec<u8>, String)> {
    let path = ring3_tests::root().join("tests/corpus/engine/programs");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases = text.split("\ncase: ").skip(1).map(|case| {
        let (title, text) = case.split_once('\n').expect("a title and a program");
        let memory = text.strip_prefix("memory: ").and_then(|rest| rest.split_once('\n'));
        let (memory, text) = memory.map_or((vec![], text), |(memory, text)| (ring3_tests::hexadecimal(memory), text));
        (title.to_owned(), memory, text.to_owned())
    });
    cases.collect()
}

/// The tables of operations: one program for each row, which returns 1 if the result is the table's.
fn tables() -> Vec<(String, Vec<u8>, String)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).expect("digits"),
        None => text.parse().expect("digits"),
    };
    let mut cases = vec![];
    for table in ["operations", "conditions"] {
        let path = ring3_tests::root().join("tests/corpus/engine").join(table);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [width, operation, row @ ..] = words.as_slice() else { panic!("{line}") };
            let letter = if *width == "64" { 'r' } else { 'w' };
            let does = match table {
                "operations" => format!("{letter}2 {operation} {letter}3"),
                _ => format!("if {letter}2 {operation} {letter}3 goto yes\nr2 = 0\ngoto on\nyes:\nr2 = 1\non:"),
            };
            let text = format!(
                "r2 = *(u64 *)(r1 +0)\nr3 = *(u64 *)(r1 +8)\nr4 = *(u64 *)(r1 +16)\n{does}\nr0 = 0\n\
                 if r2 != r4 goto end\nr0 = 1\nend:\nexit"
            );
            let memory = row.iter().flat_map(|word| number(word).to_le_bytes()).collect();
            cases.push((line.to_owned(), memory, text));
        }
    }
    cases
}

#[test]
fn engines_agree_on_the_corpus() {
    let (vm, mut cases) = (vm(), corpus());
    cases.extend(tables());
    assert!(cases.len() > 300, "{} cases", cases.len());
    for (title, bytes, text) in cases {
        let left = ENGINES.map(|engine| {
            let settings = memory(bytes.len() as u32).engine(engine);
            let program = vm.load_text(&text, &settings).unwrap_or_else(|error| panic!("{title}: {error}"));
            let mut memory = bytes.clone();
            (program.call(&mut memory), memory)
        });
        assert_eq!(left[0].0, Ok(1), "{title}");
        assert_eq!(left[0], left[1], "{title}");
    }
}

#[test]
fn engines_agree_on_maps_loops_and_subprograms() {
    const TEXT: &str = "
        r6 = r1
        *(u32 *)(r10 -4) = 5
        r1 = map[MAP]
        r2 = r10
        r2 += -4
        r3 = r6
        r4 = 0
        call bpf_map_update_elem
        r1 = 1000
        r2 = func round
        r3 = r10
        r3 += -16
        *(u64 *)(r10 -16) = 0
        r4 = 0
        call bpf_loop
        r7 = r0
        r1 = map[MAP]
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r1 = *(u64 *)(r0 +0)
        r2 = *(u64 *)(r10 -16)
        r1 += r2
        *(u64 *)(r6 +0) = r1
        r0 = r7
    out:
        exit
    round:
        r3 = *(u64 *)(r2 +0)
        r3 += r1
        *(u64 *)(r2 +0) = r3
        r0 = 0
        if r1 < 99 goto end
        r0 = 1
    end:
        exit";
    let vm = vm();
    let map = vm.create_map("map", 1, [4, 8, 16], 0).expect("a hash");
    for engine in ENGINES {
        let text = TEXT.replace("MAP", &map.id().to_string());
        let program = vm.load_text(&text, &memory(8).engine(engine)).unwrap_or_else(|error| panic!("{error}"));
        let mut bytes = 7u64.to_le_bytes();
        assert_eq!(program.call(&mut bytes), Ok(100), "{engine:?}: rounds");
        assert_eq!(u64::from_le_bytes(bytes), 7 + 99 * 100 / 2, "{engine:?}");
        assert_eq!(map.lookup(&5u32.to_le_bytes()).expect("a key"), Some(7u64.to_le_bytes().to_vec()));
        assert!(map.delete(&5u32.to_le_bytes()).expect("a key"));
    }
}

#[test]
fn a_context_that_is_too_short_is_refused() {
    let vm = vm();
    for engine in ENGINES {
        let program = vm.load_text("r0 = *(u8 *)(r1 +15)\nexit", &memory(16).engine(engine)).expect("valid");
        assert_eq!(program.call(&mut [1; 15]), Err(CallError::ContextTooShort { given: 15, wanted: 16 }));
        assert_eq!(program.call(&mut [1; 17]), Ok(1), "more is as good");
        assert!(program.call_readonly(&[1; 16]).is_err(), "the program may write it");
    }
    assert!(
        refused(&vm, "r0 = *(u8 *)(r1 +16)\nexit", &memory(16))
            .contains("invalid access to memory, mem_size=16 off=16")
    );
}

#[test]
fn read_only_memory_is_not_written() {
    let (vm, settings) = (vm(), Settings::new(Context::memory(8).read_only()));
    assert!(refused(&vm, "*(u8 *)(r1 +0) = 1\nr0 = 0\nexit", &settings).contains("cannot write into"));
    let program = vm.load_text("r0 = *(u64 *)(r1 +0)\nexit", &settings).expect("valid");
    assert_eq!(program.call_readonly(&9u64.to_le_bytes()), Ok(9));
}

#[test]
fn fields_are_read_and_written_as_declared_and_refusals_name_them() {
    let vm = vm();
    let context = Context::fields().number("length", 0, 4).writable("verdict", 8, 4);
    let settings = Settings::new(context);
    let program = vm.load_text("r0 = *(u32 *)(r1 +0)\n*(u32 *)(r1 +8) = 3\nexit", &settings).expect("valid");
    let mut bytes = [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(program.call(&mut bytes), Ok(5));
    assert_eq!(bytes[8], 3);
    let written = refused(&vm, "*(u32 *)(r1 +0) = 3\nr0 = 0\nexit", &settings);
    assert!(written.contains("the field length (bytes 0 to 3) may only be read"), "{written}");
    let between = refused(&vm, "r0 = *(u32 *)(r1 +4)\nexit", &settings);
    assert!(between.contains("no field is there"), "{between}");
}

#[test]
fn a_packet_has_any_length() {
    const TEXT: &str = "r0 = 0\nr2 = *(u64 *)(r1 +8)\nr1 = *(u64 *)(r1 +0)\nr3 = r1\nr3 += 4\nif r3 > r2 goto out\n\
                        r0 = *(u8 *)(r1 +3)\nout:\nexit";
    let (vm, settings) = (vm(), Settings::new(Context::packet()));
    for engine in ENGINES {
        let program = vm.load_text(TEXT, &settings.clone().engine(engine)).expect("valid");
        assert_eq!(program.call_packet(&mut [], &mut [0, 0, 0, 9]), Ok(9), "{engine:?}");
        assert_eq!(program.call_packet(&mut [], &mut [0, 0, 9]), Ok(0));
        assert_eq!(program.call_packet(&mut [], &mut []), Ok(0));
        assert!(program.call(&mut [0xff; 16]).is_err(), "addresses are not taken from bytes");
        assert!(program.call_readonly(&[0xff; 16]).is_err());
    }
    let unchecked = "r1 = *(u64 *)(r1 +0)\nr0 = *(u8 *)(r1 +3)\nexit";
    assert!(refused(&vm, unchecked, &settings).contains("invalid access to packet"));
    let writes = TEXT.replace("r0 = *(u8 *)(r1 +3)", "*(u8 *)(r1 +3) = 7");
    assert!(refused(&vm, &writes, &settings).contains("cannot write into packet"));
    let program = vm.load_text(&writes, &Settings::new(Context::packet().packet_writes())).expect("valid");
    let mut packet = [0; 4];
    assert_eq!(program.call_packet(&mut [], &mut packet), Ok(0));
    assert_eq!(packet[3], 7);
    // As rbpf's metadata buffers: the addresses anywhere, beside other fields.
    let context = Context::fields().number("mark", 0, 8).packet_at("data", 64, "data_end", 80);
    let text = TEXT.replace("r1 +8", "r1 +80").replace("(r1 +0)", "(r1 +64)");
    let program = vm.load_text(&text, &Settings::new(context)).expect("valid");
    assert_eq!(program.call_packet(&mut [0; 88], &mut [0, 0, 0, 9]), Ok(9));
    assert!(program.call_packet(&mut [0; 87], &mut [0, 0, 0, 9]).is_err());
}

#[test]
fn contexts_that_contradict_themselves_are_refused() {
    let field = |name: &str, at, bytes, kind| Field { name: name.into(), at, bytes, kind };
    let number = FieldKind::Number { write: false };
    for (context, why) in [
        (
            Context::fields().field(field("a", 0, 8, number)).field(field("b", 4, 8, number)),
            "the fields a and b overlap",
        ),
        (Context::fields().field(field("a", 0, 0, number)), "the field a has no bytes"),
        (Context::fields().field(field("a", u32::MAX, 8, number)), "the field a has no bytes, or is behind"),
        (
            Context::fields().field(field("a", 0, 8, FieldKind::Packet)),
            "one packet at most, with its start and its end",
        ),
        (Context::fields().field(field("a", 4, 8, FieldKind::Buffer { bytes: 1 })), "8 bytes at a multiple of 8"),
        (Context::memory(u32::MAX), "more than 512 MiB"),
    ] {
        let told = context.check().expect_err(why);
        assert!(told.contains(why), "{told}");
        assert!(refused(&vm(), "r0 = 0\nexit", &Settings::new(context)).contains(why));
    }
}

#[test]
fn only_allowed_helpers_are_called() {
    let vm = vm();
    let text = "r1 = r10\nr1 += -8\nr2 = 8\nr3 = 0\ncall bpf_probe_read_user\nexit";
    assert!(refused(&vm, text, &memory(0)).contains("it is not allowed here"));
    let allowed = memory(0).allow("bpf_probe_read_user").expect("there is one");
    assert!(vm.load_text(text, &allowed).is_ok());
    assert!(memory(0).allow("tail_call").is_err());
    assert!(memory(0).allow("nonsense").is_err());
    assert!(refused(&vm, "call bpf_ktime_get_ns\nexit", &memory(0).no_helpers()).contains("it is not allowed here"));
    assert!(
        refused(&vm, "call bpf_ktime_get_ns\nexit", &memory(0).deny("ktime_get_ns").expect("one"))
            .contains("not allowed")
    );
}

#[test]
fn constants_are_hidden_on_demand() {
    let (vm, text) = (vm(), "r0 = 0x12345678\nexit");
    let holds = |settings: &Settings| {
        let program = vm.load_text(text, settings).expect("valid");
        assert_eq!(program.call(&mut []), Ok(0x1234_5678));
        program.code().windows(4).any(|bytes| bytes == 0x1234_5678u32.to_le_bytes())
    };
    assert!(holds(&memory(0)));
    assert!(!holds(&memory(0).blinding(0x1234_5678_9abc)));
}

#[test]
fn results_can_be_restricted() {
    let (vm, settings) = (vm(), memory(0).results(0, 1));
    assert!(vm.load_text("r0 = 1\nexit", &settings).is_ok());
    assert!(refused(&vm, "r0 = 2\nexit", &settings).contains("should have been in [0, 1]"));
}

/// Adds 1 to a map's only value, in one step.
fn counting(vm: &Vm, engine: Engine) -> (ring3_embed::Map, Program) {
    let map = vm.create_map("count", 2, [4, 8, 1], 0).expect("an array");
    let text = format!(
        "*(u32 *)(r10 -4) = 0\nr1 = map[{}]\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\nr1 = 1\n\
         lock *(u64 *)(r0 +0) += r1\nout:\nr0 = 0\nexit",
        map.id()
    );
    (map, vm.load_text(&text, &memory(0).engine(engine)).expect("valid"))
}

#[test]
fn threads_call_at_the_same_time() {
    const THREADS: u64 = 8;
    const CALLS: u64 = 5_000;
    let vm = vm();
    for engine in ENGINES {
        let (map, program) = counting(&vm, engine);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..CALLS).for_each(|_| assert_eq!(program.call(&mut []), Ok(0))));
            }
        });
        let counted = map.lookup(&[0; 4]).expect("a key").expect("an element");
        assert_eq!(counted, (THREADS * CALLS).to_le_bytes(), "{engine:?}");
    }
}

#[test]
fn more_threads_come_and_go_than_there_is_room_for_at_once() {
    let vm = vm();
    let (map, program) = counting(&vm, Engine::Jit);
    for _ in 0..1500 {
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(program.call(&mut []), Ok(0)));
        });
    }
    assert_eq!(map.lookup(&[0; 4]).expect("a key"), Some(1500u64.to_le_bytes().to_vec()));
}

#[test]
fn programs_are_loaded_and_dropped_while_others_run() {
    let vm = vm();
    let (_, program) = counting(&vm, Engine::Jit);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    assert_eq!(program.call(&mut []), Ok(0));
                }
            });
        }
        // More than the program memory has room for at once.
        for number in 0..5000 {
            let other = vm.load_text(&format!("r0 = {number}\nexit"), &memory(0)).expect("there is room again");
            assert_eq!(other.call(&mut []), Ok(number));
        }
        ends.store(true, Ordering::Relaxed);
    });
}

/// A program that counts its runs by a function, which takes so long.
fn slow(vm: &Vm, engine: Engine, takes: Duration) -> (Arc<AtomicU64>, Program) {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    let function = Function::new("count", vec![], Returned::Number(0..=0), move |_| {
        std::thread::sleep(takes);
        counted.fetch_add(1, Ordering::SeqCst);
        0
    });
    vm.register(function.numbered(7)).expect("free");
    (runs, vm.load_text("call 7\nexit", &memory(0).engine(engine)).expect("valid"))
}

#[test]
fn unloading_waits_for_runs_and_stops_later_ones() {
    for engine in ENGINES {
        let vm = vm();
        let (runs, program) = slow(&vm, engine, Duration::from_millis(2));
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        loop {
                            if let Err(error) = program.call(&mut []) {
                                return error;
                            }
                        }
                    })
                })
                .collect();
            while runs.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            program.unload().expect("runs end soon");
            let then = runs.load(Ordering::SeqCst);
            for caller in callers {
                assert_eq!(caller.join().expect("no panic"), CallError::Unloaded, "{engine:?}");
            }
            assert_eq!(runs.load(Ordering::SeqCst), then, "{engine:?}: a run went on behind unload");
        });
        assert_eq!(program.call(&mut []), Err(CallError::Unloaded));
        assert_eq!(program.unload(), Err(CallError::Unloaded));
    }
}

#[test]
fn a_program_is_not_unloaded_by_what_it_calls() {
    let vm = vm();
    let place: Arc<std::sync::OnceLock<Program>> = Arc::default();
    let own = place.clone();
    let function = Function::new("unload", vec![], Returned::Number(0..=1), move |_| {
        u64::from(own.get().map(Program::unload) == Some(Err(CallError::StillRunning)))
    });
    vm.register(function.numbered(7)).expect("free");
    let program = vm.load_text("call 7\nexit", &memory(0)).expect("valid");
    place.set(program.clone()).expect("once");
    assert_eq!(program.call(&mut []), Ok(1));
    assert_eq!(program.call(&mut []), Err(CallError::Unloaded));
}

#[test]
fn functions_call_programs_to_a_depth() {
    let vm = vm();
    let place: Arc<std::sync::OnceLock<Program>> = Arc::default();
    let (own, deep) = (place.clone(), Arc::new(AtomicU64::new(0)));
    let noted = deep.clone();
    let any = Returned::Number(i64::MIN..=i64::MAX);
    let function = Function::new("again", vec![Parameter::Anything], any, move |arguments| {
        let mut bytes = (arguments.get(0) + 1).to_le_bytes();
        match own.get().expect("set").call(&mut bytes) {
            Ok(result) => result,
            Err(CallError::TooDeep) => {
                noted.store(arguments.get(0), Ordering::SeqCst);
                42
            }
            Err(error) => panic!("{error}"),
        }
    });
    vm.register(function.numbered(7)).expect("free");
    let program = vm.load_text("r1 = *(u64 *)(r1 +0)\ncall 7\nexit", &memory(8)).expect("valid");
    place.set(program.clone()).expect("once");
    assert_eq!(program.call(&mut [0; 8]), Ok(42));
    assert!(deep.load(Ordering::SeqCst) >= 3, "{deep:?}");
    deep.store(0, Ordering::SeqCst);
    assert_eq!(program.call(&mut [0; 8]), Ok(42), "as deep again");
    assert!(deep.load(Ordering::SeqCst) >= 3, "{deep:?}");
}
