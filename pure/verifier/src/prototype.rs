//! What the verifier knows of a helper (`struct bpf_func_proto`).

use ring3_uapi::helper;

/// What an argument must be (`enum bpf_arg_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Any value that was written (`ARG_ANYTHING`).
    Anything,
    /// A map, known to the verifier (`ARG_CONST_MAP_PTR`).
    Map,
    /// `key_size` readable bytes (`ARG_PTR_TO_MAP_KEY`).
    MapKey,
    /// `value_size` readable bytes (`ARG_PTR_TO_MAP_VALUE`).
    MapValue {
        /// Null is as good.
        nullable: bool,
    },
    /// `value_size` bytes that the helper writes (`ARG_PTR_TO_MAP_VALUE | MEM_UNINIT | MEM_WRITE`).
    MapValueOut,
    /// The program's context (`ARG_PTR_TO_CTX`).
    Context {
        /// Null is as good.
        nullable: bool,
    },
    /// Readable bytes, as many as the next argument says (`ARG_PTR_TO_MEM | MEM_RDONLY`).
    Memory {
        /// Null is as good.
        nullable: bool,
    },
    /// Bytes that the helper writes, as many as the next argument says (`ARG_PTR_TO_UNINIT_MEM`). A few helpers read
    /// them as well (`bpf_fib_lookup`), or want them written before (`ARG_PTR_TO_MEM`).
    MemoryOut {
        /// Null is as good.
        nullable: bool,
    },
    /// This many bytes, aligned to `align`, which the helper writes or reads (`MEM_FIXED_SIZE`).
    Fixed {
        /// Size.
        bytes: u32,
        /// What its address is a multiple of, from the start of what it points into.
        align: u32,
        /// The helper writes it; else it reads it.
        write: bool,
    },
    /// Size of the memory before it (`ARG_CONST_SIZE`), at least 1.
    Size,
    /// The same, may be 0 (`ARG_CONST_SIZE_OR_ZERO`).
    SizeOrZero,
    /// A known number, the size of what is returned (`ARG_CONST_ALLOC_SIZE_OR_ZERO`).
    AllocSize,
    /// A NUL-terminated string in a read-only, frozen map value (`ARG_PTR_TO_CONST_STR`).
    ConstString,
    /// Memory on the stack (`ARG_PTR_TO_STACK`).
    Stack {
        /// Null is as good.
        nullable: bool,
    },
    /// A subprogram (`ARG_PTR_TO_FUNC`).
    Function,
    /// A ring buffer's record, given back (`ARG_PTR_TO_RINGBUF_MEM | OBJ_RELEASE`).
    Record,
    /// A dynptr (`ARG_PTR_TO_DYNPTR` and its flags).
    Dynptr(DynptrUse),
    /// A `struct bpf_iter_num` on the stack.
    Iterator(IteratorUse),
    /// A `bpf_spin_lock` in a map's value (`ARG_PTR_TO_SPIN_LOCK`).
    SpinLock,
    /// A `bpf_timer` in a map's value (`ARG_PTR_TO_TIMER`).
    Timer,
    /// A `kptr` in a map's value (`ARG_KPTR_XCHG_DEST`).
    Kptr,
    /// A pointer to a kernel object with one of these types' names, known by BTF (`ARG_PTR_TO_BTF_ID*`); the empty
    /// name stands for any.
    Object {
        /// The structure's name, or nothing.
        name: &'static str,
        /// Null is as good.
        nullable: bool,
        /// The reference is given back (`OBJ_RELEASE`).
        release: bool,
    },
    /// The field of a host's object that has a pointer to elements, and another field their number ([`crate::host::HostValue::Slice`]).
    HostSlice,
    /// A per-CPU variable of the kernel (`ARG_PTR_TO_PERCPU_BTF_ID`).
    PerCpuVariable,
}

/// How a helper uses a dynptr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynptrUse {
    /// Initialises it as one over plain memory (`DYNPTR_TYPE_LOCAL | MEM_UNINIT`).
    NewLocal,
    /// Initialises it as one over a ring buffer's record (`DYNPTR_TYPE_RINGBUF | MEM_UNINIT`).
    NewRecord,
    /// Reads it; any kind (`MEM_RDONLY`).
    Any,
    /// Takes it back; of a ring buffer (`DYNPTR_TYPE_RINGBUF | OBJ_RELEASE`).
    ReleaseRecord,
}

/// How a kernel function uses an iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IteratorUse {
    /// Initialises it (`KF_ITER_NEW`).
    New,
    /// Goes on (`KF_ITER_NEXT`).
    Next,
    /// Ends it (`KF_ITER_DESTROY`).
    Destroy,
}

/// What a helper returns (`enum bpf_return_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// A number (`RET_INTEGER`).
    Integer,
    /// Nothing; r0 is not readable (`RET_VOID`).
    Void,
    /// `RET_PTR_TO_MAP_VALUE`, or null.
    MapValueOrNull,
    /// Never null.
    MapValue,
    /// Memory of as many bytes as an [`Arg::AllocSize`] says, a reference that must be given back, or null.
    RecordOrNull,
    /// Memory of as many bytes as an [`Arg::AllocSize`] says, of the dynptr, or null.
    DynptrDataOrNull,
    /// A kernel object by its BTF name.
    Object {
        /// The structure's name; if empty, that of the [`Arg::Kptr`].
        name: &'static str,
        /// May be null.
        nullable: bool,
        /// May be handed to whatever wants such an object (`PTR_TRUSTED`).
        trusted: bool,
        /// A reference that must be given back.
        acquired: bool,
    },
    /// Memory of this type of the per-CPU variable argument.
    PerCpuMemory {
        /// May be null.
        nullable: bool,
    },
}

/// What the verifier knows of a helper (`struct bpf_func_proto`).
///
/// Where a helper differs by who calls it, there is a prototype for each: [`crate::prototype_for`] finds the right one.
#[derive(Clone, Copy, Debug)]
pub struct Prototype {
    /// Number.
    pub id: u32,
    /// Only for programs under a GPL-compatible licence.
    pub gpl_only: bool,
    /// Only for programs that may sleep (`might_sleep`).
    pub sleeps: bool,
    /// What it returns.
    pub ret: Return,
    /// Whether the agent has it; else programs that call it can be judged, and not run.
    pub runs: bool,
    args: &'static [Arg],
    map_types: &'static [u32],
    /// Program types that may call it; empty: all.
    callers: &'static [u32],
}

impl Prototype {
    /// What its arguments must be, from r1 on.
    pub fn args(&self) -> &'static [Arg] {
        self.args
    }

    /// Whether programs of this type may call it, at least where some of them are attached.
    pub fn allows(&self, prog_type: u32) -> bool {
        self.callers.is_empty() || self.callers.contains(&prog_type)
    }

    /// Whether its map argument may be of this type.
    pub fn takes(&self, map_type: u32) -> bool {
        self.map_types.contains(&map_type)
    }

    /// Whether it changes which elements its map has.
    pub fn writes_map(&self) -> bool {
        let writers = [helper::MAP_UPDATE_ELEM, helper::MAP_DELETE_ELEM, helper::MAP_PUSH_ELEM, helper::MAP_POP_ELEM];
        writers.contains(&self.id)
    }

    /// Which argument register is a map.
    pub fn map_argument(&self) -> Option<u8> {
        self.register(Arg::Map)
    }

    /// Which argument register is the address of a subprogram that the helper calls.
    pub fn callback_argument(&self) -> Option<u8> {
        self.register(Arg::Function)
    }

    fn register(&self, wanted: Arg) -> Option<u8> {
        (1..).zip(self.args).find(|(_, arg)| **arg == wanted).map(|(register, _)| register)
    }
}

/// Begins a row: a helper without arguments that returns a number and that every program may call.
pub(crate) const fn row(id: u32) -> Prototype {
    Prototype {
        id,
        gpl_only: false,
        sleeps: false,
        ret: Return::Integer,
        runs: false,
        args: &[],
        map_types: &[],
        callers: &[],
    }
}

/// The rest of a row.
impl Prototype {
    pub(crate) const fn given(self, args: &'static [Arg]) -> Prototype {
        Prototype { args, ..self }
    }

    pub(crate) const fn gives(self, ret: Return) -> Prototype {
        Prototype { ret, ..self }
    }

    pub(crate) const fn maps(self, map_types: &'static [u32]) -> Prototype {
        Prototype { map_types, ..self }
    }

    pub(crate) const fn from(self, callers: &'static [u32]) -> Prototype {
        Prototype { callers, ..self }
    }

    pub(crate) const fn gpl(self) -> Prototype {
        Prototype { gpl_only: true, ..self }
    }

    pub(crate) const fn sleeping(self) -> Prototype {
        Prototype { sleeps: true, ..self }
    }

    pub(crate) const fn runs(self) -> Prototype {
        Prototype { runs: true, ..self }
    }
}
