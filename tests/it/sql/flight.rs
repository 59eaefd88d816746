//! Flight SQL, by arrow-flight's own client over a unix socket.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use arrow_flight::FlightInfo;
use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables, SqlInfo};
use datafusion::common::ScalarValue;
use futures::TryStreamExt;
use hyper_util::rt::TokioIo;
use probe_collector::server::flight::QueryRequest;
use probe_collector::server::{QueryAudit, flight};
use probe_common::error::{Error, ErrorKind};
use probe_proto::tables::TABLES;
use probe_query::{Parameters, QueryEngine};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Server};

use crate::sql::{cells, data};

struct Served {
    client: FlightSqlServiceClient<Channel>,
    _directory: tempfile::TempDir,
}

async fn serve(engine: QueryEngine) -> Served {
    serve_audited(engine, Arc::default()).await
}

async fn serve_audited(engine: QueryEngine, audit: Arc<QueryAudit>) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let server = Server::builder().add_service(flight::service(Arc::new(engine), audit));
    tokio::spawn(server.serve_with_incoming(listener));
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = Endpoint::from_static("http://probe").connect_with_connector(connect).await.unwrap();
    Served { client: FlightSqlServiceClient::new(channel), _directory: directory }
}

impl Served {
    /// Gets the rows of all endpoints of an answer, and checks that they have the schema that was announced.
    async fn fetch(&mut self, info: FlightInfo) -> Result<Vec<RecordBatch>, FlightError> {
        let announced = info.clone().try_decode_schema().unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let batches: Vec<RecordBatch> = self.client.do_get(ticket).await.unwrap().try_collect().await?;
        for batch in &batches {
            assert_eq!(*batch.schema(), announced);
        }
        Ok(batches)
    }

    async fn query(&mut self, sql: &str) -> Vec<Vec<String>> {
        let info = self.client.execute(sql.to_owned(), None).await.unwrap();
        cells(&self.fetch(info).await.unwrap())
    }
}

/// Our error, decoded from the one that came over the wire.
fn ours(error: FlightError) -> Error {
    let FlightError::Tonic(status) = error else { panic!("{error}") };
    (*status).into()
}

#[tokio::test]
async fn a_query_is_answered_with_the_schema_announced() {
    let mut served = serve(data::live()).await;
    let rows = served.query("SELECT module, COUNT(*) FROM python.torch_trace GROUP BY module ORDER BY module").await;
    assert_eq!(rows, [["AdamW", "8"], ["layers.0", "16"], ["layers.1", "16"], ["NULL", "8"]]);
    // Every type, no rows, text within lists, dictionaries, EXPLAIN.
    served.query("SELECT * FROM python.torch_trace").await;
    assert!(served.query("SELECT * FROM probe.evals").await.is_empty());
    served.query("SELECT array_agg(DISTINCT module), MAX(stage) FROM python.torch_trace").await;
    served.query("SELECT arrow_cast(stage, 'Dictionary(Int32, Utf8)') AS stage FROM python.torch_trace").await;
    served.query("EXPLAIN SELECT 1").await;
    served.query("SELECT NULL, 1, 'a', now(), INTERVAL '1 day', DECIMAL '1.5'").await;
}

#[tokio::test]
async fn metadata_limits_a_query_to_a_process() {
    let mut served = serve(data::live()).await;
    served.client.set_header(flight::PID, "101");
    let info = served.client.execute("SELECT DISTINCT pid FROM python.steps".into(), None).await.unwrap();
    // The scope is in the ticket: the client that gets the rows need not send it again.
    served.client.set_header(flight::PID, "100");
    assert_eq!(cells(&served.fetch(info).await.unwrap()), [["101"]]);
    served.client.set_header(flight::PID, "all");
    let error = ours(served.client.execute("SELECT 1".into(), None).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[tokio::test]
async fn a_ticket_that_the_client_makes_is_the_one_that_it_would_be_given() {
    let audit = Arc::new(QueryAudit::default());
    let mut system = data::system();
    system.retain(|table| table.table().name != "queries");
    system.push(Arc::clone(&audit) as _);
    let mut served = serve_audited(QueryEngine::new(data::store(), system).unwrap(), audit).await;
    let parameters = Parameters::default();
    let sql = "SELECT DISTINCT pid FROM python.steps";
    let timeout = Some(Duration::from_secs(9));
    let question =
        QueryRequest { sql, pid: Some(101), timeout, rows: Some(8), bytes: Some(1 << 20), parameters: &parameters };
    let said = [(flight::PID, "101"), (flight::TIMEOUT, "9000"), (flight::ROWS, "8"), (flight::BYTES, "1048576")];
    for (key, value) in said {
        served.client.set_header(key, value);
    }
    let given = served.client.execute(sql.into(), None).await.unwrap().endpoint[0].ticket.clone().unwrap();
    let made = flight::ticket(&question).unwrap();
    assert_eq!(made, given);
    let mut ask = async |question: &QueryRequest<'_>| -> Result<Vec<Vec<String>>, FlightError> {
        let rows = served.client.do_get(flight::ticket(question).unwrap()).await?;
        Ok(cells(&rows.try_collect::<Vec<_>>().await?))
    };
    assert_eq!(ask(&question).await.unwrap(), [["101"]]);
    // Its limits hold, and so does what queries may do, each said once.
    let narrow = QueryRequest { sql: "SELECT step FROM python.steps", rows: Some(1), ..question };
    assert_eq!(ours(ask(&narrow).await.unwrap_err()).kind(), ErrorKind::Limit);
    let writes = QueryRequest { sql: "DROP TABLE python.steps", ..question };
    assert_eq!(ours(ask(&writes).await.unwrap_err()).kind(), ErrorKind::Denied);
    // Values go with it.
    let values = Parameters::new(vec![("pid".into(), ScalarValue::Int64(Some(100)))]).unwrap();
    let sql = "SELECT COUNT(DISTINCT pid) FROM python.steps WHERE pid = $pid";
    assert_eq!(ask(&QueryRequest { sql, pid: None, parameters: &values, ..question }).await.unwrap(), [["1"]]);
    let sql = "SELECT status, only_pid FROM probe.queries WHERE status <> 'running' ORDER BY id";
    let seen = ask(&QueryRequest { sql, pid: None, rows: None, ..question }).await.unwrap();
    assert_eq!(seen, [["ok", "101"], ["limit", "101"], ["denied", "101"], ["ok", "NULL"]]);
}

/// What the first call planned may wait for the second one, and holds no rows meanwhile.
#[tokio::test]
async fn rows_are_those_at_the_time_when_they_are_asked_for() {
    let store = data::store();
    let mut served = serve(QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap()).await;
    let sql = "SELECT COUNT(*) AS new, (SELECT COUNT(*) FROM python.torch_trace) AS whole
        FROM python.torch_trace WHERE step = 77";
    let mut agent = data::Agent::new(0);
    for more in 1..=3_usize {
        let info = served.client.execute(sql.into(), None).await.unwrap();
        let before = served.query("SELECT COUNT(*) FROM python.torch_trace").await[0][0].parse::<usize>().unwrap();
        let row = agent.trace(77, None, "forward", 0.5);
        agent.send(&store, [row]);
        assert_eq!(cells(&served.fetch(info).await.unwrap()), [[more.to_string(), (before + 1).to_string()]]);
    }
}

#[tokio::test]
async fn prepared_statements() {
    let mut served = serve(data::live()).await;
    let mut statement = served.client.prepare("SELECT MAX(step) AS last FROM python.steps".into(), None).await.unwrap();
    assert_eq!(statement.dataset_schema().unwrap().field(0).name(), "last");
    for _ in 0..2 {
        let info = statement.execute().await.unwrap();
        assert_eq!(cells(&served.fetch(info).await.unwrap()), [["3"]]);
    }
    assert!(statement.execute_update().await.is_err());
    statement.close().await.unwrap();
    let error = ours(served.client.prepare("DROP TABLE python.steps".into(), None).await.map(|_| ()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Denied);
}

/// A row of parameters.
fn row(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

#[tokio::test]
async fn a_prepared_statement_takes_values_by_name_and_by_place() {
    let mut served = serve(data::live()).await;
    let by_name = "SELECT COUNT(*) FROM python.steps WHERE step > $first AND step <= $last AND $text IS NULL";
    let mut statement = served.client.prepare(by_name.into(), None).await.unwrap();
    let parameters = statement.parameter_schema().unwrap();
    let named: Vec<_> = parameters.fields().iter().map(|field| (field.name().as_str(), field.data_type())).collect();
    assert_eq!(named, [("first", &DataType::Int64), ("last", &DataType::Int64), ("text", &DataType::Null)]);
    // The same statement with other values, and in another order than they stand in.
    for (first, last, rows) in [(0, 2, "4"), (2, 3, "2")] {
        let integer = |value: i64| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
        let text = Arc::new(StringArray::from(vec![None::<&str>])) as ArrayRef;
        statement
            .set_parameters(row(vec![("text", text), ("last", integer(last)), ("$first", integer(first))]))
            .unwrap();
        let info = statement.execute().await.unwrap();
        assert_eq!(cells(&served.fetch(info).await.unwrap()), [[rows]]);
    }
    for by_position in ["SELECT $2 || '!', $1 + 1", "SELECT ? + 1, ? || '!'"] {
        let mut statement = served.client.prepare(by_position.into(), None).await.unwrap();
        let (one, two) =
            (Arc::new(Int32Array::from(vec![1])) as ArrayRef, Arc::new(StringArray::from(vec!["'; --"])) as _);
        statement.set_parameters(row(vec![("0", one), ("1", two)])).unwrap();
        let info = statement.execute().await.unwrap();
        let mut found = cells(&served.fetch(info).await.unwrap()).remove(0);
        found.sort_unstable();
        assert_eq!(found, ["'; --!", "2"], "{by_position}");
    }
    // DataFusion asks for these while it plans.
    let sql = "SELECT COUNT(*) FROM generate_series($first, $last + 1) WHERE value > $first";
    let mut statement = served.client.prepare(sql.into(), None).await.unwrap();
    let (first, last) =
        (Arc::new(Int64Array::from(vec![3])) as ArrayRef, Arc::new(Int32Array::from(vec![9])) as ArrayRef);
    statement.set_parameters(row(vec![("first", first), ("last", last)])).unwrap();
    let info = statement.execute().await.unwrap();
    assert_eq!(cells(&served.fetch(info).await.unwrap()), [["7"]]);
}

#[tokio::test]
async fn what_does_not_fit_a_statements_parameters_is_said() {
    let mut served = serve(data::live()).await;
    let integer = |value: i64| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
    let sql = "SELECT COUNT(*) FROM python.steps WHERE step > $first";
    let error = ours(served.client.execute(sql.into(), None).await.unwrap_err());
    assert_eq!(error.to_string(), "the query has a parameter $first, and no value is given for it");
    let two_rows = row(vec![("first", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]);
    let text = row(vec![("first", Arc::new(StringArray::from(vec!["soon"])) as ArrayRef)]);
    for (sql, values, says) in [
        (sql, row(vec![("frist", integer(1))]), "no value is given for it"),
        (sql, row(vec![("first", integer(1)), ("last", integer(1))]), "the query has no such parameter"),
        (sql, two_rows, "2 rows of parameters"),
        (sql, text, "Cannot cast string 'soon'"),
        ("SELECT $1", row(vec![("0", integer(1)), ("1", integer(1))]), "the query has 1 parameters, and 2 values"),
        ("SELECT 1", row(vec![("first", integer(1))]), "the query has no such parameter"),
    ] {
        let mut statement = served.client.prepare(sql.into(), None).await.unwrap();
        statement.set_parameters(values).unwrap();
        let asked = match statement.execute().await {
            Ok(info) => served.client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.map(|_| ()),
            Err(error) => Err(error),
        };
        let error = format!("{:?}", asked.unwrap_err());
        assert!(error.contains(says), "{sql}: {error}");
    }
    let mixed = served.client.prepare("SELECT ? + $a".into(), None).await.map(|_| ()).unwrap_err();
    assert!(ours(mixed).to_string().contains("two kinds"));
}

#[tokio::test]
async fn updates_are_denied() {
    let mut served = serve(data::live()).await;
    for sql in ["DELETE FROM python.steps", "COPY python.steps TO '/tmp/steps'", "SELECT 1"] {
        let error = ours(served.client.execute_update(sql.into(), None).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Denied, "{sql}: {error}");
    }
}

#[tokio::test]
async fn errors_come_with_their_hints() {
    let mut served = serve(data::live()).await;
    let error = ours(served.client.execute("SELECT * FROM python.stepz".into(), None).await.unwrap_err());
    assert_eq!((error.kind(), error.hint_text()), (ErrorKind::Failed, Some("did you mean python.steps?")));
    // One that shows only when the query runs.
    let sql = "SELECT step / (step - step) FROM python.steps";
    let info = served.client.execute(sql.into(), None).await.unwrap();
    let Err(FlightError::Tonic(status)) = served.fetch(info).await else { panic!("{sql} should have failed") };
    assert_eq!(status.message(), "Divide by zero error");
    assert_eq!(Error::from(Status::clone(&status)).kind(), ErrorKind::Failed);
}

#[tokio::test]
async fn catalogs_schemas_tables_and_what_the_server_is() {
    let mut served = serve(data::live()).await;
    let info = served.client.get_catalogs().await.unwrap();
    assert_eq!(cells(&served.fetch(info).await.unwrap()), [["probe"]]);

    let info = served.client.get_db_schemas(CommandGetDbSchemas::default()).await.unwrap();
    assert_eq!(
        cells(&served.fetch(info).await.unwrap()),
        [["probe", "gpu"], ["probe", "my"], ["probe", "probe"], ["probe", "process"], ["probe", "python"]]
    );

    let info = served.client.get_table_types().await.unwrap();
    assert_eq!(cells(&served.fetch(info).await.unwrap()), [["TABLE"], ["VIEW"]]);

    let filter = CommandGetTables { db_schema_filter_pattern: Some("py%".into()), ..Default::default() };
    let info = served.client.get_tables(filter).await.unwrap();
    let tables = cells(&served.fetch(info).await.unwrap());
    let names: Vec<&str> = tables.iter().map(|row| row[2].as_str()).collect();
    let known = TABLES.iter().copied().chain(probe_query::views());
    let mut expected: Vec<&str> = known.filter(|table| table.schema == "python").map(|table| table.name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);

    // One more is the program's own.
    let with_schema = CommandGetTables { include_schema: true, ..Default::default() };
    let info = served.client.get_tables(with_schema).await.unwrap();
    assert_eq!(cells(&served.fetch(info).await.unwrap()).len(), TABLES.len() + probe_query::views().len() + 1);

    let info = served.client.get_sql_info(vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerReadOnly]).await;
    let facts = cells(&served.fetch(info.unwrap()).await.unwrap());
    assert_eq!(facts.len(), 2);
    assert!(facts[0][1].contains("probe"), "{facts:?}");
}

#[tokio::test]
async fn every_query_is_written_down_with_who_asked_and_what_became_of_it() {
    let audit = Arc::new(QueryAudit::default());
    let mut system = data::system();
    system.retain(|table| table.table().name != "queries");
    system.push(Arc::clone(&audit) as _);
    let mut served = serve_audited(QueryEngine::new(data::store(), system).unwrap(), audit).await;
    served.query("SELECT step FROM python.steps").await;
    for refused in ["COPY python.steps TO '/tmp/x'", "SELECT nothing FROM python.steps"] {
        served.client.execute(refused.to_owned(), None).await.unwrap_err();
    }
    served.client.execute_update("SELECT 1".to_owned(), None).await.unwrap_err();
    // An answer whose rows are not taken to the end.
    let info = served.client.execute("SELECT value FROM generate_series(1, 10000000)".to_owned(), None).await.unwrap();
    let mut rows = served.client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    rows.try_next().await.unwrap().unwrap();
    drop(rows);
    let sql =
        "SELECT asked_by LIKE 'uid:%' AND peer LIKE 'pid:%' AS who, status, rows, bytes > 0, sql FROM probe.queries";
    let mut seen = Vec::new();
    for _ in 0..10_000 {
        seen = served.query(&format!("{sql} WHERE id <= 5 ORDER BY id")).await;
        if seen[4][1] != "running" {
            break;
        }
    }
    let steps = ["true", "ok", "8", "true", "SELECT step FROM python.steps"];
    assert_eq!(seen[0], steps);
    assert_eq!(seen[1], ["true", "denied", "0", "false", "COPY python.steps TO '/tmp/x'"]);
    assert_eq!(seen[2], ["true", "error", "0", "false", "SELECT nothing FROM python.steps"]);
    assert_eq!(seen[3], ["true", "denied", "0", "false", "SELECT 1"]);
    assert_eq!(seen[4][..2], ["true", "cancelled"]);
    let sixth = served.query(&format!("{sql} WHERE id = 6")).await;
    assert_eq!(sixth[0][1], "ok");
}
