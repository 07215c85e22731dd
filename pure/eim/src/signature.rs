//! Functions of the program: what the types say, compared with what a specification repeats.

use std::ops::RangeInclusive;

use crate::model::{Name, Range};
use crate::prototype::Prototype;
use crate::source::{Error, suggest};
use crate::types::{Declared, Shape, Types};

/// What a function takes and gives.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    /// Names may be empty.
    pub(crate) parameters: Vec<(String, Declared)>,
    pub(crate) result: Declared,
    pub(crate) variadic: bool,
}

impl Signature {
    /// The function of a symbol.
    pub(crate) fn of(types: &Types<'_>, symbol: &Name, prototype: Option<&Prototype>) -> Result<Signature, Error> {
        match (types.prototype(&symbol.text), prototype) {
            (Some(known), Some(prototype)) => {
                compare(types, known, symbol, prototype)?;
                let mut signature = Signature::known(types, known);
                for ((name, _), (wanted, _)) in signature.parameters.iter_mut().zip(&prototype.parameters) {
                    if let Some(wanted) = wanted {
                        name.clone_from(&wanted.text);
                    }
                }
                Ok(signature)
            }
            (Some(known), None) => Ok(Signature::known(types, known)),
            (None, Some(prototype)) => Signature::declared(types, prototype),
            (None, None) => {
                let advice = suggest(
                    &symbol.text,
                    types.functions(),
                    "correct the name, or add `prototype \"...\"` if it is a function of a library",
                );
                let message = format!("no function `{}` in the program's types; {advice}", symbol.text);
                Err(Error::at(&symbol.span, message))
            }
        }
    }

    fn known(types: &Types<'_>, prototype: u32) -> Signature {
        let parameters: Vec<(&[u8], u32)> = types.btf.parameters(prototype).collect();
        // The last parameter of a variadic function has neither name nor type.
        let variadic = parameters.last().is_some_and(|(name, of)| name.is_empty() && *of == 0);
        let count = parameters.len() - usize::from(variadic);
        let named = |(name, of): &(&[u8], u32)| (String::from_utf8_lossy(name).into_owned(), Declared::Type(*of));
        Signature {
            parameters: parameters[..count].iter().map(named).collect(),
            result: Declared::Type(types.btf.size_or_type(prototype)),
            variadic,
        }
    }

    fn declared(types: &Types<'_>, prototype: &Prototype) -> Result<Signature, Error> {
        let mut parameters = vec![];
        for (name, of) in &prototype.parameters {
            let name = name.as_ref().map(|name| name.text.clone()).unwrap_or_default();
            parameters.push((name, types.resolve(of)?));
        }
        Ok(Signature { parameters, result: types.resolve(&prototype.result)?, variadic: prototype.variadic })
    }

    /// The parameter of a name.
    pub(crate) fn parameter(&self, name: &Name, of: &str) -> Result<usize, Error> {
        self.parameters.iter().position(|(known, _)| *known == name.text).ok_or_else(|| {
            let names: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
            let shown = match names.as_slice() {
                [] => "it has none".to_owned(),
                names if names.iter().all(|name| name.is_empty()) => {
                    "the types do not name them; add `prototype \"...\"` with names".to_owned()
                }
                names => format!("it has {}", names.join(", ")),
            };
            let advice = suggest(&name.text, names.iter().copied().filter(|name| !name.is_empty()), &shown);
            Error::at(&name.span, format!("`{of}` has no parameter `{}`; {advice}", name.text))
        })
    }

    /// As C writes it.
    pub(crate) fn text(&self, types: &Types<'_>, symbol: &str) -> String {
        let mut parameters: Vec<String> =
            self.parameters.iter().map(|(name, of)| declaration(&types.declared_name(*of), name)).collect();
        if self.variadic {
            parameters.push("...".to_owned());
        }
        if parameters.is_empty() {
            parameters.push("void".to_owned());
        }
        declaration(&types.declared_name(self.result), &format!("{symbol}({})", parameters.join(", ")))
    }
}

/// A type and a name.
pub(crate) fn declaration(of: &str, name: &str) -> String {
    let space = if of.ends_with('*') || name.is_empty() { "" } else { " " };
    format!("{of}{space}{name}")
}

/// Whether a specification repeats what the types say.
fn compare(types: &Types<'_>, known: u32, symbol: &Name, prototype: &Prototype) -> Result<(), Error> {
    let own = Signature::known(types, known);
    let differs = |place: &crate::source::Span, what: String| {
        let own = own.text(types, &symbol.text);
        let message =
            format!("{what}; the program has `{own}`: correct the prototype, or take the program that it is of");
        Err(Error::at(place, message))
    };
    if prototype.name.text != symbol.text {
        return differs(&prototype.name.span, format!("the prototype is of `{}`", prototype.name.text));
    }
    if own.parameters.len() != prototype.parameters.len() || own.variadic != prototype.variadic {
        let (wanted, own) = (prototype.parameters.len(), own.parameters.len());
        return differs(&prototype.name.span, format!("wrong prototype: {wanted} parameters instead of {own}"));
    }
    let proto = types.btf.parameters(known).map(|(_, of)| of);
    for ((name, wanted), of) in prototype.parameters.iter().zip(proto) {
        if !types.is(of, wanted)? {
            let name = name.as_ref().map(|name| format!(" of `{}`", name.text)).unwrap_or_default();
            return differs(&wanted.span, format!("wrong prototype: the type{name} differs"));
        }
    }
    if !types.is(types.btf.size_or_type(known), &prototype.result)? {
        return differs(&prototype.result.span, "wrong prototype: the result's type differs".to_owned());
    }
    Ok(())
}

/// The values of a number.
pub(crate) fn values(bytes: u32, signed: bool, boolean: bool) -> RangeInclusive<i64> {
    let bits = bytes.min(8) * 8;
    match (bits, signed) {
        (_, _) if boolean => 0..=1,
        (0 | 64, _) => i64::MIN..=i64::MAX,
        (bits, true) => -(1 << (bits - 1))..=(1 << (bits - 1)) - 1,
        (bits, false) => 0..=(1 << bits) - 1,
    }
}

/// A range of a number, within its type.
pub(crate) fn within(range: &Range, of: Shape) -> Result<RangeInclusive<i64>, Error> {
    let Shape::Number { bytes, signed, boolean, .. } = of else {
        return Err(Error::at(
            &range.span,
            "a range is of a number, and this is none; for a pointer write `nonnull`",
        ));
    };
    let all = values(bytes, signed, boolean);
    let least = if signed { i128::from(*all.start()) } else { 0 };
    let first = range.first.unwrap_or(least);
    let last = range.last.unwrap_or(i128::from(*all.end()));
    let fits = |value: i128| value >= least && value <= i128::from(*all.end());
    let outside = [first, last].into_iter().find(|value| !fits(*value));
    if let Some(outside) = outside {
        let message =
            format!("{outside} is no value of its type, whose values are {least}..{}; correct it", all.end());
        return Err(Error::at(&range.span, message));
    }
    if first > last {
        return Err(Error::at(&range.span, "no value of the type is in this range; correct it"));
    }
    Ok(first as i64..=last as i64)
}
