//! Protection keys for the maps of extensions, so that a bug of the host cannot change them.
//!
//! Threads have no access to memory with the key. Around each run of an extension the agent enables it for the running thread
//! (`inside/runtime/src/raw_protection.rs`), after ERIM (USENIX Security 2019).

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring3_inject as inject;
use ring3_inject::ProtectionKey;
pub use ring3_inject::has_protection_keys;
use ring3_layout::control::ControlHeader;
use ring3_uapi::Errno;
use serde::{Deserialize, Serialize};

use crate::realm::target::Target;
use crate::realm::{MapFile, MapSlot, Refusal};

/// How the maps that an extension's loader makes are kept from the extension's hosts (`ring3 extend --isolation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    /// Not at all.
    #[default]
    None,
    /// By a protection key, if a host can have one.
    Keys,
    /// By a protection key; hosts that cannot have one are refused.
    Required,
}

/// What keeps a target from the maps of its extensions.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) enum Protection {
    /// No map wants to be kept from it.
    #[default]
    NotWanted,
    Key(ProtectionKey),
    /// Nothing, and why.
    Missing(String),
}

impl Protection {
    pub(in crate::realm) fn key(&self) -> Option<ProtectionKey> {
        match self {
            Protection::Key(key) => Some(*key),
            Protection::NotWanted | Protection::Missing(_) => None,
        }
    }

    /// `ControlHeader::maps_key`.
    pub(in crate::realm) fn access_bit(&self) -> u32 {
        self.key().map_or(0, ProtectionKey::access_bit)
    }

    /// For people; `None`: there is nothing to say.
    pub(in crate::realm) fn status(&self) -> Option<String> {
        match self {
            Protection::NotWanted => None,
            Protection::Key(_) => Some("kept from the process by a protection key".to_owned()),
            Protection::Missing(why) => Some(format!("not kept from the process: {why}")),
        }
    }
}

impl Target {
    /// Sees to it that the process, which is stopped, has a key if one of these maps wants it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it cannot have one, and a map requires it.
    pub(in crate::realm) fn protect(
        &mut self,
        stopped: &mut inject::Stopped,
        files: &[(MapSlot, Arc<MapFile>)],
    ) -> Result<(), Refusal> {
        let wanted = |isolation: Isolation| files.iter().any(|(_, file)| file.isolation == isolation);
        let required = wanted(Isolation::Required);
        if !(required || wanted(Isolation::Keys)) || self.protection.key().is_some() {
            return Ok(());
        }
        let key = match inject::has_protection_keys() {
            true => stopped.allocate_key().map_err(|error| error.to_string()),
            false => Err("the CPU has no protection keys".to_owned()),
        };
        self.protection = match key {
            Ok(key) => Protection::Key(key),
            Err(why) if required => {
                let message = format!("the extension's maps cannot be kept from process {}: {why}", self.pid);
                return Err(Refusal::new(Errno::EOPNOTSUPP, message));
            }
            Err(why) => Protection::Missing(why),
        };
        let at = offset_of!(ControlHeader, maps_key) as u64;
        self.control.word32(at).store(self.protection.access_bit(), Ordering::SeqCst);
        Ok(())
    }

    /// Gives back its key, with which nothing is mapped in the process, which is stopped.
    pub(in crate::realm) fn unprotect(&mut self, stopped: &mut inject::Stopped) {
        if let Some(key) = std::mem::take(&mut self.protection).key() {
            let _ = stopped.free_key(key);
        }
    }
}
