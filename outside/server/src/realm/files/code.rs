//! A parsed executable file, with facts about all of its code: which instructions branch where.

use std::cell::OnceCell;
use std::ops::Range;

use ring3_elf::{Error, File as Elf};
use ring3_patch::{Arrival, Branch, IndirectTargets, Instructions, JUMP_BYTES, Part};
use self_cell::self_cell;

use super::return_addresses::Walker;

self_cell!(
    struct Parsed {
        owner: Vec<u8>,
        #[covariant]
        dependent: Elf,
    }

    impl {Debug}
);

/// Candidates for branches, calls and address operands in an executable segment: one in so many bytes at most, and
/// [`CANDIDATES_FREE`] besides. LLVM, rustc, node and OpenJDK have fewer. A file with more is refused: it would keep the
/// server busy.
const CANDIDATE_BYTES: usize = 8;
const CANDIDATES_FREE: usize = 1 << 20;
/// Candidates in all executable segments of a file at most: those of 300 MB took 4 s and 1.5 GB.
const CANDIDATES_MAX: usize = 1 << 24;
/// Bytes that look like `syscall` in an executable segment at most.
const CALLS_MAX: usize = 1 << 14;
/// A larger function is not decoded to tell real branches from candidates: every candidate counts as real.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;
/// Candidates for branches to one probe's bytes that are checked; further ones count as real.
const BRANCHES_THERE_MAX: usize = 64;

/// A file whose code is looked at. What takes long is found when it is first asked for.
#[derive(Debug)]
pub(in crate::realm) struct CodeFile {
    parsed: Parsed,
    far: OnceCell<Vec<Branch>>,
    calls: OnceCell<Vec<Branch>>,
    indirect: OnceCell<IndirectTargets>,
    go: OnceCell<Option<Range<u64>>>,
    pub(super) of_python: OnceCell<bool>,
    pub(super) walker: OnceCell<Option<Walker>>,
}

/// Short branches reach so far, bytes.
const SHORT: u64 = 0x80;

impl CodeFile {
    /// Reads the headers.
    ///
    /// # Errors
    /// Those of [`Elf::parse`]; code that would take long to look at.
    pub(in crate::realm) fn parse(bytes: Vec<u8>) -> Result<CodeFile, Error> {
        let parsed = Parsed::try_new(bytes, |bytes| Elf::parse(bytes))?;
        check_density(parsed.borrow_dependent())?;
        Ok(CodeFile {
            parsed,
            far: OnceCell::new(),
            calls: OnceCell::new(),
            indirect: OnceCell::new(),
            go: OnceCell::new(),
            of_python: OnceCell::new(),
            walker: OnceCell::new(),
        })
    }

    /// The file.
    pub(in crate::realm) fn elf(&self) -> &Elf<'_> {
        self.parsed.borrow_dependent()
    }

    /// Candidates for branches into the middle of functions, by target.
    pub(in crate::realm) fn far(&self) -> &[Branch] {
        self.far.get_or_init(|| self.in_all_code(ring3_patch::far_branches))
    }

    /// Candidates for calls, by target.
    pub(in crate::realm) fn calls(&self) -> &[Branch] {
        self.calls.get_or_init(|| self.in_all_code(ring3_patch::far_calls))
    }

    /// Addresses of the file's functions in Go.
    pub(super) fn go_text(&self) -> Option<&Range<u64>> {
        self.go.get_or_init(|| self.elf().go_text()).as_ref()
    }

    /// What arrives in the bytes that a probe's jump at `vaddr` replaces, its first one aside, from outside the function or
    /// by an indirect jump.
    pub(in crate::realm) fn entered(&self, vaddr: u64) -> Option<Arrival> {
        let inside = vaddr + 1..vaddr + JUMP_BYTES as u64;
        self.may_be_entered_in(inside.clone()).or_else(|| self.begins_in(inside))
    }

    /// As [`CodeFile::entered_in`], and where it is not known where instructions begin, every byte may begin a short branch. (Where
    /// a system call is to be replaced this would refuse too many windows, and the call would not be seen.)
    pub(super) fn may_be_entered_in(&self, inside: Range<u64>) -> Option<Arrival> {
        let direct = || self.unknown_branch_into(&inside).map(Arrival::Direct);
        self.entered_in(inside.clone()).or_else(direct)
    }

    /// Where in these bytes a function begins, or a part of one that has a name: callers arrive there. (What looks like padding behind
    /// a function may be the first instruction of the next one.)
    fn begins_in(&self, inside: Range<u64>) -> Option<Arrival> {
        let is_named = |at: &u64| !self.elf().symbols_at(*at).is_empty();
        let is_start = |at: &u64| self.elf().function_bounds(*at).is_some_and(|bounds| bounds.start == *at);
        let begins = inside.clone().find(|at| is_named(at) || is_start(at)).map(|to| Arrival::Function { to });
        begins.or_else(|| called_in(self.calls(), &inside).map(Arrival::Direct))
    }

    /// Whether any instruction of the function around an address may be the target of an indirect jump.
    pub(super) fn computes_targets(&self, vaddr: u64) -> bool {
        let code = self.code_of(vaddr);
        self.indirect().is_unbounded() || code.is_some_and(|(code, start)| ring3_patch::computes_targets(code, start))
    }

    /// What arrives in these bytes from outside the function, or by an indirect jump.
    pub(super) fn entered_in(&self, inside: Range<u64>) -> Option<Arrival> {
        let direct = self.branch_into(&inside).map(Arrival::Direct);
        direct.or_else(|| self.indirect_into(&inside).map(|to| Arrival::Indirect { to }))
    }

    /// The code of the function around an address, and where it begins.
    fn code_of(&self, vaddr: u64) -> Option<(&[u8], u64)> {
        let bounds = self.elf().function_bounds(vaddr)?;
        if bounds.end - bounds.start > FUNCTION_BYTES_MAX {
            return None;
        }
        Some((self.elf().code(bounds.clone())?, bounds.start))
    }

    /// A direct branch into these bytes. Those with short displacements come from the neighbours.
    fn branch_into(&self, inside: &Range<u64>) -> Option<Branch> {
        let far = self.far();
        let candidates = &far[far.partition_point(|branch| branch.to < inside.start)..];
        let candidates = candidates.iter().take_while(|branch| branch.to < inside.end).copied();
        let mut real = candidates.enumerate().filter(|(at, branch)| {
            *at >= BRANCHES_THERE_MAX
                || self.code_of(branch.from).is_none_or(|(code, start)| ring3_patch::is_branch(code, start, *branch))
        });
        if let Some((_, branch)) = real.next() {
            return Some(branch);
        }
        let mut at = inside.start.saturating_sub(SHORT);
        while at < inside.end + SHORT {
            let Some((code, start)) = self.code_of(at) else {
                at += 1;
                continue;
            };
            let mut branches = ring3_patch::branches(code, start).into_iter();
            if let Some(branch) = branches.find(|branch| inside.contains(&branch.to)) {
                return Some(branch);
            }
            at = (start + code.len() as u64).max(at + 1);
        }
        None
    }

    /// Bytes near these, in no function that is known, that would be a short branch into them.
    fn unknown_branch_into(&self, inside: &Range<u64>) -> Option<Branch> {
        const BRANCH_BYTES: u64 = 2;
        let mut near = inside.start.saturating_sub(SHORT)..inside.end + SHORT;
        near.find_map(|from| {
            let to = ring3_patch::short_target(self.elf().code(from..from + BRANCH_BYTES)?, from)?;
            (inside.contains(&to) && self.code_of(from).is_none()).then_some(Branch { to, from })
        })
    }

    /// Where in these bytes something may arrive that no direct branch leads there.
    fn indirect_into(&self, inside: &Range<u64>) -> Option<u64> {
        let mut candidates = self.indirect().to(inside.clone()).enumerate();
        let is_real = |(at, target): &(usize, Branch)| {
            let has_operand = |(code, start)| ring3_patch::has_operand_at(code, start, target.from);
            let may_begin = |(code, start)| Instructions::of(code, start).may_begin_at(target.to);
            *at >= BRANCHES_THERE_MAX
                || self.code_of(target.from).is_none_or(has_operand) && self.code_of(target.to).is_none_or(may_begin)
        };
        candidates.find(is_real).map(|(_, target)| target.to).or_else(|| self.go_resumes_in(inside))
    }

    /// Where Go's runtime lets functions go on: at a call of `runtime.deferreturn`, which it knows by its address (taken
    /// for any call, since not all files name it), and, as the end of each goroutine, behind the first instruction of
    /// `runtime.goexit`.
    fn go_resumes_in(&self, inside: &Range<u64>) -> Option<u64> {
        self.go_text()?;
        let before = inside.start - 1;
        let mut names = self.elf().symbols_at(before).iter().map(|symbol| symbol.name);
        if names.any(|name| matches!(name, "runtime.goexit" | "runtime.goexit.abi0")) {
            return Some(inside.start);
        }
        let (code, start) = self.code_of(before)?;
        ring3_patch::call_sites(code, start).find(|call| inside.contains(call))
    }

    /// Where indirect jumps may arrive.
    pub(super) fn indirect(&self) -> &IndirectTargets {
        self.indirect.get_or_init(|| {
            let elf = self.elf();
            let parts: Vec<Part<'_>> =
                elf.parts().map(|(address, bytes, executable)| Part { address, bytes, executable }).collect();
            let mut targets = IndirectTargets::of(&parts, elf.is_fixed(), &|address| self.code_of(address));
            match elf.landing_pads() {
                Some(pads) => targets.add(pads.into_iter().map(|(to, from)| Branch { to, from })),
                None => targets.set_unbounded(),
            }
            targets
        })
    }

    fn in_all_code(&self, find: fn(&[u8], u64) -> Vec<Branch>) -> Vec<Branch> {
        let segments = self.elf().executable_segments().into_iter();
        let found = segments.filter_map(|segment| Some(find(self.elf().code(segment.clone())?, segment.start)));
        let mut found: Vec<Branch> = found.flatten().collect();
        found.sort_unstable();
        found
    }
}

/// Whether code can be looked at in bounded time and memory.
fn check_density(elf: &Elf<'_>) -> Result<(), Error> {
    let mut all = 0;
    for segment in elf.executable_segments() {
        let code = elf.code(segment).unwrap_or_default();
        let (mut candidates, mut calls) = (0, 0);
        for pair in code.windows(2) {
            match pair {
                [0xe8 | 0xe9 | 0x8d, _] | [0x0f, 0x80..=0x8f] => candidates += 1,
                [0x0f, 0x05] => calls += 1,
                _ => {}
            }
        }
        all += candidates;
        let is_dense = candidates > CANDIDATES_FREE + code.len() / CANDIDATE_BYTES;
        if is_dense || all > CANDIDATES_MAX || calls > CALLS_MAX {
            return Err(Error::Corrupt(format!(
                "{candidates} branches and {calls} system calls in {} bytes of code: no compiler makes such code, which is not analysed",
                code.len()
            )));
        }
    }
    Ok(())
}

/// What lies between known functions, with the one before if that goes on there, if it can be decoded to its end.
pub(super) fn between(elf: &Elf<'_>, vaddr: u64) -> Option<Range<u64>> {
    const GAP_BYTES_MAX: u64 = 1 << 20;
    let gap = elf.gap(vaddr).filter(|gap| gap.end - gap.start <= GAP_BYTES_MAX)?;
    let before = elf.function_bounds(gap.start.checked_sub(1)?).filter(|before| before.end == gap.start);
    let goes_on =
        |range: &Range<u64>| elf.code(range.clone()).is_some_and(|code| ring3_patch::goes_on(code, range.start));
    let all = before.filter(goes_on).map_or(gap.start, |before| before.start)..gap.end;
    ring3_patch::is_code(elf.code(all.clone())?, all.start).then_some(all)
}

/// Whether code certainly begins at an address: the process does, or what looks like a call goes there.
pub(super) fn is_reached(elf: &Elf<'_>, calls: &[Branch], vaddr: u64) -> bool {
    vaddr == elf.entry() || called_in(calls, &(vaddr..vaddr + 1)).is_some()
}

/// What looks like a call into these bytes.
pub(super) fn called_in(calls: &[Branch], range: &Range<u64>) -> Option<Branch> {
    calls[calls.partition_point(|call| call.to < range.start)..].first().copied().filter(|call| call.to < range.end)
}

#[cfg(test)]
mod tests {
    use super::{CANDIDATES_MAX, CodeFile};

    /// A library whose code repeats some bytes.
    fn library(code: &[u8], bytes: usize) -> Vec<u8> {
        const HEADERS: usize = 120;
        let mut file = vec![0; HEADERS];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        // Type and machine, sizes of headers, then the one program header: PT_LOAD, readable and executable.
        for (at, half) in [(16, 3u16), (18, 62), (20, 1), (32, 64), (52, 64), (54, 56), (56, 1), (64, 1), (68, 5)] {
            file[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        let end = (HEADERS + bytes) as u64;
        file[96..104].copy_from_slice(&end.to_le_bytes());
        file[104..112].copy_from_slice(&end.to_le_bytes());
        file.extend(code.iter().cycle().take(bytes));
        file
    }

    #[test]
    fn large_modules_that_are_full_of_branches_are_not_analysed() {
        let branches = [0xe9, 0, 0, 0, 0, 0x90, 0x90, 0x90];
        let fits = CANDIDATES_MAX * branches.len();
        assert!(CodeFile::parse(library(&branches, fits)).is_ok());
        let why = CodeFile::parse(library(&branches, fits + branches.len())).expect_err("too much").to_string();
        assert!(why.contains("not analysed"), "{why}");
    }

    #[test]
    fn code_that_is_made_to_keep_the_server_busy_is_not_analysed() {
        const BYTES: usize = 32 << 20;
        for code in [&[0xe9, 0, 0, 0, 0][..], &[0x0f, 0x05], &[0x0f, 0x84, 1, 0, 0, 0]] {
            let why = CodeFile::parse(library(code, BYTES)).expect_err("too much").to_string();
            assert!(why.contains("not analysed"), "{why}");
        }
        assert!(CodeFile::parse(library(&[0x90, 0xc3], BYTES)).is_ok());
    }
}
