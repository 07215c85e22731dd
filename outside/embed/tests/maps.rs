//! Maps from the application, and objects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ring3_embed::{Context, Engine, Error, Function, Maps, Parameter, Returned, Settings, Use, Vm};
use ring3_tests::root;

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const QUEUE: u32 = 22;
const RING: u32 = 27;

fn vm() -> Vm {
    Vm::new().expect("this machine runs programs")
}

/// The object of the examples; none without clang.
fn object() -> Option<Vec<u8>> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("ring3-embed-maps-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let object = directory.join("filter.bpf.o");
    let built = std::process::Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-I/usr/include/x86_64-linux-gnu", "-c"])
        .arg(root().join("examples/embed/filter.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status();
    let bytes = match built {
        Ok(status) => {
            assert!(status.success(), "clang compiles the example");
            Some(std::fs::read(&object).expect("the object"))
        }
        Err(error) => {
            println!("SKIPPED: clang: {error}");
            None
        }
    };
    let _ = std::fs::remove_dir_all(&directory);
    bytes
}

/// As the examples have it.
fn is_known() -> Function {
    let parameters = vec![Parameter::Buffer { how: Use::Reads }, Parameter::Size { max: 16 }];
    Function::new("is_known", parameters, Returned::Number(0..=1), |arguments| {
        u64::from(arguments.to_vec(0).starts_with(b"root\0"))
    })
}

fn request(port: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(&port.to_le_bytes());
    bytes[24..30].copy_from_slice(b"/admin");
    bytes
}

#[test]
fn a_hash_is_used_as_by_bpf() {
    let map = vm().create_map("hash", HASH, [4, 8, 8], 0).expect("a hash");
    let key = |key: u32| key.to_le_bytes();
    assert_eq!(map.lookup(&key(1)).expect("a key"), None);
    assert_eq!(map.next_key(None).expect("keys"), None);
    map.update(&key(1), &[1; 8], 1).expect("room");
    assert!(map.update(&key(1), &[2; 8], 1).expect_err("it exists").to_string().contains("EEXIST"));
    assert!(map.update(&key(2), &[2; 8], 2).expect_err("it does not").to_string().contains("ENOENT"));
    map.update(&key(1), &[3; 8], 0).expect("room");
    assert_eq!(map.lookup(&key(1)).expect("a key"), Some(vec![3; 8]));
    assert!(map.lookup(&[0; 3]).is_err() && map.update(&key(1), &[0; 7], 0).is_err());
    for other in 2..=8 {
        map.update(&key(other), &[other as u8; 8], 0).expect("room");
    }
    assert!(map.update(&key(9), &[9; 8], 0).expect_err("full").to_string().contains("E2BIG"));
    let entries: BTreeMap<Vec<u8>, Vec<u8>> = map.entries().expect("keys").into_iter().collect();
    assert_eq!(entries.len(), 8);
    assert_eq!(entries[&key(5).to_vec()], vec![5; 8]);
    assert!(map.delete(&key(5)).expect("a key") && !map.delete(&key(5)).expect("a key"));
    assert_eq!(map.entries().expect("keys").len(), 7);
}

#[test]
fn queues_arrays_and_per_cpu_values() {
    let vm = vm();
    let queue = vm.create_map("queue", QUEUE, [0, 4, 2], 0).expect("a queue");
    assert_eq!(queue.pop().expect("a queue"), None);
    queue.push(&[1; 4], 0).expect("room");
    queue.push(&[2; 4], 0).expect("room");
    assert!(queue.push(&[3; 4], 0).is_err());
    assert_eq!(queue.pop().expect("a queue"), Some(vec![1; 4]));
    let array = vm.create_map("array", ARRAY, [4, 8, 4], 0).expect("an array");
    assert!(array.delete(&[0; 4]).is_err());
    array.write(8, &[7; 8]).expect("there is one");
    assert_eq!(array.lookup(&1u32.to_le_bytes()).expect("a key"), Some(vec![7; 8]));
    assert!(array.write(4096, &[0]).is_err());
    assert_eq!(array.entries().expect("keys").len(), 4);
    let per_cpu = vm.create_map("per_cpu", PERCPU_ARRAY, [4, 4, 1], 0).expect("an array");
    assert!(per_cpu.value_size() >= 8, "8 bytes for each CPU");
    let text = format!(
        "*(u32 *)(r10 -4) = 0\nr1 = map[{}]\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n\
         r1 = *(u32 *)(r0 +0)\nr1 += 1\n*(u32 *)(r0 +0) = r1\nout:\nr0 = 0\nexit",
        per_cpu.id()
    );
    let program = vm.load_text(&text, &Settings::new(Context::none())).expect("valid");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| assert_eq!(program.call(&mut []), Ok(0))));
        }
    });
    let values = per_cpu.lookup(&[0; 4]).expect("a key").expect("an element");
    let sum: u32 = values.chunks(8).map(|value| u32::from_le_bytes(value[..4].try_into().expect("4 bytes"))).sum();
    assert_eq!(sum, 4000, "each CPU's value has one writer at a time");
    assert!(per_cpu.file().is_err(), "its parts belong to this process's threads");
}

#[test]
fn maps_that_cannot_be_made_say_why() {
    let vm = vm();
    for (kind, sizes) in [(HASH, [0, 8, 8]), (ARRAY, [8, 8, 8]), (RING, [0, 0, 5000]), (999, [4, 4, 4])] {
        let error = vm.create_map("wrong", kind, sizes, 0).expect_err("it is wrong").to_string();
        assert!(error.starts_with("the map wrong: "), "{error}");
    }
    let programs = vm.create_map("programs", 3, [4, 4, 4], 0).expect_err("no server").to_string();
    assert!(programs.contains("need a server"), "{programs}");
}

#[test]
fn who_waits_for_records_is_woken() {
    let vm = vm();
    let ring = vm.create_map("ring", RING, [0, 0, 4096], 0).expect("a ring buffer");
    let text = format!(
        "*(u64 *)(r10 -8) = 5\nr1 = map[{}]\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall bpf_ringbuf_output\nexit",
        ring.id()
    );
    let program = vm.load_text(&text, &Settings::new(Context::none())).expect("valid");
    assert!(!ring.wait(Duration::from_millis(5)));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| ring.wait(Duration::from_secs(20)));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(program.call(&mut []), Ok(0));
        assert!(waiter.join().expect("no panic"));
    });
    let mut records = 0;
    ring.consume(|record| {
        records += 1;
        assert_eq!(record, 5u64.to_le_bytes());
        true
    })
    .expect("a ring buffer");
    assert_eq!(records, 1);
    let began = Instant::now();
    assert!(!ring.wait(Duration::from_millis(30)), "it was consumed");
    assert!(began.elapsed() >= Duration::from_millis(30));
}

#[test]
fn an_object_is_loaded_with_its_variables_and_functions() {
    let Some(bytes) = object() else { return };
    for engine in [Engine::Jit, Engine::Interpreter] {
        let vm = vm();
        vm.register(is_known()).expect("free");
        let settings = Settings::new(Context::memory(64)).engine(engine);
        let object = vm.load_object(&bytes, &settings).unwrap_or_else(|error| panic!("{error}"));
        let filter = object.program("filter").expect("the object has it");
        assert_eq!(filter.call(&mut request(80)), Ok(1), "{engine:?}");
        let mut known = request(81);
        known[8..12].copy_from_slice(b"root");
        assert_eq!(filter.call(&mut known), Ok(0), "{engine:?}");
        let seen = object.map(".bss").expect("variables").lookup(&[0; 4]).expect("a key").expect("a value");
        assert_eq!(seen[..8], 2u64.to_le_bytes());
        assert_eq!(object.map("requests_by_port").expect("a hash").entries().expect("keys").len(), 2);
        assert!(object.program("other").expect_err("none").to_string().contains("only: filter"));
        assert!(object.map("other").expect_err("none").to_string().contains("requests_by_port"));
    }
}

#[test]
fn objects_that_cannot_be_loaded_say_why() {
    let vm = vm();
    let settings = Settings::new(Context::memory(64));
    let told =
        |bytes: &[u8], settings: &Settings| vm.load_object(bytes, settings).expect_err("it is wrong").to_string();
    assert!(told(b"", &settings).contains("not a BPF object file"));
    assert!(told(&[0x7f; 4096], &settings).contains("not a BPF object file"));
    let Some(bytes) = object() else { return };
    let missing = told(&bytes, &settings);
    assert!(missing.contains("the application has no symbol is_known"), "{missing}");
    vm.register(is_known()).expect("free");
    let small = told(&bytes, &Settings::new(Context::memory(20)));
    assert!(small.contains("refuses the program filter at instruction"), "{small}");
    assert!(told(&bytes, &settings.clone().only("other")).contains("no program other"));
    for length in (0..bytes.len()).step_by(97) {
        // (What is cut off may be what is not needed.)
        let _ = vm.load_object(&bytes[..length], &settings);
    }
    let wrong = vm.load_object_with(
        &bytes,
        &settings,
        Maps::new().share("nothing", &vm.create_map("m", HASH, [4, 8, 8], 0).expect("one")),
    );
    assert!(matches!(wrong, Err(Error::NotFound(_))));
}

#[test]
fn objects_share_maps_within_a_vm_and_across_files() {
    let Some(bytes) = object() else { return };
    let (first, second) = (vm(), vm());
    first.register(is_known()).expect("free");
    second.register(is_known()).expect("free");
    let settings = Settings::new(Context::memory(64));
    let one = first.load_object(&bytes, &settings).expect("valid");
    let counts = one.map("requests_by_port").expect("a hash");
    let file = counts.file().expect("a file").try_clone_to_owned().expect("a descriptor");
    let within =
        first.load_object_with(&bytes, &settings, Maps::new().share("requests_by_port", counts)).expect("valid");
    let across =
        second.load_object_with(&bytes, &settings, Maps::new().file("requests_by_port", file)).expect("valid");
    for object in [&one, &within, &across] {
        object.program("filter").expect("it has it").call(&mut request(80)).expect("it runs");
    }
    let count = counts.lookup(&80u32.to_le_bytes()).expect("a key");
    assert_eq!(count, Some(3u64.to_le_bytes().to_vec()));
    let other = first.create_map("other", HASH, [4, 8, 16], 0).expect("a hash");
    assert!(
        first.load_object_with(&bytes, &settings, Maps::new().share("requests_by_port", &other)).is_err(),
        "another size"
    );
    assert!(
        second.load_object_with(&bytes, &settings, Maps::new().share("requests_by_port", counts)).is_err(),
        "another Vm"
    );
    // A file that may shrink: whoever has it mapped would get SIGBUS.
    let path = std::env::temp_dir().join(format!("ring3-embed-unsealed-{}", std::process::id()));
    let unsealed = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("it is there");
    unsealed.set_len(1 << 24).expect("room");
    let refused = second.load_object_with(&bytes, &settings, Maps::new().file("requests_by_port", unsealed.into()));
    assert!(refused.expect_err("it may shrink").to_string().contains("may shrink"));
}

#[test]
fn constants_do_not_change() {
    let Some(bytes) = object() else { return };
    let vm = vm();
    vm.register(is_known()).expect("free");
    let object = vm.load_object(&bytes, &Settings::new(Context::memory(64))).expect("valid");
    let constants = object.maps().iter().find(|map| map.name().starts_with(".rodata")).expect("a string");
    assert!(constants.lookup(&[0; 4]).expect("a key").expect("a value").starts_with(b"/admin"));
    assert!(constants.write(0, &[0]).is_err());
    assert!(constants.update(&[0; 4], &vec![0; constants.value_size()], 0).is_err());
    assert!(constants.file().is_err());
}
