//! Programs run by themselves (`BPF_PROG_TEST_RUN`), in a process made for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ring3_layout::owner::{self, NAMESPACE_SERVER};
use ring3_run::child::{Answer, FILES_MAX, Request, SharedMap};
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::owners::{self, Death};
use super::{MapFile, MapSlot, ProgramText, Realm, Refusal, possible_cpus};

/// Whether the result is still waited for is asked this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a program is run on.
#[derive(Debug, Default)]
pub struct TestInput {
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// What r1 leads to, if there is no packet.
    pub context: Vec<u8>,
    /// A packet.
    pub packet: Option<Vec<u8>>,
    /// How often.
    pub repeat: u32,
}

/// The child's end is the end of its run.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Realm {
    /// Runs a program by itself while somebody waits for it.
    ///
    /// # Errors
    /// `EINTR` if nobody waits any more, `E2BIG` for too many maps, else why there is no process for it.
    pub fn test_run(
        &self,
        program: &ProgramText,
        uses_per_cpu: bool,
        input: TestInput,
        is_waited_for: &dyn Fn() -> bool,
    ) -> Result<Answer, Refusal> {
        let failed = |error: std::io::Error| Refusal::new(Errno::EIO, format!("a process for the program: {error}"));
        let slots = self.shared.with_companions(program.maps.iter().copied());
        let maps: Vec<(MapSlot, Arc<MapFile>)> =
            slots.into_iter().filter_map(|slot| Some((slot, self.shared.map_file(slot)?))).collect();
        if maps.len() + 2 > FILES_MAX {
            return Err(Refusal::new(Errno::E2BIG, format!("{} maps, and those inside", maps.len())));
        }
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new("/proc/self/exe")
            .arg("run-program")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let death = Death {
            owner: owner::name(NAMESPACE_SERVER, child.id()),
            maps: maps.iter().map(|(slot, _)| *slot).collect(),
            until_tended: None,
        };
        let mut child = KillOnDrop(child);
        let files: Vec<BorrowedFd<'_>> = [self.shared.domains.own().block().file.file(), self.shared.text.file()]
            .into_iter()
            .chain(maps.iter().map(|(_, file)| file.memfd.as_fd()))
            .collect();
        let shared = |(slot, file): &(MapSlot, Arc<MapFile>)| SharedMap::new(slot.0, &file.geometry, file.writable);
        let request = Request {
            cpus: possible_cpus(),
            prog_type: input.prog_type,
            entry: program.entry,
            per_cpu: uses_per_cpu,
            maps: maps.iter().map(shared).collect(),
            context: input.context,
            packet: input.packet,
            repeat: input.repeat,
        };
        let answer = request.send(&ours, &files).and_then(|()| answer_of(&ours, is_waited_for));
        let _ = child.0.kill();
        let complaint = child.0.stderr.take().and_then(|stderr| std::io::read_to_string(stderr).ok());
        drop(child);
        // What it held when it was stopped.
        owners::free_cpu_slots(self.shared.domains.own().block().file.realm(), &self.shared.namespaces, death.owner);
        self.shared.deaths.tell(death);
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Refusal::new(Errno::EINTR, "nobody waits for the program's end")),
            Err(error) => {
                let complaint = complaint.unwrap_or_default();
                Err(Refusal::new(Errno::EIO, format!("the program's process: {error} {}", complaint.trim_end())))
            }
        }
    }
}

/// The answer; nothing if it is no longer waited for.
fn answer_of(stream: &UnixStream, is_waited_for: &dyn Fn() -> bool) -> std::io::Result<Option<Answer>> {
    let slice = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 };
    loop {
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&slice)) {
            Ok(0) if !is_waited_for() => return Ok(None),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Answer::receive(stream).map(Some),
            Err(error) => return Err(error.into()),
        }
    }
}
