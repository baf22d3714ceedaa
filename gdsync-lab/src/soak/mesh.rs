//! How the processes of a soak talk: a stream socket between every two of them, lines of JSON.

use super::traffic::Offer;
use gdsync_cli::failure::Failure;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long the other processes may take to connect.
const GATHER: Duration = Duration::from_secs(30);

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

/// The sockets of one process.
pub(super) struct Mesh {
    peers: Vec<Option<UnixStream>>,
    inbox: Receiver<(usize, Option<Message>)>,
}

fn address(name: &str, rank: usize) -> Result<SocketAddr, Failure> {
    Ok(SocketAddr::from_abstract_name(format!("{name}-{rank}"))?)
}

/// The next connection. A process that has failed before it connected never does.
fn accept(listener: &UnixListener, deadline: Instant) -> Result<UnixStream, Failure> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) if Instant::now() > deadline => {
                return Err(format!("another process of the soak has not connected within {GATHER:?}").into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Passes on a peer's messages, and its end.
fn listen(rank: usize, stream: UnixStream, inbox: Sender<(usize, Option<Message>)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let Ok(message) = serde_json::from_str(&line) else { break };
            if inbox.send((rank, Some(message))).is_err() {
                return;
            }
        }
        let _ = inbox.send((rank, None));
    });
}

impl Mesh {
    /// Meets the others of that name: connects to lower ranks, is connected to by higher ones.
    pub(super) fn join(name: &str, rank: usize, procs: usize) -> Result<Self, Failure> {
        let (sender, inbox) = channel();
        let listener = UnixListener::bind_addr(&address(name, rank)?)?;
        listener.set_nonblocking(true)?;
        let deadline = Instant::now() + GATHER;
        let mut peers: Vec<Option<UnixStream>> = (0..procs).map(|_| None).collect();
        for (lower, place) in peers.iter_mut().enumerate().take(rank) {
            let at = address(name, lower)?;
            let mut stream = loop {
                match UnixStream::connect_addr(&at) {
                    Ok(stream) => break stream,
                    Err(error) if Instant::now() > deadline => return Err(error.into()),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            writeln!(stream, "{rank}")?;
            listen(lower, stream.try_clone()?, sender.clone());
            *place = Some(stream);
        }
        for _ in rank + 1..procs {
            let stream = accept(&listener, deadline)?;
            // One byte at a time, so that nothing of the next lines is taken.
            let mut line = String::new();
            stream.set_read_timeout(Some(GATHER))?;
            BufReader::with_capacity(1, stream.try_clone()?).read_line(&mut line)?;
            stream.set_read_timeout(None)?;
            let higher: usize = line.trim().parse()?;
            listen(higher, stream.try_clone()?, sender.clone());
            *peers.get_mut(higher).ok_or("a stranger has connected")? = Some(stream);
        }
        Ok(Mesh { peers, inbox })
    }

    pub(super) fn send(&mut self, rank: usize, message: &Message) -> Result<(), Failure> {
        let peer = self.peers.get_mut(rank).and_then(Option::as_mut).ok_or("there is no such process")?;
        let mut line = serde_json::to_string(message)?;
        line.push('\n');
        Ok(peer.write_all(line.as_bytes())?)
    }

    /// To all others.
    pub(super) fn broadcast(&mut self, message: &Message) -> Result<(), Failure> {
        let others: Vec<usize> = (0..self.peers.len()).filter(|rank| self.peers[*rank].is_some()).collect();
        others.into_iter().try_for_each(|rank| self.send(rank, message))
    }

    /// The next message, and its sender; no message where the peer has ended.
    pub(super) fn receive(&self) -> Option<(usize, Option<Message>)> {
        self.inbox.try_recv().ok()
    }
}
