//! A class and the program's types to a [`Grant`].

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use ring3_btf::Btf;
use ring3_verifier::host::*;

use crate::limits::{self, Limits};
use crate::model::{At, Class, Entry, Function, Meaning, Name, Root, Specification};
use crate::places::{Arguments, Leaf, Length, Permission, Places, Pointer, What};
use crate::signature::{Signature, values, within};
use crate::source::{Error, suggest};
use crate::types::{Declared, Shape, Types};

/// Where an extension runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPoint {
    /// The entry's name in the model.
    pub name: String,
    /// The symbol of the function.
    pub function: String,
    /// When.
    pub at: At,
    /// Names and types of what lies behind r1, 8 bytes each: at a return first the result (called `return`; a `void` function
    /// has an empty one), then the parameters, at most six.
    pub arguments: Vec<(String, String)>,
}

/// A class whose names are looked up.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What the verifier takes.
    pub grant: Grant,
    /// How much it may use.
    pub limits: Limits,
    /// Where it runs.
    pub entry: EntryPoint,
    /// The same for people.
    pub permissions: Vec<Permission>,
    /// Signatures of the granted functions, by symbol.
    pub(crate) signatures: Vec<(String, Signature)>,
    /// Types of what lies behind r1.
    pub(crate) slots: Vec<(String, u32, Declared)>,
}

/// Parameters in registers.
const REGISTERS: usize = 6;
/// Parameters of a function that is called.
const PARAMETERS_MAX: usize = 5;

/// Looks up the names of a class, for its [`Class::entry`].
///
/// # Errors
/// All that is wrong, with the places in specification and policy.
pub fn resolve(
    specification: &Specification,
    class: &Class,
    types: &Btf,
) -> Result<(Grant, Limits, EntryPoint), Vec<Error>> {
    let found = resolve_all(specification, class, types)?;
    Ok((found.grant, found.limits, found.entry))
}

/// As [`resolve`], with what people want to read.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_all(specification: &Specification, class: &Class, types: &Btf) -> Result<Resolved, Vec<Error>> {
    let types = Types::new(types);
    let mut errors = crate::parse::repeated(specification);
    let limits = limits::of(class, &mut errors);
    errors.extend(undeclared(specification, class));
    let Some(entry) = specification.entry(&class.entry.text) else { return Err(errors) };
    let signature = Signature::of(&types, &entry.function, entry.prototype.as_ref());
    let slotted = signature.and_then(|signature| Ok((slots(&types, entry, &signature)?, signature)));
    let (slots, signature) = match slotted {
        Ok(found) => found,
        Err(error) => {
            errors.push(error);
            return Err(errors);
        }
    };
    let arguments = Arguments { entry: &entry.name.text, signature: &signature, slots };
    let mut places = Places::new(&types, Some(&arguments));
    places.learn(specification, &mut errors);
    for name in &entry.nonnull {
        match argument(&arguments, name, &entry.name.text) {
            Ok(at) => places.argument_is_never_null(&entry.name.text, at),
            Err(error) => errors.push(error),
        }
    }
    let functions = allow(specification, class, &mut places, &mut errors);
    let mut builder = Builder { types: &types, places: &places, objects: vec![], known: HashMap::new() };
    let mut grant = Grant { verdicts: vec![], ..Grant::default() };
    grant.arguments = builder.arguments(&arguments, &mut errors);
    grant.globals = builder.globals(&mut errors);
    let (mut permissions, mut signatures) = (places.permissions.clone(), vec![]);
    for function in functions {
        match builder.function(function, &mut permissions, &mut errors) {
            Ok((function, signature)) => {
                signatures.push((function.symbol.clone(), signature));
                grant.functions.push(function);
            }
            Err(error) => errors.push(error),
        }
    }
    grant.objects = builder.objects;
    grant.verdicts = verdicts(&types, entry, &signature, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    permissions.sort();
    permissions.dedup();
    let shown = arguments.slots.iter().map(|(name, _, of)| (name.clone(), types.declared_name(*of)));
    let point = EntryPoint {
        name: entry.name.text.clone(),
        function: entry.function.text.clone(),
        at: entry.at,
        arguments: shown.collect(),
    };
    Ok(Resolved { grant, limits, entry: point, permissions, signatures, slots: arguments.slots })
}

/// Grants the states of a class; its functions.
fn allow<'s>(
    specification: &'s Specification,
    class: &Class,
    places: &mut Places<'_, '_>,
    errors: &mut Vec<Error>,
) -> Vec<&'s Function> {
    let (mut functions, mut seen) = (vec![], BTreeSet::new());
    for name in class.allow.iter().filter(|name| seen.insert(name.text.clone())) {
        let state = specification.states.iter().find(|state| state.name.text == name.text);
        let function = specification.functions.iter().find(|function| function.name.text == name.text);
        let accesses = state.map(|state| state.accesses.as_slice()).unwrap_or_default();
        for access in accesses {
            if let Root::Parameter { entry, .. } = &access.path.root
                && entry.text != class.entry.text
            {
                // (Of a class with several entries a state is granted at its own.)
                if class.entries.iter().any(|known| known.text == entry.text) {
                    continue;
                }
                let message = format!(
                    "state `{}` is of entry `{}`, but the class is of entry `{}`; leave it out, or change the entry",
                    name.text, entry.text, class.entry.text
                );
                errors.push(Error::at(&name.span, message));
                break;
            }
            errors.extend(places.grant(&access.path, access.write).err());
        }
        functions.extend(function);
    }
    functions
}

/// Names in a class that no specification declares.
fn undeclared(specification: &Specification, class: &Class) -> Vec<Error> {
    let mut errors = vec![];
    if specification.entry(&class.entry.text).is_none() {
        let known = specification.entries.iter().map(|entry| entry.name.text.as_str());
        let advice = suggest(&class.entry.text, known, "declare it: `entry NAME { function SYMBOL }`");
        let message = format!("no entry `{}` in the specification; {advice}", class.entry.text);
        errors.push(Error::at(&class.entry.span, message));
    }
    let states = specification.states.iter().map(|state| state.name.text.as_str());
    let known = states.chain(specification.functions.iter().map(|function| function.name.text.as_str()));
    let known: Vec<&str> = known.collect();
    for name in class.allow.iter().filter(|name| !known.contains(&name.text.as_str())) {
        let advice =
            suggest(&name.text, known.iter().copied(), "a class can only allow what a specification declares");
        let message = format!("no state and no function `{}` in the specification; {advice}", name.text);
        errors.push(Error::at(&name.span, message));
    }
    errors
}

/// What lies behind r1.
fn slots(types: &Types<'_>, entry: &Entry, signature: &Signature) -> Result<Vec<(String, u32, Declared)>, Error> {
    let mut slots = vec![];
    if entry.at == At::Return {
        check_register(types, signature.result, "the result", &entry.function)?;
        slots.push(("return".to_owned(), 0, signature.result));
    }
    for (name, of) in signature.parameters.iter().take(REGISTERS) {
        check_register(types, *of, &format!("parameter `{name}`"), &entry.function)?;
        let at = slots.len() as u32 * 8;
        slots.push((name.clone(), at, *of));
    }
    Ok(slots)
}

fn check_register(types: &Types<'_>, of: Declared, what: &str, function: &Name) -> Result<(), Error> {
    let why = match types.declared_shape(of) {
        Shape::Number { float: true, .. } => "a floating-point number, which is in no register that programs have",
        Shape::Number { bytes: 9.., .. } => "a number of more than 8 bytes",
        Shape::Structure { .. } => "a structure that is passed by value",
        _ => return Ok(()),
    };
    let message = format!("{what} of `{}` is {why}; choose another function", function.text);
    Err(Error::at(&function.span, message))
}

/// The place of an argument that is said to be never null.
fn argument(arguments: &Arguments<'_>, name: &Name, entry: &str) -> Result<u32, Error> {
    match arguments.slots.iter().find(|(known, _, _)| *known == name.text) {
        Some((_, at, _)) => Ok(*at),
        None if name.text == "return" => {
            Err(Error::at(&name.span, "there is a result only at the function's return: `at return`"))
        }
        None => arguments.signature.parameter(name, entry).map(|index| index as u32 * 8),
    }
}

/// What a function gives.
struct Gives {
    result: Option<HostValue>,
    ensures: Option<RangeInclusive<i64>>,
    bytes: u32,
    signed: bool,
    /// In words.
    text: String,
}

struct Builder<'a, 't> {
    types: &'a Types<'t>,
    places: &'a Places<'a, 't>,
    objects: Vec<HostObject>,
    /// By type and nodes; elements by how many they are.
    known: HashMap<(u32, Vec<usize>, u32, bool), usize>,
}

impl Builder<'_, '_> {
    fn arguments(&mut self, arguments: &Arguments<'_>, errors: &mut Vec<Error>) -> Vec<HostValue> {
        let context = &self.places.nodes[self.places.context];
        let mut values = vec![];
        for (_, at, of) in &arguments.slots {
            let granted = context.get(at).and_then(|leaves| leaves.iter().find_map(pointer_of));
            let value = match (granted, self.types.declared_shape(*of)) {
                (Some(pointer), _) => self.pointer(&pointer.clone(), *at, errors),
                (None, Shape::Pointer(to)) => {
                    let pointer = self.places.argument(arguments.entry, *at, to);
                    self.pointer(&pointer, *at, errors)
                }
                (None, _) => HostValue::Number,
            };
            values.push(value);
        }
        values
    }

    fn globals(&mut self, errors: &mut Vec<Error>) -> Vec<HostGlobal> {
        let globals: Vec<(String, (usize, u32))> =
            self.places.globals.iter().map(|(symbol, known)| (symbol.clone(), *known)).collect();
        let made = globals.into_iter().map(|(symbol, (node, of))| {
            let mut nodes = vec![node];
            nodes.extend(self.places.by_type.get(&self.types.plain(of)));
            let object = self.object(of, nodes, errors);
            for field in &mut self.objects[object].fields {
                if field.name.is_empty() {
                    field.name.clone_from(&symbol);
                }
            }
            HostGlobal { symbol, object }
        });
        made.collect()
    }

    /// The object of a type with the parts that some nodes grant.
    fn object(&mut self, of: u32, mut nodes: Vec<usize>, errors: &mut Vec<Error>) -> usize {
        let type_id = self.types.plain(of);
        if let Shape::Structure { .. } = self.types.shape(of) {
            nodes.extend(self.places.by_type.get(&type_id));
        }
        // Nodes without parts make no difference: lists end.
        nodes.retain(|node| !self.places.nodes[*node].is_empty());
        nodes.sort_unstable();
        nodes.dedup();
        let key = (type_id, nodes.clone(), 1, false);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let index = self.objects.len();
        self.known.insert(key, index);
        let size = self.types.bytes(of);
        let name = self.types.object_name(of);
        self.objects.push(HostObject { name, type_id, size, fields: vec![] });
        let leaves: Vec<(u32, Leaf)> = nodes
            .iter()
            .flat_map(|node| &self.places.nodes[*node])
            .flat_map(|(at, leaves)| leaves.iter().map(|leaf| (*at, leaf.clone())))
            .collect();
        let fields = self.fields(leaves, errors);
        self.objects[index].fields = fields;
        index
    }

    fn fields(&mut self, leaves: Vec<(u32, Leaf)>, errors: &mut Vec<Error>) -> Vec<HostField> {
        let mut numbers: Vec<(u32, Leaf)> = vec![];
        let mut pointers: Vec<(u32, Leaf)> = vec![];
        for (at, leaf) in leaves {
            let What::Pointer(pointer) = &leaf.what else {
                numbers.push((at, leaf));
                continue;
            };
            // The same pointer, by another path.
            match pointers.iter_mut().find(|(other, known)| *other == at && known.when == leaf.when) {
                Some((_, Leaf { what: What::Pointer(known), .. })) => {
                    known.nodes.extend(&pointer.nodes);
                    known.nonnull |= pointer.nonnull;
                    known.write |= pointer.write;
                    known.length = known.length.or(pointer.length);
                }
                _ => pointers.push((at, leaf)),
            }
        }
        for (at, leaf) in &pointers {
            let over = numbers.iter().find(|(other, number)| {
                *other < leaf.end && *at < number.end && !never_both(&number.when, &leaf.when)
            });
            if let Some((_, number)) = over {
                let message = format!(
                    "`{}` and `{}` share bytes (a union); grant one of them, or say of both when the union has them (`member`)",
                    number.name, leaf.name
                );
                errors.push(Error::at(&number.span, message));
            }
        }
        errors.extend(unchecked(numbers.iter().chain(&pointers), &numbers));
        let mut cases: Vec<&[Discriminator]> = numbers.iter().map(|(_, leaf)| leaf.when.as_slice()).collect();
        cases.sort_by_key(|when| when.iter().map(|when| (when.at.start, *when.values.start())).collect::<Vec<_>>());
        cases.dedup();
        let mut fields: Vec<HostField> = cases.into_iter().flat_map(|when| apart(&numbers, when)).collect();
        for (at, leaf) in pointers {
            if let What::Pointer(pointer) = &leaf.what {
                let value = self.pointer(pointer, at, errors);
                let Leaf { end, name, when, .. } = leaf;
                fields.push(HostField { name, at: at..end, read: true, write: false, value, when });
            }
        }
        fields.sort_by_key(|field| field.at.start);
        fields
    }

    fn pointer(&mut self, pointer: &Pointer, at: u32, errors: &mut Vec<Error>) -> HostValue {
        let element = self.types.bytes(pointer.to).max(1);
        let object = match pointer.length {
            Some(Length::Field { from_pointer, bytes }) => {
                return HostValue::Slice {
                    length_at: (i64::from(at) + from_pointer) as u32,
                    length_bytes: bytes,
                    element_bytes: element,
                    write: pointer.write,
                };
            }
            Some(Length::Count(count)) => self.elements(pointer, element, count),
            None => self.object(pointer.to, pointer.nodes.clone(), errors),
        };
        HostValue::Object { object, nullable: !pointer.nonnull }
    }

    /// Numbers one after another, behind a pointer.
    fn elements(&mut self, pointer: &Pointer, element: u32, count: u32) -> usize {
        let type_id = self.types.plain(pointer.to);
        let key = (type_id, vec![], count, pointer.write);
        let size = element.saturating_mul(count);
        let name = format!("{}[{count}]", self.types.name(pointer.to));
        let field = HostField {
            name: "elements".to_owned(),
            at: 0..size,
            read: true,
            write: pointer.write,
            value: HostValue::Number,
            when: vec![],
        };
        let next = self.objects.len();
        let index = *self.known.entry(key).or_insert(next);
        if index == next {
            self.objects.push(HostObject { name, type_id, size, fields: vec![field] });
        }
        index
    }

    fn function(
        &mut self,
        function: &Function,
        permissions: &mut Vec<Permission>,
        errors: &mut Vec<Error>,
    ) -> Result<(HostFunction, Signature), Error> {
        let symbol = function.symbol();
        let signature = Signature::of(self.types, symbol, function.prototype.as_ref())?;
        let refused = if signature.variadic {
            Some("takes a variable number of arguments".to_owned())
        } else if signature.parameters.len() > PARAMETERS_MAX {
            Some(format!("has more than {PARAMETERS_MAX} parameters"))
        } else {
            None
        };
        if let Some(why) = refused {
            let message =
                format!("`{}` {why}, so programs cannot call it; grant a function that wraps it", symbol.text);
            return Err(Error::at(&symbol.span, message));
        }
        let named = function.nonnull.iter().filter(|name| name.text != "return");
        for name in named.chain(function.requires.iter().map(|(name, _)| name)) {
            signature.parameter(name, &function.name.text)?;
        }
        let (mut parameters, mut shown) = (vec![], vec![]);
        for index in 0..signature.parameters.len() {
            let (parameter, condition) = self.parameter(function, &signature, index)?;
            let (name, of) = &signature.parameters[index];
            let declaration = crate::signature::declaration(&self.types.declared_name(*of), name);
            shown.push(format!("{declaration}: {condition}"));
            parameters.push(parameter);
        }
        let Gives { result, ensures, bytes, signed, text } = self.result(function, &signature, errors)?;
        let detail = format!("({}) gives {text}", shown.join("; "));
        permissions.push(Permission { verb: "call", what: symbol.text.clone(), detail });
        let function = HostFunction {
            symbol: symbol.text.clone(),
            parameters,
            result,
            result_bytes: bytes,
            result_signed: signed,
            ensures,
        };
        Ok((function, signature))
    }

    /// What a parameter takes, and that in words.
    fn parameter(
        &self,
        function: &Function,
        signature: &Signature,
        index: usize,
    ) -> Result<(HostParameter, String), Error> {
        let (name, of) = &signature.parameters[index];
        let symbol = function.symbol();
        check_register(self.types, *of, &format!("parameter `{name}`"), symbol)?;
        let nonnull = function.nonnull.iter().find(|wanted| wanted.text == *name);
        let shape = self.types.declared_shape(*of);
        let mut range: Option<RangeInclusive<i64>> = None;
        for (_, required) in function.requires.iter().filter(|(wanted, _)| wanted.text == *name) {
            let more = within(required, shape)?;
            let all = match range {
                Some(known) => *known.start().max(more.start())..=*known.end().min(more.end()),
                None => more,
            };
            if all.is_empty() {
                let message = format!("no value of `{name}` has all that is required; correct one of the conditions");
                return Err(Error::at(&required.span, message));
            }
            range = Some(all);
        }
        match (shape, nonnull) {
            (Shape::Pointer(to), _) => {
                let condition = if nonnull.is_some() { "not null" } else { "may be null" };
                let type_id = self.types.plain(to);
                Ok((HostParameter::Object { type_id, nullable: nonnull.is_none() }, condition.to_owned()))
            }
            (Shape::Number { .. }, Some(span)) => {
                let message = format!("`{name}` of `{}` is no pointer; write `require` for it", symbol.text);
                Err(Error::at(&span.span, message))
            }
            (Shape::Number { bytes, signed, boolean, .. }, None) => {
                let condition = range.as_ref().map_or("any value".to_owned(), range_text);
                Ok((HostParameter::Number(range.unwrap_or(values(bytes, signed, boolean))), condition))
            }
            _ => {
                let of = self.types.declared_name(*of);
                let message = format!("parameter `{name}` of `{}` is `{of}`, which cannot be passed", symbol.text);
                Err(Error::at(&symbol.span, message))
            }
        }
    }

    fn result(
        &mut self,
        function: &Function,
        signature: &Signature,
        errors: &mut Vec<Error>,
    ) -> Result<Gives, Error> {
        let nonnull = function.nonnull.iter().find(|name| name.text == "return");
        let shape = self.types.declared_shape(signature.result);
        check_register(self.types, signature.result, "the result", function.symbol())?;
        let name = self.types.declared_name(signature.result);
        if let (Some(span), false) = (nonnull.map(|name| &name.span), matches!(shape, Shape::Pointer(_))) {
            return Err(Error::at(span, format!("the result is `{name}`, no pointer; write `ensure return ...`")));
        }
        let ensured = function.ensures.as_ref();
        Ok(match shape {
            Shape::Void if ensured.is_some() => {
                let span = &ensured.map_or(function.name.span.clone(), |range| range.span.clone());
                return Err(Error::at(span, "the function returns nothing; remove `ensure`"));
            }
            Shape::Void => Gives { result: None, ensures: None, bytes: 8, signed: false, text: "nothing".to_owned() },
            Shape::Pointer(to) => {
                let above = ensured.map(|range| (range.first, range.last));
                if let (Some(range), false) = (ensured, matches!(above, None | Some((Some(1), None)))) {
                    let message = "the result is a pointer, of which only `> 0` can be said: that it is not null";
                    return Err(Error::at(&range.span, message));
                }
                let never_null = nonnull.is_some() || ensured.is_some();
                let object = self.object(to, vec![], errors);
                let text = if never_null { "never null" } else { "may be null" };
                // (Checked at run time, as all that a function is to ensure.)
                let ensures = never_null.then_some(1..=i64::MAX);
                Gives {
                    result: Some(HostValue::Object { object, nullable: !never_null }),
                    ensures,
                    bytes: 8,
                    signed: false,
                    text: format!("{name}: {text}"),
                }
            }
            of => {
                let ensures = ensured.map(|range| within(range, of)).transpose()?;
                let text = ensures.as_ref().map_or("any value".to_owned(), range_text);
                let (bytes, signed) = match of {
                    Shape::Number { bytes, signed, .. } => (bytes, signed),
                    _ => (8, false),
                };
                Gives { result: Some(HostValue::Number), ensures, bytes, signed, text: format!("{name}: {text}") }
            }
        })
    }
}

fn pointer_of(leaf: &Leaf) -> Option<&Pointer> {
    match &leaf.what {
        What::Pointer(pointer) => Some(pointer),
        What::Number => None,
    }
}

/// `400..599`
pub(crate) fn range_text(range: &RangeInclusive<i64>) -> String {
    match (*range.start(), *range.end()) {
        (first, last) if first == last => first.to_string(),
        (i64::MIN, i64::MAX) => "any value".to_owned(),
        (i64::MIN, last) => format!("at most {last}"),
        (first, i64::MAX) => format!("at least {first}"),
        (first, last) => format!("{first}..{last}"),
    }
}

/// Whether a union never has two members at a time.
fn never_both(one: &[Discriminator], other: &[Discriminator]) -> bool {
    one.iter().any(|one| {
        let excludes = |other: &Discriminator| {
            one.at == other.at && (one.values.end() < other.values.start() || other.values.end() < one.values.start())
        };
        other.iter().any(excludes)
    })
}

/// Members of unions of which the class does not grant what has to be checked before.
fn unchecked<'l>(leaves: impl Iterator<Item = &'l (u32, Leaf)>, numbers: &[(u32, Leaf)]) -> Vec<Error> {
    let is_read = |when: &Discriminator| {
        let mut reading = numbers.iter().filter(|(_, leaf)| leaf.read && leaf.when.is_empty());
        reading.any(|(at, leaf)| *at <= when.at.start && when.at.end <= leaf.end)
    };
    let missing = leaves.flat_map(|(_, leaf)| leaf.when.iter().map(move |when| (leaf, when)));
    let missing = missing.filter(|(_, when)| !is_read(when)).map(|(leaf, when)| {
        let message = format!(
            "which member the union has must be checked before `{}` is used, but `{}` is not granted; add it to `read`",
            leaf.name, when.name
        );
        Error::at(&leaf.span, message)
    });
    missing.collect()
}

/// The numbers of one case of unions as fields of which none is over another: where they overlap, the bytes have the rights of all.
fn apart(numbers: &[(u32, Leaf)], when: &[Discriminator]) -> Vec<HostField> {
    let numbers: Vec<&(u32, Leaf)> = numbers.iter().filter(|(_, leaf)| leaf.when == when).collect();
    let mut cuts: Vec<u32> = numbers.iter().flat_map(|(at, leaf)| [*at, leaf.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut fields: Vec<(HostField, Vec<usize>)> = vec![];
    for cut in cuts.windows(2) {
        let over: Vec<usize> = (0..numbers.len())
            .filter(|index| numbers[*index].0 <= cut[0] && cut[1] <= numbers[*index].1.end)
            .collect();
        let Some(first) = over.first() else { continue };
        let read = over.iter().any(|index| numbers[*index].1.read);
        let write = over.iter().any(|index| numbers[*index].1.write);
        if let Some((last, covered)) = fields.last_mut()
            && (last.at.end, last.read, last.write) == (cut[0], read, write)
            && over.iter().any(|index| covered.contains(index))
        {
            last.at.end = cut[1];
            covered.extend(over);
            continue;
        }
        let name = numbers[*first].1.name.clone();
        let (at, value, when) = (cut[0]..cut[1], HostValue::Number, when.to_vec());
        fields.push((HostField { name, at, read, write, value, when }, over));
    }
    fields.into_iter().map(|(field, _)| field).collect()
}

/// What results of a program mean.
fn verdicts(types: &Types<'_>, entry: &Entry, signature: &Signature, errors: &mut Vec<Error>) -> Vec<Verdict> {
    let shape = types.declared_shape(signature.result);
    let (mut verdicts, mut taken): (Vec<Verdict>, Vec<RangeInclusive<i64>>) = (vec![], vec![]);
    let mut others = None;
    for outcome in &entry.outcomes {
        let words: &[&str] = if entry.at == At::Entry { &["continue", "skip"] } else { &["keep", "replace"] };
        if outcome.meaning != Meaning::Refused && !words.contains(&outcome.word.text.as_str()) {
            let when = if entry.at == At::Entry { "an entry" } else { "a return" };
            let message =
                format!("`{}` is nothing that happens at {when}; write {}", outcome.word.text, words.join(" or "));
            errors.push(Error::at(&outcome.word.span, message));
            continue;
        }
        let action = match action(shape, outcome.meaning) {
            Ok(action) => action,
            Err(message) => {
                errors.push(Error::at(&outcome.span, message));
                continue;
            }
        };
        let Some(range) = &outcome.values else {
            if others.replace((action, outcome)).is_some() {
                errors.push(Error::at(&outcome.span, "`other` has a meaning already; remove one of them"));
            }
            continue;
        };
        let bound = |value: Option<i128>, none| value.map_or(Some(none), |value| i64::try_from(value).ok());
        let (Some(first), Some(last)) = (bound(range.first, i64::MIN), bound(range.last, i64::MAX)) else {
            errors.push(Error::at(&range.span, "results of programs have 64 bits and a sign; write a lesser number"));
            continue;
        };
        if taken.iter().any(|other| *other.start() <= last && first <= *other.end()) {
            errors.push(Error::at(&range.span, "one of these results has a meaning already; write each once"));
        }
        taken.push(first..=last);
        if let Some(action) = action {
            errors.extend(check_verdict(shape, action, &(first..=last)).map(|why| Error::at(&outcome.span, why)));
            verdicts.push(Verdict { values: first..=last, action });
        }
    }
    if entry.outcomes.is_empty() {
        verdicts.push(Verdict { values: 0..=0, action: Action::Continue });
    }
    if let Some((Some(action), outcome)) = others {
        let all = match (action, shape) {
            (Action::ReturnVerdict, Shape::Number { bytes, signed, boolean, .. }) => values(bytes, signed, boolean),
            _ => i64::MIN..=i64::MAX,
        };
        for values in besides(&taken, all) {
            errors.extend(check_verdict(shape, action, &values).map(|why| Error::at(&outcome.span, why)));
            verdicts.push(Verdict { values, action });
        }
    }
    verdicts.sort_by_key(|verdict| *verdict.values.start());
    verdicts
}

fn action(result: Shape, meaning: Meaning) -> Result<Option<Action>, String> {
    Ok(Some(match (meaning, result) {
        (Meaning::Refused, _) => return Ok(None),
        (Meaning::Continue, _) => Action::Continue,
        (_, Shape::Structure { .. } | Shape::Number { float: true, .. } | Shape::Number { bytes: 9.., .. }) => {
            return Err(
                "the function's result is in no register, so it cannot be set; write another meaning".to_owned()
            );
        }
        (Meaning::Verdict, Shape::Pointer(_)) => {
            let message =
                "the function returns a pointer, which a program cannot make up; name 0 (null) as the result";
            return Err(message.to_owned());
        }
        (Meaning::Verdict, _) => Action::ReturnVerdict,
        (Meaning::Constant(0), Shape::Pointer(_)) => Action::Return(0),
        (Meaning::Constant(_), Shape::Pointer(_)) => {
            return Err("the function returns a pointer; only 0 (null) can be its result".to_owned());
        }
        (Meaning::Constant(_), Shape::Void) => {
            return Err("the function returns nothing; leave the number out".to_owned());
        }
        (Meaning::Constant(value), Shape::Number { bytes, signed, boolean, .. }) => {
            let all = values(bytes, signed, boolean);
            let fits = i64::try_from(value).ok().filter(|value| all.contains(value));
            let message =
                format!("{value} is no value of the function's result, whose values are {}", range_text(&all));
            Action::Return(fits.ok_or(message + "; correct it")?)
        }
        (Meaning::Constant(_), _) => return Err("the function's result cannot be set".to_owned()),
    }))
}

/// Why results cannot be the function's.
fn check_verdict(result: Shape, action: Action, of: &RangeInclusive<i64>) -> Option<String> {
    let Shape::Number { bytes, signed, boolean, .. } = result else { return None };
    let all = values(bytes, signed, boolean);
    let fits = all.contains(of.start()) && all.contains(of.end());
    (action == Action::ReturnVerdict && !fits).then(|| {
        format!(
            "{} is not within the function's result, whose values are {}; correct it",
            range_text(of),
            range_text(&all)
        )
    })
}

/// All values besides some.
fn besides(taken: &[RangeInclusive<i64>], all: RangeInclusive<i64>) -> Vec<RangeInclusive<i64>> {
    let mut sorted: Vec<&RangeInclusive<i64>> = taken.iter().collect();
    sorted.sort_by_key(|range| *range.start());
    let (mut rest, mut next) = (vec![], Some(*all.start()));
    for range in sorted {
        let Some(from) = next else { break };
        let before = range.start().saturating_sub(1).min(*all.end());
        if from < *range.start() && from <= before {
            rest.push(from..=before);
        }
        next = range.end().checked_add(1).map(|after| after.max(from));
    }
    if let Some(from) = next.filter(|from| from <= all.end()) {
        rest.push(from..=*all.end());
    }
    rest
}
