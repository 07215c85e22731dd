//! A server that hosts an eBPF extension: `cargo run -p ring3-embed --example embed -- filter.bpf.o`.

use std::error::Error;

use ring3_embed::{Context, Function, Parameter, Returned, Settings, Use, Vm};

/// Bytes of `struct request` (request.h), and where its parts are.
const REQUEST_BYTES: usize = 64;
const USER: std::ops::Range<usize> = 8..24;
const PATH: std::ops::Range<usize> = 24..64;

fn request(port: u32, user: &str, path: &str) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&port.to_le_bytes());
    bytes[USER][..user.len()].copy_from_slice(user.as_bytes());
    bytes[PATH][..path.len()].copy_from_slice(path.as_bytes());
    bytes
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "filter.bpf.o".into());
    let vm = Vm::new()?;
    let parameters = vec![Parameter::Buffer { how: Use::Reads }, Parameter::Size { max: USER.len() as u32 }];
    vm.register(Function::new("is_known", parameters, Returned::Number(0..=1), |arguments| {
        u64::from(text(&arguments.to_vec(0)) == "root")
    }))?;
    let settings = Settings::new(Context::memory(REQUEST_BYTES as u32));
    let object = vm.load_object(&std::fs::read(file)?, &settings)?;
    let filter = object.program("filter")?;

    for (port, user, path) in
        [(80, "guest", "/index.html"), (80, "guest", "/admin/users"), (443, "root", "/admin/users")]
    {
        let verdict = filter.call(&mut request(port, user, path))?;
        println!("{path}: {}", if verdict == 0 { "pass" } else { "refuse" });
    }
    object.map("refused")?.consume(|request| {
        println!("refused: {} of {}", text(&request[PATH]), text(&request[USER]));
        true
    })?;
    for (port, count) in object.map("requests_by_port")?.entries()? {
        let (port, count) = (u32::from_le_bytes(port[..4].try_into()?), u64::from_le_bytes(count[..8].try_into()?));
        println!("port {port}: {count}");
    }
    let mut seen = [0; 8];
    object.map(".bss")?.read(0, &mut seen)?;
    println!("seen: {}", u64::from_le_bytes(seen));
    Ok(())
}
