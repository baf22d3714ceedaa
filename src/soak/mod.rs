//! `gdsync soak`: random work on many queue pairs between several processes, with random faults; every byte and every completion
//! is accounted for.

mod end;
mod mesh;
mod plan;
mod tally;

use crate::Failure;
use crate::cli::SoakOptions;
use crate::hca;
use end::{End, Role};
use gdsync::ProtectionDomain;
use mesh::{Mesh, Message};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally::Tally;

/// How long the end of a run may take: queues run empty, failures are got over.
const SETTLE: Duration = Duration::from_secs(120);
/// Pause of a process whose ends had nothing to do.
const PAUSE: Duration = Duration::from_micros(50);

/// What a worker process is told.
#[derive(serde::Serialize, serde::Deserialize)]
struct Assignment {
    options: SoakOptions,
    name: String,
    rank: usize,
}

/// Runs workers, and prints what they counted.
pub(crate) fn run(options: &SoakOptions) -> Result<(), Failure> {
    let name = format!("gdsync-soak-{}-{}", std::process::id(), options.seed);
    let mut workers = Vec::new();
    for rank in 0..options.procs {
        workers.push(Worker::start(options, &name, rank as usize)?);
    }
    let mut all = Tally::default();
    let mut errors = Vec::new();
    for worker in &mut workers {
        match worker.finish() {
            Ok(tally) => all.add(&tally),
            Err(error) => errors.push(error.to_string()),
        }
    }
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", serde_json::to_string(&all)?)?;
    } else {
        let Tally { operations, bytes, sent, received, failures, flushed, injected, .. } = &all;
        writeln!(
            out,
            "seed {}, {} queue pairs, {} processes, {} min",
            options.seed,
            2 * options.links,
            options.procs,
            options.minutes
        )?;
        writeln!(out, "{operations} operations, {bytes} bytes, {sent} messages sent, {received} received")?;
        writeln!(
            out,
            "{injected} faults injected, {failures} queue pairs failed and were replaced, {flushed} work requests flushed"
        )?;
        let Tally { lost, duplicated, wrong, unaccounted, hung, .. } = &all;
        writeln!(
            out,
            "lost {lost}, duplicated {duplicated}, wrong {wrong}, unaccounted {unaccounted}, hung {hung}"
        )?;
    }
    drop(out);
    for text in &all.problems {
        writeln!(io::stderr(), "{text}")?;
    }
    match errors.first() {
        Some(error) => Err(format!("{} of {} processes failed: {error}", errors.len(), options.procs).into()),
        None if !all.is_clean() => Err("something was lost, duplicated, wrong or hung".into()),
        None => Ok(()),
    }
}

/// A worker process; killed if it is still there at the end.
struct Worker(Child);

impl Worker {
    fn start(options: &SoakOptions, name: &str, rank: usize) -> Result<Self, Failure> {
        let assignment = Assignment { options: options.clone(), name: name.to_owned(), rank };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("soak-worker").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().ok_or("a worker has no stdin")?;
        writeln!(stdin, "{}", serde_json::to_string(&assignment)?)?;
        Ok(Worker(child))
    }

    fn finish(&mut self) -> Result<Tally, Failure> {
        let stdout = self.0.stdout.take().ok_or("a worker has no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let status = self.0.wait()?;
        match serde_json::from_str(&line) {
            Ok(tally) if status.success() => Ok(tally),
            _ => Err(format!("a worker ended with {status}: {}", line.trim()).into()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended cannot be killed, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker: its assignment comes in the first line of stdin, its counts go to stdout.
pub(crate) fn run_worker() -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let assignment: Assignment = serde_json::from_str(&line)?;
    let mut tally = Tally::default();
    let result = work(&assignment, &mut tally);
    writeln!(io::stdout(), "{}", serde_json::to_string(&tally)?)?;
    result
}

fn work(assignment: &Assignment, tally: &mut Tally) -> Result<(), Failure> {
    let Assignment { options, name, rank } = assignment;
    let procs = options.procs as usize;
    let (device, port) = hca::open(options.hca.as_ref())?;
    let pd = ProtectionDomain::new(&device)?;
    let mut mesh = Mesh::join(name, *rank, procs)?;
    let mut ends = Vec::new();
    for link in 0..options.links {
        if let Some(role) = role(link, *rank, procs, options.seed) {
            ends.push((link, End::new(role, &pd, port)?));
        }
    }
    for (_, end) in &ends {
        mesh.send(end.peer(), &end.up()?)?;
    }
    let stop = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let mut others = procs - 1;
    let (mut stopped, mut done) = (false, false);
    while !done || others > 0 {
        let mut worked = false;
        while let Some((peer, message)) = mesh.receive() {
            worked = true;
            let link = match &message {
                Some(Message::Done) => {
                    others -= 1;
                    continue;
                }
                Some(
                    Message::Up { link, .. }
                    | Message::Ready { link, .. }
                    | Message::Down { link, .. }
                    | Message::End { link, .. },
                ) => *link,
                None if others == 0 => continue,
                None => return Err(format!("process {peer} is gone").into()),
            };
            let end = ends.iter_mut().find(|(number, _)| *number == link).map(|(_, end)| end);
            if let (Some(end), Some(message)) = (end, message)
                && let Some(answer) = end.hear(message, tally)?
            {
                mesh.send(peer, &answer)?;
            }
        }
        let now = Instant::now();
        if now > stop && !stopped {
            stopped = true;
            ends.iter_mut().for_each(|(_, end)| end.stop());
        }
        let before = tally.operations;
        for (_, end) in &mut ends {
            if let Some(message) = end.step(tally)? {
                worked = true;
                mesh.send(end.peer(), &message)?;
            }
        }
        if !done && ends.iter().all(|(_, end)| end.is_done()) {
            done = true;
            mesh.broadcast(&Message::Done)?;
        }
        if now > stop + SETTLE && !done {
            tally.hung += 1;
            let left = ends.iter().find(|(_, end)| !end.is_done()).map(|(_, end)| end.to_string());
            return Err(format!("not finished: {}", left.unwrap_or_default()).into());
        }
        if !worked && tally.operations == before {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// What this process does for a link, if it has one of its ends. Links go round all pairs of processes.
fn role(link: u32, rank: usize, procs: usize, seed: u64) -> Option<Role> {
    let pairs: Vec<(usize, usize)> =
        (0..procs).flat_map(|low| (low + 1..procs).map(move |high| (low, high))).collect();
    let (low, high) = *pairs.get(link as usize % pairs.len())?;
    let (first, second) = (u64::from(link) * 2, u64::from(link) * 2 + 1);
    let role = |peer, own, other| Role { link, peer, own, other, seed, by_stream: own % 4 >= 2 };
    match rank {
        _ if rank == low => Some(role(high, first, second)),
        _ if rank == high => Some(role(low, second, first)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_two_ends_in_two_processes() {
        for procs in 2..=4 {
            for link in 0..40 {
                let roles: Vec<(usize, Role)> =
                    (0..procs).filter_map(|rank| Some((rank, role(link, rank, procs, 1)?))).collect();
                let [(low, first), (high, second)] = &roles[..] else { panic!("{} ends", roles.len()) };
                assert_eq!((first.peer, second.peer), (*high, *low));
                assert_eq!((first.own, first.other), (second.other, second.own));
            }
        }
    }
}
