//! What a rank offers to another to connect to, as a line of text.

use crate::control::Control;
use crate::error::NotifyError;
use gdsync::Endpoint;
use std::fmt;

/// What a rank offers to another: the endpoints of its queues, and of the control connection. `None` where it
/// offers no connection.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) offer: Offer,
    pub(crate) control: Option<Endpoint>,
}

/// Of its queues.
#[derive(Debug)]
pub(crate) enum Offer {
    /// Of each queue, that for the rank.
    Each(Vec<Option<Endpoint>>),
    /// The target of all queues, of which there are so many, and its access key.
    Dynamic { queues: usize, target: Endpoint, key: u64 },
}

/// What the line of a rank with a target begins with.
const DYNAMIC: &str = "dc ";

impl Offer {
    /// What so many queues offer, whichever rank they offer it to: the target that control connections have, if they are
    /// dynamic, or no connection.
    pub(crate) fn of(queues: usize, control: &Control) -> Result<Self, NotifyError> {
        Ok(match control.target() {
            Some(target) => Offer::Dynamic { queues, target: target.endpoint()?, key: target.key() },
            None => Offer::Each(vec![None; queues]),
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let endpoint = |text: &str| text.parse::<Endpoint>().map_err(|error| error.to_string());
        let Some(text) = text.strip_prefix(DYNAMIC) else {
            let one = |text: &str| (text != "-").then(|| endpoint(text)).transpose();
            return Ok(Offer::Each(text.split_whitespace().map(one).collect::<Result<_, _>>()?));
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [queues, target, key] = fields[..] else {
            return Err(format!("{text:?} is not a number of queues, an endpoint and a key"));
        };
        let queues = queues.parse().map_err(|error| format!("{queues:?}: {error}"))?;
        let key = u64::from_str_radix(key, 16).map_err(|error| format!("its key: {error}"))?;
        Ok(Offer::Dynamic { queues, target: endpoint(target)?, key })
    }

    /// How many queues a rank has, and what they are.
    fn kind(&self) -> (usize, &'static str) {
        match self {
            Offer::Each(endpoints) => (endpoints.len(), "separate"),
            Offer::Dynamic { queues, .. } => (*queues, "dynamic"),
        }
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offer::Each(endpoints) => list(f, endpoints),
            Offer::Dynamic { queues, target, key } => write!(f, "{DYNAMIC}{queues} {target} {key:x}"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, endpoints: &[Option<Endpoint>]) -> fmt::Result {
    for (at, endpoint) in endpoints.iter().enumerate() {
        f.write_str(if at == 0 { "" } else { " " })?;
        match endpoint {
            Some(endpoint) => write!(f, "{endpoint}")?,
            None => f.write_str("-")?,
        }
    }
    Ok(())
}

impl Table {
    pub(crate) fn parse(line: &str, rank: u32) -> Result<Self, NotifyError> {
        let bad = |reason: String| NotifyError::Elsewhere { rank, reason };
        let (queues, control) = line.split_once('|').unwrap_or((line, ""));
        let offer = Offer::parse(queues).map_err(bad)?;
        match Offer::parse(control).map_err(bad)? {
            Offer::Each(control) if control.len() == 1 => {
                Ok(Table { offer, control: control.into_iter().next().flatten() })
            }
            _ => Err(bad(format!("{control:?} is no control connection, nor `-` in the place of one"))),
        }
    }

    /// Offers a connection of a queue.
    pub(crate) fn set_queue(&mut self, queue: usize, endpoint: Endpoint) {
        if let Offer::Each(queues) = &mut self.offer {
            queues[queue] = Some(endpoint);
        }
    }

    /// Refuses a rank with another number of queues, or other connections, than this one's.
    pub(crate) fn check(&self, rank: u32, ours: &Offer) -> Result<(), NotifyError> {
        let ((theirs, their_kind), (ours, our_kind)) = (self.offer.kind(), ours.kind());
        let (what, theirs, ours) = if their_kind != our_kind {
            ("connections", their_kind.to_owned(), our_kind.to_owned())
        } else if theirs != ours {
            ("queues", theirs.to_string(), ours.to_string())
        } else {
            return Ok(());
        };
        Err(NotifyError::Mismatch { rank, what, theirs, ours })
    }

    /// The endpoint of a queue's connection.
    pub(crate) fn queue(&self, queue: usize) -> Option<&Endpoint> {
        match &self.offer {
            Offer::Each(queues) => queues.get(queue)?.as_ref(),
            Offer::Dynamic { .. } => None,
        }
    }

    /// The target of all queues, and its key.
    pub(crate) fn target(&self) -> Option<(&Endpoint, u64)> {
        match &self.offer {
            Offer::Each(_) => None,
            Offer::Dynamic { target, key, .. } => Some((target, *key)),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|", self.offer)?;
        list(f, std::slice::from_ref(&self.control))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "ib:1:2:0:5:fe800000000000000000000000000001";

    #[test]
    fn tables_round_trip() {
        for line in [
            format!("dc 2 {TARGET} 123456789abcdef0|-"),
            format!("{TARGET} - - {TARGET}|{TARGET}"),
            "|-".to_owned(),
        ] {
            assert_eq!(Table::parse(&line, 0).unwrap().to_string(), line);
        }
    }

    #[test]
    fn what_is_no_table_is_refused_with_the_rank() {
        for line in [
            "dc 2|-".to_owned(),
            format!("dc x {TARGET} 1|-"),
            format!("dc 2 {TARGET} 1 1|-"),
            format!("dc 2 {TARGET} 1g|-"),
            "dc 2 ib 1|-".to_owned(),
            format!("{TARGET}|- -"),
            format!("{TARGET}|"),
            format!("|dc 2 {TARGET} 1"),
            "- -".to_owned(),
        ] {
            let error = Table::parse(&line, 7).unwrap_err();
            assert!(matches!(error, NotifyError::Elsewhere { rank: 7, .. }), "{line}: {error}");
        }
    }

    #[test]
    fn another_kind_or_number_is_a_mismatch() {
        let table = |line: &str| Table::parse(line, 1).unwrap();
        let dynamic = format!("dc 2 {TARGET} 1|-");
        let ours = |line: &str| table(line).offer;
        let refused = |theirs: &str, own: &str| match table(theirs).check(1, &ours(own)) {
            Err(NotifyError::Mismatch { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&dynamic, "- -|-"), "connections");
        assert_eq!(refused("- -|-", &dynamic), "connections");
        assert_eq!(refused("- -|-", "-|-"), "queues");
        assert_eq!(refused(&dynamic, &format!("dc 1 {TARGET} 1|-")), "queues");
        assert!(table(&dynamic).check(1, &ours(&dynamic)).is_ok());
    }
}
