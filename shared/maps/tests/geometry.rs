//! Which attributes are refused, and with which error; what is rounded.

use ring3_maps::{Attributes, Geometry};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_NO_COMMON_LRU, BPF_F_NO_PREALLOC};

fn of(map_type: u32, key_size: u32, value_size: u32, max_entries: u32) -> Attributes {
    Attributes { map_type, key_size, value_size, max_entries, cpus: 4, ..Attributes::default() }
}

#[test]
fn attributes_are_refused_as_the_kernel_refuses_them() {
    let hash = of(map_type::HASH, 4, 8, 8);
    let lru = of(map_type::LRU_HASH, 4, 8, 8);
    let per_cpu = of(map_type::PERCPU_HASH, 4, 32 << 10, 8);
    let trie = Attributes { map_flags: BPF_F_NO_PREALLOC, ..of(map_type::LPM_TRIE, 8, 8, 8) };
    let ring = of(map_type::RINGBUF, 0, 0, 4 << 12);
    let stacks = of(map_type::STACK_TRACE, 4, 16, 8);
    let bloom = Attributes { map_extra: 15, ..of(map_type::BLOOM_FILTER, 0, 8, 8) };
    for right in [hash, lru, per_cpu, trie, ring, stacks, bloom] {
        assert_eq!(Geometry::new(&right).err(), None, "{right:?}");
    }
    let wrong = [
        (Attributes { key_size: 0, ..hash }, Errno::EINVAL),
        // A link has 31 bits for an element, and 1 TiB is the end.
        (Attributes { max_entries: 1 << 31, ..hash }, Errno::E2BIG),
        (Attributes { max_entries: 1 << 21, value_size: 1 << 20, ..hash }, Errno::E2BIG),
        // With the kernel's header of 48 bytes it would have 4 MiB.
        (Attributes { value_size: (4 << 20) - 48 - 4, ..hash }, Errno::E2BIG),
        (Attributes { value_size: (32 << 10) + 1, ..per_cpu }, Errno::E2BIG),
        (Attributes { map_flags: BPF_F_NO_PREALLOC, ..lru }, Errno::ENOTSUPP),
        (Attributes { map_flags: 0, ..trie }, Errno::EINVAL),
        (Attributes { max_entries: 3 << 12, ..ring }, Errno::EINVAL),
        (Attributes { value_size: 12, ..stacks }, Errno::EINVAL),
        (Attributes { map_extra: 16, ..bloom }, Errno::EINVAL),
    ];
    for (wrong, errno) in wrong {
        assert_eq!(Geometry::new(&wrong).err(), Some(errno), "{wrong:?}");
    }
}

#[test]
fn an_lru_map_with_lists_per_cpu_has_as_many_elements_for_each() {
    let entries = |map_flags| {
        let attributes = Attributes { map_flags, ..of(map_type::LRU_HASH, 4, 8, 10) };
        Geometry::new(&attributes).expect("valid").header.max_entries
    };
    assert_eq!([0, BPF_F_NO_COMMON_LRU].map(entries), [10, 12]);
}
