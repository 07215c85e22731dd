//! Verified programs to position-independent machine code.
//!
//! Runs: in the server, once per program.
//! May touch: the program.
//! Never: compiles what is not [`Verified`]; emits an absolute address or a vector instruction.
//! Start reading at: `compile`, then `translate.rs`.
#![forbid(unsafe_code)]

mod cranelift;
mod emit;
mod liveness;
mod shorten;
mod translate;

use std::fmt;
use std::sync::OnceLock;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, Function, UserExternalName};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget};
use ring3_verifier::Verified;

pub use crate::emit::{Emitter, External, VARIABLES};
use crate::shorten::shorten;
pub use crate::translate::{Part, Translation};

/// Functions begin at multiples of this in the code.
const FUNCTION_ALIGN: usize = 16;
/// Rounds through all loops of one run before the program is ended with 0. The verifier proves that loops end, not that
/// they end soon: `bpf_loop` in `bpf_loop` need not. Eight times what one `bpf_loop` may have.
pub const FUEL: i64 = 64 << 20;

/// How to compile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A secret number if the program's constants are not to stand in the code as they are: nobody is to choose, by writing a
    /// program, what bytes can be executed. As kernel/bpf/core.c:bpf_jit_blind_constants has it, offsets stay.
    pub blinding: Option<u64>,
    /// Rounds through all loops of one run, at most [`FUEL`]: then the run ends with 0. Also those are counted of which the
    /// verifier knows that they end. `None`: [`FUEL`] rounds, counted only where the verifier has not seen all of them.
    pub rounds: Option<u32>,
}

/// What code refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A helper, by number.
    Helper(u32),
    /// A routine of the agent, by symbol.
    Symbol(&'static str),
    /// The GOT word with a map's header address.
    GotHeader(u32),
    /// The GOT word with a map's data address.
    GotData(u32),
}

/// A 32-bit distance to be filled in: `target + addend - place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Place in the code.
    pub offset: u32,
    /// Added to the target.
    pub addend: i64,
    /// What it is the distance to.
    pub target: Target,
}

/// Instructions of Cranelift in a function that is optimised at most. The time grows with their square where numbers depend on
/// each other in a long chain.
const OPTIMISED_MAX: usize = 1 << 16;

/// Machine code that still has to be placed.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// The code, subprograms included.
    pub bytes: Vec<u8>,
    /// Offset of the entry. A tail call goes to offset 0, the entry of programs that have none themselves.
    pub entry: u32,
    /// Offsets of the subprograms, in the program's order, and behind them that of an entry of its own.
    pub functions: Vec<u32>,
    /// Distances to things outside.
    pub relocations: Vec<Relocation>,
    /// Code offset and instruction index, by offset; none if the compiler does not tell.
    pub pc_map: Vec<(u32, u32)>,
}

/// Why a program could not be compiled: a defect of ours.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// Why, in words.
    pub fn new(why: String) -> Error {
        Error(why)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Why code could not be placed.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkError {
    /// Nobody offers this.
    Undefined(Target),
    /// More than 2 GiB away.
    OutOfReach(Target),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Undefined(Target::Helper(id)) => {
                write!(f, "helper bpf_{} has no implementation", ring3_uapi::helper::name(*id).unwrap_or("?"))
            }
            LinkError::Undefined(target) => write!(f, "{target:?} is undefined"),
            LinkError::OutOfReach(target) => write!(f, "{target:?} is out of reach"),
        }
    }
}

impl std::error::Error for LinkError {}

/// Compiles a program.
pub fn compile(program: &Verified, options: &Options) -> Result<Code, Error> {
    let [optimising, plain] = target_isas();
    let mut assembly = Assembly::default();
    let translation = Translation::new(program, options);
    for part in translation.parts() {
        let (function, externals) = cranelift::function(&translation, part, optimising.frontend_config());
        let isa = if function.dfg.num_insts() > OPTIMISED_MAX { plain } else { optimising };
        let start = assembly.add(isa, function, &externals, part != Part::Entry)?;
        if part == Part::Entry {
            assembly.code.entry = start;
        }
    }
    Ok(assembly.finish())
}

/// Functions of a program, laid one behind the other.
#[derive(Default)]
struct Assembly {
    code: Code,
    /// Place, addend and subprogram of distances inside the code.
    local: Vec<(u32, i64, usize)>,
}

impl Assembly {
    /// Compiles a function and puts it behind the others; its offset.
    fn add(
        &mut self,
        isa: &OwnedTargetIsa,
        function: Function,
        externals: &[External],
        located: bool,
    ) -> Result<u32, Error> {
        let mut context = Context::for_function(function);
        let compiled = context
            .compile(isa.as_ref(), &mut ControlPlane::default())
            .map_err(|error| Error(format!("{:?}", error.inner)))?;
        let code = &mut self.code;
        code.bytes.resize(code.bytes.len().next_multiple_of(FUNCTION_ALIGN), 0xcc);
        let base = code.bytes.len() as u32;
        code.functions.push(base);
        let linked: Vec<u32> = compiled.buffer.relocs().iter().map(|relocation| relocation.offset).collect();
        let short = shorten(compiled.code_buffer(), &linked)?;
        code.bytes.extend_from_slice(&short.bytes);
        let locations = compiled.buffer.get_srclocs_sorted().iter();
        // What Cranelift adds of its own (prologues) has no place in the program.
        for location in locations.filter(|location| located && !location.loc.is_default()) {
            code.pc_map.push((base + short.place(location.start), location.loc.bits()));
        }
        let relocations = compiled.buffer.relocs().to_vec();
        for relocation in relocations {
            if !matches!(relocation.kind, Reloc::X86GOTPCRel4 | Reloc::X86CallPCRel4 | Reloc::X86CallPLTRel4) {
                return Err(Error(format!("unexpected relocation {:?}", relocation.kind)));
            }
            let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = relocation.target else {
                return Err(Error(format!("unexpected target {:?}", relocation.target)));
            };
            let name: &UserExternalName = &context.func.params.user_named_funcs()[name];
            let offset = base + short.place(relocation.offset);
            match externals.get(name.index as usize) {
                Some(External::Outside(target)) => {
                    code.relocations.push(Relocation { offset, addend: relocation.addend, target: *target });
                }
                Some(External::Subprogram(callee)) => {
                    if relocation.kind == Reloc::X86GOTPCRel4 {
                        relax(&mut code.bytes[offset as usize - 2])?;
                    }
                    self.local.push((offset, relocation.addend, *callee));
                }
                None => return Err(Error("a name without a meaning".into())),
            }
        }
        Ok(base)
    }

    fn finish(mut self) -> Code {
        for (offset, addend, callee) in self.local {
            let distance = i64::from(self.code.functions[callee]) + addend - i64::from(offset);
            self.code.bytes[offset as usize..offset as usize + 4].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        self.code
    }
}

impl Code {
    /// The code as it must lie at offset `at`; `resolve` gives the offset of a target from the same base.
    pub fn link(&self, at: u64, resolve: &dyn Fn(Target) -> Option<u64>) -> Result<Vec<u8>, LinkError> {
        let mut bytes = self.bytes.clone();
        for relocation in &self.relocations {
            let target = resolve(relocation.target).ok_or(LinkError::Undefined(relocation.target))?;
            let place = at + u64::from(relocation.offset);
            let distance = (target as i64).wrapping_add(relocation.addend).wrapping_sub(place as i64);
            let distance = i32::try_from(distance).map_err(|_| LinkError::OutOfReach(relocation.target))?;
            let offset = relocation.offset as usize;
            bytes[offset..offset + 4].copy_from_slice(&distance.to_le_bytes());
        }
        Ok(bytes)
    }
}

/// A subprogram's address is loaded from a GOT entry, which it has not: the opcode of `mov` becomes that of `lea`, as
/// linkers do for `R_X86_64_REX_GOTPCRELX`.
fn relax(opcode: &mut u8) -> Result<(), Error> {
    const MOV: u8 = 0x8b;
    const LEA: u8 = 0x8d;
    if *opcode != MOV {
        return Err(Error(format!("opcode {opcode:#x} loads an address")));
    }
    *opcode = LEA;
    Ok(())
}

/// x86-64 with nothing beyond the baseline, of which only general registers are used: with optimisation and without.
fn target_isas() -> &'static [OwnedTargetIsa; 2] {
    static ISAS: OnceLock<[OwnedTargetIsa; 2]> = OnceLock::new();
    ISAS.get_or_init(|| ["speed", "none"].map(target_isa))
}

fn target_isa(opt_level: &str) -> OwnedTargetIsa {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", opt_level),
        ("is_pic", "true"),
        ("enable_probestack", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("unwind_info", "false"),
        ("enable_alias_analysis", "true"),
    ] {
        flags.set(name, value).expect("a setting of Cranelift");
    }
    cranelift_codegen::isa::lookup_by_name("x86_64-unknown-linux-gnu")
        .expect("built with x86")
        .finish(settings::Flags::new(flags))
        .expect("valid flags")
}
