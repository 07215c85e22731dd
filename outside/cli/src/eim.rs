//! `ring3 eim`: what extensions of a program may touch.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ring3_eim::model::{Class, Specification};
use ring3_eim::{Binary, Error, Resolved};
use ring3_trace::probe;

use crate::input;
use crate::show::write_out;

/// `ring3 eim`
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Eim {
    /// Print the specification that macros of ring3/eim.h have left in a program
    #[command(after_long_help = "\
Example:
  ring3 eim extract ./server > server.eim
")]
    Extract {
        /// A program, library or object file (ELF)
        binary: PathBuf,
    },
    /// Explain what classes of a policy allow, and what a change of a policy adds or takes
    ///
    /// The exit status is 0 if the classes are right for the program, 1 if something is wrong with them or with the program,
    /// and 2 if a file cannot be read.
    #[command(after_long_help = "\
Examples:
  ring3 eim check nginx.policy --binary /usr/sbin/nginx            All classes
  ring3 eim check nginx.policy firewall --binary ./nginx
  ring3 eim check new.policy firewall --against old.policy:firewall --binary ./nginx
")]
    Check(Check),
    /// Print a C header with the parts of the program's structures that a class grants, for the author of an extension
    #[command(after_long_help = "\
Example:
  ring3 eim header nginx.policy:firewall --binary ./nginx > firewall.h
")]
    Header {
        /// The policy's file and the class
        #[arg(value_name = "POLICY:CLASS")]
        class: String,
        #[command(flatten)]
        of: Program,
    },
}

/// Where specification and types come from.
#[derive(Clone, Debug, Args)]
pub(crate) struct Program {
    /// A specification that the policy does not name itself (`use`): a text file, or a program with ring3/eim.h's macros
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    /// The program that is extended (ELF); without it, types come from the file that the specification names (`types`)
    ///
    /// If it has no types itself, those of its debug file in /usr/lib/debug are taken.
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<PathBuf>,
}

/// `ring3 eim check`
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The policy's file
    policy: PathBuf,
    /// Explain only this class
    class: Option<String>,
    /// Say what the class allows more (+) and less (-) than this one
    #[arg(long, value_name = "POLICY:CLASS", requires = "class")]
    against: Option<String>,
    #[command(flatten)]
    of: Program,
}

/// Why a command failed.
pub(crate) enum Failed {
    /// Places in texts are wrong. Editors find these lines: nothing stands before them.
    Wrong(Vec<String>),
    /// Something else is wrong with a policy or a program.
    Refused(String),
    /// A file cannot be read, or the command line is wrong.
    Unreadable(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Unreadable(why)
    }
}

impl Failed {
    /// Says why on standard error.
    pub(crate) fn tell(self) -> ExitCode {
        let (code, why) = match self {
            Failed::Wrong(lines) => {
                lines.iter().for_each(|line| say!("{line}"));
                return ExitCode::from(1);
            }
            Failed::Refused(why) => (1, why),
            Failed::Unreadable(why) => (2, why),
        };
        say!("ring3: {why}");
        ExitCode::from(code)
    }
}

/// Runs a command.
pub(crate) fn run(wanted: &Eim) -> ExitCode {
    act(wanted).map_or_else(Failed::tell, |()| ExitCode::SUCCESS)
}

fn act(wanted: &Eim) -> Result<(), Failed> {
    match wanted {
        Eim::Extract { binary } => {
            let bytes = input::read(binary)?;
            let text = ring3_eim::extract(&binary.display().to_string(), &bytes);
            Ok(write_out(&text.map_err(|error| wrong(&[error]))?)?)
        }
        Eim::Check(wanted) => check(wanted),
        Eim::Header { class, of } => {
            let (policy, name) = class_of(class)?;
            let loaded = Loaded::new(&policy, of)?;
            let class = loaded.class(&policy, name)?;
            class.apart().try_for_each(|class| loaded.resolve(&class).map(drop))?;
            let header = ring3_eim::header(&loaded.specification, class, &loaded.binary.types);
            Ok(write_out(&header.map_err(|errors| wrong(&errors))?)?)
        }
    }
}

fn check(wanted: &Check) -> Result<(), Failed> {
    let loaded = Loaded::new(&wanted.policy, &wanted.of)?;
    let classes: Vec<&Class> = match &wanted.class {
        Some(name) => vec![loaded.class(&wanted.policy, name)?],
        None => loaded.specification.classes.iter().collect(),
    };
    if classes.is_empty() {
        let why = format!(
            "{}: no class in this policy; add `class NAME {{ entry ...; allow ... }}`",
            wanted.policy.display()
        );
        return Err(Failed::Refused(why));
    }
    let (mut out, mut errors) = (String::new(), vec![]);
    for class in classes.into_iter().flat_map(Class::apart) {
        match loaded.resolve(&class) {
            Ok(resolved) => out += &explain(&loaded, &class, &resolved, wanted)?,
            Err(Failed::Wrong(lines)) => errors.extend(lines),
            Err(failed) => return Err(failed),
        }
    }
    write_out(&out)?;
    // (What is wrong with a specification is wrong with each class.)
    let mut seen = std::collections::BTreeSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    if errors.is_empty() { Ok(()) } else { Err(Failed::Wrong(errors)) }
}

fn explain(loaded: &Loaded, class: &Class, resolved: &Resolved, wanted: &Check) -> Result<String, Failed> {
    let mut out = ring3_eim::describe(&class.name.text, resolved);
    if !loaded.has_program {
        out += "  (types alone: whether the program has the functions and variables was not checked; see --binary)\n";
    }
    let Some(against) = &wanted.against else { return Ok(out) };
    let (policy, name) = class_of(against)?;
    let other = Loaded::new(&policy, &wanted.of)?;
    let other_class = other.class(&policy, name)?;
    // (At the same entry, if it has that.)
    let at = other_class.apart().find(|other| other.entry.text == class.entry.text);
    let difference = ring3_eim::difference(resolved, &other.resolve(at.as_ref().unwrap_or(other_class))?);
    out += &match difference.as_str() {
        "" => format!("the same as {against}\n"),
        lines => format!("compared with {against}\n{lines}"),
    };
    Ok(out)
}

/// `POLICY:CLASS`
pub(crate) fn class_of(text: &str) -> Result<(PathBuf, &str), Failed> {
    let parts = text.rsplit_once(':').filter(|(policy, class)| !policy.is_empty() && !class.is_empty());
    let (policy, class) =
        parts.ok_or(format!("`{text}` names no class; write POLICY:CLASS, as nginx.policy:firewall"))?;
    Ok((policy.into(), class))
}

/// Errors, each with its line.
fn wrong(errors: &[Error]) -> Failed {
    match errors {
        [error @ Error { span: None, .. }] => Failed::Refused(error.to_string()),
        errors => Failed::Wrong(errors.iter().map(ToString::to_string).collect()),
    }
}

/// A policy with its specification and the program's types.
pub(crate) struct Loaded {
    pub(crate) specification: Specification,
    binary: Binary,
    /// The types are those of the program, not of a file beside it.
    has_program: bool,
}

impl Loaded {
    pub(crate) fn new(policy: &Path, of: &Program) -> Result<Loaded, Failed> {
        let name = policy.display().to_string();
        let text = text_of(policy)?;
        let mut own = None;
        if let Some(path) = &of.spec {
            let name = path.display().to_string();
            let more = ring3_eim::load(&name, &text_of(path)?, &mut |path| text_of(Path::new(path)));
            own = Some(more.map_err(|errors| wrong(&errors))?);
        }
        let found = ring3_eim::load(&name, &text, &mut |path| text_of(Path::new(path)));
        let mut specification = found.map_err(|errors| wrong(&errors))?;
        if let Some(own) = own {
            specification.add(own);
        }
        if of.spec.is_none()
            && specification.entries.is_empty()
            && let Some(binary) = &of.binary
            && let Ok(text) = ring3_eim::extract(&binary.display().to_string(), &input::read(binary)?)
        {
            // The program says itself what extensions may touch.
            let more = ring3_eim::parse(&format!("{} (notes)", binary.display()), &text);
            specification.add(more.map_err(|errors| wrong(&errors))?);
        }
        let (binary, has_program) = types(&specification, of)?;
        Ok(Loaded { specification, binary, has_program })
    }

    pub(crate) fn class(&self, policy: &Path, name: &str) -> Result<&Class, Failed> {
        self.specification.class(name).ok_or_else(|| {
            let names: Vec<&str> = self.specification.classes.iter().map(|class| class.name.text.as_str()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Failed::Refused(format!("{} has no class {name}; it has: {known}", policy.display()))
        })
    }

    pub(crate) fn resolve(&self, class: &Class) -> Result<Resolved, Failed> {
        let resolved = ring3_eim::resolve_all(&self.specification, class, &self.binary.types);
        let resolved = resolved.map_err(|errors| wrong(&errors))?;
        let errors = if self.has_program { self.binary.check(&self.specification, class) } else { vec![] };
        if errors.is_empty() { Ok(resolved) } else { Err(wrong(&errors)) }
    }
}

/// A specification's text: that of a file, or of a program's notes.
fn text_of(path: &Path) -> Result<String, String> {
    let bytes = input::read(path)?;
    if bytes.starts_with(b"\x7fELF") {
        return ring3_eim::extract(&path.display().to_string(), &bytes).map_err(|error| error.to_string());
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is no text (UTF-8)", path.display()))
}

/// The program's types, and whether they are of the program itself.
fn types(specification: &Specification, of: &Program) -> Result<(Binary, bool), Failed> {
    let beside = specification.application.as_ref().and_then(|application| application.types.as_ref());
    let beside = beside.map(|file| {
        let directory = Path::new(&file.span.source.name).parent().unwrap_or(Path::new(""));
        directory.join(&file.text)
    });
    let (path, has_program) = match (&of.binary, &beside) {
        (Some(path), _) => (path, true),
        (None, Some(path)) => (path, false),
        (None, None) => {
            let why = "no types: name the program with --binary, or a file with types in the specification (`application \
                       \"NAME\" { types \"FILE\" }`)";
            return Err(why.to_owned().into());
        }
    };
    let beside_of = |path: &Path| beside.as_deref() == Some(path);
    let named = specification.application.as_ref().and_then(|application| application.types.as_ref());
    // (An error of a file that the specification names is the specification's.)
    let read = |path: &Path| match (input::read(path), named) {
        (Err(why), Some(name)) if beside_of(path) => Err(wrong(&[Error::at(&name.span, why)])),
        (result, _) => result.map_err(Failed::from),
    };
    let bytes = read(path)?;
    let debug = if has_program { beside.clone().or_else(|| probe::debug_file(&bytes)) } else { None };
    let debug = debug.map(|path| read(&path).map(|bytes| (path.display().to_string(), bytes))).transpose()?;
    let debug = debug.as_ref().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let binary = Binary::read((&path.display().to_string(), &bytes), debug, specification);
    Ok((binary.map_err(|error| wrong(&[error]))?, has_program))
}
