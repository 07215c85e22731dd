//! The time of day where the user is.

/// Hours, minutes and seconds of the day, in the user's time zone, of a time in seconds since 1970.
pub fn time_of_day(seconds: i64) -> [i32; 3] {
    // SAFETY: numbers and a pointer to a text, for which zero is a value.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads a number, and has room for the answer. (If there is no answer, it stays zero.)
    unsafe { libc::localtime_r(&seconds, &mut time) };
    [time.tm_hour, time.tm_min, time.tm_sec]
}
