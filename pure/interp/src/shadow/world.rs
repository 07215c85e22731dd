//! What a checked program lives in: its context, maps and helpers, filled at random.

use std::collections::BTreeMap;

use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper as id;

use super::memory::{Kind, Memory, Value, Wrong};

/// What a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Elements by index.
    Array,
    /// Elements by key.
    Hash,
    /// Records.
    Ring,
    /// Programs.
    Programs,
}

/// A map, as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// What it is.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Elements at most; of a ring, bytes.
    pub entries: u32,
    /// Its only value, which nobody can change.
    pub constant: Option<&'static [u8]>,
}

/// `sizeof(struct __sk_buff)`, and the part of it (`cb`) that a socket filter may write.
const SK_BUFF_BYTES: usize = 192;
const SK_BUFF_CB: std::ops::Range<usize> = 48..68;
/// `sizeof(struct xdp_md)`, and its members that are addresses.
const XDP_BYTES: usize = 24;
const XDP_DATA: u64 = 0;
const XDP_DATA_END: u64 = 4;
const XDP_DATA_META: u64 = 8;
/// `sizeof(struct pt_regs)`.
const PT_REGS_BYTES: usize = 168;
/// `BPF_MAX_LOOPS`.
pub(crate) const LOOPS_MAX: u64 = 8 << 20;
/// Keys that a hash holds at first are below this.
const FIRST_KEYS: u64 = 6;

const EPERM: u64 = -1i64 as u64;
const ENOENT: u64 = -2i64 as u64;
const E2BIG: u64 = -7i64 as u64;
const EFAULT: u64 = -14i64 as u64;
const EEXIST: u64 = -17i64 as u64;
pub(crate) const EINVAL: u64 = -22i64 as u64;

enum Elements {
    Array(Vec<u32>),
    Hash(BTreeMap<Vec<u8>, u32>),
    None,
}

pub(crate) struct World<'a> {
    pub(crate) memory: Memory,
    pub(crate) context: u32,
    prog_type: u32,
    maps: &'a [MapSpec],
    elements: Vec<Elements>,
    packet: Option<(u32, u32)>,
    pub(crate) cpus: u64,
    records: Vec<u32>,
    /// Of keys that callbacks get.
    pub(crate) key: u32,
    iterators: Vec<NumberIterator>,
    pub(crate) random: &'a mut dyn FnMut() -> u64,
}

/// An iterator over numbers.
struct NumberIterator {
    /// Region and offset.
    place: (u32, u64),
    next: i32,
    end: i32,
    /// Of the number that was given last.
    number: Option<u32>,
}

/// `struct bpf_iter_num`
const ITERATOR_BYTES: u64 = 8;

/// How many arguments a helper takes.
pub(crate) fn arguments_of(helper: u32) -> Option<usize> {
    Some(match helper {
        id::KTIME_GET_NS | id::GET_PRANDOM_U32 | id::GET_SMP_PROCESSOR_ID | id::GET_CURRENT_PID_TGID => 0,
        id::MAP_LOOKUP_ELEM | id::MAP_DELETE_ELEM | id::GET_CURRENT_COMM | id::XDP_ADJUST_HEAD => 2,
        id::RINGBUF_SUBMIT | id::RINGBUF_DISCARD => 2,
        id::PROBE_READ | id::PROBE_READ_USER | id::PROBE_READ_KERNEL | id::RINGBUF_RESERVE | id::TAIL_CALL => 3,
        id::MAP_UPDATE_ELEM | id::SKB_LOAD_BYTES | id::RINGBUF_OUTPUT | id::LOOP | id::FOR_EACH_MAP_ELEM => 4,
        id::CSUM_DIFF => 5,
        id::ITER_NUM_NEXT | id::ITER_NUM_DESTROY => 1,
        id::ITER_NUM_NEW => 3,
        _ => return None,
    })
}

/// What a helper did.
pub(crate) enum Done {
    Result(u64),
    Pointer(Value),
    /// Another program runs in place of this one.
    TailCalled,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        prog_type: u32,
        maps: &'a [MapSpec],
        unwritten_stack_is_read: bool,
        random: &'a mut dyn FnMut() -> u64,
    ) -> World<'a> {
        let mut memory = Memory::new(unwritten_stack_is_read);
        let key = memory.add("key", vec![0; 8], 0..0, random());
        let (bytes, writable) = match prog_type {
            prog_type::SOCKET_FILTER => (SK_BUFF_BYTES, SK_BUFF_CB),
            prog_type::XDP => (XDP_BYTES, 0..0),
            _ => (PT_REGS_BYTES, 0..0),
        };
        let context = filled(bytes, random);
        let context = memory.add("context", context, writable, random());
        let mut world = World {
            memory,
            context,
            prog_type,
            maps,
            elements: vec![],
            packet: None,
            cpus: 1,
            records: vec![],
            key,
            iterators: vec![],
            random,
        };
        if prog_type == prog_type::XDP {
            world.place_packet();
        }
        world.elements = maps.iter().map(|map| world.fill_map(map)).collect();
        world
    }

    fn place_packet(&mut self) {
        const LENGTHS: [u64; 12] = [0, 1, 7, 8, 13, 14, 15, 34, 42, 64, 100, 255];
        let length = LENGTHS[(self.next() % 12) as usize] as usize;
        let (bytes, hint) = (filled(length, self.random), self.next());
        let packet = self.memory.add("packet", bytes, 0..length, hint);
        // What lies behind the packet is nobody's: its end is an address, and nothing more.
        self.packet = Some((packet, self.memory.add("packet's end", vec![], 0..0, 0)));
    }

    pub(crate) fn next(&mut self) -> u64 {
        (self.random)()
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    fn element(&mut self, map: &MapSpec) -> u32 {
        let bytes = match map.constant {
            Some(constant) => constant.to_vec(),
            None => filled(map.value_bytes as usize, self.random),
        };
        let (writable, hint) = (if map.constant.is_some() { 0 } else { bytes.len() }, self.next());
        self.memory.add("map value", bytes, 0..writable, hint)
    }

    fn fill_map(&mut self, map: &MapSpec) -> Elements {
        match map.kind {
            MapKind::Array => Elements::Array((0..map.entries).map(|_| self.element(map)).collect()),
            MapKind::Hash => {
                let mut elements = BTreeMap::new();
                for number in 0..FIRST_KEYS {
                    if self.one_in(2) {
                        let key = number.to_le_bytes()[..map.key_bytes.min(8) as usize].to_vec();
                        elements.insert(key, self.element(map));
                    }
                }
                Elements::Hash(elements)
            }
            MapKind::Ring | MapKind::Programs => Elements::None,
        }
    }

    /// A load of the context gives an address where the context has one.
    pub(crate) fn load(&self, at: Value, bytes: u8) -> Result<Value, Wrong> {
        if let (Some((packet, end)), 4, Some((region, offset))) = (self.packet, bytes, self.memory.locate(at))
            && region == self.context
            && self.prog_type == prog_type::XDP
        {
            match offset {
                XDP_DATA | XDP_DATA_META => return Ok(self.memory.pointer(packet, 0)),
                XDP_DATA_END => {
                    let address = self.memory.pointer(packet, self.memory.bytes(packet).len() as u64).bits;
                    return Ok(Value { bits: address, ..self.memory.pointer(end, 0) });
                }
                _ => {}
            }
        }
        self.memory.load(at, bytes)
    }

    /// The address of a map's only value.
    pub(crate) fn direct_value(&self, map: u32, offset: u32) -> Option<Value> {
        match self.elements.get(map as usize)? {
            Elements::Array(elements) => Some(self.memory.pointer(*elements.first()?, offset.into())),
            _ => None,
        }
    }

    /// What must not be held when a program ends.
    pub(crate) fn check_end(&self) -> Result<(), Wrong> {
        match (self.records.is_empty(), self.iterators.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Wrong::Leak("ring buffer record")),
            (true, false) => Err(Wrong::Leak("iterator")),
        }
    }

    fn map(&self, argument: u8, value: Value, kinds: &[MapKind]) -> Result<(usize, MapSpec), Wrong> {
        match value.kind {
            Kind::Map(index) if value.bits == handle(index) => {
                let map = *self.maps.get(index as usize).ok_or(Wrong::Argument(argument, "no map"))?;
                let fits = kinds.contains(&map.kind);
                if fits { Ok((index as usize, map)) } else { Err(Wrong::Argument(argument, "a map of another kind")) }
            }
            _ => Err(Wrong::Argument(argument, "no map")),
        }
    }

    fn check_context(&self, argument: u8, value: Value) -> Result<(), Wrong> {
        let is_context = self.memory.locate(value) == Some((self.context, 0));
        if is_context { Ok(()) } else { Err(Wrong::Argument(argument, "not the context")) }
    }

    /// Elements that a callback is called for: their keys and addresses.
    pub(crate) fn elements(&self, map: Value) -> Result<Vec<(Vec<u8>, u32)>, Wrong> {
        let (index, _) = self.map(1, map, &[MapKind::Array, MapKind::Hash])?;
        Ok(match &self.elements[index] {
            Elements::Array(elements) => {
                elements.iter().zip(0u32..).map(|(region, key)| (key.to_le_bytes().to_vec(), *region)).collect()
            }
            Elements::Hash(elements) => elements.iter().map(|(key, region)| (key.clone(), *region)).collect(),
            Elements::None => vec![],
        })
    }

    /// Calls a helper that calls nobody back.
    pub(crate) fn call(&mut self, helper: u32, r: [Value; 5]) -> Result<Done, Wrong> {
        let result = match helper {
            id::MAP_LOOKUP_ELEM => return self.lookup(r),
            id::MAP_UPDATE_ELEM => self.update(r)?,
            id::MAP_DELETE_ELEM => self.delete(r)?,
            id::KTIME_GET_NS | id::GET_CURRENT_PID_TGID => self.next(),
            id::GET_PRANDOM_U32 => self.next() & 0xffff_ffff,
            id::GET_SMP_PROCESSOR_ID => self.next() % self.cpus,
            id::PROBE_READ | id::PROBE_READ_USER | id::PROBE_READ_KERNEL => {
                let failed = self.one_in(4);
                self.write(r[0], r[1].bits, failed)?;
                if failed { EFAULT } else { 0 }
            }
            id::GET_CURRENT_COMM => {
                self.write(r[0], r[1].bits, false)?;
                0
            }
            id::SKB_LOAD_BYTES => {
                self.check_context(1, r[0])?;
                let failed = self.one_in(4);
                self.write(r[2], r[3].bits, failed)?;
                if failed { EFAULT } else { 0 }
            }
            id::CSUM_DIFF => {
                self.memory.read(r[0], r[1].bits)?;
                self.memory.read(r[2], r[3].bits)?;
                self.next()
            }
            id::RINGBUF_OUTPUT => {
                self.map(1, r[0], &[MapKind::Ring])?;
                self.memory.read(r[1], r[2].bits)?;
                if self.one_in(4) { EPERM } else { 0 }
            }
            id::RINGBUF_RESERVE => return self.reserve(r),
            id::RINGBUF_SUBMIT | id::RINGBUF_DISCARD => self.submit(r[0])?,
            id::TAIL_CALL => {
                self.check_context(1, r[0])?;
                self.map(2, r[1], &[MapKind::Programs])?;
                if self.one_in(2) {
                    return Ok(Done::TailCalled);
                }
                ENOENT
            }
            id::XDP_ADJUST_HEAD => self.adjust_head(r[0])?,
            id::ITER_NUM_NEW => self.make_iterator(r)?,
            id::ITER_NUM_NEXT => return self.next_number(r[0]),
            id::ITER_NUM_DESTROY => self.drop_iterator(r[0])?,
            _ => return Err(Wrong::UnknownHelper(helper)),
        };
        Ok(Done::Result(result))
    }

    fn write(&mut self, at: Value, bytes: u64, zero: bool) -> Result<(), Wrong> {
        let random = &mut *self.random;
        self.memory.fill(at, bytes, || if zero { 0 } else { random() as u8 })
    }

    fn lookup(&mut self, r: [Value; 5]) -> Result<Done, Wrong> {
        let (index, map) = self.map(1, r[0], &[MapKind::Array, MapKind::Hash])?;
        let key = self.memory.read(r[1], map.key_bytes.into())?;
        let found = match &self.elements[index] {
            Elements::Array(elements) => elements.get(index_of(key)).copied(),
            Elements::Hash(elements) => elements.get(key).copied(),
            Elements::None => None,
        };
        Ok(match found {
            Some(region) => Done::Pointer(self.memory.pointer(region, 0)),
            None => Done::Result(0),
        })
    }

    fn update(&mut self, r: [Value; 5]) -> Result<u64, Wrong> {
        const NOEXIST: u64 = 1;
        const EXIST: u64 = 2;
        let (index, map) = self.map(1, r[0], &[MapKind::Array, MapKind::Hash])?;
        if map.constant.is_some() {
            return Err(Wrong::Argument(1, "a map that programs may not write"));
        }
        let key = self.memory.read(r[1], map.key_bytes.into())?.to_vec();
        let value = self.memory.read(r[2], map.value_bytes.into())?.to_vec();
        let flags = r[3].bits;
        let found = match &self.elements[index] {
            Elements::Array(elements) => elements.get(index_of(&key)).copied(),
            Elements::Hash(elements) => elements.get(&key).copied(),
            Elements::None => None,
        };
        match (&self.elements[index], found) {
            _ if flags > EXIST => return Ok(EINVAL),
            (Elements::Array(_), None) => return Ok(E2BIG),
            (_, Some(_)) if flags == NOEXIST => return Ok(EEXIST),
            (_, None) if flags == EXIST => return Ok(ENOENT),
            (Elements::Hash(elements), None) if elements.len() >= map.entries as usize => return Ok(E2BIG),
            _ => {}
        }
        let region = match found {
            Some(region) => region,
            None => self.element(&map),
        };
        *self.memory.bytes_mut(region) = value;
        if let Elements::Hash(elements) = &mut self.elements[index] {
            elements.insert(key, region);
        }
        Ok(0)
    }

    fn delete(&mut self, r: [Value; 5]) -> Result<u64, Wrong> {
        let (index, map) = self.map(1, r[0], &[MapKind::Array, MapKind::Hash])?;
        if map.constant.is_some() {
            return Err(Wrong::Argument(1, "a map that programs may not write"));
        }
        let key = self.memory.read(r[1], map.key_bytes.into())?;
        Ok(match &mut self.elements[index] {
            // Who holds the address of the element may use it on: it is at worst used again.
            Elements::Hash(elements) => elements.remove(key).map_or(ENOENT, |_| 0),
            _ => EINVAL,
        })
    }

    fn reserve(&mut self, r: [Value; 5]) -> Result<Done, Wrong> {
        let (_, map) = self.map(1, r[0], &[MapKind::Ring])?;
        if r[2].bits != 0 || r[1].bits > map.entries.into() || self.one_in(4) {
            return Ok(Done::Result(0));
        }
        let (bytes, hint) = (filled(r[1].bits as usize, self.random), self.next());
        let length = bytes.len();
        let record = self.memory.add("record", bytes, 0..length, hint);
        self.records.push(record);
        Ok(Done::Pointer(self.memory.pointer(record, 0)))
    }

    fn submit(&mut self, record: Value) -> Result<u64, Wrong> {
        let place = self.memory.locate(record);
        let held = self.records.iter().position(|held| place == Some((*held, 0)));
        let held = held.ok_or(Wrong::Argument(1, "not a record that is held"))?;
        let record = self.records.swap_remove(held);
        self.memory.end(record);
        *self.memory.bytes_mut(record) = vec![];
        Ok(0)
    }

    /// What lies in the iterator is its own; how far it is, is not kept there.
    fn make_iterator(&mut self, [at, start, end, ..]: [Value; 5]) -> Result<u64, Wrong> {
        self.write(at, ITERATOR_BYTES, false)?;
        let place = self.memory.locate(at).ok_or(Wrong::Argument(1, "no memory"))?;
        let (start, end) = (start.bits as i32, end.bits as i32);
        let fails = start > end || i64::from(end) - i64::from(start) > LOOPS_MAX as i64;
        self.iterators.push(NumberIterator {
            place,
            next: start,
            end: if fails { start } else { end },
            number: None,
        });
        Ok(if fails { EINVAL } else { 0 })
    }

    fn iterator(&mut self, at: Value) -> Result<usize, Wrong> {
        let place = self.memory.locate(at);
        let found = self.iterators.iter().position(|iterator| place == Some(iterator.place));
        found.ok_or(Wrong::Argument(1, "not an iterator"))
    }

    fn next_number(&mut self, at: Value) -> Result<Done, Wrong> {
        let index = self.iterator(at)?;
        let hint = self.next();
        let iterator = &mut self.iterators[index];
        if let Some(number) = iterator.number.take() {
            self.memory.end(number);
        }
        if iterator.next >= iterator.end {
            return Ok(Done::Result(0));
        }
        let number = self.memory.add("iterator's number", iterator.next.to_le_bytes().to_vec(), 0..0, hint);
        iterator.next += 1;
        iterator.number = Some(number);
        Ok(Done::Pointer(self.memory.pointer(number, 0)))
    }

    fn drop_iterator(&mut self, at: Value) -> Result<u64, Wrong> {
        let index = self.iterator(at)?;
        let iterator = self.iterators.swap_remove(index);
        if let Some(number) = iterator.number {
            self.memory.end(number);
        }
        Ok(0)
    }

    fn adjust_head(&mut self, context: Value) -> Result<u64, Wrong> {
        self.check_context(1, context)?;
        if let Some((packet, end)) = self.packet {
            self.memory.end(packet);
            self.memory.end(end);
        }
        self.place_packet();
        Ok(if self.one_in(4) { EINVAL } else { 0 })
    }
}

/// What a map is to a program: an address that leads nowhere.
pub(crate) fn handle(map: u32) -> u64 {
    0xffff_c900_0000_0000 + u64::from(map) * 0x1000
}

fn index_of(key: &[u8]) -> usize {
    key.try_into().map_or(usize::MAX, |key| u32::from_le_bytes(key) as usize)
}

/// Words, so that whole numbers are at edges.
fn filled(bytes: usize, random: &mut dyn FnMut() -> u64) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        all.extend_from_slice(&random().to_le_bytes());
    }
    all.truncate(bytes);
    all
}
