//! Compiles the crate anew when a migration is added: `sqlx::migrate!` alone only sees changes of known files.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
