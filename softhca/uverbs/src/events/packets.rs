//! Files of DEVX: sockets that keep the bounds of events, as the kernel's files do.
//!
//! A socket holds some hundred events; the file keeps those behind them, as the kernel does, until the program reads.

use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Content of a DEVX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Answers of asynchronous commands.
    Answers,
    /// Events, each with the device's event queue entry.
    Entries,
    /// Events, each as the cookie of its subscription.
    Cookies,
}

/// Bytes of answers that a file holds (`MAX_ASYNC_BYTES_IN_USE`), without the number before each.
const MAX_ANSWERS: usize = 1 << 20;
const NUMBER: usize = size_of::<u64>();

/// The sending end of a file of DEVX.
#[derive(Debug)]
pub(crate) struct PacketFile {
    pub(crate) content: Content,
    socket: OwnedFd,
    /// A duplicate of the program's end, which tells how much is unread.
    theirs: OwnedFd,
    queue: Mutex<Queue>,
    /// The device is closed.
    ended: AtomicBool,
}

/// An event, and the number of its subscription.
#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    source: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// The events in the socket, oldest first, except that the program may have read the first ones.
    sent: VecDeque<(usize, u64)>,
    waiting: VecDeque<Packet>,
}

impl PacketFile {
    /// Creates a file. Also returns the program's end.
    pub(crate) fn new(content: Content) -> Result<(Self, OwnedFd)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `fds` has room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: `socketpair` has just opened both descriptors, and nothing else owns them.
        let (socket, program) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let theirs = program.try_clone()?;
        let (queue, ended) = (Mutex::default(), AtomicBool::new(false));
        Ok((PacketFile { content, socket, theirs, queue, ended }, program))
    }

    /// Adds an event of a subscription. A cookie that the program has not read yet is not added again
    /// (`deliver_event`). EAGAIN if the program has not read its answers.
    pub(crate) fn push(&self, bytes: Vec<u8>, source: u64) -> Result<()> {
        let mut queue = self.queue.lock();
        self.advance(&mut queue)?;
        match self.content {
            Content::Cookies if queue.holds(source) => return Ok(()),
            Content::Answers if queue.answers() + bytes.len() - NUMBER > MAX_ANSWERS => {
                return Err(Errno(libc::EAGAIN));
            }
            _ => queue.waiting.push_back(Packet { bytes, source }),
        }
        self.advance(&mut queue)
    }

    /// Reads the oldest event into `room` bytes of the program's memory at `addr`. `None` if there is none yet.
    ///
    /// # Errors
    /// EINVAL, or ENOSPC for an answer, if the event does not fit, which then stays; EIO once the device is closed.
    pub(crate) fn read(&self, addr: u64, room: usize) -> Result<Option<usize>> {
        let mut queue = self.queue.lock();
        if self.ended.load(Ordering::Acquire) {
            return Err(Errno(libc::EIO));
        }
        let Some(length) = self.receive(0, 0, libc::MSG_PEEK | libc::MSG_TRUNC)? else { return Ok(None) };
        if length > room {
            let is_answer = self.content == Content::Answers;
            return Err(if is_answer { Errno::NO_SPACE } else { Errno::INVALID });
        }
        let read = self.receive(addr, room, 0)?;
        self.advance(&mut queue)?;
        Ok(read)
    }

    /// Ends the file: the device is closed.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // SAFETY: the call accesses no memory of the process. It wakes threads that wait for an event.
        unsafe { libc::shutdown(self.theirs.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Returns the number of received bytes; `None` if there is nothing.
    fn receive(&self, addr: u64, room: usize, flags: i32) -> Result<Option<usize>> {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: the program's memory, or no byte; the system checks it.
        let got = unsafe { libc::recv(self.theirs.as_raw_fd(), addr as *mut libc::c_void, room, flags) };
        match usize::try_from(got) {
            Ok(length) => Ok(Some(length)),
            Err(_) if Errno::last() == Errno(libc::EAGAIN) => Ok(None),
            Err(_) => Err(Errno::last()),
        }
    }

    /// Forgets what the program has read, and sends what the socket has room for.
    fn advance(&self, queue: &mut Queue) -> Result<()> {
        let mut unread: libc::c_int = 0;
        // SAFETY: room for the answer.
        if unsafe { libc::ioctl(self.theirs.as_raw_fd(), libc::FIONREAD, &mut unread) } != 0 {
            return Err(Errno::last());
        }
        let mut held: usize = queue.sent.iter().map(|(length, _)| length).sum();
        while held > unread as usize {
            held -= queue.sent.pop_front().map_or(held, |(length, _)| length);
        }
        while let Some(Packet { bytes, source }) = queue.waiting.front() {
            if !self.send(bytes)? {
                break;
            }
            queue.sent.push_back((bytes.len(), *source));
            queue.waiting.pop_front();
        }
        Ok(())
    }

    /// Returns false if there is no room.
    fn send(&self, bytes: &[u8]) -> Result<bool> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the slice keeps the bytes readable. A system call, as the hook of send(2) serves the
        // program's sockets.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.socket.as_raw_fd(),
                bytes.as_ptr(),
                bytes.len(),
                flags,
                std::ptr::null::<libc::sockaddr>(),
                0,
            )
        };
        match Errno::last() {
            _ if sent >= 0 => Ok(true),
            Errno(libc::EAGAIN) => Ok(false),
            errno => Err(errno),
        }
    }
}

impl Queue {
    fn holds(&self, source: u64) -> bool {
        let mut waiting = self.waiting.iter().map(|packet| packet.source);
        self.sent.iter().any(|(_, of)| *of == source) || waiting.any(|of| of == source)
    }

    /// Returns the bytes of all unread answers.
    fn answers(&self) -> usize {
        let sent = self.sent.iter().map(|(length, _)| length - NUMBER);
        sent.chain(self.waiting.iter().map(|packet| packet.bytes.len() - NUMBER)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn read(file: &PacketFile, room: &mut [u8]) -> Result<Option<usize>> {
        file.read(room.as_mut_ptr() as u64, room.len())
    }

    #[test]
    fn each_read_gets_one_event() {
        let (file, theirs) = PacketFile::new(Content::Answers).unwrap();
        let mut theirs = File::from(theirs);
        file.push(vec![1; 100], 0).unwrap();
        file.push(vec![2; 8], 0).unwrap();
        let mut room = [0; 200];
        assert_eq!((theirs.read(&mut room).unwrap(), room[99]), (100, 1));
        assert_eq!((read(&file, &mut room), room[0]), (Ok(Some(8)), 2));
        assert_eq!(read(&file, &mut room), Ok(None));
    }

    #[test]
    fn an_event_without_room_stays() {
        for (content, errno) in [(Content::Answers, libc::ENOSPC), (Content::Entries, libc::EINVAL)] {
            let (file, _theirs) = PacketFile::new(content).unwrap();
            file.push(vec![3; 72], 1).unwrap();
            let mut room = [0; 72];
            assert_eq!(read(&file, &mut room[..71]), Err(Errno(errno)));
            assert_eq!((read(&file, &mut room), room[71]), (Ok(Some(72)), 3));
        }
    }

    #[test]
    fn no_event_is_lost_however_many_are_unread() {
        let (file, _theirs) = PacketFile::new(Content::Entries).unwrap();
        let event = |i: u64| i.to_ne_bytes().repeat(9);
        for i in 0..5000 {
            file.push(event(i), i).unwrap();
        }
        let mut room = [0; 72];
        for i in 0..5000 {
            assert_eq!((read(&file, &mut room), room.to_vec()), (Ok(Some(72)), event(i)));
        }
        assert_eq!(read(&file, &mut room), Ok(None));
    }

    #[test]
    fn a_cookie_comes_once_until_it_is_read() {
        let (file, _theirs) = PacketFile::new(Content::Cookies).unwrap();
        let push = |source: u64| file.push(source.to_ne_bytes().to_vec(), source);
        for source in [1, 2, 1, 1] {
            push(source).unwrap();
        }
        let mut room = [0; 8];
        let mut next = || read(&file, &mut room).map(|got| got.map(|_| u64::from_ne_bytes(room)));
        assert_eq!(next(), Ok(Some(1)));
        push(1).unwrap();
        assert_eq!([next(), next(), next()], [Ok(Some(2)), Ok(Some(1)), Ok(None)]);
    }

    #[test]
    fn a_megabyte_of_answers_is_the_limit() {
        let (file, _theirs) = PacketFile::new(Content::Answers).unwrap();
        let push = |answer: usize| file.push(vec![0; NUMBER + answer], 0);
        for _ in 0..16 {
            push(MAX_ANSWERS / 16).unwrap();
        }
        assert_eq!((push(1), push(0)), (Err(Errno(libc::EAGAIN)), Ok(())));
        let mut room = vec![0; NUMBER + MAX_ANSWERS / 16];
        assert_eq!(read(&file, &mut room), Ok(Some(room.len())));
        assert_eq!(push(MAX_ANSWERS / 16), Ok(()));
    }

    #[test]
    fn the_end_of_the_device_wakes_readers() {
        let (file, theirs) = PacketFile::new(Content::Cookies).unwrap();
        let mut theirs = File::from(theirs);
        let waiter = std::thread::spawn(move || theirs.read(&mut [0; 8]).unwrap());
        file.end();
        assert_eq!(waiter.join().unwrap(), 0);
        assert_eq!(read(&file, &mut [0; 8]), Err(Errno(libc::EIO)));
    }
}
