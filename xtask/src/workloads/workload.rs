//! What a row of `cargo xtask bench workloads` consists of.
//!
//! Commands, files and scripts are texts with places that are filled in when they are needed ([`Place::fill`]).

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::load::Load;
use super::tool::Tool;
use crate::web_server::Packages;

/// Rows that have their preparation in common.
pub(crate) struct Family {
    /// The name of its directory.
    pub(crate) name: &'static str,
    /// Without these nothing can be measured.
    pub(crate) needs: fn() -> Vec<Need>,
    /// Makes what all rows use, in the family's directory.
    pub(crate) prepare: fn(&Place) -> Result<(), String>,
    pub(crate) workloads: fn() -> Vec<Workload>,
}

/// A program, and the Debian package that has it.
pub(crate) struct Need {
    /// A path, or a name that is looked for where programs are.
    pub(crate) program: String,
    pub(crate) package: &'static str,
}

impl Need {
    pub(crate) fn new(program: &str, package: &'static str) -> Need {
        Need { program: program.to_owned(), package }
    }

    /// What to do, if it is not there.
    pub(crate) fn missing(&self) -> Option<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]);
        let is_there = directories.into_iter().any(|directory| directory.join(&self.program).exists());
        (!is_there).then(|| format!("needs {} (apt-get install {})", self.program, self.package))
    }
}

/// How ring3 gets to see the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It uses the probed file, and becomes a target for the tool, as any process that does.
    ByFile,
    /// `ring3 start` begins it: for system calls, and for programs too short to be found in time.
    FromStart,
    /// Not at all: the tool traces another process.
    Never,
}

/// A program at its work, under a tool.
pub(crate) struct Workload {
    pub(crate) name: String,
    /// What the work is counted in.
    pub(crate) unit: &'static str,
    /// Files that are written before the program starts: name and text.
    pub(crate) files: Vec<(&'static str, String)>,
    /// The program that is traced, and its arguments.
    pub(crate) victim: Vec<String>,
    pub(crate) seen: Seen,
    /// Whether it has a CPU for itself, for as far as there are two: a server with one thread.
    pub(crate) is_pinned: bool,
    pub(crate) load: Load,
    pub(crate) tool: Tool,
    /// How many events of the tool a unit of work makes.
    pub(crate) events: RangeInclusive<f64>,
    pub(crate) goals: Goals,
}

/// What ring3 may cost, in percent of the untraced program's.
#[derive(Clone, Copy, Default)]
pub(crate) struct Goals {
    pub(crate) lost: Option<f64>,
    pub(crate) cpu_added: Option<f64>,
}

/// Where a row is measured.
pub(crate) struct Place<'a> {
    pub(crate) packages: &'a Packages,
    /// Of the family.
    pub(crate) directory: PathBuf,
    /// Of programs that `bench` builds.
    pub(crate) build: &'a Path,
    /// At which a server listens.
    pub(crate) port: u16,
    /// A process that does nothing, and which ring3 traces if it traces at all.
    pub(crate) bystander: u32,
}

impl Place<'_> {
    /// A text with its places filled in: `{DIR}`, `{BUILD}`, `{PORT}`, `{BYSTANDER}`, `{NGINX}`.
    pub(crate) fn fill(&self, text: &str) -> String {
        let nginx = self.packages.program("usr/sbin/nginx").unwrap_or_default();
        text.replace("{DIR}", &self.directory.display().to_string())
            .replace("{BUILD}", &self.build.display().to_string())
            .replace("{PORT}", &self.port.to_string())
            .replace("{BYSTANDER}", &self.bystander.to_string())
            .replace("{NGINX}", &nginx.display().to_string())
    }

    /// A program and its arguments.
    pub(crate) fn command(&self, words: &[String]) -> Command {
        let mut words = words.iter().map(|word| self.fill(word));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&self.directory);
        command
    }

    /// Copies a file to the family's directory, under this name: probes on the copy meet nobody else.
    pub(crate) fn copy(&self, from: &Path, name: &str) -> Result<(), String> {
        let to = self.directory.join(name);
        let made = to.parent().map_or(Ok(()), std::fs::create_dir_all);
        let copied = made.and_then(|()| std::fs::copy(from, &to));
        copied.map(|_| ()).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<(), String> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The words of a line.
pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Where the dynamic loader finds a library.
pub(crate) fn library(name: &str) -> Result<PathBuf, String> {
    let directory = PathBuf::from(format!("/lib/{}-linux-gnu", std::env::consts::ARCH));
    let path = directory.join(name);
    if path.exists() { Ok(path) } else { Err(format!("there is no {}", path.display())) }
}
