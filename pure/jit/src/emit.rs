//! What the translator says and an engine does: Cranelift in `cranelift.rs`, LLVM in a crate of its own. What BPF's
//! instructions mean is said once, in `translate.rs`; here is only what processors can do.

use ring3_isa::{AluOp, AtomicOp, Cond, Size};

use crate::Target;

/// What a name in the code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum External {
    /// Something that the code is linked with.
    Outside(Target),
    /// A subprogram of the same program, by index.
    Subprogram(usize),
}

/// Variables that a function has: r0 to r9, and the environment.
pub const VARIABLES: usize = 11;

/// Makes one function: what is said is done in this order, in the block that was begun last.
///
/// Values have a [`Size`]; truths, which only comparisons make, are for `select`, `branch` and `compute` of truths. All
/// variables are set in the first block.
pub trait Emitter {
    /// A number.
    type Value: Copy;
    /// A place that can be jumped to.
    type Block: Copy;

    /// What follows does what the instruction at this index wants.
    fn locate(&mut self, at: usize);
    /// Begins the function's first block: the parameters, of 64 bits.
    fn enter(&mut self) -> Vec<Self::Value>;
    /// A block, which is to be begun once.
    fn block(&mut self) -> Self::Block;
    /// What follows is in this block.
    fn begin(&mut self, block: Self::Block);
    /// As [`Emitter::begin`], of a block that is hardly ever come to.
    fn begin_rare(&mut self, block: Self::Block);
    /// Memory for as long as the function runs, aligned to 16 bytes: the address of its end.
    fn stack(&mut self, bytes: u32) -> Self::Value;

    /// A variable's value.
    fn get(&mut self, variable: usize) -> Self::Value;
    /// Gives a variable a value of 64 bits.
    fn set(&mut self, variable: usize, value: Self::Value);

    /// A number, cut to the size.
    fn constant(&mut self, size: Size, value: i64) -> Self::Value;
    /// The low bits.
    fn cut(&mut self, value: Self::Value, size: Size) -> Self::Value;
    /// The value in at least as many bits as it has.
    fn extend(&mut self, value: Self::Value, size: Size, signed: bool) -> Self::Value;
    /// Arithmetic on values of one size. It wraps around, shifts take the low bits of their count; divisors are not 0,
    /// nor -1 if the division is signed.
    fn compute(&mut self, op: AluOp, a: Self::Value, b: Self::Value) -> Self::Value;
    /// The upper half of the product of two values of 64 bits.
    fn multiply_high(&mut self, a: Self::Value, b: Self::Value) -> Self::Value;
    /// The same number, of which the compiler is to know nothing.
    fn opaque(&mut self, value: Self::Value) -> Self::Value;
    /// 0 - value.
    fn negate(&mut self, value: Self::Value) -> Self::Value;
    /// The bytes in the other order.
    fn swap(&mut self, value: Self::Value) -> Self::Value;
    /// Whether it holds, of values of one size.
    fn compare(&mut self, cond: Cond, a: Self::Value, b: Self::Value) -> Self::Value;
    /// One of two values; `which` is a truth.
    fn select(&mut self, which: Self::Value, yes: Self::Value, no: Self::Value) -> Self::Value;

    /// What lies at `address + offset`, in 64 bits. It is read once: others may write there meanwhile, and what was
    /// found out about the value must stay true. It need not be aligned.
    fn load(&mut self, size: Size, signed: bool, address: Self::Value, offset: i32) -> Self::Value;
    /// Writes the low bits of a value.
    fn store(&mut self, size: Size, value: Self::Value, address: Self::Value, offset: i32);
    /// A load of `size` that what follows comes after, for other threads too.
    fn load_acquire(&mut self, size: Size, address: Self::Value) -> Self::Value;
    /// A store of a value of its size that comes after what was before.
    fn store_release(&mut self, value: Self::Value, address: Self::Value);
    /// What was there before; all operations but `Cmpxchg`.
    fn atomic(&mut self, op: AtomicOp, address: Self::Value, value: Self::Value) -> Self::Value;
    /// Writes `new` if `expected` is there: what was there before.
    fn compare_exchange(&mut self, address: Self::Value, expected: Self::Value, new: Self::Value) -> Self::Value;

    /// Ends the block.
    fn jump(&mut self, to: Self::Block);
    /// Ends the block: `then` if a truth holds or a value is not 0.
    fn branch(&mut self, which: Self::Value, then: Self::Block, otherwise: Self::Block);
    /// Ends the block and the function.
    fn leave(&mut self, result: Self::Value);

    /// A call: what it returns.
    fn call(&mut self, callee: External, arguments: &[Self::Value]) -> Self::Value;
    /// The address of a subprogram with so many parameters.
    fn address_of(&mut self, subprogram: usize, parameters: usize) -> Self::Value;
    /// A word outside, of which the compiler knows nothing but that it stays the same while the program runs.
    fn got(&mut self, target: Target) -> Self::Value;
}
