//! Exchanges by the program's own means, such as the all-gather of an MPI.

use super::error::BootstrapError;
use super::frame::{Kind, MAX_ALL, MAX_PART};
use super::rendezvous::protocol;

/// The program's all-gather of equal blocks, one for each rank.
pub(super) type AllGather = Box<dyn FnMut(&[u8], &mut [u8]) -> Result<(), String> + Send>;

/// Bytes that a rank says in front of its contribution: what exchange this is, its number, the length.
const HEADER: usize = 12;

fn header((kind, number): (Kind, u32), length: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = kind as u8;
    bytes[4..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}

/// The contributions of all ranks. The program exchanges blocks of one length: first headers, with the lengths,
/// then blocks of the longest contribution.
pub(super) fn exchange(
    gather: &mut AllGather,
    size: u32,
    exchange: (Kind, u32),
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let size = size as usize;
    let mut all = |own: &[u8], all: &mut [u8]| {
        gather(own, all).map_err(|reason| BootstrapError::Program { bytes: own.len(), reason })
    };
    let own = header(exchange, bytes.len());
    let mut headers = vec![0; HEADER * size];
    all(&own, &mut headers)?;
    let (headers, _) = headers.as_chunks::<HEADER>();
    let length = |(rank, said): (u32, &[u8; HEADER])| {
        if said[..8] != own[..8] {
            return Err(protocol(rank, "another exchange than this rank: call the same in the same order"));
        }
        let length = said[8..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > MAX_PART {
            return Err(protocol(rank, &format!("a length of {length} bytes")));
        }
        Ok(length)
    };
    let lengths = (0..).zip(headers).map(length).collect::<Result<Vec<usize>, _>>()?;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return Ok(vec![Vec::new(); size]);
    }
    let given = longest.saturating_mul(size);
    if given > MAX_ALL {
        return Err(BootstrapError::TooLong { what: "all ranks", given, limit: MAX_ALL });
    }
    let mut block = bytes.to_vec();
    block.resize(longest, 0);
    let mut blocks = vec![0; given];
    all(&block, &mut blocks)?;
    Ok(blocks.chunks(longest).zip(lengths).map(|(block, length)| block[..length].to_vec()).collect())
}
