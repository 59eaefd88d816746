//! The command that `probe run` starts: the run's name, and whether the program exists.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use probe_common::run_name;

/// A run's name from its command line: the script's (`torchrun --nproc-per-node 2 train_gpt.py` is train_gpt), the
/// module's (`python -m tools.train` is train), else the program's.
pub(super) fn name_of(command: &[OsString]) -> String {
    let words = || command.iter().skip(1).filter_map(|word| word.to_str());
    let script = words().find(|word| word.ends_with(".py") && !word.starts_with('-'));
    let modules = words().zip(words().skip(1)).filter(|(option, _)| *option == "-m").map(|(_, module)| module);
    // python -m torch.distributed.run is a launcher as torchrun is.
    let module = modules.filter(|module| !module.starts_with("torch.distributed.")).last();
    let module = module.and_then(|module| module.rsplit('.').find(|part| *part != "__main__"));
    let program = command.first().map(Path::new);
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name =
        script.and_then(|script| stem(Path::new(script))).or(module.map(str::to_owned)).or(program.and_then(stem));
    allowed(&name.unwrap_or_default())
}

/// The nearest name that a run may have.
fn allowed(name: &str) -> String {
    let good = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let mut name: String = name.chars().map(good).take(48).collect();
    name = name.trim_start_matches(['.', '-']).to_owned();
    if run_name::check_name(&name).is_err() {
        // run.py and 123.py: words that mean something else to probe.
        name = if name.is_empty() { "run-1".to_owned() } else { format!("{name}-run") };
    }
    name
}

/// Why a program can't be started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LaunchFailure {
    /// There is no such program. Shells say 127.
    NotFound,
    /// The file may not be executed. Shells say 126.
    NotExecutable(PathBuf),
}

/// Looks for a program as `exec` would, so that nothing is started in vain.
pub(super) fn look_for(program: &OsStr) -> Result<(), LaunchFailure> {
    let executable =
        |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    let candidates: Vec<PathBuf> = if program.as_encoded_bytes().contains(&b'/') {
        vec![program.into()]
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|directory| directory.join(program)).collect()
    };
    if candidates.iter().any(|path| executable(path)) {
        return Ok(());
    }
    let existing = candidates.into_iter().find(|path| path.exists());
    Err(existing.map_or(LaunchFailure::NotFound, LaunchFailure::NotExecutable))
}

/// A command line as a person would type it.
pub(super) fn command_text(command: &[OsString]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
    let quoted = command.iter().map(|word| {
        let word = word.to_string_lossy();
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_run_is_called_like_its_script() {
        for (line, name) in [
            ("python train_gpt.py --lr 1", "train_gpt"),
            ("torchrun --nproc-per-node 2 examples/train_gpt.py", "train_gpt"),
            ("python -m torch.distributed.run --nproc-per-node=2 a/b.py", "b"),
            ("torchrun -m tools.train", "train"),
            ("python -m tools.train.__main__", "train"),
            ("python -m torch.distributed.run -m tools.train", "train"),
            ("/usr/bin/python3.11", "python3"),
            ("./go", "go"),
            ("python run.py", "run-run"),
            ("python 123.py", "123-run"),
            ("python é.py", "_"),
            ("python .py", "py"),
        ] {
            let found = name_of(&words(line));
            assert_eq!(found, name, "{line}");
            run_name::check_name(&found).unwrap();
        }
    }

    #[test]
    fn a_missing_program_is_told_from_one_that_may_not_run() {
        assert_eq!(look_for("sh".as_ref()), Ok(()));
        assert_eq!(look_for("/bin/sh".as_ref()), Ok(()));
        assert_eq!(look_for("no-such-program".as_ref()), Err(LaunchFailure::NotFound));
        assert_eq!(look_for("/etc/passwd".as_ref()), Err(LaunchFailure::NotExecutable("/etc/passwd".into())));
    }

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        assert_eq!(
            command_text(&["python".into(), "a b.py".into(), "it's".into(), "".into()]),
            r"python 'a b.py' 'it'\''s' ''"
        );
    }
}
