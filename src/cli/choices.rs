//! The words that options of the command line take.

use clap::ValueEnum;
use gdsync::stream::DoorbellPath;
use gdsync::verbs::{QueueApi, Transport};
use gdsync_notify::ConnectionKind;
use serde::{Deserialize, Serialize};

/// Words, and the library's value that each stands for.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident for $type:ident: $($(#[$help:meta])* $word:ident => $value:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $($(#[$help])* $word,)*
        }

        impl From<$name> for $type {
            fn from(choice: $name) -> Self {
                match choice {
                    $($name::$word => $type::$value,)*
                }
            }
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Send into a posted receive
    Send,
    /// RDMA write, then an inline RDMA write of a flag word that the other side waits for
    Write,
    /// RDMA write with immediate, which completes a receive
    WriteImm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A stream
    Stream,
    /// The CPU
    Cpu,
}

choice! {
    Service for Transport:
    /// Reliable connection
    Rc => Rc,
    /// Unreliable connection
    Uc => Uc,
    /// Unreliable datagrams
    Ud => Ud,
}

choice! {
    DoorbellChoice for DoorbellPath:
    /// The stream stores to the card's register where it can reach it, else as with `proxy`
    Auto => Auto,
    /// The stream stores to the card's register
    Direct => Direct,
    /// The stream stores to a mailbox, and a thread forwards it
    Proxy => Proxy,
    // A stream whose sends the card waits with rings nothing.
    /// None: the CPU hands sends to the card at once, and the card waits for a word that the stream
    /// writes
    Card => Auto,
}

choice! {
    QueueChoice for QueueApi:
    /// Verbs
    Verbs => Verbs,
    /// Commands in the device's own language
    Devx => Devx,
}

choice! {
    /// What connects the ranks of a team.
    Connections for ConnectionKind:
    /// What a team of the size has by default
    Size => BySize,
    /// A queue pair to each rank
    Each => Each,
    /// Dynamically connected transport
    Dynamic => Dynamic,
}
