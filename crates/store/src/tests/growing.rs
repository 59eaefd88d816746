//! Segments that grow, of many processes.

use std::sync::Arc;

use super::super::table::{StoreCounters, TableStore};
use super::super::{BatchOrigin, BatchRows, ProcessIdentity};
use super::{blank, encode, identity, mapping, strings};

#[test]
fn an_append_shares_what_other_processes_have() {
    let (table, counters, mapping) = (TableStore::default(), StoreCounters::default(), mapping());
    let (_, mut texts) = strings();
    let mut append = |pid: i32, seq: u64| {
        let identity = Arc::new(ProcessIdentity { pid, ..identity().as_ref().clone() });
        let rows = BatchRows::decode(&mapping, &encode(&[blank(); 3]), &mut texts).unwrap();
        table.append(&identity, BatchOrigin::batch(&format!("{pid}").into(), seq), rows, 1 << 20, &counters);
    };
    (0..512).for_each(|pid| append(pid, 1));
    let before = table.snapshot();
    append(7, 2);
    let after = table.snapshot();
    assert_eq!((before.active.iter().count(), after.active.iter().count()), (512, 512));
    // Segments that both snapshots hold themselves, and not only by a list that both share.
    let copied = after.active.iter().filter(|segment| Arc::strong_count(segment) > 1).count();
    assert!(copied < 64, "{copied}");
    assert_eq!(after.active.iter().map(|segment| segment.rows).sum::<usize>(), 513 * 3);
}
