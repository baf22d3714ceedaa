//! Subscriptions of DEVX to events of objects.

use super::packets::{Content, PacketFile};
use crate::resource::Resource;
use parking_lot::Mutex;
use softhca::card::Event;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The device's event numbers, `MLX5_EVENT_TYPE_*`.
pub(crate) mod kind {
    pub(crate) const COMPLETION: u16 = 0x0;
    pub(crate) const COMMUNICATION_ESTABLISHED: u16 = 0x2;
    pub(crate) const CQ_ERROR: u16 = 0x4;
    pub(crate) const QP_FATAL: u16 = 0x5;
    pub(crate) const PORT_CHANGE: u16 = 0x9;
    pub(crate) const QP_REQUEST_ERROR: u16 = 0x10;
    pub(crate) const QP_ACCESS_ERROR: u16 = 0x11;

    /// The object events that every device has, for subscriptions when the capabilities name none.
    pub(crate) const OF_OBJECTS: [u16; 15] = [
        COMPLETION,
        0x1,
        COMMUNICATION_ESTABLISHED,
        0x3,
        CQ_ERROR,
        QP_FATAL,
        0x7,
        QP_REQUEST_ERROR,
        QP_ACCESS_ERROR,
        0x12,
        0x13,
        0x14,
        0x18,
        0x1c,
        0x1d,
    ];
}

/// Bytes of an entry of an event queue (`struct mlx5_eqe`).
const ENTRY: usize = 64;

#[derive(Debug)]
pub(crate) enum Sink {
    /// A DEVX file, the program's cookie, and the subscription's own number. Closing the file ends the subscription.
    File {
        file: Weak<PacketFile>,
        cookie: u64,
        number: u64,
    },
    Counter(File),
}

impl Sink {
    pub(crate) fn of_file(file: &Arc<PacketFile>, cookie: u64) -> Self {
        static SUBSCRIBED: AtomicU64 = AtomicU64::new(0);
        let number = SUBSCRIBED.fetch_add(1, Ordering::Relaxed);
        Sink::File { file: Arc::downgrade(file), cookie, number }
    }

    /// Returns whether the program still has the file.
    fn is_open(&self) -> bool {
        match self {
            Sink::File { file, .. } => file.strong_count() > 0,
            Sink::Counter(_) => true,
        }
    }

    fn deliver(&self, kind: u16, entry: &[u8; ENTRY]) {
        let delivered = match self {
            Sink::Counter(counter) => {
                let mut counter = counter;
                counter.write_all(&1u64.to_ne_bytes()).map_err(Into::into)
            }
            Sink::File { file, cookie, number } => match file.upgrade() {
                None => Ok(()),
                Some(file) => {
                    let mut event = cookie.to_ne_bytes().to_vec();
                    if file.content == Content::Entries {
                        event.extend(entry);
                    }
                    // As in the kernel, each event of a subscription is one of its own.
                    file.push(event, number << 16 | u64::from(kind))
                }
            },
        };
        if let Err(errno) = delivered {
            tracing::error!(?errno, "an event is lost: the program does not read its event channel");
        }
    }
}

/// An object, and the number of one of its events.
type Source = (Resource, u16);

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    sinks: Mutex<HashMap<Source, Vec<Arc<Sink>>>>,
}

impl Subscriptions {
    pub(crate) fn add(&self, source: Resource, kinds: &[u16], sink: &Arc<Sink>) {
        let mut sinks = self.sinks.lock();
        for kind in kinds {
            let list = sinks.entry((source, *kind)).or_default();
            list.retain(|sink| sink.is_open());
            list.push(sink.clone());
        }
    }

    /// Ends the subscriptions to a destroyed object.
    pub(crate) fn remove(&self, source: Resource) {
        let mut ended = Vec::new();
        self.sinks.lock().retain(|(of, _), list| {
            let stays = *of != source;
            if !stays {
                ended.append(list);
            }
            stays
        });
        // After the lock is released, because it may close files.
        drop(ended);
    }

    pub(crate) fn deliver(&self, event: &Event) {
        let Some((source, kind, entry)) = entry_of(event) else { return };
        let sinks = self.sinks.lock().get(&(source, kind)).cloned().unwrap_or_default();
        sinks.iter().for_each(|sink| sink.deliver(kind, &entry));
    }
}

/// Returns an event's source, its number, and its entry in an event queue; `None` for an event that the
/// device does not report to programs.
fn entry_of(event: &Event) -> Option<(Resource, u16, [u8; ENTRY])> {
    /// Offset of the number of a completion queue (`mlx5_eqe_comp`) or queue pair (`mlx5_eqe_qp_srq`), and of
    /// a queue in error (`mlx5_eqe_cq_err`).
    const NUMBER: usize = 56;
    const CQ_ERROR_NUMBER: usize = 32;
    /// The cause of a queue's error, of which the card has one: an overrun (`cq_error` of `mlx5_ifc.h`).
    const CQ_ERROR_SYNDROME: usize = 43;
    const OVERRUN: u8 = 1;
    let (source, kind, place) = match *event {
        Event::Completion { cqn } => (Resource::Cq(cqn), kind::COMPLETION, NUMBER),
        Event::CqError { cqn } => (Resource::Cq(cqn), kind::CQ_ERROR, CQ_ERROR_NUMBER),
        Event::QpFatal { qpn } => (Resource::Qp(qpn), kind::QP_FATAL, NUMBER),
        Event::QpRequestError { qpn } => (Resource::Qp(qpn), kind::QP_REQUEST_ERROR, NUMBER),
        Event::QpAccessError { qpn } => (Resource::Qp(qpn), kind::QP_ACCESS_ERROR, NUMBER),
        Event::CommunicationEstablished { qpn } => {
            (Resource::Qp(qpn), kind::COMMUNICATION_ESTABLISHED, NUMBER)
        }
        _ => return None,
    };
    let mut entry = [0; ENTRY];
    entry[1] = kind as u8;
    entry[place..place + 4].copy_from_slice(&source.number().to_be_bytes());
    if kind == kind::CQ_ERROR {
        entry[CQ_ERROR_SYNDROME] = OVERRUN;
    }
    Some((source, kind, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn subscribe(content: Content, to: &Subscriptions) -> (Arc<PacketFile>, File) {
        let (file, theirs) = PacketFile::new(content).unwrap();
        let file = Arc::new(file);
        let sink = Arc::new(Sink::of_file(&file, 0x1122));
        to.add(Resource::Cq(5), &[kind::COMPLETION, kind::CQ_ERROR], &sink);
        (file, File::from(theirs))
    }

    #[test]
    fn events_reach_those_who_asked_for_them() {
        let all = Subscriptions::default();
        let (_cookies, mut cookies) = subscribe(Content::Cookies, &all);
        let (_entries, mut entries) = subscribe(Content::Entries, &all);
        for event in [Event::Completion { cqn: 6 }, Event::QpFatal { qpn: 5 }, Event::CqError { cqn: 5 }] {
            all.deliver(&event);
        }
        let mut room = [0; 100];
        assert_eq!(cookies.read(&mut room).unwrap(), 8);
        assert_eq!(room[..8], 0x1122u64.to_ne_bytes());
        assert_eq!(entries.read(&mut room).unwrap(), 8 + ENTRY);
        assert_eq!((room[8 + 1], &room[8 + 32..8 + 36]), (4, &[0, 0, 0, 5][..]));
        assert_eq!(room[8 + 36..8 + 44], [0, 0, 0, 0, 0, 0, 0, 1], "overrun");
        all.deliver(&Event::Completion { cqn: 5 });
        assert_eq!((entries.read(&mut room).unwrap(), room[8 + 1], room[8 + 59]), (72, 0, 5));
    }

    #[test]
    fn a_closed_file_and_a_destroyed_object_end_it() {
        let all = Subscriptions::default();
        let (closed, mut first) = subscribe(Content::Cookies, &all);
        let (_file, mut second) = subscribe(Content::Cookies, &all);
        drop(closed);
        all.deliver(&Event::Completion { cqn: 5 });
        let mut room = [0; 8];
        assert_eq!(second.read(&mut room).unwrap(), 8);
        assert_eq!(first.read(&mut room).unwrap(), 0, "its other end is closed");
        all.remove(Resource::Cq(5));
        all.deliver(&Event::Completion { cqn: 5 });
        drop(_file);
        assert_eq!(second.read(&mut room).unwrap(), 0, "nothing came before the end");
    }

    #[test]
    fn a_counter_counts() {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor, which nothing else owns.
        let counter = unsafe { File::from_raw_fd(libc::eventfd(0, 0)) };
        let mut theirs = counter.try_clone().unwrap();
        let all = Subscriptions::default();
        all.add(Resource::Qp(7), &[kind::QP_FATAL], &Arc::new(Sink::Counter(counter)));
        all.deliver(&Event::QpFatal { qpn: 7 });
        all.deliver(&Event::QpFatal { qpn: 7 });
        let mut count = [0; 8];
        theirs.read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
    }
}
