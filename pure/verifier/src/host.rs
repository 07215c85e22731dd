//! What an extension may touch of the program that it extends, its host: a value that is part of the policy.
//!
//! The model is the Extension Interface Model ("Extending Applications Safely and Efficiently", OSDI 2025): each field, global variable
//! and function of the host is a resource; a class grants some at one entry. Here the grants are resolved: sizes, offsets and
//! numbers, no names to look up. Objects form a graph: a field that is a pointer leads to the object behind it, so that what may be
//! read through one path may be hidden on another.

use std::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};

/// All that an extension is granted at its entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// What pointers lead to. Other parts name them by their index.
    pub objects: Vec<HostObject>,
    /// What lies behind r1, 8 bytes each: the arguments of the entry's function, or at its end its result. (What follows that, the
    /// arguments, is gone then, and cannot be read.)
    pub arguments: Vec<HostValue>,
    /// Variables.
    pub globals: Vec<HostGlobal>,
    /// Functions that may be called.
    pub functions: Vec<HostFunction>,
    /// What the program's result means. Values that none of them has are refused.
    pub verdicts: Vec<Verdict>,
}

/// A structure of the host's, as far as it is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostObject {
    /// Its type, for messages: `struct ngx_http_request_s`.
    pub name: String,
    /// Its type, by which parameters of functions are compared.
    pub type_id: u32,
    /// Bytes.
    pub size: u32,
    /// The parts of it that are granted, in order. One is over another only if both have different [`HostField::when`].
    pub fields: Vec<HostField>,
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostField {
    /// The name within the object, for messages: `headers_in.host`.
    pub name: String,
    /// Where it lies, bytes.
    pub at: Range<u32>,
    /// It may be read.
    pub read: bool,
    /// It may be written; only numbers can be.
    pub write: bool,
    /// What it is.
    pub value: HostValue,
    /// What must have been checked before it is touched; several for unions in unions.
    pub when: Vec<Discriminator>,
}

/// Which member a union has, by another field of the same object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discriminator {
    /// The field's name within the object, for messages.
    pub name: String,
    /// Where it lies, bytes: 1, 2, 4 or 8.
    pub at: Range<u32>,
    /// The values for which the union has the member, as numbers without a sign.
    pub values: RangeInclusive<u64>,
}

/// What a word of the host's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostValue {
    /// A number, or an array of numbers.
    Number,
    /// A pointer to an object.
    Object {
        /// Its index.
        object: usize,
        /// It may be null.
        nullable: bool,
    },
    /// A pointer to bytes, whose number is in another field of the same object. Programs see them through a dynptr
    /// (`ring3_dynptr_from_slice`).
    Slice {
        /// Where in the object the number is, bytes.
        length_at: u32,
        /// Bytes of the field with the number: 4 or 8.
        length_bytes: u32,
        /// Bytes of an element, of which that is the number.
        element_bytes: u32,
        /// The bytes may be written.
        write: bool,
    },
}

/// A variable of the host's, which an extension names as `extern ... __ksym`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostGlobal {
    /// Its symbol.
    pub symbol: String,
    /// The object that it is (a plain variable is an object of one field).
    pub object: usize,
}

/// A function of the host's, which an extension declares as `extern ... __ksym`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFunction {
    /// Its symbol.
    pub symbol: String,
    /// At most five.
    pub parameters: Vec<HostParameter>,
    /// None: `void`.
    pub result: Option<HostValue>,
    /// Bytes of a numeric result: 1, 2, 4 or 8. (The others of the register are anything.)
    pub result_bytes: u32,
    /// It has a sign.
    pub result_signed: bool,
    /// Values of a numeric result; another one ends the extension's run.
    pub ensures: Option<RangeInclusive<i64>>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostParameter {
    /// A number in this range.
    Number(RangeInclusive<i64>),
    /// A pointer to an object of this type.
    Object {
        /// [`HostObject::type_id`].
        type_id: u32,
        /// Null is allowed.
        nullable: bool,
    },
}

/// What results of a program mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The results.
    pub values: RangeInclusive<i64>,
    /// What is done.
    pub action: Action,
}

/// What is done after an extension's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The function runs; at its end: its result stays.
    Continue,
    /// The function does not run and returns the program's result; at its end: that replaces its result.
    ReturnVerdict,
    /// The same with this number as the result.
    Return(i64),
}
