//! What extensions need of their host: its functions and variables, by routines of the agent.

use std::mem::offset_of;

use ring3_isa::Size;
use ring3_layout::thread::ThreadBlock;

use super::{ENV, Emitter, External, FUEL_OFFSET, Translator};
use crate::Target;

/// Calls a function.
const HOST_CALL: &str = "ring3_host_call";
/// Finds a variable.
const HOST_VARIABLE: &str = "ring3_host_variable";

impl<E: Emitter> Translator<'_, E> {
    /// The routine that is called next looks there.
    pub(super) fn store_call_word(&mut self, at: usize) {
        if let Some(word) = self.program.call_word(at) {
            let word = self.constant(word as i64);
            let env = self.emitter.get(ENV);
            self.emitter.store(Size::Dw, word, env, offset_of!(ThreadBlock, call_word) as i32);
        }
    }

    /// A function of the host's. If it breaks its contract, no fuel is left.
    pub(super) fn call_host(&mut self, at: usize, id: u32) -> E::Value {
        self.store_call_word(at);
        let arguments = self.arguments(id);
        let result = self.emitter.call(External::Outside(Target::Symbol(HOST_CALL)), &arguments);
        let env = self.emitter.get(ENV);
        let fuel = self.emitter.load(Size::Dw, false, env, FUEL_OFFSET);
        self.end_if_dry(fuel);
        result
    }

    /// The address of a variable.
    pub(super) fn host_variable(&mut self, at: usize) -> E::Value {
        self.store_call_word(at);
        let env = self.emitter.get(ENV);
        self.emitter.call(External::Outside(Target::Symbol(HOST_VARIABLE)), &[env])
    }
}
