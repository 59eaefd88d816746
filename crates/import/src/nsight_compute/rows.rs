//! The second pass over a page: rows of one process.

use csv::ByteRecord;
use probe_common::error::Result;
use probe_proto::tables::kernel_metrics;

use super::decimal::DecimalMark;
use super::page::{DetailsColumns, PageColumns, PageKind, text};
use super::records::PageRecords;
use super::survey::{PageRecordKind, kind, pid};
use crate::rows::ProcessRows;

/// Longest text of a row (bytes); advice has some hundred.
const MAX_TEXT: usize = 64 << 10;
/// Records between two reports of progress.
const REPORT: u64 = 4096;

/// Writes rows of one process.
pub(crate) struct MetricRows<'a, 'f> {
    pub capture: &'a str,
    pub mark: DecimalMark,
    pub pid: i32,
    pub rows: &'a mut ProcessRows<'f>,
    pub written: i64,
}

/// The fields of a row for a metric or advice.
#[derive(Debug, Default)]
struct MetricFields {
    section: Option<String>,
    metric: Option<String>,
    unit: Option<String>,
    value: Option<String>,
    rule: Option<String>,
    rule_type: Option<String>,
    advice: Option<String>,
    speedup: Option<f64>,
    speedup_type: Option<String>,
}

impl MetricRows<'_, '_> {
    /// Reads the first `most` records again: those that the first pass read.
    ///
    /// # Errors
    /// Rows can't be written.
    pub(crate) fn write(
        &mut self,
        mut records: PageRecords,
        most: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let (mut page, mut record) = (None, ByteRecord::new());
        let mut read = 0;
        while read < most && records.next(&mut record).unwrap_or(false) {
            let Some(page) = &mut page else {
                page = PageColumns::of(&record);
                continue;
            };
            match kind(page, &record, &records) {
                PageRecordKind::Header => continue,
                PageRecordKind::Kernel if pid(page, &record) == self.pid => self.take(page, &record)?,
                PageRecordKind::Kernel | PageRecordKind::LeftOut(_) => {}
            }
            read += 1;
            if read.is_multiple_of(REPORT) {
                progress((records.file_bytes + records.consumed()) / 2, records.file_bytes);
            }
        }
        Ok(())
    }

    fn take(&mut self, page: &PageColumns, record: &ByteRecord) -> Result<()> {
        let field = |column: Option<usize>| column.and_then(|column| short(record, column));
        match &page.kind {
            PageKind::Details(columns) => {
                let fields = self.details(columns, record);
                self.push(page, record, &fields)
            }
            PageKind::Raw(metrics) => metrics.iter().try_for_each(|metric| {
                let Some(value) = field(Some(metric.column)) else { return Ok(()) };
                let (metric, unit) = (Some(metric.name.clone()), metric.unit.clone());
                self.push(page, record, &MetricFields { metric, unit, value: Some(value), ..MetricFields::default() })
            }),
        }
    }

    fn details(&self, columns: &DetailsColumns, record: &ByteRecord) -> MetricFields {
        let field = |column: Option<usize>| column.and_then(|column| short(record, column));
        MetricFields {
            section: field(columns.section),
            metric: field(Some(columns.metric)),
            unit: field(columns.unit),
            value: field(Some(columns.value)),
            rule: field(columns.rule),
            rule_type: field(columns.rule_type),
            advice: field(columns.advice),
            speedup: field(columns.speedup).and_then(|speedup| self.mark.parse(&speedup)),
            speedup_type: field(columns.speedup_type),
        }
    }

    fn push(&mut self, page: &PageColumns, record: &ByteRecord, fields: &MetricFields) -> Result<()> {
        let field = |column: Option<usize>| column.and_then(|column| short(record, column));
        let value = fields.value.as_deref().and_then(|value| self.mark.parse(value));
        let not_a_number = fields.value.as_deref().filter(|_| value.is_none());
        let (grid, block) = (field(page.grid).map(|size| list(&size)), field(page.block).map(|size| list(&size)));
        let kernel = field(Some(page.kernel)).unwrap_or_default();
        let (process, capability) = (field(page.process), field(page.capability));
        self.written += 1;
        self.rows.push(|id| kernel_metrics::Row {
            capture: id(self.capture),
            id: field(Some(page.id)).and_then(|number| number.parse().ok()).unwrap_or(-1),
            kernel: id(&kernel),
            section: fields.section.as_deref().map(&mut *id),
            metric: fields.metric.as_deref().map(&mut *id),
            unit: fields.unit.as_deref().map(&mut *id),
            value,
            text: not_a_number.map(&mut *id),
            rule: fields.rule.as_deref().map(&mut *id),
            rule_type: fields.rule_type.as_deref().map(&mut *id),
            advice: fields.advice.as_deref().map(&mut *id),
            speedup: fields.speedup,
            speedup_type: fields.speedup_type.as_deref().map(&mut *id),
            process: process.as_deref().map(&mut *id),
            device: field(page.device).and_then(|device| device.parse().ok()),
            compute_capability: capability.as_deref().map(&mut *id),
            stream: field(page.stream).and_then(|stream| stream.parse().ok()),
            grid: grid.as_deref().map(&mut *id),
            block: block.as_deref().map(&mut *id),
        })
    }
}

/// Text of the field in a column, cut at [`MAX_TEXT`].
fn short(record: &ByteRecord, column: usize) -> Option<String> {
    let mut text = text(record, column)?;
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
    }
    Some(text)
}

/// Converts `(256, 1, 1)` to the form of other tables, `[256,1,1]`.
fn list(size: &str) -> String {
    let inner = size.trim_matches(['(', ')']);
    let numbers: Vec<&str> = inner.split(',').map(str::trim).collect();
    match numbers.iter().all(|number| number.parse::<u64>().is_ok()) {
        true => format!("[{}]", numbers.join(",")),
        false => size.to_owned(),
    }
}
