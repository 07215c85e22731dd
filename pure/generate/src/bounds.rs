//! Bounds: the ways in which programs make sure that a number is small enough.

use crate::code::{
    ADD, AND, ARSH, JGE, JGT, JLT, JMP, JMP32, JNE, JSET, JSGT, JSLT, LSH, MOD, MOV, MUL, OR, Open, RSH, Right, W32,
    W64, XOR,
};
use crate::model::Held;
use crate::write::Writer;

/// The most ones that are no more than a limit.
fn mask_below(limit: u64) -> u64 {
    let above = limit + 1;
    (if above.is_power_of_two() { above } else { above.next_power_of_two() / 2 }) - 1
}

impl Writer {
    /// Makes a number at most `room`, perhaps by arithmetic on one that is bounded. What jumps away if it is more.
    /// Registers that are `busy` keep what they hold.
    pub(crate) fn bound(&mut self, register: u8, room: u64, busy: &[u8]) -> Vec<Open> {
        let (width, mask) = (self.random.of(&[W32, W64]), mask_below(room));
        let small = 1 + self.random.below(7);
        let part = self.random.below(mask + 1) as i32;
        let mut guards;
        match self.random.below(16) {
            0 => {
                guards = self.limit(register, mask, busy);
                let operation = self.random.of(&[XOR, OR, XOR, AND]);
                self.code.alu(width, operation, register, Right::Imm(part));
            }
            1 => {
                let bits = small as i32 % 4;
                guards = self.limit(register, room >> bits, busy);
                self.code.alu(width, LSH, register, Right::Imm(bits));
            }
            2 => {
                guards = self.limit(register, room / small, busy);
                self.code.alu(width, MUL, register, Right::Imm(small as i32));
            }
            3 => {
                let more = self.random.below(room + 1);
                guards = self.limit(register, room - more, busy);
                self.code.alu(width, ADD, register, Right::Imm(more as i32));
            }
            4 => {
                // room - number
                guards = self.limit(register, room, busy);
                self.code.push(0x87, register, 0, 0, 0);
                self.code.alu(W64, ADD, register, Right::Imm(room as i32));
            }
            5 => {
                guards = self.limit(register, room.min(0x7f), busy);
                let bits = self.random.of(&[8, 16, 32]);
                self.code.push(W64 | MOV | 0x08, register, register, bits, 0);
            }
            6 => {
                guards = self.limit(register, room << small, busy);
                let operation = self.random.of(&[RSH, ARSH]);
                self.code.alu(width, operation, register, Right::Imm(small as i32));
            }
            7 => {
                // Bounds that were known before, of another part of the number.
                let high = self.random.edge() as i32;
                let condition = self.random.of(&crate::write::CONDITIONS);
                let jump = self.random.of(&[JMP, JMP32]);
                guards = vec![self.code.jump(jump, condition, register, Right::Imm(high))];
                guards.extend(self.limit(register, room, busy));
            }
            _ => guards = self.limit(register, room, busy),
        }
        guards
    }

    /// A register that may be overwritten now.
    fn scratch(&mut self, busy: &[u8]) -> Option<u8> {
        let (fixed, kept) = (self.state.fixed, self.state.kept);
        self.choose(|register, held| {
            let bit = 1u16 << register;
            !busy.contains(&register)
                && kept & bit == 0
                && (held.is_number() || held == Held::Unset && fixed & bit == 0)
        })
    }

    /// Bounds that are known of something else, and hold for the number as well.
    fn limit_by_another(&mut self, way: u64, register: u8, scratch: u8, limit: i32) -> Vec<Open> {
        self.hold(scratch, Held::ANY);
        match way {
            11 => {
                let (width, jump) = self.random.of(&[(W64, JMP), (W64, JMP), (W32, JMP), (W64, JMP32)]);
                // The copy is checked; a copy of 32 bits says nothing of 64, except if they are all.
                if width == W32 || jump == JMP32 {
                    self.code.alu(W32, MOV, register, Right::Reg(register));
                }
                self.code.alu(width, MOV, scratch, Right::Reg(register));
                let checked = if self.slip() { register } else { scratch };
                vec![self.code.jump(jump, JGT, checked, Right::Imm(limit))]
            }
            12 => {
                if self.random.one_in(2) {
                    self.another_limit(register, scratch, limit);
                } else {
                    self.code.set(scratch, limit);
                }
                let (condition, left, right) = self.random.of(&[(JGT, register, scratch), (JLT, scratch, register)]);
                vec![self.code.jump(JMP, condition, left, Right::Reg(right))]
            }
            13 => {
                // Spilled, checked in the register, and taken back.
                let slot = self.slot();
                let off = Writer::slot_off(slot);
                self.code.store(8, 10, off, Right::Reg(register));
                self.frame_written(off, 8);
                self.code.copy(scratch, register);
                let guard = self.code.jump(JMP, JGT, scratch, Right::Imm(limit));
                let bytes = self.random.of(&[8, 8, 4, 2]);
                let bytes = if limit > 0xffff { 8 } else { bytes };
                self.code.load(bytes, false, register, 10, off);
                vec![guard]
            }
            _ => {
                // Bounded at another place of the number line.
                let by = self.random.of(&[1, 16, 0x7fff, 0x7fff_0000, -1, -64]);
                self.code.add(register, by);
                let high = self.code.jump(JMP, JSGT, register, Right::Imm(limit.saturating_add(by)));
                let low = self.code.jump(JMP, JSLT, register, Right::Imm(by));
                self.code.add(register, -by);
                vec![high, low]
            }
        }
    }

    /// On another path the limit is another one; what is behind is walked again only if that matters.
    fn another_limit(&mut self, register: u8, scratch: u8, limit: i32) {
        /// So many instructions, and some jumps, before a verifier keeps what it knows.
        const KEPT_AFTER: usize = 9;
        let value = self.random.edge() as i32;
        let less = self.random.below(limit.max(1) as u64) as i32;
        // Of the number itself nothing is told.
        self.code.copy(scratch, register);
        self.code.alu(W64, XOR, scratch, Right::Imm(1));
        // The path that jumps is walked last.
        let far = self.code.jump(JMP, JSET, scratch, Right::Imm(value));
        self.code.set(scratch, limit);
        let on = self.code.always();
        self.code.land(far);
        self.code.set(scratch, if self.random.one_in(2) { limit.saturating_add(1 + less) } else { less });
        self.code.land(on);
        for _ in 0..KEPT_AFTER {
            self.code.alu(W64, OR, register, Right::Imm(0));
        }
        for condition in [JNE, JSGT, JGT] {
            let nowhere = self.code.jump(JMP, condition, register, Right::Imm(value));
            self.code.land(nowhere);
        }
    }

    /// Makes a register at most `limit`; what jumps away if it is more.
    fn limit(&mut self, register: u8, limit: u64, busy: &[u8]) -> Vec<Open> {
        let limit = if self.slip() { limit.wrapping_add(1) } else { limit } as i32;
        let right = Right::Imm(limit);
        let mask = mask_below(limit.max(0) as u64);
        // Of remainders verifiers know little.
        let way = match self.random.below(15) {
            1 if !self.random.one_in(10) => 2,
            way => way,
        };
        if way > 10
            && let Some(scratch) = self.scratch(busy)
        {
            return self.limit_by_another(way, register, scratch, limit);
        }
        let code = &mut self.code;
        match way {
            0 => code.alu(self.random.of(&[W32, W64]), AND, register, Right::Imm(mask as i32)),
            1 => code.alu(self.random.of(&[W32, W64]), MOD, register, Right::Imm(limit + 1)),
            2 => return vec![code.jump(JMP, JGT, register, right)],
            3 => {
                let high = code.jump(JMP, JSGT, register, right);
                let low = code.jump(JMP, JSLT, register, Right::Imm(0));
                return vec![high, low];
            }
            4 => {
                code.alu(W32, MOV, register, Right::Reg(register));
                return vec![code.jump(JMP32, JGT, register, right)];
            }
            5 => code.alu(W64, RSH, register, Right::Imm(64 - (mask.count_ones() as i32).max(1))),
            6 => {
                let value = self.random.below(limit as u64 + 1) as i32;
                return vec![code.jump(JMP, JNE, register, Right::Imm(value))];
            }
            7 => {
                let inside = code.jump(JMP, JLT, register, Right::Imm(limit.wrapping_add(1)));
                let outside = code.always();
                code.land(inside);
                return vec![outside];
            }
            8 => return vec![code.jump(JMP, JSET, register, Right::Imm(!(mask as i32)))],
            9 => {
                // 32-bit bounds of a number whose high half is zero.
                code.alu(W64, LSH, register, Right::Imm(32));
                code.alu(W64, RSH, register, Right::Imm(32));
                let high = code.jump(JMP32, JSGT, register, right);
                let low = code.jump(JMP32, JSLT, register, Right::Imm(0));
                return vec![high, low];
            }
            _ => return vec![code.jump(JMP, JGE, register, Right::Imm(limit.wrapping_add(1)))],
        }
        // Without jumps; a mask of nothing leaves 0 or 1.
        vec![]
    }
}
