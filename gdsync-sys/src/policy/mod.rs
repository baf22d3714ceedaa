//! The policy of this crate, which otherwise only declares interfaces: how threads wait and wake each other, and how
//! processes of one host connect.

pub mod local;
pub mod pause;
pub mod wake;
