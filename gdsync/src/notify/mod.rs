//! Notified writes, in the manner of GASPI (GPI-2): one rank writes into another's memory and then sets a word there; who sees the
//! word sees the data. No receive, no handshake, nothing of the remote CPU's or stream's time until it looks.
//!
//! A [`Team`] is the connection table: a queue pair from every rank to every rank, to itself, too, made over a
//! [`crate::bootstrap::Bootstrap`]. A [`Segment`] is memory that every rank has a part of, of the host's or a GPU's, with notifications:
//! words of 32 bits, numbered from 0 on, 0 where there is none. A [`Queue`] writes and notifies, from the CPU or by batches of a
//! stream; handed over ([`Queue::attach_device`]), from inside kernels. `docs/notify.md` has more.
//!
//! ```
//! use gdsync::bootstrap::Bootstrap;
//! use gdsync::notify::{NotifyError, Team, TeamConfig};
//! use gdsync::{Batch, Device, ProtectionDomain, SoftStream, Stream};
//! use std::time::Duration;
//!
//! const LONG: Duration = Duration::from_secs(30);
//!
//! /// What every rank does: it greets the next one.
//! fn rank(bootstrap: Bootstrap) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let pd = ProtectionDomain::new(&Device::software()?)?;
//!     let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
//!     let segment = team.allocate(48, 2)?;
//!     let (queue, next) = (team.queue(0)?, (team.rank() + 1) % team.size());
//!
//!     // From the CPU: write the first 16 bytes into the next 16 of the next rank, and set its notification 0 to 7.
//!     segment.write(0, format!("from rank {:6}", team.rank()).as_bytes())?;
//!     queue.write_notify(&segment.slice(..16)?, next, &segment, 16, 0, 7)?;
//!     let id = segment.notify_waitsome(0..1, LONG)?.ok_or("nothing came")?;
//!     assert_eq!(segment.notify_reset(id)?, 7);
//!
//!     // On a stream: what came goes on into the last 16 bytes, with notification 1, which the stream waits for.
//!     let stream = Stream::new(SoftStream::new()?)?;
//!     let [write, notify] = queue.prepare_write_notify(&segment.slice(16..32)?, next, &segment, 32, 1, 1)?;
//!     let came = segment.notification(1)?;
//!     stream.post(Batch::new().send(write).send(notify).wait_notification(&came))?;
//!     stream.synchronize()?;
//!
//!     let mut text = [0; 16];
//!     segment.read(32, &mut text)?;
//!     let before = (team.rank() + team.size() - 2) % team.size();
//!     assert_eq!(text, format!("from rank {before:6}").as_bytes());
//!     // Nobody leaves while others still write to him.
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
//! # Why who sees the notification sees the data
//! Both are RDMA writes of one reliable queue pair. It delivers them in order, and an mlx5 card writes them to memory in order, as long
//! as the memory is registered without relaxed ordering, which gdsync never asks for, and queue pairs are made without out-of-order
//! placement, which it does not ask for either. The notification is one aligned word, carried in the work request itself: it arrives whole.
//! (Not promised by the InfiniBand specification, which promises it for completions only; GASPI, MPI and NVSHMEM libraries rest on the same.)
//! Both go to the same memory, so that no two paths of PCIe can change their order. In the host's memory, caches are coherent with
//! the card, and the CPU loads the word with acquire. In a GPU's, a stream's wait is followed by a flush where the GPU needs one
//! ([`crate::cuda`]); and the CPU and running kernels only look where the GPU keeps the order of its own accord ([`NotifyError::Consistency`]).

#[cfg(doctest)]
#[doc = include_str!("../../../docs/notify.md")]
struct Document;

mod device;
mod error;
mod peer;
mod queue;
mod segment;
mod team;
mod word;

pub use device::{DeviceQueue, DeviceQueueData, DeviceQueueOptions, DeviceSegment, DeviceSegmentData};
pub use error::NotifyError;
pub use queue::Queue;
pub use segment::{RemoteSegment, Segment, SegmentMemory};
pub use team::{Team, TeamConfig};
pub use word::NotificationWord;
