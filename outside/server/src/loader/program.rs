//! `BPF_PROG_LOAD`, and what is told of programs afterwards.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use ring3_aot::{Facts, Kind, Subject};
use ring3_engine::Engine;
use ring3_isa::code::{BPF_CALL, BPF_PSEUDO_KFUNC_CALL};
use ring3_isa::{Immediate, Insn, Op};
use ring3_jit::{Code, Options};
use ring3_names::{Names, Style};
use ring3_uapi::Errno;
use ring3_uapi::attr::prog_load as p;
use ring3_uapi::attr::{Field, PROG_INFO_BYTES};
use ring3_uapi::bpf::{is_gpl_compatible, map_type, prog_type};
use ring3_uapi::flags::BPF_F_SLEEPABLE;
use ring3_uapi::helper;
use ring3_verifier::{AddedWords, Input, MapShape, Policy, ProcessFilter, Verified, is_tracing, verify};

use super::attr::Attr;
use super::bpf::{Info, Log, map_of, refuse_logged};
use super::call_function::Typed;
use super::raw_seccomp::leader;
use super::recent::{Maker, Recalled};
use super::source::{self, FUNC_RECORD_BYTES, LINE_RECORD_BYTES};
use super::{Caller, Outcome, Reply, refuse, refuse_aloud};
use crate::kernel;
use crate::loader::objects::{IdKind, MapObject, Object, Program, Source, VMLINUX_BTF_ID};
use crate::realm::{ExtensionClass, Isolation, MapSlot, Terminal, fresh_nonce, possible_cpus};
use crate::rights::Rights;
use crate::support;

/// Instructions of a program at most.
const INSNS_MAX: u32 = 1_000_000;
/// `BPF_F_STRICT_ALIGNMENT` to `BPF_F_TEST_REG_INVARIANTS`.
const PROG_FLAGS: u32 = 0xff;

/// A program that a loader brings.
struct NewProgram<'c> {
    log: Log<'c>,
    name: String,
    kind: Kind,
    insns: Vec<Insn>,
    maps: HashMap<Reference, Arc<MapObject>>,
    source: Source,
    rights: Arc<Rights>,
    extension: Option<Arc<ExtensionClass>>,
    typed: Option<Typed>,
}

/// What is made of it.
struct BuiltProgram {
    code: Code,
    /// Who compiled it.
    engine: Engine,
    facts: Facts,
    /// Instructions that the verifier went through; of a file of compiled programs, those that the program has.
    verified_insns: u32,
    /// GOT slots of its maps.
    slots: Vec<u32>,
    /// Words of values to which it adds, if that is known.
    added: Option<Vec<AddedWords>>,
    /// If the loader came with a file of compiled programs: why its code was not used.
    aot: Option<Result<(), String>>,
}

/// Programs by which tools find out what there is have so many instructions at most: `r0 = 0; exit`.
const QUESTION_INSNS_MAX: u32 = 2;

pub(super) fn load(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let (kind, count) = (attr.u32(0), attr.u32(4));
    if attr.u32(p::PROG_FLAGS.at) & !PROG_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let rights = caller.rights()?;
    check_rights(&rights, kind, count)?;
    let (btf_id, is_typed) = (attr.u32(p::ATTACH_BTF_ID.at), kind == prog_type::TRACING);
    if [p::ATTACH_PROG_FD, p::PROG_IFINDEX].iter().any(|field| attr.u32(field.at) != 0) || is_typed != (btf_id != 0) {
        return Err(Errno::EINVAL); // of program types that are not here
    }
    let bytes = caller.read(attr.u64(8), count as usize * 8)?;
    let license = caller.read_string(attr.u64(16), 128)?;
    if let Some((errno, why)) = support::refused_prog_type(kind) {
        let name = prog_type::name(kind).unwrap_or("unknown program type");
        return Err(refuse(errno, format_args!("program type {name}: {why}")));
    }
    let name = attr.name(48)?;
    // (Whoever asks only whether there is such a place is not told on the terminal, and need not wait for its name.)
    let is_question = count <= QUESTION_INSNS_MAX;
    let name_of = |id| if is_question { format!("of type {id}") } else { kernel::name_of_type(id) };
    let typed = is_typed.then(|| Typed::new(attr.u32(p::EXPECTED_ATTACH_TYPE.at), btf_id, name_of)).transpose();
    let typed = typed.map_err(|why| match format!("program {name:?}: {why}") {
        why if is_question => refuse(Errno::EINVAL, why),
        why => refuse_aloud(caller, Errno::EINVAL, &why),
    })?;
    let log = Log::new(caller, attr, [p::LOG_LEVEL, p::LOG_SIZE, p::LOG_BUF, p::LOG_TRUE_SIZE])?;
    let mut insns = ring3_isa::decode(&bytes).ok_or(Errno::EINVAL)?;
    let tag = ring3_names::tag(&insns);
    let classes = &caller.session.extensions;
    let extension = classes.iter().find(|class| class.programs.contains(name.as_str())).cloned();
    if extension.is_none() && !classes.is_empty() {
        return Err(refuse(Errno::EACCES, format_args!("program {name:?}: no class of the extension names it")));
    }
    let of_host = if extension.is_some() { host_calls(&insns) } else { vec![] };
    kernel::known().functions.renumber(&mut insns);
    of_host.into_iter().for_each(|(at, call)| insns[at] = call);
    let btf = source::types(caller, attr)?;
    let maps = maps_of(caller, attr, &insns).map_err(|fd| {
        let text = format!("fd {fd} is not pointing to valid bpf_map\n");
        refuse_logged(&log, Errno::EINVAL, &text, format_args!("program {name:?}: {text}"))
    })?;
    let source = source::read(caller, attr, &insns, btf)
        .map_err(|(errno, text)| refuse_logged(&log, errno, &text, format_args!("program {name:?}: {text}")))?;
    let kind = Kind {
        prog_type: kind,
        attach_type: attr.u32(p::EXPECTED_ATTACH_TYPE.at),
        gpl_compatible: is_gpl_compatible(&license),
        sleepable: attr.u32(p::PROG_FLAGS.at) & BPF_F_SLEEPABLE != 0,
    };
    if extension.is_some() && kind.prog_type != prog_type::KPROBE {
        let why = "an extension is of type kprobe: its section is named uprobe";
        return Err(refuse(Errno::EINVAL, format_args!("program {name:?}: {why}")));
    }
    let brought = NewProgram { log, name, kind, insns, maps, source, rights, extension, typed };
    let made = brought.make(caller)?;
    let program = Arc::new(brought.publish(caller, made, bytes, tag)?);
    let fd = caller.open_pipe(Object::Program(program))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

/// Mirrors kernel/bpf/syscall.c:bpf_prog_load (v6.18), where `kernel.unprivileged_bpf_disabled` is not 0.
fn check_rights(rights: &Rights, kind: u32, count: u32) -> Result<(), Errno> {
    use prog_type::{
        KPROBE, PERF_EVENT, RAW_TRACEPOINT, RAW_TRACEPOINT_WRITABLE, SCHED_ACT, SCHED_CLS, TRACEPOINT, TRACING, XDP,
    };
    if !rights.may_bpf() {
        return Err(refuse(Errno::EPERM, "BPF_PROG_LOAD without CAP_BPF"));
    }
    if count == 0 || count > INSNS_MAX {
        return Err(Errno::E2BIG);
    }
    if matches!(kind, XDP | SCHED_CLS | SCHED_ACT) && !rights.may_administer_networks() {
        return Err(refuse(Errno::EPERM, "a program for packets without CAP_NET_ADMIN"));
    }
    let monitors =
        matches!(kind, KPROBE | TRACEPOINT | PERF_EVENT | RAW_TRACEPOINT | RAW_TRACEPOINT_WRITABLE | TRACING);
    if monitors && !rights.may_monitor() {
        return Err(refuse(Errno::EPERM, "a program for tracing without CAP_PERFMON"));
    }
    Ok(())
}

impl NewProgram<'_> {
    fn shape(&self, key: &Reference) -> Option<MapShape> {
        self.maps.get(key).map(|map| map.shape())
    }

    /// The value of a map that never changes, by slot.
    fn constant(&self, slot: u32) -> Option<Vec<u8>> {
        self.maps.values().find(|map| map.slot.0 == slot)?.constant_value()
    }

    /// Takes code from the loader's file of compiled programs, or verifies and compiles.
    fn make(&self, caller: &Caller<'_>) -> Result<BuiltProgram, Errno> {
        let hardens = caller.session.options.compiling.hardens();
        let store = caller.session.store.as_ref().filter(|_| self.extension.is_none());
        let stored = store.map(|store| match hardens {
            true => Err("constants are not to stand in its code".into()),
            false => self.stored(store),
        });
        let made = match stored {
            Some(Ok(made)) => made,
            other => {
                BuiltProgram { aot: other.and_then(Result::err).map(Err), ..self.recall_or_compile(caller, hardens)? }
            }
        };
        match &made.aot {
            Some(Ok(())) => tracing::info!("program {:?}: aot: used", self.name),
            // libbpf asks by programs without a name what there is.
            Some(Err(_)) if self.name.is_empty() => {}
            Some(Err(why)) => tracing::info!("program {:?}: aot: not used: {why}", self.name),
            None => {}
        }
        self.check_maps()?;
        Ok(made)
    }

    /// Takes code of a program that was compiled lately, or verifies and compiles, and keeps that.
    fn recall_or_compile(&self, caller: &Caller<'_>, hardens: bool) -> Result<BuiltProgram, Errno> {
        let engine = caller.session.options.compiling.engine;
        let is_kept = !hardens && self.extension.is_none() && self.typed.is_none();
        let map_at = |at| self.shape(&reference(&self.insns, at)?);
        let subject = is_kept.then(|| Subject::new(self.kind, &self.insns, &map_at)).flatten();
        let Some(subject) = subject else { return self.compile(engine, hardens, |_, _, _| ()) };
        let (recent, maker) =
            (&caller.subsystem().recent, Maker { engine, administers: self.rights.may_administer() });
        // (The verifier has its log from going through the program.)
        let found =
            (self.log.level == 0).then(|| recent.find(maker, &subject, &|slot| self.constant(slot))).flatten();
        if let Some(Recalled { code, engine, facts, verified_insns, added }) = found {
            tracing::debug!("program {:?}: code of the same program that was loaded before", self.name);
            let slots = subject.slots().to_vec();
            return Ok(BuiltProgram { code, engine, facts, verified_insns, slots, added: Some(added), aot: None });
        }
        self.compile(engine, hardens, |verified, made, constants| {
            recent.keep(maker, &subject, verified, made, constants);
        })
    }

    /// The code of a file, if it has the same program, compiled for the same maps and constants.
    fn stored(&self, store: &ring3_aot::Store) -> Result<BuiltProgram, String> {
        if !self.rights.may_administer() {
            return Err("its loader may not all that the verifier allowed".into());
        }
        if self.log.level != 0 {
            return Err("the tool wants to see the verifier's log".into());
        }
        let map_at = |at| self.shape(&reference(&self.insns, at)?);
        let subject = Subject::new(self.kind, &self.insns, &map_at).ok_or("it names a map that is not there")?;
        let stored = store.find(&subject, &|slot| self.constant(slot))?;
        let symbol = |name: &str| ring3_image::symbols().find(|(known, _)| *known == name).map(|(known, _)| known);
        let code = stored.code(&subject, &symbol).ok_or("its code wants what this ring3 has not")?;
        let slots = subject.slots().to_vec();
        let verified_insns = self.insns.len() as u32;
        let (facts, engine, added, aot) = (stored.facts, Engine::Jit, None, Some(Ok(())));
        Ok(BuiltProgram { code, engine, facts, verified_insns, slots, added, aot })
    }

    /// What the program may do. Mirrors kernel/trace/bpf_trace.c:bpf_tracing_func_proto.
    fn policy(&self) -> Policy {
        if let Some(class) = &self.extension {
            let mut policy = Policy::extension(Rc::new(class.grant.clone()), class.at_end);
            policy.helpers.retain(|id| class.may_call(*id));
            return policy;
        }
        let mut policy = match &self.typed {
            Some(typed) => Policy::of_system_calls(self.kind.attach_type, typed.has_number()),
            None => Policy::targets(self.kind.prog_type).attached(self.kind.prog_type, self.kind.attach_type),
        };
        if !self.rights.may_administer() {
            policy.helpers.remove(&helper::PROBE_WRITE_USER);
        }
        policy
    }

    /// Verifies and compiles. `keep` is given what was made of what, with the values of maps that the verifier asked for.
    fn compile(
        &self,
        engine: Engine,
        hardens: bool,
        keep: impl FnOnce(&Verified, (&Code, Engine), &[(u32, Vec<u8>)]),
    ) -> Result<BuiltProgram, Errno> {
        let constants = RefCell::new(BTreeMap::new());
        let constant_value = |slot| {
            let value = self.constant(slot)?;
            constants.borrow_mut().insert(slot, value.clone());
            Some(value)
        };
        let verified = verify(&Input {
            insns: &self.insns,
            prog_type: self.kind.prog_type,
            gpl_compatible: self.kind.gpl_compatible,
            sleepable: self.kind.sleepable,
            cpus: possible_cpus(),
            policy: self.policy(),
            log_level: self.log.level,
            lines: source::texts(&self.source),
            map_by_fd: &|fd| self.shape(&Reference::Fd(fd)),
            map_by_index: &|index| self.shape(&Reference::Index(index)),
            constant_value: &constant_value,
        })
        .map_err(|report| self.refuse(report.errno, &report.log, &report))?;
        self.log.write(verified.log())?;
        let rounds = self.extension.as_ref().map_or(Ok(None), |class| class.rounds(&verified));
        let rounds = rounds.map_err(|why| self.refuse(Errno::E2BIG, &format!("{why}\n"), &why))?;
        let options = Options { blinding: hardens.then(fresh_nonce), rounds };
        let (code, engine) = engine.compile(&verified, &options).map_err(|error| {
            let text = format!("compiling failed: {error}\n");
            self.refuse(Errno::EINVAL, &text, &text)
        })?;
        keep(&verified, (&code, engine), &constants.take().into_iter().collect::<Vec<_>>());
        let slots = verified.maps().iter().map(|map| map.slot).collect();
        Ok(BuiltProgram {
            code,
            engine,
            facts: Facts::of(&verified),
            verified_insns: verified.statistics().processed as u32,
            slots,
            added: Some(verified.added_words()),
            aot: None,
        })
    }

    /// The processes in which it does anything.
    fn filter(&self) -> ProcessFilter {
        ProcessFilter::of(&self.insns, &|at| {
            let shape = self.shape(&reference(&self.insns, at)?)?;
            let is_single = shape.map_type == map_type::ARRAY && shape.max_entries == 1;
            is_single.then(|| self.constant(shape.slot))?
        })
    }

    /// What the kernel refuses of maps together with programs of this type.
    fn check_maps(&self) -> Result<(), Errno> {
        let kind = self.kind.prog_type;
        if let Some(map) = self.maps.values().find(|map| map.has_lock())
            && (is_tracing(kind) || kind == prog_type::SOCKET_FILTER)
        {
            let who = if is_tracing(kind) { "tracing" } else { "socket filter" };
            let text = format!("{who} progs cannot use bpf_spin_lock yet\n");
            return Err(refuse_logged(&self.log, Errno::EINVAL, &text, format_args!("map {:?}: {text}", map.name)));
        }
        let mut arrays = self.maps.values().filter(|map| map.geometry().header.map_type == map_type::PROG_ARRAY);
        if arrays.any(|array| !array.admits((kind, self.kind.attach_type))) {
            let what = "tail calls to programs of another type";
            return Err(refuse(Errno::EINVAL, format_args!("program {:?}: {what}", self.name)));
        }
        Ok(())
    }

    /// An extension must not bring the instruction that ends the protection of its maps, not even within a constant: a host that has
    /// lost control of itself could jump there (USENIX Security 2019, "ERIM", 3.2).
    fn check_gadgets(&self, code: &[u8]) -> Result<(), Errno> {
        const WRPKRU: [u8; 3] = [0x0f, 0x01, 0xef];
        let is_isolated = self.extension.as_ref().is_some_and(|class| class.isolation != Isolation::None);
        match code.windows(WRPKRU.len()).position(|bytes| bytes == WRPKRU).filter(|_| is_isolated) {
            None => Ok(()),
            Some(at) => {
                let text = format!(
                    "its code has the bytes 0f 01 ef at +{at:#x}, the instruction that ends the protection of maps: change the \
                     constant that has them, or load it with --isolation=none"
                );
                Err(self.refuse(Errno::EACCES, &format!("{text}\n"), &text))
            }
        }
    }

    fn publish(
        self,
        caller: &Caller<'_>,
        made: BuiltProgram,
        bytes: Vec<u8>,
        tag: [u8; 8],
    ) -> Result<Program, Errno> {
        self.check_gadgets(&made.code.bytes)?;
        let realm = caller.subsystem().realm.clone();
        let names = Names::of(&made.code, &self.source.described(&self.name, &self.insns), Style::Kernel);
        let slots = made.slots.into_iter().map(MapSlot).collect();
        let text = realm.publish_program(&made.code, slots, made.engine, names);
        let text = text.map_err(|refusal| self.refuse(refusal.errno, &format!("{refusal}\n"), &refusal))?;
        let filter = self.filter();
        self.maps.values().for_each(|map| map.note_sums(made.added.as_deref()));
        let bytes = with_map_ids(&self.insns, bytes, &self.maps);
        let mut held: Vec<Arc<MapObject>> = self.maps.into_values().collect();
        held.sort_by_key(|map| map.id);
        held.dedup_by_key(|map| map.id);
        let loader = leader(caller.call.tid);
        realm.note_loader(loader);
        Ok(Program {
            id: caller.subsystem().new_id(IdKind::Program),
            name: self.name,
            tag,
            prog_type: self.kind.prog_type,
            expected_attach_type: self.kind.attach_type,
            gpl_compatible: self.kind.gpl_compatible,
            insns: bytes,
            text: Arc::new(text),
            facts: made.facts,
            verified_insns: made.verified_insns,
            filter,
            maps: Mutex::new(held),
            source: self.source,
            aot: made.aot,
            loaded_ns: boot_time_ns(),
            terminal: Terminal::of_loader(loader, caller.session.terminal),
            budget: caller.session.options.budget,
            scope: caller.session.options.scope,
            loader,
            extension: self.extension,
            typed: self.typed,
            rights: self.rights,
            realm,
        })
    }

    fn refuse(&self, errno: Errno, log: &str, why: &dyn std::fmt::Display) -> Errno {
        refuse_logged(&self.log, errno, log, format_args!("program {:?}: {why}", self.name))
    }
}

/// Calls that the loader of an extension has marked as those of the host, or of the agent, by their numbers (ring3-object says how),
/// and where they are.
fn host_calls(insns: &[Insn]) -> Vec<(usize, Insn)> {
    let is_marked =
        |insn: &Insn| insn.opcode == BPF_CALL && insn.src() == BPF_PSEUDO_KFUNC_CALL && insn.off == helper::HOST_MARK;
    let marked = insns.iter().enumerate().filter(|(_, insn)| is_marked(insn));
    marked.map(|(at, insn)| (at, Insn { off: 0, ..*insn })).collect()
}

/// How an instruction names a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reference {
    Fd(i32),
    Index(u32),
}

/// How an instruction names a map, if it does.
fn reference(insns: &[Insn], at: usize) -> Option<Reference> {
    let Ok(Op::LoadImm64 { value, .. }) = ring3_isa::op(insns, at) else { return None };
    match value {
        Immediate::MapFd(fd) | Immediate::MapValue(fd, _) => Some(Reference::Fd(fd)),
        Immediate::MapIdx(index) | Immediate::MapIdxValue(index, _) => Some(Reference::Index(index)),
        _ => None,
    }
}

/// All maps that the instructions name and that exist; the number of a descriptor that is something else.
fn maps_of(caller: &Caller<'_>, attr: &Attr, insns: &[Insn]) -> Result<HashMap<Reference, Arc<MapObject>>, i32> {
    let fd_array = attr.u64(120);
    let mut found = HashMap::new();
    for reference in (0..insns.len()).filter_map(|at| reference(insns, at)) {
        let fd = match reference {
            Reference::Fd(fd) => Some(fd),
            Reference::Index(index) => caller
                .read(fd_array + u64::from(index) * 4, 4)
                .ok()
                .map(|bytes| i32::from_le_bytes(bytes.try_into().expect("4 bytes"))),
        };
        let Some(fd) = fd else { continue };
        match map_of(caller, fd) {
            Ok(map) => drop(found.insert(reference, map)),
            Err(Errno::EINVAL) => return Err(fd),
            Err(_) => {}
        }
    }
    Ok(found)
}

/// The instructions as the kernel shows them: maps by id. Mirrors kernel/bpf/syscall.c:bpf_insn_prepare_dump.
fn with_map_ids(insns: &[Insn], mut bytes: Vec<u8>, maps: &HashMap<Reference, Arc<MapObject>>) -> Vec<u8> {
    for at in 0..insns.len() {
        let Some(map) = reference(insns, at).and_then(|reference| maps.get(&reference)) else { continue };
        if let Some(immediate) = bytes.get_mut(at * 8 + 4..at * 8 + 8) {
            immediate.copy_from_slice(&map.id.to_le_bytes());
        }
    }
    bytes
}

fn boot_time_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// `struct bpf_prog_info`: counts, names and ids; the caller's buffers are filled as far as they reach.
/// Mirrors kernel/bpf/syscall.c:bpf_prog_get_info_by_fd. Lines of machine code are not told: they are not in order.
pub(super) fn info(caller: &Caller<'_>, program: &Program, given: &Info) -> Result<Info, Errno> {
    use ring3_uapi::attr::prog_info as i;
    /// `jited_line_info_rec_size`
    const ADDRESS_BYTES: u32 = 8;
    let source = &program.source;
    let mut info = Info(vec![0; PROG_INFO_BYTES]);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let ids: Vec<u32> = program.maps.lock().expect("no panic under this lock").iter().map(|map| map.id).collect();
    info.put32(i::TYPE.at, program.prog_type).put32(i::ID.at, program.id).put(i::TAG.at, &program.tag);
    info.put64(i::LOAD_TIME.at, program.loaded_ns);
    info.put32(i::CREATED_BY_UID.at, program.rights.uid()).put(i::NAME.at, program.name.as_bytes());
    info.put32(i::GPL_COMPATIBLE.at, u32::from(program.gpl_compatible));
    info.put32(i::BTF_ID.at, source.btf.as_ref().map_or(0, |btf| btf.id));
    info.put32(i::VERIFIED_INSNS.at, program.verified_insns);
    let runs = program.realm.runs_of(&program.text);
    info.put64(i::RUN_TIME_NS.at, runs.time_ns).put64(i::RUN_CNT.at, runs.count);
    if let Some(typed) = &program.typed {
        info.put32(i::ATTACH_BTF_OBJ_ID.at, VMLINUX_BTF_ID).put32(i::ATTACH_BTF_ID.at, typed.btf_id);
    }
    let tells_code = caller.rights()?.may_bpf();
    info.put32(i::JITED_PROG_LEN.at, if tells_code { program.text.code_bytes } else { 0 });
    // Sizes of records that the kernel names even where there are none.
    info.put32(i::FUNC_INFO_REC_SIZE.at, FUNC_RECORD_BYTES).put32(i::LINE_INFO_REC_SIZE.at, LINE_RECORD_BYTES);
    info.put32(i::JITED_LINE_INFO_REC_SIZE.at, ADDRESS_BYTES);
    let lists = [
        (i::XLATED_PROG_LEN, i::XLATED_PROG_INSNS, 1, program.insns.clone()),
        (i::NR_MAP_IDS, i::MAP_IDS, size_of::<u32>(), words(&ids)),
        (i::NR_FUNC_INFO, i::FUNC_INFO, FUNC_RECORD_BYTES as usize, words(source.functions.as_flattened())),
        (i::NR_LINE_INFO, i::LINE_INFO, LINE_RECORD_BYTES as usize, words(source.lines.as_flattened())),
    ];
    let tells = |count: Field| tells_code || count == i::NR_MAP_IDS;
    for (count, address, each, bytes) in lists.into_iter().filter(|(count, ..)| tells(*count)) {
        let (given_count, given_address) = (given.get32(count.at) as usize, given.get64(address.at));
        let room = given_count.saturating_mul(each).min(bytes.len());
        if given_address != 0 && room > 0 {
            caller.write(given_address, &bytes[..room])?;
            info.put64(address.at, given_address);
        }
        info.put32(count.at, (bytes.len() / each) as u32);
    }
    Ok(info)
}
