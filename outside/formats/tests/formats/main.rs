//! What is written can be read: by the programs for which it is, and by ourselves.

mod ctf;
mod perfetto;
mod support;
mod texts;
