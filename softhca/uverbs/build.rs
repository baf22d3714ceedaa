//! Links the shared library without debug information, as the `gdsync` command contains a copy of it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
}
