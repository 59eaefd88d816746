//! Tells the user's code from that of libraries.

/// Whether a file belongs neither to the standard library nor to an installed package. Code without a file (`python -c`, a
/// notebook's cell) is the user's, except modules that are frozen into the interpreter.
pub fn is_user_code(file: &str) -> bool {
    if file.starts_with('<') {
        return !file.starts_with("<frozen") && file != "<shim>";
    }
    let library = ["/site-packages/", "/dist-packages/", "/lib/python3.", "/lib/python3/", "/lib64/python3."];
    !library.iter().any(|part| file.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_from_users_code() {
        for ours in ["/home/me/train.py", "train.py", "<string>", "<stdin>", "<ipython-input-3-1>", "/lib/train.py"] {
            assert!(is_user_code(ours), "{ours}");
        }
        for library in [
            "/usr/lib/python3.11/threading.py",
            "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
            "/usr/lib/python3/dist-packages/x.py",
            "<frozen importlib._bootstrap>",
        ] {
            assert!(!is_user_code(library), "{library}");
        }
    }
}
