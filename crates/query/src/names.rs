//! Finds the name that was probably meant.

use std::collections::HashSet;

use strsim::damerau_levenshtein;

/// The candidate that was probably meant by `asked`; of several equally near the first.
pub fn nearest<'a>(asked: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let asked = asked.to_lowercase();
    let distance = |candidate: &str| damerau_levenshtein(&asked, &candidate.to_lowercase());
    let near = |candidate: &&str| distance(candidate) <= (asked.len().max(candidate.len()) / 3).max(1);
    candidates.into_iter().filter(near).min_by_key(|candidate| distance(candidate))
}

/// The distinct names, in order, separated by commas.
pub(super) fn comma_separated<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut seen = HashSet::new();
    let names: Vec<&str> = names.into_iter().filter(|name| seen.insert(*name)).collect();
    names.join(", ")
}
