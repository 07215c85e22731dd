//! Every function of real files: planned, or refused for a reason. The table is printed.

use std::collections::BTreeMap;

use ring3_patch::{
    AgentStackLinks, Entries, Function, Refusal, SyscallPlan, goes_on, is_code, plan_detour, plan_returns,
    plan_syscalls,
};

const AGENT_STACK: AgentStackLinks = AgentStackLinks {
    enter: 0x7000_0000_2000,
    find: 0x7000_0000_3000,
    state: 0x7000_1000_0000,
    generation: 0x7000_0f00_0000,
    missed: 0x7000_1000_0008,
};

fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotCode { .. } => "no code",
        Refusal::NotABoundary { .. } => "not a boundary",
        Refusal::TooShort { .. } => "too short",
        Refusal::BranchInto { .. } => "branch into",
        Refusal::IndirectInto { .. } => "indirect into",
        Refusal::FunctionInto { .. } => "function into",
        Refusal::ReturnInto { .. } => "return into",
        Refusal::Immovable { .. } => "immovable",
        Refusal::Overlaps { .. } => "overlaps",
        Refusal::OutOfReach { .. } => "out of reach",
        Refusal::Cancelled { .. } => "cancelled by address",
        Refusal::WayOut { .. } => "another way out",
        Refusal::NoReturn { .. } => "no return",
        Refusal::NoRoomAtReturn { .. } => "no room at a return",
        Refusal::MayRaiseSigfpe { .. } => "may raise SIGFPE",
        Refusal::MayResume { .. } => "may resume",
    }
}

#[test]
fn nearly_all_functions_of_real_files_can_be_probed() {
    let files = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/bin/bash",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/local/go/bin/go",
    ];
    for path in files {
        let Ok(bytes) = std::fs::read(path) else {
            println!("SKIPPED IN PART: no {path} here");
            continue;
        };
        let elf = ring3_elf::File::parse(&bytes).expect("valid");
        let (mut planned, mut refused) = (0u32, BTreeMap::<&str, u32>::new());
        for symbol in elf.symbols().iter().filter(|symbol| symbol.size > 0) {
            let end = symbol.address + symbol.size;
            let code = elf.code(symbol.address..end + 24).or_else(|| elf.code(symbol.address..end));
            let Some(code) = code else { continue };
            let function = Function {
                bytes: code,
                address: symbol.address,
                size: symbol.size as usize,
                entered: None,
                computed: false,
            };
            match plan_detour(&function, symbol.address) {
                Ok(plan) => {
                    let stub = symbol.address & !0xffff;
                    let stub = stub.wrapping_sub(0x10_0000);
                    let made = plan.stub(
                        stub,
                        Entries { enter: 0x7000_0000_0000, call: 0x7000_0000_1000, agent_stack: AGENT_STACK },
                        0x7000_0010_0000,
                    );
                    assert!(made.is_ok(), "{}: {:?}", symbol.name, made.err());
                    planned += 1;
                }
                Err(refusal) => *refused.entry(reason(&refusal)).or_default() += 1,
            }
        }
        let all = planned + refused.values().sum::<u32>();
        println!(
            "{path}: {planned} of {all} functions ({:.1} %); refused: {refused:?}",
            f64::from(planned) * 100.0 / f64::from(all.max(1))
        );
        assert!(planned * 100 >= all * 90, "{path}");
    }
}

#[test]
fn entries_of_most_functions_in_go_can_be_probed() {
    const FILE: &str = "/usr/local/go/bin/go";
    let Ok(bytes) = std::fs::read(FILE) else {
        println!("SKIPPED: no {FILE} here");
        return;
    };
    let elf = ring3_elf::File::parse(&bytes).expect("valid");
    let (mut planned, mut refused) = (0u32, BTreeMap::<&str, u32>::new());
    for symbol in elf.symbols().iter().filter(|symbol| symbol.size > 0) {
        let Some(code) = elf.code(symbol.address..symbol.address + symbol.size + 24) else { continue };
        let size = symbol.size as usize;
        let function = Function { bytes: code, address: symbol.address, size, entered: None, computed: false };
        match plan_detour(&function, symbol.address).and_then(|plan| plan.on_agent_stack(true)) {
            Ok(_) => planned += 1,
            Err(refusal) => *refused.entry(reason(&refusal)).or_default() += 1,
        }
    }
    let all = planned + refused.values().sum::<u32>();
    println!("{FILE}: {planned} of {all} functions; refused: {refused:?}");
    assert!(planned * 100 >= all * 90);
}

#[test]
fn returns_of_most_functions_in_go_can_be_seen() {
    const FILE: &str = "/usr/local/go/bin/go";
    let Ok(bytes) = std::fs::read(FILE) else {
        println!("SKIPPED: no {FILE} here");
        return;
    };
    let elf = ring3_elf::File::parse(&bytes).expect("valid");
    let (mut planned, mut returns, mut refused) = (0u32, 0, BTreeMap::<&str, u32>::new());
    for symbol in elf.symbols().iter().filter(|symbol| symbol.size > 0) {
        let end = symbol.address + symbol.size;
        let Some(code) = elf.code(symbol.address..end + 24) else { continue };
        let size = symbol.size as usize;
        let function = Function { bytes: code, address: symbol.address, size, entered: None, computed: false };
        let plans = match plan_returns(&function, &|_| None) {
            Ok(plans) => plans,
            Err(refusal) => {
                *refused.entry(reason(&refusal)).or_default() += 1;
                continue;
            }
        };
        for plan in &plans {
            let stub = plan.stub_range().map_or(symbol.address & !0xffff, |range| range.start);
            let made = plan.stub(stub, Entries { enter: 0, call: 0, agent_stack: AGENT_STACK }, 0x7000_0010_0000);
            assert!(made.is_ok(), "{}: {:?}", symbol.name, made.err());
        }
        (planned, returns) = (planned + 1, returns + plans.len());
    }
    let all = planned + refused.values().sum::<u32>() - refused.get("no return").copied().unwrap_or(0);
    println!(
        "{FILE}: {planned} of {all} functions that return ({:.1} %), {returns} returns; refused: {refused:?}",
        f64::from(planned) * 100.0 / f64::from(all.max(1))
    );
    assert!(planned * 100 >= all * 60);
}

/// What lies between known functions, with the one before if that goes on there.
fn between(elf: &ring3_elf::File<'_>, vaddr: u64) -> Option<std::ops::Range<u64>> {
    let gap = elf.gap(vaddr)?;
    let before = elf.function_bounds(gap.start - 1).filter(|before| before.end == gap.start);
    let before = before.filter(|before| elf.code(before.clone()).is_some_and(|code| goes_on(code, before.start)));
    let all = before.map_or(gap.start, |before| before.start)..gap.end;
    is_code(elf.code(all.clone())?, all.start).then_some(all)
}

/// The `syscall` instructions of a file, by linear search.
#[derive(Default)]
struct Calls {
    plans: Vec<SyscallPlan>,
    /// In no function.
    unbounded: u32,
    refused: BTreeMap<String, u32>,
    /// Not to be replaced where the beginning of their function is probed.
    crowded: u32,
}

fn calls_of(elf: &ring3_elf::File<'_>) -> Calls {
    let mut calls = Calls::default();
    for segment in elf.executable_segments() {
        let Some(code) = elf.code(segment.clone()) else { continue };
        let mut done = segment.start;
        for at in code.windows(2).enumerate().filter(|(_, pair)| *pair == [0x0f, 0x05]).map(|(at, _)| at as u64) {
            let vaddr = segment.start + at;
            if vaddr < done {
                continue;
            }
            let known = elf.function_bounds(vaddr);
            let is_gap = known.is_none();
            let Some(bounds) = known.or_else(|| between(elf, vaddr)) else {
                calls.unbounded += 1;
                continue;
            };
            done = bounds.end;
            let bytes = elf.code(bounds.start..(bounds.end + 32).min(segment.end)).expect("inside the segment");
            let size = (bounds.end - bounds.start) as usize;
            let function = Function { bytes, address: bounds.start, size, entered: None, computed: false };
            for (_, plan) in plan_syscalls(&function, is_gap, &|_| None) {
                match plan {
                    Ok(plan) if is_gap && !plan.uses_rax => calls.unbounded += 1,
                    Ok(plan) => {
                        let probed = plan_detour(&function, bounds.start).map_or(bounds.start, |probe| probe.resume);
                        calls.crowded += u32::from(plan.windows().all(|plan| plan.site < probed));
                        calls.plans.push(plan);
                    }
                    Err(why) => *calls.refused.entry(reason(&why).to_owned()).or_default() += 1,
                }
            }
        }
    }
    calls
}

#[test]
fn nearly_all_system_calls_of_real_files_can_be_replaced() {
    let files = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/ld-musl-x86_64.so.1",
        "/usr/sbin/ldconfig",
        "/usr/bin/node",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
        "/usr/local/go/bin/go",
    ];
    for path in files {
        let Ok(bytes) = std::fs::read(path) else {
            println!("SKIPPED IN PART: no {path} here");
            continue;
        };
        let elf = ring3_elf::File::parse(&bytes).expect("valid");
        let Calls { plans, unbounded, refused, crowded } = calls_of(&elf);
        for plan in &plans {
            let near = (plan.site & !0xffff).wrapping_sub(0x10_0000);
            let made = plan.near(near, 0x7000_0000_0000);
            assert!(made.is_ok(), "{path}: {:#x}: {:?}", plan.call, made.err());
        }
        let known = plans.iter().filter(|plan| plan.number.is_some()).count();
        let flags = plans.iter().filter(|plan| plan.keeps_flags).count();
        println!(
            "{path}: {} calls ({known} with known numbers, {flags} keep flags, {crowded} not beside a probe); refused: {refused:?}; \
             in no function: {unbounded}",
            plans.len()
        );
        assert!(crowded as usize <= 4 + plans.len() / 100, "{path}");
        let left = refused.values().sum::<u32>() as usize;
        assert!(left * 50 <= plans.len() + 49, "{path}");
    }
}
