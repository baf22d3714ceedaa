//! Tells the build scripts of dependents where the device header is, in `DEP_GDSYNC_DEVICE_INCLUDE`.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Cargo sets it for every build script.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::metadata=include={}", Path::new(&manifest).join("include").display());
}
