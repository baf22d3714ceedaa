//! Invalid settings in the environment.

use std::process::Command;

/// Settings, and their errors.
pub const WRONG: [(&str, &str, &str); 16] = [
    (
        "SOFTHCA_CLOCK",
        "21",
        "SOFTHCA_CLOCK is `21`: it is no whole number from 1 to 20: give how many times as fast",
    ),
    (
        "SOFTHCA_OBJECTS",
        "15",
        "SOFTHCA_OBJECTS is `15`: it is no whole number from 16 to 1048576: give how many objects",
    ),
    (
        "SOFTHCA_FAULTS",
        "drp nth=3",
        "SOFTHCA_FAULTS is `drp nth=3`: fault plan, line 1, column 1, `drp`: a rule begins with drop",
    ),
    (
        "SOFTHCA_LISTEN",
        "localhost",
        "SOFTHCA_LISTEN is `localhost`: `localhost` is not ADDRESS or ADDRESS:PORT",
    ),
    (
        "SOFTHCA_PKEYS",
        "0xffff,0x8000",
        "SOFTHCA_PKEYS is `0xffff,0x8000`: `0x8000` is no partition key: give 0x0001 to 0x7fff for a limited member",
    ),
    (
        "SOFTHCA_STOPPED",
        "expires",
        "SOFTHCA_STOPPED is `expires`: `expires` is none of its words, which are expire, wait",
    ),
    (
        "SOFTHCA_WAITS",
        "on",
        "SOFTHCA_WAITS is `on`: `on` is none of its words, which are off, no-cd and errors-hold",
    ),
    (
        "SOFTHCA_LIBERTIES",
        "1 order",
        "SOFTHCA_LIBERTIES is `1 order`: `order` is none of its words, which are fetch, pieces",
    ),
    (
        "SOFTHCA_SCHEDULE",
        "/nowhere/schedule",
        "SOFTHCA_SCHEDULE is `/nowhere/schedule`: No such file or directory",
    ),
    // A file of every system, and no schedule.
    (
        "SOFTHCA_SCHEDULE",
        "/proc/version",
        "SOFTHCA_SCHEDULE is `/proc/version`: line 1: `Linux` is none of its words, which are fetch, pieces",
    ),
    ("SOFTHCA_DEVICES", "99", "SOFTHCA_DEVICES is `99`: it is neither a number from 1 to 8 nor a list"),
    (
        "SOFTHCA_FAULT",
        "drop nth=3",
        "SOFTHCA_FAULT is set, but there is no such setting: the settings are SOFTHCA_CHECKS, SOFTHCA_CLOCK",
    ),
    ("SOFTHCA_DEVICE", "", "SOFTHCA_DEVICE is set, but there is no such setting"),
    (
        "SOFTHCA_LISTEN",
        "192.0.2.1",
        "a card at 192.0.2.1:4791 is reached from other hosts, which needs a key",
    ),
    ("SOFTHCA_KEY", "too short", "SOFTHCA_KEY: the key has 9 bytes, and must have 16 to 4096"),
    ("SOFTHCA_KEY_FILE", "/nowhere/key", "SOFTHCA_KEY_FILE: the key file /nowhere/key cannot be read"),
];

/// Sets one of these settings. Runs of the tests with liberties set those for all commands: a schedule beside them would
/// have another error.
pub fn set<'a>(command: &'a mut Command, name: &str, value: &str) -> &'a mut Command {
    command.env_remove("SOFTHCA_LIBERTIES").env(name, value)
}
