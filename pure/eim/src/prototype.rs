//! Prototypes in C, as a specification repeats them so that a changed program is noticed.

use crate::lexer::{Kind, Token, tokens_of};
use crate::model::Name;
use crate::source::{Error, Span};

/// `RESULT NAME(TYPE NAME, ...)`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// The function's name.
    pub name: Name,
    /// What it returns.
    pub result: CType,
    /// What it takes; names can be left out.
    pub parameters: Vec<(Option<Name>, CType)>,
    /// It takes more (`...`).
    pub variadic: bool,
    /// The whole text.
    pub span: Span,
}

/// A type in C, without qualifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CType {
    /// What pointers lead to at the end.
    pub base: CBase,
    /// How many pointers lead to it.
    pub pointers: u32,
    /// Where it stands.
    pub span: Span,
}

/// A type that is no pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CBase {
    /// `void`
    Void,
    /// A function, of which nothing more is compared.
    Function,
    /// An integer of this many bytes.
    Integer {
        /// Bytes.
        bytes: u32,
        /// It has a sign.
        signed: bool,
    },
    /// A floating-point number of this many bytes.
    Float(u32),
    /// `struct NAME`
    Struct(String),
    /// `union NAME`
    Union(String),
    /// `enum NAME`
    Enum(String),
    /// A typedef.
    Named(String),
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

/// Parameters of a prototype at most.
const PARAMETERS_MAX: usize = 64;

/// Reads the prototype that stands at a place.
pub(crate) fn parse(span: &Span) -> Result<Prototype, Error> {
    let mut reader = Reader { tokens: tokens_of(span)?, at: 0 };
    let result = reader.base()?;
    let result = reader.pointers(result);
    let name = reader.name()?.ok_or_else(|| reader.expected("the function's name"))?;
    reader.sign("(")?;
    let (mut parameters, mut variadic) = (vec![], false);
    while !reader.takes(")") {
        if !parameters.is_empty() {
            reader.sign(",")?;
        }
        if reader.takes("...") {
            variadic = true;
            reader.sign(")")?;
            break;
        }
        if parameters.len() == PARAMETERS_MAX {
            return Err(reader.expected(&format!("at most {PARAMETERS_MAX} parameters")));
        }
        parameters.push(reader.parameter()?);
    }
    reader.takes(";");
    if !matches!(reader.kind(), Kind::End) {
        return Err(reader.expected("the end of the prototype"));
    }
    let no_parameters = matches!(parameters.as_slice(), [(None, CType { base: CBase::Void, pointers: 0, .. })]);
    if no_parameters {
        parameters.clear();
    }
    Ok(Prototype { name, result, parameters, variadic, span: span.clone() })
}

impl Reader {
    fn kind(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    fn span(&self) -> &Span {
        &self.tokens[self.at].span
    }

    fn next(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn expected(&self, what: &str) -> Error {
        let found = match self.kind() {
            Kind::End => "the prototype ends".to_owned(),
            _ => format!("`{}` stands", self.span().text()),
        };
        Error::at(
            self.span(),
            format!("{found} where {what} is expected; write `RESULT NAME(TYPE NAME, ...)` as in C"),
        )
    }

    fn takes(&mut self, sign: &'static str) -> bool {
        let found = *self.kind() == Kind::Sign(sign);
        if found {
            self.next();
        }
        found
    }

    fn sign(&mut self, sign: &'static str) -> Result<(), Error> {
        if self.takes(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    fn word(&self) -> Option<&str> {
        match self.kind() {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    fn name(&mut self) -> Result<Option<Name>, Error> {
        let name = self.word().map(|word| Name { text: word.to_owned(), span: self.span().clone() });
        if name.is_some() {
            self.next();
        }
        Ok(name)
    }

    /// Words of a type, up to the first `*` or the name that it gives a type to.
    fn base(&mut self) -> Result<CType, Error> {
        let start = self.span().clone();
        let (mut words, mut base, mut end) = (vec![], None, start.clone());
        while let Some(word) = self.word().map(str::to_owned) {
            match word.as_str() {
                "const" | "volatile" | "restrict" | "__restrict" | "extern" | "static" | "inline" | "register" => {}
                "struct" | "union" | "enum" if base.is_none() && words.is_empty() => {
                    self.next();
                    let tag = self.name()?.ok_or_else(|| self.expected("the type's name"))?;
                    end = tag.span;
                    base = Some(match word.as_str() {
                        "struct" => CBase::Struct(tag.text),
                        "union" => CBase::Union(tag.text),
                        _ => CBase::Enum(tag.text),
                    });
                    continue;
                }
                _ if base.is_none() && is_basic(&word) => {
                    words.push(word);
                    end = self.span().clone();
                }
                _ if base.is_none() && words.is_empty() => {
                    base = Some(CBase::Named(word));
                    end = self.span().clone();
                }
                _ => break,
            }
            self.next();
        }
        let base = match base {
            Some(base) => base,
            None if words.is_empty() => return Err(self.expected("a type")),
            None => basic(&words).ok_or_else(|| {
                Error::at(&start.to(&end), format!("`{}` is no type of C; correct it", words.join(" ")))
            })?,
        };
        Ok(CType { base, pointers: 0, span: start.to(&end) })
    }

    fn pointers(&mut self, mut of: CType) -> CType {
        loop {
            let qualifier = matches!(self.word(), Some("const" | "volatile" | "restrict" | "__restrict"));
            if *self.kind() == Kind::Sign("*") {
                of.pointers += 1;
                of.span = of.span.to(self.span());
            } else if !qualifier {
                return of;
            }
            self.next();
        }
    }

    fn parameter(&mut self) -> Result<(Option<Name>, CType), Error> {
        let base = self.base()?;
        let mut of = self.pointers(base);
        if self.takes("(") {
            // A pointer to a function.
            self.sign("*")?;
            let name = self.name()?;
            self.sign(")")?;
            self.skip_parentheses()?;
            return Ok((name, CType { base: CBase::Function, pointers: 1, span: of.span }));
        }
        let name = self.name()?;
        let mut dimensions = 0;
        while self.takes("[") {
            dimensions += 1;
            while !matches!(self.kind(), Kind::End | Kind::Sign("]")) {
                self.next();
            }
            self.sign("]")?;
        }
        if dimensions > 1 {
            return Err(self.expected("no array of arrays"));
        }
        of.pointers += dimensions;
        Ok((name, of))
    }

    fn skip_parentheses(&mut self) -> Result<(), Error> {
        self.sign("(")?;
        let mut depth = 1;
        while depth > 0 {
            match self.kind() {
                Kind::Sign("(") => depth += 1,
                Kind::Sign(")") => depth -= 1,
                Kind::End => return Err(self.expected("`)`")),
                _ => {}
            }
            self.next();
        }
        Ok(())
    }
}

fn is_basic(word: &str) -> bool {
    const WORDS: [&str; 10] =
        ["void", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "_Bool"];
    WORDS.contains(&word) || word == "bool"
}

/// What the words of a basic type mean on x86-64.
fn basic(words: &[String]) -> Option<CBase> {
    let count = |wanted: &str| words.iter().filter(|word| *word == wanted).count();
    let (long, unsigned) = (count("long"), count("unsigned") > 0);
    let integer = |bytes, signed| Some(CBase::Integer { bytes, signed });
    match words.first()?.as_str() {
        "void" if words.len() == 1 => return Some(CBase::Void),
        "float" if words.len() == 1 => return Some(CBase::Float(4)),
        "_Bool" | "bool" if words.len() == 1 => return integer(1, false),
        _ if ["void", "float", "_Bool", "bool"].iter().any(|word| count(word) > 0) => return None,
        _ => {}
    }
    if count("double") > 0 {
        return (words.len() == 1 + long && long < 2).then_some(CBase::Float(if long == 1 { 16 } else { 8 }));
    }
    match (count("char"), count("short"), long) {
        (1, 0, 0) => integer(1, !unsigned),
        (0, 1, 0) => integer(2, !unsigned),
        (0, 0, 0) => integer(4, !unsigned),
        (0, 0, 1 | 2) => integer(8, !unsigned),
        _ => None,
    }
}
