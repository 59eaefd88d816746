use super::*;

#[test]
fn what_is_asked_takes_bounded_room_however_much_it_is() {
    let asked = "x".repeat(128 << 10);
    let fill = |checkpoint: &mut JournalCheckpoint| {
        for id in 1..=300 {
            let (code, sql, details) = (asked.clone(), asked.clone(), Some(asked.clone()));
            for record in [
                record::Record::Eval(v1::Eval { id, code, ..v1::Eval::default() }),
                record::Record::Query(v1::Query { id, sql, ..v1::Query::default() }),
                record::Record::Event(v1::Event { id, details, ..v1::Event::default() }),
            ] {
                checkpoint.apply(&v1::Record { record: Some(record) });
            }
        }
    };
    let mut checkpoint = JournalCheckpoint::default();
    fill(&mut checkpoint);
    assert!((40 << 20..50 << 20).contains(&checkpoint.to_message().encoded_len()));
    let mut checkpoint = JournalCheckpoint::default();
    checkpoint.limit_bytes(1 << 20);
    fill(&mut checkpoint);
    assert!((2 << 20..3 << 20).contains(&checkpoint.to_message().encoded_len()));
    assert_eq!((checkpoint.evals.newest(), checkpoint.evals.iter().last().map(|eval| eval.id)), (300, Some(300)));
}

#[test]
fn an_agent_takes_bounded_room_however_many_tables_it_tells_of() {
    let mut checkpoint = JournalCheckpoint::default();
    let mut apply = |record| checkpoint.apply(&v1::Record { record: Some(record) });
    for table in 0..2000 {
        let name = format!("table {table} {}", "x".repeat(100));
        let schema = v1::TableSchema { name: name.clone(), columns: Vec::new() };
        let hello = v1::Hello { instance: "one".into(), tables: vec![schema], ..v1::Hello::default() };
        apply(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
        let status = v1::Status { recorded: [(format!("other {name}"), 1)].into(), ..v1::Status::default() };
        let batch = v1::Batch { seq: table, rows: 1, ..v1::Batch::default() };
        for content in [agent_message::Content::Status(status), agent_message::Content::Batch(batch)] {
            apply(record::Record::AgentMessage(v1::AgentMessage { connection: 1, content: Some(content), unix_ns: 0 }));
        }
        let lost = v1::Lost { instance: "one".into(), table: name, rows: 1, ..v1::Lost::default() };
        apply(record::Record::Lost(lost));
    }
    let agent = &checkpoint.agents["one"];
    assert_eq!((agent.recorded.len(), agent.stored.len(), agent.lost.len()), (MAX_ENTRIES, MAX_ENTRIES, MAX_ENTRIES));
    assert_eq!(agent.done_seq, 1999, "rows are numbered all the same");
}

#[test]
fn evictions_of_very_many_processes_are_added_up_in_no_time() {
    let mut checkpoint = JournalCheckpoint::default();
    let evicted = |process: u64, appends| v1::Evicted {
        instance: format!("process {process}"),
        identity: Some(v1::Hello { pid: process as u32, ..v1::Hello::default() }),
        table: "python.steps".into(),
        first_seq: 1,
        last_seq: 2,
        rows: 1,
        appends,
        ..v1::Evicted::default()
    };
    let processes = 50_000;
    for time in 1..=2 {
        for process in 0..processes {
            checkpoint.apply(&v1::Record { record: Some(record::Record::Evicted(evicted(process, time))) });
        }
    }
    // What may come back stays as it is. With a search of all for each this took minutes.
    checkpoint.add_up_evictions(1);
    assert_eq!(checkpoint.evicted.len(), 2 * processes as usize);
    checkpoint.add_up_evictions(2);
    assert_eq!(checkpoint.evicted.len(), processes as usize);
    assert!(checkpoint.evicted.iter().all(|sum| (sum.rows, sum.last_seq) == (2, 0)));
}

#[test]
fn a_copy_shares_what_is_long() {
    let mut checkpoint = JournalCheckpoint::default();
    let hello = v1::Hello { instance: "one".into(), ..v1::Hello::default() };
    let mut apply = |record| checkpoint.apply(&v1::Record { record: Some(record) });
    apply(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
    for (first, values) in [(0, vec!["a".to_owned()]), (1, vec!["b".to_owned()]), (0, vec!["a".to_owned()])] {
        let content = Some(agent_message::Content::Strings(v1::Strings { first, values }));
        apply(record::Record::AgentMessage(v1::AgentMessage { connection: 1, content, unix_ns: 0 }));
    }
    apply(record::Record::Query(v1::Query { id: 1, ..v1::Query::default() }));
    let copy = checkpoint.clone();
    assert!(Arc::ptr_eq(&copy.connections[&1].strings[0], &checkpoint.connections[&1].strings[0]));
    assert!(std::ptr::eq(copy.queries.iter().next().unwrap(), checkpoint.queries.iter().next().unwrap()));
    let message = checkpoint.to_message();
    assert_eq!(
        (&message.connections[0].strings[..], checkpoint.text_bytes()),
        (&["a".to_owned(), "b".to_owned()][..], 2)
    );
    assert_eq!(JournalCheckpoint::from_message(message), checkpoint);
}

#[test]
fn strings_that_come_one_by_one_are_put_together() {
    let mut checkpoint = JournalCheckpoint::default();
    let hello = v1::Hello { instance: "one".into(), ..v1::Hello::default() };
    let mut apply = |record| checkpoint.apply(&v1::Record { record: Some(record) });
    apply(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
    for first in 0..3000 {
        let strings = v1::Strings { first, values: vec![first.to_string()] };
        let content = Some(agent_message::Content::Strings(strings));
        apply(record::Record::AgentMessage(v1::AgentMessage { connection: 1, content, unix_ns: 0 }));
    }
    let pieces: Vec<usize> = checkpoint.connections[&1].strings.iter().map(|piece| piece.len()).collect();
    assert_eq!(pieces, [1024, 1024, 952]);
    let expected: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
    assert_eq!(checkpoint.to_message().connections[0].strings, expected);
}
