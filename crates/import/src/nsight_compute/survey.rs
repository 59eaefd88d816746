//! The first pass over a page: its processes, and how its numbers are written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use csv::ByteRecord;

use super::decimal::DecimalMark;
use super::page::{PageColumns, PageKind, text};
use super::records::PageRecords;

/// Most processes of a page; further ones are counted.
const MAX_PROCESSES: usize = 64;
/// The reason for leaving out a last record within which the text ends.
const CUT: &str = "cut short";
/// Records between two reports of progress.
const REPORT: u64 = 4096;

/// A process whose kernels were profiled.
#[derive(Debug, Clone)]
pub(crate) struct ProfiledProcess {
    /// The process id; -1 where the page does not have it.
    pub pid: i32,
    pub host: Option<String>,
    pub records: u64,
}

/// The result of the first pass.
#[derive(Debug, Default)]
pub(crate) struct PageSurvey {
    pub mark: DecimalMark,
    /// The processes, in the order of their first records.
    pub processes: Vec<ProfiledProcess>,
    /// Records after the header.
    pub records: u64,
    pub text_bytes: u64,
    pub left_out: BTreeMap<Cow<'static, str>, u64>,
    /// Why the page was not read to its end.
    pub problem: Option<String>,
}

/// The kind of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PageRecordKind {
    /// A record of a kernel.
    Kernel,
    /// The units of a raw page, or another header.
    Header,
    /// A record that becomes no row, with the reason.
    LeftOut(&'static str),
}

/// The kind of the record that was read last. Headers and units are taken into `page`.
pub(crate) fn kind(page: &mut PageColumns, record: &ByteRecord, records: &PageRecords) -> PageRecordKind {
    if records.is_cut(record, page.least_fields()) {
        return PageRecordKind::LeftOut(CUT);
    }
    let first = record.get(0).unwrap_or_default();
    if first == b"ID"
        && let Some(another) = PageColumns::of(record)
    {
        *page = another;
        return PageRecordKind::Header;
    }
    if page.take_units(record) {
        return PageRecordKind::Header;
    }
    if first.starts_with(b"==") || record.len() <= page.kernel {
        return PageRecordKind::LeftOut("no record of the page");
    }
    if record.len() < page.least_fields() {
        return PageRecordKind::LeftOut("with fewer fields than the page has");
    }
    match text(record, page.id).is_some_and(|id| id.parse::<i64>().is_ok()) {
        true => PageRecordKind::Kernel,
        false => PageRecordKind::LeftOut("no record of the page"),
    }
}

/// The process id of a record.
pub(crate) fn pid(page: &PageColumns, record: &ByteRecord) -> i32 {
    page.process_id.and_then(|column| text(record, column)?.parse().ok()).unwrap_or(-1)
}

impl PageSurvey {
    /// Reads all records. What stops it is in `problem`.
    pub(crate) fn of(mut records: PageRecords, progress: &mut dyn FnMut(u64, u64)) -> Self {
        let mut survey = Self::default();
        if records.lines_before > 0 {
            survey.left_out.insert("line before the header".into(), records.lines_before);
        }
        let (mut page, mut record) = (None, ByteRecord::new());
        loop {
            match records.next(&mut record) {
                Ok(true) => {}
                Ok(false) => break,
                Err(what) => {
                    let (offset, read) = (records.offset(), survey.records);
                    survey.problem = Some(format!("at byte {offset} of its text, after {read} records: {what}"));
                    break;
                }
            }
            let Some(page) = &mut page else {
                page = PageColumns::of(&record);
                if page.is_none() {
                    survey.problem = Some("its header has no ID and Kernel Name".into());
                    break;
                }
                continue;
            };
            survey.records += 1;
            if survey.records.is_multiple_of(REPORT) {
                progress(records.consumed() / 2, records.file_bytes);
            }
            match kind(page, &record, &records) {
                PageRecordKind::Kernel => survey.take(page, &record),
                PageRecordKind::Header => survey.records -= 1,
                PageRecordKind::LeftOut(reason) => {
                    *survey.left_out.entry(reason.into()).or_default() += 1;
                }
            }
        }
        survey.text_bytes = records.offset();
        if survey.left_out.contains_key(CUT) {
            let (offset, read) = (survey.text_bytes, survey.records);
            survey.problem =
                Some(format!("at byte {offset} of its text, after {read} records: the text ends within one"));
        }
        survey
    }

    fn take(&mut self, page: &PageColumns, record: &ByteRecord) {
        let pid = pid(page, record);
        match self.processes.iter().position(|process| process.pid == pid) {
            Some(index) => self.processes[index].records += 1,
            None if self.processes.len() < MAX_PROCESSES => {
                let host = page.host.and_then(|column| text(record, column));
                self.processes.push(ProfiledProcess { pid, host, records: 1 });
            }
            None => {
                *self.left_out.entry("past the number of processes".into()).or_default() += 1;
                return;
            }
        }
        let mut see = |column: usize| self.mark.see(&String::from_utf8_lossy(record.get(column).unwrap_or_default()));
        match &page.kind {
            PageKind::Details(details) => {
                see(details.value);
                details.speedup.into_iter().for_each(&mut see);
            }
            PageKind::Raw(metrics) => metrics.iter().for_each(|metric| see(metric.column)),
        }
    }

    /// The number of records of all processes except the first.
    pub(crate) fn records_of_others(&self) -> u64 {
        self.processes.iter().skip(1).map(|process| process.records).sum()
    }
}
