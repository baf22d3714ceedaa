//! Structs of options.

/// Defines a struct of options with a default for each field, and a setter for each, except those of `no setters`.
macro_rules! options {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)?
        $(#[$default_doc:meta])*
        default {
            $($(#[$doc:meta])* $field:ident: $type:ty = $value:expr,)*
        }
        $(no setters { $($(#[$other_doc:meta])* $other:ident: $other_type:ty = $other_value:expr,)* })?
    ) => {
        $(#[$meta])*
        pub struct $name $(<$life>)? {
            $($(#[$doc])* pub $field: $type,)*
            $($($(#[$other_doc])* pub $other: $other_type,)*)?
        }

        impl $(<$life>)? Default for $name $(<$life>)? {
            $(#[$default_doc])*
            fn default() -> Self {
                $name { $($field: $value,)* $($($other: $other_value,)*)? }
            }
        }

        impl $(<$life>)? $name $(<$life>)? {
            $(
                #[doc = concat!("Sets [`", stringify!($name), "::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

pub(crate) use options;
