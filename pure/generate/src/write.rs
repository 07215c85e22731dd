//! Writes programs: functions, branches, loops, calls. `steps.rs` writes what is straight.

use ring3_uapi::bpf::prog_type;

use crate::code::{
    ADD, Code, JEQ, JGE, JGT, JLE, JLT, JMP, JMP32, JNE, JSET, JSGE, JSGT, JSLE, JSLT, MOV, Open, Right, SUB, W32,
    W64,
};
use crate::model::{Held, Sort, State};
use crate::{MAPS, Program, Random};

/// Blocks within blocks at most.
const DEPTH_MAX: u32 = 4;
/// Calls within calls at most.
const LEVEL_MAX: u32 = 3;
/// Subprograms at most.
const SUBPROGRAMS_MAX: usize = 5;

pub(crate) const CONDITIONS: [u8; 11] = [JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE, JLT, JLE, JSLT, JSLE];

/// A subprogram that is called and not written yet.
struct Pending {
    from: Vec<Open>,
    arguments: Vec<Held>,
    callback: bool,
    level: u32,
}

pub(crate) struct Writer {
    pub(crate) code: Code,
    pub(crate) random: Random,
    pub(crate) prog_type: u32,
    pub(crate) state: State,
    /// Bytes of the frame that are used.
    pub(crate) frame_bytes: i32,
    /// A slip once in so many decisions; 0: never.
    slips: u64,
    depth: u32,
    level: u32,
    callback: bool,
    budget: u32,
    pending: Vec<Pending>,
    subprograms: usize,
    pub(crate) calls: bool,
}

/// Program `number` of a seed.
pub fn program(seed: u64, number: u64) -> Program {
    let mut random = Random::new(seed, number);
    let prog_type = random.of(&[prog_type::SOCKET_FILTER, prog_type::XDP, prog_type::XDP, prog_type::KPROBE]);
    let slips = random.of(&[0, 40, 14, 7, 4]);
    let scale = 2 + random.below(5);
    let budget = 2 + random.below(1 << scale) as u32;
    let calls = random.one_in(2);
    let mut writer = Writer {
        code: Code::default(),
        random,
        prog_type,
        state: State::new(),
        frame_bytes: 0,
        slips,
        depth: 0,
        level: 0,
        callback: false,
        budget,
        pending: vec![],
        subprograms: 0,
        calls,
    };
    writer.write_function(&[Held::Context]);
    while let Some(pending) = writer.pending.pop() {
        for open in pending.from {
            writer.code.begin(open);
        }
        writer.level = pending.level;
        writer.callback = pending.callback;
        writer.budget = 1 + writer.random.below(8) as u32;
        writer.write_function(&pending.arguments);
    }
    Program { prog_type, insns: writer.code.insns }
}

impl Writer {
    /// Now a rule is broken.
    pub(crate) fn slip(&mut self) -> bool {
        self.slips != 0 && self.random.one_in(self.slips)
    }

    fn write_function(&mut self, arguments: &[Held]) {
        self.state = State::new();
        self.state.r[1..=arguments.len()].copy_from_slice(arguments);
        let rooms: &[i32] = if self.calls { &[8, 32, 64, 96] } else { &[16, 64, 256, 512, 512] };
        self.frame_bytes = self.random.of(rooms);
        // What is needed for long goes where calls leave it.
        for (argument, held) in (1..).zip(arguments) {
            if *held == Held::Context || self.random.one_in(2) {
                let kept = 5 + argument;
                self.code.copy(kept, argument);
                self.state.r[usize::from(kept)] = *held;
                if *held == Held::Context {
                    self.state.kept |= 1 << kept;
                }
            }
        }
        self.block();
        self.finish();
    }

    fn finish(&mut self) {
        if self.callback {
            let number = if self.slip() { 2 } else { self.random.below(8) / 7 };
            self.code.set(0, number as i32);
        } else if !self.state.r[0].is_number() && !self.slip() || self.random.one_in(4) {
            let number = self.random.edge() as i32;
            self.code.set(0, number);
        }
        self.code.exit();
    }

    /// Steps until the budget or the block ends.
    pub(crate) fn block(&mut self) {
        self.depth += 1;
        let most = if self.depth == 1 { u32::MAX } else { 1 + self.random.below(5) as u32 };
        for _ in 0..most {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            self.step();
        }
        self.depth -= 1;
    }

    fn step(&mut self) {
        let deep = self.depth > DEPTH_MAX;
        match self.random.below(48) {
            0..=6 => self.arithmetic(),
            7..=9 => self.load_number(),
            10..=12 => self.spill(),
            13..=15 => self.fill(),
            16..=20 => self.access_any(),
            21..=25 => self.access_at_number(),
            26 => self.atomic_any(),
            27 => self.context_access(),
            28 => self.helper_number(),
            29..=30 => self.helper_with_size(),
            31 => self.change_map(),
            32 => self.constant_value(),
            33 => self.pointer_arithmetic(),
            34 if self.state.records == 0 || self.slip() => self.leave(),
            35 if self.slip() => self.noise(),
            36 if self.calls => self.call_subprogram(),
            37 if self.calls => self.call_back(),
            _ if deep => self.arithmetic(),
            38..=39 => self.branch(),
            40..=42 => self.lookup(),
            43..=44 if self.prog_type == prog_type::XDP => self.packet(),
            45 => self.bounded_loop(),
            46 => self.record(),
            _ => self.branch(),
        }
    }

    // ---- paths that part and meet ----

    /// What comes now is done only if none of these jumps was taken.
    pub(crate) fn guarded(&mut self, guards: Vec<Open>, before: &State, inside: impl FnOnce(&mut Writer)) {
        inside(self);
        for open in guards {
            self.code.land(open);
        }
        let (fixed, kept, records) = (before.fixed, before.kept, before.records);
        self.state.join(before);
        (self.state.fixed, self.state.kept, self.state.records) = (fixed, kept, records);
    }

    fn right(&mut self) -> Right {
        match self.number() {
            Some(register) if self.random.one_in(3) => Right::Reg(register),
            _ => Right::Imm(self.random.edge() as i32),
        }
    }

    fn branch(&mut self) {
        let left = self.number_or_set();
        let (width, condition, right) = (self.random.of(&[JMP, JMP32]), self.random.of(&CONDITIONS), self.right());
        let open = self.code.jump(width, condition, left, right);
        let before = self.state.clone();
        self.block();
        if self.random.one_in(2) {
            let end = self.code.always();
            self.code.land(open);
            let after = std::mem::replace(&mut self.state, before);
            self.block();
            self.code.land(end);
            self.state.join(&after);
        } else {
            self.code.land(open);
            self.state.join(&before);
        }
    }

    /// Ends the function early, sometimes by another program.
    fn leave(&mut self) {
        let left = self.number_or_set();
        let condition = self.random.of(&CONDITIONS);
        let right = self.right();
        let open = self.code.jump(JMP, condition, left, right);
        let before = self.state.clone();
        let goes_on = self.level == 0 && !self.callback && self.random.one_in(3);
        if let Some(context) = self.holding(|held| held == Held::Context).filter(|_| goes_on) {
            let index = self.random.below(5) as i32;
            self.code.copy(1, context);
            self.code.wide(2, 5, 5, 0);
            self.code.set(3, index);
            self.code.call(ring3_uapi::helper::TAIL_CALL);
            self.state.clobber();
        }
        self.finish();
        self.state = before;
        self.code.land(open);
    }

    fn bounded_loop(&mut self) {
        let Some(counter) = (6..10u8).find(|r| self.state.r[usize::from(*r)] == Held::Unset && self.writable(*r))
        else {
            return self.arithmetic();
        };
        let rounds = self.random.of(&[1, 2, 3, 4, 7, 8, 9, 16, 17, 33]);
        let (wide, step) = (self.random.one_in(2), self.random.of(&[1, 1, 1, 2, 3]));
        // Where it begins, how it changes, and under which condition it goes on against what.
        let near = self.random.of(&[0x7fff_ffffi32, i32::MIN, -1, 0, 1]);
        let (first, change, condition, limit, most) = match self.random.below(6) {
            0 | 1 => (0, ADD, self.random.of(&[JLT, JSLT, JNE]), rounds * step, (rounds * step) as u64),
            2 => (rounds * step, SUB, self.random.of(&[JNE, JSGT, JGT]), 0, (rounds * step) as u64),
            3 => (-rounds, ADD, self.random.of(&[JSLT, JNE]), rounds, u64::MAX),
            4 => (near.wrapping_sub(rounds * step), ADD, JNE, near, u64::MAX),
            _ => (near, ADD, self.random.of(&[JLE, JSLE, JLT]), near.wrapping_add(rounds), u64::MAX),
        };
        // Only ends if the steps hit the limit.
        let step = if condition == JNE && change == ADD && first < 0 && limit == rounds { 1 } else { step };
        // What is near in 32 bits may be far in 64.
        let far = i64::from(limit).abs_diff(i64::from(first)) > 4096;
        let (width, jump) = if wide && (!far || self.slip()) { (W64, JMP) } else { (W32, JMP32) };
        self.code.alu(width, MOV, counter, Right::Imm(first));
        self.state.r[usize::from(counter)] = Held::Number(most);
        self.state.kept |= 1 << counter;
        let outer = (self.state.fixed, self.state.kept);
        self.state.weaken();
        let before = self.state.clone();
        let head = self.code.here();
        self.block();
        let broken = self.random.one_in(4).then(|| {
            let left = self.number_or_set();
            let (condition, right) = (self.random.of(&CONDITIONS), self.right());
            self.code.jump(JMP, condition, left, right)
        });
        let step = if self.slip() { 0 } else { step };
        self.code.alu(width, change, counter, Right::Imm(step));
        let back = self.code.jump(jump, condition, counter, Right::Imm(limit));
        self.code.lead(back, head);
        if let Some(open) = broken {
            self.code.land(open);
        }
        self.state.join(&before);
        (self.state.fixed, self.state.kept) = (outer.0, outer.1 & !(1 << counter));
    }

    // ---- calls ----

    /// Puts something into an argument register: numbers and addresses.
    fn argument(&mut self, register: u8, taken: u8) -> Held {
        let memory = self.holding(|held| matches!(held, Held::Memory { .. } | Held::Context));
        match (self.random.below(4), memory) {
            (0 | 1, Some(from)) if from > taken || from == 0 => {
                self.code.copy(register, from);
                let held = self.state.r[usize::from(from)];
                match held {
                    Held::Memory { sort: Sort::Frame, before, after } => {
                        Held::Memory { sort: Sort::Outer, before, after }
                    }
                    other => other,
                }
            }
            (2, _) => {
                let (off, room) = self.frame_place();
                self.code.copy(register, 10);
                self.code.add(register, -off);
                Held::Memory { sort: Sort::Outer, before: 0, after: room }
            }
            _ => {
                let number = self.random.edge() as i32;
                self.code.set(register, number);
                Held::Number(i64::from(number) as u64)
            }
        }
    }

    fn lost_frame(&mut self, arguments: &[Held]) {
        let reached = arguments.iter().any(|held| matches!(held, Held::Memory { sort: Sort::Outer, .. }));
        if reached {
            self.state.slots.fill(Held::Unset);
        }
    }

    fn call_subprogram(&mut self) {
        if self.level >= LEVEL_MAX {
            return self.arithmetic();
        }
        // Once more what will be written anyway, with arguments that fit.
        let again = self.random.one_in(3).then(|| {
            self.pending.iter().position(|p| {
                !p.callback && p.level == self.level + 1 && p.arguments.iter().all(|held| held.is_number())
            })
        });
        if let Some(Some(index)) = again {
            let arguments = self.pending[index].arguments.len() as u8;
            for register in 1..=arguments {
                let number = self.random.edge() as i32;
                self.code.set(register, number);
            }
            let open = self.code.reference(None);
            self.pending[index].from.push(open);
            self.pending[index].arguments.fill(Held::ANY);
        } else if self.subprograms < SUBPROGRAMS_MAX {
            self.subprograms += 1;
            let count = self.random.below(4) as u8;
            let arguments: Vec<Held> = (1..=count).map(|register| self.argument(register, register)).collect();
            self.lost_frame(&arguments);
            let open = self.code.reference(None);
            let level = self.level + 1;
            self.pending.push(Pending { from: vec![open], arguments, callback: false, level });
        } else {
            return self.arithmetic();
        }
        self.state.clobber();
        self.state.r[0] = Held::ANY;
    }

    /// `bpf_loop` and `bpf_for_each_map_elem`.
    fn call_back(&mut self) {
        if self.level >= LEVEL_MAX || self.subprograms >= SUBPROGRAMS_MAX || self.callback {
            return self.arithmetic();
        }
        self.subprograms += 1;
        let context = if self.slip() {
            self.argument(3, 3)
        } else if self.random.one_in(4) {
            self.code.set(3, 0);
            Held::Number(0)
        } else {
            let (off, room) = self.frame_place();
            self.code.copy(3, 10);
            self.code.add(3, -off);
            Held::Memory { sort: Sort::Outer, before: 0, after: room }
        };
        let (helper, arguments) = if self.random.one_in(3) {
            let map = self.random.of(&[0usize, 1, 2, 6]);
            self.code.wide(1, 5, map as u32, 0);
            let key = Held::Memory { sort: Sort::Constant, before: 0, after: MAPS[map].key_bytes as i32 };
            let value = Held::Memory { sort: Sort::Value, before: 0, after: MAPS[map].value_bytes as i32 };
            (ring3_uapi::helper::FOR_EACH_MAP_ELEM, vec![Held::Map(map), key, value, context])
        } else {
            let mut count = self.random.of(&[0, 1, 2, 3, 5, 8, 16, 100]);
            if self.random.one_in(20) {
                count = self.random.edge() as i32;
            }
            self.code.set(1, count);
            (ring3_uapi::helper::LOOP, vec![Held::ANY, context])
        };
        let open = self.code.reference(Some(2));
        let flags = i32::from(self.slip());
        self.code.set(4, flags);
        self.code.call(helper);
        self.lost_frame(&[context]);
        let level = self.level + 1;
        self.pending.push(Pending { from: vec![open], arguments, callback: true, level });
        self.state.clobber();
        self.state.r[0] = Held::ANY;
    }
}
