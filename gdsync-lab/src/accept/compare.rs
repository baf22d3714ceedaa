//! The comparison of a card with the software card: each difference, and the rule that the software card follows.

use super::record::{Fact, Record, Value};
use serde::{Deserialize, Serialize};

/// A difference between a card and the software card in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Difference {
    /// The fact, or `outcome`, or `sequence` if the facts themselves are others.
    pub(super) fact: String,
    pub(super) card: String,
    pub(super) model: String,
    /// Why cards may differ here. None: the model, the library or the list of these reasons is wrong.
    pub(super) explained: Option<String>,
    /// The rule that the software card follows, and its source.
    pub(super) rule: String,
}

const WINDOWS: &str =
    "the driver has memory windows if the firmware has the capability imaicl (mlx5_ib_query_device)";

/// Facts that differ from card to card: beginnings and ends of `step/fact`, with a `*` between them, and why.
/// The outcome of a step has the card's in its name.
const EXPLAINED: [(&str, &str); 23] = [
    ("open.device/firmware", "each card has its own firmware"),
    ("open.device/ports", "cards have one port or two"),
    ("open.device/max_", "limits differ between generations and firmware settings"),
    ("open.port/mtu", "the subnet or the administrator sets it"),
    ("open.gids/has.RoceV1", "administrators leave RoCE v1 out"),
    ("open.capabilities/general.log_max_", "limits differ between generations and firmware settings"),
    ("open.capabilities/general.max_", "limits differ between generations and firmware settings"),
    ("open.capabilities/general.local_ca_ack_delay", "each generation has its own delay"),
    ("open.capabilities/general.dp_ordering_", "newer generations and firmware have it"),
    ("open.capabilities/general.wait_on_", "ConnectX-7 and newer have it"),
    ("open.capabilities/general.sq_ts_format", "newer generations have real-time clocks"),
    ("open.capabilities/atomic.", "sizes of atomics differ between generations"),
    (
        "open.waits/",
        "ConnectX-7 and newer wait for words; administrators may turn cross-channel requests off",
    ),
    ("queues.sizes/*.max_inline", "libmlx5 rounds the inline bytes up to the blocks of the card's entries"),
    ("queues.completion/", "libmlx5 and the device round the number of entries up"),
    ("window.*/capabilities", WINDOWS),
    ("window.*/max_windows", "limits differ between generations and firmware settings"),
    ("window.*/allocated", WINDOWS),
    ("window.*/outcome.skipped", WINDOWS),
    (
        "window.refused/*.vendor",
        "no public source has the vendor syndrome of a refused bind: the software card writes 0",
    ),
    (
        "card.*/outcome.skipped",
        "ConnectX-7 and newer wait for words and times; administrators may turn cross-channel requests off",
    ),
    ("gpu.register/path", "the platform and the driver decide how GPU memory is registered"),
    ("gpu.mapped/way", "the platform and the driver decide how GPU memory is mapped"),
];

/// The software card's rules for facts: ends of `step/fact`, or parts of it, with the source.
const RULES: [(&str, &str); 15] = [
    (".vendor", "vendor syndromes as public logs of ConnectX cards have them (docs/interop.md)"),
    (
        ".status",
        "syndromes of the InfiniBand specification, 9.9, as libmlx5's table names them (MLX5_CQE_SYNDROME_*)",
    ),
    (".kind", "the opcode of the entry (MLX5_CQE_*) and of the request in it"),
    (".bytes", "byte_count of the entry: bytes received, read or fetched"),
    (".immediate", "immediate data of the InfiniBand specification, 9.2 (ImmDt)"),
    (".entry", "struct mlx5_cqe64 and struct mlx5_err_cqe of rdma-core's mlx5dv.h"),
    (".context", "qpc of Linux' mlx5_ifc.h, as QUERY_QP answers"),
    (
        "window.",
        "windows of the InfiniBand specification, 10.6.7.2, with the requests of libmlx5 (mlx5_bind_mw) and the capabilities of \
         the driver (mlx5_ib_query_device)",
    ),
    (
        "card.wait-time/",
        "WAIT as DPDK posts it for a time (MLX5_OPC_MOD_WAIT_TIME), by the clock of the entries' times (docs/card-trigger.md)",
    ),
    ("card.", "WAIT and SEND_EN as DPDK and UCC post them (docs/card-trigger.md)"),
    ("error.", "errors of requesters and responders of the InfiniBand specification, 9.9 (tables 58 to 63)"),
    ("open.capabilities/", "cmd_hca_cap of Linux' mlx5_ifc.h, with a ConnectX-7's values"),
    ("event", "events of the InfiniBand specification, 11.6.3; EQE types of mlx5"),
    ("queues.", "sizes as libmlx5 computes them, contexts as QUERY_QP answers"),
    ("", "docs/architecture.md and docs/interop.md name the sources of the software card"),
];

/// The fact of a difference between outcomes.
const OUTCOME: &str = "outcome";

/// Returns the differences of a step's two records.
pub(super) fn compare(step: &str, card: &Record, model: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    if card.outcome.word() != model.outcome.word() {
        let told = |record: &Record| {
            let reason = record.outcome.reason();
            let word = record.outcome.word();
            if reason.is_empty() { word.to_owned() } else { format!("{word}: {reason}") }
        };
        let name = format!("{OUTCOME}.{}", card.outcome.word());
        found.push(Difference {
            fact: OUTCOME.to_owned(),
            ..difference(step, &name, told(card), told(model))
        });
    }
    for at in 0..card.facts.len().max(model.facts.len()) {
        match (card.facts.get(at), model.facts.get(at)) {
            (Some(one), Some(other)) if one.name == other.name => found.extend(of_fact(step, one, other)),
            // A step that has ended early has seen less.
            (None, _) | (_, None) if !found.is_empty() && found[0].fact == OUTCOME => break,
            (one, other) => {
                let name = |fact: Option<&Fact>| fact.map_or("nothing".to_owned(), |fact| fact.name.clone());
                // Later facts have no counterpart.
                found.push(difference(step, "sequence", name(one), name(other)));
                break;
            }
        }
    }
    found
}

fn difference(step: &str, fact: &str, card: String, model: String) -> Difference {
    let name = format!("{step}/{fact}");
    let explained =
        EXPLAINED.iter().find(|(pattern, _)| matches(pattern, &name)).map(|(_, why)| (*why).to_owned());
    let rule = RULES.iter().find(|(part, _)| name.contains(part)).map_or("", |(_, rule)| rule);
    Difference { fact: fact.to_owned(), card, model, explained, rule: rule.to_owned() }
}

/// Returns whether a name begins, and with a `*` also ends, as the pattern says.
fn matches(pattern: &str, name: &str) -> bool {
    let (begin, end) = pattern.split_once('*').unwrap_or((pattern, ""));
    name.starts_with(begin) && name.ends_with(end)
}

fn of_fact(step: &str, card: &Fact, model: &Fact) -> Option<Difference> {
    if card.value == model.value {
        return None;
    }
    let (Value::Bytes { bytes: one, .. }, Value::Bytes { bytes: other, .. }) = (&card.value, &model.value)
    else {
        return Some(difference(step, &card.name, card.value.to_string(), model.value.to_string()));
    };
    let (one, other) = (units(one), units(other));
    let differs = |at: &usize| {
        one.get(*at) != other.get(*at) && [&one, &other].iter().all(|of| of.get(*at) != Some(&".."))
    };
    let places: Vec<usize> = (0..one.len().max(other.len())).filter(differs).collect();
    if places.is_empty() {
        return None;
    }
    let told = |of: &[&str]| {
        let each = places.iter().map(|at| format!("[{at}] {}", of.get(*at).unwrap_or(&"none")));
        each.collect::<Vec<_>>().join(", ")
    };
    Some(difference(step, &card.name, told(&one), told(&other)))
}

/// Splits a text of bytes into one piece for each.
fn units(text: &str) -> Vec<&str> {
    (0..text.len() / 2).filter_map(|at| text.get(2 * at..2 * at + 2)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Layout, Outcome};
    use super::*;

    fn record(facts: &[(&str, Value)]) -> Record {
        let fact = |(name, value): &(&str, Value)| Fact { name: (*name).to_owned(), value: value.clone() };
        Record { outcome: Outcome::Passed, facts: facts.iter().map(fact).collect() }
    }

    fn bytes(text: &str) -> Value {
        Value::Bytes { layout: Layout::Entry, bytes: text.to_owned() }
    }

    #[test]
    fn equal_records_differ_in_nothing() {
        let one = record(&[("a.status", "success".into()), ("a.entry", bytes("0102..04"))]);
        assert_eq!(compare("rc.send", &one, &one), []);
    }

    #[test]
    fn each_difference_has_its_rule() {
        let card = record(&[("write.status", "syndrome 0x13".into()), ("write.vendor", "0x88".into())]);
        let model = record(&[("write.status", "syndrome 0x12".into()), ("write.vendor", "0x8a".into())]);
        let found = compare("error.remote-key", &card, &model);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].card.as_str(), found[0].model.as_str()), ("syndrome 0x13", "syndrome 0x12"));
        assert!(found[0].rule.contains("MLX5_CQE_SYNDROME") && found[1].rule.contains("vendor syndromes"));
        assert!(found.iter().all(|one| one.explained.is_none()));
    }

    #[test]
    fn bytes_are_named_by_their_place_and_masked_ones_left_out() {
        let (card, model) =
            (record(&[("a.entry", bytes("01..0304"))]), record(&[("a.entry", bytes("01020305"))]));
        let found = compare("rc.send", &card, &model);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].card.as_str(), found[0].model.as_str()), ("[3] 04", "[3] 05"));
        let masked = record(&[("a.entry", bytes("01..03.."))]);
        assert_eq!(compare("rc.send", &masked, &model), []);
        let short = record(&[("a.entry", bytes("0102"))]);
        assert_eq!(compare("rc.send", &short, &model)[0].card, "[2] none, [3] none");
    }

    #[test]
    fn another_order_of_entries_is_named_once() {
        let (send, receive) = (("send.wr_id", Value::Number(1)), ("receive.wr_id", Value::Number(2)));
        let (card, model) = (record(&[receive.clone(), send.clone()]), record(&[send, receive]));
        let found = compare("rc.order", &card, &model);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].fact.as_str(), found[0].card.as_str()), ("sequence", "receive.wr_id"));
    }

    #[test]
    fn a_step_that_a_card_skips_for_want_of_a_capability_is_explained() {
        let (why, remedy) = ("the card has none".to_owned(), "another card".to_owned());
        let skipped = |facts: &[(&str, Value)]| Record {
            outcome: Outcome::Skipped { why: why.clone(), remedy: remedy.clone() },
            ..record(facts)
        };
        let card = skipped(&[("capabilities", "".into()), ("allocated", "no, errno 95".into())]);
        let model =
            record(&[("capabilities", "type 1".into()), ("allocated", "yes".into()), ("more", true.into())]);
        let found = compare("window.type-1", &card, &model);
        assert_eq!(
            found.iter().map(|one| &*one.fact).collect::<Vec<_>>(),
            ["outcome", "capabilities", "allocated"]
        );
        assert!(
            found.iter().all(|one| one.explained.is_some() && one.rule.contains("10.6.7.2")),
            "{found:?}"
        );
        assert_eq!(found[0].card, "skipped: the card has none: another card");
        assert!(compare("card.wait-time", &skipped(&[]), &model)[0].explained.is_some());
        // No capability of cards lets them skip a send; and the software card has no excuse.
        assert!(compare("rc.send", &skipped(&[]), &model)[0].explained.is_none());
        assert!(compare("window.type-1", &model, &card)[0].explained.is_none());
    }

    #[test]
    fn what_cards_may_differ_in_is_explained() {
        let (card, model) =
            (record(&[("firmware", "28.39".into())]), record(&[("firmware", "28.40".into())]));
        assert!(compare("open.device", &card, &model)[0].explained.is_some());
        let sizes = |fact| [60u64, 44].map(|bytes| record(&[(fact, bytes.into())]));
        let [card, model] = sizes("64x4x44.max_inline");
        assert!(compare("queues.sizes", &card, &model)[0].explained.is_some());
        let [card, model] = sizes("64x4x44.refused");
        assert!(compare("queues.sizes", &card, &model)[0].explained.is_none());
        let hung =
            Record { outcome: Outcome::Hung { limit_s: 20, after: "x".to_owned() }, facts: Vec::new() };
        let found = compare("window.type-1", &hung, &record(&[]));
        assert_eq!((found[0].fact.as_str(), found[0].explained.as_ref()), ("outcome", None));
        let found = compare("rc.send", &hung, &record(&[("more", true.into())]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].fact.as_str(), found[0].explained.as_ref()), ("outcome", None));
        assert!(found[0].card.contains("no end within 20 s; the last fact was x"), "{found:?}");
    }
}
