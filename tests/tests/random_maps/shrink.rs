//! From a sequence that fails to a small one that fails still.

use super::sequence::Step;

/// Rounds at most.
const ROUNDS_MAX: usize = 200;

/// Sequences that are a little smaller: without some steps, the larger parts first; then without one argument.
fn smaller(steps: &[Step]) -> Vec<Vec<Step>> {
    let mut all = vec![];
    let mut size = steps.len() / 2;
    while size > 0 {
        for start in (0..steps.len()).step_by(size).rev() {
            let end = (start + size).min(steps.len());
            all.push([&steps[..start], &steps[end..]].concat());
        }
        size /= 2;
    }
    for (number, step) in steps.iter().enumerate() {
        for at in 0..step.words.len() {
            let mut without = steps.to_vec();
            without[number].words.remove(at);
            all.push(without);
        }
    }
    all
}

/// Makes `steps` smaller as long as something smaller fails. `first_that_fails` tries many at once.
pub(crate) fn shrink(
    mut steps: Vec<Step>,
    mut first_that_fails: impl FnMut(&[Vec<Step>]) -> Option<usize>,
) -> Vec<Step> {
    for _ in 0..ROUNDS_MAX {
        let mut candidates = smaller(&steps);
        match first_that_fails(&candidates) {
            Some(number) => steps = candidates.swap_remove(number),
            None => break,
        }
    }
    steps
}
