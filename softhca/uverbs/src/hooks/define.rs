//! Helpers to define hooks.

use crate::errno::Result;

/// Returns the value, or -1 with `errno` set.
pub(super) fn returned<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        errno.set();
        T::from(-1)
    })
}

/// Defines C functions whose safety contract is that of the C library's function of the same name.
macro_rules! c_functions {
    ($($(#[$doc:meta])+ $name:ident($($argument:ident: $type:ty),+) -> $result:ty { $call:expr })+) => {
        $(
            $(#[$doc])+
            ///
            /// # Safety
            /// As the C function.
            #[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $type),+) -> $result {
                // SAFETY: the caller vouches for the arguments, as for those of the C function.
                unsafe { $call }
            }
        )+
    };
}
