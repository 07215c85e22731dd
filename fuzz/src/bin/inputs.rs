//! Writes generated inputs of a target into a directory: `inputs TARGET DIRECTORY COUNT`. A fuzzer begins with them.

use ring3_fuzz::{Random, target_of};

/// Another one than that of the tests.
const SEED: u64 = 2;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, directory, count] = &arguments[..] else { return Err("usage: inputs TARGET DIRECTORY COUNT".into()) };
    let target = target_of(name).ok_or_else(|| format!("no target {name}"))?;
    let count: u64 = count.parse().map_err(|_| "COUNT is a number")?;
    for number in 0..count {
        let input = (target.make)(&mut Random::new(SEED, number));
        std::fs::write(format!("{directory}/generated-{number}"), input)
            .map_err(|error| format!("{directory}: {error}"))?;
    }
    Ok(())
}
