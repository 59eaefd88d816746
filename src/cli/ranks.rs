//! `--rank 0,3|all`: the ranks of a command.

use std::str::FromStr;

/// Ranks; None for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankSelection(pub(super) Option<Vec<i64>>);

impl FromStr for RankSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(None));
        }
        let number =
            |text: &str| text.trim().parse::<u32>().ok().filter(|rank| *rank <= i32::MAX as u32).map(i64::from);
        let ranks: Option<Vec<i64>> = text.split(',').map(number).collect();
        ranks.map(|ranks| Self(Some(ranks))).ok_or_else(|| "write it like 0, 0,3 or all".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read_as_people_write_them() {
        assert_eq!("0,3".parse(), Ok(RankSelection(Some(vec![0, 3]))));
        assert_eq!("2".parse(), Ok(RankSelection(Some(vec![2]))));
        assert_eq!("all".parse(), Ok(RankSelection(None)));
        for text in ["", "-1", "0,", "a", "0-3", "99999999999"] {
            assert!(text.parse::<RankSelection>().is_err(), "{text}");
        }
    }
}
