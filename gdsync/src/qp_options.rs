//! Sizes of a queue pair, and attributes of its connection.

use crate::device::{DEFAULT_PORT, Mtu};
use crate::error::Error;
use crate::mr::Access;

/// Sizes of a [`crate::QueuePair`]. The provider may grant more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairConfig {
    /// Send work requests in flight.
    pub send_depth: u32,
    /// Receives posted at a time.
    pub recv_depth: u32,
    /// Slices of one send.
    pub send_segments: u32,
    /// Slices of one receive.
    pub recv_segments: u32,
    /// Bytes that a send can carry inline.
    pub inline: u32,
    /// What the remote side may do to this side's memory regions.
    pub access: Access,
    /// Physical port, from 1 on.
    pub port: u8,
}

impl Default for QueuePairConfig {
    /// 128 sends and receives of up to 4 slices, 44 bytes inline (what fits one 64-byte block for a send), remote reads
    /// and writes allowed, port 1.
    fn default() -> Self {
        QueuePairConfig {
            send_depth: 128,
            recv_depth: 128,
            send_segments: 4,
            recv_segments: 4,
            inline: 44,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
            port: DEFAULT_PORT,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        impl QueuePairConfig {
            $($(#[$doc])* pub fn $field(mut self, $field: $type) -> Self { self.$field = $field; self })*
        }
    };
}

setters! {
    /// Sets [`QueuePairConfig::send_depth`](#structfield.send_depth).
    send_depth: u32;
    /// Sets [`QueuePairConfig::recv_depth`](#structfield.recv_depth).
    recv_depth: u32;
    /// Sets [`QueuePairConfig::send_segments`](#structfield.send_segments).
    send_segments: u32;
    /// Sets [`QueuePairConfig::recv_segments`](#structfield.recv_segments).
    recv_segments: u32;
    /// Sets [`QueuePairConfig::inline`](#structfield.inline).
    inline: u32;
    /// Sets [`QueuePairConfig::access`](#structfield.access).
    access: Access;
    /// Sets [`QueuePairConfig::port`](#structfield.port).
    port: u8;
}

/// Attributes of a connection. The defaults suit a switched fabric of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Local ACK timeout code: 4.096 µs * 2^timeout; 0 never times out.
    pub timeout: u8,
    /// Transport retries before an error, 0 to 7.
    pub retry_count: u8,
    /// Receiver-not-ready retries before an error, 0 to 6; 7 retries for ever.
    pub rnr_retry: u8,
    /// Pause that this side asks for when it has no receive posted: code of the IB specification's RNR timer table.
    pub min_rnr_timer: u8,
    /// RDMA reads in flight, each way.
    pub max_reads: u8,
    /// Service level.
    pub service_level: u8,
    /// Path MTU; by default the smaller of the two ports'.
    pub mtu: Option<Mtu>,
}

impl Default for ConnectOptions {
    /// 268 ms and 7 retries (a silent peer is given up after about 2 s), RNR for ever at 0.64 ms, 16 reads.
    fn default() -> Self {
        ConnectOptions {
            timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_reads: 16,
            service_level: 0,
            mtu: None,
        }
    }
}

impl ConnectOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let remedy = "choose a smaller value";
        for (what, value, limit) in [
            ("timeout", self.timeout, 31),
            ("retry_count", self.retry_count, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("min_rnr_timer", self.min_rnr_timer, 31),
            ("service_level", self.service_level, 15),
        ] {
            if value > limit {
                let limit = format!("at most {limit} is possible");
                return Err(Error::OutOfRange { what, value: value.into(), limit, remedy });
            }
        }
        Ok(())
    }
}
