//! The calls of a queue pair. Each room of this module does its part of them.

use crate::qp::life::{connect, create, ordering};
use crate::qp::make::Role;
use crate::qp::post::receives;
use crate::qp::{CompletionQueue, PreparedSend, QpState, QueuePair, QueuePairConfig, ResetError};
use crate::queue::send::{CardWait, PostMode, WaitRequest};
use crate::queue::{FailureCause, QueueError, StateError, WorkRequest};
use crate::verbs::{
    AddressHandle, ConnectOptions, DcAddress, Endpoint, Error, ProtectionDomain, QueuePairError, Slice,
    Transport,
};

impl QueuePair {
    /// Makes a queue pair that can be connected and takes receives. A UD or DC queue pair can also send.
    ///
    /// # Errors
    /// - [`PortError::NotActive`](crate::verbs::PortError::NotActive),
    ///   [`PortError::NoGid`](crate::verbs::PortError::NoGid),
    ///   [`QueuePairError::NoTransport`](crate::verbs::QueuePairError), [`Error::Verbs`] if the provider refuses.
    /// - [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a completion queue of another device,
    ///   and [`QueuePairError::PrivateCompletionQueue`](crate::verbs::QueuePairError) for another queue pair's own completion
    ///   queue, if persistent requests wait there.
    /// - DC: [`OutOfRange`](crate::verbs::OutOfRange) for [`QueuePairConfig::connections`], and
    ///   [`QueuePairError::DcInitiatorCannotReceive`](crate::verbs::QueuePairError),
    ///   [`QueuePairError::NotTriggered`](crate::verbs::QueuePairError) and
    ///   [`DevxError::NoDc`](crate::advanced::DevxError) for options that exclude DC.
    /// - Queues made by commands ([`QueuePairConfig::queues`], and those of a trigger with a master): also
    ///   [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`].
    pub fn new(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        create::in_reset(pd, config).and_then(Self::started)
    }

    /// Moves a new queue pair to INIT, and a UD or DC one on to RTS.
    pub(crate) fn started(self) -> Result<Self, Error> {
        connect::to_init(&self.inner)?;
        if self.transport().is_addressed() {
            connect::to_ready(&self.inner)?;
        }
        Ok(self)
    }

    /// Makes the queue pair of a trigger's master, in the state RESET: the master cannot use `create`, which uses it.
    pub(crate) fn of_master(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        create::in_role(pd, config, Role::Master)
    }

    /// Returns its transport.
    pub fn transport(&self) -> Transport {
        self.inner.config.transport
    }

    /// Returns the most bytes that a request can carry inline: at least those asked for.
    pub fn max_inline(&self) -> u32 {
        self.inner.limits.inline
    }

    /// Returns the longest message in bytes. For a datagram, that is the port's MTU.
    pub fn max_message(&self) -> u64 {
        self.inner.limits.message
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Returns its address, for the remote side.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the port cannot be queried.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        connect::own_endpoint(&self.inner)
    }

    /// Connects to a remote queue pair, which must do the same with this one's [`QueuePair::endpoint`].
    ///
    /// # Errors
    /// [`QueuePairError::State`](crate::verbs::QueuePairError) if it is connected already,
    /// [`QueuePairError::Connectionless`](crate::verbs::QueuePairError) for UD and DC,
    /// [`OutOfRange`](crate::verbs::OutOfRange) for an option,
    /// [`PortError::GidKindMismatch`](crate::verbs::PortError::GidKindMismatch) if the remote port speaks another protocol,
    /// [`Error::Verbs`] if the provider refuses.
    pub fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), Error> {
        connect::connect(&self.inner, remote, options)
    }

    /// Makes the address of a remote port for datagrams ([`crate::WorkRequest::to`]), reached from this queue
    /// pair's port and global identifier. `remote`'s queue pair number and packet sequence number are ignored; of
    /// the options, service level and global route are used.
    ///
    /// # Errors
    /// [`PortError::GidKindMismatch`](crate::verbs::PortError::GidKindMismatch) if the remote port speaks another protocol,
    /// [`OutOfRange`](crate::verbs::OutOfRange) for an option, [`Error::Verbs`] if the provider refuses.
    pub fn address_handle(&self, remote: &Endpoint, options: ConnectOptions) -> Result<AddressHandle, Error> {
        AddressHandle::new(&self.inner.domain.pd, self.inner.config.port, &self.inner.gid, remote, &options)
    }

    /// Makes the address of a DC target for requests of DC queue pairs ([`crate::WorkRequest::to_target`]), reached
    /// from this queue pair's port and global identifier. `target` is the target's
    /// [`DcTarget::endpoint`](crate::qp::DcTarget::endpoint), and `key` its access key; of the options, service
    /// level and global route are used.
    ///
    /// # Errors
    /// As [`Self::address_handle`], and [`QueuePairError::NotAnInitiator`] for a queue pair that is not DC.
    pub fn dc_address(
        &self,
        target: &Endpoint,
        key: u64,
        options: ConnectOptions,
    ) -> Result<DcAddress, Error> {
        let transport = self.transport();
        if transport != Transport::Dc {
            let qpn = self.number();
            return Err(Error::QueuePair(QueuePairError::NotAnInitiator { qpn, transport }));
        }
        Ok(DcAddress::new(self.address_handle(target, options)?, target.qpn, key))
    }

    /// Returns the queue pair to its state after [`QueuePair::new`]: it takes receives and can be connected (UD and
    /// DC: can send), with no failure, empty queues, and another first sequence number. Its number and completion
    /// queues stay, and so does everything made from it.
    ///
    /// No work of the last connection may be outstanding: after a failure, or [`QueuePair::abort`], let the streams
    /// perform their posts, and poll both completion queues until every work request has completed. The last
    /// unsignaled ones need no completion if they were done before the failure. Prepared sends from before the
    /// reset are refused ([`OrderError::Stale`](crate::queue::OrderError::Stale)).
    ///
    /// With a shared receive queue, a receive is lost with its message if the card writes its completion only
    /// during the reset; its place in the shared queue becomes free. The card has written all completions when it
    /// reports [`AsyncEventKind::LastReceive`](crate::verbs::AsyncEventKind::LastReceive).
    ///
    /// Give the remote side the new [`QueuePair::endpoint`]; it must reset, too. A DC target need not: targets and
    /// their addresses stay valid.
    ///
    /// # Errors
    /// [`ResetError::Blocked`], which names the obstacle; nothing has changed then. [`Error::Verbs`] if the
    /// provider refuses; the queue pair has failed then.
    pub fn reset(&self) -> Result<(), ResetError> {
        self.inner.reset()
    }

    /// Resets the queue pair, unless it can be connected already, and connects it.
    ///
    /// The remote endpoint must be from after the remote side's own reset. If both sides reset, both call
    /// [`QueuePair::reset`] first, then exchange endpoints, then call this.
    ///
    /// # Errors
    /// As [`QueuePair::reset`] and [`QueuePair::connect`].
    pub fn reconnect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), ResetError> {
        if !matches!(*self.inner.life.lock(), QpState::Initialised) {
            self.inner.reset()?;
        }
        Ok(connect::connect(&self.inner, remote, options)?)
    }

    /// Returns the completion queue of its sends.
    pub fn send_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.send_cq.clone() }
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.recv_cq.clone() }
    }

    /// Writes a request into the send queue without ringing the card.
    ///
    /// # Errors
    /// [`QueueError`] if there is no room, a limit is exceeded, a slice is of another domain, or the queue pair is not
    /// connected or has failed.
    pub fn prepare(&self, request: WorkRequest<'_>) -> Result<PreparedSend, QueueError> {
        PreparedSend::new(self.inner.clone(), &request, PostMode::LATER)
    }

    /// Posts a request at once: writes it into the send queue and rings the card, by the CPU. Programs with a stream
    /// use [`QueuePair::prepare`].
    ///
    /// # Errors
    /// As [`QueuePair::prepare`], and if sends are prepared and not posted, or outstanding on a stream. Nothing is
    /// posted then.
    #[inline(always)]
    pub fn post_send(&self, request: WorkRequest<'_>) -> Result<(), QueueError> {
        self.inner.enqueue(&request, PostMode::NOW).map(drop)
    }

    /// Posts a request that the card holds back until its clock is past `ticks`, in the unit of the times in completion
    /// entries. A card without [`CardWaits::time`](crate::verbs::CardWaits::time) fails the queue pair. For tools that compare
    /// cards.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`], and [`StateError::Triggered`] for a queue pair with a trigger.
    #[doc(hidden)]
    pub fn post_send_after(&self, ticks: u64, request: WorkRequest<'_>) -> Result<(), QueueError> {
        if self.inner.trigger.is_some() {
            return Err(QueueError::State(StateError::Triggered { qpn: self.number() }));
        }
        let wait = WaitRequest { wait: CardWait::Time { ticks }, region: None };
        self.inner.enqueue(&request, PostMode::Behind([wait])).map(drop)
    }

    /// Posts a receive: the next send of the remote side fills the slices in order.
    ///
    /// # Errors
    /// [`QueueError`] if there is no room, a limit is exceeded, a slice is of another domain or not writable, the
    /// queue pair has failed or has a [`SharedReceiveQueue`](crate::qp::SharedReceiveQueue), or a stream has not
    /// reached receives of persistent requests.
    pub fn post_recv(&self, slices: &[Slice], wr_id: u64) -> Result<(), QueueError> {
        receives::post(&self.inner, slices, wr_id)
    }

    /// Moves the queue pair to the error state. The card flushes all its work, so that every waiting stream wakes.
    /// Later completions are errors, and preparing and posting are refused. Waits for sends that a stream has not
    /// rung yet end earlier, once all queue pairs that complete there have failed, unless the completion queue or
    /// its doorbell record is in GPU memory.
    ///
    /// Prepared work behind sends that a stream was given completes once the library knows that the stream has rung
    /// for these: a stream without waits reports its position only now and then, unless
    /// [`Stream::synchronize_timeout`](crate::Stream::synchronize_timeout) asks for it.
    ///
    /// May be called from any thread, and more than once.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider refuses.
    pub fn abort(&self) -> Result<(), Error> {
        self.inner.abort()
    }

    /// Asks the device whether messages of the queue pair may reach memory out of order: then only completions, atomic
    /// operations and reads order them. Cards do so by themselves on networks that route adaptively (`dp_ordering` of the
    /// queue pair's context), so the answer counts once it is connected.
    ///
    /// A provider that cannot be asked (libmlx5 before rdma-core 22) is taken to keep the order, as its devices do.
    ///
    /// # Errors
    /// [`Error::Devx`] or [`Error::Verbs`], if the device or the kernel does not answer.
    pub fn places_out_of_order(&self) -> Result<bool, Error> {
        ordering::is_out_of_order(&self.inner)
    }

    /// Returns the device's answer to QUERY_QP, with the queue pair's context; none if the provider cannot be asked
    /// (libmlx5 before rdma-core 22). For tools that compare cards.
    ///
    /// # Errors
    /// [`Error::Devx`] or [`Error::Verbs`], if the device or the kernel does not answer.
    #[doc(hidden)]
    pub fn context(&self) -> Result<Option<Vec<u8>>, Error> {
        ordering::context(&self.inner)
    }

    /// Returns the first error of the queue pair, if it has failed.
    ///
    /// A flush is returned only while its cause is unknown: neither a completion queue nor an event has reported an
    /// earlier error. Cards write the entries of different queues in any order, so the cause may arrive later; each
    /// call looks for it again.
    pub fn failure(&self) -> Option<FailureCause> {
        self.inner.look_for_cause();
        self.inner.life.failure()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.inner.hide_completions();
        self.inner.end_dropped();
    }
}
