//! Specifications against programs that the system's compilers made.

mod build;
mod grants;
mod header;
mod notes;
mod programs;
mod text;

use ring3_eim::Error;

/// Errors without the lines below them.
fn first_lines(errors: &[Error]) -> Vec<String> {
    errors.iter().map(|error| error.to_string().lines().next().unwrap_or_default().to_owned()).collect()
}
