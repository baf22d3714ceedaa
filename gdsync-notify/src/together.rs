//! Steps that each rank does by itself, and whose outcome all ranks learn.

use crate::bootstrap::Bootstrap;
use crate::error::NotifyError;

/// Exchanges the outcome of a step that each rank does by itself: its description, one line, or its
/// failure, which then is an error on every rank. The lines of ranks that were dropped are `None`.
pub(crate) fn together<T>(
    done: Result<(T, String), NotifyError>,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Option<Vec<u8>>>, NotifyError>,
) -> Result<(T, Vec<Option<String>>), NotifyError> {
    let line = match &done {
        Ok((_, text)) => format!("+{text}"),
        Err(error) => format!("-{error}"),
    };
    let all = gather(line.as_bytes());
    // This rank's own failure says more than that of the exchange.
    let (value, _) = done?;
    let text = |(rank, bytes): (u32, Option<Vec<u8>>)| {
        let Some(bytes) = bytes else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes);
        match text.split_at_checked(1) {
            Some(("+", text)) => Ok(Some(text.to_owned())),
            Some((_, reason)) => Err(NotifyError::Elsewhere { rank, reason: reason.to_owned() }),
            None => Err(NotifyError::Elsewhere { rank, reason: "it sent an empty line".to_owned() }),
        }
    };
    Ok((value, (0..).zip(all?).map(text).collect::<Result<Vec<_>, _>>()?))
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
}
