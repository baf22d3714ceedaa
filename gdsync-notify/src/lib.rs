//! Notified writes in the manner of GASPI (GPI-2): a rank writes into another rank's memory and then sets a word there,
//! a *notification*. A reader that sees the word sees the data. The target posts no receive and takes part in no
//! handshake; its CPU and streams spend no time until they check the word.
//!
//! A [`Team`] connects the ranks over a [`bootstrap::Bootstrap`]: it has a queue pair from every rank to every rank,
//! itself included, or, in large teams, a few that reach all ([`ConnectionKind`]). A [`Segment`] is host or GPU memory
//! of which every rank has a part, with notifications: 32-bit words, numbered from 0, whose value 0 means "not set".
//! Its memory is allocated, or provided by the program ([`Team::register`]). A [`Queue`] writes, notifies, reads and
//! performs atomics, from the CPU or in batches of a stream; attached to a device ([`Queue::attach_device`]), from
//! inside kernels. The death of a rank ends every wait for it, with its number ([`NotifyError::PeerDead`]); the others
//! go on without it ([`Team::shrink`]) or with a new process in its place ([`Team::replace`]). [`collective`] has
//! barrier, all-gather, all-to-all, reduce-scatter and broadcast in the order of streams. The [`guide`] compares the
//! calls with GASPI's and lists what a program must know.
//!
//! ```
//! use gdsync::{Batch, Device, ProtectionDomain, SoftStream, Stream};
//! use gdsync_notify::bootstrap::Bootstrap;
//! use gdsync_notify::{Operation, Team, TeamConfig, WaitNotification};
//! use std::time::Duration;
//!
//! const LONG: Duration = Duration::from_secs(30);
//!
//! /// Each rank greets the next one.
//! fn rank(bootstrap: Bootstrap) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let pd = ProtectionDomain::new(&Device::software()?)?;
//!     let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
//!     let segment = team.allocate(48, 2)?;
//!     let (queue, next) = (team.queue(0)?, (team.rank() + 1) % team.size());
//!
//!     // The CPU writes its first 16 bytes into bytes 16..32 of the next rank, and sets notification 0 there to 7.
//!     segment.write(0, format!("from rank {:6}", team.rank()).as_bytes())?;
//!     queue.write_notify(&segment.slice(..16)?, next, &segment, 16, 0, 7)?;
//!     let id = segment.notify_waitsome(0..1, LONG)?.ok_or("no notification within the time")?;
//!     assert_eq!(segment.notify_reset(id)?, 7);
//!
//!     // A stream forwards what arrived to bytes 32..48 of the next rank, and waits for its own notification 1.
//!     let stream = Stream::new(SoftStream::new()?)?;
//!     let from = &segment.slice(16..32)?;
//!     let forward = Operation::WriteNotify { from, rank: next, to: &segment, offset: 32, id: 1, value: 1 };
//!     let batch = queue.prepare(forward)?.fold(Batch::new(), Batch::send);
//!     stream.post(batch.wait_notification(&segment.notification(1)?))?;
//!     stream.synchronize()?;
//!
//!     let mut text = [0; 16];
//!     segment.read(32, &mut text)?;
//!     let origin = (team.rank() + team.size() - 2) % team.size();
//!     assert_eq!(text, format!("from rank {origin:6}").as_bytes());
//!     // No rank leaves while others still write to it.
//!     queue.flush(LONG)?;
//!     Ok(team.barrier()?)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // Three threads here; processes join by `Bootstrap::join`.
//! let ranks = Bootstrap::threads(3, LONG)?;
//! let threads: Vec<_> = ranks.into_iter().map(|one| std::thread::spawn(move || rank(one))).collect();
//! threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a rank panicked")?)
//! # }
//! ```
//!
//! # Why a reader that sees the notification sees the data
//! Both are RDMA writes of one reliable queue pair, which delivers them in order. An mlx5 card writes them to memory in
//! order if the memory is registered without relaxed ordering and the queue pair has no out-of-order placement; gdsync
//! requests neither. Where a card places messages out of order by itself ([`gdsync::QueuePair::places_out_of_order`]), as on networks
//! that route adaptively, an empty read is in front of each notification whose queue has writes that have not completed, and the
//! notification waits for it: a round trip later. Then all writes before it have completed. The notification is one aligned word, inline in the work request, so it arrives whole. (The InfiniBand
//! specification promises this order for completions only; GASPI, MPI and NVSHMEM libraries rely on it as well.)
//!
//! Data and notification are in the same memory, or in two memories of the host or of one GPU ([`Team::register`]), so
//! both writes take the same path over PCIe, which keeps their order. Host memory is coherent with the card, and the
//! CPU loads the word with acquire. For GPU memory, gdsync follows a stream's wait with a flush where the GPU needs one
//! ([`gdsync::cuda`]); the CPU and running kernels read notifications only where the GPU itself keeps the order
//! ([`NotifyError::Consistency`]).

#![deny(unsafe_code)]

pub mod bootstrap;
mod cause;
pub mod collective;
mod config;
mod connect;
mod connections;
mod control;
#[allow(unsafe_code)]
mod device;
mod error;
mod handshake;
mod initiator;
mod liveness;
mod memory;
mod notifications;
mod pairs;
mod queue;
mod requests;
mod segment;
mod team;
#[allow(unsafe_code)]
mod word;

#[doc = include_str!("../guide.md")]
pub mod guide {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use config::{ConnectionKind, TeamConfig};
pub use device::{DeviceQueue, DeviceQueueData, DeviceQueueOptions, DeviceSegment, DeviceSegmentData};
pub use error::{DeathCause, NotifyError};
pub use memory::{RemoteSegment, SegmentMemory, SegmentSpec};
pub use pairs::Connection;
pub use queue::{Operation, Queue};
pub use segment::Segment;
pub use team::Team;
pub use word::{NotificationWord, WaitNotification};
