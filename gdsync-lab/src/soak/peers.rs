//! How the processes of a soak talk: in lines of JSON, which the process that has started them passes on.

use super::traffic::Offer;
use gdsync_cli::failure::Failure;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// A message from one process to another.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The other end of a link has a queue pair for this epoch.
    Up { link: u32, epoch: u32, endpoint: String, offer: Offer },
    /// Its receives are posted, and it is connected.
    Ready { link: u32, epoch: u32 },
    /// Its queue pair has failed.
    Down { link: u32, epoch: u32 },
    /// It has sent that many messages, and sends no more.
    End { link: u32, sent: u64 },
    /// Every end of the process has sent and received everything.
    Done,
}

impl Message {
    /// The link that it is about.
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

/// What a process writes for the one of that rank.
#[derive(Serialize, Deserialize)]
pub(super) struct Outgoing {
    pub(super) to: usize,
    pub(super) message: Message,
}

/// What the one of that rank has written for a process; no message where it has ended.
#[derive(Serialize, Deserialize)]
pub(super) struct Incoming {
    pub(super) from: usize,
    pub(super) message: Option<Message>,
}

/// The others, as one process knows them.
pub(super) struct Peers {
    inbox: Receiver<Incoming>,
    asked: Arc<AtomicBool>,
}

impl Peers {
    /// From now on standard input has what others say. An empty line asks this process to come to an end.
    pub(super) fn join() -> Result<Self, Failure> {
        let (sender, inbox) = channel();
        let asked = Arc::new(AtomicBool::new(false));
        let stop = asked.clone();
        // The end of stdin is that of the process that has started this one, whose end the kernel answers.
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

    /// Whether the run is to end before its time.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// One that has ended does not hear it.
    pub(super) fn send(&self, to: usize, message: Message) -> Result<(), Failure> {
        Ok(writeln!(io::stdout(), "{}", serde_json::to_string(&Outgoing { to, message })?)?)
    }

    pub(super) fn receive(&self) -> Option<Incoming> {
        self.inbox.try_recv().ok()
    }
}
