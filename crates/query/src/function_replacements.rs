//! What to write in place of functions that other engines have.

/// What to write in place of a function that queries do not have; None where that is not known.
pub(super) fn replacement(asked: &str) -> Option<&'static str> {
    let asked = asked.to_lowercase();
    REPLACEMENTS.iter().find(|(names, _)| names.contains(&asked.as_str())).map(|(_, replacement)| *replacement)
}

/// Names of functions, and a hint for all of them.
const REPLACEMENTS: &[(&[&str], &str)] = &[
    (&["arg_max", "argmax", "max_by"], "first_value(x ORDER BY y DESC) is the x of the largest y"),
    (&["arg_min", "argmin", "min_by"], "first_value(x ORDER BY y) is the x of the smallest y"),
    (&["first"], "first_value(x ORDER BY ts) is the x of the first row"),
    (&["last"], "last_value(x ORDER BY ts) is the x of the last row"),
    (&["mode"], "GROUP BY x ORDER BY COUNT(*) DESC LIMIT 1 gives the value that is there most often"),
    (&["histogram", "width_bucket"], "floor(x / 0.01) AS bucket, COUNT(*) with GROUP BY bucket counts by width"),
    (&["percentile", "quantile", "quantile_disc", "percentile_disc"], "percentile_cont(x, 0.95)"),
    (&["variance"], "var_samp(x)"),
    (&["count_if", "countif"], "COUNT(*) FILTER (WHERE condition)"),
    (&["group_concat", "listagg"], "string_agg(x, ',' ORDER BY y)"),
    (&["list", "collect_list"], "array_agg(x ORDER BY y)"),
    (&["if", "iff", "iif"], "CASE WHEN condition THEN a ELSE b END"),
    (&["isnull"], "x IS NULL; coalesce(x, y) is the first that is not NULL"),
    (&["len"], "length(text), array_length(list)"),
    (&["instr", "charindex", "locate"], "strpos(text, part)"),
    (&["regexp_extract"], "regexp_match(text, 'a(.*)b')[1]"),
    (&["regexp_matches"], "regexp_like(text, pattern), or text ~ pattern"),
    (&["columns"], "name the columns; DESCRIBE TABLE lists them"),
    (&["epoch", "epoch_ms", "unix_timestamp"], "extract(epoch FROM ts) is seconds from 1970"),
    (&["datediff", "date_diff", "timestampdiff", "age"], "extract(epoch FROM a - b) is seconds from b to a"),
    (&["date_add", "dateadd", "date_sub"], "ts + INTERVAL '5 minutes'"),
    (&["time_bucket"], "date_bin(INTERVAL '10 seconds', ts)"),
    (&["strftime", "date_format", "format_timestamp"], "to_char(ts, '%Y-%m-%d %H:%M:%S')"),
    (&["strptime", "str_to_date", "to_datetime"], "to_timestamp('2026-01-31', '%Y-%m-%d')"),
    (&["getdate", "sysdate"], "now()"),
    (
        &["json_extract", "json_extract_string", "json_value", "get_json_object", "json_get"],
        "details->>'NAME' takes a value out of JSON as text, details->'NAME' as JSON, (details->>'NAME')::INT as a number",
    ),
];
