//! ELF files: sections, symbols, and where a program's types are.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use object::read::elf::ElfFile64;
use object::{
    Architecture, CompressionFormat, Endianness, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind,
    SymbolKind,
};
use ring3_btf::Btf;

use crate::dwarf::{self, Facts};
use crate::model::{Class, Entry, Specification};
use crate::source::{Error, nearest};

/// Bytes of an uncompressed section at most.
const SECTION_BYTES_MAX: u64 = 4 << 30;

/// A program or library: its types and its symbols.
#[derive(Clone, Debug)]
pub struct Binary {
    /// As messages name it.
    pub name: String,
    /// Its types; those from DWARF are the ones that a specification reaches.
    pub types: Btf,
    functions: BTreeMap<String, Places>,
    /// Functions and variables of other files that it names.
    imported: BTreeSet<String>,
    variables: BTreeMap<String, Places>,
    /// Variables of which each thread has its own.
    per_thread: BTreeSet<String>,
    /// What DWARF says of how functions were compiled.
    facts: BTreeMap<String, Facts>,
}

/// Where the functions or variables of one name are.
#[derive(Clone, Debug, Default)]
struct Places {
    /// Addresses of those that only their own source file knows.
    local: BTreeSet<u64>,
    /// One is known to all.
    is_global: bool,
}

impl Places {
    fn add(&mut self, local: Option<u64>) {
        self.is_global |= local.is_none();
        self.local.extend(local);
    }

    /// Why the name does not say which one is meant.
    fn ambiguous(&self, file: &str, what: &str, symbol: &str) -> Option<String> {
        (!self.is_global && self.local.len() > 1).then(|| {
            format!(
                "{file} has {} {what} `{symbol}`, and none is known outside of its source file; give the one that is meant \
                 another name, or make it global",
                self.local.len()
            )
        })
    }
}

/// A parsed ELF file.
pub(crate) struct Elf<'d> {
    pub(crate) name: &'d str,
    file: ElfFile64<'d, Endianness>,
}

impl<'d> Elf<'d> {
    pub(crate) fn parse(name: &'d str, bytes: &'d [u8]) -> Result<Elf<'d>, Error> {
        let file = ElfFile64::parse(bytes).map_err(|_| {
            Error::of_file(format!("{name}: no 64-bit ELF file; name a program, a library or an object file"))
        })?;
        match file.endianness() {
            Endianness::Little => Ok(Elf { name, file }),
            Endianness::Big => Err(Error::of_file(format!("{name}: a big-endian file; ring3 runs on x86-64"))),
        }
    }

    /// A section's bytes, decompressed and relocated.
    pub(crate) fn section(&self, name: &str) -> Result<Option<Cow<'d, [u8]>>, Error> {
        let compressed = format!(".z{}", name.trim_start_matches('.'));
        let Some(section) = self.file.section_by_name_bytes(name.as_bytes()) else {
            return match self.file.section_by_name_bytes(compressed.as_bytes()) {
                Some(_) => Err(self.unpack_first(name)),
                None => Ok(None),
            };
        };
        let damaged = |what: String| Error::of_file(format!("{}: section {name} is damaged: {what}", self.name));
        let data = section.compressed_data().map_err(|error| damaged(error.to_string()))?;
        let bytes = match data.format {
            CompressionFormat::None => Cow::Borrowed(data.data),
            CompressionFormat::Zlib if data.uncompressed_size <= SECTION_BYTES_MAX => {
                let mut bytes = vec![];
                let mut reader = flate2::read::ZlibDecoder::new(data.data).take(data.uncompressed_size);
                reader.read_to_end(&mut bytes).map_err(|error| damaged(error.to_string()))?;
                Cow::Owned(bytes)
            }
            _ => return Err(self.unpack_first(name)),
        };
        match self.file.kind() {
            object::ObjectKind::Relocatable => Ok(Some(Cow::Owned(self.relocate(&section, bytes.into_owned())))),
            _ => Ok(Some(bytes)),
        }
    }

    fn unpack_first(&self, section: &str) -> Error {
        let message = format!(
            "{name}: section {section} is compressed in a way that is not supported; decompress it: `objcopy \
             --decompress-debug-sections {name} FILE`, and name FILE",
            name = self.name
        );
        Error::of_file(message)
    }

    /// Does for a section of an object file what the linker would.
    fn relocate(&self, section: &object::read::elf::ElfSection64<'_, '_, Endianness>, mut bytes: Vec<u8>) -> Vec<u8> {
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let Ok(symbol) = self.file.symbol_by_index(symbol) else { continue };
            let value = symbol.address().wrapping_add_signed(relocation.addend()).to_le_bytes();
            let width = usize::from(relocation.size() / 8).min(8);
            let place = usize::try_from(at).ok().and_then(|at| bytes.get_mut(at..at.checked_add(width)?));
            if let Some(place) = place {
                place.copy_from_slice(&value[..width]);
            }
        }
        bytes
    }

    fn has(&self, section: &str) -> bool {
        self.file.section_by_name_bytes(section.as_bytes()).is_some()
    }

    fn has_dwarf(&self) -> bool {
        self.has(".debug_info") || self.has(".zdebug_info")
    }

    fn btf(&self) -> Result<Btf, Error> {
        let bytes = self.section(".BTF")?.unwrap_or_default().into_owned();
        Btf::parse_any(bytes)
            .map_err(|(_, why)| Error::of_file(format!("{}: section .BTF is damaged: {why}", self.name)))
    }
}

/// Types that have these functions, from a file's BTF or else from its DWARF; `None` if it has neither.
///
/// # Errors
/// They are damaged, or of a kind that is not read.
pub fn types_of_functions((name, bytes): (&str, &[u8]), functions: BTreeSet<String>) -> Result<Option<Btf>, Error> {
    let file = Elf::parse(name, bytes)?;
    if file.has(".BTF") {
        return file.btf().map(Some);
    }
    if !file.has_dwarf() {
        return Ok(None);
    }
    let wanted = dwarf::Wanted { functions, types_only: true, ..dwarf::Wanted::default() };
    dwarf::convert(&file, &wanted).map(|found| Some(found.types))
}

/// The build id of an ELF file, by which debug files are found: `/usr/lib/debug/.build-id/XX/REST.debug`.
pub fn build_id(bytes: &[u8]) -> Option<String> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(bytes).ok()?;
    let id = file.build_id().ok()??;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Binary {
    /// Reads a program's types and symbols. DWARF is preferred: it has variables, and says how functions were compiled.
    /// `debug` is a file that holds the types, if the program itself does not: its debug file, or any file that was compiled
    /// with the same declarations.
    ///
    /// # Errors
    /// Neither file has types, or they are damaged; the message says what to do.
    pub fn read(
        (name, bytes): (&str, &[u8]),
        debug: Option<(&str, &[u8])>,
        specification: &Specification,
    ) -> Result<Binary, Error> {
        let own = Elf::parse(name, bytes)?;
        let other = debug.map(|(name, bytes)| Elf::parse(name, bytes)).transpose()?;
        let files: Vec<&Elf<'_>> = other.iter().chain([&own]).collect();
        // Other files than the debug file of this very build have types only: their symbols and code are not the program's.
        let of_build = |file: &Elf<'_>| file.file.build_id().ok().flatten().map(<[u8]>::to_vec);
        let is_of_build =
            |file: &Elf<'_>| std::ptr::eq(file, &own) || of_build(file).is_some_and(|id| Some(id) == of_build(&own));
        let (mut types, mut facts) = (None, BTreeMap::new());
        // (Objects that were compiled for BPF have both, and their BTF has all.)
        let has_dwarf = |file: &&&Elf<'_>| {
            file.has_dwarf() && !(file.file.architecture() == Architecture::Bpf && file.has(".BTF"))
        };
        if let Some(file) = files.iter().find(has_dwarf) {
            let wanted = dwarf::Wanted::of(specification);
            let found = dwarf::convert(file, &wanted)?;
            types = Some(found.types);
            if is_of_build(file) {
                facts = found.functions;
            }
        } else if let Some(file) = files.iter().find(|file| file.has(".BTF")) {
            types = Some(file.btf()?);
        }
        let mut binary = Binary {
            name: name.to_owned(),
            types: types.ok_or_else(|| without_types(&own))?,
            functions: BTreeMap::new(),
            imported: BTreeSet::new(),
            variables: BTreeMap::new(),
            per_thread: BTreeSet::new(),
            facts,
        };
        files.iter().filter(|file| is_of_build(file)).for_each(|file| binary.add_symbols(file));
        Ok(binary)
    }

    fn add_symbols(&mut self, file: &Elf<'_>) {
        for symbol in file.file.symbols().chain(file.file.dynamic_symbols()) {
            let Ok(name) = symbol.name() else { continue };
            // (`name@VERSION`)
            let name = name.split('@').next().unwrap_or_default().to_owned();
            let in_text =
                |at| matches!(file.file.section_by_index(at), Ok(section) if section.kind() == SectionKind::Text);
            let local = symbol.is_local().then(|| symbol.address());
            let kind = match symbol.kind() {
                // Indirect functions, and symbols of assembler files.
                SymbolKind::Unknown if symbol.section_index().is_some_and(in_text) => SymbolKind::Text,
                SymbolKind::Unknown if symbol.section_index().is_some() => SymbolKind::Data,
                kind => kind,
            };
            match kind {
                _ if name.is_empty() => {}
                _ if symbol.is_undefined() => {
                    self.imported.insert(name);
                }
                SymbolKind::Text => self.functions.entry(name).or_default().add(local),
                SymbolKind::Data => self.variables.entry(name).or_default().add(local),
                SymbolKind::Tls => {
                    self.per_thread.insert(name);
                }
                _ => {}
            }
        }
    }

    /// What of a class this program cannot keep: functions that it has not, or that the compiler has changed.
    pub fn check(&self, specification: &Specification, class: &Class) -> Vec<Error> {
        let mut errors = vec![];
        if let Some(entry) = specification.entry(&class.entry.text) {
            errors.extend(self.check_entry(entry));
        }
        for name in &class.allow {
            let function = specification.functions.iter().find(|function| function.name.text == name.text);
            if let Some(symbol) = function.map(|function| function.symbol())
                && !self.imported.contains(&symbol.text)
                && let Some(why) = self.why_not_callable(&symbol.text)
            {
                errors.push(Error::at(&symbol.span, why));
            }
            let state = specification.states.iter().find(|state| state.name.text == name.text);
            for access in state.map(|state| state.accesses.as_slice()).unwrap_or_default() {
                let crate::model::Root::Global(variable) = &access.path.root else { continue };
                if let Some(why) = self.no_variable(&variable.text) {
                    errors.push(Error::at(&variable.span, why));
                }
            }
        }
        errors
    }

    fn check_entry(&self, entry: &Entry) -> Option<Error> {
        let symbol = &entry.function.text;
        let facts = self.facts.get(symbol);
        let message = match facts.map_or(0, |facts| facts.calls_inlined) {
            1.. if facts.is_some_and(|facts| !facts.has_code) => format!(
                "`{symbol}` is inlined wherever it is called, so no extension can run at it; compile it with \
                 `__attribute__((noinline))`, or choose the function that calls it"
            ),
            // A function of a library: the extension runs where the program calls it.
            _ if self.imported.contains(symbol) && !self.functions.contains_key(symbol) => return None,
            calls @ 1.. if self.functions.contains_key(symbol) => format!(
                "{calls} calls of `{symbol}` are inlined, and would not pass the extension; compile it with \
                 `__attribute__((noinline))`, or choose another function"
            ),
            _ => self.why_not_callable(symbol)?,
        };
        Some(Error::at(&entry.function.span, message))
    }

    /// Why a function has no place, or not the parameters that C gives it.
    fn why_not_callable(&self, symbol: &str) -> Option<String> {
        let Some(places) = self.functions.get(symbol) else { return Some(self.no_function(symbol)) };
        if let Some(why) = places.ambiguous(&self.name, "functions", symbol) {
            return Some(why);
        }
        let what = self.facts.get(symbol)?.changed.as_ref()?;
        Some(format!(
            "{what} of `{symbol}` was optimised out or moved by the compiler, so its value is not where the calling \
             convention says; compile the function with `__attribute__((noipa))` (clang: without `static`), or choose \
             another one"
        ))
    }

    fn no_function(&self, symbol: &str) -> String {
        if self.functions.is_empty() {
            return format!(
                "{} has no symbols (it is stripped), so `{symbol}` cannot be found; install its debug symbols, or name the \
                 file that has them",
                self.name
            );
        }
        let is_copy = |known: &&String| -> bool {
            let rest = known.strip_prefix(symbol);
            rest.is_some_and(|rest| {
                [".isra.", ".constprop.", ".part.", ".llvm."].iter().any(|part| rest.contains(part))
            })
        };
        if let Some(copy) = self.functions.keys().find(is_copy) {
            return format!(
                "the compiler has made another function of `{symbol}`: `{copy}`, whose parameters may differ; compile it with \
                 `__attribute__((noipa))` or `-fno-ipa-sra -fno-ipa-cp -fno-partial-inlining`, or choose another function"
            );
        }
        if self.variables.contains_key(symbol) {
            return format!("`{symbol}` of {} is a variable, no function", self.name);
        }
        let advice = match nearest(symbol, self.functions.keys().map(String::as_str)) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "correct the name; a function that is always inlined, or never called, has none".to_owned(),
        };
        format!("{} has no function `{symbol}`; {advice}", self.name)
    }

    fn no_variable(&self, symbol: &str) -> Option<String> {
        if let Some(places) = self.variables.get(symbol) {
            return places.ambiguous(&self.name, "variables", symbol);
        }
        if self.imported.contains(symbol) {
            return None;
        }
        if self.per_thread.contains(symbol) {
            return Some(format!(
                "each thread has its own `{symbol}`, so it has no address that programs could know; grant a function that \
                 returns it"
            ));
        }
        if self.variables.is_empty() && self.functions.is_empty() {
            return Some(self.no_function(symbol));
        }
        let advice = match nearest(symbol, self.variables.keys().map(String::as_str)) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "correct the name; a variable that is never used, or constant, has none".to_owned(),
        };
        Some(format!("{} has no variable `{symbol}`; {advice}", self.name))
    }
}

/// What to do about a program without types.
fn without_types(file: &Elf<'_>) -> Error {
    let stripped = if file.has(".symtab") { "" } else { " and is stripped" };
    let message = format!(
        "{}: has no types (neither section .BTF nor .debug_info){stripped}; compile it with -g, install its debug symbols \
         (Debian: its -dbgsym package), or name a file with types in the specification: `application \"NAME\" {{ types \"FILE\" }}`",
        file.name
    );
    Error::of_file(message)
}
