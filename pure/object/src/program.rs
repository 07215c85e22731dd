//! Functions, cut out of sections and joined to programs.
//!
//! Mirrors src/libbpf.c:bpf_object__add_programs, bpf_program__record_reloc and bpf_object__reloc_code.

use std::collections::BTreeMap;

use object::elf::{SHF_EXECINSTR, SHT_PROGBITS, STB_LOCAL, STT_FUNC, STT_SECTION};
use ring3_isa::Insn;
use ring3_isa::code::{
    BPF_CALL, BPF_PSEUDO_BTF_ID, BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_PSEUDO_KFUNC_CALL, BPF_PSEUDO_MAP_IDX,
    BPF_PSEUDO_MAP_IDX_VALUE,
};
use ring3_uapi::helper::HOST_MARK;

use crate::attach::Attachment;
use crate::extended::{Extended, within};
use crate::externs::{AllResolved, Resolved};
use crate::file::File;
use crate::maps::Maps;
use crate::{Error, Kernel, Program};

/// A call of an extern that there is none of has this plus the extern's number.
const POISONED_EXTERN: u32 = 2_002_000_000;
const INSN_BYTES: u64 = 8;
/// Where functions are that are not programs by themselves.
const SUBPROGRAMS: &str = ".text";
/// Instructions of a program at most (`BPF_COMPLEXITY_LIMIT_INSNS`).
const INSNS_MAX: usize = 1_000_000;
/// Instructions of all programs at most, and what is told of them: functions are copied to each program that needs
/// them.
const ALL_INSNS_MAX: usize = 1 << 24;

/// A function.
pub(crate) struct Function<'d> {
    pub(crate) name: &'d str,
    /// The section, and its first instruction there.
    pub(crate) section: usize,
    pub(crate) start: usize,
    /// Other files may call it.
    global: bool,
    pub(crate) insns: Vec<Insn>,
    /// What calls and addresses of functions go to: section and instruction there.
    targets: BTreeMap<usize, (usize, usize)>,
}

impl Function<'_> {
    fn holds(&self, section: usize, insn: usize) -> bool {
        self.section == section && (self.start..self.start + self.insns.len()).contains(&insn)
    }
}

pub(crate) struct Functions<'d> {
    pub(crate) all: Vec<Function<'d>>,
    subprograms: Option<usize>,
}

/// What is done to instructions that a relocation is of.
fn write(insn: &mut [Insn], source: u8, imm: u32, high: Option<u32>) {
    insn[0].regs = insn[0].regs & 0xf | source << 4;
    insn[0].imm = imm as i32;
    if let (Some(high), Some(second)) = (high, insn.get_mut(1)) {
        second.imm = high as i32;
    }
}

impl<'d> Functions<'d> {
    pub(crate) fn cut(file: &File<'d>) -> Result<Functions<'d>, Error> {
        let mut all: Vec<Function<'d>> = vec![];
        let (mut subprograms, mut all_bytes) = (None, 0);
        for (index, section) in file.sections.iter().enumerate() {
            if section.kind != SHT_PROGBITS || section.flags & u64::from(SHF_EXECINSTR) == 0 || section.size == 0 {
                continue;
            }
            if section.name == SUBPROGRAMS {
                subprograms = Some(index);
            }
            for symbol in file.symbols.iter().filter(|symbol| symbol.section == index && symbol.kind == STT_FUNC) {
                let damaged = || Error::corrupt(format!("the function {}", symbol.name));
                if symbol.binding == STB_LOCAL && section.name != SUBPROGRAMS {
                    return Err(Error::Unsupported(format!("the static program {}", symbol.name)));
                }
                if symbol.size == 0 || !symbol.value.is_multiple_of(INSN_BYTES) {
                    return Err(damaged());
                }
                let end = symbol.value.checked_add(symbol.size).ok_or_else(damaged)?;
                let bytes = section.data.get(symbol.value as usize..end as usize).ok_or_else(damaged)?;
                all_bytes += bytes.len();
                if all_bytes > ALL_INSNS_MAX * INSN_BYTES as usize {
                    return Err(Error::Unsupported(format!("{all_bytes} bytes of functions and more")));
                }
                let insns = ring3_isa::decode(bytes).filter(|insns| insns.len() <= INSNS_MAX).ok_or_else(damaged)?;
                let start = (symbol.value / INSN_BYTES) as usize;
                let (name, global) = (symbol.name, symbol.binding != STB_LOCAL);
                all.push(Function { name, section: index, start, global, insns, targets: BTreeMap::new() });
            }
        }
        // Symbols of functions cannot be other functions' parts, or all could be one another's many times.
        all.sort_by_key(|function| (function.section, function.start));
        if all.windows(2).any(|pair| pair[0].holds(pair[1].section, pair[1].start)) {
            return Err(Error::corrupt("functions overlap"));
        }
        Ok(Functions { all, subprograms })
    }

    /// The function that an instruction of a section is in.
    pub(crate) fn at(&mut self, section: usize, insn: usize) -> Option<&mut Function<'d>> {
        let index = self.index(section, insn)?;
        self.all.get_mut(index)
    }

    fn index(&self, section: usize, insn: usize) -> Option<usize> {
        let after = self.all.partition_point(|function| (function.section, function.start) <= (section, insn));
        after.checked_sub(1).filter(|index| self.all[*index].holds(section, insn))
    }

    /// Does the relocations of maps, variables, externs and functions.
    pub(crate) fn refer(&mut self, file: &File<'_>, maps: &Maps, externs: &AllResolved) -> Result<(), Error> {
        for (index, section) in file.sections.iter().enumerate() {
            for relocation in &section.relocations {
                let insn = (relocation.at / INSN_BYTES) as usize;
                let Some(function) = self.at(index, insn) else { continue };
                let failed =
                    |what: &str| Error::Unsupported(format!("{what}, at instruction {} of {}", insn, section.name));
                if !relocation.at.is_multiple_of(INSN_BYTES) {
                    return Err(failed("a relocation inside an instruction"));
                }
                function
                    .refer(insn - function.start, relocation.symbol, file, maps, externs)
                    .ok_or_else(|| failed("a relocation of that kind"))?;
            }
        }
        for function in &mut self.all {
            function.find_near_calls();
        }
        Ok(())
    }

    /// Programs: functions with those behind them that they call.
    pub(crate) fn programs(
        &self,
        file: &File<'_>,
        extended: &Extended,
        kernel: &Kernel,
        text_programs: bool,
    ) -> Result<Vec<Program>, Error> {
        let only_subprograms = self.all.iter().all(|function| Some(function.section) == self.subprograms);
        let (mut programs, mut all_records) = (vec![], 0);
        for (index, function) in self.all.iter().enumerate() {
            // A lone function of `.text` is a program (libbpf: prog_is_subprog).
            let is_program = self.all.len() == 1 || text_programs && function.global;
            if Some(function.section) == self.subprograms && !(only_subprograms && is_program) {
                continue;
            }
            let section = file.sections.get(function.section).map_or("", |section| section.name);
            let attachment = Attachment::of(section);
            let joined = self.join(index)?;
            let (func_info, line_info) = self.told(&joined, extended);
            all_records += joined.insns.len().max(func_info.len()).max(line_info.len());
            if all_records > ALL_INSNS_MAX {
                return Err(Error::Unsupported(format!(
                    "{all_records} instructions, or what is told of them, and more"
                )));
            }
            programs.push(Program {
                name: function.name.into(),
                section: attachment.section.into(),
                autoload: attachment.autoload,
                prog_type: attachment.prog_type,
                expected_attach_type: attachment.attach_type,
                attach_to: attachment.to.map(str::to_owned),
                attach_btf_id: attachment.target(kernel),
                flags: attachment.flags,
                insns: joined.insns,
                func_info,
                line_info,
            });
        }
        Ok(programs)
    }

    /// A function and all that it needs.
    fn join(&self, main: usize) -> Result<Joined, Error> {
        let mut joined =
            Joined { insns: self.all[main].insns.clone(), starts: BTreeMap::from([(main, 0)]), order: vec![main] };
        // As libbpf: what a function needs stands behind it before what its caller needs next.
        let mut open = vec![(main, 0)];
        while let Some((index, after)) = open.pop() {
            let function = &self.all[index];
            let Some((at, (section, insn))) = function.targets.range(after..).next() else { continue };
            open.push((index, at + 1));
            let missing = || Error::corrupt(format!("{} calls what is no function", function.name));
            let target = self.index(*section, *insn).ok_or_else(missing)?;
            if self.all[target].start != *insn {
                return Err(missing());
            }
            let fresh = !joined.starts.contains_key(&target);
            if fresh {
                if Some(*section) != self.subprograms {
                    return Err(Error::Unsupported(format!("{} calls another program", function.name)));
                }
                if joined.insns.len() + self.all[target].insns.len() > INSNS_MAX {
                    return Err(Error::Unsupported(format!("{} instructions and more", joined.insns.len())));
                }
                joined.starts.insert(target, joined.insns.len());
                joined.order.push(target);
                joined.insns.extend_from_slice(&self.all[target].insns);
                open.push((target, 0));
            }
            let here = joined.starts[&index] + at;
            joined.insns[here].imm = (joined.starts[&target] as i64 - here as i64 - 1) as i32;
        }
        Ok(joined)
    }

    /// What is told of a program's functions and lines.
    fn told(&self, joined: &Joined, extended: &Extended) -> (Vec<(u32, u32)>, Vec<[u32; 4]>) {
        let (mut functions, mut lines) = (vec![], vec![]);
        for index in &joined.order {
            let (function, start) = (&self.all[*index], joined.starts[index]);
            let (section, count) = (function.section, function.insns.len());
            let place = |insn: usize| (insn - function.start + start) as u32;
            let types = within(&extended.functions, section, function.start, count);
            if *index == joined.order[0] && types.is_empty() {
                // libbpf tells nothing of a program whose own function nothing is told of.
                return (vec![], vec![]);
            }
            functions.extend(types.iter().map(|record| (place(record.insn), record.words[0])));
            let here = within(&extended.lines, section, function.start, count);
            lines.extend(here.iter().map(|record| {
                let [file, line, column] = record.words;
                [place(record.insn), file, line, column]
            }));
        }
        (functions, lines)
    }
}

struct Joined {
    insns: Vec<Insn>,
    /// Where each function begins, by index.
    starts: BTreeMap<usize, usize>,
    order: Vec<usize>,
}

impl Function<'_> {
    fn refer(&mut self, at: usize, symbol: usize, file: &File<'_>, maps: &Maps, externs: &AllResolved) -> Option<()> {
        let found = file.symbols.get(symbol)?;
        let code = self.insns.get_mut(at..)?;
        let insn = *code.first()?;
        if let Some(resolved) = externs.get(&symbol) {
            return refer_extern(code, *resolved, maps);
        }
        if insn.opcode == BPF_CALL {
            let to = found.value.checked_add_signed((i64::from(insn.imm) + 1) * INSN_BYTES as i64)?;
            (insn.src() == BPF_PSEUDO_CALL && to.is_multiple_of(INSN_BYTES)).then_some(())?;
            self.targets.insert(at, (found.section, (to / INSN_BYTES) as usize));
            return Some(());
        }
        if !insn.is_wide() || code.len() < 2 {
            return None;
        }
        let executable = file.sections.get(found.section)?.flags & u64::from(SHF_EXECINSTR) != 0;
        if executable && matches!(found.kind, STT_SECTION | STT_FUNC) {
            let to = found.value.checked_add_signed(i64::from(insn.imm))?;
            to.is_multiple_of(INSN_BYTES).then_some(())?;
            self.targets.insert(at, (found.section, (to / INSN_BYTES) as usize));
            // Where it is is known when functions are joined.
            write(code, BPF_PSEUDO_FUNC, 0, Some(0));
            return Some(());
        }
        let (map, variables) = maps.find(found.section, found.value)?;
        if variables {
            let offset = (insn.imm as u32).wrapping_add(found.value as u32);
            write(code, BPF_PSEUDO_MAP_IDX_VALUE, map as u32, Some(offset));
        } else {
            write(code, BPF_PSEUDO_MAP_IDX, map as u32, None);
        }
        Some(())
    }

    /// Calls without a relocation go to the same section.
    fn find_near_calls(&mut self) {
        for (at, insn) in self.insns.iter().enumerate() {
            if insn.opcode == BPF_CALL && insn.src() == BPF_PSEUDO_CALL && !self.targets.contains_key(&at) {
                let to = (self.start + at) as i64 + i64::from(insn.imm) + 1;
                self.targets.insert(at, (self.section, usize::try_from(to).unwrap_or(usize::MAX)));
            }
        }
    }
}

fn refer_extern(code: &mut [Insn], resolved: Resolved, maps: &Maps) -> Option<()> {
    let call = code[0].opcode == BPF_CALL;
    if !call && (!code[0].is_wide() || code.len() < 2) {
        return None;
    }
    match resolved {
        Resolved::Function(of) if call => write(code, BPF_PSEUDO_KFUNC_CALL, of, None),
        Resolved::HostFunction(number) if call => {
            write(code, BPF_PSEUDO_KFUNC_CALL, number, None);
            code[0].off = HOST_MARK;
        }
        Resolved::Number(number) if call => code[0] = Insn::new(BPF_CALL, 0, 0, 0, number as i32),
        // (Programs ask whether it is there.)
        Resolved::Number(_) => write(code, 0, 1, Some(0)),
        Resolved::NoFunction(number) if call => {
            code[0] = Insn::new(BPF_CALL, 0, 0, 0, (POISONED_EXTERN + number) as i32);
        }
        _ if call => return None,
        Resolved::Value(at) => write(code, BPF_PSEUDO_MAP_IDX_VALUE, maps.configuration()? as u32, Some(at)),
        Resolved::Address(address) => write(code, 0, address as u32, Some((address >> 32) as u32)),
        Resolved::Variable(of) | Resolved::Function(of) => write(code, BPF_PSEUDO_BTF_ID, of, Some(0)),
        Resolved::HostFunction(_) => return None,
        Resolved::NoFunction(_) => write(code, 0, 0, Some(0)),
    }
    Some(())
}
