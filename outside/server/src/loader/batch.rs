//! bpf(2): many elements in one call.

use ring3_uapi::Errno;
use ring3_uapi::attr::batch as b;
use ring3_uapi::bpf::{cmd, map_type};
use ring3_uapi::flags::BPF_F_LOCK;

use super::attr::Attr;
use super::bpf::{check_lock_flag, map_for, update};
use super::{Caller, Outcome, Reply};
use crate::loader::objects::{Access, MapObject};

/// Elements that are gathered before they are written to the caller.
const GATHERED_MAX: u32 = 256;

fn check_type(map: &MapObject, command: u32) -> Result<(), Errno> {
    let deletes = matches!(command, cmd::MAP_DELETE_BATCH | cmd::MAP_LOOKUP_AND_DELETE_BATCH);
    match map.geometry().header.map_type {
        map_type::TASK_STORAGE => Err(Errno::ENOTSUPP),
        map_type::LPM_TRIE if command != cmd::MAP_LOOKUP_AND_DELETE_BATCH => Ok(()),
        t if ring3_maps::is_hash(t) => Ok(()),
        map_type::ARRAY | map_type::PERCPU_ARRAY | map_type::ARRAY_OF_MAPS if !deletes => Ok(()),
        _ => Err(Errno::ENOTSUPP),
    }
}

/// Tells the caller how far the batch came.
fn tell_count(caller: &Caller<'_>, count: u32) -> Result<(), Errno> {
    caller.write(caller.arg(1) + b::COUNT.at as u64, &count.to_le_bytes())
}

/// `BPF_MAP_UPDATE_BATCH` and `BPF_MAP_DELETE_BATCH`. Mirrors kernel/bpf/syscall.c:generic_map_update_batch and
/// generic_map_delete_batch.
pub(super) fn change(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    let deletes = command == cmd::MAP_DELETE_BATCH;
    let map = map_for(caller, attr.i32(b::MAP_FD.at), Access::WRITE)?;
    check_type(&map, command)?;
    let flags = attr.u64(b::ELEM_FLAGS.at);
    if flags & !BPF_F_LOCK != 0 {
        return Err(Errno::EINVAL);
    }
    check_lock_flag(&map, flags)?;
    let wanted = u64::from(attr.u32(b::COUNT.at));
    if wanted == 0 {
        return Ok(Outcome::Value(0));
    }
    let (key_bytes, value_bytes) = (map.geometry().header.key_size as usize, map.geometry().user_value_bytes());
    let (keys, values) = (attr.u64(b::KEYS.at), attr.u64(b::VALUES.at));
    let change = |number: u64| {
        let key = caller.read(keys.wrapping_add(number * key_bytes as u64), key_bytes)?;
        if deletes {
            return map.delete(&key);
        }
        let value = caller.read(values.wrapping_add(number * value_bytes as u64), value_bytes)?;
        update(caller, &map, &key, &value, flags)
    };
    let stopped = (0..wanted).map(|number| (number, change(number))).find(|(_, done)| done.is_err());
    let (count, done) = stopped.unwrap_or((wanted, Ok(())));
    tell_count(caller, count as u32)?;
    done.map(|()| Outcome::Value(0))
}

/// Elements on their way to the caller's arrays.
struct BatchOutput<'c> {
    caller: &'c Caller<'c>,
    keys_at: u64,
    values_at: u64,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// Elements in `keys` and `values`.
    gathered: u32,
    /// Elements, those included.
    total: u32,
}

impl BatchOutput<'_> {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        self.gathered += 1;
        self.total += 1;
        if self.gathered < GATHERED_MAX { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), Errno> {
        self.caller.write(self.keys_at, &self.keys)?;
        self.caller.write(self.values_at, &self.values)?;
        self.keys_at = self.keys_at.wrapping_add(self.keys.len() as u64);
        self.values_at = self.values_at.wrapping_add(self.values.len() as u64);
        self.keys.clear();
        self.values.clear();
        self.gathered = 0;
        Ok(())
    }
}

/// `BPF_MAP_LOOKUP_BATCH` and `BPF_MAP_LOOKUP_AND_DELETE_BATCH`.
pub(super) fn look_up(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    let deletes = command == cmd::MAP_LOOKUP_AND_DELETE_BATCH;
    let map = map_for(caller, attr.i32(b::MAP_FD.at), if deletes { Access::BOTH } else { Access::READ })?;
    check_type(&map, command)?;
    let by_bucket = ring3_maps::is_hash(map.geometry().header.map_type);
    // Arrays do not look at the call's flags.
    if attr.u64(b::ELEM_FLAGS.at) & !BPF_F_LOCK != 0 || by_bucket && attr.u64(b::FLAGS.at) != 0 {
        return Err(Errno::EINVAL);
    }
    check_lock_flag(&map, attr.u64(b::ELEM_FLAGS.at))?;
    let wanted = attr.u32(b::COUNT.at);
    if wanted == 0 {
        return Ok(Outcome::Value(0));
    }
    tell_count(caller, 0)?;
    let (keys_at, values_at) = (attr.u64(b::KEYS.at), attr.u64(b::VALUES.at));
    let mut found = BatchOutput { caller, keys_at, values_at, keys: vec![], values: vec![], gathered: 0, total: 0 };
    let (position, done) = if by_bucket {
        by_buckets(attr, &map, wanted, deletes, &mut found)?
    } else {
        by_keys(attr, &map, wanted, &mut found)?
    };
    found.write()?;
    let tell_position =
        || position.as_ref().map_or(Ok(()), |position| caller.write(attr.u64(b::OUT_BATCH.at), position));
    // Which of the two goes first is seen when the other cannot be written.
    if by_bucket {
        tell_position()?;
    }
    tell_count(caller, found.total)?;
    if !by_bucket {
        tell_position()?;
    }
    done.map(|()| Outcome::Value(0))
}

/// Where the batch ended, and whether that is the map's end (`ENOENT`).
type BatchEnd = (Option<Vec<u8>>, Result<(), Errno>);

/// The position between batches is a key. Mirrors kernel/bpf/syscall.c:generic_map_lookup_batch.
fn by_keys(attr: &Attr, map: &MapObject, wanted: u32, found: &mut BatchOutput<'_>) -> Result<BatchEnd, Errno> {
    let mut last = match attr.u64(b::IN_BATCH.at) {
        0 => None,
        address => Some(found.caller.read(address, map.geometry().header.key_size as usize)?),
    };
    let mut done = Ok(());
    while found.total < wanted {
        let key = match map.next_key(last.as_deref()) {
            Ok(key) => key,
            Err(errno) => {
                done = Err(errno);
                break;
            }
        };
        match map.lookup(&key) {
            Ok(value) => found.add(&key, &value)?,
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        last = Some(key);
    }
    Ok((last.filter(|_| found.total > 0), done))
}

/// The position between batches is a bucket's number, of 4 bytes whatever the keys have: a bucket's elements come
/// together, or not yet. Mirrors kernel/bpf/hashtab.c:__htab_map_lookup_and_delete_batch.
fn by_buckets(
    attr: &Attr,
    map: &MapObject,
    wanted: u32,
    deletes: bool,
    found: &mut BatchOutput<'_>,
) -> Result<BatchEnd, Errno> {
    let mut bucket = match attr.u64(b::IN_BATCH.at) {
        0 => 0,
        address => {
            let bytes = found.caller.read(address, size_of::<u32>())?;
            u32::from_le_bytes(bytes.try_into().map_err(|_| Errno::EFAULT)?)
        }
    };
    let last = map.geometry().hash.bucket_mask;
    if bucket > last {
        return Err(Errno::ENOENT);
    }
    let mut done = Err(Errno::ENOENT);
    while bucket <= last {
        let keys = map.bucket_keys(bucket);
        if keys.len() > (wanted - found.total) as usize {
            done = if found.total == 0 { Err(Errno::ENOSPC) } else { Ok(()) };
            break;
        }
        for key in keys {
            // What is gone meanwhile is gone.
            if let Ok(value) = if deletes { map.lookup_and_delete(&key) } else { map.lookup(&key) } {
                found.add(&key, &value)?;
            }
        }
        bucket += 1;
    }
    Ok((Some(bucket.to_le_bytes().to_vec()), done))
}
