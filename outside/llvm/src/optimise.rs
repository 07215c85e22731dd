//! Text to an object file, by LLVM; and the program that does it for others.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetMachineOptions, TargetTriple,
};
use rustix::process::{Signal, set_parent_process_death_signal};

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// The first takes away what was only said in case, of which one might be the stack's address.
const PASSES: &str = "function(dce),default<O3>";

/// Position-independent, for x86-64; which registers are used the functions say themselves.
fn machine() -> Result<TargetMachine, String> {
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| Target::initialize_x86(&InitializationConfig::default()));
    let triple = TargetTriple::create(TRIPLE);
    let target = Target::from_triple(&triple).map_err(|error| error.to_string())?;
    let options = TargetMachineOptions::new()
        .set_level(OptimizationLevel::Aggressive)
        .set_reloc_mode(RelocMode::PIC)
        .set_code_model(CodeModel::Small);
    target.create_target_machine_from_options(&triple, options).ok_or_else(|| format!("LLVM has no {TRIPLE}"))
}

/// What a text says in place of the processor's name.
const THIS_PROCESSOR: &str = r#""tune-cpu"="native""#;

/// What LLVM calls this processor: how long instructions take there is known, and loops are unrolled for it.
fn processor_name() -> &'static str {
    // In a virtual machine asking takes long.
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| TargetMachine::get_host_cpu_name().to_string())
}

/// The bytes of the object file. `"tune-cpu"="native"` means this processor.
///
/// # Errors
/// LLVM refuses the text.
pub fn object(text: &str) -> Result<Vec<u8>, String> {
    let (context, machine) = (Context::create(), machine()?);
    let text = text.replace(THIS_PROCESSOR, &format!(r#""tune-cpu"="{}""#, processor_name()));
    let buffer = MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "program");
    let module = context.create_module_from_ir(buffer).map_err(|error| error.to_string())?;
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    let options = PassBuilderOptions::create();
    // There are no vectors.
    options.set_loop_vectorization(false);
    options.set_loop_slp_vectorization(false);
    if cfg!(debug_assertions) {
        module.verify().map_err(|error| error.to_string())?;
    }
    module.run_passes(PASSES, &machine, options).map_err(|error| error.to_string())?;
    let object = machine.write_to_memory_buffer(&module, FileType::Object).map_err(|error| error.to_string())?;
    Ok(object.as_slice().to_vec())
}

/// The program `ring3-llvm`: text from the standard input to an object file on the standard output. If it fails, the output is the
/// reason.
pub fn run() -> ExitCode {
    // (If the parent has died before this, writing fails.)
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string());
    let result = read.and_then(|_| object(&text));
    let bytes = result.as_deref().unwrap_or_else(|why| why.as_bytes());
    let is_written = std::io::stdout().write_all(bytes).is_ok();
    if is_written && result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
