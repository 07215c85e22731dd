//! Faults in programs: the run ends, the program's caller goes on, and a program that faults often is switched off.
//!
//! The agent's side is `inside/runtime/src/raw_fault.rs`. A request is a claim, and the answer is written into the memory of the process
//! that it names. So the server makes sure that the thread waits for this very answer, and writes nothing but what it reads from
//! its own code and from the thread's stack.

use std::mem::offset_of;
use std::sync::{Arc, LazyLock};

use ring3_inject as inject;
use ring3_layout::fault::{FAULT_MAGIC, FAULTS_MAX, Fault};
use ring3_layout::realm::{Realm as RealmBlock, Request};
use ring3_layout::region::{AGENT_OFFSET, REALM_OFFSET, TEXT_BYTES, TEXT_OFFSET};
use ring3_names::{Function, Names};
use ring3_patch::frames::{self, Registers};
use ring3_uapi::{Errno, nr};

use crate::realm::memory::Death;
use crate::realm::process::{read_value, write_process};
use crate::realm::reports::{FaultStatus, of_agent};
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{Shared, process};

/// Frames between a fault and the program's caller, at most.
const FRAMES_MAX: usize = 64;
/// How far above its stack pointer, in the call that waits, a thread has its [`Fault`], bytes.
const FAULT_WITHIN: u64 = 2048;

/// Faults of a program, by one link, in a target.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct FaultCount {
    runs: u64,
    last: String,
    /// It has been said that a run's caller could not be found.
    is_told: bool,
}

/// Ring3's own code in a target.
struct OwnCode<'a> {
    region: u64,
    agent: &'static Names,
    programs: Vec<(u32, Arc<Names>)>,
    shared: &'a Shared,
}

/// A function of ours.
struct Place<'a> {
    /// Where the piece of code lies that it is in.
    piece: u64,
    names: &'a Names,
    function: &'a Function,
    is_program: bool,
}

/// What became of a run that is said to have faulted.
pub(in crate::realm) enum Ended {
    /// The thread does not wait yet, or its answer waits for what it holds to be released. To answer that twice would answer its
    /// next request.
    NotYet,
    /// The thread is answered; nobody else is concerned.
    Answered,
    /// The thread is answered, and goes on when what it holds is released.
    Holding(Death),
}

/// What a stack says of a fault.
struct Unwound {
    /// The registers with which the outermost program's caller goes on.
    caller: Registers,
    /// The innermost program: function, instruction, line.
    place: String,
    /// The helper that was called.
    helper: Option<String>,
}

impl OwnCode<'_> {
    fn of<'a>(target: &Target, shared: &'a Shared) -> OwnCode<'a> {
        static AGENT: LazyLock<Names> = LazyLock::new(of_agent);
        OwnCode { region: target.region, agent: &AGENT, programs: shared.text.names(), shared }
    }

    fn is_in_agent(&self, address: u64) -> bool {
        address.wrapping_sub(self.region + AGENT_OFFSET) < ring3_image::bytes().len() as u64
    }

    fn find(&self, address: u64) -> Option<Place<'_>> {
        let is_program = !self.is_in_agent(address);
        let (piece, names) = if is_program {
            let text = self.region + TEXT_OFFSET;
            let offset = address.checked_sub(text).filter(|offset| *offset < TEXT_BYTES)? as u32;
            let after = self.programs.partition_point(|(start, _)| *start <= offset);
            let (start, names) = self.programs.get(after.checked_sub(1)?)?;
            (text + u64::from(*start), &**names)
        } else {
            (self.region + AGENT_OFFSET, self.agent)
        };
        let offset = (address - piece) as u32;
        let covers = |function: &&Function| offset.wrapping_sub(function.offset) < function.bytes;
        let function = names.functions.iter().find(covers)?;
        Some(Place { piece, names, function, is_program })
    }

    /// The machine code of a function.
    fn code(&self, place: &Place<'_>) -> Vec<u8> {
        let (start, bytes) = (place.start(), place.function.bytes as usize);
        if place.is_program {
            return self.shared.text.read(start - self.region - TEXT_OFFSET, bytes);
        }
        let offset = (start - self.region - AGENT_OFFSET) as usize;
        ring3_image::bytes().get(offset..offset + bytes).unwrap_or_default().to_vec()
    }

    /// Goes from a fault to the caller of the outermost program below `guard`.
    fn unwind(&self, pid: u32, fault: &Fault) -> Result<Unwound, String> {
        let word = |address: u64| read_value::<u64>(pid, address).ok();
        let [rip, rsp, preserved @ ..] = fault.registers;
        let mut registers = Registers { rip, rsp, preserved };
        let (mut caller, mut place, mut helper) = (None, None, None);
        for depth in 0..FRAMES_MAX {
            // (Behind a call that never returns another function may begin.)
            let at = registers.rip - u64::from(depth > 0);
            let Some(found) = self.find(at) else { break };
            let start = found.start();
            let function = &found.function.name;
            let frame = frames::frame_at(&self.code(&found), start, start, at);
            let frame = match frame {
                Ok(frame) => frame,
                // (Where the agent is entered its frames are not those of a compiler.)
                Err(_) if caller.is_some() => break,
                Err(why) => return Err(format!("{function} at {:#x}: {why}", at - start)),
            };
            let caller_of = frames::caller(&registers, &frame, word);
            registers = caller_of.ok_or_else(|| format!("the stack of {function} cannot be read"))?;
            if registers.rsp > fault.guard {
                break;
            }
            if found.is_program {
                place.get_or_insert_with(|| found.describe(at));
                if self.is_in_agent(registers.rip) {
                    caller = Some(registers);
                }
            } else if place.is_none()
                && let Some(name) = found.function.name.strip_prefix("ring3_")
            {
                helper = Some(name.strip_prefix("helper_").map_or(name.to_owned(), |name| format!("bpf_{name}")));
            }
        }
        let (Some(caller), Some(place)) = (caller, place) else { return Err("no program is below it".into()) };
        Ok(Unwound { caller, place, helper })
    }
}

impl Place<'_> {
    fn start(&self) -> u64 {
        self.piece + u64::from(self.function.offset)
    }

    fn describe(&self, at: u64) -> String {
        let offset = (at - self.piece) as u32;
        let insn = self.names.insn_at(offset).map_or(String::new(), |insn| format!(", instruction {insn}"));
        let line = self.names.line_at(offset).map_or(String::new(), |line| format!(" ({}:{})", line.file, line.line));
        format!("{}{insn}{line}", self.function.name)
    }
}

impl Target {
    /// Runs of programs that faulted, by link and program.
    pub(in crate::realm) fn faulted_runs(&self) -> Vec<FaultStatus> {
        let row = |(&(link_id, prog_id), count): (&(u32, u32), &FaultCount)| FaultStatus {
            link_id,
            prog_id,
            runs: count.runs,
            last: count.last.clone(),
        };
        self.faulted.iter().filter(|(_, count)| count.runs > 0).map(row).collect()
    }

    /// The stack pointer of a thread, if it waits for the answer to the request with this index.
    fn waits_at(&self, tid: u32, index: usize) -> Option<u64> {
        let entry = offset_of!(RealmBlock, requests) + index * size_of::<Request>() + offset_of!(Request, state);
        let expected = format!("{} {:#x} ", nr::FUTEX, self.region + REALM_OFFSET + entry as u64);
        let call = inject::proc_file(self.pid, &format!("task/{tid}/syscall")).ok()?;
        // (It ends with the stack pointer and the instruction pointer.)
        let sp = call.strip_prefix(&expected)?.split_whitespace().rev().nth(1)?.strip_prefix("0x")?;
        u64::from_str_radix(sp, 16).ok()
    }
}

impl Actor {
    /// A thread of a target says that a program has faulted, and has written a [`Fault`] at `address`.
    pub(in crate::realm) fn end_faulted_run(&mut self, pid: u32, own_tid: u32, index: usize, address: u64) -> Ended {
        let (Some(target), Some(tid)) = (self.targets.get(&pid), process::thread_named(pid, own_tid)) else {
            return Ended::Answered;
        };
        let Some(sp) = target.waits_at(tid, index) else { return Ended::NotYet };
        let fault: Option<Fault> = read_value(pid, address).ok();
        match fault.filter(|fault| address.wrapping_sub(sp) < FAULT_WITHIN && fault.magic == FAULT_MAGIC ^ address) {
            Some(fault) if fault.is_answered != 0 => Ended::NotYet,
            Some(fault) => self.end_run_of(pid, own_tid, address, &fault).unwrap_or(Ended::Answered),
            None => Ended::Answered,
        }
    }

    fn end_run_of(&mut self, pid: u32, own_tid: u32, address: u64, fault: &Fault) -> Option<Ended> {
        let shared = self.shared.clone();
        let target = self.targets.get_mut(&pid)?;
        let which = (fault.link_id, fault.prog_id);
        let (link_id, mut specs) = (fault.link_id, self.links.values().map(|link| &link.spec));
        // (Of a link that is gone nobody wants to know more; nor may a target make others up.)
        let spec = specs.find(|spec| (spec.link_id, spec.prog_id) == which)?;
        let (name, terminal) = (spec.prog_name.clone(), spec.terminal);
        let unwound = match OwnCode::of(target, &shared).unwind(pid, fault) {
            Ok(unwound) => unwound,
            Err(why) => {
                // (Said once: a target may make as many up as it likes.)
                let count = target.faulted.entry(which).or_default();
                if !std::mem::replace(&mut count.is_told, true) {
                    let what = format!("program {name:?} (link {link_id}) has faulted");
                    tracing::warn!(pid, "{what}, and its caller cannot be found: {why}");
                }
                return None;
            }
        };
        let signal = if fault.signal as i32 == libc::SIGBUS { "SIGBUS" } else { "SIGSEGV" };
        let helper = unwound.helper.map_or(String::new(), |helper| format!(" {helper}, called by"));
        let last = format!("{signal} at {:#x} in{helper} {}", fault.address, unwound.place);
        let count = target.faulted.entry(which).or_default();
        *count = FaultCount { runs: count.runs + 1, last, ..*count };
        let (runs, last) = (count.runs, count.last.clone());
        let Registers { rip, rsp, preserved: [rbx, rbp, r12, r13, r14, r15] } = unwound.caller;
        let answer = Fault { registers: [rip, rsp, rbx, rbp, r12, r13, r14, r15], is_answered: 1, ..*fault };
        write_process(pid, address, &answer).ok()?;
        // (What the interrupted runs hold is theirs.)
        let ended = if fault.interrupted == 0 { Ended::Holding(target.death_of(own_tid)) } else { Ended::Answered };
        if runs == 1 {
            let why = format!("program {name:?} (link {link_id}) has faulted, and that run of it was ended: {last}");
            target.report(terminal, &why);
        }
        if runs == FAULTS_MAX {
            let why = format!(
                "program {name:?} (link {link_id}) is switched off: it has faulted {runs} times, last by {last}"
            );
            self.switch_off(pid, which, Errno::EFAULT, &|_| Some(why.clone()));
        }
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearly all places in the agent at which a helper may fault lead to its caller.
    #[test]
    fn the_agents_functions_can_be_left_from_anywhere() {
        const EVERY: usize = 23;
        const PERCENT_MIN: usize = 97;
        let (image, functions) = (ring3_image::bytes(), of_agent().functions);
        let compiled =
            functions.iter().filter(|function| function.name.starts_with("_ZN") || function.name.contains("helper"));
        let (mut all, mut unknown) = (0, vec![]);
        for function in compiled {
            let (start, bytes) = (function.offset as usize, function.bytes as usize);
            let code = &image[start..start + bytes];
            for at in (start..start + bytes).step_by(EVERY) {
                all += 1;
                if let Err(why) = frames::frame_at(code, start as u64, start as u64, at as u64) {
                    unknown.push(format!("{}+{:#x}: {why}", function.name, at - start));
                }
            }
        }
        assert!(
            all > 1000 && unknown.len() * 100 <= all * (100 - PERCENT_MIN),
            "{} of {all}: {unknown:#?}",
            unknown.len()
        );
    }
}
