//! What the server knows of executable files: where a probe may go, and where ring3 itself needs one.
//!
//! Files are parsed outside any stop and remembered by device, inode, size and modification time.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ring3_elf::{File as Elf, NoTable};
use ring3_event::is_unseen;
use ring3_inject as inject;
use ring3_layout::control::HookKind;
use ring3_layout::syscall::SYSCALL_BYTES;
use ring3_patch::{
    Arrival, Function, JUMP_BYTES, Plan, Routine, SyscallPlan, Tactic, computes_targets, instruction_bytes,
    plan_alone, plan_detour, plan_returns, plan_syscalls,
};
use ring3_uapi::Errno;

use super::code::{CodeFile, between, called_in, is_reached};
use super::regular_file;
use super::return_addresses::returns_twice;
use super::unwind::Unwinding;
use crate::realm::Refusal;
use crate::realm::process::read_process;

/// No process has memory from here on (`TASK_SIZE_MAX`, arch/x86/include/asm/page_64_types.h).
const USER_ADDRESSES_END: u64 = 0x7fff_ffff_f000;
/// Go's functions that no goroutine is preempted in, by the beginnings of their names.
const NEVER_PREEMPTED: [&str; 4] = ["runtime.", "runtime/internal/", "internal/runtime/", "reflect."];
/// What is looked at behind a function whose end is unknown, and behind one that is tiny (padding), bytes.
const UNKNOWN_FUNCTION_BYTES: u64 = 512;
pub(super) const BEHIND_FUNCTION_BYTES: u64 = 32;
/// Bytes of the parsed files that are kept together; the latest one is kept whatever its size.
const KEPT_BYTES_MAX: u64 = 128 << 20;
/// Unknown files of one process are analysed for this long, then others have a turn. (The file that is begun is ended.)
pub(in crate::realm) const ANALYSIS_AT_ONCE: Duration = Duration::from_secs(1);
/// Plans and addresses that are remembered of all files: some 200 bytes each.
const KEPT_ENTRIES_MAX: usize = 1 << 20;
/// Letters of a symbol's name that are kept. (C++ has some of thousands.)
const NAME_LETTERS_MAX: usize = 1024;
/// Files larger than this are analysed by a thread of their own, while others are served.
const AT_ONCE_BYTES_MAX: u64 = 4 << 20;
/// Files larger than this are not parsed.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// ring3's own places in unwinders. From a start or a walk on, the stack must show its real return addresses; at an end the frames
/// that survived go on.
const UNWINDER_FUNCTIONS: [(&str, HookKind); 7] = [
    ("_Unwind_RaiseException", HookKind::UnwindStart),
    ("_Unwind_Resume", HookKind::UnwindStart),
    ("_Unwind_Resume_or_Rethrow", HookKind::UnwindStart),
    ("_Unwind_ForcedUnwind", HookKind::UnwindStart),
    ("_Unwind_Backtrace", HookKind::StackWalk),
    ("__cxa_begin_catch", HookKind::UnwindEnd),
    ("_Unwind_DeleteException", HookKind::UnwindEnd),
];

/// A place in a file where a probe is wanted, with what planning needs. Addresses are the file's own.
#[derive(Debug)]
pub(in crate::realm) struct StaticSite {
    /// Address of the probed instruction in the file's address space.
    pub(in crate::realm) vaddr: u64,
    /// Address of the function's first byte.
    pub(in crate::realm) function: u64,
    /// Bytes of the function proper; 0: unknown.
    pub(super) function_bytes: usize,
    /// The function's bytes and some behind it.
    pub(in crate::realm) bytes: Vec<u8>,
    /// `symbol+offset`, or the address where no symbol covers it.
    pub(in crate::realm) name: String,
    /// What arrives from elsewhere in the middle of what the probe's jump replaces.
    entered: Option<Arrival>,
    /// What arrives in the middle of the probed instruction.
    inside: Option<Arrival>,
    /// See [`Function::computed`].
    computed: bool,
    /// Why the return from here cannot be probed.
    no_return: Option<String>,
    /// If so, a tool hears that of each target, and its other probes are placed: it may have taken all functions of a file.
    is_refused_in_targets: bool,
    /// It begins the process and has nowhere to return to: on its stack is no return address, but the number of arguments.
    never_returns: bool,
    /// The file is mapped at the addresses that it names.
    fixed: bool,
    /// It is in Go: stacks there have no room for a stub, and return addresses are not replaced.
    in_go: bool,
    /// Where the function's returns are seen, at the file's addresses, if its return address must not be replaced.
    returns: Vec<Plan>,
    /// It is Python's: that is so only in a process that copies its stacks ([`super::copies_stacks`]). Why it cannot be probed there.
    in_copies: Option<Result<(), String>>,
    /// The plan for the site at the file's addresses, once somebody has asked for it.
    planned: OnceLock<Result<Plan, ring3_patch::Refusal>>,
}

impl StaticSite {
    /// Whether the function's return can be probed; `in_copies`: in a process that copies its stacks.
    pub(in crate::realm) fn check_return(&self, in_copies: bool) -> Result<(), Refusal> {
        let refuse = |why: &String| Err(Refusal::new(Errno::ENOTSUPP, format!("{}: {why}", self.name)));
        let there = self.in_copies.as_ref().filter(|_| in_copies).and_then(|there| there.as_ref().err());
        self.no_return.as_ref().or(there).map_or(Ok(()), refuse)
    }

    /// Whether a program at its return would never run. Nothing is placed for it then: tools that take all functions of a file get
    /// the others.
    pub(in crate::realm) fn never_returns(&self) -> bool {
        self.never_returns
    }

    /// How far behind the site its function's returns are seen, each at a place of its own; nowhere, if its return address is replaced.
    /// `in_copies`: in a process that copies its stacks.
    pub(in crate::realm) fn returns(&self, in_copies: bool) -> impl Iterator<Item = u64> {
        let returns = if self.in_copies.is_some() && !in_copies { &[] } else { &self.returns[..] };
        returns.iter().map(|plan| plan.site - self.vaddr)
    }

    /// Plans the detour at the site, or at one of its function's returns, as mapped with `bias` added to the file's addresses.
    pub(in crate::realm) fn plan(&self, ret: Option<usize>, bias: u64) -> Result<Plan, ring3_patch::Refusal> {
        if let Some(ret) = ret {
            return Ok(self.returns[ret].mapped(bias));
        }
        self.planned().as_ref().map(|plan| plan.mapped(bias)).map_err(Clone::clone)
    }

    /// Plans ahead: processes are stopped when a site is placed.
    pub(in crate::realm) fn planned(&self) -> &Result<Plan, ring3_patch::Refusal> {
        self.planned.get_or_init(|| {
            let (function, site) = (self.function(), self.vaddr);
            self.fit(plan_detour(&function, site)).or_else(|_| self.fit(plan_alone(&function, site, self.inside)))
        })
    }

    /// Where the stub of a one-byte jump would lie: the bytes behind the first one say it.
    pub(in crate::realm) fn one_byte_stub(&self, bias: u64) -> Option<u64> {
        let at = (self.vaddr - self.function) as usize;
        let distance = self.bytes.get(at + 1..at + JUMP_BYTES).filter(|_| !self.in_go)?;
        let distance = i32::from_le_bytes(distance.try_into().ok()?);
        let next = self.vaddr.wrapping_add(bias).wrapping_add(JUMP_BYTES as u64);
        Some(next.wrapping_add_signed(i64::from(distance)))
    }

    /// Why no plain jump can be written at the site.
    pub(in crate::realm) fn why_no_jump(&self) -> Option<String> {
        self.fit(plan_detour(&self.function(), self.vaddr)).err().map(|why| why.to_string())
    }

    /// The plan as this file's code needs it.
    fn fit(&self, plan: Result<Plan, ring3_patch::Refusal>) -> Result<Plan, ring3_patch::Refusal> {
        let plan = plan?;
        // Mirrors runtime/preempt.go:isAsyncSafePoint.
        let preemptible = !NEVER_PREEMPTED.iter().any(|package| self.name.starts_with(package));
        let plan = if self.in_go { plan.on_agent_stack(preemptible)? } else { plan };
        let is_nowhere = |range: &std::ops::Range<u64>| self.fixed && range.end > USER_ADDRESSES_END;
        match plan.stub_range().filter(is_nowhere) {
            Some(range) => plan
                .trapped()
                .filter(|_| plan.tactic == Tactic::Punned)
                .ok_or(ring3_patch::Refusal::OutOfReach { address: range.start }),
            None => Ok(plan),
        }
    }

    fn function(&self) -> Function<'_> {
        Function {
            bytes: &self.bytes,
            address: self.function,
            size: self.function_bytes,
            entered: self.entered,
            computed: self.computed,
        }
    }
}

/// Where ring3 itself wants hooks in a file: kind and file offset.
pub(super) type Specials = Vec<(HookKind, u64)>;

/// The `syscall` instructions of a file, at the file's addresses.
#[derive(Debug, Default)]
pub(in crate::realm) struct SyscallPlans {
    /// Those that can be replaced.
    pub(in crate::realm) plans: Vec<SyscallPlan>,
    /// What may be others: address and why they stay.
    pub(in crate::realm) left: Vec<(u64, String)>,
    /// Its functions run on stacks that have room for what the linker has seen, and nothing else: it is in Go.
    pub(in crate::realm) small_stacks: bool,
    /// Those that are certainly some, and stay.
    refused: Vec<u64>,
    /// Those whose place matters: handlers compare it.
    left_in_place: Vec<u64>,
    /// An `int $0x80`.
    gate: Option<u64>,
    /// Pairs of address and file offset at which executable segments begin.
    segments: Vec<(std::ops::Range<u64>, u64)>,
}

impl SyscallPlans {
    /// Of a file of which nothing is known, for a reason.
    fn unknown(why: &str) -> SyscallPlans {
        SyscallPlans { left: vec![(0, why.to_owned())], ..SyscallPlans::default() }
    }

    /// Some of the calls that lie in a mapping of the file, at the addresses there.
    pub(in crate::realm) fn in_mapping<'a>(
        &'a self,
        mapping: &'a inject::Mapping,
        is_wanted: impl Fn(&SyscallPlan) -> bool + 'a,
    ) -> impl Iterator<Item = SyscallPlan> {
        let bytes = mapping.range.end - mapping.range.start;
        self.plans.iter().filter(move |plan| is_wanted(plan)).filter_map(move |plan| {
            let inside = self.place_in(mapping, plan.site)?;
            let fits = inside + plan.displaced.len() as u64 <= bytes;
            fits.then(|| plan.mapped((mapping.range.start + inside).wrapping_sub(plan.site)))
        })
    }

    /// Calls in a mapping of the file that cannot be replaced, at the addresses there.
    pub(in crate::realm) fn refused_in(&self, mapping: &inject::Mapping) -> impl Iterator<Item = u64> {
        self.refused.iter().filter_map(|call| Some(mapping.range.start + self.place_in(mapping, *call)?))
    }

    /// What is behind calls in a mapping of the file whose place matters, at the addresses there.
    pub(in crate::realm) fn after_left_in_place_in(&self, mapping: &inject::Mapping) -> impl Iterator<Item = u64> {
        let calls = self.left_in_place.iter().filter_map(|call| self.place_in(mapping, *call));
        calls.map(|inside| mapping.range.start + inside + SYSCALL_BYTES)
    }

    /// An `int $0x80` in a mapping of the file, as people are told of it.
    pub(in crate::realm) fn gate_in(&self, mapping: &inject::Mapping) -> Option<String> {
        let at = mapping.range.start + self.place_in(mapping, self.gate?)?;
        Some(format!("its code uses `int $0x80` ({} at {at:#x})", mapping.path))
    }

    /// A call stays, for a reason; `is_code`: it certainly is one.
    fn leave(&mut self, elf: &Elf<'_>, call: u64, is_code: bool, why: String) {
        let is_global = |at: u64| elf.symbols_at(at).iter().any(|symbol| symbol.global);
        if is_global(call) && is_global(call + SYSCALL_BYTES) {
            // Whoever compares the place has names for where it begins and ends.
            self.left_in_place.push(call);
        } else if is_code || !elf.symbols_at(call).is_empty() {
            self.refused.push(call);
        }
        self.left.push((call, why));
    }

    /// How far behind the beginning of a mapping of the file an address in the file is.
    fn place_in(&self, mapping: &inject::Mapping, vaddr: u64) -> Option<u64> {
        let (segment, at) = self.segments.iter().find(|(segment, _)| segment.contains(&vaddr))?;
        let inside = (at + (vaddr - segment.start)).checked_sub(mapping.offset)?;
        (inside < mapping.range.end - mapping.range.start).then_some(inside)
    }
}

/// What a file is remembered by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::realm) struct FileKey {
    dev: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileKey {
    pub(super) fn of(meta: &Metadata, path: &Path) -> Result<FileKey, Refusal> {
        if !meta.is_file() {
            return Err(Refusal::new(Errno::EINVAL, format!("{}: not a regular file", path.display())));
        }
        Ok(FileKey {
            dev: meta.dev(),
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}

/// The memory of parsed files.
#[derive(Debug, Default)]
pub(in crate::realm) struct Modules {
    /// Files that are kept parsed, the latest one last.
    recent: Vec<(FileKey, CodeFile)>,
    sites: HashMap<(FileKey, u64), Result<Arc<StaticSite>, Refusal>>,
    specials: HashMap<FileKey, Arc<Specials>>,
    syscalls: HashMap<FileKey, Arc<SyscallPlans>>,
    rseq_offsets: HashMap<FileKey, Option<u64>>,
    /// Somebody asks for stacks: large files are analysed for that, too.
    wants_unwinding: bool,
    /// Of large files, until somebody fetches it.
    unwinding: HashMap<FileKey, Result<Unwinding, NoTable>>,
    /// Files of which something is remembered, oldest first, with how many entries that is.
    kept: VecDeque<(FileKey, usize)>,
    kept_entries: usize,
    /// When the turn of the process whose files are looked at ends.
    until: Option<Instant>,
    /// Files were passed over since it began.
    cut_short: bool,
    /// Large files that are wanted and not analysed yet; the first ones are in `queue`, unless that is done just now.
    awaited: HashSet<FileKey>,
    queue: VecDeque<(FileKey, PathBuf)>,
    has_worker: bool,
}

/// What is to be known of a large file.
struct Analysis {
    file: Result<CodeFile, Refusal>,
    syscalls: SyscallPlans,
    specials: Specials,
    rseq_offset: Option<u64>,
    unwinding: Option<Result<Unwinding, NoTable>>,
}

impl Analysis {
    /// Nothing if the path does not lead to the file any more. (It may be that of a process that has ended.)
    fn of(key: FileKey, path: &Path, wants_unwinding: bool) -> Option<Analysis> {
        let (_, file) = open(path).ok().filter(|(now, _)| *now == key)?;
        let file = parse(file, path);
        let of = |file: &CodeFile| (syscall_plans(file), unwind_sites(file.elf()), rseq_offset(file));
        let (syscalls, specials, rseq_offset) = match &file {
            Ok(file) => of(file),
            Err(refusal) => (SyscallPlans::unknown(&refusal.message), vec![], None),
        };
        let unwinding_of = |file: &Result<CodeFile, Refusal>| match file {
            Ok(file) => Unwinding::of(file.elf()),
            Err(_) => Err(NoTable::NoInformation),
        };
        let unwinding = wants_unwinding.then(|| unwinding_of(&file));
        Some(Analysis { file, syscalls, specials, rseq_offset, unwinding })
    }
}

// ---- large files ----

/// Analyses the large files that are wanted, in a thread of its own, until there are none.
pub(in crate::realm) fn analyse_awaited(modules: &Mutex<Modules>) {
    let lock = || modules.lock().expect("no panic under this lock");
    loop {
        let (next, wants_unwinding) = {
            let mut modules = lock();
            (modules.next_awaited(), modules.wants_unwinding)
        };
        let Some((key, path)) = next else { return };
        let analysis = std::panic::catch_unwind(|| Analysis::of(key, &path, wants_unwinding)).unwrap_or_else(|_| {
            let refusal = Refusal::new(Errno::EINVAL, format!("{}: it cannot be analysed", path.display()));
            let syscalls = SyscallPlans::unknown(&refusal.message);
            let unwinding = Some(Err(NoTable::NoInformation));
            Some(Analysis { file: Err(refusal), syscalls, specials: vec![], rseq_offset: None, unwinding })
        });
        lock().learn(key, analysis);
    }
}

impl Modules {
    /// Whether a file at this path is large and not analysed yet. Then it will be.
    pub(in crate::realm) fn awaits(&mut self, key: FileKey, path: &Path) -> Option<FileKey> {
        let is_known = key.bytes <= AT_ONCE_BYTES_MAX || self.syscalls.contains_key(&key);
        (!is_known).then(|| {
            self.want(key, path);
            key
        })
    }

    /// Whether it is not analysed yet.
    pub(in crate::realm) fn is_awaited(&self, key: &FileKey) -> bool {
        self.awaited.contains(key)
    }

    /// Whether somebody is to begin [`analyse_awaited`]; he is who has been told so.
    pub(in crate::realm) fn takes_worker(&mut self) -> bool {
        !self.queue.is_empty() && !std::mem::replace(&mut self.has_worker, true)
    }

    /// There is nobody to analyse them.
    pub(in crate::realm) fn give_up_awaited(&mut self) {
        self.has_worker = false;
        self.queue.clear();
        self.awaited.clear();
    }

    fn want(&mut self, key: FileKey, path: &Path) {
        if self.awaited.insert(key) {
            self.queue.push_back((key, path.to_owned()));
        }
    }

    /// The smallest one: of ten processes that wait for ten files few wait for the largest, which takes seconds.
    fn next_awaited(&mut self) -> Option<(FileKey, PathBuf)> {
        let smallest = self.queue.iter().enumerate().min_by_key(|(_, (key, _))| key.bytes).map(|(at, _)| at);
        let next = smallest.and_then(|at| self.queue.remove(at));
        self.has_worker = next.is_some();
        next
    }

    fn learn(&mut self, key: FileKey, analysis: Option<Analysis>) {
        self.awaited.remove(&key);
        let Some(Analysis { file, syscalls, specials, rseq_offset, unwinding }) = analysis else { return };
        if let Ok(file) = file {
            self.keep(key, file);
        }
        self.note(key, syscalls.plans.len() + syscalls.left.len() + specials.len());
        self.syscalls.insert(key, Arc::new(syscalls));
        self.specials.insert(key, Arc::new(specials));
        self.rseq_offsets.insert(key, rseq_offset);
        if let Some(unwinding) = unwinding {
            self.unwinding.insert(key, unwinding);
        }
    }

    /// Whether a file is passed over now: the turn is over before it is analysed, or it is a large one.
    fn passes(&mut self, key: &FileKey, path: &Path) -> bool {
        if key.bytes <= AT_ONCE_BYTES_MAX || self.recent.iter().any(|(known, _)| known == key) {
            return self.is_cut_short(key);
        }
        self.want(*key, path);
        self.cut_short = true;
        true
    }
}

impl Modules {
    /// Which file a path leads to at present.
    pub(in crate::realm) fn key(path: &Path) -> Result<FileKey, Refusal> {
        let meta = path.metadata().map_err(|error| failed(path, &error))?;
        FileKey::of(&meta, path)
    }

    /// The site at `offset` of `path`.
    pub(in crate::realm) fn site(&mut self, path: &Path, offset: u64) -> Result<Arc<StaticSite>, Refusal> {
        self.site_of(Modules::key(path)?, path, offset)
    }

    /// The same if the path has just been seen to lead to this file.
    pub(in crate::realm) fn site_of(
        &mut self,
        key: FileKey,
        path: &Path,
        offset: u64,
    ) -> Result<Arc<StaticSite>, Refusal> {
        if let Some(known) = self.sites.get(&(key, offset)) {
            return known.clone();
        }
        let (key, file) = open(path)?;
        if key.bytes > AT_ONCE_BYTES_MAX && self.passes(&key, path) {
            let what = format!("{}: a large file, which is not analysed yet; try again", path.display());
            return Err(Refusal::new(Errno::EBUSY, what));
        }
        let found = self.parsed(key, file, path).and_then(|file| static_site(file, path, offset).map(Arc::new));
        self.sites.insert((key, offset), found.clone());
        found
    }

    /// The entries and ends of the file's unwinder. Files that cannot be read or parsed have none.
    pub(in crate::realm) fn specials(&mut self, path: &Path) -> Arc<Specials> {
        if let Some(known) = Modules::key(path).ok().and_then(|key| self.specials.get(&key)) {
            return known.clone();
        }
        let Ok((key, file)) = open(path) else { return Arc::default() };
        if self.passes(&key, path) {
            return Arc::default();
        }
        let found = self.parsed(key, file, path).map(|file| Arc::new(unwind_sites(file.elf()))).unwrap_or_default();
        self.specials.insert(key, found.clone());
        self.note(key, found.len());
        found
    }

    /// The file's `syscall` instructions. Files that cannot be read or parsed have none.
    pub(in crate::realm) fn syscalls(&mut self, key: FileKey, path: &Path) -> Arc<SyscallPlans> {
        if let Some(known) = self.syscalls.get(&key) {
            return known.clone();
        }
        let Ok((key, file)) = open(path) else { return Arc::default() };
        if self.passes(&key, path) {
            return Arc::new(SyscallPlans::unknown("its file is not analysed yet"));
        }
        let unknown = |refusal: Refusal| SyscallPlans::unknown(&refusal.message);
        let found = Arc::new(self.parsed(key, file, path).map_or_else(unknown, syscall_plans));
        self.syscalls.insert(key, found.clone());
        self.note(key, found.plans.len() + found.left.len());
        found
    }

    /// How far behind the address of the file's first byte its variable `__rseq_offset` is (rseq(2), as glibc offers it).
    pub(in crate::realm) fn rseq_offset(&mut self, key: FileKey, path: &Path) -> Option<u64> {
        if let Some(known) = self.rseq_offsets.get(&key) {
            return *known;
        }
        let (key, file) = open(path).ok()?;
        if self.passes(&key, path) {
            return None;
        }
        let found = self.parsed(key, file, path).ok().and_then(rseq_offset);
        self.rseq_offsets.insert(key, found);
        self.note(key, 0);
        found
    }

    /// What it takes to walk stacks in the file's code; `None`: it is not analysed yet. Whoever asks remembers it.
    pub(super) fn unwinding(&mut self, key: FileKey, path: &Path) -> Option<Result<Unwinding, NoTable>> {
        self.wants_unwinding = true;
        if let Some(found) = self.unwinding.remove(&key) {
            return Some(found);
        }
        let (now, file) = open(path).ok().filter(|(now, _)| *now == key)?;
        if self.passes(&now, path) {
            return None;
        }
        let unreadable = |_| Err(NoTable::NoInformation);
        Some(self.parsed(now, file, path).map_or_else(unreadable, |file| Unwinding::of(file.elf())))
    }

    /// From now on files that are not known yet are analysed for so long, for one process: it can map as many as it likes, while
    /// others wait.
    pub(in crate::realm) fn begin_turn(&mut self, within: Duration) {
        (self.until, self.cut_short) = (Some(Instant::now() + within), false);
    }

    /// Whether files of the process have been passed over in this turn.
    pub(in crate::realm) fn passes_over(&self) -> bool {
        self.cut_short
    }

    /// Whether files of the process were passed over since its turn began. For others there is no limit from now on.
    pub(in crate::realm) fn end_turn(&mut self) -> bool {
        self.until = None;
        std::mem::take(&mut self.cut_short)
    }

    /// Whether the turn is over before this file is analysed.
    fn is_cut_short(&mut self, key: &FileKey) -> bool {
        let is_over = self.until.is_some_and(|until| Instant::now() >= until);
        let is_over = is_over && !self.recent.iter().any(|(known, _)| known == key);
        self.cut_short |= is_over;
        is_over
    }

    /// Something is remembered of a file. The oldest ones are forgotten when it is too much.
    fn note(&mut self, key: FileKey, entries: usize) {
        self.kept_entries += entries + 1;
        self.kept.push_back((key, entries + 1));
        while self.kept_entries > KEPT_ENTRIES_MAX && self.kept.len() > 1 {
            let Some((oldest, entries)) = self.kept.pop_front() else { return };
            self.kept_entries -= entries;
            self.syscalls.remove(&oldest);
            self.specials.remove(&oldest);
            self.rseq_offsets.remove(&oldest);
            self.unwinding.remove(&oldest);
        }
    }

    /// Keeps a parsed file, as the latest one.
    fn keep(&mut self, key: FileKey, file: CodeFile) {
        self.recent.push((key, file));
        let total = |recent: &[(FileKey, CodeFile)]| recent.iter().map(|(key, _)| key.bytes).sum::<u64>();
        while self.recent.len() > 1 && total(&self.recent) > KEPT_BYTES_MAX {
            self.recent.remove(0);
        }
    }

    /// The parsed file. Some are kept, since tools ask for one site after the other.
    fn parsed(&mut self, key: FileKey, file: File, path: &Path) -> Result<&CodeFile, Refusal> {
        let at = match self.recent.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                self.keep(key, parse(file, path)?);
                self.recent.len() - 1
            }
        };
        let found = self.recent.remove(at);
        self.recent.push(found);
        Ok(&self.recent.last().expect("just pushed").1)
    }
}

fn parse(file: File, path: &Path) -> Result<CodeFile, Refusal> {
    let bytes = read(file, path)?;
    CodeFile::parse(bytes).map_err(|error| Refusal::new(Errno::EINVAL, format!("{}: {error}", path.display())))
}

fn rseq_offset(file: &CodeFile) -> Option<u64> {
    let elf = file.elf();
    elf.find_variable("__rseq_offset")?.checked_sub(elf.offset_to_vaddr(0)?)
}

/// Whether the instruction at `offset` of `path`, or with `ret` the return of the function that begins there,
/// can be probed: found in an executable segment, and plannable.
pub(in crate::realm) fn check_site(
    modules: &mut Modules,
    path: &Path,
    offset: u64,
    ret: bool,
) -> Result<(), Refusal> {
    let site = modules.site(path, offset)?;
    if ret && site.is_refused_in_targets {
        return Ok(());
    }
    if ret {
        site.check_return(false)?;
    }
    let is_at_return = ret && site.returns(false).next().is_some();
    site.plan(is_at_return.then_some(0), 0)
        .map(drop)
        .map_err(|why| Refusal::new(Errno::ENOTSUPP, format!("{}: {}: {why}", path.display(), site.name)))
}

fn open(path: &Path) -> Result<(FileKey, File), Refusal> {
    let file = regular_file::open(path).map_err(|error| failed(path, &error))?;
    let meta = file.metadata().map_err(|error| failed(path, &error))?;
    Ok((FileKey::of(&meta, path)?, file))
}

fn failed(path: &Path, error: &std::io::Error) -> Refusal {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    Refusal::new(errno, format!("{}: {error}", path.display()))
}

fn read(mut file: File, path: &Path) -> Result<Vec<u8>, Refusal> {
    let length = file.metadata().map(|meta| meta.len()).unwrap_or(0);
    if length > FILE_BYTES_MAX {
        return Err(Refusal::new(Errno::EFBIG, format!("{}: larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.read_to_end(&mut bytes).map_err(|error| Refusal::new(Errno::EIO, format!("{}: {error}", path.display())))?;
    Ok(bytes)
}

pub(in crate::realm) fn static_site(file: &CodeFile, path: &Path, offset: u64) -> Result<StaticSite, Refusal> {
    let refuse = |why: String| Refusal::new(Errno::EINVAL, format!("{}: {why}", path.display()));
    let elf = file.elf();
    let vaddr =
        elf.offset_to_vaddr(offset).ok_or_else(|| refuse(format!("offset {offset:#x} is in no loaded segment")))?;
    let segment = elf
        .executable_segments()
        .into_iter()
        .find(|segment| segment.contains(&vaddr))
        .ok_or_else(|| refuse(format!("offset {offset:#x} is not in an executable segment")))?;
    let bounds = elf.function_bounds(vaddr);
    let start = bounds.as_ref().map_or(vaddr, |range| range.start);
    let end = bounds.as_ref().map_or(vaddr + UNKNOWN_FUNCTION_BYTES, |range| range.end + BEHIND_FUNCTION_BYTES);
    let code = elf
        .code(start..end.min(segment.end))
        .ok_or_else(|| refuse(format!("no code at offset {offset:#x}")))?
        .to_vec();
    let name = match elf.symbol_at(vaddr) {
        Some((name, at, _)) if at == vaddr => shown(name),
        Some((name, at, _)) => format!("{}+{:#x}", shown(name), vaddr - at),
        None => format!("{vaddr:#x}"),
    };
    let function_bytes = bounds.map_or(0, |range| (range.end - range.start) as usize);
    let entered = file.entered(vaddr);
    let bytes = instruction_bytes(&code[(vaddr - start) as usize..]) as u64;
    let inside = entered.and_then(|_| file.may_be_entered_in(vaddr + 1..vaddr + bytes.max(1)));
    let computed = file.computes_targets(vaddr);
    let no_return =
        returns_twice(elf, vaddr).then(|| "returns more than once; only its entry can be probed".to_owned());
    let in_go = file.go_text().is_some_and(|go| go.contains(&vaddr));
    let mut site = StaticSite {
        vaddr,
        function: start,
        function_bytes,
        bytes: code,
        name,
        entered,
        inside,
        computed,
        no_return,
        is_refused_in_targets: false,
        in_copies: None,
        never_returns: vaddr == elf.entry(),
        fixed: elf.is_fixed(),
        in_go,
        returns: vec![],
        planned: OnceLock::new(),
    };
    let whose = in_go.then_some("in Go").or_else(|| file.reads_return_addresses(vaddr));
    if let Some(whose) = whose.filter(|_| site.no_return.is_none() && !site.never_returns) {
        match returns_at_each(file, &site, whose) {
            Ok(returns) => site.returns = returns,
            Err(why) => (site.no_return, site.is_refused_in_targets) = (Some(why), !in_go),
        }
    } else if whose.is_none() && file.is_of_python() {
        let returns = returns_at_each(file, &site, "in Python, whose stacks are copied in this process");
        site.in_copies = Some(returns.map(|returns| site.returns = returns));
    }
    Ok(site)
}

/// A name from a file as people read it, and perf: of bounded length, in one line.
fn shown(name: &str) -> String {
    name.chars().take(NAME_LETTERS_MAX).collect::<String>().replace(is_unseen, "?")
}

/// Where the returns of a function are seen whose return address must not be replaced: at its `ret`s. Go's run-time reads return addresses
/// when it moves a stack, collects garbage or unwinds, and ends the process at one that is not Go's (as it does where the kernel's
/// uretprobes replace one). So do others: `whose`.
fn returns_at_each(file: &CodeFile, site: &StaticSite, whose: &str) -> Result<Vec<Plan>, String> {
    if site.function_bytes == 0 || site.vaddr != site.function {
        return Err(format!("is {whose}: only the return from a function's beginning can be probed"));
    }
    plan_returns(&site.function(), &|bytes| file.may_be_entered_in(bytes))
        .map_err(|why| format!("is {whose}, where returns are seen at each `ret`: {why}"))
}

/// All `syscall` instructions in an ELF image.
fn syscall_plans(file: &CodeFile) -> SyscallPlans {
    let elf = file.elf();
    let small_stacks = elf.go_text().is_some();
    let mut found = SyscallPlans { small_stacks, ..SyscallPlans::default() };
    for segment in elf.executable_segments() {
        let Some(offset) = elf.vaddr_to_offset(segment.start) else { continue };
        let Some(code) = elf.code(segment.clone()) else { continue };
        let mut done = segment.start;
        for at in memchr_syscall(code) {
            let vaddr = segment.start + at as u64;
            if let Some(routine) = Routine::around(code, segment.start, vaddr) {
                file.plan_callers(&routine, &mut found);
            }
            if vaddr >= done {
                done = file.plan_around(vaddr, segment.end, &mut found);
            }
        }
        found.segments.push((segment, offset));
    }
    found.gate = file.first_gate();
    found.keep_callers_apart();
    // What goes on behind its end is looked at twice.
    found.plans.sort_by_key(|plan| plan.site);
    found.plans.dedup_by(|next, plan| next.site < plan.site + plan.displaced.len() as u64);
    found
}

/// Plans for all system calls of a file of these bytes, and for probes at some offsets: what loaders and targets can make the server
/// do with a file. The result is how many probes can be placed.
///
/// # Errors
/// What is wrong with the file.
pub fn plan_file(bytes: Vec<u8>, offsets: &[u64]) -> Result<usize, String> {
    let file = CodeFile::parse(bytes).map_err(|error| error.to_string())?;
    let found = syscall_plans(&file);
    let _ = (found.plans.len(), unwind_sites(file.elf()));
    let is_planned = |offset: &&u64| {
        let site = static_site(&file, Path::new("file"), **offset);
        site.is_ok_and(|site| {
            site.plan(None, 0).is_ok()
                && site.returns(false).enumerate().all(|(at, _)| site.plan(Some(at), 0).is_ok())
        })
    };
    Ok(offsets.iter().filter(is_planned).count())
}

/// The `syscall` instructions of the vDSO, as this process has it.
pub(in crate::realm) fn vdso_calls() -> Option<SyscallPlans> {
    Some(syscall_plans(&CodeFile::parse(vdso_image()?).ok()?))
}

/// The vDSO as this process has it: the same as all others.
pub(super) fn vdso_image() -> Option<Vec<u8>> {
    let own = inject::Pid(std::process::id());
    let mapping = inject::mappings(own).ok()?.into_iter().find(|mapping| mapping.path == "[vdso]")?;
    let mut image = vec![0u8; (mapping.range.end - mapping.range.start) as usize];
    read_process(own.0, mapping.range.start, &mut image).ok()?;
    Some(image)
}

impl CodeFile {
    /// Plans for all calls of the function around an address; where it ends.
    fn plan_around(&self, vaddr: u64, end: u64, found: &mut SyscallPlans) -> u64 {
        let known = self.elf().function_bounds(vaddr);
        let is_gap = known.is_none();
        let Some(bounds) = known.or_else(|| between(self.elf(), vaddr)) else {
            found.leave(
                self.elf(),
                vaddr,
                false,
                "no symbol and no unwind table says where its function begins".to_owned(),
            );
            return vaddr + 1;
        };
        let Some(bytes) = self.elf().code(bounds.start..(bounds.end + BEHIND_FUNCTION_BYTES).min(end)) else {
            return bounds.end;
        };
        let size = (bounds.end - bounds.start) as usize;
        let function = Function { bytes, address: bounds.start, size, entered: None, computed: false };
        // (Between known functions may be hundreds, of which one jumps and another takes an address. All code of the file is looked
        // at for that, and most bytes that look like a call are parts of other instructions.)
        let computed = LazyCell::new(|| {
            self.indirect().is_unbounded()
                || !is_gap && computes_targets(&bytes[..size.min(bytes.len())], bounds.start)
        });
        // Where functions begin that nobody names, they are called.
        let entered = |range: std::ops::Range<u64>| {
            if *computed {
                return Some(Arrival::Indirect { to: range.start });
            }
            let called = if is_gap { called_in(self.calls(), &range).map(Arrival::Direct) } else { None };
            called.or_else(|| self.entered_in(range))
        };
        for (call, plan) in plan_syscalls(&function, is_gap, &entered) {
            match plan {
                // What is between functions may be data that looks like code.
                Ok(plan) if is_gap && !plan.uses_rax && !is_reached(self.elf(), self.calls(), bounds.start) => {
                    let why = "in no known function, nobody calls what is there, no number is loaded before it and no result taken behind it";
                    found.leave(self.elf(), call, false, why.to_owned());
                }
                Ok(plan) => found.plans.push(plan),
                Err(ring3_patch::Refusal::Cancelled { site }) => {
                    found.left_in_place.push(site);
                    found.left.push((call, ring3_patch::Refusal::Cancelled { site }.to_string()));
                }
                Err(why) => found.leave(self.elf(), call, !is_gap, why.to_string()),
            }
        }
        bounds.end
    }
}

/// Where the bytes of a `syscall` instruction stand, instruction boundaries unknown.
fn memchr_syscall(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    code.windows(2).enumerate().filter(|(_, pair)| *pair == [0x0f, 0x05]).map(|(at, _)| at)
}

fn unwind_sites(elf: &Elf<'_>) -> Specials {
    let place = |(name, kind): &(&str, HookKind)| Some((*kind, elf.vaddr_to_offset(elf.find(name)?)?));
    UNWINDER_FUNCTIONS.iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ANALYSIS_AT_ONCE, CodeFile, KEPT_ENTRIES_MAX, Modules, syscall_plans};

    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

    #[test]
    fn a_file_is_passed_over_when_the_turn_of_its_process_is_over_and_analysed_in_the_next_one() {
        let mut modules = Modules::default();
        let key = Modules::key(LIBC.as_ref()).expect("it is there");
        modules.begin_turn(Duration::ZERO);
        assert!(modules.syscalls(key, LIBC.as_ref()).plans.is_empty());
        assert!(modules.end_turn());
        modules.begin_turn(ANALYSIS_AT_ONCE);
        assert!(!modules.syscalls(key, LIBC.as_ref()).plans.is_empty());
        assert!(!modules.end_turn());
    }

    #[test]
    fn a_symbols_name_is_shown_in_one_line_of_bounded_length() {
        assert_eq!(super::shown("a\nb\x1b[2Jc"), "a?b?[2Jc");
        assert_eq!(super::shown(&"x".repeat(1 << 20)).len(), super::NAME_LETTERS_MAX);
    }

    #[test]
    fn what_is_remembered_of_files_is_bounded_and_the_latest_is_kept() {
        let mut modules = Modules::default();
        let key = Modules::key(LIBC.as_ref()).expect("it is there");
        for inode in 0..1000 {
            let key = super::FileKey { inode, ..key };
            modules.rseq_offsets.insert(key, None);
            modules.note(key, KEPT_ENTRIES_MAX / 100);
        }
        assert!(modules.kept_entries <= KEPT_ENTRIES_MAX && modules.rseq_offsets.len() == modules.kept.len());
        assert!(
            modules.rseq_offsets.len() < 101
                && modules.rseq_offsets.contains_key(&super::FileKey { inode: 999, ..key })
        );
    }

    #[test]
    fn nearly_all_system_calls_of_c_libraries_can_be_replaced() {
        for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/ld-musl-x86_64.so.1"] {
            let Ok(bytes) = std::fs::read(path) else {
                println!("SKIPPED IN PART: no {path} here");
                continue;
            };
            let file = CodeFile::parse(bytes).expect("the system's library is valid");
            let plans = syscall_plans(&file);
            let (planned, left) = (plans.plans.len(), &plans.left);
            assert!(planned > 100 && left.len() * 100 < planned, "{path}: {planned} planned, left: {left:x?}");
        }
    }
}
