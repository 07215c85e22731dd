//! The kernel's objects of a task (`struct task_struct` and what it points to), of which programs in a target can read some
//! fields.
//!
//! These objects do not exist here. A program gets an address at which the kernel never maps anything, in the guard hole below
//! its direct mapping (Documentation/arch/x86/x86_64/mm.rst). The address encodes a thread, and an offset into its objects. The
//! objects lie one behind the other, the `task_struct` first. The server takes the offsets of fields from the kernel's types and
//! writes them into the [`TaskTable`]. The agent finds out a field's value when it is read ([`Source`]).

use crate::owner;

/// Where the addresses begin. They end [`TASKS_BYTES`] later.
pub const TASKS_START: u64 = 0xffff_8000_0000_0000;
/// Bits of an address that are the place among a thread's objects.
pub const PLACE_BITS: u32 = 15;
/// Bits of an address that tell pid namespaces apart.
const NAMESPACE_BITS: u32 = 6;
/// Bytes of all addresses.
pub const TASKS_BYTES: u64 = 1 << (PLACE_BITS + owner::TID_BITS + NAMESPACE_BITS);
/// Fields at most.
pub const TASK_FIELDS_MAX: usize = 127;

/// A field that can be read. 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskField {
    /// Its place among the objects.
    pub place: u16,
    /// Its size, bytes: at most [`VALUE_BYTES_MAX`], or those of `struct new_utsname`.
    pub bytes: u16,
    /// A [`Source`].
    pub source: u16,
    /// Which of the source's values.
    pub which: u16,
}

/// Bytes of a field at most, `struct new_utsname` excepted.
pub const VALUE_BYTES_MAX: usize = 16;
/// Bytes of `struct new_utsname`.
pub const UTS_BYTES: usize = 6 * 65;

/// All fields that can be read. The server writes it before the control page is mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TaskTable {
    /// Fields in use.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// The fields.
    pub fields: [TaskField; TASK_FIELDS_MAX],
}

impl TaskTable {
    /// The fields as they are sent to processes that fill a table of their own: place, bytes, source and which.
    pub fn rows(&self) -> impl Iterator<Item = [u16; 4]> {
        let fields = self.fields.iter().take(self.count as usize);
        fields.map(|field| [field.place, field.bytes, field.source, field.which])
    }
}

macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Where the agent takes a field's value from.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Source {
            $($(#[$doc])* $name = $number,)*
        }

        impl Source {
            /// The source with this number.
            pub const fn of(number: u16) -> Option<Source> {
                match number {
                    $($number => Some(Source::$name),)*
                    _ => None,
                }
            }
        }
    };
}

sources! {
    /// `which` itself.
    Constant = 0,
    /// The address of the same thread's object at the place `which`.
    Object = 1,
    /// The thread's id.
    Tid = 2,
    /// The process's id.
    Tgid = 3,
    /// The address of the process's first thread.
    Leader = 4,
    /// The address of the parent.
    Parent = 5,
    /// The address of who traces it, else of the parent.
    Tracer = 6,
    /// The thread's name.
    Comm = 7,
    /// Field `which` of `/proc/PID/stat`, counted from 1.
    Stat = 8,
    /// When the thread began, ns since boot.
    StartBoottime = 9,
    /// The same without the time that the machine was suspended.
    StartMonotonic = 10,
    /// The number in a file of `/proc/PID`: of [`NUMBER_FILES`] the one with this index.
    NumberFile = 11,
    /// A user id: real, effective, saved, of file systems.
    Uid = 12,
    /// A group id, in the same order.
    Gid = 13,
    /// The number of a namespace: of [`NAMESPACES`] the one with this index.
    Namespace = 14,
    /// `uname(2)`.
    Uts = 15,
    /// The CPU that it runs on.
    Cpu = 16,
    /// The exit code, as wait(2) tells it.
    ExitCode = 17,
}

/// Files of `/proc/PID` that hold a number. (One text: an array of texts would need relocations in the agent.)
pub const NUMBER_FILES: &str = "loginuid sessionid";
/// The namespaces of a thread as `/proc/PID/ns` names them.
pub const NAMESPACES: &str = "cgroup ipc mnt net pid pid_for_children time time_for_children user uts";

/// A thread's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskAddress {
    /// Thread id, in its own pid namespace.
    pub tid: u32,
    /// Tells threads of different pid namespaces apart, mostly.
    pub namespace: u32,
    /// Where among the objects.
    pub place: u32,
}

impl TaskAddress {
    /// The `task_struct` of a thread of a namespace with this number ([`owner`]).
    pub const fn new(namespace: u32, tid: u32) -> TaskAddress {
        let name = owner::name(namespace, tid);
        TaskAddress { tid: owner::tid(name), namespace: namespace % (1 << NAMESPACE_BITS), place: 0 }
    }

    /// What an address names, if it is one of these.
    #[inline]
    pub const fn of(address: u64) -> Option<TaskAddress> {
        let within = address.wrapping_sub(TASKS_START);
        if within >= TASKS_BYTES {
            return None;
        }
        let name = (within >> PLACE_BITS) as u32;
        let place = within as u32 % (1 << PLACE_BITS);
        Some(TaskAddress { tid: owner::tid(name), namespace: owner::namespace(name), place })
    }

    /// Whether a thread may be of the same pid namespace as another: if not, its id means nothing there.
    pub const fn may_be_near(self, other: TaskAddress) -> bool {
        const UNKNOWN: u32 = TaskAddress::new(owner::NAMESPACE_UNKNOWN, 0).namespace;
        self.namespace == other.namespace || self.namespace == UNKNOWN || other.namespace == UNKNOWN
    }

    /// The address itself.
    pub const fn address(self) -> u64 {
        let name = owner::name(self.namespace, self.tid) as u64;
        TASKS_START + (name << PLACE_BITS) + self.place as u64
    }
}

const _: () = {
    assert!(size_of::<TaskField>() == 8);
    assert!(size_of::<TaskTable>() as u64 <= crate::control::TASK_TABLE_BYTES);
    // What comes next is the kernel's memory.
    assert!(TASKS_START + TASKS_BYTES == 0xffff_8800_0000_0000);
    let far = TaskAddress { place: 0x7fff, ..TaskAddress::new(owner::NAMESPACE_UNKNOWN, (1 << owner::TID_BITS) - 1) };
    assert!(far.address() == 0xffff_87ff_ffff_ffff);
    assert!(matches!(
        TaskAddress::of(far.address()),
        Some(TaskAddress { tid: 0x3f_ffff, namespace: 63, place: 0x7fff })
    ));
};
