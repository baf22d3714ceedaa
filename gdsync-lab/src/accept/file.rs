//! The file of a ladder: a tar archive, compressed by Zstandard, of `report.json`, `report.html` and `raw/`.

use super::page;
use super::record::Value;
use super::report::Report;
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::Failure;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use tar::{Archive, Builder, Header};

/// Most bytes of a file.
const LIMIT: usize = 5 << 20;
/// Most bytes of an unpacked report that is read.
const LONGEST: u64 = 256 << 20;
const JSON: &str = "report.json";

/// Writes the report.
///
/// # Errors
/// The system's, and a file that would be larger than 5 MiB.
pub(super) fn write(destination: &Destination, report: &Report) -> Result<(), Failure> {
    let packed = pack(report)?;
    if packed.len() > LIMIT {
        return Err(format!(
            "the report has {} bytes, and its file at most {LIMIT}: use --quick",
            packed.len()
        )
        .into());
    }
    destination.fill(|path| Ok(fs::write(path, &packed)?))
}

fn pack(report: &Report) -> Result<Vec<u8>, Failure> {
    let mut archive = Builder::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, name, bytes)
    };
    add(JSON, serde_json::to_string_pretty(report)?.as_bytes())?;
    add("report.html", page::page(report).as_bytes())?;
    for step in &report.steps {
        for (side, record) in [("card", &step.card), ("software-card", &step.model)] {
            let dumps = record.facts.iter().filter_map(|fact| match &fact.value {
                Value::Bytes { bytes, .. } => Some(format!("{} {bytes}\n", fact.name)),
                _ => None,
            });
            let dumps: String = dumps.collect();
            if !dumps.is_empty() {
                add(&format!("raw/{}.{side}.txt", step.step), dumps.as_bytes())?;
            }
        }
    }
    Ok(compress_to_vec(&*archive.into_inner()?, CompressionLevel::Fastest))
}

/// Reads the report of a file.
///
/// # Errors
/// A file of another kind, or a damaged one.
pub(super) fn read(path: &Path) -> Result<Report, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| format!("{shown}: {error}"))?;
    unpack(BufReader::new(file)).map_err(|error| {
        format!("{shown} is no file of `gdsync accept`, such as accept-2026-11-28.tar.zst: {error}").into()
    })
}

fn unpack(file: impl Read) -> Result<Report, Failure> {
    let decoder = StreamingDecoder::new(file).map_err(|error| error.to_string())?;
    let mut archive = Archive::new(decoder.take(LONGEST));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.path()?.as_ref() == Path::new(JSON) {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            return Ok(serde_json::from_str(&text)?);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("it has no {JSON}")).into())
}

#[cfg(test)]
mod tests {
    use super::super::record::{Fact, Layout, Outcome, Record};
    use super::super::report::StepReport;
    use super::super::steps;
    use super::*;
    use gdsync::verbs::LinkLayer;
    use std::time::SystemTime;

    fn report() -> Report {
        let mut report = Report::new(SystemTime::UNIX_EPOCH, true, LinkLayer::Ethernet);
        for step in steps::all() {
            let entry = Value::Bytes { layout: Layout::Entry, bytes: "00".repeat(64) };
            let facts = vec![Fact { name: "a.entry".to_owned(), value: entry }];
            let record = Record { outcome: Outcome::Passed, facts };
            report.steps.push(StepReport::new(step, record.clone(), record));
        }
        report
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = report();
        let packed = pack(&report).unwrap();
        assert!(packed.len() < 100_000, "{}", packed.len());
        assert_eq!(unpack(&*packed).unwrap(), report);
    }

    #[test]
    fn other_files_are_refused() {
        for bytes in [&b""[..], b"no archive", &compress_to_vec(&b"no tar"[..], CompressionLevel::Fastest)] {
            assert!(unpack(bytes).is_err());
        }
        let packed = pack(&report()).unwrap();
        for cut in [10, packed.len() / 2] {
            assert!(unpack(&packed[..cut]).is_err(), "{cut}");
        }
        let said = read(Path::new("/nowhere/accept.tar.zst")).unwrap_err().to_string();
        assert!(said.contains("/nowhere/accept.tar.zst"), "{said}");
    }
}
