//! Changing the code of a stopped process: some bytes at each of many sites.
//!
//! All bytes are read at once, and those of a page written at once: each request costs about as much as all else that is done for a
//! site.

use crate::Error;
use crate::raw_ptrace::{self as ptrace, Registers, Tid};
use crate::stopped::{SavedContext, Stopped, made_again};

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;
/// Sites that begin within so many bytes are read and written together.
const TOGETHER_BYTES: u64 = ring3_layout::PAGE_BYTES;

/// A jump that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct SiteChange<'a> {
    /// Where.
    pub site: u64,
    /// What stands there.
    pub expected: &'a [u8],
    /// What is written over its first bytes.
    pub new: &'a [u8],
    /// Where threads go on that are at an instruction in these bytes, but for the first one (`from`, `to`).
    pub moved: &'a [(u64, u64)],
}

/// A jump that is to be taken out.
#[derive(Clone, Copy, Debug)]
pub struct SiteRestoration<'a> {
    /// Where.
    pub site: u64,
    /// What was written.
    pub written: &'a [u8],
    /// What was there before, of the same length.
    pub original: &'a [u8],
}

/// Bytes of a process that are changed, and those of them that are to be written.
struct Piece {
    start: u64,
    bytes: Vec<u8>,
    /// First byte, and the one behind the last; in order.
    changed: Vec<(usize, usize)>,
}

impl Piece {
    /// The bytes of some sites, in order, that are still to be read.
    fn of(changes: &[SiteChange<'_>]) -> Option<Piece> {
        let end = changes.iter().map(|change| change.site + change.expected.len() as u64).max()?;
        let start = changes.first()?.site;
        Some(Piece { start, bytes: vec![0; (end - start) as usize], changed: vec![] })
    }

    fn at(&mut self, site: u64, length: usize) -> &mut [u8] {
        let at = (site - self.start) as usize;
        &mut self.bytes[at..at + length]
    }

    fn change(&mut self, site: u64, new: &[u8]) {
        self.at(site, new.len()).copy_from_slice(new);
        let at = (site - self.start) as usize;
        self.changed.push((at, at + new.len()));
    }

    /// Writes what has changed, with what lies between.
    fn write(mut self, stopped: &mut Stopped) -> Result<(), Error> {
        let mut runs: Vec<(usize, usize)> = vec![];
        self.changed.sort_unstable();
        for (start, end) in self.changed {
            match runs.last_mut() {
                // A breakpoint of the kernel's in between may be taken out this very moment: it is not written again.
                Some(run) if start <= run.1 || !self.bytes[run.1..start].contains(&INT3) => run.1 = run.1.max(end),
                _ => runs.push((start, end)),
            }
        }
        runs.into_iter()
            .try_for_each(|(start, end)| stopped.write(self.start + start as u64, &self.bytes[start..end]))
    }
}

impl Stopped {
    /// Replaces `expected` by `new` at each site. A thread that is in the middle of that, that would make a system call there again,
    /// or that comes back there from a signal handler, goes on as `moved` says. Threads are moved first: if we are killed in between,
    /// they run the code that was displaced, and not the middle of a jump. The results are those of the sites, in order.
    ///
    /// # Errors
    /// Of a site: [`Error::BytesDiffer`] or [`Error::ThreadInside`]; then nothing was written there.
    pub fn write_sites(&mut self, changes: &[SiteChange<'_>]) -> Vec<Result<(), Error>> {
        let is_together = |a: &SiteChange<'_>, b: &SiteChange<'_>| {
            a.site < b.site && b.site / TOGETHER_BYTES == a.site / TOGETHER_BYTES
        };
        let parts: Vec<&[SiteChange<'_>]> = changes.chunk_by(is_together).collect();
        let mut pieces: Vec<Piece> = parts.iter().filter_map(|together| Piece::of(together)).collect();
        // (Where they overlap, each is read when those before it are written.)
        let are_apart = pieces.is_sorted_by(|a, b| a.start + a.bytes.len() as u64 <= b.start);
        let are_read = are_apart
            && ptrace::read_pieces(self.pid(), pieces.iter_mut().map(|piece| (piece.start, &mut piece.bytes[..])));
        let mut results = vec![];
        for (together, piece) in parts.into_iter().zip(pieces) {
            let written = self.write_piece(together, piece, are_read);
            results.extend(written);
        }
        results
    }

    /// Whether all these bytes are there; `false` also if they cannot be read together.
    pub fn has_all<'a>(&self, expected: impl Iterator<Item = (u64, &'a [u8])>) -> bool {
        let expected: Vec<(u64, &[u8])> = expected.collect();
        let mut found: Vec<Vec<u8>> = expected.iter().map(|(_, bytes)| vec![0; bytes.len()]).collect();
        let places = expected.iter().map(|(address, _)| *address);
        let are_read = ptrace::read_pieces(self.pid(), places.zip(found.iter_mut().map(|bytes| &mut bytes[..])));
        are_read && expected.iter().zip(&found).all(|((_, expected), found)| found == expected)
    }

    fn write_together(&mut self, changes: &[SiteChange<'_>]) -> Vec<Result<(), Error>> {
        Piece::of(changes).map_or(vec![], |piece| self.write_piece(changes, piece, false))
    }

    /// `is_read`: the piece has what is there.
    fn write_piece(&mut self, changes: &[SiteChange<'_>], mut piece: Piece, is_read: bool) -> Vec<Result<(), Error>> {
        let read = if is_read { Ok(()) } else { self.read(piece.start, &mut piece.bytes) };
        match (read, changes) {
            (Ok(()), _) => {}
            (Err(error), [_]) => return vec![Err(error)],
            // (Behind one of them a mapping may end.)
            (Err(_), _) => return changes.iter().flat_map(|change| self.write_together(&[*change])).collect(),
        }
        let mut results: Vec<Result<(), Error>> = vec![];
        for SiteChange { site, expected, new, moved } in changes.iter().copied() {
            let found = piece.at(site, expected.len());
            let result = match found == expected {
                true => self.move_out(site, new.len() as u64, moved),
                false => {
                    Err(Error::BytesDiffer { address: site, expected: expected.to_vec(), found: found.to_vec() })
                }
            };
            if result.is_ok() {
                piece.change(site, new);
            }
            results.push(result);
        }
        match (piece.write(self), changes) {
            (Ok(()), _) => results,
            (Err(error), [_]) => vec![results.pop().unwrap_or(Ok(())).and(Err(error))],
            // (What is written by now is not what is expected any more.)
            (Err(_), _) => {
                let again = |change: &SiteChange<'_>, stopped: &mut Stopped| {
                    let mut there = vec![0; change.new.len()];
                    let is_there = stopped.read(change.site, &mut there).is_ok() && there == change.new;
                    if is_there { vec![Ok(())] } else { stopped.write_together(&[*change]) }
                };
                changes.iter().flat_map(|change| again(change, self)).collect()
            }
        }
    }

    /// Moves threads out of bytes that are about to be replaced.
    fn move_out(&mut self, site: u64, bytes: u64, moved: &[(u64, u64)]) -> Result<(), Error> {
        let inside = |rip: u64| rip > site && rip < site + bytes;
        let to = |tid: Tid, rip: u64| {
            let to = moved.iter().find(|(from, _)| *from == rip).map(|(_, to)| *to);
            to.ok_or(Error::ThreadInside { tid, address: rip })
        };
        let mut moves = vec![];
        let threads = if self.is_anyone_inside(site, bytes)? { self.threads().to_vec() } else { vec![] };
        for tid in threads {
            let registers = self.registers(tid)?;
            let again = made_again(&registers).filter(|again| inside(again.rip));
            if let Some(going) = again.or_else(|| inside(registers.rip).then_some(registers)) {
                moves.push((tid, Registers { rip: to(tid, going.rip)?, ..going }));
            }
        }
        let mut returns = vec![];
        // (Nobody comes back into the middle of a jump that is taken out: what looks so is a frame of long ago.)
        let contexts = if moved.is_empty() { vec![] } else { self.saved_contexts()? };
        for context in contexts.into_iter().filter(|context| inside(context.rip)) {
            returns.push(SavedContext { rip: to(self.pid(), context.rip)?, ..context });
        }
        returns.iter().try_for_each(|context| self.set_context(context))?;
        moves.iter().try_for_each(|(tid, registers)| self.set_registers(*tid, registers))
    }

    /// Whether a thread is in these bytes, but not at the first one, or goes back there.
    fn is_anyone_inside(&self, site: u64, bytes: u64) -> Result<bool, Error> {
        let mut known = self.places.borrow_mut();
        let places = match &mut *known {
            Some(places) => places,
            none => {
                let mut places = vec![];
                for tid in self.threads() {
                    let registers = self.registers(*tid)?;
                    places.extend(
                        [Some(registers), made_again(&registers)].into_iter().flatten().map(|going| going.rip),
                    );
                }
                places.sort_unstable();
                none.insert(places)
            }
        };
        let behind = places.partition_point(|place| *place <= site);
        Ok(places.get(behind).is_some_and(|place| *place < site + bytes))
    }

    /// Puts `original` back where `written` stands. The kernel's uprobes and debuggers write a breakpoint over our first byte, and
    /// the kernel later puts the file's byte there (kernel/events/uprobes.c:set_orig_insn): so each byte is judged by itself. A
    /// breakpoint that is not ours stays. The results are those of the sites, in order.
    ///
    /// # Errors
    /// Of a site: [`Error::BytesDiffer`] if some byte is nobody's that we know; then nothing was written there.
    pub fn restore_sites(&mut self, sites: &[SiteRestoration<'_>]) -> Vec<Result<(), Error>> {
        let mut results = vec![];
        let is_together = |a: &SiteRestoration<'_>, b: &SiteRestoration<'_>| {
            a.site < b.site && b.site / TOGETHER_BYTES == a.site / TOGETHER_BYTES
        };
        for together in sites.chunk_by(is_together) {
            let restored = self.restore_together(together);
            results.extend(restored);
        }
        results
    }

    fn restore_together(&mut self, sites: &[SiteRestoration<'_>]) -> Vec<Result<(), Error>> {
        let Some(first) = sites.first() else { return vec![] };
        // (A process may have forged where they are: the last one's end may be no address.)
        let room = sites.iter().map(|one| (one.site - first.site) as usize + one.written.len()).max().unwrap_or(0);
        let mut piece = Piece { start: first.site, bytes: vec![0; room], changed: vec![] };
        let one_by_one = |stopped: &mut Stopped| {
            sites.iter().flat_map(|one| stopped.restore_together(std::slice::from_ref(one))).collect()
        };
        match self.read(piece.start, &mut piece.bytes) {
            Ok(()) => {}
            Err(error) if sites.len() == 1 => return vec![Err(error)],
            Err(_) => return one_by_one(self),
        }
        let mut results = vec![];
        for SiteRestoration { site, written, original } in sites.iter().copied() {
            let found = piece.at(site, written.len()).to_vec();
            results.push(match restored(&found, written, original) {
                Some(bytes) if bytes == found => Ok(()),
                Some(bytes) => {
                    piece.change(site, &bytes);
                    Ok(())
                }
                None => Err(Error::BytesDiffer { address: site, expected: written.to_vec(), found }),
            });
        }
        match piece.write(self) {
            Ok(()) => results,
            Err(error) if sites.len() == 1 => vec![Err(error)],
            // (What is restored by now stays as it is.)
            Err(_) => one_by_one(self),
        }
    }
}

/// What `found` is to become so that nothing is left there of `written`; `None`: somebody has written other code there.
fn restored(found: &[u8], written: &[u8], original: &[u8]) -> Option<Vec<u8>> {
    let of = |((found, written), original): ((&u8, &u8), &u8)| match *found {
        byte if byte == *written => Some(*original),
        byte if byte == *original || byte == INT3 => Some(byte),
        _ => None,
    };
    found.iter().zip(written).zip(original).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::restored;

    const ORIGINAL: [u8; 5] = [0x48, 0x83, 0xec, 0x08, 0x90];
    const WRITTEN: [u8; 5] = [0xe9, 1, 2, 3, 4];

    #[test]
    fn our_bytes_are_put_back_around_a_breakpoint_and_behind_one_that_was_removed() {
        let case = |found: [u8; 5]| restored(&found, &WRITTEN, &ORIGINAL);
        assert_eq!(case(WRITTEN), Some(ORIGINAL.to_vec()));
        assert_eq!(case(ORIGINAL), Some(ORIGINAL.to_vec()));
        assert_eq!(case([0xcc, 1, 2, 3, 4]), Some(vec![0xcc, 0x83, 0xec, 0x08, 0x90]), "over ours");
        assert_eq!(case([0x48, 1, 2, 3, 4]), Some(ORIGINAL.to_vec()), "removed over ours");
        assert_eq!(case([0xe9, 1, 2, 0x08, 0x90]), Some(ORIGINAL.to_vec()), "half of it was written");
        assert_eq!(case([0xe9, 9, 9, 9, 9]), None, "another jump");
    }
}
