//! The text format: `docs/EXTENSIONS.md`, "The model".

use std::sync::Arc;

use crate::lexer::{Kind, Token, tokens};
use crate::model::*;
use crate::prototype;
use crate::source::{Error, Source, Span, suggest};

/// Reads a specification or a policy.
///
/// # Errors
/// All that is wrong with the text, in its order.
pub fn parse(name: &str, text: &str) -> Result<Specification, Vec<Error>> {
    let source = Arc::new(Source { name: name.to_owned(), text: text.to_owned() });
    let tokens = tokens(&source).map_err(|error| vec![error])?;
    let mut parser = Parser { tokens, at: 0 };
    let (mut found, mut errors) = (Specification::default(), vec![]);
    while !matches!(parser.kind(), Kind::End) {
        let start = parser.at;
        if let Err(error) = parser.item(&mut found) {
            errors.push(error);
            parser.skip_item(start);
        }
    }
    errors.extend(repeated(&found));
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// Names that are declared twice.
pub(crate) fn repeated(found: &Specification) -> Vec<Error> {
    let states = found.states.iter().map(|state| &state.name);
    let capabilities: Vec<&Name> = states.chain(found.functions.iter().map(|function| &function.name)).collect();
    let entries: Vec<&Name> = found.entries.iter().map(|entry| &entry.name).collect();
    let classes: Vec<&Name> = found.classes.iter().map(|class| &class.name).collect();
    let mut errors = vec![];
    for names in [capabilities, entries, classes] {
        for (index, name) in names.iter().enumerate() {
            let Some(first) = names[..index].iter().find(|first| first.text == name.text) else { continue };
            let (line, _) = first.span.position();
            let place = format!("{}:{line}", first.span.source.name);
            let message = format!("`{}` is declared already at {place}; give one of them another name", name.text);
            errors.push(Error::at(&name.span, message));
        }
    }
    errors
}

/// A limit under which a program can run.
fn not_zero(limit: u64, span: &Span) -> Result<u64, Error> {
    if limit == 0 {
        return Err(Error::at(span, "no program can run under a limit of 0; write a greater number"));
    }
    Ok(limit)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

const ITEMS: [&str; 6] = ["application", "use", "state", "function", "entry", "class"];

impl Parser {
    fn kind(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span.clone()
    }

    fn next(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    /// Behind an item that is wrong, which begins at a token.
    fn skip_item(&mut self, start: usize) {
        let opens =
            |token: &Token| i64::from(token.kind == Kind::Sign("{")) - i64::from(token.kind == Kind::Sign("}"));
        let mut depth: i64 = self.tokens[start..self.at].iter().map(opens).sum();
        self.at = self.at.max(start + 1).min(self.tokens.len() - 1);
        if self.at == start + 1 {
            depth = opens(&self.tokens[start]);
        }
        while !matches!(self.kind(), Kind::End) {
            let token = &self.tokens[self.at];
            let is_item = matches!(&token.kind, Kind::Word(word) if ITEMS.contains(&word.as_str()));
            if depth <= 0 && token.begins_line && is_item {
                return;
            }
            let closes = token.kind == Kind::Sign("}");
            depth += opens(token);
            self.next();
            if depth <= 0 && closes {
                return;
            }
        }
    }

    fn shown(&self) -> String {
        match self.kind() {
            Kind::End => "the text ends".to_owned(),
            _ => format!("`{}` stands", self.span().text()),
        }
    }

    fn expected(&self, what: &str) -> Error {
        Error::at(&self.span(), format!("{} where {what} is expected", self.shown()))
    }

    fn takes(&mut self, sign: &'static str) -> bool {
        let found = *self.kind() == Kind::Sign(sign);
        if found {
            self.next();
        }
        found
    }

    fn takes_word(&mut self, wanted: &str) -> bool {
        let found = matches!(self.kind(), Kind::Word(word) if word == wanted);
        if found {
            self.next();
        }
        found
    }

    fn sign(&mut self, sign: &'static str) -> Result<(), Error> {
        if self.takes(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    fn name(&mut self, what: &str) -> Result<Name, Error> {
        let Kind::Word(word) = self.kind() else { return Err(self.expected(what)) };
        let name = Name { text: word.clone(), span: self.span() };
        self.next();
        Ok(name)
    }

    fn text(&mut self, what: &str) -> Result<Name, Error> {
        let Kind::Text(text) = self.kind() else {
            return Err(self.expected(&format!("{what} in quotation marks")));
        };
        let name = Name { text: text.clone(), span: self.span() };
        self.next();
        Ok(name)
    }

    fn number(&mut self, what: &str) -> Result<i128, Error> {
        let Kind::Number(number) = *self.kind() else { return Err(self.expected(what)) };
        self.next();
        Ok(number)
    }

    /// A number that fits its place.
    fn count<T: TryFrom<i128>>(&mut self, what: &str) -> Result<T, Error> {
        let span = self.span();
        let number = self.number(what)?;
        T::try_from(number).map_err(|_| Error::at(&span, format!("{number} is out of range for {what}")))
    }

    fn item(&mut self, found: &mut Specification) -> Result<(), Error> {
        let keyword = self.name("`application`, `use`, `state`, `function`, `entry` or `class`")?;
        match keyword.text.as_str() {
            "application" => {
                let application = self.application()?;
                if found.application.is_some() {
                    let message = "the application is declared already; a specification is of one application";
                    return Err(Error::at(&application.name.span, message));
                }
                found.application = Some(application);
            }
            "use" => {
                let file = self.text("a file's name")?;
                found.uses.push(file);
                self.end_of_statement()?;
            }
            "state" => {
                let state = self.state()?;
                found.states.push(state);
            }
            "function" => {
                let function = self.function()?;
                found.functions.push(function);
            }
            "entry" => {
                let entry = self.entry()?;
                found.entries.push(entry);
            }
            "class" => {
                let class = self.class()?;
                found.classes.push(class);
            }
            other => {
                let advice = suggest(other, ITEMS.into_iter(), &format!("write one of {}", ITEMS.join(", ")));
                return Err(Error::at(&keyword.span, format!("`{other}` begins no declaration; {advice}")));
            }
        }
        Ok(())
    }

    /// Calls `statement` with each keyword between braces.
    fn block(
        &mut self,
        words: &[&str],
        mut statement: impl FnMut(&mut Parser, &Name) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.sign("{")?;
        while !self.takes("}") {
            if self.takes(";") {
                continue;
            }
            let keyword = self.name(&format!("one of {} or `}}`", words.join(", ")))?;
            if !words.contains(&keyword.text.as_str()) {
                let advice =
                    suggest(&keyword.text, words.iter().copied(), &format!("write one of {}", words.join(", ")));
                return Err(Error::at(&keyword.span, format!("`{}` has no meaning here; {advice}", keyword.text)));
            }
            statement(self, &keyword)?;
            self.end_of_statement()?;
        }
        Ok(())
    }

    fn end_of_statement(&mut self) -> Result<(), Error> {
        let token = &self.tokens[self.at];
        if token.begins_line || matches!(token.kind, Kind::Sign(";" | "}") | Kind::End) {
            self.takes(";");
            return Ok(());
        }
        Err(self.expected("`;` or a new line"))
    }

    fn application(&mut self) -> Result<Application, Error> {
        let mut application = Application { name: self.text("the application's name")?, types: None };
        if *self.kind() == Kind::Sign("{") {
            self.block(&["types"], |parser, _| {
                application.types = Some(parser.text("a file's name")?);
                Ok(())
            })?;
        }
        Ok(application)
    }

    fn state(&mut self) -> Result<State, Error> {
        let mut state = State { name: self.name("the state's name")?, accesses: vec![], facts: vec![] };
        self.block(&["read", "write", "length", "nonnull", "member"], |parser, keyword| {
            let paths = match keyword.text.as_str() {
                "length" => return parser.length(&mut state),
                "member" => return parser.member(&mut state),
                _ => parser.paths()?,
            };
            for path in paths {
                match keyword.text.as_str() {
                    "nonnull" => state.facts.push(Fact { path, known: Known::NonNull }),
                    word => state.accesses.push(Access { write: word == "write", path }),
                }
            }
            Ok(())
        })?;
        Ok(state)
    }

    fn length(&mut self, state: &mut State) -> Result<(), Error> {
        let mut path = self.path()?;
        self.sign("=")?;
        if let Kind::Number(_) = self.kind() {
            let span = self.span();
            let count: u32 = self.count("a number of elements")?;
            if count == 0 {
                return Err(Error::at(&span, "a pointer to 0 elements leads to nothing; leave the length out"));
            }
            self.of_entry(std::slice::from_mut(&mut path))?;
            state.facts.push(Fact { path, known: Known::Count(count) });
            return Ok(());
        }
        let length = self.path()?;
        let mut both = [path, length];
        self.of_entry(&mut both)?;
        let [path, length] = both;
        state.facts.push(Fact { path, known: Known::Length(length) });
        Ok(())
    }

    /// `MEMBER when FIELD CONDITION`
    fn member(&mut self, state: &mut State) -> Result<(), Error> {
        let member = self.path()?;
        if !self.takes_word("when") {
            return Err(self.expected("`when`"));
        }
        let field = self.path()?;
        let values = self.condition()?;
        let mut both = [member, field];
        self.of_entry(&mut both)?;
        let [path, field] = both;
        state.facts.push(Fact { path, known: Known::When(field, values) });
        Ok(())
    }

    /// Paths with commas between them; `of entry NAME` at the end is of all.
    fn paths(&mut self) -> Result<Vec<Path>, Error> {
        let mut paths = vec![self.path()?];
        while self.takes(",") {
            paths.push(self.path()?);
        }
        self.of_entry(&mut paths)?;
        Ok(paths)
    }

    fn of_entry(&mut self, paths: &mut [Path]) -> Result<(), Error> {
        let entry = match self.takes_word("of") {
            true if !self.takes_word("entry") => return Err(self.expected("`entry`")),
            true => Some(self.name("the entry's name")?),
            false => None,
        };
        for path in paths {
            let from_parameter = match (&path.root, path.steps.first()) {
                (Root::Global(_), _) => false,
                (_, Some(Step::Member(_))) => false,
                (_, _) => true,
            };
            match (&path.root, &entry) {
                (Root::Type(name), Some(entry)) if from_parameter => {
                    path.root = Root::Parameter { name: name.clone(), entry: entry.clone() };
                }
                (Root::Type(name), None) if from_parameter => {
                    let message = format!(
                        "`{name}` is taken for a parameter, but no entry is named; add `of entry NAME`, or write \
                         `TYPE.FIELD` for a field of all objects of a type",
                        name = name.text
                    );
                    return Err(Error::at(&name.span, message));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn path(&mut self) -> Result<Path, Error> {
        let start = self.span();
        let mut name = self.name("a field, `global` or a parameter")?;
        let root = match name.text.as_str() {
            "global" => Root::Global(self.name("the variable's name")?),
            "struct" | "union" => {
                let tag = self.name("the type's name")?;
                name = Name { text: format!("{} {}", name.text, tag.text), span: start.to(&tag.span) };
                Root::Type(name)
            }
            _ => Root::Type(name),
        };
        let mut steps = vec![];
        loop {
            let step = self.span();
            if self.takes(".") {
                steps.push(Step::Member(self.name("a field's name")?));
            } else if self.takes("->") {
                steps.push(Step::Behind(self.name("a field's name")?));
            } else if self.takes("[") {
                let element = match self.takes("*") {
                    true => None,
                    false => Some(self.count("an element's number, or `*`")?),
                };
                self.sign("]")?;
                let span = step.to(&self.tokens[self.at - 1].span);
                steps.push(element.map_or(Step::Elements(span.clone()), |number| Step::Element(number, span)));
            } else {
                break;
            }
        }
        let span = start.to(&self.tokens[self.at.saturating_sub(1)].span);
        Ok(Path { root, steps, span })
    }

    fn prototype(&mut self) -> Result<prototype::Prototype, Error> {
        let text = self.text("a prototype in C")?;
        let range = text.span.range.start + 1..text.span.range.end - 1;
        prototype::parse(&Span { source: text.span.source, range })
    }

    fn function(&mut self) -> Result<Function, Error> {
        let name = self.name("the function's name")?;
        let mut function =
            Function { name, symbol: None, prototype: None, requires: vec![], nonnull: vec![], ensures: None };
        self.block(&["symbol", "prototype", "require", "nonnull", "ensure"], |parser, keyword| {
            match keyword.text.as_str() {
                "symbol" => function.symbol = Some(parser.name("a symbol")?),
                "prototype" => function.prototype = Some(parser.prototype()?),
                "nonnull" => function.nonnull.extend(parser.names("a parameter or `return`")?),
                "require" => {
                    let parameter = parser.name("a parameter")?;
                    let range = parser.condition()?;
                    function.requires.push((parameter, range));
                }
                _ => {
                    if !parser.takes_word("return") {
                        return Err(parser.expected("`return`"));
                    }
                    let span = parser.span();
                    let range = parser.condition()?;
                    if function.ensures.is_some() {
                        return Err(Error::at(&span, "the result has a range already; write one range (`in A..B`)"));
                    }
                    function.ensures = Some(range);
                }
            }
            Ok(())
        })?;
        Ok(function)
    }

    fn names(&mut self, what: &str) -> Result<Vec<Name>, Error> {
        let mut names = vec![self.name(what)?];
        while self.takes(",") {
            names.push(self.name(what)?);
        }
        Ok(names)
    }

    /// `in A..B`, `= A`, `> A` and the like.
    fn condition(&mut self) -> Result<Range, Error> {
        let start = self.span();
        if self.takes_word("in") {
            return self.range();
        }
        let sign = match self.kind() {
            Kind::Sign(sign @ ("=" | "==" | "<" | "<=" | ">" | ">=")) => *sign,
            Kind::Sign("!=") => {
                return Err(Error::at(&start, "a range has no holes; write `in A..B`, `> A` or `< A`"));
            }
            _ => return Err(self.expected("`in`, `=`, `<`, `<=`, `>` or `>=`")),
        };
        self.next();
        let end = self.span();
        let number = self.number("a number")?;
        let (first, last) = match sign {
            "<" => (None, Some(number - 1)),
            "<=" => (None, Some(number)),
            ">" => (Some(number + 1), None),
            ">=" => (Some(number), None),
            _ => (Some(number), Some(number)),
        };
        Ok(Range { first, last, span: start.to(&end) })
    }

    /// `A` or `A..B`, both included.
    fn range(&mut self) -> Result<Range, Error> {
        let start = self.span();
        let first = self.number("a number")?;
        let (mut last, mut end) = (first, start.clone());
        if self.takes("..") {
            end = self.span();
            last = self.number("the last number of the range")?;
        }
        let span = start.to(&end);
        if last < first {
            return Err(Error::at(&span, format!("the range is empty: {last} is less than {first}; swap them")));
        }
        Ok(Range { first: Some(first), last: Some(last), span })
    }

    fn entry(&mut self) -> Result<Entry, Error> {
        let name = self.name("the entry's name")?;
        let (mut function, mut prototype, mut at) = (None, None, None);
        let (mut nonnull, mut outcomes) = (vec![], vec![]);
        self.block(&["function", "prototype", "at", "nonnull", "return"], |parser, keyword| {
            match keyword.text.as_str() {
                "function" => function = Some(parser.name("a function's symbol")?),
                "prototype" => prototype = Some(parser.prototype()?),
                "nonnull" => nonnull.extend(parser.names("a parameter or `return`")?),
                "at" => {
                    let span = parser.span();
                    at = match parser.takes_word("return") {
                        true => Some((At::Return, span)),
                        false if parser.takes_word("entry") => Some((At::Entry, span)),
                        false => return Err(parser.expected("`entry` or `return`")),
                    };
                }
                _ => outcomes.push(parser.outcome(&keyword.span)?),
            }
            Ok(())
        })?;
        let prototyped = prototype.as_ref().map(|known: &prototype::Prototype| known.name.clone());
        let function = function.or(prototyped).ok_or_else(|| {
            Error::at(&name.span, format!("entry `{}` names no function; add `function SYMBOL`", name.text))
        })?;
        let (at, at_span) = at.unwrap_or((At::Entry, name.span.clone()));
        Ok(Entry { name, function, prototype, at, at_span, nonnull, outcomes })
    }

    fn outcome(&mut self, keyword: &Span) -> Result<Outcome, Error> {
        let values = if self.takes_word("other") { None } else { Some(self.range()?) };
        self.sign("=")?;
        let word = self.name("`continue`, `skip`, `keep`, `replace` or `refused`")?;
        let mut end = word.span.clone();
        let meaning = match word.text.as_str() {
            "continue" | "keep" => Meaning::Continue,
            "skip" | "replace" => match self.kind() {
                Kind::Number(number) => {
                    let number = *number;
                    end = self.span();
                    self.next();
                    Meaning::Constant(number)
                }
                _ => Meaning::Verdict,
            },
            "refused" => Meaning::Refused,
            other => {
                let known = ["continue", "skip", "keep", "replace", "refused"];
                let advice = suggest(other, known.into_iter(), "write continue, skip, keep, replace or refused");
                return Err(Error::at(&word.span, format!("`{other}` is nothing that a result can mean; {advice}")));
            }
        };
        Ok(Outcome { values, meaning, word, span: keyword.to(&end) })
    }

    fn class(&mut self) -> Result<Class, Error> {
        let name = self.name("the class's name")?;
        let mut class = Class {
            entry: name.clone(),
            entries: vec![],
            name,
            allow: vec![],
            instructions: None,
            memory_bytes: None,
            time_ns: None,
            helpers: None,
            maps: None,
        };
        self.block(&["entry", "allow", "instructions", "memory", "time", "helpers", "maps"], |parser, keyword| {
            match keyword.text.as_str() {
                "entry" => class.entries.extend(parser.names("an entry's name")?),
                "allow" => class.allow.extend(parser.names("a state's or function's name")?),
                "instructions" => {
                    let span = parser.span();
                    class.instructions = Some(not_zero(parser.count("a number of instructions")?, &span)?);
                }
                "memory" => {
                    const UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
                    class.memory_bytes = Some(parser.quantity("a size", &UNITS)?);
                }
                "time" => {
                    const UNITS: [(&str, u64); 4] =
                        [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
                    let span = parser.span();
                    class.time_ns = Some(not_zero(parser.quantity("a time", &UNITS)?, &span)?);
                }
                "helpers" => {
                    let names = parser.names("a group of helpers, a helper, or `none`")?;
                    class.helpers.get_or_insert_default().extend(names);
                }
                _ => class.maps = Some(parser.count("a number of maps")?),
            }
            Ok(())
        })?;
        let Some(first) = class.entries.first() else {
            let message = format!("class `{}` names no entry; add `entry NAME`", class.name.text);
            return Err(Error::at(&class.name.span, message));
        };
        class.entry = first.clone();
        Ok(class)
    }

    /// A number and its unit; units may stand at the number: `50us`.
    fn quantity(&mut self, what: &str, units: &[(&str, u64)]) -> Result<u64, Error> {
        let start = self.span();
        let number: u64 = self.count(what)?;
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        let unit = self.name(&format!("a unit ({})", names.join(", ")))?;
        let known = units.iter().find(|(name, _)| *name == unit.text);
        let (_, factor) = known.ok_or_else(|| {
            let message = format!("`{}` is no unit of {what}; write one of {}", unit.text, names.join(", "));
            Error::at(&unit.span, message)
        })?;
        number.checked_mul(*factor).ok_or_else(|| Error::at(&start.to(&unit.span), format!("{what} is too large")))
    }
}
