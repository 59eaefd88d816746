//! Statements that are meant to do harm: those that were seen to, and a grammar of others.

use proptest::prelude::*;

/// Statements that did harm once, and a part of the error that each must have; empty where it may be answered.
pub(super) const SEEN: &[(&str, &str)] = &[
    ("SELECT array_length(range(0, 2000000000))", "the function range is not available"),
    ("SELECT length(repeat('x', 2000000000))", "a value that is the same for all rows would have"),
    ("SELECT length(lpad('x', 2000000000, 'y'))", "a value that is the same for all rows would have"),
    ("SELECT NULL::INT[1000000000]", "lists of a fixed size are not available"),
    ("SELECT arrow_cast(NULL, 'FixedSizeList(1000000000, Int32)')", "lists of a fixed size are not available"),
    ("SELECT length(repeat(value::text, 2000000000)) FROM generate_series(1, 9)", "more memory"),
    ("SELECT MAX(length(rpad('x', value * 100000))) FROM generate_series(1, 8000)", "more memory"),
    (
        "SELECT MAX(length(replace(repeat(value::text, 20000), '1', repeat('y', 60000)))) FROM generate_series(1, 9000)",
        "more memory",
    ),
    (
        "SELECT MAX(length(regexp_replace(repeat('x', value), 'x', repeat('y', 60000), 'g'))) FROM generate_series(1, 9000)",
        "more memory",
    ),
    ("SELECT regexp_like('a', value::text) FROM generate_series(1, 9000)", "a regular expression has to be the same"),
    ("SELECT 'a' ~ value::text FROM generate_series(1, 9000)", "a regular expression has to be the same"),
    ("SELECT levenshtein(repeat('x', 60000), repeat('y', 60000))", "too long to be compared"),
    ("SELECT length(string_agg(repeat('x', 1000), '')) FROM generate_series(1, 1000000)", "more memory"),
    ("SELECT array_length(array_agg(value)) FROM generate_series(1, 1000000000)", "more memory"),
    ("SELECT SUM(value) OVER () FROM generate_series(1, 1000000000)", "more memory"),
    ("SELECT value, ROW_NUMBER() OVER (ORDER BY value % 7) FROM generate_series(1, 1000000000)", ""),
    (
        "WITH RECURSIVE r AS (SELECT 'x' AS x UNION ALL SELECT x || x FROM r) SELECT MAX(length(x)) FROM r",
        "more memory",
    ),
    ("WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x FROM r) SELECT COUNT(*) FROM r", "did not finish"),
    (
        "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT r.x FROM r, generate_series(1, 10)) SELECT COUNT(*) FROM r",
        "",
    ),
    ("SELECT value FROM generate_series(1, 1000000000000) ORDER BY value % 1000", ""),
    ("SELECT COUNT(*) FROM generate_series(1, 1000000000000)", "did not finish"),
    (
        "WITH t AS (SELECT string_agg(repeat('x', 100), '') AS x FROM generate_series(1, 100000)) \
         SELECT COUNT(DISTINCT x || value::text) FROM t, generate_series(1, 1000000)",
        "was made before a join",
    ),
    // Where all rows of a batch are even or all are odd, the text is the same for all of them.
    (
        "SELECT COUNT(DISTINCT rpad(CASE WHEN value % 2 = 0 THEN value::text ELSE 'x' END, 50000)) \
         FROM generate_series(1, 10000000, 2)",
        "more memory",
    ),
    // The long constant makes the batches of the whole query small.
    (
        "SELECT COUNT(*) FROM (SELECT SUM(value) OVER (ORDER BY value % 11) AS value FROM generate_series(1, 10000000)) \
         WHERE strpos(value::text, repeat('x', 50000)) > 0",
        "",
    ),
];

/// Harmful statements that are too long to write out.
pub(super) fn grown() -> Vec<(String, &'static str)> {
    // @ is the name before.
    let doubled = |first: &str, link: &str, times: usize, last: &str| {
        let with = (1..times).fold(format!("WITH c0 AS ({first})"), |sql, level| {
            sql + &format!(", c{level} AS ({})", link.replace('@', &format!("c{}", level - 1)))
        });
        format!("{with} {}", last.replace('@', &format!("c{}", times - 1)))
    };
    let text = "SELECT host AS x FROM python.steps";
    let expressions = "comes to more than 50000 expressions";
    let wide = |of: &str, count: usize| {
        (0..count).map(|n| format!("{} AS x{n}", of.replace('#', &n.to_string()))).collect::<Vec<_>>()
    };
    vec![
        (doubled(text, "SELECT x || x AS x FROM @", 40, "SELECT MAX(length(x)) FROM @"), expressions),
        (doubled(text, "SELECT x || x AS x FROM @", 13, "SELECT MAX(length(x)) FROM @"), "more memory"),
        (doubled("SELECT 'x' AS x", "SELECT x || x AS x FROM @", 40, "SELECT length(x) FROM @"), expressions),
        (doubled(text, "SELECT x || x AS x FROM @ WHERE x || x <> ''", 40, "SELECT COUNT(*) FROM @"), expressions),
        (
            doubled(
                "SELECT make_array(step) AS x FROM python.steps",
                "SELECT array_concat(x, x) AS x FROM @",
                13,
                "SELECT MAX(array_length(x)) FROM @",
            ),
            "",
        ),
        (
            doubled(
                "SELECT step AS x FROM python.steps",
                "SELECT a.x FROM @ a JOIN @ b ON a.x = b.x",
                29,
                "SELECT COUNT(*) FROM @",
            ),
            "tables; the limit is 50",
        ),
        (format!("SELECT {} FROM generate_series(1, 1000000)", wide("round(value, #)", 2000).join(", ")), ""),
        (format!("SELECT {} FROM generate_series(1, 1000000)", wide("lpad(value::text, #)", 240).join(", ")), ""),
        (
            format!(
                "SELECT {} FROM (SELECT repeat('x', value % 5000) AS y FROM generate_series(1, 1000000))",
                wide("CASE WHEN length(y) > # THEN y END", 240).join(", ")
            ),
            "",
        ),
        (format!("SELECT '{}' AS x FROM generate_series(1, 1000000)", "x".repeat(200 << 10)), ""),
        (
            format!(
                "SELECT COUNT(*) FROM python.steps WHERE step IN ({})",
                (0..10_000).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
            ),
            "1",
        ),
    ]
}

/// Statements that are as deep as a statement may be, and take the stacks of the threads that plan and run them.
pub(super) fn deep() -> Vec<String> {
    let chain = |first: &str, link: &str, last: &str| format!("{first}{}{last}", link.repeat(490));
    vec![
        chain("EXPLAIN SELECT step", "*pid", " FROM python.steps"),
        chain("SELECT MAX(length(host", "||run", ")) FROM python.steps"),
        chain("SELECT SUM(step", "+pid", ") FROM python.steps"),
    ]
}

/// Strategy for text expressions.
fn text() -> impl Strategy<Value = String> {
    let number = prop::sample::select(&["3", "1000", "50000", "2000000000", "value", "value * 1000"][..]);
    let leaf = prop_oneof![
        Just("'x'".to_owned()),
        Just("value::text".to_owned()),
        Just("repeat(value::text, 100)".to_owned()),
        Just("NULL::text".to_owned()),
    ];
    leaf.prop_recursive(6, 40, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..8).prop_map(|parts| format!("({})", parts.join(" || "))),
            (inner.clone(), number.clone()).prop_map(|(text, number)| format!("repeat({text}, {number})")),
            (inner.clone(), number.clone()).prop_map(|(text, number)| format!("rpad({text}, {number})")),
            (inner.clone(), inner.clone()).prop_map(|(text, by)| format!("replace({text}, '1', {by})")),
            (inner.clone(), inner.clone()).prop_map(|(text, by)| format!("regexp_replace({text}, '[0-9]', {by}, 'g')")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("concat_ws({a}, {b}, {a}, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("CASE WHEN value % 2 = 0 THEN {a} ELSE {b} END")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("coalesce({a}, upper({b}))")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("array_to_string(string_to_array({a}, '1'), {b})")),
        ]
    })
}

/// Strategy for relations with a number called value.
fn rows() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(
        &[
            "generate_series(1, 10)",
            "generate_series(1, 10000)",
            "generate_series(1, 1000000000000)",
            "(SELECT step AS value FROM python.steps)",
            "(VALUES (1), (2), (3))",
        ][..],
    )
    .prop_map(|from| match from.starts_with("(VALUES") {
        true => "(SELECT column1 AS value FROM (VALUES (1), (2), (3)) AS v)".to_owned(),
        false => from.to_owned(),
    });
    leaf.prop_recursive(4, 12, 2, |inner| {
        let on =
            prop::sample::select(&["a.value = b.value", "a.value < b.value", "a.value % 3 = b.value % 3", "true"][..]);
        prop_oneof![
            (inner.clone(), inner.clone(), on)
                .prop_map(|(a, b, on)| format!("(SELECT a.value FROM {a} AS a JOIN {b} AS b ON {on})")),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| format!("(SELECT value FROM {a} AS a UNION ALL SELECT value FROM {b} AS b)")),
            inner.clone().prop_map(|of| format!("(SELECT DISTINCT value * 7 % 100003 AS value FROM {of} AS d)")),
            inner.clone().prop_map(|of| format!("(SELECT SUM(value) OVER (ORDER BY value) AS value FROM {of} AS w)")),
            inner.prop_map(|of| format!("(SELECT value FROM {of} AS s ORDER BY value % 11 LIMIT 100000)")),
        ]
    })
}

/// Strategy for whole statements.
pub(super) fn statement() -> impl Strategy<Value = String> {
    let last = prop::sample::select(
        &[
            "SELECT COUNT(*), MAX(length(t)) FROM x",
            "SELECT t FROM x",
            "SELECT COUNT(DISTINCT t) FROM x",
            "SELECT length(string_agg(t, ',')) FROM x",
            "SELECT array_length(array_agg(t)) FROM x",
            "SELECT t, value FROM x ORDER BY t, value",
            "SELECT a.t, b.t AS u FROM x a JOIN x b ON a.value = b.value",
            "SELECT t, COUNT(*) OVER (PARTITION BY value % 3) FROM x",
            "SELECT t, value % 7, COUNT(*) FROM x GROUP BY t, value % 7",
        ][..],
    );
    let doublings = prop_oneof![3 => Just(0), 1 => 1..30_usize];
    (text(), rows(), last, doublings).prop_map(|(text, rows, last, doublings)| {
        let with = format!("WITH x0 AS (SELECT value, {text} AS t FROM {rows} AS r)");
        let with = (1..=doublings)
            .fold(with, |sql, level| sql + &format!(", x{level} AS (SELECT value, t || t AS t FROM x{})", level - 1));
        format!(
            "{with} {}",
            last.replace("FROM x", &format!("FROM x{doublings}")).replace("JOIN x ", &format!("JOIN x{doublings} "))
        )
    })
}
