//! Trees of sysfs and proc files, built from a textual description.

use gdsync_test_support::folder::Folder;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A folder that replaces `/`.
pub(crate) struct Tree(Folder);

impl Tree {
    /// Builds a tree. Each line of a description is one of:
    /// - `PATH = TEXT`: a file; `\n` in the text is a line break,
    /// - `PATH -> TARGET`: a symbolic link,
    /// - `PATH/`: a folder,
    /// - `pci BRIDGES.../ADDRESS KEY=VALUE...`: a function on a bus, with `vendor`, `class`, `numa`, its IOMMU `group`,
    ///   its `driver`, bytes of configuration space (`config`), its ACS control register (`acs`, hexadecimal), its link's current
    ///   and largest `lanes` and `speed`, whether it may use `relaxed` ordering, and the bytes of its second window (`bar1`),
    /// - `card NAME BRIDGES.../ADDRESS KEY=VALUE...`: its RDMA device, with `state`, `phys`, `layer`, `fw`, the first `pkey`, the
    ///   kind of its only `gid`.
    pub(crate) fn build(description: &str) -> Tree {
        let tree = Tree(Folder::new("doctor"));
        for line in
            description.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            tree.add(line);
        }
        tree
    }

    fn add(&self, line: &str) {
        if let Some(rest) = line.strip_prefix("pci ") {
            let mut words = rest.split_whitespace();
            self.function(words.next().unwrap(), &words.map(pair).collect::<Vec<_>>());
        } else if let Some(rest) = line.strip_prefix("card ") {
            let mut words = rest.split_whitespace();
            let (name, path) = (words.next().unwrap(), words.next().unwrap());
            self.card(name, path, &words.map(pair).collect::<Vec<_>>());
        } else if let Some((path, target)) = line.split_once(" -> ") {
            self.link(path, target);
        } else if let Some((path, text)) = line.split_once(" = ") {
            self.file(path, text.replace("\\n", "\n"));
        } else {
            let folder = line.strip_suffix('/').unwrap_or_else(|| panic!("{line:?} describes nothing"));
            fs::create_dir_all(self.at(folder)).unwrap();
        }
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    fn parent(&self, path: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn file(&self, path: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.parent(path), bytes).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.parent(path)).unwrap();
    }

    fn function(&self, path: &str, pairs: &[(String, String)]) {
        let address = Path::new(path).file_name().unwrap().to_str().unwrap();
        let folder = format!("/sys/devices/{path}");
        fs::create_dir_all(self.at(&folder)).unwrap();
        self.link(&format!("/sys/bus/pci/devices/{address}"), &format!("../../../devices/{path}"));
        let mut config = vec![0; 4096];
        let mut len = config.len();
        for (key, value) in pairs {
            match key.as_str() {
                "vendor" | "class" => self.file(&format!("{folder}/{key}"), value),
                "numa" => self.file(&format!("{folder}/numa_node"), value),
                "group" => self
                    .link(&format!("{folder}/iommu_group"), &format!("../../../kernel/iommu_groups/{value}")),
                "driver" => {
                    self.link(&format!("{folder}/driver"), &format!("../../../bus/pci/drivers/{value}"))
                }
                "config" => len = value.parse().unwrap(),
                "acs" => {
                    // After another capability, as on most bridges: advanced error reporting, then ACS.
                    config[0x100..0x104].copy_from_slice(&0x1480_0001u32.to_le_bytes());
                    config[0x148..0x14c].copy_from_slice(&0x0001_000du32.to_le_bytes());
                    let control = u16::from_str_radix(value, 16).unwrap();
                    config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
                }
                "lanes" | "speed" => {
                    let file = if key == "lanes" { "width" } else { "speed" };
                    let value = value.replace('_', " ");
                    let (now, most) = value.split_once(',').unwrap();
                    self.file(&format!("{folder}/current_link_{file}"), now);
                    self.file(&format!("{folder}/max_link_{file}"), most);
                }
                "relaxed" => {
                    // After another capability: power management, then PCI Express.
                    config[0x34] = 0x40;
                    config[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
                    config[0x60] = 0x10;
                    config[0x68] = if value == "1" { 0x10 } else { 0 };
                }
                "bar1" => {
                    let bytes = u64::from_str_radix(value.trim_start_matches("0x"), 16).unwrap();
                    let first = 0x20_0000_0000u64;
                    let lines = [(0xd000_0000, 0xd0ff_ffff), (first, first + bytes - 1)];
                    let text = lines
                        .map(|(first, last)| format!("0x{first:016x} 0x{last:016x} 0x000000000014220c\n"));
                    self.file(&format!("{folder}/resource"), text.concat());
                }
                other => panic!("{other:?} is nothing that a function has"),
            }
        }
        config.truncate(len);
        self.file(&format!("{folder}/config"), config);
    }

    fn card(&self, name: &str, path: &str, pairs: &[(String, String)]) {
        let address = Path::new(path).file_name().unwrap().to_str().unwrap();
        let folder = format!("/sys/devices/{path}/infiniband/{name}");
        fs::create_dir_all(self.at(&folder)).unwrap();
        self.link(
            &format!("/sys/class/infiniband/{name}"),
            &format!("../../devices/{path}/infiniband/{name}"),
        );
        self.link(&format!("{folder}/device"), &format!("../../../{address}"));
        self.file(&format!("{folder}/hca_type"), "MT4129\n");
        for (key, value) in pairs {
            let file = match key.as_str() {
                "fw" => "fw_ver",
                "state" => "ports/1/state",
                "phys" => "ports/1/phys_state",
                "layer" => "ports/1/link_layer",
                "pkey" => "ports/1/pkeys/0",
                "gid" => "ports/1/gid_attrs/types/0",
                other => panic!("{other:?} is nothing that a card has"),
            };
            self.file(&format!("{folder}/{file}"), value.replace('_', " "));
        }
    }
}

fn pair(word: &str) -> (String, String) {
    let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("{word:?} is no KEY=VALUE"));
    (key.to_owned(), value.to_owned())
}
