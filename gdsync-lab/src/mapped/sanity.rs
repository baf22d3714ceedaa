//! `gdsync sanity`: checks of mappings, with a line for each.

use super::{Memory, Outcome, Source, freed, pattern};
use gdsync::advanced::mapped::{
    LoadKernel, MappedMemory, Mapping, MappingBackend, MappingError, StoreKernel,
};
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::{Condition, GpuWord32};
use gdsync::{Batch, CudaStream, Stream};
use gdsync_cli::cli::MappedOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{json, progress};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 256 << 10;
/// Time limit for a stream to see a word.
const PATIENCE: Duration = Duration::from_secs(5);

struct Subject {
    memory: Memory,
    backend: MappingBackend,
    context: Option<Arc<CudaContext>>,
}

type Check = fn(&Subject) -> Result<Outcome, Failure>;

const CHECKS: [(&str, Check); 10] = [
    ("direct access by words", direct),
    ("what the CPU stores, by every kernel, the GPU sees", copies_in),
    ("what the GPU stores, by every kernel, the CPU sees", copies_out),
    ("unaligned copies", unaligned),
    ("odd sizes", odd_sizes),
    ("nothing outside of a copy changes, nothing outside of the memory is touched", bounds),
    ("several mappings of one buffer", several),
    ("a store of the CPU wakes a waiting stream, and the CPU sees its answer", stream_wait),
    ("a child process has no part in it", child),
    ("freed under the mapping", freed_under),
];

#[derive(Debug, Serialize)]
struct Line {
    backend: String,
    check: &'static str,
    result: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

#[derive(Debug, Serialize)]
struct Report {
    on: String,
    #[serde(rename = "rows")]
    lines: Vec<Line>,
    absent: Vec<super::Absent>,
}

pub(crate) fn run(options: &MappedOptions) -> Result<ExitCode, Failure> {
    progress::show(options.json, "sanity".to_owned());
    let source = Source::new(options)?;
    let mut report = Report { on: source.name()?, lines: Vec::new(), absent: Vec::new() };
    let mut out = io::stdout().lock();
    if !options.json {
        writeln!(out, "{}", report.on)?;
    }
    for backend in source.backends.iter().copied() {
        let subject =
            Subject { memory: source.allocate(backend, LEN)?, backend, context: source.context.clone() };
        for (check, run) in CHECKS {
            let (result, reason) = match run(&subject) {
                Ok(Outcome::Passed) => ("PASS", String::new()),
                Ok(Outcome::Skipped(reason)) => ("SKIP", reason.to_owned()),
                Err(error) => ("FAIL", error.to_string()),
            };
            let line = Line { backend: backend.to_string(), check, result, reason };
            if !options.json {
                let reason =
                    if line.reason.is_empty() { String::new() } else { format!(": {}", line.reason) };
                writeln!(out, "{}  {}  {}{reason}", line.result, line.backend, line.check)?;
            }
            report.lines.push(line);
        }
    }
    report.absent = source.absent;
    if options.json {
        drop(out);
        json::print(&report)?;
    } else {
        write!(out, "{}", super::absent_lines(&report.absent))?;
    }
    let failed = report.lines.iter().any(|line| line.result == "FAIL");
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Subject {
    /// Reads from the other side of the mapping: the GPU, by a copy of the driver; for a stand-in, its bytes.
    fn other_reads(&self, offset: usize, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        match &self.memory {
            Memory::Gpu(memory) => memory.gpu().read(offset, &mut bytes)?,
            Memory::StandIn(mapping) => {
                for (i, byte) in bytes.iter_mut().enumerate() {
                    // SAFETY: inside the mapping, which the check keeps alive.
                    *byte = unsafe { mapping.as_ptr().add(offset + i).read_volatile() };
                }
            }
        }
        Ok(bytes)
    }

    /// Makes the other side store bytes.
    fn other_writes(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        match &self.memory {
            Memory::Gpu(memory) => memory.gpu().write(offset, bytes)?,
            Memory::StandIn(mapping) => {
                for (i, byte) in bytes.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { mapping.as_ptr().add(offset + i).write_volatile(*byte) };
                }
            }
        }
        Ok(())
    }
}

/// Fails at the first byte that differs.
fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (found[at], expected[at]);
            Err(format!("{what}: byte {at} is {found:#04x}, not {expected:#04x}").into())
        }
    }
}

fn direct(subject: &Subject) -> Result<Outcome, Failure> {
    let mapping: &Mapping = &subject.memory;
    let words: Vec<u8> =
        (0..1024u32).flat_map(|i| i.wrapping_mul(0x0101_0101).wrapping_add(3).to_ne_bytes()).collect();
    for (i, word) in words.chunks_exact(4).enumerate() {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        // SAFETY: inside the mapping, which begins at a page.
        unsafe { mapping.as_ptr().cast::<u32>().add(i).write_volatile(word) };
    }
    // An empty copy flushes earlier stores.
    mapping.copy_to(0, &[])?;
    same("stored", &subject.other_reads(0, words.len())?, &words)?;
    let words: Vec<u8> = words.iter().map(|byte| !byte).collect();
    subject.other_writes(0, &words)?;
    let mut seen = Vec::with_capacity(words.len());
    for i in 0..words.len() / 4 {
        // SAFETY: as above.
        seen.extend(unsafe { mapping.as_ptr().cast::<u32>().add(i).read_volatile() }.to_ne_bytes());
    }
    same("loaded", &seen, &words)?;
    Ok(Outcome::Passed)
}

fn copies_in(subject: &Subject) -> Result<Outcome, Failure> {
    for (seed, kernel) in StoreKernel::available().enumerate() {
        let bytes = pattern(LEN, seed * 977);
        subject.memory.copy_to_by(kernel, 0, &bytes)?;
        same(&kernel.to_string(), &subject.other_reads(0, LEN)?, &bytes)?;
    }
    Ok(Outcome::Passed)
}

fn copies_out(subject: &Subject) -> Result<Outcome, Failure> {
    for (seed, kernel) in LoadKernel::available().enumerate() {
        let (bytes, mut seen) = (pattern(LEN, seed * 881 + 5), vec![0; LEN]);
        subject.other_writes(0, &bytes)?;
        subject.memory.copy_from_by(kernel, 0, &mut seen)?;
        same(&kernel.to_string(), &seen, &bytes)?;
    }
    Ok(Outcome::Passed)
}

/// Copies `len` bytes at `offset` both ways, by every kernel.
fn there_and_back(subject: &Subject, offset: usize, len: usize) -> Result<(), Failure> {
    for kernel in StoreKernel::available() {
        // The program's own bytes are unaligned, too.
        let bytes = pattern(len + 3, offset + len);
        subject.memory.copy_to_by(kernel, offset, &bytes[3..])?;
        same(
            &format!("{len} bytes at {offset} in by {kernel}"),
            &subject.other_reads(offset, len)?,
            &bytes[3..],
        )?;
    }
    for kernel in LoadKernel::available() {
        let (bytes, mut seen) = (pattern(len, offset * 3 + len), vec![0; len + 5]);
        subject.other_writes(offset, &bytes)?;
        subject.memory.copy_from_by(kernel, offset, &mut seen[5..])?;
        same(&format!("{len} bytes at {offset} out by {kernel}"), &seen[5..], &bytes)?;
    }
    Ok(())
}

fn unaligned(subject: &Subject) -> Result<Outcome, Failure> {
    for offset in [1, 2, 3, 5, 8, 15, 17, 31, 33, 63, 65, 4095] {
        there_and_back(subject, offset, 1024)?;
    }
    Ok(Outcome::Passed)
}

fn odd_sizes(subject: &Subject) -> Result<Outcome, Failure> {
    for len in [1, 2, 3, 5, 7, 9, 15, 17, 31, 33, 63, 65, 127, 129, 1000, 4097, 65_537] {
        there_and_back(subject, 64, len)?;
        there_and_back(subject, LEN - len, len)?;
    }
    Ok(Outcome::Passed)
}

fn bounds(subject: &Subject) -> Result<Outcome, Failure> {
    let before = vec![0x5a; 4096];
    for kernel in StoreKernel::available() {
        subject.other_writes(0, &before)?;
        subject.memory.copy_to_by(kernel, 1001, &[0xff; 777])?;
        let mut expected = before.clone();
        expected[1001..1778].fill(0xff);
        same(&kernel.to_string(), &subject.other_reads(0, 4096)?, &expected)?;
    }
    for (offset, len) in [(LEN, 1), (LEN - 3, 4), (usize::MAX, 2)] {
        let (into, out) = (
            subject.memory.copy_to(offset, &vec![0; len]),
            subject.memory.copy_from(offset, &mut vec![0; len]),
        );
        for result in [into, out] {
            if !matches!(result, Err(MappingError::OutOfBounds { .. })) {
                return Err(format!("{len} bytes at {offset} of {LEN} were not refused").into());
            }
        }
    }
    Ok(Outcome::Passed)
}

fn several(subject: &Subject) -> Result<Outcome, Failure> {
    let Some(gpu) = subject.memory.gpu() else { return Ok(Outcome::Skipped("a stand-in has one mapping")) };
    let more = [MappedMemory::pin_by(subject.backend, gpu)?, MappedMemory::pin_by(subject.backend, gpu)?];
    for (i, memory) in more.iter().enumerate() {
        let bytes = pattern(LEN, i * 31 + 7);
        memory.copy_to(0, &bytes)?;
        for other in [&*subject.memory, &more[0], &more[1]] {
            let mut seen = vec![0; LEN];
            other.copy_from(0, &mut seen)?;
            same(&format!("mapping {i}"), &seen, &bytes)?;
        }
    }
    // Unmapping one mapping does not affect the others.
    drop(more);
    subject.memory.copy_to(0, &[1, 2, 3])?;
    same("after two are gone", &subject.other_reads(0, 3)?, &[1, 2, 3])?;
    Ok(Outcome::Passed)
}

fn stream_wait(subject: &Subject) -> Result<Outcome, Failure> {
    let (Some(gpu), Some(context)) = (subject.memory.gpu(), &subject.context) else {
        return Ok(Outcome::Skipped("no stream waits for a stand-in"));
    };
    let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
    let (gate, answer) = (GpuWord32::new(gpu, 0)?, GpuWord32::new(gpu, 64)?);
    for round in 1..=100u32 {
        subject.memory.copy_to(0, &[0; 128])?;
        stream.post(Batch::new().wait_value32(&gate, Condition::Eq, round).write_value32(&answer, !round))?;
        let early = load(subject, 64)?;
        subject.memory.copy_to(0, &round.to_ne_bytes())?;
        let start = Instant::now();
        let mut seen = early;
        while seen != !round && start.elapsed() < PATIENCE {
            seen = load(subject, 64)?;
        }
        if early != 0 || seen != !round {
            // Released by the driver, so that nothing stays blocked.
            gate.store(round)?;
            stream.synchronize_timeout(PATIENCE)?;
            return Err(format!("round {round}: {early:#x} before the store, {seen:#x} after it").into());
        }
    }
    stream.synchronize()?;
    Ok(Outcome::Passed)
}

fn load(subject: &Subject, offset: usize) -> Result<u32, Failure> {
    let mut word = [0; 4];
    subject.memory.copy_from(offset, &mut word)?;
    Ok(u32::from_ne_bytes(word))
}

fn child(subject: &Subject) -> Result<Outcome, Failure> {
    // SAFETY: the child only calls two functions that allocate nothing and take no lock, and exits at once.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error().into());
    }
    if child == 0 {
        let refused = subject.memory.copy_to(0, &[1]) == Err(MappingError::Forked)
            && subject.memory.copy_from(0, &mut [0]) == Err(MappingError::Forked);
        // SAFETY: ends the child.
        unsafe { libc::_exit(libc::c_int::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: a child of this process; `status` is a valid place.
    if unsafe { libc::waitpid(child, &mut status, 0) } != child {
        return Err(io::Error::last_os_error().into());
    }
    if status != 0 {
        return Err(format!("the child was not refused (status {status:#x})").into());
    }
    subject.memory.copy_to(0, &[7])?;
    same("the parent's, after the child", &subject.other_reads(0, 1)?, &[7])?;
    Ok(Outcome::Passed)
}

fn freed_under(subject: &Subject) -> Result<Outcome, Failure> {
    match &subject.context {
        None => Ok(Outcome::Skipped("a stand-in frees nothing")),
        Some(context) => freed::check(context, subject.backend),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_byte_is_named() {
        assert!(same("x", &[1, 2, 3], &[1, 2, 3]).is_ok());
        let error = same("x", &[1, 9, 3], &[1, 2, 4]).unwrap_err().to_string();
        assert_eq!(error, "x: byte 1 is 0x09, not 0x02");
    }

    #[test]
    fn a_broken_other_side_is_noticed() {
        // The checks compare with the mapping's own bytes; if these are corrupted in between, they must fail.
        let subject = Subject {
            memory: Memory::StandIn(Mapping::stand_in(LEN).unwrap()),
            backend: MappingBackend::StandIn,
            context: None,
        };
        subject.memory.copy_to(0, &pattern(64, 1)).unwrap();
        subject.other_writes(63, &[!pattern(64, 1)[63]]).unwrap();
        assert!(same("x", &subject.other_reads(0, 64).unwrap(), &pattern(64, 1)).is_err());
    }
}
