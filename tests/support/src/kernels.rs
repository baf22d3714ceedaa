//! The sources of the kernels.

macro_rules! sources {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/", $name)))),+]
    };
}

/// Every file of `kernels/`: name and text.
pub const SOURCES: [(&str, &str); 8] = sources![
    "bench.cu",
    "conditional.cu",
    "find_even.cu",
    "matvec.cu",
    "notify.cu",
    "pingpong.cu",
    "soak.cu",
    "trigger.cu"
];

/// Returns the text of that file.
pub fn source(name: &str) -> &'static str {
    let found = SOURCES.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("kernels/ has no {name}")).1
}
