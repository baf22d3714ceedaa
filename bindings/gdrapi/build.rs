//! Sets the soname for which programs that were built against gdrcopy's library look.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgdrapi.so.2");
}
