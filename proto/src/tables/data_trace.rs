//! `python.data_trace`: every batch that the training loop was handed, and what it waited for.

use crate::table::{Text, Time};

crate::table! {
    python.data_trace, Agent, "One row per batch that a DataLoader, or an iterable given to probe_agent.watch, handed to the loop.";
    sort: [step, ts];
    examples: [
        "SELECT dataset, num_workers, COUNT(*) AS batches, SUM(wait) AS waited, AVG(queue_depth) AS ready FROM python.data_trace GROUP BY dataset, num_workers ORDER BY waited DESC",
        "SELECT d.step, d.batch_index, d.wait, d.queue_depth, s.duration FROM python.data_trace d JOIN python.steps s USING (run, rank, step) WHERE d.wait > 0.1 * s.duration ORDER BY d.wait DESC LIMIT 10",
        "SELECT dataset, COUNT(*) AS batches, AVG(padding) AS padding, MAX(padding) AS most FROM python.data_trace WHERE padding IS NOT NULL GROUP BY dataset ORDER BY padding DESC",
        "SELECT dataset, worker, COUNT(*) AS batches, AVG(fetch_time) AS fetch_time, MAX(fetch_time) AS longest FROM python.data_trace WHERE fetch_time IS NOT NULL GROUP BY dataset, worker ORDER BY fetch_time DESC",
    ];
    step: i64, "", "Optimizer steps finished when the batch was asked for.";
    batch_index: Option<i64>, "", "Index of the batch in its epoch, from 0. NULL when the iterator does not count.";
    dataset: Option<Text>, "", "Class name of the DataLoader's dataset, or of the watched iterable. It distinguishes training from validation.";
    ts: Time, "", "When the loop asked for it.";
    wait: f64, "s", "How long the loop waited for the batch. With num_workers 0 this is the loading itself.";
    num_workers: Option<i32>, "", "Worker processes that load; 0 loads on the training thread. NULL when the source is not a DataLoader.";
    queue_depth: Option<i32>, "batches", "Batches that were ready when the loop asked for one: finished by the workers and, with pinned memory, pinned (except the one being pinned). At 0 the loop has to wait. NULL without workers.";
    tasks_outstanding: Option<i32>, "batches", "Batches that were requested from workers and not delivered yet when the loop asked. NULL without workers.";
    prefetch_factor: Option<i32>, "batches", "Batches that each worker loads ahead. NULL without workers.";
    worker: Option<i32>, "", "Index of the worker that loaded the batch, from 0. NULL without workers, or when it is not known (iterators of other libraries; an iterable dataset when a worker comes to its end).";
    fetch_time: Option<f64>, "s", "How long the worker took to load the batch: the items of the dataset and collate_fn, without the way to the loop. NULL without workers (wait is the loading itself), for workers that were not forked (spawn, forkserver) or began before the agent, and when worker is NULL.";
    samples: Option<i64>, "", "First dimension of the batch's tensors. If they differ (boxes of all images beside the images), that of the tensor which matches the loader's batch_size, and of the same tensor in a smaller batch; without a batch_size, that of the first tensor. NULL when no tensor fits, and when the batch is neither a tensor nor a flat tuple, list or dictionary with one.";
    bytes: Option<i64>, "B", "Size of the batch. NULL unless it is a flat tuple, list or dictionary of at most 64 plain tensors.";
    padding: Option<f64>, "", "Share of the positions in the batch's sequences that are padding, from 0 to 1: those that repeat one value at the end of the samples, or at the beginning if more do so there. It is measured in every eighth batch of an epoch, from the first one on, in up to 128 of its samples, and in the first tensor of integers with two dimensions, or of 32-bit floats with three and zeros for padding, on the CPU, with 8 positions or more. NULL for other batches, and for masks and other tensors of 0 and 1.";
    pinned: Option<bool>, "", "Whether the DataLoader copies batches into pinned memory; NULL when the source is not a DataLoader.";
    persistent_workers: Option<bool>, "", "Whether workers stay alive between epochs; NULL when the source is not a DataLoader.";
    thread: i64, "", "Operating-system id of the thread that asked.";
}
