//! Lets `cargo test --lib` of the whole workspace link: the symbols of Python are those of the interpreter that loads the module, and
//! no test of cargo's calls them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // gdsync-python-stub reads it.
    println!("cargo::rerun-if-changed=python/gdsync/__init__.pyi");
    println!("cargo::rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}
