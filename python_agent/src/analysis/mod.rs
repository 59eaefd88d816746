//! Records of the rings to rows of the tables, on the background thread.
