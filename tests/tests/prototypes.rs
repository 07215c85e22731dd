//! The table of helpers (`pure/verifier/src/prototypes.rs`) against the running kernel, which says of small programs why
//! it refuses them.
//!
//! Of each helper and each kind of program that may call it: a call with good arguments, and for each argument
//! calls with things that an argument of its kind must not be, or may be (`faults`). The kernel's verifier
//! names the register, its kind and what it wants instead. From a call that it accepts it tells what r0 becomes.
//!
//! Two kernels differ by version and configuration: what this test asks for is Linux 6.18, on others it is skipped.

mod kernel_prototypes;
#[path = "calls/raw_bpf.rs"]
mod raw_bpf;

use kernel_prototypes::calls::{Bench, SIZE, Value};
use kernel_prototypes::raw_load::{KINDS, Kind, Map, Types};
use ring3_tests::is_root;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::helper;
use ring3_verifier::{Arg, DynptrUse, Prototype, Return, prototype_for, prototypes};

const KERNEL: &str = "6.18.";

/// Helpers that a kernel may lack, or that are only for programs which cannot be made everywhere.
const NOT_EVERYWHERE: &[(u32, &str)] = &[
    (helper::PROBE_WRITE_USER, "not on kernels that are locked down"),
    (helper::OVERRIDE_RETURN, "only with CONFIG_BPF_KPROBE_OVERRIDE"),
    (helper::GET_FUNC_IP, "by tracing programs at functions only, which some kernels do not let be traced"),
    (helper::GET_FUNC_ARG, "at functions only, which some kernels do not let be traced"),
    (helper::GET_FUNC_RET, "at functions only, which some kernels do not let be traced"),
    (helper::GET_FUNC_ARG_CNT, "at functions only, which some kernels do not let be traced"),
];

/// Helpers of which no good call can be made here, and why. What comes behind the argument in question is not
/// compared, nor is the result.
const NO_GOOD_CALL: &[(u32, &str)] = &[
    (helper::D_PATH, "a path is part of a file, not a pointer of its own"),
    (helper::XDP_OUTPUT, "no tracepoint has a struct xdp_buff"),
    (helper::XDP_GET_BUFF_LEN, "no tracepoint has a struct xdp_buff"),
    (helper::SPIN_LOCK, "wants a map with a lock"),
    (helper::SPIN_UNLOCK, "wants a map with a lock"),
    (helper::KPTR_XCHG, "wants a map with a kptr"),
    (helper::PER_CPU_PTR, "wants a variable of the kernel"),
    (helper::THIS_CPU_PTR, "wants a variable of the kernel"),
];

fn reason_in(list: &[(u32, &'static str)], id: u32) -> Option<&'static str> {
    list.iter().find(|(of, _)| *of == id).map(|(_, reason)| *reason)
}

/// What to compare, or why not.
fn bench() -> Result<(Bench, Vec<&'static Kind>), String> {
    if !is_root() {
        return Err("comparing with the kernel needs root".into());
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !release.starts_with(KERNEL) {
        return Err(format!("the table is that of Linux {KERNEL}x, this is {}", release.trim_end()));
    }
    let bench = Bench::new(Types::read().ok_or("this kernel has no BTF")?);
    let (can, cannot): (Vec<&Kind>, Vec<&Kind>) = KINDS.iter().partition(|kind| bench.judge_nothing(kind).accepted);
    let names: Vec<&str> = cannot.iter().map(|kind| kind.name).collect();
    if !names.is_empty() {
        println!(
            "SKIPPED IN PART: this kernel refuses programs of these kinds whatever they do: {}",
            names.join(", ")
        );
    }
    Ok((bench, can))
}

fn show(mismatches: &[String], compared: usize) {
    println!("{compared} comparisons");
    assert!(mismatches.is_empty(), "{} mismatches:\n{}", mismatches.len(), mismatches.join("\n"));
}

fn name(id: u32) -> &'static str {
    helper::name(id).unwrap_or("?")
}

/// Whether the kernel lets a program of this kind call a helper at all, by what it says of a bare call.
fn is_let(said: &str) -> bool {
    let refusals =
        ["cannot use helper", "not allowed in probe", "not supported for program type", "supported only for"];
    !refusals.iter().any(|refusal| said.contains(refusal))
}

#[test]
fn helpers_may_be_called_by_those_who_may_call_them_in_the_kernel() {
    let (bench, kinds) = match bench() {
        Ok(found) => found,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let (mut wrong, mut compared) = (vec![], 0);
    let mut types: Vec<u32> = kinds.iter().map(|kind| kind.prog_type).collect();
    types.dedup();
    for (id, prog_type) in (1..helper::NAMES.len() as u32).flat_map(|id| types.iter().map(move |kind| (id, *kind))) {
        let of_type: Vec<&&Kind> = kinds.iter().filter(|kind| kind.prog_type == prog_type).collect();
        let said = of_type.iter().map(|kind| bench.judge_bare_call(kind, id, "GPL").reason().to_owned());
        let said: Vec<String> = said.collect();
        let row = prototype_for(id, prog_type);
        let title = format!("{} called by {}", name(id), prog_type::name(prog_type).unwrap_or("?"));
        compared += 1;
        let kernel = said.iter().any(|said| is_let(said));
        if row.is_some() != kernel && !(row.is_some() && reason_in(NOT_EVERYWHERE, id).is_some()) {
            wrong.push(format!("{title}: here {}, kernel {kernel}: {said:?}", row.is_some()));
        }
        let Some(row) = row else { continue };
        for (kind, said) in of_type.iter().zip(&said).filter(|(_, said)| is_let(said)) {
            compared += 2;
            let sleeps = said.contains("might sleep");
            if sleeps != (row.sleeps && !kind.sleepable) {
                wrong.push(format!("{title} ({}): sleeps here {}, kernel {said:?}", kind.name, row.sleeps));
            }
            let gpl_only = bench.judge_bare_call(kind, id, "Proprietary").reason().contains("GPL-restricted");
            // The function of one that is attached to many is told in another way, and to everybody.
            let many = id == helper::GET_FUNC_IP && kind.prog_type == prog_type::KPROBE && kind.attach_type != 0;
            if gpl_only != (row.gpl_only && !many) {
                wrong.push(format!("{title} ({}): GPL only here {}, kernel {gpl_only}", kind.name, row.gpl_only));
            }
        }
    }
    show(&wrong, compared);
}

/// What the kernel must say.
#[derive(Debug)]
enum Says {
    /// Something with this in it.
    This(String),
    /// One of these.
    OneOf(Vec<String>),
    /// Nothing about this argument: the next thing that it dislikes is another, if any.
    Nothing,
}

/// What is put into an argument register, and what the kernel must say to it.
fn faults(arg: &Arg, at: u8, map: Option<&Map>) -> Vec<(Value, Says)> {
    use Says::{Nothing, OneOf, This};
    use Value::{Constant, Context, Edge, Number, Odd, Plain, Unknown};
    let wants = |what: &str, value: &str| This(format!("R{at} type={value} expected={what}"));
    let (key, value) = map.map_or((0, 0), |map| (map.key_bytes, map.value_bytes));
    let read = |bytes: u32| This(format!("invalid read from stack R{at} off=-1 size={bytes}"));
    let write = |bytes: u32| This(format!("invalid write to stack R{at} off=-1 size={bytes}"));
    let null = |nullable: bool, what: &str| if nullable { Nothing } else { wants(what, "scalar") };
    const MEMORY: &str = "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_";
    let forbidden = || This("write into map forbidden".into());
    let sockets = "sock_common, sock, tcp_sock, xdp_sock";
    match arg {
        // Only kernel functions take those.
        Arg::Iterator(_) | Arg::HostSlice => vec![],
        Arg::Anything => vec![(Context, Nothing), (Unknown, Nothing), (Edge, Nothing)],
        Arg::Map => vec![(Number(0), wants("map_ptr", "scalar")), (Context, wants("map_ptr", "ctx"))],
        Arg::MapKey => vec![(Number(0), wants(MEMORY, "scalar")), (Edge, read(key)), (Constant, Nothing)],
        Arg::MapValue { nullable } => {
            vec![
                (Number(0), null(*nullable, MEMORY)),
                (Number(1), wants(MEMORY, "scalar")),
                (Edge, read(value)),
                (Constant, Nothing),
            ]
        }
        Arg::MapValueOut => vec![(Number(0), wants(MEMORY, "scalar")), (Edge, write(value)), (Constant, forbidden())],
        Arg::Context { nullable } => {
            vec![(Number(0), null(*nullable, "ctx")), (Number(1), wants("ctx", "scalar")), (Edge, wants("ctx", "fp"))]
        }
        Arg::Memory { nullable } => vec![
            (Number(0), null(*nullable, MEMORY)),
            (Number(1), wants(MEMORY, "scalar")),
            (Context, wants(MEMORY, "ctx")),
            (Edge, read(SIZE as u32)),
            (Constant, Nothing),
        ],
        Arg::MemoryOut { nullable } => vec![
            (Number(0), null(*nullable, MEMORY)),
            (Number(1), wants(MEMORY, "scalar")),
            (Context, wants(MEMORY, "ctx")),
            (Edge, write(SIZE as u32)),
            (Constant, forbidden()),
        ],
        Arg::Fixed { bytes, align, write: writes } => vec![
            (Number(0), wants(MEMORY, "scalar")),
            (Edge, if *writes { write(*bytes) } else { read(*bytes) }),
            (
                Odd,
                if *align > 1 { This(format!("misaligned stack access off 0+-63+0 size {align}")) } else { Nothing },
            ),
            (Constant, if *writes { forbidden() } else { Nothing }),
        ],
        Arg::Size => vec![
            (Number(0), This(format!("R{at} invalid zero-sized read"))),
            (Unknown, This(format!("R{at} min value is negative"))),
            (Context, wants("scalar", "ctx")),
        ],
        Arg::SizeOrZero => vec![
            (Number(0), Nothing),
            (Unknown, This(format!("R{at} min value is negative"))),
            (Context, wants("scalar", "ctx")),
        ],
        Arg::AllocSize => vec![
            (Number(0), Nothing),
            (Unknown, This(format!("R{at} is not a known constant"))),
            (Context, wants("scalar", "ctx")),
        ],
        Arg::ConstString => {
            vec![
                (Number(0), wants("map_value", "scalar")),
                (Plain, This(format!("R{at} does not point to a readonly map"))),
            ]
        }
        Arg::Stack { nullable } => vec![
            (Number(0), null(*nullable, "fp")),
            (Number(1), wants("fp", "scalar")),
            (Plain, wants("fp", "map_value")),
        ],
        Arg::Function => vec![(Number(0), wants("func", "scalar")), (Edge, wants("func", "fp"))],
        Arg::Record => vec![(Number(0), wants("ringbuf_mem", "scalar")), (Plain, wants("ringbuf_mem", "map_value"))],
        Arg::Dynptr(DynptrUse::Any) => {
            vec![(Number(0), wants("fp, dynptr_ptr", "scalar")), (Odd, This("Expected an initialized dynptr".into()))]
        }
        Arg::Dynptr(DynptrUse::NewLocal | DynptrUse::NewRecord) => {
            vec![
                (Number(0), wants("fp, dynptr_ptr", "scalar")),
                (Edge, This("has to be an uninitialized dynptr".into())),
            ]
        }
        Arg::Dynptr(DynptrUse::ReleaseRecord) => {
            vec![(Number(0), wants("fp, dynptr_ptr", "scalar")), (Odd, This("is an unacquired reference".into()))]
        }
        Arg::SpinLock => vec![(Number(0), wants("map_value, ptr_", "scalar")), (Plain, This("spin_lock".into()))],
        Arg::Timer => vec![(Number(0), wants("map_value", "scalar")), (Plain, This("timer".into()))],
        Arg::Kptr => vec![(Number(0), wants("map_value, ptr_", "scalar")), (Plain, This("kptr".into()))],
        Arg::PerCpuVariable => {
            vec![(Number(0), wants("percpu_ptr_, percpu_rcu_ptr_, percpu_trusted_ptr_", "scalar"))]
        }
        Arg::Object { name, nullable, .. } => {
            let typed = format!("R{at} type=scalar expected=ptr_, trusted_ptr_, rcu_ptr_");
            let any_socket = format!("R{at} type=scalar expected={sockets}");
            let expected =
                || if *name == "sock_common" { vec![typed.clone(), any_socket.clone()] } else { vec![typed.clone()] };
            vec![(Number(0), if *nullable { Nothing } else { OneOf(expected()) }), (Number(1), OneOf(expected()))]
        }
    }
}

fn agrees(says: &Says, at: u8, reason: &str) -> bool {
    match says {
        Says::This(text) => reason.contains(text),
        Says::OneOf(texts) => texts.iter().any(|text| reason.contains(text)),
        Says::Nothing => {
            !reason.starts_with("misaligned")
                && !reason.starts_with(&format!("R{at} "))
                && !reason.contains(&format!("stack R{at} "))
                && !reason.contains("forbidden")
        }
    }
}

/// Kinds whose programs call this row's helper, and not another's of the same number.
fn callers<'a>(
    bench: &'a Bench,
    kinds: &'a [&'static Kind],
    row: &'static Prototype,
) -> impl Iterator<Item = &'static Kind> {
    kinds.iter().copied().filter(move |kind| {
        let meant = prototype_for(row.id, kind.prog_type).is_some_and(|found| std::ptr::eq(found, row));
        let said = || bench.judge_bare_call(kind, row.id, "GPL").reason().to_owned();
        meant && (kind.sleepable || !row.sleeps) && is_let(&said())
    })
}

/// Whether it is the map that this kind of programs must not use, whatever the helper.
fn is_about_kind(reason: &str) -> bool {
    reason.starts_with("Sleepable programs can only use") || reason.starts_with("tracing progs cannot use")
}

/// Whether the program has a reference after a good call, which it should have given back.
fn keeps_reference(row: &Prototype, kind: &Kind) -> bool {
    let made_before = |arg: &Arg| match arg {
        Arg::Object { name: "sock_common", nullable: false, release: false } => kind.prog_type != prog_type::TRACING,
        Arg::Dynptr(use_) => *use_ == DynptrUse::NewRecord,
        _ => false,
    };
    matches!(row.ret, Return::RecordOrNull | Return::Object { acquired: true, .. })
        || row.args().iter().any(made_before)
}

fn is_kernel_function(row: &Prototype) -> bool {
    row.id >= helper::KFUNC_FIRST
}

#[test]
fn helpers_take_what_they_take_in_the_kernel() {
    let (bench, kinds) = match bench() {
        Ok(found) => found,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let (mut wrong, mut compared) = (vec![], 0);
    for row in prototypes().iter().filter(|row| !is_kernel_function(row)) {
        for kind in callers(&bench, &kinds, row) {
            let map = bench.map_for(row);
            let map = map.as_ref();
            let good = bench.judge_call(kind, row, None, map);
            if good.as_ref().is_some_and(|verdict| is_about_kind(verdict.reason())) {
                continue;
            }
            if let Some(verdict) = good {
                compared += 1;
                let reason = verdict.reason();
                let as_meant =
                    if keeps_reference(row, kind) { reason.contains("reference leak") } else { verdict.accepted };
                if !as_meant {
                    wrong.push(format!("{} by {}: a good call: {reason}", name(row.id), kind.name));
                }
            }
            for (at, arg) in (1u8..).zip(row.args()) {
                let nothing = (Value::Nothing, Says::This(format!("R{at} !read_ok")));
                for (value, says) in faults(arg, at, map).into_iter().chain([nothing]) {
                    let Some(verdict) = bench.judge_call(kind, row, Some((at, value)), map) else { continue };
                    compared += 1;
                    if !agrees(&says, at, verdict.reason()) {
                        let place = format!("{} by {}: argument {at} {arg:?} {value:?}", name(row.id), kind.name);
                        wrong.push(format!("{place}: {:?}, not {says:?}", verdict.reason()));
                    }
                }
            }
        }
    }
    show(&wrong, compared);
}

/// How the kernel writes what r0 is.
fn register_text(ret: &Return) -> String {
    match ret {
        Return::Integer => "scalar(".into(),
        Return::Void => String::new(),
        Return::MapValueOrNull => "map_value_or_null(".into(),
        Return::MapValue => "map_value(".into(),
        Return::RecordOrNull => "ringbuf_mem_or_null(".into(),
        Return::DynptrDataOrNull => "mem_or_null(".into(),
        Return::Object { name: socket @ ("sock" | "sock_common"), .. } => format!("{socket}_or_null("),
        Return::Object { name: "bpf_tcp_sock", .. } => "tcp_sock_or_null(".into(),
        Return::Object { name, nullable, trusted, .. } => {
            let trusted = if *trusted { "trusted_" } else { "" };
            format!("{trusted}ptr_{}{name}(", if *nullable { "or_null_" } else { "" })
        }
        Return::PerCpuMemory { nullable } => if *nullable { "rdonly_mem_or_null(" } else { "rdonly_mem(" }.into(),
    }
}

#[test]
fn helpers_give_what_they_give_in_the_kernel() {
    let (bench, kinds) = match bench() {
        Ok(found) => found,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let (mut wrong, mut compared) = (vec![], 0);
    for row in prototypes().iter().filter(|row| !is_kernel_function(row)) {
        let mut seen = false;
        for kind in callers(&bench, &kinds, row) {
            let Some(verdict) = bench.judge_call(kind, row, None, bench.map_for(row).as_ref()) else { continue };
            if is_about_kind(verdict.reason()) {
                continue;
            }
            seen = true;
            compared += 1;
            let (call, moved) = (format!("(85) call bpf_{}#", name(row.id)), "(bf) r9 = r0");
            let shown = if row.ret == Return::Void { call.as_str() } else { moved };
            let line = verdict
                .log
                .lines()
                .rev()
                .find(|line| line.contains(shown) && !line.contains(". ("))
                .unwrap_or_default();
            let state = line.split("; ").nth(1).unwrap_or_default();
            let registers = state.split(' ').filter_map(|word| word.split_once('='));
            let r0 = registers
                .clone()
                .find(|(register, _)| register.trim_end_matches("_w") == "R0")
                .map_or("", |(_, text)| text);
            let text = register_text(&row.ret);
            let same = if text.is_empty() { r0.is_empty() } else { r0.starts_with(&text) };
            let acquires = matches!(row.ret, Return::RecordOrNull | Return::Object { acquired: true, .. });
            // What is made of an object is given back with it.
            let of_object = row.args().iter().any(|arg| matches!(arg, Arg::Object { .. }));
            if !same || (acquires != r0.contains("ref_obj_id=") && !of_object) {
                wrong.push(format!("{} by {}: {:?}: {line:?}", name(row.id), kind.name, row.ret));
            }
        }
        let explained = [NOT_EVERYWHERE, NO_GOOD_CALL].iter().any(|list| reason_in(list, row.id).is_some());
        if !seen && !explained && kinds.iter().any(|kind| row.allows(kind.prog_type)) {
            wrong.push(format!("{} ({:?}): no good call could be made", name(row.id), row.args()));
        }
    }
    show(&wrong, compared);
}

#[test]
fn helpers_take_the_maps_that_they_take_in_the_kernel() {
    let (bench, kinds) = match bench() {
        Ok(found) => found,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let (mut wrong, mut compared) = (vec![], 0);
    // Its map must be the one that the timer is in.
    let rows = prototypes().iter().filter(|row| row.map_argument().is_some() && row.id != helper::TIMER_INIT);
    for (row, map) in rows.flat_map(|row| bench.new_maps().into_iter().map(move |map| (row, map))) {
        let said = callers(&bench, &kinds, row)
            .filter_map(|kind| Some(bench.judge_call(kind, row, None, Some(&map))?.reason().to_owned()));
        let mut said: Vec<String> = said.filter(|said| !is_about_kind(said)).collect();
        said.dedup();
        if said.is_empty() {
            continue;
        }
        compared += 1;
        // Maps of sockets take sockets, and say so.
        let taken = ["reference leak", "R3 type=fp expected=sock_common"];
        let taken = said.iter().any(|said| said.is_empty() || taken.iter().any(|taken| said.contains(taken)));
        if taken != row.takes(map.map_type) {
            let map = map_type::name(map.map_type).unwrap_or("?");
            wrong.push(format!("{} of {map}: here {}, kernel {taken}: {said:?}", name(row.id), !taken));
        }
    }
    show(&wrong, compared);
}
