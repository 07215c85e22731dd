//! What a specification and a policy say, before types are looked at.

use crate::prototype::Prototype;
use crate::source::Span;

/// A name and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub text: String,
    /// Where it stands.
    pub span: Span,
}

/// All that one or several texts declare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Specification {
    /// The program that is extended.
    pub application: Option<Application>,
    /// Files that are to be read, too (`use "FILE"`).
    pub uses: Vec<Name>,
    /// What may be read and written.
    pub states: Vec<State>,
    /// What may be called.
    pub functions: Vec<Function>,
    /// Where extensions run.
    pub entries: Vec<Entry>,
    /// What one extension gets.
    pub classes: Vec<Class>,
}

/// `application "NAME" { ... }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// Its name.
    pub name: Name,
    /// A file that holds its types, relative to the specification.
    pub types: Option<Name>,
}

/// `state NAME { ... }`: what may be read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Its name.
    pub name: Name,
    /// Fields and variables.
    pub accesses: Vec<Access>,
    /// What is known of pointers.
    pub facts: Vec<Fact>,
}

/// One thing that may be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// It is written, not read.
    pub write: bool,
    /// What.
    pub path: Path,
}

/// What is known of a pointer, or of a member of a union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The pointer or the member.
    pub path: Path,
    /// What is known.
    pub known: Known,
}

/// What can be known of a pointer, or of a member of a union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is never null.
    NonNull,
    /// A field of the same structure says to how many elements it leads.
    Length(Path),
    /// To how many elements it leads.
    Count(u32),
    /// The union has this member if a field of the same object has one of these values.
    When(Path, Range),
}

/// Where a path begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// Any object of a type.
    Type(Name),
    /// A variable.
    Global(Name),
    /// A parameter of an entry's function, or its result (`return`).
    Parameter {
        /// The parameter.
        name: Name,
        /// The entry.
        entry: Name,
    },
}

/// A step from an object into it, or behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `.NAME`
    Member(Name),
    /// `->NAME`
    Behind(Name),
    /// `[NUMBER]`
    Element(u32, Span),
    /// `[*]`: all elements; of a pointer with a length: its elements.
    Elements(Span),
}

/// A variable, a parameter or a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where it begins.
    pub root: Root,
    /// How it goes on.
    pub steps: Vec<Step>,
    /// Where it stands.
    pub span: Span,
}

/// `function NAME { ... }`: a function of the program that extensions may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in the model.
    pub name: Name,
    /// Its symbol, if it was given.
    pub symbol: Option<Name>,
    /// Its prototype in C.
    pub prototype: Option<Prototype>,
    /// Ranges of parameters.
    pub requires: Vec<(Name, Range)>,
    /// Parameters that may not be null; `return`: the result never is.
    pub nonnull: Vec<Name>,
    /// Range of the result.
    pub ensures: Option<Range>,
}

/// From the first to the last value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first, none: the least value of the type.
    pub first: Option<i128>,
    /// The last, none: the greatest value of the type.
    pub last: Option<i128>,
    /// Where it stands.
    pub span: Span,
}

/// When an extension runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// Before the function.
    #[default]
    Entry,
    /// When it returns.
    Return,
}

/// `entry NAME { ... }`: a function at which extensions run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the model.
    pub name: Name,
    /// The function's symbol.
    pub function: Name,
    /// Its prototype in C.
    pub prototype: Option<Prototype>,
    /// When extensions run.
    pub at: At,
    /// Where that was said.
    pub at_span: Span,
    /// Parameters that are never null; `return`: the result.
    pub nonnull: Vec<Name>,
    /// What results of extensions mean.
    pub outcomes: Vec<Outcome>,
}

/// `return VALUES = WHAT`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The results; none: all others.
    pub values: Option<Range>,
    /// What they mean.
    pub meaning: Meaning,
    /// The word that says so.
    pub word: Name,
    /// Where it stands.
    pub span: Span,
}

/// What a result of an extension means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// `continue`, at returns `keep`: the function runs, its result stays.
    Continue,
    /// `skip`, at returns `replace`: the extension's result is the function's.
    Verdict,
    /// `skip NUMBER`, at returns `replace NUMBER`: the number is the function's result.
    Constant(i128),
    /// `refused`: the verifier refuses extensions that may return it.
    Refused,
}

/// `class NAME { ... }`: what one kind of extension gets at its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: Name,
    /// Where it runs: of several entries the one that is looked at, see [`Class::apart`].
    pub entry: Name,
    /// All entries that the policy names.
    pub entries: Vec<Name>,
    /// Names of states and functions.
    pub allow: Vec<Name>,
    /// Instructions that one run takes at most.
    pub instructions: Option<u64>,
    /// Bytes of its maps.
    pub memory_bytes: Option<u64>,
    /// How long one run takes at most, nanoseconds.
    pub time_ns: Option<u64>,
    /// Groups of helpers, or names of helpers; none: those of [`crate::limits::GROUPS`] that are given without being named.
    pub helpers: Option<Vec<Name>>,
    /// How many maps.
    pub maps: Option<u32>,
}

impl Specification {
    /// Adds what another text declares.
    pub fn add(&mut self, other: Specification) {
        self.application = self.application.take().or(other.application);
        self.uses.extend(other.uses);
        self.states.extend(other.states);
        self.functions.extend(other.functions);
        self.entries.extend(other.entries);
        self.classes.extend(other.classes);
    }

    /// A class by its name.
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.name.text == name)
    }

    /// An entry by its name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name.text == name)
    }
}

impl Class {
    /// The class once for each of its entries.
    pub fn apart(&self) -> impl Iterator<Item = Class> {
        self.entries.iter().map(|entry| Class { entry: entry.clone(), ..self.clone() })
    }
}

impl Function {
    /// The symbol that programs name: the one given, that of the prototype, or the function's name in the model.
    pub fn symbol(&self) -> &Name {
        self.symbol.as_ref().or(self.prototype.as_ref().map(|known| &known.name)).unwrap_or(&self.name)
    }
}
