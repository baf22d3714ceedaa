//! Sides that are started separately, on one host or two: a server, and a client, whose options hold for both.
//!
//! They connect over TCP (`meeting.rs`), compare versions, and agree on each run (`session.rs`), whose channel is the
//! same connection. Two processes of a launcher's job need no address.

mod meeting;
mod session;

use super::side::{Peer, RemoteGpu};
use super::{Measurement, report};
use crate::cli::{Hosts, SideOptions};
use crate::failure::Failure;
use crate::{hca, text};
use gdsync_notify::bootstrap::Job;
use meeting::{Listener, PeerConnection};
use session::{Answer, Request, Session};
use std::io::Write;

/// The role of a process that is not both sides.
pub(super) enum Role {
    Server,
    Client,
    Rank(Box<Job>),
}

/// Returns this process's role, from the options or else a launcher's environment. `None`: it is both sides.
pub(super) fn role(options: &SideOptions) -> Result<Option<Role>, Failure> {
    match &options.hosts {
        Hosts { server: true, .. } => Ok(Some(Role::Server)),
        Hosts { host: Some(_), .. } => Ok(Some(Role::Client)),
        _ if options.procs == 2 => {
            Ok(meeting::job_of_two(|name| std::env::var_os(name))?.map(|job| Role::Rank(Box::new(job))))
        }
        _ => Ok(None),
    }
}

pub(super) fn run<M: Measurement>(options: &M, role: Role) -> Result<(), Failure> {
    super::take_liberties(options.sides())?;
    let own = own_gpu(options.sides(), &role)?;
    let mut options = options.clone();
    let sides = options.sides_mut();
    sides.gpu = own.as_ref().map(|gpu| gpu.number.into());
    sides.procs = 2;
    let hosts = sides.hosts.clone();
    let options = &options;
    match role {
        Role::Server => serve(options, own, listen(&hosts, M::COMMAND)?, true),
        Role::Rank(job) if job.rank() == 0 => {
            serve(options, own, meeting::meet_in_job(&job, M::COMMAND)?, false)
        }
        Role::Client => {
            let host = hosts.host.as_ref().ok_or("no host is named")?;
            let port = hosts.port_of(Some(host));
            measure(options, &host.host, || meeting::connect(&host.host, port, M::COMMAND))
        }
        Role::Rank(job) => measure(options, "rank 0", || meeting::meet_in_job(&job, M::COMMAND)),
    }
}

/// Returns this side's GPU of `--gpu`. A process of a job takes that of its rank.
fn own_gpu(options: &SideOptions, role: &Role) -> Result<Option<RemoteGpu>, Failure> {
    let Some(list) = &options.gpu else { return Ok(None) };
    let gpus = list.resolve()?;
    match (role, gpus.numbers()) {
        (Role::Rank(job), _) => RemoteGpu::of(gpus.of_rank(job.rank())).map(Some),
        (_, [number]) => RemoteGpu::of(*number).map(Some),
        (_, numbers) => Err(format!(
            "--gpu names {} GPUs, and each side has one: name that of this side here, and the other's on the other side",
            numbers.len()
        )
        .into()),
    }
}

/// Waits for a client, and prints where.
fn listen(hosts: &Hosts, command: &str) -> Result<PeerConnection, Failure> {
    let listen = hosts.listen.as_ref();
    let listener = Listener::bind(listen, hosts.port_of(listen))?;
    // If stderr fails, there is no place to report it.
    let _ =
        writeln!(std::io::stderr(), "gdsync: waiting for `gdsync {command} HOST` at {}", listener.address());
    listener.accept(None)
}

/// Refuses a software card that the other host cannot reach: it must listen at an address.
fn check_card(options: &SideOptions, is_same_host: bool) -> Result<(), Failure> {
    if is_same_host || !hca::is_software(options.hca.as_ref()) || softhca::fabric::is_tcp() {
        return Ok(());
    }
    Err("the software card of this side reaches no other host: set SOFTHCA_LISTEN to an address of this host, and SOFTHCA_KEY_FILE, on both (docs/clusters.md); or name a card of the system's by --hca".into())
}

/// The client: has the server take part in the runs of all sizes.
fn measure<M: Measurement>(
    options: &M,
    name: &str,
    meet: impl FnOnce() -> Result<PeerConnection, Failure>,
) -> Result<(), Failure> {
    let picture = super::picture(options.sides())?;
    let PeerConnection { socket, is_same_host, .. } = meet()?;
    let session = Session::open(socket, "the server", M::COMMAND)?;
    let _contexts = super::contexts(options.sides())?;
    if let Err(failure) = check_card(options.sides(), is_same_host) {
        session.send(&Request::<M>::Failed { reason: failure.to_string() })?;
        return Err(failure);
    }
    let result = super::sweep(options, picture, |one| {
        session.send(&Request::Run(Box::new(one.clone())))?;
        let gpu = match session.receive()? {
            Answer::Begin { gpu } => gpu,
            Answer::Refused { reason } => return Err(format!("the server cannot do this: {reason}").into()),
        };
        let (channel, _run) = session.run()?;
        one.play(0, Peer::Separate { name: name.to_owned(), gpu }, channel)
    });
    // A server that has failed or ended does not receive it.
    let _ = session.send(&Request::<M>::End);
    result
}

/// The server: takes part in runs until the client ends the session, and then reports them.
fn serve<M: Measurement>(
    options: &M,
    own: Option<RemoteGpu>,
    met: PeerConnection,
    says_verdict: bool,
) -> Result<(), Failure> {
    let PeerConnection { socket, other, is_same_host } = met;
    let (sides, other) = (options.sides(), other.to_string());
    let session = Session::open(socket, "the client", M::COMMAND)?;
    let mut reports: Vec<M::Report> = Vec::new();
    loop {
        let asked = match session.receive::<Request<M>>()? {
            Request::Run(asked) => asked,
            Request::End => break,
            Request::Failed { reason } => return Err(format!("the client cannot do it: {reason}").into()),
        };
        let prepared = check_card(sides, is_same_host).and_then(|()| prepare(sides, &own, *asked));
        let (run, gpu) = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => {
                session.send(&Answer::Refused { reason: failure.to_string() })?;
                return Err(format!("what the client wants cannot be done here: {failure}").into());
            }
        };
        let _contexts = super::contexts(run.sides())?;
        session.send(&Answer::Begin { gpu: gpu.clone() })?;
        let (channel, _run) = session.run()?;
        reports.push(run.play(1, Peer::Separate { name: other.clone(), gpu }, channel)?);
    }
    if reports.is_empty() {
        return Err("the client has ended before a run: its own output says why".into());
    }
    if !says_verdict {
        return Ok(());
    }
    let (said, text) = report::verdict(&other, &reports)?;
    text::print(sides.json, &said, || text)
}

/// Returns the run that the client requests, on the server's card and GPU.
fn prepare<M: Measurement>(
    own: &SideOptions,
    gpu: &Option<RemoteGpu>,
    asked: M,
) -> Result<(M, Option<RemoteGpu>), Failure> {
    if let Some(refusal) = asked.refusal() {
        return Err(refusal.into());
    }
    let gpu = match (&asked.sides().gpu, gpu) {
        (None, None) => None,
        (Some(_), Some(gpu)) => Some(gpu.clone()),
        (Some(_), None) => Some(RemoteGpu::of(0)?),
        (None, Some(gpu)) => {
            return Err(format!(
                "the server has --gpu {}, and the client has no --gpu: give it on both sides or on none",
                gpu.number
            )
            .into());
        }
    };
    let mut run = asked;
    *run.sides_mut() = run.sides().on_server(own)?;
    run.sides_mut().gpu = gpu.as_ref().map(|gpu| gpu.number.into());
    Ok((run, gpu))
}
