//! Calls of helpers: what they are given, what they give.
//! Mirrors kernel/bpf/verifier.c:check_helper_call, check_func_arg and check_map_func_compatibility.

use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_INNER_MAP, BPF_F_RDONLY_PROG};
use ring3_uapi::helper;

use crate::explore::{Explorer, Next};
use crate::memory::Access;
use crate::path::Place;
use crate::policy::PT_REGS_BYTES;
use crate::prototype::{Arg, IteratorUse, Prototype, Return};
use crate::prototypes;
use crate::scalar::Scalar;
use crate::state::{Byte, Kind, Lock, Reference, Register, SLOT_BYTES, slot_of};
use crate::{Refusal, refuse};

/// Sizes above this are no bound (`BPF_MAX_VAR_SIZ`).
const SIZE_MAX: u64 = 1 << 29;
/// Error numbers that are results (`MAX_ERRNO`).
const ERRNO_MAX: i64 = 4095;

/// What the arguments of a call turned out to be.
#[derive(Default)]
struct Arguments {
    map: Option<u32>,
    /// The key, if it is a known number on the stack.
    key: Option<(u64, Place)>,
    callback: Option<u32>,
    /// Bytes of what is returned.
    allocates: u32,
    /// What is given back.
    released: u32,
    /// The memory before a size.
    memory: Option<(u8, Register, bool)>,
    size_max: u64,
    dynptr: u32,
    lock: Option<Lock>,
    /// Stack that is written when the call is known to be right.
    new_dynptr: Option<(u8, usize, bool)>,
    old_dynptr: Option<(u8, usize)>,
    iterator: Option<((u8, usize), IteratorUse)>,
}

impl Explorer<'_> {
    pub(crate) fn call_helper(&mut self, id: u32) -> Result<Next, Refusal> {
        if let Some(function) = self.function(id) {
            self.found.helpers.push(id);
            return self.call_function(function);
        }
        let prototype = self.callable(id)?;
        self.found.helpers.push(id);
        let mut arguments = Arguments::default();
        for (register, arg) in (1..).zip(prototype.args()) {
            self.argument(prototype, register, *arg, &mut arguments)?;
        }
        self.check_map(prototype, &arguments)?;
        self.check_particular(id, &arguments)?;
        if let Some(subprogram) = arguments.callback {
            self.call_back(id, subprogram, arguments.map)?;
        }
        if let Some((frame, slot)) = arguments.old_dynptr {
            self.drop_dynptr(frame, slot)?;
        }
        match arguments.iterator {
            Some((place, IteratorUse::Next)) => return self.next_number(place),
            Some((place, IteratorUse::New)) => self.make_iterator(place),
            Some((place, IteratorUse::Destroy)) => self.drop_iterator(place)?,
            None => {}
        }
        if arguments.released != 0 {
            self.release(arguments.released)?;
        }
        if let Some((frame, slot, record)) = arguments.new_dynptr {
            self.make_dynptr(frame, slot, record)?;
        }
        let result = self.result(prototype, &arguments)?;
        self.clobber();
        if changes_packet(id) {
            self.forget_packets();
        }
        if let Some(result) = result {
            self.write(0, result, [None, None]);
        }
        if id == helper::TAIL_CALL {
            self.may_return()?;
        }
        Ok(Next::To(self.at + 1))
    }

    /// Whether this program may call it at all.
    fn callable(&self, id: u32) -> Result<&'static Prototype, Refusal> {
        let name = helper::name(id).unwrap_or("unknown");
        let refuse = |message: String| refuse(Errno::EINVAL, message);
        if helper::name(id).is_none() {
            return refuse(format!("invalid func unknown#{id}"));
        }
        let Some(any) = prototypes::prototype(id) else {
            return refuse(format!("unknown func bpf_{name}#{id}"));
        };
        let Some(prototype) = prototypes::prototype_for(id, self.input.prog_type) else {
            let kind = ring3_uapi::bpf::prog_type::name(self.input.prog_type).unwrap_or("this type");
            return refuse(format!("program of this type cannot use helper bpf_{name}#{id} ({kind})"));
        };
        if !self.input.policy.helpers.contains(&id) {
            let why = match (any.runs, self.input.policy.host.is_some()) {
                (false, _) => "the agent does not have it",
                (true, false) => "it is not allowed here",
                (true, true) => "the class does not allow it (`helpers`)",
            };
            return refuse(format!("unknown func bpf_{name}#{id}: {why}"));
        }
        if prototype.gpl_only && !self.input.gpl_compatible {
            return refuse("cannot call GPL-restricted function from non-GPL compatible program".into());
        }
        if prototype.sleeps && !self.input.sleepable {
            return refuse(format!("helper bpf_{name}#{id} might sleep in a program that must not"));
        }
        let unlocks = id == helper::SPIN_UNLOCK || id == helper::KPTR_XCHG;
        if !unlocks {
            self.check_unlocked()?;
        }
        Ok(prototype)
    }

    fn argument(
        &mut self,
        prototype: &Prototype,
        register: u8,
        arg: Arg,
        found: &mut Arguments,
    ) -> Result<(), Refusal> {
        let value = self.read(register)?;
        let expected =
            |what: &str| refuse(Errno::EACCES, format!("R{register} type={} expected={what}", value.kind_name()));
        let nullable = match arg {
            Arg::MapValue { nullable }
            | Arg::Context { nullable }
            | Arg::Memory { nullable }
            | Arg::MemoryOut { nullable }
            | Arg::Stack { nullable }
            | Arg::Object { nullable, .. } => nullable,
            _ => false,
        };
        if value.nullable && !matches!(arg, Arg::Anything) {
            let null_is_good = nullable && matches!(arg, Arg::Object { .. } | Arg::Memory { .. });
            if !null_is_good {
                return expected(expected_kinds(arg));
            }
        }
        if nullable && value.is_null() {
            self.decides(&[register]);
            found.memory = Some((register, value, false));
            return Ok(());
        }
        match arg {
            Arg::Anything => self.note_leaving(&value),
            Arg::Map => match value.kind {
                Kind::Map(map) => found.map = Some(map),
                _ => return expected("map_ptr"),
            },
            Arg::MapKey | Arg::MapValue { .. } | Arg::MapValueOut => {
                self.element(prototype, register, &value, arg, found)?;
            }
            Arg::Context { .. } => {
                if value.kind != Kind::Context {
                    return expected("ctx");
                }
                if value.number.value() != Some(0) {
                    let off = value.number.smin;
                    return refuse(
                        Errno::EACCES,
                        format!("dereference of modified ctx ptr R{register} off={off} disallowed"),
                    );
                }
            }
            Arg::Memory { .. } | Arg::MemoryOut { .. } => {
                if !is_memory(&value) {
                    return expected(expected_kinds(arg));
                }
                found.memory = Some((register, value, matches!(arg, Arg::MemoryOut { .. })));
            }
            Arg::Fixed { bytes, write, align } => {
                if !is_memory(&value) {
                    return expected(expected_kinds(arg));
                }
                if align > 1 {
                    let what = if let Kind::Stack(_) = value.kind { "stack" } else { "value" };
                    self.check_alignment(Access { register, off: 0, bytes: align, write }, &value, what)?;
                }
                self.helper_access(prototype.id, register, &value, bytes, write, true)?;
            }
            Arg::Size | Arg::SizeOrZero => self.size(prototype, register, &value, arg == Arg::SizeOrZero, found)?,
            Arg::AllocSize => {
                let Some(bytes) = value.number.value().filter(|_| value.is_scalar()) else {
                    return refuse(Errno::EACCES, format!("R{register} is not a known constant'"));
                };
                self.decides(&[register]);
                let Ok(bytes) = u32::try_from(bytes) else {
                    return refuse(Errno::EACCES, format!("R{register} the size {bytes} is too large"));
                };
                found.allocates = bytes;
            }
            Arg::ConstString => self.constant_string(register, &value)?,
            Arg::Stack { .. } => {
                if !matches!(value.kind, Kind::Stack(_)) {
                    return expected("fp");
                }
            }
            Arg::Function => match value.kind {
                Kind::Function(_) if value.number.value() != Some(0) => {
                    let off = value.number.smin;
                    let message = format!("dereference of modified func ptr R{register} off={off} disallowed");
                    return refuse(Errno::EACCES, message);
                }
                Kind::Function(subprogram) => found.callback = Some(subprogram),
                _ => return expected("func"),
            },
            Arg::Record => {
                let Kind::Memory { record: true, .. } = value.kind else { return expected("ringbuf_mem") };
                self.check_whole(register, &value)?;
                found.released = value.reference;
            }
            Arg::Dynptr(used) => {
                let dynptr = self.dynptr_argument(register, &value, used)?;
                found.dynptr = dynptr.id;
                found.new_dynptr = found.new_dynptr.or(dynptr.makes);
                found.old_dynptr = dynptr.takes;
            }
            Arg::Iterator(used) => found.iterator = Some((self.iterator_argument(register, &value, used)?, used)),
            Arg::HostSlice => self.slice_argument(register, &value)?,
            Arg::SpinLock => found.lock = Some(self.lock_argument(register, &value)?),
            Arg::Timer | Arg::Kptr | Arg::PerCpuVariable => return expected(expected_kinds(arg)),
            Arg::Object { name, release, .. } => {
                self.object_argument(register, &value, name)?;
                if release {
                    self.check_whole(register, &value)?;
                    found.released = value.reference;
                }
            }
        }
        Ok(())
    }

    /// What is given back must be what was given. Mirrors kernel/bpf/verifier.c:check_func_arg_reg_off.
    fn check_whole(&self, register: u8, value: &Register) -> Result<(), Refusal> {
        if value.number.value() != Some(0) {
            return refuse(
                Errno::EINVAL,
                format!("R{register} must have zero offset when passed to release func or trusted arg to kfunc"),
            );
        }
        if value.reference == 0 || !self.state.holds(value.reference) {
            return refuse(
                Errno::EINVAL,
                format!("R{register} must be referenced when passed to a function that gives it back"),
            );
        }
        Ok(())
    }

    fn element(
        &mut self,
        prototype: &Prototype,
        register: u8,
        value: &Register,
        arg: Arg,
        found: &mut Arguments,
    ) -> Result<(), Refusal> {
        let Some(map) = found.map else {
            return refuse(Errno::EACCES, "invalid map_ptr to access map->key");
        };
        if !is_memory(value) {
            let kinds = expected_kinds(arg);
            return refuse(Errno::EACCES, format!("R{register} type={} expected={kinds}", value.kind_name()));
        }
        let shape = self.maps[map as usize];
        if arg == Arg::MapKey && shape.key_size == 0 {
            return refuse(Errno::EACCES, format!("R{register} invalid zero-sized read"));
        }
        if arg == Arg::MapKey {
            self.helper_access(prototype.id, register, value, shape.key_size, false, false)?;
            found.key = self.known_key(value, shape.key_size);
            return Ok(());
        }
        // A filter is asked about a value, it has none to give.
        let asks = shape.map_type == map_type::BLOOM_FILTER && prototype.id == helper::MAP_PEEK_ELEM;
        self.helper_access(prototype.id, register, value, shape.value_size, arg == Arg::MapValueOut && !asks, true)
    }

    /// A key that is a known number on the stack. Mirrors kernel/bpf/verifier.c:get_constant_map_key.
    fn known_key(&self, value: &Register, bytes: u32) -> Option<(u64, Place)> {
        let Kind::Stack(frame) = value.kind else { return None };
        let (slot_index, byte) = slot_of(value.number.value()? as i64);
        let slot = self.state.frames.get(usize::from(frame))?.slot(slot_index);
        let bytes = bytes as usize;
        let place = Place::slot_at(frame, slot_index);
        if byte + bytes <= SLOT_BYTES && slot.bytes[byte..byte + bytes].iter().all(|byte| *byte == Byte::Zero) {
            return Some((0, place));
        }
        let spilled = slot.spilled.as_deref().filter(|_| byte == 0 && slot.spilled_bytes() == bytes)?;
        spilled.number.value().filter(|_| spilled.is_scalar()).map(|key| (key, place))
    }

    fn size(
        &mut self,
        prototype: &Prototype,
        register: u8,
        value: &Register,
        zero: bool,
        found: &mut Arguments,
    ) -> Result<(), Refusal> {
        if !value.is_scalar() {
            return refuse(Errno::EACCES, format!("R{register} type={} expected=scalar", value.kind_name()));
        }
        let number = value.number;
        if number.smin < 0 {
            return refuse(
                Errno::EACCES,
                format!("R{register} min value is negative, either use unsigned or 'var &= const'"),
            );
        }
        if number.umin == 0 && !zero {
            return refuse(
                Errno::EACCES,
                format!("R{register} invalid zero-sized read: u64=[{},{}]", number.umin, number.umax),
            );
        }
        if number.umax >= SIZE_MAX {
            return refuse(
                Errno::EACCES,
                format!("R{register} unbounded memory access, use 'var &= const' or 'if (var < const)'"),
            );
        }
        let Some((memory, pointer, write)) = found.memory.take() else {
            return refuse(Errno::EFAULT, "a size without memory");
        };
        if !(pointer.is_null() && number.umax == 0 && zero) {
            if pointer.is_scalar() {
                return refuse(Errno::EACCES, format!("R{memory} type={} expected=fp", pointer.kind_name()));
            }
            let all = number.value().is_some();
            self.helper_access(prototype.id, memory, &pointer, number.umax as u32, write, all)?;
        }
        self.decides(&[register]);
        found.size_max = number.umax;
        Ok(())
    }

    /// A helper reads or writes memory; if it writes, then all of it or perhaps a part.
    fn helper_access(
        &mut self,
        id: u32,
        register: u8,
        pointer: &Register,
        bytes: u32,
        write: bool,
        all: bool,
    ) -> Result<(), Refusal> {
        if pointer.is_packet() && !reads_packet(id) {
            return refuse(Errno::EACCES, "helper access to the packet is not allowed");
        }
        self.callee_access(Access { register, off: 0, bytes, write }, pointer, all)
    }

    /// What is called reads or writes memory; if it writes, then all of it or perhaps a part.
    pub(crate) fn callee_access(&mut self, access: Access, pointer: &Register, all: bool) -> Result<(), Refusal> {
        let Access { register, bytes, write, .. } = access;
        if let Kind::Stack(frame) = pointer.kind
            && !pointer.nullable
        {
            let what = if write { "write to" } else { "read from" };
            let stretch = self.stretch(register, pointer, frame, 0, bytes, what)?;
            if bytes == 0 {
                return Ok(());
            }
            return if write { self.stack_is_written(stretch, all) } else { self.stack_is_read(stretch) };
        }
        self.check_region(access, pointer)
    }

    /// Nothing is called while a lock is held.
    pub(crate) fn check_unlocked(&self) -> Result<(), Refusal> {
        if self.state.lock.is_some() {
            return refuse(Errno::EINVAL, "function calls are not allowed while holding a lock");
        }
        Ok(())
    }

    fn constant_string(&mut self, register: u8, value: &Register) -> Result<(), Refusal> {
        let Kind::MapValue(map) = value.kind else {
            let kind = value.kind_name();
            return refuse(Errno::EACCES, format!("R{register} type={kind} expected=map_value"));
        };
        let shape = self.maps[map as usize];
        if shape.map_flags & BPF_F_RDONLY_PROG == 0 {
            return refuse(Errno::EACCES, format!("R{register} does not point to a readonly map'"));
        }
        let Some(at) = value.number.value() else {
            return refuse(Errno::EACCES, format!("R{register} is not a constant address"));
        };
        let Some(content) = self.constant(shape.slot) else {
            return refuse(Errno::EACCES, format!("R{register} does not point to a readonly map: it is not frozen"));
        };
        let text = usize::try_from(at).ok().and_then(|at| content.get(at..));
        if !text.is_some_and(|text| text.contains(&0)) {
            return refuse(Errno::EINVAL, "string is not zero-terminated");
        }
        Ok(())
    }

    /// Mirrors kernel/bpf/verifier.c:process_spin_lock.
    fn lock_argument(&mut self, register: u8, value: &Register) -> Result<Lock, Refusal> {
        let Kind::MapValue(map) = value.kind else {
            let kind = value.kind_name();
            return refuse(Errno::EACCES, format!("R{register} type={kind} expected=map_value"));
        };
        let Some(lock) = self.maps[map as usize].lock else {
            return refuse(Errno::EINVAL, "map has no valid bpf_spin_lock");
        };
        if value.number.value() != Some(u64::from(lock)) {
            return refuse(
                Errno::EINVAL,
                format!("off {} doesn't point to 'struct bpf_spin_lock' that is at {lock}", value.number.smin),
            );
        }
        Ok(Lock { map, id: value.id })
    }

    fn object_argument(&mut self, register: u8, value: &Register, name: &'static str) -> Result<(), Refusal> {
        if name == "bpf_map" && matches!(value.kind, Kind::Map(_)) {
            return Ok(());
        }
        let Kind::Object { id, .. } = value.kind else {
            let kind = value.kind_name();
            return refuse(Errno::EACCES, format!("R{register} type={kind} expected=trusted_ptr_, rcu_ptr_"));
        };
        let wanted = self.object_id(name);
        let is_it =
            id == wanted || self.input.policy.objects.as_ref().is_some_and(|objects| objects.is_a(id, wanted));
        if name.is_empty() || is_it {
            return Ok(());
        }
        refuse(Errno::EACCES, format!("R{register} is another kernel object than a {name}"))
    }

    /// The type of a kernel object with this name.
    pub(crate) fn object_id(&mut self, name: &'static str) -> u32 {
        /// Types that no kernel has told of.
        const OWN_IDS: u32 = 1 << 31;
        if let Some(id) = self.input.policy.objects.as_ref().and_then(|objects| objects.find(name)) {
            return id;
        }
        let known = self.names.iter().position(|known| *known == name);
        let index = known.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        OWN_IDS + index as u32
    }

    fn check_map(&mut self, prototype: &Prototype, found: &Arguments) -> Result<(), Refusal> {
        let Some(index) = found.map else { return Ok(()) };
        let map = self.maps[index as usize];
        let (id, name) = (prototype.id, helper::name(prototype.id).unwrap_or("unknown"));
        // Mirrors kernel/bpf/verifier.c:record_func_map.
        if map.map_flags & BPF_F_RDONLY_PROG != 0 && prototype.writes_map() {
            return refuse(Errno::EACCES, "write into map forbidden");
        }
        if id == helper::TAIL_CALL && map.map_type != map_type::PROG_ARRAY {
            return refuse(Errno::EINVAL, "expected prog array map for tail call");
        }
        if id == helper::FOR_EACH_MAP_ELEM && !prototype.takes(map.map_type) {
            return refuse(Errno::ENOTSUPP, "callback function not allowed for map");
        }
        if !prototype.takes(map.map_type) {
            let map_name = map_type::name(map.map_type).unwrap_or("unknown");
            return refuse(
                Errno::EINVAL,
                format!("cannot pass map_type {} into func bpf_{name}#{id} ({map_name})", map.map_type),
            );
        }
        let known = self.found.helper_maps.entry(self.at).or_insert(Some(index));
        if *known != Some(index) {
            *known = None;
        }
        Ok(())
    }

    /// What only some helpers want.
    fn check_particular(&mut self, id: u32, found: &Arguments) -> Result<(), Refusal> {
        match id {
            helper::TAIL_CALL => {
                if let Some(held) = self.state.references.first() {
                    return refuse(Errno::EINVAL, format!("tail_call would lead to reference leak: id={}", held.id));
                }
            }
            helper::DYNPTR_FROM_MEM => {
                let memory = *self.state.register(1);
                if !matches!(memory.kind, Kind::MapValue(_)) {
                    let kind = memory.kind_name();
                    return refuse(
                        Errno::EACCES,
                        format!("Unsupported reg type {kind} for bpf_dynptr_from_mem data"),
                    );
                }
            }
            helper::SPIN_LOCK => {
                self.state.lock = found.lock;
            }
            helper::SPIN_UNLOCK => {
                if self.state.lock.is_none() {
                    return refuse(Errno::EINVAL, "bpf_spin_unlock without taking a lock");
                }
                if self.state.lock != found.lock {
                    return refuse(Errno::EINVAL, "bpf_spin_unlock of different lock");
                }
                self.state.lock = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// What was given is given back, and whatever pointed to it points nowhere.
    pub(crate) fn release(&mut self, reference: u32) -> Result<(), Refusal> {
        let held = self.state.references.iter().position(|held| held.id == reference);
        let Some(index) = held else {
            return refuse(Errno::EINVAL, "what is given back is not held");
        };
        self.state.references.remove(index);
        self.state.change(|register| register.reference == reference, |register| *register = Register::unknown());
        Ok(())
    }

    /// Names something that must be given back.
    pub(crate) fn acquire(&mut self) -> u32 {
        let id = self.new_id();
        self.state.references.push(Reference { id, insn: self.at });
        id
    }

    fn forget_packets(&mut self) {
        self.state.change(
            |register| register.is_packet() || register.kind == Kind::PacketEnd,
            |register| *register = Register::unknown(),
        );
    }

    fn result(&mut self, prototype: &Prototype, found: &Arguments) -> Result<Option<Register>, Refusal> {
        Ok(Some(match prototype.ret {
            Return::Void => return Ok(None),
            Return::Integer => Register::scalar(self.result_range(prototype.id, found)),
            Return::MapValueOrNull | Return::MapValue => return self.element_result(prototype, found).map(Some),
            Return::RecordOrNull => {
                let kind = Kind::Memory { bytes: found.allocates, write: true, record: true };
                let reference = self.acquire();
                let id = self.new_id();
                Register { reference, ..Register::pointer(kind).or_null(id) }
            }
            Return::DynptrDataOrNull => {
                let kind = Kind::Memory { bytes: found.allocates, write: true, record: false };
                let id = self.new_id();
                Register { range: found.dynptr, ..Register::pointer(kind).or_null(id) }
            }
            // (The agent has a copy of them, in which nothing is a pointer.)
            Return::Object { name: "pt_regs", .. } if self.input.policy.objects.is_none() => {
                Register::pointer(Kind::Memory { bytes: PT_REGS_BYTES, write: false, record: false })
            }
            Return::Object { name, nullable, trusted, acquired } => {
                let id = self.object_id(name);
                let mut object = Register::pointer(Kind::Object { id, trusted });
                if acquired {
                    object.reference = self.acquire();
                }
                if nullable { object.or_null(self.new_id()) } else { object }
            }
            Return::PerCpuMemory { .. } => {
                return refuse(Errno::EINVAL, "the kernel's per-CPU variables are not known here");
            }
        }))
    }

    fn element_result(&mut self, prototype: &Prototype, found: &Arguments) -> Result<Register, Refusal> {
        let Some(map) = found.map else {
            return refuse(Errno::EINVAL, "kernel subsystem misconfigured verifier");
        };
        let shape = self.maps[map as usize];
        if let Some(inner) = self.inner[map as usize] {
            let id = self.new_id();
            return Ok(Register::pointer(Kind::Map(inner)).or_null(id));
        }
        let array = matches!(shape.map_type, map_type::ARRAY | map_type::PERCPU_ARRAY);
        let value = Register::pointer(Kind::MapValue(map));
        if let Some((key, place)) = found.key
            && array
            && shape.map_flags & BPF_F_INNER_MAP == 0
            && prototype.id == helper::MAP_LOOKUP_ELEM
            && key < u64::from(shape.max_entries)
        {
            self.path.mark_precise([place].into_iter().collect());
            let id = if shape.lock.is_some() { self.new_id() } else { 0 };
            return Ok(Register { id, ..value });
        }
        if prototype.ret == Return::MapValue {
            return Ok(value);
        }
        let id = self.new_id();
        Ok(value.or_null(id))
    }

    /// Mirrors kernel/bpf/verifier.c:do_refine_retval_range.
    fn result_range(&self, id: u32, found: &Arguments) -> Scalar {
        match id {
            helper::GET_STACK
            | helper::GET_TASK_STACK
            | helper::PROBE_READ_STR
            | helper::PROBE_READ_KERNEL_STR
            | helper::PROBE_READ_USER_STR => Scalar::signed(-ERRNO_MAX, found.size_max as i64),
            helper::GET_SMP_PROCESSOR_ID => Scalar::unsigned(0, u64::from(self.input.cpus.max(1)) - 1),
            _ => Scalar::UNKNOWN,
        }
    }
}

/// Helpers that read packets where they lie (`pkt_access`).
fn reads_packet(id: u32) -> bool {
    use helper::{
        CSUM_DIFF, MAP_DELETE_ELEM, MAP_LOOKUP_ELEM, MAP_LOOKUP_PERCPU_ELEM, MAP_PUSH_ELEM, MAP_UPDATE_ELEM,
    };
    let readers =
        [MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MAP_DELETE_ELEM, MAP_PUSH_ELEM, MAP_LOOKUP_PERCPU_ELEM, CSUM_DIFF];
    readers.contains(&id)
}

/// Helpers behind which packets may lie elsewhere. Mirrors net/core/filter.c:bpf_helper_changes_pkt_data.
fn changes_packet(id: u32) -> bool {
    use helper::*;
    matches!(
        id,
        CLONE_REDIRECT
            | L3_CSUM_REPLACE
            | L4_CSUM_REPLACE
            | SKB_ADJUST_ROOM
            | SKB_CHANGE_HEAD
            | SKB_CHANGE_PROTO
            | SKB_CHANGE_TAIL
            | SKB_PULL_DATA
            | SKB_STORE_BYTES
            | SKB_VLAN_POP
            | SKB_VLAN_PUSH
            | TAIL_CALL
            | XDP_ADJUST_HEAD
            | XDP_ADJUST_META
            | XDP_ADJUST_TAIL
    )
}

/// Memory that a helper may be pointed to.
pub(crate) fn is_memory(value: &Register) -> bool {
    matches!(
        value.kind,
        Kind::Stack(_) | Kind::Packet | Kind::PacketMeta | Kind::MapKey(_) | Kind::MapValue(_) | Kind::Memory { .. }
    )
}

/// As the kernel says what it wants (kernel/bpf/verifier.c:compatible_reg_types).
fn expected_kinds(arg: Arg) -> &'static str {
    match arg {
        Arg::Map => "map_ptr",
        Arg::Context { .. } => "ctx",
        Arg::Size | Arg::SizeOrZero | Arg::AllocSize => "scalar",
        Arg::ConstString | Arg::SpinLock | Arg::Timer | Arg::Kptr => "map_value",
        Arg::Stack { .. } => "fp",
        Arg::Function => "func",
        Arg::Record => "ringbuf_mem",
        Arg::Dynptr(_) => "fp, dynptr_ptr",
        Arg::Iterator(_) => "fp",
        Arg::Object { .. } => "trusted_ptr_, rcu_ptr_",
        Arg::HostSlice => "host_ptr",
        Arg::PerCpuVariable => "percpu_ptr_",
        _ => "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_",
    }
}
