//! Liberties: what the specifications allow a card to do, and real cards do, at random.
//!
//! A program that relies on what happens to be true passes on a card that happens to do it. On a card
//! with [`Liberties`] it fails, as it would some day on a real one; a right program notices nothing.
//! [docs/liberties.md](https://github.com/gdsync/gdsync/blob/main/docs/liberties.md) has the rule that
//! allows each liberty, and its source. [`LIBERTIES_VARIABLE`] in the environment applies them to every
//! card of the process, as [`set_liberties`] does.
//!
//! Each card draws its random numbers from the seed and its index among the cards that the process has
//! started: the same work in the same order meets the same liberties.

mod dice;
mod plan;
mod process;

pub(crate) use dice::{Dice, LONGEST_PAUSE};
pub use plan::{Liberties, LibertyKinds};
pub use process::{LIBERTIES_VARIABLE, set_liberties};
pub(crate) use process::{from_environment, of_next_card, of_one_card};
