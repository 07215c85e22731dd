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
        "-Wl,--no-eh-frame-hdr",
        "-Wl,--gc-sections",
        "-Wl,--hash-style=gnu",
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/image.ld");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-T,{script}");
    println!("cargo:rerun-if-changed={script}");
}
