// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static tracepoints of `ring3_trace!` with arguments of every kind.
//!
//! Of each line "EVENT N" of input it reports the event N times, for 0 to N - 1, and prints N, or for "enabled" what
//! `ring3_trace_enabled!` says.
#![deny(unsafe_code)]

use std::io::BufRead;

use ring3_tracepoint::{ring3_trace, ring3_trace_enabled};

struct Order {
    id: i32,
    cents: u64,
    shelf: i16,
    row: u16,
    mood: i8,
    boxes: u8,
    paid: bool,
    letter: char,
    weight: f32,
    price: f64,
    customer: String,
}

#[inline(never)]
fn nothing() {
    ring3_trace!(shop, nothing);
}

#[inline(never)]
fn integers(o: &Order, round: usize) {
    ring3_trace!(shop, integers, id = o.id, shelf = o.shelf, row = o.row, mood = o.mood, boxes = o.boxes, paid = o.paid);
    ring3_trace!(shop, longs, cents = o.cents, round, rest = round % 3 | 8, seven = -7i64, all = u64::MAX, letter = o.letter,);
    ring3_trace!(
        shop, twelve, a = 1, b = o.id, c = 3, round, e = 5, f = o.cents, g = 7, h = o.paid, i = 9, j = o.row, k = 11, l = 12u8
    );
}

#[inline(never)]
fn texts(o: &Order, round: usize) {
    let local = format!("{round}");
    ring3_trace!(shop, texts, customer: &str = &o.customer, bytes: &[u8] = b"by\x00tes", local: &str = local.as_str());
}

#[inline(never)]
fn numbers(o: &Order, d: f64) {
    ring3_trace!(shop, numbers, weight = o.weight, price = o.price, d, order = o, address = std::ptr::from_ref(o));
}

#[inline(always)]
fn shipped(number: i64, last: bool) {
    ring3_trace!(shop, shipped, number, last);
}

#[inline(never)]
fn ship(from: i64, to: i64) {
    for number in from..to {
        shipped(number, number + 1 == to);
    }
    shipped(-1, true);
}

#[inline(never)]
fn guarded(o: &Order) -> bool {
    if ring3_trace_enabled!(shop, guarded) {
        ring3_trace!(shop, guarded, length = o.customer.chars().count());
    }
    ring3_trace_enabled!(shop, guarded)
}

fn main() {
    let mut order = Order {
        id: 41,
        cents: 1 << 40,
        shelf: -3,
        row: 65000,
        mood: -5,
        boxes: 200,
        paid: true,
        letter: 'z',
        weight: 1.5,
        price: 2.25,
        customer: "Ada".to_owned(),
    };
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Some((word, rounds)) = line.split_once(' ') else { continue };
        let rounds: usize = rounds.parse().expect("a number");
        for round in 0..rounds {
            match word {
                "nothing" => nothing(),
                "integers" => integers(&order, round),
                "texts" => texts(&order, round),
                "numbers" => numbers(&order, round as f64 / 4.0),
                "ship" => ship(round as i64, round as i64 + 2),
                "guarded" => _ = guarded(&order),
                _ => {}
            }
            order.id += 1;
        }
        println!("{}", if word == "enabled" { usize::from(guarded(&order)) } else { rounds });
    }
}
