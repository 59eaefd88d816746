//! The scopes of a token: what it allows.

use std::fmt;
use std::str::FromStr;

/// A kind of call that a token may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Sending rows: an agent.
    Ingest,
    /// Reading: SQL, stacks, what is live.
    Query,
    /// Acting on the training processes: running code in them, telling them what to record, stopping them for a moment.
    Eval,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Ingest, Self::Query, Self::Eval];

    /// The name of the scope in `probe token`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Query => "query",
            Self::Eval => "eval",
        }
    }
}

/// A set of scopes. The empty set allows nothing, and no scope implies another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// The scopes of clients on the unix socket.
    pub const ALL: Self = Self(0b111);

    /// Whether the set has `scope`.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Scope::ALL.into_iter().filter(|scope| self.has(*scope)).map(Scope::name).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Scopes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut scopes = Self::default();
        for word in text.split(',').map(str::trim) {
            let scope = Scope::ALL.into_iter().find(|scope| scope.name() == word);
            scopes.0 |= 1 << scope.ok_or_else(|| format!("'{word}' is none of ingest, query and eval"))? as u8;
        }
        Ok(scopes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_named_one_by_one_and_imply_nothing() {
        let both: Result<Scopes, _> = "eval, ingest".parse();
        assert_eq!(both.as_ref().map(ToString::to_string), Ok("ingest,eval".to_owned()));
        assert!(both.is_ok_and(|both| both.has(Scope::Ingest) && both.has(Scope::Eval) && !both.has(Scope::Query)));
        assert_eq!("query".parse::<Scopes>().map(|one| one.has(Scope::Eval)), Ok(false));
        assert!(["", "all", "query,", "Query", "query;eval"].iter().all(|text| text.parse::<Scopes>().is_err()));
        assert!(Scope::ALL.into_iter().all(|scope| Scopes::ALL.has(scope) && !Scopes::default().has(scope)));
    }
}
