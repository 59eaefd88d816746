//! The cost of planning a statement, counted before it is planned: here by its text, and in [`super::statement_complexity`]
//! by its tables and expressions.
//!
//! The parser, the planner and the optimizer go down a statement by recursion, and cannot be stopped in the middle. So a
//! statement is held to bounds that any thread of queries has the stack for (`threads`), and an error names the bound that it
//! exceeds. The depth of its tree follows from its text: its brackets, and the words and operators of SQL that can stand in a
//! chain. Names, constants and commas make a tree wide but not deep.

use std::collections::HashSet;
use std::sync::LazyLock;

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use probe_common::error::{Error, Result};
use probe_proto::table::Table;

use super::{query_task, views};

/// Bytes of text.
pub(super) const MAX_TEXT: usize = 256 << 10;
/// Operators, and words of SQL that link expressions or queries. A tree is never deeper than that.
pub(super) const MAX_OPERATORS: usize = 500;
/// Stack that each of them takes in the development build, about: what is planned, run and dropped goes down by recursion.
const STACK_OF_OPERATOR: usize = 48 << 10;
/// Number of operators whose stack is too small to count.
const PLAIN_OPERATORS: usize = 50;
/// Brackets within one another.
pub(super) const MAX_NESTING: usize = 50;
/// The most EXPLAINs within one another.
const MAX_EXPLAINS: usize = 4;
/// Commas: items of lists, of which the planner makes a value each.
pub(super) const MAX_ITEMS: usize = 20_000;

/// Refuses a text that is over a bound, before it is parsed.
pub(super) fn check(sql: &str) -> Result<()> {
    if sql.len() > MAX_TEXT {
        let (size, most) = (sql.len() >> 10, MAX_TEXT >> 10);
        return Err(Error::failed(format!("the query is {size} KiB of text; the limit is {most} KiB"))
            .hint("ask in parts, or for a range in place of a list: WHERE step BETWEEN 1 AND 1000"));
    }
    // A text that the tokenizer rejects is rejected by the parser too, which says where.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).tokenize() else { return Ok(()) };
    let written = count(&tokens);
    written.check()?;
    match written.operators.saturating_sub(PLAIN_OPERATORS) {
        0 => Ok(()),
        many => query_task::take_stack(many * STACK_OF_OPERATOR),
    }
}

/// Counts of the tokens of a text that make it costly to plan.
#[derive(Debug, Default)]
struct TokenCounts {
    operators: usize,
    nesting: usize,
    items: usize,
    explains: usize,
}

impl TokenCounts {
    fn check(&self) -> Result<()> {
        if self.operators > MAX_OPERATORS {
            let operators = self.operators;
            return Err(Error::failed(format!(
                "the query has {operators} operators (+, AND, LIKE, UNION); the limit is {MAX_OPERATORS}"
            ))
            .hint("write a list in place of a chain: step IN (1, 2, 3), VALUES (1), (2); or ask in parts"));
        }
        if self.nesting > MAX_NESTING {
            let nesting = self.nesting;
            return Err(Error::failed(format!(
                "the query is nested too deeply: {nesting} brackets in one another; the limit is {MAX_NESTING}"
            ))
            .hint("WITH name AS (SELECT …) takes a query out of the brackets"));
        }
        if self.items > MAX_ITEMS {
            let items = self.items;
            return Err(Error::failed(format!("the query's lists have {items} items; the limit is {MAX_ITEMS}"))
                .hint("ask in parts, or for a range in place of a list: WHERE step BETWEEN 1 AND 1000"));
        }
        if self.explains > MAX_EXPLAINS {
            return Err(Error::failed("EXPLAIN explains a query, and not an EXPLAIN").hint("use EXPLAIN only once"));
        }
        Ok(())
    }
}

fn count(tokens: &[Token]) -> TokenCounts {
    let tokens: Vec<&Token> = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect();
    let mut written = TokenCounts::default();
    let (mut open, mut periods) = (0_usize, 0_usize);
    for (index, token) in tokens.iter().copied().enumerate() {
        let before = index.checked_sub(1).and_then(|before| tokens.get(before)).copied();
        let after = tokens.get(index + 1).copied();
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                open += 1;
                written.nesting = written.nesting.max(open);
            }
            Token::RParen | Token::RBracket | Token::RBrace => open = open.saturating_sub(1),
            _ => {}
        }
        // catalog.schema.table.column has three; what has more are fields of fields.
        periods = match token {
            Token::Period => periods + 1,
            Token::Word(_) if before == Some(&Token::Period) => periods,
            _ => 0,
        };
        match token {
            Token::Word(word) => {
                written.operators += usize::from(is_operator(word.keyword, after) && !is_name(&word.value));
                written.explains += usize::from(matches!(word.keyword, Keyword::EXPLAIN | Keyword::DESCRIBE));
            }
            Token::Comma => written.items += 1,
            Token::Period => written.operators += usize::from(periods > 3),
            // A number's sign.
            Token::Minus | Token::Plus
                if matches!(before, Some(Token::Comma | Token::LParen)) && matches!(after, Some(Token::Number(..))) => {
            }
            Token::LParen | Token::RParen | Token::RBracket | Token::RBrace | Token::SemiColon | Token::EOF => {}
            token if is_constant(token) => {}
            _ => written.operators += 1,
        }
    }
    written
}

/// Whether a word can be a link of a chain. Every keyword can, except those of clauses and of CASE, usual aggregates, and
/// literals with the types before them.
fn is_operator(keyword: Keyword, after: Option<&Token>) -> bool {
    use Keyword as K;
    match keyword {
        K::NoKeyword | K::AS | K::NULL | K::TRUE | K::FALSE => false,
        K::SELECT
        | K::DISTINCT
        | K::FROM
        | K::WHERE
        | K::GROUP
        | K::BY
        | K::HAVING
        | K::ORDER
        | K::LIMIT
        | K::OFFSET => false,
        K::ASC | K::DESC | K::NULLS | K::FIRST | K::LAST | K::WITH | K::VALUES => false,
        K::JOIN | K::INNER | K::LEFT | K::RIGHT | K::FULL | K::OUTER | K::CROSS | K::ON | K::USING => false,
        K::CASE | K::WHEN | K::THEN | K::ELSE | K::END => false,
        K::OVER | K::PARTITION | K::ROWS | K::FILTER | K::COUNT | K::SUM | K::MIN | K::MAX | K::AVG => false,
        K::DATE | K::TIME | K::TIMESTAMP => !after.is_some_and(is_constant),
        _ => true,
    }
}

/// Whether a word is a table or column of ours: some are words of SQL too, like step and rank.
fn is_name(word: &str) -> bool {
    static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
        let of =
            |table: &'static Table| table.columns.iter().map(|column| column.name).chain([table.schema, table.name]);
        views::relations().flat_map(of).collect()
    });
    NAMES.contains(word.to_lowercase().as_str())
}

fn is_constant(token: &Token) -> bool {
    matches!(
        token,
        Token::Number(..)
            | Token::Char(_)
            | Token::SingleQuotedString(_)
            | Token::DoubleQuotedString(_)
            | Token::TripleSingleQuotedString(_)
            | Token::TripleDoubleQuotedString(_)
            | Token::DollarQuotedString(_)
            | Token::SingleQuotedByteStringLiteral(_)
            | Token::DoubleQuotedByteStringLiteral(_)
            | Token::SingleQuotedRawStringLiteral(_)
            | Token::DoubleQuotedRawStringLiteral(_)
            | Token::NationalStringLiteral(_)
            | Token::EscapedStringLiteral(_)
            | Token::UnicodeStringLiteral(_)
            | Token::HexStringLiteral(_)
            | Token::Placeholder(_)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn written(sql: &str) -> TokenCounts {
        count(&Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap())
    }

    #[test]
    fn what_makes_a_tree_deep_is_counted_and_what_makes_it_wide_is_not() {
        for (sql, operators) in [
            ("SELECT 1+1+1", 2),
            ("SELECT a.b.c.d, b FROM s.t /* + + + */ -- + +", 0),
            ("SELECT a.b.c.d.e.f", 2),
            ("SELECT x IN (-1, -2, 3, NULL, 'a + b', TIMESTAMP '2026-01-01', TRUE) AS y", 1),
            ("SELECT 1 - 1, x::int::varchar", 5),
            ("SELECT step, rank, pid FROM python.steps", 0),
            ("SELECT NOT NOT - - x[1][2]", 6),
            ("SELECT CASE WHEN a = 1 THEN b END, COUNT(*) FROM t LEFT JOIN u ON a = b GROUP BY c ORDER BY 1 DESC", 3),
        ] {
            assert_eq!(written(sql).operators, operators, "{sql}");
        }
        assert_eq!(written("((1, 2), [3])").nesting, 2);
        assert_eq!(written("((1, 2), [3])").items, 2);
        assert_eq!(written("EXPLAIN EXPLAIN SELECT 1").explains, 2);
    }

    #[test]
    fn a_word_that_links_a_chain_is_no_name() {
        for word in ["AND", "OR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "UNION", "COLLATE", "ZONE", "INTERVAL"] {
            assert!(!is_name(word), "{word}");
        }
    }
}
