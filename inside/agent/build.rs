//! Links the agent as an image that needs nothing: no start files, no libraries, no undefined symbols.

fn main() {
    let arguments = [
        "-nostartfiles",
        "-nostdlib",
        "-Wl,--no-undefined",
        "-Wl,-Bsymbolic",
        "-Wl,-z,noseparate-code",
        "-Wl,-z,norelro",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
        "-Wl,--hash-style=gnu",
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
}
