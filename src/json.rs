//! The output of a command with `--json`: one object, of the same shape for all commands.
//!
//! | key | value |
//! |---|---|
//! | `schema` | the version of this shape |
//! | `tool`, `version` | `gdsync`, and which |
//! | `host`, `time` | where, and when (RFC 3339, UTC) the object was printed |
//! | `command` | the command line, as a list |
//! | `rows` | results, a list of objects; numbers have their unit in the key, and counts have none |
//! | `error` | why there are none, or no more: an object with `message` |

use crate::failure::Failure;
use crate::progress;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the shape. New keys do not change it.
const SCHEMA: u32 = 1;

static PRINTED: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Serialize)]
struct Object {
    schema: u32,
    tool: &'static str,
    version: &'static str,
    host: String,
    time: String,
    command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
}

pub fn reason(message: impl ToString) -> Value {
    json!({ "message": message.to_string() })
}

/// Returns whether a command line asks for JSON. Words after `--` belong to another command, as do those of the verbs
/// that run one, but for a search.
pub fn is_wanted(words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.take_while(|word| word != "--").collect();
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    let is_anothers = match words.get(1).and_then(|verb| verb.to_str()) {
        Some("run" | "trace") => true,
        Some("soft") => !has("--explore"),
        _ => false,
    };
    has("--json") && !is_anothers
}

/// Prints results: each element of a list is a row; any other value is one row.
pub fn print(results: &impl Serialize) -> Result<(), Failure> {
    print_object(Some(rows(serde_json::to_value(results)?)), None)
}

/// Like [`print()`], for a command that has failed after these results.
pub fn print_failed(results: &impl Serialize, error: &Failure) -> Result<(), Failure> {
    print_object(Some(rows(serde_json::to_value(results)?)), Some(reason(error)))
}

/// Prints an error object, unless results have been printed.
pub fn print_error(message: impl ToString) -> Result<(), Failure> {
    if PRINTED.load(Ordering::Relaxed) {
        return Ok(());
    }
    print_object(None, Some(reason(message)))
}

fn print_object(rows: Option<Vec<Value>>, error: Option<Value>) -> Result<(), Failure> {
    progress::clear();
    let object = Object {
        schema: SCHEMA,
        tool: "gdsync",
        version: env!("CARGO_PKG_VERSION"),
        host: host(),
        time: time(SystemTime::now()),
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        rows,
        error,
    };
    PRINTED.store(true, Ordering::Relaxed);
    Ok(writeln!(io::stdout().lock(), "{}", serde_json::to_string(&object)?)?)
}

/// Returns the rows of results. A value that has rows itself becomes as many, each with its other keys.
fn rows(results: Value) -> Vec<Value> {
    match results {
        Value::Array(results) => results.into_iter().flat_map(rows).collect(),
        Value::Object(mut all) => match all.remove("rows") {
            Some(Value::Array(each)) if !each.is_empty() => {
                each.into_iter().flat_map(|row| rows(with(&all, row))).collect()
            }
            _ => vec![Value::Object(all)],
        },
        other => vec![other],
    }
}

/// Returns a row preceded by the keys common to all.
fn with(all: &Map<String, Value>, row: Value) -> Value {
    let mut whole = all.clone();
    if let Value::Object(row) = row {
        whole.extend(row);
    }
    Value::Object(whole)
}

/// Returns this host's name; empty if the system does not tell.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// Formats a time as RFC 3339, in UTC, to the second.
pub fn time(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as libc::time_t);
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: valid places. A year out of range leaves `parts` unchanged.
    unsafe { libc::gmtime_r(&seconds, &mut parts) };
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = parts;
    let (year, month) = (1900 + tm_year, 1 + tm_mon);
    format!("{year:04}-{month:02}-{tm_mday:02}T{tm_hour:02}:{tm_min:02}:{tm_sec:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_of_rfc_3339() {
        let at = |seconds| time(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(time(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn every_result_is_rows() {
        let one = json!({ "a_us": 1 });
        assert_eq!(rows(one.clone()), std::slice::from_ref(&one));
        assert_eq!(rows(json!([one, one])), [one.clone(), one]);
        assert_eq!(
            rows(json!([{ "gpu": "g", "rows": [{ "a_us": 1 }, { "a_us": 2 }] }, { "b_us": 3 }])),
            [json!({ "gpu": "g", "a_us": 1 }), json!({ "gpu": "g", "a_us": 2 }), json!({ "b_us": 3 })]
        );
        let nested = json!({ "on": "g", "rows": [{ "by": "x", "rows": [{ "a_us": 1 }] }] });
        assert_eq!(rows(nested), [json!({ "on": "g", "by": "x", "a_us": 1 })]);
        assert_eq!(rows(json!({ "note": "no card", "rows": [] })), [json!({ "note": "no card" })]);
        assert!(rows(json!([])).is_empty());
    }

    #[test]
    fn what_another_command_is_asked_for_does_not_count() {
        let wanted = |words: &str| is_wanted(words.split(' ').map(OsString::from));
        assert!(wanted("gdsync pingpong --json") && wanted("gdsync doctor --json --fix"));
        assert!(wanted("gdsync soft --explore --json x") && !wanted("gdsync soft x --json"));
        assert!(!wanted("gdsync soft -- gdsync pingpong --json") && !wanted("gdsync pingpong --jso"));
    }

    #[test]
    fn a_host_has_a_name() {
        assert!(!host().is_empty() && !host().contains('\0'));
    }
}
