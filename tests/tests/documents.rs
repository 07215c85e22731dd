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
    for variable in ["RING3_RUNTIME_DIR", "RING3_LOG", "RING3_IDLE_SECONDS"] {
        assert!(readme.contains(variable), "{variable} is not in README.md");
    }
}
