//! Programs run by themselves (`BPF_PROG_TEST_RUN`), in a process made for it.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ring3_run::child::{Answer, Caller, Request};
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::process::ProgramProcess;
use crate::kernel::known;
use crate::realm::{ProgramText, Realm, Refusal, possible_cpus};

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

impl Realm {
    /// Runs a program by itself while somebody, for whom it is, waits.
    ///
    /// # Errors
    /// `EINTR` if nobody waits any more, `E2BIG` for too many maps, else why there is no process for it.
    pub fn test_run(
        &self,
        program: &ProgramText,
        uses_per_cpu: bool,
        caller: Caller,
        input: TestInput,
        is_waited_for: &dyn Fn() -> bool,
    ) -> Result<Answer, Refusal> {
        let process = ProgramProcess::start(&self.shared, "run-program")?;
        let new = process.new_maps(program)?;
        let own = [self.shared.domains.own().block().file.file(), self.shared.text.file()];
        let files: Vec<BorrowedFd<'_>> = own.into_iter().chain(new.files()).collect();
        let request = Request {
            caller,
            tasks: known().tasks.rows().collect(),
            cpus: possible_cpus(),
            prog_type: input.prog_type,
            entry: program.entry,
            per_cpu: uses_per_cpu,
            maps: new.maps.clone(),
            context: input.context,
            packet: input.packet,
            repeat: input.repeat,
        };
        let answer = request.send(&process.stream, &files).and_then(|()| answer_of(&process.stream, is_waited_for));
        let complaint = process.end();
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Refusal::new(Errno::EINTR, "nobody waits for the program's end")),
            Err(error) => Err(Refusal::new(Errno::EIO, format!("the program's process: {error} {complaint}"))),
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
