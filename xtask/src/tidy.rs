//! The laws of ARCHITECTURE.md, checked.

mod realm;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// Layers, lowest first; `inside` and `outside` are on the same level and never meet.
const LAYERS: [&str; 4] = ["pure", "shared", "inside", "outside"];
/// Names that say nothing.
const BANNED_NAMES: [&str; 5] = ["utils", "util", "misc", "common", "manager"];
/// How the comment at a door begins: of a crate, or of a directory of the realm.
const HEAD: [&str; 4] = ["//! Runs:", "//! May touch:", "//! Never:", "//! Start reading at:"];
/// Lines of a file at most, tables and tests excepted.
const LINES_MAX: usize = 900;

pub(crate) fn run() -> Result<(), String> {
    let mut broken = vec![];
    let packages = packages()?;
    check_arrows(&packages, &mut broken);
    check_headings(&packages, &mut broken)?;
    realm::check(&mut broken)?;
    for file in sources()? {
        check_file(&file, &mut broken)?;
    }
    if broken.is_empty() {
        println!("tidy: {} crates keep the laws", packages.len());
        return Ok(());
    }
    Err(format!("laws broken:\n  {}", broken.join("\n  ")))
}

struct Package {
    name: String,
    layer: String,
    directory: String,
    dependencies: Vec<String>,
    features: usize,
    is_described: bool,
}

fn packages() -> Result<Vec<Package>, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .map_err(|error| error.to_string())?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let root = root();
    Ok(packages
        .iter()
        .map(|package| {
            let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
            let directory = manifest.parent().unwrap_or(Path::new("")).strip_prefix(&root).unwrap_or(Path::new(""));
            let directory = directory.display().to_string();
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
            Package {
                name: package["name"].as_str().unwrap_or_default().to_owned(),
                layer: directory.split('/').next().unwrap_or_default().to_owned(),
                directory,
                dependencies: normal.filter_map(|d| Some(d["name"].as_str()?.to_owned())).collect(),
                features: package["features"].as_object().map_or(0, serde_json::Map::len),
                is_described: package["description"].is_string() && package["readme"].is_string(),
            }
        })
        .collect())
}

fn check_arrows(packages: &[Package], broken: &mut Vec<String>) {
    let layer_of = |name: &str| packages.iter().find(|package| package.name == name).map(|p| p.layer.as_str());
    for package in packages {
        if !package.is_described {
            broken.push(format!("the Cargo.toml of {} has no description or no readme", package.name));
        }
        let Some(own) = LAYERS.iter().position(|layer| *layer == package.layer) else { continue };
        for dependency in &package.dependencies {
            let Some(theirs) = layer_of(dependency).and_then(|f| LAYERS.iter().position(|layer| *layer == f)) else {
                continue;
            };
            let meets = (own == 3 && theirs == 2) || theirs > own;
            if meets {
                broken.push(format!("{} ({}) may not import {dependency}", package.name, package.layer));
            }
        }
        if own < 3 && package.features > 0 {
            broken.push(format!("{} has cargo features; the lower layers have none", package.name));
        }
    }
}

fn check_headings(packages: &[Package], broken: &mut Vec<String>) -> Result<(), String> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).map_err(|error| error.to_string())?;
    let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for package in packages {
        if !headings.contains(&package.name.as_str()) {
            broken.push(format!("ARCHITECTURE.md has no heading for {} ({})", package.name, package.directory));
        }
    }
    let crates = headings.iter().filter(|heading| heading.starts_with("ring3-") || **heading == "xtask");
    for heading in crates.filter(|heading| !packages.iter().any(|package| package.name == **heading)) {
        broken.push(format!("ARCHITECTURE.md speaks of {heading}, which does not exist"));
    }
    for path in text.split('`').skip(1).step_by(2) {
        let looks = path.contains('/') && !path.starts_with(['/', '$', '.']) && !path.contains([' ', '*', '<']);
        if looks && LAYERS.iter().any(|layer| path.starts_with(layer)) && !root().join(path).exists() {
            broken.push(format!("ARCHITECTURE.md names {path}, which does not exist"));
        }
    }
    Ok(())
}

fn sources() -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut files: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    files.retain(|file| root().join(file).exists());
    files.sort();
    Ok(files)
}

fn check_file(file: &Path, broken: &mut Vec<String>) -> Result<(), String> {
    let text = std::fs::read_to_string(root().join(file)).map_err(|error| format!("{}: {error}", file.display()))?;
    let shown = file.display().to_string();
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let raw = stem.starts_with("raw") || shown.contains("/raw/");
    if !raw && has_unsafe(&text) {
        broken.push(format!("{shown}: unsafe outside of a raw file"));
    }
    if BANNED_NAMES.contains(&stem) {
        broken.push(format!("{shown}: the name says nothing"));
    }
    if stem == "lib" && shown.contains("/src/") && LAYERS.iter().any(|layer| shown.starts_with(layer)) {
        for line in HEAD {
            if !text.contains(line) {
                broken.push(format!("{shown}: the comment at its head has no line `{line}`"));
            }
        }
    }
    let generated = shown.ends_with("uapi/src/bpf.rs") || shown.contains("/tests/");
    if !generated && text.lines().count() > LINES_MAX {
        broken.push(format!("{shown}: more than {LINES_MAX} lines; a second idea hides in it"));
    }
    Ok(())
}

/// The keyword in code; comments, strings and lint names do not count.
fn has_unsafe(text: &str) -> bool {
    text.lines().any(|line| {
        let code = line.split("//").next().unwrap_or_default();
        let outside_strings: String = code.split('"').step_by(2).collect();
        outside_strings.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
    })
}
