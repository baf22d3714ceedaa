//! The files of this machine, or of a recorded tree: reading, and parsers, which read no files themselves and never panic.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// Returns the value of a line `key<separator>value`.
pub(super) fn field<'a>(text: &'a str, key: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Returns the NVIDIA kernel module's version in `/proc/driver/nvidia/version`, and whether it is the open one.
pub(super) fn driver_version(text: &str) -> Option<(String, bool)> {
    let line = field(text, "NVRM version", ':')?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()))
    };
    let version = line.split_whitespace().find(is_version)?;
    Some((version.to_owned(), line.contains("Open Kernel Module")))
}

/// Returns the number of a registry key in `RegistryDwords: "PeerMappingOverride=1;Other=0x2;"`.
pub(super) fn registry_dword(value: &str, key: &str) -> Option<u32> {
    let entries = value.trim_matches('"').split(';');
    entries.filter_map(|entry| entry.split_once('=')).find_map(|(name, number)| {
        if name.trim() != key {
            return None;
        }
        let number = number.trim();
        match number.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => number.parse().ok(),
        }
    })
}

/// Returns major and minor number of a kernel release such as `6.8.0-45-generic`.
pub(super) fn kernel_release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns the soft limit of locked memory in `/proc/self/limits`, in bytes; `Some(None)` if unlimited.
pub(super) fn locked_memory(text: &str) -> Option<Option<u64>> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Returns the effective capabilities in `/proc/self/status`, a bit for each.
pub(super) fn capabilities(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff", ':')?, 16).ok()
}

/// Returns whether capability `number` is in the effective set of `/proc/self/status`.
pub(super) fn has_capability(status: &str, number: u32) -> Option<bool> {
    Some(capabilities(status)?.checked_shr(number)? & 1 != 0)
}

/// Returns a variable's value in `/proc/self/environ`, whose entries end with a zero.
pub(super) fn variable(environment: &[u8], name: &str) -> Option<String> {
    let entries = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    entries.into_iter().find_map(|entry| {
        let (found, value) = entry.split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

/// Returns the last value of `key=value` in a file of systemd; an empty value resets those of earlier files.
pub(super) fn last_setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().rev().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Returns whether systemd's limit, `SOFT` or `SOFT:HARD`, is unlimited.
pub(super) fn is_infinite(limit: &str) -> bool {
    limit.split(':').next().is_some_and(|soft| soft.trim() == "infinity")
}

/// Returns the mapped library file in `/proc/self/maps` whose name begins with `soname`.
pub(super) fn mapped_library<'a>(maps: &'a str, soname: &str) -> Option<&'a str> {
    maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit('/').next().is_some_and(|name| name.starts_with(soname)).then_some(path)
    })
}

/// Returns rdma-core's release in a library's file name, `soname.ABI.RELEASE`: 44.0 for `libibverbs.so.1.14.44.0`.
pub(super) fn library_release<'a>(path: &'a str, soname: &str) -> Option<&'a str> {
    let rest = path.rsplit('/').next()?.strip_prefix(soname)?.strip_prefix('.')?;
    let (_abi, release) = rest.split_once('.')?;
    (!release.is_empty()).then_some(release)
}

/// Returns the text after the number of a state such as `4: ACTIVE`, in `/sys/class/infiniband/*/ports/*/state`.
pub(super) fn state(text: &str) -> &str {
    text.split_once(':').map_or(text, |(_, name)| name).trim()
}

/// Access Control Services of a PCI Express function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acs {
    /// The configuration space has only this many bytes, without the extended capabilities.
    Unreadable(usize),
    None,
    Control(u16),
}

/// Offset of the extended capabilities (`PCI_CFG_SPACE_SIZE` of `linux/pci_regs.h`).
const EXTENDED: usize = 0x100;
/// Id of the ACS capability (`PCI_EXT_CAP_ID_ACS` of `linux/pci_regs.h`), and the offset of its control register.
const ACS_ID: u32 = 0x0d;
const ACS_CONTROL: usize = 6;
/// Maximum number of extended capabilities: each has at least 4 bytes.
const MOST: usize = (4096 - EXTENDED) / 4;

/// Finds ACS in a function's configuration space, as sysfs shows it.
pub(super) fn acs(config: &[u8]) -> Acs {
    let word = |at: usize| -> Option<u32> {
        let bytes: [u8; 4] = config.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let mut at = EXTENDED;
    for _ in 0..MOST {
        // 0: no extended capabilities, or the end of the list; all ones: a device that does not answer.
        let Some(header) = word(at) else { return Acs::Unreadable(config.len()) };
        if header == u32::MAX {
            return Acs::Unreadable(config.len());
        }
        if header & 0xffff == ACS_ID {
            return match word(at + ACS_CONTROL - 2) {
                // The low half is the capability register, the high half the control register.
                Some(registers) => Acs::Control((registers >> 16) as u16),
                None => Acs::Unreadable(config.len()),
            };
        }
        at = (header >> 20) as usize & !3;
        if at < EXTENDED {
            break;
        }
    }
    Acs::None
}

/// Returns the names of the control bits that redirect traffic between two devices through the root (`PCI_ACS_RR`,
/// `PCI_ACS_CR`, `PCI_ACS_EC`).
pub(super) fn redirections(control: u16) -> Vec<&'static str> {
    let bits = [(1 << 2, "request redirect"), (1 << 3, "completion redirect"), (1 << 5, "egress control")];
    bits.iter().filter(|(bit, _)| control & bit != 0).map(|(_, name)| *name).collect()
}

/// Offset of the first capability's offset, and the id of the PCI Express capability with the offset of its control register
/// (`PCI_CAPABILITY_LIST`, `PCI_CAP_ID_EXP`, `PCI_EXP_DEVCTL` of `linux/pci_regs.h`).
const CAPABILITY_LIST: usize = 0x34;
const EXPRESS_ID: u8 = 0x10;
const DEVICE_CONTROL: usize = 8;
/// `PCI_EXP_DEVCTL_RELAX_EN`.
const RELAXED: u8 = 1 << 4;

/// Returns whether a function may use relaxed ordering; none if its configuration space, of which users see 64 bytes, does not show it.
pub(super) fn relaxed_ordering(config: &[u8]) -> Option<bool> {
    let mut at = usize::from(*config.get(CAPABILITY_LIST)?);
    // The list has at most one capability of 4 bytes for each 4 of 256 bytes.
    for _ in 0..64 {
        let (id, next) = (*config.get(at)?, *config.get(at + 1)?);
        if at < 0x40 {
            return None;
        }
        if id == EXPRESS_ID {
            return Some(config.get(at + DEVICE_CONTROL)? & RELAXED != 0);
        }
        at = usize::from(next & !3);
    }
    None
}

/// Returns the bytes of a window in a PCI function's `resource`, whose lines have the first and the last address.
pub(super) fn window(resource: &str, number: usize) -> Option<u64> {
    let mut words = resource.lines().nth(number)?.split_whitespace();
    let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (first, last) = (address()?, address()?);
    (first != 0).then(|| last.checked_sub(first)?.checked_add(1))?
}

/// Bytes read from a file at most; files of the kernel are shorter, and a longer one is cut.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    path: String,
    pub(super) kind: io::ErrorKind,
    reason: String,
}

impl Unread {
    /// True if the file does not exist, as opposed to unreadable.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_missing() {
            write!(f, "there is no {}", self.path)
        } else {
            write!(f, "{} cannot be read: {}", self.path, self.reason)
        }
    }
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Tree { root: root.to_owned() }
    }

    /// Returns the real path of an absolute `path`.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn unread(path: &str, error: &io::Error) -> Unread {
        Unread { path: path.to_owned(), kind: error.kind(), reason: error.to_string() }
    }

    pub(super) fn bytes(&self, path: &str) -> Result<Vec<u8>, Unread> {
        let mut bytes = Vec::new();
        let file = fs::File::open(self.at(path)).map_err(|error| Self::unread(path, &error))?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| Self::unread(path, &error))?;
        Ok(bytes)
    }

    /// Returns a file as text without surrounding white space. Invalid UTF-8 is replaced.
    pub(super) fn text(&self, path: &str) -> Result<String, Unread> {
        Ok(String::from_utf8_lossy(&self.bytes(path)?).trim().to_owned())
    }

    pub(super) fn names(&self, path: &str) -> Result<Vec<String>, Unread> {
        let entries = fs::read_dir(self.at(path)).map_err(|error| Self::unread(path, &error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Self::unread(path, &error))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    pub(super) fn link(&self, path: &str) -> Result<String, Unread> {
        let target = fs::read_link(self.at(path)).map_err(|error| Self::unread(path, &error))?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Returns the last component of a symbolic link's target.
    pub(super) fn link_name(&self, path: &str) -> Result<String, Unread> {
        let target = self.link(path)?;
        Ok(target.rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// Returns whether a path exists, or an error if that is unknown.
    pub(super) fn exists(&self, path: &str) -> Result<bool, Unread> {
        self.at(path).try_exists().map_err(|error| Self::unread(path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn driver_versions_of_both_kinds_of_modules() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)  Thu Apr  2\nGCC version:  gcc version 12.2.0 (Debian)";
        assert_eq!(driver_version(open), Some(("580.159.04".to_owned(), true)));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: gcc version 11.4.0";
        assert_eq!(driver_version(closed), Some(("535.104.05".to_owned(), false)));
        for text in ["", "NVRM version:", "NVRM version: none yet", "GCC version: 12.2.0"] {
            assert_eq!(driver_version(text), None, "{text}");
        }
    }

    #[test]
    fn variables_and_settings_are_found_whole() {
        let environment = b"A=1\0CUDA=2=3\0CUDA_MORE=4\0EMPTY=\0\xff\0";
        assert_eq!(variable(environment, "CUDA").as_deref(), Some("2=3"));
        assert_eq!(
            (variable(environment, "EMPTY").as_deref(), variable(environment, "MORE")),
            (Some(""), None)
        );
        let unit = "[Service]\nLimitMEMLOCK=1G\n#LimitMEMLOCK=infinity\n LimitMEMLOCK = 2G \nLimitNOFILE=1\n";
        assert_eq!((last_setting(unit, "LimitMEMLOCK"), last_setting(unit, "LimitCPU")), (Some("2G"), None));
        assert_eq!(last_setting("A=1\nA=\n", "A"), Some(""));
        assert_eq!(
            ["infinity", "infinity:infinity", "64M", "8M:infinity", ""].map(is_infinite),
            [true, true, false, false, false]
        );
    }

    #[test]
    fn registry_keys_are_found_among_others() {
        assert_eq!(registry_dword("\"PeerMappingOverride=1;\"", "PeerMappingOverride"), Some(1));
        assert_eq!(registry_dword("\"RmMsg=2; PeerMappingOverride=0x1\"", "PeerMappingOverride"), Some(1));
        assert_eq!(registry_dword("\"PeerMappingOverride=0;\"", "PeerMappingOverride"), Some(0));
        for value in [
            "",
            "\"\"",
            "\"NotPeerMappingOverride=1\"",
            "\"PeerMappingOverride\"",
            "\"PeerMappingOverride=x\"",
        ] {
            assert_eq!(registry_dword(value, "PeerMappingOverride"), None, "{value}");
        }
    }

    #[test]
    fn limits_capabilities_and_releases() {
        let limits = |value: &str| {
            format!("Max processes             63432\nMax locked memory         {value}  {value}  bytes\n")
        };
        assert_eq!(locked_memory(&limits("8388608")), Some(Some(8 << 20)));
        assert_eq!(locked_memory(&limits("unlimited")), Some(None));
        assert_eq!(locked_memory(&limits("many")), None);
        assert_eq!(locked_memory("Max processes 1"), None);
        let status = "Name:\tx\nCapEff:\t0000000000004000\n";
        assert_eq!((has_capability(status, 14), has_capability(status, 21)), (Some(true), Some(false)));
        assert_eq!((has_capability(status, 64), has_capability("CapEff:\tzz", 1)), (None, None));
        assert_eq!(kernel_release("6.8.0-45-generic"), Some((6, 8)));
        assert_eq!(kernel_release("5.12"), Some((5, 12)));
        assert_eq!((kernel_release("6"), kernel_release("linux")), (None, None));
        assert_eq!((state("4: ACTIVE"), state("ACTIVE"), state("")), ("ACTIVE", "ACTIVE", ""));
    }

    #[test]
    fn releases_of_rdma_core_are_in_file_names() {
        let maps = "7f00-7f01 r-xp 00000000 fe:00 12  /usr/lib/x86_64-linux-gnu/libc.so.6\n7f02-7f03 r--p 00000000 fe:00 13  /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n7f04-7f05 rw-p 00000000 00:00 0\n";
        let path = mapped_library(maps, "libibverbs.so.1").unwrap();
        assert_eq!(library_release(path, "libibverbs.so.1"), Some("44.0"));
        assert_eq!(mapped_library(maps, "libmlx5.so.1"), None);
        assert_eq!(library_release("/opt/libmlx5.so.1.25.2501mlnx56", "libmlx5.so.1"), Some("2501mlnx56"));
        for path in ["/usr/lib/libmlx5.so.1", "/usr/lib/libmlx5.so.1.25", "/usr/lib/libmlx5.so.1.25.", ""] {
            assert_eq!(library_release(path, "libmlx5.so.1"), None, "{path}");
        }
    }

    /// Builds a configuration space from extended capabilities: offset, id, next, and the control register at 6.
    fn config(capabilities: &[(usize, u32, usize, u16)]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        for (at, id, next, control) in capabilities {
            bytes[*at..at + 4].copy_from_slice(&(id | 1 << 16 | (*next as u32) << 20).to_le_bytes());
            bytes[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn acs_is_found_in_the_list_of_extended_capabilities() {
        assert_eq!(acs(&config(&[(0x100, 1, 0x148, 0), (0x148, 0x0d, 0, 0x1d)])), Acs::Control(0x1d));
        assert_eq!(acs(&config(&[(0x100, 1, 0, 0)])), Acs::None);
        assert_eq!(acs(&[0; 4096]), Acs::None);
        assert_eq!(acs(&[0; 64]), Acs::Unreadable(64));
        assert_eq!(acs(&[0; 256]), Acs::Unreadable(256));
        // A device off its bus; a list that ends outside; an endless list.
        assert_eq!(acs(&[0xff; 4096]), Acs::Unreadable(4096));
        assert_eq!(acs(&config(&[(0x100, 1, 0x200, 0)])[..0x200]), Acs::Unreadable(0x200));
        assert_eq!(acs(&config(&[(0x100, 1, 0x148, 0), (0x148, 2, 0x100, 0)])), Acs::None);
        assert_eq!(redirections(0x1d), ["request redirect", "completion redirect"]);
        assert!(redirections(0x13).is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), number: u32) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (driver_version(&text), registry_dword(&text, "a"), kernel_release(&text), locked_memory(&text));
            let _ = (has_capability(&text, number), mapped_library(&text, ""), library_release(&text, ""), state(&text));
            let _ = (acs(&bytes), redirections(number as u16), field(&text, "", ':'));
            let _ = (relaxed_ordering(&bytes), window(&text, 0));
            let _ = (variable(&bytes, "a"), last_setting(&text, "a"), is_infinite(&text));
        }

        /// Like above, with the characters that the parsers look for.
        #[test]
        fn no_text_makes_a_parser_panic(
            text in "(NVRM version|CapEff|0xf*|Max locked memory|libx\\.so\\.1|[0-9.:;=/\"x é\n]){0,20}",
            number: u32,
        ) {
            let _ = (driver_version(&text), registry_dword(&text, "a"), kernel_release(&text), locked_memory(&text));
            let _ = (has_capability(&text, number), mapped_library(&text, "libx.so.1"), state(&text));
            let _ = (library_release(&text, "libx.so.1"), window(&text, 1));
        }

        /// With any content, the list is followed to its end and no further.
        #[test]
        fn no_list_of_capabilities_is_followed_for_ever(
            capabilities in prop::collection::vec((64usize..1000, 0u32..0x20, 0usize..0x1000, any::<u16>()), 0..60),
            len in 0usize..4097,
        ) {
            let placed: Vec<_> = capabilities.iter().map(|(at, id, next, control)| (at * 4, *id, *next, *control)).collect();
            let _ = acs(&config(&placed)[..len]);
        }
    }
}
