//! Short programs in which paths join.
//!
//! A few registers and two stack slots get different contents on different paths: branches, rounds of `may_goto`, of iterators
//! and of callbacks, functions that write their caller's stack. The access at the end is in bounds only if it is so after all of
//! them. A verifier that ends a path too early, because it takes the state for one that it has seen, is wrong here.

use ring3_isa::assemble;
use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper::{ITER_NUM_DESTROY, ITER_NUM_NEW, ITER_NUM_NEXT};

use crate::{Program, Random};

/// Rounds and calls within others at most.
const DEPTH_MAX: u32 = 2;
/// Bytes of a place of the stack; there are two, the first at r10 - 8.
const PLACE: i64 = 8;
/// Where the iterator lies, and where keys do.
const ITERATOR: i64 = -48;
const KEY: i64 = -28;

/// Who runs a step: the stack's places are found from a register, and what is given up goes to a label.
#[derive(Clone, Copy)]
struct Scope {
    stack: &'static str,
    out: Label,
}

#[derive(Clone, Copy)]
struct Label(u32);

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "l{}", self.0)
    }
}

struct Joins {
    random: Random,
    labels: u32,
    depth: u32,
    /// Steps deal with addresses of map values.
    addresses: bool,
    functions: String,
}

/// Program `number` of a seed: a short one, of type `KPROBE`.
pub fn joins(seed: u64, number: u64) -> Program {
    let mut random = Random::new(seed, number);
    let addresses = random.one_in(4);
    let text = Joins { random, labels: 0, depth: 0, addresses, functions: String::new() }.program();
    let insns = assemble(&text).unwrap_or_else(|error| panic!("line {}: {}\n{text}", error.line, error.message));
    Program { prog_type: prog_type::KPROBE, insns }
}

fn low_half(register: &str) -> String {
    register.replace('r', "w")
}

impl Joins {
    fn one_of(&mut self, choices: &[&'static str]) -> &'static str {
        self.random.of(choices)
    }

    fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    fn register(&mut self) -> &'static str {
        self.one_of(&["r6", "r6", "r7", "r7", "r8", "r9"])
    }

    fn constant(&mut self) -> &'static str {
        self.one_of(&["0", "0", "1", "5", "8", "40", "40", "1000", "1000", "-1"])
    }

    /// A type of one of these sizes, and an offset of one of the places for it.
    fn place(&mut self, types: &[(&'static str, i64)]) -> (&'static str, i64) {
        let (name, bytes) = self.random.of(types);
        let place = -PLACE * (1 + self.random.below(2) as i64);
        let part = if self.random.one_in(2) { 0 } else { self.random.below((PLACE / bytes) as u64) as i64 * bytes };
        (name, place + part)
    }

    fn any_place(&mut self) -> (&'static str, i64) {
        self.place(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("u64", 8), ("u64", 8)])
    }

    fn program(mut self) -> String {
        let scope = Scope { stack: "r10", out: self.label() };
        let mut text =
            "call bpf_get_prandom_u32\nr6 = r0\ncall bpf_get_prandom_u32\nr7 = r0\nr8 = 5\nr9 = 3\n".to_owned();
        if !self.random.one_in(3) {
            text += "*(u64 *)(r10 -8) = 0\n";
        }
        if !self.random.one_in(3) {
            text +=
                self.one_of(&["*(u64 *)(r10 -16) = r6\n", "*(u64 *)(r10 -16) = 1000\n", "*(u32 *)(r10 -16) = r6\n"]);
        }
        if self.random.one_in(2) {
            text += &self.straight(scope, 3);
        }
        // Two paths, of which the second is taken for two reasons; enough instructions behind them for a point.
        let (other, met) = (self.label(), self.label());
        text += &format!("call bpf_get_prandom_u32\nif r0 == 0 goto {other}\nif r0 == 1 goto {other}\n");
        text += &self.straight(scope, 3);
        text += &format!("goto {met}\n{other}:\n");
        if self.random.one_in(2) {
            text += &self.straight(scope, 2);
        }
        text += &format!("{met}:\n");
        text.extend((1..9).map(|number| format!("r0 = {number}\n")));
        text += &format!("if r0 == 0 goto {}\n", scope.out);
        text += &self.steps(scope, 5);
        text += &self.access(scope);
        text += &format!("{}:\nr0 = 0\nexit\n", scope.out);
        text + &self.functions
    }

    /// Up to so many steps.
    fn steps(&mut self, scope: Scope, most: u64) -> String {
        (0..=self.random.below(most)).map(|_| self.step(scope)).collect()
    }

    /// The same without rounds and calls of functions.
    fn straight(&mut self, scope: Scope, most: u64) -> String {
        let depth = std::mem::replace(&mut self.depth, DEPTH_MAX);
        let text = self.steps(scope, most);
        self.depth = depth;
        text
    }

    fn step(&mut self, scope: Scope) -> String {
        let (a, b, constant) = (self.register(), self.register(), self.constant());
        let main = scope.stack == "r10";
        let stack = scope.stack;
        match self.random.below(if self.depth < DEPTH_MAX { 27 } else { 20 }) {
            0 => format!("{a} = {b}\n"),
            1 => format!("{} = {}\n", low_half(a), low_half(b)),
            2 => format!("{a} = {constant}\n"),
            3 => format!("{a} += {}\n", self.one_of(&["1", "5", "-5", "r6", "r7", "r8"])),
            4 => format!("{a} &= {}\n", self.one_of(&["1", "31", "7", "0xff", "r8"])),
            5 => {
                let operator = self.one_of(&["-=", "*=", ">>=", "|=", "^=", "<<="]);
                format!("{a} {operator} {}\n", self.one_of(&["1", "3", "32", "59", "r8", "r9"]))
            }
            6 => format!("{a} = ({}){b}\n", self.one_of(&["s8", "s16", "s32"])),
            7 | 8 => {
                let (name, offset) = self.any_place();
                format!("*({name} *)({stack} {offset:+}) = {a}\n")
            }
            9 => {
                let (name, offset) = self.any_place();
                format!("*({name} *)({stack} {offset:+}) = {constant}\n")
            }
            10 | 11 => {
                let (name, offset) = self.any_place();
                format!("{a} = *({name} *)({stack} {offset:+})\n")
            }
            12 => {
                let (name, offset) = self.place(&[("s8", 1), ("s16", 2), ("s32", 4)]);
                format!("{a} = *({name} *)({stack} {offset:+})\n")
            }
            13 | 14 => self.branch(scope),
            15 | 16 => {
                let mask = self.one_of(&["7", "15", "1"]);
                let place = format!("r4 = {a}\nr4 &= {mask}\nr3 = {stack}\nr3 += -16\nr3 += r4\n");
                match self.random.below(4) {
                    0 | 1 => place + &format!("{b} = *(u8 *)(r3 +0)\n"),
                    2 => place + "*(u8 *)(r3 +0) = 0\n",
                    _ => place + &format!("*(u8 *)(r3 +0) = {b}\n"),
                }
            }
            17 => {
                let (name, offset) = self.place(&[("u64", 8), ("u32", 4)]);
                match self.random.below(4) {
                    0 => format!("lock *({name} *)({stack} {offset:+}) += {a}\n"),
                    1 if name == "u64" => format!("{a} = atomic64_xchg((u64 *)({stack} {offset:+}), {a})\n"),
                    2 if name == "u64" => format!("{a} = atomic64_fetch_add((u64 *)({stack} {offset:+}), {a})\n"),
                    _ => format!("lock *({name} *)({stack} {offset:+}) |= {a}\n"),
                }
            }
            18 if main => {
                let place = -PLACE * (1 + self.random.below(2) as i64);
                let bytes = self.one_of(&["8", "4", "7", "1"]);
                format!("r1 = r10\nr1 += {place}\nr2 = {bytes}\ncall bpf_get_current_comm\n")
            }
            19 if main && self.addresses => self.address(scope, a, b),
            20 | 21 => {
                let (again, done) = (self.label(), self.label());
                let round = self.inner(scope);
                format!("{again}:\nmay_goto {done}\n{round}goto {again}\n{done}:\n")
            }
            22 | 23 if main => {
                let result = self.one_of(&["r0 = 0\n", "call bpf_get_prandom_u32\nr0 &= 1\n", "r0 = 1\n"]);
                let function = self.function(result);
                let rounds = self.one_of(&["10", "r6", "1", "0"]);
                format!("r1 = {rounds}\nr2 = func {function}\nr3 = r10\nr4 = 0\ncall bpf_loop\n")
            }
            24 if main => {
                let result = self.one_of(&["r0 = r6\n", "r0 = r7\n", "r0 = r8\n", "r0 = 0\n"]);
                let function = self.function(result);
                format!("r1 = {a}\nr2 = r10\ncall {function}\n{b} = r0\n")
            }
            25 | 26 if main => {
                let (again, done) = (self.label(), self.label());
                let round = self.inner(Scope { out: done, ..scope });
                let call = |function: u32| format!("r1 = r10\nr1 += {ITERATOR}\n.insn 0x85 0 2 0 {function}\n");
                let (new, next, destroy) = (call(ITER_NUM_NEW), call(ITER_NUM_NEXT), call(ITER_NUM_DESTROY));
                format!(
                    "r2 = 0\nr3 = 10\n{new}{again}:\n{next}if r0 == 0 goto {done}\n{round}goto {again}\n{done}:\n{destroy}"
                )
            }
            _ => self.step(scope),
        }
    }

    fn inner(&mut self, scope: Scope) -> String {
        self.depth += 1;
        let text = self.steps(scope, 3);
        self.depth -= 1;
        text
    }

    /// Writes a function; r5 leads it to its caller's stack.
    fn function(&mut self, result: &str) -> Label {
        let (start, out) = (self.label(), self.label());
        let body = self.straight(Scope { stack: "r5", out }, 4);
        self.functions +=
            &format!("{start}:\nr6 = r1\nr7 = r1\nr8 = 5\nr9 = 3\nr5 = r2\n{body}{out}:\n{result}exit\n");
        start
    }

    fn branch(&mut self, scope: Scope) -> String {
        let condition = self.one_of(&["==", "!=", ">", ">=", "<", "<=", "s>", "s<", "s>=", "s<=", "&"]);
        let left = self.register();
        let right = if self.random.one_in(3) { self.register() } else { self.constant() };
        let sides = if self.random.one_in(4) {
            format!("{} {condition} {}", low_half(left), low_half(right))
        } else {
            format!("{left} {condition} {right}")
        };
        if !self.random.one_in(3) {
            return format!("if {sides} goto {}\n", scope.out);
        }
        let over = self.label();
        let step = self.straight(scope, 1);
        format!("if {sides} goto {over}\n{step}{over}:\n")
    }

    fn address(&mut self, scope: Scope, a: &str, b: &str) -> String {
        match self.random.below(3) {
            0 => format!(
                "*(u32 *)(r10 {KEY}) = 0\nr1 = map[0]\nr2 = r10\nr2 += {KEY}\ncall bpf_map_lookup_elem\n{a} = r0\n"
            ),
            1 => format!("if {a} == 0 goto {}\nr0 = *(u8 *)({a} +0)\n", scope.out),
            _ => format!("if {a} != {b} goto {}\n", scope.out),
        }
    }

    /// What holds only if all paths were seen.
    fn access(&mut self, scope: Scope) -> String {
        let number = self.register();
        let bound = match self.random.below(4) {
            0 => format!("if {number} > 15 goto {}\n", scope.out),
            1 => format!("{number} &= 15\n"),
            _ => String::new(),
        };
        let value = format!("r1 = map[2][0]+0\nr1 += {number}\nr0 = *(u8 *)(r1 +0)\n");
        let access = match self.random.below(5) {
            0 => format!("r1 = r10\nr1 += -40\nr1 += {number}\nr0 = *(u8 *)(r1 +0)\n"),
            1 => {
                let (name, offset) = self.any_place();
                format!("{number} = *({name} *)(r10 {offset:+})\n{value}")
            }
            _ => value,
        };
        bound + &access
    }
}
