//! The bytes of a file, and their checks.
//!
//! ```text
//! 0   magic
//! 8   version of the format, little endian
//! 12  zero
//! 16  bytes of the body, little endian
//! 24  SHA-256 of all other bytes
//! 56  body: a `Store` in postcard's encoding
//! ```
//! The checksum finds damage. Against malice there is only the file's owner, whom the server looks at; what is here makes
//! sure that a file of any content is an error at worst.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{Hash, Identity, Reference, Store, StoredProgram};

const MAGIC: [u8; 8] = *b"RING3AOT";
/// Counts up with each change of the format.
const VERSION: u32 = 4;
const DIGEST_AT: usize = 24;
const BODY_AT: usize = 56;
/// Bytes of a file at most.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is something else.
    NotOurs,
    /// It has another format.
    Version(u32),
    /// It is damaged; what is wrong.
    Damaged(&'static str),
    /// Another build of ring3 made it.
    Build(String),
    /// It was made on another machine or for another kernel.
    Host(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotOurs => f.write_str("it is not a file that `ring3 aot` wrote"),
            Error::Version(version) => {
                write!(f, "it has format {version}, and this ring3 reads format {VERSION}; run `ring3 aot` again")
            }
            Error::Damaged(what) => write!(f, "it is damaged ({what}); run `ring3 aot` again"),
            Error::Build(version) => write!(
                f,
                "another build of ring3 (version {version}) made it; run `ring3 aot` again (and `ring3 stop` first, if the \
                 server that runs is the older one)"
            ),
            Error::Host(what) => write!(f, "it was made for another machine ({what}); run `ring3 aot` here"),
        }
    }
}

impl std::error::Error for Error {}

fn digest(file: &[u8]) -> Hash {
    let mut digest = Sha256::new();
    digest.update(&file[..DIGEST_AT]);
    digest.update(&file[BODY_AT..]);
    digest.finalize().into()
}

impl Store {
    /// The file's bytes.
    pub fn write(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("nothing in it has an unknown length");
        let mut file = vec![];
        file.extend(MAGIC);
        file.extend(VERSION.to_le_bytes());
        file.extend([0; 4]);
        file.extend((body.len() as u64).to_le_bytes());
        file.extend([0; BODY_AT - DIGEST_AT]);
        file.extend(body);
        let digest = digest(&file);
        file[DIGEST_AT..BODY_AT].copy_from_slice(&digest);
        file
    }

    /// Reads and checks a file, which must be of this identity.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(file: &[u8], own: &Identity) -> Result<Store, Error> {
        let store = Store::parse(file)?;
        if store.identity.build != own.build {
            return Err(Error::Build(store.identity.version));
        }
        let Identity { cpus, kernel, release, .. } = &store.identity;
        if *cpus != own.cpus {
            return Err(Error::Host(format!("one of {cpus} possible CPUs, and this one has {}", own.cpus)));
        }
        if *kernel != own.kernel {
            return Err(Error::Host(format!("with the types of kernel {release}, and here is {}", own.release)));
        }
        Ok(store)
    }

    /// The same, of any identity.
    fn parse(file: &[u8]) -> Result<Store, Error> {
        if file.len() < BODY_AT || file[..MAGIC.len()] != MAGIC {
            return Err(Error::NotOurs);
        }
        let version = u32::from_le_bytes(file[8..12].try_into().expect("4 bytes"));
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let body = u64::from_le_bytes(file[16..24].try_into().expect("8 bytes"));
        if body != (file.len() - BODY_AT) as u64 {
            return Err(Error::Damaged("its length"));
        }
        if file[DIGEST_AT..BODY_AT] != digest(file) {
            return Err(Error::Damaged("its checksum"));
        }
        let (store, rest): (Store, &[u8]) =
            postcard::take_from_bytes(&file[BODY_AT..]).map_err(|_| Error::Damaged("its encoding"))?;
        if !rest.is_empty() {
            return Err(Error::Damaged("bytes behind its end"));
        }
        store.programs.iter().try_for_each(|program| program.check().map_err(Error::Damaged))?;
        Ok(store)
    }
}

impl StoredProgram {
    /// That all offsets lie inside of what they are offsets of.
    fn check(&self) -> Result<(), &'static str> {
        let (code, maps) = (&self.code, self.shapes.len());
        let bytes = code.bytes.len();
        if code.functions.first() != Some(&0)
            || code.functions.windows(2).any(|pair| pair[0] >= pair[1])
            || code.functions.iter().any(|offset| *offset as usize >= bytes)
            || !code.functions.contains(&code.entry)
        {
            return Err("functions outside of the code");
        }
        for (offset, _, reference) in &code.relocations {
            if (*offset as usize).checked_add(4).is_none_or(|end| end > bytes) {
                return Err("a relocation outside of the code");
            }
            if matches!(reference, Reference::Header(map) | Reference::Data(map) if *map as usize >= maps) {
                return Err("a map that the program has not");
            }
        }
        let placed = code.pc_map.iter().all(|(at, insn)| (*at as usize) < bytes && *insn < self.insn_count);
        if !placed || code.pc_map.windows(2).any(|pair| pair[0].0 > pair[1].0) {
            return Err("instructions outside of the code");
        }
        if self.constants.iter().any(|(map, _)| *map as usize >= maps) {
            return Err("constants of a map that the program has not");
        }
        Ok(())
    }
}
