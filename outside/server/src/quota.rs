//! Resources that many share: each may hold as much as is left for the others, so that none can take all. Loaders share objects, and users
//! the room for their processes that become targets of another user's tools.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ring3_layout::control::MAPS_MAX;
use rustix::process::{Resource, getrlimit};

/// Of so many descriptors one is kept for what is no object of a loader: targets, requests, files that are read.
const KEPT_OF: u64 = 8;
/// Descriptors that a target takes: it, its control page and its witness file.
const OF_TARGET: u64 = 3;

/// Something of which a server has so much.
#[derive(Debug)]
pub struct Quota {
    /// Who is told that he holds too much, and of what.
    who: fn(u32) -> String,
    what: &'static str,
    remedy: &'static str,
    limit: u64,
    /// By loader, or user.
    held: Mutex<HashMap<u32, u64>>,
}

/// One of it, free again when dropped.
#[derive(Debug)]
pub struct Share {
    quota: Arc<Quota>,
    holder: u32,
}

impl Quota {
    fn new(who: fn(u32) -> String, what: &'static str, remedy: &'static str, limit: u64) -> Arc<Quota> {
        Arc::new(Quota { who, what, remedy, limit, held: Mutex::default() })
    }

    /// Of loaders.
    fn of_tools(what: &'static str, remedy: &'static str, limit: u64) -> Arc<Quota> {
        Quota::new(|_| "this tool".to_owned(), what, remedy, limit)
    }

    /// Of the room for targets that nobody has named: half of the server's descriptors.
    pub(crate) fn of_targets() -> Arc<Quota> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2 / OF_TARGET;
        let remedy = "end some, or start the server with a higher limit of open files (`ring3 stop`, `ulimit -n`)";
        Quota::new(|user| format!("user {user}"), "processes that are traced", remedy, limit)
    }

    /// Of the server's descriptors: each program, link, event, map and BTF that a loader holds takes one.
    pub(crate) fn of_descriptors() -> Arc<Quota> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let remedy = "close some, or start the server with a higher limit of open files (`ring3 stop`, `ulimit -n`)";
        Quota::of_tools("objects", remedy, limit - limit / KEPT_OF)
    }

    /// Of the places for maps in targets.
    pub(crate) fn of_maps() -> Arc<Quota> {
        Quota::of_tools("maps", "close some", MAPS_MAX.into())
    }

    /// One more for a loader, or user.
    ///
    /// # Errors
    /// It would hold more than is left: what to tell people.
    pub fn take(self: &Arc<Quota>, holder: u32) -> Result<Share, String> {
        let mut held = self.held.lock().expect("no panic under this lock");
        let own = held.get(&holder).copied().unwrap_or(0);
        let left = self.limit.saturating_sub(held.values().sum());
        if own >= left {
            let Quota { who, what, remedy, limit, .. } = &**self;
            let who = who(holder);
            return Err(format!(
                "{who} holds {own} {what}, and of the server's {limit} only {left} are left for others: {remedy}"
            ));
        }
        held.insert(holder, own + 1);
        Ok(Share { quota: self.clone(), holder })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.quota.held.lock().expect("no panic under this lock");
        if let Some(own) = held.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_holds_no_more_than_is_left_for_others() {
        let quota = Quota::of_tools("things", "do without", 100);
        let take = |loader: u32| std::iter::from_fn(|| quota.take(loader).ok()).collect::<Vec<Share>>();
        let first = take(1);
        let second = take(2);
        let third = take(3);
        assert_eq!([first.len(), second.len(), third.len()], [50, 25, 13]);
        drop(first);
        assert_eq!(take(4).len(), 31);
        assert_eq!(take(2).len() + second.len(), 44);
    }
}
