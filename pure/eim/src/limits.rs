//! How much an extension may use, and which helpers.

use std::collections::BTreeSet;

use ring3_uapi::helper::*;

use crate::model::Class;
use crate::source::{Error, suggest};

/// What one extension may use at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of one run.
    pub instructions: u64,
    /// Bytes of its maps.
    pub memory_bytes: u64,
    /// How long one run takes, nanoseconds.
    pub time_ns: u64,
    /// Helpers and kernel functions, by the numbers of `ring3_uapi::helper`.
    pub helpers: BTreeSet<u32>,
    /// How many maps.
    pub maps: u32,
}

/// Instructions of one run, if a class does not say.
pub const INSTRUCTIONS: u64 = 1_000_000;
/// Bytes of maps, if a class does not say.
pub const MEMORY_BYTES: u64 = 16 << 20;
/// Nanoseconds of one run, if a class does not say.
pub const TIME_NS: u64 = 1_000_000;
/// Maps, if a class does not say.
pub const MAPS: u32 = 16;

/// A group of helpers.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// As classes name it.
    pub name: &'static str,
    /// Classes that name no helpers have them.
    pub is_default: bool,
    /// Their numbers.
    pub helpers: &'static [u32],
}

/// All groups. None of them has a helper that reads or writes memory by an address, or changes what a process does; a class
/// can name such a helper only by its whole name.
pub const GROUPS: &[Group] = &[
    Group {
        name: "map",
        is_default: true,
        helpers: &[
            MAP_LOOKUP_ELEM,
            MAP_UPDATE_ELEM,
            MAP_DELETE_ELEM,
            MAP_PUSH_ELEM,
            MAP_POP_ELEM,
            MAP_PEEK_ELEM,
            MAP_LOOKUP_PERCPU_ELEM,
            FOR_EACH_MAP_ELEM,
            GET_SMP_PROCESSOR_ID,
        ],
    },
    Group {
        name: "time",
        is_default: true,
        helpers: &[KTIME_GET_NS, KTIME_GET_BOOT_NS, KTIME_GET_COARSE_NS, KTIME_GET_TAI_NS, JIFFIES64],
    },
    Group { name: "random", is_default: true, helpers: &[GET_PRANDOM_U32] },
    Group {
        name: "string",
        is_default: true,
        // (The kernel's functions, `bpf_strcmp` and so on, read strings at any address: of other programs' maps, too.)
        helpers: &[STRNCMP, STRTOL, STRTOUL, SNPRINTF],
    },
    Group { name: "dynptr", is_default: true, helpers: &[DYNPTR_FROM_MEM, DYNPTR_READ, DYNPTR_WRITE, DYNPTR_DATA] },
    Group {
        name: "ringbuf",
        is_default: true,
        helpers: &[
            RINGBUF_OUTPUT,
            RINGBUF_RESERVE,
            RINGBUF_SUBMIT,
            RINGBUF_DISCARD,
            RINGBUF_QUERY,
            RINGBUF_RESERVE_DYNPTR,
            RINGBUF_SUBMIT_DYNPTR,
            RINGBUF_DISCARD_DYNPTR,
        ],
    },
    Group { name: "print", is_default: true, helpers: &[TRACE_PRINTK, TRACE_VPRINTK] },
    Group { name: "loop", is_default: true, helpers: &[LOOP, ITER_NUM_NEW, ITER_NUM_NEXT, ITER_NUM_DESTROY] },
    Group {
        name: "task",
        is_default: false,
        helpers: &[GET_CURRENT_PID_TGID, GET_CURRENT_UID_GID, GET_CURRENT_COMM, GET_NS_CURRENT_PID_TGID],
    },
];

/// A helper's or kernel function's number, by its name with or without `bpf_`.
fn helper(name: &str) -> Option<u32> {
    let name_only = name.strip_prefix("bpf_").unwrap_or(name);
    let is = |id: &u32| ring3_uapi::helper::name(*id) == Some(name_only);
    let kfuncs = KFUNC_FIRST..KFUNC_FIRST + KFUNC_NAMES.len() as u32;
    (1..=CGRP_STORAGE_DELETE).chain(kfuncs).find(is)
}

/// What a class may use.
pub(crate) fn of(class: &Class, errors: &mut Vec<Error>) -> Limits {
    let mut helpers = BTreeSet::new();
    match &class.helpers {
        None => GROUPS.iter().filter(|group| group.is_default).for_each(|group| helpers.extend(group.helpers)),
        Some(names) => {
            for name in names.iter().filter(|name| name.text != "none") {
                let group = GROUPS.iter().find(|group| group.name == name.text);
                match (group, helper(&name.text)) {
                    (Some(group), _) => helpers.extend(group.helpers),
                    (None, Some(id)) => {
                        helpers.insert(id);
                    }
                    (None, None) => {
                        let groups: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
                        let advice = format!("write one of {}, or a helper's name (bpf_...)", groups.join(", "));
                        let advice = suggest(&name.text, groups.iter().copied(), &advice);
                        let message = format!("no group of helpers and no helper `{}`; {advice}", name.text);
                        errors.push(Error::at(&name.span, message));
                    }
                }
            }
        }
    }
    Limits {
        instructions: class.instructions.unwrap_or(INSTRUCTIONS),
        memory_bytes: class.memory_bytes.unwrap_or(MEMORY_BYTES),
        time_ns: class.time_ns.unwrap_or(TIME_NS),
        helpers,
        maps: class.maps.unwrap_or(MAPS),
    }
}

/// The helpers in words: whole groups by their names.
pub(crate) fn in_words(helpers: &BTreeSet<u32>) -> Vec<String> {
    let mut rest = helpers.clone();
    let mut words = vec![];
    for group in GROUPS.iter().filter(|group| group.helpers.iter().all(|id| helpers.contains(id))) {
        group.helpers.iter().for_each(|id| {
            rest.remove(id);
        });
        words.push(group.name.to_owned());
    }
    words.extend(rest.iter().filter_map(|id| Some(format!("bpf_{}", ring3_uapi::helper::name(*id)?))));
    words
}
