//! The C API: maps.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use super::c_api::{Failure, Machine, guarded, listed, seen, text};
use crate::Map;

/// `ring3_map_find`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, `name` is null or a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_map_find(vm: *const Machine, name: *const c_char) -> *const Map {
    let found = guarded(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the map's name") }?;
        let state = machine.state();
        let found = state.maps.iter().rev().find(|map| map.name() == name);
        let absent = || crate::Error::NotFound(format!("map {name}"));
        Ok(std::ptr::from_ref::<Map>(found.ok_or_else(absent)?))
    });
    found.unwrap_or(std::ptr::null())
}

/// `ring3_map_create`
///
/// # Safety
/// `vm` is null or of `ring3_vm_new`, `name` is null or a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_map_create(
    vm: *const Machine,
    name: *const c_char,
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> *const Map {
    let made = guarded(|| {
        // SAFETY: this function's contract.
        let machine = unsafe { seen(vm, "the machine") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "the map's name") }?;
        let map = Box::new(machine.vm().create_map(name, map_type, [key_size, value_size, max_entries], flags)?);
        let handle = std::ptr::from_ref::<Map>(&map);
        machine.state().maps.push(map);
        Ok(handle)
    });
    made.unwrap_or(std::ptr::null())
}

macro_rules! maps {
    ($($(#[$doc:meta])* fn $name:ident($map:ident $(, $argument:ident: $type:ty)*) -> $result:ty $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// `map` is null or of `ring3_map_find` or `ring3_map_create`, and its machine is there; other pointers are null or lead
            /// to as many bytes as `ring3.h` says.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(map: *const Map $(, $argument: $type)*) -> $result {
                let answer = guarded(|| {
                    // SAFETY: this function's contract.
                    let $map = unsafe { seen(map, "the map") }?;
                    $body
                });
                answer.unwrap_or_else(|code| code as $result)
            }
        )*
    };
}

maps! {
    /// `ring3_map_lookup`
    fn ring3_map_lookup(map, key: *const u8, value: *mut u8) -> c_int {
        // SAFETY: this function's contract.
        let key = unsafe { listed(key, map.key_size(), "the key") }?;
        let Some(found) = map.lookup(key)? else { return Ok(0) };
        // SAFETY: this function's contract.
        unsafe { put(&found, value) }?;
        Ok(1)
    }

    /// `ring3_map_update`
    fn ring3_map_update(map, key: *const u8, value: *const u8, flags: u64) -> c_int {
        // SAFETY: this function's contract.
        let key = unsafe { listed(key, map.key_size(), "the key") }?;
        // SAFETY: this function's contract.
        let value = unsafe { listed(value, map.value_size(), "the value") }?;
        map.update(key, value, flags)?;
        Ok(0)
    }

    /// `ring3_map_delete`
    fn ring3_map_delete(map, key: *const u8) -> c_int {
        // SAFETY: this function's contract.
        let key = unsafe { listed(key, map.key_size(), "the key") }?;
        Ok(c_int::from(map.delete(key)?))
    }

    /// `ring3_map_next_key`
    fn ring3_map_next_key(map, key: *const u8, next: *mut u8) -> c_int {
        let key = if key.is_null() {
            None
        } else {
            // SAFETY: this function's contract.
            Some(unsafe { listed(key, map.key_size(), "the key") }?)
        };
        let Some(found) = map.next_key(key)? else { return Ok(0) };
        // SAFETY: this function's contract.
        unsafe { put(&found, next) }?;
        Ok(1)
    }

    /// `ring3_map_push`
    fn ring3_map_push(map, value: *const u8, flags: u64) -> c_int {
        // SAFETY: this function's contract.
        map.push(unsafe { listed(value, map.value_size(), "the value") }?, flags)?;
        Ok(0)
    }

    /// `ring3_map_pop`
    fn ring3_map_pop(map, value: *mut u8) -> c_int {
        let Some(found) = map.pop()? else { return Ok(0) };
        // SAFETY: this function's contract.
        unsafe { put(&found, value) }?;
        Ok(1)
    }

    /// `ring3_map_read`
    fn ring3_map_read(map, offset: u64, to: *mut u8, bytes: usize) -> c_int {
        let end = offset.checked_add(bytes as u64);
        let size = map.value_size() as u64 * u64::from(map.max_entries());
        if end.is_none_or(|end| end > size.next_multiple_of(8)) {
            return Err(Failure::invalid(format!("the map {} has no such bytes", map.name())));
        }
        let mut copy = vec![0; bytes];
        map.read(offset, &mut copy)?;
        // SAFETY: this function's contract.
        unsafe { put(&copy, to) }?;
        Ok(0)
    }

    /// `ring3_map_write`
    fn ring3_map_write(map, offset: u64, from: *const u8, bytes: usize) -> c_int {
        // SAFETY: this function's contract.
        map.write(offset, unsafe { listed(from, bytes, "the bytes") }?)?;
        Ok(0)
    }

    /// `ring3_map_consume`
    fn ring3_map_consume(map, record: Option<CRecord>, data: *mut c_void) -> i64 {
        let record = record.ok_or_else(|| Failure::invalid("the function is NULL"))?;
        let take = |bytes: &[u8]| {
            // SAFETY: the application has given a function of this type.
            let ends = unsafe { record(data, bytes.as_ptr().cast(), bytes.len()) };
            ends == 0
        };
        Ok(map.consume(take)? as i64)
    }

    /// `ring3_map_wait`
    fn ring3_map_wait(map, milliseconds: u32) -> c_int {
        Ok(c_int::from(map.wait(Duration::from_millis(u64::from(milliseconds)))))
    }

    /// `ring3_map_file`
    fn ring3_map_file(map) -> c_int {
        let file = map.file()?.try_clone_to_owned();
        Ok(file.map_err(|error| Failure::invalid(format!("the map's file: {error}")))?.into_raw_fd())
    }

    /// `ring3_map_id`
    fn ring3_map_id(map) -> u32 { Ok(map.id()) }
}

/// `ring3_record`
type CRecord = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;

/// `ring3_map_key_size`
///
/// # Safety
/// `map` is null or of `ring3_map_find` or `ring3_map_create`, and its machine is there.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_map_key_size(map: *const Map) -> usize {
    // SAFETY: this function's contract.
    guarded(|| Ok(unsafe { seen(map, "the map") }?.key_size())).unwrap_or(0)
}

/// `ring3_map_value_size`
///
/// # Safety
/// `map` is null or of `ring3_map_find` or `ring3_map_create`, and its machine is there.
#[unsafe(no_mangle)]
unsafe extern "C" fn ring3_map_value_size(map: *const Map) -> usize {
    // SAFETY: this function's contract.
    guarded(|| Ok(unsafe { seen(map, "the map") }?.value_size())).unwrap_or(0)
}

/// Copies bytes to where C wants them.
///
/// # Safety
/// `to` is null or leads to so many bytes.
unsafe fn put(bytes: &[u8], to: *mut u8) -> Result<(), Failure> {
    if to.is_null() && !bytes.is_empty() {
        return Err(Failure::invalid("where the bytes are to be is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    Ok(())
}
