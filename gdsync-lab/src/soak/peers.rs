//! Messages between the processes of a soak: lines of JSON, passed on by their parent process.

use super::traffic::Offer;
use gdsync_cli::failure::Failure;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// This end of the link has a queue pair for the epoch.
    Up {
        link: u32,
        epoch: u32,
        endpoint: String,
        offer: Offer,
    },
    /// Its receives are posted, and it is connected.
    Ready {
        link: u32,
        epoch: u32,
    },
    Down {
        link: u32,
        epoch: u32,
    },
    /// It has sent `sent` messages in total.
    End {
        link: u32,
        sent: u64,
    },
    /// Every end of the process has sent and received everything.
    Done,
}

impl Message {
    pub(super) fn link(&self) -> Option<u32> {
        match self {
            Message::Up { link, .. }
            | Message::Ready { link, .. }
            | Message::Down { link, .. }
            | Message::End { link, .. } => Some(*link),
            Message::Done => None,
        }
    }
}

/// A message to the process of rank `to`.
#[derive(Serialize, Deserialize)]
pub(super) struct Outgoing {
    pub(super) to: usize,
    pub(super) message: Message,
}

/// A message of the process of rank `from`; none if that has ended.
#[derive(Serialize, Deserialize)]
pub(super) struct Incoming {
    pub(super) from: usize,
    pub(super) message: Option<Message>,
}

/// The other processes, seen from this one.
pub(super) struct Peers {
    inbox: Receiver<Incoming>,
    asked: Arc<AtomicBool>,
}

impl Peers {
    /// Starts to read the others' messages from standard input. An empty line asks this process to end.
    pub(super) fn join() -> Result<Self, Failure> {
        let (sender, inbox) = channel();
        let asked = Arc::new(AtomicBool::new(false));
        let stop = asked.clone();
        // The end of stdin is that of the parent; the kernel then kills this process.
        let listen = move || {
            for line in io::stdin().lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(heard) => drop(sender.send(heard)),
                    Err(_) => stop.store(true, Ordering::Relaxed),
                }
            }
        };
        std::thread::Builder::new().name("soak-mesh".to_owned()).spawn(listen)?;
        Ok(Peers { inbox, asked })
    }

    /// Returns whether the run is to end early.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Sends a message. A process that has ended does not receive it.
    pub(super) fn send(&self, to: usize, message: Message) -> Result<(), Failure> {
        Ok(writeln!(io::stdout(), "{}", serde_json::to_string(&Outgoing { to, message })?)?)
    }

    pub(super) fn receive(&self) -> Option<Incoming> {
        self.inbox.try_recv().ok()
    }
}
