//! Files with a content for each process, which has its own card.

use super::guid_text;
use crate::card::{Card, Counter, Counters, LinkLayer};

/// A file of a port that the running card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveFile {
    /// The local identifier.
    Lid,
    /// An entry of the GID table.
    Gid(usize),
    /// An entry of the table of partition keys.
    Pkey(usize),
    /// A counter, by its index in [`Counter::ALL`].
    Counter(usize),
}

impl LiveFile {
    /// All files of a port with these numbers of GIDs and partition keys.
    pub(super) fn all(gids: usize, pkeys: usize) -> impl Iterator<Item = Self> {
        let tables = (0..gids).map(LiveFile::Gid).chain((0..pkeys).map(LiveFile::Pkey));
        [LiveFile::Lid].into_iter().chain(tables).chain((0..Counter::ALL.len()).map(LiveFile::Counter))
    }

    /// Its path in the folder of the port.
    pub(super) fn name(self) -> String {
        match self {
            LiveFile::Lid => "lid".to_owned(),
            LiveFile::Gid(index) => format!("gids/{index}"),
            LiveFile::Pkey(index) => format!("pkeys/{index}"),
            LiveFile::Counter(index) => Counter::ALL[index].1.to_owned(),
        }
    }

    /// Returns a path of the file as [`find`](Self::find) takes it.
    pub fn path(self, index: usize) -> String {
        format!("/infiniband/mlx5_{index}/ports/1/{}", self.name())
    }

    /// Returns the file and the index of the device for a path with `.../infiniband/mlx5_0/ports/1/` in it;
    /// `None` for other paths.
    pub fn find(path: &str) -> Option<(usize, Self)> {
        let (_, rest) = path.split_once("/infiniband/mlx5_")?;
        let (index, name) = rest.split_once("/ports/1/")?;
        let file = match name.split_once('/') {
            Some(("gids", entry)) => LiveFile::Gid(entry.parse().ok()?),
            Some(("pkeys", entry)) => LiveFile::Pkey(entry.parse().ok()?),
            None if name == "lid" => LiveFile::Lid,
            _ => LiveFile::Counter(Counter::ALL.iter().position(|(_, file)| *file == name)?),
        };
        Some((index.parse().ok()?, file))
    }

    /// Returns the content if no card answers.
    pub(super) fn unknown(self) -> String {
        match self {
            LiveFile::Lid => "0x0".to_owned(),
            LiveFile::Gid(_) => gid_text([0; 16]),
            LiveFile::Pkey(_) => pkey_text(0),
            LiveFile::Counter(_) => "0".to_owned(),
        }
    }

    /// Returns whether the content needs a running card.
    pub fn is_of_card(self) -> bool {
        !matches!(self, LiveFile::Counter(_))
    }

    /// Returns the content with its newline. `None` for an entry past a table, or if the file's subject is missing.
    pub fn content(self, card: Option<&Card>, counters: Option<&Counters>) -> Option<String> {
        let text = match self {
            LiveFile::Lid => match card? {
                card if card.link_layer() == LinkLayer::Ethernet => self.unknown(),
                card => format!("{:#x}", card.lid()),
            },
            LiveFile::Gid(index) => gid_text(card?.gids().get(index)?.gid),
            LiveFile::Pkey(index) => pkey_text(*card?.pkeys().keys().get(index)?),
            LiveFile::Counter(index) => counters?.get(Counter::ALL.get(index)?.0).to_string(),
        };
        Some(text + "\n")
    }
}

fn pkey_text(pkey: u16) -> String {
    format!("{pkey:#06x}")
}

fn gid_text(gid: [u8; 16]) -> String {
    let number = u128::from_be_bytes(gid);
    format!("{}:{}", guid_text((number >> 64) as u64), guid_text(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_names() {
        let port = "/sys/class/infiniband/mlx5_3/ports/1/";
        for file in LiveFile::all(4, 3) {
            assert_eq!(LiveFile::find(&file.path(3)), Some((3, file)));
            assert_eq!(LiveFile::find(&format!("{port}{}", file.name())), Some((3, file)));
        }
        let real = "/sys/devices/pci50f7:00/50f7:00:01.0/50f7:01:00.0/infiniband/mlx5_0/ports/1/lid";
        assert_eq!(LiveFile::find(real), Some((0, LiveFile::Lid)));
        for other in ["state", "gids/x", "gids/0/y", "pkeys/x", "lid/", "counters/symbol_error", "../1/lid"] {
            assert_eq!(LiveFile::find(&format!("{port}{other}")), None, "{other}");
        }
        assert_eq!(LiveFile::find("/sys/class/infiniband/mlx5_0/ports/2/lid"), None);
        assert_eq!(LiveFile::find("/sys/class/infiniband/other_0/ports/1/lid"), None);
    }

    #[test]
    fn the_card_answers() {
        for (link, lid) in [(LinkLayer::InfiniBand, true), (LinkLayer::Ethernet, false)] {
            let card = Card::start(link, Box::new(|_| {})).unwrap();
            let content = |file: LiveFile| file.content(Some(&card), None);
            let expected = if lid { format!("{:#x}\n", card.lid()) } else { "0x0\n".to_owned() };
            assert_eq!(content(LiveFile::Lid), Some(expected));
            let gid = content(LiveFile::Gid(0)).unwrap();
            assert!(gid.starts_with("fe80:0000:0000:0000:0200:00ff:fe00:"), "{gid}");
            assert!(gid.ends_with(&format!("{:04x}\n", card.lid())), "{gid}");
            assert_eq!(content(LiveFile::Gid(card.gids().len())), None);
            assert_eq!(content(LiveFile::Pkey(0)), Some("0xffff\n".to_owned()));
            assert_eq!((content(LiveFile::Pkey(1)), content(LiveFile::Counter(0))), (None, None));
            assert_eq!(LiveFile::Lid.content(None, None), None);
        }
    }
}
