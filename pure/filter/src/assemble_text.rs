//! Code for what is asked of a text: it falls through if the text answers, and jumps if not.
//!
//! Literals are compared up to 8 bytes at a time, and the zero byte at the end with them: a text of another beginning costs one
//! comparison, however long it may be. Where a pattern has an inner star, the code goes through the text in a loop.
//!
//! The loops are made for verifiers. `may_goto` makes them end, and lets a verifier take a second round for the first if all that it
//! knows of the first is true of the second. So the position must not be a constant to begin with: it is a word less itself.

use crate::assemble::{Outcome, Place, Writer, line};
use crate::glob::{Element, Glob};
use crate::scope::Context;
use crate::text::{Question, Subject};

/// A text's address: a register and a distance.
#[derive(Clone, Copy)]
struct Pointer {
    register: u8,
    at: i32,
}

impl Writer<'_> {
    /// Jumps to `fail` if a text does not answer a question.
    pub(crate) fn question(&mut self, subject: Subject, question: &Question, fail: &str) -> Outcome {
        match question {
            Question::OneOf(literals) => self.literals(subject, literals, fail),
            Question::Matches(glob) => self.glob(subject, glob, fail),
            Question::Is(other) => self.same(subject, *other, fail),
        }
    }

    fn text_place(&self, subject: Subject) -> Place {
        match subject {
            Subject::Field(index) => self.places.place(index),
            Subject::Comm => self.places.context(Context::Comm),
        }
    }

    fn bytes_max(&self, subject: Subject) -> usize {
        match self.text_place(subject) {
            Place::Text { bytes_max, .. } | Place::TextPointer { bytes_max, .. } => bytes_max as usize,
            other => panic!("a text is at {other:?}"),
        }
    }

    /// A text's address for accesses at constant distances.
    fn pointer(&mut self, subject: Subject) -> Pointer {
        let bytes_max = self.bytes_max(subject) as i32;
        match self.text_place(subject) {
            Place::Text { base, at, .. } if i32::from(at) + bytes_max <= i32::from(i16::MAX) => {
                Pointer { register: base, at: at.into() }
            }
            _ => {
                self.address(1, subject);
                Pointer { register: 1, at: 0 }
            }
        }
    }

    /// A text's address in a register.
    fn address(&mut self, register: u8, subject: Subject) {
        match self.text_place(subject) {
            Place::Text { base, at, .. } => {
                line!(self, "r{register} = r{base}");
                line!(self, "r{register} += {at}");
            }
            Place::TextPointer { slot, .. } => line!(self, "r{register} = *(u64 *)(r10 {slot:+})"),
            other => panic!("a text is at {other:?}"),
        }
    }

    fn literals(&mut self, subject: Subject, literals: &[Vec<u8>], fail: &str) -> Outcome {
        let bytes_max = self.bytes_max(subject);
        let fitting: Vec<&Vec<u8>> = literals.iter().filter(|literal| literal.len() < bytes_max).collect();
        let Some((last, first)) = fitting.split_last() else { return Outcome::Never };
        let pointer = self.pointer(subject);
        let yes = self.labels.label();
        for literal in first {
            let next = self.labels.label();
            self.literal(pointer, 0, literal, true, &next);
            line!(self, "goto {yes}");
            line!(self, "{next}:");
        }
        self.literal(pointer, 0, last, true, fail);
        line!(self, "{yes}:");
        Outcome::Branches
    }

    /// Compares the bytes at a distance with a literal, and its zero byte.
    fn literal(&mut self, pointer: Pointer, at: usize, literal: &[u8], with_zero: bool, fail: &str) {
        let mut bytes = literal.to_vec();
        if with_zero {
            bytes.push(0);
        }
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.len() - done;
            // Of the last bytes, some may be compared once more: 7 bytes are two words.
            let enough = rest.next_power_of_two();
            let size = match rest {
                8.. => 8,
                _ if enough <= bytes.len() => enough,
                _ => enough / 2,
            };
            let begin = done.min(bytes.len() - size);
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[begin..begin + size]);
            let word = u64::from_le_bytes(word);
            self.byte_load(0, pointer, at + begin, size);
            match (size, i32::try_from(word as i64)) {
                (8, Err(_)) => {
                    line!(self, "r5 = {word} ll");
                    line!(self, "if r0 != r5 goto {fail}");
                }
                (4, _) => line!(self, "if w0 != {} goto {fail}", word as u32),
                _ => line!(self, "if r0 != {} goto {fail}", word as i64),
            }
            done = begin + size;
        }
    }

    fn byte_load(&mut self, register: u8, pointer: Pointer, at: usize, size: usize) {
        let distance = pointer.at + at as i32;
        line!(self, "r{register} = *(u{} *)(r{} {distance:+})", size * 8, pointer.register);
    }

    /// Compares the bytes at a distance with elements of a pattern, and perhaps a zero byte behind them.
    fn elements(&mut self, pointer: Pointer, elements: &[Element], with_zero: bool, fail: &str) {
        let mut at = 0;
        while at < elements.len() || at == elements.len() && with_zero {
            let run = elements[at..].iter().map_while(|element| match element {
                Element::Byte(byte) => Some(*byte),
                _ => None,
            });
            let run: Vec<u8> = run.collect();
            let is_last = at + run.len() == elements.len();
            if !run.is_empty() || is_last {
                self.literal(pointer, at, &run, is_last && with_zero, fail);
                at += run.len();
                if is_last {
                    return;
                }
            }
            self.byte_load(0, pointer, at, 1);
            match &elements[at] {
                Element::Set(negated, ranges) => self.set(*negated, ranges, fail),
                _ => line!(self, "if r0 == 0 goto {fail}"),
            }
            at += 1;
        }
    }

    /// Jumps if r0 is not in a set.
    fn set(&mut self, negated: bool, ranges: &[(u8, u8)], fail: &str) {
        let yes = self.labels.label();
        if negated {
            line!(self, "if r0 == 0 goto {fail}");
        }
        for (index, (low, high)) in ranges.iter().enumerate() {
            let jumps_if_in = negated || index + 1 < ranges.len();
            let target = if jumps_if_in && !negated { &yes } else { fail };
            if low == high {
                line!(self, "if r0 {} {low} goto {target}", if jumps_if_in { "==" } else { "!=" });
            } else {
                line!(self, "r5 = r0");
                line!(self, "r5 -= {low}");
                line!(self, "if r5 {} {} goto {target}", if jumps_if_in { "<=" } else { ">" }, high - low);
            }
        }
        line!(self, "{yes}:");
    }

    fn glob(&mut self, subject: Subject, glob: &Glob, fail: &str) -> Outcome {
        let bytes_max = self.bytes_max(subject);
        if glob.bytes_min() >= bytes_max {
            return Outcome::Never;
        }
        if glob.is_all() {
            return Outcome::Always;
        }
        let (Some((first, rest)), pointer) = (glob.parts.split_first(), self.pointer(subject)) else {
            return Outcome::Never;
        };
        self.elements(pointer, first, rest.is_empty(), fail);
        let Some((last, middle)) = rest.split_last().filter(|_| glob.loops()) else { return Outcome::Branches };
        self.address(4, subject);
        self.position(bytes_max);
        if !first.is_empty() {
            line!(self, "r2 += {}", first.len());
        }
        for part in middle {
            self.search(part, bytes_max, fail);
        }
        if !last.is_empty() {
            self.end(last, bytes_max, fail);
        }
        Outcome::Branches
    }

    /// The first position, in r2, of the text at r4.
    fn position(&mut self, bytes_max: usize) {
        // (Of 8 bytes a verifier knows nothing, so that all positions are among what may be the first.)
        line!(self, "r2 = *(u{} *)(r4 +0)", if bytes_max >= 8 { 64 } else { 8 });
        line!(self, "r0 = r2");
        line!(self, "r2 -= r0");
    }

    /// Begins a round of a loop at the position r2, whose address goes to r1. `next` begins the next.
    fn round(&mut self, next: &str, last: usize, fail: &str) {
        let begin = self.labels.label();
        line!(self, "goto {begin}");
        line!(self, "{next}:");
        line!(self, "r2 += 1");
        line!(self, "{begin}:");
        line!(self, "may_goto {fail}");
        line!(self, "if r2 > {last} goto {fail}");
        line!(self, "r1 = r4");
        line!(self, "r1 += r2");
    }

    /// Finds a part from the position r2 on, and goes behind it.
    fn search(&mut self, part: &[Element], bytes_max: usize, fail: &str) {
        let next = self.labels.label();
        self.round(&next, bytes_max - 1 - part.len(), fail);
        line!(self, "r0 = *(u8 *)(r1 +0)");
        line!(self, "if r0 == 0 goto {fail}");
        self.elements(Pointer { register: 1, at: 0 }, part, false, &next);
        line!(self, "r2 += {}", part.len());
    }

    /// Compares a part with the end of the text, which must not begin before the position r2.
    fn end(&mut self, part: &[Element], bytes_max: usize, fail: &str) {
        let next = self.labels.label();
        line!(self, "r3 = r2");
        self.round(&next, bytes_max - 1, fail);
        line!(self, "r0 = *(u8 *)(r1 +0)");
        line!(self, "if r0 != 0 goto {next}");
        line!(self, "r2 -= {}", part.len());
        line!(self, "if r2 > {} goto {fail}", bytes_max - 1 - part.len());
        line!(self, "if r2 < r3 goto {fail}");
        line!(self, "r1 = r4");
        line!(self, "r1 += r2");
        self.elements(Pointer { register: 1, at: 0 }, part, false, fail);
    }

    fn same(&mut self, left: Subject, right: Subject, fail: &str) -> Outcome {
        let bytes_max = self.bytes_max(left).min(self.bytes_max(right));
        if bytes_max == 0 {
            return Outcome::Never;
        }
        let next = self.labels.label();
        self.address(4, left);
        self.address(3, right);
        self.position(bytes_max);
        self.round(&next, bytes_max - 1, fail);
        line!(self, "r0 = *(u8 *)(r1 +0)");
        line!(self, "r1 = r3");
        line!(self, "r1 += r2");
        line!(self, "r5 = *(u8 *)(r1 +0)");
        line!(self, "if r0 != r5 goto {fail}");
        line!(self, "if r0 != 0 goto {next}");
        Outcome::Branches
    }
}
