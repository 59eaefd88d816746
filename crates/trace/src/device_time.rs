//! Device time follows the rule of host time, with the points in time at which a device reached the records that have an
//! event. It is known as long as all of those points are.

use super::calls::ModuleCalls;
use super::device::DeviceTimestamp;
use super::frame::ThreadFrame;
use super::thread::AnalysedThread;

impl AnalysedThread {
    /// Gives the device's time up to a record to what is open, as for the host's time.
    pub(super) fn advance_device(&mut self, now: DeviceTimestamp, calls: &mut ModuleCalls) {
        if now == DeviceTimestamp::None {
            return;
        }
        let time = now.since(std::mem::replace(&mut self.device, now));
        // As on the host, backward begins with its first node.
        if !matches!(self.frames.last(), Some(ThreadFrame::Pass(pass)) if pass.owner.is_none()) {
            let part = self.part();
            self.parts.device.credit(part, time);
        }
        match self.frames.last_mut() {
            Some(ThreadFrame::Module { call, .. }) => {
                if let Some(call) = calls.get_mut(*call) {
                    call.device.add(time);
                }
            }
            Some(ThreadFrame::Optimizer { device, .. }) => device.add(time),
            Some(ThreadFrame::Pass(pass)) => {
                pass.on_device = true;
                if pass.owner.is_some() {
                    pass.device_linger.add(time);
                }
            }
            Some(ThreadFrame::Node { owner }) => {
                let owner = *owner;
                if let Some(pass) = self.innermost_pass() {
                    pass.on_device = true;
                    pass.work.entry(owner).or_default().device.add(time);
                }
            }
            Some(ThreadFrame::Data { .. } | ThreadFrame::Suspended | ThreadFrame::Checkpoint { .. }) | None => {}
        }
    }
}
