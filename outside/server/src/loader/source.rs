//! What a loader tells of where a program comes from: functions and lines of its source.
//!
//! Checked as the kernel does, so that whoever asks later (`bpftool`, `ring3 status`) can rely on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ring3_btf::kind;
use ring3_isa::{Call, Immediate, Insn, Op};
use ring3_uapi::Errno;
use ring3_uapi::attr::Field;
use ring3_uapi::attr::prog_load as p;
use ring3_verifier::Line;

use super::Caller;
use super::attr::Attr;
use super::objects::{Btf, Object, Source};

/// `struct bpf_func_info`: instruction, type.
pub(super) const FUNC_RECORD_BYTES: u32 = 8;
/// `struct bpf_line_info`: instruction, file, line, line and column.
pub(super) const LINE_RECORD_BYTES: u32 = 16;
/// `MAX_FUNCINFO_REC_SIZE`, `MAX_LINEINFO_REC_SIZE`.
const RECORD_BYTES_MAX: u32 = 252;
/// Records at most: there are no more instructions.
const RECORDS_MAX: u32 = 1_000_000;

/// Why what is told cannot be: the kernel's number and words.
pub(super) type Wrong = (Errno, String);

fn wrong<T>(text: impl Into<String>) -> Result<T, Wrong> {
    Err((Errno::EINVAL, text.into()))
}

/// The BTF that a program comes with, if it tells anything by it.
pub(super) fn types(caller: &Caller<'_>, attr: &Attr) -> Result<Option<Arc<Btf>>, Errno> {
    if attr.u32(p::FUNC_INFO_CNT.at) == 0 && attr.u32(p::LINE_INFO_CNT.at) == 0 {
        return Ok(None);
    }
    match caller.object(attr.i32(p::PROG_BTF_FD.at))? {
        Some(Object::Btf(btf)) => Ok(Some(btf)),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads and checks all of it. The errors of reading the loader's memory come with no words.
pub(super) fn read(caller: &Caller<'_>, attr: &Attr, insns: &[Insn], btf: Option<Arc<Btf>>) -> Result<Source, Wrong> {
    let Some(btf) = btf else { return Ok(Source::default()) };
    let starts = subprogram_starts(insns);
    let functions = records::<2>(
        caller,
        attr,
        [p::FUNC_INFO_CNT, p::FUNC_INFO_REC_SIZE, p::FUNC_INFO],
        FUNC_RECORD_BYTES,
        "func info",
    )?;
    let lines = records::<4>(
        caller,
        attr,
        [p::LINE_INFO_CNT, p::LINE_INFO_REC_SIZE, p::LINE_INFO],
        LINE_RECORD_BYTES,
        "line_info",
    )?;
    check_functions(&functions, &btf.types, &starts)?;
    check_lines(&lines, &btf.types, insns, &starts)?;
    Ok(Source { functions, lines, btf: Some(btf) })
}

/// Records of `N` words; what a loader's are longer by must be zero. Mirrors kernel/bpf/syscall.c:
/// bpf_check_uarg_tail_zero and the beginnings of the functions below.
fn records<const N: usize>(
    caller: &Caller<'_>,
    attr: &Attr,
    [count, size, address]: [Field; 3],
    known: u32,
    what: &str,
) -> Result<Vec<[u32; N]>, Wrong> {
    let (count, bytes) = (attr.u32(count.at), attr.u32(size.at));
    if count == 0 {
        return Ok(vec![]);
    }
    if !(known..=RECORD_BYTES_MAX).contains(&bytes) || !bytes.is_multiple_of(4) || count > RECORDS_MAX {
        return wrong(format!("invalid {what} rec size {bytes} ({count} records)\n"));
    }
    let read = caller.read(attr.u64(address.at), count as usize * bytes as usize);
    let read = read.map_err(|errno| (errno, String::new()))?;
    let mut found = vec![];
    for record in read.chunks_exact(bytes as usize) {
        let (own, tail) = record.split_at(known as usize);
        if tail.iter().any(|byte| *byte != 0) {
            return Err((Errno::E2BIG, format!("nonzero tailing record in {what}")));
        }
        let word = |at: usize| u32::from_le_bytes(own[at * 4..at * 4 + 4].try_into().expect("4 bytes"));
        found.push(std::array::from_fn(word));
    }
    Ok(found)
}

/// Where subprograms begin, as kernel/bpf/verifier.c:add_subprog_and_kfunc finds them.
fn subprogram_starts(insns: &[Insn]) -> Vec<u32> {
    let called = (0..insns.len()).filter_map(|at| match ring3_isa::op(insns, at) {
        Ok(Op::Call(Call::Local(target)) | Op::LoadImm64 { value: Immediate::Func(target), .. }) => {
            Some(target as u32)
        }
        _ => None,
    });
    called.chain([0]).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Mirrors kernel/bpf/verifier.c:check_btf_func_early and check_btf_func (v6.18).
fn check_functions(functions: &[[u32; 2]], types: &ring3_btf::Btf, starts: &[u32]) -> Result<(), Wrong> {
    if functions.is_empty() {
        return Ok(());
    }
    let mut before = None;
    for [insn, of] in functions {
        match before {
            None if *insn != 0 => {
                return wrong(format!("nonzero insn_off {insn} for the first func info record"));
            }
            Some(before) if *insn <= before => {
                return wrong(format!(
                    "same or smaller insn offset ({insn}) than previous func info record ({before})"
                ));
            }
            _ => before = Some(*insn),
        }
        if types.kind(*of) != Some(kind::FUNC) {
            return wrong(format!("invalid type id {of} in func info"));
        }
        if types.kind(types.size_or_type(*of)) != Some(kind::FUNC_PROTO) {
            return wrong("");
        }
    }
    if functions.len() != starts.len() {
        return wrong("number of funcs in func_info doesn't match number of subprogs\n");
    }
    if functions.iter().zip(starts).any(|([insn, _], start)| insn != start) {
        return wrong("func_info BTF section doesn't match subprog layout in BPF program\n");
    }
    Ok(())
}

/// Mirrors kernel/bpf/verifier.c:check_btf_line (v6.18).
fn check_lines(lines: &[[u32; 4]], types: &ring3_btf::Btf, insns: &[Insn], starts: &[u32]) -> Result<(), Wrong> {
    if lines.is_empty() {
        return Ok(());
    }
    let (mut before, mut subprograms) = (0, 0..starts.len());
    for (index, [insn, file, line, _]) in lines.iter().enumerate() {
        if index > 0 && *insn <= before || *insn as usize >= insns.len() {
            return wrong(format!(
                "Invalid line_info[{index}].insn_off:{insn} (prev_offset:{before} prog->len:{})\n",
                insns.len()
            ));
        }
        // The second half of a wide instruction has no code.
        if insns[*insn as usize].opcode == 0 {
            return wrong(format!("Invalid insn code at line_info[{index}].insn_off\n"));
        }
        if types.text(*line).is_none() || types.text(*file).is_none() {
            return wrong(format!("Invalid line_info[{index}].line_off or .file_name_off\n"));
        }
        if let Some(start) = starts.get(subprograms.start) {
            if insn == start {
                subprograms.next();
            } else if start < insn {
                return wrong(format!("missing bpf_line_info for func#{}\n", subprograms.start));
            }
        }
        before = *insn;
    }
    match subprograms.len() {
        0 => Ok(()),
        left => wrong(format!("missing bpf_line_info for {left} funcs starting from func#{}\n", subprograms.start)),
    }
}

/// The texts of the lines, for the verifier's log.
pub(super) fn texts(source: &Source) -> Vec<Line> {
    let Some(btf) = &source.btf else { return vec![] };
    let text = |at: u32| String::from_utf8_lossy(btf.types.text(at).unwrap_or_default()).into_owned();
    source.lines.iter().map(|[insn, _, line, _]| Line { insn: *insn, text: text(*line) }).collect()
}
