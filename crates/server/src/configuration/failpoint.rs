//! Where tests make this process die, stand still or fall silent. Only debug builds have it: a release knows no such
//! variable and has no such places.

use postrider_store::failpoint::{self, Plan};

use super::problem::{Problem, Problems};
use crate::environment::Environment;

const VARIABLE: &str = "POSTRIDER_FAILPOINT";

/// Arms the failpoint that the variable names, if it is set, and takes the variable out of the environment, where it would
/// count as a misspelt setting.
pub(crate) fn arm(environment: &mut Environment) -> Result<(), Problems> {
    if let Some(plan) = read(environment)? {
        failpoint::arm(plan);
    }
    environment.remove(VARIABLE);
    Ok(())
}

fn read(environment: &Environment) -> Result<Option<Plan>, Problems> {
    let plan = environment.get(VARIABLE).map(str::parse).transpose();
    plan.map_err(|malformed: failpoint::Malformed| {
        Problems(vec![Problem { setting: VARIABLE.to_owned(), mend: format!("cannot be used: {malformed}") }])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: &str) -> Environment {
        Environment::from_iter([(VARIABLE.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_failpoint_is_read_or_refused_by_name() {
        assert_eq!(read(&Environment::default()).unwrap(), None);
        assert_eq!(read(&with("settle_written:kill:3")).unwrap(), "settle_written:kill:3".parse().ok());
        let said = read(&with("nowhere:kill:0")).unwrap_err().to_string();
        assert!(said.contains(VARIABLE) && said.contains("settle_written:kill:3"), "{said}");
    }
}
