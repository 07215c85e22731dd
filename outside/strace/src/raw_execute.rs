//! Becoming a program that finds all as if it had been executed at once.
//!
//! `std::process::Command` sorts an environment that it changes, and programs see that. Rust's runtime ignores SIGPIPE, and opens
//! standard descriptors that are closed (`std::rt::init`), before `main` begins: what was there is noted earlier.

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
// SAFETY: the C library calls what is in this section when it is ready itself; `note` needs nothing else.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Notes what this process has inherited.
extern "C" fn note() {
    // SAFETY: integers and a set of signals, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; room for the answer.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) };
    IGNORES_SIGPIPE.store(asked == 0 && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    for (descriptor, closed) in (0..).zip(&CLOSED) {
        // SAFETY: takes numbers.
        closed.store(unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1, Ordering::Relaxed);
    }
}

/// Signals and descriptors are as they were inherited.
fn undo_the_runtimes() {
    if !IGNORES_SIGPIPE.load(Ordering::Relaxed) {
        // SAFETY: takes numbers.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    for (descriptor, closed) in (0..).zip(&CLOSED) {
        if closed.load(Ordering::Relaxed) {
            // SAFETY: the runtime has opened it, and nobody has it as his own.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Executes a program with the environment as it is, but for variables of these names: they have these values, in the place of those
/// of the same name, or behind all others. `takes_name`: the thread has the program's name before. Returns only if that fails: why.
pub fn execute(program: &Path, arguments: &[String], set: &[(&str, OsString)], takes_name: bool) -> io::Error {
    let found = || -> io::Result<_> {
        let program = CString::new(program.as_os_str().as_bytes())?;
        let arguments = arguments.iter().map(|argument| CString::new(argument.as_bytes()));
        let variables = environment(std::env::vars_os().collect(), set).into_iter().map(|(mut variable, value)| {
            variable.push("=");
            variable.push(value);
            CString::new(variable.as_bytes())
        });
        Ok((program, arguments.collect::<Result<Vec<_>, _>>()?, variables.collect::<Result<Vec<_>, _>>()?))
    };
    let name = takes_name.then(|| CString::new(program.file_name()?.as_bytes()).ok()).flatten();
    let (program, arguments, variables) = match found() {
        Ok(found) => found,
        Err(error) => return error,
    };
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&variables));
    undo_the_runtimes();
    if let Some(name) = &name {
        // SAFETY: a text that ends with a NUL.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
    // SAFETY: texts that end with a NUL, and two arrays of such that end with a null pointer; all of them live until it returns.
    // (The shell runs what has no other interpreter.)
    unsafe { libc::execvpe(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

fn environment(mut variables: Vec<(OsString, OsString)>, set: &[(&str, OsString)]) -> Vec<(OsString, OsString)> {
    for (name, value) in set {
        match variables.iter_mut().find(|(other, _)| other == OsStr::new(name)) {
            Some((_, old)) => old.clone_from(value),
            None => variables.push((name.into(), value.clone())),
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stay_in_their_order() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        let set = [("B", "new".into()), ("A", "last".into())];
        let all = environment(pairs(&[("Z", "1"), ("B", "2"), ("C", "3")]), &set);
        assert_eq!(all, pairs(&[("Z", "1"), ("B", "new"), ("C", "3"), ("A", "last")]));
    }
}
