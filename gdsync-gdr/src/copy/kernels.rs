//! Copy kernels, and their availability on this processor.

use crate::info::Caching;
use std::fmt;
use std::str::FromStr;

/// Declares the kernels of a direction: their names, and whether this processor has them, the fastest for
/// write-combining memory first.
macro_rules! kernels {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $kernel:ident = $name:literal if $has:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $type { $($(#[$doc])* $kernel,)* }

        impl $type {
            /// All kernels, of every processor, the fastest for write-combining memory first.
            pub const ALL: [$type; 6] = [$($type::$kernel),*];

            /// Returns the kernels of this processor.
            pub fn available() -> impl Iterator<Item = $type> {
                Self::ALL.into_iter().filter(|kernel| kernel.is_available())
            }

            /// Returns true if this processor has the kernel.
            pub(crate) fn is_available(self) -> bool {
                match self { $($type::$kernel => $has),* }
            }

            /// Returns this processor's best kernel for memory that is mapped with this caching.
            pub(crate) fn best(caching: Caching) -> $type {
                match caching {
                    Caching::WriteCombining => Self::available().next().unwrap_or($type::Volatile),
                    Caching::Cached => $type::Memcpy,
                    // Wide and unaligned accesses may fault.
                    Caching::Device => $type::Volatile,
                }
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

kernels! {
    /// Kernels that store bytes into a mapping. [`Mapping::copy_to`](crate::Mapping::copy_to) uses this processor's
    /// best one.
    StoreKernel {
        /// Non-temporal stores of 64 bytes (x86, AVX-512).
        Avx512 = "avx512" if has("avx512f"),
        /// Non-temporal stores of 32 bytes (x86, AVX2).
        Avx2 = "avx2" if has("avx2"),
        /// Non-temporal stores of 16 bytes (every x86-64).
        Sse2 = "sse2" if has("sse2"),
        /// Pairs of 16-byte stores (every aarch64).
        Neon = "neon" if has("neon"),
        /// Ordinary stores of at most 8 bytes, aligned.
        Volatile = "volatile" if true,
        /// `memcpy` of the C library, for comparison: it may store bytes twice, and in any order.
        Memcpy = "memcpy" if true,
    }
}

kernels! {
    /// Kernels that load bytes from a mapping. [`Mapping::copy_from`](crate::Mapping::copy_from) uses this
    /// processor's best one.
    LoadKernel {
        /// Streaming loads of 64 bytes (x86, AVX-512).
        Avx512 = "avx512" if has("avx512f") && has("sse4.1"),
        /// Streaming loads of 32 bytes (x86, AVX2).
        Avx2 = "avx2" if has("avx2") && has("sse4.1"),
        /// Streaming loads of 16 bytes: MOVNTDQA (x86, SSE4.1).
        Sse41 = "sse4.1" if has("sse4.1"),
        /// Pairs of 16-byte loads (every aarch64).
        Neon = "neon" if has("neon"),
        /// Ordinary loads of at most 8 bytes, aligned.
        Volatile = "volatile" if true,
        /// `memcpy` of the C library, for comparison: it may load bytes twice.
        Memcpy = "memcpy" if true,
    }
}

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
