//! Carries a sequence out by bpf(2), and says in a line per step what came of it.
//!
//! What is not defined is not said: `some` stands for any of the results that are allowed then. That is the order
//! of hashes (contents are said sorted), what a small LRU map has evicted, and whether a Bloom filter has a value
//! that was never pushed.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};

use ring3_uapi::Errno;
use ring3_uapi::attr::{batch as b, id, info as i, map_create as m, map_elem as e};
use ring3_uapi::bpf::cmd;

use super::kinds::{self, Kind, LOOSE_BELOW, Shape};
use super::raw_calls::{SLOT_BYTES, Slot, bpf_fd};
use super::raw_program::{Program, Shown, Victim, try_load};
use super::sequence::{Data, Step};
use crate::calls::raw_bpf::{Attr, bpf};

/// What fills memory that is to be written.
const BLANK: u8 = 0xee;
/// Bytes that are shown; of more, a checksum.
const SHOWN_MAX: usize = 40;
/// `sizeof(struct bpf_map_info)`.
const INFO_BYTES: usize = ring3_uapi::attr::MAP_INFO_BYTES;
/// More buckets than any map here has.
const NO_BUCKET: u64 = 1 << 20;
const CALLS_MAX: usize = 10_000;

type Outcome = Result<i64, Errno>;

/// Key and value.
type Element = (Vec<u8>, Vec<u8>);

struct CreatedMap {
    kind: &'static Kind,
    fd: Option<OwnedFd>,
    key_bytes: usize,
    value_bytes: usize,
    /// Of a value as bpf(2) passes it.
    user_bytes: usize,
    entries: usize,
    flags: u64,
    /// What was pushed into a Bloom filter.
    pushed: HashSet<Vec<u8>>,
    last: Option<Vec<u8>>,
    program: Option<Result<Program, Errno>>,
}

impl CreatedMap {
    fn fd(&self) -> u64 {
        self.fd.as_ref().map_or(-1i64 as u64, |fd| fd.as_raw_fd() as u64)
    }

    fn is_unordered(&self) -> bool {
        matches!(self.kind.shape, Shape::Hash | Shape::Lru)
    }

    fn is_loose(&self) -> bool {
        self.kind.shape == Shape::Lru && self.entries < LOOSE_BELOW as usize
    }

    fn key(&self, data: Data) -> Vec<u8> {
        match data {
            Data::Number(number) => (number as u32).to_le_bytes().into_iter().cycle().take(self.key_bytes).collect(),
            _ => vec![0; self.key_bytes],
        }
    }

    /// Elements that an argument's memory has room for.
    fn batch_max(&self) -> usize {
        SLOT_BYTES / self.user_bytes.max(1)
    }

    /// Bytes of a batch's position.
    fn position_bytes(&self) -> usize {
        if self.is_unordered() { 4 } else { self.key_bytes }
    }

    fn shown(&self, value: &[u8]) -> String {
        if self.kind.holds_objects {
            return "an id".to_owned();
        }
        let mut value = value.to_vec();
        if self.kind.is_per_cpu() && self.program.is_some() {
            // Programs leave what lies between two CPUs' values as it was.
            for cpu in value.chunks_mut(self.value_bytes.next_multiple_of(8).max(8)) {
                cpu.iter_mut().skip(self.value_bytes).for_each(|byte| *byte = 0);
            }
        }
        shown(&value)
    }
}

fn shown(bytes: &[u8]) -> String {
    if bytes.len() <= SHOWN_MAX {
        return bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    format!("{} bytes {sum:016x}", bytes.len())
}

fn told(outcome: Outcome) -> String {
    outcome.map_or_else(|errno| errno.name().to_owned(), |value| value.to_string())
}

/// Results that an operation may have when what is in the map is not defined.
fn is_vague(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Ok(_) | Err(Errno::ENOENT | Errno::EEXIST | Errno::ENOMEM | Errno::ENOSPC | Errno::EFAULT | Errno::E2BIG)
    )
}

/// The maps of a sequence, and memory for arguments.
pub(crate) struct Machine<'v> {
    maps: Vec<CreatedMap>,
    victim: Option<&'v mut Victim>,
    cpus: usize,
    keys: Slot,
    values: Slot,
    from: Slot,
    out: Slot,
}

fn possible_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok()).map_or(1, |last| last + 1)
}

impl<'v> Machine<'v> {
    pub(crate) fn new(victim: Option<&'v mut Victim>) -> Machine<'v> {
        let [keys, values, from, out] = std::array::from_fn(|_| Slot::new());
        Machine { maps: vec![], victim, cpus: possible_cpus(), keys, values, from, out }
    }

    /// Carries out a sequence, from nothing to nothing; `say` gets what each step gave.
    pub(crate) fn run(&mut self, steps: &[Step], mut say: impl FnMut(usize, String)) {
        self.maps.clear();
        for (number, step) in steps.iter().enumerate() {
            let text = self.step(step);
            say(number, text);
        }
        self.maps.clear();
    }

    fn step(&mut self, step: &Step) -> String {
        if let Some(kind) = kinds::named(&step.verb) {
            return self.create(kind, step);
        }
        let number = step.map();
        if number >= self.maps.len() {
            return "no such map".to_owned();
        }
        // Out of the list meanwhile: a value may name any other map.
        let mut created = self.maps.remove(number);
        let text = match step.verb.as_str() {
            "lookup" => self.lookup(&created, step, cmd::MAP_LOOKUP_ELEM),
            "take" => self.lookup(&created, step, cmd::MAP_LOOKUP_AND_DELETE_ELEM),
            "update" => self.update(&mut created, step),
            "delete" => self.delete(&created, step),
            "next" => self.next(&created, step),
            "batch-walk" => self.batch_walk(&created, step.number("count").max(1)),
            "walk" => self.walk(&created),
            "freeze" => told(bpf(cmd::MAP_FREEZE, &mut Attr::new().with(e::MAP_FD, created.fd()))),
            "info" => info(&created).map_or_else(|errno| errno.name().to_owned(), |told| shown_info(&told)),
            "reopen" => reopen(&mut created, step),
            _ if step.is_in_program() => self.in_program(&mut created, step),
            _ => self.batch(&mut created, step),
        };
        self.maps.insert(number, created);
        text
    }

    fn create(&mut self, kind: &'static Kind, step: &Step) -> String {
        let number = |name: &str| step.number(name);
        let mut attr = Attr::new()
            .with(m::MAP_TYPE, kind.number.into())
            .with(m::KEY_SIZE, number("key"))
            .with(m::VALUE_SIZE, number("value"))
            .with(m::MAX_ENTRIES, number("entries"))
            .with(m::MAP_FLAGS, number("flags"))
            .with(m::NUMA_NODE, number("numa"))
            .with(m::MAP_EXTRA, number("extra"));
        if let Data::Fd(inner) = step.data("inner") {
            attr = attr.with(m::INNER_MAP_FD, self.maps.get(inner as usize).map_or(0, CreatedMap::fd));
        }
        let created = bpf_fd(cmd::MAP_CREATE, &mut attr);
        let text = told(created.as_ref().map(|_| 0).map_err(|errno| *errno));
        let value_bytes = number("value") as usize;
        let per_cpu = kind.is_per_cpu().then(|| value_bytes.next_multiple_of(8) * self.cpus);
        self.maps.push(CreatedMap {
            kind,
            fd: created.ok(),
            key_bytes: number("key") as usize,
            value_bytes: value_bytes.min(SLOT_BYTES),
            user_bytes: per_cpu.unwrap_or(value_bytes).min(SLOT_BYTES),
            entries: number("entries") as usize,
            flags: number("flags"),
            pushed: HashSet::new(),
            last: None,
            program: None,
        });
        text
    }

    fn value(&self, created: &CreatedMap, data: Data, bytes: usize) -> Vec<u8> {
        match data {
            Data::Number(number) => {
                (0..bytes).map(|at| (number as u8).wrapping_mul(31).wrapping_add(at as u8)).collect()
            }
            Data::Fd(map) => {
                let fd = self.maps.get(map as usize).unwrap_or(created).fd() as u32;
                fd.to_le_bytes().into_iter().chain(std::iter::repeat(0)).take(bytes).collect()
            }
            _ => vec![0; bytes],
        }
    }

    /// A call on one element, with the key where `key` leads and the value where `value` leads.
    fn element(&mut self, command: u32, created: &CreatedMap, step: &Step, value: &[u8], flags: u64) -> Outcome {
        let key = self.keys.place(step.data("key"), &created.key(step.data("key")));
        let value = self.values.place(step.data("value"), value);
        let attr = Attr::new().with(e::MAP_FD, created.fd()).with(e::KEY, key);
        bpf(command, &mut attr.with(e::VALUE, value).with(e::FLAGS, flags))
    }

    /// As [`Machine::element`], for our own use.
    fn plain(
        &mut self,
        command: u32,
        created: &CreatedMap,
        key: Option<&[u8]>,
        bytes: usize,
    ) -> Result<Vec<u8>, Errno> {
        let key = key.map_or(0, |key| self.keys.place(Data::Number(0), key));
        let value = self.values.place(Data::Number(0), &vec![BLANK; bytes]);
        let attr = Attr::new().with(e::MAP_FD, created.fd()).with(e::KEY, key);
        bpf(command, &mut attr.with(e::VALUE, value)).map(|_| self.values.bytes(bytes))
    }

    fn lookup(&mut self, created: &CreatedMap, step: &Step, command: u32) -> String {
        let bloom = created.kind.shape == Shape::Bloom;
        let before = match step.data("value") {
            Data::Number(number) if bloom => self.value(created, Data::Number(number), created.user_bytes),
            _ => vec![BLANK; created.user_bytes],
        };
        let done = self.element(command, created, step, &before, step.number("flags"));
        let pushed = if step.data("value") == Data::ReadOnly { &vec![0; created.user_bytes] } else { &before };
        if bloom && matches!(done, Ok(_) | Err(Errno::ENOENT)) && !created.pushed.contains(pushed)
            || created.is_loose() && is_vague(done)
        {
            return "some".to_owned();
        }
        let after = self.values.bytes(created.user_bytes);
        match done {
            Ok(_) if matches!(step.data("value"), Data::Number(_)) => {
                format!("{} {}", told(done), created.shown(&after))
            }
            Err(errno) if errno != Errno::EFAULT && after != before => format!("{} but written", told(done)),
            _ => told(done),
        }
    }

    fn update(&mut self, created: &mut CreatedMap, step: &Step) -> String {
        let value = self.value(created, step.data("value"), created.user_bytes);
        let done = self.element(cmd::MAP_UPDATE_ELEM, created, step, &value, step.number("flags"));
        if created.is_loose() && is_vague(done) {
            // What was put in last is there.
            let key = created.key(step.data("key"));
            let found = done.and_then(|_| self.plain(cmd::MAP_LOOKUP_ELEM, created, Some(&key), created.user_bytes));
            return match found {
                Ok(found) if found != value => format!("lost: {}", created.shown(&found)),
                Err(_) if done.is_ok() && found != Err(Errno::EPERM) => {
                    format!("lost: {}", found.unwrap_err().name())
                }
                _ => "some".to_owned(),
            };
        }
        if done.is_ok() {
            created.pushed.insert(value);
        }
        told(done)
    }

    fn delete(&mut self, created: &CreatedMap, step: &Step) -> String {
        let key = self.keys.place(step.data("key"), &created.key(step.data("key")));
        let done = bpf(cmd::MAP_DELETE_ELEM, &mut Attr::new().with(e::MAP_FD, created.fd()).with(e::KEY, key));
        if created.is_loose() && is_vague(done) { "some".to_owned() } else { told(done) }
    }

    fn next(&mut self, created: &CreatedMap, step: &Step) -> String {
        let keys = if created.is_unordered() { self.all_keys(created).ok() } else { None };
        let done = self.element(cmd::MAP_GET_NEXT_KEY, created, step, &vec![BLANK; created.key_bytes], 0);
        let got = self.values.bytes(created.key_bytes);
        let shows = done.is_ok() && matches!(step.data("value"), Data::Number(_));
        let Some(keys) = keys else {
            return if shows { format!("{} {}", told(done), shown(&got)) } else { told(done) };
        };
        let is_there = step.data("key") != Data::Null && keys.contains(&created.key(step.data("key")));
        match done {
            _ if created.is_loose() && is_vague(done) => "some".to_owned(),
            _ if is_there && keys.len() > 1 && is_vague(done) => "some".to_owned(),
            Ok(_) if shows => format!("a key of the map: {}", keys.contains(&got)),
            _ => told(done),
        }
    }

    /// All keys, in the map's order.
    fn all_keys(&mut self, created: &CreatedMap) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = vec![];
        loop {
            match self.plain(cmd::MAP_GET_NEXT_KEY, created, keys.last().cloned().as_deref(), created.key_bytes) {
                Ok(key) if keys.len() < CALLS_MAX => keys.push(key),
                Ok(_) => return Err(Errno::ELOOP),
                Err(Errno::ENOENT) => return Ok(keys),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn walk(&mut self, created: &CreatedMap) -> String {
        if created.kind.shape == Shape::Queue {
            return self.drain(created);
        }
        let keys = match self.all_keys(created) {
            Ok(keys) => keys,
            Err(errno) => return errno.name().to_owned(),
        };
        if created.is_loose() {
            let room = created.entries.next_multiple_of(self.cpus);
            return if keys.len() > room { format!("{} elements of {room}", keys.len()) } else { "some".to_owned() };
        }
        let count = keys.len();
        let mut elements: Vec<String> = keys
            .iter()
            .map(|key| match self.plain(cmd::MAP_LOOKUP_ELEM, created, Some(key), created.user_bytes) {
                Ok(value) => format!("{}={}", shown(key), created.shown(&value)),
                Err(errno) => format!("{}: {}", shown(key), errno.name()),
            })
            .collect();
        if created.is_unordered() {
            elements.sort_unstable();
        }
        format!("{count}: {}", elements.join(" "))
    }

    /// Pops everything.
    fn drain(&mut self, created: &CreatedMap) -> String {
        let mut text = String::new();
        for _ in 0..CALLS_MAX {
            match self.plain(cmd::MAP_LOOKUP_AND_DELETE_ELEM, created, None, created.user_bytes) {
                Ok(value) => text += &format!("{} ", created.shown(&value)),
                Err(errno) => return text + errno.name(),
            }
        }
        text + "without end"
    }

    /// Deletes everything: two maps of which different elements are gone are the same again.
    fn clear(&mut self, created: &CreatedMap) {
        for key in self.all_keys(created).unwrap_or_default() {
            let key = self.keys.place(Data::Number(0), &key);
            let _ = bpf(cmd::MAP_DELETE_ELEM, &mut Attr::new().with(e::MAP_FD, created.fd()).with(e::KEY, key));
        }
    }

    fn batch(&mut self, created: &mut CreatedMap, step: &Step) -> String {
        let command = match step.verb.as_str() {
            "batch-lookup" => cmd::MAP_LOOKUP_BATCH,
            "batch-take" => cmd::MAP_LOOKUP_AND_DELETE_BATCH,
            "batch-update" => cmd::MAP_UPDATE_BATCH,
            _ => cmd::MAP_DELETE_BATCH,
        };
        let reads = matches!(command, cmd::MAP_LOOKUP_BATCH | cmd::MAP_LOOKUP_AND_DELETE_BATCH);
        let count = step.number("count") as usize;
        let before =
            if created.is_unordered() && reads { self.all_keys(created).unwrap_or_default() } else { vec![] };
        let mut attr = self.batch_attr(created, step, reads);
        let done = bpf(command, &mut attr);
        let came_to = attr.get(b::COUNT);
        let mut text = format!("{} of {came_to}", told(done));
        let (keys, values) = self.batch_arrays(created, count);
        let position = self.out.bytes(created.position_bytes());
        if !reads || count == 0 || !is_vague(done) {
            return if created.is_loose() && is_vague(done) { "some".to_owned() } else { text };
        }
        // Of hashes, what comes before a position is not defined: but the start is, and what is behind the end.
        let (from_start, from_end) = match (step.data("from"), &created.last) {
            (Data::Null | Data::Number(0) | Data::ReadOnly, _) | (Data::Last, None) => (true, false),
            (Data::Last, Some(_)) => (false, true),
            (Data::Number(number), _) => (false, number >= NO_BUCKET),
            _ => (false, false),
        };
        let defined = !created.is_unordered() || from_end || from_start && before.len() <= count;
        let plain = |name: &str| matches!(step.data(name), Data::Number(_));
        let came = came_to as usize;
        if came > count.min(created.batch_max()) {
            return format!("{came} of {count}");
        }
        let takes = command == cmd::MAP_LOOKUP_AND_DELETE_BATCH;
        let mut broken = None;
        if created.is_unordered() && plain("keys") && done != Err(Errno::EFAULT) {
            let keys: HashSet<&[u8]> = keys.chunks_exact(created.key_bytes.max(1)).take(came).collect();
            broken = self.not_a_part(created, &before, &keys, takes);
            if keys.len() != came {
                broken = Some(format!("{came} elements, {} keys", keys.len()));
            }
        }
        if created.is_unordered() && takes && (!defined || done.is_err()) {
            self.clear(created);
        }
        if let Some(broken) = broken {
            return broken;
        }
        if !defined || created.is_loose() {
            created.last = None;
            return "some".to_owned();
        }
        if matches!(done, Ok(_) | Err(Errno::ENOENT)) {
            if plain("out") && came > 0 {
                created.last = Some(position.clone());
            }
            if plain("keys") && plain("values") {
                text += &elements_shown(created, &elements(created, &keys, &values, came));
            }
            if plain("out") && !created.is_unordered() {
                text += &format!(" then {}", shown(&position));
            }
        }
        text
    }

    /// What is wrong with a batch whose extent is not defined: its keys must have been in the map, and not be there
    /// any more if they were taken.
    fn not_a_part(
        &mut self,
        created: &CreatedMap,
        before: &[Vec<u8>],
        keys: &HashSet<&[u8]>,
        taken: bool,
    ) -> Option<String> {
        if let Some(key) = keys.iter().find(|key| !before.iter().any(|held| held == *key)) {
            return Some(format!("{} was not in the map", shown(key)));
        }
        let after = self.all_keys(created).ok()?;
        let expected = before.len() - if taken { keys.len() } else { 0 };
        let stays = taken && after.iter().any(|key| keys.contains(key.as_slice()));
        (stays || after.len() != expected).then(|| format!("{} elements are left of {expected}", after.len()))
    }

    fn batch_attr(&mut self, created: &CreatedMap, step: &Step, reads: bool) -> Attr {
        let count = step.number("count") as usize;
        // One more than there is room for: the rest is where nothing is mapped.
        let count = count.min(created.batch_max() + 1);
        let (mut keys, mut values) =
            (vec![BLANK; count * created.key_bytes], vec![BLANK; count * created.user_bytes]);
        if !reads {
            let after = |data: Data, by: usize| match data {
                Data::Number(first) => Data::Number(first.wrapping_add(by as u64)),
                other => other,
            };
            keys = (0..count).flat_map(|by| created.key(after(step.data("keys"), by))).collect();
            values = (0..count)
                .flat_map(|by| self.value(created, after(step.data("values"), by), created.user_bytes))
                .collect();
        }
        let from = match (step.data("from"), &created.last) {
            (Data::Last, None) => 0,
            (Data::Last, Some(last)) => self.from.place(Data::Last, last),
            (Data::Number(number), _) if created.is_unordered() => {
                self.from.place(Data::Number(0), &(number as u32).to_le_bytes())
            }
            (Data::Number(number), _) => self.from.place(Data::Number(0), &created.key(Data::Number(number))),
            (other, _) => self.from.place(other, &vec![0; created.position_bytes()]),
        };
        Attr::new()
            .with(b::MAP_FD, created.fd())
            .with(b::COUNT, step.number("count"))
            .with(b::KEYS, self.keys.place(step.data("keys"), &keys))
            .with(b::VALUES, self.values.place(step.data("values"), &values))
            .with(b::IN_BATCH, from)
            .with(b::OUT_BATCH, self.out.place(step.data("out"), &vec![BLANK; created.position_bytes()]))
            .with(b::FLAGS, step.number("flags"))
            .with(b::ELEM_FLAGS, step.number("elem"))
    }

    /// The arrays of keys and of values behind a batch of `count`.
    fn batch_arrays(&self, created: &CreatedMap, count: usize) -> (Vec<u8>, Vec<u8>) {
        let count = count.min(created.batch_max() + 1);
        (self.keys.bytes(count * created.key_bytes), self.values.bytes(count * created.user_bytes))
    }

    /// Everything, by batches that grow when one does not hold what must come together.
    fn batch_walk(&mut self, created: &CreatedMap, count: u64) -> String {
        let mut count = count as usize;
        let (mut from, mut found): (Option<Vec<u8>>, Vec<Element>) = (None, vec![]);
        for _ in 0..CALLS_MAX {
            let step = Step::new("batch-lookup").with("count", Data::Number(count as u64));
            let mut attr = self.batch_attr(created, &step, true);
            if let Some(from) = &from {
                attr = attr.with(b::IN_BATCH, self.from.place(Data::Number(0), from));
            }
            let done = bpf(cmd::MAP_LOOKUP_BATCH, &mut attr);
            let came = attr.get(b::COUNT) as usize;
            if came > count.min(created.batch_max()) {
                return format!("{came} of {count}");
            }
            if matches!(done, Ok(_) | Err(Errno::ENOENT)) {
                let (keys, values) = self.batch_arrays(created, count);
                found.extend(elements(created, &keys, &values, came));
            }
            match done {
                Ok(_) => from = Some(self.out.bytes(created.position_bytes())),
                Err(Errno::ENOSPC) => count *= 2,
                Err(_) if created.is_loose() && is_vague(done) => return "some".to_owned(),
                Err(errno) => return errno.name().to_owned() + &elements_shown(created, &found),
            }
        }
        "without end".to_owned()
    }

    fn in_program(&mut self, created: &mut CreatedMap, step: &Step) -> String {
        let Some(map) = &created.fd else { return "no map".to_owned() };
        // A map of maps gives programs the map, whose memory is the kernel's own.
        let value_bytes = if created.kind.holds_objects { 0 } else { created.value_bytes as u32 };
        let shape = created.kind.shape;
        let of = Shown { map, shape, value_bytes, flags: created.flags };
        if !of.fits(&step.verb) {
            return "unfit".to_owned();
        }
        if !of.allows(&step.verb) {
            // Accesses by pointer are not proved yet.
            let is_helpers = !matches!(step.verb.as_str(), "prog-add" | "prog-lookup");
            return if is_helpers { told(try_load(of, &step.verb).map(|()| 0)) } else { "unfit".to_owned() };
        }
        let (key, value) =
            (created.key(step.data("key")), self.value(created, step.data("value"), created.value_bytes));
        let is_loose = created.is_loose();
        let Some(victim) = self.victim.as_deref_mut() else { return "no victim".to_owned() };
        let program = created.program.get_or_insert_with(|| Program::attach(of, victim));
        let program = match program {
            Ok(program) => program,
            Err(errno) => return format!("no program: {}", errno.name()),
        };
        let flags = step.number(if step.verb == "prog-add" { "value" } else { "flags" });
        let (result, after) = match program.run(victim, &step.verb, (&key, &value), flags) {
            Ok(told) => told,
            Err(why) => return why,
        };
        if created.kind.shape == Shape::Bloom {
            let pushed = created.pushed.contains(&value);
            match step.verb.as_str() {
                "prog-push" if result == 0 => drop(created.pushed.insert(value)),
                "prog-peek" if !pushed && (result == 0 || result == -i64::from(Errno::ENOENT.0)) => {
                    return "some".to_owned();
                }
                _ => {}
            }
        }
        let outcome = if result < 0 && result > i64::MIN { Err(Errno(-result as i32)) } else { Ok(result) };
        if is_loose && (is_vague(outcome) || result == 0) {
            return "some".to_owned();
        }
        format!("{} {}", told(outcome), shown(&after))
    }
}

fn elements(created: &CreatedMap, keys: &[u8], values: &[u8], count: usize) -> Vec<Element> {
    let of = |all: &[u8], bytes: usize, number: usize| all[number * bytes..(number + 1) * bytes].to_vec();
    (0..count).map(|number| (of(keys, created.key_bytes, number), of(values, created.user_bytes, number))).collect()
}

fn elements_shown(created: &CreatedMap, elements: &[Element]) -> String {
    let mut shown: Vec<String> =
        elements.iter().map(|(key, value)| format!(" {}={}", shown(key), created.shown(value))).collect();
    if created.is_unordered() {
        shown.sort_unstable();
    }
    shown.concat()
}

fn info(created: &CreatedMap) -> Result<[u8; INFO_BYTES], Errno> {
    let mut told = [0u8; INFO_BYTES];
    let attr = Attr::new().with(i::BPF_FD, created.fd()).with(i::INFO_LEN, INFO_BYTES as u64);
    bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)).map(|_| told)
}

/// Without the id.
fn shown_info(told: &[u8; INFO_BYTES]) -> String {
    told[..4].iter().chain(&told[8..]).map(|byte| format!("{byte:x}")).collect()
}

fn reopen(created: &mut CreatedMap, step: &Step) -> String {
    let told_id = match info(created) {
        Ok(told) => u32::from_ne_bytes(told[4..8].try_into().expect("4 bytes")),
        Err(errno) => return errno.name().to_owned(),
    };
    let attr = Attr::new().with(id::START_ID, told_id.into()).with(id::OPEN_FLAGS, step.number("flags"));
    match bpf_fd(cmd::MAP_GET_FD_BY_ID, &mut attr.clone()) {
        Ok(fd) => {
            created.fd = Some(fd);
            "0".to_owned()
        }
        Err(errno) => errno.name().to_owned(),
    }
}
