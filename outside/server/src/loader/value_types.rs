//! The BTF types of a map's keys and values.

use ring3_btf::{Btf, SpecialKind, kind};
use ring3_maps::Attributes;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG};

use super::refuse;

/// Checks the types of keys and values against a map's attributes; the offset of a `bpf_spin_lock` in values.
/// Mirrors kernel/bpf/syscall.c:map_check_btf (v6.18).
///
/// # Errors
/// The kernel's; `ENOTSUPP` for members that programs here cannot use.
pub(super) fn check(btf: &Btf, map: &Attributes, key: u32, value: u32) -> Result<Option<u32>, Errno> {
    let key = match key {
        0 if !may_lack_key(map.map_type) => return Err(Errno::EINVAL),
        0 => None,
        key => Some(btf.sized(key).filter(|(_, bytes)| *bytes == map.key_size).ok_or(Errno::EINVAL)?.0),
    };
    let (value, _) = btf.sized(value).filter(|(_, bytes)| *bytes == map.value_size).ok_or(Errno::EINVAL)?;
    let specials = btf.specials(value)?;
    if !specials.is_empty() && map.map_flags & (BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG) != 0 {
        return Err(Errno::EACCES);
    }
    let mut lock = None;
    for special in specials {
        check_place(map.map_type, special.kind)?;
        if special.kind != SpecialKind::SpinLock {
            let name = special.kind.name();
            return Err(refuse(
                Errno::ENOTSUPP,
                format_args!("a value with a {name}: there are no kernel objects here"),
            ));
        }
        lock = Some(special.at);
    }
    check_for_type(btf, map, key, value)?;
    Ok(lock)
}

/// Types with a `map_check_btf` of their own.
fn may_lack_key(kind: u32) -> bool {
    use map_type::{
        ARRAY, ARRAY_OF_MAPS, BLOOM_FILTER, CGROUP_ARRAY, HASH_OF_MAPS, LPM_TRIE, PERCPU_ARRAY, PERF_EVENT_ARRAY,
        STACK_TRACE,
    };
    [
        ARRAY,
        PERCPU_ARRAY,
        BLOOM_FILTER,
        PERF_EVENT_ARRAY,
        CGROUP_ARRAY,
        ARRAY_OF_MAPS,
        HASH_OF_MAPS,
        STACK_TRACE,
        LPM_TRIE,
    ]
    .contains(&kind)
}

/// In which map types a member may be.
fn check_place(map: u32, member: SpecialKind) -> Result<(), Errno> {
    use map_type::{ARRAY, HASH, LRU_HASH, LRU_PERCPU_HASH, PERCPU_ARRAY, PERCPU_HASH, TASK_STORAGE};
    let places: &[u32] = match member {
        SpecialKind::SpinLock | SpecialKind::ResSpinLock => &[HASH, ARRAY, TASK_STORAGE],
        SpecialKind::Timer | SpecialKind::Workqueue | SpecialKind::TaskWork => &[HASH, LRU_HASH, ARRAY],
        SpecialKind::Kptr | SpecialKind::Refcount => {
            &[HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH, ARRAY, PERCPU_ARRAY, TASK_STORAGE]
        }
        SpecialKind::ListHead | SpecialKind::RbRoot => &[HASH, LRU_HASH, ARRAY],
        SpecialKind::ListNode | SpecialKind::RbNode => return Ok(()),
    };
    if places.contains(&map) { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// Mirrors kernel/bpf/arraymap.c:array_map_check_btf, lpm_trie.c:trie_check_btf, bloom_filter.c:bloom_map_check_btf and
/// syscall.c:map_check_no_btf.
fn check_for_type(btf: &Btf, map: &Attributes, key: Option<u32>, value: u32) -> Result<(), Errno> {
    use map_type::{
        ARRAY, ARRAY_OF_MAPS, BLOOM_FILTER, CGROUP_ARRAY, HASH_OF_MAPS, LPM_TRIE, PERCPU_ARRAY, PERF_EVENT_ARRAY,
        STACK_TRACE, TASK_STORAGE,
    };
    let invalid = |wrong: bool| if wrong { Err(Errno::EINVAL) } else { Ok(()) };
    match (map.map_type, key) {
        // The sections of global variables.
        (ARRAY, None) => invalid(map.max_entries != 1 || btf.kind(value) != Some(kind::DATASEC)),
        (PERCPU_ARRAY, None) => Err(Errno::EINVAL),
        (ARRAY | PERCPU_ARRAY, Some(key)) => invalid(!btf.is_i32(key)),
        (BLOOM_FILTER, key) => invalid(key.is_some()),
        (TASK_STORAGE, key) => invalid(!key.is_some_and(|key| btf.is_i32(key))),
        (LPM_TRIE, key) => invalid(key.and_then(|key| btf.kind(key)) != Some(kind::STRUCT)),
        (PERF_EVENT_ARRAY | CGROUP_ARRAY | ARRAY_OF_MAPS | HASH_OF_MAPS | STACK_TRACE, _) => Err(Errno::ENOTSUPP),
        _ => Ok(()),
    }
}
