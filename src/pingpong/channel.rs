//! The channel on which the two sides exchange addresses and results: lines of JSON over pipes.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A message from one side to the other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    /// Where its queue pair and its memory are.
    Hello { endpoint: String, data: String, flag: String },
    /// Its receives are posted.
    Ready,
    /// It has finished.
    Done { error: Option<String> },
}

type Hook = Box<dyn FnOnce() + Send>;

/// What is said where nothing better is known.
pub(super) const GONE: &str = "the other side is gone";

/// What to do when the other side has ended.
#[derive(Clone, Default)]
pub(super) struct OnLoss {
    state: Arc<Mutex<Loss>>,
}

#[derive(Default)]
struct Loss {
    gone: bool,
    hook: Option<Hook>,
}

impl OnLoss {
    /// Sets what to do; done at once where the other side has ended already.
    pub(super) fn set(&self, hook: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.gone {
            drop(state);
            hook();
        } else {
            state.hook = Some(Box::new(hook));
        }
    }

    /// From now on the other side may go.
    pub(super) fn clear(&self) {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).hook = None;
    }

    fn gone(&self) {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.gone = true;
        let hook = state.hook.take();
        drop(state);
        if let Some(hook) = hook {
            hook();
        }
    }
}

/// One end of the channel.
pub(super) struct Channel {
    lines: Receiver<String>,
    writer: Box<dyn Write + Send>,
    on_loss: OnLoss,
}

impl Channel {
    /// A thread of its own reads, so that the end of the other side is noticed at any time.
    pub(super) fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        let (sender, lines) = channel();
        let on_loss = OnLoss::default();
        let told = on_loss.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
            drop(sender);
            told.gone();
        });
        Channel { lines, writer: Box::new(writer), on_loss }
    }

    pub(super) fn on_loss(&self) -> &OnLoss {
        &self.on_loss
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let lost = |error| format!("{GONE}: {error}");
        writeln!(self.writer, "{}", serde_json::to_string(message)?).map_err(lost)?;
        self.writer.flush().map_err(lost)?;
        Ok(())
    }

    /// The next message; waits for ever where there is no time-out, but not for a side that has
    /// ended.
    pub(super) fn receive(&self, timeout: Option<Duration>) -> Result<Message, Failure> {
        let line = match timeout {
            Some(timeout) => self.lines.recv_timeout(timeout),
            None => self.lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match line {
            Ok(line) => Ok(serde_json::from_str(&line)?),
            Err(RecvTimeoutError::Timeout) => Err("the other side does not answer".into()),
            Err(RecvTimeoutError::Disconnected) => Err(GONE.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_and_the_end_is_noticed() {
        let ((reader, other_writer), (_other_reader, writer)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let channel = Channel::new(reader, writer);
        let mut other = Channel::new(std::io::empty(), other_writer);
        other.send(&Message::Done { error: Some("no".to_owned()) }).unwrap();
        assert!(
            matches!(channel.receive(None).unwrap(), Message::Done { error: Some(error) } if error == "no")
        );
        assert!(
            channel
                .receive(Some(Duration::from_millis(1)))
                .unwrap_err()
                .to_string()
                .contains("does not answer")
        );
        let (told, hears) = std::sync::mpsc::channel();
        channel.on_loss().set(move || told.send(()).unwrap());
        drop(other);
        hears.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(channel.receive(None).unwrap_err().to_string().contains("gone"));
        let (told, hears) = std::sync::mpsc::channel();
        channel.on_loss().set(move || told.send(()).unwrap());
        hears.recv().unwrap();
    }
}
