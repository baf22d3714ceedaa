//! The server, in its three modes.

use crate::client::{Client, Targets, collect, pause};
use crate::device::Failure;
use crate::machine::{Machine, Operands};
use crate::work::{Cut, Memory, SIDE, Service, VECTOR, matrix};
use gdsync::device::DeviceQp;
use gdsync::{
    Batch, ConnectOptions, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, RemoteMemory,
    WorkRequest,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The unit that polls, launches and posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drive {
    /// The CPU without multiplication: the cost of messages and polling alone.
    Nothing,
    /// The CPU: polls, launches a kernel, waits for it, and posts.
    Cpu,
    /// A stream: waits, kernels and posts are enqueued ahead.
    Stream,
    Kernel,
}

/// Rounds enqueued ahead of the stream.
const AHEAD: usize = 4;
const LONG: Duration = Duration::from_secs(20);
/// A word's value that ends every wait for it: larger than any round.
const RELEASED: u64 = 1 << 40;

struct Link {
    client: QueuePair,
    server: QueuePair,
}

impl Link {
    fn new(pd: &ProtectionDomain, server: QueuePairConfig<'_>) -> Result<Self, Failure> {
        let client = QueuePair::new(pd, QueuePairConfig::default().send_depth(256))?;
        let server = QueuePair::new(pd, server)?;
        client.connect(&server.endpoint()?, ConnectOptions::default())?;
        server.connect(&client.endpoint()?, ConnectOptions::default())?;
        Ok(Link { client, server })
    }
}

pub(crate) struct Server<M> {
    pub(crate) machine: M,
    matrix: Memory,
    inputs: Memory,
    results: Memory,
    /// Words of pieces for streams and kernels, and for the CPU.
    arrived: Memory,
    arrived_on_host: MemoryRegion,
    failure: MemoryRegion,
    /// A word for each piece, in which its blocks count.
    joined: Memory,
    client_results: RemoteMemory,
    client_arrived: RemoteMemory,
    /// For the CPU and the stream, which send all pieces by one queue pair, so that a stream rings once for all.
    single: Link,
    /// For the kernel: one for each block.
    links: Vec<Link>,
}

impl<M: Machine> Server<M> {
    /// Creates a server for batches of up to `vectors`. `near`: results are written to the kernels' own memory,
    /// otherwise to the host's.
    pub(crate) fn new(
        machine: M,
        pd: &ProtectionDomain,
        client: &Client,
        vectors: usize,
        pieces: usize,
        near: bool,
    ) -> Result<Self, Failure> {
        let host = |len| -> Result<MemoryRegion, Failure> {
            match machine.host(pd, len)? {
                Memory::Host(region) => Ok(region),
                Memory::Gpu(_) => Err("memory of the host is a GPU's".into()),
            }
        };
        let results =
            if near { machine.near(pd, vectors * VECTOR) } else { machine.host(pd, vectors * VECTOR) };
        let depth = u32::try_from(2 * pieces * AHEAD)?.max(256);
        let config = QueuePairConfig::default();
        let own = config.send_depth(256).placement(machine.placement());
        let server = Server {
            matrix: machine.near(pd, SIDE * VECTOR)?,
            inputs: machine.near(pd, vectors * VECTOR)?,
            results: results?,
            arrived: machine.near(pd, pieces * 8)?,
            arrived_on_host: host(pieces * 8)?,
            failure: host(16)?,
            joined: machine.near(pd, pieces * 8)?,
            client_results: client.results.remote(),
            client_arrived: client.arrived.remote(),
            single: Link::new(pd, config.send_depth(depth))?,
            links: (0..pieces).map(|_| Link::new(pd, own)).collect::<Result<_, _>>()?,
            machine,
        };
        server.matrix.write(0, &matrix())?;
        Ok(server)
    }

    /// Serves rounds to the client. Returns the time of each.
    pub(crate) fn run(
        &self,
        drive: Drive,
        client: &Client,
        cut: Cut,
        rounds: Range<u64>,
    ) -> Result<Vec<Duration>, Failure> {
        let stop = AtomicBool::new(false);
        let links: Vec<&QueuePair> = match drive {
            Drive::Kernel => self.links.iter().map(|link| &link.client).collect(),
            Drive::Nothing | Drive::Cpu | Drive::Stream => vec![&self.single.client],
        };
        let arrived = match drive {
            Drive::Nothing | Drive::Cpu => self.arrived_on_host.remote(),
            Drive::Stream | Drive::Kernel => self.arrived.remote(),
        };
        let targets = Targets { inputs: self.inputs.remote(), arrived };
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let served = match drive {
                    Drive::Nothing => self.by_cpu(cut, rounds.clone(), false, &stop),
                    Drive::Cpu => self.by_cpu(cut, rounds.clone(), true, &stop),
                    Drive::Stream => self.by_stream(cut, rounds.clone(), &stop),
                    Drive::Kernel => self.by_kernel(cut, rounds.clone()),
                };
                if served.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                served
            });
            let round = |round| client.round(&links, &targets, cut, round, drive != Drive::Nothing, &stop);
            let took: Result<Vec<Duration>, Failure> = rounds.clone().map(round).collect();
            if took.is_err() {
                stop.store(true, Ordering::Relaxed);
                // Does not wait for a client that has given up.
                for piece in 0..cut.pieces {
                    self.arrived.write(Cut::word(piece).start, &RELEASED.to_ne_bytes())?;
                }
            }
            // The server's error takes precedence: the client's is only a time-out.
            serving.join().map_err(|_| "the server panicked")??;
            took
        })
    }

    fn multiply(&self, cut: Cut) -> Result<(), Failure> {
        let (matrix, inputs, results) = (&self.matrix, &self.inputs, &self.results);
        self.machine.multiply(&Operands { matrix, inputs, results, vectors: cut.vectors })
    }

    /// Passes the requests that send a piece of the results to `post`: the results, then the word.
    fn send(
        &self,
        cut: Cut,
        piece: usize,
        round: u64,
        mut post: impl FnMut(WorkRequest<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let slices = [self.results.slice(cut.bytes(piece))?];
        post(WorkRequest::write(&slices, self.client_results.slice(cut.bytes(piece))?).unsignaled())?;
        post(WorkRequest::write_inline(&round.to_ne_bytes(), self.client_arrived.slice(Cut::word(piece))?))
    }

    fn by_cpu(&self, cut: Cut, rounds: Range<u64>, compute: bool, stop: &AtomicBool) -> Result<(), Failure> {
        let link = &self.single.server;
        for round in rounds {
            for word in &self.arrived_on_host.words64()[..cut.pieces] {
                while word.load(Ordering::Acquire) < round {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    pause();
                }
            }
            if compute {
                self.multiply(cut)?;
                self.machine.wait()?;
            }
            for piece in 0..cut.pieces {
                self.send(cut, piece, round, |request| Ok(link.post_send(request)?))?;
            }
            collect(&[link], cut.pieces)?;
        }
        Ok(())
    }

    fn by_stream(&self, cut: Cut, rounds: Range<u64>, stop: &AtomicBool) -> Result<(), Failure> {
        let (link, stream) = (&self.single.server, self.machine.stream());
        let mut ahead = 0;
        for round in rounds {
            let mut inputs = Batch::with_capacity(cut.pieces);
            for piece in 0..cut.pieces {
                inputs = self.arrived.await_piece(inputs, piece, round)?;
            }
            stream.post(inputs)?;
            self.multiply(cut)?;
            let mut results = Batch::with_capacity(2 * cut.pieces);
            for piece in 0..cut.pieces {
                self.send(cut, piece, round, |request| {
                    results = std::mem::take(&mut results).send(link.prepare(request)?);
                    Ok(())
                })?;
            }
            stream.post(results)?;
            ahead += 1;
            if ahead == AHEAD {
                collect(&[link], cut.pieces)?;
                ahead -= 1;
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        collect(&[link], ahead * cut.pieces)?;
        Ok(stream.synchronize()?)
    }

    fn by_kernel(&self, cut: Cut, rounds: Range<u64>) -> Result<(), Failure> {
        let attach = |link: &Link| -> Result<DeviceQp, Failure> {
            Ok(link.server.attach_device(&**self.machine.stream(), &self.machine.attach_options()?)?)
        };
        let device_qps = self.links.iter().map(attach).collect::<Result<Vec<_>, _>>()?;
        let qps: Vec<_> = device_qps.iter().map(DeviceQp::data).collect();
        let failure = self.failure.words64();
        failure.iter().for_each(|word| word.store(0, Ordering::Release));
        self.joined.write(0, &vec![0; cut.pieces * 8])?;
        let sharers = self.machine.sharers(cut);
        let service = Service {
            matrix: self.matrix.address(),
            inputs: self.inputs.address(),
            results: self.results.address(),
            arrived: self.arrived.address(),
            client_results: self.client_results.addr,
            client_arrived: self.client_arrived.addr,
            failure: self.failure.remote().addr,
            joined: self.joined.address(),
            first_round: rounds.start,
            rounds: rounds.end - rounds.start,
            vectors: u32::try_from(cut.vectors / cut.pieces)?,
            lkey: self.results.lkey(),
            results_rkey: self.client_results.rkey,
            arrived_rkey: self.client_arrived.rkey,
            sharers,
            unused: 0,
        };
        // SAFETY: this server and its client own all of it and outlive the call; the queue pairs are moved to the
        // kernel.
        unsafe { self.machine.serve(&qps, service)? };
        let [status, error] = [0, 1].map(|at: usize| failure[at].load(Ordering::Acquire));
        if status != 0 {
            return Err(format!("a call of the kernel failed: status {status}, error {error:#x}").into());
        }
        device_qps.iter().try_for_each(|device_qp| Ok(device_qp.detach_device(LONG)?))
    }
}
