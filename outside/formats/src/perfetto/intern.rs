//! Texts that are written once, and are numbers afterwards.

use std::collections::HashMap;

use super::messages::Name;

/// Texts with their numbers, from 1.
pub(super) struct Interned {
    numbers: HashMap<String, u64>,
    count_max: usize,
}

impl Interned {
    pub(super) fn new(count_max: usize) -> Interned {
        Interned { numbers: HashMap::new(), count_max }
    }

    /// The number of a text; what explains it is added to `new` if there is none yet. `None` if there are too many.
    pub(super) fn number(&mut self, text: &str, new: &mut Vec<Name>) -> Option<u64> {
        if let Some(number) = self.numbers.get(text) {
            return Some(*number);
        }
        if self.numbers.len() >= self.count_max {
            return None;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(text.to_owned(), number);
        new.push(Name { iid: Some(number), name: Some(text.to_owned()) });
        Some(number)
    }
}
