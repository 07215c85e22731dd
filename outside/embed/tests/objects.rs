//! Objects as they are written for other virtual machines, and for structures that the application lays out otherwise.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_embed::{Context, Engine, Error, Settings, Vm};

/// A directory for one test; none without clang.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Place {
    fn new(name: &str) -> Option<Place> {
        if Command::new("clang").arg("--version").output().is_err() {
            println!("SKIPPED: there is no clang");
            return None;
        }
        let place = std::env::temp_dir().join(format!("ring3-embed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        Some(Place(place))
    }

    fn run(&self, command: &mut Command) {
        let output = command.current_dir(&self.0).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Compiles C to an object.
    fn compile(&self, name: &str, text: &str, flags: &[&str]) -> Vec<u8> {
        let (source, object) = (self.0.join(format!("{name}.c")), self.0.join(format!("{name}.o")));
        std::fs::write(&source, text).expect("room");
        let mut clang = Command::new("clang");
        self.run(clang.args(["-target", "bpf", "-O2", "-c"]).args(flags).arg(&source).arg("-o").arg(&object));
        std::fs::read(&object).expect("an object")
    }

    /// The types of an object.
    fn types(&self, name: &str) -> Option<Vec<u8>> {
        let (object, types) = (self.0.join(format!("{name}.o")), self.0.join(format!("{name}.btf")));
        let dump = format!(".BTF={}", types.display());
        let dumped = Command::new("llvm-objcopy")
            .arg("--dump-section")
            .arg(dump)
            .arg(&object)
            .arg(Path::new("/dev/null"))
            .status();
        if !dumped.is_ok_and(|status| status.success()) {
            println!("SKIPPED IN PART: llvm-objcopy writes no section");
            return None;
        }
        Some(std::fs::read(types).expect("types"))
    }
}

#[test]
fn functions_of_the_text_section_are_programs() {
    let Some(place) = Place::new("text") else { return };
    // As ubpf's: no sections, no types, no license.
    let bytes = place.compile(
        "text",
        "static __attribute__((noinline)) unsigned long twice(unsigned long x) { return x * 2; }\n\
         unsigned long first(unsigned char *m, unsigned long n) { return m[0] + n; }\n\
         unsigned long second(unsigned char *m, unsigned long n) { return twice(m[1]); }\n",
        &[],
    );
    let vm = Vm::new().expect("this machine runs programs");
    for engine in [Engine::Jit, Engine::Interpreter] {
        let settings = Settings::new(Context::memory(4)).engine(engine);
        let object = vm.load_object(&bytes, &settings).unwrap_or_else(|error| panic!("{error}"));
        let names: Vec<&str> = object.programs().iter().map(ring3_embed::Program::name).collect();
        assert_eq!(names, ["first", "second"]);
        assert_eq!(object.program("first").expect("it is there").call(&mut [7, 8, 9, 10]), Ok(11), "{engine:?}");
        assert_eq!(object.program("second").expect("it is there").call(&mut [7, 8, 9, 10]), Ok(16), "{engine:?}");
        let one = vm.load_object(&bytes, &settings.only("second")).expect("valid");
        assert_eq!(one.programs().len(), 1);
    }
}

#[test]
fn accesses_are_relocated_by_the_types_of_the_application() {
    let Some(place) = Place::new("types") else { return };
    const STRUCTURE: &str = "struct request { MEMBERS } __attribute__((preserve_access_index));\n";
    let with = |members: &str, rest: &str| STRUCTURE.replace("MEMBERS", members) + rest;
    let program = with(
        "int verdict; int port;",
        "__attribute__((section(\"request\"), used)) int filter(struct request *r) { return r->port; }\n",
    );
    let bytes = place.compile("program", &program, &["-g"]);
    // The application's structure has another member before.
    let application = with(
        "char name[12]; int port; int verdict;",
        "struct request own; int known(struct request *r) { return r->port; }\n",
    );
    place.compile("application", &application, &["-g"]);
    let Some(types) = place.types("application") else { return };
    let vm = Vm::new().expect("this machine runs programs");
    let settings = Settings::new(Context::memory(20)).types(&types).unwrap_or_else(|error| panic!("{error}"));
    let object = vm.load_object(&bytes, &settings).unwrap_or_else(|error| panic!("{error}"));
    let mut memory = [0u8; 20];
    memory[4] = 1;
    memory[12] = 80;
    assert_eq!(object.program("filter").expect("it is there").call(&mut memory), Ok(80));
    assert!(matches!(Settings::new(Context::none()).types(b"nonsense"), Err(Error::Object(_))));
    let untyped = vm.load_object(&bytes, &Settings::new(Context::memory(20)));
    assert!(untyped.is_err(), "without types nobody knows where the port is");
}

#[test]
fn an_object_asks_whether_a_function_is_there() {
    let Some(place) = Place::new("weak") else { return };
    let text = "extern int maybe(int) __attribute__((section(\".ksyms\"), weak));\n\
                __attribute__((section(\"request\"), used)) int filter(void *r) { return maybe ? maybe(5) : 1; }\n";
    let bytes = place.compile("weak", text, &["-g"]);
    let (with, without) = (Vm::new().expect("one"), Vm::new().expect("one"));
    let maybe = ring3_embed::Function::new(
        "maybe",
        vec![ring3_embed::Parameter::Number(0..=9)],
        ring3_embed::Returned::Number(0..=99),
        |arguments| 10 * arguments.get(0),
    );
    with.register(maybe).expect("free");
    for (vm, expected) in [(with, 50), (without, 1)] {
        let object =
            vm.load_object(&bytes, &Settings::new(Context::none())).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(object.program("filter").expect("it is there").call(&mut []), Ok(expected));
    }
}
