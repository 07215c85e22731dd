//! The macros, and what an argument can be.
//!
//! A tracepoint is the function `place`, which is made for each use, generic over the types of its arguments, and inlined. So the
//! assembler gets sizes and kinds of types that only the compiler knows. Notes: pure/elf/src/tracepoint.rs, include/ring3/trace.h.
//!
//! The macros' `unsafe` is in the program that uses them. What they assemble is a nop and, for `ring3_trace_enabled!`, a comparison
//! with a word of 2 bytes that they define themselves.

mod sealed {
    pub trait Sealed {}
}

/// What one argument of [`ring3_trace!`](crate::ring3_trace) can be: an integer, `bool`, `char`, `f32`, `f64` or a thin pointer or
/// reference.
#[diagnostic::on_unimplemented(
    message = "a tracepoint's argument cannot be of type `{Self}`",
    note = "it can be an integer of at most 8 bytes, `bool`, `char`, `f32`, `f64`, or a pointer or reference to a sized value",
    note = "write `name: &str = ...` for text, and `name: &[u8] = ...` for bytes; else pass a field, or a reference"
)]
pub trait Field: sealed::Sealed + Copy {
    /// Bytes; negative if it is signed.
    #[doc(hidden)]
    const SIZE: i32;
    /// What it is.
    #[doc(hidden)]
    const KIND: u8;
    #[doc(hidden)]
    fn word(self) -> u64;
}

macro_rules! fields {
    ($($field:ty: $size:literal, $kind:literal, $value:ident => $word:expr;)*) => {
        $(
            impl sealed::Sealed for $field {}
            impl Field for $field {
                const SIZE: i32 = $size;
                const KIND: u8 = $kind;
                #[inline(always)]
                fn word(self) -> u64 {
                    let $value = self;
                    $word
                }
            }
        )*
    };
}

fields! {
    i8: -1, 1, it => u64::from(it.cast_unsigned());
    i16: -2, 1, it => u64::from(it.cast_unsigned());
    i32: -4, 1, it => u64::from(it.cast_unsigned());
    i64: -8, 1, it => it.cast_unsigned();
    isize: -8, 1, it => it.cast_unsigned() as u64;
    u8: 1, 2, it => u64::from(it);
    u16: 2, 2, it => u64::from(it);
    u32: 4, 2, it => u64::from(it);
    u64: 8, 2, it => it;
    usize: 8, 2, it => it as u64;
    char: 4, 2, it => u64::from(u32::from(it));
    bool: 1, 3, it => u64::from(it);
    f32: 4, 6, it => u64::from(it.to_bits());
    f64: 8, 6, it => it.to_bits();
}

impl<T> sealed::Sealed for *const T {}
impl<T> sealed::Sealed for *mut T {}
impl<T> sealed::Sealed for &T {}

impl<T> Field for *const T {
    const SIZE: i32 = 8;
    const KIND: u8 = 4;
    #[inline(always)]
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Field for *mut T {
    const SIZE: i32 = 8;
    const KIND: u8 = 4;
    #[inline(always)]
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Field for &T {
    const SIZE: i32 = 8;
    const KIND: u8 = 4;
    #[inline(always)]
    fn word(self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }
}

/// Reports an event: `ring3_trace!(provider, name, field = value, ...)`.
///
/// `provider` and `name` are identifiers. A field is one of
///
/// - `field = value`, of a type that is a [`Field`]; `field` alone is a variable of that name;
/// - `field: &str = value` and `field: &[u8] = value`, text or bytes with their length: two of the 12 arguments that there can be.
///
/// It makes a nop. Values are computed whether somebody traces or not. One that is not in a register, or is shorter than
/// a register and not extended, costs the instruction that brings it there: Rust's `asm!` takes nothing in memory. See
/// [`ring3_trace_enabled!`](crate::ring3_trace_enabled) for what is dear.
///
/// A crate that says `#![forbid(unsafe_code)]` cannot use it (`deny` can): the macro assembles a nop.
#[macro_export]
macro_rules! ring3_trace {
    ($provider:ident, $name:ident $(,)?) => {
        $crate::ring3_trace!(@take $provider $name [] "" {} {} {} {} {} {} {} {};)
    };
    ($provider:ident, $name:ident, $($fields:tt)+) => {
        $crate::ring3_trace!(
            @take $provider $name
            [(a A ak as_) (b B bk bs) (c C ck cs) (d D dk ds) (e E ek es) (f F fk fs)
             (g G gk gs) (h H hk hs) (i I ik is) (j J jk js) (k K kk ks) (l L lk ls)]
            "" {} {} {} {} {} {} {} {};
            $($fields)+
        )
    };

    // Text and bytes: pointer and length.
    (@take $provider:ident $name:ident [($a:ident $A:ident $ak:ident $as:ident) ($b:ident $B:ident $bk:ident $bs:ident) $($free:tt)*]
     $space:literal {$($let:tt)*} {$($generic:tt)*} {$($param:tt)*} {$($pass:tt)*} {$($place:tt)*} {$($kind:tt)*} {$($named:tt)*}
     {$($operand:tt)*}; $field:ident: &$type:tt = $value:expr $(, $($rest:tt)*)?) => {
        $crate::ring3_trace!(
            @take $provider $name [$($free)*] " "
            {$($let)* let $a: &$type = $value;}
            {$($generic)*}
            {$($param)* $a: *const u8, $b: usize,}
            {$($pass)* $a.as_ptr(), $a.len(),}
            {$($place)* ::core::concat!(".ascii \"", $space, "8@{", ::core::stringify!($a), "} 8@{", ::core::stringify!($b), "}\""),}
            {$($kind)* ".byte 5, 7",}
            {$($named)*, ", ", ::core::stringify!($field), ", RING3_LENGTH()"}
            {$($operand)* $a = in(reg) $a, $b = in(reg) $b,};
            $($($rest)*)?
        )
    };
    (@take $provider:ident $name:ident [($a:ident $A:ident $ak:ident $as:ident) $($free:tt)*]
     $space:literal {$($let:tt)*} {$($generic:tt)*} {$($param:tt)*} {$($pass:tt)*} {$($place:tt)*} {$($kind:tt)*} {$($named:tt)*}
     {$($operand:tt)*}; $field:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::ring3_trace!(
            @take $provider $name [$($free)*] " "
            {$($let)* let $a = $value;}
            {$($generic)* $A: $crate::Field,}
            {$($param)* $a: $A,}
            {$($pass)* $a,}
            {$($place)*
             ::core::concat!(".ascii \"", $space, "{", ::core::stringify!($as), "}@{", ::core::stringify!($a), "}\""),}
            {$($kind)* ::core::concat!(".byte {", ::core::stringify!($ak), "}"),}
            {$($named)*, ", ", ::core::stringify!($field)}
            {$($operand)* $a = in(reg) $crate::Field::word($a),
             $as = const <$A as $crate::Field>::SIZE, $ak = const <$A as $crate::Field>::KIND,};
            $($($rest)*)?
        )
    };
    (@take $provider:ident $name:ident $free:tt $space:literal $let:tt $generic:tt $param:tt $pass:tt $place:tt $kind:tt $named:tt
     $operand:tt; $field:ident $(, $($rest:tt)*)?) => {
        $crate::ring3_trace!(
            @take $provider $name $free $space $let $generic $param $pass $place $kind $named $operand;
            $field = $field $(, $($rest)*)?
        )
    };
    (@take $provider:ident $name:ident $free:tt $space:literal {$($let:tt)*} {$($generic:tt)*} {$($param:tt)*} {$($pass:tt)*}
     {$($place:tt)*} {$($kind:tt)*} {$($named:tt)*} {$($operand:tt)*};) => {{
        #[inline(always)]
        #[allow(unsafe_code, clippy::too_many_arguments)]
        fn place<$($generic)*>($($param)*) {
            // SAFETY: the code is a nop; the other sections are notes and a semaphore that no code but a comparison reads.
            unsafe {
                ::core::arch::asm!(
                    // (Why these bytes: include/ring3/trace.h.)
                    "8990: .byte 0x67, 0x67, 0x67, 0x67, 0x67, 0x90",
                    ".pushsection .note.stapsdt,\"?\",@note",
                    ".balign 4",
                    ".4byte 8992f-8991f, 8994f-8993f, 3",
                    "8991: .asciz \"stapsdt\"",
                    "8992: .balign 4",
                    ::core::concat!(
                        "8993: .8byte 8990b, _.stapsdt.base, ring3.semaphore.",
                        ::core::stringify!($provider), ".", ::core::stringify!($name)
                    ),
                    ::core::concat!(".asciz \"", ::core::stringify!($provider), "\""),
                    ::core::concat!(".asciz \"", ::core::stringify!($name), "\""),
                    $($place)*
                    ".byte 0",
                    "8994: .balign 4",
                    ".popsection",
                    ".ifndef _.stapsdt.base",
                    ".pushsection .stapsdt.base,\"aG\",@progbits,.stapsdt.base,comdat",
                    ".weak _.stapsdt.base",
                    ".hidden _.stapsdt.base",
                    "_.stapsdt.base: .space 1",
                    ".size _.stapsdt.base, 1",
                    ".popsection",
                    ".endif",
                    $crate::ring3_trace_semaphore!($provider $name),
                    ".pushsection .note.ring3.trace,\"?\",@note",
                    ".balign 4",
                    ".4byte 6, 8996f-8995f, 2",
                    ".asciz \"ring3\"",
                    ".balign 4",
                    "8995: .8byte 8990b, _.stapsdt.base",
                    $($kind)*
                    "8996: .balign 4",
                    ".4byte 6, 8998f-8997f, 3",
                    ".asciz \"ring3\"",
                    ".balign 4",
                    "8997: .8byte 8990b, _.stapsdt.base",
                    ::core::concat!(
                        ".asciz \"", ::core::stringify!($provider), ", ", ::core::stringify!($name) $($named)*, "\""
                    ),
                    "8998: .balign 4",
                    ".popsection",
                    $($operand)*
                    options(att_syntax, readonly, nostack, preserves_flags)
                )
            }
        }
        $($let)*
        place($($pass)*);
    }};

    (@take $provider:ident $name:ident [$($few:tt)?] $space:literal $let:tt $generic:tt $param:tt $pass:tt $place:tt $kind:tt $named:tt
     $operand:tt; $($rest:tt)+) => {
        ::core::compile_error!(
            "ring3_trace! takes at most 12 arguments, and text counts twice: pass a reference to a struct, or report two events"
        )
    };
    (@take $($other:tt)*) => {
        ::core::compile_error!(
            "ring3_trace!(provider, name, field = value, ...): a field is `name = value`, `name: &str = value`, `name: &[u8] = value` or \
             `name`"
        )
    };
    ($($other:tt)*) => {
        ::core::compile_error!("ring3_trace! wants a provider and a name first: ring3_trace!(shop, order, id = order.id)")
    };
}

/// The semaphore of an event, defined where it is not yet: text for the assembler.
#[doc(hidden)]
#[macro_export]
macro_rules! ring3_trace_semaphore {
    ($provider:ident $name:ident) => {
        $crate::ring3_trace_semaphore!(@ "ring3.semaphore.", ::core::stringify!($provider), ".", ::core::stringify!($name))
    };
    (@ $($symbol:expr),*) => {
        ::core::concat!(
            ".ifndef ", $($symbol),*, "\n",
            ".pushsection .probes,\"awG\",@progbits,", $($symbol),*, ",comdat\n",
            ".balign 2\n",
            ".weak ", $($symbol),*, "\n",
            ".hidden ", $($symbol),*, "\n",
            ".type ", $($symbol),*, ", @object\n",
            ".size ", $($symbol),*, ", 2\n",
            $($symbol),*, ": .zero 2\n",
            ".popsection\n",
            ".endif\n"
        )
    };
}

/// Whether a tool traces the event in this process: `ring3_trace_enabled!(provider, name)`, a comparison with memory and a branch that
/// is not taken.
#[macro_export]
macro_rules! ring3_trace_enabled {
    ($provider:ident, $name:ident) => {{
        #[inline(always)]
        #[allow(unsafe_code)]
        fn is_enabled() -> bool {
            // SAFETY: the code reads the 2 bytes that it defines, and goes to one of two places.
            unsafe {
                ::core::arch::asm!(
                    ::core::concat!(
                        "cmpw $0, ring3.semaphore.", ::core::stringify!($provider), ".", ::core::stringify!($name), "(%rip)"
                    ),
                    "jne {enabled}",
                    $crate::ring3_trace_semaphore!($provider $name),
                    enabled = label { return true },
                    options(att_syntax, readonly, nostack)
                )
            }
            false
        }
        is_enabled()
    }};
}
