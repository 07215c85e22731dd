//! Why something could not be done: for loaders, and for people.

use ring3_inject as inject;
use ring3_uapi::Errno;

/// Why something could not be instrumented.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// For the loader.
    pub errno: Errno,
    /// For the log and for people: what was wrong and what to do.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(errno: Errno, message: impl Into<String>) -> Refusal {
        Refusal { errno, message: message.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// An injection error as a loader or a user sees it.
pub(super) fn refusal_of(error: inject::Error) -> Refusal {
    Refusal::new(errno_of(&error), error.to_string())
}

fn errno_of(error: &inject::Error) -> Errno {
    match error {
        error if error.is_breakpoint() => Errno::EBUSY,
        error if error.is_gone() => Errno::ESRCH,
        inject::Error::NotPermitted { .. } | inject::Error::Seccomp { .. } | inject::Error::OwnDispatch { .. } => {
            Errno::EPERM
        }
        inject::Error::AlreadyTraced { .. }
        | inject::Error::ThreadDoesNotStop { .. }
        | inject::Error::SharesMemory { .. } => Errno::EBUSY,
        _ => Errno::EINVAL,
    }
}
