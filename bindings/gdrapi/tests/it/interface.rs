//! Compares the header, the Rust types and the library's symbols.

use crate::support::{Language, Linked, build};
use gdrapi::types::*;
use gdsync_test_support::compiler::library;
use gdsync_test_support::skipped;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

macro_rules! fields {
    ($text:ident, $name:literal, $type:ty: $($field:ident),*) => {$(
        let size = { let of = <$type>::default(); size_of_val(&of.$field) };
        writeln!($text, "{}.{} {} {size}", $name, stringify!($field), offset_of!($type, $field)).unwrap();
    )*};
}

/// The expected output of `layout.c`: Rust's types, and the numbers of gdrcopy 2.6.
fn expected() -> String {
    let mut text = String::new();
    let (pointer, handle) = (size_of::<*mut Gdr>(), size_of::<MemoryHandle>());
    writeln!(text, "gdr_t {pointer}\ngdr_mh_t {handle}\ngdr_mh_t.h 0 {handle}").unwrap();
    let size = size_of::<InfoV2>();
    writeln!(text, "gdr_info_v2_t {size}\ngdr_info_t {size}").unwrap();
    fields!(text, "gdr_info_v2_t", InfoV2: va, mapped_size, page_size, tm_cycles, cycles_per_ms, mapping_type);
    let bits = offset_of!(InfoV2, bits);
    writeln!(text, "mapped {bits} {MAPPED}\nwc_mapping {bits} {WC_MAPPING}").unwrap();
    for name in ["gdr_pin_flags_t", "gdr_map_flags_t", "gdr_mapping_type_t", "gdr_attr_t"] {
        writeln!(text, "{name} {}", size_of::<u32>()).unwrap();
    }
    let (major, minor) = VERSION;
    for (name, value) in [
        ("GDR_API_MAJOR_VERSION", i64::from(major)),
        ("GDR_API_MINOR_VERSION", minor.into()),
        ("GDR_API_VERSION", 0x2_0006),
        ("MINIMUM_GDRDRV_VERSION", 0x2_0000),
        ("MAJOR_VERSION_SHIFT", 16),
        ("MINOR_VERSION_MASK", 0xffff),
        ("GPU_PAGE_SHIFT", 16),
        ("GPU_PAGE_SIZE", GPU_PAGE as i64),
        ("GPU_PAGE_OFFSET", 0xffff),
        ("GPU_PAGE_MASK", !0xffff),
        ("GDR_PIN_FLAG_DEFAULT", 0),
        ("GDR_PIN_FLAG_FORCE_PCIE", PIN_FORCE_PCIE.into()),
        ("GDR_MAPPING_TYPE_NONE", TYPE_NONE.into()),
        ("GDR_MAPPING_TYPE_WC", TYPE_WC.into()),
        ("GDR_MAPPING_TYPE_CACHING", TYPE_CACHING.into()),
        ("GDR_MAPPING_TYPE_DEVICE", TYPE_DEVICE.into()),
        ("GDR_MAPPING_TYPE_MAX", 4),
        ("GDR_MAP_FLAG_DEFAULT", 0),
        ("GDR_MAP_FLAG_REQ_WC_MAPPING", TYPE_WC.into()),
        ("GDR_MAP_FLAG_REQ_CACHE_MAPPING", TYPE_CACHING.into()),
        ("GDR_MAP_FLAG_REQ_DEVICE_MAPPING", TYPE_DEVICE.into()),
        ("GDR_ATTR_USE_PERSISTENT_MAPPING", ATTR_PERSISTENT.into()),
        ("GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE", ATTR_FORCE_PCIE.into()),
        ("GDR_ATTR_USING_DMA_BUF_MMAP", ATTR_DMA_BUF.into()),
        ("GDR_ATTR_MAX", 4),
    ] {
        writeln!(text, "{name} {value}").unwrap();
    }
    text
}

#[test]
fn the_header_is_rusts_types_in_c_and_cpp() {
    for language in [Language::C, Language::Cpp] {
        let test = "the_header_is_rusts_types_in_c_and_cpp";
        let Some(program) = build(test, language, "layout.c", Linked::Shared) else { return };
        assert_eq!(program.succeed(&[]), expected(), "{language:?}");
    }
}

/// The layout of every 64-bit machine on which gdrcopy runs.
#[cfg(target_pointer_width = "64")]
#[test]
fn structs_are_as_gdrcopys() {
    assert_eq!((size_of::<InfoV2>(), size_of::<InfoV1>(), size_of::<MemoryHandle>()), (48, 40, 8));
    assert_eq!((offset_of!(InfoV2, bits), offset_of!(InfoV2, mapping_type)), (36, 40));
    assert_eq!((offset_of!(InfoV1, tm_cycles), offset_of!(InfoV1, bits)), (24, 36));
}

/// The functions that the header declares, and the symbol that its macro hides.
fn declared() -> BTreeSet<String> {
    let header = include_str!("../../include/gdrapi.h");
    let code = header.lines().filter(|line| !line.starts_with([' ', '#']) && line.contains('('));
    let names = code.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("gdr_").then(|| name.to_owned())
    });
    names.chain(["gdr_get_info".to_owned()]).collect()
}

/// Runs a tool of binutils, if there is one.
fn tool(test: &str, name: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(name).args(arguments).arg(library("libgdrapi.so")).output() else {
        skipped(test, &format!("there is no {name} (apt-get install binutils)"));
        return None;
    };
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_library_has_the_headers_symbols_and_no_others() {
    let declared = declared();
    assert_eq!(declared.len(), 17, "{declared:?}");
    let test = "the_library_has_the_headers_symbols_and_no_others";
    let Some(text) = tool(test, "nm", &["-D", "--defined-only", "-P"]) else { return };
    let found: BTreeSet<String> =
        text.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
    assert_eq!(found, declared);
}

#[test]
fn the_documentation_names_every_symbol() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gpu-memory.md");
    let Ok(text) = std::fs::read_to_string(path) else {
        return skipped(
            "the_documentation_names_every_symbol",
            "a packaged crate comes without docs/gpu-memory.md",
        );
    };
    for name in declared() {
        assert!(text.contains(&format!("| `{name}` |")), "docs/gpu-memory.md says nothing of {name}");
    }
}

#[test]
fn the_library_has_gdrcopys_name() {
    let Some(text) = tool("the_library_has_gdrcopys_name", "readelf", &["-d"]) else { return };
    let name = text.lines().find(|line| line.contains("SONAME"));
    assert!(name.is_some_and(|line| line.contains("[libgdrapi.so.2]")), "{text}");
}
