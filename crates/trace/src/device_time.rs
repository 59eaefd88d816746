//! Device time: the same rule as on the host, over the points in time at which a device came to the records that have
//! an event. It is known as long as every one of them is.

use super::calls::Calls;
use super::device::Device;
use super::frame::Frame;
use super::thread::Thread;

impl Thread {
    /// The device's time up to a record goes to what is open, as the host's does.
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
