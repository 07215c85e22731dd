//! `cargo xtask deb`: a Debian package of the release build, from what `make install` installs.
//!
//! No packaging tool beyond `dpkg-deb`: the binary is Rust's, so that Debian's helpers would have little to do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::root;

/// Where the package and its stage lie.
const PLACE: &str = "target/deb";
/// What the package must have, besides one manual page for each command.
const CONTENTS: [&str; 7] = [
    "./usr/bin/ring3",
    "./usr/share/man/man1/ring3.1.gz",
    "./usr/share/bash-completion/completions/ring3",
    "./usr/share/zsh/vendor-completions/_ring3",
    "./usr/share/fish/vendor_completions.d/ring3.fish",
    "./usr/share/doc/ring3/copyright",
    "./usr/share/doc/ring3/changelog.Debian.gz",
];
/// The programs; the second only if it was built (feature `llvm`).
const BINARIES: [&str; 2] = ["usr/bin/ring3", "usr/libexec/ring3-llvm"];
/// Who answers for a package that names nobody else (`DEBFULLNAME`, `DEBEMAIL`).
const MAINTAINER: (&str, &str) = ("The ring3 authors", "ring3@localhost");
const DESCRIPTION: &str = "\
Description: eBPF tools in user space, without root or kernel eBPF
 ring3 runs unmodified eBPF tools: their uprobes, return probes and system call
 tracepoints fire inside the traced processes, in user space. It answers the
 tools' bpf(2) calls by seccomp notification, verifies and compiles their
 programs, and patches the traced processes while they run.
";
const LICENSES: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ring3

Files: *
Copyright: 2026 The ring3 authors
License: MIT or Apache-2.0
Comment: The binary has these Rust crates in it, each under its own license:
";

fn text<T>(path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

/// What a command writes.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.current_dir(root()).output().map_err(|error| format!("{name}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(said) } else { Err(format!("{name}: {}\n{errors}", output.status)) }
}

/// The package that is made.
struct Package {
    stage: PathBuf,
    version: String,
    maintainer: String,
    /// The commit's: the same sources give the same package.
    seconds: String,
    date: String,
}

impl Package {
    fn new() -> Result<Package, String> {
        let metadata = metadata()?;
        let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
        let ours = packages.iter().find(|package| package["name"] == "ring3-cli").ok_or("no package ring3-cli")?;
        let version = ours["version"].as_str().ok_or("ring3-cli has no version")?;
        let variable = |name: &str, other: &str| std::env::var(name).unwrap_or_else(|_| other.to_owned());
        let (name, address) = (variable("DEBFULLNAME", MAINTAINER.0), variable("DEBEMAIL", MAINTAINER.1));
        let log = output(Command::new("git").args(["log", "-1", "--format=%ct%n%cD"]))?;
        let (seconds, date) = log.trim_end().split_once('\n').ok_or("git log says nothing of the commit")?;
        Ok(Package {
            stage: root().join(PLACE).join("stage"),
            version: format!("{version}-1"),
            maintainer: format!("{name} <{address}>"),
            seconds: seconds.to_owned(),
            date: date.to_owned(),
        })
    }

    fn path(&self) -> PathBuf {
        root().join(PLACE).join(format!("ring3_{}_amd64.deb", self.version))
    }

    /// Makes a directory, for all to read whatever the umask is.
    fn directory(&self, path: &str) -> Result<PathBuf, String> {
        let path = self.stage.join(path);
        text(&path, fs::DirBuilder::new().recursive(true).mode(0o755).create(&path))?;
        Ok(path)
    }

    /// Compresses a file, without the time and name that gzip would add.
    fn compress(path: &Path) -> Result<(), String> {
        output(Command::new("gzip").args(["-9nf"]).arg(path)).map(drop)
    }

    fn stage(&self) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.stage);
        self.directory("DEBIAN")?;
        let destination = format!("DESTDIR={}", self.stage.display());
        output(Command::new("make").args(["-s", "install-files", "PREFIX=/usr"]).arg(destination))?;
        let binaries: Vec<PathBuf> =
            BINARIES.iter().map(|path| self.stage.join(path)).filter(|path| path.exists()).collect();
        output(Command::new("strip").args(["--strip-unneeded", "--remove-section=.comment"]).args(&binaries))?;
        let pages = self.stage.join("usr/share/man/man1");
        for page in text(&pages, fs::read_dir(&pages))?.flatten() {
            Package::compress(&page.path())?;
        }
        // Debian's directory for the completions of packages.
        let (site, vendor) = (self.stage.join("usr/share/zsh/site-functions"), "usr/share/zsh/vendor-completions");
        text(&site, fs::rename(&site, self.stage.join(vendor)))?;
        let documents = self.directory("usr/share/doc/ring3")?;
        let write = |name: &str, content: &str| {
            let path = documents.join(name);
            text(&path, fs::write(&path, content)).map(|()| path)
        };
        write("copyright", &copyright()?)?;
        let changes = root().join("CHANGELOG.md");
        Package::compress(&write("changelog", &text(&changes, fs::read_to_string(&changes))?)?)?;
        let Package { version, maintainer, date, .. } = self;
        let entry = format!(
            "ring3 ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {maintainer}  {date}\n"
        );
        Package::compress(&write("changelog.Debian", &entry)?)?;
        let control = self.stage.join("DEBIAN/control");
        let fields = self.control(&binaries)?;
        text(&control, fs::write(&control, fields))?;
        self.permit(&self.stage)
    }

    /// The control file of the package.
    fn control(&self, binaries: &[PathBuf]) -> Result<String, String> {
        let mut bytes = Vec::new();
        for binary in binaries {
            bytes.extend(text(binary, fs::read(binary))?);
        }
        let size = output(Command::new("du").args(["-sk", "--apparent-size", "--exclude=DEBIAN"]).arg(&self.stage))?;
        let kib = size.split_whitespace().next().unwrap_or_default();
        // With the feature `llvm`, the dynamic linker loads this library into `ring3-llvm`.
        let llvm = bytes.windows(8).any(|bytes| bytes == b"libLLVM-" || bytes == b"libLLVM.");
        let llvm = if llvm { ", libllvm19" } else { "" };
        Ok(format!(
            "Package: ring3\nVersion: {}\nArchitecture: amd64\nMaintainer: {}\nInstalled-Size: {kib}\nDepends: libc6 (>= {}), \
             libgcc-s1{llvm}\nSuggests: libbpf-tools, bpftrace\nSection: devel\nPriority: optional\n{DESCRIPTION}",
            self.version,
            self.maintainer,
            needed_libc(&bytes).ok_or("the binary needs no version of the C library")?,
        ))
    }

    /// Readable for all, writable for root only, whatever the umask is.
    fn permit(&self, path: &Path) -> Result<(), String> {
        let meta = text(path, fs::symlink_metadata(path))?;
        let mode = if meta.is_dir() || BINARIES.iter().any(|binary| path.ends_with(binary)) { 0o755 } else { 0o644 };
        text(path, fs::set_permissions(path, fs::Permissions::from_mode(mode)))?;
        if meta.is_dir() {
            for entry in text(path, fs::read_dir(path))?.flatten() {
                self.permit(&entry.path())?;
            }
        }
        Ok(())
    }

    fn build(&self) -> Result<(), String> {
        let mut command = Command::new("dpkg-deb");
        command.args(["--root-owner-group", "--build"]).arg(&self.stage).arg(self.path());
        output(command.env("SOURCE_DATE_EPOCH", &self.seconds)).map(drop)
    }

    /// Lists the package, unpacks it elsewhere and runs what it has; as root, dpkg installs it into a root of its own.
    fn check(&self) -> Result<(), String> {
        let listed = output(Command::new("dpkg-deb").arg("--contents").arg(self.path()))?;
        let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
        for name in CONTENTS {
            if !names.contains(&name) {
                return Err(format!("the package has no {name}:\n{listed}"));
            }
        }
        if let Some(line) = listed.lines().find(|line| !line.contains(" root/root ") || &line[8..9] == "w") {
            return Err(format!("others than root may write in the package: {line}"));
        }
        let elsewhere = root().join(PLACE).join("root");
        let _ = fs::remove_dir_all(&elsewhere);
        let database = elsewhere.join("var/lib/dpkg");
        text(
            &database,
            fs::create_dir_all(database.join("info")).and_then(|()| fs::write(database.join("status"), "")),
        )?;
        text(&database, fs::create_dir_all(database.join("updates")))?;
        if rustix::process::geteuid().is_root() {
            // What it depends on is not in that root.
            let mut dpkg = Command::new("dpkg");
            dpkg.arg("--root").arg(&elsewhere).args(["--force-depends", "--install"]).arg(self.path());
            output(dpkg.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))?;
        } else {
            println!("SKIPPED IN PART: dpkg installs as root only; the package was unpacked");
            output(Command::new("dpkg-deb").arg("--extract").arg(self.path()).arg(&elsewhere))?;
        }
        let said = output(Command::new(elsewhere.join("usr/bin/ring3")).arg("--version"))?;
        let expected = format!("ring3 {}", self.version.trim_end_matches("-1"));
        if said.trim_end() == expected {
            Ok(())
        } else {
            Err(format!("the package's ring3 is `{said}`, not {expected}"))
        }
    }
}

/// The newest version of the C library that a binary names, such as `2.34`.
fn needed_libc(binary: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"\0GLIBC_2.";
    let starts = binary.windows(NAME.len()).enumerate().filter(|(_, bytes)| *bytes == NAME);
    let minors = starts.filter_map(|(at, _)| {
        let rest = &binary[at + NAME.len()..];
        let digits: String = rest.iter().map_while(|byte| byte.is_ascii_digit().then_some(*byte as char)).collect();
        digits.parse::<u32>().ok()
    });
    minors.max().map(|minor| format!("2.{minor}"))
}

/// Of all packages that the workspace names: their versions, licenses and dependencies.
fn metadata() -> Result<Value, String> {
    let arguments =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    serde_json::from_str(&output(Command::new("cargo").args(arguments))?).map_err(|error| error.to_string())
}

/// The copyright file: our licenses, and those of each crate that is in the binary.
fn copyright() -> Result<String, String> {
    let metadata = metadata()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (packages, nodes) = (list(&metadata["packages"]), list(&metadata["resolve"]["nodes"]));
    let named = |id: &Value| packages.iter().find(|package| package["id"] == *id);
    let root_id = packages.iter().find(|package| package["name"] == "ring3-cli").map(|package| package["id"].clone());
    let (mut rest, mut licenses) = (vec![root_id.ok_or("no package ring3-cli")?], BTreeMap::new());
    while let Some(id) = rest.pop() {
        let package = named(&id).ok_or_else(|| format!("cargo metadata does not describe {id}"))?;
        let word = |name: &str| package[name].as_str().unwrap_or("?").to_owned();
        // Macros run at build time; their dependencies are not in the binary.
        let is_macro = list(&package["targets"]).iter().any(|target| target["kind"][0] == "proc-macro");
        if is_macro || licenses.insert((word("name"), word("version")), word("license")).is_some() {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id);
        for dependency in node.map(|node| list(&node["deps"])).unwrap_or_default() {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                rest.push(dependency["pkg"].clone());
            }
        }
    }
    let mut text = LICENSES.to_owned();
    for ((name, version), license) in licenses.iter().filter(|((name, _), _)| !name.starts_with("ring3-")) {
        let _ = writeln!(text, "  {name} {version}: {license}");
    }
    for (name, file) in [("MIT", "LICENSE-MIT"), ("Apache-2.0", "")] {
        let _ = write!(text, "\nLicense: {name}\n");
        let body = match file {
            "" => " On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.\n".to_owned(),
            file => {
                let lines = fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
                lines
                    .lines()
                    .map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
                    .collect()
            }
        };
        text += &body;
    }
    Ok(text)
}

/// Makes the package of the release build, and checks it.
///
/// # Errors
/// A tool is missing, or the package lacks something.
pub(crate) fn deb() -> Result<(), String> {
    let package = Package::new()?;
    package.stage()?;
    package.build()?;
    package.check()?;
    println!("{}", package.path().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{copyright, needed_libc};

    #[test]
    fn the_newest_version_of_the_c_library_counts() {
        assert_eq!(needed_libc(b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.9\0").as_deref(), Some("2.34"));
        assert_eq!(needed_libc(b"GLIBC_2.4"), None);
    }

    #[test]
    fn the_copyright_file_names_crates_of_the_binary_only() {
        let text = copyright().expect("cargo tells the crates");
        assert!(text.contains("  cranelift-codegen 0.") && text.contains("Apache-2.0 WITH LLVM-exception"), "{text}");
        assert!(text.contains("License: MIT\n MIT License\n .\n"), "{text}");
        assert!(!text.contains("  proptest ") && !text.contains("ring3-"), "{text}");
    }
}
