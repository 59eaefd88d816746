//! Programs that start training processes: torchrun and its kin import torch and do not train. The agent has the same list
//! (`probe_agent/process.py`).

use std::ffi::OsString;

/// Modules that are run by `python -m`.
const MODULES: [&str; 5] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
];
/// Scripts, in whatever directory.
const SCRIPTS: [&str; 4] = ["torchrun", "accelerate", "accelerate-launch", "deepspeed"];

/// Whether the command line of an interpreter is a launcher's, by the module or script that it runs.
pub fn is_launcher(command: &[OsString]) -> bool {
    let mut words = command.iter().skip(1).filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        match word {
            "-m" => return words.next().is_some_and(|module| MODULES.contains(&module)),
            "-W" | "-X" => drop(words.next()),
            option if option.starts_with('-') => {}
            script => return SCRIPTS.contains(&script.rsplit('/').next().unwrap_or(script)),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_the_interpreter_runs() {
        let is = |line: &str| is_launcher(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(is("python -m torch.distributed.run --nproc-per-node 2 train.py"));
        assert!(is("python -u -X faulthandler /venv/bin/torchrun train.py"));
        assert!(is("/venv/bin/python /venv/bin/accelerate launch train.py"));
        assert!(is("python -u -m deepspeed.launcher.launch --world_info=x train.py"));
        assert!(!is("python train.py --launcher a b c /x/torchrun"));
        assert!(!is("python /work/deepspeed/train.py"));
        assert!(!is("python -m train torchrun"));
    }
}
