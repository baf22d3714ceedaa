//! Steps that each rank does by itself, and whose outcome all ranks learn.

use crate::bootstrap::Bootstrap;
use crate::error::NotifyError;
use std::fmt;

/// Exchanges the outcome of a step that each rank does by itself: its description, one line, or its
/// failure, which then is an error on every rank. The lines of ranks that were dropped are `None`.
pub(crate) fn together<T, E: fmt::Display + From<NotifyError>>(
    done: Result<(T, String), E>,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Option<Vec<u8>>>, NotifyError>,
) -> Result<(T, Vec<Option<String>>), E> {
    let line = match &done {
        Ok((_, text)) => success(text),
        Err(error) => failure(error),
    };
    let all = gather(&line);
    // This rank's own failure says more than that of the exchange.
    let (value, _) = done?;
    let text = |(rank, bytes): (u32, Option<Vec<u8>>)| bytes.map(|bytes| read(rank, &bytes)).transpose();
    Ok((value, (0..).zip(all?).map(text).collect::<Result<Vec<_>, NotifyError>>()?))
}

fn success(text: &str) -> Vec<u8> {
    format!("+{text}").into_bytes()
}

fn failure(error: &impl fmt::Display) -> Vec<u8> {
    format!("-{error}").into_bytes()
}

/// What a rank says of its step.
fn read(rank: u32, bytes: &[u8]) -> Result<String, NotifyError> {
    let text = String::from_utf8_lossy(bytes);
    match text.split_at_checked(1) {
        Some(("+", text)) => Ok(text.to_owned()),
        Some((_, reason)) => Err(NotifyError::Elsewhere { rank, reason: reason.to_owned() }),
        None => Err(NotifyError::Elsewhere { rank, reason: "it sent an empty line".to_owned() }),
    }
}

impl Bootstrap {
    /// The same with the ranks of a bootstrap, all of which are there.
    pub(crate) fn together<T>(
        &mut self,
        done: Result<(T, String), NotifyError>,
    ) -> Result<(T, Vec<String>), NotifyError> {
        let gather = |line: &[u8]| Ok(self.all_gather(line)?.into_iter().map(Some).collect());
        let (value, lines) = together(done, gather)?;
        Ok((value, lines.into_iter().flatten().collect()))
    }

    /// As [`Self::together`], with a line for each rank.
    pub(crate) fn together_with_each<T>(
        &mut self,
        done: Result<(T, Vec<String>), NotifyError>,
    ) -> Result<(T, Vec<String>), NotifyError> {
        let parts = match &done {
            Ok((_, texts)) => texts.iter().map(|text| success(text)).collect(),
            Err(error) => vec![failure(error); self.size() as usize],
        };
        let all = self.all_to_all(&parts);
        let (value, _) = done?;
        let lines = (0..).zip(all?).map(|(rank, bytes)| read(rank, &bytes));
        Ok((value, lines.collect::<Result<_, _>>()?))
    }
}
