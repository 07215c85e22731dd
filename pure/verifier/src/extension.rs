//! What extensions do with their host: they read and write fields, call functions, and return verdicts, as far as their class grants
//! it (`host.rs`). The kernel has no counterpart; fields are checked as its `btf_struct_access` checks those of kernel objects.

use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;

use ring3_layout::slice::{self, Slice};
use ring3_uapi::Errno;

use crate::discriminator::{Origin, condition};
use crate::explore::{Explorer, Next};
use crate::host::{Grant, HostField, HostFunction, HostObject, HostParameter, HostValue};
use crate::memory::Access;
use crate::scalar::Scalar;
use crate::state::{Kind, Register};
use crate::{Refusal, deny, refuse};

/// Distances above this are no bound (`BPF_MAX_VAR_OFF`).
const DISTANCE_MAX: i64 = 1 << 29;
/// Bytes of a pointer.
const POINTER_BYTES: u32 = 8;

impl Explorer<'_> {
    fn grant(&self) -> Result<Rc<Grant>, Refusal> {
        match &self.input.policy.host {
            Some(grant) => Ok(grant.clone()),
            None => deny("only an extension can touch its host"),
        }
    }

    /// A pointer to an object of the host's.
    pub(crate) fn host_pointer(&mut self, object: u32, nullable: bool, origin: Origin) -> Register {
        let grant = self.input.policy.host.clone();
        let shape = grant.as_ref().and_then(|grant| grant.objects.get(object as usize));
        let range = shape.map_or(0, |shape| self.origin(shape, origin));
        let pointer = Register { range, ..Register::pointer(Kind::Host(object)) };
        if nullable { pointer.or_null(self.new_id()) } else { pointer }
    }

    /// A load from an object of the host's, or a store into it: what is loaded.
    pub(crate) fn host_access(
        &mut self,
        access: Access,
        object: u32,
        pointer: &Register,
    ) -> Result<Register, Refusal> {
        let Access { register, off, bytes, write } = access;
        if pointer.nullable {
            return deny(format!("R{register} invalid mem access '{}'", pointer.kind_name()));
        }
        let grant = self.grant()?;
        let object = object_of(&grant, object)?;
        let bounds = (pointer.number.smin.saturating_add(off), pointer.number.smax.saturating_add(off));
        if bounds.0 < 0 || bounds.1 >= DISTANCE_MAX {
            return deny(format!(
                "R{register} unbounded access to {}, compare the index with the number of elements before it is used",
                object.name
            ));
        }
        let touched = bounds.0 as u32..bounds.1 as u32 + bytes;
        let granted = self.granted(object, pointer, &touched);
        // (All of a pointer: at a known offset. Some of its bytes are no pointer.)
        let is_whole = bounds.0 == bounds.1 && bytes == POINTER_BYTES;
        let is_word = |field: &&&HostField| field.at.start == touched.start && field.at.end == touched.end;
        if is_whole
            && !write
            && let Some(HostField { value: HostValue::Object { object: to, nullable }, .. }) =
                granted.iter().filter(|field| field.read).find(is_word)
        {
            return Ok(self.host_pointer(*to as u32, *nullable, Origin::Here));
        }
        check_numbers(object, &granted, touched.clone(), write)
            .map_err(|why| Refusal::new(Errno::EACCES, format!("R{register} {why}")))?;
        if pointer.number.value().is_none() {
            self.decides(&[register]);
        }
        let mut loaded = Register::scalar(Scalar::loaded(bytes));
        if write {
            self.forget_written(object, &touched);
        } else {
            self.note_discriminator(object, pointer, &touched, &mut loaded);
        }
        Ok(loaded)
    }

    /// The fields of an object that may be touched here, of those with some of these bytes.
    fn granted<'g>(
        &mut self,
        object: &'g HostObject,
        pointer: &Register,
        touched: &Range<u32>,
    ) -> Vec<&'g HostField> {
        let over = |field: &&HostField| field.at.start < touched.end && touched.start < field.at.end;
        let fields = object.fields.iter().filter(over);
        fields.filter(|field| self.has_member(object, pointer, field)).collect()
    }

    /// The field that a slice's pointer is in: what code at this call is told of it.
    pub(crate) fn slice_argument(&mut self, register: u8, value: &Register) -> Result<(), Refusal> {
        let Kind::Host(object) = value.kind else {
            let kind = value.kind_name();
            return deny(format!("R{register} type={kind} expected=host_ptr"));
        };
        let grant = self.grant()?;
        let object = object_of(&grant, object)?;
        let at = value.number.value().and_then(|at| u32::try_from(at).ok());
        let Some(at) = at else {
            return deny(format!("R{register} a slice's field has to be at a known offset of {}", object.name));
        };
        let granted = self.granted(object, value, &(at..at + 1));
        let field = granted.iter().find(|field| field.at.start == at && field.read);
        let Some(HostField { value: HostValue::Slice { length_at, length_bytes, element_bytes, write }, .. }) = field
        else {
            let touched = at..at + 1;
            if let Some(why) = not_checked(object, &touched, false) {
                return deny(format!("R{register} {why}"));
            }
            let what = describe(object, &touched);
            return deny(format!("R{register} {what} is no slice that the class grants to be read"));
        };
        let slice = Slice {
            length_at: *length_at as i32 - at as i32,
            length_bytes: *length_bytes as u8,
            element_bytes: u16::try_from(*element_bytes).map_err(|_| too_large(object))?,
            write: *write,
        };
        self.decides(&[register]);
        self.note_call_word(slice::pack(slice))
    }

    /// What code at this instruction is told is the same on all paths.
    fn note_call_word(&mut self, word: u64) -> Result<(), Refusal> {
        if *self.found.call_words.entry(self.at).or_insert(word) != word {
            return refuse(Errno::EINVAL, "same insn cannot be used with different fields of the host");
        }
        Ok(())
    }

    /// A call of a function of the host's.
    pub(crate) fn call_host(&mut self, index: u32) -> Result<Next, Refusal> {
        let grant = self.grant()?;
        let Some(function) = grant.functions.get(index as usize) else {
            return refuse(Errno::EINVAL, format!("function {index} of the host is not granted"));
        };
        self.check_unlocked()?;
        if !self.state.references.is_empty() {
            // (The function may never return: by longjmp(3), or as its thread's last.)
            let message = format!("give back what is reserved before {} is called", function.symbol);
            return refuse(Errno::EINVAL, message);
        }
        for (register, parameter) in (1..).zip(&function.parameters) {
            self.host_argument(&grant, function, register, parameter)?;
        }
        self.note_call_word(u64::from(index))?;
        // (The function may have changed what was checked.)
        self.forget_discriminators(|_| true);
        let result = match (function.result, &function.ensures) {
            (None, _) => None,
            (Some(HostValue::Object { object, nullable }), _) => {
                Some(self.host_pointer(object as u32, nullable, Origin::Here))
            }
            (Some(_), Some(values)) => Some(Register::scalar(Scalar::signed(*values.start(), *values.end()))),
            (Some(_), None) => Some(Register::unknown()),
        };
        self.clobber();
        if let Some(result) = result {
            self.write(0, result, [None, None]);
        }
        Ok(Next::To(self.at + 1))
    }

    fn host_argument(
        &mut self,
        grant: &Grant,
        function: &HostFunction,
        register: u8,
        parameter: &HostParameter,
    ) -> Result<(), Refusal> {
        let value = self.read(register)?;
        let name = &function.symbol;
        match parameter {
            HostParameter::Number(values) => {
                if !value.is_scalar() {
                    return deny(format!("R{register} type={} expected=scalar for {name}", value.kind_name()));
                }
                self.decides(&[register]);
                let Scalar { smin, smax, .. } = value.number;
                if smin < *values.start() || smax > *values.end() {
                    return deny(format!(
                        "R{register} argument {register} of {name} has to be in {}..={}, and may be {smin}..={smax} here",
                        values.start(),
                        values.end()
                    ));
                }
            }
            HostParameter::Object { nullable: true, .. } if value.is_null() => self.decides(&[register]),
            HostParameter::Object { type_id, nullable } => {
                let Kind::Host(object) = value.kind else {
                    return deny(format!("R{register} type={} expected=host_ptr for {name}", value.kind_name()));
                };
                let object = object_of(grant, object)?;
                if object.type_id != *type_id {
                    return deny(format!("R{register} is a {}, which is not what {name} wants", object.name));
                }
                if value.number.value() != Some(0) {
                    return deny(format!("R{register} points into a {}, and {name} wants its start", object.name));
                }
                if value.nullable && !nullable {
                    return deny(format!("R{register} may be null, which {name} does not allow"));
                }
            }
        }
        Ok(())
    }

    /// A variable of the host's.
    pub(crate) fn host_variable(&mut self, index: u32) -> Result<Register, Refusal> {
        let grant = self.grant()?;
        let Some(variable) = grant.globals.get(index as usize) else {
            return refuse(Errno::EINVAL, format!("variable {index} of the host is not granted"));
        };
        object_of(&grant, variable.object as u32)?;
        self.note_call_word(grant.functions.len() as u64 + u64::from(index))?;
        Ok(self.host_pointer(variable.object as u32, false, Origin::Variable(index)))
    }

    /// What an extension returns has a verdict.
    pub(crate) fn check_verdict(&mut self, result: &Register) -> Result<(), Refusal> {
        let Some(grant) = self.input.policy.host.clone() else { return Ok(()) };
        if !result.is_scalar() {
            let kind = result.kind_name();
            return refuse(Errno::EINVAL, format!("At program exit the register R0 is not a known value ({kind})"));
        }
        self.decides(&[0]);
        let Scalar { smin, smax, .. } = result.number;
        let mut least = smin;
        let mut values: Vec<_> = grant.verdicts.iter().map(|verdict| verdict.values.clone()).collect();
        values.sort_by_key(|values| *values.start());
        for known in values {
            if !known.contains(&least) {
                continue;
            }
            if *known.end() >= smax {
                return Ok(());
            }
            least = known.end() + 1;
        }
        let mut text = String::new();
        for verdict in &grant.verdicts {
            let _ = write!(text, " {}..={}", verdict.values.start(), verdict.values.end());
        }
        let is_unsigned = smin >= 0 && smax > i64::from(i32::MAX) && u32::try_from(smax).is_ok();
        if is_unsigned && grant.verdicts.iter().any(|verdict| *verdict.values.start() < 0) {
            text.push_str(". (A program with negative results returns `long`: of an `int` the upper 32 bits are 0)");
        }
        refuse(
            Errno::EINVAL,
            format!("At program exit the register R0 may be {smin}..={smax}; the entry has verdicts for{text}"),
        )
    }
}

fn too_large(object: &HostObject) -> Refusal {
    Refusal::new(Errno::EINVAL, format!("elements of a slice of {} are too large", object.name))
}

fn object_of(grant: &Grant, index: u32) -> Result<&HostObject, Refusal> {
    grant.objects.get(index as usize).ok_or_else(|| Refusal::new(Errno::EINVAL, "the grant has no such object"))
}

/// Whether all these bytes are of numbers that may be read, or written, according to the fields that are granted here.
fn check_numbers(
    object: &HostObject,
    granted: &[&HostField],
    touched: Range<u32>,
    write: bool,
) -> Result<(), String> {
    let verb = if write { "written" } else { "read" };
    let is_granted = |field: &&&HostField| if write { field.write } else { field.read };
    let mut at = touched.start;
    while at < touched.end {
        let here = || granted.iter().filter(|field| field.at.contains(&at)).filter(is_granted);
        // (Members of a union that are numbers come before one that is a pointer.)
        let number = here().find(|field| field.value == HostValue::Number);
        let Some(field) = number.or_else(|| here().next()) else {
            let not_checked = not_checked(object, &touched, write);
            return Err(
                not_checked.unwrap_or_else(|| format!("{} is not granted to be {verb}", describe(object, &touched)))
            );
        };
        match field.value {
            HostValue::Number => at = field.at.end,
            HostValue::Object { .. } if write => {
                return Err(format!("{} is a pointer, which an extension cannot write", describe(object, &touched)));
            }
            HostValue::Object { .. } => {
                return Err(format!("{} is a pointer, which is read whole", describe(object, &touched)));
            }
            HostValue::Slice { .. } => {
                return Err(format!(
                    "{} leads to elements that are counted elsewhere; use ring3_dynptr_from_slice",
                    describe(object, &touched)
                ));
            }
        }
    }
    Ok(())
}

/// What has to be checked before these bytes may be touched, if that is what is missing.
fn not_checked(object: &HostObject, touched: &Range<u32>, write: bool) -> Option<String> {
    let mut fields = object.fields.iter().filter(|field| {
        let is_granted = if write { field.write } else { field.read };
        is_granted && !field.when.is_empty() && field.at.start < touched.end && touched.start < field.at.end
    });
    let conditions: Vec<String> =
        fields.by_ref().map(|field| format!("{} if {}", field.name, condition(field))).collect();
    let verb = if write { "written" } else { "read" };
    (!conditions.is_empty()).then(|| {
        format!(
            "off={} size={} of {} is a member of a union. It may be {verb} after a check: {}; compare the whole field, and \
             again after a call or a write that may change it",
            touched.start,
            touched.len(),
            object.name,
            conditions.join(", ")
        )
    })
}

/// Bytes of an object, for people.
fn describe(object: &HostObject, touched: &Range<u32>) -> String {
    let Range { start, end } = touched;
    let field = object.fields.iter().find(|field| field.at.start < *end && *start < field.at.end);
    let name = field.map(|field| format!(" ({})", field.name)).unwrap_or_default();
    format!("off={start} size={} of {}{name}", end - start, object.name)
}
