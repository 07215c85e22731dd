//! Programs that are as large, or as hard, as a program can be.

use ring3_isa::Insn;
use ring3_verifier::MapShape;

use crate::Subject;

const EXIT: Insn = Insn::new(0x95, 0, 0, 0, 0);
const R0_ZERO: Insn = Insn::new(0xb7, 0, 0, 0, 0);
const RANDOM: Insn = Insn::new(0x85, 0, 0, 0, 7);

const fn call(by: i32) -> Insn {
    Insn::new(0x85, 0, 1, 0, by)
}

const fn helper(id: i32) -> Insn {
    Insn::new(0x85, 0, 0, 0, id)
}

const fn wide(dst: u8, src: u8, imm: i32) -> [Insn; 2] {
    [Insn::new(0x18, dst, src, 0, imm), Insn::new(0, 0, 0, 0, 0)]
}

fn repeated(one: &[Insn], count: usize, end: &[Insn]) -> Vec<Insn> {
    let mut insns: Vec<Insn> = one.iter().copied().cycle().take(count / one.len() * one.len()).collect();
    insns.extend_from_slice(end);
    insns
}

/// Behind `head`, `body` again and again.
fn endless(head: &[Insn], body: &[Insn]) -> Vec<Insn> {
    let mut insns = [head, body].concat();
    insns.push(Insn::new(0x05, 0, 0, -(body.len() as i16) - 1, 0));
    insns
}

/// Programs of about `size` instructions, or that take as many to verify, by what they are full of.
pub(crate) fn all(size: usize) -> Vec<(&'static str, Subject)> {
    let end = [R0_ZERO, EXIT];
    let plain = |insns: Vec<Insn>| Subject::new(insns);
    let mut programs = vec![
        ("moves", plain(repeated(&[R0_ZERO], size, &end))),
        ("jumps forward", plain(repeated(&[Insn::new(0x05, 0, 0, 0, 0)], size, &end))),
        ("long jumps forward", plain(repeated(&[Insn::new(0x06, 0, 0, 0, 0)], size, &end))),
        (
            "branches that are decided",
            plain([&[R0_ZERO][..], &repeated(&[Insn::new(0x15, 0, 0, 0, 1)], size, &end)].concat()),
        ),
        (
            "branches that are not",
            plain([&[RANDOM][..], &repeated(&[Insn::new(0x15, 0, 0, 0, 1)], size, &end)].concat()),
        ),
        ("calls of helpers", plain(repeated(&[RANDOM], size, &end))),
        (
            "stores to the stack",
            plain(repeated(&[Insn::new(0x7a, 10, 0, -8, 1), Insn::new(0x7a, 10, 0, -512, 1)], size, &end)),
        ),
        ("constants of 16 bytes", plain(repeated(&wide(1, 0, 7), size, &end))),
        ("maps", plain(repeated(&wide(1, 5, 0), size, &end))),
        ("exits", plain(repeated(&[EXIT], size, &end))),
        ("may_goto to what follows", plain(repeated(&[Insn::new(0xe5, 0, 0, 0, 0)], size, &end))),
        ("nothing but one loop", plain(vec![Insn::new(0x05, 0, 0, -1, 0)])),
        ("invalid instructions", plain(repeated(&[Insn::new(0xff, 15, 15, -1, -1)], size, &end))),
    ];
    programs.push((
        "calls of one subprogram",
        plain({
            let count = size as i32;
            let calls = (0..count).map(|at| call(count - at + 1));
            calls.chain([R0_ZERO, EXIT, R0_ZERO, EXIT]).collect()
        }),
    ));
    programs.push((
        "subprograms",
        plain({
            // Each is called by the entry.
            let count = size as i32 / 3;
            let calls = (0..count).map(|at| call(count - at + 1 + at * 2));
            let rest = (0..count).flat_map(|_| [R0_ZERO, EXIT]);
            calls.chain([R0_ZERO, EXIT]).chain(rest).collect()
        }),
    ));
    programs.push((
        "subprograms that each call the next",
        plain({
            let count = size / 3;
            let links = (0..count).flat_map(|_| [call(2), R0_ZERO, EXIT]);
            links.chain([R0_ZERO, EXIT]).collect()
        }),
    ));
    programs.push(("seven levels of two calls", plain(tree(7, &[]))));
    programs
        .push(("seven levels of two calls with 512 bytes each", plain(tree(7, &[Insn::new(0x7a, 10, 0, -512, 1)]))));
    programs.push((
        "branches in a row, both paths open",
        plain({
            // `r0 = random; if r0 == 0 goto +0`: what is known is the same, but only behind 8 instructions.
            let one = [RANDOM, Insn::new(0x15, 0, 0, 1, 0), Insn::new(0x07, 6, 0, 0, 1)];
            [&[Insn::new(0xb7, 6, 0, 0, 0)][..], &repeated(&one, size.min(60_000), &end)].concat()
        }),
    ));
    programs.push((
        "paths that double at each branch",
        plain({
            let bits =
                (0..31).flat_map(|bit| [RANDOM, Insn::new(0x15, 0, 0, 1, 0), Insn::new(0x47, 6, 0, 0, 1 << bit)]);
            let used = [
                Insn::new(0xbf, 1, 10, 0, 0),
                Insn::new(0x57, 6, 0, 0, -8),
                Insn::new(0x0f, 1, 6, 0, 0),
                Insn::new(0x71, 0, 1, 0, 0),
            ];
            [Insn::new(0xb7, 6, 0, 0, 0)].into_iter().chain(bits).chain(used).chain(end).collect()
        }),
    ));
    programs.push((
        "a distance from far away",
        plain({
            let head = [RANDOM, Insn::new(0x57, 0, 0, 0, 7), Insn::new(0xbf, 6, 0, 0, 0)];
            let one = [Insn::new(0xbf, 1, 10, 0, 0), Insn::new(0x0f, 1, 6, 0, 0)];
            [&head[..], &repeated(&one, size, &end)].concat()
        }),
    ));
    programs.push((
        "records that are kept",
        Subject {
            maps: vec![crate::ring()],
            ..plain(endless(
                &[],
                &[
                    wide(1, 5, 0)[0],
                    wide(1, 5, 0)[1],
                    Insn::new(0xb7, 2, 0, 0, 8),
                    Insn::new(0xb7, 3, 0, 0, 0),
                    helper(131),
                ],
            ))
        },
    ));
    programs
        .push(("a loop that counts", plain(endless(&[Insn::new(0xb7, 6, 0, 0, 0)], &[Insn::new(0x07, 6, 0, 0, 1)]))));
    programs.push((
        "a loop that fills the stack with what it counts",
        plain({
            let stores = (1..=64).map(|slot| Insn::new(0x7b, 10, 6, slot * -8, 0));
            let body: Vec<Insn> = [Insn::new(0x07, 6, 0, 0, 1)].into_iter().chain(stores).collect();
            endless(&[Insn::new(0xb7, 6, 0, 0, 0)], &body)
        }),
    ));
    programs.push(("a loop by may_goto that writes to each of eight stacks", plain(stacks(true))));
    programs.push(("a loop that writes to each of eight stacks", plain(stacks(false))));
    programs.push(("linked numbers in each slot of eight stacks", plain(linked(size / 2, false))));
    programs.push(("linked numbers in each slot, and one path open at a time", plain(linked(size / 3, true))));
    programs.push(("rounds with many names", plain(names())));
    programs.push((
        "different maps",
        Subject {
            maps: (0..size as u32 / 2).map(|slot| MapShape { slot, ..crate::ring() }).collect(),
            ..plain((0..size as i32 / 2).flat_map(|index| wide(1, 5, index)).chain(end).collect())
        },
    ));
    programs
}

/// Two calls in each function, of the next.
fn tree(levels: usize, body: &[Insn]) -> Vec<Insn> {
    let mut insns = vec![];
    for _ in 0..levels {
        insns.extend_from_slice(body);
        insns.extend([call(3), call(2), R0_ZERO, EXIT]);
    }
    insns.extend([R0_ZERO, EXIT]);
    insns
}

/// Eight frames, of which each leaves a pointer to its stack for the next in `r6` and those before in slots; the last
/// function does `body`.
fn frames(each: &[Insn], body: &[Insn]) -> Vec<Insn> {
    let mut insns = vec![Insn::new(0xb7, 2, 0, 0, 0), Insn::new(0xb7, 3, 0, 0, 0), Insn::new(0xb7, 4, 0, 0, 0)];
    for _ in 0..7 {
        insns.extend_from_slice(each);
        insns.extend([Insn::new(0xbf, 1, 10, 0, 0), call(2), R0_ZERO, EXIT]);
    }
    insns.extend_from_slice(body);
    insns
}

fn stacks(may_goto: bool) -> Vec<Insn> {
    // Each function gets its caller's frame in r1 and leaves it in its own slot -8; the last follows the chain.
    let keep = [Insn::new(0x7b, 10, 1, -8, 0)];
    let mut body = vec![];
    body.extend(if may_goto { vec![Insn::new(0xe5, 0, 0, 0, 0)] } else { vec![] });
    body.extend([Insn::new(0x07, 6, 0, 0, 1), Insn::new(0x7b, 10, 6, -16, 0), Insn::new(0xbf, 2, 1, 0, 0)]);
    for _ in 0..6 {
        body.extend([Insn::new(0x7b, 2, 6, -16, 0), Insn::new(0x79, 2, 2, -8, 0)]);
    }
    frames(&keep, &endless(&[Insn::new(0xb7, 6, 0, 0, 0)], &body))
}

/// Rounds by may_goto, counted by a number that decides something, with a number of its own in each slot of seven frames.
fn names() -> Vec<Insn> {
    let mut insns = vec![];
    for _ in 0..7 {
        for slot in 1..=64 {
            insns.extend([RANDOM, Insn::new(0x7b, 10, 0, slot * -8, 0)]);
        }
        insns.extend([call(2), R0_ZERO, EXIT]);
    }
    insns.extend([
        Insn::new(0xb7, 6, 0, 0, 0),
        Insn::new(0xe5, 0, 0, 3, 0),
        Insn::new(0x07, 6, 0, 0, 1),
        Insn::new(0x25, 6, 0, 1, 0x7fff_ffff),
        Insn::new(0x05, 0, 0, -4, 0),
        R0_ZERO,
        EXIT,
    ]);
    insns
}

/// A number that is in all slots of all frames, and whose bounds are compared again and again: each compare tells all.
/// If `one_by_one`, the path where the number is larger ends at once, else it is left open.
fn linked(count: usize, one_by_one: bool) -> Vec<Insn> {
    let slots: Vec<Insn> = (1..=64).map(|slot| Insn::new(0x7b, 10, 2, slot * -8, 0)).collect();
    let mut insns = vec![RANDOM, Insn::new(0xbf, 2, 0, 0, 0), Insn::new(0xbf, 6, 2, 0, 0)];
    for _ in 0..7 {
        insns.extend_from_slice(&slots);
        insns.extend([call(2), R0_ZERO, EXIT]);
    }
    insns.extend(slots);
    for round in 0..count as i32 {
        let limit = 0x7fff_ffff - round;
        if one_by_one {
            let out = (count as i32 - 1 - round) * 2;
            insns.extend([Insn::new(0xb5, 2, 0, 1, limit), Insn::new(0x06, 0, 0, 0, out)]);
        } else {
            insns.push(Insn::new(0x25, 2, 0, 0, limit));
        }
    }
    insns.extend([R0_ZERO, EXIT]);
    insns
}
