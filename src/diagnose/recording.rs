//! The cost of recording itself, checked first so that it is not attributed to other causes.

use serde_json::{Value, json};

use super::rows::ask;
use super::steps::DiagnosedSteps;
use probe_client::Client;

/// Shares of step time that recording takes, in the process in which it takes most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RecordingCost {
    /// The share by the agent's own estimate.
    share: f64,
    /// The share that recording may take.
    budget: f64,
    /// The 95 % interval of the ratio of a step with detail to its neighbours without.
    measured: Option<(f64, f64)>,
}

impl RecordingCost {
    /// Reads the cost of recording; None where it is not known.
    pub(super) async fn read(client: &mut Client, steps: &DiagnosedSteps) -> Option<Self> {
        // A single row may show an unusual moment, so this is the median over the last minute. The cost is a mean, so it is a
        // share of the mean step: where steps are unequal, their median may be far from that.
        let sql = "SELECT median(o.estimated_cost) / MAX(s.mean) AS share, MAX(o.budget) AS budget, \
                   MAX(CASE WHEN o.newest = 1 THEN o.measured_low END) AS measured_low, \
                   MAX(CASE WHEN o.newest = 1 THEN o.measured_high END) AS measured_high \
                   FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest FROM probe.overhead \
                   WHERE pid IN ($pids) AND estimated_cost IS NOT NULL) AS o \
                   JOIN (SELECT pid, AVG(duration) AS mean FROM python.steps WHERE $window GROUP BY pid) AS s ON s.pid = o.pid \
                   WHERE o.newest <= 30 GROUP BY o.pid ORDER BY share DESC LIMIT 1";
        let rows = ask(client, &steps.fill(sql)).await.ok()?;
        Some(Self {
            share: rows.number("share", 0)?,
            budget: rows.number("budget", 0)?,
            measured: rows.number("measured_low", 0).zip(rows.number("measured_high", 0)),
        })
    }

    pub(super) fn text(&self) -> String {
        format!("recording takes {:.1} %", self.share * 100.0)
    }

    /// Whether recording takes more than it may.
    pub(super) fn is_too_much(&self) -> bool {
        self.share > self.budget || self.measured.is_some_and(|(low, _)| low > 1.02 + self.budget)
    }

    pub(super) fn why(&self) -> String {
        let measured = self.measured.map(|(low, high)| {
            let percent = |ratio: f64| (ratio - 1.0) * 100.0;
            format!(
                "; steps recorded in detail differ from their neighbours by {:.1} to {:.1} %",
                percent(low),
                percent(high)
            )
        });
        let of = format!("{} of a step by its own reckoning, and may take {:.1} %", self.text(), self.budget * 100.0);
        of + &measured.unwrap_or_default()
    }

    pub(super) fn json(self) -> Value {
        json!({ "share": self.share, "budget": self.budget, "measured_low": self.measured.map(|of| of.0),
                "measured_high": self.measured.map(|of| of.1) })
    }
}
