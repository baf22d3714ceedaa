//! Gives the shared library its name, whatever cargo calls the file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgdsync.so.2");
}
