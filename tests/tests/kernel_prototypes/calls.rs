//! Programs that call one helper, with good arguments or with a wrong one.

use std::os::fd::{AsRawFd, OwnedFd};

use ring3_uapi::bpf::map_type;
use ring3_uapi::helper;
use ring3_verifier::{Arg, DynptrUse, Prototype, Return};

use super::raw_load::{Code, Kind, Map, Types, Verdict, constant_map, judge, map_of, maps, own_types, timed_map};

/// What stands in an argument register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// What the prototype wants.
    Good,
    /// Nothing was written.
    Nothing,
    Number(i32),
    /// A number that the verifier does not know.
    Unknown,
    Context,
    /// The stack's last byte.
    Edge,
    /// A map's value that programs may not write.
    Constant,
    /// A map's value without types.
    Plain,
    /// Written stack at an odd address.
    Odd,
}

const fn insn(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (offset as u16 as u64) << 16
        | (immediate as u32 as u64) << 32
}

const LOAD: u8 = 0x79;
const STORE_NUMBER: u8 = 0x7a;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const SKIP_UNLESS: u8 = 0x55;
const LOAD_WIDE: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u64 = insn(0x95, 0, 0, 0, 0);
/// Sources of a wide load.
const MAP: u8 = 1;
const MAP_VALUE: u8 = 2;
const FUNCTION: u8 = 4;
/// Keeps the context, what the preparation made, and an unknown number.
const KEPT_CONTEXT: u8 = 6;
const MADE: u8 = 7;
const UNKNOWN: u8 = 8;
/// Where the result goes, if there is one.
const RESULT: u8 = 9;
/// Written stack, of this size and from here on; below it room for a dynptr.
pub(crate) const ROOM: i32 = 64;
const DYNPTR: i32 = -80;
/// Size of memory in good calls.
pub(crate) const SIZE: i32 = 8;

/// What calls are made of.
pub(crate) struct Bench {
    types: Types,
    maps: Vec<Map>,
    own: OwnedFd,
    timed: Map,
    constant: Map,
}

impl Bench {
    pub(crate) fn new(types: Types) -> Bench {
        let own = own_types();
        Bench { types, maps: maps(&own), timed: timed_map(&own), constant: constant_map(&own), own }
    }

    fn judge(&self, kind: &Kind, insns: &[u64], callback_at: Option<usize>, licence: &str) -> Verdict {
        judge(&self.types, kind, &Code { insns, callback_at, types: &self.own }, licence)
    }

    /// Of a program that does nothing.
    pub(crate) fn judge_nothing(&self, kind: &Kind) -> Verdict {
        self.judge(kind, &[insn(SET, 0, 0, 0, 0), EXIT], None, "GPL")
    }

    /// Of a call with the context as first argument, and no other.
    pub(crate) fn judge_bare_call(&self, kind: &Kind, id: u32, licence: &str) -> Verdict {
        let code = [
            insn(MOVE, KEPT_CONTEXT, 1, 0, 0),
            insn(CALL, 0, 0, 0, helper::GET_PRANDOM_U32 as i32),
            insn(MOVE, 1, KEPT_CONTEXT, 0, 0),
            insn(CALL, 0, 0, 0, id as i32),
            insn(SET, 0, 0, 0, 0),
            EXIT,
        ];
        self.judge(kind, &code, None, licence)
    }

    fn map_of(&self, map_type: u32) -> Option<&Map> {
        self.maps.iter().find(|map| map.map_type == map_type)
    }

    /// A map for good calls. It is new: some are bound to the kind of programs that use them first.
    pub(crate) fn map_for(&self, row: &Prototype) -> Option<Map> {
        let map = self.maps.iter().find(|map| row.takes(map.map_type))?;
        map_of(&self.own, map.map_type)
    }

    /// New maps of all types that can be made here.
    pub(crate) fn new_maps(&self) -> Vec<Map> {
        maps(&self.own)
    }

    /// Of a call with good arguments, except this one (registers count from 1); `None` if one cannot be had here.
    pub(crate) fn judge_call(
        &self,
        kind: &Kind,
        row: &Prototype,
        wrong: Option<(u8, Value)>,
        map: Option<&Map>,
    ) -> Option<Verdict> {
        let mut code = vec![insn(MOVE, KEPT_CONTEXT, 1, 0, 0)];
        code.extend((1..=ROOM / 8).map(|n| insn(STORE_NUMBER, 10, 0, -8 * n as i16, 0)));
        code.push(insn(CALL, 0, 0, 0, helper::GET_PRANDOM_U32 as i32));
        code.push(insn(MOVE, UNKNOWN, 0, 0, 0));
        let value_of = |register: u8| wrong.filter(|(at, _)| *at == register).map_or(Value::Good, |(_, value)| value);
        let until = wrong.map_or(u8::MAX, |(register, _)| register);
        let given = || (1u8..).zip(row.args()).take_while(|(register, _)| *register <= until);
        for (register, arg) in given().filter(|(register, _)| value_of(*register) == Value::Good) {
            self.prepare(kind, row, arg, &mut code).then_some(register)?;
        }
        let mut callback = None;
        for (register, arg) in given() {
            match value_of(register) {
                Value::Good => {
                    if *arg == Arg::Function {
                        callback = Some(code.len());
                    }
                    self.put(row, arg, register, map, &mut code);
                }
                Value::Nothing => {}
                Value::Number(number) => code.push(insn(SET, register, 0, 0, number)),
                Value::Unknown => code.push(insn(MOVE, register, UNKNOWN, 0, 0)),
                Value::Context => code.push(insn(MOVE, register, KEPT_CONTEXT, 0, 0)),
                Value::Edge => code.extend(stack(register, -1)),
                Value::Odd => code.extend(stack(register, 1 - ROOM)),
                Value::Constant => code.extend(wide(register, MAP_VALUE, self.constant.fd.as_raw_fd())),
                Value::Plain => {
                    let plain = self.map_of(map_type::ARRAY)?;
                    code.extend(wide(register, MAP_VALUE, plain.fd.as_raw_fd()));
                }
            }
        }
        // What follows a wrong memory argument is its size.
        let next = row.args().get(until as usize);
        if let (Some((register, value)), Some(Arg::Size | Arg::SizeOrZero)) = (wrong, next)
            && value != Value::Nothing
        {
            let size = if value == Value::Number(0) && next == Some(&Arg::SizeOrZero) { 0 } else { SIZE };
            code.push(insn(SET, register + 1, 0, 0, size));
        }
        code.push(insn(CALL, 0, 0, 0, row.id as i32));
        if row.ret != Return::Void {
            code.push(insn(MOVE, RESULT, 0, 0, 0));
        }
        code.extend([insn(SET, 0, 0, 0, 0), EXIT]);
        let callback_at = callback.map(|load| {
            let at = code.len();
            code[load] |= insn(0, 0, 0, 0, (at - load - 1) as i32);
            code.extend([insn(SET, 0, 0, 0, 0), EXIT]);
            at
        });
        Some(self.judge(kind, &code, callback_at, "GPL"))
    }

    /// Makes what must be there before the call. It uses the argument registers.
    fn prepare(&self, kind: &Kind, row: &Prototype, arg: &Arg, code: &mut Vec<u64>) -> bool {
        let mut call = |id: u32| code.push(insn(CALL, 0, 0, 0, id as i32));
        match arg {
            Arg::Object { nullable: true, .. } => {}
            Arg::Object { name: "task_struct", .. } => {
                call(helper::GET_CURRENT_TASK_BTF);
                code.push(insn(MOVE, MADE, 0, 0, 0));
            }
            Arg::Object { name: "seq_file", .. } if kind.name.starts_with("iter") => {
                code.extend([insn(LOAD, MADE, KEPT_CONTEXT, 0, 0), insn(LOAD, MADE, MADE, 0, 0)]);
            }
            Arg::Object { name: "sk_buff", .. } if kind.name == "traced packet" => {
                code.push(insn(LOAD, MADE, KEPT_CONTEXT, 0, 0));
            }
            Arg::Object { name: "file", .. } if kind.name == "iter of files" => {
                code.extend([
                    insn(LOAD, MADE, KEPT_CONTEXT, 24, 0),
                    insn(SKIP_UNLESS, MADE, 0, 2, 0),
                    insn(SET, 0, 0, 0, 0),
                    EXIT,
                ]);
            }
            // That one wants sockets as programs of the network have them.
            Arg::Object { name: "sock_common", .. }
                if kind.name == "iter of sockets" && row.id != helper::SKC_TO_MPTCP_SOCK =>
            {
                code.extend([
                    insn(LOAD, MADE, KEPT_CONTEXT, 8, 0),
                    insn(SKIP_UNLESS, MADE, 0, 2, 0),
                    insn(SET, 0, 0, 0, 0),
                    EXIT,
                ]);
            }
            Arg::Object { name: "sock_common", .. } if matches!(kind.name, "xdp" | "sched_cls" | "sched_act") => {
                code.push(insn(MOVE, 1, KEPT_CONTEXT, 0, 0));
                code.extend(stack(2, -ROOM));
                code.extend([insn(SET, 3, 0, 0, 12), insn(SET, 4, 0, 0, -1), insn(SET, 5, 0, 0, 0)]);
                code.push(insn(CALL, 0, 0, 0, helper::SK_LOOKUP_TCP as i32));
                code.extend([insn(SKIP_UNLESS, 0, 0, 2, 0), insn(SET, 0, 0, 0, 0), EXIT, insn(MOVE, MADE, 0, 0, 0)]);
            }
            Arg::Object { .. } | Arg::Kptr | Arg::SpinLock | Arg::PerCpuVariable => return false,
            Arg::Record => {
                let Some(ring) = self.map_of(map_type::RINGBUF) else { return false };
                code.extend(wide(1, MAP, ring.fd.as_raw_fd()));
                code.extend([insn(SET, 2, 0, 0, SIZE), insn(SET, 3, 0, 0, 0)]);
                code.push(insn(CALL, 0, 0, 0, helper::RINGBUF_RESERVE as i32));
                code.extend([insn(SKIP_UNLESS, 0, 0, 2, 0), insn(SET, 0, 0, 0, 0), EXIT, insn(MOVE, MADE, 0, 0, 0)]);
            }
            Arg::Dynptr(DynptrUse::Any) => {
                let Some(plain) = self.map_of(map_type::ARRAY) else { return false };
                code.extend(wide(1, MAP_VALUE, plain.fd.as_raw_fd()));
                code.extend([insn(SET, 2, 0, 0, SIZE), insn(SET, 3, 0, 0, 0)]);
                code.extend(stack(4, DYNPTR));
                code.push(insn(CALL, 0, 0, 0, helper::DYNPTR_FROM_MEM as i32));
            }
            Arg::Dynptr(DynptrUse::ReleaseRecord) => {
                let Some(ring) = self.map_of(map_type::RINGBUF) else { return false };
                code.extend(wide(1, MAP, ring.fd.as_raw_fd()));
                code.extend([insn(SET, 2, 0, 0, SIZE), insn(SET, 3, 0, 0, 0)]);
                code.extend(stack(4, DYNPTR));
                code.push(insn(CALL, 0, 0, 0, helper::RINGBUF_RESERVE_DYNPTR as i32));
            }
            _ => {}
        }
        true
    }

    /// A good argument.
    fn put(&self, row: &Prototype, arg: &Arg, register: u8, map: Option<&Map>, code: &mut Vec<u64>) {
        match arg {
            Arg::Anything => code.push(insn(SET, register, 0, 0, 0)),
            Arg::Map if row.id == helper::TIMER_INIT => code.extend(wide(register, MAP, self.timed.fd.as_raw_fd())),
            Arg::Map => {
                let map = map.map_or(-1, |map| map.fd.as_raw_fd());
                code.extend(wide(register, MAP, map));
            }
            Arg::Context { .. } => code.push(insn(MOVE, register, KEPT_CONTEXT, 0, 0)),
            // Data of a dynptr cannot be on the stack.
            Arg::MemoryOut { .. } if row.id == helper::DYNPTR_FROM_MEM => {
                let plain = self.map_of(map_type::ARRAY).map_or(-1, |map| map.fd.as_raw_fd());
                code.extend(wide(register, MAP_VALUE, plain));
            }
            Arg::MapKey
            | Arg::MapValue { .. }
            | Arg::MapValueOut
            | Arg::Memory { .. }
            | Arg::MemoryOut { .. }
            | Arg::Fixed { .. }
            | Arg::Stack { .. } => code.extend(stack(register, -ROOM)),
            Arg::Size | Arg::SizeOrZero | Arg::AllocSize => code.push(insn(SET, register, 0, 0, SIZE)),
            Arg::ConstString => code.extend(wide(register, MAP_VALUE, self.constant.fd.as_raw_fd())),
            Arg::Function => code.extend(wide(register, FUNCTION, 0)),
            Arg::Dynptr(_) | Arg::Iterator(_) => code.extend(stack(register, DYNPTR)),
            Arg::Timer => code.extend(wide(register, MAP_VALUE, self.timed.fd.as_raw_fd())),
            Arg::Object { nullable: true, .. } => code.push(insn(SET, register, 0, 0, 0)),
            Arg::Record | Arg::Object { .. } | Arg::SpinLock | Arg::Kptr | Arg::PerCpuVariable | Arg::HostSlice => {
                code.push(insn(MOVE, register, MADE, 0, 0));
            }
        }
    }
}

fn stack(register: u8, at: i32) -> [u64; 2] {
    [insn(MOVE, register, 10, 0, 0), insn(ADD, register, 0, 0, at)]
}

fn wide(register: u8, from: u8, number: i32) -> [u64; 2] {
    [insn(LOAD_WIDE, register, from, 0, number), 0]
}
