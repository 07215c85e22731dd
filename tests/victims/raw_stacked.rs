//! Calls back from frames of Rust: of a sort, and while a panic unwinds.
#![crate_type = "staticlib"]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

type Tell = unsafe extern "C" fn(*const c_char);

fn say(tell: Tell, name: &CStr) {
    // SAFETY: the function takes a string.
    unsafe { tell(name.as_ptr()) };
}

struct Guard(Tell);

impl Drop for Guard {
    fn drop(&mut self) {
        say(self.0, c"rust unwinding");
    }
}

#[inline(never)]
fn unwinds(tell: Tell, depth: u32) -> u32 {
    let guard = Guard(tell);
    if depth == 0 {
        resume_unwind(Box::new(1));
    }
    let found = unwinds(tell, depth - 1) + 1;
    drop(guard);
    found
}

#[unsafe(no_mangle)]
pub extern "C" fn in_rust(tell: Tell) {
    let mut numbers = [3, 1, 4, 1, 5, 9, 2, 6].map(|number| vec![number; 4]);
    numbers.sort_by(|a, b| {
        say(tell, c"rust");
        a.cmp(b)
    });
    let _ = catch_unwind(AssertUnwindSafe(|| unwinds(tell, 2)));
}
