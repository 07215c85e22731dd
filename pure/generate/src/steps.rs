//! Steps of a program: arithmetic, accesses, bounds, lookups, helpers.

use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper;

use crate::MAPS;
use crate::code::{
    ADD, AND, ARSH, DIV, JEQ, JGE, JGT, JLE, JLT, JMP, JMP32, JNE, LSH, MOD, MOV, MUL, OR, Open, RSH, Right, SUB,
    W32, W64, XOR,
};
use crate::model::{Held, SLOTS, Sort};
use crate::write::Writer;

const OPERATIONS: [u8; 12] = [ADD, ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, MOD, XOR, ARSH];
const SIZES: [u32; 4] = [1, 2, 4, 8];

/// What arithmetic with a constant leaves at most.
fn most_after(width: u8, operation: u8, most: u64, imm: i32) -> u64 {
    let positive = u64::try_from(imm).ok();
    let result = match (operation, positive) {
        (MOV, Some(imm)) | (AND, Some(imm)) => imm,
        (MOD, Some(imm)) if imm > 0 => imm - 1,
        (RSH, Some(imm)) => most >> (imm & 63),
        (ADD, Some(imm)) => most.saturating_add(imm),
        (DIV, Some(imm)) if imm > 0 => most / imm,
        _ => u64::MAX,
    };
    if width == W32 { result.min(0xffff_ffff) } else { result }
}

impl Writer {
    // ---- registers ----

    pub(crate) fn writable(&self, register: u8) -> bool {
        self.state.kept & 1 << register == 0
    }

    pub(crate) fn choose(&mut self, fits: impl Fn(u8, Held) -> bool) -> Option<u8> {
        let first = self.random.below(10) as u8;
        (0..10).map(|n| (first + n) % 10).find(|register| fits(*register, self.state.r[usize::from(*register)]))
    }

    pub(crate) fn holding(&mut self, fits: impl Fn(Held) -> bool) -> Option<u8> {
        self.choose(|_, held| fits(held))
    }

    pub(crate) fn number(&mut self) -> Option<u8> {
        self.holding(Held::is_number)
    }

    /// A register for a number.
    fn for_number(&mut self) -> u8 {
        let (fixed, kept) = (self.state.fixed, self.state.kept);
        let pointers = self.random.one_in(12);
        self.choose(|register, held| {
            let bit = 1u16 << register;
            kept & bit == 0 && (held.is_number() || (fixed & bit == 0 && (pointers || held == Held::Unset)))
        })
        .unwrap_or(0)
    }

    /// A register for an address.
    fn for_pointer(&mut self, low: u8) -> u8 {
        let taken = self.state.fixed | self.state.kept;
        self.choose(|register, held| {
            taken & 1 << register == 0 && register >= low && (held == Held::Unset || held.is_number())
        })
        .unwrap_or(0)
    }

    pub(crate) fn number_or_set(&mut self) -> u8 {
        match self.number() {
            Some(register) => register,
            None => {
                let register = self.for_number();
                self.fresh_number(register);
                register
            }
        }
    }

    pub(crate) fn hold(&mut self, register: u8, held: Held) {
        self.state.r[usize::from(register)] = held;
    }

    fn held(&self, register: u8) -> Held {
        if register == 10 {
            Held::Memory { sort: Sort::Frame, before: self.frame_bytes, after: 0 }
        } else {
            self.state.r[usize::from(register)]
        }
    }

    /// A number that nobody knows beforehand, mostly.
    pub(crate) fn fresh_number(&mut self, register: u8) {
        let context = self.holding(|held| held == Held::Context);
        match (self.random.below(4), context) {
            (0, _) | (_, None) => {
                let value = self.random.edge();
                self.code.wide(register, 0, value as u32, (value >> 32) as u32);
                self.hold(register, Held::Number(value));
            }
            (_, Some(context)) => {
                let (bytes, off) = self.context_place();
                let signed = self.prog_type == prog_type::KPROBE && self.random.one_in(5);
                self.code.load(bytes, signed, register, context, off);
                let unsigned = bytes < 8 && !signed;
                self.hold(register, Held::Number(if unsigned { (1 << (8 * bytes)) - 1 } else { u64::MAX }));
            }
        }
    }

    pub(crate) fn load_number(&mut self) {
        let register = self.for_number();
        self.fresh_number(register);
    }

    /// Less than `limit`; after a slip, perhaps the limit.
    fn below_or_slip(&mut self, limit: u64) -> u64 {
        let over = u64::from(self.slip());
        self.random.below(limit + over)
    }

    // ---- arithmetic ----

    pub(crate) fn arithmetic(&mut self) {
        let Some(dst) = self.number().filter(|register| self.writable(*register)) else { return self.load_number() };
        let width = self.random.of(&[W32, W64]);
        let most = match self.held(dst) {
            Held::Number(most) => most,
            _ => u64::MAX,
        };
        let most = match self.random.below(12) {
            0 => {
                let to = self.for_number();
                let bits = self.random.of(&[8, 16, 32]);
                let width = if bits == 32 { W64 } else { width };
                self.code.push(width | MOV | 0x08, to, dst, bits, 0);
                self.hold(to, Held::ANY);
                return;
            }
            1 => {
                self.code.push(width | 0x80, dst, 0, 0, 0);
                u64::MAX
            }
            2 => {
                let bits = self.random.of(&[16, 32, 64]);
                let opcode = self.random.of(&[0xd4, 0xdc, 0xd7]);
                self.code.push(opcode, dst, 0, 0, bits);
                if bits < 64 { (1 << bits) - 1 } else { u64::MAX }
            }
            3 => {
                let to = self.for_number();
                self.code.alu(width, MOV, to, Right::Reg(dst));
                self.hold(to, Held::Number(if width == W32 { most.min(0xffff_ffff) } else { most }));
                return;
            }
            4..=6 => {
                let Some(src) = self.number() else { return };
                let operation = self.random.of(&OPERATIONS);
                self.code.alu(width, operation, dst, Right::Reg(src));
                self.sign_division(operation);
                u64::MAX
            }
            _ => {
                let operation = self.random.of(&OPERATIONS);
                let bits = if width == W64 { 64 } else { 32 };
                let imm = match operation {
                    LSH | RSH | ARSH => self.below_or_slip(bits) as i32,
                    DIV | MOD => (self.random.edge() as i32).max(i32::from(!self.slip())),
                    _ => self.random.edge() as i32,
                };
                self.code.alu(width, operation, dst, Right::Imm(imm));
                if self.sign_division(operation) { u64::MAX } else { most_after(width, operation, most, imm) }
            }
        };
        self.hold(dst, Held::Number(most));
    }

    /// Makes a division one of signed numbers, sometimes.
    fn sign_division(&mut self, operation: u8) -> bool {
        let signed = matches!(operation, DIV | MOD) && self.random.one_in(2);
        if let (true, Some(last)) = (signed, self.code.insns.last_mut()) {
            last.off = 1;
        }
        signed
    }

    pub(crate) fn noise(&mut self) {
        let opcode = self.random.of(&[0x07, 0x0f, 0x1f, 0xbf, 0x61, 0x79, 0x63, 0x7b, 0x71, 0xb7, 0xbc, 0x04, 0x72]);
        let (dst, src, off) = (self.random.below(11) as u8, self.random.below(11) as u8, self.random.below(17));
        let takes_imm = matches!(opcode, 0x07 | 0xb7 | 0x04 | 0x72);
        let imm = if takes_imm { self.random.edge() as i32 } else { 0 };
        let is_access = matches!(opcode, 0x61 | 0x79 | 0x63 | 0x7b | 0x71 | 0x72);
        let off = if is_access { off as i16 - 8 } else { 0 };
        self.code.push(opcode, dst, if takes_imm { 0 } else { src }, off, imm);
    }

    // ---- the stack ----

    /// Bytes of a new place in the frame: distance from r10, which it starts at, and what lies there.
    pub(crate) fn frame_place(&mut self) -> (i32, i32) {
        let slots = (self.frame_bytes / 8) as u64;
        let off = 8 * (1 + self.random.below(slots)) as i32;
        (off, off)
    }

    pub(crate) fn slot(&mut self) -> usize {
        self.random.below((self.frame_bytes / 8) as u64) as usize
    }

    pub(crate) fn slot_off(slot: usize) -> i32 {
        -8 * (slot as i32 + 1)
    }

    /// What lies in these bytes of the frame is a number now.
    pub(crate) fn frame_written(&mut self, start: i32, bytes: i32) {
        for slot in 0..SLOTS {
            let off = Writer::slot_off(slot);
            if off < start + bytes && start < off + 8 {
                self.state.slots[slot] = Held::ANY;
            }
        }
    }

    pub(crate) fn spill(&mut self) {
        let Some(register) = self.holding(|held| held != Held::Unset) else { return self.load_number() };
        let (slot, held) = (self.slot(), self.held(register));
        if held.is_number() && self.random.one_in(3) {
            let bytes = self.random.of(&SIZES);
            let within = self.random.below(u64::from(8 / bytes)) as i32 * bytes as i32;
            self.code.store(bytes, 10, Writer::slot_off(slot) + within, Right::Reg(register));
            self.state.slots[slot] = Held::ANY;
        } else {
            self.code.store(8, 10, Writer::slot_off(slot), Right::Reg(register));
            self.state.slots[slot] = held;
        }
    }

    pub(crate) fn fill(&mut self) {
        let slot = self.slot();
        let held = self.state.slots[slot];
        if held == Held::Unset && !self.random.one_in(8) {
            return self.spill();
        }
        let off = Writer::slot_off(slot);
        if held.is_number() || held == Held::Unset || self.slip() {
            let bytes = self.random.of(&SIZES);
            let within = self.random.below(u64::from(8 / bytes)) as i32 * bytes as i32;
            let signed = bytes < 8 && self.random.one_in(3);
            let register = self.for_number();
            self.code.load(bytes, signed, register, 10, off + within);
            let whole = bytes == 8 && held != Held::Unset;
            self.hold(register, if whole { held } else { Held::ANY });
        } else {
            let register = self.for_pointer(0);
            self.code.load(8, false, register, 10, off);
            self.hold(register, held);
        }
    }

    // ---- accesses ----

    /// An access of `bytes` between `-before` and `after`: where.
    fn place(&mut self, bytes: i32, before: i32, after: i32) -> i32 {
        let (low, high) = (-before, (after - bytes).max(-before));
        if self.slip() {
            return self.random.of(&[low - 1, high + 1, high + bytes, low - bytes]);
        }
        match self.random.below(4) {
            0 => low,
            1 => high,
            _ => low + self.random.below((high - low + 1) as u64) as i32,
        }
    }

    /// Reads or writes memory through a register.
    fn access(&mut self, pointer: u8) {
        let Held::Memory { sort, before, after } = self.held(pointer) else { return };
        let fitting: Vec<u32> = SIZES.into_iter().filter(|bytes| *bytes as i32 <= before + after).collect();
        if fitting.is_empty() && !self.slip() {
            return;
        }
        let bytes = if fitting.is_empty() { 1 } else { self.random.of(&fitting) };
        let mut off = self.place(bytes as i32, before, after);
        let read_only = sort == Sort::Constant && !self.slip();
        if sort == Sort::Frame && !self.slip() {
            // Accesses of the stack are aligned, and addresses that lie there are read whole.
            off = ((off - after) & !(bytes as i32 - 1)) + after;
            let slot = ((after - off - 1) / 8) as usize;
            let narrow = bytes < 8
                && self.state.slots.get(slot).is_some_and(|held| !matches!(held, Held::Unset | Held::Number(_)));
            if narrow {
                return;
            }
        }
        if read_only || self.random.one_in(2) {
            let register = self.for_number();
            let signed = bytes < 8 && self.random.one_in(4);
            self.code.load(bytes, signed, register, pointer, off);
            let most = if bytes == 8 || signed { u64::MAX } else { (1 << (8 * bytes)) - 1 };
            self.hold(register, Held::Number(most));
            if sort == Sort::Frame && bytes == 8 {
                self.read_slot(register, pointer, off);
            }
            return;
        }
        match self.number() {
            Some(value) if self.random.one_in(2) => self.code.store(bytes, pointer, off, Right::Reg(value)),
            _ => {
                let value = self.random.edge() as i32;
                self.code.store(bytes, pointer, off, Right::Imm(value));
            }
        }
        if sort == Sort::Frame {
            let Held::Memory { after, .. } = self.held(pointer) else { return };
            self.frame_written(off - after, bytes as i32);
        }
    }

    /// What an 8-byte read of the frame gave.
    fn read_slot(&mut self, register: u8, pointer: u8, off: i32) {
        let Held::Memory { after, .. } = self.held(pointer) else {
            return self.hold(register, Held::Unset);
        };
        let at = off - after;
        let slot = (-at / 8 - 1) as usize;
        let held = if at % 8 == 0 && slot < SLOTS { self.state.slots[slot] } else { Held::ANY };
        self.hold(register, if held == Held::Unset { Held::ANY } else { held });
    }

    fn memory(&mut self) -> u8 {
        let found = self.holding(|held| matches!(held, Held::Memory { .. }));
        found.filter(|_| !self.random.one_in(4)).unwrap_or(10)
    }

    pub(crate) fn access_any(&mut self) {
        let pointer = self.memory();
        self.access(pointer);
    }

    /// An access whose offset is a number within bounds.
    pub(crate) fn access_at_number(&mut self) {
        let base = self.memory();
        let Held::Memory { sort, before, after } = self.held(base) else { return };
        let on_stack = matches!(sort, Sort::Frame | Sort::Outer);
        let sizes: &[u32] = if on_stack && !self.slip() { &[1] } else { &SIZES };
        let bytes = self.random.of(sizes).min((before + after) as u32).max(1);
        let room = before + after - bytes as i32;
        if room < 0 {
            return;
        }
        let entry = self.state.clone();
        let (number, pointer) = (self.for_number(), self.for_pointer(0));
        if number == pointer || number == base || pointer == base || !self.writable(number) || !self.writable(pointer)
        {
            return;
        }
        if !self.held(number).is_number() {
            self.fresh_number(number);
        }
        let room = room.min(i32::from(u16::MAX));
        let guards = self.bound(number, room as u64, &[number, pointer, base]);
        self.hold(number, Held::Number(room as u64));
        self.guarded(guards, &entry, |writer| {
            writer.code.copy(pointer, base);
            if before > 0 && writer.random.one_in(4) && (!on_stack || writer.slip()) {
                // From the end down.
                writer.code.add(pointer, after - bytes as i32);
                writer.code.alu(W64, SUB, pointer, Right::Reg(number));
            } else {
                writer.code.add(pointer, -before);
                writer.code.alu(W64, ADD, pointer, Right::Reg(number));
            }
            let sort = if sort == Sort::Frame { Sort::Outer } else { sort };
            writer.hold(pointer, Held::Memory { sort, before: 0, after: bytes as i32 });
            if sort == Sort::Outer {
                writer.state.slots.fill(Held::Unset);
            }
            writer.access(pointer);
            if writer.random.one_in(3) {
                writer.access(pointer);
            }
        });
    }

    pub(crate) fn pointer_arithmetic(&mut self) {
        let base = self.memory();
        let Held::Memory { sort, before, after } = self.held(base) else { return };
        if sort == Sort::Packet && after > 0 && self.random.one_in(2) {
            return self.access(base);
        }
        let pointer = self.for_pointer(0);
        if pointer == base || !self.writable(pointer) {
            return;
        }
        self.code.copy(pointer, base);
        let by = self.random.below((before + after + 1) as u64) as i32 - before;
        let on_stack = matches!(sort, Sort::Frame | Sort::Outer);
        match self.random.below(4) {
            0 if !on_stack || self.slip() => self.code.alu(W64, SUB, pointer, Right::Imm(-by)),
            1 => {
                // There and back again.
                let far = self.random.of(&[1, 8, 4096, 1 << 20]);
                self.code.add(pointer, far);
                self.code.add(pointer, by - far);
            }
            2 => {
                let other = self.for_number();
                if other == pointer || other == base {
                    return self.hold(pointer, Held::Memory { sort, before, after });
                }
                self.code.copy(other, base);
                self.code.alu(W64, SUB, other, Right::Reg(base));
                self.hold(other, Held::ANY);
                return self.hold(pointer, Held::Memory { sort, before, after });
            }
            _ => self.code.add(pointer, by),
        }
        self.hold(pointer, Held::Memory { sort, before: before + by, after: after - by });
        self.access(pointer);
    }

    pub(crate) fn atomic_any(&mut self) {
        let pointer = self.memory();
        let Held::Memory { sort, before, after } = self.held(pointer) else { return };
        let bytes = self.random.of(&[4i32, 8]);
        let barred = matches!(sort, Sort::Packet | Sort::Constant) && !self.slip();
        let Some(value) = self.number().filter(|register| self.writable(*register)) else {
            return self.load_number();
        };
        if barred || before + after < bytes {
            return;
        }
        let mut off = self.place(bytes, before, after);
        // Whole places, seen from the start of the memory.
        if !self.slip() {
            off = (off + before) / bytes * bytes - before;
        }
        let operation = self.random.of(&[0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1, 0x100, 0x110]);
        if operation == 0xf1 && !self.held(0).is_number() {
            self.code.set(0, 0);
            if self.held(0) != Held::Unset && self.state.fixed & 1 == 0 && !self.writable(0) {
                return;
            }
            self.hold(0, Held::Number(0));
        }
        let opcode = if bytes == 8 { 0xdb } else { 0xc3 };
        if pointer == 0 && operation == 0xf1 || value == pointer {
            return;
        }
        match operation {
            0x100 => self.code.push(opcode, value, pointer, off as i16, operation),
            _ => self.code.push(opcode, pointer, value, off as i16, operation),
        }
        if operation == 0xf1 {
            self.hold(0, Held::ANY);
        } else if operation & 1 != 0 || operation == 0x100 {
            self.hold(value, Held::ANY);
        }
        if sort == Sort::Frame {
            // The old value may have been an address.
            self.frame_written(off - after, bytes);
        }
    }

    // ---- the context ----

    fn context_place(&mut self) -> (u32, i32) {
        match self.prog_type {
            prog_type::KPROBE => {
                let bytes = self.random.of(&[8, 8, 8, 4, 2, 1]);
                let places = 168 / u64::from(bytes);
                let place = self.below_or_slip(places);
                (bytes, place as i32 * bytes as i32)
            }
            prog_type::XDP => (4, self.random.of(&[12, 16])),
            _ => {
                let word = self.random.of(&[0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 52, 56, 60, 64, 68]);
                let bytes = self.random.of(&[4, 4, 4, 2, 1]);
                (bytes, word)
            }
        }
    }

    pub(crate) fn context_access(&mut self) {
        let Some(context) = self.holding(|held| held == Held::Context) else { return };
        let register = self.number_or_set();
        match self.prog_type {
            prog_type::SOCKET_FILTER => {
                let place = self.below_or_slip(5);
                self.code.store(4, context, 48 + 4 * place as i32, Right::Reg(register));
            }
            _ => {
                if self.slip() {
                    return self.code.store(4, context, 16, Right::Reg(register));
                }
                self.load_number();
            }
        }
    }

    /// The packet's start and end, a check, and what it allows.
    pub(crate) fn packet(&mut self) {
        let Some(context) = self.holding(|held| held == Held::Context) else { return };
        let entry = self.state.clone();
        let (data, end, probe) = (self.for_pointer(0), self.for_pointer(0), self.for_pointer(0));
        let distinct = data != end && end != probe && data != probe && ![data, end, probe].contains(&context);
        if !distinct || ![data, end, probe].into_iter().all(|register| self.writable(register)) {
            return;
        }
        let member = if self.slip() { 8 } else { 0 };
        self.code.load(4, false, data, context, member);
        self.code.load(4, false, end, context, 4);
        let room = self.random.of(&[0, 1, 2, 8, 14, 15, 34, 64, 255, 4000]);
        let mut guards = vec![];
        if self.random.one_in(3) {
            // Somewhere in the packet, at a number.
            let number = probe;
            self.fresh_number(number);
            let most = self.random.of(&[1, 8, 64, 255, 0x7fff, 0xffff]);
            guards = self.bound(number, most, &[data, end, probe]);
            self.code.alu(W64, ADD, data, Right::Reg(number));
        }
        self.code.copy(probe, data);
        self.code.add(probe, room);
        let room = if self.slip() { room + 1 } else { room };
        match self.random.below(6) {
            0 | 1 => guards.push(self.code.jump(JMP, JGT, probe, Right::Reg(end))),
            2 => guards.push(self.code.jump(JMP, JLT, end, Right::Reg(probe))),
            3 => {
                let inside = self.code.jump(JMP, JLE, probe, Right::Reg(end));
                guards.push(self.code.always());
                self.code.land(inside);
            }
            4 => {
                let inside = self.code.jump(JMP, JGE, end, Right::Reg(probe));
                guards.push(self.code.always());
                self.code.land(inside);
            }
            // More than is needed.
            _ => guards.push(self.code.jump(JMP, JGE, probe, Right::Reg(end))),
        }
        self.hold(data, Held::Memory { sort: Sort::Packet, before: 0, after: room });
        self.hold(end, Held::PacketEnd);
        self.hold(probe, Held::Memory { sort: Sort::Packet, before: room, after: 0 });
        let moves = self.random.one_in(12);
        self.guarded(guards, &entry, |writer| {
            let pointer = writer.random.of(&[data, probe]);
            writer.access(pointer);
            writer.block();
            if moves {
                writer.code.copy(1, context);
                writer.code.set(2, 0);
                writer.code.call(helper::XDP_ADJUST_HEAD);
                writer.state.clobber();
                let slip = writer.slip();
                writer.forget_packets(slip);
                writer.hold(0, Held::ANY);
            }
        });
        if moves {
            let slip = self.slip();
            self.forget_packets(slip);
        }
    }

    fn forget_packets(&mut self, slip: bool) {
        let state = &mut self.state;
        for held in state.r.iter_mut().chain(&mut state.slots) {
            if matches!(held, Held::Memory { sort: Sort::Packet, .. } | Held::PacketEnd) && !slip {
                *held = Held::Unset;
            }
        }
    }

    // ---- maps ----

    /// Puts a key into the frame and its address into a register.
    fn key(&mut self, register: u8, bytes: u32) {
        let off = Writer::slot_off(self.slot());
        match self.number() {
            Some(number) if self.random.one_in(3) => self.code.store(8, 10, off, Right::Reg(number)),
            _ => {
                let key = self.random.below(6) as i32;
                self.code.store(self.random.of(&[8, bytes]), 10, off, Right::Imm(key));
            }
        }
        self.frame_written(off, 8);
        self.code.copy(register, 10);
        let off = if self.slip() { off + 512 - self.frame_bytes } else { off };
        self.code.add(register, off);
    }

    pub(crate) fn lookup(&mut self) {
        let map = self.random.of(&[0usize, 0, 1, 1, 2, 6, 3]);
        self.key(2, MAPS[map].key_bytes);
        self.code.wide(1, 5, map as u32, 0);
        self.code.call(helper::MAP_LOOKUP_ELEM);
        self.state.clobber();
        let sort = if MAPS[map].constant.is_some() { Sort::Constant } else { Sort::Value };
        let value = Held::Memory { sort, before: 0, after: MAPS[map].value_bytes as i32 };
        self.checked(value, 0);
    }

    /// r0 is an address or zero: a check, and what it allows.
    fn checked(&mut self, found: Held, keep: u8) {
        // A copy is checked with it.
        let copy = if keep != 0 { keep } else { self.for_pointer(1) };
        let copied = copy != 0 && self.writable(copy) && (keep != 0 || self.random.one_in(2));
        if copied {
            self.code.copy(copy, 0);
            self.hold(copy, Held::Unset);
        }
        let spilled = self.random.one_in(5).then(|| self.slot());
        if let Some(slot) = spilled {
            self.code.store(8, 10, Writer::slot_off(slot), Right::Reg(0));
            self.state.slots[slot] = Held::Unset;
        }
        let entry = self.state.clone();
        let tested = if copied && self.random.one_in(3) { copy } else { 0 };
        let mut guards = vec![];
        if !self.slip() {
            match self.random.below(8) {
                0 => {
                    let inside = self.code.jump(JMP, JNE, tested, Right::Imm(0));
                    guards.push(self.code.always());
                    self.code.land(inside);
                }
                1 if self.slip() => guards.push(self.code.jump(JMP32, JEQ, tested, Right::Imm(0))),
                _ => guards.push(self.code.jump(JMP, JEQ, tested, Right::Imm(0))),
            }
        }
        self.hold(0, found);
        if copied {
            self.hold(copy, found);
        }
        if let Some(slot) = spilled {
            self.state.slots[slot] = found;
        }
        if keep != 0 {
            self.state.kept |= 1 << keep;
            self.state.records += 1;
        }
        self.guarded(guards, &entry, |writer| {
            let pointer = if copied && writer.random.one_in(2) { copy } else { 0 };
            writer.access(pointer);
            writer.block();
            if keep != 0 {
                writer.submit(keep);
            }
        });
    }

    pub(crate) fn constant_value(&mut self) {
        let (map, register) = (self.random.of(&[2usize, 3, 3]), self.for_pointer(0));
        if !self.writable(register) {
            return;
        }
        let bytes = MAPS[map].value_bytes as i32;
        let off = self.random.below(bytes as u64) as i32;
        self.code.wide(register, 6, map as u32, off as u32);
        let sort = if map == 3 { Sort::Constant } else { Sort::Value };
        self.hold(register, Held::Memory { sort, before: off, after: bytes - off });
        self.access(register);
    }

    pub(crate) fn change_map(&mut self) {
        let map = self.random.of(&[0usize, 1, 1, 6]);
        self.key(2, MAPS[map].key_bytes);
        let updates = self.random.one_in(2) && self.frame_bytes >= MAPS[map].value_bytes as i32;
        if updates {
            let bytes = MAPS[map].value_bytes as i32;
            let held = self.holding(
                |held| matches!(held, Held::Memory { sort: Sort::Value, before: 0, after } if after >= bytes),
            );
            match held.filter(|register| *register > 3) {
                Some(register) => self.code.copy(3, register),
                None => {
                    self.code.copy(3, 10);
                    let short = i32::from(self.slip()) * 8;
                    self.code.add(3, short - (bytes + 7) / 8 * 8);
                }
            }
            let flags = self.random.of(&[0, 0, 1, 2, 3]);
            self.code.set(4, flags);
        }
        self.code.wide(1, 5, map as u32, 0);
        self.code.call(if updates { helper::MAP_UPDATE_ELEM } else { helper::MAP_DELETE_ELEM });
        self.state.clobber();
        self.hold(0, Held::ANY);
    }

    // ---- helpers ----

    pub(crate) fn helper_number(&mut self) {
        let plain = [helper::KTIME_GET_NS, helper::GET_PRANDOM_U32, helper::GET_SMP_PROCESSOR_ID];
        let helper = if self.prog_type == prog_type::KPROBE && self.random.one_in(3) {
            helper::GET_CURRENT_PID_TGID
        } else {
            self.random.of(&plain)
        };
        self.code.call(helper);
        self.state.clobber();
        self.hold(0, Held::Number(if helper == helper::GET_PRANDOM_U32 { 0xffff_ffff } else { u64::MAX }));
    }

    /// Memory and its size, in these registers; what jumps away if the size is too much.
    fn sized(&mut self, memory: u8, size: u8, least: i32) -> Vec<Open> {
        let given = self.holding(|held| {
            matches!(held, Held::Memory { sort: Sort::Value | Sort::Record | Sort::Outer, after: 1.., .. })
        });
        let given = given.filter(|register| *register > 5 && self.random.one_in(2));
        let room = match given.map(|register| (register, self.held(register))) {
            Some((register, Held::Memory { after, .. })) => {
                self.code.copy(memory, register);
                after
            }
            _ => {
                let (off, room) = self.frame_place();
                self.code.copy(memory, 10);
                self.code.add(memory, -off);
                self.frame_written(-off, room);
                room
            }
        };
        match self.number().filter(|register| *register != memory && room > least && self.random.one_in(2)) {
            Some(number) => {
                if number != size {
                    self.code.copy(size, number);
                }
                let guards = self.bound(size, (room - least) as u64, &[memory, size]);
                if least > 0 && !self.slip() {
                    self.code.add(size, least);
                }
                guards
            }
            None => {
                let slip = self.slip();
                let over = self.random.of(&[room + 1, -1, 0]);
                let exact = self.random.of(&[room, room, least.min(room), (room / 2).max(least)]);
                self.code.set(size, if slip { over } else { exact });
                vec![]
            }
        }
    }

    pub(crate) fn helper_with_size(&mut self) {
        let entry = self.state.clone();
        let context = self.holding(|held| held == Held::Context);
        let (helper, guards) = match (self.prog_type, self.random.below(3)) {
            (_, 0) => {
                let guards = self.sized(2, 3, 0);
                self.code.wide(1, 5, 4, 0);
                self.code.set(4, 0);
                (helper::RINGBUF_OUTPUT, guards)
            }
            (prog_type::KPROBE, 1) => (helper::GET_CURRENT_COMM, self.sized(1, 2, 1)),
            (prog_type::KPROBE, _) => {
                let guards = self.sized(1, 2, 0);
                self.code.set(3, 64);
                let reads = [helper::PROBE_READ_KERNEL, helper::PROBE_READ_USER, helper::PROBE_READ];
                (self.random.of(&reads), guards)
            }
            (prog_type::SOCKET_FILTER, _) => {
                let Some(context) = context.filter(|register| *register > 5) else { return };
                let guards = self.sized(3, 4, 1);
                self.code.copy(1, context);
                self.code.set(2, 0);
                (helper::SKB_LOAD_BYTES, guards)
            }
            _ => {
                let guards = self.sized(1, 2, 0);
                self.code.set(3, 0);
                self.code.set(4, 0);
                self.code.set(5, 0);
                (helper::CSUM_DIFF, guards)
            }
        };
        self.guarded(guards, &entry, |writer| {
            writer.code.call(helper);
            writer.state.clobber();
            writer.hold(0, Held::ANY);
        });
        // Whichever path was taken, these were written.
        for register in 1..6 {
            self.hold(register, Held::Unset);
        }
    }

    /// A ring buffer record: reserved, checked, written, submitted.
    pub(crate) fn record(&mut self) {
        let keep = self.for_pointer(6);
        if keep < 6 || !self.writable(keep) {
            return self.helper_number();
        }
        let bytes = self.random.of(&[1, 8, 12, 24, 64]);
        self.code.wide(1, 5, 4, 0);
        self.code.set(2, bytes);
        self.code.set(3, 0);
        self.code.call(helper::RINGBUF_RESERVE);
        self.state.clobber();
        self.checked(Held::Memory { sort: Sort::Record, before: 0, after: bytes }, keep);
        self.hold(keep, Held::Unset);
    }

    fn submit(&mut self, record: u8) {
        let times = if self.slip() { self.random.of(&[0, 2]) } else { 1 };
        for _ in 0..times {
            self.code.copy(1, record);
            self.code.set(2, 0);
            let helper = self.random.of(&[helper::RINGBUF_SUBMIT, helper::RINGBUF_DISCARD]);
            self.code.call(helper);
        }
        self.state.clobber();
        if self.slip() {
            self.access(record);
        }
        let state = &mut self.state;
        for held in state.r.iter_mut().chain(&mut state.slots) {
            if matches!(held, Held::Memory { sort: Sort::Record, .. }) {
                *held = Held::Unset;
            }
        }
        self.state.records -= 1;
    }
}
