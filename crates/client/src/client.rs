//! [`Client`]: asks a live collector, or a run's directory through an engine in this process.

use std::path::Path;
use std::sync::Arc;

use datafusion::catalog::CatalogProvider;
use futures::StreamExt;
use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths::ProbeDirectories;
use probe_proto::table::Table;
use probe_proto::tables::custom::is_reserved;
use probe_proto::v1;
use probe_query::{CATALOG, Parameters, QueryEngine, QueryLimits, QuerySettings};
use probe_store::Store;

use crate::answer::{AnswerBounds, QueryAnswer};
use crate::declared;
use crate::endpoint::{FoundEndpoint, RunLocation, live_hint};
use crate::live::LiveCollector;
use crate::remote::RemoteCatalog;

/// A connection to a live collector, or an engine over a run's directory.
pub struct Client {
    way: RowOrigin,
    /// The location of a collector that has not answered a query yet. If its run ends before the first answer, the client reads the
    /// run's directory instead. A run that ends later is an error, so that a caller that keeps asking learns of it.
    unanswered: Option<RunLocation>,
    pid: Option<u32>,
    bounds: AnswerBounds,
    parameters: Parameters,
}

enum RowOrigin {
    Live(LiveCollector),
    Recorded(Arc<QueryEngine>),
}

/// An engine over a run directory. Remarks about the directory are logged as warnings.
fn recorded(directory: &Path) -> Result<QueryEngine> {
    let (engine, remarks) = probe_collector::open_run(directory)?;
    for remark in remarks {
        tracing::warn!("{}: {remark}", directory.display());
    }
    Ok(engine)
}

/// The rows of a run whose collector has ended since it was found; None where it has not.
fn ended_meanwhile(location: &RunLocation) -> Option<Result<RowOrigin>> {
    let directory = location.ended_meanwhile(&ProbeDirectories::from_environment().ok()?)?;
    Some(recorded(&directory).map(|engine| RowOrigin::Recorded(Arc::new(engine))))
}

impl Client {
    /// Connects to `target`. `token_file` holds the token that a TCP port asks for.
    pub async fn open(target: &FoundEndpoint, token_file: Option<&Path>) -> Result<Self> {
        let way = match &target.location {
            RunLocation::Directory(directory) => RowOrigin::Recorded(Arc::new(recorded(directory)?)),
            location => match LiveCollector::connect(location, target.pid, token_file).await {
                Ok(live) => RowOrigin::Live(live),
                Err(error) => ended_meanwhile(location).unwrap_or(Err(error))?,
            },
        };
        let unanswered = matches!(way, RowOrigin::Live(_)).then(|| target.location.clone());
        Ok(Self { unanswered, ..Self::over(way, target.pid) })
    }

    /// A client of an engine in this process, which does not record its queries.
    pub fn of_engine(engine: Arc<QueryEngine>) -> Self {
        Self::over(RowOrigin::Recorded(engine), None)
    }

    fn over(way: RowOrigin, pid: Option<u32>) -> Self {
        Self { way, unanswered: None, pid, bounds: AnswerBounds::default(), parameters: Parameters::default() }
    }

    /// Another client of this collector, over the same connection; None for a run's directory.
    pub fn another(&self) -> Option<Self> {
        match &self.way {
            RowOrigin::Live(live) => {
                let another = Self::over(RowOrigin::Live(live.clone()), self.pid);
                Some(Self { bounds: self.bounds, parameters: self.parameters.clone(), ..another })
            }
            RowOrigin::Recorded(_) => None,
        }
    }

    /// Whether the client asks a live collector, and not a run's directory.
    pub fn is_live(&self) -> bool {
        matches!(self.way, RowOrigin::Live(_))
    }

    /// Sets the bounds of all later answers.
    pub fn set_bounds(&mut self, bounds: AnswerBounds) {
        self.bounds = bounds;
    }

    /// Sets the values of the `$name` parameters of all later queries.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.parameters = parameters;
    }

    /// Connects to `target` for queries that can also name the tables of `others`: those called b are `b.python.steps`
    /// and so on. They run in this process; tables of live runs are streamed to it, each once for every time that a
    /// query names it.
    pub async fn open_with(
        target: &FoundEndpoint,
        others: &[(String, FoundEndpoint)],
        token_file: Option<&Path>,
    ) -> Result<Self> {
        let mut catalogs: Vec<(String, Arc<dyn CatalogProvider>)> = Vec::new();
        for (name, other) in others {
            let catalog = match Self::open(other, token_file).await?.way {
                RowOrigin::Live(live) => Arc::new(RemoteCatalog::new(live).await?) as Arc<dyn CatalogProvider>,
                RowOrigin::Recorded(engine) => engine.catalog(None),
            };
            catalogs.push((name.clone(), catalog));
        }
        let engine = match Self::open(target, token_file).await?.way {
            // The engine was opened for this client alone.
            RowOrigin::Recorded(engine) => Arc::into_inner(engine).ok_or_else(|| Error::failed("the run is in use"))?,
            RowOrigin::Live(live) => {
                catalogs.push((CATALOG.to_owned(), Arc::new(RemoteCatalog::new(live).await?)));
                QueryEngine::with_limits(Store::new(0), Vec::new(), QueryLimits::default().of_command())?
            }
        };
        Ok(Self::of_engine(Arc::new(engine.with_catalogs(catalogs))))
    }

    /// The tables that the run's program declared.
    ///
    /// # Errors
    /// The collector's.
    pub async fn declared(&mut self) -> Result<Vec<&'static Table>> {
        let unanswered = self.unanswered.take();
        match self.list_declared().await {
            Err(error) => {
                self.read_directory(unanswered, error)?;
                self.list_declared().await
            }
            tables => tables,
        }
    }

    async fn list_declared(&mut self) -> Result<Vec<&'static Table>> {
        match &mut self.way {
            RowOrigin::Live(live) => declared::tables(live).await,
            RowOrigin::Recorded(engine) => {
                Ok(engine.tables().into_iter().filter(|table| !is_reserved(&table.full_name())).collect())
            }
        }
    }

    /// Runs a query.
    pub async fn query(&mut self, sql: &str) -> Result<QueryAnswer> {
        let unanswered = self.unanswered.take();
        match self.ask(sql).await {
            Err(error) => {
                self.read_directory(unanswered, error)?;
                self.ask(sql).await
            }
            answer => answer,
        }
    }

    /// Reads the run's directory from now on, where `error` came because the run that was `unanswered` has ended.
    ///
    /// # Errors
    /// `error` where it came for another reason.
    fn read_directory(&mut self, unanswered: Option<RunLocation>, error: Error) -> Result<()> {
        let unreachable = unanswered.filter(|_| error.kind() == ErrorKind::Unreachable);
        self.way = unreachable.as_ref().and_then(ended_meanwhile).unwrap_or(Err(error))?;
        Ok(())
    }

    async fn ask(&mut self, sql: &str) -> Result<QueryAnswer> {
        match &mut self.way {
            RowOrigin::Live(live) => live.query(sql, self.bounds, &self.parameters).await,
            RowOrigin::Recorded(engine) => {
                let pid = self.pid.map(|pid| pid as i32);
                let AnswerBounds { timeout, rows, bytes } = self.bounds;
                let parameters = self.parameters.clone();
                let asked = QuerySettings { pid, parameters, timeout, rows, bytes, ..QuerySettings::default() };
                let rows = engine.ask(sql, asked).await?;
                let schema = rows.schema();
                let batches = rows.map(|batch| batch.map_err(|error| probe_query::from_datafusion(&error)));
                Ok(QueryAnswer { schema, batches: Box::pin(batches) })
            }
        }
    }

    /// Describes the run: its collector and agents.
    pub async fn describe(&mut self) -> Result<v1::Description> {
        self.live("described")?.describe().await
    }

    /// Runs a snippet; the events come as they happen.
    pub async fn eval(&mut self, mut call: v1::EvalCall) -> Result<tonic::Streaming<v1::EvalEvent>> {
        call.pid = self.pid;
        self.live("given snippets")?.eval(call).await
    }

    /// Sets the settings in `values`, and returns the settings in force.
    pub async fn config(&mut self, values: std::collections::HashMap<String, String>) -> Result<v1::ConfigAnswer> {
        self.live("configured")?.config(values).await
    }

    /// Records the next steps in more detail, for a limited time.
    pub async fn watch(&mut self, call: v1::WatchCall) -> Result<v1::WatchAnswer> {
        self.live("watched more closely")?.watch(call).await
    }

    /// Reads the stacks of the run's processes.
    pub async fn stacks(&mut self, mut call: v1::StacksCall) -> Result<v1::StacksAnswer> {
        call.pid = self.pid;
        self.live("asked where its processes are")?.stacks(call).await
    }

    /// Captures some steps with torch.profiler; dropping the stream ends the capture.
    pub async fn capture(&mut self, mut call: v1::CaptureCall) -> Result<tonic::Streaming<v1::CaptureEvent>> {
        call.pid = self.pid;
        self.live("captured")?.capture(call).await
    }

    /// Analyses why no step finishes.
    pub async fn hang(&mut self) -> Result<v1::HangAnswer> {
        self.live("asked why it hangs")?.hang().await
    }

    /// Tells the collector that the command of the run has ended; the stream reports the progress of writing the run.
    pub async fn finish(&mut self, call: v1::FinishCall) -> Result<tonic::Streaming<v1::FinishProgress>> {
        self.live("ended")?.finish(call).await
    }

    fn live(&mut self, what: &str) -> Result<&mut LiveCollector> {
        match &mut self.way {
            RowOrigin::Live(live) => Ok(live),
            RowOrigin::Recorded(_) => {
                Err(Error::unreachable(format!("this run has ended; it can be queried, not {what}")).hint(live_hint()))
            }
        }
    }
}
