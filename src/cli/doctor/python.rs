//! The Python that would train: its version, torch's and the agent's.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use probe_proto::VERSION;
use serde::Deserialize;

use super::checks::{CheckResult, CheckState};

/// Prints what is installed, and imports none of it.
const CODE: &str = r#"
import importlib.metadata as m, importlib.util, json, platform, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"path": sys.executable, "python": platform.python_version(), "implementation": platform.python_implementation(), "torch": version("torch"), "agent": version("trainprobe"), "package": importlib.util.find_spec("probe_agent") is not None}))
"#;

/// How long an interpreter may take to start.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Deserialize)]
struct InterpreterFacts {
    path: String,
    python: String,
    implementation: String,
    torch: Option<String>,
    /// Version of the wheel.
    agent: Option<String>,
    /// Whether the agent can be imported, from a wheel or not.
    package: bool,
}

/// Checks the interpreter that PATH has for `python` or, without one, for `python3`.
pub(super) fn run_all() -> Vec<CheckResult> {
    let Some(program) = ["python", "python3"].into_iter().find_map(on_path) else {
        return vec![
            CheckResult::new("Python", CheckState::None, "there is no python on PATH")
                .remedy("activate the environment that trains"),
        ];
    };
    match ask(&program) {
        Ok(about) => judge(&about),
        Err(why) => vec![CheckResult::new("Python", CheckState::Missing, format!("{}: {why}", program.display()))],
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

fn ask(program: &PathBuf) -> Result<InterpreterFacts, String> {
    let words = |error: std::io::Error| error.to_string();
    let child = Command::new(program)
        .args(["-c", CODE])
        .env_remove(probe_proto::env::PROBE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(words)?;
    let began = Instant::now();
    while child.try_wait().map_err(words)?.is_none() {
        if began.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it did not start within {} s", TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // The output is one line, which the pipe holds: nothing had to be read meanwhile.
    let output = child.wait_with_output().map_err(words)?;
    serde_json::from_slice(&output.stdout).map_err(|_| "it does not say its version".to_owned())
}

fn judge(about: &InterpreterFacts) -> Vec<CheckResult> {
    let minor: Vec<u32> = about.python.split('.').take(2).filter_map(|part| part.parse().ok()).collect();
    let fits = about.implementation == "CPython" && minor.as_slice() >= [3, 9].as_slice();
    let python = format!("{} {} at {}", about.implementation, about.python, about.path);
    let mut findings = vec![match fits {
        true => CheckResult::new("Python", CheckState::Ok, python),
        false => CheckResult::new("Python", CheckState::Missing, python).remedy("the agent takes CPython 3.9 or newer"),
    }];
    findings.push(match &about.torch {
        Some(version) => CheckResult::new("torch", CheckState::Ok, version.clone()),
        None => CheckResult::new("torch", CheckState::None, "this Python has none")
            .remedy("activate the environment that trains"),
    });
    findings.push(match about.agent.as_deref() {
        Some(version) if version == VERSION => {
            CheckResult::new("agent", CheckState::Ok, format!("trainprobe {version}"))
        }
        Some(version) => {
            CheckResult::new("agent", CheckState::Limited, format!("trainprobe {version}, and this is probe {VERSION}"))
                .remedy(format!("{} -m pip install trainprobe=={VERSION}", about.path))
        }
        None if about.package => CheckResult::new(
            "agent",
            CheckState::Limited,
            "there is a probe_agent that is not from a wheel of trainprobe",
        )
        .remedy(format!("{0} -m pip uninstall probe-agent && {0} -m pip install trainprobe", about.path)),
        None => CheckResult::new(
            "agent",
            CheckState::Missing,
            "this Python has no trainprobe, so nothing records; probe PID stack works",
        )
        .remedy(format!("{} -m pip install trainprobe", about.path)),
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(python: &str, torch: Option<&str>, agent: Option<&str>) -> InterpreterFacts {
        InterpreterFacts {
            path: "/usr/bin/python".into(),
            python: python.into(),
            implementation: "CPython".into(),
            torch: torch.map(Into::into),
            agent: agent.map(Into::into),
            package: agent.is_some(),
        }
    }

    fn states(about: &InterpreterFacts) -> Vec<CheckState> {
        judge(about).iter().map(|finding| finding.state).collect()
    }

    #[test]
    fn versions_are_judged() {
        let judged = |python, torch, agent| states(&about(python, torch, agent));
        assert_eq!(judged("3.11.7", Some("2.15.0"), Some(VERSION)), [CheckState::Ok, CheckState::Ok, CheckState::Ok]);
        assert_eq!(judged("3.8.1", None, None), [CheckState::Missing, CheckState::None, CheckState::Missing]);
        assert_eq!(
            judged("3.14.0", Some("2.15.0"), Some("0.0.1")),
            [CheckState::Ok, CheckState::Ok, CheckState::Limited]
        );
    }

    #[test]
    fn an_agent_of_an_earlier_build_is_not_called_missing() {
        let earlier = InterpreterFacts { package: true, ..about("3.11.7", Some("2.15.0"), None) };
        assert_eq!(states(&earlier), [CheckState::Ok, CheckState::Ok, CheckState::Limited]);
    }
}
