//! The tests of the card through libibverbs' entry points, as one program.
//!
//! A test that needs the process for itself runs in another one (`gdsync_test_support::process`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod tcp_hosts;
mod verbs_allocators;
mod verbs_bed;
mod verbs_channels;
mod verbs_dc;
mod verbs_devices;
mod verbs_errors;
mod verbs_ethernet;
mod verbs_explore;
mod verbs_faults;
mod verbs_gids;
mod verbs_lifecycle;
mod verbs_peer_memory;
mod verbs_queries;
mod verbs_resources;
mod verbs_scatter;
mod verbs_sizes;
mod verbs_srq;
mod verbs_states;
mod verbs_traffic;
mod verbs_transports;
