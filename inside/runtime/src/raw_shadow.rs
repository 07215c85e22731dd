//! The shadow stack: calls of probed functions whose return address is the trampoline's (docs/design/return-probes.md).
//!
//! A frame is found by the address of its stack slot, never by its order. So tail calls, `longjmp`, exceptions, signal stacks and
//! fibers work: a frame that is certainly dead is dropped, one that may be alive is kept. Frames are appended. Several frames can
//! have one slot, after a tail call to another probed function; the return address of the later ones is the trampoline itself, as
//! in the kernel's chained instances.
//!
//! The first frames lie in the thread's block, the others in chunks. The block takes chunks from a pool and keeps them, so
//! nothing is allocated. Each frame has the lowest slot of all frames up to it, so a deeper call need not search for its slot.
//!
//! A signal handler can interrupt every function here. It finds frames to which it can append, or it finds that frames are being
//! moved, and then does not. A place that is free, or not filled yet, has slot 0.
//!
//! A frame that goes leaves its place free if others lie behind it: moving these would take longer than all else where coroutines
//! await thousands of returns. Free places are taken away when dead frames are looked for. For the same reason a slot is searched by
//! the tags of frames, a byte of each, eight at a time.

use core::arch::asm;
use core::hint::cold_path;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

use ring3_layout::control::Hook;
use ring3_layout::region::SHADOW_OFFSET;
use ring3_layout::thread::{
    CHANGE_MOVE, CHANGE_PUSH, SHADOW_CHUNK_BYTES, SHADOW_CHUNK_FRAMES, SHADOW_CHUNK_TAGS_OFFSET, SHADOW_FRAMES,
    SHADOW_FRAMES_MAX, SHADOW_POOL_CHUNKS, ShadowFrame, THREADS_MAX, ThreadBlock,
};

use crate::raw_dispatch::{TAKEN_BYTES, is_on_alternate_stack};
use crate::raw_memory::{read_word, write};
use crate::raw_thread::{block_address, state};

/// After this many returns that could not be recorded, dead frames are looked for again: each look reads all slots.
const FULL_LOOKS_EVERY: u64 = 4096;
/// After so many searches among all frames dead ones are looked for, which takes about as long: a system call for each frame.
const SEARCHES_PER_LOOK: u64 = 4096;
/// Where no frame has room behind the last one, so many free places are as good a reason to look.
const HOLES_MAX: u32 = 4096;
/// Tags that are looked at together.
const TAGS: u32 = 8;

/// What a stack slot holds, if it can be read.
fn slot_content(tb: &ThreadBlock, slot: u64) -> Option<u64> {
    if slot == 0 {
        return None;
    }
    read_word(tb, slot).ok()
}

fn set_slot(tb: &ThreadBlock, slot: u64, content: u64) {
    // SAFETY: the source is a local word. A slot that is gone needs no change.
    let _ = unsafe { write(tb, slot, &raw const content as u64, 8) };
}

/// The place of a frame; null if it lies in a chunk that the block does not have.
#[inline(always)]
fn place(block: *mut ThreadBlock, index: u32) -> *mut ShadowFrame {
    if index >= SHADOW_FRAMES {
        cold_path();
        return place_in_chunk(block, index - SHADOW_FRAMES);
    }
    // SAFETY: a block that was handed out.
    let first = unsafe { &raw mut (*block).shadow };
    first.cast::<ShadowFrame>().wrapping_add(index as usize)
}

/// As `place`, but not inlined: for loops.
#[inline(never)]
fn any_place(block: *mut ThreadBlock, index: u32) -> *mut ShadowFrame {
    place(block, index)
}

/// The word with the chunk of a frame that does not lie in the block, and the block's region.
fn chunk_of(block: *mut ThreadBlock, behind: u32) -> Option<(&'static AtomicU32, u64)> {
    // SAFETY: a block that was handed out; these are atomic, and stay as long as the process.
    let chunks = unsafe { &(*block).shadow_chunks };
    // SAFETY: as above.
    let base = unsafe { &raw const (*block).region_base };
    // SAFETY: as above.
    Some((chunks.get((behind / SHADOW_CHUNK_FRAMES) as usize)?, unsafe { base.read() }))
}

/// The address of the chunk of a frame that does not lie in the block, if the block has it.
#[cold]
fn chunk_address(block: *mut ThreadBlock, behind: u32) -> Option<u64> {
    let (chunk, base) = chunk_of(block, behind)?;
    let number = chunk.load(Acquire).checked_sub(1)?;
    Some(base + SHADOW_OFFSET + u64::from(number) * SHADOW_CHUNK_BYTES)
}

#[cold]
fn place_in_chunk(block: *mut ThreadBlock, behind: u32) -> *mut ShadowFrame {
    let first = chunk_address(block, behind).unwrap_or(0) as *mut ShadowFrame;
    if first.is_null() { first } else { first.wrapping_add((behind % SHADOW_CHUNK_FRAMES) as usize) }
}

/// The tag of a frame whose place there is.
#[inline(always)]
fn tag(block: *mut ThreadBlock, index: u32) -> *mut u8 {
    if index >= SHADOW_FRAMES {
        cold_path();
        return tag_in_chunk(block, index - SHADOW_FRAMES);
    }
    // SAFETY: a block that was handed out.
    let first = unsafe { &raw mut (*block).shadow_tags };
    first.cast::<u8>().wrapping_add(index as usize)
}

#[cold]
fn tag_in_chunk(block: *mut ThreadBlock, behind: u32) -> *mut u8 {
    let first = chunk_address(block, behind).map_or(0, |chunk| chunk + SHADOW_CHUNK_TAGS_OFFSET) as *mut u8;
    first.wrapping_add((behind % SHADOW_CHUNK_FRAMES) as usize)
}

/// The slots among which those of a chunk's frames are: the word of the lowest and that of the highest one.
fn bounds(block: *mut ThreadBlock, behind: u32) -> [*mut u64; 2] {
    // SAFETY: a block that was handed out.
    let first = unsafe { &raw mut (*block).shadow_bounds }.cast::<u64>();
    let lowest = first.wrapping_add(2 * (behind / SHADOW_CHUNK_FRAMES) as usize);
    [lowest, lowest.wrapping_add(1)]
}

/// The contents of a word of `bounds`, which the block's owner may be changing.
fn bound_at(word: *mut u64) -> u64 {
    // SAFETY: a word of a block that was handed out.
    unsafe { word.read_volatile() }
}

fn set_bound(word: *mut u64, slot: u64) {
    // SAFETY: a word of the running thread's own block. (A signal handler's frames are gone when it returns.)
    unsafe { word.write_volatile(slot) };
}

/// A frame with this slot is about to be there.
#[cold]
fn widen_bounds(block: *mut ThreadBlock, behind: u32, slot: u64) {
    let [lowest, highest] = bounds(block, behind);
    set_bound(lowest, bound_at(lowest).min(slot));
    set_bound(highest, bound_at(highest).max(slot));
}

/// The first frame of a chunk, the only one that there is, is about to have this slot.
#[cold]
fn begin_bounds(block: *mut ThreadBlock, behind: u32, slot: u64) {
    bounds(block, behind).into_iter().for_each(|word| set_bound(word, slot));
}

/// Whether a frame of the chunk may have this slot.
fn may_have(block: *mut ThreadBlock, behind: u32, slot: u64) -> bool {
    let [lowest, highest] = bounds(block, behind).map(bound_at);
    (lowest..=highest).contains(&slot)
}

/// The tag of frames with this slot.
#[inline(always)]
fn tag_of(slot: u64) -> u8 {
    /// 2^64 by the golden ratio: all bits of a slot decide about the highest ones of the product.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (slot.wrapping_mul(SPREAD) >> 56) as u8
}

/// The latest frame with this slot among the first `used` ones. Adds to `searched` how many tags it has looked at.
fn find_last(block: *mut ThreadBlock, slot: u64, used: u32, searched: &mut u64) -> Option<u32> {
    let wanted = u64::from_ne_bytes([tag_of(slot); 8]);
    let mut end = used.min(SHADOW_FRAMES_MAX);
    while end != 0 {
        let start = (end - 1) / TAGS * TAGS;
        let first = match start {
            // (One look for a chunk, which ends where the tags of the next one begin.)
            SHADOW_FRAMES.. => start - (start - SHADOW_FRAMES) % SHADOW_CHUNK_FRAMES,
            _ => 0,
        };
        // (Of a chunk that could not be had there are none.)
        let may_be_there = first == 0 || may_have(block, first - SHADOW_FRAMES, slot);
        if may_be_there && !any_place(block, first).is_null() {
            *searched += u64::from(end - first);
            let found = find_among(block, (slot, wanted), first, end);
            if found.is_some() {
                return found;
            }
        }
        end = first;
    }
    None
}

/// As `find_last`, from the frame `first` on and before `end`, whose tags lie together.
fn find_among(block: *mut ThreadBlock, (slot, wanted): (u64, u64), first: u32, end: u32) -> Option<u32> {
    const LOWEST: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHEST: u64 = LOWEST << 7;
    let tags = tag(block, first).cast::<u64>();
    for group in (0..(end - first).div_ceil(TAGS)).rev() {
        // SAFETY: tags of a block that was handed out, whose owner may be changing them.
        let differ = unsafe { tags.wrapping_add(group as usize).read_volatile() } ^ wanted;
        // (Bytes that are 0, and maybe some behind such a one.)
        let mut hits = differ.wrapping_sub(LOWEST) & !differ & HIGHEST;
        while hits != 0 {
            let byte = hits.ilog2() / 8;
            hits ^= 0x80 << (8 * byte);
            let index = first + group * TAGS + byte;
            if index < end && frame_at(any_place(block, index)).slot == slot {
                return Some(index);
            }
        }
    }
    None
}

/// As `place`, but takes a chunk from the pool if the block does not have it yet; null if there is none.
#[inline(always)]
fn new_place(block: *mut ThreadBlock, index: u32) -> *mut ShadowFrame {
    if index >= SHADOW_FRAMES {
        cold_path();
        take_chunk(block, index - SHADOW_FRAMES);
    }
    place(block, index)
}

#[cold]
fn take_chunk(block: *mut ThreadBlock, behind: u32) {
    let Some((chunk, base)) = chunk_of(block, behind) else { return };
    let pool = &state(base).shadow_chunks;
    if chunk.load(Acquire) != 0 || pool.load(Relaxed) >= SHADOW_POOL_CHUNKS {
        return;
    }
    let number = pool.fetch_add(1, Relaxed);
    if number < SHADOW_POOL_CHUNKS {
        // (A signal handler may have been first.)
        let _ = chunk.compare_exchange(0, number + 1, AcqRel, Relaxed);
    }
}

/// The places that may be in use.
fn places(block: *mut ThreadBlock) -> impl DoubleEndedIterator<Item = *mut ShadowFrame> {
    // SAFETY: a block that was handed out.
    let used = unsafe { &raw const (*block).shadow_used };
    // SAFETY: as above. (Its owner may be changing it.)
    let used = unsafe { used.read_volatile() };
    (0..used.min(SHADOW_FRAMES_MAX)).map(move |index| any_place(block, index)).filter(|place| !place.is_null())
}

/// The contents of a place, which its owner may be changing.
fn frame_at(place: *mut ShadowFrame) -> ShadowFrame {
    // SAFETY: a place of a block that was handed out.
    unsafe { place.read_volatile() }
}

/// Drops all frames: the block belongs to another thread now.
pub(crate) fn forget_all(tb: &mut ThreadBlock) {
    for place in places(tb) {
        // SAFETY: a place of the running thread's own block.
        unsafe { (*place).slot = 0 };
    }
    (tb.shadow_used, tb.shadow_change, tb.shadow_look) = (0, 0, SHADOW_FRAMES);
    (tb.shadow_holes, tb.shadow_searched) = (0, 0);
    (tb.unwinders, tb.restored) = (0, 0);
}

/// Changes frames, and tells signal handlers so meanwhile (`ThreadBlock::shadow_change`).
#[inline(always)]
fn changing<R>(tb: &mut ThreadBlock, how: u32, change: impl FnOnce(&mut ThreadBlock) -> R) -> R {
    let before = core::mem::replace(&mut tb.shadow_change, how);
    compiler_fence(Release);
    let result = change(tb);
    compiler_fence(Release);
    tb.shadow_change = before;
    result
}

/// Adds to a number of this thread, in one instruction, so that no signal handler interrupts it. Returns the old value.
fn add(number: &mut u32, by: u32) -> u32 {
    let was;
    // SAFETY: one instruction on a word that is this thread's.
    unsafe { asm!("xadd [{}], {:e}", in(reg) number, inout(reg) by => was, options(nostack)) };
    was
}

/// Changes a number of this thread from `from` to `to`, in one instruction. False if it was not `from`.
fn exchange(number: &mut u32, from: u32, to: u32) -> bool {
    let was: u32;
    // SAFETY: one instruction on a word that is this thread's.
    unsafe { asm!("cmpxchg [{}], {:e}", in(reg) number, in(reg) to, inout("eax") from => was, options(nostack)) };
    was == from
}

/// Fills a place. The slot is written last, so a place with a slot is complete.
#[inline(always)]
fn fill(tb: *mut ThreadBlock, (index, place): (u32, *mut ShadowFrame), frame: ShadowFrame) {
    // SAFETY: a place of the running thread's own block, which is free.
    let place = unsafe { &mut *place };
    place.slot = 0;
    compiler_fence(Release);
    // SAFETY: the tag of that place.
    unsafe { tag(tb, index).write(tag_of(frame.slot)) };
    if index >= SHADOW_FRAMES {
        cold_path();
        widen_bounds(tb, index - SHADOW_FRAMES, frame.slot);
    }
    *place = ShadowFrame { slot: 0, ..frame };
    compiler_fence(Release);
    place.slot = frame.slot;
}

/// Clears a place's slot, in any thread's block. False if it was gone already.
fn claim(place: *mut ShadowFrame, slot: u64) -> bool {
    // SAFETY: a place of a block that was handed out.
    let word = unsafe { &raw mut (*place).slot };
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(word) }.compare_exchange(slot, 0, AcqRel, Relaxed).is_ok()
}

/// Keeps the frames for which `keep` says so, in order.
fn retain(tb: &mut ThreadBlock, keep: impl Fn(&ShadowFrame) -> bool) {
    changing(tb, CHANGE_MOVE, |tb| retain_now(tb, keep));
}

fn retain_now(tb: &mut ThreadBlock, keep: impl Fn(&ShadowFrame) -> bool) {
    tb.shadow_holes = 0;
    let (before, mut kept) = (tb.shadow_used, 0u32);
    let used = before.min(SHADOW_FRAMES_MAX);
    for index in 0..used {
        let from = any_place(tb, index);
        if from.is_null() {
            break;
        }
        let frame = frame_at(from);
        if keep(&frame) {
            let to = any_place(tb, kept);
            if kept != index {
                fill(tb, (kept, to), frame);
                if !claim(from, frame.slot) {
                    // Taken by a thread that a fiber went to.
                    // SAFETY: a place of the running thread's own block.
                    unsafe { (*to).slot = 0 };
                }
            }
            kept += 1;
        }
    }
    for place in (kept..used).map(|index| any_place(tb, index)).filter(|place| !place.is_null()) {
        // SAFETY: as above.
        unsafe { (*place).slot = 0 };
    }
    if !exchange(&mut tb.shadow_used, before, kept) {
        // Who was taken for left by somebody on another stack goes on: frames have come behind.
        tb.shadow_used = tb.shadow_used.max(kept);
    }
}

/// Replaces the return address at `slot`, the stack pointer at a function's entry. `None` if there is no room (counted), or if
/// this is a signal handler that interrupted the moving of frames. Otherwise whether the function was called, not reached by a
/// tail call of another probed function.
#[inline(always)]
pub(crate) fn push(tb: &mut ThreadBlock, slot: u64, hook: &Hook) -> Option<bool> {
    let before = tb.shadow_change;
    if before == CHANGE_MOVE {
        cold_path();
        return None;
    }
    changing(tb, CHANGE_PUSH, |tb| push_now(tb, slot, hook, before == 0))
}

/// See [`push`]. Nothing is moved if this interrupts the appending of a frame.
fn push_now(tb: &mut ThreadBlock, slot: u64, hook: &Hook, may_move: bool) -> Option<bool> {
    let trampoline = hook.trampoline;
    // SAFETY: at a function's entry the stack pointer points to the return address.
    let return_address = unsafe { (slot as *const u64).read() };
    let low = low_of(tb);
    if return_address != trampoline && slot >= low {
        drop_slot(tb, slot);
        if may_move {
            drop_what_is_left(tb, trampoline);
        }
    }
    if return_address != trampoline && state(tb.region_base).fibers_move.load(Relaxed) != 0 {
        cold_path();
        drop_elsewhere(tb, slot);
    }
    if tb.shadow_used >= tb.shadow_look && may_move {
        drop_dead(tb, trampoline);
    }
    let (mut index, mut place) = append(tb);
    if place.is_null() {
        cold_path();
        if may_move && make_room(tb, trampoline) {
            (index, place) = append(tb);
        }
        if place.is_null() {
            tb.shadow_full += 1;
            return None;
        }
    }
    // (What a frame that is being appended will have is not known.)
    let low = if may_move { low.min(slot) } else { 0 };
    let frame = ShadowFrame { slot, return_address, hook: &raw const *hook as u64, restored: 0, low };
    if index >= SHADOW_FRAMES && (index - SHADOW_FRAMES).is_multiple_of(SHADOW_CHUNK_FRAMES) {
        cold_path();
        begin_bounds(tb, index - SHADOW_FRAMES, slot);
    }
    fill(tb, (index, place), frame);
    compiler_fence(Release);
    if index >= tb.shadow_used {
        // Somebody took us for left, and has made room.
        // SAFETY: a place of the running thread's own block.
        unsafe { (*place).slot = 0 };
        return None;
    }
    // SAFETY: as above; the slot is this thread's.
    unsafe { (slot as *mut u64).write(trampoline) };
    Some(return_address != trampoline)
}

/// The next place is in use now; null if there is none.
#[inline(always)]
fn append(tb: &mut ThreadBlock) -> (u32, *mut ShadowFrame) {
    let index = add(&mut tb.shadow_used, 1);
    let place = new_place(tb, index);
    if place.is_null() {
        add(&mut tb.shadow_used, 1u32.wrapping_neg());
    }
    (index, place)
}

/// All places are in use, or free and before others that are. Whether the next one is free now.
#[cold]
fn make_room(tb: &mut ThreadBlock, trampoline: u64) -> bool {
    let before = tb.shadow_used;
    if tb.shadow_holes >= HOLES_MAX || tb.shadow_full.is_multiple_of(FULL_LOOKS_EVERY) {
        drop_dead(tb, trampoline);
    }
    tb.shadow_used < before
}

/// An address below which no frame has its slot.
#[inline(always)]
fn low_of(tb: &mut ThreadBlock) -> u64 {
    let Some(last) = tb.shadow_used.checked_sub(1) else {
        tb.shadow_look = SHADOW_FRAMES;
        return u64::MAX;
    };
    let place = place(tb, last);
    // SAFETY: null, or a place of the running thread's own block.
    unsafe { place.as_ref() }.map_or(0, |frame| frame.low)
}

/// Drops the frames of a slot that holds a new return address: the function that they are for has ended without returning.
#[cold]
fn drop_slot(tb: &mut ThreadBlock, slot: u64) {
    let (mut end, mut searched) = (tb.shadow_used, 0);
    while let Some(index) = find_last(tb, slot, end, &mut searched) {
        // SAFETY: a place of the running thread's own block.
        unsafe { (*any_place(tb, index)).slot = 0 };
        add(&mut tb.shadow_holes, 1);
        end = index;
    }
    tb.shadow_searched = tb.shadow_searched.saturating_add(searched);
}

/// Where fibers move between threads: drops the frames of a slot that are in other threads' blocks. (The thread on which the function
/// returns looks among its own first.)
#[cold]
fn drop_elsewhere(tb: *mut ThreadBlock, slot: u64) {
    // SAFETY: the running thread's own block.
    let base = unsafe { (*tb).region_base };
    for block in other_blocks(tb, base) {
        while take(block, slot, &mut 0).is_some() {}
    }
}

/// Takes away free places behind the last frame, and dead frames if slots were searched among so many for long.
#[cold]
fn drop_what_is_left(tb: &mut ThreadBlock, trampoline: u64) {
    drop_free_last(tb);
    if tb.shadow_searched >= SEARCHES_PER_LOOK * u64::from(tb.shadow_used.max(SHADOW_FRAMES)) {
        drop_dead(tb, trampoline);
    }
}

/// Takes away the free places behind the last frame.
fn drop_free_last(tb: &mut ThreadBlock) {
    while let Some(last) = tb.shadow_used.checked_sub(1) {
        let place = any_place(tb, last);
        // (A signal handler may append a frame meanwhile, and takes it away again.)
        if place.is_null() || frame_at(place).slot != 0 || !exchange(&mut tb.shadow_used, last + 1, last) {
            break;
        }
    }
}

/// Drops frames whose slot shows that their function has ended. The next look is when there are twice as many frames as are left.
#[cold]
fn drop_dead(tb: &mut ThreadBlock, trampoline: u64) {
    let view: *const ThreadBlock = tb;
    retain(tb, |frame| {
        // SAFETY: `slot_content` reads ids and the guard of the block, which `retain` does not change.
        let content = slot_content(unsafe { &*view }, frame.slot);
        content == Some(trampoline) || (frame.restored != 0 && content == Some(frame.return_address))
    });
    tb.shadow_look = (2 * tb.shadow_used).max(SHADOW_FRAMES);
    tb.shadow_searched = 0;
}

/// The real return address for `content`, which was found in the slot at `slot`. Mirrors
/// kernel/events/callchain.c:fixup_uretprobe_trampoline_entries.
pub(crate) fn original(tb: &ThreadBlock, slot: u64, content: u64) -> u64 {
    // SAFETY: a frame holds the address of a hook of this region, which stays in the table.
    let trampoline = |frame: &ShadowFrame| unsafe { (*(frame.hook as *const Hook)).trampoline };
    // Of several frames with one slot the first has the address, the others the trampoline's.
    let awaited =
        |frame: &ShadowFrame| frame.slot == slot && trampoline(frame) == content && frame.return_address != content;
    let (block, mut end) = ((&raw const *tb).cast_mut(), tb.shadow_used);
    while let Some(index) = find_last(block, slot, end, &mut 0) {
        let frame = frame_at(any_place(block, index));
        if awaited(&frame) {
            return frame.return_address;
        }
        end = index;
    }
    content
}

/// Removes the latest frame with this slot from a block, whose owner may be moving it. Returns it and the index of its place,
/// which has no slot any more. Adds to `searched` as [`find_last`].
#[inline(never)]
fn take(block: *mut ThreadBlock, slot: u64, searched: &mut u64) -> Option<(ShadowFrame, u32)> {
    // SAFETY: a block that was handed out.
    let used = unsafe { &raw const (*block).shadow_used };
    // SAFETY: as above.
    let used = unsafe { used.read_volatile() };
    loop {
        let index = find_last(block, slot, used, searched)?;
        let frame = frame_at(any_place(block, index));
        if claim(any_place(block, index), slot) {
            return Some((frame, index));
        }
    }
}

/// As `take`, from the running thread's own block.
fn take_own(tb: &mut ThreadBlock, slot: u64) -> Option<ShadowFrame> {
    let before = tb.shadow_change;
    changing(tb, before.max(CHANGE_PUSH), |tb| {
        let mut searched = 0;
        let (frame, index) = take(tb, slot, &mut searched)?;
        tb.shadow_searched = tb.shadow_searched.saturating_add(searched);
        if !exchange(&mut tb.shadow_used, index + 1, index) {
            add(&mut tb.shadow_holes, 1);
        }
        if before == 0 {
            drop_free_last(tb);
        }
        Some(frame)
    })
}

/// Removes the last frame of a block, if it has this slot and a real return address (not the trampoline's). Returns that address
/// and the hook's.
#[inline(always)]
pub(crate) fn pop_last(tb: &mut ThreadBlock, slot: u64, trampoline: u64) -> Option<(u64, u64)> {
    let last = tb.shadow_used.checked_sub(1)?;
    let place = place(tb, last);
    // SAFETY: null, or a place of the running thread's own block.
    let frame = unsafe { place.as_mut() }?;
    let found = (frame.return_address, frame.hook);
    // (A signal handler that came in between may have moved it; its slot then is none.)
    compiler_fence(Acquire);
    let fits = frame.slot == slot && found.0 != trampoline;
    if fits {
        frame.slot = 0;
        // (Else frames have come behind it meanwhile.)
        exchange(&mut tb.shadow_used, last + 1, last);
    }
    fits.then_some(found)
}

/// Removes the latest frame with this slot from the thread's own block, or from another one (a fiber that moved to another
/// thread).
pub(crate) fn pop(tb: *mut ThreadBlock, base: u64, slot: u64) -> Option<ShadowFrame> {
    if !tb.is_null() {
        // SAFETY: the running thread's own block.
        let taken = take_own(unsafe { &mut *tb }, slot);
        if taken.is_some() {
            return taken;
        }
    }
    let (frame, _) = other_blocks(tb, base).find_map(|block| take(block, slot, &mut 0))?;
    state(base).fibers_move.store(1, Relaxed);
    Some(frame)
}

/// The blocks of all threads but that of `tb`.
fn other_blocks(tb: *mut ThreadBlock, base: u64) -> impl Iterator<Item = *mut ThreadBlock> {
    let used = state(base).used.load(Relaxed).min(THREADS_MAX);
    (0..used).map(move |index| block_address(base, index) as *mut ThreadBlock).filter(move |block| *block != tb)
}

/// Removes the frame of a function that returns to the trampoline from a slot above its own: it has taken its arguments off the stack
/// (`ret n`), or moved its return address. Of those below `slot` the nearest that still holds the trampoline's address.
#[cold]
pub(crate) fn pop_below(tb: *mut ThreadBlock, slot: u64, trampoline: u64) -> Option<ShadowFrame> {
    /// More than `ret n` can take.
    const TAKEN_MAX: u64 = 0x1_0000;
    // SAFETY: null, or the running thread's own block.
    let tb = unsafe { tb.as_mut() }?;
    let view: &ThreadBlock = tb;
    let slots = places((&raw const *view).cast_mut()).map(|place| frame_at(place).slot);
    let near = slots.filter(|own| *own != 0 && *own < slot && slot - own <= TAKEN_MAX);
    let nearest = near.filter(|own| slot_content(view, *own) == Some(trampoline)).max()?;
    take_own(tb, nearest)
}

/// An unwinder begins at the stack pointer `sp`: writes the real return addresses back into the slots.
pub(crate) fn unwinder_begins(tb: &mut ThreadBlock, sp: u64, trampoline: u64) {
    drop_ended_unwinders(tb, sp);
    if let Some(place) = tb.unwinder_starts.get_mut(tb.unwinders as usize) {
        let place = &raw mut *place;
        // SAFETY: a word of the running thread's own block. (Written again: a signal handler in between may have used it.)
        unsafe { place.write_volatile(sp) };
        add(&mut tb.unwinders, 1);
        // SAFETY: as above.
        unsafe { place.write_volatile(sp) };
    }
    restore_all(tb, sp, trampoline);
}

/// Forgets the unwinders that began below `sp` on its stack: the thread has left them.
fn drop_ended_unwinders(tb: &mut ThreadBlock, sp: u64) {
    while let Some(start) = innermost_unwinder(tb)
        && start < sp
        && !is_on_alternate_stack(start, sp)
    {
        tb.unwinders -= 1;
    }
}

/// The stack pointer at which the last unwinder began that has not ended.
fn innermost_unwinder(tb: &ThreadBlock) -> Option<u64> {
    tb.unwinder_starts.get((tb.unwinders as usize).checked_sub(1)?).copied()
}

/// The stack is about to be walked from the stack pointer `sp` on: writes the real return addresses back into the slots.
pub(crate) fn restore_all(tb: &mut ThreadBlock, sp: u64, trampoline: u64) {
    changing(tb, tb.shadow_change.max(CHANGE_PUSH), |tb| restore_each(tb, sp, trampoline));
}

fn restore_each(tb: &mut ThreadBlock, sp: u64, trampoline: u64) {
    // (Slots of functions that have ended may be anything now: below `sp`, words of the agent's own that hold the trampoline's
    // address.)
    let is_agents = |slot: u64| slot < sp && sp - slot <= TAKEN_BYTES;
    for place in places(tb) {
        let frame = frame_at(place);
        // (Whatever was restored before: who was about to call the function has written the trampoline's again.)
        if frame.return_address != trampoline
            && !is_agents(frame.slot)
            && slot_content(tb, frame.slot) == Some(trampoline)
        {
            set_slot(tb, frame.slot, frame.return_address);
        }
        // SAFETY: a place of the running thread's own block.
        unsafe { (*place).restored = 1 };
    }
    tb.restored = 1;
}

/// The unwinder has ended, and the thread goes on at the stack pointer `sp`: replaces the return addresses of frames above `sp`
/// whose slot still holds the real one, and drops the other frames. Frames that an interrupted unwinder has yet to pass stay as
/// they are: this is the end of an unwinder of a signal handler or clean-up routine.
pub(crate) fn unwinder_ends(tb: &mut ThreadBlock, sp: u64, trampoline: u64) {
    // (In a signal handler that came as frames were changed: the next one does it.)
    if tb.restored == 0 || tb.shadow_change != 0 {
        return;
    }
    drop_ended_unwinders(tb, sp);
    let interrupted = innermost_unwinder(tb);
    let is_elsewhere = |address: u64| is_on_alternate_stack(address, sp);
    let is_still_unwound = |slot: u64| {
        interrupted.is_some_and(|start| {
            if is_elsewhere(start) { is_elsewhere(slot) } else { slot > start || is_elsewhere(slot) }
        })
    };
    let view: *const ThreadBlock = tb;
    retain(tb, |frame| {
        if frame.restored == 0 || is_still_unwound(frame.slot) {
            return true;
        }
        // SAFETY: reads ids and the guard of the block only.
        let content = slot_content(unsafe { &*view }, frame.slot);
        // (Of several frames with one slot the first has the address: for the others its slot shows the trampoline's by now.)
        let is_there = content == Some(frame.return_address) && (frame.slot > sp || is_elsewhere(frame.slot));
        if is_there {
            // SAFETY: as above.
            set_slot(unsafe { &*view }, frame.slot, trampoline);
        }
        // (Who is about to call the function, or about to ask where it returns to, has the trampoline's there.)
        is_there || content == Some(trampoline)
    });
    for place in places(tb).filter(|place| !is_still_unwound(frame_at(*place).slot)) {
        // SAFETY: a place of the running thread's own block.
        unsafe { (*place).restored = 0 };
    }
    tb.restored = u32::from(interrupted.is_some());
}
