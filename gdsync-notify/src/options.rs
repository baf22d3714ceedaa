//! Setters of options.

/// Defines a setter for each field of an options type, of the field's name.
macro_rules! setters {
    ($options:ident: $($field:ident: $value:ty),+ $(,)?) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`Self::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                pub fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

pub(crate) use setters;
