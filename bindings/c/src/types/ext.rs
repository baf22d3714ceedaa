//! The structs of `include/gdsync/ext.h`, and the opaque ones of `include/gdsync/team.h`.

use libc::size_t;

/// Structs that are opaque to programs.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)+) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            /// Gives the struct a size, and so a unique address.
            own_address: usize,
        }

        impl $name {
            pub(crate) fn at(own_address: usize) -> Self {
                $name { own_address }
            }
        }
    )+ };
}

opaque! {
    /// `gdsync_request_t`.
    gdsync_request;
    /// `gdsync_bootstrap_t`.
    gdsync_bootstrap;
    /// `gdsync_team_t`.
    gdsync_team;
    /// `gdsync_segment_t`.
    gdsync_segment;
    /// `gdsync_cache_t`.
    gdsync_cache;
}

/// `gdsync_status_t`.
#[repr(C)]
#[derive(Debug)]
pub struct gdsync_status {
    /// The status word.
    pub word: *const u32,
}

/// `gdsync_trigger_t`.
#[repr(C)]
#[derive(Debug)]
pub struct gdsync_trigger {
    /// The word for which the card waits.
    pub word: *mut u64,
}

/// `gdsync_ready_word_t`.
#[repr(C)]
#[derive(Debug)]
pub struct gdsync_ready_word {
    /// The word that the other side counts up.
    pub word: *mut u64,
    /// The key of the word.
    pub rkey: u32,
}

/// `gdsync_region_t`.
#[repr(C)]
#[derive(Debug)]
pub struct gdsync_region {
    /// The first byte.
    pub addr: u64,
    /// Bytes.
    pub length: size_t,
    /// The key for work requests of this side.
    pub lkey: u32,
    /// The key for the remote side.
    pub rkey: u32,
}

/// `gdsync_cache_statistics_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gdsync_cache_statistics_t {
    /// Calls that an existing registration has served.
    pub hits: u64,
    /// Calls that had to register.
    pub misses: u64,
    /// Registrations that were evicted for others.
    pub evictions: u64,
    /// Registrations whose memory was invalidated.
    pub invalidations: u64,
    /// Registrations that were returned without being cached.
    pub not_kept: u64,
    /// Registrations held now.
    pub entries: u64,
    /// Bytes of the registrations held now.
    pub bytes: u64,
}
