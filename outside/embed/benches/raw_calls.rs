//! What calls of hosted programs take, for `cargo xtask bench embed`, which gives the number of rounds. Prints `ROW COLUMN NS` lines.
//!
//! Engines take turns over a row, and a time is that of the fastest round (interference only ever adds). rbpf has no maps.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::hint::black_box;
use std::time::Instant;

use ring3_embed::{Context, Engine, Function, Parameter, Program, Returned, Settings, Vm};
use ring3_isa::{assemble, encode};

/// Calls of a round.
const CALLS: u32 = 200_000;
const CALLS_SLOW: u32 = 20_000;
/// Rounds of the loop, and instructions of each.
const LOOP_ROUNDS: u64 = 10_000;
const LOOP_INSNS: u64 = 5;
const MEMORY_BYTES: usize = 64;

const EMPTY: &str = "r0 = 0\nexit";
/// Adds to the word of an array's element; MAP is the map.
const COUNT: &str = "
    *(u32 *)(r10 -4) = 3
    r2 = r10
    r2 += -4
    r1 = map[MAP]
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r1 = 1
    lock *(u64 *)(r0 +0) += r1
out:
    r0 = 0
    exit";
const LOOKUP: &str = "
    *(u64 *)(r10 -8) = 17
    r2 = r10
    r2 += -8
    r1 = map[MAP]
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r0 = *(u64 *)(r0 +0)
out:
    exit";
const FUNCTION: &str = "r1 = 5\ncall 7\nexit";
const PLAIN: &str = "r1 = 5\ncall 8\nexit";

fn looping() -> String {
    format!("r0 = 0\nr2 = {LOOP_ROUNDS}\nagain:\nr0 += r2\nr0 ^= 3\nr3 = r0\nr2 += -1\nif r2 != 0 goto again\nexit")
}

/// What one column of a row does once.
type Call<'a> = Box<dyn FnMut(u32) + 'a>;

fn ours<'a>(program: Program) -> Call<'a> {
    let mut memory = [0u8; MEMORY_BYTES];
    Box::new(move |count| {
        for _ in 0..count {
            let _ = black_box(program.call(black_box(&mut memory)));
        }
    })
}

type Plainly = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut c_void) -> u64;

// Of the library's C API, as C calls it.
unsafe extern "C" {
    fn ring3_vm_new() -> *mut c_void;
    fn ring3_set_memory(vm: *mut c_void, bytes: u32, writable: i32) -> i32;
    #[rustfmt::skip]
    fn ring3_register(
        vm: *mut c_void,
        name: *const c_char,
        number: i64,
        function: Plainly,
        data: *mut c_void,
        parameters: *const c_void,
        count: usize,
        result: *const c_void,
    ) -> i32;
    #[rustfmt::skip]
    fn ring3_map_create(
        vm: *mut c_void,
        name: *const c_char,
        map_type: u32,
        key: u32,
        value: u32,
        entries: u32,
        flags: u32,
    ) -> *const c_void;
    fn ring3_map_update(map: *const c_void, key: *const c_void, value: *const c_void, flags: u64) -> i32;
    fn ring3_load_text(vm: *mut c_void, name: *const c_char, text: *const c_char) -> i32;
    fn ring3_program_find(vm: *mut c_void, name: *const c_char) -> *const c_void;
    fn ring3_call(program: *const c_void, context: *mut u8, bytes: usize, result: *mut u64) -> i32;
}

/// A program of a machine of the C API, with the same maps. (It lives as long as the process.)
fn by_c<'a>(text: &str) -> Call<'a> {
    let (text, none) = (CString::new(text).expect("text"), std::ptr::null_mut::<c_void>());
    // (The register r1 goes to the function, whatever it is.)
    let anything = [0u64; 4];
    // SAFETY: makes a machine.
    let vm = unsafe { ring3_vm_new() };
    // SAFETY: the machine that was made.
    let set = unsafe { ring3_set_memory(vm, MEMORY_BYTES as u32, 1) };
    // SAFETY: as above, with a function and one `struct ring3_parameter` of zeros.
    let registered =
        unsafe { ring3_register(vm, c"same".as_ptr(), 8, same, none, anything.as_ptr().cast(), 1, none) };
    // SAFETY: as above.
    let array = unsafe { ring3_map_create(vm, c"array".as_ptr(), 2, 4, 8, 16, 0) };
    // SAFETY: as above.
    let hash = unsafe { ring3_map_create(vm, c"hash".as_ptr(), 1, 8, 8, 1024, 0) };
    for key in 0..512u64 {
        // SAFETY: a map of words that was made.
        unsafe { ring3_map_update(hash, (&raw const key).cast(), (&raw const key).cast(), 0) };
    }
    // SAFETY: as above.
    let loaded = unsafe { ring3_load_text(vm, c"text".as_ptr(), text.as_ptr()) };
    assert!(set == 0 && registered == 0 && !array.is_null() && loaded == 0, "{text:?}");
    // SAFETY: as above.
    let program = unsafe { ring3_program_find(vm, c"text".as_ptr()) };
    let mut memory = [0u8; MEMORY_BYTES];
    Box::new(move |count| {
        let mut result = 0;
        for _ in 0..count {
            // SAFETY: a program for contexts of so many bytes.
            black_box(unsafe { ring3_call(black_box(program), memory.as_mut_ptr(), MEMORY_BYTES, &raw mut result) });
        }
    })
}

unsafe extern "C" fn same(number: u64, _: u64, _: u64, _: u64, _: u64, _: *mut c_void) -> u64 {
    number
}

extern "C" fn nothing(_: *mut u8, _: u64) -> u64 {
    0
}

fn native<'a>() -> Call<'a> {
    let mut memory = [0u8; MEMORY_BYTES];
    let function: extern "C" fn(*mut u8, u64) -> u64 = nothing;
    Box::new(move |count| {
        for _ in 0..count {
            black_box(black_box(function)(memory.as_mut_ptr(), 64));
        }
    })
}

/// rbpf with its compiler or its interpreter. (The code of a machine is compiled once, and lives as long as the process.)
fn rbpf<'a>(text: &str, compiled: bool) -> Call<'a> {
    let bytes = encode(&assemble(text).expect("valid"));
    let mut vm = rbpf::EbpfVmNoData::new(Some(bytes.leak())).expect("valid");
    vm.register_helper(7, |number, _, _, _, _| number).expect("free");
    if compiled {
        vm.jit_compile().expect("compiles");
    }
    Box::new(move |count| {
        for _ in 0..count {
            // SAFETY: the programs here end, and touch nothing.
            let _ = black_box(unsafe { if compiled { vm.execute_program_jit() } else { vm.execute_program() } });
        }
    })
}

fn main() {
    // (Asked by `cargo test` to run, or not told: one round.)
    let rounds = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1);
    let vm = Vm::new().expect("this machine runs programs");
    vm.register(
        Function::new("same", vec![Parameter::Anything], Returned::Number(i64::MIN..=i64::MAX), |arguments| {
            arguments.get(0)
        })
        .numbered(7),
    )
    .expect("free");
    let array = vm.create_map("array", 2, [4, 8, 16], 0).expect("an array");
    let hash = vm.create_map("hash", 1, [8, 8, 1024], 0).expect("a hash");
    for key in 0..512u64 {
        hash.update(&key.to_le_bytes(), &key.to_le_bytes(), 0).expect("room");
    }
    let load = |text: &str, engine| {
        let settings = Settings::new(Context::memory(MEMORY_BYTES as u32)).engine(engine);
        ours(vm.load_text(text, &settings).unwrap_or_else(|error| panic!("{error}\n{text}")))
    };
    let count = COUNT.replace("MAP", &array.id().to_string());
    let lookup = LOOKUP.replace("MAP", &hash.id().to_string());
    let looping = looping();
    let rows: [(&str, &str, bool); 5] = [
        ("empty", EMPTY, true),
        ("array count", &count, false),
        ("hash lookup", &lookup, false),
        ("function", FUNCTION, true),
        ("loop", &looping, true),
    ];
    for (row, text, for_rbpf) in rows {
        let mut columns: BTreeMap<&str, Call<'_>> = BTreeMap::new();
        columns.insert("ring3", load(text, Engine::Jit));
        // (What the C API is for: a function of C, called without anything between.)
        let plain = if row == "function" { PLAIN } else { text };
        columns.insert("ring3 by C", by_c(plain));
        columns.insert("ring3-interpreter", load(text, Engine::Interpreter));
        if for_rbpf {
            columns.insert("rbpf", rbpf(text, true));
            columns.insert("rbpf-interpreter", rbpf(text, false));
        }
        if row == "empty" {
            columns.insert("native", native());
        }
        measure(row, rounds, &mut columns);
    }
}

fn measure(row: &str, rounds: u32, columns: &mut BTreeMap<&str, Call<'_>>) {
    let mut best: BTreeMap<&str, f64> = BTreeMap::new();
    for _ in 0..rounds {
        for (column, call) in columns.iter_mut() {
            let slow = row == "loop" || column.ends_with("interpreter");
            let count = if row == "loop" {
                CALLS / 1000
            } else if slow {
                CALLS_SLOW
            } else {
                CALLS
            };
            call(count / 10);
            let started = Instant::now();
            call(count);
            let each = started.elapsed().as_nanos() as f64 / f64::from(count);
            let each = if row == "loop" { each / (LOOP_ROUNDS * LOOP_INSNS) as f64 } else { each };
            best.entry(column).and_modify(|best| *best = best.min(each)).or_insert(each);
        }
    }
    for (column, ns) in best {
        println!("{}\t{column}\t{ns:.3}", row);
    }
}
