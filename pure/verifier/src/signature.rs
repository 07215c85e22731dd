//! Functions of the application that runs a program: what they take and give, and calls of them.

use std::ops::RangeInclusive;

use ring3_uapi::Errno;

use crate::explore::{Explorer, Next};
use crate::helper::is_memory;
use crate::memory::Access;
use crate::scalar::Scalar;
use crate::state::{Kind, Register};
use crate::{Refusal, refuse};

/// The number of the first function of a [`crate::Policy`] in calls (`BPF_CALL`); the next one's is one more. Neither a helper's
/// nor a kernel function's number is as large, nor one that stands for a function that was not found.
pub const FUNCTION_FIRST: u32 = 1 << 30;
/// Arguments of a function at most: r1 to r5.
pub const PARAMETERS_MAX: usize = 5;
/// Bytes of memory that one argument names at most.
const MEMORY_BYTES_MAX: u32 = 1 << 29;

/// A function of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its name, for messages and for objects that declare it.
    pub name: String,
    /// The number by which `callx` names it, if it has one.
    pub number: Option<u32>,
    /// What it takes, from r1 on; at most [`PARAMETERS_MAX`].
    pub parameters: Vec<Parameter>,
    /// What it returns.
    pub result: Returned,
}

/// What an argument must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Any value that was written. A pointer is as good as a number: the function gets what the register holds.
    Anything,
    /// A number in this range.
    Number(RangeInclusive<i64>),
    /// r1 as the program got it, if that is a context of fields.
    Context,
    /// A pointer to so many bytes: of the context's memory, of the stack, of a map's value or key, or of what a function returned.
    Memory {
        /// How many, not 0.
        bytes: u32,
        /// What the function does with them.
        how: Use,
    },
    /// The same; the next parameter is a [`Parameter::Size`].
    Buffer {
        /// What the function does with the bytes.
        how: Use,
    },
    /// How many bytes the [`Parameter::Buffer`] before it has: a number from 0 to this.
    Size {
        /// At most.
        max: u32,
    },
}

/// What a function does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads all of it.
    Reads,
    /// Writes all of it, and reads nothing.
    Fills,
    /// Reads it and may write it.
    Changes,
}

/// What a function returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing: r0 cannot be read.
    Nothing,
    /// A number in this range. Whoever calls the function sees to it that it is.
    Number(RangeInclusive<i64>),
    /// The address of so many bytes that stay there while the program runs.
    Memory {
        /// How many.
        bytes: u32,
        /// Programs may write them.
        write: bool,
        /// It may be null.
        nullable: bool,
    },
}

impl Signature {
    /// Whether it is one that can be called.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.parameters.len() > PARAMETERS_MAX {
            return Err(format!("{} has more than {PARAMETERS_MAX} parameters", self.name));
        }
        for (index, parameter) in self.parameters.iter().enumerate() {
            let next = self.parameters.get(index + 1);
            let previous = index.checked_sub(1).and_then(|index| self.parameters.get(index));
            let wrong = match parameter {
                Parameter::Buffer { .. } if !matches!(next, Some(Parameter::Size { .. })) => {
                    "is a buffer, and no size follows it"
                }
                Parameter::Size { .. } if !matches!(previous, Some(Parameter::Buffer { .. })) => {
                    "is a size, and no buffer is before it"
                }
                Parameter::Size { max } if *max > MEMORY_BYTES_MAX => "may be larger than 512 MiB",
                Parameter::Memory { bytes, .. } if *bytes == 0 || *bytes > MEMORY_BYTES_MAX => {
                    "is memory of no bytes, or of more than 512 MiB"
                }
                Parameter::Number(range) if range.is_empty() => "is a number in an empty range",
                _ => continue,
            };
            return Err(format!("parameter {} of {} {wrong}", index + 1, self.name));
        }
        match &self.result {
            Returned::Number(range) if range.is_empty() => {
                Err(format!("the result of {} has an empty range", self.name))
            }
            Returned::Memory { bytes, .. } if *bytes == 0 || *bytes > MEMORY_BYTES_MAX => {
                Err(format!("{} returns memory of no bytes, or of more than 512 MiB", self.name))
            }
            _ => Ok(()),
        }
    }
}

impl<'a> Explorer<'a> {
    /// The function of the application with this number in calls, if there is one.
    pub(crate) fn function(&self, id: u32) -> Option<&'a Signature> {
        self.input.policy.functions.get(id.checked_sub(FUNCTION_FIRST)? as usize)
    }

    /// The number in calls of the function that `callx` names by this one.
    pub(crate) fn function_numbered(&self, number: u32) -> Option<u32> {
        let mut functions = self.input.policy.functions.iter();
        let index = functions.position(|function| function.number == Some(number))?;
        Some(FUNCTION_FIRST + index as u32)
    }

    pub(crate) fn call_function(&mut self, function: &Signature) -> Result<Next, Refusal> {
        self.check_unlocked()?;
        for (register, parameter) in (1u8..).zip(&function.parameters) {
            self.parameter(function, register, parameter)?;
        }
        let result = match function.result {
            Returned::Nothing => None,
            Returned::Number(ref range) => Some(Register::scalar(Scalar::signed(*range.start(), *range.end()))),
            Returned::Memory { bytes, write, nullable } => {
                let memory = Register::pointer(Kind::Memory { bytes, write, record: false });
                Some(if nullable { memory.or_null(self.new_id()) } else { memory })
            }
        };
        self.clobber();
        if let Some(result) = result {
            self.write(0, result, [None, None]);
        }
        Ok(Next::To(self.at + 1))
    }

    fn parameter(&mut self, function: &Signature, register: u8, parameter: &Parameter) -> Result<(), Refusal> {
        let value = self.read(register)?;
        let name = &function.name;
        let wants = |what: String| {
            refuse(Errno::EACCES, format!("R{register} type={}: {name} wants {what}", value.kind_name()))
        };
        match *parameter {
            Parameter::Anything => self.note_leaving(&value),
            Parameter::Number(ref range) => {
                let Scalar { smin, smax, .. } = value.number;
                if !value.is_scalar() {
                    return wants(format!("a number from {} to {}", range.start(), range.end()));
                }
                self.decides(&[register]);
                if !range.contains(&smin) || !range.contains(&smax) {
                    return refuse(
                        Errno::EACCES,
                        format!(
                            "R{register} is from {smin} to {smax}: {name} wants a number from {} to {}",
                            range.start(),
                            range.end()
                        ),
                    );
                }
            }
            Parameter::Context => {
                if value.kind != Kind::Context || value.number.value() != Some(0) {
                    return wants("the context as the program got it".into());
                }
                self.note_leaving(&value);
            }
            Parameter::Memory { bytes, how } => self.function_uses(register, &value, bytes, how, true, name)?,
            Parameter::Buffer { .. } => {}
            Parameter::Size { max } => {
                if !value.is_scalar() {
                    return wants("a number of bytes".into());
                }
                self.decides(&[register]);
                if value.number.smin < 0 || value.number.umax > u64::from(max) {
                    let Scalar { smin, smax, .. } = value.number;
                    return refuse(
                        Errno::EACCES,
                        format!("R{register} is from {smin} to {smax}: {name} wants 0 to {max} bytes"),
                    );
                }
                let Some(Parameter::Buffer { how }) = function.parameters.get(usize::from(register) - 2) else {
                    return refuse(Errno::EFAULT, "a size without memory");
                };
                let pointer = self.read(register - 1)?;
                let is_exact = value.number.value().is_some();
                self.function_uses(register - 1, &pointer, value.number.umax as u32, *how, is_exact, name)?;
            }
        }
        Ok(())
    }

    /// A function reads or writes so many bytes, or perhaps fewer if `is_exact` is false.
    fn function_uses(
        &mut self,
        register: u8,
        pointer: &Register,
        bytes: u32,
        how: Use,
        is_exact: bool,
        name: &str,
    ) -> Result<(), Refusal> {
        if !is_memory(pointer) {
            let kind = pointer.kind_name();
            return refuse(Errno::EACCES, format!("R{register} type={kind}: {name} wants a pointer to memory"));
        }
        let writes: &[bool] = match how {
            Use::Reads => &[false],
            Use::Fills => &[true],
            Use::Changes => &[false, true],
        };
        for write in writes.iter().copied() {
            self.callee_access(Access { register, off: 0, bytes, write }, pointer, is_exact)?;
        }
        Ok(())
    }
}
