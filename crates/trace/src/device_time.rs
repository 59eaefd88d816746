//! Device time follows the rule of host time, with the points in time at which a device reached the records that have an
//! event. It is known as long as all of those points are.

use super::calls::Calls;
use super::device::Device;
use super::frame::Frame;
use super::thread::Thread;

impl Thread {
    /// Gives the device's time up to a record to what is open, as for the host's time.
    pub(super) fn advance_device(&mut self, now: Device, calls: &mut Calls) {
        if now == Device::None {
            return;
        }
        let time = now.since(std::mem::replace(&mut self.device, now));
        // As on the host, backward begins with its first node.
        if !matches!(self.frames.last(), Some(Frame::Pass(pass)) if pass.owner.is_none()) {
            let part = self.part();
            self.parts.device.credit(part, time);
        }
        match self.frames.last_mut() {
            Some(Frame::Module { call, .. }) => {
                if let Some(call) = calls.get_mut(*call) {
                    call.device.add(time);
                }
            }
            Some(Frame::Optimizer { device, .. }) => device.add(time),
            Some(Frame::Pass(pass)) => {
                pass.on_device = true;
                if pass.owner.is_some() {
                    pass.device_linger.add(time);
                }
            }
            Some(Frame::Node { owner }) => {
                let owner = *owner;
                if let Some(pass) = self.pass() {
                    pass.on_device = true;
                    pass.work.entry(owner).or_default().device.add(time);
                }
            }
            Some(Frame::Data { .. } | Frame::Suspended | Frame::Checkpoint { .. }) | None => {}
        }
    }
}
