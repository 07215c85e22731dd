//! What a process does to a hosted program: it allocates, forks, and leaves runs by `longjmp`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ring3_embed::{Context, Engine, Function, Parameter, Returned, Settings, Vm};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: does what `System` does.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counting(vm: &Vm, engine: Engine) -> (ring3_embed::Map, ring3_embed::Program) {
    let map = vm.create_map("counts", 1, [8, 8, 64], 0).expect("a hash");
    let text = format!(
        "r6 = *(u64 *)(r1 +0)\n*(u64 *)(r10 -8) = r6\nr1 = map[{0}]\nr2 = r10\nr2 += -8\ncall bpf_map_lookup_elem\n\
         if r0 == 0 goto new\nr1 = 1\nlock *(u64 *)(r0 +0) += r1\nr1 = 3\ncall 7\nexit\nnew:\n*(u64 *)(r10 -16) = 1\nr1 = map[{0}]\n\
         r2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\ncall bpf_map_update_elem\nexit",
        map.id()
    );
    let settings = Settings::new(Context::memory(8)).engine(engine);
    (map, vm.load_text(&text, &settings).unwrap_or_else(|error| panic!("{error}")))
}

fn with_function() -> Vm {
    let vm = Vm::new().expect("this machine runs programs");
    let twice = Function::new("twice", vec![Parameter::Anything], Returned::Number(0..=100), |arguments| {
        2 * arguments.get(0)
    });
    vm.register(twice.numbered(7)).expect("free");
    vm
}

#[test]
fn a_call_allocates_nothing() {
    let vm = with_function();
    for engine in [Engine::Jit, Engine::Interpreter] {
        let (_, program) = counting(&vm, engine);
        let before = ALLOCATIONS.get();
        for round in 0..1000u64 {
            let result = program.call(&mut (round % 60).to_le_bytes());
            assert_eq!(result, Ok(if round < 60 { 0 } else { 6 }));
        }
        assert_eq!(ALLOCATIONS.get(), before, "{engine:?}");
    }
}

#[test]
fn a_child_calls_programs_and_shares_the_maps() {
    let vm = with_function();
    let (map, program) = counting(&vm, Engine::Jit);
    assert_eq!(program.call(&mut 5u64.to_le_bytes()), Ok(0));
    let settings = Settings::new(Context::none());
    let ids = vm.load_text("call bpf_get_current_pid_tgid\nr0 >>= 32\nexit", &settings).expect("valid");
    assert_eq!(ids.call(&mut []), Ok(u64::from(std::process::id())));
    for _ in 0..3 {
        // SAFETY: the child only calls a program and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let called = program.call(&mut 5u64.to_le_bytes());
            let is_child = ids.call(&mut []) == Ok(u64::from(std::process::id()));
            // SAFETY: ends the child without what the test runner does at an end.
            unsafe { libc::_exit(if called == Ok(6) && is_child { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's call");
        assert_eq!(program.call(&mut 5u64.to_le_bytes()), Ok(6));
    }
    assert_eq!(map.lookup(&5u64.to_le_bytes()).expect("a key"), Some(7u64.to_le_bytes().to_vec()));
}
