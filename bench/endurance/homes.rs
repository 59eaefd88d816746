//! Commands over a home with many runs, and over one run with very many rows.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use probe_common::paths::ProbeDirectories;

use super::Result;
use super::process::{ServeProcess, probe, usage};
use super::sender::Sender;

/// Files of the large run: links to one file, so that they take no disk.
const LARGE_FILES: usize = 10_000;

/// Records a run called `name` with `batches` of rows, which ends or whose collector is killed.
async fn record(name: &str, batches: u64, killed: bool) -> Result<()> {
    let served = ServeProcess::start(name, &[]).await?;
    let mut sender = Sender::connect(&served.socket, name).await?;
    for seq in 1..=batches {
        sender.send(seq).await?;
    }
    sender.acknowledged(batches).await?;
    if killed { Ok(()) } else { served.stop() }
}

/// Makes copies of the run's directory as runs 2 to `count` of its name.
fn multiply(name: &str, count: usize) -> Result<()> {
    let runs = ProbeDirectories::from_environment()?.runs();
    let first = format!("{name}@1");
    for number in 2..=count {
        let (run, copy) = (format!("{name}@{number}"), runs.join(format!("{name}@{number}")));
        link(&runs.join(&first), &copy)?;
        let info = fs::read_to_string(runs.join(&first).join("run.json"))?.replace(&first, &run);
        fs::remove_file(copy.join("run.json"))?;
        fs::write(copy.join("run.json"), info)?;
    }
    Ok(())
}

/// Makes the tree of `from` at `to`, with hard links to its files.
fn link(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link(&entry.path(), &target)?;
        } else {
            fs::hard_link(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Runs a command of `probe`, and prints how long it took and what it used at most.
fn say(arguments: &[&str]) -> Result<()> {
    let began = Instant::now();
    let mut child = Command::new(probe()?).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let id = child.id();
    let reading = child.stdout.take().map(|mut out| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut out, &mut text).map(|_| text)
        })
    });
    let (mut resident, mut files, mut threads) = (0.0_f64, 0, 0);
    let status = loop {
        // The process may end before its usage is read.
        if let Ok(usage) = usage(id) {
            resident = resident.max(usage.most_resident);
            (files, threads) = (files.max(usage.files), threads.max(usage.threads));
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = began.elapsed().as_secs_f64();
    let text = reading.and_then(|reading| reading.join().ok()).transpose()?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    println!(
        "| `probe {}` | {seconds:.2} s | {resident:.0} MiB | {files} | {threads} | {} | {} |",
        arguments.join(" "),
        status.code().map_or("killed".to_owned(), |code| code.to_string()),
        text.lines().last().unwrap_or_default().trim().chars().take(60).collect::<String>()
    );
    Ok(())
}

fn head(title: &str) {
    println!("\n{title}\n");
    println!(
        "| | time | resident at most | open files | threads | status | its last line |\n|---|---|---|---|---|---|---|"
    );
}

/// A thousand runs that have ended.
pub(crate) async fn ended() -> Result<()> {
    record("many", 16, false).await?;
    multiply("many", 1000)?;
    head("A home with 1000 runs");
    say(&["runs"])?;
    say(&["runs", "--format", "json"])?;
    say(&["list"])?;
    say(&["many@500", "query", "--format", "csv", "SELECT COUNT(*) FROM python.torch_trace"])?;
    say(&["many", "query", "--format", "csv", "SELECT COUNT(*) FROM python.torch_trace"])?;
    say(&["run", "--name", "many", "true"])
}

/// A hundred runs whose collectors were killed with rows in their journals.
pub(crate) async fn lost() -> Result<()> {
    record("lost", 32, true).await?;
    multiply("lost", 100)?;
    head("A home with 100 runs whose collectors were killed");
    say(&["runs"])?;
    say(&["lost@50", "query", "--format", "csv", "SELECT COUNT(*) FROM python.torch_trace"])?;
    say(&["runs"])
}

/// 1e10 rows, asked of a collector that has them and of the directory of a run that has ended.
pub(crate) async fn large() -> Result<()> {
    // The files of a collector that was killed may be half written, so they are those of another run.
    record("source", 512, false).await?;
    record("large", 1, true).await?;
    let runs = ProbeDirectories::from_environment()?.runs();
    let (source, table) = (runs.join("source@1/python.torch_trace"), runs.join("large@1/python.torch_trace"));
    fs::create_dir_all(&table)?;
    let files: Vec<_> =
        fs::read_dir(&source)?.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?;
    let size = |path: &&std::path::PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
    let largest = files.iter().max_by_key(size).ok_or("no file")?;
    for number in 0..LARGE_FILES {
        fs::hard_link(largest, table.join(format!("{:08}.parquet", 1_000_000 + number)))?;
    }
    let questions = [
        "SELECT COUNT(*) FROM python.torch_trace",
        "SELECT MAX(step) FROM python.torch_trace",
        "SELECT COUNT(*) FROM python.torch_trace WHERE step < 0",
        "SELECT COUNT(*) FROM python.steps",
    ];
    let began = Instant::now();
    let served = ServeProcess::resume("large", &[("PROBE_DISK", "1T".into())]).await?;
    let usage = served.usage()?;
    head(&format!(
        "A live run with {LARGE_FILES} files, resumed in {:.2} s, {:.0} MiB",
        began.elapsed().as_secs_f64(),
        usage.resident
    ));
    for sql in questions {
        say(&["large", "query", "--format", "csv", sql])?;
    }
    println!("\nthe collector: {:.0} MiB at most", served.usage()?.most_resident);
    served.stop()?;
    head("The same run when it has ended");
    for sql in questions {
        say(&["large", "query", "--format", "csv", sql])?;
    }
    Ok(())
}
