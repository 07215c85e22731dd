//! The running thread's ids.

use std::mem::offset_of;

use ring3_isa::Size;
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::helper;

use super::{ENV, Emitter, Translator};

impl<E: Emitter> Translator<'_, E> {
    /// Those that the thread block has; if it has none yet, the agent asks for them. (Its result is given in r0.)
    pub(super) fn ids(&mut self) -> E::Value {
        let [ask, on] = [(); 2].map(|()| self.emitter.block());
        let env = self.emitter.get(ENV);
        let known = self.emitter.load(Size::Dw, false, env, offset_of!(ThreadBlock, shown_ids) as i32);
        self.set(0, known);
        self.emitter.branch(known, on, ask);
        self.emitter.begin_rare(ask);
        let told = self.plain_helper(helper::GET_CURRENT_PID_TGID);
        self.set(0, told);
        self.emitter.jump(on);
        self.emitter.begin(on);
        self.get(0)
    }
}
