//! Time for which rates of policies have held endpoints, in words.

use rdmesh_fabric::api::HeldSeconds;

/// The level at which an endpoint was held most within the last `seconds`, and for which part of them; none if it was not.
pub(crate) fn share(before: HeldSeconds, now: HeldSeconds, seconds: f64) -> Option<(&'static str, f64)> {
    let levels = [
        ("host", now.host - before.host),
        ("tenant", now.tenant - before.tenant),
        ("endpoint", now.endpoint - before.endpoint),
        ("qp", now.qp - before.qp),
    ];
    let (level, held) = levels.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    // A wait that has begun counts as a whole.
    let share = (held / seconds).min(1.0);
    (share >= LEAST).then_some((level, share))
}

/// Part that is worth a word.
const LEAST: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_that_holds_most_is_named() {
        let before = HeldSeconds { tenant: 5.0, ..HeldSeconds::default() };
        let now = HeldSeconds { tenant: 5.5, endpoint: 1.8, ..before };
        assert_eq!(share(before, now, 2.0), Some(("endpoint", 0.9)));
        assert_eq!(share(before, now, 1.0), Some(("endpoint", 1.0)));
        assert_eq!(share(now, now, 2.0), None);
    }
}
