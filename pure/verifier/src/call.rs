//! Calls of the program's own functions, callbacks, and returns.
//! Mirrors kernel/bpf/verifier.c:setup_func_entry, push_callback_call and prepare_func_exit.

use std::ops::Range;
use std::rc::Rc;

use ring3_uapi::Errno;
use ring3_uapi::helper;

use crate::branch::widen;
use crate::explore::{Explorer, Next};
use crate::flow::calls_back;
use crate::path::Place;
use crate::scalar::Scalar;
use crate::state::{Kind, Register, State};
use crate::{CALL_FRAMES_MAX, Refusal, refuse};

impl Explorer<'_> {
    fn check_depth(&self) -> Result<(), Refusal> {
        let frames = self.state.frames.len() + 1;
        if frames > CALL_FRAMES_MAX {
            return refuse(Errno::E2BIG, format!("the call stack of {frames} frames is too deep"));
        }
        Ok(())
    }

    pub(crate) fn call_local(&mut self, target: usize) -> Result<Next, Refusal> {
        self.check_depth()?;
        let frame = self.state.depth() + 1;
        let mut callee = self.state.called(self.flow.subprogram_at(target), self.at);
        for register in 1..6 {
            let value = *self.state.register(register);
            if value.kind != Kind::NotInit {
                self.path.read(self.state.place(register));
            }
            callee.registers[usize::from(register)] = value;
        }
        for register in 0..6 {
            self.state.set(register, Register::NOT_INIT);
        }
        self.state.frames.push(Rc::new(callee));
        self.path.enter(frame);
        Ok(Next::To(target))
    }

    /// Calls the helper whose number is in a register: always the same one, so that the instruction can become a call of it.
    pub(crate) fn call_register(&mut self, register: u8) -> Result<Next, Refusal> {
        let read = self.read(register)?;
        let number = read.number.value().filter(|_| read.is_scalar()).and_then(|number| u32::try_from(number).ok());
        self.decides(&[register]);
        let function = number.and_then(|number| self.function_numbered(number));
        let Some(id) = function.or(number.filter(|id| *id < helper::KFUNC_FIRST && !calls_back(*id))) else {
            return refuse(Errno::EINVAL, format!("R{register} is not the number of one helper without callbacks"));
        };
        if *self.found.called.entry(self.at).or_insert(id) != id {
            return refuse(Errno::EINVAL, format!("R{register} is the number of different helpers"));
        }
        self.call_helper(id)
    }

    /// r0 to r5 hold nothing any more.
    pub(crate) fn clobber(&mut self) {
        for register in 0..6 {
            self.path.wipe(self.state.place(register));
            self.state.set(register, Register::NOT_INIT);
        }
    }

    /// One path goes into the callback and comes back to the call; this one goes on behind it.
    pub(crate) fn call_back(&mut self, id: u32, subprogram: u32, map: Option<u32>) -> Result<(), Refusal> {
        self.check_depth()?;
        let rounds = self.state.frame().rounds;
        let enough = if id == helper::LOOP {
            self.decides(&[1]);
            u64::from(rounds) >= self.state.register(1).number.umax
        } else {
            false
        };
        if !enough && self.walks_round(rounds) {
            let mut inside = self.state.clone();
            let frame = inside.depth() + 1;
            let index = subprogram as usize;
            let mut callee = inside.called(index, self.at);
            callee.callback = true;
            let arguments = self.callback_arguments(id, map, &inside)?;
            for (register, value, _) in &arguments {
                callee.registers[usize::from(*register)] = *value;
            }
            inside.frames.push(Rc::new(callee));
            let start = self.flow.subprograms[index].start;
            for (_, _, from) in &arguments {
                if let Some(register) = from {
                    self.path.read(self.state.place(*register));
                }
            }
            let caller = self.state.depth();
            let path = self.fork(start, inside)?;
            path.enter(frame);
            for (register, _, from) in arguments {
                let from = from.map(|register| Place::register(caller, register));
                path.set(Place::register(frame, register), [from, None]);
            }
        }
        self.state.frame_mut().rounds = 0;
        Ok(())
    }

    /// What a callback gets: register, value, and the caller's register that it comes from.
    fn callback_arguments(
        &mut self,
        id: u32,
        map: Option<u32>,
        state: &State,
    ) -> Result<Vec<(u8, Register, Option<u8>)>, Refusal> {
        let context = (*state.register(3), Some(3));
        Ok(match id {
            helper::LOOP => vec![(1, Register::unknown(), None), (2, context.0, context.1)],
            helper::USER_RINGBUF_DRAIN => {
                vec![(1, Register::pointer(Kind::Dynptr), None), (2, context.0, context.1)]
            }
            helper::FOR_EACH_MAP_ELEM => {
                let map = map.unwrap_or_default();
                // A key is the helper's; it goes with the callback's frame.
                let frame = u32::from(state.depth()) + 1;
                let key = Register { range: frame, ..Register::pointer(Kind::MapKey(map)) };
                let mut value = Register::pointer(Kind::MapValue(map));
                if self.maps[map as usize].lock.is_some() {
                    value.id = self.new_id();
                }
                vec![
                    (1, Register::pointer(Kind::Map(map)), None),
                    (2, key, None),
                    (3, value, None),
                    (4, context.0, context.1),
                ]
            }
            helper::FIND_VMA => {
                let object = |id| Register::pointer(Kind::Object { id, trusted: true });
                let (task, vma) = (self.object_id("task_struct"), self.object_id("vm_area_struct"));
                vec![(1, object(task), None), (2, object(vma), None), (3, *state.register(4), Some(4))]
            }
            _ => return refuse(Errno::EINVAL, format!("helper {id} with a callback is not known")),
        })
    }

    pub(crate) fn exit(&mut self) -> Result<Next, Refusal> {
        let frame = self.state.depth();
        if frame == 0 {
            return self.exit_program();
        }
        let result = *self.state.register(0);
        if let Kind::Stack(_) = result.kind {
            return refuse(Errno::EINVAL, "cannot return stack pointer to the caller");
        }
        if result.kind != Kind::NotInit {
            self.path.read(self.state.place(0));
        }
        let call_site = self.state.frame().call_site;
        if self.state.frame().callback {
            return self.exit_callback(call_site, frame);
        }
        self.drop_frame(frame)?;
        self.state.set(0, result);
        self.path.leave(frame);
        Ok(Next::To(call_site + 1))
    }

    /// A function other than the first may end here, and what it returns is not its own: one path goes on in the caller.
    /// Who is called by a helper has to return what the helper understands.
    pub(crate) fn may_return(&mut self) -> Result<(), Refusal> {
        let frame = self.state.depth();
        if frame == 0 {
            return Ok(());
        }
        if self.state.frame().callback {
            return refuse(Errno::EINVAL, "a callback may not end with another program's result, or a failed load's");
        }
        let stays = self.state.clone();
        let (call_site, result) = (self.state.frame().call_site, self.state.place(0));
        self.drop_frame(frame)?;
        self.state.set(0, Register::unknown());
        let returned = std::mem::replace(&mut self.state, stays);
        let path = self.fork(call_site + 1, returned)?;
        path.set(result, [None, None]);
        path.leave(frame);
        Ok(())
    }

    /// The frame's dynptrs and iterators must not hold anything.
    fn drop_frame(&mut self, frame: u8) -> Result<(), Refusal> {
        use crate::state::Special;
        let left = self.state.frame().slots.iter().find_map(|slot| match slot.special {
            Some(Special::Dynptr { record: true, reference, .. } | Special::Iterator { reference, .. }) => {
                Some(reference)
            }
            _ => None,
        });
        if let Some(reference) = left.filter(|reference| self.state.holds(*reference)) {
            return self.leaks(reference);
        }
        self.state.frames.pop();
        // Pointers to the stack that is gone.
        self.state.change(|register| register.kind == Kind::Stack(frame), |register| *register = Register::unknown());
        Ok(())
    }

    fn exit_callback(&mut self, call_site: usize, frame: u8) -> Result<Next, Refusal> {
        let result = self.read(0)?;
        if !result.is_scalar() {
            return refuse(Errno::EACCES, "R0 not a scalar value at callback return");
        }
        self.decides(&[0]);
        let number = result.number;
        if number.smin < 0 || number.umax > 1 {
            return refuse(Errno::EINVAL, outside("At callback return", &number, &(0..2)));
        }
        if self.state.lock.is_some() {
            return refuse(Errno::EINVAL, "a callback returns while a lock is held");
        }
        self.drop_frame(frame)?;
        self.state.change(
            |register| matches!(register.kind, Kind::MapKey(_)) && register.range == u32::from(frame),
            |register| *register = Register::unknown(),
        );
        self.state.frame_mut().rounds += 1;
        if let Some(before) = self.last_round(call_site) {
            let widened = widen(&mut self.state, &before);
            self.path.forget(widened);
        }
        Ok(Next::To(call_site))
    }

    fn exit_program(&mut self) -> Result<Next, Refusal> {
        let result = self.read(0)?;
        if let Some(held) = self.state.references.first() {
            return self.leaks(held.id);
        }
        if self.state.lock.is_some() {
            return refuse(
                Errno::EINVAL,
                "BPF_EXIT instruction in main prog cannot be used inside bpf_spin_lock-ed region",
            );
        }
        self.check_verdict(&result)?;
        if let Some(allowed) = self.input.policy.result.clone() {
            if !result.is_scalar() {
                return refuse(
                    Errno::EINVAL,
                    format!("At program exit the register R0 is not a known value ({})", result.kind_name()),
                );
            }
            self.decides(&[0]);
            let Scalar { smin, smax, .. } = result.number;
            if smin < allowed.start || smax >= allowed.end {
                return refuse(Errno::EINVAL, outside("At program exit", &result.number, &allowed));
            }
        }
        Ok(Next::End)
    }

    pub(crate) fn leaks<T>(&self, reference: u32) -> Result<T, Refusal> {
        let insn = self.state.references.iter().find(|held| held.id == reference).map_or(0, |held| held.insn);
        let message = "BPF_EXIT instruction in main prog would lead to reference leak";
        refuse(Errno::EINVAL, format!("Unreleased reference id={reference} alloc_insn={insn}\n{message}"))
    }
}

/// A result that must not be. Mirrors kernel/bpf/verifier.c:verbose_invalid_scalar.
fn outside(when: &str, number: &Scalar, allowed: &Range<i64>) -> String {
    let mut has = String::new();
    if number.smin > i64::MIN {
        has += &format!(" smin={}", number.smin);
    }
    if number.smax < i64::MAX {
        has += &format!(" smax={}", number.smax);
    }
    if has.is_empty() {
        has += " unknown scalar value";
    }
    format!(
        "{when} the register R0 has{has} should have been in [{}, {}]",
        allowed.start,
        allowed.end.saturating_sub(1)
    )
}
