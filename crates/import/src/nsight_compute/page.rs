//! The columns of a page, by its header.

use csv::ByteRecord;

/// Columns of a page, as indices of fields in its records.
#[derive(Debug, Default, Clone)]
pub(crate) struct PageColumns {
    pub id: usize,
    pub process_id: Option<usize>,
    pub process: Option<usize>,
    pub host: Option<usize>,
    pub kernel: usize,
    pub stream: Option<usize>,
    pub block: Option<usize>,
    pub grid: Option<usize>,
    pub device: Option<usize>,
    pub capability: Option<usize>,
    pub kind: PageKind,
}

/// The kind of a page.
#[derive(Debug, Clone)]
pub(crate) enum PageKind {
    /// The details page, with a record for each metric or advice.
    Details(DetailsColumns),
    /// The raw page, with a record for each kernel and a column for each metric.
    Raw(Vec<RawMetric>),
}

impl Default for PageKind {
    fn default() -> Self {
        Self::Raw(Vec::new())
    }
}

/// Columns of the details page. Those of rules exist where rules were evaluated.
#[derive(Debug, Default, Clone)]
pub(crate) struct DetailsColumns {
    pub section: Option<usize>,
    pub metric: usize,
    pub unit: Option<usize>,
    pub value: usize,
    pub rule: Option<usize>,
    pub rule_type: Option<usize>,
    pub advice: Option<usize>,
    pub speedup_type: Option<usize>,
    pub speedup: Option<usize>,
}

/// A column of the raw page.
#[derive(Debug, Clone)]
pub(crate) struct RawMetric {
    pub column: usize,
    pub name: String,
    pub unit: Option<String>,
}

/// Columns of the raw page that are no metrics.
const ABOUT: &[&str] = &[
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
];

/// Prefix of the columns with the program's ranges, one for each domain.
const RANGES: &str = "Id:Domain:";

/// Text of the field in a column; None where it is empty.
pub(crate) fn text(record: &ByteRecord, column: usize) -> Option<String> {
    let text = String::from_utf8_lossy(record.get(column)?).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

impl PageColumns {
    /// The page with this header; None for a header that is not known.
    pub(crate) fn of(header: &ByteRecord) -> Option<Self> {
        let names: Vec<String> = header.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
        let column = |name: &str| names.iter().position(|found| found == name);
        let kind = match (column("Metric Name"), column("Metric Value")) {
            (Some(metric), Some(value)) => PageKind::Details(DetailsColumns {
                section: column("Section Name"),
                metric,
                unit: column("Metric Unit"),
                value,
                rule: column("Rule Name"),
                rule_type: column("Rule Type"),
                advice: column("Rule Description"),
                speedup_type: column("Estimated Speedup Type"),
                speedup: column("Estimated Speedup"),
            }),
            _ => {
                let metrics = names.iter().enumerate().filter(|(_, name)| is_metric(name));
                PageKind::Raw(
                    metrics.map(|(index, name)| RawMetric { column: index, name: name.clone(), unit: None }).collect(),
                )
            }
        };
        Some(Self {
            id: column("ID")?,
            process_id: column("Process ID"),
            process: column("Process Name"),
            host: column("Host Name"),
            kernel: column("Kernel Name")?,
            stream: column("Stream"),
            block: column("Block Size"),
            grid: column("Grid Size"),
            device: column("Device"),
            capability: column("CC"),
            kind,
        })
    }

    /// Takes the second record of a raw page, which has the units and no kernel. False for any other record.
    pub(crate) fn take_units(&mut self, record: &ByteRecord) -> bool {
        let PageKind::Raw(metrics) = &mut self.kind else { return false };
        if text(record, self.id).is_some() || text(record, self.kernel).is_some() {
            return false;
        }
        for metric in metrics {
            metric.unit = text(record, metric.column);
        }
        true
    }

    /// The least number of fields of a record, unless it was cut short.
    pub(crate) fn least_fields(&self) -> usize {
        1 + match &self.kind {
            PageKind::Details(details) => details.value.max(details.metric).max(self.kernel).max(self.id),
            PageKind::Raw(metrics) => metrics.iter().map(|metric| metric.column).max().unwrap_or(self.kernel),
        }
    }
}

fn is_metric(name: &str) -> bool {
    !name.is_empty() && !ABOUT.contains(&name) && !name.starts_with(RANGES)
}
