//! Files of programs that were compiled ahead of time: whose they may be, and who this server is.
//!
//! Their code runs in targets without being verified again, so a file is taken only from the server's user or root, and only if
//! nobody else may write it. It comes as a descriptor, is looked at and read by that, and only once.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use ring3_aot::{FILE_BYTES_MAX, Identity, Store};
use ring3_btf::KERNEL_BTF;

use crate::realm::possible_cpus;

/// Permission to write, of others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Who verifies and compiles in this process, and for which machine.
///
/// # Errors
/// The program's own file cannot be read.
pub fn identity() -> Result<&'static Identity, String> {
    static IDENTITY: OnceLock<Result<Identity, String>> = OnceLock::new();
    let made = IDENTITY.get_or_init(|| {
        // Also where the file was replaced meanwhile, this leads to what runs.
        let own =
            std::fs::read("/proc/self/exe").map_err(|error| format!("cannot read the ring3 binary: {error}"))?;
        Ok(Identity {
            build: ring3_aot::hash(&own),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpus: possible_cpus(),
            kernel: ring3_aot::hash(&std::fs::read(KERNEL_BTF).unwrap_or_default()),
            release: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        })
    });
    made.as_ref().map_err(Clone::clone)
}

/// Reads a file that a loader's user names.
pub(crate) fn read(file: OwnedFd) -> Result<Store, String> {
    let file = std::fs::File::from(file);
    let meta = file.metadata().map_err(|error| error.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err("it is no ordinary file".into());
    }
    if ![own, 0].contains(&meta.uid()) {
        return Err(format!("it belongs to user {}, and code is taken from user {own} or root only", meta.uid()));
    }
    if meta.mode() & OTHERS_WRITE != 0 {
        return Err("others than its owner may write it; `chmod go-w` it after a look at who did".into());
    }
    let mut bytes = vec![];
    (&file).take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    Store::read(&bytes, identity()?).map_err(|error| error.to_string())
}
