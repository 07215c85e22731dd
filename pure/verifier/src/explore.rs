//! Walks all paths through a program, each with what is known on it.
//!
//! Depth first, the path that falls through before the path that jumps, as the kernel does; so are the places at which a
//! path may stop because what is known there was seen before, and the rules when such a point is kept.
//! Mirrors kernel/bpf/verifier.c:do_check, is_state_visited and is_branch_taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use ring3_isa::{Call, Immediate, Op, Operand};
use ring3_uapi::Errno;
use ring3_uapi::helper::{HOST_FUNCTION_FIRST, KFUNC_FIRST, KFUNC_NAMES};

use crate::added::ValueAt;
use crate::compare::{self, Match, Terms};
use crate::discriminator::Known;
use crate::flow::{Flow, Stop};
use crate::log::Log;
use crate::memory::Access;
use crate::objects::Variable;
use crate::path::{Path, Place, Places, Point, Return, Work};
use crate::state::{Kind, Register, SLOT_BYTES, STACK_BYTES, State};
use crate::{CALL_FRAMES_MAX, Input, MapShape, Named, Refusal, Statistics, refuse};

/// What the walk found out about the program.
#[derive(Debug, Default)]
pub(crate) struct WalkFacts {
    /// For each instruction whether it can be reached.
    pub(crate) live: Vec<bool>,
    /// For each helper call with a map, that map if it is the same on all paths.
    pub(crate) helper_maps: BTreeMap<usize, Option<u32>>,
    /// Helpers called.
    pub(crate) helpers: Vec<u32>,
    /// For each load and store, whether it is of the context.
    pub(crate) context_at: BTreeMap<usize, bool>,
    /// Loads, stores and atomic operations in values of maps: the map's slot, and the first and the last offset.
    pub(crate) values_at: BTreeMap<usize, Option<ValueAt>>,
    /// [`ring3_layout::thread::ThreadBlock::call_word`], by instruction.
    pub(crate) call_words: BTreeMap<usize, u64>,
    /// Bytes of the context up to the last that is touched.
    pub(crate) context_bytes: u32,
    /// The context's address went where not every use of it is seen.
    pub(crate) context_leaves: bool,
    /// Divisions by what may be 0.
    pub(crate) zero_divisors: BTreeSet<usize>,
    /// For each `callx`, the helper.
    pub(crate) called: BTreeMap<usize, u32>,
    /// For each subprogram, bytes of stack that it touches.
    pub(crate) stack_bytes: Vec<u32>,
    /// A path ended where another still went on.
    pub(crate) came_round: bool,
    pub(crate) statistics: Statistics,
}

/// References that a program may hold at once. All registers and the whole stack have no room for more pointers, so one
/// of them would never be given back.
const REFERENCES_MAX: usize = CALL_FRAMES_MAX * 9 + STACK_BYTES as usize / SLOT_BYTES;
/// Bytes of what is known at points and open paths at most. Real programs take a few MB.
const STATES_BYTES_MAX: u64 = 1 << 29;
/// What there may be of [`Work`]: a program that takes a million instructions takes some 100 million of these.
const WORK_MAX: u64 = 1 << 32;
/// Moves between points at most.
const MOVES_MAX: usize = 400;

/// A path that is still to be walked.
struct Open {
    at: usize,
    from: usize,
    state: State,
    path: Path,
}

/// Where control goes.
pub(crate) enum Next {
    To(usize),
    /// This path is at its end.
    End,
}

pub(crate) struct Explorer<'a> {
    pub(crate) input: &'a Input<'a>,
    pub(crate) ops: &'a [Option<Op>],
    pub(crate) flow: &'a Flow,
    /// Maps that the program names, then those inside of them.
    pub(crate) maps: Vec<MapShape>,
    /// For each map, the one that is inside.
    pub(crate) inner: Vec<Option<u32>>,
    /// Instruction to map and offset in its value.
    loads: &'a BTreeMap<usize, (u32, Option<u32>)>,
    /// What was read of maps that never change, by slot.
    pub(crate) constants: HashMap<u32, Option<Vec<u8>>>,
    /// Kernel objects of which only the name is known.
    pub(crate) names: Vec<&'static str>,
    pub(crate) state: State,
    pub(crate) path: Path,
    pub(crate) at: usize,
    pub(crate) found: WalkFacts,
    pub(crate) log: Log<'a>,
    points: Vec<Vec<Rc<Point>>>,
    points_kept: u64,
    /// Paths that stopped where marks were not complete.
    returns: Vec<Return>,
    open: Vec<Open>,
    last_id: u32,
    jumps: u64,
    /// Jumps and instructions when the last point was made.
    kept_at: (u64, u64),
    work: Work,
    pub(crate) discriminators: Vec<Known>,
}

impl<'a> Explorer<'a> {
    pub(crate) fn new(input: &'a Input<'a>, ops: &'a [Option<Op>], flow: &'a Flow, named: &'a Named) -> Explorer<'a> {
        let mut maps = named.maps.clone();
        let mut inner = vec![None; maps.len()];
        for index in 0..maps.len() {
            if let Some(shape) = maps[index].inner {
                inner[index] = Some(maps.len() as u32);
                maps.push(shape.shape());
                inner.push(None);
            }
        }
        let found = WalkFacts {
            live: vec![false; ops.len()],
            stack_bytes: vec![0; flow.subprograms.len()],
            ..WalkFacts::default()
        };
        let work = Work::default();
        Explorer {
            input,
            ops,
            flow,
            maps,
            inner,
            loads: &named.loads,
            constants: HashMap::new(),
            names: vec![],
            state: State::at_entry(input.policy.memory, input.policy.memory_writes),
            path: Path::new(&work),
            at: 0,
            found,
            log: Log::new(input),
            points: vec![vec![]; ops.len()],
            points_kept: 0,
            returns: vec![],
            open: vec![],
            last_id: 0,
            jumps: 0,
            kept_at: (0, 0),
            work,
            discriminators: vec![],
        }
    }

    /// Walks until no path is left.
    pub(crate) fn run(&mut self) -> Result<(), Refusal> {
        loop {
            // A point ends the search for what a number depends on, so there is one now and then on any path.
            let asks = self.flow.stops[self.at] != Stop::Never || self.path.open_moves() > MOVES_MAX;
            let next = if asks && self.is_known()? {
                self.log.known(self.at);
                Next::End
            } else {
                self.step()?
            };
            match next {
                Next::To(at) => self.at = at,
                Next::End => {
                    self.path = Path::default();
                    self.carry_returns()?;
                    let Some(open) = self.open.pop() else { return Ok(()) };
                    (self.at, self.state, self.path) = (open.at, open.state, open.path);
                    self.log.goes_on(open.from, self.at, &self.state);
                }
            }
        }
    }

    /// One instruction.
    fn step(&mut self) -> Result<Next, Refusal> {
        let at = self.at;
        self.found.statistics.processed += 1;
        if self.found.statistics.processed > self.input.policy.processed_max {
            let message = format!("BPF program is too large. Processed {} insn", self.found.statistics.processed);
            return refuse(Errno::E2BIG, message);
        }
        if self.state.references.len() > REFERENCES_MAX {
            let message = format!("more than {REFERENCES_MAX} references are held at once");
            return refuse(Errno::E2BIG, message);
        }
        if self.state.all_bytes() > STATES_BYTES_MAX {
            let message = format!("BPF program is too large. What is known takes {} bytes", self.state.all_bytes());
            return refuse(Errno::E2BIG, message);
        }
        self.check_work()?;
        self.found.live[at] = true;
        self.log.instruction(at, &self.state);
        let Some(op) = self.ops[at] else {
            return refuse(Errno::EINVAL, "control comes to the second half of an instruction");
        };
        crate::check_operands(&op, self.input.policy.rfc9669)?;
        let next = self.perform(op)?;
        self.log.result(&self.state);
        Ok(next)
    }

    fn perform(&mut self, op: Op) -> Result<Next, Refusal> {
        let at = self.at;
        match op {
            Op::Alu { width, op, dst, src } => self.compute(width, op, dst, src)?,
            Op::MovSx { width, bits, dst, src } => self.move_signed(width, bits, dst, src)?,
            Op::Neg { width, dst } => self.negate(width, dst)?,
            Op::Swap { dst, bits, swap } => self.swap(dst, bits, swap)?,
            Op::Load { size, signed, dst, src, off } => self.load(size, signed, dst, src, off)?,
            Op::LoadAcquire { size, dst, src, off } => {
                let bytes = u32::from(size.bytes());
                self.check_atomic(Access { register: src, off: i64::from(off), bytes, write: false })?;
                self.load(size, false, dst, src, off)?;
            }
            Op::Store { size, dst, src, off } => self.store(size, dst, src, off)?,
            Op::StoreRelease { size, dst, src, off } => {
                let bytes = u32::from(size.bytes());
                self.check_atomic(Access { register: dst, off: i64::from(off), bytes, write: true })?;
                self.store(size, dst, Operand::Reg(src), off)?;
            }
            Op::Atomic { size, op, fetch, dst, src, off } => self.atomic(size, op, fetch, dst, src, off)?,
            Op::LoadImm64 { dst, value } => {
                self.load_immediate(dst, value)?;
                return Ok(Next::To(at + 2));
            }
            Op::Ja(target) => {
                self.jumps += 1;
                return Ok(Next::To(target));
            }
            Op::Jump { width, cond, dst, src, target } => {
                self.jumps += 1;
                return self.branch(width, cond, dst, src, target);
            }
            Op::MayGoto(target) => {
                self.jumps += 1;
                return self.may_goto(target);
            }
            Op::Call(call) => {
                self.jumps += 1;
                return match call {
                    Call::Local(target) => self.call_local(target),
                    Call::Kfunc(id) if id < KFUNC_FIRST => {
                        let message = format!(
                            "calling kernel function (BTF id {id}) is not allowed: of those there are only {KFUNC_NAMES:?}"
                        );
                        refuse(Errno::EINVAL, message)
                    }
                    Call::Helper(id) if id >= KFUNC_FIRST => {
                        refuse(Errno::EINVAL, format!("invalid func unknown#{}", id as i32))
                    }
                    Call::Kfunc(id) if id >= HOST_FUNCTION_FIRST => self.call_host(id - HOST_FUNCTION_FIRST),
                    Call::Helper(id) | Call::Kfunc(id) => self.call_helper(id),
                    Call::Register(register) => self.call_register(register),
                };
            }
            Op::Exit => {
                self.jumps += 1;
                return self.exit();
            }
            Op::LoadPacket { size, src, .. } => self.load_packet(size, src)?,
        }
        Ok(Next::To(at + 1))
    }

    fn load_immediate(&mut self, dst: u8, value: Immediate) -> Result<(), Refusal> {
        let loaded = match (self.loads.get(&self.at), value) {
            (Some((map, None)), _) => Register::pointer(Kind::Map(*map)),
            (Some((map, Some(offset))), _) => {
                let mut pointer = Register::pointer(Kind::MapValue(*map));
                pointer.number = crate::scalar::Scalar::constant(u64::from(*offset));
                pointer
            }
            (None, Immediate::Value(value)) => Register::constant(value),
            (None, Immediate::Func(target)) => {
                Register::pointer(Kind::Function(self.flow.subprogram_at(target) as u32))
            }
            (None, Immediate::BtfId(id)) if self.input.policy.host.is_some() => self.host_variable(id)?,
            (None, Immediate::BtfId(id)) => {
                match self.input.policy.objects.as_ref().and_then(|known| known.variable(id)) {
                    Some(Variable::Object(id)) => Register::pointer(Kind::Object { id, trusted: false }),
                    Some(Variable::Memory(bytes)) => {
                        Register::pointer(Kind::Memory { bytes, write: false, record: false })
                    }
                    None => return refuse(Errno::EINVAL, "kernel variables are not supported"),
                }
            }
            _ => return refuse(Errno::EINVAL, "unrecognized bpf_ld_imm64 insn"),
        };
        self.write(dst, loaded, [None, None]);
        Ok(())
    }

    /// A number that no other thing has.
    pub(crate) fn new_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// A register as it is read. Mirrors kernel/bpf/verifier.c:check_reg_arg.
    pub(crate) fn read(&mut self, register: u8) -> Result<Register, Refusal> {
        let value = *self.state.register(register);
        if value.kind == Kind::NotInit {
            return refuse(Errno::EACCES, format!("R{register} !read_ok"));
        }
        self.path.read(self.state.place(register));
        Ok(value)
    }

    pub(crate) fn operand(&mut self, operand: Operand) -> Result<Register, Refusal> {
        match operand {
            Operand::Reg(register) => self.read(register),
            Operand::Imm(value) => Ok(Register::constant(i64::from(value) as u64)),
        }
    }

    /// A register gets a value that depends on others.
    pub(crate) fn write(&mut self, register: u8, value: Register, from: [Option<u8>; 2]) {
        let place = self.state.place(register);
        let from = from.map(|register| register.map(|register| self.state.place(register)));
        self.state.set(register, value);
        self.path.set(place, from);
    }

    /// A register gets a value that comes from this place.
    pub(crate) fn write_from(&mut self, register: u8, value: Register, from: Option<Place>) {
        let place = self.state.place(register);
        self.state.set(register, value);
        self.path.set(place, [from, None]);
    }

    /// What happens next depends on the numbers in these registers.
    pub(crate) fn decides(&mut self, registers: &[u8]) {
        let places: Places = registers.iter().map(|register| self.state.place(*register)).collect();
        self.path.mark_precise(places);
    }

    /// Another path is to be walked later.
    pub(crate) fn fork(&mut self, at: usize, state: State) -> Result<&mut Path, Refusal> {
        /// `BPF_COMPLEXITY_LIMIT_JMP_SEQ`
        const OPEN_MAX: usize = 8192;
        if self.open.len() >= OPEN_MAX {
            let message = format!("The sequence of {} jumps is too complex.", self.open.len());
            return refuse(Errno::E2BIG, message);
        }
        self.path.close(None);
        self.log.forks();
        self.open.push(Open { at, from: self.at, state, path: self.path.clone() });
        Ok(&mut self.open.last_mut().expect("just pushed").path)
    }

    /// Whether what is known here was known before, so that this path need not go on. Else it may become a point.
    fn is_known(&mut self) -> Result<bool, Refusal> {
        /// Points of an instruction that are kept however little they help.
        const POINTS_MIN: usize = 64;
        /// Paths that may pass a point before it must stop one.
        const PATIENCE: u32 = 3;
        if self.input.policy.walks_all {
            return Ok(false);
        }
        let forced = self.flow.stops[self.at] == Stop::Always || self.path.open_moves() > MOVES_MAX;
        // The instruction here counts.
        let processed = self.found.statistics.processed + 1;
        let (jumps, insns) = (self.jumps - self.kept_at.0, processed - self.kept_at.1);
        let mut keep = forced || jumps >= 2 && insns >= 8;
        let mut points = std::mem::take(&mut self.points[self.at]);
        let mut index = 0;
        let mut known = Ok(false);
        while let Some(point) = points.get(index) {
            if !compare::same_calls(&point.state, &self.state) {
                index += 1;
                continue;
            }
            match self.compare_with(point) {
                Ok(true) => {
                    point.hits.set(point.hits.get() + 1);
                    known = Ok(true);
                    break;
                }
                Ok(false) => {}
                Err(refusal) => {
                    known = Err(refusal);
                    break;
                }
            }
            if !point.complete.get() && !forced && jumps < 20 && insns < 100 {
                keep = false;
            }
            index += 1;
            if keep {
                point.misses.set(point.misses.get() + 1);
                if points.len() > POINTS_MIN && point.misses.get() > point.hits.get() * PATIENCE + PATIENCE {
                    index -= 1;
                    points.remove(index);
                    self.points_kept -= 1;
                }
            }
        }
        self.points[self.at] = points;
        if let Ok(false) = known
            && keep
        {
            self.keep_point();
        }
        known
    }

    fn keep_point(&mut self) {
        let point = Rc::new(Point::new(self.state.clone()));
        self.points[self.at].push(point.clone());
        if self.flow.stops[self.at] == Stop::Always {
            self.path.begin_round(self.at, &point);
        }
        self.path.close(Some(point));
        self.kept_at = (self.jumps, self.found.statistics.processed + 1);
        self.points_kept += 1;
        let statistics = &mut self.found.statistics;
        statistics.states += 1;
        statistics.states_peak = statistics.states_peak.max(self.points_kept);
        statistics.states_per_insn_max = statistics.states_per_insn_max.max(self.points[self.at].len() as u64);
    }

    fn compare_with(&mut self, point: &Rc<Point>) -> Result<bool, Refusal> {
        let terms = Terms {
            at: self.at,
            live: &self.flow.live,
            addresses_as_numbers: self.input.policy.addresses_as_numbers,
            work: &self.work,
        };
        let covers = |how| compare::covers(point, &self.state, how, terms);
        if point.complete.get() {
            let covered = covers(Match::Marked);
            if covered {
                self.path.need(&point.marks.borrow());
            }
            return Ok(covered);
        }
        // A round that was counted: the rounds will come to an end.
        let counted = || {
            point.state.may_goto < self.state.may_goto
                || point.state.frame().rounds < self.state.frame().rounds
                || self.iterates(&point.state)
        };
        if point.has_ended() || self.flow.stops[self.at] == Stop::Always && counted() {
            let covered = covers(Match::Contained);
            if covered {
                let round = Return::new(&self.path, point.clone());
                // What is known to matter so far must not be widened.
                round.carry();
                self.returns.push(round);
                self.found.came_round = true;
            }
            return Ok(covered);
        }
        if covers(Match::Exact) {
            return refuse(Errno::EINVAL, format!("infinite loop detected at insn {}", self.at));
        }
        Ok(false)
    }

    /// Where rounds have ended, what they need is carried round.
    fn carry_returns(&mut self) -> Result<(), Refusal> {
        if self.returns.is_empty() || !self.returns.iter().all(Return::has_ended) {
            return Ok(());
        }
        while self.returns.iter().fold(false, |news, round| round.carry() | news) {
            self.check_work()?;
        }
        self.returns.clear();
        Ok(())
    }

    fn check_work(&self) -> Result<(), Refusal> {
        if self.work.done() > WORK_MAX {
            return refuse(Errno::E2BIG, format!("BPF program is too complex. Compared {} places", self.work.done()));
        }
        Ok(())
    }

    /// Whether a round that is merely counted is walked behind so many others: where no path ends before its end, the rounds
    /// would have none.
    pub(crate) fn walks_round(&self, rounds: u32) -> bool {
        const ROUNDS_MAX: u32 = 3;
        !self.input.policy.walks_all || rounds < ROUNDS_MAX
    }

    /// The point of the round before this one, which has a point of its own here already.
    pub(crate) fn previous_round(&self) -> Option<Rc<Point>> {
        self.path.rounds(self.at, &self.state)?.1.cloned()
    }

    /// The point where the last round began at another instruction.
    pub(crate) fn last_round(&self, at: usize) -> Option<Rc<Point>> {
        Some(self.path.rounds(at, &self.state)?.0.clone())
    }
}
