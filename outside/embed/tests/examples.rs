//! The examples in C, C++, Python and Rust are built and say the same; so is the header's C API used wrongly.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_tests::root;

const EXPECTED: &str = "\
/admin/users: pass
/admin/users: refuse
/index.html: pass
port 443: 1
port 80: 2
refused: /admin/users of guest
seen: 3
";

/// A directory with the object file and the library, as it would be installed.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok();
    if !has {
        println!("SKIPPED: there is no {tool}");
    }
    has
}

/// The directory that cargo has put the libraries into: that of this test.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.parent().expect("a directory").to_owned()
}

impl Place {
    fn new(name: &str) -> Option<Place> {
        if !has("clang") || !has("cc") {
            return None;
        }
        let place = std::env::temp_dir().join(format!("ring3-embed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        let library = libraries().join("libring3_embed.so");
        assert!(library.exists(), "cargo has built {}", library.display());
        for alias in ["libring3.so", "libring3.so.0"] {
            let _ = std::os::unix::fs::symlink(&library, place.join(alias));
        }
        let place = Place(place);
        place.run(
            Command::new("clang")
                .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-I/usr/include/x86_64-linux-gnu", "-c"])
                .arg(example("filter.bpf.c"))
                .arg("-o")
                .arg(place.0.join("filter.bpf.o")),
        );
        Some(place)
    }

    /// Runs a command, which must succeed; what it prints.
    fn run(&self, command: &mut Command) -> String {
        let output = command.current_dir(&self.0).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (out, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command:?}: {}\n{out}{why}", output.status);
        out.into_owned()
    }

    fn compile(&self, compiler: &str, source: &Path, flags: &[&str]) -> PathBuf {
        let program = self.0.join(format!("program-{compiler}-{}", flags.len()));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g"]).args(flags);
        command.arg("-I").arg(root().join("outside/embed/include")).arg("-I").arg(root().join("examples/embed"));
        command.arg(source).arg("-L").arg(&self.0).arg("-lring3");
        command.arg(format!("-Wl,-rpath,{}", self.0.display())).arg("-o").arg(&program);
        self.run(&mut command);
        program
    }

    /// The output of an example, its lines in order.
    fn told(&self, command: &mut Command) -> String {
        let mut lines: Vec<String> =
            self.run(command.arg("filter.bpf.o")).lines().map(|line| format!("{line}\n")).collect();
        lines.sort();
        lines.concat()
    }
}

fn example(name: &str) -> PathBuf {
    root().join("examples/embed").join(name)
}

#[test]
fn the_example_in_c_runs_also_under_the_address_sanitizer() {
    let Some(place) = Place::new("c") else { return };
    let program = place.compile("cc", &example("embed.c"), &["-std=c11", "-pedantic"]);
    assert_eq!(place.told(&mut Command::new(&program)), EXPECTED);
    let sanitized =
        place.compile("cc", &example("embed.c"), &["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-w"]);
    assert_eq!(place.told(&mut Command::new(&sanitized)), EXPECTED);
}

#[test]
fn the_example_in_cpp_runs() {
    let Some(place) = Place::new("cpp").filter(|_| has("c++")) else { return };
    let program = place.compile("c++", &example("embed.cpp"), &["-std=c++17", "-Wno-missing-field-initializers"]);
    assert_eq!(place.told(&mut Command::new(&program)), EXPECTED);
}

#[test]
fn the_example_in_python_runs() {
    let Some(place) = Place::new("python").filter(|_| has("python3")) else { return };
    let mut command = Command::new("python3");
    command.arg(example("embed.py")).arg("filter.bpf.o");
    let mut lines: Vec<String> =
        place.run(command.arg(place.0.join("libring3.so"))).lines().map(|line| format!("{line}\n")).collect();
    lines.sort();
    assert_eq!(lines.concat(), EXPECTED);
}

#[test]
fn the_example_in_rust_runs() {
    let Some(place) = Place::new("rust") else { return };
    let program = libraries().parent().expect("a directory").join("examples/embed");
    assert!(program.exists(), "cargo has built {}", program.display());
    assert_eq!(place.told(&mut Command::new(program)), EXPECTED);
}

#[test]
fn what_c_does_wrong_is_an_error() {
    let Some(place) = Place::new("misuse") else { return };
    let program = place.compile("cc", &root().join("outside/embed/tests/misuse.c"), &["-std=gnu11", "-pthread"]);
    assert!(place.run(&mut Command::new(&program)).ends_with("all is well\n"));
}

#[test]
fn the_header_declares_what_the_library_has() {
    let Some(_place) = Place::new("header") else { return };
    let header = std::fs::read_to_string(root().join("outside/embed/include/ring3.h")).expect("the header");
    let code = header.lines().filter(|line| !line.starts_with([' ', '/']) && !line.starts_with("typedef"));
    let mut declared: Vec<&str> = code
        .flat_map(|line| line.match_indices("ring3_").map(|(at, _)| &line[at..]))
        .filter_map(|name| {
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            name[end..].starts_with('(').then_some(&name[..end])
        })
        .collect();
    declared.sort_unstable();
    let listed =
        Command::new("nm").args(["-D", "--defined-only"]).arg(libraries().join("libring3_embed.so")).output();
    let Ok(listed) = listed else { return println!("SKIPPED: there is no nm") };
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut exported: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exported.sort_unstable();
    assert!(declared.len() > 40, "{declared:?}");
    assert_eq!(declared, exported);
}
