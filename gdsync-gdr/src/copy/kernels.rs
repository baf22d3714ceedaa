//! The copy kernels by name, and which of them this processor has.

use crate::info::Caching;
use std::fmt;
use std::str::FromStr;

/// How bytes are stored into a mapping. [`Mapping::copy_to`](crate::Mapping::copy_to) takes the best one of this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKernel {
    /// Non-temporal stores of 64 bytes (x86, AVX-512).
    Avx512,
    /// Non-temporal stores of 32 bytes (x86, AVX2).
    Avx2,
    /// Non-temporal stores of 16 bytes (every x86-64).
    Sse2,
    /// Pairs of 16-byte stores (every aarch64).
    Neon,
    /// Ordinary stores of at most 8 bytes, aligned.
    Volatile,
    /// `memcpy` of the C library, for comparison: it may store bytes twice, and in any order.
    Memcpy,
}

/// How bytes are loaded from a mapping. [`Mapping::copy_from`](crate::Mapping::copy_from) takes the best one of this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadKernel {
    /// Streaming loads of 64 bytes (x86, AVX-512).
    Avx512,
    /// Streaming loads of 32 bytes (x86, AVX2).
    Avx2,
    /// Streaming loads of 16 bytes: MOVNTDQA (x86, SSE4.1).
    Sse41,
    /// Pairs of 16-byte loads (every aarch64).
    Neon,
    /// Ordinary loads of at most 8 bytes, aligned.
    Volatile,
    /// `memcpy` of the C library, for comparison: it may load bytes twice.
    Memcpy,
}

impl StoreKernel {
    /// True where this processor has the kernel.
    pub(crate) fn is_available(self) -> bool {
        match self {
            StoreKernel::Avx512 => has("avx512f"),
            StoreKernel::Avx2 => has("avx2"),
            StoreKernel::Sse2 => has("sse2"),
            StoreKernel::Neon => has("neon"),
            StoreKernel::Volatile | StoreKernel::Memcpy => true,
        }
    }

    /// The best kernel of this processor for memory that is mapped with this caching.
    pub(crate) fn best(caching: Caching) -> StoreKernel {
        match caching {
            Caching::WriteCombining => Self::available().next().unwrap_or(StoreKernel::Volatile),
            Caching::Cached => StoreKernel::Memcpy,
            // Wide and unaligned accesses may fault there.
            Caching::Device => StoreKernel::Volatile,
        }
    }
}

impl LoadKernel {
    /// True where this processor has the kernel.
    pub(crate) fn is_available(self) -> bool {
        match self {
            LoadKernel::Avx512 => has("avx512f") && has("sse4.1"),
            LoadKernel::Avx2 => has("avx2") && has("sse4.1"),
            LoadKernel::Sse41 => has("sse4.1"),
            LoadKernel::Neon => has("neon"),
            LoadKernel::Volatile | LoadKernel::Memcpy => true,
        }
    }

    /// The best kernel of this processor for memory that is mapped with this caching.
    pub(crate) fn best(caching: Caching) -> LoadKernel {
        match caching {
            Caching::WriteCombining => Self::available().next().unwrap_or(LoadKernel::Volatile),
            Caching::Cached => LoadKernel::Memcpy,
            Caching::Device => LoadKernel::Volatile,
        }
    }
}

/// Lists the kernels of a type, with their names, the fastest for write-combining memory first.
macro_rules! names {
    ($type:ident: $($kernel:ident = $name:literal),*) => {
        impl $type {
            /// All kernels, of every processor, the fastest for write-combining memory first.
            pub const ALL: [$type; 6] = [$($type::$kernel),*];

            /// The kernels that this processor has.
            pub fn available() -> impl Iterator<Item = $type> {
                Self::ALL.into_iter().filter(|kernel| kernel.is_available())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($type::$kernel => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok($type::$kernel),)*
                    _ => Err(format!("{name} is no copy kernel: there are {}", [$($name),*].join(", "))),
                }
            }
        }
    };
}

names!(StoreKernel: Avx512 = "avx512", Avx2 = "avx2", Sse2 = "sse2", Neon = "neon", Volatile = "volatile", Memcpy = "memcpy");
names!(LoadKernel: Avx512 = "avx512", Avx2 = "avx2", Sse41 = "sse4.1", Neon = "neon", Volatile = "volatile", Memcpy = "memcpy");

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    // Miri cannot run assembly.
    !cfg!(miri)
        && match feature {
            "sse2" => is_x86_feature_detected!("sse2"),
            "sse4.1" => is_x86_feature_detected!("sse4.1"),
            "avx2" => is_x86_feature_detected!("avx2"),
            "avx512f" => is_x86_feature_detected!("avx512f"),
            _ => false,
        }
}

#[cfg(target_arch = "aarch64")]
fn has(feature: &str) -> bool {
    !cfg!(miri) && feature == "neon" && std::arch::is_aarch64_feature_detected!("neon")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has(_feature: &str) -> bool {
    false
}
