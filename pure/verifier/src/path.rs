//! The paths that were explored, and what turned out to matter on them.
//!
//! A path is a chain of [`Node`]s; where paths fork they share the nodes before. A node may end in a [`Point`]: the state there,
//! kept so that a later path with a state that allows no more can stop. Two states may differ in what nothing depends on. That is
//! not known when a state is seen first, so it is found out backwards. When a register or slot is read, it is marked as read in
//! the points before, up to where it was written. When a number decides something (a branch, an address, a size), its moves are
//! followed back to its origin, and it is marked as precise on the way. When no path is left behind a point, its marks are
//! complete.
//!
//! A path that arrives at a point of its own, with a state that allows no more than that, stops there: it needs what the point
//! turns out to need. Such a path is kept as a [`Return`] until the point is complete. Then the marks are propagated until
//! nothing changes; until then all points on the path stay incomplete. Mirrors kernel/bpf/verifier.c:mark_reg_read and
//! mark_chain_precision, which decodes the instructions backwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::CALL_FRAMES_MAX;
use crate::compare::same_calls;
use crate::state::State;

/// A register or a stack slot of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    frame: u8,
    number: u8,
}

const SLOTS_FROM: u8 = 11;
const ARGUMENTS: u128 = 0b11_1110;

impl Place {
    pub(crate) const fn register(frame: u8, register: u8) -> Place {
        Place { frame, number: register }
    }

    pub(crate) const fn slot_at(frame: u8, slot: usize) -> Place {
        Place { frame, number: SLOTS_FROM + slot as u8 }
    }

    pub(crate) const fn frame(self) -> usize {
        self.frame as usize
    }

    /// The register's number.
    pub(crate) const fn number(self) -> usize {
        self.number as usize
    }

    pub(crate) const fn slot(self) -> Option<usize> {
        if self.number < SLOTS_FROM { None } else { Some((self.number - SLOTS_FROM) as usize) }
    }
}

/// One step of a path.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    /// The place got a value that depends on these.
    Set(Place, [Option<Place>; 2]),
    /// Knowledge of one of these became knowledge of all.
    Link(Box<Places>),
    /// A function was called: this frame is new, its r1 to r5 are the caller's.
    Enter(u8),
    /// The function returned: its r0 is the caller's.
    Leave(u8),
}

/// A set of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places([u128; CALL_FRAMES_MAX]);

impl Places {
    pub(crate) fn insert(&mut self, place: Place) {
        self.0[place.frame()] |= 1 << place.number;
    }

    fn remove(&mut self, place: Place) {
        self.0[place.frame()] &= !(1 << place.number);
    }

    pub(crate) fn contains(&self, place: Place) -> bool {
        self.0[place.frame()] & 1 << place.number != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|frame| *frame == 0)
    }

    fn meets(&self, other: &Places) -> bool {
        self.0.iter().zip(other.0).any(|(own, other)| own & other != 0)
    }

    fn subtract(&mut self, less: &Places) {
        for (own, less) in self.0.iter_mut().zip(less.0) {
            *own &= !less;
        }
    }

    fn insert_frame(&mut self, frame: u8) {
        self.0[usize::from(frame)] = u128::MAX;
    }

    /// Adds `more`; what of it was new.
    fn absorb(&mut self, more: &Places) -> Places {
        let mut fresh = Places::default();
        for ((own, more), fresh) in self.0.iter_mut().zip(more.0).zip(&mut fresh.0) {
            *fresh = more & !*own;
            *own |= more;
        }
        fresh
    }

    /// From the places that matter behind these moves to those that matter before them.
    fn follow_back(&mut self, moves: &[Move]) {
        for step in moves.iter().rev() {
            match step {
                Move::Set(to, from) => {
                    if self.contains(*to) {
                        self.remove(*to);
                        from.iter().flatten().for_each(|place| self.insert(*place));
                    }
                }
                Move::Link(places) => {
                    if self.meets(places) {
                        self.absorb(places);
                    }
                }
                Move::Enter(frame) => {
                    let arguments = self.0[usize::from(*frame)] & ARGUMENTS;
                    self.0[usize::from(*frame)] = 0;
                    self.0[usize::from(*frame) - 1] |= arguments;
                }
                Move::Leave(frame) => {
                    let caller = &mut self.0[usize::from(*frame) - 1];
                    let result = *caller & 1;
                    *caller &= !(ARGUMENTS | 1);
                    self.0[usize::from(*frame)] |= result;
                }
            }
            if self.is_empty() {
                return;
            }
        }
    }
}

/// What later paths need of a point.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    pub(crate) read: Places,
    pub(crate) precise: Places,
}

/// What was known where a path passed.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) state: State,
    pub(crate) marks: RefCell<Marks>,
    /// No path goes on from here any more.
    ended: Cell<bool>,
    /// And no mark can come any more.
    pub(crate) complete: Cell<bool>,
    /// Paths that stopped here, and that did not.
    pub(crate) hits: Cell<u32>,
    pub(crate) misses: Cell<u32>,
}

impl Point {
    pub(crate) fn new(state: State) -> Point {
        Point {
            state,
            marks: RefCell::default(),
            ended: Cell::new(false),
            complete: Cell::new(false),
            hits: Cell::new(0),
            misses: Cell::new(0),
        }
    }

    /// No path goes on from here any more; marks may still come.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(crate) fn is_precise(&self, place: Place) -> bool {
        self.marks.borrow().precise.contains(place)
    }
}

/// A piece of a path: moves, then perhaps a point.
#[derive(Debug)]
pub(crate) struct Node {
    parent: Option<Rc<Node>>,
    moves: Vec<Move>,
    written: Places,
    point: Option<Rc<Point>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(point) = &self.point {
            point.complete.set(true);
        }
        // A long chain must not be dropped by recursion.
        let mut parent = self.parent.take();
        while let Some(mut node) = parent.and_then(Rc::into_inner) {
            parent = node.parent.take();
        }
    }
}

/// That some path goes on from a point.
#[derive(Debug)]
struct Life {
    parent: Option<Rc<Life>>,
    point: Rc<Point>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.point.ended.set(true);
        let mut parent = self.parent.take();
        while let Some(mut life) = parent.and_then(Rc::into_inner) {
            parent = life.parent.take();
        }
    }
}

/// Counts what the walk does besides looking at instructions: moves followed back, places compared. A program can be
/// such that this is nearly all of the work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work(Rc<Cell<u64>>);

impl Work {
    pub(crate) fn add(&self, steps: usize) {
        self.0.set(self.0.get() + steps as u64);
    }

    pub(crate) fn done(&self) -> u64 {
        self.0.get()
    }
}

/// Where a path is: the nodes behind it, and its moves since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    work: Work,
    last: Option<Rc<Node>>,
    /// What it keeps from being at an end, unless it rests.
    life: Option<Rc<Life>>,
    moves: Vec<Move>,
    written: Places,
    /// Where rounds begin, those that the path came to last behind.
    rounds: Rc<Vec<Rounds>>,
}

/// A place where rounds begin whose number is not known.
#[derive(Clone, Debug)]
struct Rounds {
    at: usize,
    last: Rc<Point>,
    before: Option<Rc<Point>>,
}

impl Path {
    /// A path that begins.
    pub(crate) fn new(work: &Work) -> Path {
        Path { work: work.clone(), ..Path::default() }
    }

    /// Ends the piece, with a point or without one.
    pub(crate) fn close(&mut self, point: Option<Rc<Point>>) {
        if point.is_none() && self.moves.is_empty() && self.written.is_empty() {
            return;
        }
        let written = std::mem::take(&mut self.written);
        let moves = std::mem::take(&mut self.moves);
        if let Some(point) = &point {
            self.life = Some(Rc::new(Life { parent: self.life.take(), point: point.clone() }));
        }
        self.last = Some(Rc::new(Node { parent: self.last.take(), moves, written, point }));
    }

    /// Moves of the piece that is not closed yet.
    pub(crate) fn open_moves(&self) -> usize {
        self.moves.len()
    }

    /// A round begins at this point.
    pub(crate) fn begin_round(&mut self, at: usize, point: &Rc<Point>) {
        /// Loops within loops, and behind each other, whose rounds are known at a time.
        const ROUNDS_MAX: usize = 64;
        self.work.add(self.rounds.len());
        let rounds = Rc::make_mut(&mut self.rounds);
        let known = rounds.iter().position(|rounds| rounds.is_of(at, &point.state));
        let before = known.map(|index| rounds.remove(index).last);
        if rounds.len() == ROUNDS_MAX {
            rounds.remove(0);
        }
        rounds.push(Rounds { at, last: point.clone(), before });
    }

    /// The last point where a round began at an instruction with these calls, and that of the round before it.
    pub(crate) fn rounds(&self, at: usize, state: &State) -> Option<(&Rc<Point>, Option<&Rc<Point>>)> {
        let rounds = self.rounds.iter().find(|rounds| rounds.is_of(at, state))?;
        Some((&rounds.last, rounds.before.as_ref()))
    }

    /// `place` was written as a whole, and the new value depends on `from`.
    pub(crate) fn set(&mut self, place: Place, from: [Option<Place>; 2]) {
        self.written.insert(place);
        self.moves.push(Move::Set(place, from));
    }

    /// Part of `place` was written; what is kept of it depends on `from`.
    pub(crate) fn set_part(&mut self, place: Place, from: Option<Place>) {
        self.moves.push(Move::Set(place, [from, None]));
    }

    /// The numbers in these places were forgotten. Nothing was written: a slot's other bytes, and that there is a number
    /// at all, are what they were before.
    pub(crate) fn forget(&mut self, places: Vec<Place>) {
        places.into_iter().for_each(|place| self.set_part(place, None));
    }

    pub(crate) fn link(&mut self, places: Vec<Place>) {
        self.moves.push(Move::Link(Box::new(places.into_iter().collect())));
    }

    pub(crate) fn enter(&mut self, frame: u8) {
        self.written.insert_frame(frame);
        self.moves.push(Move::Enter(frame));
    }

    /// The place holds nothing any more.
    pub(crate) fn wipe(&mut self, place: Place) {
        self.written.insert(place);
    }

    pub(crate) fn leave(&mut self, frame: u8) {
        (0..6).for_each(|register| self.written.insert(Place::register(frame - 1, register)));
        self.moves.push(Move::Leave(frame));
    }

    /// The place is read here.
    pub(crate) fn read(&self, place: Place) {
        if !self.written.contains(place) {
            self.mark_read([place].into_iter().collect());
        }
    }

    /// These places are read here. Whether that was news to the points before.
    fn mark_read(&self, mut places: Places) -> bool {
        let mut news = false;
        places.subtract(&self.written);
        let mut node = self.last.as_deref();
        while let Some(piece) = node {
            self.work.add(1);
            if let Some(point) = &piece.point {
                places = point.marks.borrow_mut().read.absorb(&places);
                news |= !places.is_empty();
            }
            places.subtract(&piece.written);
            if places.is_empty() {
                return news;
            }
            node = piece.parent.as_deref();
        }
        news
    }

    /// The numbers in these places decide something here. Whether that was news to the points before.
    pub(crate) fn mark_precise(&self, mut places: Places) -> bool {
        let mut news = false;
        self.work.add(self.moves.len());
        places.follow_back(&self.moves);
        let mut node = self.last.as_deref();
        while let Some(piece) = node {
            if places.is_empty() {
                return news;
            }
            if let Some(point) = &piece.point {
                places = point.marks.borrow_mut().precise.absorb(&places);
                news |= !places.is_empty();
            }
            self.work.add(1 + piece.moves.len());
            places.follow_back(&piece.moves);
            node = piece.parent.as_deref();
        }
        news
    }

    /// All of this matters here. Whether that was news to the points before.
    pub(crate) fn need(&self, marks: &Marks) -> bool {
        self.mark_read(marks.read) | self.mark_precise(marks.precise)
    }

    /// This path without being one that goes on.
    fn at_rest(&self) -> Path {
        Path { life: None, rounds: Rc::default(), ..self.clone() }
    }
}

impl Rounds {
    fn is_of(&self, at: usize, state: &State) -> bool {
        self.at == at && same_calls(&self.last.state, state)
    }
}

/// A path that stopped at a point whose marks were not complete.
#[derive(Debug)]
pub(crate) struct Return {
    path: Path,
    to: Rc<Point>,
}

impl Return {
    pub(crate) fn new(path: &Path, to: Rc<Point>) -> Return {
        Return { path: path.at_rest(), to }
    }

    /// No path goes on from where it leads.
    pub(crate) fn has_ended(&self) -> bool {
        self.to.ended.get()
    }

    /// The path needs what the point needs. Whether that was news.
    pub(crate) fn carry(&self) -> bool {
        let marks = *self.to.marks.borrow();
        self.path.need(&marks)
    }
}

impl FromIterator<Place> for Places {
    fn from_iter<T: IntoIterator<Item = Place>>(places: T) -> Places {
        let mut set = Places::default();
        places.into_iter().for_each(|place| set.insert(place));
        set
    }
}
