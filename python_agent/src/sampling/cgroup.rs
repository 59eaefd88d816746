//! Limits of the control groups of this process. The limits of groups above its own count too: the smallest one is reported.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory in which both versions of control groups are mounted on every system.
const ROOT: &str = "/sys/fs/cgroup";

/// Processors that may run at a time, by quota; None where there is no limit, or it can't be read.
pub(super) fn cpu_quota() -> Option<f64> {
    smallest(|group| match fs::read_to_string(group.join("cpu.max")) {
        Ok(text) => quota(&text),
        Err(_) => {
            let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<f64>().ok();
            ratio(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        }
    })
}

/// Bytes of memory that may be used; None where there is no limit, or it can't be read.
pub(super) fn memory_limit() -> Option<f64> {
    smallest(memory_limit_of)
}

fn memory_limit_of(group: &Path) -> Option<f64> {
    limit(&either(group, ["memory.max", "memory.limit_in_bytes"])?)
}

/// Bytes of memory that the group with the smallest limit uses; None where there is no limit, or it can't be read.
pub(super) fn memory() -> Option<f64> {
    let limited = mine().into_iter().filter_map(|group| Some((memory_limit_of(&group)?, group)));
    let (_, group) = limited.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    either(&group, ["memory.current", "memory.usage_in_bytes"])?.trim().parse().ok()
}

/// Seconds in which each group had used up its processor quota, since it was made; groups without a quota are left out.
pub(super) fn throttled() -> BTreeMap<PathBuf, f64> {
    let seconds = |group: &Path| throttled_in(&fs::read_to_string(group.join("cpu.stat")).ok()?);
    mine().into_iter().filter_map(|group| Some((seconds(&group)?, group))).map(|(time, group)| (group, time)).collect()
}

/// The throttled seconds in a `cpu.stat`, which has microseconds in the second version and nanoseconds in the first. A group that
/// never had a quota counts no periods.
fn throttled_in(text: &str) -> Option<f64> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    value("nr_periods ").filter(|periods| *periods > 0.0)?;
    value("throttled_usec ").map(|time| time / 1e6).or_else(|| value("throttled_time ").map(|time| time / 1e9))
}

/// The text of the second version's file, or of the first version's.
fn either(group: &Path, names: [&str; 2]) -> Option<String> {
    names.iter().find_map(|name| fs::read_to_string(group.join(name)).ok())
}

fn smallest(limit_of: impl Fn(&Path) -> Option<f64>) -> Option<f64> {
    mine().iter().filter_map(|group| limit_of(group)).min_by(f64::total_cmp)
}

/// The groups of this process, and those above them.
fn mine() -> Vec<PathBuf> {
    fs::read_to_string("/proc/self/cgroup").map_or_else(|_| Vec::new(), |text| groups(&text))
}

/// The directories of the groups that a /proc/self/cgroup names, and of those above them. In a container, whose own group
/// is mounted as the root, the named one may not exist: then the root has the limits.
fn groups(text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (words.next(), words.next()) else { continue };
        // The second version has one hierarchy and names no controllers; the first has one for each.
        let base = controllers.split(',').find(|name| ["cpu", "memory"].contains(name));
        let root = match (controllers, base) {
            ("", _) => PathBuf::from(ROOT),
            (_, Some(name)) => Path::new(ROOT).join(name),
            _ => continue,
        };
        let group = root.join(path.trim_start_matches('/'));
        found.extend(group.ancestors().take_while(|above| above.starts_with(&root)).map(Path::to_path_buf));
    }
    found.sort();
    found.dedup();
    found
}

/// Parses a `cpu.max`: "200000 100000" is two processors, "max 100000" no limit.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota.parse().ok()?, period.parse().ok()?)
}

fn ratio(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Parses a limit in bytes. The first version writes the largest number of pages for no limit.
fn limit(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|bytes| *bytes < 9e18)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_are_read() {
        assert_eq!((quota("200000 100000\n"), quota("max 100000\n"), quota("")), (Some(2.0), None, None));
        assert_eq!((ratio(-1.0, 100_000.0), ratio(50_000.0, 100_000.0)), (None, Some(0.5)));
        assert_eq!((limit("max\n"), limit("1048576\n"), limit("9223372036854771712\n")), (None, Some(1048576.0), None));
    }

    #[test]
    fn the_time_without_quota_is_read_where_there_is_one() {
        let second = "usage_usec 10\nnr_periods 40\nnr_throttled 3\nthrottled_usec 1500000\n";
        let first = "nr_periods 40\nnr_throttled 3\nthrottled_time 2500000000\n";
        assert_eq!((throttled_in(second), throttled_in(first)), (Some(1.5), Some(2.5)));
        assert_eq!(throttled_in("nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"), None);
        assert_eq!(throttled_in("usage_usec 10\n"), None);
    }

    #[test]
    fn groups_above_count_too() {
        let found = groups("0::/user/job.scope\n4:memory:/box\n3:cpuset:/\n1:cpu,cpuacct:/\n");
        let expected = ["", "/cpu", "/memory", "/memory/box", "/user", "/user/job.scope"];
        assert_eq!(found, expected.map(|path| PathBuf::from(format!("{ROOT}{path}"))));
        assert!(groups("nonsense").is_empty());
    }
}
