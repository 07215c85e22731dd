//! The interpreter on this process's memory: the same helpers and maps as for compiled code, and every access is checked.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ring3_interp::{Fault, Host, Space, decoded, run_decoded};
use ring3_isa::Op;
use ring3_layout::region::AGENT_OFFSET;
use ring3_uapi::helper;
use ring3_verifier::{FUNCTION_FIRST, Verified};

use crate::Error;
use crate::Shared;
use crate::raw_function::{Function, Trouble, note};

/// Words of a run's stack: the interpreter's frames.
const STACK_WORDS: usize = (ring3_interp::FRAMES_MAX * ring3_interp::FRAME_BYTES / 8) as usize;
/// Instructions of a run that has no budget.
const INSNS_MAX: u64 = 1 << 40;

/// Memory of this process that a program may touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Span {
    fn holds(&self, address: u64, bytes: u8) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset < self.bytes && self.bytes - offset >= u64::from(bytes)
    }
}

/// Where in a context a pointer to memory is.
#[derive(Clone, Copy, Debug)]
pub enum Pointer {
    /// To so many bytes.
    Bytes {
        /// Where it is, bytes.
        at: u32,
        /// How many.
        bytes: u32,
    },
    /// To the start of a packet, and to its end.
    Packet {
        /// Where the first is, bytes.
        data_at: u32,
        /// Where the other is.
        end_at: u32,
    },
}

/// A program and what it takes to interpret it.
pub(crate) struct Interpreted {
    program: Verified,
    ops: Vec<Option<Op>>,
    shared: Arc<Shared>,
    /// The helpers that it calls, and where they are.
    helpers: Vec<(u32, u64)>,
    functions: Vec<Arc<Function>>,
    /// Bytes that the functions return the address of.
    returned: Vec<u32>,
    maps: Vec<Span>,
    context_bytes: u64,
    pointers: Vec<Pointer>,
    budget: u64,
}

/// What one run may touch.
struct Reach<'a> {
    maps: &'a [Span],
    /// The context, and what is behind its pointers.
    context: &'a [Span],
    stack: Span,
    /// What functions have returned the address of.
    returned: Vec<Span>,
}

impl Reach<'_> {
    fn check(&self, address: u64, bytes: u8) -> Option<*mut u8> {
        let is_there = self.stack.holds(address, bytes)
            || self.context.iter().chain(self.maps).chain(&self.returned).any(|span| span.holds(address, bytes));
        is_there.then_some(address as *mut u8)
    }
}

impl Space for Reach<'_> {
    fn stack(&mut self, _: u64) -> u64 {
        self.stack.start + self.stack.bytes
    }

    fn load(&mut self, address: u64, bytes: u8) -> Option<u64> {
        let at = self.check(address, bytes)?;
        let (number, aligned) = (u64::from(bytes), address.is_multiple_of(u64::from(bytes)));
        Some(match number {
            // SAFETY: `check` found the bytes in memory that the program may touch, which stays while it runs.
            4 if aligned => u64::from(unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::Acquire)),
            // SAFETY: as above.
            8 if aligned => unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Acquire),
            // SAFETY: as above.
            1 => u64::from(unsafe { at.read_volatile() }),
            // SAFETY: as above.
            2 => u64::from(unsafe { at.cast::<u16>().read_unaligned() }),
            // SAFETY: as above.
            4 => u64::from(unsafe { at.cast::<u32>().read_unaligned() }),
            // SAFETY: as above.
            _ => unsafe { at.cast::<u64>().read_unaligned() },
        })
    }

    fn store(&mut self, address: u64, bytes: u8, value: u64) -> Option<()> {
        let at = self.check(address, bytes)?;
        let aligned = address.is_multiple_of(u64::from(bytes));
        match bytes {
            // SAFETY: `check` found the bytes in memory that the program may touch, which stays while it runs; what it may
            // write, the verifier has proved.
            4 if aligned => unsafe { AtomicU32::from_ptr(at.cast()) }.store(value as u32, Ordering::Release),
            // SAFETY: as above.
            8 if aligned => unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Ordering::Release),
            // SAFETY: as above.
            1 => unsafe { at.write_volatile(value as u8) },
            // SAFETY: as above.
            2 => unsafe { at.cast::<u16>().write_unaligned(value as u16) },
            // SAFETY: as above.
            4 => unsafe { at.cast::<u32>().write_unaligned(value as u32) },
            // SAFETY: as above.
            _ => unsafe { at.cast::<u64>().write_unaligned(value) },
        }
        Some(())
    }

    fn change(&mut self, address: u64, bytes: u8, change: &dyn Fn(u64) -> u64) -> Option<u64> {
        let at = self.check(address, bytes)?;
        if !address.is_multiple_of(u64::from(bytes)) {
            let old = self.load(address, bytes)?;
            self.store(address, bytes, change(old))?;
            return Some(old);
        }
        let (order, read) = (Ordering::SeqCst, Ordering::Relaxed);
        Some(if bytes == 4 {
            // SAFETY: as for `store`.
            let word = unsafe { AtomicU32::from_ptr(at.cast()) };
            let changed = word.fetch_update(order, read, |old| Some(change(u64::from(old)) as u32));
            u64::from(changed.unwrap_or_default())
        } else {
            // SAFETY: as for `store`.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) };
            word.fetch_update(order, read, |old| Some(change(old))).unwrap_or_default()
        })
    }
}

/// The helpers of the agent, for one run.
struct Helpers<'a> {
    program: &'a Interpreted,
    env: u64,
}

impl Host<Reach<'_>> for Helpers<'_> {
    fn call(&mut self, id: u32, arguments: [u64; 5], reach: &mut Reach<'_>) -> Result<u64, Fault> {
        let index = id.wrapping_sub(FUNCTION_FIRST) as usize;
        if let Some(function) = self.program.functions.get(index) {
            let result = function.call(arguments);
            match self.program.returned.get(index) {
                Some(bytes) if *bytes > 0 && result != 0 => {
                    reach.returned.push(Span { start: result, bytes: u64::from(*bytes) });
                }
                _ => {}
            }
            return Ok(result);
        }
        let known = self.program.helpers.iter().find(|(known, _)| *known == id);
        let (_, at) = *known.ok_or(Fault::UnknownHelper(id))?;
        // SAFETY: the agent's symbols of helpers are functions of this type.
        let function: unsafe extern "sysv64" fn(u64, u64, u64, u64, u64, u64) -> u64 =
            unsafe { std::mem::transmute(at) };
        let [a1, a2, a3, a4, a5] = arguments;
        // SAFETY: the verifier has proved the arguments, which are addresses of this process, and `env` is the thread's block.
        Ok(unsafe { function(a1, a2, a3, a4, a5, self.env) })
    }

    fn map(&self, slot: u32, offset: Option<u32>) -> u64 {
        let (view, data) = self.program.shared.region.map_addresses(slot);
        offset.map_or(view, |offset| data + u64::from(offset))
    }
}

/// What the interpreter does not do: it calls no callbacks but those of `bpf_loop`, and knows no other programs.
fn is_for_code(id: u32) -> bool {
    let calls_back = ring3_verifier::prototype(id).is_some_and(|row| row.callback_argument().is_some());
    id == helper::TAIL_CALL || calls_back && id != helper::LOOP
}

impl Interpreted {
    /// Of a program for contexts of so many bytes with these pointers.
    ///
    /// # Errors
    /// It calls a helper that only compiled code can.
    pub(crate) fn new(
        program: &Verified,
        shared: &Arc<Shared>,
        context_bytes: usize,
        pointers: &[Pointer],
        budget: Option<u64>,
    ) -> Result<Interpreted, Error> {
        if let Some(id) = program.helpers().iter().find(|id| is_for_code(**id)) {
            return Err(Error::NotInterpreted(helper::name(*id).unwrap_or("?")));
        }
        let kept = shared.kept();
        let span = |map: &Arc<crate::OwnMap>| {
            let (start, bytes) = map.memory.span();
            Span { start, bytes }
        };
        let code = shared.region.base() + AGENT_OFFSET;
        let called = program.helpers().iter();
        Ok(Interpreted {
            helpers: called.filter_map(|id| Some((*id, code + ring3_image::helper(*id)?))).collect(),
            program: program.clone(),
            ops: decoded(program),
            shared: shared.clone(),
            functions: kept.functions.iter().map(|(function, _)| function.clone()).collect(),
            returned: kept.functions.iter().map(|(_, bytes)| *bytes).collect(),
            maps: kept.maps.iter().map(span).collect(),
            context_bytes: context_bytes as u64,
            pointers: pointers.to_vec(),
            budget: budget.unwrap_or(INSNS_MAX),
        })
    }

    /// Runs it.
    pub(crate) fn run(&self, context: u64, env: u64) -> u64 {
        // (A program without functions has one frame: others are not cleared for it.)
        let frames = if self.program.subprograms().len() == 1 { 1 } else { ring3_interp::FRAMES_MAX };
        let mut stack = [const { MaybeUninit::<u64>::uninit() }; STACK_WORDS];
        let unused = STACK_WORDS - (frames * ring3_interp::FRAME_BYTES / 8) as usize;
        stack[unused..].fill(MaybeUninit::new(0));
        let stack = &mut stack[unused..];
        let own = Span { start: context, bytes: self.context_bytes };
        let mut spans = [own; 1 + POINTERS_MAX];
        for (span, pointer) in spans[1..].iter_mut().zip(&self.pointers) {
            // SAFETY: the caller of the program has a context of so many bytes, and pointers are inside.
            let word = |at: u32| unsafe { ((context + u64::from(at)) as *const u64).read_unaligned() };
            *span = match *pointer {
                Pointer::Bytes { at, bytes } => Span { start: word(at), bytes: u64::from(bytes) },
                Pointer::Packet { data_at, end_at } => {
                    Span { start: word(data_at), bytes: word(end_at).wrapping_sub(word(data_at)) }
                }
            };
        }
        let mut reach = Reach {
            maps: &self.maps,
            context: &spans[..1 + self.pointers.len().min(POINTERS_MAX)],
            stack: Span { start: stack.as_mut_ptr() as u64, bytes: size_of_val(stack) as u64 },
            returned: vec![],
        };
        let mut helpers = Helpers { program: self, env };
        let ran = run_decoded(&self.program, &self.ops, context, &mut reach, &mut helpers, self.budget);
        ran.unwrap_or_else(|fault| {
            note(Trouble::Fault(fault));
            0
        })
    }
}

/// Pointers that a context has at most.
pub const POINTERS_MAX: usize = 8;
