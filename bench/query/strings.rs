//! How text is handed to DataFusion: as string views or as dictionaries. Ten million rows of a module and a stage each
//! way, in memory, the same question: what docs/design.md says of text at scans comes from here.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, DictionaryArray, Float64Array, RecordBatch, StringArray, StringViewArray, UInt16Array};
use arrow::datatypes::{DataType, Field, Schema, UInt16Type};
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::Result;

const ROWS: usize = 10_000_000;
const BATCH: usize = 8192;
const ROUNDS: usize = 15;
const QUERIES: [(&str, &str); 3] = [
    ("GROUP BY module, stage", "SELECT module, stage, COUNT(*), SUM(duration) FROM t GROUP BY module, stage"),
    ("GROUP BY module", "SELECT module, COUNT(*), SUM(duration) FROM t GROUP BY module"),
    ("WHERE stage = …", "SELECT COUNT(*), SUM(duration) FROM t WHERE stage = 'backward'"),
];

#[derive(Clone, Copy)]
enum StringLayout {
    Views,
    Dictionaries,
}

/// A column whose row `n` is `words[ids[n]]`. A scan makes either layout from ids, once a batch: that is measured too.
fn text(layout: StringLayout, words: &[String], ids: &[u16]) -> Result<ArrayRef> {
    Ok(match layout {
        StringLayout::Views => {
            let all = StringViewArray::from_iter_values(words);
            let ids = UInt16Array::from(ids.to_vec());
            arrow::compute::take(&all, &ids, None)?
        }
        StringLayout::Dictionaries => {
            let keys = UInt16Array::from(ids.to_vec());
            let values = Arc::new(StringArray::from_iter_values(words));
            Arc::new(DictionaryArray::<UInt16Type>::try_new(keys, values)?)
        }
    })
}

fn batches(layout: StringLayout, schema: &Arc<Schema>) -> Result<Vec<RecordBatch>> {
    let modules: Vec<String> = (0..128).map(|n| format!("transformer.h.{}.mlp.c_{}", n / 8, n % 8)).collect();
    let stages: Vec<String> = ["forward", "backward", "step"].map(str::to_owned).to_vec();
    let mut batches = Vec::with_capacity(ROWS / BATCH + 1);
    for first in (0..ROWS).step_by(BATCH) {
        let rows = first..(first + BATCH).min(ROWS);
        let module: Vec<u16> = rows.clone().map(|row| (row % 128) as u16).collect();
        let stage: Vec<u16> = rows.clone().map(|row| (row / 128 % 2) as u16).collect();
        let duration = Float64Array::from_iter_values(rows.map(|row| (row % 1000) as f64 * 1e-6));
        let columns = vec![text(layout, &modules, &module)?, text(layout, &stages, &stage)?, Arc::new(duration)];
        batches.push(RecordBatch::try_new(Arc::clone(schema), columns)?);
    }
    Ok(batches)
}

async fn context(layout: StringLayout) -> Result<(SessionContext, usize)> {
    let kind = match layout {
        StringLayout::Views => DataType::Utf8View,
        StringLayout::Dictionaries => DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Utf8)),
    };
    let fields = vec![
        Field::new("module", kind.clone(), false),
        Field::new("stage", kind, false),
        Field::new("duration", DataType::Float64, false),
    ];
    let schema = Arc::new(Schema::new(fields));
    let batches = batches(layout, &schema)?;
    let bytes = batches.iter().map(RecordBatch::get_array_memory_size).sum();
    let context = SessionContext::new_with_config(SessionConfig::new());
    let half = batches.len() / 2;
    let table = MemTable::try_new(schema, vec![batches[..half].to_vec(), batches[half..].to_vec()])?;
    context.register_table("t", Arc::new(table))?;
    Ok((context, bytes))
}

async fn seconds(context: &SessionContext, sql: &str) -> Result<f64> {
    let began = Instant::now();
    context.sql(sql).await?.collect().await?;
    Ok(began.elapsed().as_secs_f64())
}

/// Asks the queries over both layouts in turn, and prints the medians.
pub(crate) async fn measure() -> Result<()> {
    let (views, view_bytes) = context(StringLayout::Views).await?;
    let (dictionaries, dictionary_bytes) = context(StringLayout::Dictionaries).await?;
    println!("{ROWS} rows in memory: views {} MB, dictionaries {} MB", view_bytes >> 20, dictionary_bytes >> 20);
    for (name, sql) in QUERIES {
        let (mut of_views, mut of_dictionaries) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            of_views.push(seconds(&views, sql).await?);
            of_dictionaries.push(seconds(&dictionaries, sql).await?);
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2] * 1e3
        };
        let (of_views, of_dictionaries) = (median(&mut of_views), median(&mut of_dictionaries));
        let ratio = of_views / of_dictionaries;
        println!("{name:24} views {of_views:6.1} ms, dictionaries {of_dictionaries:6.1} ms, {ratio:.2} x");
    }
    Ok(())
}
