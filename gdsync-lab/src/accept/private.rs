//! Removal of what identifies a host, its user, or its network from a report.

use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::{env, fs};

/// The replacements.
const NAME: &str = "<name>";
const ADDRESS: &str = "<address>";

/// The names and numbers of a host that its report must not have.
#[derive(Debug, Default)]
pub(super) struct Secrets(BTreeSet<String>);

impl Secrets {
    /// Collects those of this host, below `root`.
    pub(super) fn of_host(root: &Path) -> Self {
        let mut all = Secrets::default();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let host = read("proc/sys/kernel/hostname");
        all.add(host.split('.').next().unwrap_or_default());
        all.add(&host);
        for variable in ["USER", "LOGNAME", "SUDO_USER", "HOME"] {
            env::var(variable).iter().for_each(|value| all.add(value));
        }
        for file in ["etc/machine-id", "sys/class/dmi/id/product_serial", "sys/class/dmi/id/board_serial"] {
            all.add(&read(file));
        }
        for device in entries(&root.join("sys/class/infiniband")) {
            ["node_guid", "sys_image_guid", "node_desc"]
                .iter()
                .for_each(|file| all.add_file(&device.join(file)));
            for port in entries(&device.join("ports")) {
                entries(&port.join("gids")).iter().for_each(|gid| all.add_file(gid));
            }
        }
        for device in entries(&root.join("sys/class/net")) {
            all.add_file(&device.join("address"));
        }
        for gpu in entries(&root.join("proc/driver/nvidia/gpus")) {
            let facts = fs::read_to_string(gpu.join("information")).unwrap_or_default();
            let of_gpu = facts.lines().filter(|line| line.starts_with("GPU UUID"));
            of_gpu.filter_map(|line| line.split_once(':')).for_each(|(_, value)| all.add(value));
        }
        all
    }

    pub(super) fn add(&mut self, value: &str) {
        let value = value.trim().to_lowercase();
        let says_something = value.chars().any(|one| one.is_ascii_alphanumeric() && one != '0');
        // The superuser's name is that of every host's.
        if says_something && !["root", "/root", "localhost", "lo", "none", "/"].contains(&value.as_str()) {
            self.0.insert(value);
        }
    }

    fn add_file(&mut self, path: &Path) {
        self.add(&fs::read_to_string(path).unwrap_or_default());
    }

    /// Removes all from the texts of a report.
    pub(super) fn remove_from(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.removed(text),
            Value::Array(list) => list.iter_mut().for_each(|one| self.remove_from(one)),
            Value::Object(map) => map.values_mut().for_each(|one| self.remove_from(one)),
            _ => {}
        }
    }

    pub(super) fn removed(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // The longest first: one may be part of another.
        let mut all: Vec<&String> = self.0.iter().collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.len()));
        for secret in all {
            text = replaced(&text, secret);
        }
        without_addresses(&text)
    }
}

fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(all) = fs::read_dir(folder) else { return Vec::new() };
    all.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Replaces each occurrence that is a whole word, in upper or lower case.
fn replaced(text: &str, secret: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let is_part = |one: Option<char>| one.is_some_and(|one| one.is_ascii_alphanumeric());
    let (mut out, mut at) = (String::new(), 0);
    while let Some(found) = lower[at..].find(secret).map(|found| at + found) {
        let end = found + secret.len();
        let is_word = !is_part(lower[..found].chars().next_back()) && !is_part(lower[end..].chars().next());
        out += &text[at..found];
        out += if is_word { NAME } else { &text[found..end] };
        at = end;
    }
    out + &text[at..]
}

/// Replaces what looks like an address of a network, of Ethernet, or a GUID.
fn without_addresses(text: &str) -> String {
    let is_of_address = |one: char| one.is_ascii_hexdigit() || one == ':' || one == '.';
    let (mut out, mut word) = (String::new(), String::new());
    for one in text.chars().chain(['\n']) {
        if is_of_address(one) {
            word.push(one);
            continue;
        }
        let bare = word.trim_end_matches(['.', ':']);
        let rest = &word[bare.len()..];
        out += if is_address(bare) { ADDRESS } else { bare };
        out += rest;
        word.clear();
        out.push(one);
    }
    out.pop();
    out
}

fn is_address(word: &str) -> bool {
    let groups: Vec<&str> = word.split(':').collect();
    let all_of = |len: usize| groups.iter().all(|group| group.len() == len);
    let is_ethernet = groups.len() == 6 && all_of(2);
    let is_guid = groups.len() == 4 && all_of(4);
    let is_network = word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok();
    // `::` is a part of many names.
    is_ethernet || is_guid || is_network && word.len() > 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_planted_list_does_not_pass() {
        let mut secrets = Secrets::default();
        let planted = [
            "node17.cluster.example",
            "node17",
            "mallory",
            "/home/mallory",
            "0x506b4b0300c2a1f0",
            "GPU-1234-abcd",
        ];
        planted.iter().for_each(|one| secrets.add(one));
        let mut report = json!({
            "error": "Node17.cluster.example: cannot open /home/mallory/x as mallory",
            "list": ["506b:4b03:00c2:a1f0", "fe80::1", "fe80:0000:0000:0000:0102:03ff:fe04:0506", "10.1.2.3:18515", "b8:59:9f:01:02:03"],
            "deep": { "gpu": "uuid gpu-1234-ABCD", "guid": "0x506B4B0300C2A1F0." },
            "kept": ["node170 is another word", "status 0x13, vendor 0x88", "driver 580.159.03", "0102..04", "12:30:05"],
            "number": 17,
        });
        secrets.remove_from(&mut report);
        let said = report.to_string().to_lowercase();
        for secret in planted.iter().copied().chain(["fe80", "10.1.2.3", "b8:59", "506b:4b03", "00c2:a1f0"]) {
            assert!(!said.replace("node170", "").contains(&secret.to_lowercase()), "{secret}: {said}");
        }
        let kept = [
            "node170 is another word",
            "status 0x13, vendor 0x88",
            "driver 580.159.03",
            "0102..04",
            "12:30:05",
        ];
        assert_eq!(report["kept"], json!(kept));
    }

    #[test]
    fn what_says_nothing_is_no_secret() {
        let mut secrets = Secrets::default();
        ["", " \n", "0000:0000", "root", "localhost", "00:00:00:00:00:00"]
            .iter()
            .for_each(|one| secrets.add(one));
        assert_eq!(secrets.removed("root of localhost"), "root of localhost");
        assert!(secrets.0.is_empty(), "{secrets:?}");
    }

    #[test]
    fn a_host_tells_its_own_names() {
        let secrets = Secrets::of_host(Path::new("/"));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        if host != "localhost" && !host.is_empty() {
            assert_eq!(secrets.removed(&format!("at {host}, there")), format!("at {NAME}, there"));
        }
    }
}
