//! What the documents say is what the binary says.

use ring3_tests::{Bench, root};

#[test]
fn the_support_table_is_fresh() {
    let (_, markdown, _) = Bench::ring3().run(&["features", "--markdown"]);
    let written = std::fs::read_to_string(root().join("docs/SUPPORT.md")).expect("there");
    assert!(written == markdown, "docs/SUPPORT.md is stale: run `cargo xtask support`");
}

#[test]
fn the_readme_names_every_command_and_variable() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("there");
    let (_, help, _) = Bench::ring3().run(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    for name in names.map(|name| format!("ring3 {name}")) {
        assert!(readme.contains(&name), "{name} is not in README.md");
    }
    for variable in ["RING3_RUNTIME_DIR", "RING3_LOG", "RING3_IDLE_SECONDS", "RING3_STRACE_BACKEND"] {
        assert!(readme.contains(variable), "{variable} is not in README.md");
    }
}

/// All Rust files of a directory.
fn sources(directory: &std::path::Path, found: &mut String) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&std::fs::read_to_string(path).expect("readable"));
        }
    }
}

#[test]
fn the_tests_that_the_threat_model_names_are_there() {
    let mut code = String::new();
    ["pure", "shared", "inside", "outside", "tests"].iter().for_each(|floor| sources(&root().join(floor), &mut code));
    let text = std::fs::read_to_string(root().join("SECURITY.md")).expect("there");
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 2).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(code.contains(&format!("fn {name}(")), "{name} is named in SECURITY.md");
    }
}
