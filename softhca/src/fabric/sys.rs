//! System calls that the standard library lacks: shared memory, file descriptors in messages, sleeping on several things.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::time::Duration;

/// Turns -1 into the last error.
fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// A new file in memory, without a name in any file system.
fn memory_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a zero-terminated string.
    let fd = check(unsafe { libc::memfd_create(c"gdsync-softhca".as_ptr(), flags) })?;
    // SAFETY: a descriptor just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Memory shared between processes, mapped for as long as the value lives.
pub(crate) struct SharedMemory {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address and a length; whoever uses the memory does so through atomics and raw copies.
unsafe impl Send for SharedMemory {}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl SharedMemory {
    /// Fresh zeroed memory, with the descriptor that another process maps it by. Sealed, so that nobody can shrink it
    /// under the other's feet (an access beyond the end is a signal).
    pub(crate) fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memory_file()?;
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: plain system calls on our own descriptor.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), size))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((Self::map(fd.as_fd(), 0, len)?, fd))
    }

    /// Maps what another process sent. Refused where it has not the expected size, or can still be shrunk.
    pub(super) fn receive(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: plain system calls on a descriptor that is open; all-zero bytes are a valid `stat`.
        let (seals, size) = unsafe {
            let seals = check(libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS))?;
            let mut stat: libc::stat = std::mem::zeroed();
            check(libc::fstat(fd.as_raw_fd(), &mut stat))?;
            (seals, stat.st_size)
        };
        if seals & libc::F_SEAL_SHRINK == 0 || usize::try_from(size) != Ok(len) {
            return Err(io::Error::other(format!("shared memory of {size} bytes with seals {seals:#x}")));
        }
        Self::map(fd, 0, len)
    }

    fn map(fd: BorrowedFd<'_>, offset: libc::off_t, len: usize) -> io::Result<Self> {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, fd.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedMemory { base: base.cast(), len })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; the borrow checker keeps users of the mapping from outliving it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// A file in memory that grows, and never shrinks: what is mapped of it stays there.
pub(crate) struct MemoryFile(OwnedFd);

impl MemoryFile {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = memory_file()?;
        // SAFETY: a plain system call on our own descriptor.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) })?;
        Ok(MemoryFile(fd))
    }

    /// Makes it end `len` bytes behind `offset`, where it ended, and maps what is new: zeroes. Both are multiples of a page.
    pub(crate) fn extend(&self, offset: usize, len: usize) -> io::Result<SharedMemory> {
        let position = |at: Option<usize>| at.and_then(|at| libc::off_t::try_from(at).ok());
        let (Some(start), Some(end)) = (position(Some(offset)), position(offset.checked_add(len))) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // SAFETY: a plain system call on our own descriptor.
        check(unsafe { libc::ftruncate(self.0.as_raw_fd(), end) })?;
        SharedMemory::map(self.0.as_fd(), start, len)
    }

    /// Another descriptor of it.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

/// The socket address of an abstract name, and its length.
fn abstract_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid socket address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let place = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in place.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, length as libc::socklen_t))
}

/// Connects to an abstract name without ever blocking (the standard library's connect waits for a full backlog).
pub(super) fn connect(name: &[u8]) -> io::Result<UnixStream> {
    let (address, length) = abstract_address(name)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call; the descriptor is owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?) };
    // SAFETY: the address is valid for its length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket.into())
}

fn internet_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// Begins a connection to a peer, from an address of this host, without ever blocking.
pub(super) fn connect_tcp(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call; the descriptor is owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, kind, 0))?) };
    // The port is chosen when it connects: a port serves many connections then.
    set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let (own, peer) = (internet_address(SocketAddrV4::new(from, 0)), internet_address(to));
    // SAFETY: the addresses are valid for their length.
    let rc = unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const own).cast(), length))?;
        check(libc::connect(socket.as_raw_fd(), (&raw const peer).cast(), length))
    };
    match rc {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is readable for its length.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    check(rc).map(drop)
}

/// Ends a connection whose other host has been silent for so long, though asked.
pub(super) fn limit_silence(socket: &TcpStream, limit: Duration) -> io::Result<()> {
    const QUESTIONS: libc::c_int = 5;
    let socket = socket.as_fd();
    let millis = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    let each = (millis / 1000 / (QUESTIONS + 1)).max(1);
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, each)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, each)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, QUESTIONS)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis)
}

/// Sends bytes from several places, without blocking. Returns how many went.
///
/// # Safety
/// Each part is readable memory.
pub(super) unsafe fn send_parts(socket: BorrowedFd<'_>, parts: &[(*const u8, usize)]) -> io::Result<usize> {
    let part =
        |part: &(*const u8, usize)| libc::iovec { iov_base: part.0.cast_mut().cast(), iov_len: part.1 };
    let mut list: Vec<libc::iovec> = parts.iter().map(part).collect();
    loop {
        // SAFETY: all-zero bytes are a valid message header; the list outlives the call and names readable memory, as the
        // caller says; nothing is written to it.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = list.as_mut_ptr();
            message.msg_iovlen = list.len();
            libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        match usize::try_from(sent) {
            Ok(sent) => return Ok(sent),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Appends bytes that others may be writing to.
///
/// # Safety
/// The bytes are readable, and not of the buffer.
pub(super) unsafe fn append(buffer: &mut Vec<u8>, from: *const u8, count: usize) {
    buffer.reserve(count);
    // SAFETY: there is room for as many more, which are written before the length covers them; the rest is the caller's.
    unsafe {
        buffer.as_mut_ptr().add(buffer.len()).copy_from_nonoverlapping(from, count);
        buffer.set_len(buffer.len() + count);
    }
}

/// The user that a socket's other side ran as when it connected.
pub(super) fn peer_user(socket: &UnixStream) -> io::Result<libc::uid_t> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut credentials).cast();
    // SAFETY: `place` has room for `length` bytes.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut length)
    })?;
    Ok(credentials.uid)
}

/// The user that this process runs as.
pub(super) fn own_user() -> libc::uid_t {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// A control message buffer for one descriptor, aligned as `cmsghdr` asks.
#[repr(C)]
union ControlBuffer {
    _header: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Sends bytes with a descriptor.
pub(super) fn send_with_fd(socket: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = ControlBuffer { bytes: [0; 64] };
    let fd_len = size_of::<libc::c_int>() as libc::c_uint;
    // SAFETY: all-zero bytes are a valid message header; the control buffer holds one descriptor (24 of 64 bytes), so
    // `CMSG_FIRSTHDR` is not null and its data has room for it; all pointers outlive the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(fd_len) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(fd_len) as usize;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(fd.as_raw_fd());
        let sent = libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Receives bytes, and the descriptor that came with them.
pub(super) fn receive_with_fd(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = ControlBuffer { bytes: [0; 64] };
    // SAFETY: all-zero bytes are a valid message header; buffers outlive the call; the kernel writes at most 64 bytes of
    // control data and says how many; a descriptor that it passes is owned by nobody else.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<ControlBuffer>();
        let got = libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        let mut fd = None;
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<libc::c_int>();
                for i in 0..count {
                    let raw = libc::CMSG_DATA(header).cast::<libc::c_int>().add(i).read_unaligned();
                    // A second descriptor closes the first: a peer that sends too many gets what it deserves.
                    fd = Some(OwnedFd::from_raw_fd(raw));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        Ok((got, fd))
    }
}

/// An eventfd, non-blocking.
pub(super) fn event() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?) })
}

/// Makes an eventfd readable.
pub(super) fn raise(event: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: 8 readable bytes. A failure means that the counter is full: then it is readable anyway.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Takes everything out of a non-blocking descriptor. False where the other side has closed it, or it failed.
pub(super) fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut bytes = [0u8; 256];
    loop {
        // SAFETY: room for as many bytes as are asked for.
        let got = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        match got {
            0 => return false,
            n if n > 0 => {}
            _ => match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock => return true,
                io::ErrorKind::Interrupted => {}
                _ => return false,
            },
        }
    }
}

/// Sends one byte, to wake whoever sleeps on the socket. A full socket has bytes enough to wake it.
pub(super) fn poke(socket: &UnixStream) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: one readable byte.
    unsafe { libc::send(socket.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
}

/// Sleeps until one of the descriptors is readable or closed, or the time is over.
pub(super) fn sleep(fds: &[BorrowedFd<'_>; 2], timeout: Duration) {
    let entry = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled = [entry(&fds[0]), entry(&fds[1])];
    let time = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: two valid entries, a valid time, no signal mask. An interrupted sleep is a short one.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &time, ptr::null()) };
}

/// An epoll instance: the sockets of all links, in one descriptor to sleep on.
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the descriptor is owned by nobody else.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) }))
    }

    /// Watches a descriptor, until it is closed; `key` comes back with its events.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.add(fd, libc::EPOLLIN | libc::EPOLLRDHUP, key)
    }

    /// Watches a descriptor for changes only: something to read, its end, or room to write again.
    pub(super) fn watch_changes(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.add(fd, libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT | libc::EPOLLET, key)
    }

    fn add(&self, fd: BorrowedFd<'_>, events: libc::c_int, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: both descriptors are open, the event is valid.
        let rc =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
        check(rc).map(drop)
    }

    /// The keys of what is readable or closed now, at most 64.
    pub(super) fn ready(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for as many events as are asked for.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 0) };
        events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
