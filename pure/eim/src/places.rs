//! Paths of a specification to places in the program's objects.
//!
//! What is granted of an object is a node: its parts, by where they begin. A part that is a pointer leads to a node of
//! its own, so that two paths to objects of one type may grant different parts of them.

mod unions;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use ring3_verifier::host::Discriminator;

use crate::model::{Fact, Known, Path, Root, Specification, Step};
use crate::signature::Signature;
use crate::source::{Error, Span, suggest};
use crate::types::{BYTES_MAX, Declared, Shape, Types};
use unions::{Unions, memory};

/// A part of an object.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) end: u32,
    /// Within the object.
    pub(crate) name: String,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) what: What,
    /// What has to be checked before.
    pub(crate) when: Vec<Discriminator>,
    pub(crate) span: Span,
}

/// What a part is.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Number,
    Pointer(Pointer),
}

/// A pointer in an object.
#[derive(Clone, Debug)]
pub(crate) struct Pointer {
    /// The type behind it, as the program writes it.
    pub(crate) to: u32,
    /// Nodes of what is behind it.
    pub(crate) nodes: Vec<usize>,
    pub(crate) nonnull: bool,
    pub(crate) length: Option<Length>,
    /// What is behind it may be written, if it has a length.
    pub(crate) write: bool,
}

/// To how many elements a pointer leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// A field of the same structure says.
    Field {
        from_pointer: i64,
        bytes: u32,
    },
    Count(u32),
}

/// Parts by where they begin.
pub(crate) type Node = BTreeMap<u32, Vec<Leaf>>;

/// A permission, for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// `read`, `write` or `call`.
    pub verb: &'static str,
    /// What: a path or a function.
    pub what: String,
    /// Type and place.
    pub detail: String,
}

/// What is around a place, and how many bytes from there.
pub(crate) type Key = (String, u32);

/// A place that a path leads to.
#[derive(Clone, Debug)]
struct Place {
    /// The object's node, if the path grants anything.
    node: usize,
    /// What the object is, for messages.
    object: String,
    /// Ways to name the place: what is around it, and how many bytes from there. The first is the path itself. Members of unions on
    /// the way are named, too: `|TYPE.NAME|`.
    keys: Vec<Key>,
    at: u32,
    of: u32,
    /// `Some` for a parameter whose type is known by a prototype only.
    declared: Option<Declared>,
    name: String,
    shown: String,
    /// It is a member of a union itself.
    is_member: bool,
    /// It is in a union of which nothing says when it has this member.
    in_union: bool,
    shares_pointer: bool,
    /// Another member of the innermost union is a pointer, or holds one.
    beside_pointer: bool,
    /// What says that the unions around it have this member.
    when: Vec<Discriminator>,
    is_const: bool,
    /// Place and width of a bit field, in bits.
    bits: Option<(u32, u32)>,
}

/// The parameters of the entry of a class.
pub(crate) struct Arguments<'a> {
    pub(crate) entry: &'a str,
    pub(crate) signature: &'a Signature,
    /// Name, offset from r1 and type, the result first where there is one.
    pub(crate) slots: Vec<(String, u32, Declared)>,
}

/// Nodes, and what is known of pointers.
pub(crate) struct Places<'a, 't> {
    types: &'a Types<'t>,
    arguments: Option<&'a Arguments<'a>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_type: HashMap<u32, usize>,
    /// Symbol, node and type.
    pub(crate) globals: BTreeMap<String, (usize, u32)>,
    pub(crate) context: usize,
    nonnull: HashSet<Key>,
    lengths: HashMap<Key, Length>,
    /// Fields that hold lengths.
    counted: Vec<(String, Range<u32>)>,
    pub(crate) unions: Unions,
    pub(crate) permissions: Vec<Permission>,
}

/// Parts of one class at most.
const PARTS_MAX: usize = 1 << 16;

impl<'a, 't> Places<'a, 't> {
    pub(crate) fn new(types: &'a Types<'t>, arguments: Option<&'a Arguments<'a>>) -> Places<'a, 't> {
        Places {
            types,
            arguments,
            nodes: vec![Node::new()],
            by_type: HashMap::new(),
            globals: BTreeMap::new(),
            context: 0,
            nonnull: HashSet::new(),
            lengths: HashMap::new(),
            counted: vec![],
            unions: Unions::default(),
            permissions: vec![],
        }
    }

    /// Learns what is known of unions and pointers, from all states.
    pub(crate) fn learn(&mut self, specification: &Specification, errors: &mut Vec<Error>) {
        let facts = || specification.states.iter().flat_map(|state| &state.facts);
        // (Pointers may be in unions.)
        let is_of_union = |fact: &&Fact| matches!(fact.known, Known::When(..));
        for fact in facts().filter(is_of_union).chain(facts().filter(|fact| !is_of_union(fact))) {
            let entry = self.arguments.map(|arguments| arguments.entry);
            if matches!(&fact.path.root, Root::Parameter { entry: of, .. } if Some(of.text.as_str()) != entry) {
                continue;
            }
            if let Err(error) = self.learn_one(&fact.path, &fact.known) {
                errors.push(error);
            }
        }
    }

    fn learn_one(&mut self, path: &Path, known: &Known) -> Result<(), Error> {
        if let Known::When(field, values) = known {
            return self.learn_member(path, field, values);
        }
        let places = self.walk(path, false)?;
        let lengths = match known {
            Known::Length(length) => self.beside(path, places.len(), length)?,
            _ => vec![],
        };
        for (index, place) in places.into_iter().enumerate() {
            let Shape::Pointer(_) = self.shape(&place) else {
                let message = format!("`{}` is no pointer, but `{}`", place.shown, self.type_name(&place));
                return Err(Error::at(&path.span, format!("{message}; only of pointers such a thing can be said")));
            };
            let key = place.keys[0].clone();
            match known {
                Known::NonNull => {
                    self.nonnull.insert(key);
                }
                Known::Count(count) => {
                    self.lengths.insert(key, Length::Count(*count));
                }
                Known::Length(length) if path.steps.len() == length.steps.len() => {
                    self.learn_length(&place, &lengths[index], length)?;
                }
                Known::Length(length) => return Err(not_beside(length)),
                Known::When(..) => {}
            }
        }
        Ok(())
    }

    /// Where another path leads of each of so many places: elements of arrays have fields of their own.
    fn beside(&mut self, path: &Path, count: usize, other: &Path) -> Result<Vec<Place>, Error> {
        let places = self.walk(other, false)?;
        let arrays = |path: &Path| path.steps.iter().filter(|step| matches!(step, Step::Elements(_))).count();
        if places.len() != count || arrays(path) != arrays(other) {
            let message = format!(
                "`{}` and `{}` are not as many; write `[*]` at the same places of both",
                path.span.text(),
                other.span.text()
            );
            return Err(Error::at(&other.span, message));
        }
        Ok(places)
    }

    fn learn_length(&mut self, pointer: &Place, place: &Place, length: &Path) -> Result<(), Error> {
        let key = &pointer.keys[0];
        let (around, at) = &place.keys[0];
        if *around != key.0 || place.when != pointer.when {
            return Err(not_beside(length));
        }
        match self.shape(place) {
            Shape::Number { bytes: bytes @ (4 | 8), float: false, .. } if place.bits.is_none() => {
                let from_pointer = i64::from(*at) - i64::from(key.1);
                // By whatever way the field is reached.
                self.counted.extend(place.keys.iter().map(|(around, at)| (memory(around), *at..at + bytes)));
                self.lengths.insert(key.clone(), Length::Field { from_pointer, bytes });
                Ok(())
            }
            _ => {
                let of = self.type_name(place);
                let message = format!("a length is an integer of 4 or 8 bytes, and `{}` is `{of}`", place.shown);
                Err(Error::at(&length.span, format!("{message}; name another field, or a number of elements")))
            }
        }
    }

    /// Says that an argument is never null.
    pub(crate) fn argument_is_never_null(&mut self, entry: &str, at: u32) {
        self.nonnull.insert((format!("entry:{entry}@"), at));
    }

    /// An argument of which nothing is granted: objects behind it have what is granted of their type.
    pub(crate) fn argument(&self, entry: &str, at: u32, to: u32) -> Pointer {
        let key = (format!("entry:{entry}@"), at);
        // (Its length is of no use: nothing behind it may be read.)
        Pointer { to, nodes: vec![], nonnull: self.nonnull.contains(&key), length: None, write: false }
    }

    /// Grants what a path leads to.
    pub(crate) fn grant(&mut self, path: &Path, write: bool) -> Result<(), Error> {
        for place in self.walk(path, true)? {
            self.add(place, write, &path.span, 0)?;
        }
        Ok(())
    }

    fn shape(&self, place: &Place) -> Shape {
        place.declared.map_or_else(|| self.types.shape(place.of), |declared| self.types.declared_shape(declared))
    }

    fn type_name(&self, place: &Place) -> String {
        place.declared.map_or_else(|| self.types.name(place.of), |declared| self.types.declared_name(declared))
    }

    fn node(&mut self) -> usize {
        self.nodes.push(Node::new());
        self.nodes.len() - 1
    }

    /// The key of a structure by its type.
    fn type_key(&self, of: u32) -> Option<(String, u32)> {
        match self.types.shape(of) {
            Shape::Structure { .. } => Some((format!("type:{}@", self.types.plain(of)), 0)),
            _ => None,
        }
    }

    fn root(&mut self, path: &Path, grants: bool) -> Result<Place, Error> {
        let mut place = Place {
            node: 0,
            object: String::new(),
            keys: vec![],
            at: 0,
            of: 0,
            declared: None,
            name: String::new(),
            shown: String::new(),
            is_member: false,
            in_union: false,
            shares_pointer: false,
            beside_pointer: false,
            when: vec![],
            is_const: false,
            bits: None,
        };
        match &path.root {
            Root::Type(name) => {
                place.of = self.types.named(name)?;
                place.in_union = false;
                place.shown.clone_from(&name.text);
                place.object = self.types.object_name(place.of);
                if self.types.btf.name_of(place.of).is_empty() {
                    place.object.clone_from(&name.text);
                }
                if grants {
                    let fresh = self.node();
                    place.node = *self.by_type.entry(place.of).or_insert(fresh);
                }
                place.keys.extend(self.type_key(place.of));
            }
            Root::Global(name) => {
                let of = self.types.variable(&name.text).ok_or_else(|| {
                    let advice = suggest(
                        &name.text,
                        self.types.variables(),
                        "correct the name (BTF of pahole has no variables: use DWARF, `gcc -g`)",
                    );
                    Error::at(&name.span, format!("no variable `{}` in the program's types; {advice}", name.text))
                })?;
                if self.types.bytes(of) > BYTES_MAX {
                    return Err(Error::at(&name.span, format!("`{}` is too large to be granted", name.text)));
                }
                place.of = of;
                place.is_const = self.types.is_const(of);
                place.shown = format!("global {}", name.text);
                place.object = format!("variable {}", name.text);
                if grants {
                    let fresh = self.node();
                    place.node = self.globals.entry(name.text.clone()).or_insert((fresh, of)).0;
                }
                place.keys.push((format!("global:{}@", name.text), 0));
                place.keys.extend(self.type_key(of));
            }
            Root::Parameter { name, entry } => {
                let arguments = self.arguments.filter(|arguments| arguments.entry == entry.text);
                let arguments = arguments.ok_or_else(|| {
                    let message = format!("the class has another entry than `{}`; leave this state out", entry.text);
                    Error::at(&entry.span, message)
                })?;
                let slot = arguments.slots.iter().find(|(known, _, _)| *known == name.text);
                let Some((_, at, declared)) = slot else {
                    return match arguments.signature.parameter(name, &entry.text) {
                        Ok(_) => Err(Error::at(&name.span, "only the first six parameters are in registers")),
                        Err(_) if name.text == "return" => {
                            Err(Error::at(&name.span, "there is a result only at the function's return: `at return`"))
                        }
                        Err(error) => Err(error),
                    };
                };
                (place.at, place.declared) = (*at, Some(*declared));
                if let Declared::Type(of) = declared {
                    place.of = *of;
                }
                place.name.clone_from(&name.text);
                place.shown.clone_from(&name.text);
                place.object = format!("the arguments of entry {}", entry.text);
                place.node = self.context;
                place.keys.push((format!("entry:{}@", entry.text), *at));
            }
        }
        Ok(place)
    }

    fn walk(&mut self, path: &Path, grants: bool) -> Result<Vec<Place>, Error> {
        let mut places = vec![self.root(path, grants)?];
        for (index, step) in path.steps.iter().enumerate() {
            let is_last = index + 1 == path.steps.len();
            let mut next = vec![];
            for place in places {
                match step {
                    Step::Member(name) => next.push(self.member(place, name, ".")?),
                    Step::Behind(name) => {
                        let behind = self.behind(place, &name.span, grants)?;
                        next.push(self.member(behind, name, "->")?);
                    }
                    Step::Element(number, span) => next.push(self.element(place, *number, span)?),
                    Step::Elements(span) => match self.shape(&place) {
                        Shape::Array { count, .. } => {
                            for number in 0..count {
                                next.push(self.element(place.clone(), number, span)?);
                                if next.len() > PARTS_MAX {
                                    return Err(Error::at(span, "the array is too large; name its elements"));
                                }
                            }
                        }
                        Shape::Pointer(_) if is_last && self.length(&place).is_some() => {
                            next.push(Place { shown: format!("{}[*]", place.shown), ..place });
                        }
                        Shape::Pointer(_) => {
                            let message = format!(
                                "how many elements are behind `{}` is not known; add `length {} = ...`",
                                place.shown, place.shown
                            );
                            return Err(Error::at(span, message));
                        }
                        _ => return Err(self.no_array(&place, span)),
                    },
                }
            }
            places = next;
        }
        Ok(places)
    }

    fn no_array(&self, place: &Place, span: &Span) -> Error {
        let message = format!("`{}` is `{}`, no array; remove `[...]`", place.shown, self.type_name(place));
        Error::at(span, message)
    }

    fn element(&mut self, mut place: Place, number: u32, span: &Span) -> Result<Place, Error> {
        let (of, count) = match self.shape(&place) {
            Shape::Array { of, count } => (of, count),
            Shape::Pointer(_) => {
                let message =
                    "single elements behind a pointer cannot be granted; write `[*]`, and `length` for how many";
                return Err(Error::at(span, message));
            }
            _ => return Err(self.no_array(&place, span)),
        };
        if number >= count {
            let message = format!("`{}` has {count} elements, the first is 0; correct the number", place.shown);
            return Err(Error::at(span, message));
        }
        let by = self.types.bytes(of) * number;
        place.is_member = false;
        place.at += by;
        place.keys.iter_mut().for_each(|(_, at)| *at += by);
        place.keys.extend(self.type_key(of));
        (place.of, place.declared) = (of, None);
        place.name += &format!("[{number}]");
        place.shown += &format!("[{number}]");
        Ok(place)
    }

    fn member(&mut self, mut place: Place, name: &crate::model::Name, sign: &str) -> Result<Place, Error> {
        let shape = self.shape(&place);
        let Shape::Structure { .. } = shape else {
            let advice = match shape {
                Shape::Pointer(_) => format!("is a pointer; write `->{}`", name.text),
                Shape::Array { .. } => "is an array; write `[NUMBER]` or `[*]` first".to_owned(),
                Shape::Opaque => "is only declared in these types, not defined; take types that define it".to_owned(),
                _ => format!("is `{}`, which has no fields", self.type_name(&place)),
            };
            return Err(Error::at(&name.span, format!("`{}` {advice}", place.shown)));
        };
        let found = self.types.member(place.of, &name.text).ok_or_else(|| {
            let names = self.types.member_names(place.of);
            let few: Vec<&str> = names.iter().take(8).copied().collect();
            let more = if names.len() > few.len() { ", ..." } else { "" };
            let advice =
                suggest(&name.text, names.iter().copied(), &format!("its fields are {}{more}", few.join(", ")));
            let of = self.types.name(place.of);
            Error::at(&name.span, format!("`{of}` has no field `{}`; {advice}", name.text))
        })?;
        let member = found.member;
        let end = member.at_bits / 8 + if member.bits == 0 { self.types.bytes(member.of).min(BYTES_MAX) } else { 0 };
        if end > self.types.bytes(place.of) {
            let message =
                format!("the field `{}` is outside of its structure; the program's types are damaged", name.text);
            return Err(Error::at(&name.span, message));
        }
        if found.in_union {
            let choice = format!("|{}.{}|", self.types.plain(place.of), name.text);
            place.keys.iter_mut().for_each(|(around, _)| around.push_str(&choice));
        }
        place.is_member = found.in_union;
        if member.bits == 0 {
            let by = member.at_bits / 8;
            place.at += by;
            place.keys.iter_mut().for_each(|(_, at)| *at += by);
            self.enter_union(&mut place, found);
            place.keys.extend(self.type_key(member.of));
        } else {
            self.enter_union(&mut place, found);
            place.bits = Some((place.at * 8 + member.at_bits, member.bits));
        }
        place.is_const |= self.types.is_const(member.of);
        (place.of, place.declared) = (member.of, None);
        let dot = if place.name.is_empty() { "" } else { "." };
        place.name += &format!("{dot}{}", name.text);
        place.shown += &format!("{sign}{}", name.text);
        Ok(place)
    }

    /// What is behind a pointer, which may be read then.
    fn behind(&mut self, place: Place, span: &Span, grants: bool) -> Result<Place, Error> {
        let Shape::Pointer(to) = self.shape(&place) else {
            let advice = match self.shape(&place) {
                Shape::Structure { .. } => "is a structure, no pointer; write `.`".to_owned(),
                _ => format!("is `{}`, no pointer", self.type_name(&place)),
            };
            return Err(Error::at(span, format!("`{}` {advice}", place.shown)));
        };
        if self.length(&place).is_some() {
            let message = format!("`{}` leads to elements (`length`), not to one structure", place.shown);
            return Err(Error::at(span, message));
        }
        let mut keys: Vec<Key> = place.keys.iter().map(|(around, at)| (format!("{around}{at}->"), 0)).collect();
        keys.extend(self.type_key(to));
        let node = if grants { self.add_pointer(&place, to, span)? } else { 0 };
        Ok(Place {
            node,
            object: self.types.object_name(to),
            keys,
            at: 0,
            of: to,
            declared: None,
            name: String::new(),
            shown: place.shown,
            is_member: false,
            in_union: false,
            shares_pointer: false,
            beside_pointer: false,
            when: vec![],
            is_const: self.types.is_const(to),
            bits: None,
        })
    }

    fn length(&self, place: &Place) -> Option<Length> {
        place.keys.iter().find_map(|key| self.lengths.get(key)).copied()
    }

    /// Grants a pointer; the node of what is behind it.
    fn add_pointer(&mut self, place: &Place, to: u32, span: &Span) -> Result<usize, Error> {
        if place.in_union {
            let message = format!(
                "`{shown}` is a pointer in a union: whether it is one at run time is not known; say when it is one (`member \
                 {shown} when FIELD = NUMBER`), or grant a function of the program that returns the pointer",
                shown = place.shown
            );
            return Err(Error::at(span, message));
        }
        let nonnull = place.keys.iter().any(|key| self.nonnull.contains(key));
        let length = self.length(place);
        let parts = self.nodes[place.node].entry(place.at).or_default();
        for leaf in parts.iter() {
            if let What::Pointer(pointer) = &leaf.what
                && leaf.when == place.when
                && let Some(node) = pointer.nodes.first()
            {
                return Ok(*node);
            }
        }
        let node = self.node();
        let pointer = Pointer { to, nodes: vec![node], nonnull, length, write: false };
        let what = What::Pointer(pointer);
        let (name, when) = (place.name.clone(), place.when.clone());
        let leaf = Leaf { end: place.at + 8, name, read: true, write: false, what, when, span: span.clone() };
        self.nodes[place.node].entry(place.at).or_default().push(leaf);
        let shown = place.shown.clone();
        let null = if nonnull { "never null" } else { "may be null" };
        let detail = match length {
            None => format!("{} *, {null}, {}", self.types.name(to).trim_end(), self.shown_place(place, 8)),
            Some(Length::Field { .. }) => {
                format!(
                    "{} *, as many elements as its length says, {}",
                    self.types.name(to),
                    self.shown_place(place, 8)
                )
            }
            Some(Length::Count(count)) => {
                format!("{} *, {count} elements, {null}, {}", self.types.name(to), self.shown_place(place, 8))
            }
        };
        let detail = detail + &unions::in_words(&place.when);
        self.permissions.push(Permission { verb: "read", what: shown, detail });
        Ok(node)
    }

    fn shown_place(&self, place: &Place, bytes: u32) -> String {
        let at = place.bits.map_or(place.at, |(at, _)| at / 8);
        format!("{bytes} bytes at offset {at} of {}", place.object)
    }

    fn add(&mut self, place: Place, write: bool, span: &Span, depth: u32) -> Result<(), Error> {
        if self.permissions.len() > PARTS_MAX {
            return Err(Error::at(span, format!("more than {PARTS_MAX} fields are granted; name fewer")));
        }
        match self.shape(&place) {
            Shape::Number { bytes, .. } => self.add_number(&place, bytes, write, span),
            Shape::Pointer(to) => self.add_pointer_or_elements(&place, to, write, span),
            Shape::Array { count: 0, .. } => {
                let message = format!("`{}` has no fixed size, so nothing of it can be granted", place.shown);
                Err(Error::at(span, message))
            }
            Shape::Array { .. } => self.add_array(place, write, span, depth),
            Shape::Structure { is_union: true, .. } => {
                let message = format!("`{}` is a union; name one of its members", place.shown);
                Err(Error::at(span, message))
            }
            Shape::Structure { .. } => self.add_structure(place, write, span, depth),
            Shape::Void | Shape::Opaque => {
                let message = format!("`{}` is `{}`, which has no size", place.shown, self.type_name(&place));
                Err(Error::at(span, format!("{message}; take types that define it")))
            }
        }
    }

    fn add_array(&mut self, place: Place, write: bool, span: &Span, depth: u32) -> Result<(), Error> {
        let elements = self.types.btf.elements(place.of);
        if let Shape::Number { .. } = self.types.shape(elements.of) {
            return self.add_number(&place, self.types.bytes(place.of), write, span);
        }
        let Shape::Array { count, .. } = self.shape(&place) else { return Ok(()) };
        if depth > 32 || count as usize > PARTS_MAX {
            return Err(Error::at(span, "the array is too large; name its elements"));
        }
        for number in 0..count {
            let element = self.element(place.clone(), number, span)?;
            self.add(element, write, span, depth + 1)?;
        }
        Ok(())
    }

    fn add_structure(&mut self, place: Place, write: bool, span: &Span, depth: u32) -> Result<(), Error> {
        if write && self.types.holds_pointer(place.of) {
            let message = format!("`{}` holds pointers, which cannot be written; name its numbers", place.shown);
            return Err(Error::at(span, message));
        }
        if depth > 32 {
            return Err(Error::at(span, "too many structures in structures; name fields"));
        }
        let members = self.types.btf.members(self.types.plain(place.of));
        let of = self.types.name(place.of);
        for (name, unnamed) in members.map(|member| (member.name, member.of)).collect::<Vec<_>>() {
            let name = String::from_utf8_lossy(name).into_owned();
            let inner = match name.is_empty() {
                // (A bit field without a name is padding.)
                true if matches!(self.types.shape(unnamed), Shape::Number { .. }) => continue,
                true => return Err(Error::at(span, format!("`{of}` holds parts without names; name its fields"))),
                false => self.member(place.clone(), &crate::model::Name { text: name, span: span.clone() }, ".")?,
            };
            self.add(inner, write, span, depth + 1)?;
        }
        Ok(())
    }

    fn add_pointer_or_elements(&mut self, place: &Place, to: u32, write: bool, span: &Span) -> Result<(), Error> {
        let elements = place.shown.ends_with("[*]");
        if write && !elements {
            let advice = match self.length(place) {
                Some(_) => format!("; `write {}[*]` is for what is behind it", place.shown),
                None => String::new(),
            };
            let message = format!("`{}` is a pointer, and only numbers can be written{advice}", place.shown);
            return Err(Error::at(span, message));
        }
        if write && self.types.is_const(to) {
            let message = format!("`{}` is const in the program; it can only be read", place.shown);
            return Err(Error::at(span, message));
        }
        if self.length(place).is_some() && self.types.holds_pointer(to) {
            let message =
                format!("the elements behind `{}` hold pointers, which cannot be read as bytes", place.shown);
            return Err(Error::at(span, message));
        }
        let pointer = Place { shown: place.shown.trim_end_matches("[*]").to_owned(), ..place.clone() };
        self.add_pointer(&pointer, to, span)?;
        if !write {
            return Ok(());
        }
        for leaf in self.nodes[place.node].entry(place.at).or_default() {
            if let What::Pointer(pointer) = &mut leaf.what
                && leaf.when == place.when
            {
                pointer.write = true;
            }
        }
        let detail = format!("elements of {}", self.types.name(to));
        self.permissions.push(Permission { verb: "write", what: place.shown.clone(), detail });
        Ok(())
    }

    fn add_number(&mut self, place: &Place, bytes: u32, write: bool, span: &Span) -> Result<(), Error> {
        let at = match place.bits {
            None => place.at..place.at + bytes,
            // (The header of a class lets compilers read no more than the bytes that hold it.)
            Some((at, bits)) => at / 8..(at + bits).div_ceil(8),
        };
        if write {
            self.check_write(place, &at, span)?;
        }
        let (read, detail) = (!write, self.shown_place(place, at.len() as u32));
        let bits = place.bits.map(|(_, bits)| format!(", a field of {bits} bits")).unwrap_or_default();
        let detail = format!("{}{bits}, {detail}{}", self.type_name(place), unions::in_words(&place.when));
        let (name, when) = (place.name.clone(), place.when.clone());
        let leaf = Leaf { end: at.end, name, read, write, what: What::Number, when, span: span.clone() };
        self.nodes[place.node].entry(at.start).or_default().push(leaf);
        let verb = if write { "write" } else { "read" };
        self.permissions.push(Permission { verb, what: place.shown.clone(), detail });
        Ok(())
    }

    fn check_write(&self, place: &Place, at: &Range<u32>, span: &Span) -> Result<(), Error> {
        let shown = &place.shown;
        let message = if place.node == self.context {
            format!("`{shown}` is an argument, and those cannot be written; grant a field")
        } else if place.bits.is_some() {
            format!("`{shown}` is a bit field, which cannot be written: a store would change its neighbours, too")
        } else if place.is_const {
            format!("`{shown}` is const in the program; it can only be read")
        } else if place.shares_pointer {
            format!(
                "`{shown}` shares its bytes with a pointer (a union), so it cannot be written; it can only be read, unless \
                 `member {shown} when FIELD = NUMBER` says when it is no pointer"
            )
        } else if is_over(&self.counted, place, at.len() as u32) {
            format!("`{shown}` is the length of what a pointer leads to (`length`), so it can only be read")
        } else if is_over(&self.unions.decisive, place, at.len() as u32) {
            format!("`{shown}` says whether a union has a pointer (`member`), so it can only be read")
        } else {
            return Ok(());
        };
        Err(Error::at(span, message))
    }
}

/// Whether a place is over one of some fields.
fn is_over(fields: &[(String, Range<u32>)], place: &Place, bytes: u32) -> bool {
    place.keys.iter().any(|(around, start)| {
        let (around, own) = (memory(around), *start..*start + bytes);
        fields.iter().any(|(known, range)| *known == around && range.start < own.end && own.start < range.end)
    })
}

fn not_beside(length: &Path) -> Error {
    let message = "the length has to be in the structure that holds the pointer; name a field of that one";
    Error::at(&length.span, message)
}
