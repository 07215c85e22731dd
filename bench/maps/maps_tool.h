// SPDX-License-Identifier: MIT OR Apache-2.0
// What the programs and the tool agree on.
#define OPERATIONS 1024 // in one run of a program
#define KEYS 1024 // elements in the map
#define SLOTS 8 // threads begin at different keys
#define KEYS_APART (KEYS / SLOTS) // how far from each other
#define KEY_BYTES_MAX 64
#define TEXT 0x40000000ul // where processes have a string
#define TEXT_LENGTH 40
#define TIMES 16384 // runs whose times are kept
#define PRODUCERS 64
#define RECORD_WORDS 4 // 32 bytes: producer, its sequence number, padding
