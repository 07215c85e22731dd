//! stub
mod calls { pub(crate) mod raw_bpf; }
mod random_programs;
use std::collections::BTreeMap;
use random_programs::raw_kernel::{Kernel, message};
use random_programs::judge;

#[test]
fn measure() {
    let seed: u64 = std::env::var("RING3_SEED").map_or(1, |t| t.parse().unwrap());
    let count: u64 = std::env::var("RING3_PROGRAMS").map_or(2000, |t| t.parse().unwrap());
    let specs = judge::specs();
    let kernel = Kernel::new().unwrap();
    let mut messages: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut ok, mut faults) = (0, 0);
    let mut insns = 0;
    let start = std::time::Instant::now();
    let mut tk = std::time::Duration::ZERO;
    let mut ti = std::time::Duration::ZERO;
    for n in 0..count {
        let program = ring3_generate::program(seed, n);
        insns += program.insns.len();
        let t = std::time::Instant::now();
        let accepted = kernel.accepts(&program);
        tk += t.elapsed();
        if accepted {
            ok += 1;
            let t = std::time::Instant::now();
            let r = judge::run(&program, &specs, 16);
            ti += t.elapsed();
            if let Err(fault) = r {
                faults += 1;
                if faults < 8 { println!("== program {n}: {fault} (type {})\n{}", program.prog_type, ring3_generate::text(&program.insns)); }
            }
        } else if std::env::var("LOGS").is_ok() {
            let log = kernel.judge(&program).err().unwrap_or_default();
            let m: String = message(&log).split(' ').map(|w| if w.chars().any(|c| c.is_ascii_digit()) { "#" } else { w }).collect::<Vec<_>>().join(" ");
            let e = messages.entry(m).or_default(); e.0 += 1; e.1 = n;
        }
    }
    let mut m: Vec<_> = messages.into_iter().collect();
    m.sort_by_key(|(_, c)| std::cmp::Reverse(*c));
    for (m, (c, n)) in m.into_iter().take(60) { println!("{c:6} {n:6} {m}"); }
    println!("accepted {ok}/{count}, faults {faults}, insns avg {}, {:?}, kernel {tk:?} interp {ti:?}", insns / count as usize, start.elapsed());
}
#[test]
fn show() {
    let want = std::env::var("WANT").unwrap_or_default();
    let kernel = Kernel::new().unwrap();
    let mut shown = 0;
    for n in 0..3000 {
        let program = ring3_generate::program(1, n);
        if let Err(log) = kernel.judge(&program) {
            if message(&log).contains(&want) && program.insns.len() < 40 && shown < 6 { shown += 1; println!("== {n} type {}\n{}", program.prog_type, log.lines().rev().take(14).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")); }
        }
    }
}
#[test]
fn one() {
    let n: u64 = std::env::var("N").unwrap_or("594".into()).parse().unwrap();
    let program = ring3_generate::program(1, n);
    println!("{}", ring3_generate::text(&program.insns));
    println!("{:?}", Kernel::new().unwrap().judge(&program));
}
