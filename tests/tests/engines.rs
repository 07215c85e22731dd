//! The instruction set on every engine, and on the kernel: the same programs, the same results.

#[path = "calls/raw_bpf.rs"]
mod raw_bpf;
#[path = "engine/raw_case.rs"]
mod raw_case;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
use ring3_isa::assemble;
use ring3_jit::Options;
use ring3_layout::map::HASH_MULTIPLIER;
use ring3_maps::{Attributes, Context};
use ring3_run::Runner;
use ring3_tests::{has_llvm, hexadecimal, is_root, ring3, root};
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_verifier::{InnerShape, Input, MapShape, Policy, Verified, verify};

use raw_case::{Case, Kernel};

/// A case, what it is called, and r0.
struct Titled {
    title: String,
    case: Case,
    expected: u64,
}

impl Titled {
    fn new(title: &str, text: &str, memory: Vec<u8>, expected: u64) -> Titled {
        let insns = assemble(text).unwrap_or_else(|error| panic!("{title}: {error}"));
        Titled { title: title.to_owned(), case: Case { insns, memory }, expected }
    }

    fn verified(&self) -> Verified {
        self.case.verified().unwrap_or_else(|log| panic!("{}: {log}", self.title))
    }
}

fn corpus(name: &str) -> String {
    let path = root().join("tests/corpus/engine").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn number(text: &str) -> u64 {
    let digits = text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    digits.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("{text} is no number"))
}

/// A row of a table: two sides and the result.
type Row = [u64; 3];

/// The tables' rows by width and operation.
fn table(name: &str) -> BTreeMap<(u32, String), Vec<Row>> {
    let mut rows: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for line in corpus(name).lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [width, operation, rest @ ..] = words.as_slice() else { panic!("{line}") };
        let row = rest.iter().map(|text| number(text)).collect::<Vec<u64>>().try_into().expect("three numbers");
        rows.entry((number(width) as u32, (*operation).to_owned())).or_default().push(row);
    }
    rows
}

/// The number as a constant of an instruction of this width, if it can be one.
fn as_constant(value: u64, width: u32) -> Option<i64> {
    let signed = if width == 64 { value as i64 } else { i64::from(value as u32 as i32) };
    i32::try_from(signed).ok().map(i64::from)
}

/// A program that does all rows of an operation with numbers that it reads, by register and by constant: r0 is 0, or the
/// number of the first row that is wrong, counted from 1.
fn case_of(kind: &str, width: u32, operation: &str, rows: &[Row]) -> Titled {
    let (mut text, mut memory) = ("r6 = r1\n".to_owned(), vec![]);
    let letter = if width == 64 { 'r' } else { 'w' };
    let shift = matches!(operation, "<<=" | ">>=" | "s>>=");
    let divides = matches!(operation, "/=" | "s/=" | "%=" | "s%=");
    for (index, row) in rows.iter().enumerate() {
        memory.extend(row.iter().flat_map(|word| word.to_le_bytes()));
        let constant = as_constant(row[1], width)
            .filter(|constant| !(shift && !(0..i64::from(width)).contains(constant) || divides && *constant == 0));
        let sides = [Some(format!("{letter}3")), constant.map(|constant| constant.to_string())];
        for (form, right) in sides.into_iter().flatten().enumerate() {
            let at = index * size_of::<Row>();
            let load = |register: u8, word: usize| format!("r{register} = *(u64 *)(r6 +{})\n", at + word * 8);
            text += &load(2, 0);
            text += &load(3, 1);
            text += &load(4, 2);
            let _ = match kind {
                "operations" => writeln!(text, "{letter}2 {operation} {right}"),
                _ => writeln!(
                    text,
                    "if {letter}2 {operation} {right} goto yes{index}_{form}\nr2 = 0\ngoto on{index}_{form}\n\
                     yes{index}_{form}:\nr2 = 1\non{index}_{form}:"
                ),
            };
            let _ = writeln!(text, "r0 = {}\nif r2 != r4 goto end", index + 1);
        }
    }
    text += "r0 = 0\nend:\nexit\n";
    Titled::new(&format!("{operation} of {width} bits"), &text, memory, 0)
}

fn tables() -> impl Iterator<Item = Titled> {
    ["operations", "conditions"].into_iter().flat_map(|kind| {
        let rows = table(kind).into_iter();
        rows.map(move |((width, operation), rows)| case_of(kind, width, &operation, &rows))
    })
}

fn programs() -> Vec<Titled> {
    let text = corpus("programs");
    let cases = text.split("\ncase: ").skip(1).map(|case| {
        let (title, text) = case.split_once('\n').expect("a title and a program");
        let memory = text.strip_prefix("memory: ").and_then(|rest| rest.split_once('\n'));
        let (memory, text) = memory.map_or((vec![], text), |(memory, text)| (hexadecimal(memory), text));
        Titled::new(title, text, memory, 1)
    });
    cases.collect()
}

/// Runs all cases; those that give something else.
fn check(mut engine: impl FnMut(&Titled) -> u64) {
    let cases: Vec<Titled> = tables().chain(programs()).collect();
    assert!(cases.len() > 60, "{} cases", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let given = engine(case);
            (given != case.expected).then(|| format!("{}: r0 is {given}, not {}", case.title, case.expected))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{} programs", cases.len());
}

#[test]
fn the_interpreter_does_the_corpus() {
    check(|titled| titled.case.interpreted(&titled.verified()).result);
}

#[test]
fn compiled_code_does_the_corpus() {
    let mut runner = Runner::new(1).expect("this machine runs programs");
    for compile in raw_case::compilers() {
        for options in raw_case::BLINDING {
            check(|titled| titled.case.compiled(&titled.verified(), &mut runner, compile, &options).result);
        }
    }
}

#[test]
fn code_says_which_instruction_it_comes_from() {
    // Two that no other instruction looks like, one of them in a function that is called.
    let text = "r6 = r1
        r7 = 10
        r0 = 1
        lock *(u64 *)(r6 + 0) += r0
        r7 += -1
        if r7 != 0 goto -3
        r1 = r6
        call +1
        exit
        r2 = 5
        r2 = atomic64_xchg((u64 *)(r1 +8), r2)
        r0 = *(u64 *)(r1 + 0)
        exit";
    const ADDS: u32 = 3;
    const EXCHANGES: u32 = 10;
    let titled = Titled::new("atomics", text, vec![0; 16], 10);
    let program = titled.verified();
    for compile in raw_case::compilers() {
        let code = compile(&program, &Options::default()).expect("compiles");
        let comes_from = |at: u64| {
            let behind = code.pc_map.partition_point(|(from, _)| u64::from(*from) <= at);
            code.pc_map[..behind].last().map(|(_, instruction)| *instruction)
        };
        let (mut adds, mut exchanges) = (0, 0);
        for instruction in &mut Decoder::new(64, &code.bytes, DecoderOptions::NONE) {
            if instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_kind() == OpKind::Memory {
                exchanges += 1;
                assert_eq!(comes_from(instruction.ip()), Some(EXCHANGES), "{instruction}: {:?}", code.pc_map);
            } else if instruction.has_lock_prefix() {
                adds += 1;
                assert_eq!(comes_from(instruction.ip()), Some(ADDS), "{instruction}: {:?}", code.pc_map);
            }
        }
        assert!(adds >= 1 && exchanges == 1, "{adds} and {exchanges}");
        assert!(code.pc_map.is_sorted_by_key(|(at, _)| *at));
    }
}

/// kernel/bpf/core.c:bpf_jit_blind_constants.
#[test]
fn constants_that_are_hidden_are_not_in_the_code() {
    const CHOSEN: [u32; 6] = [0x1bad_c0de, 0x2bad_c0de, 0x3bad_c0de, 0x4bad_c0de, 0x5bad_c0de, 0x6bad_c0de];
    let text = "r0 = 0x1badc0de
        r1 = 0x2badc0de3badc0de ll
        r0 ^= r1
        if r0 == 0x4badc0de goto +1
        r0 += 0x5badc0de
        *(u32 *)(r10 - 8) = 0x6badc0de
        r1 = *(u32 *)(r10 - 8)
        r0 += r1
        exit";
    let expected = (0x1bad_c0deu64 ^ 0x2bad_c0de_3bad_c0de) + 0x5bad_c0de + 0x6bad_c0de;
    let titled = Titled::new("constants", text, vec![], expected);
    let (program, mut runner) = (titled.verified(), Runner::new(1).expect("this machine runs programs"));
    for compile in raw_case::compilers() {
        let mut codes = vec![];
        for options in raw_case::BLINDING.into_iter().chain([Options { blinding: Some(1), rounds: None }]) {
            let code = compile(&program, &options).expect("compiles").bytes;
            let has = |chosen: &u32| code.windows(4).any(|bytes| bytes == chosen.to_le_bytes());
            // (What a compiler reckons out is not there either.)
            let plain = CHOSEN.iter().filter(|chosen| has(chosen)).count();
            assert_eq!(plain > 0, options.blinding.is_none(), "{plain} of them: {code:x?}");
            assert_eq!(titled.case.compiled(&program, &mut runner, compile, &options).result, expected);
            codes.push(code);
        }
        assert_ne!(codes[1], codes[2], "another number hides them in another way");
    }
}

#[test]
fn the_kernel_does_the_corpus() {
    if !is_root() {
        return println!("SKIPPED: BPF_PROG_TEST_RUN needs root");
    }
    check(|titled| {
        let left = Kernel::new(titled.case.memory.len()).run(&titled.case);
        left.unwrap_or_else(|why| panic!("{}: {why}", titled.title)).result
    });
}

/// `RING3_CONFORMANCE` names the directory of bpf_conformance's cases; without it one beside the repository is taken.
#[test]
fn conformance_cases_pass_on_every_engine() {
    let directory =
        std::env::var_os("RING3_CONFORMANCE").map_or_else(|| root().join("../shared/conformance"), PathBuf::from);
    if !directory.is_dir() {
        return println!("SKIPPED: no directory of bpf_conformance's cases (RING3_CONFORMANCE)");
    }
    assert!(ring3().exists(), "built by `make build`");
    for engine in ["interp", "jit"].into_iter().chain(has_llvm().then_some("llvm")) {
        let mut command = Command::new(env!("CARGO"));
        command
            .args(["run", "--quiet", "-p", "xtask", "--", "conformance"])
            .arg(&directory)
            .args(["--engine", engine]);
        let output = command.current_dir(root()).output().expect("cargo runs");
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{engine}: {}", text.lines().last().unwrap_or_default());
        assert!(output.status.success(), "{engine}:\n{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A program of this type and with this policy, which uses the runner's maps, proved.
fn verified(text: &str, (prog_type, policy): (u32, Policy), runner: &Runner, told: &[MapShape]) -> Verified {
    let insns = assemble(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let input = Input {
        insns: &insns,
        prog_type,
        gpl_compatible: true,
        sleepable: false,
        cpus: 2,
        policy,
        log_level: 1,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|index| Some(runner.maps()[index as usize].shape(*told.get(index as usize)?)),
        constant_value: &|_| None,
    };
    verify(&input).unwrap_or_else(|report| panic!("{}", report.log))
}

/// Two numbers that have one hash as keys of so many bytes.
fn keys_of_one_hash(bytes: u32) -> [u64; 2] {
    let hash = |key: u64| match bytes {
        4 => (key.wrapping_mul(HASH_MULTIPLIER) >> 32) as u32,
        _ => {
            let product = u128::from(key) * u128::from(HASH_MULTIPLIER);
            (product ^ (product >> 64)) as u32
        }
    };
    if bytes == 4 {
        // (Between others of so few bytes there is a Fibonacci number, too.)
        let keys = [1 << 20, (1 << 20) + 2_971_215_073];
        assert_eq!(hash(keys[0]), hash(keys[1]));
        return keys;
    }
    let mut keys = BTreeMap::new();
    (1 << 20..).find_map(|key| Some([keys.insert(hash(key), key)?, key])).expect("some numbers do")
}

#[test]
fn look_ups_in_hash_maps_find_what_the_maps_find() {
    const MAPS: [u32; 4] = [map_type::HASH, map_type::PERCPU_HASH, map_type::LRU_HASH, map_type::LRU_PERCPU_HASH];
    // The value tells of the CPU, if there is one for each.
    const LOOK_UP: &str = "r6 = *(u64 *)(r1 +0)
        r7 = *(u64 *)(r1 +8)
        *(u64 *)(r10 -16) = r6
        *(u64 *)(r10 -8) = r7
        r2 = r10
        r2 += -16
        r1 = map[0]
        call 1
        if r0 == 0 goto none
        r6 = *(u64 *)(r0 +8)
        call bpf_get_smp_processor_id
        r0 <<= 32
        r0 ^= r6
        exit
        none:
        r0 = -1
        exit";
    let mut found = [0; 2];
    for map_type in MAPS {
        // Of few buckets most have chains.
        for (key_size, max_entries) in [4, 8, 16].into_iter().flat_map(|key| [1, 3, 8, 1000].map(|most| (key, most)))
        {
            let alike = keys_of_one_hash(key_size);
            let mut runner = Runner::new(2).expect("this machine runs programs");
            let attributes = Attributes { map_type, key_size, value_size: 16, max_entries, ..Attributes::default() };
            runner.add_map(&attributes).expect("room for a map");
            let alone = InnerShape { map_type, key_size, value_size: 16, max_entries, map_flags: 0, lock: None };
            let program = verified(
                LOOK_UP,
                (prog_type::SYSCALL, Policy::memory(16)),
                &runner,
                &[MapShape { slot: 0, ..alone.shape() }],
            );
            let context = Context { owner: 1, cpu: 0, owner_is_dead: |_| false, relax: |_| {}, interrupts: false };
            let key_of = |number: u64| {
                // The first two have one hash.
                let first = alike.get(number as usize).copied().unwrap_or(number);
                [first, !number].map(u64::to_le_bytes).concat()
            };
            let map = runner.maps()[0].map();
            for number in 0..u64::from(max_entries) * 3 / 2 {
                let mut value = vec![0; map.geometry().user_value_bytes()];
                for (cpu, copy) in (0u64..).zip(value.chunks_mut(16)) {
                    copy[8..].copy_from_slice(&((number + 1) | (cpu << 32)).to_le_bytes());
                }
                // (A full one stays as it is, or loses some.)
                let _ = map.user_update(&context, &key_of(number)[..key_size as usize], &value, 0);
                if number % 5 == 4 {
                    let _ = map.user_delete(&context, &key_of(number - 2)[..key_size as usize]);
                }
            }
            let is_there = |number| {
                let mut value = vec![0; map.geometry().user_value_bytes()];
                map.user_lookup(&key_of(number)[..key_size as usize], &mut value).is_ok()
            };
            let expected: Vec<bool> = (0..u64::from(max_entries) * 2).map(is_there).collect();
            for compile in raw_case::compilers() {
                let code = compile(&program, &Options::default()).expect("it compiles");
                runner.unload();
                let loaded = runner.load(&program, &code).expect("there is room");
                for (number, is_there) in (0u64..).zip(&expected) {
                    let given = runner.run(loaded, &mut key_of(number), 1).expect("this thread is free").result;
                    let given = if *is_there && !program.uses_per_cpu() { given & 0xffff_ffff } else { given };
                    let wanted = if *is_there { number + 1 } else { u64::MAX };
                    assert_eq!(given, wanted, "type {map_type}, {key_size} bytes, {max_entries}, {number}");
                    found[usize::from(*is_there)] += 1;
                }
            }
        }
    }
    assert!(found[0] > 1000 && found[1] > 1000, "{found:?}");
}

/// What lies near above a function's stack is read by code itself where the number of bytes is known, else by the helper.
#[test]
fn what_lies_near_the_stack_is_read_as_the_helper_reads_it() {
    let own = [-8, -7, -4, -1].map(|offset| ("r10", offset));
    let far = [64, 500, 1009, 1016, 1017, 1024, 1 << 28].map(|offset| ("r10", offset));
    let others = ["r1", "0", "-14", "-1", "4096"].map(|base| (base, 0));
    let mut runner = Runner::new(1).expect("this machine runs programs");
    let mut results = BTreeMap::new();
    for compile in raw_case::compilers() {
        for (base, offset) in own.into_iter().chain(far).chain(others) {
            for (bytes, helper) in [1, 2, 3, 4, 8].into_iter().flat_map(|bytes| [(bytes, 4), (bytes, 113)]) {
                let text = format!(
                    "r2 = *(u64 *)(r1 +0)
                    r0 = 0x1122334455667788 ll
                    *(u64 *)(r10 -8) = r0
                    r1 = {base}
                    r1 += {offset}
                    call read
                    exit
                    read:
                    r7 = r1
                    r9 = r2
                    r0 = 0x12345678 ll
                    *(u64 *)(r10 -8) = r0
                    *(u64 *)(r10 -16) = r0
                    r1 = r10
                    r1 += -8
                    r2 = {bytes}
                    r3 = r7
                    call {helper}
                    r8 = r0
                    r1 = r10
                    r1 += -16
                    r2 = r9
                    if r2 > 8 goto wrong
                    r3 = r7
                    call {helper}
                    if r0 != r8 goto wrong
                    r1 = *(u64 *)(r10 -8)
                    r2 = *(u64 *)(r10 -16)
                    if r1 != r2 goto wrong
                    exit
                    wrong:
                    r0 = 1
                    exit"
                );
                let program = verified(&text, (prog_type::SYSCALL, Policy::memory(8)), &runner, &[]);
                let code = compile(&program, &Options::default()).expect("it compiles");
                runner.unload();
                let loaded = runner.load(&program, &code).expect("there is room");
                let mut memory = u64::to_le_bytes(bytes);
                let given = runner.run(loaded, &mut memory, 1).expect("this thread is free").result as i64;
                // Read, a fault (EFAULT), or no memory of the kernel's (ERANGE).
                assert!(
                    [0, -14, -34].contains(&given),
                    "{base} + {offset}, {bytes} bytes by helper {helper}: {given}"
                );
                *results.entry(given).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(results.len(), 3, "{results:?}");
}

#[test]
fn what_lies_behind_a_programs_own_stack_is_read_as_the_helper_reads_it() {
    let mut runner = Runner::new(1).expect("this machine runs programs");
    for compile in raw_case::compilers() {
        // What is there is the compiler's, and need not all stay; the return address does (2).
        let results = [8, 24, 40, 56, 200].map(|offset| {
            let text = format!(
                "r6 = r1
                r7 = r10
                r7 += {offset}
                r1 = 0
                *(u64 *)(r10 -8) = r1
                *(u64 *)(r10 -16) = r1
                r1 = r10
                r1 += -8
                r2 = 8
                r3 = r7
                call bpf_probe_read_kernel
                r8 = r0
                r1 = r10
                r1 += -16
                r2 = *(u64 *)(r6 +0)
                if r2 > 8 goto wrong
                r3 = r7
                call bpf_probe_read_kernel
                if r0 != r8 goto wrong
                r1 = *(u64 *)(r10 -8)
                r2 = *(u64 *)(r10 -16)
                if r1 == 0 goto end
                if r1 != r2 goto end
                r0 = 2
                end:
                exit
                wrong:
                r0 = 1
                exit"
            );
            let program = verified(&text, (prog_type::SYSCALL, Policy::memory(8)), &runner, &[]);
            runner.unload();
            let code = compile(&program, &Options::default()).expect("it compiles");
            let loaded = runner.load(&program, &code).expect("there is room");
            runner.run(loaded, &mut u64::to_le_bytes(8), 1).expect("this thread is free").result as i64
        });
        assert!(results.iter().all(|result| [0, 2, -34].contains(result)), "{results:?}");
        assert!(results.contains(&2) && results[4] == -34, "{results:?}");
    }
}

/// What a raw tracepoint's program returns that is run by itself, on a context of ones.
fn run_alone(text: &str) -> i64 {
    let mut runner = Runner::new(1).expect("this machine runs programs");
    let kind = prog_type::RAW_TRACEPOINT;
    let program = verified(text, (kind, Policy::targets(kind)), &runner, &[]);
    let code = ring3_jit::compile(&program, &Options::default()).expect("it compiles");
    let loaded = runner.load(&program, &code).expect("there is room");
    runner.run(loaded, &mut [0xff; 96], 1).expect("this thread is free").result as i64
}

#[test]
fn programs_that_are_run_by_themselves_have_no_stack_to_walk() {
    let walk = "r2 = r10
        r2 += -64
        r3 = 64
        r4 = 256";
    assert_eq!(run_alone(&format!("{walk}\ncall bpf_get_stack\nexit")), -14);
    let of_task = format!("call bpf_get_current_task_btf\nr1 = r0\n{walk}\ncall bpf_get_task_stack\nexit");
    assert_eq!(run_alone(&of_task), -14);
}

#[test]
fn programs_that_are_run_by_themselves_have_registers_that_are_zero() {
    let or_all: String = (0..168).step_by(8).map(|at| format!("r1 = *(u64 *)(r6 +{at})\nr0 |= r1\n")).collect();
    let text =
        format!("call bpf_get_current_task_btf\nr1 = r0\ncall bpf_task_pt_regs\nr6 = r0\nr0 = 0\n{or_all}exit");
    assert_eq!(run_alone(&text), 0);
    // Of no task but the running one.
    let text = "call bpf_get_current_task_btf
        r1 = r0
        r1 += 8
        r2 = r10
        r2 += -64
        r3 = 64
        r4 = 256
        call bpf_get_task_stack
        exit";
    assert_eq!(run_alone(text), -95);
}
