//! The commands of the connection manager, as programs write them to its file.
//!
//! A command is a header and a structure; the header has the structure's length and the room for the answer.

use super::address::Address;
use super::answer;
use super::manager::{File, Inner, wait_until_sent};
use crate::attributes::{load, store};
use crate::errno::{Errno, Result};
use crate::uapi::ucm::{
    Accept, Bind, BindIp, Connect, CreateId, DestroyId, Disconnect, Ece, EventResp, GetEvent, Header,
    InitQpAttr, JoinIpMcast, JoinMcast, Listen, MigrateId, Notify, QpAttr, Query, QueryAddrResp,
    QueryPathResp, QueryRouteResp, Reject, ResolveAddr, ResolveIp, ResolveRoute, SetOption, command, query,
};
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Limit on a command's length, above that of any command.
const MAX_COMMAND: usize = 1024;
/// Limit on the value of an option (`KMALLOC_MAX_SIZE`).
pub(crate) const MAX_OPTION: usize = 4 << 20;
/// `IB_QPS_ERR`, the last state of a queue pair.
const MAX_QP_STATE: u32 = 6;
/// Join flags that exist (`RDMA_MC_JOIN_FLAG_RESERVED`).
const MAX_JOIN_FLAG: u16 = 1;

/// A command's access to files and to its own descriptor's mode.
pub(crate) struct Caller<'a> {
    pub(crate) file: &'a File,
    pub(crate) is_nonblocking: &'a dyn Fn() -> bool,
    pub(crate) file_of: &'a dyn Fn(u32) -> Result<Arc<File>>,
}

/// A command's bytes after the header, and the room for the answer.
struct Input {
    bytes: Vec<u8>,
    room: usize,
}

impl Input {
    /// Returns the structure.
    ///
    /// # Errors
    /// EINVAL if the command is shorter.
    fn structure<T: FromBytes>(&self) -> Result<T> {
        T::read_from_prefix(&self.bytes).map(|(structure, _)| structure).map_err(|_| Errno::INVALID)
    }

    /// Returns the options of enhanced connection establishment, which follow the structure in newer programs.
    fn ece<T>(&self) -> Ece {
        let rest = self.bytes.get(size_of::<T>()..).unwrap_or_default();
        Ece::read_from_prefix(rest).map_or_else(|_| Ece::new_zeroed(), |(ece, _)| ece)
    }

    /// # Errors
    /// ENOSPC if there is no room for the answer.
    fn has_room<T>(&self) -> Result<()> {
        self.has_bytes(size_of::<T>())
    }

    /// # Errors
    /// ENOSPC if there is no room for the fields of an answer that every program knows.
    fn has_bytes(&self, bytes: usize) -> Result<()> {
        if self.room >= bytes { Ok(()) } else { Err(Errno::NO_SPACE) }
    }

    /// Answers with a structure, without the newer fields at its end if the program has no room for them.
    fn answer<T: IntoBytes + Immutable>(&self, at: u64, answer: &T) -> Result<()> {
        let bytes = answer.as_bytes();
        store(at, &bytes[..bytes.len().min(self.room)])
    }
}

/// Performs the command at `addr`. Returns its length in bytes.
///
/// # Errors
/// EINVAL for a malformed or unknown command, EFAULT for memory that is not mapped, ENOSYS for a command that
/// the kernel lacks, too, and those of the commands.
pub(crate) fn perform(caller: &Caller<'_>, addr: u64, length: usize) -> Result<usize> {
    if length < size_of::<Header>() {
        return Err(Errno::INVALID);
    }
    let mut bytes = vec![0; length.min(MAX_COMMAND)];
    load(addr, &mut bytes)?;
    let (header, rest) = Header::read_from_prefix(&bytes).map_err(|_| Errno::INVALID)?;
    let bytes = rest.get(..usize::from(header.bytes_in)).ok_or(Errno::INVALID)?.to_vec();
    let input = Input { bytes, room: header.bytes_out.into() };
    let result = dispatch(caller, header.cmd, &input);
    if header.cmd != command::GET_EVENT {
        tracing::debug!(file = caller.file.number, command = header.cmd, ?result, "a connection command");
        caller.file.manager.notice();
    }
    result.map(|()| length)
}

fn dispatch(caller: &Caller<'_>, number: u32, input: &Input) -> Result<()> {
    let File { manager, number: file, .. } = caller.file;
    let file = *file;
    match number {
        command::CREATE_ID => create(caller.file, input),
        command::DESTROY_ID => destroy(caller.file, input),
        command::BIND_IP => {
            let asked: BindIp = input.structure()?;
            manager.bind(file, asked.id, ip_address(&asked.addr)?)
        }
        command::BIND => {
            let asked: Bind = input.structure()?;
            let address = address(&asked.addr, asked.addr_size)?;
            match asked.reserved {
                0 => manager.bind(file, asked.id, address),
                _ => Err(Errno::INVALID),
            }
        }
        command::RESOLVE_IP => {
            let asked: ResolveIp = input.structure()?;
            let source = match asked.src[..2] {
                [0, 0] => None,
                _ => Some(ip_address(&asked.src)?),
            };
            manager.resolve(file, asked.id, source, ip_address(&asked.dst)?)
        }
        command::RESOLVE_ADDR => resolve(caller.file, &input.structure()?),
        command::RESOLVE_ROUTE => {
            let asked: ResolveRoute = input.structure()?;
            manager.lock().resolve_route(file, asked.id)
        }
        command::QUERY_ROUTE => {
            input.has_bytes(offset_of!(QueryRouteResp, ibdev_index))?;
            let asked: Query = input.structure()?;
            let answer = answer::query_route(manager.lock().id(file, asked.id)?);
            input.answer(asked.response, &answer)
        }
        command::QUERY => ask(caller.file, input),
        command::CONNECT => {
            let asked: Connect = input.structure()?;
            if asked.param.valid == 0 {
                return Err(Errno::INVALID);
            }
            manager.ask(file, asked.id, &asked.param, input.ece::<Connect>())
        }
        command::LISTEN => {
            let asked: Listen = input.structure()?;
            manager.listen(file, asked.id, asked.backlog)
        }
        command::ACCEPT => {
            let asked: Accept = input.structure()?;
            let ece = input.ece::<Accept>();
            tell(caller.file, asked.id, |inner| inner.accept(file, asked.id, asked.uid, &asked.param, ece))
        }
        command::REJECT => {
            let asked: Reject = input.structure()?;
            tell(caller.file, asked.id, |inner| inner.reject(file, &asked))
        }
        command::DISCONNECT => {
            let asked: Disconnect = input.structure()?;
            tell(caller.file, asked.id, |inner| inner.disconnect(file, asked.id))
        }
        command::INIT_QP_ATTR => {
            input.has_room::<QpAttr>()?;
            let asked: InitQpAttr = input.structure()?;
            if asked.qp_state > MAX_QP_STATE {
                return Err(Errno::INVALID);
            }
            let answer = answer::qp_attributes(&mut manager.lock(), file, asked.id, asked.qp_state)?;
            input.answer(asked.response, &answer)
        }
        command::GET_EVENT => get_event(caller, input),
        command::SET_OPTION => set_option(caller.file, &input.structure()?),
        command::NOTIFY => {
            let asked: Notify = input.structure()?;
            manager.lock().notify(file, asked.id, asked.event)
        }
        command::JOIN_IP_MCAST => {
            let asked: JoinIpMcast = input.structure()?;
            let address = ip_address(&asked.addr)?;
            input.has_room::<u32>()?;
            let answer = |member: u32| input.answer(asked.response, &member);
            manager.lock().join(file, asked.id, asked.uid, &address, answer)
        }
        command::JOIN_MCAST => {
            let asked: JoinMcast = input.structure()?;
            let address = Address::parse(&asked.addr).ok_or(Errno::INVALID)?;
            input.has_room::<u32>()?;
            if address.len() != usize::from(asked.addr_size) || asked.join_flags > MAX_JOIN_FLAG {
                return Err(Errno::INVALID);
            }
            let answer = |member: u32| input.answer(asked.response, &member);
            manager.lock().join(file, asked.id, asked.uid, &address, answer)
        }
        command::LEAVE_MCAST => {
            input.has_room::<u32>()?;
            let asked: DestroyId = input.structure()?;
            let reported = manager.lock().leave(file, asked.id)?;
            input.answer(asked.response, &reported)
        }
        command::MIGRATE_ID => migrate(caller, input),
        // The kernel lacks it, too.
        command::GET_OPTION => Err(Errno(libc::ENOSYS)),
        _ => Err(Errno::INVALID),
    }
}

/// Parses an address of that size.
fn address(bytes: &[u8], size: u16) -> Result<Address> {
    Address::parse(bytes).filter(|address| address.len() == usize::from(size)).ok_or(Errno::INVALID)
}

/// Parses the address of a command that takes IP addresses only.
fn ip_address(bytes: &[u8]) -> Result<Address> {
    Address::parse(bytes).filter(|address| address.ip().is_some()).ok_or(Errno::INVALID)
}

fn create(file: &File, input: &Input) -> Result<()> {
    input.has_room::<u32>()?;
    let asked: CreateId = input.structure()?;
    let mut inner = file.manager.lock();
    let id = inner.create(file.number, asked.uid, asked.space, asked.qp_type)?;
    drop(inner);
    input.answer(asked.response, &id).inspect_err(|_| {
        drop(file.manager.lock().destroy(id, Instant::now()));
    })
}

fn destroy(file: &File, input: &Input) -> Result<()> {
    input.has_room::<u32>()?;
    let asked: DestroyId = input.structure()?;
    let mut inner = file.manager.lock();
    inner.id(file.number, asked.id)?;
    let gone = inner.destroy(asked.id, Instant::now());
    drop(inner);
    // After the lock is released, because this waits, and the identifier's claim of a port closes a file.
    wait_until_sent(&gone);
    let reported = gone.first().map_or(0, |id| id.events_reported);
    input.answer(asked.response, &reported)
}

/// Performs a command that answers an identifier's peer. Returns when the answer has left, as the program may end next.
fn tell(file: &File, id: u32, perform: impl FnOnce(&mut Inner) -> Result<()>) -> Result<()> {
    let mut inner = file.manager.lock();
    let told = perform(&mut inner);
    let id = inner.id(file.number, id).ok().cloned();
    drop(inner);
    wait_until_sent(&id);
    told
}

fn resolve(file: &File, asked: &ResolveAddr) -> Result<()> {
    let destination = address(&asked.dst, asked.dst_size)?;
    let source = match asked.src_size {
        0 => None,
        size => Some(address(&asked.src, size)?),
    };
    if asked.reserved != 0 {
        return Err(Errno::INVALID);
    }
    file.manager.resolve(file.number, asked.id, source, destination)
}

fn ask(file: &File, input: &Input) -> Result<()> {
    let asked: Query = input.structure()?;
    let mut inner = file.manager.lock();
    let has_room = || input.has_bytes(offset_of!(QueryAddrResp, ibdev_index));
    let id = inner.id(file.number, asked.id)?;
    match asked.option {
        query::ADDR => {
            has_room()?;
            input.answer(asked.response, &answer::query_addr(id))
        }
        query::GID => {
            has_room()?;
            input.answer(asked.response, &answer::query_gid(id))
        }
        query::PATH => {
            input.has_room::<QueryPathResp>()?;
            store(asked.response, &answer::query_path(id, input.room))
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

fn set_option(file: &File, asked: &SetOption) -> Result<()> {
    let length = usize::try_from(asked.optlen).ok().filter(|length| *length <= MAX_OPTION);
    let mut value = vec![0; length.ok_or(Errno::INVALID)?];
    file.manager.lock().id(file.number, asked.id)?;
    load(asked.optval, &mut value)?;
    file.manager.lock().set_option(file.number, asked.id, (asked.level, asked.optname), &value)
}

/// Waits for an event, unless the descriptor is non-blocking.
fn get_event(caller: &Caller<'_>, input: &Input) -> Result<()> {
    input.has_bytes(offset_of!(EventResp, reserved))?;
    let asked: GetEvent = input.structure()?;
    let File { manager, number, signal } = caller.file;
    loop {
        let count = signal.count();
        let taken = manager.lock().next_event(*number, |event| input.answer(asked.response, event));
        match taken {
            Err(Errno(libc::EAGAIN)) if !(caller.is_nonblocking)() => signal.wait(count)?,
            taken => return taken,
        }
    }
}

/// Moves an identifier from the file of another descriptor to this one.
fn migrate(caller: &Caller<'_>, input: &Input) -> Result<()> {
    let asked: MigrateId = input.structure()?;
    let from = (caller.file_of)(asked.fd)?;
    let reported = caller.file.manager.lock().migrate(from.number, asked.id, caller.file.number)?;
    input.answer(asked.response, &reported)
}
