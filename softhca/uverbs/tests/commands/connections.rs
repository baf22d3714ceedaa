//! Commands as librdmacm writes them, through the hooks: both ends in this process.

use crate::hooks;
use crate::uapi::ucm::*;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

mod addresses;
mod checks;
mod connecting;
mod files;
mod groups;
mod malformed;

/// Events (`enum rdma_cm_event_type`).
const ADDR_RESOLVED: u32 = 0;
const ADDR_ERROR: u32 = 1;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const UNREACHABLE: u32 = 7;
const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;
const TIMEWAIT_EXIT: u32 = 15;

/// A file of the connection manager.
struct Cm(i32);

impl Drop for Cm {
    fn drop(&mut self) {
        assert_eq!(hooks::close(self.0), 0);
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap()
}

/// Writes bytes to a descriptor, through the hook.
fn write(fd: i32, bytes: &[u8]) -> Result<usize, i32> {
    // SAFETY: the slice is readable. The caller keeps the command's targets valid.
    let written = unsafe { hooks::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| last_errno())
}

fn command(cmd: u32, body: &[u8], room: usize) -> Vec<u8> {
    let header = Header { cmd, bytes_in: body.len() as u16, bytes_out: room as u16 };
    [header.as_bytes(), body].concat()
}

impl Cm {
    fn open() -> Cm {
        Cm::with(libc::O_CLOEXEC | libc::O_NONBLOCK)
    }

    fn with(flags: i32) -> Cm {
        // SAFETY: the path is a C string.
        let fd = unsafe { hooks::open(c"/dev/infiniband/rdma_cm".as_ptr(), libc::O_RDWR | flags, 0) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        Cm(fd)
    }

    /// Sends a command without an answer.
    fn tell<T: IntoBytes + Immutable>(&self, cmd: u32, body: &T) -> Result<(), i32> {
        self.tell_bytes(cmd, body.as_bytes())
    }

    fn tell_bytes(&self, cmd: u32, body: &[u8]) -> Result<(), i32> {
        let bytes = command(cmd, body, 0);
        write(self.0, &bytes).map(|written| assert_eq!(written, bytes.len()))
    }

    /// Sends a command whose body `make` builds from the address of the answer.
    fn ask<T: FromZeros + IntoBytes + Immutable, B: IntoBytes + Immutable>(
        &self,
        cmd: u32,
        make: impl FnOnce(u64) -> B,
    ) -> Result<T, i32> {
        let mut answer = T::new_zeroed();
        let body = make(&raw mut answer as u64);
        let bytes = command(cmd, body.as_bytes(), size_of::<T>());
        write(self.0, &bytes).map(|_| answer)
    }

    fn create_in(&self, space: u16, uid: u64) -> u32 {
        let made = self.ask(command::CREATE_ID, |response| CreateId {
            uid,
            response,
            space,
            qp_type: 2,
            reserved: [0; 5],
        });
        made.unwrap()
    }

    fn create(&self, uid: u64) -> u32 {
        self.create_in(space::TCP, uid)
    }

    /// Returns how many events were reported.
    fn destroy(&self, id: u32) -> Result<u32, i32> {
        self.ask(command::DESTROY_ID, |response| DestroyId { response, id, reserved: 0 })
    }

    fn bind(&self, id: u32, to: &[u8]) -> Result<(), i32> {
        let mut addr: Storage = [0; 128];
        addr[..to.len()].copy_from_slice(to);
        self.tell(command::BIND, &Bind { id, addr_size: to.len() as u16, reserved: 0, addr })
    }

    fn resolve(&self, id: u32, to: &[u8]) -> Result<(), i32> {
        let mut dst: Storage = [0; 128];
        dst[..to.len()].copy_from_slice(to);
        let dst_size = to.len() as u16;
        let ask =
            ResolveAddr { id, timeout_ms: 2000, src_size: 0, dst_size, reserved: 0, src: [0; 128], dst };
        self.tell(command::RESOLVE_ADDR, &ask)
    }

    fn resolve_route(&self, id: u32) -> Result<(), i32> {
        self.tell(command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 2000 })
    }

    fn addresses(&self, id: u32) -> QueryAddrResp {
        self.ask(command::QUERY, |response| Query { response, id, option: query::ADDR }).unwrap()
    }

    fn listen(&self, id: u32, backlog: u32) -> Result<(), i32> {
        self.tell(command::LISTEN, &Listen { id, backlog })
    }

    fn connect(&self, id: u32, param: ConnParam) -> Result<(), i32> {
        self.tell(command::CONNECT, &Connect { param, id, reserved: 0 })
    }

    fn accept(&self, id: u32, uid: u64, param: ConnParam) -> Result<(), i32> {
        self.tell(command::ACCEPT, &Accept { uid, param, id, reserved: 0 })
    }

    fn reject(&self, id: u32, private: &[u8]) -> Result<(), i32> {
        let mut command = Reject {
            id,
            private_data_len: private.len() as u8,
            reason: 0,
            reserved: [0; 2],
            private_data: [0; 256],
        };
        command.private_data[..private.len()].copy_from_slice(private);
        self.tell(command::REJECT, &command)
    }

    fn disconnect(&self, id: u32) -> Result<(), i32> {
        self.tell(command::DISCONNECT, &Disconnect { id })
    }

    fn attributes(&self, id: u32, qp_state: u32) -> Result<QpAttr, i32> {
        self.ask(command::INIT_QP_ATTR, |response| InitQpAttr { response, id, qp_state })
    }

    fn event(&self) -> Result<EventResp, i32> {
        self.ask(command::GET_EVENT, |response| GetEvent { response })
    }

    /// Returns the next event, which must arrive in time and be of this kind.
    fn expect(&self, kind: u32) -> EventResp {
        self.wait();
        let event = self.event().unwrap();
        assert_eq!(event.event, kind, "status {}", event.status.cast_signed());
        event
    }

    /// Waits until the file is readable.
    fn wait(&self) {
        assert!(self.is_readable(Duration::from_secs(20)), "no event comes");
    }

    fn is_readable(&self, longest: Duration) -> bool {
        let mut polled = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut polled, 1, longest.as_millis() as i32) == 1 }
    }

    /// Makes an identifier that listens at a port. Also returns the port.
    fn listener(&self, space: u16, uid: u64, backlog: u32) -> (u32, u16) {
        let id = self.create_in(space, uid);
        self.bind(id, &ipv4([0; 4], 0)).unwrap();
        self.listen(id, backlog).unwrap();
        let port = u16::from_be_bytes([self.addresses(id).src[2], self.addresses(id).src[3]]);
        (id, port)
    }

    /// Makes an identifier with a route to a port of this host.
    fn routed(&self, space: u16, uid: u64, port: u16) -> u32 {
        self.routed_to(space, uid, &ipv4([127, 0, 0, 1], port))
    }

    fn routed_to(&self, space: u16, uid: u64, to: &[u8]) -> u32 {
        let id = self.create_in(space, uid);
        self.resolve(id, to).unwrap();
        assert_eq!(self.expect(ADDR_RESOLVED).uid, uid);
        self.resolve_route(id).unwrap();
        assert_eq!(self.expect(ROUTE_RESOLVED).id, id);
        id
    }
}

/// The IPv4 address of the first card.
const CARD: [u8; 4] = [10, 83, 0, 1];

/// `struct sockaddr_in`.
fn ipv4(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut bytes = vec![libc::AF_INET as u8, 0];
    bytes.extend(port.to_be_bytes());
    bytes.extend(ip);
    bytes.extend([0; 8]);
    bytes
}

/// The parameter of a connection, with private data.
fn param(qp_num: u32, private: &[u8]) -> ConnParam {
    let mut param = ConnParam {
        qp_num,
        private_data_len: private.len() as u8,
        responder_resources: 3,
        initiator_depth: 4,
        retry_count: 6,
        rnr_retry_count: 7,
        valid: 1,
        ..ConnParam::new_zeroed()
    };
    param.private_data[..private.len()].copy_from_slice(private);
    param
}

fn connection_of(event: &EventResp) -> ConnParam {
    ConnParam::read_from_prefix(&event.param).unwrap().0
}

fn datagrams_of(event: &EventResp) -> UdParam {
    UdParam::read_from_bytes(&event.param).unwrap()
}

/// Returns a port number that no other test uses.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    20_000 + (std::process::id() % 100) as u16 * 100 + NEXT.fetch_add(1, Ordering::Relaxed)
}
