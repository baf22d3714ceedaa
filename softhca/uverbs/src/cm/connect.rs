//! Connecting, disconnecting, and membership in multicast groups: the programs' commands, and their events. A member learns
//! the address of its group here, and attaches its queue pair by verbs.

use super::address::Address;
use super::connection::{Connection, ConnectionEvent, Phase, answer_unmatched};
use super::event::{Event, EventKind};
use super::host;
use super::id::{Id, IdState, QpType, Route, port_of_service};
use super::manager::{Inner, Link, Membership, psn, send};
use super::message::{End, Gids, Message, MessageKind, reason};
use super::path::{self, PATH_MTU, address_handle};
use crate::card::OpenCard;
use crate::errno::{Errno, Result};
use crate::uapi::ucm::{ConnParam, Ece, Reject};
use softhca::card::{LinkLayer, ManagementDatagram};
use softhca::fabric::Node;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::FromZeros;

/// `IB_EVENT_COMM_EST`: a queue pair has received a message before its connection was established.
const COMMUNICATION_ESTABLISHED: u32 = 4;
/// `IB_EVENT_PATH_MIG`: a queue pair uses its alternate path.
const PATH_MIGRATED: u32 = 6;
/// `ENOTSUPP` of the kernel, which no header of programs has.
const KERNEL_NOT_SUPPORTED: i32 = 524;
/// Maximum retry count: a field of three bits.
const MAX_RETRY: u8 = 7;

/// Returns the private data of a command, if a message of this kind has room for them.
fn private(bytes: &[u8], length: u8, kind: MessageKind, has_ip: bool) -> Result<Vec<u8>> {
    let length = usize::from(length);
    if length > kind.room(has_ip) {
        tracing::warn!(length, room = kind.room(has_ip), ?kind, "there is no room for the private data");
        return Err(Errno::INVALID);
    }
    bytes.get(..length).map(<[u8]>::to_vec).ok_or(Errno::INVALID)
}

/// Returns this end of a connection, from a command's parameter.
fn end_of(id: &Id, param: &ConnParam, ece: Ece) -> End {
    // The kernel takes a Q_Key from programs with InfiniBand addresses only.
    let own_qkey = id.source.is_some_and(|source| source.ip().is_none()) && param.qkey != 0;
    End {
        qpn: param.qp_num & 0xff_ffff,
        qkey: if own_qkey { param.qkey } else { id.qkey },
        psn: id.psn,
        transport: id.qp_type.0,
        path_mtu: PATH_MTU,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control,
        retry_count: param.retry_count.min(MAX_RETRY),
        rnr_retry_count: param.rnr_retry_count.min(MAX_RETRY),
        srq: param.srq,
        ece: [ece.vendor_id, ece.attr_mod],
    }
}

fn has_ip(id: &Id) -> bool {
    id.source.is_some_and(|source| source.ip().is_some())
}

impl Inner {
    /// `CONNECT`: asks the peer for a connection, or for its queue pair for datagrams.
    ///
    /// # Errors
    /// EINVAL in the wrong state, for a queue pair type of no request, or for too many private data.
    pub(crate) fn ask(&mut self, file: u32, number: u32, param: &ConnParam, ece: Ece) -> Result<()> {
        let now = Instant::now();
        let id = self.id(file, number)?;
        id.must_be(IdState::RouteResolved)?;
        if !id.qp_type.can_ask() {
            return Err(Errno::INVALID);
        }
        let (Some(route), Some(source), Some(destination)) = (id.route.clone(), id.source, id.destination)
        else {
            return Err(Errno::INVALID);
        };
        let kind = if id.qp_type.is_datagram() { MessageKind::SidrReq } else { MessageKind::Req };
        let private = private(&param.private_data, param.private_data_len, kind, has_ip(id))?;
        let request = Message {
            service_id: id.service_id(&destination),
            end: end_of(id, param, ece),
            gids: route.gids,
            addresses: Some((source, destination)),
            private,
            ..Message::new(kind, 0, 0)
        };
        id.state = IdState::Connect;
        let local = self.connect(|local| {
            let request = Message { local_id: local, ..request };
            let Route { card, node, pkey_index, .. } = route;
            let mut link = Link {
                id: Some(number),
                connection: Connection::ask(&request, card.card.speed(), now),
                card,
                node,
                pkey_index,
                was_linked: false,
            };
            link.send(&request);
            link
        });
        self.id(file, number)?.connection = Some(local);
        Ok(())
    }

    /// `ACCEPT` of a request, or, without a parameter, of the peer's reply. A failure rejects the peer.
    ///
    /// # Errors
    /// EINVAL if there is nothing to accept, or for too many private data.
    pub(crate) fn accept(
        &mut self,
        file: u32,
        number: u32,
        uid: u64,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<()> {
        let now = Instant::now();
        let id = self.id(file, number)?;
        id.must_be(IdState::Connect)?;
        let is_datagram = id.qp_type.is_datagram();
        let kind = if is_datagram { MessageKind::SidrRep } else { MessageKind::Rep };
        let none = ConnParam::new_zeroed();
        let given = if param.valid == 0 { &none } else { param };
        let end = end_of(id, given, ece);
        let private = private(&given.private_data, given.private_data_len, kind, has_ip(id));
        let local = id.connection;
        let link = self.connection(local)?;
        let answer = private.and_then(|private| match param.valid {
            0 if !is_datagram => link.connection.ready(),
            _ => link.connection.accept(end, private, now),
        });
        let rejection =
            |connection: &mut Connection| connection.reject(reason::CONSUMER_DEFINED, Vec::new(), now).ok();
        let message = answer.as_ref().ok().cloned().or_else(|| rejection(&mut link.connection));
        if let Some(message) = message {
            link.send(&message);
        }
        answer?;
        if param.valid != 0 {
            self.id(file, number)?.uid = uid;
        }
        Ok(())
    }

    /// `REJECT`. Without a reason, the program's own.
    ///
    /// # Errors
    /// EINVAL if nothing can be rejected, for too many private data, and for another reason than the
    /// program's own and that its vendor's options do not fit.
    pub(crate) fn reject(&mut self, file: u32, command: &Reject) -> Result<()> {
        /// `IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`.
        const VENDOR_OPTION: u8 = 35;
        let now = Instant::now();
        let code = match command.reason {
            0 => reason::CONSUMER_DEFINED,
            code if u16::from(code) == reason::CONSUMER_DEFINED || code == VENDOR_OPTION => code.into(),
            _ => return Err(Errno::INVALID),
        };
        let id = self.id(file, command.id)?;
        let kind = if id.qp_type.is_datagram() { MessageKind::SidrRep } else { MessageKind::Rej };
        let private = private(&command.private_data, command.private_data_len, kind, has_ip(id))?;
        let local = id.connection;
        let link = self.connection(local)?;
        let message = link.connection.reject(code, private, now)?;
        link.send(&message);
        Ok(())
    }

    /// `DISCONNECT`: asks the peer to disconnect, or answers it.
    ///
    /// # Errors
    /// EINVAL if the identifier was never connected, and does not listen at a card's address.
    pub(crate) fn disconnect(&mut self, file: u32, number: u32) -> Result<()> {
        let now = Instant::now();
        let id = self.id(file, number)?;
        let local = id.connection;
        if id.state == IdState::Listen && id.card.is_some() {
            return Ok(());
        }
        let link = self.connection(local)?;
        if let Some(message) = link.connection.disconnect(now) {
            link.send(&message);
        }
        Ok(())
    }

    /// `NOTIFY`: an asynchronous event of the identifier's queue pair. Only one has an effect here.
    ///
    /// # Errors
    /// EINVAL if the identifier was never connected, and for other events than the two that the kernel handles;
    /// EISCONN if it is established already.
    pub(crate) fn notify(&mut self, file: u32, number: u32, event: u32) -> Result<()> {
        let local = self.id(file, number)?.connection;
        let link = self.connection(local)?;
        match event {
            COMMUNICATION_ESTABLISHED => {
                let reaction = link.connection.communication_established()?;
                self.react(local.unwrap_or_default(), reaction);
                Ok(())
            }
            PATH_MIGRATED if link.connection.phase == Phase::Established => Ok(()),
            _ => Err(Errno::INVALID),
        }
    }

    /// Handles a request for a listener: makes an identifier, and tells the program. Returns false if no
    /// identifier listens at the service.
    fn requested(&mut self, open: &Arc<OpenCard>, from: &ManagementDatagram, request: &Message) -> bool {
        let ManagementDatagram { source: node, pkey_index, .. } = *from;
        let Some((source, destination)) = request.addresses else { return false };
        let key = port_of_service(request.service_id);
        let is_asked = |id: &Id| {
            id.port.as_ref().is_some_and(|port| port.key == key)
                && id.listens_at(&destination, open)
                && host::is_for(open, &destination)
                && id.qp_type.is_datagram() == (request.kind == MessageKind::SidrReq)
        };
        let Some((&owner, listener)) = self.ids.iter_mut().find(|(_, id)| is_asked(id)) else { return false };
        if listener.backlog == 0 {
            // As in the kernel: the peer asks again.
            tracing::debug!(owner, "a connection request finds the backlog full");
            return true;
        }
        listener.backlog -= 1;
        let (file, uid) = (listener.file, listener.uid);
        let mut id = Id::new(file, 0, listener.space, listener.qp_type, psn());
        if !id.qp_type.is_datagram() {
            id.qp_type = QpType(request.end.transport).peer();
        }
        id.options = listener.options;
        id.state = IdState::Connect;
        (id.source, id.destination) = (Some(destination), Some(source));
        id.card = Some(open.clone());
        let gids = Gids { source: request.gids.destination, destination: request.gids.source };
        id.route = Some(Route { card: open.clone(), node, gids, pkey_index });
        let number = self.add(id);
        let local = self.connect(|local| {
            let connection = Connection::answer(local, request, open.card.speed());
            let (id, card) = (Some(number), open.clone());
            let mut link = Link { id, connection, card, node, pkey_index, was_linked: false };
            if let Some(acknowledgement) = link.connection.acknowledgement() {
                link.send(&acknowledgement);
            }
            link
        });
        if let Some(id) = self.ids.get_mut(&number) {
            id.connection = Some(local);
        }
        let mut event = Event::new(EventKind::ConnectRequest, owner, uid, 0);
        event.response.id = number;
        let has_ip = source.ip().is_some();
        self.push(match request.kind {
            MessageKind::SidrReq => {
                event.with_datagrams(&End::default(), None, request.kind, has_ip, &request.private)
            }
            _ => event.with_connection(&request.end, request.kind, has_ip, &request.private),
        });
        true
    }

    /// Returns the connection whose peer has this communication ID.
    pub(crate) fn connection_to(&self, open: &Arc<OpenCard>, node: Node, remote_id: u32) -> Option<u32> {
        let is_it = |link: &Link| {
            link.node == node && Arc::ptr_eq(&link.card, open) && link.connection.remote_id == remote_id
        };
        // No connection has ID 0.
        self.connections.iter().find(|(_, link)| remote_id != 0 && is_it(link)).map(|(local, _)| *local)
    }

    /// Handles a message for no connection, which came in this datagram.
    pub(crate) fn unmatched(
        &mut self,
        open: &Arc<OpenCard>,
        datagram: &ManagementDatagram,
        message: &Message,
    ) {
        let is_request = matches!(message.kind, MessageKind::Req | MessageKind::SidrReq);
        // A repeated request.
        let known = self.connection_to(open, datagram.source, message.local_id);
        if is_request && let Some(link) = known.and_then(|local| self.connections.get_mut(&local)) {
            if let Some(acknowledgement) = link.connection.acknowledgement() {
                link.send(&acknowledgement);
            }
            return;
        }
        if is_request && self.requested(open, datagram, message) {
            return;
        }
        if let Some(answer) = answer_unmatched(message) {
            send(open, (datagram.source, datagram.pkey_index), &answer);
        }
    }

    /// Handles an event of an identifier's connection.
    pub(crate) fn report_event(&mut self, number: u32, reported: ConnectionEvent) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let is_over = reported == ConnectionEvent::TimeWaitOver;
        // The program has learned already that the connection is over, or that it was not made.
        let expected = if is_over { IdState::Disconnect } else { IdState::Connect };
        if id.state != expected {
            return;
        }
        if matches!(reported, ConnectionEvent::Disconnected { .. }) {
            id.state = IdState::Disconnect;
        }
        // A connection that the program has not accepted yet. Accepting it fails.
        if id.uid == 0 {
            return;
        }
        let (uid, has_ip) = (id.uid, has_ip(id));
        let timed_out = -libc::ETIMEDOUT;
        let connection = id.connection.and_then(|local| self.connections.get(&local));
        let peer = connection.map(|link| link.connection.peer).unwrap_or_default();
        let address = connection.and_then(|link| address_handle(&link.card, &link.connection.gids));
        let event = |kind, status| Event::new(kind, number, uid, status);
        let event = match reported {
            ConnectionEvent::Replied { private } => event(EventKind::ConnectResponse, 0).with_connection(
                &peer,
                MessageKind::Rep,
                has_ip,
                &private,
            ),
            ConnectionEvent::Established => event(EventKind::Established, 0),
            ConnectionEvent::Rejected { reason, private } => event(EventKind::Rejected, reason.into())
                .with_connection(&End::default(), MessageKind::Rej, has_ip, &private),
            ConnectionEvent::Unreachable => event(EventKind::Unreachable, timed_out),
            ConnectionEvent::Disconnected { timed_out: is_late } => {
                event(EventKind::Disconnected, if is_late { timed_out } else { 0 })
            }
            ConnectionEvent::TimeWaitOver => event(EventKind::TimewaitExit, 0),
            ConnectionEvent::Resolved { private } => event(EventKind::Established, 0).with_datagrams(
                &peer,
                address,
                MessageKind::SidrRep,
                has_ip,
                &private,
            ),
            ConnectionEvent::Refused { status, private } => event(EventKind::Unreachable, status.into())
                .with_datagrams(&End::default(), None, MessageKind::SidrRep, has_ip, &private),
        };
        self.push(event);
    }

    /// `JOIN_MCAST`, `JOIN_IP_MCAST`. `answer` gives the program the number of the membership. An event has
    /// the address.
    ///
    /// # Errors
    /// EINVAL if the identifier is bound to no card or is not for datagrams, or for the address that names no
    /// group; 524 (`ENOTSUPP`) on Ethernet for a group without an IPv4 address; ENOSYS on a fabric without groups; and
    /// those of [`Inner::id`] and `answer`.
    pub(crate) fn join(
        &mut self,
        file: u32,
        number: u32,
        uid: u64,
        address: &Address,
        answer: impl FnOnce(u32) -> Result<()>,
    ) -> Result<()> {
        let id = self.id(file, number)?;
        let open = id.card.clone().ok_or(Errno::INVALID)?;
        let is_ready = matches!(id.state, IdState::AddrBound | IdState::AddrResolved);
        if !is_ready || !id.qp_type.is_datagram() || address.is_any() {
            return Err(Errno::INVALID);
        }
        if open.card.link_layer() == LinkLayer::Ethernet && !matches!(address, Address::V4(_)) {
            return Err(Errno(KERNEL_NOT_SUPPORTED));
        }
        if !open.card.has_multicast() {
            tracing::warn!("cards of several hosts (SOFTHCA_LISTEN) have no multicast groups");
            return Err(Errno(libc::ENOSYS));
        }
        let gid = path::group_gid(&open, id.space, address);
        let (handle, qkey) = (path::group_handle(&open, gid).ok_or(Errno::NO_DEVICE)?, id.qkey);
        let member = self.add_membership(Membership { id: number, events_reported: 0 });
        answer(member).inspect_err(|_| _ = self.memberships.remove(&member))?;
        self.push(Event::joined(number, member, uid, qkey, handle));
        Ok(())
    }

    /// `LEAVE_MCAST`. Returns how many events of the membership the program has received.
    ///
    /// # Errors
    /// ENOENT if there is no such membership, EINVAL if it belongs to another file.
    pub(crate) fn leave(&mut self, file: u32, member: u32) -> Result<u32> {
        let number = self.memberships.get(&member).ok_or(Errno::NO_ENTRY)?.id;
        self.id(file, number)?;
        self.take_events(file, |event| event.membership() == Some(member));
        let left = self.memberships.remove(&member);
        Ok(left.map_or(0, |membership| membership.events_reported))
    }
}
