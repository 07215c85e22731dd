//! Follows the control flow of a function, and computes the state before each instruction.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register};

use super::Unknown;
use super::state::{State, Value, WORD};
use crate::flow::{direct_target, is_padding};

/// Instructions that are interpreted at most. One counts again each time its state changes.
const STEPS_MAX: u32 = 100_000;
/// Instructions that are followed at most to judge a guess.
const JUDGED_MAX: usize = 1_000;
/// `rsp` at a call, plus a constant, is a multiple of this.
const STACK_ALIGN: i64 = 16;

/// How sure it is that control reaches an instruction with some state. A better way's state replaces a worse one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trust {
    /// Only direct branches lead there, and calls that are assumed to return.
    Way,
    /// A guess, which the code behind it supports.
    Supported,
    /// A guess, which no code refutes.
    Guess,
}

/// What the code that follows says about a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// The guess is wrong.
    Against,
    /// Nothing.
    Nothing,
    /// `rsp` has the right value at a return, or the one that is known of some instruction.
    For,
}

impl Evidence {
    /// The trust in a guess with this evidence; `None`: none.
    fn trust(self) -> Option<Trust> {
        match self {
            Evidence::Against => None,
            Evidence::Nothing => Some(Trust::Guess),
            Evidence::For => Some(Trust::Supported),
        }
    }
}

/// Where control may go behind an instruction.
struct Way {
    to: u64,
    state: State,
    /// This is a guess: the call before `to` may never return.
    returned: bool,
}

/// What is known before each instruction of a function.
pub(super) struct Reading<'c> {
    code: &'c [u8],
    address: u64,
    function: u64,
    info: InstructionInfoFactory,
    /// Targets of direct branches.
    targets: BTreeSet<u64>,
    /// Addresses that instructions compute relative to `rip`.
    computed: BTreeSet<u64>,
    /// Ends of the jump tables in the code, by their addresses.
    tables: BTreeMap<u64, u64>,
    states: BTreeMap<u64, (Trust, State)>,
    /// Instructions whose state has changed.
    pending: BTreeSet<u64>,
    /// States behind calls that may never return, by return address.
    returned: BTreeMap<u64, (Trust, State)>,
    /// States behind calls and indirect jumps, by the addresses of these. Code that no direct branch leads to is entered with one
    /// of them: by the unwinder during a call, or by the jump.
    sources: BTreeMap<u64, State>,
    /// Returns at which `rsp` is not what it was at entry.
    misplaced: BTreeSet<u64>,
    /// Calls that never return.
    endings: BTreeSet<u64>,
    /// [`Reading::enter`] was tried for all code before this address.
    entered: u64,
    steps: u32,
}

impl<'c> Reading<'c> {
    pub(super) fn of(code: &'c [u8], address: u64, function: u64) -> Result<Reading<'c>, Unknown> {
        let mut reading = Reading {
            code,
            address,
            function,
            info: InstructionInfoFactory::new(),
            targets: BTreeSet::new(),
            computed: BTreeSet::new(),
            tables: BTreeMap::new(),
            states: BTreeMap::new(),
            pending: BTreeSet::new(),
            returned: BTreeMap::new(),
            sources: BTreeMap::new(),
            misplaced: BTreeSet::new(),
            endings: BTreeSet::new(),
            entered: function,
            steps: 0,
        };
        reading.find_targets();
        loop {
            reading.arrive(function, Trust::Way, State::entry());
            reading.follow_all()?;
            if !reading.find_endings() {
                return Ok(reading);
            }
            reading.states.clear();
            reading.sources.clear();
            reading.misplaced.clear();
        }
    }

    /// The state before the instruction that contains `at`. Of several instructions, that of the lowest must be asked for first.
    pub(super) fn state_at(&mut self, at: u64) -> Result<State, Unknown> {
        let mut here = self.entered;
        while here <= at {
            if let Some(end) = self.tables.get(&here) {
                here = *end;
                continue;
            }
            let i = self.decode(here).ok_or(Unknown::NotReached)?;
            if !self.states.contains_key(&here) && !is_padding(&i) {
                self.enter(here)?;
            }
            self.entered = i.next_ip();
            if at < i.next_ip() {
                return self.states.get(&here).map(|(_, state)| *state).ok_or(Unknown::NotReached);
            }
            here = i.next_ip();
        }
        Err(Unknown::NotReached)
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.code.len() as u64)
    }

    fn decode(&self, at: u64) -> Option<Instruction> {
        let offset = usize::try_from(at.checked_sub(self.address)?).ok()?;
        let bytes = self.code.get(offset..)?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn find_targets(&mut self) {
        let mut at = self.function;
        for _ in 0..STEPS_MAX {
            let Some(i) = self.decode(at) else { return };
            if !is_call(&i) {
                self.targets.extend(direct_target(&i));
            }
            if i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand() {
                self.computed.insert(i.memory_displacement64());
            }
            at = i.next_ip();
        }
    }

    /// Finds calls that never return: if one did, `rsp` would be wrong at the next return. Tells whether it found new ones.
    fn find_endings(&mut self) -> bool {
        let before = self.endings.len();
        for at in &self.misplaced {
            let calls = self.sources.range(..at).rev().map(|(call, _)| *call);
            let last = calls.take_while(|call| !self.endings.contains(call)).find(|call| {
                let next = self.decode(*call).filter(is_call).map(|i| i.next_ip());
                next.is_some_and(|next| !self.targets.contains(&next))
            });
            self.endings.extend(last);
        }
        self.endings.len() > before
    }

    fn follow_all(&mut self) -> Result<(), Unknown> {
        loop {
            while let Some(at) = self.pending.pop_first() {
                self.follow(at)?;
            }
            let Some((at, (trust, state))) = self.returned.pop_first() else { return Ok(()) };
            if let Some(guess) = self.judge(at, state)?.trust() {
                self.arrive(at, trust.max(guess), state);
            }
        }
    }

    /// Notes that control may reach the instruction at `at` with this state.
    fn arrive(&mut self, at: u64, trust: Trust, state: State) {
        if !(self.function..self.end()).contains(&at) {
            return;
        }
        match self.states.entry(at) {
            Entry::Vacant(vacant) => {
                vacant.insert((trust, state));
                self.pending.insert(at);
            }
            Entry::Occupied(mut known) => {
                let (known_trust, known_state) = *known.get();
                let state = if trust < known_trust { state } else { known_state.meet(&state) };
                if trust <= known_trust && (trust, state) != (known_trust, known_state) {
                    known.insert((trust, state));
                    self.pending.insert(at);
                }
            }
        }
    }

    fn follow(&mut self, at: u64) -> Result<(), Unknown> {
        let (Some(&(trust, before)), Some(i)) = (self.states.get(&at), self.decode(at)) else { return Ok(()) };
        let after = self.step(&i, &before)?;
        if (is_call(&i) || i.flow_control() == FlowControl::IndirectBranch) && trust < Trust::Guess {
            self.sources.insert(at, after);
        }
        if self.evidence_of(&i, &before) == Evidence::Against && i.flow_control() == FlowControl::Return {
            self.misplaced.insert(at);
        } else {
            self.misplaced.remove(&at);
        }
        for way in self.ways(&i, &before, after) {
            if way.returned {
                self.returned.insert(way.to, (trust, way.state));
            } else {
                self.arrive(way.to, trust, way.state);
            }
        }
        Ok(())
    }

    fn step(&mut self, i: &Instruction, before: &State) -> Result<State, Unknown> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(Unknown::TooLong);
        }
        Ok(before.after(i, &mut self.info))
    }

    /// Where control may go behind an instruction, with the states `before` and `after` it.
    fn ways(&mut self, i: &Instruction, before: &State, after: State) -> Vec<Way> {
        let to = |to: u64, state: State| Way { to, state, returned: false };
        let next = i.next_ip();
        match i.flow_control() {
            FlowControl::ConditionalBranch => {
                let taken = if i.mnemonic() == Mnemonic::Je { before.if_equal() } else { Some(after) };
                let not_taken = if i.mnemonic() == Mnemonic::Jne { before.if_equal() } else { Some(after) };
                let ways = [(next, not_taken), (i.near_branch_target(), taken)];
                ways.into_iter().filter_map(|(target, state)| Some(to(target, state?))).collect()
            }
            FlowControl::UnconditionalBranch => {
                direct_target(i).map(|target| to(target, after)).into_iter().collect()
            }
            FlowControl::IndirectBranch => {
                self.table_behind(next).into_iter().map(|target| to(target, after)).collect()
            }
            FlowControl::Return | FlowControl::Exception => vec![],
            _ if self.endings.contains(&i.ip()) => vec![],
            FlowControl::Interrupt => vec![Way { to: next, state: after, returned: true }],
            _ if is_call(i) => {
                let ends = self.targets.contains(&next) || self.decode(next).is_none_or(|next| is_padding(&next));
                vec![Way { to: next, state: after, returned: ends }]
            }
            _ => vec![to(next, after)],
        }
    }

    /// The targets of a jump table at `table`, behind the jump. Cranelift puts tables there.
    fn table_behind(&mut self, table: u64) -> BTreeSet<u64> {
        const ENTRY: u64 = size_of::<i32>() as u64;
        let mut targets = BTreeSet::new();
        if !self.computed.contains(&table) {
            return targets;
        }
        let (mut at, mut end) = (table, self.end());
        while end.saturating_sub(at) >= ENTRY {
            let offset = (at - self.address) as usize;
            let Ok(entry) = self.code[offset..offset + ENTRY as usize].try_into() else { break };
            let target = table.wrapping_add_signed(i32::from_le_bytes(entry).into());
            if !(self.function..self.end()).contains(&target) {
                break;
            }
            // The table ends at its first target, at the latest.
            if target > table {
                end = end.min(target);
            }
            targets.insert(target);
            at += ENTRY;
        }
        if at > table {
            self.tables.insert(table, at);
        }
        self.steps = self.steps.saturating_add(targets.len() as u32);
        targets
    }

    /// Guesses the state at code that no direct branch leads to, and follows the code with it. Of several guesses the best is
    /// used; of equal ones, what they agree on.
    fn enter(&mut self, at: u64) -> Result<(), Unknown> {
        let mut guesses: Vec<State> = vec![];
        for state in self.sources.values() {
            let alike = |guess: &&mut State| guess.value(Register::RSP) == state.value(Register::RSP);
            match guesses.iter_mut().find(alike) {
                Some(guess) => *guess = guess.meet(state),
                None => guesses.push(*state),
            }
        }
        let mut best: Option<(Evidence, State)> = None;
        for guess in guesses {
            let evidence = self.judge(at, guess)?;
            best = match best {
                Some((known, state)) if known == evidence => Some((known, state.meet(&guess))),
                Some((known, state)) if known > evidence => Some((known, state)),
                _ => Some((evidence, guess)),
            };
        }
        if let Some((evidence, state)) = best {
            evidence.trust().into_iter().for_each(|trust| self.arrive(at, trust, state));
            self.follow_all()?;
        }
        Ok(())
    }

    /// Follows a guess to instructions of which more is known.
    fn judge(&mut self, at: u64, guess: State) -> Result<Evidence, Unknown> {
        let mut pending = vec![(at, guess)];
        let mut seen = BTreeSet::new();
        let mut found = Evidence::Nothing;
        while let Some((at, before)) = pending.pop() {
            if seen.len() == JUDGED_MAX || !seen.insert(at) {
                continue;
            }
            let Some(i) = self.decode(at) else { continue };
            let known = self.states.get(&at).filter(|(trust, _)| *trust < Trust::Guess);
            let known = known.map(|(_, known)| known.value(Register::RSP));
            let evidence = match (known, before.value(Register::RSP)) {
                (Some(Value::Cfa(known)), Value::Cfa(guessed)) if known == guessed => Evidence::For,
                (Some(Value::Cfa(_)), Value::Cfa(_)) => Evidence::Against,
                (Some(_), _) => Evidence::Nothing,
                (None, _) => {
                    let after = self.step(&i, &before)?;
                    let ways = self.ways(&i, &before, after).into_iter().filter(|way| !way.returned);
                    pending.extend(ways.map(|way| (way.to, way.state)));
                    self.evidence_of(&i, &before)
                }
            };
            match evidence {
                Evidence::Against => return Ok(Evidence::Against),
                Evidence::Nothing => {}
                Evidence::For => found = Evidence::For,
            }
        }
        Ok(found)
    }

    /// What an instruction says about `rsp` before it.
    fn evidence_of(&self, i: &Instruction, before: &State) -> Evidence {
        let Value::Cfa(top) = before.value(Register::RSP) else { return Evidence::Nothing };
        let is_outside = |target| !(self.function..self.end()).contains(&target);
        match i.flow_control() {
            FlowControl::Return if top == -WORD => Evidence::For,
            FlowControl::Return => Evidence::Against,
            // A function may end with a jump to another one. (With another `rsp`, this may be a jump to a part of the function that
            // the compiler put elsewhere.)
            _ if !is_call(i) && top == -WORD && direct_target(i).is_some_and(is_outside) => Evidence::For,
            _ if is_call(i) && top % STACK_ALIGN != 0 => Evidence::Against,
            _ => Evidence::Nothing,
        }
    }
}

fn is_call(i: &Instruction) -> bool {
    // (To the decoder, `syscall` is a call, too.)
    matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall) && i.is_stack_instruction()
}
