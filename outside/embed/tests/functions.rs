//! Functions of the application, and what they do wrong; budgets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring3_embed::{Bound, CallError, Context, Engine, Error, Function, Parameter, Returned, Settings, Use, Vm};

const ENGINES: [Engine; 2] = [Engine::Jit, Engine::Interpreter];

fn vm() -> Vm {
    Vm::new().expect("this machine runs programs")
}

fn memory(bytes: u32, engine: Engine) -> Settings {
    Settings::new(Context::memory(bytes)).engine(engine)
}

fn any() -> Returned {
    Returned::Number(i64::MIN..=i64::MAX)
}

#[test]
fn a_function_gets_all_arguments_and_returns_r0() {
    let vm = vm();
    let sum = Function::new("sum", vec![Parameter::Anything; 5], any(), |arguments| {
        (0..5).map(|index| arguments.get(index) << (8 * index)).sum()
    });
    vm.register(sum.numbered(0x1234_5678)).expect("free");
    for engine in ENGINES {
        let text = "r1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\ncall 0x12345678\nexit";
        let program = vm.load_text(text, &memory(0, engine)).expect("valid");
        assert_eq!(program.call(&mut []), Ok(0x05_0403_0201), "{engine:?}");
    }
}

#[test]
fn a_function_hides_the_helper_of_its_number() {
    let vm = vm();
    vm.register(Function::new("one", vec![], any(), |_| 77).numbered(1)).expect("free");
    let program = vm.load_text("call 1\nexit", &memory(0, Engine::Jit)).expect("1 is no bpf_map_lookup_elem here");
    assert_eq!(program.call(&mut []), Ok(77));
    let by_register = vm.load_text("r3 = 1\ncallx r3\nexit", &memory(0, Engine::Jit)).expect("valid");
    assert_eq!(by_register.call(&mut []), Ok(77));
}

#[test]
fn names_and_numbers_are_taken_once() {
    let vm = vm();
    let function = |name: &str| Function::new(name, vec![], any(), |_| 0);
    vm.register(function("a").numbered(1)).expect("free");
    assert!(vm.register(function("a")).is_err());
    assert!(vm.register(function("b").numbered(1)).is_err());
    assert!(vm.register(Function::new("c", vec![Parameter::Size { max: 1 }], any(), |_| 0)).is_err());
    vm.register(function("d")).expect("free");
}

#[test]
fn memory_is_read_and_written_by_functions() {
    let vm = vm();
    let parameters = vec![
        Parameter::Buffer { how: Use::Changes },
        Parameter::Size { max: 8 },
        Parameter::Memory { bytes: 4, how: Use::Fills },
    ];
    let reverse = Function::new("reverse", parameters, Returned::Number(0..=8), |arguments| {
        let mut bytes = arguments.to_vec(0);
        bytes.reverse();
        assert_eq!(arguments.write(0, &bytes), bytes.len());
        assert_eq!(arguments.read(2, &mut [0; 4]), 0, "it is only filled");
        arguments.write(2, &[9]);
        bytes.len() as u64
    });
    vm.register(reverse.numbered(7)).expect("free");
    let text = "r6 = r1\nr2 = 5\nr3 = r10\nr3 += -4\ncall 7\nr1 = *(u32 *)(r10 -4)\n*(u32 *)(r6 +8) = r1\nexit";
    for engine in ENGINES {
        let program = vm.load_text(text, &memory(12, engine)).expect("valid");
        let mut bytes = *b"abcdefgh\xff\xff\xff\xff";
        assert_eq!(program.call(&mut bytes), Ok(5), "{engine:?}");
        assert_eq!(&bytes, b"edcbafgh\x09\0\0\0", "{engine:?}");
    }
}

#[test]
fn a_panic_goes_on_behind_the_program() {
    let vm = vm();
    let function = Function::new("fail", vec![Parameter::Anything], any(), |arguments| {
        assert_ne!(arguments.get(0), 1, "one is too many");
        arguments.get(0)
    });
    vm.register(function.numbered(7)).expect("free");
    for engine in ENGINES {
        let text = "r6 = r1\nr1 = *(u64 *)(r1 +0)\ncall 7\n*(u64 *)(r6 +0) = 5\nexit";
        let program = vm.load_text(text, &memory(8, engine)).expect("valid");
        let mut bytes = 1u64.to_le_bytes();
        let panicked = catch_unwind(AssertUnwindSafe(|| program.call(&mut bytes))).expect_err("it panics");
        assert!(panicked.downcast_ref::<String>().expect("text").contains("one is too many"));
        assert_eq!(u64::from_le_bytes(bytes), 5, "{engine:?}: the program ended first");
        assert_eq!(program.call(&mut 2u64.to_le_bytes()), Ok(2), "{engine:?}: it can be called again");
    }
}

#[test]
fn a_result_outside_of_its_range_is_an_error_and_harms_nobody() {
    let vm = vm();
    let result = Arc::new(AtomicU64::new(0));
    let given = result.clone();
    let index = Function::new("index", vec![], Returned::Number(0..=3), move |_| given.load(Ordering::SeqCst));
    vm.register(index.numbered(7)).expect("free");
    for engine in ENGINES {
        // (The verifier has the program index its memory with the result.)
        let text = "r6 = r1\ncall 7\nr6 += r0\nr0 = *(u8 *)(r6 +0)\nexit";
        let program = vm.load_text(text, &memory(4, engine)).expect("valid");
        result.store(3, Ordering::SeqCst);
        assert_eq!(program.call(&mut [1, 2, 3, 4]), Ok(4));
        result.store(1 << 40, Ordering::SeqCst);
        let wrong = CallError::Result { function: "index".into(), result: 1 << 40 };
        assert_eq!(program.call(&mut [1, 2, 3, 4]), Err(wrong), "{engine:?}");
        result.store(0, Ordering::SeqCst);
        assert_eq!(program.call(&mut [1, 2, 3, 4]), Ok(1), "{engine:?}: the error is the other run's");
    }
}

#[test]
fn a_wrong_result_is_the_error_of_its_own_run_only() {
    let vm = vm();
    let wrong = Function::new("wrong", vec![], Returned::Number(0..=0), |_| 1);
    vm.register(wrong.numbered(7)).expect("free");
    vm.register(Function::new("right", vec![], Returned::Number(0..=0), |_| 0).numbered(8)).expect("free");
    let inner = vm.load_text("call 8\nexit", &memory(0, Engine::Jit)).expect("valid");
    let calls = Function::new("inner", vec![], any(), move |_| u64::from(inner.call(&mut []) == Ok(0)));
    vm.register(calls.numbered(9)).expect("free");
    for engine in ENGINES {
        let text = "call 7\ncall 9\n*(u64 *)(r6 +0) = r0\nexit".replace("call 7", "r6 = r1\ncall 7");
        let outer = vm.load_text(&text, &memory(8, engine)).expect("valid");
        let mut bytes = [0; 8];
        assert_eq!(
            outer.call(&mut bytes),
            Err(CallError::Result { function: "wrong".into(), result: 1 }),
            "{engine:?}"
        );
        assert_eq!(u64::from_le_bytes(bytes), 1, "{engine:?}: the inner run went well");
    }
}

#[test]
fn memory_that_a_function_returns_is_read_and_null_is_no_crash() {
    static TABLE: [AtomicU64; 2] = [AtomicU64::new(11), AtomicU64::new(22)];
    let vm = vm();
    let function = |name: &str, nullable, number| {
        let result = Returned::Memory { bytes: 16, write: true, nullable };
        let body = move |arguments: &ring3_embed::Arguments<'_>| {
            if arguments.get(0) == 0 { 0 } else { TABLE.as_ptr() as u64 }
        };
        Function::new(name, vec![Parameter::Anything], result, body).numbered(number)
    };
    vm.register(function("find", true, 7)).expect("free");
    vm.register(function("table", false, 8)).expect("free");
    for engine in ENGINES {
        let finds = "r1 = *(u64 *)(r1 +0)\ncall 7\nif r0 == 0 goto out\nr0 = *(u64 *)(r0 +8)\nout:\nexit";
        let program = vm.load_text(finds, &memory(8, engine)).expect("valid");
        assert_eq!(program.call(&mut 1u64.to_le_bytes()), Ok(22), "{engine:?}");
        assert_eq!(program.call(&mut 0u64.to_le_bytes()), Ok(0), "{engine:?}");
        let trusts = "r1 = *(u64 *)(r1 +0)\ncall 8\nr0 = *(u64 *)(r0 +8)\nexit";
        let program = vm.load_text(trusts, &memory(8, engine)).expect("valid");
        assert_eq!(program.call(&mut 1u64.to_le_bytes()), Ok(22), "{engine:?}");
        let wrong = program.call(&mut 0u64.to_le_bytes());
        if engine == Engine::Jit {
            assert_eq!(wrong, Err(CallError::Result { function: "table".into(), result: 0 }));
        } else {
            assert!(wrong.is_err());
        }
    }
}

/// Adds up so many numbers: how many, the memory says, 5000 at most.
const LOOP: &str = "
    r6 = *(u32 *)(r1 +0)
    r0 = 0
    if r6 > 5000 goto out
again:
    if r6 == 0 goto out
    r0 += r6
    r6 += -1
    goto again
out:
    exit";

#[test]
fn a_budget_ends_runs_that_are_too_long_and_no_others() {
    let vm = vm();
    for engine in ENGINES {
        let program = vm.load_text(LOOP, &memory(4, engine).budget(4000)).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(program.bound(), Bound::Enforced(insns) if insns <= 4000), "{:?}", program.bound());
        assert_eq!(program.call(&mut 100u32.to_le_bytes()), Ok(5050), "{engine:?}");
        assert_eq!(program.call(&mut 5_000u32.to_le_bytes()), Err(CallError::OutOfBudget), "{engine:?}");
        assert_eq!(program.call(&mut 100u32.to_le_bytes()), Ok(5050), "{engine:?}: again");
        let unbounded = vm.load_text(LOOP, &memory(4, engine)).expect("valid");
        assert_eq!(unbounded.call(&mut 5_000u32.to_le_bytes()), Ok(12_502_500));
    }
}

#[test]
fn a_budget_that_is_proved_costs_nothing() {
    let vm = vm();
    let program =
        vm.load_text("r0 = 1\nr0 += 2\nexit", &memory(0, Engine::Jit).budget(3)).expect("three instructions");
    assert_eq!(program.bound(), Bound::Proved(3));
    let plain = vm.load_text("r0 = 1\nr0 += 2\nexit", &memory(0, Engine::Jit)).expect("valid");
    assert_eq!(program.code(), plain.code());
    let small = vm.load_text("r0 = 1\nr0 += 2\nexit", &memory(0, Engine::Jit).budget(2)).expect_err("too small");
    assert!(matches!(small, Error::Budget(_)), "{small}");
    let loops = vm.load_text(LOOP, &memory(4, Engine::Jit).budget(9)).expect_err("too small");
    assert!(loops.to_string().contains("the budget of 9 instructions is too small"), "{loops}");
}

#[test]
fn a_record_that_a_run_without_budget_has_reserved_blocks_nobody() {
    let vm = vm();
    let ring = vm.create_map("ring", 27, [0, 0, 4096], 0).expect("a ring buffer");
    let text = format!(
        "r6 = *(u32 *)(r1 +0)\nr1 = map[{}]\nr2 = 8\nr3 = 0\ncall bpf_ringbuf_reserve\nif r0 == 0 goto out\nr7 = r0\n\
         if r6 > 5000 goto done\nagain:\nif r6 == 0 goto done\nr6 += -1\ngoto again\ndone:\n*(u64 *)(r7 +0) = 5\nr1 = r7\nr2 = 0\n\
         call bpf_ringbuf_submit\nout:\nr0 = 0\nexit",
        ring.id()
    );
    let program = vm.load_text(&text, &memory(4, Engine::Jit).budget(2000)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(program.call(&mut 5_000u32.to_le_bytes()), Err(CallError::OutOfBudget));
    assert_eq!(program.call(&mut 3u32.to_le_bytes()), Ok(0));
    let mut records = vec![];
    ring.consume(|record| {
        records.push(record.to_vec());
        true
    })
    .expect("a ring buffer");
    assert_eq!(records, [5u64.to_le_bytes().to_vec()]);
}
