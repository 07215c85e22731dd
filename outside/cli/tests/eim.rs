//! `ring3 eim`: what it prints, and its exit status.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with a program and policies, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ring3-cli-eim-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        let scratch = Scratch(path);
        scratch.write("strict.policy", "class strict { entry request; allow uri; helpers map }\n");
        scratch.write("open.policy", "class open { entry request; allow uri, refuse }\n");
        scratch.compile("server", &["-g", "-O2"]);
        scratch
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("the directory takes files");
    }

    /// The program of the model's tests, with notes.
    fn compile(&self, name: &str, flags: &[&str]) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut compiler = Command::new("gcc");
        compiler.args(flags).arg("-DWITH_NOTES").arg("-I").arg(root.join("include"));
        let built = compiler.arg(root.join("pure/eim/tests/host.c")).arg("-o").arg(self.0.join(name)).status();
        assert!(built.expect("gcc runs").success());
    }

    /// Exit status, standard output and standard error.
    fn eim(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut ring3 = Command::new(env!("CARGO_BIN_EXE_ring3"));
        let output = ring3.arg("eim").args(arguments).current_dir(&self.0).output().expect("ring3 runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
        (output.status.code().expect("it exits"), text(output.stdout), text(output.stderr))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn extract_prints_what_check_and_header_read() {
    let scratch = Scratch::new("extract");
    let (code, text, _) = scratch.eim(&["extract", "server"]);
    assert_eq!(code, 0);
    assert!(text.contains("state uri {\n    read request_t.uri\n"), "{text}");
    scratch.write("server.eim", &text);
    scratch.write("used.policy", "use \"server.eim\"\nclass strict { entry request; allow uri; helpers map }\n");
    // The same by notes, by --spec and by `use`.
    let by_notes = scratch.eim(&["check", "strict.policy", "--binary", "server"]);
    let by_file = scratch.eim(&["check", "strict.policy", "--binary", "server", "--spec", "server.eim"]);
    let by_program = scratch.eim(&["check", "strict.policy", "--binary", "server", "--spec", "server"]);
    let by_use = scratch.eim(&["check", "used.policy", "strict", "--binary", "server"]);
    assert_eq!((by_notes.0, by_notes.2.as_str()), (0, ""));
    assert!(by_notes.1.starts_with("class strict\n  runs before request_begin (entry request)\n"), "{}", by_notes.1);
    assert!(by_notes == by_file && by_notes == by_program && by_notes == by_use, "{by_use:?}");
    let (code, header, _) = scratch.eim(&["header", "used.policy:strict", "--binary", "server"]);
    assert!(code == 0 && header.contains("struct ring3_request {"), "{header}");
}

#[test]
fn a_change_of_a_policy_is_explained() {
    let scratch = Scratch::new("against");
    let more = ["check", "open.policy", "open", "--against", "strict.policy:strict", "--binary", "server"];
    let (code, text, _) = scratch.eim(&more);
    let added = "compared with strict.policy:strict\n  + call request_refuse(request_t *r: not null; long int status: 400..599)";
    assert!(code == 0 && text.contains(added) && text.contains("  + helpers time\n"), "{text}");
    let less = ["check", "strict.policy", "strict", "--against", "open.policy:open", "--binary", "server"];
    let (code, text, _) = scratch.eim(&less);
    assert!(code == 0 && text.contains("\n  - call request_refuse") && !text.contains("  + "), "{text}");
    let same = ["check", "open.policy", "open", "--against", "open.policy:open", "--binary", "server"];
    assert!(scratch.eim(&same).1.ends_with("the same as open.policy:open\n"));
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_exit_status() {
    let scratch = Scratch::new("wrong");
    scratch.write("typing.policy", "class c {\n    entry reqest\n    allow urri\n}\n");
    scratch.write("empty.policy", "");
    scratch.write("broken.policy", "class c { entry request; alow uri }\n");
    scratch.compile("stripped", &["-s"]);
    let (code, out, error) = scratch.eim(&["check", "typing.policy", "--binary", "server"]);
    let expected = "\
typing.policy:2:11: no entry `reqest` in the specification; did you mean `request`?
        entry reqest
              ^~~~~~
typing.policy:3:11: no state and no function `urri` in the specification; did you mean `uri`?
        allow urri
              ^~~~
";
    assert_eq!((code, out.as_str(), error.as_str()), (1, "", expected));
    for (arguments, code, begin) in [
        (&["check", "broken.policy", "--binary", "server"][..], 1, "broken.policy:1:26: `alow` has no meaning here"),
        (
            &["check", "strict.policy", "other", "--binary", "server"],
            1,
            "ring3: strict.policy has no class other; it has: strict",
        ),
        (&["check", "empty.policy", "--binary", "server"], 1, "ring3: empty.policy: no class in this policy"),
        (&["check", "strict.policy", "--binary", "stripped"], 1, "ring3: stripped: has no types"),
        (&["check", "strict.policy", "--spec", "server"], 2, "ring3: no types: name the program with --binary"),
        (
            &["check", "missing.policy"],
            2,
            "ring3: cannot read missing.policy: No such file or directory (os error 2); correct the name",
        ),
        (
            &["extract", "missing"],
            2,
            "ring3: cannot read missing: No such file or directory (os error 2); correct the name",
        ),
        (&["header", "strict.policy", "--binary", "server"], 2, "ring3: `strict.policy` names no class"),
        (&["extract", "strict.policy"], 1, "ring3: strict.policy: no 64-bit ELF file"),
        (&["check", "strict.policy", "--against", "a:b"], 2, "error: the following required arguments"),
    ] {
        let (found, out, error) = scratch.eim(arguments);
        assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {error}");
        assert!(error.starts_with(begin), "{arguments:?}: {error}");
    }
}

#[test]
fn types_beside_the_program_are_enough_to_look() {
    let scratch = Scratch::new("beside");
    scratch.compile("types.o", &["-g", "-c"]);
    let (_, text, _) = scratch.eim(&["extract", "server"]);
    let text = text.replace("application \"host\"", "application \"host\" { types \"types.o\" }");
    scratch.write("server.eim", &text);
    let (code, out, _) = scratch.eim(&["check", "strict.policy", "--spec", "server.eim"]);
    assert!(code == 0 && out.contains("was not checked"), "{out}");
    scratch.compile("plain", &["-O2"]);
    let (code, out, error) = scratch.eim(&["check", "open.policy", "--spec", "server.eim", "--binary", "plain"]);
    assert!(code == 0 && !out.contains("was not checked"), "{out}{error}");
    scratch.compile("stripped", &["-s"]);
    let (code, _, error) = scratch.eim(&["check", "open.policy", "--spec", "server.eim", "--binary", "stripped"]);
    assert!(code == 1 && error.contains("stripped has no symbols (it is stripped)"), "{error}");
}
