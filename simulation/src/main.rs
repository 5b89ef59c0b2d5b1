//! Runs many seeds of the simulation on several workers, or one seed again.

use std::{
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use anyhow::Context as _;
use clap::Parser;
use postrider_simulation::{
    campaign::{self, Summary},
    laboratory::Laboratory,
    run,
};

#[derive(Debug, Parser)]
#[command(about = "Simulates Postrider with injected faults; everything follows from the seed")]
struct Arguments {
    /// How many seeds
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Worker processes, each with a PostgreSQL of its own
    #[arg(long, default_value_t = 2)]
    workers: u64,
    /// Broken seeds after which a worker stops
    #[arg(long, default_value_t = 3)]
    most_broken: usize,
    /// One seed only
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: every step
    #[arg(long)]
    trace: bool,
    /// Run here and write counts for another program
    #[arg(long, hide = true)]
    worker: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return replay(seed, arguments.trace);
    }
    let summary = if arguments.worker { work(&arguments)? } else { supervise(&arguments)? };
    if arguments.worker {
        for (what, count) in &summary.counts {
            println!("count\t{what}\t{count}");
        }
        println!("clean\t{}", summary.clean);
        for seed in &summary.broken {
            println!("broken\t{seed}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (what, count) in &summary.counts {
        println!("{count:>10}  {what}");
    }
    println!("{}", summary.told());
    Ok(if summary.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay(seed: u64, is_whole: bool) -> anyhow::Result<ExitCode> {
    let verdict = run::run(&mut Laboratory::open()?, seed)?;
    if is_whole {
        println!("{}", verdict.trace.lines.join("\n"));
    }
    println!("{}", campaign::describe(&verdict));
    Ok(if verdict.breach.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn work(arguments: &Arguments) -> anyhow::Result<Summary> {
    let seeds = arguments.from..arguments.from + arguments.seeds;
    Ok(campaign::run(&mut Laboratory::open()?, seeds, arguments.most_broken)?)
}

/// Failpoints are the whole process's, so workers are processes.
fn supervise(arguments: &Arguments) -> anyhow::Result<Summary> {
    let program = std::env::current_exe()?;
    let workers = arguments.workers.max(1);
    let mut running = Vec::new();
    let mut from = arguments.from;
    for number in 0..workers {
        let seeds = arguments.seeds / workers + u64::from(number < arguments.seeds % workers);
        let mut command = pinned(&program, number);
        command.args(["--worker", "--seeds", &seeds.to_string(), "--from", &from.to_string()]);
        command.args(["--most-broken", &arguments.most_broken.to_string()]);
        running.push(command.stdout(Stdio::piped()).spawn()?);
        from += seeds;
    }
    gather(running)
}

/// Takes the counts of all workers, once all have ended: whoever else fails, each stops its PostgreSQL itself.
fn gather(workers: Vec<Child>) -> anyhow::Result<Summary> {
    let outputs: Vec<_> = workers.into_iter().map(Child::wait_with_output).collect();
    let mut summary = Summary::default();
    for output in outputs {
        let output = output?;
        anyhow::ensure!(output.status.success(), "a worker failed: {}", output.status);
        for line in String::from_utf8(output.stdout)?.lines() {
            read(line, &mut summary).with_context(|| format!("a worker wrote `{line}`"))?;
        }
    }
    Ok(summary)
}

/// A worker and its PostgreSQL speak in turns: on one processor each wakes the other many times as fast.
fn pinned(program: &Path, number: u64) -> Command {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let has_taskset = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_taskset {
        return Command::new(program);
    }
    let processor = usize::try_from(number).unwrap_or_default() % processors;
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &processor.to_string()]).arg(program);
    command
}

fn read(line: &str, summary: &mut Summary) -> anyhow::Result<()> {
    match line.split('\t').collect::<Vec<_>>().as_slice() {
        ["count", what, count] => {
            *summary.counts.entry((*what).to_owned()).or_default() += count.parse::<u64>()?;
        }
        ["clean", count] => summary.clean += count.parse::<u64>()?,
        ["broken", seed] => summary.broken.push(seed.parse()?),
        _ => anyhow::bail!("nobody knows what it means"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_fails_leaves_no_other_behind() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("a shell starts")
        };
        let workers = vec![start("exit 1"), start("cat")];
        let last = Path::new("/proc").join(workers[1].id().to_string());
        assert!(last.exists());
        let failed = gather(workers).expect_err("the first one failed");
        assert!(failed.to_string().starts_with("a worker failed"), "{failed}");
        assert!(!last.exists(), "it has ended, and somebody has taken note of that");
    }
}
