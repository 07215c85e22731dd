/* What extensions may touch of this program: macros that leave a specification in the ELF file.
 *
 * They make no code and no data: only the section .note.ring3.eim, which is not loaded. `ring3 eim extract PROGRAM` prints
 * it. Everything behind a name is the text format of ring3's docs/EXTENSIONS.md; types, fields, functions and parameters
 * mean what they mean in C.
 *
 *   Extension_Application(nginx);
 *   State_Capability(request_line, read ngx_http_request_t.uri; length ngx_str_t.data = ngx_str_t.len);
 *   State_Capability(host, read r->headers_in.host->value of entry request);
 *   Function_Capability(finalize, void ngx_http_finalize_request(ngx_http_request_t *r, ngx_int_t rc),
 *                       require rc in 400..599; nonnull r);
 *   Extension_Entry(request, ngx_http_core_access_phase, at entry; return 0 = continue; return 400..599 = skip);
 *
 * The macros stand where declarations do, in one C or C++ file. Without rules a function is declared by
 * Function_Capability(NAME, PROTOTYPE, ) and an entry by Extension_Entry(NAME, FUNCTION, ).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef RING3_EIM_H
#define RING3_EIM_H

#include "note.h"

/* One note of type 1: text. */
#define RING3_EIM_NOTE(...) \
    __asm__(RING3_NOTE_OPEN(".note.ring3.eim", "", "ring3", 1) \
            ".ascii \"# " __FILE__ ":" RING3_NOTE_STRING(__LINE__) "\\n\"\n" \
            __VA_ARGS__ \
            RING3_NOTE_CLOSE)
#define RING3_EIM_WORDS(text) ".ascii " text "\n"

/* The program that is extended. */
#define Extension_Application(name) \
    RING3_EIM_NOTE(RING3_EIM_WORDS("\"application \\\"" #name "\\\"\""))

/* Variables and fields: State_Capability(NAME, read PATH, ...; write PATH, ...; length POINTER = FIELD; nonnull POINTER;
   member MEMBER when FIELD = NUMBER) */
#define State_Capability(name, ...) \
    RING3_EIM_NOTE(RING3_EIM_WORDS("\"state " #name " { \"") \
                   RING3_EIM_WORDS(RING3_NOTE_QUOTE(#__VA_ARGS__)) \
                   RING3_EIM_WORDS("\" }\""))

/* A function: Function_Capability(NAME, PROTOTYPE, require PARAMETER in A..B; nonnull PARAMETER; ensure return > 0) */
#define Function_Capability(name, prototype, ...) \
    RING3_EIM_NOTE(RING3_EIM_WORDS("\"function " #name " { prototype \\\"\"") \
                   RING3_EIM_WORDS(RING3_NOTE_QUOTE(#prototype)) \
                   RING3_EIM_WORDS("\"\\\"; \"") \
                   RING3_EIM_WORDS(RING3_NOTE_QUOTE(#__VA_ARGS__)) \
                   RING3_EIM_WORDS("\" }\""))

/* A function at which extensions run: Extension_Entry(NAME, FUNCTION, at entry; nonnull PARAMETER; return 0 = continue) */
#define Extension_Entry(name, symbol, ...) \
    RING3_EIM_NOTE(RING3_EIM_WORDS("\"entry " #name " { function " #symbol "; \"") \
                   RING3_EIM_WORDS(RING3_NOTE_QUOTE(#__VA_ARGS__)) \
                   RING3_EIM_WORDS("\" }\""))

#endif
