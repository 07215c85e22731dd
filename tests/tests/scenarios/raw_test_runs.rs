//! `BPF_PROG_TEST_RUN`: programs that are run by themselves.

use crate::calls::raw_bpf::{Attr, address, bpf};
use ring3_isa::{assemble, encode};
use ring3_uapi::attr::{map_elem, prog_load, test_run as t};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_uapi::flags::BPF_F_SLEEPABLE;

use super::raw_calls::{MARK, close, create, show, show_fd};

/// Loads a program that is given as text.
pub(crate) fn load(what: &str, kind: u32, text: &str) -> i64 {
    let code = encode(&assemble(text).unwrap_or_else(|error| panic!("{what}: {error}")));
    let flags = if kind == prog_type::SYSCALL { BPF_F_SLEEPABLE } else { 0 };
    let mut log = vec![0u8; 1 << 16];
    let mut attr = Attr::new()
        .with(prog_load::PROG_TYPE, kind.into())
        .with(prog_load::INSN_CNT, code.len() as u64 / 8)
        .with(prog_load::INSNS, address(code.as_slice()))
        .with(prog_load::LICENSE, address(c"GPL".to_bytes_with_nul()))
        .with(prog_load::PROG_FLAGS, flags.into())
        .with(prog_load::LOG_LEVEL, 1)
        .with(prog_load::LOG_SIZE, log.len() as u64)
        .with(prog_load::LOG_BUF, log.as_mut_ptr() as u64);
    let loaded = bpf(cmd::PROG_LOAD, &mut attr);
    if loaded.is_err() {
        eprintln!("{what}: {}", String::from_utf8_lossy(&log));
    }
    show_fd(what, loaded)
}

/// Runs it, and shows all that is told but times.
fn run(what: &str, mut attr: Attr) {
    let result = bpf(cmd::PROG_TEST_RUN, &mut attr);
    let told = [t::RETVAL, t::DATA_SIZE_OUT].map(|field| attr.get(field));
    show(&format!("{what}: {told:x?}"), result);
}

fn of(program: i64) -> Attr {
    Attr::new().with(t::PROG_FD, program as u64)
}

fn bytes(what: &str, bytes: &[u8]) {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{MARK}{what}: {text}");
}

pub(crate) fn system_call_programs_are_run() {
    let program = load(
        "doubles a word",
        prog_type::SYSCALL,
        "
        r2 = *(u32 *)(r1 +4)
        r2 *= 2
        *(u32 *)(r1 +4) = r2
        r0 = r2
        exit",
    );
    let mut context = [1u32, 21, 3, 4];
    let with =
        |attr: Attr, context: &[u32], size: u64| attr.with(t::CTX_IN, address(context)).with(t::CTX_SIZE_IN, size);
    run("a context", with(of(program), &context, 16));
    bytes("the context", context.map(u32::to_le_bytes).as_flattened());
    context[1] = 0xffff_ffff;
    run("another", with(of(program), &context, 8));
    bytes("the context", context.map(u32::to_le_bytes).as_flattened());
    run("too short a context", with(of(program), &context, 7));
    run("too long a context", with(of(program), &context, 0x1_0000));
    run("no context", of(program));
    run("a size alone", of(program).with(t::CTX_SIZE_IN, 8));
    run("a bad address", of(program).with(t::CTX_SIZE_IN, 8).with(t::CTX_IN, 8));
    for (what, field) in [("repeat", t::REPEAT), ("duration", t::DURATION), ("flags", t::FLAGS), ("data", t::DATA_IN)]
    {
        run(what, with(of(program), &context, 16).with(field, 1));
    }
    run("no program", of(999));
    let nothing = load("nothing", prog_type::SYSCALL, "r0 = -1\nexit");
    run("no context wanted", of(nothing));
    for program in [program, nothing] {
        close(program);
    }
}

pub(crate) fn raw_tracepoint_programs_are_run() {
    let program = load(
        "adds arguments",
        prog_type::RAW_TRACEPOINT,
        "
        r0 = *(u64 *)(r1 +0)
        r2 = *(u64 *)(r1 +8)
        r0 += r2
        exit",
    );
    let arguments = [40u64, 2, 99];
    let with = |size: u64| of(program).with(t::CTX_IN, address(&arguments)).with(t::CTX_SIZE_IN, size);
    run("arguments", with(16));
    run("more of them", with(24));
    run("too few", with(8));
    run("repeat", with(16).with(t::REPEAT, 1));
    run("a CPU without the flag", with(16).with(t::CPU, 1));
    run("on a CPU", with(16).with(t::FLAGS, 1));
    run("on a CPU that is not there", with(16).with(t::FLAGS, 1).with(t::CPU, 100_000));
    close(program);
}

pub(crate) fn programs_of_packets_are_run() {
    let frame: Vec<u8> = (0..60).map(|at| if at < 12 { 0 } else { at as u8 * 3 }).collect();
    let sums = "
        r2 = *(u32 *)(r1 +FROM)
        r3 = *(u32 *)(r1 +TO)
        r4 = r2
        r4 += 20
        r0 = 0
        if r4 > r3 goto out
        r0 = *(u16 *)(r2 +12)
        *(u8 *)(r2 +0) = 0x5a
        r5 = r3
        r5 -= r2
        r0 += r5
    out:
        exit";
    let xdp = load("xdp", prog_type::XDP, &sums.replace("FROM", "0").replace("TO", "4"));
    let classifier = load("classifier", prog_type::SCHED_CLS, &sums.replace("FROM", "76").replace("TO", "80"));
    for (name, program) in [("xdp", xdp), ("classifier", classifier)] {
        let mut out = vec![0u8; 64];
        let size = frame.len() as u64;
        let data = |size: u64| of(program).with(t::DATA_IN, address(frame.as_slice())).with(t::DATA_SIZE_IN, size);
        let with_room = |attr: Attr, room: u64, at: u64| attr.with(t::DATA_OUT, at).with(t::DATA_SIZE_OUT, room);
        let at = out.as_mut_ptr() as u64;
        run(&format!("{name}: a frame"), with_room(data(size), 64, at));
        bytes(name, &out);
        out.fill(0);
        run(&format!("{name}: repeated"), with_room(data(size), 64, at).with(t::REPEAT, 5));
        run(&format!("{name}: little room"), with_room(data(size), 10, at));
        bytes(name, &out[..12]);
        run(&format!("{name}: no room"), data(size));
        run(&format!("{name}: a short frame"), data(14));
        run(&format!("{name}: too short a frame"), data(13));
        run(&format!("{name}: no frame"), of(program));
        run(&format!("{name}: unknown flags"), data(size).with(t::FLAGS, 1 << 30));
        close(program);
    }
    let fields =
        [("len", 0), ("pkt_type", 4), ("mark", 8), ("protocol", 16), ("priority", 32), ("ifindex", 40), ("hash", 68)];
    for (kind, kind_name) in [(prog_type::SCHED_CLS, "classifier"), (prog_type::SOCKET_FILTER, "filter")] {
        for (name, at) in fields {
            let program = load(name, kind, &format!("r0 = *(u32 *)(r1 +{at})\nexit"));
            for first in [0u8, 0x22, 0x01, 0xff] {
                let mut frame = frame.clone();
                frame[..6].fill(first);
                let attr = of(program).with(t::DATA_IN, address(frame.as_slice()));
                run(&format!("{kind_name}: {name}, to {first:02x}"), attr.with(t::DATA_SIZE_IN, frame.len() as u64));
            }
            close(program);
        }
    }
    let probe = load("kprobe", prog_type::KPROBE, "r0 = 0\nexit");
    run("a probe's program", of(probe));
    close(probe);
}

/// Programs that are run by themselves share their maps with whoever has them.
pub(crate) fn maps_are_shared_with_programs_that_are_run() {
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 8, 8, 0)));
    let program = load(
        "counts",
        prog_type::SCHED_CLS,
        &format!(
            "
        r6 = 7
        *(u32 *)(r10 -4) = r6
        r2 = r10
        r2 += -4
        r1 = map[fd:{map}]
        call bpf_map_lookup_elem
        if r0 == 0 goto first
        r1 = 1
        lock *(u64 *)(r0 +0) += r1
        r0 = *(u64 *)(r0 +0)
        exit
    first:
        *(u64 *)(r10 -16) = 1
        r1 = map[fd:{map}]
        r2 = r10
        r2 += -4
        r3 = r10
        r3 += -16
        r4 = 0
        call bpf_map_update_elem
        r0 = 1
        exit"
        ),
    );
    let frame = [0u8; 20];
    let attr = || of(program).with(t::DATA_IN, address(&frame)).with(t::DATA_SIZE_IN, 20);
    run("once", attr());
    run("a thousand times", attr().with(t::REPEAT, 1000));
    let (key, mut value) = (7u32, 0u64);
    let mut attr = Attr::new()
        .with(map_elem::MAP_FD, map as u64)
        .with(map_elem::KEY, address(&key))
        .with(map_elem::VALUE, std::ptr::from_mut(&mut value) as u64);
    show("the count", bpf(cmd::MAP_LOOKUP_ELEM, &mut attr));
    println!("{MARK}{value}");
    close(program);
    close(map);
}
