//! Extensions of a host: what their class grants, and what their hooks are told of a target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ring3_layout::control::{
    self, EXTENSIONS_MAX, EXTENSIONS_OFFSET, HOST_SYMBOLS_MAX, HostSymbol, VERDICT_CONTINUE, VERDICT_RETURN,
    VERDICT_RETURN_RESULT, VERDICTS_MAX, VerdictEntry,
};
use ring3_uapi::{Errno, helper};
use ring3_verifier::Verified;
use ring3_verifier::host::{Action, Grant, HostFunction, HostValue};
use serde::{Deserialize, Serialize};

use crate::realm::target::Target;
use crate::realm::{Isolation, Point, Refusal};

/// What extensions may do at one entry of a class: programs that a loader brings (`ring3 extend`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExtensionClass {
    /// The class's name, for messages.
    pub name: String,
    /// Names of the programs, as bpf(2) takes them.
    pub programs: BTreeSet<String>,
    /// What it grants.
    pub grant: Grant,
    /// The file of the function that is extended.
    pub file: PathBuf,
    /// Where the function begins in it, bytes.
    pub offset: u64,
    /// Its end is extended instead of its entry.
    pub at_end: bool,
    /// For each function and then each variable of the grant: how far behind the extended function it lies in memory, bytes.
    pub symbols: Vec<i64>,
    /// Helpers that may be called.
    pub helpers: Vec<u32>,
    /// Instructions that one run may take.
    pub insns_max: u64,
    /// How its maps are kept from its hosts.
    pub isolation: Isolation,
}

impl ExtensionClass {
    /// Whether the parts fit together: they come from another process.
    pub fn check(&self) -> Result<(), String> {
        let Grant { objects, arguments, globals, functions, verdicts } = &self.grant;
        let is_known = |value: &HostValue| match value {
            HostValue::Object { object, .. } => *object < objects.len(),
            HostValue::Number | HostValue::Slice { .. } => true,
        };
        let fields = objects.iter().flat_map(|object| &object.fields);
        let results = functions.iter().filter_map(|function| function.result.as_ref());
        if !fields.map(|field| &field.value).chain(arguments).chain(results).all(is_known)
            || globals.iter().any(|variable| variable.object >= objects.len())
        {
            return Err("the class names an object that it does not describe".into());
        }
        if self.symbols.len() != functions.len() + globals.len() {
            return Err("the class does not say where its functions and variables are".into());
        }
        if self.symbols.len() > HOST_SYMBOLS_MAX {
            return Err(format!("the class grants more than {HOST_SYMBOLS_MAX} functions and variables"));
        }
        if verdicts.len() > VERDICTS_MAX {
            return Err(format!("the entry has more than {VERDICTS_MAX} verdicts"));
        }
        if functions.iter().any(|function| function.parameters.len() > 5) {
            return Err("a function of more than 5 parameters cannot be called by an extension".into());
        }
        if functions.iter().any(|function| ![1, 2, 4, 8].contains(&function.result_bytes)) {
            return Err("a function's result has 1, 2, 4 or 8 bytes".into());
        }
        Ok(())
    }

    /// Whether the class lets programs call a helper. (What touches nothing but the program's own stack and what its class grants,
    /// all may call. A tail call would lead to a program with another context.)
    pub(crate) fn may_call(&self, id: u32) -> bool {
        use helper::*;
        let on_dynptrs = [DYNPTR_FROM_SLICE, DYNPTR_IS_NULL, DYNPTR_IS_RDONLY, DYNPTR_SIZE];
        let through_dynptrs = [DYNPTR_FROM_MEM, DYNPTR_READ, DYNPTR_WRITE, DYNPTR_DATA];
        let on_numbers = [ITER_NUM_NEW, ITER_NUM_NEXT, ITER_NUM_DESTROY];
        let always = [&on_dynptrs[..], &through_dynptrs, &on_numbers].concat();
        id != TAIL_CALL && (always.contains(&id) || self.helpers.contains(&id))
    }

    /// How many rounds through loops a run may make, so that it takes no more instructions than the class allows; `None`: it takes
    /// no more anyway, because the verifier has followed all of them.
    ///
    /// # Errors
    /// One round may take more.
    pub(crate) fn rounds(&self, verified: &Verified) -> Result<Option<u32>, String> {
        let (all, processed) = (verified.insns().len() as u64, verified.statistics().processed);
        if !verified.needs_fuel() && processed <= self.insns_max {
            return Ok(None);
        }
        let rounds = self.insns_max / all.max(1);
        if rounds == 0 {
            let (name, allowed) = (&self.name, self.insns_max);
            return Err(format!("the program has {all} instructions, and class {name} allows a run {allowed}"));
        }
        Ok(Some(u32::try_from(rounds).unwrap_or(u32::MAX)))
    }

    /// Whether a program of the class may be attached there.
    pub(crate) fn check_point(&self, point: &Point) -> Result<(), Refusal> {
        let refuse = |what: &str| {
            let message = format!("an extension of class {} is attached to {what}", self.name);
            Err(Refusal::new(Errno::EINVAL, message))
        };
        let Point::Probe(probe) = point else { return refuse("a function of its host only") };
        if !probe.id.is_at(&self.file) || probe.offset != self.offset {
            return refuse(&format!("its entry at {:#x} of {} only", self.offset, self.file.display()));
        }
        match (self.at_end, probe.ret) {
            (true, false) => refuse("the end of its entry's function only"),
            (false, true) => refuse("the beginning of its entry's function only"),
            _ => Ok(()),
        }
    }

    /// As hooks of a target find it in which the function lies at `address`.
    fn entry(&self, address: u64) -> control::Extension {
        let mut entry = control::Extension {
            verdicts: [VerdictEntry { least: 0, greatest: -1, ..VerdictEntry::default() }; VERDICTS_MAX],
            symbols: [HostSymbol::default(); HOST_SYMBOLS_MAX],
        };
        for (place, verdict) in entry.verdicts.iter_mut().zip(&self.grant.verdicts) {
            let (action, value) = match verdict.action {
                Action::Continue => (VERDICT_CONTINUE, 0),
                Action::ReturnVerdict => (VERDICT_RETURN_RESULT, 0),
                Action::Return(value) => (VERDICT_RETURN, value),
            };
            *place = VerdictEntry { least: *verdict.values.start(), greatest: *verdict.values.end(), action, value };
        }
        let functions = self.grant.functions.iter().map(Some).chain(std::iter::repeat(None));
        for ((place, distance), function) in entry.symbols.iter_mut().zip(&self.symbols).zip(functions) {
            *place = HostSymbol { address: address.wrapping_add_signed(*distance), ..limits(function) };
        }
        entry
    }
}

/// What a function's result may be.
fn limits(function: Option<&HostFunction>) -> HostSymbol {
    let all = HostSymbol { least: i64::MIN, greatest: i64::MAX, ..HostSymbol::default() };
    let Some(function) = function else { return all };
    if function.result.is_none() {
        return all;
    }
    let values = function.ensures.clone().unwrap_or(i64::MIN..=i64::MAX);
    HostSymbol {
        least: *values.start(),
        greatest: *values.end(),
        unused_bits: 64 - 8 * function.result_bytes,
        signed: u32::from(function.result_signed),
        ..all
    }
}

/// Which extensions a target has.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct Extensions {
    /// Places in the table, by the address that is extended, link and program.
    places: BTreeMap<(u64, u32, u32), u32>,
    /// Those of links that are gone. Their programs may still be running.
    retired: BTreeSet<u32>,
}

impl Target {
    /// The place in the target's table of an extension, by link and program, of the function at `address`: a new one, if need be.
    pub(in crate::realm) fn place_extension(
        &mut self,
        class: &ExtensionClass,
        (link_id, prog_id): (u32, u32),
        address: u64,
    ) -> Result<u32, Refusal> {
        let key = (address, link_id, prog_id);
        if let Some(index) = self.extensions.places.get(&key) {
            return Ok(*index);
        }
        let is_full = |known: &Extensions| known.places.len() + known.retired.len() >= EXTENSIONS_MAX;
        if is_full(&self.extensions) && self.is_quiescent() {
            self.extensions.retired.clear();
        }
        let known = &self.extensions;
        let taken: BTreeSet<u32> = known.places.values().chain(&known.retired).copied().collect();
        let Some(index) = (0..EXTENSIONS_MAX as u32).find(|index| !taken.contains(index)) else {
            let message = format!("process {} has {EXTENSIONS_MAX} extensions already", self.pid);
            return Err(Refusal::new(Errno::ENOSPC, message));
        };
        let offset = EXTENSIONS_OFFSET + u64::from(index) * size_of::<control::Extension>() as u64;
        self.control.write(offset, class.entry(address));
        self.extensions.places.insert(key, index);
        Ok(index)
    }

    /// Of the extensions of the function at `address` only those of these links and programs are left.
    pub(in crate::realm) fn retire_extensions(&mut self, address: u64, left: impl Iterator<Item = (u32, u32)>) {
        let known = &mut self.extensions;
        if known.places.is_empty() {
            return;
        }
        let left: BTreeSet<(u32, u32)> = left.collect();
        let gone = known
            .places
            .extract_if(.., |(at, link, program), _| *at == address && !left.contains(&(*link, *program)));
        known.retired.extend(gone.map(|(_, index)| index));
    }
}
