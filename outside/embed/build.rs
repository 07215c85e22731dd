//! Names the shared library as programs that are linked with it shall look for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libring3.so.0");
}
