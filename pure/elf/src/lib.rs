//! ring3-elf
