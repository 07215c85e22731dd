//! Structures that one process writes while others read them: one definition gives the atomic view and the plain value.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// What a field is as a plain number.
pub trait Field {
    /// The number.
    type Value: Copy + Default;
}

impl Field for u32 {
    type Value = u32;
}

impl Field for u64 {
    type Value = u64;
}

impl Field for AtomicU32 {
    type Value = u32;
}

impl Field for AtomicU64 {
    type Value = u64;
}

/// Defines a structure, and the same with plain numbers for atomics, to write it as a whole or to have read it from another process.
macro_rules! shared {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident, as numbers $value:ident { $($(#[$doc:meta])* pub $field:ident: $of:ty,)* }
    ) => {
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name { $($(#[$doc])* pub $field: $of,)* }

        #[doc = concat!("[`", stringify!($name), "`] as plain numbers.")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
        pub struct $value { $($(#[$doc])* pub $field: <$of as $crate::shared::Field>::Value,)* }

        const _: () = {
            assert!(size_of::<$name>() == size_of::<$value>());
            $(assert!(core::mem::offset_of!($name, $field) == core::mem::offset_of!($value, $field));)*
        };
    };
}
pub(crate) use shared;
