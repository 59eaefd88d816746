//! A rule: SQL whose first lines are its settings.

use super::finding::{SavingKind, Severity};
use probe_common::error::{Error, Result};
use probe_query::nearest;

/// The meaning of a rule's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleKind {
    /// Rows with step, rank, cost, ref (s): the time that a part of a step took, and the time that it takes where nothing is
    /// wrong. Where ref is the most that it may take then, expected (s) is what it mostly takes.
    Time,
    /// Rows with x, y, rank: a series that may only grow for a while.
    Trend,
    /// Rows with subject, seen, severity: facts; no row where nothing is wrong.
    Fact,
}

/// A rule with its settings and its SQL.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) family: String,
    pub(crate) kind: RuleKind,
    /// The part of the step that has the cost, where no column says it.
    pub(crate) part: Option<String>,
    pub(crate) confidence: String,
    /// Columns whose values the rule needs (TABLE.COLUMN), some with the fewest values of a process: TABLE.COLUMN >= 100.
    pub(crate) needs: Vec<String>,
    /// The fewest rows of a rank.
    pub(crate) least: usize,
    /// A column whose mean must reach a value with confidence.
    pub(crate) gate: Option<(String, f64)>,
    /// The share of steps in which cost must be above ref, with confidence.
    pub(crate) persistence: f64,
    /// Whether only the median of cost - ref counts, in every step: the rest is chance.
    pub(crate) typical: bool,
    /// Whether costs in several parts of a step are one finding.
    pub(crate) all_parts: bool,
    /// Whether only costs count that stand out and come at equal distances.
    pub(crate) periodic: bool,
    /// What the saving means.
    pub(crate) saving: SavingKind,
    /// Percent that a finding must save, with confidence, to be a note, a warning, critical.
    pub(crate) levels: [f64; 3],
    /// Whether findings name the line in which most of their time is spent, where stacks were sampled.
    pub(crate) names_line: bool,
    /// The least growth in percent for a finding.
    pub(crate) growth: f64,
    /// Rules whose findings are symptoms of this one.
    pub(crate) explains: Vec<String>,
    /// Other words that people have for this cause (--suspect).
    pub(crate) also: Vec<String>,
    pub(crate) says: String,
    pub(crate) remedy: String,
    /// How to record the data that the rule needs.
    pub(crate) record: String,
    pub(crate) sql: String,
}

/// The placeholder in SQL for the medians of a reference.
pub(super) const REFERENCE: &str = "$reference";

impl Rule {
    /// Whether the rule runs only where a reference is named.
    pub(super) fn needs_reference(&self) -> bool {
        self.sql.contains(REFERENCE)
    }

    /// Whether its costs are time of the host, which a GPU with work to do hides.
    pub(super) fn is_of_host(&self) -> bool {
        matches!(self.family.as_str(), "host" | "data")
    }

    /// Whether it looks at captures of operators and kernels, which may be imported traces.
    pub(super) fn is_of_captures(&self) -> bool {
        self.family == "capture"
    }

    /// Whether the rule compares a rank with the others.
    pub(super) fn compares_ranks(&self) -> bool {
        self.sql.contains("rank <>")
    }
}

const KEYS: [&str; 20] = [
    "rule",
    "family",
    "kind",
    "part",
    "confidence",
    "needs",
    "least",
    "gate",
    "persistence",
    "reduce",
    "parts",
    "saving",
    "levels",
    "line",
    "growth",
    "explains",
    "also",
    "says",
    "do",
    "record",
];

/// Reads the lines `-- key: value` before the SQL.
pub(crate) fn parse(file: &str, text: &str) -> Result<Rule> {
    let wrong = |what: String| Error::usage(format!("{file}: {what}"));
    let mut found: Vec<(&str, &str)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(line) = line.strip_prefix("--") else { break };
        let (key, value) = line
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
            .ok_or_else(|| wrong(format!("line {} is no '-- key: value'", at + 1)))?;
        if !KEYS.contains(&key) {
            let meant = nearest(key, KEYS).map(|near| format!("did you mean '{near}'? ")).unwrap_or_default();
            return Err(wrong(format!("line {}: there is no key '{key}'", at + 1))
                .hint(format!("{meant}The keys are {}", KEYS.join(", "))));
        }
        found.push((key, value));
    }
    let get = |key: &str| found.iter().find(|(of, _)| *of == key).map(|(_, value)| (*value).to_owned());
    let need = |key: &str| {
        get(key).filter(|value| !value.is_empty()).ok_or_else(|| {
            wrong(format!("its header has no '{key}'"))
                .hint(format!("-- {key}: … before the SQL; docs/diagnose.md describes it"))
        })
    };
    let number = |key: &str, otherwise: f64| match get(key) {
        None => Ok(otherwise),
        Some(text) => text.parse::<f64>().map_err(|_| wrong(format!("'{key}' is no number: {text}"))),
    };
    let list = |key: &str| -> Vec<String> {
        get(key).map(|text| text.split(',').map(|word| word.trim().to_owned()).collect()).unwrap_or_default()
    };
    let kind = match need("kind")?.as_str() {
        "time" => RuleKind::Time,
        "trend" => RuleKind::Trend,
        "fact" => RuleKind::Fact,
        other => return Err(wrong(format!("there is no kind '{other}'")).hint("time, trend or fact")),
    };
    let part = get("part");
    if let Some(part) = part.as_deref().filter(|part| super::steps::part(part).is_none()) {
        return Err(wrong(format!("a step has no part '{part}'")).hint(super::steps::PARTS[..8].join(", ")));
    }
    let gate = match get("gate") {
        None => None,
        Some(text) => {
            let gate = text
                .split_once(">=")
                .and_then(|(column, least)| Some((column.trim().to_owned(), least.trim().parse::<f64>().ok()?)));
            Some(gate.ok_or_else(|| wrong(format!("'gate' is not understood: {text}")).hint("-- gate: COLUMN >= 0.5"))?)
        }
    };
    let levels = match get("levels") {
        None => [2.0, 10.0, 20.0],
        Some(text) => {
            let levels: Vec<f64> = text.split(',').filter_map(|level| level.trim().parse().ok()).collect();
            levels.try_into().map_err(|_| {
                wrong(format!("'levels' is not understood: {text}"))
                    .hint("percent for note, warn and critical: 2, 10, 20")
            })?
        }
    };
    let reduce = get("reduce").unwrap_or_else(|| "each".into());
    if !["each", "typical", "periodic"].contains(&reduce.as_str()) {
        return Err(wrong(format!("there is no reduce '{reduce}'")).hint("each, typical or periodic"));
    }
    let parts = get("parts").unwrap_or_else(|| "apart".into());
    if !["apart", "together"].contains(&parts.as_str()) {
        return Err(wrong(format!("there is no parts '{parts}'")).hint("apart: a finding for each part; or together"));
    }
    let saving = match get("saving").as_deref() {
        None => SavingKind::Replay,
        Some("ceiling") => SavingKind::Ceiling,
        Some("estimate") => SavingKind::Estimate,
        Some(other) => {
            return Err(wrong(format!("there is no saving '{other}'")).hint("ceiling, estimate, or no such key"));
        }
    };
    let line = get("line");
    if let Some(line) = line.as_deref().filter(|line| *line != "sampled") {
        return Err(wrong(format!("there is no line '{line}'")).hint("sampled, or no such key"));
    }
    Ok(Rule {
        name: need("rule")?,
        family: need("family")?,
        kind,
        part,
        confidence: get("confidence").unwrap_or_else(|| "likely".into()),
        needs: list("needs"),
        least: number("least", 40.0)? as usize,
        gate,
        persistence: number("persistence", 0.0)?,
        typical: reduce == "typical",
        all_parts: parts == "together",
        periodic: reduce == "periodic",
        saving,
        levels,
        names_line: line.is_some(),
        growth: number("growth", 5.0)?,
        explains: list("explains"),
        also: list("also"),
        says: need("says")?,
        remedy: need("do")?,
        record: get("record").unwrap_or_default(),
        sql: text.trim_end().trim_end_matches(';').to_owned(),
    })
}

/// The severity of a saving whose lower bound is `low` percent.
pub(crate) fn severity(rule: &Rule, low: f64) -> Option<Severity> {
    let reached = Severity::ALL.into_iter().zip(rule.levels).rev().find(|(_, level)| low >= *level);
    reached.map(|(severity, _)| severity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_header_is_told() {
        let good = "-- rule: x\n-- family: f\n-- kind: fact\n-- says: s\n-- do: d\nSELECT 1";
        assert_eq!(parse("x.sql", good).unwrap().name, "x");
        for (from, to, says) in [
            ("kind: fact", "kind: fcat", "no kind 'fcat'"),
            ("-- do:", "-- dp:", "no key 'dp'"),
            ("-- says: s\n", "", "no 'says'"),
            ("kind: fact", "kind: time\n-- part: midle", "no part 'midle'"),
            ("kind: fact", "kind: time\n-- gate: x > 1", "'gate' is not understood"),
            ("-- rule: x", "-- rule: x\n-- a remark", "no '-- key: value'"),
        ] {
            let error = parse("x.sql", &good.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
