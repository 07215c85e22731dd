//! What is asked of a text.

use crate::glob::Glob;

/// A text of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Field(usize),
    /// The thread's name.
    Comm,
}

/// What is asked of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Question {
    /// It is one of these.
    OneOf(Vec<Vec<u8>>),
    Matches(Glob),
    /// It is the same as another.
    Is(Subject),
}

impl Question {
    pub(crate) fn literal(text: Vec<u8>) -> Question {
        Question::OneOf(vec![text])
    }

    pub(crate) fn glob(glob: Glob) -> Question {
        match glob.literal() {
            Some(literal) => Question::literal(literal),
            None => Question::Matches(glob),
        }
    }

    /// Whether the answer needs a loop.
    pub(crate) fn loops(&self) -> bool {
        match self {
            Question::OneOf(_) => false,
            Question::Matches(glob) => glob.loops(),
            Question::Is(_) => true,
        }
    }
}
