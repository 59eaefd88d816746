//! The scopes of a token: what it allows.

use std::fmt;
use std::str::FromStr;

/// A kind of call that a token may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenScope {
    /// Sending rows: an agent.
    Ingest,
    /// Reading: SQL, stacks, what is live.
    Query,
    /// Acting on the training processes: running code in them, telling them what to record, stopping them for a moment.
    Eval,
}

impl TokenScope {
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
pub struct TokenScopes(u8);

impl TokenScopes {
    /// The scopes of clients on the unix socket.
    pub const ALL: Self = Self(0b111);

    /// Whether the set has `scope`.
    pub const fn has(self, scope: TokenScope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }
}

impl fmt::Display for TokenScopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            TokenScope::ALL.into_iter().filter(|scope| self.has(*scope)).map(TokenScope::name).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for TokenScopes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut scopes = Self::default();
        for word in text.split(',').map(str::trim) {
            let scope = TokenScope::ALL.into_iter().find(|scope| scope.name() == word);
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
        let both: Result<TokenScopes, _> = "eval, ingest".parse();
        assert_eq!(both.as_ref().map(ToString::to_string), Ok("ingest,eval".to_owned()));
        assert!(both.is_ok_and(|both| both.has(TokenScope::Ingest)
            && both.has(TokenScope::Eval)
            && !both.has(TokenScope::Query)));
        assert_eq!("query".parse::<TokenScopes>().map(|one| one.has(TokenScope::Eval)), Ok(false));
        assert!(["", "all", "query,", "Query", "query;eval"].iter().all(|text| text.parse::<TokenScopes>().is_err()));
        assert!(
            TokenScope::ALL.into_iter().all(|scope| TokenScopes::ALL.has(scope) && !TokenScopes::default().has(scope))
        );
    }
}
