// What `cargo xtask bench engine` runs: the same C as BPF programs and as native functions. Each gets 1024 bytes of memory
// (r1; r2 is their number) and returns a number that all engines must agree on.
#ifdef __bpf__
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#endif
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define PROGRAM(name) __attribute__((section("bench/" #name), used)) u64 name(u8 *memory, u64 length)
#define APART static __attribute__((noinline))
#define BYTES 1024

PROGRAM(empty)
{
	return 0;
}

PROGRAM(fibonacci)
{
	u64 a = memory[0] & 1, b = 1;
	for (int i = 0; i < 600; i++) {
		u64 next = a + b;
		a = b;
		b = next;
	}
	return a;
}

PROGRAM(bit_count)
{
	u64 sum = 0;
	for (int i = 0; i < BYTES; i += 8) {
		u64 word = *(u64 *)(memory + i);
		word -= word >> 1 & 0x5555555555555555ull;
		word = (word & 0x3333333333333333ull) + (word >> 2 & 0x3333333333333333ull);
		word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0full;
		sum += word * 0x0101010101010101ull >> 56;
	}
	return sum;
}

PROGRAM(checksum)
{
	u64 sum = 0;
	for (int i = 0; i < BYTES; i += 2)
		sum += *(u16 *)(memory + i);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)~sum;
}

PROGRAM(fnv_hash)
{
	u64 hash = 0xcbf29ce484222325ull;
	for (int i = 0; i < 512; i++) {
		hash ^= memory[i];
		hash *= 0x100000001b3ull;
	}
	return hash;
}

PROGRAM(murmur_hash)
{
	u32 hash = 42;
	for (int i = 0; i < BYTES; i += 4) {
		u32 k = *(u32 *)(memory + i) * 0xcc9e2d51;
		k = (k << 15 | k >> 17) * 0x1b873593;
		hash ^= k;
		hash = (hash << 13 | hash >> 19) * 5 + 0xe6546b64;
	}
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	return hash ^ hash >> 13;
}

PROGRAM(crc32)
{
	u32 crc = ~0u;
	for (int i = 0; i < 24; i++) {
		crc ^= memory[i];
		for (int bit = 0; bit < 8; bit++) {
			u32 low = crc & 1;
			// No branch and no mask, of which verifiers would go both ways each time.
			asm volatile("" : "+r"(low));
			crc = crc >> 1 ^ 0xedb88320 * low;
		}
	}
	return ~crc;
}

PROGRAM(prime)
{
	u32 count = 0;
	for (u32 n = 3 + (memory[1] & 2); n < 120; n += 2) {
		u32 prime = 1;
		for (u32 d = 3; d < 11; d += 2)
			if (n != d && n % d == 0)
				prime = 0;
		count += prime;
	}
	return count + memory[0];
}

PROGRAM(string_compare)
{
	for (int i = 0; i < 500; i++) {
		u8 a = memory[i], b = memory[512 + i];
		if (a != b)
			return i;
		if (!a)
			break;
	}
	return 1000;
}

PROGRAM(memory_copy)
{
	for (int i = 0; i < 256; i += 8)
		*(volatile u64 *)(memory + 768 + i) = *(volatile u64 *)(memory + 256 + i);
	return memory[800];
}

PROGRAM(byte_copy)
{
	for (int i = 0; i < 256; i++)
		*(volatile u8 *)(memory + 768 + i) = *(volatile u8 *)(memory + 256 + i);
	return memory[801];
}

PROGRAM(cases)
{
	u64 sum = 0;
	for (int i = 0; i < 256; i++) {
		switch (memory[i] & 15) {
		case 0: sum += 3; break;
		case 1: sum ^= 5; break;
		case 2: sum -= 7; break;
		case 3: sum <<= 1; break;
		case 4: sum += sum >> 3; break;
		case 5: sum |= 1; break;
		case 6: sum *= 3; break;
		case 7: sum ^= sum >> 7; break;
		case 8: sum = ~sum; break;
		case 9: sum += i; break;
		case 10: sum -= i; break;
		default: sum++; break;
		}
	}
	return sum;
}

PROGRAM(packet)
{
	u64 sum = 0;
	for (int i = 0; i < 64; i++) {
		u8 *frame = memory + i * 12;
		u16 type = __builtin_bswap16(*(u16 *)(frame + 12));
		u32 at = 14;
		if (type == 0x8100) {
			type = __builtin_bswap16(*(u16 *)(frame + 16));
			at = 18;
		}
		if (type == 0x0800 || frame[0] & 1) {
			u8 protocol = frame[at == 14 ? 23 : 27];
			u32 from = __builtin_bswap32(*(u32 *)(frame + 26)), to = __builtin_bswap32(*(u32 *)(frame + 30));
			if (protocol == 6 || protocol == 17)
				sum += __builtin_bswap16(*(u16 *)(frame + 34)) ^ __builtin_bswap16(*(u16 *)(frame + 36));
			sum += from ^ to;
		} else if (type == 0x86dd) {
			sum += frame[20];
		}
	}
	return sum;
}

PROGRAM(binary_search)
{
	u64 sum = 0;
	for (u32 key = 0; key < 8; key++) {
		u32 low = 0, high = 127;
		for (int step = 0; step < 7; step++) {
			u32 middle = (low + high) / 2 & 127;
			if (memory[middle * 8] < key * 32)
				low = middle + 1;
			else
				high = middle;
		}
		sum += low;
	}
	return sum + memory[1];
}

PROGRAM(bounds_ladder)
{
	u64 sum = 0;
	for (int i = 0; i < 512; i++) {
		u8 byte = memory[i];
		if (byte < 16)
			sum += 1;
		else if (byte < 32)
			sum += 2;
		else if (byte < 64)
			sum += 3;
		else if (byte < 96)
			sum += 5;
		else if (byte < 160)
			sum += 8;
		else if (byte < 200)
			sum += 13;
		else
			sum += 21;
	}
	return sum;
}

APART u64 mix(u64 a, u64 b, u64 c)
{
	a ^= b * 0x9e3779b97f4a7c15ull;
	return (a << 13 | a >> 51) + c;
}

PROGRAM(calls)
{
	u64 sum = memory[0];
	for (int i = 0; i < 200; i++)
		sum = mix(sum, i, sum >> 3);
	return sum;
}

APART u64 leaf(u64 a)
{
	return a * 3 + 1;
}

APART u64 middle(u64 a)
{
	return leaf(a) ^ leaf(a + 7);
}

PROGRAM(nested_calls)
{
	u64 sum = memory[0];
	for (int i = 0; i < 100; i++)
		sum += middle(sum + i);
	return sum;
}

PROGRAM(greatest_divisor)
{
	u64 sum = 0;
	for (u32 i = 1; i < 40; i++) {
		u64 a = 1000003 * (u64)i, b = 40320 + memory[i];
		for (int step = 0; step < 12; step++) {
			if (!b)
				break;
			u64 rest = a % b;
			a = b;
			b = rest;
		}
		sum += a;
	}
	return sum;
}

PROGRAM(matrix)
{
	u64 sum = 0;
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 8; j++) {
			u64 cell = 0;
			for (int k = 0; k < 8; k++)
				cell += (u64)*(u32 *)(memory + (i * 8 + k) * 4) * *(u32 *)(memory + 512 + (k * 8 + j) * 4);
			sum = sum * 31 + cell;
		}
	return sum;
}

PROGRAM(sort)
{
	for (int i = 0; i < 16; i++)
		*(volatile u32 *)(memory + 256 + i * 4) = *(u32 *)(memory + i * 4);
	for (int i = 0; i < 15; i++)
		for (int j = 0; j < 15 - i; j++) {
			u32 a = *(volatile u32 *)(memory + 256 + j * 4), b = *(volatile u32 *)(memory + 260 + j * 4);
			*(volatile u32 *)(memory + 256 + j * 4) = a < b ? a : b;
			*(volatile u32 *)(memory + 260 + j * 4) = a < b ? b : a;
		}
	return *(volatile u32 *)(memory + 284);
}

PROGRAM(histogram)
{
	u64 sum = 0;
	for (int i = 0; i < 128; i++) {
		u64 value = *(u64 *)(memory + i * 8) >> (i & 31);
		u32 log = 0;
		if (value >> 32) { log += 32; value >>= 32; }
		if (value >> 16) { log += 16; value >>= 16; }
		if (value >> 8) { log += 8; value >>= 8; }
		if (value >> 4) { log += 4; value >>= 4; }
		if (value >> 2) { log += 2; value >>= 2; }
		log += value >> 1;
		sum += 1ull << (log & 31);
	}
	return sum;
}

#define ROUND(a, b, c, d) do { \
	a += b; b = b << 13 | b >> 51; b ^= a; a = a << 32 | a >> 32; \
	c += d; d = d << 16 | d >> 48; d ^= c; \
	a += d; d = d << 21 | d >> 43; d ^= a; \
	c += b; b = b << 17 | b >> 47; b ^= c; c = c << 32 | c >> 32; \
} while (0)

PROGRAM(sip_hash)
{
	u64 a = 0x736f6d6570736575ull, b = 0x646f72616e646f6dull, c = 0x6c7967656e657261ull, d = 0x7465646279746573ull;
	for (int i = 0; i < 512; i += 8) {
		u64 word = *(u64 *)(memory + i);
		d ^= word;
		ROUND(a, b, c, d);
		ROUND(a, b, c, d);
		a ^= word;
	}
	return a ^ b ^ c ^ d;
}

PROGRAM(random_numbers)
{
	u64 state = memory[0] | 1, sum = 0;
	for (int i = 0; i < 300; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		sum += state >> 60;
	}
	return sum;
}

PROGRAM(narrow_arithmetic)
{
	u32 a = memory[0], b = 12345;
	for (int i = 0; i < 400; i++) {
		a = (a + i) * 1103515245u + 12345u;
		b ^= a >> 16;
		b = (b << 5) - b + a / 7;
	}
	return a ^ b;
}

PROGRAM(stack_work)
{
	volatile u64 slots[16];
	for (int i = 0; i < 16; i++)
		slots[i] = memory[i];
	for (int round = 0; round < 20; round++)
		for (int i = 0; i < 16; i++)
			slots[i] += slots[(i + 5) & 15] ^ round;
	return slots[7];
}

#ifdef __bpf__
// What a map's element costs in a program. A first run fills the maps.
#define LOOKUPS 256

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} hashed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} indexed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} indexed_per_cpu SEC(".maps");

#define LOOKUP(map)                                                                  \
	u64 sum = 0;                                                                 \
	for (u32 i = 0; i < LOOKUPS; i++) {                                          \
		u32 key = (i * 7) & 1023;                                            \
		u64 *value = bpf_map_lookup_elem(&map, &key);                        \
		if (value) {                                                         \
			sum += *value + 1;                                           \
		} else {                                                             \
			u64 first = 0;                                               \
			bpf_map_update_elem(&map, &key, &first, BPF_ANY);            \
			sum += 1;                                                    \
		}                                                                    \
	}                                                                            \
	return sum;

PROGRAM(hash_lookup)
{
	LOOKUP(hashed)
}

PROGRAM(array_lookup)
{
	LOOKUP(indexed)
}

PROGRAM(percpu_array_lookup)
{
	LOOKUP(indexed_per_cpu)
}
#endif

char LICENSE[] __attribute__((section("license"), used)) = "GPL";
