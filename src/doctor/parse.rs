//! Parsers of the kernel's files. They read no files themselves, and panic on no input.

/// The value of a line `key<separator>value`.
pub(super) fn field<'a>(text: &'a str, key: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// The NVIDIA kernel module's version in `/proc/driver/nvidia/version`, and whether it is the open
/// one.
pub(super) fn driver_version(text: &str) -> Option<(String, bool)> {
    let line = field(text, "NVRM version", ':')?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()))
    };
    let version = line.split_whitespace().find(is_version)?;
    Some((version.to_owned(), line.contains("Open Kernel Module")))
}

/// The number of a registry key in `RegistryDwords: "PeerMappingOverride=1;Other=0x2;"`.
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

/// Major and minor number at the beginning of a kernel release such as `6.8.0-45-generic`.
pub(super) fn kernel_release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The soft limit of locked memory in `/proc/self/limits`, in bytes; `Some(None)` where there is no
/// limit.
pub(super) fn locked_memory(text: &str) -> Option<Option<u64>> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// The effective capabilities in `/proc/self/status`, a bit for each.
pub(super) fn capabilities(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff", ':')?, 16).ok()
}

/// Whether a capability, by its number, is in the effective set of `/proc/self/status`.
pub(super) fn has_capability(status: &str, number: u32) -> Option<bool> {
    Some(capabilities(status)?.checked_shr(number)? & 1 != 0)
}

/// The value of a variable in `/proc/self/environ`, where entries end with a zero.
pub(super) fn variable(environment: &[u8], name: &str) -> Option<String> {
    let entries = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    entries.into_iter().find_map(|entry| {
        let (found, value) = entry.split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

/// The last value of `key=value` in a file of systemd's; an empty one takes back those of earlier files.
pub(super) fn last_setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().rev().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Whether a limit of systemd's, `SOFT` or `SOFT:HARD`, is none.
pub(super) fn is_infinite(limit: &str) -> bool {
    limit.split(':').next().is_some_and(|soft| soft.trim() == "infinity")
}

/// The file of a library that a process has mapped, in `/proc/self/maps`: the one whose name begins
/// with `soname`.
pub(super) fn mapped_library<'a>(maps: &'a str, soname: &str) -> Option<&'a str> {
    maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit('/').next().is_some_and(|name| name.starts_with(soname)).then_some(path)
    })
}

/// The release of rdma-core in the file name of one of its libraries: `libibverbs.so.1.14.44.0` is
/// of 44.0. Its build names files `soname.ABI.RELEASE`.
pub(super) fn library_release<'a>(path: &'a str, soname: &str) -> Option<&'a str> {
    let rest = path.rsplit('/').next()?.strip_prefix(soname)?.strip_prefix('.')?;
    let (_abi, release) = rest.split_once('.')?;
    (!release.is_empty()).then_some(release)
}

/// Text behind the number of a state such as `4: ACTIVE`, in
/// `/sys/class/infiniband/*/ports/*/state`.
pub(super) fn state(text: &str) -> &str {
    text.split_once(':').map_or(text, |(_, name)| name).trim()
}

/// Access Control Services of a PCI Express function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acs {
    /// The bytes end before the extended capabilities; the number of bytes.
    Unreadable(usize),
    /// It has none.
    None,
    /// Its control register.
    Control(u16),
}

/// Where extended capabilities begin (`PCI_CFG_SPACE_SIZE` of `linux/pci_regs.h`).
const EXTENDED: usize = 0x100;
/// Extended capability of Access Control Services (`PCI_EXT_CAP_ID_ACS` of `linux/pci_regs.h`), and
/// its control register's place.
const ACS_ID: u32 = 0x0d;
const ACS_CONTROL: usize = 6;
/// Most capabilities that fit the extended space: each has 4 bytes at least.
const MOST: usize = (4096 - EXTENDED) / 4;

/// Looks for it in a function's configuration space, as sysfs shows that.
pub(super) fn acs(config: &[u8]) -> Acs {
    let word = |at: usize| -> Option<u32> {
        let bytes: [u8; 4] = config.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let mut at = EXTENDED;
    for _ in 0..MOST {
        // 0: no extended capabilities, or the end of their list; all ones: a device that does not
        // answer.
        let Some(header) = word(at) else { return Acs::Unreadable(config.len()) };
        if header == u32::MAX {
            return Acs::Unreadable(config.len());
        }
        if header & 0xffff == ACS_ID {
            return match word(at + ACS_CONTROL - 2) {
                // Capability register below, control register above.
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

/// Names of the control bits that send traffic between two devices up to the root (`PCI_ACS_RR`,
/// `PCI_ACS_CR`, `PCI_ACS_EC`).
pub(super) fn redirections(control: u16) -> Vec<&'static str> {
    let bits = [(1 << 2, "request redirect"), (1 << 3, "completion redirect"), (1 << 5, "egress control")];
    bits.iter().filter(|(bit, _)| control & bit != 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests;
