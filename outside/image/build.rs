//! Builds the agent, which needs other flags than the rest, and the library that strace preloads: by a nested cargo with a target
//! directory of its own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../..");
    for watched in ["inside", "shared", "pure", "outside/bpf", "outside/strace", "Cargo.toml"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    // The agent may not touch vector registers; a test decodes the image to prove that it does not.
    let no_vectors = "-Ctarget-feature=-sse,-sse2,-sse3,-ssse3,-sse4.1,-sse4.2,-avx,-avx2";
    build(&root, "ring3-agent", "agent", &[], &[no_vectors, "-Crelocation-model=pic", "-Awarnings"]);
    build(&root, "ring3-strace", "release", &["preload"], &["-Awarnings"]);
}

/// Builds the shared library of a package, and tells the crate where it is.
fn build(root: &Path, package: &str, profile: &str, features: &[&str], flags: &[&str]) {
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join(profile);
    // Named, so that a `build.target` in somebody's configuration does not move the result.
    let host = env::var("HOST").expect("set by cargo");
    let mut build = Command::new(env::var_os("CARGO").expect("set by cargo"));
    build
        .current_dir(root)
        .args(["rustc", "--lib", "--crate-type", "cdylib", "--package", package, "--profile", profile])
        .args(["--features", &features.join(",")])
        .args(["--quiet", "--target-dir"])
        .arg(&target)
        .args(["--target", &host])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    for name in ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET"] {
        build.env_remove(name);
    }
    // What the agent leaves alone was read in an image that was built by its profile as it stands in Cargo.toml. An incremental
    // build of it, say, has no link-time optimisation and changes registers that its callers need.
    let is_of_profiles = |name: &str| name == "CARGO_INCREMENTAL" || name.starts_with("CARGO_PROFILE_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_profiles)) {
        build.env_remove(name);
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "building {package} failed");
    let name = package.replace('-', "_");
    let library = target.join(host).join(profile).join(format!("lib{name}.so"));
    println!("cargo:rustc-env={}={}", name.to_uppercase(), library.display());
}
