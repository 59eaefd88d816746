//! `IS DISTINCT FROM` and `IS NOT DISTINCT FROM` as operators that bind more tightly than NOT, AND and OR.
//!
//! sqlparser takes all of the expression that follows for the right side: it reads `a IS DISTINCT FROM b AND c` as
//! `a IS DISTINCT FROM (b AND c)`. So the words become one operator before it reads them, and the operator gets its meaning afterwards.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Statement as Sql, Value, visit_expressions_mut};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan};

const DISTINCT: &str = "IS DISTINCT FROM";
const NOT_DISTINCT: &str = "IS NOT DISTINCT FROM";

/// The tokens of a query with one token for the words of each of these operators.
pub(super) fn join_words(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut joined = Vec::with_capacity(tokens.len());
    let mut rest = &tokens[..];
    while let Some((first, after)) = rest.split_first() {
        rest = match operator(rest) {
            Some((name, length)) => {
                let span = Span::new(first.span.start, rest[length - 1].span.end);
                joined.push(TokenWithSpan::new(Token::CustomBinaryOperator(name.to_owned()), span));
                &rest[length..]
            }
            None => {
                joined.push(first.clone());
                after
            }
        };
    }
    joined
}

/// The operator that `tokens` begin with, and the number of its tokens.
fn operator(tokens: &[TokenWithSpan]) -> Option<(&'static str, usize)> {
    let is_space = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let mut words = tokens.iter().enumerate().filter(|(_, token)| !is_space(token));
    let mut next = || match words.next() {
        Some((index, TokenWithSpan { token: Token::Word(word), .. })) => Some((word.keyword, index)),
        _ => None,
    };
    // Every token of a query comes here: only an IS looks further.
    if next()? != (Keyword::IS, 0) {
        return None;
    }
    let (name, distinct) = match next()?.0 {
        Keyword::NOT => (NOT_DISTINCT, next()?.0),
        word => (DISTINCT, word),
    };
    match (distinct, next()?) {
        (Keyword::DISTINCT, (Keyword::FROM, last)) => Some((name, last + 1)),
        _ => None,
    }
}

/// Gives the operators of [`join_words`] their meaning.
pub(super) fn give_meaning(sql: &mut Sql) {
    let _ = visit_expressions_mut(sql, |expression| {
        if let Expr::BinaryOp { left, op: BinaryOperator::Custom(name), right } = expression {
            let comparison = match name.as_str() {
                DISTINCT => Expr::IsDistinctFrom,
                NOT_DISTINCT => Expr::IsNotDistinctFrom,
                _ => return ControlFlow::Continue(()),
            };
            *expression = comparison(take(left), take(right));
        }
        ControlFlow::<Infallible>::Continue(())
    });
}

fn take(side: &mut Box<Expr>) -> Box<Expr> {
    std::mem::replace(side, Box::new(Expr::value(Value::Null)))
}
