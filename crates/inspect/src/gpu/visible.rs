//! Which GPUs processes can see: by `CUDA_VISIBLE_DEVICES` in the environment that each was started with.

use std::collections::BTreeSet;
use std::io::ErrorKind;

/// The GPUs that the processes of a run see together. A process that changes its own environment later may see fewer, and never
/// others.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct VisibleGpus(Vec<CudaVariables>);

/// The variables that one process was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CudaVariables {
    /// `CUDA_VISIBLE_DEVICES`; None where it is not set.
    devices: Option<String>,
    /// Whether numbers stand for GPUs in the order of the bus, as the driver's do.
    by_bus: bool,
}

impl VisibleGpus {
    /// Adds a process of this node. A process that is ending sees no GPU any more; one whose environment may not be read may see
    /// all.
    pub fn add(&mut self, pid: i32) {
        let of_process = |file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
        let variables = match of_process("environ") {
            // A process without memory has no command line either.
            Ok(nothing) if nothing.is_empty() && of_process("cmdline").is_ok_and(|line| line.is_empty()) => return,
            Ok(environment) => CudaVariables::of(&environment),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => CudaVariables::of(&[]),
            Err(_) => return,
        };
        if !self.0.contains(&variables) {
            self.0.push(variables);
        }
    }

    /// The UUIDs of visible GPUs, of all GPUs by number and UUID. `alike`: they are all of one model, so that the order "fastest
    /// first" is that of the bus.
    pub fn choose(&self, all: &[(u32, String)], alike: bool) -> BTreeSet<String> {
        self.0.iter().flat_map(|variables| variables.choose(all, alike)).collect()
    }
}

impl CudaVariables {
    fn of(environment: &[u8]) -> Self {
        let find = |name: &str| {
            environment
                .split(|byte| *byte == 0)
                .filter_map(|entry| std::str::from_utf8(entry).ok())
                .find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
        };
        Self {
            devices: find("CUDA_VISIBLE_DEVICES").map(str::to_owned),
            by_bus: find("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID"),
        }
    }

    fn choose(&self, all: &[(u32, String)], alike: bool) -> Vec<String> {
        let everything = || all.iter().map(|(_, uuid)| uuid.clone()).collect();
        let Some(devices) = &self.devices else { return everything() };
        let mut chosen = Vec::new();
        // CUDA stops at the first item that is no GPU.
        for item in devices.split(',').map(str::trim) {
            let found = match item.parse::<u32>() {
                // In CUDA's own order it is not known which GPU the number stands for.
                Ok(_) if !self.by_bus && !alike => return everything(),
                Ok(number) => all.iter().find(|(index, _)| *index == number),
                // A slice of a GPU has a name of its own, which does not say of which GPU it is.
                Err(_) if item.starts_with("MIG-") => return everything(),
                Err(_) if item.starts_with("GPU-") => all.iter().find(|(_, uuid)| uuid.starts_with(item)),
                Err(_) => None,
            };
            match found {
                Some((_, uuid)) => chosen.push(uuid.clone()),
                None => break,
            }
        }
        chosen
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::sys::wait::WaitPidFlag;

    use super::*;

    fn chosen(environment: &str, alike: bool) -> String {
        let all: Vec<(u32, String)> = (0..4).map(|index| (index, format!("GPU-{index}{index}"))).collect();
        let visible = VisibleGpus(vec![CudaVariables::of(environment.as_bytes())]);
        visible.choose(&all, alike).into_iter().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn gpus_are_chosen_as_cuda_does() {
        let everything = "GPU-00 GPU-11 GPU-22 GPU-33";
        assert_eq!(chosen("HOME=/\0", true), everything);
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=2,0\0", true), "GPU-00 GPU-22");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=2, 3\0A=b", true), "GPU-22 GPU-33");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=1,-1,2\0", true), "GPU-11");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=\0", true), "");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=9\0", true), "");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=GPU-3,GPU-1\0", false), "GPU-11 GPU-33");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=1\0", false), everything);
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=1\0CUDA_DEVICE_ORDER=PCI_BUS_ID\0", false), "GPU-11");
        assert_eq!(chosen("CUDA_VISIBLE_DEVICES=MIG-77\0", true), everything);
    }

    #[test]
    fn a_process_that_ends_sees_nothing() {
        // The process has ended, and stays there without memory. (An empty command line alone would not show that: between two
        // programs it is empty too.)
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid));
        nix::sys::wait::waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let mut visible = VisibleGpus::default();
        visible.add(pid);
        child.wait().unwrap();
        visible.add(pid);
        assert_eq!(visible, VisibleGpus::default());
        visible.add(i32::try_from(std::process::id()).unwrap());
        assert_ne!(visible, VisibleGpus::default());
    }

    #[test]
    fn processes_see_what_one_of_them_sees() {
        let both = VisibleGpus(vec![
            CudaVariables::of(b"CUDA_VISIBLE_DEVICES=0"),
            CudaVariables::of(b"CUDA_VISIBLE_DEVICES=1"),
        ]);
        let all = [(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())];
        assert_eq!(both.choose(&all, true), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(VisibleGpus::default().choose(&all, true), BTreeSet::new());
    }
}
