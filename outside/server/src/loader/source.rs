//! Source information that a loader gives with a program: its functions and lines.
//!
//! It is checked as in the kernel, so that `bpftool` and `ring3 status` can rely on it later.

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
        Some(Object::KernelTypes(_)) => Err(Errno::EACCES),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads and checks all of it. The errors of reading the loader's memory come with no words.
pub(super) fn read(caller: &Caller<'_>, attr: &Attr, insns: &[Insn], btf: Option<Arc<Btf>>) -> Result<Source, Wrong> {
    let starts = subprogram_starts(insns);
    let Some(btf) = btf else { return Ok(Source { starts, ..Source::default() }) };
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
    Ok(Source { functions, lines, btf: Some(btf), starts })
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

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_isa::assemble;

    /// Types: 1 an int, 2 a function type, 3 a function of it, 4 a function of the int; the strings are `a` at 1 and `b` at 3.
    fn types() -> ring3_btf::Btf {
        let words: [u32; 13] = [0, 1 << 24, 4, 32, 0, 13 << 24, 1, 1, 12 << 24, 2, 1, 12 << 24, 1];
        let strings = b"\0a\0b\0";
        let bytes = words.len() as u32 * 4;
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        btf.extend([24, 0, bytes, bytes, strings.len() as u32].iter().flat_map(|word| word.to_le_bytes()));
        btf.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        btf.extend(strings);
        ring3_btf::Btf::parse_any(btf).expect("valid types")
    }

    #[test]
    fn functions_are_those_of_the_program() {
        let refused = |functions: &[[u32; 2]], words: &str| {
            let (errno, text) = check_functions(functions, &types(), &[0, 4]).expect_err("refused");
            assert!(errno == Errno::EINVAL && text.contains(words), "{text}");
        };
        assert_eq!(check_functions(&[[0, 3], [4, 3]], &types(), &[0, 4]), Ok(()));
        assert_eq!(check_functions(&[], &types(), &[0, 4]), Ok(()));
        refused(&[[1, 3], [4, 3]], "nonzero insn_off 1 for the first");
        refused(&[[0, 3], [0, 3]], "same or smaller insn offset (0)");
        refused(&[[0, 1], [4, 3]], "invalid type id 1");
        refused(&[[0, 9], [4, 3]], "invalid type id 9");
        refused(&[[0, 4], [4, 3]], "");
        refused(&[[0, 3]], "number of funcs");
        refused(&[[0, 3], [5, 3]], "doesn't match subprog layout");
    }

    #[test]
    fn lines_begin_at_instructions_in_order_and_at_each_function() {
        let insns = assemble("r1 = 7 ll\ncall +1\nexit\nr0 = 0\nexit").expect("a program");
        assert_eq!(subprogram_starts(&insns), [0, 4]);
        let check = |lines: &[[u32; 4]]| check_lines(lines, &types(), &insns, &[0, 4]);
        let refused = |lines: &[[u32; 4]], words: &str| {
            let (errno, text) = check(lines).expect_err("refused");
            assert!(errno == Errno::EINVAL && text.contains(words), "{text}");
        };
        assert_eq!(check(&[[0, 1, 3, 0], [2, 1, 3, 0], [4, 1, 3, 0]]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        refused(&[[0, 1, 3, 0], [0, 1, 3, 0]], "Invalid line_info[1].insn_off:0 (prev_offset:0 prog->len:6)");
        refused(&[[0, 1, 3, 0], [6, 1, 3, 0]], "Invalid line_info[1].insn_off:6");
        refused(&[[0, 1, 3, 0], [1, 1, 3, 0]], "Invalid insn code at line_info[1]");
        refused(&[[0, 1, 5, 0]], "Invalid line_info[0].line_off");
        refused(&[[0, 5, 1, 0]], "Invalid line_info[0].line_off or .file_name_off");
        refused(&[[2, 1, 3, 0]], "missing bpf_line_info for func#0");
        refused(&[[0, 1, 3, 0], [5, 1, 3, 0]], "missing bpf_line_info for func#1");
        refused(&[[0, 1, 3, 0]], "missing bpf_line_info for 1 funcs starting from func#1");
    }
}
