// Functions into whose middle indirect jumps, the unwinder and loops lead. Each takes a number of rounds and returns a sum.
// As C++ (with exceptions) or C (with distances of labels).
#include <stdio.h>
#include <stdlib.h>
#ifdef __cplusplus
#include <stdexcept>
#define FUNCTION extern "C" __attribute__((noinline)) unsigned
#else
#define FUNCTION __attribute__((noinline)) unsigned
#endif
static volatile unsigned sink;

// A jump table whose cases are a few bytes each.
FUNCTION cases(unsigned n)
{
    unsigned a = 1, b = 2;
    for (unsigned i = 0; i < n; i++) {
        switch (i * 7 % 19) {
        case 0: a++; break;
        case 1: b--; break;
        case 2: a ^= b; break;
        case 3: b += 3; break;
        case 4: sink = a; break;
        case 5: a += b; break;
        case 6: b ^= a; break;
        case 7: a = -a; break;
        case 8: b = ~b; break;
        case 9: a *= 3; break;
        case 10: b <<= 1; break;
        case 11: a >>= 1; break;
        case 12: a -= 5; break;
        case 13: sink = b; break;
        case 14: b *= 5; break;
        case 15: a |= 1; break;
        }
    }
    return a * 31 + b;
}

// Duff's device: the table leads into an unrolled loop.
FUNCTION unrolled(unsigned n)
{
    unsigned sum = 0;
    for (unsigned count = 1; count < n % 64 + 2; count++) {
        unsigned rounds = (count + 7) / 8;
        switch (count % 8) {
        case 0: do { sum++; asm volatile("" : "+r"(sum));
        case 7:      sum ^= 3; asm volatile("" : "+r"(sum));
        case 6:      sum++; asm volatile("" : "+r"(sum));
        case 5:      sum += 5; asm volatile("" : "+r"(sum));
        case 4:      sum++; asm volatile("" : "+r"(sum));
        case 3:      sum ^= 9; asm volatile("" : "+r"(sum));
        case 2:      sum++; asm volatile("" : "+r"(sum));
        case 1:      sum--; asm volatile("" : "+r"(sum));
                } while (--rounds > 0);
        }
    }
    return sum;
}

// Computed goto, by a table of pointers.
FUNCTION pointers(unsigned n)
{
    static const void *const to[] = {&&add, &&flip, &&half, &&next, &&end};
    unsigned a = 7, at = 0;
    goto *to[at];
add: a += 3; at += 1; goto *to[a % 3];
flip: a ^= 0x55; if (++at > n) goto *to[4]; goto *to[2 + a % 2];
half: a /= 2; a += at; goto *to[at % 2];
next: a *= 5; if (++at > n) goto *to[4]; goto *to[a % 4];
end: return a;
}

#ifndef __cplusplus
// Computed goto, by a table of distances.
FUNCTION distances(unsigned n)
{
    static const int to[] = {&&add - &&add, &&flip - &&add, &&end - &&add};
    unsigned a = 7, at = 0;
    goto *(&&add + to[at]);
add: a += 3; if (++at > n) goto *(&&add + to[2]); goto *(&&add + to[a % 2]);
flip: a ^= 0x57; if (++at > n) goto *(&&add + to[2]); goto *(&&add + to[(a >> 1) % 2]);
end: return a;
}
#define IN_LANGUAGE distances
#else
// Exceptions that are caught, cleaned up after, and thrown on.
struct Counted { unsigned &at; ~Counted() { at++; } };
FUNCTION odd(unsigned i) { if (i % 3 == 0) throw std::runtime_error("a third"); if (i % 5 == 0) throw i; return i; }
FUNCTION thrown(unsigned n)
{
    unsigned caught = 0, sum = 0;
    for (unsigned i = 0; i < n % 400; i++)
        try {
            Counted counted{caught};
            try { sum += odd(i); } catch (unsigned value) { sum ^= value; if (value % 2) throw; }
        } catch (const std::exception &) { sum += 2; } catch (...) { sum *= 3; }
    return sum + caught;
}
#define IN_LANGUAGE thrown
#endif

// Loops back to every part, among them to the beginning.
FUNCTION loops(unsigned n)
{
    unsigned a = 0;
again:
    a += n & 3;
    for (unsigned k = n % 7; k; k--) { a ^= k; if (a % 11 == 3) break; a += k; }
    if (n-- % 1000) goto again;
    return a;
}

int main()
{
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        unsigned n = atoi(line);
        printf("%u %u %u %u %u\n", cases(n), unrolled(n), pointers(n), IN_LANGUAGE(n), loops(n));
    }
}
