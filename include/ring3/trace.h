/* Static tracepoints: places in a program that report an event with typed, named arguments.
 *
 *   RING3_TRACE(shop, order, order->id, RING3_FIELD(total, order->cents / 100), name);
 *
 * makes one instruction, a nop, and notes in the ELF file that say where it is and where its arguments lie. Tools
 * for USDT probes see it (`usdt:./prog:shop:order` of bpftrace, perf, bcc, SystemTap, gdb), and so does ring3. Nothing is linked
 * and nothing is called.
 *
 * PROVIDER and NAME are identifiers. 0 to 12 arguments follow: integers, enumerations, bool, pointers, text (char *), float and
 * double. The name of an argument is its source text, or the one that these give it:
 *
 *   RING3_FIELD(NAME, EXPRESSION)
 *   RING3_TYPED(NAME, TYPE, EXPRESSION)   of this type: tools that read BTF or DWARF can look into what it points to
 *   RING3_LENGTH(EXPRESSION)              behind text or a pointer: the text has so many bytes, and need not end in a 0
 *
 * Arguments are computed whether somebody traces or not. What the compiler has in a register, in memory or as a constant costs
 * nothing; anything else costs its computation. For arguments that are dear:
 *
 *   if (RING3_TRACE_ENABLED(shop, order))
 *           RING3_TRACE(shop, order, total_of(order));
 *
 * It is a comparison with memory and a branch that is not taken: true while a tool traces the event (tools count its semaphore up).
 *
 * With RING3_TRACE_OFF defined, the macros make nothing, and RING3_TRACE_ENABLED is 0.
 *
 * C99 or newer with GNU extensions, or C++11 or newer; gcc or clang; x86-64 Linux. Not with -masm=intel.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef RING3_TRACE_H
#define RING3_TRACE_H

#if !defined(RING3_TRACE_OFF) && !(defined(__x86_64__) && defined(__ELF__) && !defined(__ILP32__))
#error "ring3/trace.h is for x86-64 Linux; define RING3_TRACE_OFF before it is included to compile tracepoints to nothing"
#endif

#include "note.h"

#define RING3_FIELD(name, expression) (expression)
#define RING3_TYPED(name, type, expression) ((type)(expression))
#define RING3_LENGTH(expression) (expression)

#ifdef __cplusplus
#define RING3_TRACE_ASSERT(condition, message) static_assert(condition, message)
#else
#define RING3_TRACE_ASSERT(condition, message) __extension__ _Static_assert(condition, message)
#endif

#ifdef RING3_TRACE_OFF

#define RING3_TRACE(...) ((void)0)
#define RING3_TRACE_ENABLED(provider, name) 0

#else

/* What an argument is: pure/elf/src/tracepoint.rs. */
#define RING3_TRACE_SIGNED 1
#define RING3_TRACE_UNSIGNED 2
#define RING3_TRACE_BOOL 3
#define RING3_TRACE_POINTER 4
#define RING3_TRACE_TEXT 5
#define RING3_TRACE_FLOAT 6

/* Where an argument may be. gcc takes it from where it is. clang would copy a register to memory if memory were allowed; so it loads
 * what is in memory. Define it as "nr" for tools that cannot read a static variable in its place (bpftrace 0.17). */
#ifndef RING3_TRACE_WHERE
#ifdef __clang__
#define RING3_TRACE_WHERE "nr"
#else
#define RING3_TRACE_WHERE "nor"
#endif
#endif

/* For the compiler's decision on inlining it is one instruction, not as many as it has lines. */
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 9)
#define RING3_TRACE_ASM __asm__ __volatile__ __inline__
#else
#define RING3_TRACE_ASM __asm__ __volatile__
#endif

/* The bits of a number. */
static inline __attribute__((__always_inline__, __unused__)) unsigned ring3_trace_bits_4(float number)
{
    unsigned bits;

    __builtin_memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static inline __attribute__((__always_inline__, __unused__)) unsigned long ring3_trace_bits_8(double number)
{
    unsigned long bits;

    __builtin_memcpy(&bits, &number, sizeof(bits));
    return bits;
}

#ifdef __cplusplus

namespace ring3_trace {

struct unusable {};

/* Types after decay; 0: no argument can have it. */
template<class T> struct kind;
template<class T, bool is_enumeration> struct kind_of_named { static constexpr int value = 0; };
template<class T> struct kind_of_named<T, true> { static constexpr int value = kind<__underlying_type(T)>::value; };
template<class T> struct kind { static constexpr int value = kind_of_named<T, __is_enum(T)>::value; };
#define RING3_TRACE_INTEGER(type) \
    template<> struct kind<type> { \
        static constexpr int value = (type)-1 < (type)1 ? RING3_TRACE_SIGNED : RING3_TRACE_UNSIGNED; \
    };
RING3_TRACE_INTEGER(char)
RING3_TRACE_INTEGER(signed char)
RING3_TRACE_INTEGER(unsigned char)
RING3_TRACE_INTEGER(wchar_t)
#ifdef __cpp_char8_t
RING3_TRACE_INTEGER(char8_t)
#endif
RING3_TRACE_INTEGER(char16_t)
RING3_TRACE_INTEGER(char32_t)
RING3_TRACE_INTEGER(short)
RING3_TRACE_INTEGER(unsigned short)
RING3_TRACE_INTEGER(int)
RING3_TRACE_INTEGER(unsigned)
RING3_TRACE_INTEGER(long)
RING3_TRACE_INTEGER(unsigned long)
RING3_TRACE_INTEGER(decltype(0ll))
RING3_TRACE_INTEGER(decltype(0ull))
#undef RING3_TRACE_INTEGER
template<> struct kind<bool> { static constexpr int value = RING3_TRACE_BOOL; };
template<> struct kind<float> { static constexpr int value = RING3_TRACE_FLOAT; };
template<> struct kind<double> { static constexpr int value = RING3_TRACE_FLOAT; };
template<> struct kind<decltype(nullptr)> { static constexpr int value = RING3_TRACE_POINTER; };
template<class T> struct kind<T *> { static constexpr int value = RING3_TRACE_POINTER; };
template<> struct kind<char *> { static constexpr int value = RING3_TRACE_TEXT; };
template<> struct kind<const char *> { static constexpr int value = RING3_TRACE_TEXT; };
template<> struct kind<volatile char *> { static constexpr int value = RING3_TRACE_TEXT; };
template<> struct kind<const volatile char *> { static constexpr int value = RING3_TRACE_TEXT; };

template<bool condition, class T> struct only_if {};
template<class T> struct only_if<true, T> { typedef T type; };
template<class T> struct usable : only_if<kind<T>::value != 0, T> {};

/* What is taken by value decays; what cannot be an argument is not copied. */
template<class T>
inline __attribute__((__always_inline__)) constexpr typename usable<T>::type take(T value, int)
{
    return value;
}
template<class T> inline __attribute__((__always_inline__)) constexpr unusable take(const T &, long)
{
    return unusable();
}

template<class T> inline __attribute__((__always_inline__)) constexpr T bits(T value) { return value; }
inline __attribute__((__always_inline__)) unsigned bits(float value) { return ring3_trace_bits_4(value); }
inline __attribute__((__always_inline__)) unsigned long bits(double value) { return ring3_trace_bits_8(value); }
inline __attribute__((__always_inline__)) constexpr unsigned long bits(decltype(nullptr)) { return 0; }
inline __attribute__((__always_inline__)) constexpr int bits(unusable) { return 0; }

}

#define RING3_TRACE_TAKEN(x) auto
#define RING3_TRACE_VALUE(x) ::ring3_trace::take((x), 0)
#define RING3_TRACE_KIND(taken) (::ring3_trace::kind<decltype(taken)>::value)
#define RING3_TRACE_BITS(taken) ::ring3_trace::bits(taken)

#else

#define RING3_TRACE_TAKEN(x) __extension__ __auto_type
#define RING3_TRACE_VALUE(x) (x)
#define RING3_TRACE_IS(taken, type) __builtin_types_compatible_p(__typeof__(taken), type)
#define RING3_TRACE_IS_TEXT(taken) \
    (RING3_TRACE_IS(taken, char *) || RING3_TRACE_IS(taken, const char *) || RING3_TRACE_IS(taken, volatile char *) || \
     RING3_TRACE_IS(taken, const volatile char *))
/* gcc's classes of types: 1 to 4 integers, 5 pointers, 8 floating-point numbers. */
#define RING3_TRACE_IS_INTEGER(taken) (__builtin_classify_type(taken) >= 1 && __builtin_classify_type(taken) <= 4)
#define RING3_TRACE_INTEGER(taken) \
    __typeof__(__builtin_choose_expr(RING3_TRACE_IS_INTEGER(taken), (taken), 0))
#define RING3_TRACE_INTEGER_KIND(taken) \
    ((RING3_TRACE_INTEGER(taken))-1 < (RING3_TRACE_INTEGER(taken))1 ? RING3_TRACE_SIGNED : RING3_TRACE_UNSIGNED)
#define RING3_TRACE_KIND(taken) \
    (RING3_TRACE_IS(taken, _Bool) ? RING3_TRACE_BOOL \
     : RING3_TRACE_IS(taken, float) || RING3_TRACE_IS(taken, double) ? RING3_TRACE_FLOAT \
     : RING3_TRACE_IS_TEXT(taken) ? RING3_TRACE_TEXT \
     : __builtin_classify_type(taken) == 5 ? RING3_TRACE_POINTER \
     : RING3_TRACE_IS_INTEGER(taken) ? RING3_TRACE_INTEGER_KIND(taken) \
     : 0)
#define RING3_TRACE_AS(taken, type) __builtin_choose_expr(RING3_TRACE_IS(taken, type), (taken), (type)0)
#define RING3_TRACE_BITS(taken) \
    __builtin_choose_expr(RING3_TRACE_IS(taken, float), ring3_trace_bits_4(RING3_TRACE_AS(taken, float)), \
    __builtin_choose_expr(RING3_TRACE_IS(taken, double), ring3_trace_bits_8(RING3_TRACE_AS(taken, double)), \
    __builtin_choose_expr(RING3_TRACE_KIND(taken) != 0 && sizeof(taken) <= 8, (taken), 0)))

#endif

/* What text points to has to be in memory. (To clang, an asm without outputs reads all memory.) */
#ifdef __clang__
#define RING3_TRACE_READ(n)
#else
#define RING3_TRACE_READ(n) \
    if (RING3_TRACE_KIND(ring3_t##n) == RING3_TRACE_TEXT) \
        __asm__ __volatile__("" : : "m"(*(const char (*)[])(__UINTPTR_TYPE__)ring3_v##n));
#endif

/* Argument n: `ring3_t<n>` is its value, `ring3_v<n>` its bits. */
#define RING3_TRACE_TAKE(n, x) \
    RING3_TRACE_TAKEN(x) ring3_t##n = RING3_TRACE_VALUE(x); \
    RING3_TRACE_TAKEN(x) ring3_v##n = RING3_TRACE_BITS(ring3_t##n); \
    RING3_TRACE_ASSERT(RING3_TRACE_KIND(ring3_t##n) != 0 && sizeof(ring3_t##n) <= 8, \
                       "RING3_TRACE takes integers, enumerations, bool, pointers, char *, float and double of at most 8 bytes: pass " \
                       "a member of a struct or class, its address, or the c_str() of a string; cast what is wider"); \
    RING3_TRACE_READ(n)

#define RING3_TRACE_KIND_BYTE(n, at) \
    (RING3_TRACE_KIND(ring3_t##n) << (8 * (at)))
#define RING3_TRACE_IS_SIGNED(n) (RING3_TRACE_KIND(ring3_t##n) == RING3_TRACE_SIGNED)

/* SystemTap's specification of an argument, and its operands. */
#define RING3_TRACE_PLACE(n) "%c[ring3_s" #n "]@%[ring3_v" #n "]"
#define RING3_TRACE_OPERAND(n) \
    [ring3_s##n] "n"(RING3_TRACE_IS_SIGNED(n) ? -(int)sizeof(ring3_v##n) : (int)sizeof(ring3_v##n)), \
    [ring3_v##n] RING3_TRACE_WHERE(ring3_v##n)

/* The semaphore of a tracepoint, one for each file that is loaded. */
#define RING3_TRACE_SEMAPHORE_NAME(provider, name) "ring3.semaphore." #provider "." #name
#define RING3_TRACE_SEMAPHORE(symbol) \
    ".ifndef " symbol "\n" \
    ".pushsection .probes,\"awG\",\"progbits\"," symbol ",comdat\n" \
    ".balign 2\n" \
    ".weak " symbol "\n" \
    ".hidden " symbol "\n" \
    ".type " symbol ", @object\n" \
    ".size " symbol ", 2\n" \
    symbol ": .zero 2\n" \
    ".popsection\n" \
    ".endif\n"
/* Tools see by it how far the file was moved (prelink). */
#define RING3_TRACE_BASE \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n" \
    ".hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n" \
    ".size _.stapsdt.base, 1\n" \
    ".popsection\n" \
    ".endif\n"

/* The nop is the one-byte nop with five address-size prefixes, which change nothing. It has room for a jump. The kernel's uprobes emulate
 * it: they single-step the long nops (0f 1f), which takes a second exception. It has not 5 bytes: Linux 6.18 replaces a nop of 5 bytes by
 * a call when a uprobe hits it, and the call overwrites what a function keeps below its stack pointer (the red zone). If only the
 * first byte becomes that of a jump, the next four say 0x67676767 bytes on, where there is room for ring3's stub as a rule. The notes
 * belong to the group of their function ("?"). */
#define RING3_TRACE_PLACED(provider, name, places) \
    "8990: .byte 0x67, 0x67, 0x67, 0x67, 0x67, 0x90\n" \
    RING3_NOTE_OPEN(".note.stapsdt", "?", "stapsdt", 3) \
    ".8byte 8990b, _.stapsdt.base, " RING3_TRACE_SEMAPHORE_NAME(provider, name) "\n" \
    ".asciz \"" #provider "\"\n" \
    ".asciz \"" #name "\"\n" \
    ".asciz \"" places "\"\n" \
    RING3_NOTE_CLOSE \
    RING3_TRACE_BASE \
    RING3_TRACE_SEMAPHORE(RING3_TRACE_SEMAPHORE_NAME(provider, name))
#define RING3_TRACE_KINDS \
    RING3_NOTE_OPEN(".note.ring3.trace", "?", "ring3", 2) \
    ".8byte 8990b, _.stapsdt.base\n" \
    ".4byte %c[ring3_first], %c[ring3_second], %c[ring3_third], 0\n" \
    RING3_NOTE_CLOSE
/* (The source text may contain what an asm with operands would take for one.) */
#define RING3_TRACE_NAMES(text) \
    RING3_TRACE_ASM(RING3_NOTE_OPEN(".note.ring3.trace", "?", "ring3", 3) \
                    ".8byte 8990b, _.stapsdt.base\n" \
                    ".asciz " RING3_NOTE_QUOTE(text) "\n" \
                    RING3_NOTE_CLOSE);

/* 1 if a tool traces the event in this process, else 0. */
#ifdef __GCC_ASM_FLAG_OUTPUTS__
#define RING3_TRACE_ENABLED(provider, name) \
    __extension__({ \
        int ring3_on; \
        RING3_TRACE_ASM("cmpw $0, " RING3_TRACE_SEMAPHORE_NAME(provider, name) "(%%rip)\n" \
                        RING3_TRACE_SEMAPHORE(RING3_TRACE_SEMAPHORE_NAME(provider, name)) \
                        : "=@ccne"(ring3_on)); \
        __builtin_expect(ring3_on, 0); \
    })
#else
#define RING3_TRACE_ENABLED(provider, name) \
    __extension__({ \
        int ring3_on; \
        RING3_TRACE_ASM("movzwl " RING3_TRACE_SEMAPHORE_NAME(provider, name) "(%%rip), %0\n" \
                        RING3_TRACE_SEMAPHORE(RING3_TRACE_SEMAPHORE_NAME(provider, name)) \
                        : "=r"(ring3_on)); \
        __builtin_expect(ring3_on != 0, 0); \
    })
#endif

/* What the first n arguments add to an asm: their places, their operands, and their kinds, a byte each in three words. */
#define RING3_TRACE_PLACES_0 ""
#define RING3_TRACE_PLACES_1 RING3_TRACE_PLACE(1)
#define RING3_TRACE_PLACES_2 RING3_TRACE_PLACES_1 " " RING3_TRACE_PLACE(2)
#define RING3_TRACE_PLACES_3 RING3_TRACE_PLACES_2 " " RING3_TRACE_PLACE(3)
#define RING3_TRACE_PLACES_4 RING3_TRACE_PLACES_3 " " RING3_TRACE_PLACE(4)
#define RING3_TRACE_PLACES_5 RING3_TRACE_PLACES_4 " " RING3_TRACE_PLACE(5)
#define RING3_TRACE_PLACES_6 RING3_TRACE_PLACES_5 " " RING3_TRACE_PLACE(6)
#define RING3_TRACE_PLACES_7 RING3_TRACE_PLACES_6 " " RING3_TRACE_PLACE(7)
#define RING3_TRACE_PLACES_8 RING3_TRACE_PLACES_7 " " RING3_TRACE_PLACE(8)
#define RING3_TRACE_PLACES_9 RING3_TRACE_PLACES_8 " " RING3_TRACE_PLACE(9)
#define RING3_TRACE_PLACES_10 RING3_TRACE_PLACES_9 " " RING3_TRACE_PLACE(10)
#define RING3_TRACE_PLACES_11 RING3_TRACE_PLACES_10 " " RING3_TRACE_PLACE(11)
#define RING3_TRACE_PLACES_12 RING3_TRACE_PLACES_11 " " RING3_TRACE_PLACE(12)
#define RING3_TRACE_OPERANDS_0
#define RING3_TRACE_OPERANDS_1 RING3_TRACE_OPERANDS_0 RING3_TRACE_OPERAND(1),
#define RING3_TRACE_OPERANDS_2 RING3_TRACE_OPERANDS_1 RING3_TRACE_OPERAND(2),
#define RING3_TRACE_OPERANDS_3 RING3_TRACE_OPERANDS_2 RING3_TRACE_OPERAND(3),
#define RING3_TRACE_OPERANDS_4 RING3_TRACE_OPERANDS_3 RING3_TRACE_OPERAND(4),
#define RING3_TRACE_OPERANDS_5 RING3_TRACE_OPERANDS_4 RING3_TRACE_OPERAND(5),
#define RING3_TRACE_OPERANDS_6 RING3_TRACE_OPERANDS_5 RING3_TRACE_OPERAND(6),
#define RING3_TRACE_OPERANDS_7 RING3_TRACE_OPERANDS_6 RING3_TRACE_OPERAND(7),
#define RING3_TRACE_OPERANDS_8 RING3_TRACE_OPERANDS_7 RING3_TRACE_OPERAND(8),
#define RING3_TRACE_OPERANDS_9 RING3_TRACE_OPERANDS_8 RING3_TRACE_OPERAND(9),
#define RING3_TRACE_OPERANDS_10 RING3_TRACE_OPERANDS_9 RING3_TRACE_OPERAND(10),
#define RING3_TRACE_OPERANDS_11 RING3_TRACE_OPERANDS_10 RING3_TRACE_OPERAND(11),
#define RING3_TRACE_OPERANDS_12 RING3_TRACE_OPERANDS_11 RING3_TRACE_OPERAND(12),
#define RING3_TRACE_FIRST_0 0
#define RING3_TRACE_FIRST_1 (RING3_TRACE_FIRST_0 | RING3_TRACE_KIND_BYTE(1, 0))
#define RING3_TRACE_FIRST_2 (RING3_TRACE_FIRST_1 | RING3_TRACE_KIND_BYTE(2, 1))
#define RING3_TRACE_FIRST_3 (RING3_TRACE_FIRST_2 | RING3_TRACE_KIND_BYTE(3, 2))
#define RING3_TRACE_FIRST_4 (RING3_TRACE_FIRST_3 | RING3_TRACE_KIND_BYTE(4, 3))
#define RING3_TRACE_FIRST_5 RING3_TRACE_FIRST_4
#define RING3_TRACE_FIRST_6 RING3_TRACE_FIRST_5
#define RING3_TRACE_FIRST_7 RING3_TRACE_FIRST_6
#define RING3_TRACE_FIRST_8 RING3_TRACE_FIRST_7
#define RING3_TRACE_FIRST_9 RING3_TRACE_FIRST_8
#define RING3_TRACE_FIRST_10 RING3_TRACE_FIRST_9
#define RING3_TRACE_FIRST_11 RING3_TRACE_FIRST_10
#define RING3_TRACE_FIRST_12 RING3_TRACE_FIRST_11
#define RING3_TRACE_SECOND_0 0
#define RING3_TRACE_SECOND_1 RING3_TRACE_SECOND_0
#define RING3_TRACE_SECOND_2 RING3_TRACE_SECOND_1
#define RING3_TRACE_SECOND_3 RING3_TRACE_SECOND_2
#define RING3_TRACE_SECOND_4 RING3_TRACE_SECOND_3
#define RING3_TRACE_SECOND_5 (RING3_TRACE_SECOND_4 | RING3_TRACE_KIND_BYTE(5, 0))
#define RING3_TRACE_SECOND_6 (RING3_TRACE_SECOND_5 | RING3_TRACE_KIND_BYTE(6, 1))
#define RING3_TRACE_SECOND_7 (RING3_TRACE_SECOND_6 | RING3_TRACE_KIND_BYTE(7, 2))
#define RING3_TRACE_SECOND_8 (RING3_TRACE_SECOND_7 | RING3_TRACE_KIND_BYTE(8, 3))
#define RING3_TRACE_SECOND_9 RING3_TRACE_SECOND_8
#define RING3_TRACE_SECOND_10 RING3_TRACE_SECOND_9
#define RING3_TRACE_SECOND_11 RING3_TRACE_SECOND_10
#define RING3_TRACE_SECOND_12 RING3_TRACE_SECOND_11
#define RING3_TRACE_THIRD_0 0
#define RING3_TRACE_THIRD_1 RING3_TRACE_THIRD_0
#define RING3_TRACE_THIRD_2 RING3_TRACE_THIRD_1
#define RING3_TRACE_THIRD_3 RING3_TRACE_THIRD_2
#define RING3_TRACE_THIRD_4 RING3_TRACE_THIRD_3
#define RING3_TRACE_THIRD_5 RING3_TRACE_THIRD_4
#define RING3_TRACE_THIRD_6 RING3_TRACE_THIRD_5
#define RING3_TRACE_THIRD_7 RING3_TRACE_THIRD_6
#define RING3_TRACE_THIRD_8 RING3_TRACE_THIRD_7
#define RING3_TRACE_THIRD_9 (RING3_TRACE_THIRD_8 | RING3_TRACE_KIND_BYTE(9, 0))
#define RING3_TRACE_THIRD_10 (RING3_TRACE_THIRD_9 | RING3_TRACE_KIND_BYTE(10, 1))
#define RING3_TRACE_THIRD_11 (RING3_TRACE_THIRD_10 | RING3_TRACE_KIND_BYTE(11, 2))
#define RING3_TRACE_THIRD_12 (RING3_TRACE_THIRD_11 | RING3_TRACE_KIND_BYTE(12, 3))
#define RING3_TRACE_REPORT(n, text, provider, name) \
    RING3_TRACE_ASM(RING3_TRACE_PLACED(provider, name, RING3_TRACE_PLACES_##n) \
                    RING3_TRACE_KINDS \
                    : : RING3_TRACE_OPERANDS_##n \
                    [ring3_first] "n"(RING3_TRACE_FIRST_##n), \
                    [ring3_second] "n"(RING3_TRACE_SECOND_##n), \
                    [ring3_third] "n"(RING3_TRACE_THIRD_##n)); \
    RING3_TRACE_NAMES(text)

#define RING3_TRACE_0(text, provider, name) \
    do { \
        RING3_TRACE_REPORT(0, text, provider, name) \
    } while (0)
#define RING3_TRACE_1(text, provider, name, a1) \
    do { \
        RING3_TRACE_TAKE(1, a1) \
        RING3_TRACE_REPORT(1, text, provider, name) \
    } while (0)
#define RING3_TRACE_2(text, provider, name, a1, a2) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) \
        RING3_TRACE_REPORT(2, text, provider, name) \
    } while (0)
#define RING3_TRACE_3(text, provider, name, a1, a2, a3) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) \
        RING3_TRACE_REPORT(3, text, provider, name) \
    } while (0)
#define RING3_TRACE_4(text, provider, name, a1, a2, a3, a4) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_REPORT(4, text, provider, name) \
    } while (0)
#define RING3_TRACE_5(text, provider, name, a1, a2, a3, a4, a5) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) \
        RING3_TRACE_REPORT(5, text, provider, name) \
    } while (0)
#define RING3_TRACE_6(text, provider, name, a1, a2, a3, a4, a5, a6) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) \
        RING3_TRACE_REPORT(6, text, provider, name) \
    } while (0)
#define RING3_TRACE_7(text, provider, name, a1, a2, a3, a4, a5, a6, a7) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) RING3_TRACE_TAKE(7, a7) \
        RING3_TRACE_REPORT(7, text, provider, name) \
    } while (0)
#define RING3_TRACE_8(text, provider, name, a1, a2, a3, a4, a5, a6, a7, a8) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) RING3_TRACE_TAKE(7, a7) RING3_TRACE_TAKE(8, a8) \
        RING3_TRACE_REPORT(8, text, provider, name) \
    } while (0)
#define RING3_TRACE_9(text, provider, name, a1, a2, a3, a4, a5, a6, a7, a8, a9) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) RING3_TRACE_TAKE(7, a7) RING3_TRACE_TAKE(8, a8) \
        RING3_TRACE_TAKE(9, a9) \
        RING3_TRACE_REPORT(9, text, provider, name) \
    } while (0)
#define RING3_TRACE_10(text, provider, name, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) RING3_TRACE_TAKE(7, a7) RING3_TRACE_TAKE(8, a8) \
        RING3_TRACE_TAKE(9, a9) RING3_TRACE_TAKE(10, a10) \
        RING3_TRACE_REPORT(10, text, provider, name) \
    } while (0)
#define RING3_TRACE_11(text, provider, name, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) RING3_TRACE_TAKE(7, a7) RING3_TRACE_TAKE(8, a8) \
        RING3_TRACE_TAKE(9, a9) RING3_TRACE_TAKE(10, a10) RING3_TRACE_TAKE(11, a11) \
        RING3_TRACE_REPORT(11, text, provider, name) \
    } while (0)
#define RING3_TRACE_12(text, provider, name, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) \
    do { \
        RING3_TRACE_TAKE(1, a1) RING3_TRACE_TAKE(2, a2) RING3_TRACE_TAKE(3, a3) RING3_TRACE_TAKE(4, a4) \
        RING3_TRACE_TAKE(5, a5) RING3_TRACE_TAKE(6, a6) RING3_TRACE_TAKE(7, a7) RING3_TRACE_TAKE(8, a8) \
        RING3_TRACE_TAKE(9, a9) RING3_TRACE_TAKE(10, a10) RING3_TRACE_TAKE(11, a11) RING3_TRACE_TAKE(12, a12) \
        RING3_TRACE_REPORT(12, text, provider, name) \
    } while (0)
#define RING3_TRACE_MANY(...) \
    do { \
        RING3_TRACE_ASSERT(0, "RING3_TRACE takes at most 12 arguments behind provider and name: pass the address of a struct, or " \
                              "report two events"); \
    } while (0)
#define RING3_TRACE_FEW(...) \
    do { \
        RING3_TRACE_ASSERT(0, "RING3_TRACE wants a provider and a name: RING3_TRACE(shop, order, arguments...)"); \
    } while (0)

#define RING3_TRACE_PICK(p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19, p20, \
                         p21, p22, p23, p24, p25, p26, p27, p28, p29, p30, p31, p32, p33, p34, p35, p36, p37, p38, p39, p40, picked, ...) \
                         picked
/* Provider and name stand before the arguments, and the source text of all before them. */
#define RING3_TRACE(...) \
    RING3_TRACE_PICK(__VA_ARGS__, \
                     RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, \
                     RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, \
                     RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, \
                     RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, \
                     RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, RING3_TRACE_MANY, \
                     RING3_TRACE_MANY, RING3_TRACE_12, RING3_TRACE_11, RING3_TRACE_10, RING3_TRACE_9, RING3_TRACE_8, \
                     RING3_TRACE_7, RING3_TRACE_6, RING3_TRACE_5, RING3_TRACE_4, RING3_TRACE_3, RING3_TRACE_2, \
                     RING3_TRACE_1, RING3_TRACE_0, RING3_TRACE_FEW, 0) \
    (#__VA_ARGS__, __VA_ARGS__)

#endif

#endif
