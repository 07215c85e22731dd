//! Ends of threads as events: where the running kernel's `task_struct` has what they end with.

use ring3_btf::{Btf, KERNEL_BTF, kind};
use ring3_recorder::{Recipe, ends};

/// What `-e` calls them.
pub const EVENT: &str = "tracepoint:sched:sched_process_exit";

/// The recipe of these events.
///
/// # Errors
/// The kernel's types cannot be read, or do not tell.
pub fn recipe(id: u32) -> Result<Recipe, String> {
    let bytes = std::fs::read(KERNEL_BTF).map_err(|error| format!("cannot read {KERNEL_BTF}: {error}"))?;
    let types = Btf::parse_any(bytes).map_err(|(_, why)| format!("{KERNEL_BTF}: {why}"))?;
    let task = types.find(b"task_struct", kind::STRUCT);
    let member = task.and_then(|task| types.members(task).find(|member| member.name == b"exit_code"));
    let member = member.ok_or_else(|| format!("{KERNEL_BTF}: task_struct has no exit_code"))?;
    Ok(ends::recipe(id, member.at_bits / 8))
}
