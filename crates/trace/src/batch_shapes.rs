//! The shapes that the outermost modules were given last.

use probe_proto::table::Text;

use super::persist::persist;

/// The largest number of modules that are remembered.
const MAX_MODULES: usize = 6;

/// The newest shape of the first tensor given to each of some modules.
#[derive(Debug, Default, Clone, Copy)]
pub struct BatchShapes {
    /// The address of each module and its shape, the newest first, without gaps.
    shapes: [Option<(u64, Text)>; MAX_MODULES],
}

persist!(BatchShapes { shapes });

impl BatchShapes {
    /// The shape for the module at `address`.
    pub fn shape_of(&self, address: u64) -> Option<Text> {
        self.shapes.iter().flatten().find(|(known, _)| *known == address).map(|(_, shape)| *shape)
    }

    /// Stores the shape that the module at `address` was given. The module that was given one longest ago is forgotten for it.
    pub(super) fn set(&mut self, address: u64, shape: Option<Text>) {
        let Some(shape) = shape else { return };
        let has_place = |known: &Option<(u64, Text)>| known.is_none_or(|(known, _)| known == address);
        let place = self.shapes.iter().position(has_place).unwrap_or(MAX_MODULES - 1);
        self.shapes[..=place].rotate_right(1);
        self.shapes[0] = Some((address, shape));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_shape_of_the_newest_modules_is_known() {
        let mut shapes = BatchShapes::default();
        let modules = MAX_MODULES as u64;
        for module in 0..modules {
            shapes.set(module, Some(Text(module as u32)));
        }
        shapes.set(0, Some(Text(100)));
        shapes.set(0, None);
        assert_eq!((shapes.shape_of(0), shapes.shape_of(1)), (Some(Text(100)), Some(Text(1))));
        shapes.set(modules, Some(Text(7)));
        assert_eq!(
            (shapes.shape_of(modules), shapes.shape_of(1), shapes.shape_of(0)),
            (Some(Text(7)), None, Some(Text(100)))
        );
    }
}
