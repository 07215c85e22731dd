//! `BPF_PROG_TEST_RUN`: a program is run by itself. Mirrors net/bpf/test_run.c (v6.18).

use std::os::fd::AsFd;
use std::sync::Arc;

use ring3_run::child;
use ring3_uapi::Errno;
use ring3_uapi::attr::{Field, test_run as t};
use ring3_uapi::bpf::prog_type;

use super::attr::Attr;
use super::objects::{Object, Program};
use super::{Caller, Outcome, Reply, raw_seccomp, refuse};
use crate::realm::TestInput;

/// `ETH_HLEN`
const ETHERNET_BYTES: u32 = 14;
/// A packet that fits into a page beside what the kernel puts around it.
const PACKET_BYTES_MAX: u32 = 4096 - 256 - 320;
/// Bytes of a raw tracepoint's context at most (`MAX_BPF_FUNC_ARGS`).
const RAW_CONTEXT_BYTES_MAX: u32 = 12 * 8;

/// What is asked for besides the program.
struct TestRunRequest<'a> {
    attr: &'a Attr,
}

impl TestRunRequest<'_> {
    fn word(&self, field: Field) -> u32 {
        self.attr.u32(field.at)
    }

    fn has_any(&self, words: &[Field], addresses: &[Field]) -> bool {
        words.iter().any(|field| self.word(*field) != 0) || addresses.iter().any(|field| self.attr.u64(field.at) != 0)
    }
}

pub(super) fn prog_test_run(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let asked = TestRunRequest { attr };
    let sized = |size: Field, at: Field| (asked.word(size) == 0) != (attr.u64(at.at) == 0);
    if sized(t::CTX_SIZE_IN, t::CTX_IN) || sized(t::CTX_SIZE_OUT, t::CTX_OUT) {
        return Err(Errno::EINVAL);
    }
    let program = match caller.object(attr.i32(t::PROG_FD.at))? {
        Some(Object::Program(program)) => program,
        _ => return Err(Errno::EINVAL),
    };
    let input = match program.prog_type {
        prog_type::SYSCALL => syscall_input(caller, &asked, &program)?,
        prog_type::RAW_TRACEPOINT => raw_tracepoint_input(caller, &asked, &program)?,
        prog_type::XDP | prog_type::SOCKET_FILTER | prog_type::SCHED_CLS => packet_input(caller, &asked, &program)?,
        // Programs that are attached to probes cannot be run like that in the kernel either.
        _ => return Err(Errno::ENOTSUPP),
    };
    let listener = caller.session.listener.clone().ok_or(Errno::EINVAL)?;
    let call = (caller.call.id, caller.call.tid);
    let awaited = caller.session.ledger.awaits(&caller.call);
    let attr = attr.clone();
    let (address, passed) = (caller.arg(1), attr.passed);
    let spawned = std::thread::Builder::new().name("ring3-test-run".into()).spawn(move || {
        let (id, tid) = call;
        let whose = child::Caller { pid: raw_seccomp::leader(tid), tid };
        let is_waited_for = || raw_seccomp::is_valid(listener.as_fd(), id) && !Caller::has_signal(tid);
        let result = run(
            &program,
            (whose, input),
            &is_waited_for,
            |at, bytes| raw_seccomp::write(tid, at, bytes).map_err(Errno),
            &attr,
            address,
            passed,
        );
        raw_seccomp::answer(listener.as_fd(), id, result.map(|()| 0).map_err(|errno| errno.0));
        drop(awaited);
    });
    spawned.map(|_| Outcome::Later).map_err(|_| Errno::ENOMEM)
}

/// Runs it, and tells the caller what came of it.
fn run(
    program: &Arc<Program>,
    (caller, input): (child::Caller, TestInput),
    is_waited_for: &dyn Fn() -> bool,
    write: impl Fn(u64, &[u8]) -> Result<(), Errno>,
    attr: &Attr,
    address: u64,
    passed: usize,
) -> Result<(), Errno> {
    let (kind, repeat) = (input.prog_type, input.repeat);
    let answer =
        program.realm.test_run(&program.text, program.facts.uses_per_cpu, caller, input, is_waited_for).map_err(
            |refusal| refuse(refusal.errno, format_args!("BPF_PROG_TEST_RUN of {:?}: {refusal}", program.name)),
        )?;
    let tell = |field: Field, value: u32| {
        if field.end() <= passed { write(address + field.at as u64, &value.to_le_bytes()) } else { Ok(()) }
    };
    if kind == prog_type::SYSCALL && !answer.context.is_empty() {
        write(attr.u64(t::CTX_IN.at), &answer.context)?;
    }
    let mut outcome = Ok(());
    if let Some(packet) = &answer.packet {
        let room = attr.u32(t::DATA_SIZE_OUT.at) as usize;
        let fits = if room == 0 { packet.len() } else { room.min(packet.len()) };
        if attr.u64(t::DATA_OUT.at) != 0 {
            write(attr.u64(t::DATA_OUT.at), &packet[..fits])?;
        }
        if fits < packet.len() {
            outcome = Err(Errno::ENOSPC);
        }
        tell(t::DATA_SIZE_OUT, packet.len() as u32)?;
        let each = answer.duration_ns / u64::from(repeat.max(1));
        tell(t::DURATION, u32::try_from(each).unwrap_or(u32::MAX))?;
    }
    tell(t::RETVAL, answer.result as u32)?;
    outcome
}

/// Mirrors bpf_prog_test_run_syscall.
fn syscall_input(caller: &Caller<'_>, asked: &TestRunRequest<'_>, program: &Program) -> Result<TestInput, Errno> {
    let refused =
        asked.has_any(&[t::REPEAT, t::DURATION, t::FLAGS, t::BATCH_SIZE], &[t::DATA_IN, t::DATA_OUT, t::CTX_OUT]);
    let bytes = asked.word(t::CTX_SIZE_IN);
    if refused || bytes < program.facts.context_bytes || bytes > u32::from(u16::MAX) {
        return Err(Errno::EINVAL);
    }
    let context = caller.read(asked.attr.u64(t::CTX_IN.at), bytes as usize)?;
    Ok(TestInput { prog_type: program.prog_type, context, packet: None, repeat: 1 })
}

/// Mirrors bpf_prog_test_run_raw_tp.
fn raw_tracepoint_input(
    caller: &Caller<'_>,
    asked: &TestRunRequest<'_>,
    program: &Program,
) -> Result<TestInput, Errno> {
    const ON_CPU: u32 = 1;
    let refused = asked.has_any(&[t::DURATION, t::REPEAT, t::BATCH_SIZE], &[t::DATA_IN, t::DATA_OUT, t::CTX_OUT]);
    let (bytes, flags) = (asked.word(t::CTX_SIZE_IN), asked.word(t::FLAGS));
    if refused || bytes < program.facts.context_bytes || bytes > RAW_CONTEXT_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    if flags & ON_CPU == 0 && asked.word(t::CPU) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & ON_CPU != 0 && asked.word(t::CPU) >= crate::realm::possible_cpus() {
        return Err(Errno::ENXIO);
    }
    let mut context = caller.read(asked.attr.u64(t::CTX_IN.at), bytes as usize)?;
    context.resize(RAW_CONTEXT_BYTES_MAX as usize, 0);
    Ok(TestInput { prog_type: program.prog_type, context, packet: None, repeat: 1 })
}

/// Mirrors bpf_prog_test_run_skb and bpf_prog_test_run_xdp.
fn packet_input(caller: &Caller<'_>, asked: &TestRunRequest<'_>, program: &Program) -> Result<TestInput, Errno> {
    if asked.has_any(&[t::FLAGS, t::CPU, t::BATCH_SIZE], &[]) {
        return Err(Errno::EINVAL);
    }
    if asked.has_any(&[], &[t::CTX_IN, t::CTX_OUT]) {
        return Err(refuse(Errno::ENOTSUPP, "BPF_PROG_TEST_RUN with a packet's context"));
    }
    let bytes = asked.word(t::DATA_SIZE_IN);
    if !(ETHERNET_BYTES..=PACKET_BYTES_MAX).contains(&bytes) {
        return Err(Errno::EINVAL);
    }
    let packet = caller.read(asked.attr.u64(t::DATA_IN.at), bytes as usize)?;
    let repeat = asked.word(t::REPEAT).max(1);
    Ok(TestInput { prog_type: program.prog_type, context: vec![], packet: Some(packet), repeat })
}
