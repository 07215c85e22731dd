//! A process of the server's that runs programs: what a program may do with its process, it does with one that has nothing.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use ring3_layout::owner::{self, NAMESPACE_SERVER};
use ring3_run::child::{FILES_MAX, SharedMap};
use ring3_uapi::Errno;

use crate::realm::memory::{Death, free_cpu_slots};
use crate::realm::{MapFile, MapSlot, ProgramText, Refusal, Shared};

/// Maps, and their files.
#[derive(Default)]
pub(super) struct NewMaps {
    pub(in crate::realm) maps: Vec<SharedMap>,
    files: Vec<Arc<MapFile>>,
}

impl NewMaps {
    pub(in crate::realm) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().map(|file| file.memfd.as_fd())
    }
}

/// The process, which ends when this value does. What it held in maps is released.
pub(super) struct ProgramProcess {
    child: Child,
    /// Where its orders come from.
    pub(super) stream: UnixStream,
    shared: Arc<Shared>,
    /// Maps that it has.
    maps: Mutex<BTreeMap<MapSlot, Arc<MapFile>>>,
}

impl std::fmt::Debug for ProgramProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramProcess").field("child", &self.child.id()).finish_non_exhaustive()
    }
}

impl ProgramProcess {
    /// Starts `ring3 COMMAND`, which gets its orders by standard input.
    pub(in crate::realm) fn start(shared: &Arc<Shared>, command: &str) -> Result<ProgramProcess, Refusal> {
        let failed = |error: io::Error| Refusal::new(Errno::EIO, format!("a process for the program: {error}"));
        let (stream, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new("/proc/self/exe")
            .arg(command)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        Ok(ProgramProcess { child, stream, shared: shared.clone(), maps: Mutex::default() })
    }

    /// The maps that a program can come to and that the process does not have yet, with their files. It has them from now on.
    pub(super) fn new_maps(&self, program: &ProgramText) -> Result<NewMaps, Refusal> {
        let shared = &self.shared;
        let slots: Vec<MapSlot> = shared.with_companions(program.maps.iter().copied()).into_iter().collect();
        if slots.len() + 2 > FILES_MAX {
            return Err(Refusal::new(Errno::E2BIG, format!("{} maps, and those inside", slots.len())));
        }
        let mut known = self.maps.lock().expect("no panic under this lock");
        let mut fresh = NewMaps::default();
        for (slot, file) in shared.map_files(&slots, shared.domains.own())? {
            // (A slot may have another map than before.)
            if known.get(&slot).is_none_or(|known| !Arc::ptr_eq(known, &file)) {
                fresh.maps.push(SharedMap::new(slot.0, &file.geometry, file.writable));
                fresh.files.push(file.clone());
                known.insert(slot, file);
            }
        }
        Ok(fresh)
    }

    /// Ends the process: what it has complained of.
    pub(in crate::realm) fn end(mut self) -> String {
        let _ = self.child.kill();
        let complaint = self.child.stderr.take().and_then(|stderr| io::read_to_string(stderr).ok());
        complaint.unwrap_or_default().trim_end().to_owned()
    }
}

impl Drop for ProgramProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let owner = owner::name(NAMESPACE_SERVER, self.child.id());
        let maps = self.maps.get_mut().expect("no panic under this lock");
        let death = Death { owner, maps: maps.keys().copied().collect(), until_tended: None };
        free_cpu_slots(self.shared.domains.own().block().file.realm(), &self.shared.namespaces, owner);
        self.shared.deaths.tell(death);
    }
}
