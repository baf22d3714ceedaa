//! The sources of the kernels.

macro_rules! sources {
    ($($folder:literal: $($name:literal),+;)+) => {
        [$($(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $folder, "/", $name)))),+),+]
    };
}

/// Every file of `kernels/`, then of the library's examples and of `gdsync-lab/kernels/`: name and text.
pub const SOURCES: [(&str, &str); 8] = sources![
    "kernels": "conditional.cu", "notify.cu", "pingpong.cu";
    "gdsync/examples/kernels": "find_even.cu", "matvec.cu";
    "gdsync-lab/kernels": "bench.cu", "soak.cu", "trigger.cu";
];

/// Returns the text of that file.
pub fn source(name: &str) -> &'static str {
    let found = SOURCES.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no folder of kernels has {name}")).1
}
