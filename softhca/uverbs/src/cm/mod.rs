//! The connection manager: `/dev/infiniband/rdma_cm` with the functions of the kernel's `rdma_ucm`, `rdma_cm`
//! and `ib_cm`.
//!
//! | module | contents |
//! |---|---|
//! | `address` | socket addresses |
//! | `message` | messages between connection managers, on queue pair 1 of the cards |
//! | `connection` | the protocol of one connection: states, messages, time-outs |
//! | `id` | an identifier, the program's object |
//! | `event` | events for the program |
//! | `path` | paths between cards, and the addresses of peers and of multicast groups |
//! | `host` | from addresses to cards, of this process and of others |
//! | `manager` | all files, identifiers and connections of the process |
//! | `bind`, `connect`, `answer` | the programs' commands: addresses and routes, connections and groups, attributes |
//! | `agent` | the thread that receives messages and runs the timers |
//! | `command` | the commands that programs write |

mod address;
mod agent;
mod answer;
mod bind;
pub(crate) mod command;
mod connect;
mod connection;
mod event;
mod host;
mod id;
pub(crate) mod manager;
mod message;
mod path;
