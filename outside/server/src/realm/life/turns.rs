//! Processes of many users that wait for the same.

use std::collections::{BTreeSet, VecDeque};

/// Who waits.
pub(in crate::realm) trait OfUser {
    /// Whose it is.
    fn user(&self) -> u32;
}

/// Those who wait: of each user one in turn, so that one user's many do not keep those of another one waiting.
#[derive(Debug)]
pub(in crate::realm) struct Turns<T> {
    queue: VecDeque<T>,
    /// Users of whom one has had its turn; the others' come first.
    served: BTreeSet<u32>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns { queue: VecDeque::new(), served: BTreeSet::new() }
    }
}

impl<T: OfUser> Turns<T> {
    pub(in crate::realm) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(in crate::realm) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queue.iter()
    }

    pub(in crate::realm) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.queue.iter_mut()
    }

    pub(in crate::realm) fn push(&mut self, one: T) {
        self.queue.push_back(one);
    }

    pub(in crate::realm) fn append(&mut self, other: &mut Turns<T>) {
        self.queue.append(&mut other.queue);
    }

    /// The next one of those that may.
    pub(in crate::realm) fn next(&mut self, may: impl Fn(&T) -> bool) -> Option<T> {
        let is_due = |one: &T| may(one) && !self.served.contains(&one.user());
        let at = self.queue.iter().position(is_due).or_else(|| {
            self.served.clear();
            self.queue.iter().position(&may)
        })?;
        let next = self.queue.remove(at)?;
        self.served.insert(next.user());
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process and its user.
    type One = (u32, u32);

    impl OfUser for One {
        fn user(&self) -> u32 {
            self.1
        }
    }

    fn order_of(turns: &mut Turns<One>, may: impl Fn(&One) -> bool) -> Vec<u32> {
        std::iter::from_fn(|| turns.next(&may)).map(|(pid, _)| pid).collect()
    }

    #[test]
    fn each_user_has_a_turn_whoever_came_first() {
        let mut turns: Turns<One> = Turns::default();
        [(1, 7), (2, 7), (3, 7), (4, 8), (5, 7), (6, 9), (7, 8)].into_iter().for_each(|one| turns.push(one));
        assert_eq!(order_of(&mut turns, |_| true), [1, 4, 6, 2, 7, 3, 5]);
    }

    #[test]
    fn one_users_many_do_not_keep_another_one_waiting() {
        let mut turns: Turns<One> = Turns::default();
        (1..=5).map(|pid| (pid, 1000)).chain([(6, 0), (7, 0)]).for_each(|one| turns.push(one));
        assert_eq!(order_of(&mut turns, |_| true), [1, 6, 2, 7, 3, 4, 5]);
        [(1, 1000), (2, 0)].into_iter().for_each(|one| turns.push(one));
        assert_eq!(order_of(&mut turns, |one| one.1 != 1000), [2]);
    }
}
