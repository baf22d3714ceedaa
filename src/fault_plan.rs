//! Values of `--faults`.

use softhca::faults::{Action, FaultPlan};

/// The word for no faults.
pub const NONE: &str = "none";

/// A plan that a soak can survive, or none.
pub fn parse(text: &str) -> Result<String, String> {
    if text == NONE {
        return Ok(text.to_owned());
    }
    let plan: FaultPlan = text.parse().map_err(|error| format!("{error}"))?;
    if plan.rules.iter().any(|rule| rule.action == Action::Die) {
        return Err("a card that dies for good ends the soak: leave `die` out".to_owned());
    }
    Ok(plan.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_checked_before_anything_starts() {
        assert_eq!(parse("none").as_deref(), Ok("none"));
        assert_eq!(parse("drop nth=3").as_deref(), Ok("seed=0; drop nth=3"));
        assert!(parse("drop nth=0").unwrap_err().contains("nth=0"));
        assert!(parse("drop; die nth=9").unwrap_err().contains("leave `die` out"));
    }
}
