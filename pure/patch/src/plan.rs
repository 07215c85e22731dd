//! Planning a detour: which instructions make room for a jump, and whether that is safe.
//!
//! A 5-byte `jmp rel32` replaces the bytes at the site. The instructions that it covers, wholly or partly, are
//! displaced: they run in the stub. That is right if nothing ever arrives in the middle of the jump. A direct
//! branch of the function there is found by decoding all of it. The caller has looked for branches of other code
//! (hand-written assembly shares tails, compilers put cold parts elsewhere) and for indirect jumps (see `indirect.rs`). A
//! return address there is found because only a displaced call can have made one. The writer moves threads that stand there. Bytes
//! behind the jump stay as they were, so branches to displaced instructions beyond it are harmless.
//!
//! Where that cannot be proved, only the probed instruction is displaced ([`plan_alone`]), and nothing has to be known of the others.
//! A jump that is longer than it leaves the bytes behind it as they are: they are the upper bytes of the jump's
//! distance, and decide where it leads (instruction punning: Chamith et al., PLDI 2017; Duck et al., PLDI 2020). There lies
//! a relay, which goes on to the stub. Where that address cannot be had, one byte is replaced, by an `int3`.

use std::collections::BTreeMap;
use std::fmt;

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use crate::flow::{Branch, decode, ends_flow, explore, flags_live, is_padding, reads_direction, sets_direction};
use crate::returns::{KEPT_MAX, divides, is_of_stack_check, may_fault};

/// Bytes of the jump.
pub const JUMP_BYTES: usize = 5;
/// Functions begin at multiples of this, with padding before it.
const FUNCTION_ALIGN: u64 = 16;

/// A function as it lies in a process.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// The function's bytes, and some of what follows.
    pub bytes: &'a [u8],
    /// Address of the first byte.
    pub address: u64,
    /// Bytes of the function proper; 0: not known.
    pub size: usize,
    /// What may arrive in the bytes of the jump from elsewhere, if something does.
    pub entered: Option<Arrival>,
    /// Indirect jumps may arrive at each of its instructions (see [`crate::computes_targets`]).
    pub computed: bool,
}

/// How the middle of some bytes may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// By a direct branch.
    Direct(Branch),
    /// By an indirect jump, or by the unwinder.
    Indirect {
        /// The address.
        to: u64,
    },
    /// By who calls a function that begins there.
    Function {
        /// The address.
        to: u64,
    },
}

impl Arrival {
    /// Where.
    pub fn to(self) -> u64 {
        match self {
            Arrival::Direct(Branch { to, .. }) | Arrival::Indirect { to } | Arrival::Function { to } => to,
        }
    }
}

impl From<Arrival> for Refusal {
    fn from(arrival: Arrival) -> Refusal {
        match arrival {
            Arrival::Direct(Branch { from, to }) => Refusal::BranchInto { from, to },
            Arrival::Indirect { to } => Refusal::IndirectInto { to },
            Arrival::Function { to } => Refusal::FunctionInto { to },
        }
    }
}

/// How a site is instrumented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tactic {
    /// A 5-byte jump to the stub.
    Jump,
    /// A 5-byte jump of which only the first byte is written; the other ones, as they were, say where its stub lies.
    OneByte,
    /// A 5-byte jump whose last bytes are those of what follows, as they were, to a relay that goes on to the stub.
    Punned,
    /// An `int3`, from which a signal handler leads to the stub: 1 to 3 microseconds.
    Trap,
}

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tactic::Jump => f.write_str("jump"),
            Tactic::OneByte => f.write_str("one-byte jump"),
            Tactic::Punned => f.write_str("punned jump"),
            Tactic::Trap => f.write_str("int3"),
        }
    }
}

/// Why a site cannot be instrumented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The site is outside the bytes, or they cannot be decoded there.
    NotCode {
        /// The site.
        site: u64,
    },
    /// The site is in the middle of an instruction.
    NotABoundary {
        /// The site.
        site: u64,
        /// Where the instruction begins.
        instruction: u64,
    },
    /// The code ends before there is room for a jump.
    TooShort {
        /// Bytes that there are.
        bytes: usize,
    },
    /// A branch goes to the middle of the jump.
    BranchInto {
        /// The branch.
        from: u64,
        /// Its target.
        to: u64,
    },
    /// An indirect jump may go to the middle of the jump.
    IndirectInto {
        /// Where it may arrive.
        to: u64,
    },
    /// A function begins in the middle of the jump.
    FunctionInto {
        /// Where.
        to: u64,
    },
    /// A displaced call would return into the middle of the jump.
    ReturnInto {
        /// The return address.
        address: u64,
    },
    /// An instruction that cannot run elsewhere.
    Immovable {
        /// Its address.
        address: u64,
        /// Its text.
        text: String,
    },
    /// A system call that threads are cancelled in by its address: it stays where it is.
    Cancelled {
        /// The call.
        site: u64,
    },
    /// The function is left by another way than a `ret`: another one's is its return.
    WayOut {
        /// Its address.
        address: u64,
        /// Its text.
        text: String,
    },
    /// The function has no `ret`.
    NoReturn {
        /// The function.
        function: u64,
    },
    /// In Go, a division may fault (SIGFPE), and would do so where the run-time does not know it.
    MayRaiseSigfpe {
        /// Its address.
        address: u64,
        /// As assembly.
        text: String,
    },
    /// In Go, a goroutine may resume in the middle of the jump.
    MayResume {
        /// At this instruction.
        address: u64,
    },
    /// No bytes at a `ret` can be replaced.
    NoRoomAtReturn {
        /// The `ret`.
        address: u64,
    },
    /// The site is where another one's jump is, which cannot do its work.
    Overlaps {
        /// The site.
        site: u64,
        /// The other one.
        other: u64,
    },
    /// The stub is too far away.
    OutOfReach {
        /// What is too far from it.
        address: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotCode { site } => write!(f, "no instruction at {site:#x}"),
            Refusal::NotABoundary { site, instruction } => {
                write!(f, "{site:#x} is in the middle of the instruction at {instruction:#x}")
            }
            Refusal::TooShort { bytes } => {
                write!(
                    f,
                    "only {bytes} bytes up to the end of the code and no padding behind it; a probe needs {JUMP_BYTES}"
                )
            }
            Refusal::BranchInto { from, to } => {
                write!(f, "the branch at {from:#x} goes to {to:#x}, inside the {JUMP_BYTES} bytes of the probe")
            }
            Refusal::IndirectInto { to } => {
                write!(
                    f,
                    "an indirect jump (jump table, computed goto, exception) may go to {to:#x}, inside the {JUMP_BYTES} bytes of the probe"
                )
            }
            Refusal::FunctionInto { to } => {
                write!(f, "a function begins at {to:#x}, inside the {JUMP_BYTES} bytes of the probe")
            }
            Refusal::ReturnInto { address } => {
                write!(f, "a call returns to {address:#x}, inside the {JUMP_BYTES} bytes of the probe")
            }
            Refusal::Immovable { address, text } => write!(f, "`{text}` at {address:#x} cannot be moved"),
            Refusal::Cancelled { site } => {
                write!(f, "threads that wait in the system call at {site:#x} are cancelled by that address")
            }
            Refusal::WayOut { address, text } => {
                write!(f, "`{text}` at {address:#x} leads to another function, whose return would be its own")
            }
            Refusal::NoReturn { function } => {
                write!(f, "the function at {function:#x} has no `ret`: it never returns")
            }
            Refusal::MayRaiseSigfpe { address, text } => {
                write!(f, "`{text}` at {address:#x} may raise SIGFPE, and Go's run-time would not know where")
            }
            Refusal::MayResume { address } => {
                write!(f, "a goroutine may resume at {address:#x}, inside the {JUMP_BYTES} bytes of the probe")
            }
            Refusal::NoRoomAtReturn { address } => {
                write!(f, "no {JUMP_BYTES} bytes at the `ret` at {address:#x} can be replaced")
            }
            Refusal::Overlaps { site, other } => {
                write!(f, "{site:#x} is within the bytes of the probe at {other:#x}, and they cannot be one")
            }
            Refusal::OutOfReach { address } => write!(f, "{address:#x} is too far from the stub"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Where the thread is at a site whose stub must not use its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentStackAt {
    /// At a function's entry: the return address is at the stack pointer.
    AtEntry,
    /// At a `ret`: as at the entry, behind the displaced instructions.
    AtReturn,
    /// Anywhere else.
    Within,
}

/// A detour that can be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where.
    pub site: u64,
    /// The bytes that will be overwritten.
    pub original: Vec<u8>,
    /// Address where the displaced code ends and the original goes on.
    pub resume: u64,
    /// Flags must be kept: something may read them.
    pub saves_flags: bool,
    /// How.
    pub tactic: Tactic,
    /// A displaced instruction may fault, and the process has to find the fault at the original instruction.
    pub needs_faults: bool,
    /// The displaced instructions with their bytes.
    pub(crate) displaced: Vec<(Instruction, Vec<u8>)>,
    /// The site is a function's entry.
    pub(crate) at_entry: bool,
    /// The stub runs the agent on an agent stack, not on the thread's.
    pub(crate) agent_stack: Option<AgentStackAt>,
    /// That many bytes at the jump's end stay as they are.
    pub(crate) kept: usize,
}

impl Plan {
    /// The same for code in Go: its stacks have no room for a stub, goroutines resume at any instruction (if it is
    /// `preemptible`), and its run-time makes panics of faults (see `returns.rs`).
    pub fn on_agent_stack(self, preemptible: bool) -> Result<Plan, Refusal> {
        let instructions: Vec<&Instruction> = self.displaced.iter().map(|(instruction, _)| instruction).collect();
        // With the return address at the stack pointer, the run-time takes the fault for the caller's.
        let moves_stack = |i: &&Instruction| {
            i.stack_pointer_increment() != 0 || i.op0_register() == Register::RSP && i.mnemonic() != Mnemonic::Cmp
        };
        let is_framed = |at: usize| !self.at_entry || instructions[..at].iter().any(moves_stack);
        let faults = |at: &usize| may_fault(instructions[*at]) && is_framed(*at);
        if let Some(at) = (0..instructions.len()).find(|at| faults(at) && divides(instructions[*at])) {
            let (address, text) = (instructions[at].ip(), instructions[at].to_string());
            return Err(Refusal::MayRaiseSigfpe { address, text });
        }
        let needs_faults = (0..instructions.len()).any(|at| faults(&at));
        let kept = match self.tactic {
            Tactic::Jump => self.kept_for_goroutines(&instructions, preemptible)?,
            Tactic::OneByte | Tactic::Punned | Tactic::Trap => self.kept,
        };
        let agent_stack = if self.at_entry { AgentStackAt::AtEntry } else { AgentStackAt::Within };
        Ok(Plan { agent_stack: Some(agent_stack), kept, needs_faults, ..self })
    }

    /// Whether a displaced instruction may fault. Who handles the fault may look for the instruction.
    pub fn may_fault(&self) -> bool {
        self.displaced.iter().any(|(instruction, _)| may_fault(instruction) && !divides(instruction))
    }

    /// How many bytes of the jump stay as they are, so that goroutines can resume at what begins there.
    fn kept_for_goroutines(&self, instructions: &[&Instruction], preemptible: bool) -> Result<usize, Refusal> {
        let end = self.site + JUMP_BYTES as u64;
        let may_resume =
            |at: &usize| preemptible && instructions[*at].ip() < end && !is_of_stack_check(instructions, *at);
        let inside = (1..instructions.len()).find(may_resume);
        let kept = inside.map_or(0, |at| (end - instructions[at].ip()) as usize);
        if kept > KEPT_MAX {
            return Err(Refusal::MayResume { address: end - kept as u64 });
        }
        Ok(kept)
    }

    /// The same by an `int3`, if only one instruction is displaced.
    pub fn trapped(&self) -> Option<Plan> {
        let [(only, bytes)] = &self.displaced[..] else { return None };
        let original = bytes.clone();
        Some(Plan { tactic: Tactic::Trap, kept: 0, original, resume: only.next_ip(), ..self.clone() })
    }

    /// Instead of a plain jump, one that writes one byte and displaces the same instructions.
    ///
    /// Somebody else's breakpoint there, the kernel's uprobe mostly, can come and go: the kernel runs the file's instruction and goes
    /// on behind it, and writes the file's byte in the end. Both are right only if the bytes behind ours are the file's.
    pub fn one_byte(&self) -> Option<Plan> {
        let is_plain = self.tactic == Tactic::Jump && self.agent_stack.is_none();
        is_plain.then(|| Plan { tactic: Tactic::OneByte, kept: JUMP_BYTES - 1, ..self.clone() })
    }

    /// Behind the last byte that decides what a thread at the site does.
    pub fn end(&self) -> u64 {
        match self.tactic {
            Tactic::Jump | Tactic::OneByte | Tactic::Punned => self.resume.max(self.site + JUMP_BYTES as u64),
            Tactic::Trap => self.resume,
        }
    }

    /// The same in code that is mapped with `bias` added to its addresses.
    pub fn mapped(&self, bias: u64) -> Plan {
        let at = |(instruction, bytes): &(Instruction, Vec<u8>)| {
            (decode(bytes, instruction.ip().wrapping_add(bias))[0], bytes.clone())
        };
        Plan {
            site: self.site.wrapping_add(bias),
            resume: self.resume.wrapping_add(bias),
            displaced: self.displaced.iter().map(at).collect(),
            ..self.clone()
        }
    }

    /// Whether the jump's last bytes are those of what follows, which is not displaced.
    pub fn is_punned(&self) -> bool {
        matches!(self.tactic, Tactic::OneByte | Tactic::Punned)
    }

    /// Where the stub, or for a punned jump the relay, must lie, if the jump's last bytes are to stay as they are.
    pub fn stub_range(&self) -> Option<std::ops::Range<u64>> {
        if self.kept == 0 {
            return None;
        }
        let fixed = &self.original[JUMP_BYTES - self.kept..];
        let mut distance = [0; 4];
        distance[4 - self.kept..].copy_from_slice(fixed);
        let next = self.site + JUMP_BYTES as u64;
        let start = next.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        Some(start..start.wrapping_add(1 << (32 - 8 * self.kept)))
    }
}

/// Plans a detour at `site`.
pub fn plan_detour(function: &Function<'_>, site: u64) -> Result<Plan, Refusal> {
    let instructions = decode(function.bytes, function.address);
    let at = boundary(&instructions, site)?;
    let displaced = displace(function, &instructions[at..])?;
    let last = displaced.last().ok_or(Refusal::NotCode { site })?;
    let resume = last.next_ip();
    let jump = site + 1..site + JUMP_BYTES as u64;
    let branches = own_branches(function, &instructions);
    if let Some(Branch { from, to }) = branches.iter().find(|branch| jump.contains(&branch.to)).copied() {
        return Err(Refusal::BranchInto { from, to });
    }
    if let Some(arrival) = function.entered.filter(|arrival| jump.contains(&arrival.to())) {
        return Err(arrival.into());
    }
    // `endbr64` is there for indirect jumps only.
    let arrives = |i: &&Instruction| function.computed || i.mnemonic() == Mnemonic::Endbr64;
    if let Some(to) = displaced.iter().filter(arrives).map(Instruction::ip).find(|to| jump.contains(to)) {
        return Err(Refusal::IndirectInto { to });
    }
    for instruction in displaced {
        let calls = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        if calls && jump.contains(&instruction.next_ip()) {
            return Err(Refusal::ReturnInto { address: instruction.next_ip() });
        }
    }
    let offset = (site - function.address) as usize;
    let bytes_of = |i: &Instruction| {
        let start = (i.ip() - function.address) as usize;
        function.bytes[start..start + i.len()].to_vec()
    };
    let at_entry = is_entry(function, &instructions, at);
    Ok(Plan {
        site,
        original: function.bytes[offset..offset + JUMP_BYTES].to_vec(),
        resume,
        saves_flags: saves_flags(function, &instructions, at, &branches),
        tactic: Tactic::Jump,
        displaced: displaced.iter().map(|i| (*i, bytes_of(i))).collect(),
        at_entry,
        agent_stack: None,
        needs_faults: false,
        kept: 0,
    })
}

/// Plans a detour at `site` of the one instruction there. `inside` is what arrives in the middle of that from elsewhere, if
/// something does.
pub fn plan_alone(function: &Function<'_>, site: u64, inside: Option<Arrival>) -> Result<Plan, Refusal> {
    let instructions = decode(function.bytes, function.address);
    let at = boundary(&instructions, site)?;
    Ok(alone(function, &instructions, at, inside.is_some()))
}

/// Plans a detour of the instruction with this index; `entered`: something arrives in the middle of it.
pub(crate) fn alone(function: &Function<'_>, instructions: &[Instruction], at: usize, entered: bool) -> Plan {
    let instruction = &instructions[at];
    let site = instruction.ip();
    let offset = (site - function.address) as usize;
    let bytes = function.bytes[offset..offset + instruction.len()].to_vec();
    let middle = site + 1..instruction.next_ip();
    let branches = own_branches(function, instructions);
    let entered = entered || branches.iter().any(|branch| middle.contains(&branch.to));
    let jump = function.bytes.get(offset..offset + JUMP_BYTES).filter(|_| !entered && bytes.len() < JUMP_BYTES);
    let at_entry = is_entry(function, instructions, at);
    Plan {
        site,
        original: jump.unwrap_or(&bytes).to_vec(),
        resume: instruction.next_ip(),
        saves_flags: saves_flags(function, instructions, at, &branches),
        tactic: if jump.is_some() { Tactic::Punned } else { Tactic::Trap },
        kept: if jump.is_some() { JUMP_BYTES - bytes.len() } else { 0 },
        displaced: vec![(*instruction, bytes)],
        at_entry,
        agent_stack: None,
        needs_faults: false,
    }
}

/// Index of the instruction at a site. At a breakpoint of the program's own there is no probe: its SIGTRAP would come from elsewhere.
/// (Mirrors kernel/events/uprobes.c:prepare_uprobe, v6.18.)
fn boundary(instructions: &[Instruction], site: u64) -> Result<usize, Refusal> {
    match instructions.binary_search_by_key(&site, Instruction::ip) {
        Ok(index) if instructions[index].mnemonic() == Mnemonic::Int3 => {
            Err(Refusal::Immovable { address: site, text: "int3".into() })
        }
        Ok(index) => Ok(index),
        Err(0) => Err(Refusal::NotCode { site }),
        Err(index) if instructions[index - 1].next_ip() > site => {
            Err(Refusal::NotABoundary { site, instruction: instructions[index - 1].ip() })
        }
        Err(_) => Err(Refusal::NotCode { site }),
    }
}

/// The instructions of the function proper; all that there are if its size is not known.
pub(crate) fn within<'a>(
    function: &Function<'_>,
    instructions: &'a [Instruction],
) -> impl Iterator<Item = &'a Instruction> + use<'a> {
    let end = if function.size == 0 { u64::MAX } else { function.address + function.size as u64 };
    instructions.iter().take_while(move |i| i.ip() < end)
}

/// Whether flags may mean something at the site. (The direction flag is taken to be clear where nothing in the function depends on it,
/// as the calling convention says.)
fn saves_flags(function: &Function<'_>, instructions: &[Instruction], at: usize, branches: &[Branch]) -> bool {
    let has_status = !has_no_flags(function, instructions, at, branches) && flags_live(&instructions[at..]);
    has_status || within(function, instructions).any(|i| sets_direction(i) || reads_direction(i))
}

/// Flags mean nothing at the site: only callers arrive there, and the calling convention says so. A loop back to it may use them.
fn has_no_flags(function: &Function<'_>, instructions: &[Instruction], at: usize, branches: &[Branch]) -> bool {
    let arrives = function.address..=instructions[at].ip();
    is_entry(function, instructions, at) && !branches.iter().any(|branch| arrives.contains(&branch.to))
}

/// The direct branches and calls of the function proper; of all that there is if its size is not known.
fn own_branches(function: &Function<'_>, instructions: &[Instruction]) -> Vec<Branch> {
    explore_own(function, instructions).0
}

/// As [`explore`], of the instructions that begin in the function. (The last one may end behind it, if the size is wrong.)
pub(crate) fn explore_own(
    function: &Function<'_>,
    instructions: &[Instruction],
) -> (Vec<Branch>, BTreeMap<u64, u64>) {
    let own = &instructions[..within(function, instructions).count()];
    let end = own.last().map_or(function.address, Instruction::next_ip);
    let size = match function.size {
        0 => function.bytes.len(),
        size => size.max((end - function.address) as usize).min(function.bytes.len()),
    };
    explore(&function.bytes[..size], function.address, own)
}

/// The site is where callers arrive.
fn is_entry(function: &Function<'_>, instructions: &[Instruction], at: usize) -> bool {
    let first = &instructions[0];
    function.size != 0 && (at == 0 || (at == 1 && first.mnemonic() == Mnemonic::Endbr64))
}

/// The first instructions that together have room for the jump. Behind one that ends the flow only padding
/// counts, and only up to where the next function may begin.
pub(crate) fn displace<'a>(function: &Function<'_>, from: &'a [Instruction]) -> Result<&'a [Instruction], Refusal> {
    let site = from[0].ip();
    let end = function.address + function.size as u64;
    let mut ended = false;
    for (index, instruction) in from.iter().enumerate() {
        let outside = function.size != 0 && instruction.ip() >= end;
        let crosses = instruction.next_ip() > instruction.ip().next_multiple_of(FUNCTION_ALIGN)
            && !instruction.ip().is_multiple_of(FUNCTION_ALIGN);
        let aligned = instruction.ip().is_multiple_of(FUNCTION_ALIGN);
        if (ended || outside) && (!is_padding(instruction) || aligned || crosses) {
            return Err(Refusal::TooShort { bytes: (instruction.ip() - site) as usize });
        }
        ended |= ends_flow(instruction);
        if instruction.next_ip() - site >= JUMP_BYTES as u64 {
            return Ok(&from[..=index]);
        }
    }
    Err(Refusal::TooShort { bytes: from.last().map_or(0, |last| (last.next_ip() - site) as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x40_1000;

    /// The bytes at the end of the jump that stay, at the entry of a function in Go.
    fn kept(code: &[u8], preemptible: bool) -> Result<usize, Refusal> {
        let bytes = [code, &[0xcc; 16]].concat();
        let function = Function { bytes: &bytes, address: ADDRESS, size: code.len(), entered: None, computed: false };
        Ok(plan_detour(&function, ADDRESS)?.on_agent_stack(preemptible)?.kept)
    }

    #[test]
    fn goroutines_resume_at_instructions_that_stay() {
        // imul rbx, rcx; add rax, rbx; ret
        let leaf = [0x48, 0x0f, 0xaf, 0xd9, 0x48, 0x01, 0xd8, 0xc3];
        assert_eq!((kept(&leaf, true), kept(&leaf, false)), (Ok(1), Ok(0)));
        // mov ecx, ebx; and ebx, 63; ret
        let short = [0x89, 0xd9, 0x83, 0xe3, 0x3f, 0xc3];
        assert_eq!(kept(&short, true), Err(Refusal::MayResume { address: ADDRESS + 2 }));
        assert_eq!(kept(&short, false), Ok(0));
        // cmp rsp, [r14 + 16]; jbe ADDRESS + 6; ret: nobody is preempted between the first two.
        assert_eq!(kept(&[0x49, 0x3b, 0x66, 0x10, 0x76, 0, 0xc3], true), Ok(0));
    }

    #[test]
    fn flags_at_an_entry_are_kept_where_the_function_goes_back_to_it() {
        let saves_flags = |code: &[u8], at: u64| {
            let bytes = [code, &[0xcc; 16]].concat();
            let function =
                Function { bytes: &bytes, address: ADDRESS, size: code.len(), entered: None, computed: false };
            plan_detour(&function, ADDRESS + at).expect("planned").saves_flags
        };
        // mov ecx, [rdi + 128]; jrcxz to the end; add eax, edx; jmp ADDRESS; setc al; ret: `setc` reads what `add` wrote.
        let looped = [0x8b, 0x8f, 0x80, 0, 0, 0, 0xe3, 4, 0x01, 0xd0, 0xeb, 0xf4, 0x0f, 0x92, 0xc0, 0xc3];
        assert!(saves_flags(&looped, 0));
        let marked = [&[0xf3, 0x0f, 0x1e, 0xfa][..], &looped].concat();
        assert!(saves_flags(&marked, 4));
        // The same without the way back.
        let mut straight = looped;
        straight[11] = 0;
        assert!(!saves_flags(&straight, 0));
    }

    #[test]
    fn the_direction_flag_is_kept_where_string_instructions_depend_on_it() {
        let saves_flags = |code: &[u8], at: u64| {
            let bytes = [code, &[0xcc; 16]].concat();
            let function =
                Function { bytes: &bytes, address: ADDRESS, size: code.len(), entered: None, computed: false };
            plan_detour(&function, ADDRESS + at).expect("planned").saves_flags
        };
        // mov rcx, rdx; nop; nop; rep movsb; cld; ret: what falls into it may have set the flag.
        assert!(saves_flags(&[0x48, 0x89, 0xd1, 0x90, 0x90, 0xf3, 0xa4, 0xfc, 0xc3], 0));
        // std; mov rcx, rdx; nop; nop; call rax; ret.
        assert!(saves_flags(&[0xfd, 0x48, 0x89, 0xd1, 0x90, 0x90, 0xff, 0xd0, 0xc3], 1));
        // mov rcx, rdx; nop; nop; call rax; ret.
        assert!(!saves_flags(&[0x48, 0x89, 0xd1, 0x90, 0x90, 0xff, 0xd0, 0xc3], 0));
    }

    #[test]
    fn what_may_fault_in_go_needs_faults_to_be_seen_unless_the_return_address_is_on_top() {
        let planned = |bytes: &[u8]| {
            let function = Function { bytes, address: ADDRESS, size: bytes.len(), entered: None, computed: false };
            plan_detour(&function, ADDRESS)?.on_agent_stack(false)
        };
        // mov rax, [rax + 8]; ret, and the same behind push rbp; push rbp; idiv rbx.
        let (top, framed) = ([0x48, 0x8b, 0x40, 8, 0xc3], [0x55, 0x48, 0x8b, 0x40, 8, 0x5d, 0xc3]);
        let needs = |bytes: &[u8]| planned(bytes).map(|plan| (plan.needs_faults, plan.may_fault()));
        assert_eq!((needs(&top), needs(&framed)), (Ok((false, true)), Ok((true, true))));
        // push rbp; rep stosq; nop; ret.
        assert_eq!(needs(&[0x55, 0xf3, 0x48, 0xab, 0x90, 0xc3]), Ok((true, true)));
        let divided = planned(&[0x55, 0x48, 0xf7, 0xfb, 0x90, 0x5d, 0xc3]);
        assert!(
            matches!(divided, Err(Refusal::MayRaiseSigfpe { address, .. }) if address == ADDRESS + 1),
            "{divided:?}"
        );
        assert!(!planned(&[0x55, 0x48, 0x89, 0xe5, 0x90, 0x5d, 0xc3]).expect("a plan").may_fault());
    }
}
