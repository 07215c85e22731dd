//! Uprobes: where they are, one by one and in links of many.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_uapi::Errno;

use crate::realm::{FileId, Point, ProbePoint};

/// How often, and after which pause, it is looked whether a probe in the way is gone: of the last close of an event or a link the
/// server hears a moment later.
const GONE_LOOKS: u32 = 20;
const GONE_PAUSE: Duration = Duration::from_millis(1);

/// Device and inode of a file, and an offset in it.
type Place = (u64, u64, u64);

/// The reference counter of each place that has uprobes, and how many these are.
#[derive(Debug, Default)]
pub struct UprobePlaces(Mutex<BTreeMap<Place, (u64, usize)>>);

impl UprobePlaces {
    /// One more uprobe is at an offset of a file, with the counter at another offset (0: none).
    /// Mirrors kernel/events/uprobes.c:uprobe_register and alloc_uprobe (v6.18).
    ///
    /// # Errors
    /// `EINVAL`: the counter is not aligned, or those that are there have another one.
    pub fn take(self: &Arc<Self>, file: (u64, u64), offset: u64, counter: u64) -> Result<UprobePlace, Errno> {
        const COUNTER_BYTES: u64 = 2;
        if !counter.is_multiple_of(COUNTER_BYTES) {
            return Err(Errno::EINVAL);
        }
        let place = (file.0, file.1, offset);
        for _ in 0..GONE_LOOKS {
            if self.add(place, counter) {
                return Ok(UprobePlace { places: self.clone(), place });
            }
            std::thread::sleep(GONE_PAUSE);
        }
        Err(Errno::EINVAL)
    }

    fn add(&self, place: Place, counter: u64) -> bool {
        let mut places = self.0.lock().expect("no panic under this lock");
        let (known, users) = places.entry(place).or_insert((counter, 0));
        let is_same = *known == counter;
        *users += usize::from(is_same);
        is_same
    }

    fn remove(&self, place: Place) {
        let mut places = self.0.lock().expect("no panic under this lock");
        if let Some((_, users)) = places.get_mut(&place) {
            *users -= 1;
            if *users == 0 {
                places.remove(&place);
            }
        }
    }
}

/// A uprobe's share of its place; given back when dropped.
#[derive(Debug)]
pub struct UprobePlace {
    places: Arc<UprobePlaces>,
    place: Place,
}

impl Drop for UprobePlace {
    fn drop(&mut self) {
        self.places.remove(self.place);
    }
}

/// A file in which uprobes are.
#[derive(Debug)]
pub struct ProbedFile {
    /// As the server opens it.
    pub path: PathBuf,
    /// The path as it is shown to loaders.
    pub shown: String,
    /// Which file that is.
    pub id: FileId,
}

/// Where a uprobe event is.
#[derive(Debug)]
pub struct UprobeSite {
    /// The file.
    pub file: ProbedFile,
    /// Offset in the file.
    pub offset: u64,
    /// On return.
    pub ret: bool,
    /// Offset of its reference counter in the file; 0: none.
    pub counter: u64,
    /// Only this process.
    pub pid: Option<u32>,
    /// That it is there.
    pub place: UprobePlace,
}

impl UprobeSite {
    pub(super) fn point(&self) -> Point {
        point(&self.file, self.offset, self.counter, self.ret)
    }
}

/// A uprobe of a link of many.
#[derive(Debug)]
pub struct MultiProbe {
    /// Offset in the file.
    pub offset: u64,
    /// Offset of its reference counter in the file; 0: none.
    pub counter: u64,
    /// What `bpf_get_attach_cookie` gives there.
    pub cookie: u64,
    /// That it is there.
    pub place: UprobePlace,
}

/// Where a link of many uprobes (`BPF_TRACE_UPROBE_MULTI`) is.
#[derive(Debug)]
pub struct MultiSite {
    /// The file.
    pub file: ProbedFile,
    /// All its uprobes, in the loader's order.
    pub probes: Vec<MultiProbe>,
    /// On return.
    pub ret: bool,
    /// Only this process.
    pub pid: Option<u32>,
}

impl MultiSite {
    /// Where the program runs, and with which cookies.
    pub(super) fn points(&self) -> Vec<(Point, u64)> {
        let of = |probe: &MultiProbe| (point(&self.file, probe.offset, probe.counter, self.ret), probe.cookie);
        self.probes.iter().map(of).collect()
    }
}

fn point(file: &ProbedFile, offset: u64, counter: u64, ret: bool) -> Point {
    let ProbedFile { path, id, .. } = file;
    Point::Probe(ProbePoint { file: path.clone(), id: *id, offset, ret, counter })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_uprobes_of_a_place_have_the_same_counter() {
        let places = Arc::new(UprobePlaces::default());
        let first = places.take((1, 2), 16, 64).expect("the first one");
        let second = places.take((1, 2), 16, 64).expect("the same counter");
        assert_eq!(places.take((1, 2), 16, 0).err(), Some(Errno::EINVAL));
        assert_eq!(places.take((1, 2), 17, 65).err(), Some(Errno::EINVAL));
        drop((first, second));
        assert!(places.take((1, 2), 16, 0).is_ok());
    }
}
