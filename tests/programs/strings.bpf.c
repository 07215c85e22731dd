// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls the kernel's string functions and tells their results.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "tell.bpf.h"

extern int bpf_strcmp(const char *one, const char *other) __ksym;
extern int bpf_strcasecmp(const char *one, const char *other) __ksym;
extern int bpf_strchr(const char *text, char byte) __ksym;
extern int bpf_strchrnul(const char *text, char byte) __ksym;
extern int bpf_strnchr(const char *text, unsigned long count, char byte) __ksym;
extern int bpf_strrchr(const char *text, int byte) __ksym;
extern int bpf_strlen(const char *text) __ksym;
extern int bpf_strnlen(const char *text, unsigned long count) __ksym;
extern int bpf_strspn(const char *text, const char *set) __ksym;
extern int bpf_strcspn(const char *text, const char *set) __ksym;
extern int bpf_strstr(const char *text, const char *other) __ksym;
extern int bpf_strnstr(const char *text, const char *other, unsigned long count) __ksym;

// One byte longer than they read (XATTR_SIZE_MAX), without an end.
char endless[65537] = { [0 ... 65536] = 'a' };
char empty[1];

#define USER ((const char *)4096)
#define NOWHERE ((const char *)-1)
#define NOT_CANONICAL ((const char *)0x8000000000001000UL)

SEC("uprobe")
int compared(void *ctx)
{
	char own[8] = "stack";

	TELL("strcmp: same", bpf_strcmp("same", "same"));
	TELL("strcmp: less", bpf_strcmp("abc", "abd"));
	TELL("strcmp: more", bpf_strcmp("abd", "abc"));
	TELL("strcmp: shorter", bpf_strcmp("ab", "abc"));
	TELL("strcmp: longer", bpf_strcmp("abc", "ab"));
	TELL("strcmp: empty", bpf_strcmp(empty, empty));
	TELL("strcmp: high", bpf_strcmp("\xe9", "e"));
	TELL("strcmp: stack", bpf_strcmp(own, "stack"));
	TELL("strcmp: case", bpf_strcmp("Case", "case"));
	TELL("strcmp: endless", bpf_strcmp(endless, endless));
	TELL("strcmp: user", bpf_strcmp(USER, "a"));
	TELL("strcmp: and user", bpf_strcmp("a", USER));
	TELL("strcmp: NULL", bpf_strcmp("a", NULL));
	TELL("strcmp: nowhere", bpf_strcmp(NOWHERE, "a"));
	TELL("strcmp: both", bpf_strcmp(NOWHERE, USER));
	TELL("strcmp: not canonical", bpf_strcmp(NOT_CANONICAL, "a"));
	TELL("strcasecmp: same", bpf_strcasecmp("sAme", "SaMe"));
	TELL("strcasecmp: less", bpf_strcasecmp("aBc", "ABD"));
	TELL("strcasecmp: between", bpf_strcasecmp("a_", "AZ"));
	TELL("strcasecmp: accents", bpf_strcasecmp("\xc9\xd6\xde", "\xe9\xf6\xfe"));
	TELL("strcasecmp: times", bpf_strcasecmp("\xd7", "\xf7"));
	TELL("strcasecmp: sharp s", bpf_strcasecmp("\xdf", "\xff"));
	TELL("strcasecmp: endless", bpf_strcasecmp(endless, endless));
	TELL("strcasecmp: user", bpf_strcasecmp("a", USER));
	return 0;
}

SEC("uprobe")
int bytes_found(void *ctx)
{
	TELL("strchr: first", bpf_strchr("abcabc", 'a'));
	TELL("strchr: third", bpf_strchr("abcabc", 'c'));
	TELL("strchr: none", bpf_strchr("abcabc", 'd'));
	TELL("strchr: end", bpf_strchr("abcabc", 0));
	TELL("strchr: of nothing", bpf_strchr(empty, 'a'));
	TELL("strchr: high", bpf_strchr("a\xe9", '\xe9'));
	TELL("strchr: endless", bpf_strchr(endless, 'b'));
	TELL("strchr: user", bpf_strchr(USER, 'b'));
	TELL("strchr: nowhere", bpf_strchr(NOWHERE, 'b'));
	TELL("strchrnul: third", bpf_strchrnul("abcabc", 'c'));
	TELL("strchrnul: none", bpf_strchrnul("abcabc", 'd'));
	TELL("strchrnul: end", bpf_strchrnul("abcabc", 0));
	TELL("strchrnul: endless", bpf_strchrnul(endless, 'b'));
	TELL("strchrnul: user", bpf_strchrnul(USER, 'b'));
	TELL("strnchr: third of 3", bpf_strnchr("abcabc", 3, 'c'));
	TELL("strnchr: third of 2", bpf_strnchr("abcabc", 2, 'c'));
	TELL("strnchr: of 0", bpf_strnchr("abcabc", 0, 'a'));
	TELL("strnchr: behind the end", bpf_strnchr("abc", 100, 'd'));
	TELL("strnchr: end", bpf_strnchr("abc", 100, 0));
	TELL("strnchr: endless", bpf_strnchr(endless, 65535, 'b'));
	TELL("strnchr: more", bpf_strnchr(endless, 65536, 'b'));
	TELL("strnchr: most", bpf_strnchr(endless, -1, 'b'));
	TELL("strnchr: user", bpf_strnchr(USER, 0, 'b'));
	TELL("strrchr: last", bpf_strrchr("abcabc", 'a'));
	TELL("strrchr: none", bpf_strrchr("abcabc", 'd'));
	TELL("strrchr: end", bpf_strrchr("abcabc", 0));
	TELL("strrchr: high", bpf_strrchr("\xe9", 0xe9));
	TELL("strrchr: negative", bpf_strrchr("\xe9", -23));
	TELL("strrchr: endless", bpf_strrchr(endless, 'a'));
	TELL("strrchr: user", bpf_strrchr(USER, 'a'));
	TELL("strlen", bpf_strlen("seven b"));
	TELL("strlen: empty", bpf_strlen(empty));
	TELL("strlen: endless", bpf_strlen(endless));
	TELL("strlen: user", bpf_strlen(USER));
	TELL("strlen: nowhere", bpf_strlen(NOWHERE));
	TELL("strnlen: 3", bpf_strnlen("seven b", 3));
	TELL("strnlen: 100", bpf_strnlen("seven b", 100));
	TELL("strnlen: 0", bpf_strnlen("seven b", 0));
	TELL("strnlen: endless", bpf_strnlen(endless, 65535));
	TELL("strnlen: more", bpf_strnlen(endless, 65536));
	TELL("strnlen: user", bpf_strnlen(USER, 0));
	return 0;
}

SEC("uprobe")
int texts_found(void *ctx)
{
	TELL("strspn", bpf_strspn("aabbcc", "ab"));
	TELL("strspn: all", bpf_strspn("aabb", "ab"));
	TELL("strspn: none", bpf_strspn("aabb", "c"));
	TELL("strspn: empty set", bpf_strspn("aabb", empty));
	TELL("strspn: of nothing", bpf_strspn(empty, "ab"));
	TELL("strspn: endless", bpf_strspn(endless, "a"));
	TELL("strspn: endless set", bpf_strspn("b", endless));
	TELL("strspn: user", bpf_strspn(USER, "a"));
	TELL("strspn: user set", bpf_strspn("a", USER));
	TELL("strcspn", bpf_strcspn("aabbcc", "xc"));
	TELL("strcspn: all", bpf_strcspn("aabb", "xy"));
	TELL("strcspn: none", bpf_strcspn("aabb", "xa"));
	TELL("strcspn: empty set", bpf_strcspn("aabb", empty));
	TELL("strcspn: endless", bpf_strcspn(endless, "b"));
	TELL("strcspn: endless set", bpf_strcspn("b", endless));
	TELL("strcspn: user", bpf_strcspn("a", USER));
	TELL("strstr: begins", bpf_strstr("hello", "hel"));
	TELL("strstr: ends", bpf_strstr("hello", "lo"));
	TELL("strstr: again", bpf_strstr("aaab", "aab"));
	TELL("strstr: none", bpf_strstr("hello", "lol"));
	TELL("strstr: longer", bpf_strstr("hello", "hello you"));
	TELL("strstr: empty", bpf_strstr("hello", empty));
	TELL("strstr: in nothing", bpf_strstr(empty, "a"));
	TELL("strstr: endless", bpf_strstr(endless, "hello"));
	TELL("strstr: user", bpf_strstr(USER, "a"));
	TELL("strstr: for user", bpf_strstr("a", USER));
	TELL("strnstr: 5", bpf_strnstr("hello you", "hello", 5));
	TELL("strnstr: 4", bpf_strnstr("hello you", "hello", 4));
	TELL("strnstr: ends", bpf_strnstr("hello you", "lo", 5));
	TELL("strnstr: beyond", bpf_strnstr("hello you", "you", 7));
	TELL("strnstr: 0", bpf_strnstr("hello", empty, 0));
	TELL("strnstr: none in 0", bpf_strnstr("hello", "h", 0));
	TELL("strnstr: most", bpf_strnstr("hello", "lo", -1));
	TELL("strnstr: endless", bpf_strnstr(endless, "b", 65537));
	TELL("strnstr: user", bpf_strnstr(USER, "a", 0));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
