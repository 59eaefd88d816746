//! SQL over the store.

mod system;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;

pub(crate) use self::system::system_segment;
pub use self::system::{SystemRows, SystemTable};

use crate::error::{Error, Result};
use crate::store::Store;

/// Answers SQL over a store and the collector's own tables.
#[derive(Debug)]
pub struct Engine {
    #[allow(dead_code)]
    store: Arc<Store>,
    #[allow(dead_code)]
    system: Vec<Arc<dyn SystemTable>>,
}

impl Engine {
    /// One over these.
    pub fn new(store: Arc<Store>, system: Vec<Arc<dyn SystemTable>>) -> Result<Self> {
        Ok(Self { store, system })
    }

    /// Runs a query; `pid` is for only that process's rows.
    pub async fn query(&self, _sql: &str, _pid: Option<i32>) -> Result<SendableRecordBatchStream> {
        Err(Error::failed("being built"))
    }

    /// The columns that a query answers with.
    pub async fn schema(&self, _sql: &str, _pid: Option<i32>) -> Result<SchemaRef> {
        Err(Error::failed("being built"))
    }
}
