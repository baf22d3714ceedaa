//! Wire formats of mlx5 cards: send and receive queues, completion queues, doorbells, commands.
//!
//! Pure data, no FFI. Fields are private and big endian; getters and constructors use host order. Sources:
//! `providers/mlx5/mlx5dv.h` of rdma-core, and the Programmer's Reference Manual (PRM) for what the header omits.

pub mod command;
pub mod cqe;
pub mod doorbell;
pub mod field;
pub mod recv;
pub mod scatter;
pub mod umr;
pub mod wait;
pub mod wqe;

/// A code that this library does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {code:#04x} is not known")]
pub struct UnknownCode {
    /// The kind of code.
    pub what: &'static str,
    /// Its value.
    pub code: u8,
}

/// Declares a field-less enum of wire codes, with a `TryFrom<u8>` whose error names the unknown code.
macro_rules! wire_codes {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// All known codes.
            pub const ALL: &[$name] = &[$($name::$variant,)*];
        }

        impl TryFrom<u8> for $name {
            type Error = $crate::prm::UnknownCode;

            fn try_from(code: u8) -> Result<Self, Self::Error> {
                match code {
                    $($value => Ok($name::$variant),)*
                    _ => Err($crate::prm::UnknownCode { what: $what, code }),
                }
            }
        }
    };
}
pub(crate) use wire_codes;

/// Defines getters of a segment, each by one expression.
macro_rules! getters {
    ($segment:ident, $self:ident: $($(#[$doc:meta])* $name:ident -> $type:ty $value:block)+) => {
        impl $segment {
            $($(#[$doc])* pub fn $name(&$self) -> $type $value)+
        }
    };
}
pub(crate) use getters;
